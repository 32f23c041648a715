//! The gateway's end of the link: a client that uses one controller at a time, and changes to the next controller after a
//! failure.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use linewarden_protocol::attest::PeriodStart;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_tls::{ClientTls, endpoint};
use linewarden_types::{
    AdmissionRequest, AdmissionResponse, Changes, LeaseChunk, LeasedCursor, LinkError, Plan, PlanRequest,
    ProverIds, Provers, Provision, Revision, RoundAppraisal, RoundOutcome, RowRefusal, RowRequest,
    SessionReport, SessionReportResult, StatusReport, TrustStatus, UnusedRows,
};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::service_fn;

use crate::convert::{self, Malformed};
use crate::identity::socket_authority;
use crate::proto;
use crate::proto::link_client::LinkClient;
use crate::{CONNECTION_BYTES, DENIAL};

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
        let mut id = vec![0; CONNECTION_BYTES];
        getrandom::fill(&mut id).map_err(|error| LinkError::failed("controller", error.to_string()))?;
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
        mut request: impl AsyncFnMut(&mut LinkClient<Channel>, Vec<u8>) -> Result<tonic::Response<T>, Status>,
    ) -> Result<T, LinkError> {
        let timeout = match size {
            ResponseSize::Small => self.options.response_timeout,
            ResponseSize::Fleet => self.options.response_timeout.saturating_mul(10),
        };
        let mut last_error = None;
        for _ in 0..self.options.controllers.count() {
            let index = self.current().index;
            let connection = match self.connection().await {
                Ok(connection) => connection,
                Err(error) => {
                    self.skip_controller(index, None);
                    last_error = Some(error);
                    continue;
                }
            };
            let mut client = LinkClient::new(connection.channel)
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX);
            let response = tokio::time::timeout(timeout, request(&mut client, connection.id.clone())).await;
            let status = match response {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("response timed out"),
            };
            match client_error(&status) {
                Ok(denial) => return Err(denial),
                // The controller limits this gateway's requests. The connection is still usable.
                Err(failure) if status.code() == Code::ResourceExhausted => return Err(failure),
                Err(failure) => {
                    self.skip_controller(index, Some(&connection.id));
                    last_error = Some(failure);
                }
            }
        }
        Err(last_error
            .unwrap_or_else(|| LinkError::failed("controller", "no controller is configured".to_owned())))
    }

    /// Registers this process. Requests with the fencing token of an earlier process are rejected from then on.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn register(&self) -> Result<u64, LinkError> {
        let version = &self.options.version;
        let reply = self.call(ResponseSize::Small, async |client, connection| {
            let version = version.clone();
            client
                .register(proto::RegisterRequest {
                    connection_id: connection,
                    version,
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
        let reply = self.call(ResponseSize::Fleet, async |client, connection| {
            let request = proto::ResumeLeasesRequest {
                registration: registration(fencing_token, connection),
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
        let reply = self.call(ResponseSize::Small, async |client, connection| {
            let request = proto::ExtendLeasesRequest {
                registration: registration(fencing_token, connection),
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
        let reply = self.call(ResponseSize::Small, async |client, connection| {
            let request = proto::AdmitDevicesRequest {
                registration: registration(fencing_token, connection),
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
            let reply = self.call(ResponseSize::Small, async |client, connection| {
                let request = proto::ReportUnusedRowsRequest {
                    registration: registration(fencing_token, connection),
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
        let reply = self.call(ResponseSize::Small, async |client, connection| {
            let request = proto::ReportSessionsRequest {
                registration: registration(fencing_token, connection),
                reports: reports.iter().map(convert::report_to_wire).collect(),
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
        let reply = self.call(ResponseSize::Small, async |client, connection| {
            let request = proto::ListChangesRequest {
                registration: registration(fencing_token, connection),
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
        let reply = self.call(ResponseSize::Small, async |client, connection| {
            let request = proto::SubmitEvidenceRequest {
                registration: registration(fencing_token, connection),
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
        let reply = self.call(ResponseSize::Fleet, async |client, connection| {
            let request = proto::GetPlanRequest {
                registration: registration(fencing_token, connection),
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
        let reply = self.call(ResponseSize::Fleet, async |client, connection| {
            let request = proto::ListProversRequest {
                registration: registration(fencing_token, connection),
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
        let reply = self.call(ResponseSize::Fleet, async |client, connection| {
            let request = proto::AppraiseRoundRequest {
                registration: registration(fencing_token, connection),
                ..convert::round_to_wire(round, age_ns)
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
        let reply = self.call(ResponseSize::Small, async |client, connection| {
            let request = proto::ListProverIdsRequest {
                registration: registration(fencing_token, connection),
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
            let reply = self.call(ResponseSize::Small, async |client, connection| {
                let request = proto::RelayTicketRequest {
                    registration: registration(fencing_token, connection),
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
        let reply = self.call(ResponseSize::Small, async |client, connection| {
            let request = proto::ReportStatusRequest {
                registration: registration(fencing_token, connection),
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

fn registration(fencing_token: u64, connection: Vec<u8>) -> Option<proto::Registration> {
    Some(proto::Registration {
        fencing_token,
        connection_id: connection,
    })
}

/// Converts a status: `Ok` for a denial that any controller would repeat, `Err` for a failure that another controller
/// may not have.
fn client_error(status: &Status) -> Result<LinkError, LinkError> {
    let reason = status
        .metadata()
        .get(DENIAL)
        .and_then(|reason| reason.to_str().ok());
    let message = || status.message().to_owned();
    match reason {
        Some("replaced") => Ok(LinkError::Replaced(message())),
        Some("restored") => Ok(LinkError::RegistryRestored(message())),
        Some("untrusted") => Ok(LinkError::Untrusted(message())),
        // The request or the caller is at fault.
        _ if matches!(status.code(), Code::InvalidArgument | Code::Unauthenticated) => {
            Ok(LinkError::failed("controller", message()))
        }
        // This controller is at fault. Another controller may use another database server.
        Some(_) => Err(LinkError::failed("controller", message())),
        None => Err(LinkError::failed(
            "controller",
            format!("{}: {}", status.code(), message()),
        )),
    }
}

fn failed_at(controller: &str, reason: &str) -> LinkError {
    LinkError::Failed(format!("controller {controller}: {reason}"))
}

fn failed_with(controller: &str, error: &dyn std::error::Error) -> LinkError {
    failed_at(controller, &error_with_causes(error))
}

/// Returns the message of an error with its causes.
fn error_with_causes(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let cause_message = error.to_string();
        if !message.contains(&cause_message) {
            message = format!("{message}: {cause_message}");
        }
        cause = error.source();
    }
    message
}
