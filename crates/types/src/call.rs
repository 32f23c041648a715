//! The requests of a gateway to its controller, each with its response (LAP/1 1.4.6, 1.4.11). Each request may be repeated.

use linewarden_protocol::attest::PeriodStart;
use linewarden_protocol::ids::DeviceId;

use crate::attestation::{Plan, PlanRequest, ProverIds, Provers, RoundAppraisal, RoundOutcome};
use crate::change::{Changes, Revision};
use crate::error::LinkError;
use crate::rows::{
    AdmissionRequest, AdmissionResponse, LeaseChunk, LeasedCursor, Provision, RowRefusal, RowRequest,
    UnusedRows,
};
use crate::session::{SessionReport, SessionReportResult};
use crate::status::StatusReport;
use crate::trust::TrustStatus;

/// Reads the next part of the leases that this gateway had when it stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeLeases {
    /// The position of the part: the default, then [`LeaseChunk::cursor`] of the previous part.
    pub cursor: LeasedCursor,
}

/// Leases more rows for devices in the gateway's data plane, and moves their marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtendLeases(
    /// One request for each device.
    pub Vec<RowRequest>,
);

/// Handles messages of devices that are not in the data plane. The responses are in the order of the messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmitDevices {
    /// The messages.
    pub requests: Vec<AdmissionRequest>,
    /// The gateway's current fresh value.
    pub fresh: [u8; 8],
}

/// Reports unused rows of devices that left the data plane. The response is the number of rows that were returned to their
/// pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportUnusedRows(
    /// One report for each device.
    pub Vec<UnusedRows>,
);

/// Reports sessions that were opened at this gateway. The results are in the order of the reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportSessions {
    /// The sessions.
    pub reports: Vec<SessionReport>,
    /// The time up to which the ages in the reports are measured: boot-time clock of the machine that holds the value, ns.
    pub at_ns: u64,
}

/// Reads the changes of devices since a revision, and the trust status of this gateway: `None` if the controller requires no
/// evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListChanges {
    /// Only changes after this revision.
    pub since: Revision,
}

/// Submits signed evidence about the data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmitEvidence {
    /// The statement, signed (COSE_Sign1).
    pub statement: Vec<u8>,
    /// The inventory, not signed: digests in the signed statement prove it.
    pub inventory: Vec<u8>,
}

/// Reads the attestation plan; `None` if the controller could draw no salt for a new period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetPlan(
    /// The state of the gateway's plan.
    pub PlanRequest,
);

/// Reads the provers that have changed since a revision, with this gateway's keys of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListProvers {
    /// The period.
    pub start: PeriodStart,
    /// Only provers that have changed since this revision.
    pub since: u64,
}

/// Submits a round that has ended, and returns its appraisal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppraiseRound {
    /// The round.
    pub round: Box<RoundOutcome>,
    /// Time from the end of the round to `at_ns`, ns.
    pub age_ns: u64,
    /// The time up to which `age_ns` is measured: boot-time clock of the machine that holds the value, ns.
    pub at_ns: u64,
}

/// Reads the ids of devices that have become provers, or are no longer provers, since a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListProverIds {
    /// Only provers that have changed since this revision.
    pub since: u64,
}

/// Relays a device's ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayTicket {
    /// The ticket, sealed.
    pub message: Vec<u8>,
    /// The device of a previous [`TicketResponse::Locate`], with the address of its session at this gateway, if it has one.
    pub location: Option<(DeviceId, Option<[u8; 16]>)>,
}

/// The response to a [`RelayTicket`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TicketResponse {
    /// The controller sends no response to the device.
    None,
    /// The response to the device, sealed.
    Sealed(Vec<u8>),
    /// The response requires the address of this device's session at this gateway: repeat the request with the location.
    Locate(DeviceId),
}

/// Reports the gateway's status.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportStatus(
    /// The status.
    pub StatusReport,
);

/// A request under the registration of the gateway's process.
pub trait Call: Into<ControllerRequest> {
    /// The response.
    type Response;
    /// The kind of the request.
    const KIND: Kind;
    /// The name of the request's gRPC method.
    const METHOD: &'static str;

    /// Returns the response to a request of this kind; `None` for the response to another kind of request.
    fn response(response: ControllerResponse) -> Option<Result<Self::Response, LinkError>>;
}

/// Expands a macro with the table of all requests under a registration: type, name in Rust, name in logs, and response.
#[macro_export]
macro_rules! for_each_call {
    ($expand:ident) => {
        $expand! {
            ResumeLeases resume_leases "resume leases" LeaseChunk;
            ExtendLeases extend_leases "extend leases" (Vec<Provision>, Vec<RowRefusal>);
            AdmitDevices admit_devices "admit devices" Vec<AdmissionResponse>;
            ReportUnusedRows report_unused_rows "report unused rows" u64;
            ReportSessions report_sessions "report sessions" Vec<SessionReportResult>;
            ListChanges list_changes "list changes" (Changes, Option<TrustStatus>);
            SubmitEvidence submit_evidence "submit evidence" TrustStatus;
            GetPlan get_plan "get plan" Option<Plan>;
            ListProvers list_provers "list provers" Provers;
            AppraiseRound appraise_round "appraise round" RoundAppraisal;
            ListProverIds list_prover_ids "list prover IDs" ProverIds;
            RelayTicket relay_ticket "relay ticket" TicketResponse;
            ReportStatus report_status "report status" ();
        }
    };
}

macro_rules! define_requests {
    ($($call:ident $method:ident $name:literal $response:ty;)*) => {
        /// The kind of a request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kind {
            /// [`ControllerRequest::Register`].
            Register,
            $(#[doc = concat!("[`", stringify!($call), "`].")] $call,)*
        }

        impl Kind {
            /// The name in log messages.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    Self::Register => "register",
                    $(Self::$call => $name,)*
                }
            }
        }

        /// A request to the controller.
        #[derive(Clone, Debug, PartialEq)]
        pub enum ControllerRequest {
            /// Registers this process, unless it is registered, and returns its fencing token.
            Register,
            $(#[doc = concat!("See [`", stringify!($call), "`].")] $call($call),)*
        }

        impl ControllerRequest {
            /// The kind of the request.
            #[must_use]
            pub const fn kind(&self) -> Kind {
                match self {
                    Self::Register => Kind::Register,
                    $(Self::$call(_) => Kind::$call,)*
                }
            }
        }

        impl Kind {
            /// Returns the response to a request of this kind that has failed.
            #[must_use]
            pub fn failed(self, error: LinkError) -> ControllerResponse {
                match self {
                    Self::Register => ControllerResponse::Register(Err(error)),
                    $(Self::$call => ControllerResponse::$call(Err(error)),)*
                }
            }
        }

        /// The response to a [`ControllerRequest`].
        #[derive(Debug)]
        pub enum ControllerResponse {
            /// To [`ControllerRequest::Register`].
            Register(Result<u64, LinkError>),
            $(#[doc = concat!("To [`", stringify!($call), "`].")] $call(Result<$response, LinkError>),)*
        }

        impl ControllerResponse {
            /// The error of a failed request.
            #[must_use]
            pub fn error(&self) -> Option<&LinkError> {
                match self {
                    Self::Register(result) => result.as_ref().err(),
                    $(Self::$call(result) => result.as_ref().err(),)*
                }
            }
        }

        $(
            impl From<$call> for ControllerRequest {
                fn from(call: $call) -> Self {
                    Self::$call(call)
                }
            }

            impl Call for $call {
                type Response = $response;
                const KIND: Kind = Kind::$call;
                const METHOD: &'static str = stringify!($call);

                fn response(response: ControllerResponse) -> Option<Result<$response, LinkError>> {
                    match response {
                        ControllerResponse::$call(result) => Some(result),
                        _ => None,
                    }
                }
            }
        )*
    };
}

for_each_call!(define_requests);

impl Kind {
    /// Whether a late copy of the request would do harm, because the request changes leases or decides about devices. The
    /// controller records the number of abandoned requests before such a request, and refuses the abandoned requests
    /// afterwards. All other requests are served even if the registry accepts no writes.
    #[must_use]
    pub const fn records_abandoned_requests(self) -> bool {
        matches!(
            self,
            Self::ResumeLeases
                | Self::ExtendLeases
                | Self::AdmitDevices
                | Self::ReportUnusedRows
                | Self::ReportSessions
                | Self::AppraiseRound
        )
    }

    /// Whether the request or its response may concern a whole fleet, which takes longer.
    #[must_use]
    pub const fn is_fleet_wide(self) -> bool {
        matches!(
            self,
            Self::ResumeLeases | Self::GetPlan | Self::ListProvers | Self::AppraiseRound
        )
    }

    /// Whether a process that is not registered registers with this request. Tickets and status reports do not wait for a
    /// registration: they fail.
    #[must_use]
    pub const fn registers(self) -> bool {
        !matches!(self, Self::RelayTicket | Self::ReportStatus)
    }
}

impl ControllerResponse {
    /// The new fencing token of this process, if the controller has issued one.
    pub(crate) fn new_fencing_token(&self) -> Option<u64> {
        let trust_status = match self {
            Self::ListChanges(Ok((_, trust_status))) => trust_status.as_ref(),
            Self::SubmitEvidence(Ok(trust_status)) => Some(trust_status),
            _ => None,
        };
        trust_status.and_then(|trust_status| trust_status.fencing_token)
    }
}
