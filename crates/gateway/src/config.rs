//! The configuration of a gateway as people write it (TOML), and what it becomes.
//!
//! Reading the file is the caller's business; this module knows the fields, their defaults and what goes together.
//! Paths are taken relative to the configuration file.

mod devices;
mod live;
mod p4;
mod resolve;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use linewarden_controller::Policy;
use linewarden_dataplane as dataplane;
use linewarden_dataplane::p4runtime::{self, P4Options};
use linewarden_evidence::inband::Form;
use linewarden_protocol::classic::p4dra;
use linewarden_protocol::frame::Mac;
use linewarden_protocol::gateway::ControlProtocol;
use linewarden_protocol::sources::Prefix;
use linewarden_registry::Location;
use serde::{Deserialize, Deserializer};

pub use self::devices::FoundSources;
pub use self::p4::{BridgeSection, P4Section, Side};
use crate::node::{ATTEST_PERIOD_S_MAX, P4DRA_ROUND_S, Settings};

/// A whole configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayConfig {
    /// The gateway itself.
    pub gateway: GatewaySection,
    /// Where its devices come from, if that is here ..
    pub registry: Option<RegistrySection>,
    /// .. or who knows them, on other machines.
    pub controller: Option<ControllerSection>,
    /// One of the papers' profiles; insecure.
    pub classic: Option<ClassicSection>,
    /// The published P4DRA; insecure.
    pub p4dra_classic: Option<P4draClassicSection>,
    /// What devices run is checked; nobody's if left out.
    pub attest: Option<AttestSection>,
    /// The switch of `dataplane = "p4"`.
    pub p4: Option<P4Section>,
    /// What its data plane runs is signed; nothing if left out.
    pub evidence: Option<EvidenceSection>,
    /// It gets rows only while it shows that its data plane runs what it should; always if left out.
    pub trust: Option<TrustSection>,
    /// Its log.
    #[serde(default)]
    pub log: LogSection,
    /// Its audit record; none if left out.
    pub audit: Option<AuditSection>,
}

/// `[gateway]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewaySection {
    /// Number of this gateway; keys are made for it, so it is never given to another one.
    pub id: u32,
    /// The engine that verifies.
    #[serde(default)]
    pub dataplane: Backend,
    /// Interfaces on the devices' side.
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// Own addresses, which devices send to; those of the interfaces if not given.
    pub addresses: Option<Vec<IpAddr>>,
    /// Where devices are; the subnets of the interfaces if not given.
    #[serde(default, deserialize_with = "devices::prefixes")]
    pub device_prefixes: Option<Vec<Prefix>>,
    /// UDP port of LAP/1.
    #[serde(default = "default_port")]
    pub port: u16,
    /// UDP port of the desk, where devices' tickets are taken; LAP's plus 2 if not given, none if 0.
    pub desk_port: Option<u16>,
    /// The gate.
    #[serde(default)]
    pub gate: Gate,
    /// Control protocols of links that pass a gate without a session.
    #[serde(default, deserialize_with = "control_protocols")]
    pub always_pass: Vec<ControlProtocol>,
    /// DHCP servers that devices may send to past a gate without a session, beside broadcast and the link's group.
    #[serde(default)]
    pub dhcp_servers: Vec<IpAddr>,
    /// Sealed gate: interfaces that opened datagrams may leave by past the network stack and its filters.
    #[serde(default)]
    pub forward_to: Vec<String>,
    /// What becomes of a gate when the gateway ends, however it ends.
    #[serde(default)]
    pub when_gone: WhenGone,
    /// Where the program of a gate that stays closed is kept: a directory of the BPF filesystem.
    #[serde(default = "default_pin_directory")]
    pub pin_directory: PathBuf,
    /// Lease of a session, seconds.
    #[serde(default = "default_lease_s")]
    pub lease_s: u32,
    /// Devices that fit; see [`GatewaySection::slots`].
    pub slots: Option<u32>,
    /// Rows held for a device beside the current one.
    #[serde(default = "default_ring")]
    pub ring: u32,
    /// More rows are fetched when no more than this are left.
    #[serde(default = "default_low_rows")]
    pub low_rows: u32,
    /// Rows that a device may spend before its mark is moved: what a crash costs it at most.
    #[serde(default = "default_mark_block")]
    pub mark_block: u32,
    /// How long the gateway goes on without its controller, seconds.
    #[serde(default = "default_link_lease_s")]
    pub link_lease_s: u32,
    /// NAKs a second and CPU.
    #[serde(default = "default_nak_per_s")]
    pub nak_per_s: u32,
    /// Reports of wrong tags and wrong proofs a second and CPU.
    #[serde(default = "default_alarm_per_s")]
    pub alarm_per_s: u32,
    /// Messages of devices that are not in the data plane which go to the slow path, a second and CPU.
    #[serde(default = "default_miss_per_s")]
    pub miss_per_s: u32,
    /// How often the registry is asked for changes, ms.
    #[serde(default = "default_feed_poll_ms")]
    pub feed_poll_ms: u64,
    /// `host` only: threads for each address; one per CPU if not given.
    pub threads: Option<usize>,
}

/// `[registry]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegistrySection {
    /// The file, or the database: `postgres://USER@HOST/DATABASE`.
    pub path: Location,
    /// The master key's file, of mode 0600.
    pub master_key_file: Option<PathBuf>,
    /// Or the environment variable that holds it.
    pub master_key_env: Option<String>,
}

/// `[controller]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControllerSection {
    /// `HOST:PORT` of each controller, in the order in which they are asked.
    pub addresses: Vec<String>,
    /// The CA of their certificates, PEM.
    pub ca: PathBuf,
    /// This gateway's certificate, which names its `id`, PEM.
    pub cert: PathBuf,
    /// Its private key, PEM, of mode 0600.
    pub key: PathBuf,
    /// The name in the controllers' certificates, if it is not the host's.
    pub server_name: Option<String>,
}

/// `[classic]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassicSection {
    /// Which.
    pub profile: ClassicProfile,
    /// 64, 128 or 256.
    pub response_bits: usize,
    /// UDP port, another than LAP/1's.
    #[serde(default = "default_classic_port")]
    pub port: u16,
    /// The CRPs, see [`crate::classic::parse_crps`].
    pub crps_file: PathBuf,
}

/// `[p4dra_classic]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct P4draClassicSection {
    /// Ethernet type.
    #[serde(default = "default_ether_type")]
    pub ether_type: u16,
    /// The MAC address that is told who is ok.
    #[serde(default = "default_p4dra_controller", deserialize_with = "mac")]
    pub controller: Mac,
    /// The provers, see [`crate::p4dra::parse_provers`]; of mode 0600.
    pub provers_file: PathBuf,
    /// From one round to the next, seconds.
    #[serde(default = "default_p4dra_round_s")]
    pub round_s: u32,
}

/// `[attest]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttestSection {
    /// Provers that fit.
    pub provers: Option<u32>,
    /// How long a period lasts, seconds: devices measure themselves once a period.
    #[serde(default = "default_period_s")]
    pub period_s: u32,
    /// With which results are signed; they are not if left out.
    pub signing_key: Option<PathBuf>,
}

/// `[evidence]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvidenceSection {
    /// With which statements are signed: a private key, or one that the TPM has encrypted; of mode 0600.
    pub key: PathBuf,
    /// The TPM that the key is of, by its TCTI; the key is in the file itself if left out.
    pub tpm: Option<String>,
    /// The file in which starts are counted. It must be kept as long as the key.
    pub boot_count: PathBuf,
    /// The socket where statements are asked for on this machine; none if left out.
    pub socket: Option<PathBuf>,
    /// How packets that pass the gate carry evidence; not at all if left out.
    pub in_packets: Option<Carrier>,
    /// What they carry; [`PacketContent::Default`] if left out.
    pub packet_content: Option<PacketContent>,
    /// The secret of their tags, which the appraiser has too: 32 hexadecimal digits; of mode 0600.
    pub packet_key_file: Option<PathBuf>,
}

/// How packets carry evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    /// IPv6 packets as a hop-by-hop option.
    Option,
    /// Any frame, in one of its own beside it; P4 switches do.
    Clone,
}

/// What packets carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PacketContent {
    /// With a tag that proves it.
    #[default]
    Default,
    /// The attesting BMv2's: nothing in it is proven.
    Classic,
}

/// `[trust]`, of a gateway with a registry of its own; `[trust.N]` of gateway N in a controller's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustSection {
    /// What the data plane is to run.
    pub reference: PathBuf,
    /// By whom that must be signed; by nobody if left out.
    pub reference_key: Option<PathBuf>,
    /// The public key of the data plane's statements.
    pub key: PathBuf,
    /// From one look to the next, seconds.
    #[serde(default = "default_trust_every_s")]
    pub every_s: u32,
    /// How long an answer may take, seconds.
    #[serde(default = "default_trust_answer_s")]
    pub answer_s: u32,
}

/// `[log]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSection {
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter by module.
    pub level: Option<String>,
}

/// `[audit]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditSection {
    /// The file that records are appended to.
    pub path: PathBuf,
    /// Records of each kind a second; what is beyond is counted.
    #[serde(default = "default_audit_per_s")]
    pub per_s: u32,
    /// The file is not made longer than this.
    #[serde(default = "default_audit_bytes_max")]
    pub bytes_max: u64,
}

/// Which engine verifies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// An eBPF program on the interfaces.
    #[default]
    Xdp,
    /// Threads on UDP sockets.
    Host,
    /// A P4 switch, over P4Runtime.
    P4,
}

/// The gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gate {
    /// Passes everything that is not LAP/1's.
    #[default]
    Off,
    /// Passes only live bound sessions and what must always pass.
    Open,
    /// Passes only what is sealed under a live session, both ways, and what must always pass.
    Sealed,
}

/// What becomes of a gate when its gateway ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenGone {
    /// It stays: what has a live session passes until its lease ends, then nothing does.
    #[default]
    Closed,
    /// Everything passes.
    Open,
}

/// Which of the papers' profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClassicProfile {
    /// One CRP a time.
    Iot,
    /// Two CRPs a time.
    Uav,
}

fn default_port() -> u16 {
    linewarden_protocol::wire::LAP_PORT
}
fn default_classic_port() -> u16 {
    20_551
}
fn default_ether_type() -> u16 {
    p4dra::ETHER_TYPE
}
fn default_p4dra_controller() -> Mac {
    p4dra::CONTROLLER
}
fn default_p4dra_round_s() -> u32 {
    P4DRA_ROUND_S
}
fn default_pin_directory() -> PathBuf {
    PathBuf::from("/sys/fs/bpf/linewarden")
}
fn default_lease_s() -> u32 {
    300
}
fn default_ring() -> u32 {
    15
}
fn default_low_rows() -> u32 {
    2
}
fn default_mark_block() -> u32 {
    4
}
fn default_link_lease_s() -> u32 {
    86_400
}
fn default_nak_per_s() -> u32 {
    1000
}
fn default_alarm_per_s() -> u32 {
    10
}
fn default_miss_per_s() -> u32 {
    10_000
}
fn default_feed_poll_ms() -> u64 {
    50
}
fn default_period_s() -> u32 {
    ATTEST_PERIOD_S_MAX
}
fn default_trust_every_s() -> u32 {
    60
}
fn default_trust_answer_s() -> u32 {
    10
}
fn default_audit_per_s() -> u32 {
    100
}
fn default_audit_bytes_max() -> u64 {
    1 << 30
}

/// A MAC address as six pairs of hexadecimal digits.
fn mac<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mac, D::Error> {
    let text = String::deserialize(deserializer)?;
    let mut pairs = text.split(':');
    let mut address = [0; 6];
    let read = address.iter_mut().all(|byte| {
        let pair = pairs.next().unwrap_or_default();
        hex::decode_to_slice(pair, std::slice::from_mut(byte)).is_ok()
    });
    match read && pairs.next().is_none() {
        true => Ok(address),
        false => Err(serde::de::Error::custom("invalid MAC address syntax")),
    }
}

/// Names of control protocols.
fn control_protocols<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ControlProtocol>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    let protocol = |name: String| {
        ControlProtocol::from_name(&name).ok_or_else(|| {
            let known: Vec<&str> = ControlProtocol::ALL
                .iter()
                .map(|protocol| protocol.name())
                .collect();
            serde::de::Error::custom(format!(
                "{name}: no control protocol; known are {}",
                known.join(", ")
            ))
        })
    };
    names.into_iter().map(protocol).collect()
}

/// The mark is moved ahead when no more rows than this may be spent.
pub(crate) const LOW_CREDIT: u32 = 2;

/// A field that cannot be used; whoever read the file knows its line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", path.join("."))]
pub struct FieldError {
    /// Tables and key, outermost first.
    pub path: Vec<&'static str>,
    /// What is wrong and what would do.
    pub problem: String,
    /// Others may have read or written a secret.
    pub is_unsafe: bool,
}

impl FieldError {
    pub(crate) fn new(path: &[&'static str], problem: impl ToString) -> Self {
        Self {
            path: path.to_vec(),
            problem: problem.to_string(),
            is_unsafe: false,
        }
    }
}

impl GatewayConfig {
    /// Makes the paths absolute, seen from the configuration file's directory.
    pub fn resolve_paths(&mut self, directory: &Path) {
        let evidence = self.evidence.as_mut().map(EvidenceSection::paths);
        let trust = self.trust.as_mut().map(TrustSection::paths);
        let p4 = self.p4.as_mut().map(P4Section::paths);
        let paths = [
            Some(&mut self.gateway.pin_directory),
            self.classic.as_mut().map(|classic| &mut classic.crps_file),
            self.p4dra_classic
                .as_mut()
                .map(|section| &mut section.provers_file),
            self.audit.as_mut().map(|audit| &mut audit.path),
            self.attest
                .as_mut()
                .and_then(|attest| attest.signing_key.as_mut()),
        ];
        let registry = self.registry.as_mut().map(|section| {
            let RegistrySection {
                path,
                master_key_file,
                ..
            } = section;
            [path.file_mut(), master_key_file.as_mut()]
        });
        let controller = self.controller.as_mut();
        let controller = controller.map(|section| [&mut section.ca, &mut section.cert, &mut section.key]);
        // An empty one stays empty, and is a mistake.
        let named = paths
            .into_iter()
            .chain(registry.into_iter().flatten())
            .chain(controller.into_iter().flatten().map(Some))
            .chain(evidence.into_iter().flatten())
            .chain(trust.into_iter().flatten())
            .chain(p4.into_iter().flatten())
            .flatten()
            .filter(|path| !path.as_os_str().is_empty());
        named.for_each(|path| *path = directory.join(&*path));
    }
}

impl EvidenceSection {
    fn paths(&mut self) -> [Option<&mut PathBuf>; 4] {
        [
            Some(&mut self.key),
            Some(&mut self.boot_count),
            self.socket.as_mut(),
            self.packet_key_file.as_mut(),
        ]
    }

    /// What packets carry, if they are to carry anything.
    #[must_use]
    pub fn form(&self) -> Option<Form> {
        let content = self.packet_content.unwrap_or_default();
        self.in_packets.map(|_| match content {
            PacketContent::Default => Form::Default,
            PacketContent::Classic => Form::Classic,
        })
    }
}

impl TrustSection {
    /// What is to be made absolute.
    pub fn paths(&mut self) -> [Option<&mut PathBuf>; 3] {
        [
            Some(&mut self.reference),
            self.reference_key.as_mut(),
            Some(&mut self.key),
        ]
    }
}

impl GatewaySection {
    /// Where the program is kept beyond the end of the process, if it is.
    #[must_use]
    pub fn pins(&self) -> Option<&Path> {
        let is_kept = self.dataplane != Backend::P4 && self.gate != Gate::Off;
        (is_kept && self.when_gone == WhenGone::Closed).then_some(&self.pin_directory)
    }

    /// Devices that fit: as many as `lap` has registers for, or 100,000.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots.unwrap_or(match self.dataplane {
            Backend::P4 => p4runtime::DEVICES,
            Backend::Xdp | Backend::Host => 100_000,
        })
    }
}

impl AttestSection {
    /// Provers that fit: as many as `lap` has registers for, or 100,000.
    fn provers(&self, dataplane: Backend) -> u32 {
        self.provers.unwrap_or(match dataplane {
            Backend::P4 => p4runtime::PROVERS,
            Backend::Xdp | Backend::Host => 100_000,
        })
    }
}

/// What a configuration becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// How the controller gives rows out to this gateway.
    pub policy: Policy,
    /// For the data plane.
    pub config: dataplane::Config,
    /// For the node.
    pub settings: Settings,
    /// Interfaces without a subnet, while `device_prefixes` is not set. The gateway can start: it admits no device behind them until
    /// they have one. A configuration of a machine that is complete has none.
    pub without_subnet: Vec<FieldError>,
    /// A warning, if device prefixes are the subnets of bridges, bonds, VLANs or macvlans because `device_prefixes` is not set: services
    /// can be in these.
    pub upper_subnets: Option<FieldError>,
    /// Interface numbers, in the order of the names.
    pub interfaces: Vec<u32>,
    /// Numbers of the interfaces that are forwarded to.
    pub forward_to: Vec<u32>,
    /// Where devices' tickets are taken, if anywhere.
    pub desk_port: Option<u16>,
    /// The switch, of `dataplane = "p4"`.
    pub p4: Option<P4Options>,
}

#[cfg(test)]
mod tests {
    use linewarden_protocol::ids::GatewayId;

    use super::*;

    fn parse(text: &str) -> GatewayConfig {
        toml::from_str(text).unwrap()
    }

    fn refused(text: &str) -> (String, String) {
        let mut errors = parse(text).resolve([1, 2], 3).unwrap_err();
        let error = errors.remove(0);
        (error.path.join("."), error.problem)
    }

    const REGISTRY: &str = "[registry]\npath = \"r\"\nmaster_key_file = \"k\"\n";

    #[test]
    fn the_smallest_configuration_has_the_documented_defaults() {
        let config = parse(&format!(
            "[gateway]\nid = 7\ndataplane = \"host\"\naddresses = [\"127.0.0.1\"]\n{REGISTRY}"
        ));
        let resolved = config.resolve([1, 2], 3).unwrap();
        assert_eq!(resolved.config.gateway_id, GatewayId(7));
        assert_eq!(resolved.config.lap_port, 20_550);
        assert_eq!(resolved.config.lease_s, 300);
        assert_eq!(resolved.config.gate, dataplane::Gate::Off);
        assert_eq!(resolved.settings.mark_block, 4);
        assert_eq!(resolved.interfaces, Vec::<u32>::new());
    }

    #[test]
    fn addresses_come_from_the_interfaces() {
        let config = parse(&format!("[gateway]\nid = 7\ninterfaces = [\"lo\"]\n{REGISTRY}"));
        let resolved = config.resolve([1, 2], 3).unwrap();
        assert!(resolved.config.local.contains(&"127.0.0.1".parse().unwrap()));
        assert_eq!(resolved.interfaces, [1]);
    }

    #[test]
    fn only_a_sealed_gate_forwards_and_never_towards_devices() {
        let with = |gate: &str| {
            let text =
                format!("[gateway]\nid = 1\ninterfaces = [\"lo\"]\nforward_to = [\"lo\"]\n{gate}{REGISTRY}");
            refused(&text)
        };
        for (gate, problem) in [("", "only a sealed"), ("gate = \"sealed\"\n", "devices' side")] {
            let (path, said) = with(gate);
            assert_eq!(path, "gateway.forward_to");
            assert!(said.contains(problem), "{said}");
        }
    }

    #[test]
    fn what_passes_without_a_session_is_named_and_needs_a_gate() {
        let with = |lists: &str, gate: &str| {
            format!("[gateway]\nid = 1\ninterfaces = [\"lo\"]\n{gate}{lists}{REGISTRY}")
        };
        let open = "gate = \"open\"\n";
        let lists = "always_pass = [\"lldp\", \"ptp\"]\ndhcp_servers = [\"10.0.0.1\", \"ff05::1:3\"]\n";
        let resolved = parse(&with(lists, open)).resolve([0; 2], 0).unwrap();
        assert_eq!(
            resolved.config.always_pass,
            [ControlProtocol::Lldp, ControlProtocol::Ptp]
        );
        assert_eq!(resolved.config.dhcp_servers.len(), 2);
        for (lists, gate, field, problem) in [
            (
                "always_pass = [\"ptp\"]\n",
                "",
                "gateway.always_pass",
                "without a gate",
            ),
            (
                "dhcp_servers = [\"10.0.0.1\"]\n",
                "",
                "gateway.dhcp_servers",
                "without a gate",
            ),
            (
                "always_pass = [\"ptp\", \"ptp\"]\n",
                open,
                "gateway.always_pass",
                "named twice",
            ),
            (
                "dhcp_servers = [\"255.255.255.255\"]\n",
                open,
                "gateway.dhcp_servers",
                "one server",
            ),
            (
                "dhcp_servers = [\"ff02::1:2\"]\n",
                open,
                "gateway.dhcp_servers",
                "one server",
            ),
            (
                "dhcp_servers = [\"10.0.0.1\", \"10.0.0.2\", \"10.0.0.3\", \"10.0.0.4\", \"10.0.0.5\"]\n",
                open,
                "gateway.dhcp_servers",
                "at most 4",
            ),
        ] {
            let (path, said) = refused(&with(lists, gate));
            assert_eq!(path, field, "{lists}");
            assert!(said.contains(problem), "{said}");
        }
        let unknown = with("always_pass = [\"goose\"]\n", open);
        let error = toml::from_str::<GatewayConfig>(&unknown).unwrap_err().to_string();
        assert!(
            error.contains("goose") && error.contains("profinet-dcp"),
            "{error}"
        );
    }

    #[test]
    fn each_mistake_names_its_field() {
        let host = "id = 1\ndataplane = \"host\"\naddresses = [\"127.0.0.1\"]\n";
        let cases: [(String, &str, &str); 9] = [
            (format!("id = 1\n{REGISTRY}"), "gateway", "interfaces is missing"),
            (
                format!("id = 1\ninterfaces = [\"lw-none0\"]\n{REGISTRY}"),
                "gateway.interfaces",
                "no interface lw-none0",
            ),
            (
                format!("id = 1\ndataplane = \"host\"\n{REGISTRY}"),
                "gateway",
                "addresses is missing",
            ),
            (
                format!("{host}gate = \"open\"\n{REGISTRY}"),
                "gateway.gate",
                "no gate",
            ),
            (
                format!("{host}lease_s = 0\n{REGISTRY}"),
                "gateway.lease_s",
                "at least a second",
            ),
            (format!("{host}port = 0\n{REGISTRY}"), "gateway.port", "20550"),
            (
                format!("{host}mark_block = 2\n{REGISTRY}"),
                "gateway.mark_block",
                "3 to 14",
            ),
            (
                format!("{host}low_rows = 15\n{REGISTRY}"),
                "gateway.low_rows",
                "less than `ring`",
            ),
            (
                format!("{host}[registry]\npath = \"r\"\n"),
                "registry",
                "master_key_file is missing",
            ),
        ];
        for (text, path, problem) in cases {
            let (found, said) = refused(&format!("[gateway]\n{text}"));
            assert_eq!(found, path, "{text}");
            assert!(said.contains(problem), "{said}");
        }
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        let text = format!(
            "[gateway]\nid = 1\ndataplane = \"host\"\naddresses = []\ngate = \"open\"\nlease_s = 0\nmark_block = 15\n\
             low_rows = 20\nfeed_poll_ms = 0\nlink_lease_s = 0\nforward_to = [\"a\", \"a\"]\n{REGISTRY}\
             [audit]\npath = \"a\"\nper_s = 0\nbytes_max = 1\n"
        );
        let errors = parse(&text).check().unwrap_err();
        let mut fields: Vec<String> = errors.iter().map(|error| error.path.join(".")).collect();
        fields.sort();
        assert_eq!(
            fields,
            [
                "audit.bytes_max",
                "audit.per_s",
                "gateway.addresses",
                "gateway.feed_poll_ms",
                "gateway.forward_to",
                "gateway.forward_to",
                "gateway.gate",
                "gateway.lease_s",
                "gateway.link_lease_s",
                "gateway.low_rows",
                "gateway.mark_block",
            ]
        );
    }

    #[test]
    fn unknown_fields_are_errors() {
        for text in [
            "[gateway]\nid = 1\nlease = 5\n",
            "[gateway]\nid = 1\n[gate]\nx = 1\n",
        ] {
            assert!(
                toml::from_str::<GatewayConfig>(&format!("{text}{REGISTRY}")).is_err(),
                "{text}"
            );
        }
    }
}
