//! The gateway's end of the link: a client that uses one controller at a time, and changes to the next controller after a
//! failure.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use linewarden_protocol::attest::PeriodStart;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_tls::{ClientTls, endpoint};
use linewarden_types::{
    AdmissionRequest, AdmissionResponse, Changes, LeaseChunk, LeasedCursor, LinkError, Plan, PlanRequest,
    ProcessId, ProverIds, Provers, Provision, Revision, RoundAppraisal, RoundOutcome, RowRefusal, RowRequest,
    SessionReport, SessionReportResult, StatusReport, TrustStatus, UnusedRows,
};
use tokio::net::UnixStream;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::CONNECTION_BYTES;
use crate::convert::{self, Malformed};
use crate::failure::{Rejection, failed_at, failed_with};
use crate::identity::socket_authority;
use crate::pending_request::{PendingRequest, RequestContext};
use crate::proto;
use crate::proto::link_client::LinkClient;

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
    /// The newest fencing token of this process; 0 before the first registration.
    fencing_token: Arc<AtomicU64>,
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

/// The expected size of a response, which selects the timeout.
#[derive(Clone, Copy)]
enum ResponseSize {
    Small,
    Fleet,
}

impl Client {
    /// Creates a client. The client connects with the first request.
    #[must_use]
    pub fn new(options: ClientOptions) -> Self {
        Self {
            options: Arc::new(options),
            current: Arc::default(),
            fencing_token: Arc::default(),
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

    /// Sends the request to one controller after the other, until one responds. Each request may be repeated.
    async fn call<T>(
        &self,
        size: ResponseSize,
        mut request: impl AsyncFnMut(
            &mut LinkClient<Channel>,
            RequestContext,
        ) -> Result<tonic::Response<T>, Status>,
    ) -> Result<T, LinkError> {
        let timeout = match size {
            ResponseSize::Small => self.options.response_timeout,
            ResponseSize::Fleet => self.options.response_timeout.saturating_mul(10),
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
            let mut client = LinkClient::new(connection.channel)
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX);
            let (pending, context) = PendingRequest::begin(&self.abandoned_requests, connection.id.clone());
            let abandoned_before = context.abandoned_requests;
            let response = tokio::time::timeout(timeout, request(&mut client, context)).await;
            let rejection = match response {
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
        let reply = self.call(ResponseSize::Small, async |client, context| {
            client
                .register(proto::RegisterRequest {
                    connection_id: context.connection_id,
                    version: self.options.version.clone(),
                    process_id: process.0.to_vec(),
                    abandoned_requests: context.abandoned_requests,
                })
                .await
        });
        let fencing_token = reply.await?.fencing_token;
        self.set_fencing_token(fencing_token);
        Ok(fencing_token)
    }

    /// Stores a new fencing token that the controller has issued; tickets are relayed with this token from now on.
    pub fn set_fencing_token(&self, fencing_token: u64) {
        self.fencing_token.store(fencing_token, Relaxed);
    }

    /// Returns the next part of the leases that the gateway had when it stopped, and the cursor of the following part.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn resume_leases(
        &self,
        fencing_token: u64,
        cursor: LeasedCursor,
    ) -> Result<(LeaseChunk, LeasedCursor), LinkError> {
        let reply = self.call(ResponseSize::Fleet, async |client, context| {
            let request = proto::ResumeLeasesRequest {
                registration: context.registration(fencing_token),
                cursor: convert::cursor_to_wire(cursor),
            };
            client.resume_leases(request).await
        });
        let reply = reply.await?;
        let chunk = LeaseChunk {
            provisions: convert::provisions_from_wire(reply.provisions)?,
            damaged: reply.damaged,
            progress: (reply.done, reply.total),
            is_last: reply.is_last,
        };
        Ok((chunk, convert::cursor_from_wire(&reply.cursor)?))
    }

    /// Leases more rows for devices in the gateway's data plane.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn extend_leases(
        &self,
        fencing_token: u64,
        requests: &[RowRequest],
    ) -> Result<(Vec<Provision>, Vec<RowRefusal>), LinkError> {
        let reply = self.call(ResponseSize::Small, async |client, context| {
            let request = proto::ExtendLeasesRequest {
                registration: context.registration(fencing_token),
                requests: requests.iter().map(convert::row_request_to_wire).collect(),
            };
            client.extend_leases(request).await
        });
        let reply = reply.await?;
        let refusals = reply.refusals.into_iter().map(convert::refusal_from_wire);
        Ok((
            convert::provisions_from_wire(reply.provisions)?,
            refusals.collect::<Result<_, _>>()?,
        ))
    }

    /// Sends messages of devices that are not in the gateway's data plane. The responses are in the order of the
    /// requests.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn admit_devices(
        &self,
        fencing_token: u64,
        requests: &[AdmissionRequest],
        fresh: [u8; 8],
    ) -> Result<Vec<AdmissionResponse>, LinkError> {
        let reply = self.call(ResponseSize::Small, async |client, context| {
            let request = proto::AdmitDevicesRequest {
                registration: context.registration(fencing_token),
                requests: requests.iter().map(convert::admission_request_to_wire).collect(),
                fresh: fresh.to_vec(),
            };
            client.admit_devices(request).await
        });
        let responses = reply.await?.responses;
        if responses.len() != requests.len() {
            return Err(Malformed("number of admission responses is not the number of requests").into());
        }
        let responses = responses.into_iter().map(convert::admission_response_from_wire);
        Ok(responses.collect::<Result<_, _>>()?)
    }

    /// Reports the unused rows of devices that left the gateway's data plane. Returns how many rows were returned to
    /// their pools.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn report_unused_rows(
        &self,
        fencing_token: u64,
        unused_rows: &[UnusedRows],
    ) -> Result<u64, LinkError> {
        let mut rows_returned = 0u64;
        // A stopping gateway reports all its devices in one call of this function.
        for part in unused_rows.chunks(convert::ENTRIES_MAX) {
            let reply = self.call(ResponseSize::Small, async |client, context| {
                let request = proto::ReportUnusedRowsRequest {
                    registration: context.registration(fencing_token),
                    unused: part.iter().map(convert::unused_rows_to_wire).collect(),
                };
                client.report_unused_rows(request).await
            });
            rows_returned = rows_returned.saturating_add(reply.await?.rows_returned);
        }
        Ok(rows_returned)
    }

    /// Reports sessions that were opened at the gateway. The results are in the order of the reports.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn report_sessions(
        &self,
        fencing_token: u64,
        reports: &[SessionReport],
    ) -> Result<Vec<SessionReportResult>, LinkError> {
        let called_ns = boot_ns();
        let reply = self.call(ResponseSize::Small, async |client, context| {
            let elapsed_ns = boot_ns().saturating_sub(called_ns);
            let request = proto::ReportSessionsRequest {
                registration: context.registration(fencing_token),
                reports: reports
                    .iter()
                    .map(|report| convert::report_to_wire(report, elapsed_ns))
                    .collect(),
            };
            client.report_sessions(request).await
        });
        let results = reply.await?.results;
        if results.len() != reports.len() {
            return Err(Malformed("number of session report results is not the number of reports").into());
        }
        Ok(results
            .into_iter()
            .map(convert::report_result_from_wire)
            .collect())
    }

    /// Returns the changes of devices since a revision, and the gateway's trust status with the new fencing token if
    /// the controller has issued one.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn list_changes(
        &self,
        fencing_token: u64,
        since: Revision,
    ) -> Result<(Changes, Option<(TrustStatus, Option<u64>)>), LinkError> {
        let reply = self.call(ResponseSize::Small, async |client, context| {
            let request = proto::ListChangesRequest {
                registration: context.registration(fencing_token),
                since: since.0,
            };
            client.list_changes(request).await
        });
        let mut reply = reply.await?;
        let trust_status = reply.trust.take().map(convert::trust_from_wire).transpose()?;
        Ok((convert::changes_from_wire(&reply), trust_status))
    }

    /// Submits evidence about the data plane. Returns the resulting trust status, and the new fencing token if the
    /// controller has issued one.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn submit_evidence(
        &self,
        fencing_token: u64,
        statement: &[u8],
        inventory: &[u8],
    ) -> Result<(TrustStatus, Option<u64>), LinkError> {
        let reply = self.call(ResponseSize::Small, async |client, context| {
            let request = proto::SubmitEvidenceRequest {
                registration: context.registration(fencing_token),
                statement: statement.to_vec(),
                inventory: inventory.to_vec(),
            };
            client.submit_evidence(request).await
        });
        let trust_status = reply.await?.trust.ok_or(Malformed("no trust status"))?;
        Ok(convert::trust_from_wire(trust_status)?)
    }

    /// Returns the attestation plan; `None` if the controller has no random salt for a new period.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn get_plan(
        &self,
        fencing_token: u64,
        plan_request: PlanRequest,
    ) -> Result<Option<Plan>, LinkError> {
        let reply = self.call(ResponseSize::Fleet, async |client, context| {
            let request = proto::GetPlanRequest {
                registration: context.registration(fencing_token),
                start_period: plan_request.start_period.map(|period| period.0),
                period_s: plan_request.period_s,
                needs_round_numbers: plan_request.needs_round_numbers,
            };
            client.get_plan(request).await
        });
        Ok(convert::plan_from_wire(reply.await?)?)
    }

    /// Returns the provers that have changed since a revision, with this gateway's keys of a period.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn list_provers(
        &self,
        fencing_token: u64,
        start: PeriodStart,
        since: u64,
    ) -> Result<Provers, LinkError> {
        let reply = self.call(ResponseSize::Fleet, async |client, context| {
            let request = proto::ListProversRequest {
                registration: context.registration(fencing_token),
                start: Some(convert::start_to_wire(&start)),
                since,
            };
            client.list_provers(request).await
        });
        Ok(convert::provers_from_wire(reply.await?)?)
    }

    /// Submits a round that ended `age_ns` ago, and returns its appraisal.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn appraise_round(
        &self,
        fencing_token: u64,
        round: &RoundOutcome,
        age_ns: u64,
    ) -> Result<RoundAppraisal, LinkError> {
        let called_ns = boot_ns();
        let reply = self.call(ResponseSize::Fleet, async |client, context| {
            let request = proto::AppraiseRoundRequest {
                registration: context.registration(fencing_token),
                ..convert::round_to_wire(round, age_ns.saturating_add(boot_ns().saturating_sub(called_ns)))
            };
            client.appraise_round(request).await
        });
        Ok(convert::appraisal_from_wire(reply.await?))
    }

    /// Returns the ids of the devices that have become provers, or are no longer provers, since a revision.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn list_prover_ids(&self, fencing_token: u64, since: u64) -> Result<ProverIds, LinkError> {
        let reply = self.call(ResponseSize::Small, async |client, context| {
            let request = proto::ListProverIdsRequest {
                registration: context.registration(fencing_token),
                since,
            };
            client.list_prover_ids(request).await
        });
        Ok(convert::prover_ids_from_wire(reply.await?))
    }

    /// Relays a device's ticket, under the registration of this process. Returns `None` if the controller sends no
    /// response. `locate` returns the address of a device's session at this gateway.
    ///
    /// # Errors
    /// [`LinkError`]; also before this process has registered.
    pub async fn relay_ticket(
        &self,
        message: &[u8],
        locate: &(dyn Fn(DeviceId) -> Option<[u8; 16]> + Sync),
    ) -> Result<Option<Vec<u8>>, LinkError> {
        use proto::relay_ticket_response::Outcome;
        let fencing_token = self.fencing_token.load(Relaxed);
        if fencing_token == 0 {
            return Err(LinkError::failed(
                "controller",
                "gateway has not registered yet".to_owned(),
            ));
        }
        let mut location = None;
        // The first response may request the address of a device's session; the second request contains it.
        for _ in 0..2 {
            let reply = self.call(ResponseSize::Small, async |client, context| {
                let request = proto::RelayTicketRequest {
                    registration: context.registration(fencing_token),
                    message: message.to_vec(),
                    located_device: location.map(|(device, _): (u64, Option<[u8; 16]>)| device),
                    address: location
                        .and_then(|(_, address)| address)
                        .map_or_else(Vec::new, |address| address.to_vec()),
                };
                client.relay_ticket(request).await
            });
            match reply.await?.outcome {
                None => return Ok(None),
                Some(Outcome::Response(response)) => return Ok(Some(response)),
                Some(Outcome::Locate(device)) => location = Some((device, locate(DeviceId(device)))),
            }
        }
        Err(Malformed("second location request for one ticket").into())
    }

    /// Reports the gateway's status.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn report_status(&self, fencing_token: u64, report: &StatusReport) -> Result<(), LinkError> {
        let reply = self.call(ResponseSize::Small, async |client, context| {
            let request = proto::ReportStatusRequest {
                registration: context.registration(fencing_token),
                data_plane: report.data_plane.clone(),
                devices: report.devices,
                slots: report.slots,
                sessions: report.sessions,
                authentications_per_s: report.authentications_per_s,
                latency_us_p50: report.latency_us_p50,
                latency_us_p99: report.latency_us_p99,
                verdicts: report.verdicts.clone(),
                dropped_types: report.dropped_types.clone(),
                kernel_drops: report.kernel_drops.clone(),
                tickets: report.tickets.clone(),
            };
            client.report_status(request).await
        });
        reply.await?;
        Ok(())
    }
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
