//! The configuration file of a gateway (TOML), and its resolved form.
//!
//! The caller reads the file. This module defines the fields, their defaults and their consistency.
//! Paths are relative to the configuration file.

mod devices;
mod live;
mod p4;
mod resolve;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use linewarden_dataplane as dataplane;
use linewarden_dataplane::p4runtime::{self, P4Options};
use linewarden_evidence::inband::ContentFormat;
use linewarden_protocol::classic::p4dra;
use linewarden_protocol::frame::Mac;
use linewarden_protocol::gateway::ControlProtocol;
use linewarden_protocol::sources::Prefix;
use serde::{Deserialize, Deserializer};

pub use self::devices::DetectedSources;
pub use self::p4::{BridgeSection, P4Section, Side};
use crate::node::{ATTEST_PERIOD_S_MAX, P4DRA_ROUND_S, Settings};

/// A configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayConfig {
    /// The gateway.
    pub gateway: GatewaySection,
    /// The controllers.
    pub controller: ControllerSection,
    /// A classic profile; insecure.
    pub classic: Option<ClassicSection>,
    /// The published P4DRA protocol; insecure.
    pub p4dra_classic: Option<P4draClassicSection>,
    /// Attestation of devices; disabled if omitted.
    pub attest: Option<AttestSection>,
    /// The switch of `dataplane = "p4"`.
    pub p4: Option<P4Section>,
    /// Signed evidence about the data plane; disabled if omitted.
    pub evidence: Option<EvidenceSection>,
    /// Logging.
    #[serde(default)]
    pub log: LogSection,
    /// The gateway audit log; disabled if omitted.
    pub audit: Option<AuditSection>,
}

/// `[gateway]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewaySection {
    /// Number of this gateway. Keys are derived from this number, so never assign the number to another gateway.
    pub id: u32,
    /// The data plane.
    #[serde(default)]
    pub dataplane: Backend,
    /// Interfaces on the devices' side.
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// Addresses to which devices send; default: the addresses of the interfaces.
    pub addresses: Option<Vec<IpAddr>>,
    /// Prefixes of devices' addresses; default: the subnets of the interfaces.
    #[serde(default, deserialize_with = "devices::prefixes")]
    pub device_prefixes: Option<Vec<Prefix>>,
    /// UDP port of LAP/1.
    #[serde(default = "default_port")]
    pub port: u16,
    /// UDP port for tickets; default: `port` + 2; 0 disables the ticket relay.
    pub ticket_port: Option<u16>,
    /// The gate mode.
    #[serde(default)]
    pub gate: Gate,
    /// Control protocols of links that pass a gate without a session.
    #[serde(default, deserialize_with = "control_protocols")]
    pub always_pass: Vec<ControlProtocol>,
    /// DHCP servers to which devices may send through a gate without a session, besides broadcast and the link-local
    /// group.
    #[serde(default)]
    pub dhcp_servers: Vec<IpAddr>,
    /// Sealed gate: interfaces to which the gate may send the datagrams of DATA messages directly, without the network
    /// stack and its filters.
    #[serde(default)]
    pub forward_to: Vec<String>,
    /// The state of the gate after the gateway has ended.
    #[serde(default)]
    pub gate_on_exit: GateOnExit,
    /// The directory of the BPF filesystem in which the gate and its memory are pinned.
    #[serde(default = "default_pin_directory")]
    pub pin_directory: PathBuf,
    /// Session lifetime, seconds.
    #[serde(default = "default_session_lifetime_s")]
    pub session_lifetime_s: u32,
    /// Maximum number of devices in the data plane; see [`GatewaySection::slots`].
    pub slots: Option<u32>,
    /// Number of rows held for each device after its current row.
    #[serde(default = "default_ring")]
    pub ring: u32,
    /// More rows are requested for a device when at most this number of rows is left.
    #[serde(default = "default_low_rows")]
    pub low_rows: u32,
    /// Rows that a device may spend between two moves of its mark, 3 to 14. A crash of the gateway loses at most this
    /// number of rows of each device, or up to 14 rows of a device that authenticates several times a minute.
    #[serde(default = "default_mark_block")]
    pub mark_block: u32,
    /// Seconds that the gateway continues without its controller.
    #[serde(default = "default_offline_limit_s")]
    pub offline_limit_s: u32,
    /// Maximum number of NAKs a second on each CPU.
    #[serde(default = "default_nak_per_s")]
    pub nak_per_s: u32,
    /// Maximum number of reports of wrong tags and wrong proofs a second on each CPU.
    #[serde(default = "default_alarm_per_s")]
    pub alarm_per_s: u32,
    /// Maximum number of messages a second on each CPU for the slow path: messages of devices that are not in the data
    /// plane.
    #[serde(default = "default_miss_per_s")]
    pub miss_per_s: u32,
    /// Interval at which the gateway requests changes of devices from the controller, ms.
    #[serde(default = "default_feed_poll_ms")]
    pub feed_poll_ms: u64,
    /// `host` only: number of threads for each address; default: the number of CPUs.
    pub threads: Option<usize>,
}

/// `[controller]`: either `socket`, or the other fields.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControllerSection {
    /// The socket of a controller on this machine.
    pub socket: Option<PathBuf>,
    /// `HOST:PORT` of each controller, in the order of use.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// The CA of the controllers' certificates, PEM.
    pub ca: Option<PathBuf>,
    /// This gateway's certificate, which names its `id`, PEM.
    pub cert: Option<PathBuf>,
    /// The certificate's private key, PEM, of mode 0600.
    pub key: Option<PathBuf>,
    /// The name in the controllers' certificates, if it differs from the host.
    pub server_name: Option<String>,
}

/// `[classic]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassicSection {
    /// The profile.
    pub profile: ClassicProfile,
    /// Length of a response in bits: 64, 128 or 256.
    pub response_bits: usize,
    /// UDP port, different from LAP/1's.
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
    /// Destination MAC address of the reports about verified provers.
    #[serde(default = "default_p4dra_controller", deserialize_with = "mac")]
    pub controller: Mac,
    /// The provers, see [`crate::p4dra::parse_provers`]; of mode 0600.
    pub provers_file: PathBuf,
    /// Interval of rounds, seconds.
    #[serde(default = "default_p4dra_round_s")]
    pub round_s: u32,
}

/// `[attest]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttestSection {
    /// Maximum number of provers.
    pub provers: Option<u32>,
    /// Duration of a period, seconds: devices measure themselves once in a period.
    #[serde(default = "default_period_s")]
    pub period_s: u32,
}

/// `[evidence]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvidenceSection {
    /// The key that signs evidence: a private key, or a key that the TPM has encrypted; of mode 0600.
    pub key: PathBuf,
    /// The TCTI of the TPM that has the key; default: the key is in the file.
    pub tpm: Option<String>,
    /// The file that counts the gateway's starts. Keep the file while the key is in use.
    pub boot_count: PathBuf,
    /// The socket at which local processes request evidence; disabled if omitted.
    pub socket: Option<PathBuf>,
    /// How packets that pass the gate carry evidence; disabled if omitted.
    pub in_packets: Option<PacketCarrier>,
    /// Content of the evidence in packets; default: [`PacketContent::Default`].
    pub packet_content: Option<PacketContent>,
    /// The file with the secret key of the tags in packets, which the appraiser needs too: 32 hexadecimal digits; of
    /// mode 0600.
    pub packet_key_file: Option<PathBuf>,
}

/// How packets carry evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PacketCarrier {
    /// IPv6 packets carry the evidence in a hop-by-hop option.
    Option,
    /// A copy of a frame carries the evidence. Only P4 switches can do this; a gateway's configuration with this value
    /// is rejected.
    Clone,
}

/// Content of the evidence in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PacketContent {
    /// The format with a tag that authenticates the evidence.
    #[default]
    Default,
    /// The format of the attesting BMv2, without authentication.
    Classic,
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
    /// The file to which records are appended.
    pub path: PathBuf,
    /// Maximum number of records of each kind a second; further events are counted.
    #[serde(default = "default_audit_per_s")]
    pub per_s: u32,
    /// Maximum length of the file, bytes.
    #[serde(default = "default_audit_bytes_max")]
    pub bytes_max: u64,
}

/// The data plane.
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

/// The gate mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gate {
    /// Passes all frames except LAP/1 messages.
    #[default]
    Off,
    /// Passes only frames of live bound sessions, and frames that always pass.
    Bound,
    /// Passes only datagrams sealed under a live session, in both directions, and frames that always pass.
    Sealed,
}

/// The state of the gate after the gateway has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GateOnExit {
    /// The gate stays: frames of a live session pass until the session expires, then no frame passes.
    #[default]
    Keep,
    /// The gate is removed: all frames pass.
    Remove,
}

/// A classic profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClassicProfile {
    /// One CRP for each authentication.
    Iot,
    /// Two CRPs for each authentication.
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
fn default_session_lifetime_s() -> u32 {
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
fn default_offline_limit_s() -> u32 {
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
fn default_audit_per_s() -> u32 {
    100
}
fn default_audit_bytes_max() -> u64 {
    1 << 30
}

/// Parses a MAC address of six pairs of hexadecimal digits.
fn mac<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mac, D::Error> {
    let text = String::deserialize(deserializer)?;
    let mut pairs = text.split(':');
    let mut address = [0; 6];
    let is_parsed = address.iter_mut().all(|byte| {
        let pair = pairs.next().unwrap_or_default();
        hex::decode_to_slice(pair, std::slice::from_mut(byte)).is_ok()
    });
    match is_parsed && pairs.next().is_none() {
        true => Ok(address),
        false => Err(serde::de::Error::custom("invalid MAC address syntax")),
    }
}

/// Parses names of control protocols.
fn control_protocols<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ControlProtocol>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    let protocol = |name: String| {
        ControlProtocol::from_name(&name).ok_or_else(|| {
            let known: Vec<&str> = ControlProtocol::ALL
                .iter()
                .map(|protocol| protocol.name())
                .collect();
            serde::de::Error::custom(format!(
                "{name} is not a control protocol; use {}",
                known.join(", ")
            ))
        })
    };
    names.into_iter().map(protocol).collect()
}

/// The mark of a device is moved when it allows spending at most this number of rows.
pub(crate) const LOW_CREDIT: u32 = 2;

/// A problem with a field. The code that has read the file adds the number of the line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", path.join("."))]
pub struct FieldError {
    /// Names of the tables and the field, outermost first.
    pub path: Vec<&'static str>,
    /// The problem, and the remedy.
    pub problem: String,
    /// Whether other users may have read or written a secret.
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
    /// Makes the paths absolute, relative to the configuration file's directory.
    pub fn resolve_paths(&mut self, directory: &Path) {
        let evidence = self.evidence.as_mut().map(EvidenceSection::paths);
        let p4 = self.p4.as_mut().map(P4Section::paths);
        let paths = [
            Some(&mut self.gateway.pin_directory),
            self.classic.as_mut().map(|classic| &mut classic.crps_file),
            self.p4dra_classic
                .as_mut()
                .map(|section| &mut section.provers_file),
            self.audit.as_mut().map(|audit| &mut audit.path),
        ];
        let controller = &mut self.controller;
        let controller = [
            controller.socket.as_mut(),
            controller.ca.as_mut(),
            controller.cert.as_mut(),
            controller.key.as_mut(),
        ];
        // An empty path stays empty, and is reported as an error.
        let nonempty = paths
            .into_iter()
            .chain(controller)
            .chain(evidence.into_iter().flatten())
            .chain(p4.into_iter().flatten())
            .flatten()
            .filter(|path| !path.as_os_str().is_empty());
        nonempty.for_each(|path| *path = directory.join(&*path));
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

    /// The content of evidence in packets, if packets carry any.
    #[must_use]
    pub fn content_format(&self) -> Option<ContentFormat> {
        let content = self.packet_content.unwrap_or_default();
        self.in_packets.map(|_| match content {
            PacketContent::Default => ContentFormat::Default,
            PacketContent::Classic => ContentFormat::Classic,
        })
    }
}

impl GatewaySection {
    /// The directory in which the program is pinned, if the gate stays after the end of the process.
    #[must_use]
    pub fn pin_directory_if_kept(&self) -> Option<&Path> {
        let is_kept = self.dataplane != Backend::P4 && self.gate != Gate::Off;
        (is_kept && self.gate_on_exit == GateOnExit::Keep).then_some(&self.pin_directory)
    }

    /// Maximum number of devices in the data plane; default: with a P4 switch as many as the program `lap` has
    /// registers for, otherwise 100,000.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots.unwrap_or(match self.dataplane {
            Backend::P4 => p4runtime::DEVICES,
            Backend::Xdp | Backend::Host => 100_000,
        })
    }
}

impl AttestSection {
    /// Maximum number of provers; default: with a P4 switch as many as the program `lap` has registers for, otherwise
    /// 100,000.
    fn provers(&self, dataplane: Backend) -> u32 {
        self.provers.unwrap_or(match dataplane {
            Backend::P4 => p4runtime::PROVERS,
            Backend::Xdp | Backend::Host => 100_000,
        })
    }
}

/// A resolved configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedConfig {
    /// The configuration of the data plane.
    pub config: dataplane::Config,
    /// The settings of the node.
    pub settings: Settings,
    /// Interfaces without a subnet, while `device_prefixes` is not set. The gateway can start, but admits no device
    /// behind them until they have a subnet. Empty on a completely configured machine.
    pub without_subnet: Vec<FieldError>,
    /// A warning, if device prefixes are the subnets of bridges, bonds, VLANs or macvlans because `device_prefixes`
    /// is not set: these subnets may contain services.
    pub upper_subnets: Option<FieldError>,
    /// Indexes of the interfaces on the devices' side, in the order of `interfaces`.
    pub interfaces: Vec<u32>,
    /// Indexes of the interfaces of `forward_to`.
    pub forward_to: Vec<u32>,
    /// The port of the ticket relay, if any.
    pub ticket_port: Option<u16>,
    /// The switch, of `dataplane = "p4"`.
    pub p4: Option<P4Options>,
}

#[cfg(test)]
mod tests;
