//! The configuration of a gateway, and the settings that may change at run time.

use alloc::vec::Vec;
use core::net::IpAddr;

use super::control::ControlProtocol;
use crate::frame::Mac;
use crate::ids::GatewayId;
use crate::sources::DeviceSources;
use crate::wire::LAP_PORT;

/// The gate's rule for packets that are not LAP/1 to the gateway itself (LAP/1 1.4.9).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Gate {
    /// All packets pass.
    #[default]
    Off,
    /// Packets pass if their ingress interface, VLANs and MAC address have a live BOUND session, or if they are exempt.
    Bound,
    /// Only datagrams sealed as DATA pass, in both directions, and exempt frames.
    Sealed,
}

/// Configuration of a gateway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GatewayConfig {
    /// The id of the gateway.
    pub gateway_id: GatewayId,
    /// The gateway's addresses: UDP to one of these and [`lap_port`](Self::lap_port) is consumed.
    pub local_addresses: Vec<IpAddr>,
    /// The addresses of devices; `None`: not checked.
    pub sources: Option<DeviceSources>,
    /// MAC addresses of the gateway's interfaces. Frames to other stations are not for the gateway. `None`: not
    /// checked.
    pub own_macs: Option<Vec<Mac>>,
    /// UDP port of LAP/1.
    pub lap_port: u16,
    /// The gate.
    pub gate: Gate,
    /// Link control protocols that pass the gate without a session.
    pub always_pass: Vec<ControlProtocol>,
    /// DHCP servers to which clients may send through the gate, besides broadcast and the link-local group. If the list
    /// has an IPv4 server, messages of other servers do not pass a sealed gate to devices.
    pub dhcp_servers: Vec<IpAddr>,
    /// Session lifetime in seconds.
    pub session_lifetime_s: u32,
    /// Maximum number of NAKs per second of the monotonic clock, and per CPU.
    pub nak_per_s: u32,
    /// Maximum number of messages of unknown devices that take the slow path, per second of the monotonic clock, and
    /// per CPU; 0: none.
    pub miss_per_s: u32,
    /// Maximum number of rows after the current row in a device's line.
    pub rows_ahead: u32,
    /// Maximum number of entries of each of the two address tables.
    pub bindings_max: usize,
    /// Maximum number of attested provers (LAP/1 3.2); 0: PROOFs are not handled.
    pub provers_max: usize,
}

impl GatewayConfig {
    /// Defaults: gate off, session lifetime of an hour, 100 NAKs/s, 16 rows ahead, unbounded tables, no attestation.
    /// Until [`sources`](Self::sources) and [`own_macs`](Self::own_macs) are set, no address belongs to a device and
    /// no frame is for the gateway.
    #[must_use]
    pub fn new(gateway_id: GatewayId, local: &[IpAddr]) -> Self {
        Self {
            gateway_id,
            local_addresses: local.to_vec(),
            sources: Some(DeviceSources::default()),
            own_macs: Some(Vec::new()),
            lap_port: LAP_PORT,
            gate: Gate::Off,
            always_pass: Vec::new(),
            dhcp_servers: Vec::new(),
            session_lifetime_s: 3600,
            nak_per_s: 100,
            miss_per_s: 0,
            rows_ahead: 16,
            bindings_max: usize::MAX,
            provers_max: 0,
        }
    }
}

/// The settings of a [`GatewayConfig`] that may change at run time.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "documented once, in `GatewayConfig`")]
pub struct LiveSettings {
    pub sources: Option<DeviceSources>,
    pub session_lifetime_s: u32,
    pub nak_per_s: u32,
    pub miss_per_s: u32,
}
