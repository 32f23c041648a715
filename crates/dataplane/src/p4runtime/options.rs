//! Which switch, and what is behind its ports.

use linewarden_protocol::frame::Mac;
use linewarden_protocol::wire::LAP_PORT;

use super::program::DEVICES;
use crate::config::{Config, ConfigError, Gate};

/// Name of the backend.
pub(super) const NAME: &str = "p4runtime";
/// `simple_switch` numbers its ports so; 511 is where packets are dropped.
const PORT_MAX: u16 = 510;

/// The switch and its surroundings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P4Options {
    /// Where it serves P4Runtime: `ADDRESS:PORT`. The connection is neither encrypted nor authenticated, and row keys go
    /// through it: an address of this machine, or of a network that nobody else is on.
    pub address: String,
    /// Its number.
    pub device_id: u64,
    /// This gateway's rank: the highest of a switch's controllers holds it.
    pub election_id: u128,
    /// Who is behind which port. What goes to any other address is dropped.
    pub bridge: Vec<Neighbour>,
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

/// Refuses what `lap` has not.
pub(super) fn check(config: &Config, options: &P4Options) -> Result<(), ConfigError> {
    config.check()?;
    let missing = [
        (config.lap_port != LAP_PORT, "UDP port but 20550"),
        (config.miss_per_s != 0, "slow path (set miss_per_s to 0)"),
        (config.gate == Gate::Sealed, "sealed gate"),
        (config.provers != 0, "PROOFs"),
        (config.classic.is_some(), "classic profile"),
        (config.p4dra.is_some(), "p4dra-classic"),
        (
            config.geometry.slots > DEVICES,
            "room for more than 65536 devices",
        ),
    ];
    if let Some((_, what)) = missing.into_iter().find(|(is_asked, _)| *is_asked) {
        return Err(ConfigError::Unsupported { backend: NAME, what });
    }
    let wrong = options.bridge.iter().find(|neighbour| neighbour.port >= PORT_MAX);
    wrong.map_or(Ok(()), |neighbour| {
        Err(ConfigError::Field {
            field: "bridge",
            value: neighbour.port.to_string(),
            hint: "ports from 0 to 509; 510 is the CPU's",
        })
    })
}
