//! Sends requests to the controller and returns the responses, on a thread of its own.
//!
//! Six tasks serve six queues, so that slow requests do not delay urgent requests: a revocation does not wait while the
//! leases of a fleet are resumed, an authentication waits for neither, and neither a revocation nor an authentication
//! waits for session reports, attestation or slow signatures.

mod rates;
mod sample;
mod status_report;

use std::sync::Arc;

use linewarden_dataplane::{Measurement, SessionOpening};
use linewarden_evidence::statement::Nonce;
use linewarden_types::{ControllerLink, LinkError, SessionReport, TrustStatus};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

pub use self::sample::DataPlaneInfo;
pub(crate) use self::sample::StatusSample;
use crate::evidence_source::EvidenceSource;
use crate::requests::{ControllerRequest, ControllerResponse};
use crate::time::Clock;

/// Maximum number of requests in one queue. At most four kinds of requests share a queue, and the node has at most one
/// request of each kind in flight. The only exception, the last report of unused rows, shares a queue with two other kinds.
/// A queue is therefore never full; a request that finds a full queue is dropped and logged.
const QUEUED_REQUESTS_MAX: usize = 4;

/// The queues of requests.
pub(crate) struct RequestQueues {
    resume: Sender<ControllerRequest>,
    rows: Sender<ControllerRequest>,
    reports: Sender<ControllerRequest>,
    changes: Sender<ControllerRequest>,
    evidence: Sender<ControllerRequest>,
    attestation: Sender<ControllerRequest>,
}

impl RequestQueues {
    /// Queues a request. If the thread has ended, no response is received, and the node continues with the leases
    /// that it has.
    pub(crate) fn send(&self, request: ControllerRequest) {
        let (name, queue) = match request {
            ControllerRequest::ResumeLeases => ("resume", &self.resume),
            // These requests share a queue, so that unused rows are returned before rows are requested again.
            ControllerRequest::ExtendLeases(_)
            | ControllerRequest::AdmitDevices { .. }
            | ControllerRequest::ReportUnusedRows(_) => ("rows", &self.rows),
            ControllerRequest::ReportSessions(_) => ("reports", &self.reports),
            ControllerRequest::Register | ControllerRequest::ListChanges { .. } => ("changes", &self.changes),
            ControllerRequest::SubmitEvidence { .. } => ("evidence", &self.evidence),
            // These requests share a queue, because keys of provers depend on earlier decisions.
            ControllerRequest::GetPlan(_)
            | ControllerRequest::ListProvers { .. }
            | ControllerRequest::AppraiseRound(_)
            | ControllerRequest::ListProverIds { .. } => ("attestation", &self.attestation),
        };
        if let Err(TrySendError::Full(_)) = queue.try_send(request) {
            tracing::error!(
                request = name,
                action = "restart the gateway, and report this defect of the gateway",
                "request queue full; request dropped; the gateway sends no further request of this kind"
            );
        }
    }
}

/// Serves the queues.
pub(crate) struct RequestDispatcher {
    controller: Arc<dyn ControllerLink>,
    data_plane: DataPlaneInfo,
    source: Option<EvidenceSource>,
    resume: Receiver<ControllerRequest>,
    rows: Receiver<ControllerRequest>,
    reports: Receiver<ControllerRequest>,
    changes: Receiver<ControllerRequest>,
    evidence: Receiver<ControllerRequest>,
    attestation: Receiver<ControllerRequest>,
}

impl RequestDispatcher {
    pub(crate) fn new(
        controller: Arc<dyn ControllerLink>,
        data_plane: DataPlaneInfo,
        source: Option<EvidenceSource>,
    ) -> (Self, RequestQueues) {
        let (resume, resume_inbox) = channel(QUEUED_REQUESTS_MAX);
        let (rows, rows_inbox) = channel(QUEUED_REQUESTS_MAX);
        let (reports, reports_inbox) = channel(QUEUED_REQUESTS_MAX);
        let (changes, changes_inbox) = channel(QUEUED_REQUESTS_MAX);
        let (evidence, evidence_inbox) = channel(QUEUED_REQUESTS_MAX);
        let (attestation, attestation_inbox) = channel(QUEUED_REQUESTS_MAX);
        let dispatcher = Self {
            controller,
            data_plane,
            source,
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
            controller,
            data_plane,
            source,
            resume,
            rows,
            reports,
            changes,
            evidence,
            attestation,
        } = self;
        let backend = Backend { controller, source };
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
            () = status_report::run(&*backend.controller, &data_plane, sample_status) => {}
        }
    }
}

/// The controller, and the source of evidence for it.
struct Backend {
    controller: Arc<dyn ControllerLink>,
    source: Option<EvidenceSource>,
}

impl Backend {
    /// Serves one queue, one request after the other.
    async fn serve(
        &self,
        mut requests: Receiver<ControllerRequest>,
        on_response: &impl Fn(ControllerResponse),
    ) {
        while let Some(request) = requests.recv().await {
            on_response(self.respond(request).await);
        }
    }

    async fn respond(&self, request: ControllerRequest) -> ControllerResponse {
        let controller = &*self.controller;
        match request {
            ControllerRequest::Register => ControllerResponse::Register(controller.register().await),
            ControllerRequest::ResumeLeases => {
                ControllerResponse::ResumeLeases(controller.resume_leases().await)
            }
            ControllerRequest::SubmitEvidence { nonce, measurement } => {
                ControllerResponse::SubmitEvidence(self.submit_evidence(nonce, measurement).await)
            }
            ControllerRequest::ExtendLeases(requests) => {
                ControllerResponse::ExtendLeases(controller.extend_leases(&requests).await)
            }
            ControllerRequest::AdmitDevices { requests, fresh } => {
                ControllerResponse::AdmitDevices(controller.admit_devices(&requests, fresh).await)
            }
            ControllerRequest::ReportUnusedRows(unused_rows) => {
                ControllerResponse::ReportUnusedRows(controller.report_unused_rows(&unused_rows).await)
            }
            ControllerRequest::ReportSessions(openings) => {
                let at_ns = Clock::now().boot_ns;
                let reports: Vec<SessionReport> = openings
                    .iter()
                    .map(|opening| session_report(opening, at_ns))
                    .collect();
                ControllerResponse::ReportSessions {
                    result: controller.report_sessions(&reports).await,
                    at_ns,
                }
            }
            ControllerRequest::GetPlan(plan_request) => {
                ControllerResponse::GetPlan(controller.get_plan(plan_request).await)
            }
            ControllerRequest::ListProvers { start, since } => {
                ControllerResponse::ListProvers(controller.list_provers(start, since).await)
            }
            ControllerRequest::AppraiseRound(round) => {
                let age_ns = Clock::now().boot_ns.saturating_sub(round.ended_ns);
                ControllerResponse::AppraiseRound(controller.appraise_round(&round, age_ns).await)
            }
            ControllerRequest::ListProverIds { since } => {
                ControllerResponse::ListProverIds(controller.list_prover_ids(since).await)
            }
            ControllerRequest::ListChanges { since } => {
                let at_ns = Clock::now().boot_ns;
                let (result, trust) = controller.list_changes(since).await;
                ControllerResponse::ListChanges { result, at_ns, trust }
            }
        }
    }

    /// Creates signed evidence, and submits it.
    async fn submit_evidence(
        &self,
        nonce: Nonce,
        measurement: Option<Box<Measurement>>,
    ) -> Result<TrustStatus, LinkError> {
        let source = self.source.as_ref();
        let source = source.ok_or_else(|| LinkError::Failed("gateway has no evidence key".to_owned()))?;
        let evidence = source.statement(nonce, measurement).await;
        let evidence = evidence.map_err(|error| LinkError::NoEvidence(error.to_string()))?;
        self.controller
            .submit_evidence(evidence.statement, evidence.inventory)
            .await
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
