//! Sends requests to the controller and returns the responses, on a thread of its own.
//!
//! Six tasks serve six queues, so that slow requests do not delay urgent requests: a revocation does not wait while the
//! leases of a fleet are resumed, an authentication waits for neither, and neither a revocation nor an authentication
//! waits for session reports, attestation or slow signatures.

mod local;
mod rates;
#[cfg(feature = "full")]
mod remote;

use std::time::{SystemTime, UNIX_EPOCH};

use linewarden_controller::attest::RoundOutcome;
use linewarden_controller::trust::Timestamps;
use linewarden_controller::{Controller, SessionReport};
use linewarden_dataplane::{Counters, HandlingTimes, SessionOpening};
#[cfg(feature = "full")]
use linewarden_link::Client;
use linewarden_protocol::ids::GatewayId;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::evidence_source::EvidenceSource;
use crate::gateway::random;
use crate::node::Status;
use crate::requests::{ControllerRequest, ControllerResponse};
use crate::time::Clock;

/// The controller of a gateway.
#[derive(Clone, Debug)]
pub enum ControllerLink {
    /// A controller in this process.
    InProcess(Controller),
    /// Controllers on other machines.
    #[cfg(feature = "full")]
    Remote(Client, DataPlaneInfo),
}

/// Constant properties of a gateway's data plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataPlaneInfo {
    /// The kind of the data plane.
    pub kind: String,
    /// Number of slots in the data plane.
    pub slots: u64,
}

impl From<Controller> for ControllerLink {
    fn from(controller: Controller) -> Self {
        Self::InProcess(controller)
    }
}

#[cfg(feature = "full")]
impl From<Client> for ControllerLink {
    fn from(client: Client) -> Self {
        Self::Remote(client, DataPlaneInfo::default())
    }
}

/// The queues of requests.
pub(crate) struct RequestQueues {
    resume: UnboundedSender<ControllerRequest>,
    rows: UnboundedSender<ControllerRequest>,
    reports: UnboundedSender<ControllerRequest>,
    changes: UnboundedSender<ControllerRequest>,
    evidence: UnboundedSender<ControllerRequest>,
    attestation: UnboundedSender<ControllerRequest>,
}

impl RequestQueues {
    /// Queues a request. If the thread has ended, no response is received, and the node continues with the leases
    /// that it has.
    pub(crate) fn send(&self, request: ControllerRequest) {
        let queue = match request {
            ControllerRequest::ResumeLeases => &self.resume,
            // These requests share a queue, so that unused rows are returned before rows are requested again.
            ControllerRequest::ExtendLeases(_)
            | ControllerRequest::AdmitDevices { .. }
            | ControllerRequest::ReportUnusedRows(_) => &self.rows,
            ControllerRequest::ReportSessions(_) => &self.reports,
            ControllerRequest::Register | ControllerRequest::ListChanges { .. } => &self.changes,
            ControllerRequest::SubmitEvidence { .. } => &self.evidence,
            // These requests share a queue, because keys of provers depend on earlier decisions.
            ControllerRequest::GetPlan(_)
            | ControllerRequest::ListProvers { .. }
            | ControllerRequest::AppraiseRound(_)
            | ControllerRequest::ListProverIds { .. } => &self.attestation,
        };
        drop(queue.send(request));
    }
}

/// Serves the queues.
pub(crate) struct RequestDispatcher {
    backend: ControllerBackend,
    resume: UnboundedReceiver<ControllerRequest>,
    rows: UnboundedReceiver<ControllerRequest>,
    reports: UnboundedReceiver<ControllerRequest>,
    changes: UnboundedReceiver<ControllerRequest>,
    evidence: UnboundedReceiver<ControllerRequest>,
    attestation: UnboundedReceiver<ControllerRequest>,
}

impl RequestDispatcher {
    pub(crate) fn new(
        controller: ControllerLink,
        gateway: GatewayId,
        source: Option<EvidenceSource>,
    ) -> (Self, RequestQueues) {
        let (resume, resume_inbox) = unbounded_channel();
        let (rows, rows_inbox) = unbounded_channel();
        let (reports, reports_inbox) = unbounded_channel();
        let (changes, changes_inbox) = unbounded_channel();
        let (evidence, evidence_inbox) = unbounded_channel();
        let (attestation, attestation_inbox) = unbounded_channel();
        let dispatcher = Self {
            backend: match controller {
                ControllerLink::InProcess(controller) => {
                    ControllerBackend::Local(local::LocalController::new(controller, gateway, source))
                }
                #[cfg(feature = "full")]
                ControllerLink::Remote(client, data_plane) => {
                    ControllerBackend::Remote(remote::RemoteController::new(client, data_plane, source))
                }
            },
            resume: resume_inbox,
            rows: rows_inbox,
            reports: reports_inbox,
            changes: changes_inbox,
            evidence: evidence_inbox,
            attestation: attestation_inbox,
        };
        let queues = RequestQueues {
            resume,
            rows,
            reports,
            changes,
            evidence,
            attestation,
        };
        (dispatcher, queues)
    }

    /// Serves requests until the queues are dropped. `sample_status` returns a status sample.
    pub(crate) async fn serve(
        self,
        on_response: impl Fn(ControllerResponse),
        sample_status: impl Fn() -> Option<StatusSample> + Clone + Send + 'static,
    ) {
        let Self {
            backend,
            resume,
            rows,
            reports,
            changes,
            evidence,
            attestation,
        } = self;
        let responses = async {
            tokio::join!(
                backend.serve(resume, &on_response),
                backend.serve(rows, &on_response),
                backend.serve(reports, &on_response),
                backend.serve(changes, &on_response),
                backend.serve(evidence, &on_response),
                backend.serve(attestation, &on_response),
            )
        };
        tokio::select! {
            _ = responses => {}
            () = backend.report_status(sample_status) => {}
        }
    }
}

/// The controller that serves the requests.
enum ControllerBackend {
    Local(local::LocalController),
    #[cfg(feature = "full")]
    Remote(remote::RemoteController),
}

/// A sample of the gateway's status.
pub(crate) struct StatusSample {
    /// Time of the sample, boot-time clock, ns.
    pub(crate) at_ns: u64,
    pub(crate) status: Status,
    pub(crate) counters: Counters,
    /// `None` if the data plane does not measure handling times.
    pub(crate) handling: Option<HandlingTimes>,
    /// Live sessions; `None` if the data plane does not count them.
    pub(crate) sessions: Option<u64>,
}

impl ControllerBackend {
    /// Reports the status to remote controllers, as long as the gateway runs.
    async fn report_status(&self, sample_status: impl Fn() -> Option<StatusSample> + Clone + Send + 'static) {
        match self {
            Self::Local(_) => std::future::pending().await,
            #[cfg(feature = "full")]
            Self::Remote(backend) => backend.report_status(sample_status).await,
        }
    }

    /// Serves one queue, one request after the other.
    async fn serve(
        &self,
        mut requests: UnboundedReceiver<ControllerRequest>,
        on_response: &impl Fn(ControllerResponse),
    ) {
        match self {
            Self::Local(backend) => {
                let mut queue_state = local::QueueState::default();
                while let Some(request) = requests.recv().await {
                    on_response(backend.respond(request, &mut queue_state).await);
                }
            }
            #[cfg(feature = "full")]
            Self::Remote(backend) => {
                let mut queue_state = remote::QueueState::default();
                while let Some(request) = requests.recv().await {
                    on_response(backend.respond(request, &mut queue_state).await);
                }
            }
        }
    }
}

/// Returns the report that proves a session to the controller.
fn session_report(opening: &SessionOpening, now_ns: u64) -> SessionReport {
    SessionReport {
        message: opening.response,
        loc: opening.loc,
        age_ns: now_ns.saturating_sub(opening.opened_ns),
    }
}

fn random_32() -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    for chunk in bytes.chunks_exact_mut(8) {
        chunk.copy_from_slice(&random()?);
    }
    Some(bytes)
}

fn now_s() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    since_1970.map_or(0, |time| time.as_secs())
}

/// Returns the end of a round, in seconds since 1970-01-01 UTC.
fn ended_s(round: &RoundOutcome, now_s: u64) -> u64 {
    let age_ns = Clock::now().boot_ns.saturating_sub(round.ended_ns);
    now_s.saturating_sub(age_ns / 1_000_000_000)
}

fn timestamps() -> Timestamps {
    Timestamps {
        now_ns: Clock::now().boot_ns,
        now_s: now_s(),
    }
}
