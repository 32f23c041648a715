//! Connections of gateways on this machine, over a Unix socket without TLS.
//!
//! The file's mode and group control access: with mode 0600, the socket accepts the controller's own user and root; with mode
//! 0660, it also accepts the members of a group. The credentials of a peer are not checked otherwise. Each request names its
//! gateway as host of the URI ([`linewarden_link::socket_authority`]): each accepted peer can act as each gateway.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use linewarden_files::{SocketFile, bind_for_group, bind_private};
use linewarden_link::{PeerGateway, gateway_of_authority};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::{SHUTDOWN_TIMEOUT, TIMEOUTS, http};
use crate::peer::Peer;

/// Maximum number of connections.
const CONNECTIONS_MAX: usize = 64;

/// The socket for gateways on this machine.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// The path.
    pub path: PathBuf,
    /// Group whose members can connect, in addition to this user and root. Each member can act as each gateway.
    pub group_id: Option<u32>,
}

/// A bound socket. The fields are dropped in this order.
pub(crate) struct SocketListener {
    _file: SocketFile,
    listener: UnixListener,
}

/// Binds the socket.
pub(crate) fn bind(options: &SocketOptions) -> io::Result<SocketListener> {
    let (listener, file) = match options.group_id {
        Some(group_id) => bind_for_group(&options.path, group_id)?,
        None => bind_private(&options.path)?,
    };
    let listener = UnixListener::from_std(listener)?;
    Ok(SocketListener {
        _file: file,
        listener,
    })
}

/// Accepts connections until `stop` is set, then removes the file and waits for responses in progress.
pub(crate) async fn serve(socket: SocketListener, router: Router, mut stop: watch::Receiver<bool>) {
    let router = router.layer(middleware::from_fn(identify_gateway));
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut tasks = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = socket.listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
            Some(_) = tasks.join_next() => continue,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // The most likely cause: the process has no free file descriptor until another connection ends.
                tracing::warn!(%error, "failed to accept connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&connections).try_acquire_owned() else {
            tracing::warn!("connection limit of the socket reached; connection closed");
            continue;
        };
        let (router, stop) = (router.clone(), stop.clone());
        tasks.spawn(async move {
            let _permit = permit;
            connection(stream, router, stop).await;
        });
    }
    drop(socket);
    let all_tasks = async { while tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, all_tasks).await;
}

async fn connection(stream: UnixStream, router: Router, stop: watch::Receiver<bool>) {
    let peer = Peer::new(SocketAddr::from((Ipv6Addr::LOCALHOST, 0)), None);
    let never_outdated = std::future::pending();
    if let Err(error) = http(stream, peer, router, stop, never_outdated, TIMEOUTS).await {
        tracing::debug!(%error, "connection of the socket ended with an error");
    }
}

/// Records the gateway that a request names.
async fn identify_gateway(mut request: Request, next: Next) -> Response {
    let gateway = request
        .uri()
        .authority()
        .and_then(|authority| gateway_of_authority(authority.as_str()));
    match gateway {
        Some(gateway) => {
            request.extensions_mut().insert(PeerGateway(gateway));
            next.run(request).await
        }
        None => (
            StatusCode::BAD_REQUEST,
            "host of the URI names no gateway: expected gateway-N\n",
        )
            .into_response(),
    }
}
