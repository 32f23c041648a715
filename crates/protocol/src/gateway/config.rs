//! What a gateway is configured with, and what of it may change while it runs.

use alloc::vec::Vec;
use core::net::IpAddr;

use super::control::ControlProtocol;
use crate::frame::Mac;
use crate::ids::GatewayId;
use crate::sources::DeviceSources;
use crate::wire::LAP_PORT;

/// What becomes of packets that are not LAP/1 to the gateway itself (LAP/1 1.4.9).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Gate {
    /// They pass.
    #[default]
    Off,
    /// They pass if their port, VLANs and MAC address have a live BOUND session, or are on the list of what always
    /// passes.
    Open,
    /// Only datagrams that DATA seals pass, both ways, and the list of what always passes.
    Sealed,
}

/// Configuration of a gateway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GatewayConfig {
    /// Who the gateway is.
    pub gateway_id: GatewayId,
    /// Its own addresses: UDP to one of these and [`lap_port`](Self::lap_port) is consumed.
    pub local: Vec<IpAddr>,
    /// Which addresses devices have; `None`: not checked.
    pub sources: Option<DeviceSources>,
    /// MAC addresses of its interfaces: of frames for others nothing is the gateway's; `None`: not checked, as the P4
    /// programs of the classic profiles do not.
    pub own_macs: Option<Vec<Mac>>,
    /// UDP port of LAP/1.
    pub lap_port: u16,
    /// The gate.
    pub gate: Gate,
    /// Control protocols of links that pass the gate without a session.
    pub always_pass: Vec<ControlProtocol>,
    /// DHCP servers that clients may send to past the gate beside broadcast and the link's group. If there are any of IPv4, no other
    /// one's messages pass a sealed gate to devices.
    pub dhcp_servers: Vec<IpAddr>,
    /// How long a session lasts, s.
    pub lease_s: u32,
    /// NAKs per second of the monotonic clock, and per CPU.
    pub nak_per_s: u32,
    /// Messages of unknown devices per second of the monotonic clock, and per CPU, that take the slow path; 0: none.
    pub miss_per_s: u32,
    /// Rows that a device's line holds beside the current one.
    pub rows_ahead: u32,
    /// Entries that each of the two tables of bound addresses holds.
    pub bindings_max: usize,
    /// Provers that are attested (LAP/1 3.2); 0: PROOFs are not served.
    pub provers_max: usize,
}

impl GatewayConfig {
    /// Defaults: gate off, lease of an hour, 100 NAKs/s, 16 rows ahead, unbounded tables, no attestation. No address is a
    /// device's and no frame the gateway's until [`sources`](Self::sources) and [`own_macs`](Self::own_macs) are set.
    #[must_use]
    pub fn new(gateway_id: GatewayId, local: &[IpAddr]) -> Self {
        Self {
            gateway_id,
            local: local.to_vec(),
            sources: Some(DeviceSources::default()),
            own_macs: Some(Vec::new()),
            lap_port: LAP_PORT,
            gate: Gate::Off,
            always_pass: Vec::new(),
            dhcp_servers: Vec::new(),
            lease_s: 3600,
            nak_per_s: 100,
            miss_per_s: 0,
            rows_ahead: 16,
            bindings_max: usize::MAX,
            provers_max: 0,
        }
    }
}

/// What of a [`GatewayConfig`] may change while the gateway runs; fields as there.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "documented once, in `GatewayConfig`")]
pub struct Live {
    pub sources: Option<DeviceSources>,
    pub lease_s: u32,
    pub nak_per_s: u32,
    pub miss_per_s: u32,
}
