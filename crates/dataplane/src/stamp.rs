//! Evidence in packets that pass the gate: the input of a data plane and its counts.

use linewarden_evidence::inband::Template;

/// How long packets carry evidence of a state after its measurement began, ns: equal to the lifetime of a fresh value.
pub const STAMP_LIFETIME_NS: u64 = 16_000_000_000;

/// Evidence of the measured state.
#[derive(Clone, Debug)]
pub struct Stamp {
    /// The part of the evidence that packets carry.
    pub template: Template,
    /// Expiry, CLOCK_MONOTONIC: [`STAMP_LIFETIME_NS`] after the measurement began. Later packets carry no evidence.
    pub until_ns: u64,
}

/// Packets that passed the gate towards services since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StampCounts {
    /// With evidence.
    pub stamped: u64,
    /// Without evidence: not IPv6.
    pub not_ipv6: u64,
    /// Without evidence: nothing was measured, or the measurement has expired.
    pub stale: u64,
    /// Without evidence: the packet would exceed the path MTU and its sender cannot be notified, or its headers are
    /// malformed.
    pub unfit: u64,
}
