//! What the node asks its controller, and what comes back.

use linewarden_controller::attest::{Appraised, Plan, PlanWish, ProverIds, Provers, RoundOutcome};
use linewarden_controller::trust::Scrutiny;
use linewarden_controller::{Changes, Chunk, Denial, Knock, Provision, Reception, Refused, Reported, Want};
use linewarden_dataplane::{Measurement, Opening};
use linewarden_evidence::statement::Nonce;
use linewarden_protocol::attest::PeriodStart;
use linewarden_registry::{RegistryError, Revision, Settlement};

/// A question to the controller. At most one of each kind is out at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The number under which this process is registered; with the first question it is.
    Enter,
    /// The next part of what this gateway held when it stopped. Asked again until nothing is left.
    Resume,
    /// Rows, and marks moved, for these devices.
    Lease(Vec<Want>),
    /// Devices that are not here want to authenticate.
    Receive {
        /// Their messages.
        knocks: Vec<Knock>,
        /// The current fresh value.
        fresh: [u8; 8],
    },
    /// Rows that left the data plane unused.
    Settle(Vec<Settlement>),
    /// Sessions that were opened here.
    Report(Vec<Opening>),
    /// What has changed.
    Changes {
        /// Since when.
        since: Revision,
    },
    /// What the data plane runs, to be judged.
    Evidence {
        /// What it answers.
        nonce: Nonce,
        /// Measured after the nonce had come, to be signed; `None`: the engine is asked, and signs itself.
        measurement: Option<Box<Measurement>>,
    },
    /// What is to be attested.
    Plan(PlanWish),
    /// Provers, with this gateway's keys of a period.
    Provers {
        /// The period.
        start: PeriodStart,
        /// Those that have changed since this revision.
        since: u64,
    },
    /// A round has ended.
    Appraise(Box<RoundOutcome>),
    /// Who is to be attested; asked where the data plane attests nobody.
    ProverIds {
        /// Those that have changed since this revision.
        since: u64,
    },
}

/// Why a question was not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// Something failed, in words; the same may be asked again.
    Failed(String),
    /// The data plane has not shown that it is what it should be.
    Untrusted(String),
    /// There is nothing to show, in words; the controller is not to blame, and asks again.
    NotShown(String),
    /// Another process has registered as this gateway: nothing is answered any more.
    Replaced(String),
    /// The registry was put back to an earlier state since this process registered: what it holds is void, and it registers anew.
    Restored(String),
}

impl From<Denial> for LinkError {
    fn from(denial: Denial) -> Self {
        match denial {
            Denial::Registry(error) => error.into(),
            Denial::Untrusted { .. } => Self::Untrusted(denial.to_string()),
        }
    }
}

impl From<RegistryError> for LinkError {
    fn from(error: RegistryError) -> Self {
        match error {
            RegistryError::OldFence { .. } | RegistryError::RetiredGateway { .. } => {
                Self::Replaced(error.to_string())
            }
            RegistryError::Restored { .. } => Self::Restored(error.to_string()),
            other => Self::Failed(other.to_string()),
        }
    }
}

/// An answer to an [`Ask`].
#[derive(Debug)]
pub enum Answer {
    /// To [`Ask::Enter`].
    Entered(Result<u64, LinkError>),
    /// To [`Ask::Resume`].
    Chunk(Result<Chunk, LinkError>),
    /// To [`Ask::Lease`].
    Rows(Result<(Vec<Provision>, Vec<Refused>), LinkError>),
    /// To [`Ask::Receive`], in the order of the messages.
    Receptions(Result<Vec<Reception>, LinkError>),
    /// To [`Ask::Settle`]: how many rows went back to their pools.
    Settled(Result<u64, LinkError>),
    /// To [`Ask::Report`], in the order of the sessions.
    Reported {
        /// What they come to.
        result: Result<Vec<Reported>, LinkError>,
        /// When ages in it count from, boot-time clock of the gateway, ns.
        at_ns: u64,
    },
    /// To [`Ask::Plan`]; without a plan no salt could be drawn.
    Plan(Result<Option<Plan>, LinkError>),
    /// To [`Ask::Provers`].
    Provers(Result<Provers, LinkError>),
    /// To [`Ask::Appraise`].
    Appraised(Result<Appraised, LinkError>),
    /// To [`Ask::ProverIds`].
    ProverIds(Result<ProverIds, LinkError>),
    /// To [`Ask::Changes`].
    Changes {
        /// What has changed.
        result: Result<Changes, LinkError>,
        /// When ages in it count from, boot-time clock of the gateway, ns.
        at_ns: u64,
        /// What the controller wants to see, and how this gateway stands; `None` where it asks for no evidence.
        scrutiny: Option<Scrutiny>,
    },
    /// To [`Ask::Evidence`].
    Judged(Result<Scrutiny, LinkError>),
}

impl Answer {
    /// Why the question was not answered.
    #[must_use]
    pub fn error(&self) -> Option<&LinkError> {
        match self {
            Self::Entered(result) => result.as_ref().err(),
            Self::Chunk(result) => result.as_ref().err(),
            Self::Rows(result) => result.as_ref().err(),
            Self::Receptions(result) => result.as_ref().err(),
            Self::Settled(result) => result.as_ref().err(),
            Self::Reported { result, .. } => result.as_ref().err(),
            Self::Plan(result) => result.as_ref().err(),
            Self::Provers(result) => result.as_ref().err(),
            Self::Appraised(result) => result.as_ref().err(),
            Self::ProverIds(result) => result.as_ref().err(),
            Self::Changes { result, .. } => result.as_ref().err(),
            Self::Judged(result) => result.as_ref().err(),
        }
    }
}
