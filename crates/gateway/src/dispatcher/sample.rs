//! The content of a status report.

use linewarden_dataplane::{Counters, HandlingTimes};

use crate::node::Status;

/// Constant properties of a gateway's data plane, which the gateway reports to its controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataPlaneInfo {
    /// The kind of the data plane.
    pub kind: String,
    /// Number of slots in the data plane.
    pub slots: u64,
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
