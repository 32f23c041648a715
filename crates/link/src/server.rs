//! The controller's end of the link.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linewarden_controller::attest::{RoundAppraisal, Verifier};
use linewarden_controller::trust::{Timestamps, TrustMemory, TrustOutcome, TrustReport};
use linewarden_controller::{Controller, Denial, Link, RelayContext, SessionReport};
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::{BootTimestamp, RegistryError, Revision, RoundRecord};
use tonic::{Code, Request, Response, Status};

use crate::convert::{self, Malformed};
use crate::identity::PeerGateway;
use crate::proto;
use crate::proto::link_server::LinkServer;

/// Maximum length of a message, bytes: evidence with its inventory.
pub const MESSAGE_BYTES_MAX: usize = 32 << 20;
/// Maximum length of a gateway's message except evidence and appraisals, bytes. It allows `ENTRIES_MAX` entries below
/// 256 bytes each. A message is decoded before its registration is checked. An entry without fields takes 2 bytes on
/// the wire and 56 in memory, so decoding allocates at most 14 MiB, even if the list's capacity has just doubled. The
/// lists of evidence and appraisals, which may be longer, contain only 8-byte numbers.
pub const SHORT_MESSAGE_BYTES_MAX: usize = 256 << 10;
/// Length of the connection id, bytes.
pub(crate) const CONNECTION_BYTES: usize = 16;
/// The trailer that contains the reason of a rejection.
pub(crate) const DENIAL: &str = "linewarden-denial";
/// Reason of a rejection: another process is registered as this gateway, or the gateway was revoked.
pub(crate) const REPLACED: &str = "replaced";

/// Clocks and random numbers of the server.
pub trait ServerEnvironment: Send + Sync {
    /// The current time.
    fn timestamps(&self) -> Timestamps;
    /// The current boot-time clock of this machine; `None` if the kernel does not provide the boot id.
    fn boot_timestamp(&self) -> Option<BootTimestamp>;
    /// Fills the slice with random bytes; returns `false` if the source fails.
    fn fill_random(&self, bytes: &mut [u8]) -> bool;
}

/// The status that a gateway reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatusReport {
    /// The kind of the gateway's data plane.
    pub data_plane: String,
    /// Devices in the data plane.
    pub devices: u64,
    /// Slots of the data plane.
    pub slots: u64,
    /// Live sessions, if the data plane counts them.
    pub sessions: Option<u64>,
    /// Accepted RESPONSEs a second, since the previous report.
    pub authentications_per_s: Option<f64>,
    /// Latency of an authentication at the gateway, µs: from parsing an accepted RESPONSE until its ACK was written,
    /// in the data plane and over the last minute. The median.
    pub latency_us_p50: Option<f64>,
    /// Latency of an authentication at the gateway, µs, measured as in `latency_us_p50`: the 99th percentile.
    pub latency_us_p99: Option<f64>,
    /// Frames by verdict, since the gateway started.
    pub verdicts: BTreeMap<String, u64>,
    /// Frames that the gate has dropped since the gateway started, by the name of their Ethernet type.
    pub dropped_types: BTreeMap<String, u64>,
    /// Packets that the kernel has dropped since the gateway started because a receive buffer was full, by socket:
    /// [`StatusReport::KERNEL_DROPS`].
    pub kernel_drops: BTreeMap<String, u64>,
    /// Tickets since the gateway started, by result: [`StatusReport::TICKETS`]. Empty if the gateway relays none.
    pub tickets: BTreeMap<String, u64>,
}

impl StatusReport {
    /// Names in [`StatusReport::kernel_drops`]: the sockets of the data plane `host`, and the sockets of the ticket relay.
    pub const KERNEL_DROPS: [&'static str; 2] = ["dataplane", "tickets"];
    /// Names in [`StatusReport::tickets`].
    pub const TICKETS: [&'static str; 5] = ["answered", "unknown", "rate_limited", "rejected", "failed"];
}

/// Receives events about gateways.
#[tonic::async_trait]
pub trait GatewayObserver: Send + Sync {
    /// A gateway has registered and received this fencing token.
    fn gateway_registered(&self, gateway: GatewayId, fencing_token: u64, version: &str);
    /// The newest process of the gateway has sent a request.
    fn gateway_seen(&self, gateway: GatewayId);
    /// The gateway has reported its status.
    fn status_reported(&self, gateway: GatewayId, report: StatusReport);
    /// A round has ended and was appraised. The server may report the same round twice.
    fn round_appraised(&self, round: &RoundRecord, appraisal: &RoundAppraisal);
    /// The trust state of a gateway that must submit evidence. The server reports the state repeatedly.
    fn trust_reported(&self, gateway: GatewayId, report: &TrustReport);
    /// Returns the trust memory that the gateway's previous controller has stored.
    ///
    /// # Errors
    /// A failure of the database.
    async fn load_trust_memory(&self, gateway: GatewayId) -> Result<Option<TrustMemory>, RegistryError>;
}

/// Serves gateways. Cloning is cheap.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

struct Inner {
    controller: Controller,
    environment: Box<dyn ServerEnvironment>,
    observer: Box<dyn GatewayObserver>,
    connections: Mutex<HashMap<GatewayId, Connection>>,
}

/// State of a gateway's connection.
#[derive(Default)]
struct Connection {
    id: Vec<u8>,
    /// The newest fencing token that was verified.
    fencing_token: u64,
    /// The verifier, with the fencing token of the registration that opened the verifier.
    verifier: Arc<tokio::sync::Mutex<Option<(u64, Verifier)>>>,
}

/// A request that carries a registration.
trait RegisteredRequest {
    fn registration(&self) -> Option<&proto::Registration>;
}

macro_rules! registered_requests {
    ($($kind:ident),+) => {
        $(impl RegisteredRequest for proto::$kind {
            fn registration(&self) -> Option<&proto::Registration> {
                self.registration.as_ref()
            }
        })+
    };
}

registered_requests!(
    ResumeLeasesRequest,
    ExtendLeasesRequest,
    AdmitDevicesRequest,
    ReportUnusedRowsRequest,
    ReportSessionsRequest,
    ListChangesRequest,
    SubmitEvidenceRequest,
    GetPlanRequest,
    ListProversRequest,
    AppraiseRoundRequest,
    ListProverIdsRequest,
    RelayTicketRequest,
    ReportStatusRequest
);

impl Server {
    /// Creates a server over this controller.
    pub fn new(
        controller: Controller,
        environment: impl ServerEnvironment + 'static,
        observer: impl GatewayObserver + 'static,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                controller,
                environment: Box::new(environment),
                observer: Box::new(observer),
                connections: Mutex::default(),
            }),
        }
    }

    /// Returns the gRPC service, with this maximum message length. Each request must have a [`PeerGateway`] among its
    /// extensions.
    #[must_use]
    pub fn into_service(self, message_bytes_max: usize) -> LinkServer<Self> {
        LinkServer::new(self)
            .max_decoding_message_size(message_bytes_max)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<GatewayId, Connection>> {
        // The map is consistent at every moment, so a poisoned lock is usable.
        self.inner
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the connection of a request. A new connection discards the state of the previous connection, after the
    /// fencing token was verified: an unverified token must not discard the state of the newest process.
    /// `presented_token` is `None` for a process that is about to register.
    async fn accept_connection(
        &self,
        gateway: GatewayId,
        id: &[u8],
        presented_token: Option<u64>,
    ) -> Result<(), Status> {
        if id.len() != CONNECTION_BYTES {
            return Err(Malformed("connection id of a wrong length").into());
        }
        let is_new = |connection: &Connection| {
            connection.id != id
                && presented_token.is_none_or(|fencing_token| fencing_token >= connection.fencing_token)
        };
        if !self.connections().get(&gateway).is_none_or(is_new) {
            return Ok(());
        }
        if let Some(fencing_token) = presented_token {
            self.verify_registration(&self.inner.controller.link(gateway, fencing_token))
                .await?;
        }
        // The trust memory is loaded before any request on this connection is served.
        let memory = match self.inner.controller.requires_evidence(gateway) {
            true => self.inner.observer.load_trust_memory(gateway).await,
            false => Ok(None),
        };
        let memory = memory.map_err(|error| self.denial_to_status(error))?;
        let mut connections = self.connections();
        let connection = connections.entry(gateway).or_default();
        if is_new(connection) {
            *connection = Connection {
                id: id.to_vec(),
                fencing_token: connection.fencing_token,
                ..Connection::default()
            };
            // The trust state is restarted in the same critical section, so no request sees the new connection with the
            // trust state of the previous connection.
            self.inner.controller.restart_trust(gateway, memory);
        }
        Ok(())
    }

    /// Rejects a process that was replaced, and a gateway that was revoked. The check costs two queries, each of one
    /// database row. A process whose token is stale because its gateway became untrusted passes, so that the process can
    /// receive the new token.
    async fn verify_registration(&self, link: &Link) -> Result<(), Status> {
        match link.verify_registration().await {
            Err(error) if !self.inner.controller.is_stale_through_distrust(&error) => {
                Err(self.denial_to_status(error))
            }
            _ => Ok(()),
        }
    }

    /// Records the fencing token of a registration that was the newest registration when it was verified.
    fn record_registration(&self, gateway: GatewayId, fencing_token: u64) {
        if let Some(connection) = self.connections().get_mut(&gateway) {
            connection.fencing_token = connection.fencing_token.max(fencing_token);
        }
    }

    /// Returns the link of the request's registration, and the request.
    async fn open_request<M: RegisteredRequest>(&self, request: Request<M>) -> Result<(Link, M), Status> {
        let gateway = peer_gateway(&request)?;
        let message = request.into_inner();
        let registration = message.registration().ok_or(Malformed("no registration"))?;
        self.inner
            .controller
            .advance_time(self.inner.environment.timestamps().now_ns);
        self.accept_connection(
            gateway,
            &registration.connection_id,
            Some(registration.fencing_token),
        )
        .await?;
        Ok((
            self.inner.controller.link(gateway, registration.fencing_token),
            message,
        ))
    }

    /// Serves a request under its registration. A replaced process and a revoked gateway do not count as seen.
    async fn serve_request<M: RegisteredRequest, T>(
        &self,
        request: Request<M>,
        handler: impl AsyncFnOnce(Link, M) -> Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        let (link, message) = self.open_request(request).await?;
        let (gateway, fencing_token) = (link.gateway(), link.token_number());
        let result = handler(link, message).await;
        if result.is_ok() {
            self.record_registration(gateway, fencing_token);
        }
        // A malformed message is rejected before its registration is checked.
        let may_be_unregistered =
            |status: &Status| is_replaced(status) || status.code() == Code::InvalidArgument;
        if !result.as_ref().is_err_and(may_be_unregistered) {
            self.inner.observer.gateway_seen(gateway);
        }
        Ok(Response::new(result?))
    }

    fn denial_to_status(&self, error: impl Into<Denial>) -> Status {
        let denial = error.into();
        let (reason, code) = match &denial {
            Denial::Untrusted { .. } => ("untrusted", Code::FailedPrecondition),
            Denial::Registry(error @ RegistryError::StaleFencingToken { .. }) => {
                match self.inner.controller.is_stale_through_distrust(error) {
                    true => ("untrusted", Code::FailedPrecondition),
                    false => (REPLACED, Code::FailedPrecondition),
                }
            }
            Denial::Registry(RegistryError::RegistryRestored { .. }) => {
                ("restored", Code::FailedPrecondition)
            }
            Denial::Registry(RegistryError::GatewayRevoked { .. }) => (REPLACED, Code::PermissionDenied),
            Denial::Registry(
                RegistryError::Unreachable(_) | RegistryError::Locked | RegistryError::DiskFull,
            ) => ("failed", Code::Unavailable),
            Denial::Registry(_) => ("failed", Code::Internal),
        };
        denial_status(code, denial.to_string(), reason)
    }

    /// Runs `action` with the verifier of this registration. The verifier has loaded the provers' histories from the
    /// registry.
    async fn with_verifier<T>(
        &self,
        link: Link,
        action: impl AsyncFnOnce(&mut Verifier) -> Result<T, Denial>,
    ) -> Result<T, Status> {
        let gateway = link.gateway();
        // The registration is verified first, because opening a verifier reads the histories of all provers.
        link.verify_registration()
            .await
            .map_err(|error| self.denial_to_status(error))?;
        let current_verifier = || {
            let connections = self.connections();
            connections
                .get(&gateway)
                .map(|connection| Arc::clone(&connection.verifier))
        };
        let verifier = current_verifier().unwrap_or_default();
        let mut owned_verifier = verifier.lock().await;
        let token = link.token_number();
        if owned_verifier
            .as_ref()
            .is_none_or(|(owner_token, _)| *owner_token != token)
        {
            let open_verifier = Verifier::open(link)
                .await
                .map_err(|error| self.denial_to_status(error))?;
            *owned_verifier = Some((token, open_verifier));
        }
        let Some((_, open_verifier)) = owned_verifier.as_mut() else {
            return Err(Status::internal("no verifier"));
        };
        // The verifier belongs to the connection that opened it; a newer connection may have replaced this connection
        // meanwhile.
        if current_verifier().is_none_or(|current| !Arc::ptr_eq(&current, &verifier)) {
            return Err(Status::unavailable(
                "connection was replaced by a newer one of the same gateway",
            ));
        }
        action(open_verifier)
            .await
            .map_err(|error| self.denial_to_status(error))
    }

    fn report_trust(&self, gateway: GatewayId) {
        if let Some(report) = self.inner.controller.trust_report(gateway) {
            self.inner.observer.trust_reported(gateway, &report);
        }
    }

    /// Reports the trust state, and encodes it.
    fn trust_response(
        &self,
        gateway: GatewayId,
        TrustOutcome {
            status: trust_status,
            link,
        }: &TrustOutcome,
    ) -> proto::TrustStatus {
        self.report_trust(gateway);
        convert::trust_to_wire(trust_status, link.as_ref().map(Link::token_number))
    }
}

fn peer_gateway<M>(request: &Request<M>) -> Result<GatewayId, Status> {
    match request.extensions().get::<PeerGateway>() {
        Some(PeerGateway(gateway)) => Ok(*gateway),
        None => Err(Status::unauthenticated(
            "certificate names no gateway: expected one urn:linewarden:gateway:N",
        )),
    }
}

fn is_replaced(status: &Status) -> bool {
    status
        .metadata()
        .get(DENIAL)
        .is_some_and(|reason| reason == REPLACED)
}

fn denial_status(code: Code, message: String, reason: &'static str) -> Status {
    let mut status = Status::new(code, message);
    status
        .metadata_mut()
        .insert(DENIAL, tonic::metadata::MetadataValue::from_static(reason));
    status
}

impl From<Malformed> for Status {
    fn from(error: Malformed) -> Self {
        Status::invalid_argument(error.to_string())
    }
}

#[tonic::async_trait]
impl proto::link_server::Link for Server {
    async fn register(
        &self,
        request: Request<proto::RegisterRequest>,
    ) -> Result<Response<proto::RegisterResponse>, Status> {
        let gateway = peer_gateway(&request)?;
        let proto::RegisterRequest {
            connection_id: connection,
            version,
        } = request.into_inner();
        let timestamps = self.inner.environment.timestamps();
        self.inner.controller.advance_time(timestamps.now_ns);
        self.accept_connection(gateway, &connection, None).await?;
        let registration = self.inner.controller.register(gateway, timestamps.now_s);
        let fencing_token = registration
            .await
            .map_err(|error| self.denial_to_status(error))?
            .token_number();
        self.record_registration(gateway, fencing_token);
        self.inner
            .observer
            .gateway_registered(gateway, fencing_token, &version);
        self.report_trust(gateway);
        Ok(Response::new(proto::RegisterResponse { fencing_token }))
    }

    async fn resume_leases(
        &self,
        request: Request<proto::ResumeLeasesRequest>,
    ) -> Result<Response<proto::ResumeLeasesResponse>, Status> {
        self.serve_request(request, async |link, request| {
            let mut leases = link.leases_from(convert::cursor_from_wire(&request.cursor)?);
            let chunk = leases
                .next_chunk()
                .await
                .map_err(|error| self.denial_to_status(error))?;
            Ok(proto::ResumeLeasesResponse {
                provisions: chunk.provisions.iter().map(convert::provision_to_wire).collect(),
                damaged: chunk.damaged,
                done: chunk.progress.0,
                total: chunk.progress.1,
                is_last: chunk.is_last,
                cursor: convert::cursor_to_wire(leases.cursor()),
            })
        })
        .await
    }

    async fn extend_leases(
        &self,
        request: Request<proto::ExtendLeasesRequest>,
    ) -> Result<Response<proto::ExtendLeasesResponse>, Status> {
        self.serve_request(request, async |link, request| {
            let requests: Vec<_> = convert::entries(&request.requests)?
                .map(convert::row_request_from_wire)
                .collect();
            let (provisions, refusals) = link
                .extend_leases(&requests)
                .await
                .map_err(|error| self.denial_to_status(error))?;
            Ok(proto::ExtendLeasesResponse {
                provisions: provisions.iter().map(convert::provision_to_wire).collect(),
                refusals: refusals.iter().map(convert::refusal_to_wire).collect(),
            })
        })
        .await
    }

    async fn admit_devices(
        &self,
        request: Request<proto::AdmitDevicesRequest>,
    ) -> Result<Response<proto::AdmitDevicesResponse>, Status> {
        self.serve_request(request, async |link, request| {
            let requests = convert::entries(&request.requests)?.map(convert::admission_request_from_wire);
            let requests: Vec<_> = requests.collect::<Result<_, _>>()?;
            let fresh = convert::exact_bytes(&request.fresh, "fresh value of a wrong length")?;
            let responses = link.admit_devices(&requests, fresh).await;
            let responses = responses.map_err(|error| self.denial_to_status(error))?;
            Ok(proto::AdmitDevicesResponse {
                responses: responses
                    .iter()
                    .map(convert::admission_response_to_wire)
                    .collect(),
            })
        })
        .await
    }

    async fn report_unused_rows(
        &self,
        request: Request<proto::ReportUnusedRowsRequest>,
    ) -> Result<Response<proto::ReportUnusedRowsResponse>, Status> {
        self.serve_request(request, async |link, request| {
            let unused_rows = convert::entries(&request.unused)?.map(convert::unused_rows_from_wire);
            let unused_rows: Vec<_> = unused_rows.collect();
            let rows_returned = link
                .record_unused_rows(&unused_rows)
                .await
                .map_err(|error| self.denial_to_status(error))?;
            Ok(proto::ReportUnusedRowsResponse { rows_returned })
        })
        .await
    }

    async fn report_sessions(
        &self,
        request: Request<proto::ReportSessionsRequest>,
    ) -> Result<Response<proto::ReportSessionsResponse>, Status> {
        self.serve_request(request, async |link, request| {
            let reports = convert::entries(&request.reports)?.map(convert::report_from_wire);
            let reports: Vec<SessionReport> = reports.collect::<Result<_, _>>()?;
            let now = self
                .inner
                .controller
                .session_clock(self.inner.environment.boot_timestamp())
                .await;
            let Some(now) = now.map_err(|error| self.denial_to_status(error))? else {
                link.verify_registration()
                    .await
                    .map_err(|error| self.denial_to_status(error))?;
                // Without a boot id, sessions cannot be compared, so each counts as the newest.
                let results = vec![proto::SessionReportResult::default(); reports.len()];
                return Ok(proto::ReportSessionsResponse { results });
            };
            let results = link
                .report_sessions(&reports, now)
                .await
                .map_err(|error| self.denial_to_status(error))?;
            Ok(proto::ReportSessionsResponse {
                results: results.into_iter().map(convert::report_result_to_wire).collect(),
            })
        })
        .await
    }

    async fn list_changes(
        &self,
        request: Request<proto::ListChangesRequest>,
    ) -> Result<Response<proto::ListChangesResponse>, Status> {
        self.serve_request(request, async |link, request| {
            let environment = &self.inner.environment;
            let mut random = || {
                let mut bytes = [0; 32];
                environment.fill_random(&mut bytes).then_some(bytes)
            };
            // The trust status is read first. If this read issues a new fencing token, the changes can only be read with
            // the new token.
            let result = link.poll_trust(environment.timestamps(), &mut random).await;
            let result = result.map_err(|error| self.denial_to_status(error))?;
            let trust_status = result
                .as_ref()
                .map(|outcome| self.trust_response(link.gateway(), outcome));
            let link = result.and_then(|outcome| outcome.link).unwrap_or(link);
            let changes = link
                .changes_since(Revision(request.since), environment.boot_timestamp())
                .await;
            let changes = changes.map_err(|error| self.denial_to_status(error))?;
            Ok(proto::ListChangesResponse {
                trust: trust_status,
                ..convert::changes_to_wire(&changes)
            })
        })
        .await
    }

    async fn submit_evidence(
        &self,
        request: Request<proto::SubmitEvidenceRequest>,
    ) -> Result<Response<proto::SubmitEvidenceResponse>, Status> {
        self.serve_request(request, async |link, request| {
            let timestamps = self.inner.environment.timestamps();
            let result = link
                .submit_evidence(request.statement, Some(request.inventory), timestamps)
                .await;
            match result.map_err(|error| self.denial_to_status(error))? {
                Ok(outcome) => Ok(proto::SubmitEvidenceResponse {
                    trust: Some(self.trust_response(link.gateway(), &outcome)),
                }),
                Err(error) => Err(denial_status(
                    Code::FailedPrecondition,
                    error.to_string(),
                    "untrusted",
                )),
            }
        })
        .await
    }

    async fn get_plan(
        &self,
        request: Request<proto::GetPlanRequest>,
    ) -> Result<Response<proto::GetPlanResponse>, Status> {
        self.serve_request(request, async |link, request| {
            let environment = &self.inner.environment;
            let now_s = environment.timestamps().now_s;
            let plan_request = convert::plan_request_from_wire(&request);
            let plan = self
                .with_verifier(link, async |verifier| {
                    let mut random = || {
                        let mut bytes = [0; 8];
                        environment.fill_random(&mut bytes).then_some(bytes)
                    };
                    Ok(verifier.plan(plan_request, now_s, &mut random).await?)
                })
                .await?;
            Ok(convert::plan_to_wire(plan.as_ref()))
        })
        .await
    }

    async fn list_provers(
        &self,
        request: Request<proto::ListProversRequest>,
    ) -> Result<Response<proto::ListProversResponse>, Status> {
        self.serve_request(request, async |link, request| {
            let start = convert::start_from_wire(request.start)?;
            let since = request.since;
            let provers = self
                .with_verifier(link, async |verifier| verifier.provers(start, since).await)
                .await?;
            Ok(convert::provers_to_wire(&provers))
        })
        .await
    }

    async fn appraise_round(
        &self,
        request: Request<proto::AppraiseRoundRequest>,
    ) -> Result<Response<proto::AppraiseRoundResponse>, Status> {
        self.serve_request(request, async |link, request| {
            // The registration is verified before the devices are looked up.
            link.verify_registration()
                .await
                .map_err(|error| self.denial_to_status(error))?;
            let (mut round, age_ns) = convert::round_from_wire(&request)?;
            // A gateway, or an attacker who has its key, must not decide about devices of other gateways.
            let devices: Vec<DeviceId> = round
                .observations
                .iter()
                .map(|observation| observation.device)
                .collect();
            let known_devices = link.known_devices(&devices).await;
            let known_devices = known_devices.map_err(|error| self.denial_to_status(error))?;
            round
                .observations
                .retain(|observation| known_devices.contains(&observation.device));
            let now_s = self.inner.environment.timestamps().now_s;
            let ended_s = now_s.saturating_sub(age_ns / 1_000_000_000);
            let gateway = link.gateway();
            let appraisal = self
                .with_verifier(link, async |verifier| {
                    Ok(verifier.appraise_round(&round, ended_s, now_s).await?)
                })
                .await?;
            self.inner
                .observer
                .round_appraised(&round.record(gateway, ended_s), &appraisal);
            Ok(convert::appraisal_to_wire(&appraisal))
        })
        .await
    }

    async fn list_prover_ids(
        &self,
        request: Request<proto::ListProverIdsRequest>,
    ) -> Result<Response<proto::ListProverIdsResponse>, Status> {
        self.serve_request(request, async |link, request| {
            let ids = link.prover_ids(request.since).await;
            let ids = ids.map_err(|error| self.denial_to_status(error))?;
            Ok(convert::prover_ids_to_wire(&ids))
        })
        .await
    }

    async fn relay_ticket(
        &self,
        request: Request<proto::RelayTicketRequest>,
    ) -> Result<Response<proto::RelayTicketResponse>, Status> {
        use proto::relay_ticket_response::Outcome;
        self.serve_request(request, async |link, request| {
            link.verify_registration()
                .await
                .map_err(|error| self.denial_to_status(error))?;
            let address = convert::optional_bytes::<16>(&request.address, "address of a wrong length")?;
            let location = request.located_device.map(|device| (DeviceId(device), address));
            let requested_device = Mutex::new(None);
            let locate = |device: DeviceId| match location {
                Some((located_device, address)) if located_device == device => address,
                _ => {
                    *requested_device.lock().unwrap_or_else(PoisonError::into_inner) = Some(device);
                    None
                }
            };
            let mut aead_nonce = [0; 24];
            if !self.inner.environment.fill_random(&mut aead_nonce) {
                return Err(denial_status(
                    Code::Unavailable,
                    "no random bytes".to_owned(),
                    "failed",
                ));
            }
            let context = RelayContext {
                aead_nonce,
                now_s: self.inner.environment.timestamps().now_s,
                locate: &locate,
            };
            let response = self
                .inner
                .controller
                .handle_ticket(link.gateway(), &request.message, &context)
                .await;
            let response = response.map_err(|error| self.denial_to_status(error))?;
            // A response without the requested address is discarded. The repeated request produces another response.
            let requested_device = requested_device
                .into_inner()
                .unwrap_or_else(PoisonError::into_inner);
            let outcome = match requested_device {
                Some(device) => Some(Outcome::Locate(device.0)),
                None => response.map(Outcome::Response),
            };
            Ok(proto::RelayTicketResponse { outcome })
        })
        .await
    }

    async fn report_status(
        &self,
        request: Request<proto::ReportStatusRequest>,
    ) -> Result<Response<proto::ReportStatusResponse>, Status> {
        self.serve_request(request, async |link, request| {
            link.verify_registration()
                .await
                .map_err(|error| self.denial_to_status(error))?;
            let report = StatusReport {
                data_plane: request.data_plane,
                devices: request.devices,
                slots: request.slots,
                sessions: request.sessions,
                authentications_per_s: request.authentications_per_s,
                latency_us_p50: request.latency_us_p50,
                latency_us_p99: request.latency_us_p99,
                verdicts: request.verdicts,
                dropped_types: request.dropped_types,
                kernel_drops: request.kernel_drops,
                tickets: request.tickets,
            };
            self.inner.observer.status_reported(link.gateway(), report);
            Ok(proto::ReportStatusResponse {})
        })
        .await
    }
}
