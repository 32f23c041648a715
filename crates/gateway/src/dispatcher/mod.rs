//! Sends requests to the controller and returns the responses, on a thread of its own.
//!
//! One task serves each queue, so that slow requests do not delay urgent requests: a revocation does not wait while the
//! leases of a fleet are resumed, an authentication waits for neither, and neither a revocation nor an authentication
//! waits for session reports, attestation or slow signatures.

mod rates;
mod sample;
mod status_report;

use std::sync::Arc;

use linewarden_evidence::statement::Nonce;
use linewarden_types::{ControllerLink, ControllerRequest, ControllerResponse, Kind};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

pub use self::sample::DataPlaneInfo;
pub(crate) use self::sample::StatusSample;
use crate::attester::SignedEvidence;
use crate::evidence_source::EvidenceSource;
use crate::node::EvidenceRequest;

/// Maximum number of requests in one queue. At most four kinds of requests share a queue, and the node has at most one
/// request of each kind in flight. The only exception, the last report of unused rows, shares a queue with two other kinds.
/// A queue is therefore never full; a request that finds a full queue is dropped and logged.
const QUEUED_REQUESTS_MAX: usize = 4;

/// Number of queues of requests to the controller.
const QUEUES: usize = 6;

/// Returns the queue of a kind of request.
fn queue_of(kind: Kind) -> usize {
    match kind {
        Kind::ResumeLeases => 0,
        // These requests share a queue, so that unused rows are returned before rows are requested again.
        Kind::ExtendLeases | Kind::AdmitDevices | Kind::ReportUnusedRows => 1,
        // The ticket relay and the status reports send their requests themselves.
        Kind::ReportSessions | Kind::RelayTicket | Kind::ReportStatus => 2,
        Kind::Register | Kind::ListChanges => 3,
        Kind::SubmitEvidence => 4,
        // These requests share a queue, because keys of provers depend on earlier decisions.
        Kind::GetPlan | Kind::ListProvers | Kind::AppraiseRound | Kind::ListProverIds => 5,
    }
}

/// The result of a request of the node.
pub(crate) enum Completion {
    /// The controller's response.
    Response(ControllerResponse),
    /// The evidence for a nonce, or the reason why no evidence could be created.
    Evidence(Nonce, Result<SignedEvidence, String>),
}

/// The queues of requests.
pub(crate) struct RequestQueues {
    requests: [Sender<ControllerRequest>; QUEUES],
    evidence: Sender<EvidenceRequest>,
}

impl RequestQueues {
    /// Queues a request. If the thread has ended, no response is received, and the node continues with the leases
    /// that it has.
    pub(crate) fn send(&self, request: ControllerRequest) {
        let kind = request.kind();
        if let Some(queue) = self.requests.get(queue_of(kind)) {
            try_send(queue, request, kind.name());
        }
    }

    /// Queues a request for evidence.
    pub(crate) fn create_evidence(&self, request: EvidenceRequest) {
        try_send(&self.evidence, request, "create evidence");
    }
}

fn try_send<T>(queue: &Sender<T>, request: T, name: &str) {
    if let Err(TrySendError::Full(_)) = queue.try_send(request) {
        tracing::error!(
            request = name,
            action = "restart the gateway, and report this defect of the gateway",
            "request queue full; request dropped; the gateway sends no further request of this kind"
        );
    }
}

/// Serves the queues.
pub(crate) struct RequestDispatcher {
    controller: Arc<dyn ControllerLink>,
    data_plane: DataPlaneInfo,
    source: Option<EvidenceSource>,
    requests: [Receiver<ControllerRequest>; QUEUES],
    evidence: Receiver<EvidenceRequest>,
}

impl RequestDispatcher {
    pub(crate) fn new(
        controller: Arc<dyn ControllerLink>,
        data_plane: DataPlaneInfo,
        source: Option<EvidenceSource>,
    ) -> (Self, RequestQueues) {
        let queues: [_; QUEUES] = std::array::from_fn(|_| channel(QUEUED_REQUESTS_MAX));
        let (evidence, evidence_inbox) = channel(QUEUED_REQUESTS_MAX);
        let senders = queues.each_ref().map(|(sender, _)| sender.clone());
        let dispatcher = Self {
            controller,
            data_plane,
            source,
            requests: queues.map(|(_, inbox)| inbox),
            evidence: evidence_inbox,
        };
        let queues = RequestQueues {
            requests: senders,
            evidence,
        };
        (dispatcher, queues)
    }

    /// Serves requests until the queues are dropped. `sample_status` returns a status sample.
    pub(crate) async fn serve(
        self,
        on_completion: impl Fn(Completion),
        sample_status: impl Fn() -> Option<StatusSample> + Clone + Send + 'static,
    ) {
        let controller = &*self.controller;
        let serve = async |mut requests: Receiver<ControllerRequest>| {
            while let Some(request) = requests.recv().await {
                on_completion(Completion::Response(controller.send(request).await));
            }
        };
        let [resume, rows, reports, changes, submissions, attestation] = self.requests;
        let served = async {
            tokio::join!(
                serve(resume),
                serve(rows),
                serve(reports),
                serve(changes),
                serve(submissions),
                serve(attestation),
                create_evidence(self.evidence, self.source.as_ref(), &on_completion),
            )
        };
        tokio::select! {
            _ = served => {}
            () = status_report::run(controller, &self.data_plane, sample_status) => {}
        }
    }
}

/// Serves requests for evidence.
async fn create_evidence(
    mut requests: Receiver<EvidenceRequest>,
    source: Option<&EvidenceSource>,
    on_completion: &impl Fn(Completion),
) {
    while let Some(EvidenceRequest { nonce, measurement }) = requests.recv().await {
        let result = match source {
            Some(source) => {
                let evidence = source.statement(nonce, measurement).await;
                evidence.map_err(|error| error.to_string())
            }
            None => Err("gateway has no evidence key".to_owned()),
        };
        on_completion(Completion::Evidence(nonce, result));
    }
}
