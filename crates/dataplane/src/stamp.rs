//! Evidence in packets that pass the gate: what a data plane is given for it, and what it counts.

use linewarden_evidence::inband::Template;

/// How long packets carry evidence of a state that nobody has confirmed since, ns: as long as a fresh value lives.
pub const STAMP_LIFE_NS: u64 = 16_000_000_000;

/// Evidence of the state that was measured.
#[derive(Clone, Debug)]
pub struct Stamp {
    /// What packets carry of it.
    pub template: Template,
    /// Until then, CLOCK_MONOTONIC: [`STAMP_LIFE_NS`] after the measurement began. From then on packets carry nothing.
    pub until_ns: u64,
}

/// Packets that have passed the gate towards services, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StampCounts {
    /// With evidence.
    pub stamped: u64,
    /// Without: no IPv6.
    pub not_ipv6: u64,
    /// Without: nothing has been measured, or nobody has confirmed it.
    pub stale: u64,
    /// Without: with it they would be too long for their way, and their senders cannot be told; or their headers are malformed.
    pub unfit: u64,
}
