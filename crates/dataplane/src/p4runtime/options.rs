//! The switch and its ports.

use std::collections::BTreeSet;

use linewarden_protocol::frame::Mac;
use linewarden_protocol::wire::LAP_PORT;
use linewarden_tls::ClientTls;

use super::program::{DEVICES, PROVERS, ROWS};
use crate::config::{Capabilities, Config, ConfigError};

/// Name of the backend.
pub(super) const NAME: &str = "p4";
/// The CPU port. Hosts are behind ports with lower numbers; 511 is the drop port of `simple_switch`.
const CPU_PORT: u16 = 510;

/// What the `p4runtime` data plane supports. `lap` also has a sealed gate for short payloads, which is not connected to this
/// data plane yet.
pub const CAPABILITIES: Capabilities = Capabilities {
    gate: true,
    sealed: false,
    attest: true,
    // The switch stamps packets itself, as configured at its start.
    inband_evidence: false,
};

/// The switch and its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P4Options {
    /// Address of the switch's P4Runtime server: `ADDRESS:PORT`.
    pub address: String,
    /// TLS settings of the connection. Row keys are sent through this connection: without TLS the address must be on
    /// this machine or on a network without other hosts.
    pub tls: Option<ClientTls>,
    /// Device id of the switch.
    pub device_id: u64,
    /// Rank of this gateway as a P4Runtime controller: the controller with the highest election id is the primary controller.
    pub election_id: u128,
    /// MAC addresses and their ports. The MAC addresses on ports of services are the gateway's own addresses: the switch
    /// answers only messages to these addresses.
    pub bridge: Vec<BridgeEntry>,
    /// The port for all other addresses. `None`: frames to other addresses are dropped.
    pub default_port: Option<SwitchPort>,
}

impl P4Options {
    /// Refuses features that `lap` lacks, and invalid ports.
    ///
    /// # Errors
    /// The first problem.
    pub fn check(&self, config: &Config) -> Result<(), ConfigError> {
        config.check()?;
        let missing = [
            (config.lap_port != LAP_PORT, "UDP port other than 20550"),
            (
                config.geometry.slots > DEVICES,
                "room for more than 65536 devices",
            ),
            (config.provers > PROVERS, "room for more than 65536 provers"),
        ];
        let missing = missing.into_iter().find(|(is_needed, _)| *is_needed);
        let missing = missing.map(|(_, feature)| feature);
        if let Some(feature) = missing.or_else(|| CAPABILITIES.first_missing(config)) {
            return Err(ConfigError::Unsupported {
                backend: NAME,
                feature,
            });
        }
        let rows = u64::from(config.geometry.slots) * (u64::from(config.geometry.ring) + 1);
        if rows > ROWS {
            return Err(ConfigError::Field {
                field: "ring",
                value: config.geometry.ring.to_string(),
                hint: "a switch has room for 1048576 rows: slots × (ring + 1) must not exceed that",
            });
        }
        self.check_ports()
    }

    fn check_ports(&self) -> Result<(), ConfigError> {
        let devices: BTreeSet<u16> = self
            .ports()
            .filter(|switch_port| switch_port.is_device_port)
            .map(|switch_port| switch_port.port)
            .collect();
        for switch_port in self.ports() {
            let hint = if switch_port.port >= CPU_PORT {
                "use ports 0 to 509; 510 is the CPU port"
            } else if !switch_port.is_device_port && devices.contains(&switch_port.port) {
                "a port cannot be for devices and for services"
            } else {
                continue;
            };
            let is_in_bridge = self
                .bridge
                .iter()
                .any(|neighbor| neighbor.port == switch_port.port);
            return Err(ConfigError::Field {
                field: if is_in_bridge { "bridge" } else { "default_port" },
                value: switch_port.port.to_string(),
                hint,
            });
        }
        if self.bridge.iter().all(|neighbor| neighbor.is_device_port) {
            return Err(ConfigError::Field {
                field: "bridge",
                value: "no service".into(),
                hint: "add the MAC address and port of the host that has the gateway's addresses",
            });
        }
        let mut macs = BTreeSet::new();
        let duplicate = self.bridge.iter().find(|neighbor| !macs.insert(neighbor.mac));
        duplicate.map_or(Ok(()), |neighbor| {
            Err(ConfigError::Field {
                field: "bridge",
                value: neighbor.mac.map(|byte| format!("{byte:02x}")).join(":"),
                hint: "list each address once",
            })
        })
    }

    /// All configured ports; a port may occur several times.
    pub(super) fn ports(&self) -> impl Iterator<Item = SwitchPort> {
        let bridge_ports = self.bridge.iter().map(|neighbor| SwitchPort {
            port: neighbor.port,
            is_device_port: neighbor.is_device_port,
        });
        bridge_ports.chain(self.default_port)
    }
}

/// A port of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchPort {
    /// Number of the port, from 0 to 509.
    pub port: u16,
    /// Whether devices are behind the port: frames that arrive on the port are verified.
    pub is_device_port: bool,
}

/// A host behind a port of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgeEntry {
    /// MAC address of the host.
    pub mac: Mac,
    /// The port, from 0 to 509.
    pub port: u16,
    /// Whether the port is for devices: frames that arrive on the port are verified.
    pub is_device_port: bool,
}
