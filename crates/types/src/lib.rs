//! Domain types that gateway, link, controller and registry share, and [`ControllerLink`], the link of a gateway to
//! its controller.
//!
//! The crate contains data and its validation: no database, no network, no clock.
//!
//! | module | content |
//! |---|---|
//! | `change` | the change feed of devices |
//! | `rows` | admission of devices, leases of rows |
//! | `session` | sessions at different gateways |
//! | `group`, `attestation` | groups of provers, attestation plans, keys and rounds |
//! | `trust` | trust in a gateway |
//! | `status` | the status that a gateway reports |
//! | `call` | a gateway's requests to its controller, and their responses |
//! | `link`, `error` | [`ControllerLink`], [`RegisteredLink`] and [`LinkError`] |
//!
//! ```
//! use linewarden_types::{GroupName, GroupPolicy};
//!
//! let name: GroupName = "pumps".parse().unwrap();
//! assert_eq!(name.as_str(), "pumps");
//! assert!(GroupPolicy::default().problem().is_none());
//! ```
#![forbid(unsafe_code)]

mod attestation;
mod call;
mod change;
mod error;
mod group;
mod link;
mod rows;
mod session;
mod status;
mod trust;

pub use attestation::{
    EnrollmentTime, GroupOutage, GroupPlan, Plan, PlanRequest, ProofOutcome, ProverIds, ProverObservation,
    ProverProvision, Provers, QuarantinedDevice, RoundAppraisal, RoundOutcome,
};
pub use call::{
    AdmitDevices, AppraiseRound, Call, ControllerRequest, ControllerResponse, ExtendLeases, GetPlan, Kind,
    ListChanges, ListProverIds, ListProvers, RelayTicket, ReportSessions, ReportStatus, ReportUnusedRows,
    ResumeLeases, SubmitEvidence, TicketResponse,
};
pub use change::{Change, Changes, Revision};
pub use error::LinkError;
pub use group::{GroupName, GroupNameError, GroupPolicy, ReleaseMode};
pub use link::{ControllerLink, ProcessId, RegisteredLink, Transport};
pub use rows::{
    AdmissionRequest, AdmissionResponse, LeaseChunk, LeasedCursor, Provision, RefusalReason, RowRefusal,
    RowRequest, UnusedRows,
};
pub use session::{BootId, BootTimestamp, NewerSession, SessionReport, SessionReportResult};
pub use status::StatusReport;
pub use trust::{GatewayTrustState, TrustStatus};
