//! A gateway's requests to its controller.

use async_trait::async_trait;
use linewarden_protocol::attest::PeriodStart;
use linewarden_protocol::ids::DeviceId;

use crate::attestation::{Plan, PlanRequest, ProverIds, Provers, RoundAppraisal, RoundOutcome};
use crate::change::{Changes, Revision};
use crate::rows::{
    AdmissionRequest, AdmissionResponse, LeaseChunk, Provision, RowRefusal, RowRequest, UnusedRows,
};
use crate::session::{SessionReport, SessionReportResult};
use crate::status::StatusReport;
use crate::trust::TrustStatus;

/// The reason why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// A failure, described by the text; the request can be retried.
    #[error("{0}")]
    Failed(String),
    /// The gateway's evidence is missing or was not affirmed.
    #[error("{0}")]
    Untrusted(String),
    /// No evidence could be created, for the reason in the text. The controller requests evidence again.
    #[error("{0}")]
    NoEvidence(String),
    /// Another process has registered as this gateway, or the gateway was revoked. This process must send no replies.
    #[error("{0}")]
    Replaced(String),
    /// The registry was restored to an earlier state after this process registered. The leases are void, and the
    /// process registers again.
    #[error("{0}")]
    RegistryRestored(String),
}

impl LinkError {
    /// Creates the error of a failed request. `party` could not complete the request: `controller` or `registry`.
    #[must_use]
    pub fn failed(party: &str, error: String) -> Self {
        match error.starts_with(party) {
            true => Self::Failed(error),
            false => Self::Failed(format!("{party}: {error}")),
        }
    }
}

/// Identifies a process of a gateway: 16 random bytes that the process draws once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId(pub [u8; 16]);

/// The requests of one gateway process to its controller (LAP/1 1.4.6, 1.4.11). Each request may be repeated.
///
/// The first request registers the process: later requests carry the fencing token of this registration, so a controller
/// rejects a process that was replaced. After [`LinkError::RegistryRestored`] the next request registers again.
// The futures need not be Send: a gateway polls them on the thread that made the request.
#[async_trait(?Send)]
pub trait ControllerLink: Send + Sync {
    /// Registers this process, unless it is registered, and returns its fencing token.
    async fn register(&self) -> Result<u64, LinkError>;

    /// Reads the next part of the leases that this gateway had when it stopped; a new registration starts again with the
    /// first part.
    async fn resume_leases(&self) -> Result<LeaseChunk, LinkError>;

    /// Leases more rows for devices in the gateway's data plane, and moves their marks.
    async fn extend_leases(
        &self,
        requests: &[RowRequest],
    ) -> Result<(Vec<Provision>, Vec<RowRefusal>), LinkError>;

    /// Handles messages of devices that are not in the data plane. `fresh` is the gateway's current fresh value. The
    /// responses are in the order of the requests.
    async fn admit_devices(
        &self,
        requests: &[AdmissionRequest],
        fresh: [u8; 8],
    ) -> Result<Vec<AdmissionResponse>, LinkError>;

    /// Reports unused rows of devices that left the data plane. Returns how many rows were returned to their pools.
    async fn report_unused_rows(&self, unused_rows: &[UnusedRows]) -> Result<u64, LinkError>;

    /// Reports sessions that were opened at this gateway. The results are in the order of the reports.
    async fn report_sessions(&self, reports: &[SessionReport])
    -> Result<Vec<SessionReportResult>, LinkError>;

    /// Reads the changes of devices since a revision, and the trust status of this gateway: `None` if the controller
    /// requires no evidence, or if the status could not be read.
    async fn list_changes(&self, since: Revision) -> (Result<Changes, LinkError>, Option<TrustStatus>);

    /// Submits evidence about the data plane: a signed statement and its inventory, as encoded by `linewarden-evidence`.
    async fn submit_evidence(&self, statement: Vec<u8>, inventory: Vec<u8>)
    -> Result<TrustStatus, LinkError>;

    /// Reads the attestation plan; `None` if the controller could draw no salt for a new period.
    async fn get_plan(&self, request: PlanRequest) -> Result<Option<Plan>, LinkError>;

    /// Reads the provers that have changed since a revision, with this gateway's keys of a period.
    async fn list_provers(&self, start: PeriodStart, since: u64) -> Result<Provers, LinkError>;

    /// Submits a round that ended `age_ns` ago, and returns its appraisal.
    async fn appraise_round(&self, round: &RoundOutcome, age_ns: u64) -> Result<RoundAppraisal, LinkError>;

    /// Reads the ids of devices that have become provers, or are no longer provers, since a revision.
    async fn list_prover_ids(&self, since: u64) -> Result<ProverIds, LinkError>;

    /// Relays a device's ticket; `None` if the controller sends no response. `locate` returns the address of a device's
    /// session at this gateway.
    async fn relay_ticket(
        &self,
        message: &[u8],
        locate: &(dyn Fn(DeviceId) -> Option<[u8; 16]> + Sync),
    ) -> Result<Option<Vec<u8>>, LinkError>;

    /// Reports the gateway's status. A report does not register the process: before the first registration, it is not
    /// sent.
    async fn report_status(&self, report: &StatusReport) -> Result<(), LinkError>;
}
