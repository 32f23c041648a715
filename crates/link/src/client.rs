//! The gateway's end of the link: a client that uses one controller at a time, and changes to the next controller after a
//! failure.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use linewarden_protocol::ids::GatewayId;
use linewarden_tls::{ClientTls, endpoint};
use linewarden_types::{
    ControllerRequest, ControllerResponse, Kind, LinkError, ProcessId, RegisteredLink, ReportUnusedRows,
    Transport,
};
use tokio::net::UnixStream;
use tonic::Status;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::CONNECTION_BYTES;
use crate::calls::MessageCall;
use crate::convert::{self, Malformed};
use crate::failure::{Rejection, failed_at, failed_with};
use crate::identity::socket_authority;
use crate::pending_request::{PendingRequest, RequestContext};
use crate::proto::{self, link_server::SERVICE_NAME};

/// Controllers in other processes, one at a time. Registers this process with the first request.
pub type RemoteController = RegisteredLink<Client>;

/// Maximum length of a response, bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Interval of HTTP/2 keepalive pings, and the timeout of each. A dead connection is detected after two intervals.
const KEEPALIVE: Duration = Duration::from_secs(2);

/// Options of a [`Client`].
#[derive(Clone)]
pub struct ClientOptions {
    /// The controllers.
    pub controllers: Controllers,
    /// Timeout of a connection attempt.
    pub connect_timeout: Duration,
    /// Timeout of a response; for requests about a whole fleet, ten times this value.
    pub response_timeout: Duration,
    /// The program's version, for display.
    pub version: String,
}

/// The controllers of a gateway.
#[derive(Clone)]
pub enum Controllers {
    /// Controllers that the client reaches over TLS.
    Remote {
        /// `HOST:PORT` of each controller, in the order in which the client tries them.
        addresses: Vec<String>,
        /// Trust anchors, certificate and key. The client reads them for each new connection, so certificates can be
        /// renewed without a restart.
        identities: Arc<dyn Identities>,
    },
    /// A controller on this machine.
    Socket {
        /// The controller's socket.
        path: PathBuf,
        /// This gateway.
        gateway: GatewayId,
    },
}

impl Controllers {
    fn count(&self) -> usize {
        match self {
            Self::Remote { addresses, .. } => addresses.len().max(1),
            Self::Socket { .. } => 1,
        }
    }
}

impl std::fmt::Debug for Controllers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Remote { addresses, .. } => f.debug_list().entries(addresses).finish(),
            Self::Socket { path, .. } => path.fmt(f),
        }
    }
}

/// The source of certificates and keys.
pub trait Identities: Send + Sync {
    /// Returns the current certificates and keys.
    ///
    /// # Errors
    /// A description of the problem.
    fn current(&self) -> Result<ClientTls, String>;
}

impl From<Malformed> for LinkError {
    fn from(error: Malformed) -> Self {
        Self::Failed(format!("controller: invalid response: {error}"))
    }
}

/// A link to one of several controllers. Cloning is cheap.
#[derive(Clone)]
pub struct Client {
    options: Arc<ClientOptions>,
    current: Arc<Mutex<CurrentController>>,
    /// This process; drawn before the first registration.
    process: Arc<OnceLock<ProcessId>>,
    /// Number of abandoned requests. A request in flight does not count.
    abandoned_requests: Arc<AtomicU64>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("controllers", &self.options.controllers)
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct CurrentController {
    /// Index of the controller in [`Controllers::Remote`].
    index: usize,
    connection: Option<Connection>,
}

#[derive(Clone)]
struct Connection {
    channel: Channel,
    /// 16 random bytes, drawn for this connection.
    id: Vec<u8>,
}

impl Client {
    /// Creates a client. The client connects with the first request.
    #[must_use]
    pub fn new(options: ClientOptions) -> Self {
        Self {
            options: Arc::new(options),
            current: Arc::default(),
            process: Arc::default(),
            abandoned_requests: Arc::default(),
        }
    }

    fn current(&self) -> MutexGuard<'_, CurrentController> {
        // The state is consistent at every moment, so a poisoned lock is usable.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the open connection, or connects to the current controller.
    async fn connection(&self) -> Result<Connection, LinkError> {
        let index = {
            let current = self.current();
            if let Some(connection) = &current.connection {
                return Ok(connection.clone());
            }
            current.index
        };
        let id = random_bytes::<CONNECTION_BYTES>()?.to_vec();
        let channel = match &self.options.controllers {
            Controllers::Remote {
                addresses,
                identities,
            } => {
                let Some(address) = addresses.get(index % addresses.len().max(1)) else {
                    return Err(LinkError::failed(
                        "controller",
                        "no controller is configured".to_owned(),
                    ));
                };
                let tls = identities
                    .current()
                    .map_err(|reason| failed_at(address, &reason))?;
                let endpoint = endpoint(address, Some(&tls)).map_err(|error| failed_with(address, &error))?;
                let connecting = self.configure(endpoint);
                self.connect(address, connecting.connect()).await?
            }
            Controllers::Socket { path, gateway } => {
                let name = path.display().to_string();
                let endpoint = endpoint(&socket_authority(*gateway), None)
                    .map_err(|error| failed_with(&name, &error))?;
                let path = path.clone();
                let connector = service_fn(move |_| {
                    let path = path.clone();
                    async move { UnixStream::connect(path).await.map(TokioIo::new) }
                });
                let connecting = self.configure(endpoint);
                self.connect(&name, connecting.connect_with_connector(connector))
                    .await?
            }
        };
        let connection = Connection { channel, id };
        let mut current = self.current();
        // Another request may have connected at the same time.
        Ok(current.connection.get_or_insert(connection).clone())
    }

    async fn connect(
        &self,
        controller: &str,
        connecting: impl Future<Output = Result<Channel, tonic::transport::Error>>,
    ) -> Result<Channel, LinkError> {
        match tokio::time::timeout(self.options.connect_timeout, connecting).await {
            Ok(channel) => channel.map_err(|error| failed_with(controller, &error)),
            Err(_) => Err(failed_at(controller, "connection timed out")),
        }
    }

    fn configure(&self, endpoint: Endpoint) -> Endpoint {
        endpoint
            .connect_timeout(self.options.connect_timeout)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true)
    }

    /// Drops the connection to the controller at `index` and selects the next controller, if no other request has done so
    /// already. `connection_id` is `None` if no connection could be opened.
    fn skip_controller(&self, index: usize, connection_id: Option<&[u8]>) {
        let mut current = self.current();
        let is_same_connection = match (&current.connection, connection_id) {
            (Some(connection), Some(id)) => connection.id == id,
            (None, None) => true,
            _ => false,
        };
        if is_same_connection && current.index == index {
            current.connection = None;
            current.index = (index + 1) % self.options.controllers.count();
        }
    }

    /// Sends a request to one controller after the other, until one responds. Each request may be repeated. `encode` encodes
    /// the request for each attempt.
    async fn send_until_response<Q: prost::Message + 'static, R: prost::Message + Default + 'static>(
        &self,
        method: &'static str,
        kind: Kind,
        encode: impl Fn(RequestContext) -> Q,
    ) -> Result<R, LinkError> {
        let timeout = match kind.is_fleet_wide() {
            false => self.options.response_timeout,
            true => self.options.response_timeout.saturating_mul(10),
        };
        let mut last_error = None;
        let mut controllers_left = self.options.controllers.count();
        while controllers_left > 0 {
            let index = self.current().index;
            let connection = match self.connection().await {
                Ok(connection) => connection,
                Err(error) => {
                    self.skip_controller(index, None);
                    last_error = Some(error);
                    controllers_left -= 1;
                    continue;
                }
            };
            let (pending, context) = PendingRequest::begin(&self.abandoned_requests, connection.id.clone());
            let abandoned_before = context.abandoned_requests;
            let response = tokio::time::timeout(timeout, unary(connection.channel, method, encode(context)));
            let rejection = match response.await {
                Ok(Ok(response)) => {
                    pending.complete();
                    return Ok(response.into_inner());
                }
                Ok(Err(status)) => Rejection::of(&status),
                Err(_) => Rejection::of(&Status::deadline_exceeded("response timed out")),
            };
            match rejection {
                Rejection::Failed(_) => drop(pending),
                Rejection::Final(_) | Rejection::Limited(_) | Rejection::Outdated => pending.complete(),
            }
            match rejection {
                Rejection::Final(error) | Rejection::Limited(error) => return Err(error),
                // This process has abandoned another request since; this request is sent again with the new number.
                Rejection::Outdated if self.abandoned_requests.load(SeqCst) > abandoned_before => {}
                // The recorded number is higher than this process's number, so another process uses the registration.
                Rejection::Outdated => {
                    return Err(LinkError::Replaced(
                        "controller: the registry has recorded more abandoned requests than this process has; another process uses the registration of this process"
                            .to_owned(),
                    ));
                }
                Rejection::Failed(failure) => {
                    self.skip_controller(index, Some(&connection.id));
                    last_error = Some(failure);
                    controllers_left -= 1;
                }
            }
        }
        Err(last_error
            .unwrap_or_else(|| LinkError::failed("controller", "no controller is configured".to_owned())))
    }

    /// Reports unused rows in parts of [`convert::ENTRIES_MAX`]: a stopping gateway reports all its devices at once.
    async fn report_unused_rows(
        &self,
        fencing_token: u64,
        report: &ReportUnusedRows,
    ) -> Result<u64, LinkError> {
        let mut rows_returned = 0u64;
        for part in report.0.chunks(convert::ENTRIES_MAX) {
            let part = ReportUnusedRows(part.to_vec());
            rows_returned = rows_returned.saturating_add(self.call(fencing_token, &part).await?);
        }
        Ok(rows_returned)
    }

    /// Registers this process, unless it is registered. Requests with the fencing token of an earlier process are rejected
    /// from then on.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn register(&self) -> Result<u64, LinkError> {
        let process = match self.process.get() {
            Some(process) => *process,
            // Another request may have drawn an id at the same time.
            None => {
                let drawn = ProcessId(random_bytes()?);
                *self.process.get_or_init(|| drawn)
            }
        };
        let request = |context: RequestContext| proto::RegisterRequest {
            connection_id: context.connection_id,
            version: self.options.version.clone(),
            process_id: process.0.to_vec(),
            abandoned_requests: context.abandoned_requests,
        };
        let response = self.send_until_response("Register", Kind::Register, request);
        let proto::RegisterResponse { fencing_token } = response.await?;
        Ok(fencing_token)
    }

    /// Sends a request under the registration with this fencing token.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn call<C: MessageCall>(&self, fencing_token: u64, call: &C) -> Result<C::Response, LinkError> {
        let response = self.send_until_response(C::METHOD, C::KIND, |context| {
            call.encode(context.registration(fencing_token), boot_ns())
        });
        Ok(call.decode_response(response.await?)?)
    }
}

#[tonic::async_trait(?Send)]
impl Transport for Client {
    async fn register(&self) -> Result<u64, LinkError> {
        Client::register(self).await
    }

    async fn send(&self, fencing_token: u64, request: ControllerRequest) -> ControllerResponse {
        if let ControllerRequest::ReportUnusedRows(report) = &request {
            return ControllerResponse::ReportUnusedRows(
                self.report_unused_rows(fencing_token, report).await,
            );
        }
        macro_rules! send {
            ($($call:ident $method:ident $name:literal $response:ty;)*) => {
                match request {
                    ControllerRequest::Register => ControllerResponse::Register(self.register().await),
                    $(ControllerRequest::$call(call) => {
                        ControllerResponse::$call(self.call(fencing_token, &call).await)
                    })*
                }
            };
        }
        linewarden_types::for_each_call!(send)
    }
}

/// Calls a method of the gRPC service.
async fn unary<Q: prost::Message + 'static, R: prost::Message + Default + 'static>(
    channel: Channel,
    method: &'static str,
    request: Q,
) -> Result<tonic::Response<R>, Status> {
    let path = PathAndQuery::try_from(format!("/{SERVICE_NAME}/{method}"));
    let path = path.map_err(|error| Status::internal(error.to_string()))?;
    let mut grpc = tonic::client::Grpc::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    grpc.ready()
        .await
        .map_err(|error| Status::unknown(format!("Service was not ready: {error}")))?;
    grpc.unary(
        tonic::Request::new(request),
        path,
        tonic_prost::ProstCodec::default(),
    )
    .await
}

/// The boot-time clock, ns: the clock of the ages in requests. Between two attempts of a call, the ages grow.
fn boot_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000) + u64::try_from(time.tv_nsec).unwrap_or_default()
}

fn random_bytes<const N: usize>() -> Result<[u8; N], LinkError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| LinkError::failed("operating system", error.to_string()))?;
    Ok(bytes)
}
