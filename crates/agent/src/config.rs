//! The configuration of an agent as people write it (TOML). Paths are taken relative to the configuration file.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use linewarden_protocol::device::GatewayPolicy;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_protocol::ticket;
use linewarden_protocol::wire::LAP_PORT;
use linewarden_puf::Puf;
use linewarden_puf::readout::ReadoutPuf;
use serde::Deserialize;

use crate::attest::{AttestOptions, AttestSection};
use crate::keyring::Keyring;
use crate::link::interface_mac;
use crate::peer::Peer;
use crate::renewal::{ROWS_MAX, RenewalOptions};
use crate::source::{CommandPuf, FleetSeed, SeedError, SimulatedPuf};
use crate::tunnel::Tunnel;

const NO_PUF: &str = "name exactly one of [puf.simulated], [puf.readouts], [puf.command]";
/// Rows that a renewal adds unless another number is named.
const DEFAULT_RENEWAL_ROWS: u32 = 100;

/// A whole configuration file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentConfig {
    /// The device.
    pub device: DeviceSection,
    /// The gateway.
    #[serde(default)]
    pub gateway: GatewaySection,
    /// Its PUF.
    pub puf: PufSection,
    /// When it renews its rows, if ever by itself.
    pub renewal: Option<RenewalSection>,
    /// What it carries through a sealed gate.
    #[serde(default)]
    pub tunnel: Vec<TunnelSection>,
    /// Devices that it talks to.
    #[serde(default)]
    pub peer: Vec<PeerSection>,
    /// How it proves what it runs, if it does.
    pub attest: Option<AttestSection>,
    /// Its log.
    #[serde(default)]
    pub log: LogSection,
}

/// `[device]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSection {
    /// 16 hexadecimal digits.
    pub id: String,
    /// Helper data, as enrolment wrote them.
    pub helper: PathBuf,
    /// UDP port at which devices talk to each other.
    #[serde(default = "default_peer_port")]
    pub peer_port: u16,
}

/// `[gateway]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewaySection {
    /// `HOST` or `HOST:PORT`.
    pub address: Option<String>,
    /// Numbers of the gateways that are answered; all that prove the enrolment if not given.
    pub ids: Option<Vec<u32>>,
    /// UDP port of the gateway's desk, for renewals; the gateway's port plus 2 if not given.
    pub desk_port: Option<u16>,
    /// The interface to the gateway, to whose MAC address the session is bound, as the open gate demands.
    pub interface: Option<String>,
}

fn default_peer_port() -> u16 {
    20_553
}

/// `[[peer]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerSection {
    /// 16 hexadecimal digits.
    pub device: String,
    /// Where local programs send: `ADDRESS:PORT`, UDP. Whoever reaches it speaks in the device's name.
    pub listen: SocketAddr,
    /// Who gets what comes from there; the last program that has sent, if not given.
    pub deliver: Option<SocketAddr>,
    /// Where the peer is, if it is not at the same gateway.
    pub address: Option<SocketAddr>,
}

/// `[renewal]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenewalSection {
    /// Pool mode: new rows are made with fewer than this left.
    pub below_rows: u32,
    /// How many.
    #[serde(default = "default_renewal_rows")]
    pub rows: u32,
}

fn default_renewal_rows() -> u32 {
    DEFAULT_RENEWAL_ROWS
}

/// `[[tunnel]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunnelSection {
    /// Where local programs send: `ADDRESS:PORT`, UDP. Whoever reaches it speaks in the device's name.
    pub listen: SocketAddr,
    /// The service behind the gateway: `ADDRESS:PORT`, UDP.
    pub service: SocketAddr,
}

/// `[puf]`: exactly one of them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PufSection {
    /// A model, for trials.
    pub simulated: Option<SimulatedPuf>,
    /// Stored readouts, for trials.
    pub readouts: Option<ReadoutsSection>,
    /// An external program, for real hardware.
    pub command: Option<CommandPuf>,
}

/// `[puf.readouts]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadoutsSection {
    /// A dump, or a directory of dumps that are served in turn.
    pub path: PathBuf,
    /// The byte of the memory from which on it was enrolled.
    #[serde(default)]
    pub start: u32,
}

/// `[log]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSection {
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter by module.
    pub level: Option<String>,
}

/// A field that cannot be used; whoever read the file knows its line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", path.join("."))]
pub struct FieldError {
    /// Tables and key, outermost first; of several tables of one name the number, from 1.
    pub path: Vec<String>,
    /// What is wrong and what would do.
    pub problem: String,
    /// It is refused for safety: a secret that others can read.
    pub is_unsafe: bool,
    /// It is refused by nothing, and likely no intent.
    pub is_warning: bool,
}

pub(crate) fn field<T>(path: &[&str], problem: impl ToString) -> Result<T, FieldError> {
    Err(FieldError {
        path: path.iter().map(ToString::to_string).collect(),
        problem: problem.to_string(),
        is_unsafe: false,
        is_warning: false,
    })
}

/// Of the `n`th table of that name, from 0.
fn field_of<T>(table: &str, n: usize, key: &str, problem: impl ToString) -> Result<T, FieldError> {
    field(&[table, &(n + 1).to_string(), key], problem)
}

impl AgentConfig {
    /// Makes the paths absolute, seen from the configuration file's directory.
    pub fn resolve_paths(&mut self, directory: &Path) {
        let puf = &mut self.puf;
        let program = puf.command.as_mut().map(|command| &mut command.program);
        let paths = [
            Some(&mut self.device.helper),
            puf.simulated.as_mut().map(|simulated| &mut simulated.seed_file),
            puf.readouts.as_mut().map(|readouts| &mut readouts.path),
            // One without a slash is looked for in PATH.
            program.filter(|program| program.components().count() > 1),
        ];
        // An empty one stays empty, and is a mistake.
        let named = paths
            .into_iter()
            .flatten()
            .filter(|path| !path.as_os_str().is_empty());
        let attest = self.attest.iter_mut().flat_map(AttestSection::paths_mut);
        named
            .chain(attest.filter(|path| !path.as_os_str().is_empty()))
            .for_each(|path| *path = directory.join(&*path));
    }

    /// The device's id.
    ///
    /// # Errors
    /// Anything but 16 hexadecimal digits, or 0.
    pub fn device_id(&self) -> Result<DeviceId, FieldError> {
        parse_device_id(&self.device.id).or_else(|problem| field(&["device", "id"], problem))
    }

    /// The gateway's address; a name is looked up.
    ///
    /// # Errors
    /// None given, or one that cannot be used.
    pub fn gateway_address(&self) -> Result<SocketAddr, FieldError> {
        let Some(text) = &self.gateway.address else {
            return field(
                &["gateway", "address"],
                "it is missing: the gateway's address, such as \"192.0.2.1\" (or give --gateway)",
            );
        };
        parse_gateway(text).or_else(|problem| field(&["gateway", "address"], problem))
    }

    /// Which gateways are answered.
    ///
    /// # Errors
    /// None, or more than the device machine can remember.
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
                    "{} gateways; 1 to 4 can be named, or leave it out for all",
                    ids.len()
                ),
            ),
        }
    }

    /// What of this machine that it names cannot be used: the helper data, the PUF (which is not read), the interface.
    #[must_use]
    pub fn lacks(&self) -> Vec<FieldError> {
        let mut problems = Vec::new();
        let mut tell = |path: &[&str], problem: String| problems.extend(field::<()>(path, problem).err());
        if let Err(error) = Keyring::read_from(&self.device.helper) {
            tell(&["device", "helper"], error.to_string());
        }
        if let Some(Err(error)) = self.gateway.interface.as_deref().map(interface_mac) {
            tell(&["gateway", "interface"], error.to_string());
        }
        if let Some(Err(problem)) = self.puf.command.as_ref().map(CommandPuf::find) {
            tell(&["puf", "command", "program"], problem);
        }
        if let Ok(device) = self.device_id() {
            problems.extend(self.open_puf(device, 0).err());
        }
        problems.extend(self.attest.iter().flat_map(AttestSection::lacks));
        problems
    }

    /// Everything that is wrong in it, as far as the file alone tells.
    #[must_use]
    pub fn problems(&self) -> Vec<FieldError> {
        let gateway = self.gateway_address();
        let mut problems: Vec<FieldError> = [
            self.device_id().err(),
            self.gateway_policy().err(),
            self.renewal(false).err(),
            self.puf.kinds().err(),
        ]
        .into_iter()
        .flatten()
        .collect();
        problems.extend(self.empty_paths());
        problems.extend(self.doubly_listened());
        let lap_port = gateway.as_ref().map_or(LAP_PORT, SocketAddr::port);
        let ports = [lap_port, self.device.peer_port];
        problems.extend(self.attest.iter().flat_map(|attest| attest.problems(&ports)));
        match gateway {
            Err(error) => problems.push(error),
            Ok(gateway) => {
                problems.extend(self.peer_port(gateway).err());
                problems.extend(self.desk_port(gateway).err());
                let tunnels = (0..self.tunnel.len()).filter_map(|n| self.tunnel_at(n, gateway)?.err());
                problems.extend(tunnels);
                let peers = (0..self.peer.len()).filter_map(|n| self.peer_at(n, gateway)?.err());
                problems.extend(peers);
            }
        }
        problems
    }

    fn empty_paths(&self) -> Vec<FieldError> {
        let puf = &self.puf;
        let simulated = puf.simulated.as_ref().map(|simulated| &simulated.seed_file);
        let paths: [(&[&str], Option<&PathBuf>); 4] = [
            (&["device", "helper"], Some(&self.device.helper)),
            (&["puf", "simulated", "seed_file"], simulated),
            (
                &["puf", "readouts", "path"],
                puf.readouts.as_ref().map(|readouts| &readouts.path),
            ),
            (
                &["puf", "command", "program"],
                puf.command.as_ref().map(|command| &command.program),
            ),
        ];
        let is_empty = |path: Option<&PathBuf>| path.is_some_and(|path| path.as_os_str().is_empty());
        let empty = paths.into_iter().filter(|(_, path)| is_empty(*path));
        let empty = empty.map(|(path, _)| path.to_vec());
        let attest = self.attest.iter().flat_map(AttestSection::paths);
        let attest = attest
            .filter(|(_, path)| is_empty(*path))
            .map(|(key, _)| vec!["attest", key]);
        empty
            .chain(attest)
            .filter_map(|path| field::<()>(&path, "\"\": name a path").err())
            .collect()
    }

    /// Places where programs are listened to that are named twice.
    fn doubly_listened(&self) -> Vec<FieldError> {
        let tunnels = self.tunnel.iter().enumerate();
        let peers = self.peer.iter().enumerate();
        let all = tunnels
            .map(|(n, tunnel)| ("tunnel", n, tunnel.listen))
            .chain(peers.map(|(n, peer)| ("peer", n, peer.listen)));
        let mut seen = HashSet::new();
        all.filter(|(.., listen)| listen.port() != 0 && !seen.insert(*listen))
            .filter_map(|(table, n, listen)| {
                field_of::<()>(table, n, "listen", format!("{listen} is listened on already")).err()
            })
            .collect()
    }

    /// The devices that one whose gateway is at `gateway` talks to.
    ///
    /// # Errors
    /// An id that is none, its own, or named twice; a place that cannot be sent to.
    pub fn peers(&self, gateway: SocketAddr) -> Result<Vec<Peer>, FieldError> {
        (0..self.peer.len())
            .filter_map(|n| self.peer_at(n, gateway))
            .collect()
    }

    fn peer_at(&self, n: usize, gateway: SocketAddr) -> Option<Result<Peer, FieldError>> {
        let section = self.peer.get(n)?;
        let own = parse_device_id(&self.device.id).ok();
        let before = self.peer.iter().take(n);
        let check = || {
            let device =
                parse_device_id(&section.device).or_else(|problem| field_of("peer", n, "device", problem))?;
            let mut named = before.filter_map(|peer| parse_device_id(&peer.device).ok());
            if own == Some(device) || named.any(|named| named == device) {
                let problem = format!("{device} is this device, or named before");
                return field_of("peer", n, "device", problem);
            }
            if let Some(address) = section.address
                && (address.is_ipv4() != gateway.is_ipv4() || address.port() == 0)
            {
                let problem = format!(
                    "{address}: a port other than 0, at an address of the family of the gateway's, {gateway}, to which \
                     the device's own belongs"
                );
                return field_of("peer", n, "address", problem);
            }
            if section.deliver.is_some_and(|deliver| deliver.port() == 0) {
                return field_of("peer", n, "deliver", "port 0 is nobody's");
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

    /// The UDP port at which a device whose gateway is at `gateway` talks to its peers.
    ///
    /// # Errors
    /// One that no gate forwards to.
    pub fn peer_port(&self, gateway: SocketAddr) -> Result<u16, FieldError> {
        match self.device.peer_port {
            port if port != 0 && port != gateway.port() => Ok(port),
            port => field(
                &["device", "peer_port"],
                format!("{port}: a port other than 0 and LAP's, and the same at the peers"),
            ),
        }
    }

    /// When rows are renewed; `now` demands it once, whatever is left, and a new key in key mode.
    ///
    /// # Errors
    /// Numbers that the registry would not take.
    pub fn renewal(&self, now: bool) -> Result<Option<RenewalOptions>, FieldError> {
        let rows = self.renewal.map_or(DEFAULT_RENEWAL_ROWS, |section| section.rows);
        if rows == 0 || rows > ROWS_MAX {
            return field(
                &["renewal", "rows"],
                format!("{rows}: 1 to {ROWS_MAX} rows at a time"),
            );
        }
        let below_rows = self.renewal.map(|section| section.below_rows);
        if below_rows.is_some_and(|below| below == 0 || below > ROWS_MAX) {
            let problem = format!("{}: 1 to {ROWS_MAX}", below_rows.unwrap_or_default());
            return field(&["renewal", "below_rows"], problem);
        }
        if let Some(below) = below_rows.filter(|below| *below > rows) {
            let problem = format!(
                "{below}: at most `rows`, {rows}, or what is renewed is too little at once, and every session renews"
            );
            return field(&["renewal", "below_rows"], problem);
        }
        Ok((now || below_rows.is_some()).then_some(RenewalOptions {
            below_rows,
            rows,
            now,
        }))
    }

    /// The port of the desk of a gateway at `gateway`.
    ///
    /// # Errors
    /// A port that cannot be.
    pub fn desk_port(&self, gateway: SocketAddr) -> Result<u16, FieldError> {
        match self.gateway.desk_port.or(ticket::desk_port(gateway.port())) {
            Some(port) if port != 0 && port != gateway.port() => Ok(port),
            _ => field(
                &["gateway", "desk_port"],
                "name the port of the gateway's desk, another than 0 and LAP's",
            ),
        }
    }

    /// How it proves what it runs, if it does; reads its key.
    ///
    /// # Errors
    /// A field that cannot be used.
    pub fn attest(&self) -> Result<Option<AttestOptions>, FieldError> {
        self.attest.as_ref().map(AttestSection::options).transpose()
    }

    /// The tunnels of a device whose gateway is at `gateway`.
    ///
    /// # Errors
    /// A service that cannot be reached through a seal.
    pub fn tunnels(&self, gateway: SocketAddr) -> Result<Vec<Tunnel>, FieldError> {
        (0..self.tunnel.len())
            .filter_map(|n| self.tunnel_at(n, gateway))
            .collect()
    }

    fn tunnel_at(&self, n: usize, gateway: SocketAddr) -> Option<Result<Tunnel, FieldError>> {
        let TunnelSection { listen, service } = *self.tunnel.get(n)?;
        if service.is_ipv4() != gateway.is_ipv4() {
            let problem = format!(
                "{service} is of another family than the gateway {gateway}, to which the session's address belongs"
            );
            return Some(field_of("tunnel", n, "service", problem));
        }
        if service.port() == 0 || service.port() == gateway.port() {
            let problem = format!("{service}: a sealed gate never forwards to port 0 or LAP's own");
            return Some(field_of("tunnel", n, "service", problem));
        }
        Some(Ok(Tunnel { listen, service }))
    }

    /// Opens the PUF. `noise_seed` drives the noise of a simulated one.
    ///
    /// # Errors
    /// None or several named, or one that cannot be used.
    pub fn open_puf(&self, device: DeviceId, noise_seed: u64) -> Result<Box<dyn Puf>, FieldError> {
        self.puf.kinds()?;
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
    /// None or several named.
    fn kinds(&self) -> Result<(), FieldError> {
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

/// Stored readouts stand for the device. They are often published ones, so they are used all the same.
fn warn_if_exposed(path: &Path) {
    let is_open = |path: &Path| path.metadata().is_ok_and(|metadata| metadata.mode() & 0o044 != 0);
    // Nobody gets into a closed directory, whatever the modes of its files.
    let dumps = || std::fs::read_dir(path).into_iter().flatten().flatten();
    if is_open(path) && (path.is_file() || dumps().any(|dump| is_open(&dump.path()))) {
        tracing::warn!(
            path = %path.display(),
            "others can read these readouts, and with them be this device; `chmod -R go=` closes them"
        );
    }
}

/// Reads a device's id: up to 16 hexadecimal digits, not 0.
///
/// # Errors
/// What is wrong with it.
pub fn parse_device_id(text: &str) -> Result<DeviceId, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let plain =
        !digits.is_empty() && digits.len() <= 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    match u64::from_str_radix(digits, 16) {
        Ok(0) => Err("0 is no device".to_owned()),
        Ok(id) if plain => Ok(DeviceId(id)),
        _ => Err(format!(
            "{text:?} is not a device id, which has up to 16 hexadecimal digits"
        )),
    }
}

/// Reads a gateway's address: `HOST`, `HOST:PORT`, `IPV6` or `[IPV6]:PORT`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_gateway(text: &str) -> Result<SocketAddr, String> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, LAP_PORT));
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    let with_port = if text.contains(':') {
        text.to_owned()
    } else {
        format!("{text}:{LAP_PORT}")
    };
    let found = with_port
        .to_socket_addrs()
        .map_err(|error| format!("{text:?} cannot be used as an address: {error}"))?
        .next();
    found.ok_or_else(|| format!("{text:?} has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIMULATED: &str = "[puf.simulated]\nseed_file = \"fleet.seed\"\n";

    fn parse(text: &str) -> AgentConfig {
        toml::from_str(&format!("[device]\nid = \"d1\"\nhelper = \"h\"\n{text}")).unwrap()
    }

    #[test]
    fn paths_are_relative_to_the_file_and_programs_in_path_are_not() {
        let mut config = parse(SIMULATED);
        config.resolve_paths(Path::new("/etc/lw"));
        assert_eq!(config.device.helper, Path::new("/etc/lw/h"));
        assert_eq!(
            config.puf.simulated.unwrap().seed_file,
            Path::new("/etc/lw/fleet.seed")
        );
        for (given, resolved) in [
            ("readpuf", "readpuf"),
            ("./readpuf", "/etc/lw/./readpuf"),
            ("/x/y", "/x/y"),
        ] {
            let mut config = parse(&format!("[puf.command]\nprogram = \"{given}\"\n"));
            config.resolve_paths(Path::new("/etc/lw"));
            assert_eq!(config.puf.command.unwrap().program, Path::new(resolved));
        }
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
    fn tunnels_go_where_a_sealed_gate_lets_them() {
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
    fn a_renewal_is_enough_at_once() {
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
    fn all_mistakes_are_found_at_once() {
        let listen = "listen = \"127.0.0.1:1\"\n";
        let text = format!(
            "peer_port = 0\n[gateway]\naddress = \"192.0.2.1\"\nids = []\ndesk_port = 20550\n[puf]\n[renewal]\n\
             below_rows = 0\n[[tunnel]]\n{listen}service = \"192.0.2.9:1\"\n[[tunnel]]\n{listen}service = \
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
                "gateway.desk_port",
                "tunnel.2.service",
                "peer.2.device",
                "peer.3.address",
            ]
        );
    }
}
