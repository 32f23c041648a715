//! The status that a gateway reports to its controller.

use std::collections::BTreeMap;

/// The status that a gateway reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatusReport {
    /// The kind of the gateway's data plane.
    pub data_plane: String,
    /// Devices in the data plane.
    pub devices: u64,
    /// Slots of the data plane.
    pub slots: u64,
    /// Live sessions, if the data plane counts them.
    pub sessions: Option<u64>,
    /// Accepted RESPONSEs a second, since the previous report.
    pub authentications_per_s: Option<f64>,
    /// Latency of an authentication at the gateway, µs: from parsing an accepted RESPONSE until its ACK was written,
    /// in the data plane and over the last minute. The median.
    pub latency_us_p50: Option<f64>,
    /// Latency of an authentication at the gateway, µs, measured as in `latency_us_p50`: the 99th percentile.
    pub latency_us_p99: Option<f64>,
    /// Frames by verdict, since the gateway started.
    pub verdicts: BTreeMap<String, u64>,
    /// Frames that the gate has dropped since the gateway started, by the name of their Ethernet type.
    pub dropped_types: BTreeMap<String, u64>,
    /// Packets that the kernel has dropped since the gateway started because a receive buffer was full, by socket:
    /// [`StatusReport::KERNEL_DROPS`].
    pub kernel_drops: BTreeMap<String, u64>,
    /// Tickets since the gateway started, by result: [`StatusReport::TICKETS`]. Empty if the gateway relays none.
    pub tickets: BTreeMap<String, u64>,
}

impl StatusReport {
    /// Names in [`StatusReport::kernel_drops`]: the sockets of the data plane `host`, and the sockets of the ticket relay.
    pub const KERNEL_DROPS: [&'static str; 2] = ["dataplane", "tickets"];
    /// Names in [`StatusReport::tickets`].
    pub const TICKETS: [&'static str; 5] = ["answered", "unknown", "rate_limited", "rejected", "failed"];
}
