//! Requests of the node to its controller, and the responses.

use linewarden_dataplane::{Measurement, SessionOpening};
use linewarden_evidence::statement::Nonce;
use linewarden_protocol::attest::PeriodStart;
use linewarden_types::{
    AdmissionRequest, AdmissionResponse, Changes, LeaseChunk, LinkError, Plan, PlanRequest, ProverIds,
    Provers, Provision, Revision, RoundAppraisal, RoundOutcome, RowRefusal, RowRequest, SessionReportResult,
    TrustStatus, UnusedRows,
};

/// A request to the controller. At most one of each kind is in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerRequest {
    /// Registers this process, unless it is registered, and returns its fencing token.
    Register,
    /// Reads the next part of the leases that this gateway had when it stopped; repeated until the last part.
    ResumeLeases,
    /// Leases more rows for these devices, and moves their marks.
    ExtendLeases(Vec<RowRequest>),
    /// Handles messages of devices that are not in the data plane.
    AdmitDevices {
        /// The messages.
        requests: Vec<AdmissionRequest>,
        /// The current fresh value.
        fresh: [u8; 8],
    },
    /// Reports unused rows of devices that left the data plane.
    ReportUnusedRows(Vec<UnusedRows>),
    /// Reports sessions that were opened at this gateway.
    ReportSessions(Vec<SessionOpening>),
    /// Reads changes of devices.
    ListChanges {
        /// Only changes after this revision.
        since: Revision,
    },
    /// Submits evidence about the data plane.
    SubmitEvidence {
        /// The nonce of the evidence.
        nonce: Nonce,
        /// The measurement to sign, taken after the nonce was received; `None`: the switch measures itself and signs.
        measurement: Option<Box<Measurement>>,
    },
    /// Reads the attestation plan.
    GetPlan(PlanRequest),
    /// Reads provers, with this gateway's keys of a period.
    ListProvers {
        /// The period.
        start: PeriodStart,
        /// Only provers that have changed since this revision.
        since: u64,
    },
    /// Submits a round that has ended.
    AppraiseRound(Box<RoundOutcome>),
    /// Reads the ids of provers; only if the data plane does not attest.
    ListProverIds {
        /// Only provers that have changed since this revision.
        since: u64,
    },
}

/// The response to a [`ControllerRequest`].
#[derive(Debug)]
pub enum ControllerResponse {
    /// To [`ControllerRequest::Register`].
    Register(Result<u64, LinkError>),
    /// To [`ControllerRequest::ResumeLeases`].
    ResumeLeases(Result<LeaseChunk, LinkError>),
    /// To [`ControllerRequest::ExtendLeases`].
    ExtendLeases(Result<(Vec<Provision>, Vec<RowRefusal>), LinkError>),
    /// To [`ControllerRequest::AdmitDevices`], in the order of the messages.
    AdmitDevices(Result<Vec<AdmissionResponse>, LinkError>),
    /// To [`ControllerRequest::ReportUnusedRows`]: number of rows that were returned to their pools.
    ReportUnusedRows(Result<u64, LinkError>),
    /// To [`ControllerRequest::ReportSessions`], in the order of the sessions.
    ReportSessions {
        /// The results.
        result: Result<Vec<SessionReportResult>, LinkError>,
        /// Time at which the ages in the results end, boot-time clock of the gateway, ns.
        at_ns: u64,
    },
    /// To [`ControllerRequest::GetPlan`]; `None` if no salt could be drawn.
    GetPlan(Result<Option<Plan>, LinkError>),
    /// To [`ControllerRequest::ListProvers`].
    ListProvers(Result<Provers, LinkError>),
    /// To [`ControllerRequest::AppraiseRound`].
    AppraiseRound(Result<RoundAppraisal, LinkError>),
    /// To [`ControllerRequest::ListProverIds`].
    ListProverIds(Result<ProverIds, LinkError>),
    /// To [`ControllerRequest::ListChanges`].
    ListChanges {
        /// The changes.
        result: Result<Changes, LinkError>,
        /// Time at which the ages in the changes end, boot-time clock of the gateway, ns.
        at_ns: u64,
        /// The trust status of this gateway; `None` if the controller requires no evidence.
        trust: Option<TrustStatus>,
    },
    /// To [`ControllerRequest::SubmitEvidence`].
    SubmitEvidence(Result<TrustStatus, LinkError>),
}

impl ControllerResponse {
    /// The error of a failed request.
    #[must_use]
    pub fn error(&self) -> Option<&LinkError> {
        match self {
            Self::Register(result) => result.as_ref().err(),
            Self::ResumeLeases(result) => result.as_ref().err(),
            Self::ExtendLeases(result) => result.as_ref().err(),
            Self::AdmitDevices(result) => result.as_ref().err(),
            Self::ReportUnusedRows(result) => result.as_ref().err(),
            Self::ReportSessions { result, .. } => result.as_ref().err(),
            Self::GetPlan(result) => result.as_ref().err(),
            Self::ListProvers(result) => result.as_ref().err(),
            Self::AppraiseRound(result) => result.as_ref().err(),
            Self::ListProverIds(result) => result.as_ref().err(),
            Self::ListChanges { result, .. } => result.as_ref().err(),
            Self::SubmitEvidence(result) => result.as_ref().err(),
        }
    }
}
