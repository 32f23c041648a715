//! Connections: TLS, who is at the other end, and HTTP in both versions.

mod activity;
mod newcomers;
mod unread;

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
use self::newcomers::Newcomers;
use self::unread::ReadOut;
use crate::clock::now_s;
use crate::peer::{Peer, owner};
use crate::shares::Shares;

/// Longest wait for the first question, and longest head of one.
const QUESTION_MAX: Duration = Duration::from_secs(10);
/// Longest time without a question or an answer on the way.
const IDLE_MAX: Duration = Duration::from_secs(300);
/// Longest time in which nothing of an answer is taken that has begun. Events come more often.
const UNREAD_MAX: Duration = Duration::from_secs(60);
/// How long somebody who is turned away may take to hear it, and how much more they may say.
const LINGER: Duration = Duration::from_secs(1);
const UNREAD_PARTS_MAX: usize = 16;
/// Connections at once.
const CONNECTIONS_MAX: usize = 10_000;
/// Connections at once from one address, which may be that of many behind a translator.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 1_000;
/// Connections of who has shown no certificate. With newcomers they are fewer than all: some places stay for gateways.
const NAMELESS_MAX: usize = 7_000;
/// Connections of one gateway: its process may open one for each of its desks at once, and keeps the first; those before may be there yet.
const CONNECTIONS_PER_GATEWAY_MAX: usize = 16;
/// Longest handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(3);
/// Questions at once on one connection.
const STREAMS_MAX: u32 = 256;
/// Likewise on a gateway's, whose messages may be long; it asks one of each kind at a time.
const GATEWAY_STREAMS_MAX: u32 = 16;
/// How often a connection is asked whether it lives.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// How long answers under way may take at the end.
const GRACE: Duration = Duration::from_secs(5);

/// The certificate and the CA of now; exchanged while it runs.
#[derive(Clone)]
pub(crate) struct Tls {
    config: Arc<RwLock<Arc<rustls::ServerConfig>>>,
    /// Connections of who has shown a certificate end with each exchange: the CA that it was of may be believed no more.
    exchanges: Arc<watch::Sender<()>>,
}

impl Tls {
    pub(crate) fn new(config: rustls::ServerConfig) -> Self {
        Self {
            config: Arc::new(RwLock::new(Arc::new(config))),
            exchanges: Arc::new(watch::Sender::new(())),
        }
    }

    pub(crate) fn replace(&self, config: rustls::ServerConfig) {
        // With it goes what would resume sessions that the old one has begun.
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
        self.exchanges.send_replace(());
    }

    fn now(&self) -> Arc<rustls::ServerConfig> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What all connections of one listener share.
#[derive(Clone)]
struct Listening {
    tls: Option<Tls>,
    router: Router,
    newcomers: Arc<Newcomers>,
    nameless: Arc<Semaphore>,
    shares_of_gateways: Shares<GatewayId>,
    stop: watch::Receiver<bool>,
}

/// Takes connections until `stop` says so; then lets answers under way end.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<Tls>,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let shares = Shares::new(CONNECTIONS_PER_ADDRESS_MAX);
    let listening = Listening {
        tls,
        router,
        newcomers: Arc::default(),
        nameless: Arc::new(Semaphore::new(NAMELESS_MAX)),
        shares_of_gateways: Shares::new(CONNECTIONS_PER_GATEWAY_MAX),
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
                // No descriptors left, most likely: those that are there have to end first.
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let places = Arc::clone(&connections)
            .try_acquire_owned()
            .ok()
            .zip(shares.take(owner(address.ip())));
        let Some(places) = places else {
            tracing::debug!(%address, "too many connections");
            continue;
        };
        let listening = listening.clone();
        tasks.spawn(async move {
            let _places = places;
            if let Err(error) = connection(stream, address, listening).await {
                tracing::debug!(%address, %error, "a connection has ended");
            }
        });
    }
    let ended = async { while tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(GRACE, ended).await;
}

type Ended = Result<(), Box<dyn std::error::Error + Send + Sync>>;

async fn connection(stream: TcpStream, address: SocketAddr, listening: Listening) -> Ended {
    let Listening {
        tls,
        router,
        newcomers,
        nameless,
        shares_of_gateways,
        stop,
    } = listening;
    stream.set_nodelay(true)?;
    let Some(tls) = tls else {
        let never = std::future::pending();
        return http(stream, Peer::new(address, None), router, stop, never, PATIENCE).await;
    };
    // Before the configuration is taken: what is exchanged meanwhile ends it too.
    let mut exchanged = tls.exchanges.subscribe();
    let (newcomer, pushed_out) = newcomers.enter(owner(address.ip()));
    let stream = tokio::select! {
        shaken = tokio::time::timeout(HANDSHAKE_MAX, shake_hands(&tls, stream)) => shaken.map_err(|_| timed_out())??,
        () = pushed_out => return Err(io::Error::other("too many handshakes, and this the oldest").into()),
    };
    drop(newcomer);
    let certificate = stream
        .get_ref()
        .1
        .peer_certificates()
        .and_then(<[_]>::first)
        .map(|certificate| certificate.as_ref().to_vec());
    let peer = Peer::new(address, certificate.as_deref());
    let _of_gateway = match peer.gateway {
        Some(gateway) => Some(
            shares_of_gateways
                .take(gateway)
                .ok_or_else(|| io::Error::other(format!("too many connections of gateway {gateway}")))?,
        ),
        None => None,
    };
    let _of_nameless = match certificate {
        Some(_) => None,
        None => Some(nameless.try_acquire().map_err(io::Error::other)?),
    };
    let expires_s = peer.expires_s;
    let outdated = async move {
        let Some(expires_s) = expires_s else {
            return std::future::pending().await;
        };
        tokio::select! {
            () = expiry(expires_s) => {}
            // Its sender lives as long as the listener.
            _ = exchanged.changed() => {}
        }
    };
    // A session that is resumed looks at no date.
    if expires_s.is_some_and(|expires_s| expires_s <= now_s()) {
        return Err(io::Error::other("the certificate has expired since the session began").into());
    }
    http(stream, peer, router, stop, outdated, PATIENCE).await
}

async fn shake_hands(tls: &Tls, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    match TlsAcceptor::from(tls.now()).accept(stream).into_fallible().await {
        Ok(stream) => Ok(stream),
        Err((error, stream)) => {
            linger(stream).await;
            Err(error)
        }
    }
}

/// Ends when the clock on the wall says so, which may be set meanwhile.
async fn expiry(at_s: u64) {
    const LOOK_EVERY_S: u64 = 60;
    loop {
        let left_s = at_s.saturating_sub(now_s());
        if left_s == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_secs(left_s.min(LOOK_EVERY_S))).await;
    }
}

/// How long silence is borne.
#[derive(Clone, Copy)]
struct Patience {
    /// For the first question, and for the rest of a head that was begun.
    first: Duration,
    /// Between questions.
    idle: Duration,
    /// From one part of an answer to the next.
    unread: Duration,
    /// For answers on their way, when no more is to be asked.
    grace: Duration,
}

const PATIENCE: Patience = Patience {
    first: QUESTION_MAX,
    idle: IDLE_MAX,
    unread: UNREAD_MAX,
    grace: GRACE,
};

/// Waits until the other side has heard why it was turned away: closed with something unread, the connection would be reset, and the
/// alert lost on the way.
async fn linger(mut stream: TcpStream) {
    let mut unread = [0; 4_096];
    let hear_out = async {
        stream.shutdown().await?;
        for _ in 0..UNREAD_PARTS_MAX {
            if stream.read(&mut unread).await? == 0 {
                break;
            }
        }
        io::Result::Ok(())
    };
    // Who does not listen is not waited for.
    let _ = tokio::time::timeout(LINGER, hear_out).await;
}

/// Speaks with the other end until one of both has enough, or `outdated` ends.
async fn http<T>(
    stream: T,
    peer: Peer,
    router: Router,
    mut stop: watch::Receiver<bool>,
    outdated: impl Future<Output = ()>,
    patience: Patience,
) -> Ended
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let activity = Activity::new();
    let streams = match peer.gateway {
        Some(_) => GATEWAY_STREAMS_MAX,
        None => STREAMS_MAX,
    };
    let asks = activity.clone();
    let service = router.map_request(move |request: Request<Incoming>| {
        let mut request = match request.version() {
            Version::HTTP_2 => request.map(|body| Body::new(ReadOut::new(body))),
            _ => request.map(Body::new),
        };
        if let Some(gateway) = peer.gateway {
            request.extensions_mut().insert(PeerGateway(gateway));
        }
        request.extensions_mut().insert(peer.clone());
        request
    });
    let service = asks.watch(service);
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(patience.first);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(KEEPALIVE))
        .max_concurrent_streams(streams);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = activity.silence(patience) => return Err(timed_out().into()),
        () = outdated => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
    connection.as_mut().graceful_shutdown();
    // Streams of events have no end of their own.
    match tokio::time::timeout(patience.grace, connection).await {
        Ok(ended) => ended,
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

    const SHORT: Patience = Patience {
        first: Duration::from_millis(100),
        idle: Duration::from_millis(200),
        unread: Duration::from_millis(300),
        grace: Duration::from_millis(100),
    };

    /// What a connection hears that says `said` and nothing more, until it is ended.
    async fn heard(said: &[u8], router: Router, outdated: impl Future<Output = ()>) -> Vec<u8> {
        let (mut ours, theirs) = tokio::io::duplex(1 << 16);
        let (_go_on, stop) = watch::channel(false);
        let peer = Peer::new(([127, 0, 0, 1], 1).into(), None);
        let at_work = http(theirs, peer, router, stop, outdated, SHORT);
        let talk = async {
            ours.write_all(said).await.unwrap();
            let mut heard = Vec::new();
            ours.read_to_end(&mut heard).await.unwrap();
            heard
        };
        tokio::join!(at_work, talk).1
    }

    #[tokio::test]
    async fn who_asks_nothing_holds_no_place() {
        for said in [
            &b""[..],
            b"PRI * HTT",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET / HT",
        ] {
            heard(said, Router::new(), std::future::pending()).await;
        }
        let said = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let answered = heard(said, Router::new(), std::future::pending()).await;
        assert!(answered.starts_with(b"HTTP/1.1 404"), "{answered:?}");
    }

    /// Who asks for much and takes nothing of it, or a byte, is waited for no longer than a while, whatever else is asked meanwhile.
    #[tokio::test]
    async fn answers_that_nobody_takes_are_not_kept() {
        for window in [0, 1] {
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            let (_go_on, stop) = watch::channel(false);
            let peer = Peer::new(([127, 0, 0, 1], 1).into(), None);
            let router = Router::new()
                .route("/much", get(|| async { vec![0_u8; 1 << 20] }))
                .route("/", get(|| async {}));
            let at_work = http(theirs, peer, router, stop, std::future::pending(), SHORT);
            let (mut asks, connection) = h2::client::Builder::new()
                .initial_window_size(window)
                .handshake::<_, Bytes>(ours)
                .await
                .unwrap();
            tokio::spawn(connection);
            let mut ask = move |path: &str| {
                let request = Request::get(format!("http://a{path}")).body(()).unwrap();
                asks.send_request(request, true).map(|(answer, _)| answer)
            };
            let kept = ask("/much").unwrap();
            let talk = async {
                let kept = kept.await.unwrap();
                while let Ok(answer) = ask("/") {
                    if answer.await.is_err() {
                        break;
                    }
                }
                drop(kept);
            };
            let both = async { tokio::join!(at_work, talk).0 };
            let ended = tokio::time::timeout(Duration::from_secs(30), both).await;
            let ended = ended.expect("it is kept for ever");
            assert!(ended.unwrap_err().to_string().contains("timed out"));
        }
    }

    /// A refusal is heard though the question's body is on its way still.
    #[tokio::test]
    async fn refusals_are_heard_before_the_end_of_the_question() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (_go_on, stop) = watch::channel(false);
        let peer = Peer::new(([127, 0, 0, 1], 1).into(), None);
        let at_work = http(theirs, peer, Router::new(), stop, std::future::pending(), SHORT);
        let (mut asks, connection) = h2::client::handshake(ours).await.unwrap();
        tokio::spawn(connection);
        let talk = async {
            for _ in 0..50 {
                let request = Request::post("http://a/nowhere").body(()).unwrap();
                let (answer, mut body) = asks.send_request(request, false).unwrap();
                let mut answer = answer.await.unwrap();
                assert_eq!(answer.status(), 404);
                while let Some(part) = answer.body_mut().data().await {
                    part.unwrap();
                }
                body.send_data(Bytes::from_static(b"{}"), true).unwrap();
            }
            drop(asks);
        };
        // Nothing is asked any more then, and the connection ends for that.
        let both = async { tokio::join!(at_work, talk).0 };
        let ended = tokio::time::timeout(Duration::from_secs(30), both).await;
        drop(ended.expect("all refusals are heard"));
    }

    /// Whoever's certificate is good no more is waited for no longer, though an answer is on its way for ever.
    #[tokio::test]
    async fn an_outdated_connection_ends() {
        let (asked, mut is_asked) = tokio::sync::mpsc::unbounded_channel();
        let never = move || {
            asked.send(()).unwrap();
            std::future::pending::<&'static str>()
        };
        let router = Router::new().route("/never", get(never));
        let outdated = async move { is_asked.recv().await.unwrap() };
        let answered = heard(b"GET /never HTTP/1.1\r\nHost: a\r\n\r\n", router, outdated).await;
        assert!(answered.is_empty(), "{answered:?}");
    }
}
