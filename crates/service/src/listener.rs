//! Connections: TLS, who is at the other end, and HTTP in both versions.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use linewarden_link::PeerGateway;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use crate::peer::Peer;

/// Longest handshake, longest wait for the first question, and longest head of one.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// How long somebody who is turned away may take to hear it, and how much more they may say.
const LINGER: Duration = Duration::from_secs(1);
const UNREAD_PARTS_MAX: usize = 16;
/// Connections at once.
const CONNECTIONS_MAX: usize = 10_000;
/// Connections that have not shown yet who they are.
const HANDSHAKES_MAX: usize = 256;
/// Questions at once on one connection.
const STREAMS_MAX: u32 = 256;
/// How often a connection is asked whether it lives.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// How long answers under way may take at the end.
const GRACE: Duration = Duration::from_secs(5);

/// The certificate and the CA of now; exchanged while it runs.
#[derive(Clone)]
pub(crate) struct Tls(Arc<RwLock<Arc<rustls::ServerConfig>>>);

impl Tls {
    pub(crate) fn new(config: rustls::ServerConfig) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(config))))
    }

    pub(crate) fn replace(&self, config: rustls::ServerConfig) {
        *self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::new(config);
    }

    fn now(&self) -> Arc<rustls::ServerConfig> {
        Arc::clone(&self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

/// Takes connections until `stop` says so; then lets answers under way end.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<Tls>,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
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
        let Ok(place) = Arc::clone(&connections).try_acquire_owned() else {
            tracing::debug!(%address, "too many connections");
            continue;
        };
        let (tls, router) = (tls.clone(), router.clone());
        let (handshakes, stop) = (Arc::clone(&handshakes), stop.clone());
        tasks.spawn(async move {
            let _place = place;
            if let Err(error) = connection(stream, address, tls, handshakes, router, stop).await {
                tracing::debug!(%address, %error, "a connection has ended");
            }
        });
    }
    let ended = async { while tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(GRACE, ended).await;
}

async fn connection(
    stream: TcpStream,
    address: std::net::SocketAddr,
    tls: Option<Tls>,
    handshakes: Arc<Semaphore>,
    router: Router,
    stop: watch::Receiver<bool>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    stream.set_nodelay(true)?;
    let Some(tls) = tls else {
        return http(stream, Peer::new(address, None), router, stop, HANDSHAKE_MAX).await;
    };
    let handshake = async {
        let _place = handshakes.acquire().await.map_err(io::Error::other)?;
        match TlsAcceptor::from(tls.now()).accept(stream).into_fallible().await {
            Ok(stream) => Ok(stream),
            Err((error, stream)) => {
                linger(stream).await;
                Err(error)
            }
        }
    };
    let stream = tokio::time::timeout(HANDSHAKE_MAX, handshake)
        .await
        .map_err(|_| timed_out())??;
    let certificate = stream
        .get_ref()
        .1
        .peer_certificates()
        .and_then(<[_]>::first)
        .map(|certificate| certificate.as_ref().to_vec());
    let peer = Peer::new(address, certificate.as_deref());
    http(stream, peer, router, stop, HANDSHAKE_MAX).await
}

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

/// `patience`: for the first question, and for the rest of a head that was begun.
async fn http<T>(
    stream: T,
    peer: Peer,
    router: Router,
    mut stop: watch::Receiver<bool>,
    patience: Duration,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let has_asked = Arc::new(AtomicBool::new(false));
    let asks = Arc::clone(&has_asked);
    let service = router.map_request(move |request: Request<Incoming>| {
        asks.store(true, Relaxed);
        let mut request = request.map(Body::new);
        if let Some(gateway) = peer.gateway {
            request.extensions_mut().insert(PeerGateway(gateway));
        }
        request.extensions_mut().insert(peer.clone());
        request
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(patience);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(KEEPALIVE))
        .max_concurrent_streams(STREAMS_MAX);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = silence(&has_asked, patience) => return Err(timed_out().into()),
        _ = stop.wait_for(|stop| *stop) => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}

/// Ends when the time for a first question is over and none came: before it, nothing else ends a connection on which nothing is said.
async fn silence(has_asked: &AtomicBool, patience: Duration) {
    tokio::time::sleep(patience).await;
    if has_asked.load(Relaxed) {
        std::future::pending::<()>().await;
    }
}

fn timed_out() -> io::Error {
    io::ErrorKind::TimedOut.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a connection hears that says `said` and nothing more, until it is ended.
    async fn heard(said: &[u8]) -> Vec<u8> {
        let (mut ours, theirs) = tokio::io::duplex(1 << 16);
        let (_go_on, stop) = watch::channel(false);
        let peer = Peer::new(([127, 0, 0, 1], 1).into(), None);
        let patience = Duration::from_millis(100);
        let at_work = http(theirs, peer, Router::new(), stop, patience);
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
            heard(said).await;
        }
        let answered = heard(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(answered.starts_with(b"HTTP/1.1 404"), "{answered:?}");
    }
}
