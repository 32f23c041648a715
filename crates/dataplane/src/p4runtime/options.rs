//! Which switch, and what is behind its ports.

use std::collections::BTreeSet;

use linewarden_protocol::frame::Mac;
use linewarden_protocol::wire::LAP_PORT;
use linewarden_tls::ClientTls;

use super::P4Runtime;
use super::program::{DEVICES, PROVERS, ROWS};
use crate::config::{Config, ConfigError};

/// Name of the backend.
pub(super) const NAME: &str = "p4";
/// `simple_switch` numbers its ports so; 511 is where packets are dropped.
const PORT_MAX: u16 = 510;

/// The switch and its surroundings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P4Options {
    /// Where it serves P4Runtime: `ADDRESS:PORT`.
    pub address: String,
    /// How the connection is protected. Row keys go through it: without TLS the address has to be of this machine, or of a
    /// network that nobody else is on.
    pub tls: Option<ClientTls>,
    /// Its number.
    pub device_id: u64,
    /// This gateway's rank: the highest of a switch's controllers holds it.
    pub election_id: u128,
    /// Who is behind which port. Those of services are the gateway's own: messages to their MAC addresses alone are answered.
    pub bridge: Vec<Neighbour>,
    /// Where everybody else is; `None`: what goes to any other address is dropped.
    pub elsewhere: Option<Place>,
}

impl P4Options {
    /// Refuses what `lap` has not, and ports that cannot be.
    ///
    /// # Errors
    /// The first of them.
    pub fn check(&self, config: &Config) -> Result<(), ConfigError> {
        config.check()?;
        let missing = [
            (config.lap_port != LAP_PORT, "UDP port but 20550"),
            (
                config.geometry.slots > DEVICES,
                "room for more than 65536 devices",
            ),
            (config.provers > PROVERS, "room for more than 65536 provers"),
        ];
        let missing = missing.into_iter().find(|(is_asked, _)| *is_asked);
        let missing = missing.map(|(_, what)| what);
        if let Some(what) = missing.or_else(|| P4Runtime::CAPABILITIES.missing(config)) {
            return Err(ConfigError::Unsupported { backend: NAME, what });
        }
        let rows = u64::from(config.geometry.slots) * (u64::from(config.geometry.ring) + 1);
        if rows > ROWS {
            return Err(ConfigError::Field {
                field: "ring",
                value: config.geometry.ring.to_string(),
                hint: "a switch has room for 1048576 rows: slots times one more than the ring at most",
            });
        }
        self.check_ports()
    }

    fn check_ports(&self) -> Result<(), ConfigError> {
        let devices: BTreeSet<u16> = self
            .places()
            .filter(|place| place.is_devices)
            .map(|place| place.port)
            .collect();
        for place in self.places() {
            let hint = if place.port >= PORT_MAX {
                "ports from 0 to 509; 510 is the CPU's"
            } else if !place.is_devices && devices.contains(&place.port) {
                "a port of devices and of services at once"
            } else {
                continue;
            };
            let is_named = self.bridge.iter().any(|neighbour| neighbour.port == place.port);
            return Err(ConfigError::Field {
                field: if is_named { "bridge" } else { "elsewhere" },
                value: place.port.to_string(),
                hint,
            });
        }
        if self.bridge.iter().all(|neighbour| neighbour.is_devices) {
            return Err(ConfigError::Field {
                field: "bridge",
                value: "none of a service".into(),
                hint: "name the MAC address of the host that has the gateway's addresses, and its port",
            });
        }
        let mut macs = BTreeSet::new();
        let twice = self.bridge.iter().find(|neighbour| !macs.insert(neighbour.mac));
        twice.map_or(Ok(()), |neighbour| {
            Err(ConfigError::Field {
                field: "bridge",
                value: neighbour.mac.map(|byte| format!("{byte:02x}")).join(":"),
                hint: "each address once",
            })
        })
    }

    /// Every port that is named, once for each time.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> {
        let named = self.bridge.iter().map(|neighbour| Place {
            port: neighbour.port,
            is_devices: neighbour.is_devices,
        });
        named.chain(self.elsewhere)
    }
}

/// One of the switch's ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number, from 0 to 509.
    pub port: u16,
    /// Whether it is the devices': what comes in there is judged.
    pub is_devices: bool,
}

/// Somebody behind one of the switch's ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its address.
    pub mac: Mac,
    /// The port, from 0 to 509.
    pub port: u16,
    /// Whether the port is the devices': what comes in there is judged.
    pub is_devices: bool,
}
