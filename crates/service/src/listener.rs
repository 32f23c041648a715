//! Connections: TLS, identification of peers, and HTTP/1.1 and HTTP/2.

mod activity;
mod handshakes;
mod request_body;
pub(crate) mod socket;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Version};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use linewarden_link::PeerGateway;
use linewarden_protocol::ids::GatewayId;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tower::ServiceExt as _;

use self::activity::Activity;
use self::handshakes::PendingHandshakes;
use self::request_body::DrainedBody;
use crate::clock::now_s;
use crate::peer::{Peer, address_owner};
use crate::permits::KeyedPermits;

/// Maximum time until the first request, and for the head of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time without a request in progress.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum time in which a peer reads nothing of a response. Events and keep-alive messages are more frequent.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time for a refused peer to read the TLS alert. A client on a busy machine needs more than a second.
const LINGER_TIMEOUT: Duration = HANDSHAKE_TIMEOUT;
/// Maximum number of reads that discard data of a refused peer within [`LINGER_TIMEOUT`].
const LINGER_READS_MAX: usize = 16;
/// Maximum number of connections.
const CONNECTIONS_MAX: usize = 10_000;
/// Maximum number of connections from one address, which may be a NAT shared by many hosts.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 1_000;
/// Maximum number of connections without a client certificate. Together with the pending handshakes, this number is less
/// than the maximum of all connections, so that some connections remain for gateways.
const CONNECTIONS_WITHOUT_CERTIFICATE_MAX: usize = 7_000;
/// Maximum number of connections of one gateway. A gateway process may connect to several controllers at once and keeps
/// the first connection that succeeds. Connections of an earlier process may still exist.
const CONNECTIONS_PER_GATEWAY_MAX: usize = 16;
/// Maximum duration of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of concurrent requests on one connection.
const STREAMS_MAX: u32 = 256;
/// Maximum number of concurrent requests on a connection of a gateway, whose messages may be large. A gateway sends one
/// request of each method at a time.
const GATEWAY_STREAMS_MAX: u32 = 16;
/// Interval of HTTP/2 keepalive pings.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// Maximum time for responses in progress at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The current certificate and CA, replaceable at run time.
#[derive(Clone)]
pub(crate) struct Tls {
    config: Arc<RwLock<Arc<rustls::ServerConfig>>>,
    /// Notified when `config` is replaced. Each replacement ends all connections with a client certificate, because the
    /// CA of the client certificate may no longer be trusted.
    replacements: Arc<watch::Sender<()>>,
}

impl Tls {
    pub(crate) fn new(config: rustls::ServerConfig) -> Self {
        Self {
            config: Arc::new(RwLock::new(Arc::new(config))),
            replacements: Arc::new(watch::Sender::new(())),
        }
    }

    pub(crate) fn replace(&self, config: rustls::ServerConfig) {
        // This also drops the session resumption state of the old configuration.
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
        self.replacements.send_replace(());
    }

    fn current_config(&self) -> Arc<rustls::ServerConfig> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// State shared by all connections of one listener.
#[derive(Clone)]
struct ListenerContext {
    tls: Option<Tls>,
    router: Router,
    handshakes: Arc<PendingHandshakes>,
    permits_without_certificate: Arc<Semaphore>,
    gateway_permits: KeyedPermits<GatewayId>,
    stop: watch::Receiver<bool>,
}

/// Accepts connections until `stop` is set, then waits for responses in progress.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<Tls>,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let address_permits = KeyedPermits::new(CONNECTIONS_PER_ADDRESS_MAX);
    let context = ListenerContext {
        tls,
        router,
        handshakes: Arc::default(),
        permits_without_certificate: Arc::new(Semaphore::new(CONNECTIONS_WITHOUT_CERTIFICATE_MAX)),
        gateway_permits: KeyedPermits::new(CONNECTIONS_PER_GATEWAY_MAX),
        stop: stop.clone(),
    };
    let mut tasks = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
            Some(_) = tasks.join_next() => continue,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // The most likely cause: the process has no free file descriptor until another connection ends.
                tracing::warn!(%error, "failed to accept connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let permits = Arc::clone(&connections)
            .try_acquire_owned()
            .ok()
            .zip(address_permits.take(address_owner(address.ip())));
        let Some(permits) = permits else {
            tracing::debug!(peer = %address, "connection limit reached; connection closed");
            continue;
        };
        let context = context.clone();
        tasks.spawn(async move {
            let _permits = permits;
            if let Err(error) = connection(stream, address, context).await {
                tracing::debug!(peer = %address, %error, "connection ended with an error");
            }
        });
    }
    let all_tasks = async { while tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, all_tasks).await;
}

type ConnectionResult = Result<(), Box<dyn std::error::Error + Send + Sync>>;

async fn connection(stream: TcpStream, address: SocketAddr, context: ListenerContext) -> ConnectionResult {
    let ListenerContext {
        tls,
        router,
        handshakes,
        permits_without_certificate,
        gateway_permits,
        stop,
    } = context;
    stream.set_nodelay(true)?;
    let Some(tls) = tls else {
        let never_outdated = std::future::pending();
        return http(
            stream,
            Peer::new(address, None),
            router,
            stop,
            never_outdated,
            TIMEOUTS,
        )
        .await;
    };
    // The subscription begins before the configuration is read, so that no replacement is missed.
    let mut replacements = tls.replacements.subscribe();
    let (pending, evicted) = handshakes.add(address_owner(address.ip()));
    let stream = tokio::select! {
        result = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake(&tls, stream)) => result.map_err(|_| timed_out())??,
        () = evicted => return Err(io::Error::other("handshake ended: the oldest of too many pending handshakes").into()),
    };
    drop(pending);
    let certificate = stream
        .get_ref()
        .1
        .peer_certificates()
        .and_then(<[_]>::first)
        .map(|certificate| certificate.as_ref().to_vec());
    let peer = Peer::new(address, certificate.as_deref());
    let _gateway_permit = match peer.gateway {
        Some(gateway) => Some(
            gateway_permits
                .take(gateway)
                .ok_or_else(|| io::Error::other(format!("too many connections of gateway {gateway}")))?,
        ),
        None => None,
    };
    let _permit_without_certificate = match certificate {
        Some(_) => None,
        None => Some(
            permits_without_certificate
                .try_acquire()
                .map_err(io::Error::other)?,
        ),
    };
    let expires_at_s = peer.expires_at_s;
    let outdated = async move {
        let Some(expires_at_s) = expires_at_s else {
            return std::future::pending().await;
        };
        tokio::select! {
            () = until_expiry(expires_at_s) => {}
            // `changed` returns no error, because the sender lives as long as the listener.
            _ = replacements.changed() => {}
        }
    };
    // TLS session resumption does not check the certificate's expiry.
    if expires_at_s.is_some_and(|expires_at_s| expires_at_s <= now_s()) {
        return Err(io::Error::other("the certificate of the resumed session has expired").into());
    }
    http(stream, peer, router, stop, outdated, TIMEOUTS).await
}

async fn handshake(tls: &Tls, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    match TlsAcceptor::from(tls.current_config())
        .accept(stream)
        .into_fallible()
        .await
    {
        Ok(stream) => Ok(stream),
        Err((error, stream)) => {
            linger(stream).await;
            Err(error)
        }
    }
}

/// Waits until the system clock reaches `at_s`. The function reads the clock repeatedly, because an operator or NTP may
/// set the clock.
async fn until_expiry(at_s: u64) {
    const CHECK_INTERVAL_S: u64 = 60;
    loop {
        let remaining_s = at_s.saturating_sub(now_s());
        if remaining_s == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_secs(remaining_s.min(CHECK_INTERVAL_S))).await;
    }
}

/// Timeouts of a connection.
#[derive(Clone, Copy)]
struct Timeouts {
    /// For the first request, and for the head of a request.
    request: Duration,
    /// Between requests.
    idle: Duration,
    /// Between two reads of the peer from a response.
    write: Duration,
    /// For responses in progress at shutdown.
    shutdown: Duration,
}

const TIMEOUTS: Timeouts = Timeouts {
    request: REQUEST_TIMEOUT,
    idle: IDLE_TIMEOUT,
    write: WRITE_TIMEOUT,
    shutdown: SHUTDOWN_TIMEOUT,
};

/// Reads and discards data of a refused peer until the peer has received the alert and closes the connection. A
/// connection that is closed with unread data is reset, and the peer might not receive the alert.
async fn linger(mut stream: TcpStream) {
    let mut buffer = [0; 4_096];
    let drain = async {
        stream.shutdown().await?;
        for _ in 0..LINGER_READS_MAX {
            if stream.read(&mut buffer).await? == 0 {
                break;
            }
        }
        io::Result::Ok(())
    };
    // The timeout also ends a connection that the peer does not close.
    let _ = tokio::time::timeout(LINGER_TIMEOUT, drain).await;
}

/// Serves HTTP until the connection ends, `outdated` completes or `stop` is set. `outdated` completes when the client
/// certificate has expired, or when the TLS configuration was replaced.
async fn http<T>(
    stream: T,
    peer: Peer,
    router: Router,
    mut stop: watch::Receiver<bool>,
    outdated: impl Future<Output = ()>,
    timeouts: Timeouts,
) -> ConnectionResult
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let activity = Activity::new();
    let streams_max = match peer.gateway {
        Some(_) => GATEWAY_STREAMS_MAX,
        None => STREAMS_MAX,
    };
    let tracker = activity.clone();
    let service = router.map_request(move |request: Request<Incoming>| {
        let mut request = match request.version() {
            Version::HTTP_2 => request.map(|body| Body::new(DrainedBody::new(body))),
            _ => request.map(Body::new),
        };
        if let Some(gateway) = peer.gateway {
            request.extensions_mut().insert(PeerGateway(gateway));
        }
        request.extensions_mut().insert(peer.clone());
        request
    });
    let service = tracker.track(service);
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(timeouts.request);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(KEEPALIVE_INTERVAL))
        .max_concurrent_streams(streams_max);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        result = connection.as_mut() => return result,
        () = activity.until_timeout(timeouts) => return Err(timed_out().into()),
        () = outdated => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
    connection.as_mut().graceful_shutdown();
    // The time is limited, because event streams do not end by themselves.
    match tokio::time::timeout(timeouts.shutdown, connection).await {
        Ok(result) => result,
        Err(_) => Err(timed_out().into()),
    }
}

fn timed_out() -> io::Error {
    io::ErrorKind::TimedOut.into()
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;
    use axum::routing::get;

    use super::*;

    const SHORT_TIMEOUTS: Timeouts = Timeouts {
        request: Duration::from_millis(100),
        idle: Duration::from_millis(200),
        write: Duration::from_millis(300),
        shutdown: Duration::from_millis(100),
    };

    /// Sends `request` on a connection and returns all received data when the connection has ended.
    async fn exchange(request: &[u8], router: Router, outdated: impl Future<Output = ()>) -> Vec<u8> {
        let (mut client_end, server_end) = tokio::io::duplex(1 << 16);
        let (_stop_sender, stop) = watch::channel(false);
        let peer = Peer::new(([127, 0, 0, 1], 1).into(), None);
        let server = http(server_end, peer, router, stop, outdated, SHORT_TIMEOUTS);
        let client = async {
            client_end.write_all(request).await.unwrap();
            let mut received = Vec::new();
            client_end.read_to_end(&mut received).await.unwrap();
            received
        };
        tokio::join!(server, client).1
    }

    #[tokio::test]
    async fn connections_without_a_request_are_closed() {
        for request in [
            &b""[..],
            b"PRI * HTT",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET / HT",
        ] {
            exchange(request, Router::new(), std::future::pending()).await;
        }
        let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let received = exchange(request, Router::new(), std::future::pending()).await;
        assert!(received.starts_with(b"HTTP/1.1 404"), "{received:?}");
    }

    /// A peer that reads nothing, or only one byte, of a large response is disconnected although it sends other requests.
    #[tokio::test]
    async fn unread_responses_time_out() {
        for window in [0, 1] {
            let (client_end, server_end) = tokio::io::duplex(1 << 16);
            let (_stop_sender, stop) = watch::channel(false);
            let peer = Peer::new(([127, 0, 0, 1], 1).into(), None);
            let router = Router::new()
                .route("/much", get(|| async { vec![0_u8; 1 << 20] }))
                .route("/", get(|| async {}));
            let server = http(
                server_end,
                peer,
                router,
                stop,
                std::future::pending(),
                SHORT_TIMEOUTS,
            );
            let (mut sender, connection) = h2::client::Builder::new()
                .initial_window_size(window)
                .handshake::<_, Bytes>(client_end)
                .await
                .unwrap();
            tokio::spawn(connection);
            let mut send = move |path: &str| {
                let request = Request::get(format!("http://a{path}")).body(()).unwrap();
                sender.send_request(request, true).map(|(response, _)| response)
            };
            let response = send("/much").unwrap();
            let client = async {
                let response = response.await.unwrap();
                while let Ok(response) = send("/") {
                    if response.await.is_err() {
                        break;
                    }
                }
                drop(response);
            };
            let server_and_client = async { tokio::join!(server, client).0 };
            let result = tokio::time::timeout(Duration::from_secs(30), server_and_client).await;
            let result = result.expect("the connection is never closed");
            assert!(result.unwrap_err().to_string().contains("timed out"));
        }
    }

    /// The client receives a refusal although it is still sending the request body.
    #[tokio::test]
    async fn refusals_arrive_before_the_end_of_the_request() {
        let (client_end, server_end) = tokio::io::duplex(1 << 16);
        let (_stop_sender, stop) = watch::channel(false);
        let peer = Peer::new(([127, 0, 0, 1], 1).into(), None);
        let server = http(
            server_end,
            peer,
            Router::new(),
            stop,
            std::future::pending(),
            SHORT_TIMEOUTS,
        );
        let (mut sender, connection) = h2::client::handshake(client_end).await.unwrap();
        tokio::spawn(connection);
        let client = async {
            for _ in 0..50 {
                let request = Request::post("http://a/nowhere").body(()).unwrap();
                let (response, mut body) = sender.send_request(request, false).unwrap();
                let mut response = response.await.unwrap();
                assert_eq!(response.status(), 404);
                while let Some(part) = response.body_mut().data().await {
                    part.unwrap();
                }
                body.send_data(Bytes::from_static(b"{}"), true).unwrap();
            }
            drop(sender);
        };
        // The client then sends no more requests, and the server closes the idle connection.
        let server_and_client = async { tokio::join!(server, client).0 };
        let result = tokio::time::timeout(Duration::from_secs(30), server_and_client).await;
        drop(result.expect("all refusals arrive"));
    }

    /// An outdated connection is closed even if a response is still pending.
    #[tokio::test]
    async fn an_outdated_connection_ends() {
        let (request_sender, mut is_requested) = tokio::sync::mpsc::unbounded_channel();
        let never = move || {
            request_sender.send(()).unwrap();
            std::future::pending::<&'static str>()
        };
        let router = Router::new().route("/never", get(never));
        let outdated = async move { is_requested.recv().await.unwrap() };
        let received = exchange(b"GET /never HTTP/1.1\r\nHost: a\r\n\r\n", router, outdated).await;
        assert!(received.is_empty(), "{received:?}");
    }
}
