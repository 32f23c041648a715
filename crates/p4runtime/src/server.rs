//! P4Runtime service for a [`Target`].
//!
//! A request that changes state holds an exclusive lock while it runs on a blocking thread; reads share the
//! lock. So requests that change state run one at a time, as the specification requires (12.1, 13.3), even if a
//! client cancels a request. A takeover only waits for this lock.
//!
//! Every role has full access: the meaning of a role's configuration is defined outside of P4Runtime (5.2). The
//! server stores and returns the configuration without interpreting it.

mod config;
mod read;
mod status;
mod stream;
mod write;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::TcpListener;
use tokio::sync::{Notify, RwLock};
use tokio::time::Instant;
pub use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

use crate::arbitration::{Arbitration, Limits, StreamId};
use crate::digest::Digests;
use crate::proto::v1;
use crate::target::{EventReceiver, Pipeline, Target};
use linewarden_tls::ServerTls;
use v1::p4_runtime_server::{P4Runtime, P4RuntimeServer};

/// API version in `Capabilities` responses.
pub const API_VERSION: &str = "1.5.0";
/// Maximum bytes of a request: programs exceed gRPC's default of 4 MiB (appendix, "Guidelines").
const REQUEST_BYTES_MAX: usize = 128 << 20;
/// Keepalive interval and timeout of idle connections. Without keepalive, an unreachable primary would stay connected
/// and prevent other controllers from writing.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Options of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Device id of the switch.
    pub device_id: u64,
    /// Limits on the state kept for clients.
    pub limits: Limits,
    /// Pipeline that the switch already runs, if any.
    pub pipeline: Option<Pipeline>,
}

/// Running program and saved program. Writes and reads refer to the saved program if there is one.
#[derive(Debug, Default)]
struct Programs {
    running: Option<Arc<Pipeline>>,
    saved: Option<Arc<Pipeline>>,
}

impl Programs {
    /// Returns the pipeline of writes and reads: the saved pipeline if there is one, else the running pipeline.
    fn target_pipeline(&self) -> Result<Arc<Pipeline>, Status> {
        let no_pipeline =
            || Status::failed_precondition("no forwarding pipeline: call SetForwardingPipelineConfig first");
        self.saved
            .as_ref()
            .or(self.running.as_ref())
            .cloned()
            .ok_or_else(no_pipeline)
    }
}

/// Connected clients.
struct Clients {
    arbitration: Arbitration,
    outboxes: BTreeMap<StreamId, stream::Outbox>,
    last_stream_id: u64,
}

struct Shared<T> {
    target: Arc<T>,
    device_id: u64,
    programs: Arc<RwLock<Programs>>,
    /// Running program, for the task that forwards events and must not wait for writes.
    running: Mutex<Option<Arc<Pipeline>>>,
    clients: Mutex<Clients>,
    digests: Mutex<Digests>,
    /// Notified when digest settings change.
    digests_changed: Arc<Notify>,
    started: Instant,
}

impl<T> Shared<T> {
    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn digests(&self) -> MutexGuard<'_, Digests> {
        self.digests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self) -> MutexGuard<'_, Option<Arc<Pipeline>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn check_device(&self, device_id: u64) -> Result<(), Status> {
        if device_id == self.device_id {
            return Ok(());
        }
        Err(Status::not_found(format!(
            "unknown device {device_id}: this server controls device {}",
            self.device_id
        )))
    }

    /// Checks that a request that changes state comes from a primary (12, 14; in this order).
    fn check_primary(
        &self,
        device_id: u64,
        role: &str,
        role_id: u64,
        election_id: Option<v1::Uint128>,
    ) -> Result<(), Status> {
        if role_id != 0 && role.is_empty() {
            return Err(stream::numeric_role_error(role_id));
        }
        let election_id = election_id.map(|id| election_id_of(&id));
        Ok(self
            .clients()
            .arbitration
            .check_write(device_id, role, election_id)?)
    }
}

/// P4Runtime service of one switch. Clones share the state.
pub struct Service<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Clone for Service<T> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

impl<T: Target> Service<T> {
    /// Creates the service and forwards the events of the switch. Must be called within a tokio runtime.
    pub fn new(target: Arc<T>, events: EventReceiver, options: Options) -> Self {
        let programs = Programs {
            running: options.pipeline.map(Arc::new),
            saved: None,
        };
        let shared = Arc::new(Shared {
            target,
            device_id: options.device_id,
            running: Mutex::new(programs.running.clone()),
            programs: Arc::new(RwLock::new(programs)),
            clients: Mutex::new(Clients {
                arbitration: Arbitration::new(options.device_id, options.limits),
                outboxes: BTreeMap::new(),
                last_stream_id: 0,
            }),
            digests: Mutex::new(Digests::new()),
            digests_changed: Arc::new(Notify::new()),
            started: Instant::now(),
        });
        tokio::spawn(stream::forward_events(Arc::downgrade(&shared), events));
        Self { shared }
    }

    /// Returns the gRPC service, for a server with further services.
    pub fn into_grpc(self) -> P4RuntimeServer<Self> {
        P4RuntimeServer::new(self)
            .max_decoding_message_size(REQUEST_BYTES_MAX)
            .max_encoding_message_size(REQUEST_BYTES_MAX)
    }

    /// Serves on this socket, together with `other_services`, until `shutdown` completes; then ends the open streams.
    /// Without TLS every client that reaches the socket can control the switch.
    pub async fn serve(
        self,
        other_services: Routes,
        listener: TcpListener,
        tls: Option<&ServerTls>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error> {
        let shared = Arc::downgrade(&self.shared);
        let shutdown = async move {
            shutdown.await;
            end_all_streams(&shared);
        };
        let mut server = tonic::transport::Server::builder();
        if let Some(tls) = tls {
            server = server.tls_config(tls.to_tonic())?;
        }
        server
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .add_routes(other_services)
            .add_service(self.into_grpc())
            .serve_with_incoming_shutdown(incoming(listener), shutdown)
            .await
    }

    /// Opens a socket for [`Service::serve`].
    pub async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
        TcpListener::bind(address).await
    }
}

/// Accepts connections with TCP_NODELAY. Otherwise Nagle's algorithm delays a packet-in or digest until the client
/// acknowledges the previous message, and a client without data to send delays the acknowledgment by 40 ms. tonic
/// ignores the nodelay option of its server if the caller provides the listener.
fn incoming(listener: TcpListener) -> TcpIncoming {
    TcpIncoming::from(listener).with_nodelay(Some(true))
}

fn end_all_streams<T>(shared: &Weak<Shared<T>>) {
    if let Some(shared) = shared.upgrade() {
        for outbox in shared.clients().outboxes.values() {
            outbox.end(Status::unavailable("server is shutting down"));
        }
    }
}

fn election_id_of(id: &v1::Uint128) -> u128 {
    u128::from(id.high) << 64 | u128::from(id.low)
}

/// Nanoseconds since 1970, for messages that carry wall-clock time.
fn timestamp_ns() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_nanos()).unwrap_or(i64::MAX)
}

#[tonic::async_trait]
impl<T: Target> P4Runtime for Service<T> {
    type ReadStream = read::Responses;
    type StreamChannelStream = stream::Outgoing;

    async fn write(&self, request: Request<v1::WriteRequest>) -> Result<Response<v1::WriteResponse>, Status> {
        write::write(&self.shared, request.into_inner())
            .await
            .map(Response::new)
    }

    async fn read(&self, request: Request<v1::ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        read::read(&self.shared, request.into_inner())
            .await
            .map(Response::new)
    }

    async fn set_forwarding_pipeline_config(
        &self,
        request: Request<v1::SetForwardingPipelineConfigRequest>,
    ) -> Result<Response<v1::SetForwardingPipelineConfigResponse>, Status> {
        config::set(&self.shared, request.into_inner())
            .await
            .map(Response::new)
    }

    async fn get_forwarding_pipeline_config(
        &self,
        request: Request<v1::GetForwardingPipelineConfigRequest>,
    ) -> Result<Response<v1::GetForwardingPipelineConfigResponse>, Status> {
        config::get(&self.shared, &request.into_inner())
            .await
            .map(Response::new)
    }

    async fn stream_channel(
        &self,
        request: Request<Streaming<v1::StreamMessageRequest>>,
    ) -> Result<Response<Self::StreamChannelStream>, Status> {
        Ok(Response::new(stream::open(
            self.shared.clone(),
            request.into_inner(),
        )))
    }

    async fn capabilities(
        &self,
        request: Request<v1::CapabilitiesRequest>,
    ) -> Result<Response<v1::CapabilitiesResponse>, Status> {
        match request.into_inner().device_id {
            0 => {}
            device_id => self.shared.check_device(device_id)?,
        }
        Ok(Response::new(v1::CapabilitiesResponse {
            p4runtime_api_version: API_VERSION.to_owned(),
            experimental: None,
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use tokio_stream::StreamExt as _;

    use super::*;

    #[tokio::test]
    async fn connections_send_without_delay() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let _client = std::net::TcpStream::connect(address).unwrap();
        let accepted = incoming(listener).next().await.unwrap().unwrap();
        assert!(accepted.nodelay().unwrap());
    }
}
