//! The fields of the configuration file, and their defaults.

use std::net::SocketAddr;
use std::path::PathBuf;

use linewarden_agent::ROWS_MAX;
use linewarden_agent::source::{CommandPuf, SimulatedPuf};
use schemars::JsonSchema;
use serde::Deserialize;

use super::attest::AttestSection;

/// Default number of rows that a renewal adds.
pub(super) const DEFAULT_RENEWAL_ROWS: u32 = 100;

/// Configuration of `linewarden-agent`. Relative paths start from this file's directory. Commented-out settings show the default,
/// or an example if there is none.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentConfig {
    /// The device.
    pub device: DeviceSection,
    /// The gateway that the device authenticates to.
    #[serde(default)]
    #[schemars(extend("x-enabled" = true))]
    pub gateway: GatewaySection,
    /// The PUF: set exactly one of the three tables.
    pub puf: PufSection,
    /// Renewal in pool mode: if fewer than `below_rows` rows are left, the agent creates `rows` new rows and adds them to the
    /// helper file. `linewarden-agent run --renew` renews at once, and in key mode creates a new key.
    pub renewal: Option<RenewalSection>,
    /// A tunnel through a sealed gate: datagrams of local programs to `listen` are sealed and sent to `service`. Every program
    /// that can send there acts as the device. Repeat the table for further tunnels.
    #[serde(default)]
    pub tunnel: Vec<TunnelSection>,
    /// A peer: another device whose agent names this one, after `linewarden device pair create`. Datagrams of local programs to
    /// `listen` are encrypted and sent to the peer. Every program that can send there acts as the device. Repeat the table for
    /// further peers.
    #[serde(default)]
    pub peer: Vec<PeerSection>,
    /// Attestation: the agent proves its configuration to gateways: files, and PCRs of a TPM, measured when a period begins.
    pub attest: Option<AttestSection>,
    /// Log of the program.
    #[serde(default)]
    #[schemars(extend("x-enabled" = true))]
    pub log: LogSection,
}

/// `[device]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceSection {
    /// Device ID: up to 16 hexadecimal digits, as enrolled.
    #[schemars(example = "00000000000000d1")]
    pub id: String,
    /// File of the public helper data, written by enrollment.
    #[schemars(extend("format" = "path"), example = "00000000000000d1.helper")]
    pub helper: PathBuf,
    /// UDP port for traffic between devices; the same on all peers.
    #[serde(default = "default_peer_port")]
    pub peer_port: u16,
}

/// `[gateway]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GatewaySection {
    /// IP address or name of the gateway, with :PORT if the port is not 20550. `--gateway` overrides it.
    #[schemars(extend("x-enabled" = true), example = "192.0.2.1")]
    pub address: Option<String>,
    /// IDs of the accepted gateways, at most 4; by default every gateway that proves knowledge of the enrollment.
    #[schemars(extend("examples" = [[1]]))]
    pub ids: Option<Vec<u32>>,
    /// UDP port of the gateway for tickets: renewal of rows and keys, and keys of pairs; by default the gateway's port plus 2.
    #[schemars(example = 20_552)]
    pub ticket_port: Option<u16>,
    /// The session is bound to the MAC address of this interface; required behind a bound gate.
    #[schemars(example = &"eth0")]
    pub interface: Option<String>,
}

fn default_peer_port() -> u16 {
    20_553
}

/// `[[peer]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PeerSection {
    /// Device ID of the peer, up to 16 hexadecimal digits.
    #[schemars(example = "00000000000000d2")]
    pub device: String,
    /// Address and UDP port for local programs.
    #[schemars(extend("format" = "socket-address"), example = "127.0.0.1:6000")]
    pub listen: SocketAddr,
    /// Address of the program that receives the peer's datagrams; by default the program that sent last.
    #[schemars(extend("format" = "socket-address"), example = "127.0.0.1:6001")]
    pub deliver: Option<SocketAddr>,
    /// Address of a peer at another gateway.
    #[schemars(extend("format" = "socket-address"), example = "192.0.2.7:20553")]
    pub address: Option<SocketAddr>,
}

/// `[renewal]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewalSection {
    /// Number of remaining rows below which rows are renewed; at most `rows`.
    #[schemars(range(min = 1, max = ROWS_MAX), example = 20)]
    pub below_rows: u32,
    /// Number of new rows per renewal.
    #[serde(default = "default_renewal_rows")]
    #[schemars(range(min = 1, max = ROWS_MAX))]
    pub rows: u32,
}

fn default_renewal_rows() -> u32 {
    DEFAULT_RENEWAL_ROWS
}

/// `[[tunnel]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TunnelSection {
    /// Address and UDP port for local programs.
    #[schemars(extend("format" = "socket-address"), example = "127.0.0.1:5683")]
    pub listen: SocketAddr,
    /// Address and UDP port of the service behind the gateway.
    #[schemars(extend("format" = "socket-address"), example = "192.0.2.9:5683")]
    pub service: SocketAddr,
}

/// `[puf]`: exactly one source.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PufSection {
    /// PUF hardware, read by a program. The agent starts the program once per readout, without a shell, and writes one line to its
    /// standard input: the challenge as 16 hexadecimal digits ("-" in key mode: all cells from the first on), a space, and the
    /// number of bits. The program prints the bits as hexadecimal digits, the first bit in the least significant bit of the first
    /// byte, and exits with status 0. All other output is an error; the last line of standard error is its message.
    #[schemars(extend("x-enabled" = true))]
    pub command: Option<CommandPuf>,
    /// A simulated PUF, for tests.
    pub simulated: Option<SimulatedPuf>,
    /// Stored readouts, for tests.
    pub readouts: Option<ReadoutsSection>,
}

/// `[puf.readouts]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadoutsSection {
    /// A dump file, or a directory whose dump files are used in turn.
    #[schemars(extend("format" = "path"), example = &"readouts")]
    pub path: PathBuf,
    /// First enrolled byte of the memory (`linewarden device enroll readouts --range`).
    #[serde(default)]
    pub start: u32,
}

/// `[log]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogSection {
    /// Log level: error, warn, info, debug, trace, off, or a filter such as linewarden_agent=debug.
    #[schemars(example = &"info")]
    pub level: Option<String>,
}
