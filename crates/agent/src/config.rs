//! The agent's configuration file (TOML). Paths are relative to the configuration file.

pub(crate) mod field_error;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

pub use linewarden_config::FieldError;
use linewarden_protocol::device::GatewayPolicy;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_protocol::ticket;
use linewarden_protocol::wire::LAP_PORT;
use linewarden_puf::Puf;
use linewarden_puf::readout::ReadoutPuf;
use schemars::JsonSchema;
use serde::Deserialize;

use self::field_error::{field, indexed_field};
use crate::attest::{AttestOptions, AttestSection};
use crate::keyring::Keyring;
use crate::link::interface_mac;
use crate::peer::Peer;
use crate::renewal::{ROWS_MAX, RenewalOptions};
use crate::source::{CommandPuf, FleetSeed, SeedError, SimulatedPuf};
use crate::tunnel::Tunnel;

const NO_PUF: &str = "set exactly one of [puf.simulated], [puf.readouts], [puf.command]";
/// Default number of rows that a renewal adds.
const DEFAULT_RENEWAL_ROWS: u32 = 100;

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

impl AgentConfig {
    /// The device ID.
    ///
    /// # Errors
    /// Not a device ID: up to 16 hexadecimal digits, not 0.
    pub fn device_id(&self) -> Result<DeviceId, FieldError> {
        parse_device_id(&self.device.id).or_else(|problem| field(&["device", "id"], problem))
    }

    /// The gateway's address; a host name is resolved.
    ///
    /// # Errors
    /// The address is missing or invalid.
    pub fn gateway_address(&self) -> Result<SocketAddr, FieldError> {
        let Some(text) = &self.gateway.address else {
            return field(
                &["gateway", "address"],
                "is missing: set the gateway's address, such as \"192.0.2.1\" (or use --gateway)",
            );
        };
        parse_gateway(text).or_else(|problem| field(&["gateway", "address"], problem))
    }

    /// The accepted gateways.
    ///
    /// # Errors
    /// No gateway, or more than the device state machine supports.
    pub fn gateway_policy(&self) -> Result<GatewayPolicy, FieldError> {
        let Some(ids) = &self.gateway.ids else {
            return Ok(GatewayPolicy::ANY);
        };
        let ids: Vec<GatewayId> = ids.iter().copied().map(GatewayId).collect();
        match GatewayPolicy::pinned(&ids) {
            Some(policy) => Ok(policy),
            None => field(
                &["gateway", "ids"],
                format!(
                    "{} gateways: name 1 to 4, or omit the field to accept all",
                    ids.len()
                ),
            ),
        }
    }

    /// Checks the prerequisites on this machine: helper data, PUF source (no response is read; a program is not run),
    /// interface.
    #[must_use]
    pub fn check_machine(&self) -> Vec<FieldError> {
        let mut problems = Vec::new();
        let mut add_problem =
            |path: &[&str], problem: String| problems.extend(field::<()>(path, problem).err());
        if let Err(error) = Keyring::read_from(&self.device.helper) {
            add_problem(&["device", "helper"], error.to_string());
        }
        if let Some(Err(error)) = self.gateway.interface.as_deref().map(interface_mac) {
            add_problem(&["gateway", "interface"], error.to_string());
        }
        if let Some(Err(problem)) = self.puf.command.as_ref().map(CommandPuf::find) {
            add_problem(&["puf", "command", "program"], problem);
        }
        if let Ok(device) = self.device_id() {
            problems.extend(self.open_puf(device, 0).err());
        }
        problems.extend(self.attest.iter().flat_map(AttestSection::check_machine));
        problems
    }

    /// All mistakes in the file.
    #[must_use]
    pub fn problems(&self) -> Vec<FieldError> {
        let gateway = self.gateway_address();
        let mut problems: Vec<FieldError> = [
            self.device_id().err(),
            self.gateway_policy().err(),
            self.renewal(false).err(),
            self.puf.check_single_source().err(),
        ]
        .into_iter()
        .flatten()
        .collect();
        problems.extend(self.duplicate_listeners());
        let lap_port = gateway.as_ref().map_or(LAP_PORT, SocketAddr::port);
        let ports = [lap_port, self.device.peer_port];
        problems.extend(self.attest.iter().flat_map(|attest| attest.problems(&ports)));
        match gateway {
            Err(error) => problems.push(error),
            Ok(gateway) => {
                problems.extend(self.peer_port(gateway).err());
                problems.extend(self.ticket_port(gateway).err());
                let tunnels = (0..self.tunnel.len()).filter_map(|n| self.tunnel_at(n, gateway)?.err());
                problems.extend(tunnels);
                let peers = (0..self.peer.len()).filter_map(|n| self.peer_at(n, gateway)?.err());
                problems.extend(peers);
            }
        }
        problems
    }

    /// Addresses for local programs that are used twice.
    fn duplicate_listeners(&self) -> Vec<FieldError> {
        let tunnels = self.tunnel.iter().enumerate();
        let peers = self.peer.iter().enumerate();
        let listeners = tunnels
            .map(|(n, tunnel)| ("tunnel", n, tunnel.listen))
            .chain(peers.map(|(n, peer)| ("peer", n, peer.listen)));
        let mut seen = HashSet::new();
        listeners
            .filter(|(.., listen)| listen.port() != 0 && !seen.insert(*listen))
            .filter_map(|(table, n, listen)| {
                indexed_field::<()>(
                    table,
                    n,
                    "listen",
                    format!("{listen} is already in use by another table: choose another port"),
                )
                .err()
            })
            .collect()
    }

    /// The peers of a device with its gateway at `gateway`.
    ///
    /// # Errors
    /// A peer's ID is invalid, the device's own, or used twice; an address is invalid.
    pub fn peers(&self, gateway: SocketAddr) -> Result<Vec<Peer>, FieldError> {
        (0..self.peer.len())
            .filter_map(|n| self.peer_at(n, gateway))
            .collect()
    }

    fn peer_at(&self, n: usize, gateway: SocketAddr) -> Option<Result<Peer, FieldError>> {
        let section = self.peer.get(n)?;
        let own_id = parse_device_id(&self.device.id).ok();
        let earlier_peers = self.peer.iter().take(n);
        let check = || {
            let device = parse_device_id(&section.device)
                .or_else(|problem| indexed_field("peer", n, "device", problem))?;
            let mut earlier_ids = earlier_peers.filter_map(|peer| parse_device_id(&peer.device).ok());
            if own_id == Some(device) || earlier_ids.any(|id| id == device) {
                let problem = format!("{device} is this device, or already a peer: remove this entry");
                return indexed_field("peer", n, "device", problem);
            }
            if let Some(address) = section.address
                && (address.is_ipv4() != gateway.is_ipv4() || address.port() == 0)
            {
                let problem = format!(
                    "{address}: use a port other than 0, and an address of the same family as the gateway's address {gateway}"
                );
                return indexed_field("peer", n, "address", problem);
            }
            if section.deliver.is_some_and(|deliver| deliver.port() == 0) {
                return indexed_field("peer", n, "deliver", "port 0: use another port");
            }
            Ok(Peer {
                device,
                listen: section.listen,
                deliver: section.deliver,
                address: section.address,
            })
        };
        Some(check())
    }

    /// UDP port for datagrams between devices.
    ///
    /// # Errors
    /// A port that no gate forwards to.
    pub fn peer_port(&self, gateway: SocketAddr) -> Result<u16, FieldError> {
        match self.device.peer_port {
            port if port != 0 && port != gateway.port() => Ok(port),
            port => field(
                &["device", "peer_port"],
                format!("{port}: use a port other than 0 and LAP's, and the same one on all peers"),
            ),
        }
    }

    /// The renewal settings. `requests_renewal` requests one renewal although none is due; in key mode, nothing else
    /// requests a new key.
    ///
    /// # Errors
    /// Numbers that the registry does not accept.
    pub fn renewal(&self, requests_renewal: bool) -> Result<Option<RenewalOptions>, FieldError> {
        let rows = self.renewal.map_or(DEFAULT_RENEWAL_ROWS, |section| section.rows);
        let below_rows = self.renewal.map(|section| section.below_rows);
        if let Some(below) = below_rows.filter(|below| *below > rows) {
            let problem = format!(
                "{below}: must be at most `rows`, {rows}; otherwise one renewal is not sufficient, and every session renews"
            );
            return field(&["renewal", "below_rows"], problem);
        }
        Ok(
            (requests_renewal || below_rows.is_some()).then_some(RenewalOptions {
                below_rows,
                rows,
                requests_renewal,
            }),
        )
    }

    /// The gateway's UDP port for tickets.
    ///
    /// # Errors
    /// The port is invalid.
    pub fn ticket_port(&self, gateway: SocketAddr) -> Result<u16, FieldError> {
        match self.gateway.ticket_port.or(ticket::ticket_port(gateway.port())) {
            Some(port) if port != 0 && port != gateway.port() => Ok(port),
            _ => field(
                &["gateway", "ticket_port"],
                "invalid port: use the gateway's UDP port for tickets, other than 0 and LAP's",
            ),
        }
    }

    /// The attestation settings, if enabled; reads the key.
    ///
    /// # Errors
    /// A field cannot be used.
    pub fn attest(&self) -> Result<Option<AttestOptions>, FieldError> {
        self.attest.as_ref().map(AttestSection::options).transpose()
    }

    /// The tunnels of a device with its gateway at `gateway`.
    ///
    /// # Errors
    /// A service cannot be reached through a sealed gate.
    pub fn tunnels(&self, gateway: SocketAddr) -> Result<Vec<Tunnel>, FieldError> {
        (0..self.tunnel.len())
            .filter_map(|n| self.tunnel_at(n, gateway))
            .collect()
    }

    fn tunnel_at(&self, n: usize, gateway: SocketAddr) -> Option<Result<Tunnel, FieldError>> {
        let TunnelSection { listen, service } = *self.tunnel.get(n)?;
        if service.is_ipv4() != gateway.is_ipv4() {
            let problem = format!(
                "{service} has another address family than the gateway {gateway}, to which the session is bound"
            );
            return Some(indexed_field("tunnel", n, "service", problem));
        }
        if service.port() == 0 || service.port() == gateway.port() {
            let problem = format!(
                "{service}: a sealed gate does not forward to port 0 and LAP's port: use another port"
            );
            return Some(indexed_field("tunnel", n, "service", problem));
        }
        Some(Ok(Tunnel { listen, service }))
    }

    /// Opens the PUF. `noise_seed` seeds the noise of a simulated PUF.
    ///
    /// # Errors
    /// No source or several are named, or the source cannot be used.
    pub fn open_puf(&self, device: DeviceId, noise_seed: u64) -> Result<Box<dyn Puf>, FieldError> {
        self.puf.check_single_source()?;
        let section = &self.puf;
        match (&section.simulated, &section.readouts, &section.command) {
            (Some(simulated), ..) => {
                let seed = FleetSeed::from_file(&simulated.seed_file).or_else(|error| {
                    let is_unsafe = matches!(error, SeedError::Unsafe { .. });
                    let refused = field(&["puf", "simulated", "seed_file"], error);
                    refused.map_err(|refused| FieldError { is_unsafe, ..refused })
                })?;
                simulated
                    .build(&seed, device, noise_seed)
                    .or_else(|error| field(&["puf", "simulated"], error))
            }
            (_, Some(readouts), _) => match ReadoutPuf::open(&readouts.path, readouts.start as usize) {
                Ok(puf) => {
                    warn_if_exposed(&readouts.path);
                    Ok(Box::new(puf))
                }
                Err(error) => field(&["puf", "readouts", "path"], error),
            },
            (.., Some(command)) => Ok(Box::new(command.clone())),
            (None, None, None) => field(&["puf"], NO_PUF),
        }
    }
}

impl PufSection {
    /// # Errors
    /// No source or several are named.
    fn check_single_source(&self) -> Result<(), FieldError> {
        let named = [
            self.simulated.is_some(),
            self.readouts.is_some(),
            self.command.is_some(),
        ];
        match named.iter().filter(|is_named| **is_named).count() {
            1 => Ok(()),
            _ => field(&["puf"], NO_PUF),
        }
    }
}

/// Warns if other users can read stored readouts, which identify the device. Such readouts are still used, because many
/// are published.
fn warn_if_exposed(path: &Path) {
    let is_exposed = |path: &Path| path.metadata().is_ok_and(|metadata| metadata.mode() & 0o044 != 0);
    // Other users cannot open files in a directory without access, whatever the modes of the files.
    let dumps = || std::fs::read_dir(path).into_iter().flatten().flatten();
    if is_exposed(path) && (path.is_file() || dumps().any(|dump| is_exposed(&dump.path()))) {
        tracing::warn!(
            path = %path.display(),
            action = "run `chmod -R go=` on it", "other users can read the readouts and impersonate this device"
        );
    }
}

/// Parses a device ID: up to 16 hexadecimal digits, not 0.
///
/// # Errors
/// The text is not a device ID.
pub fn parse_device_id(text: &str) -> Result<DeviceId, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let is_hexadecimal =
        !digits.is_empty() && digits.len() <= 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    match u64::from_str_radix(digits, 16) {
        Ok(0) => Err("0 is not a device ID".to_owned()),
        Ok(id) if is_hexadecimal => Ok(DeviceId(id)),
        _ => Err(format!(
            "{text:?} is not a device ID: use up to 16 hexadecimal digits"
        )),
    }
}

/// Parses a gateway's address: `HOST`, `HOST:PORT`, `IPV6` or `[IPV6]:PORT`.
///
/// # Errors
/// The text is not an address, or the host name does not resolve.
pub fn parse_gateway(text: &str) -> Result<SocketAddr, String> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, LAP_PORT));
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    let host_and_port = if text.contains(':') {
        text.to_owned()
    } else {
        format!("{text}:{LAP_PORT}")
    };
    let first_address = host_and_port
        .to_socket_addrs()
        .map_err(|error| format!("resolving {text:?} failed: {error}"))?
        .next();
    first_address.ok_or_else(|| format!("{text:?} has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIMULATED: &str = "[puf.simulated]\nseed_file = \"fleet.seed\"\n";

    fn parse(text: &str) -> AgentConfig {
        toml::from_str(&format!("[device]\nid = \"d1\"\nhelper = \"h\"\n{text}")).unwrap()
    }

    #[test]
    fn addresses_have_a_default_port() {
        for (text, address) in [
            ("192.0.2.1", "192.0.2.1:20550"),
            ("192.0.2.1:7", "192.0.2.1:7"),
            ("2001:db8::1", "[2001:db8::1]:20550"),
            ("[2001:db8::1]:7", "[2001:db8::1]:7"),
        ] {
            assert_eq!(parse_gateway(text).unwrap(), address.parse().unwrap());
        }
        assert!(parse_gateway("192.0.2.1:99999").is_err());
    }

    #[test]
    fn tunnels_use_services_that_a_sealed_gate_forwards_to() {
        let gateway = "192.0.2.1:20550".parse().unwrap();
        let tunnel = |service: &str| {
            let text = format!("{SIMULATED}[[tunnel]]\nlisten = \"127.0.0.1:1\"\nservice = \"{service}\"\n");
            parse(&text).tunnels(gateway)
        };
        assert_eq!(
            tunnel("192.0.2.9:5683").unwrap(),
            [Tunnel {
                listen: "127.0.0.1:1".parse().unwrap(),
                service: "192.0.2.9:5683".parse().unwrap()
            }]
        );
        for wrong in ["[2001:db8::1]:5683", "192.0.2.9:20550", "192.0.2.9:0"] {
            assert_eq!(tunnel(wrong).unwrap_err().path, ["tunnel", "1", "service"]);
        }
    }

    #[test]
    fn one_renewal_is_sufficient() {
        let renewal = |text: &str| parse(&format!("{SIMULATED}[renewal]\n{text}")).renewal(false);
        for wrong in ["below_rows = 500\nrows = 100\n", "below_rows = 101\n"] {
            let error = renewal(wrong).unwrap_err();
            assert_eq!(error.path, ["renewal", "below_rows"]);
            assert!(error.problem.contains("at most `rows`, 100"), "{error}");
        }
        assert!(renewal("below_rows = 100\n").unwrap().is_some());
    }

    #[test]
    fn ids_are_hexadecimal_and_not_zero() {
        assert_eq!(parse_device_id("00000000000000d1"), Ok(DeviceId(0xd1)));
        assert_eq!(parse_device_id("0xD1"), Ok(DeviceId(0xd1)));
        for wrong in ["", "0", "0000000000000000", "g1", "+d1", "11112222333344445"] {
            assert!(parse_device_id(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_mistake_names_its_field() {
        let config = parse("[gateway]\naddress = \"192.0.2.1:x\"\nids = []\n[puf]\n");
        let error = |error: FieldError| error.path.join(".");
        assert_eq!(error(config.gateway_address().unwrap_err()), "gateway.address");
        assert_eq!(error(config.gateway_policy().unwrap_err()), "gateway.ids");
        assert_eq!(error(config.open_puf(DeviceId(1), 0).err().unwrap()), "puf");
        let config = parse(SIMULATED);
        assert_eq!(error(config.gateway_address().unwrap_err()), "gateway.address");
        assert_eq!(config.problems().len(), 1);
        let unread = config.open_puf(DeviceId(1), 0).err().unwrap();
        assert_eq!(error(unread), "puf.simulated.seed_file");
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let listen = "listen = \"127.0.0.1:1\"\n";
        let text = format!(
            "peer_port = 0\n[gateway]\naddress = \"192.0.2.1\"\nids = []\nticket_port = 20550\n[puf]\n[renewal]\n\
             below_rows = 101\n[[tunnel]]\n{listen}service = \"192.0.2.9:1\"\n[[tunnel]]\n{listen}service = \
             \"[::1]:1\"\n[[peer]]\ndevice = \"d2\"\nlisten = \"127.0.0.1:2\"\n[[peer]]\ndevice = \"d2\"\nlisten = \
             \"127.0.0.1:3\"\n[[peer]]\ndevice = \"d3\"\n{listen}address = \"[::1]:1\"\n"
        );
        let problems = parse(&text).problems();
        let fields: Vec<String> = problems.iter().map(|problem| problem.path.join(".")).collect();
        assert_eq!(
            fields,
            [
                "gateway.ids",
                "renewal.below_rows",
                "puf",
                "tunnel.2.listen",
                "peer.3.listen",
                "device.peer_port",
                "gateway.ticket_port",
                "tunnel.2.service",
                "peer.2.device",
                "peer.3.address",
            ]
        );
    }
}
