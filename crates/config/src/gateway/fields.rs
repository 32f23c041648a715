//! The fields of the configuration file, and their defaults.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use linewarden_dataplane::p4runtime;
use linewarden_gateway::ATTEST_PERIOD_S_MAX;
use linewarden_protocol::frame::Mac;
use linewarden_protocol::gateway::ControlProtocol;
use linewarden_protocol::sources::Prefix;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// Configuration of `linewarden-gateway`. Relative paths start from this file's directory. Commented-out settings show the
/// default, or an example if there is none. `linewarden-gateway check` reports errors; SIGHUP makes a gateway reload the file.
///
/// A restart is needed for `[controller]`, `[p4]`, `[evidence]`, and of `[gateway]` id, dataplane, interfaces, addresses, port,
/// ticket_port, gate, always_pass, dhcp_servers, gate_on_exit, pin_directory, slots, ring, threads, and of `[attest]` provers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GatewayConfig {
    /// The gateway and its data plane.
    pub gateway: GatewaySection,
    /// The controllers of the gateway.
    pub controller: ControllerSection,
    /// The switch of the data plane "p4", with the program lap (docs/switch-gateway.md), started for example with
    /// `linewarden-switch run --no-p4 --cpu-port 510`.
    pub p4: Option<P4Section>,
    /// Attestation of devices (docs/operations/attestation.md). `linewarden attest` sets groups, reference values and intervals.
    pub attest: Option<AttestSection>,
    /// Signed evidence of the xdp data plane (docs/operations/evidence.md).
    pub evidence: Option<EvidenceSection>,
    /// Gateway audit log: one line of JSON per event (table in docs/operations/audit-log.md); by default none.
    pub audit: Option<AuditSection>,
    /// Log of the program.
    #[serde(default)]
    #[schemars(extend("x-enabled" = true))]
    pub log: LogSection,
}

/// `[gateway]`.
// There are more than 15 fields because each is a setting of one table of the file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GatewaySection {
    /// Gateway ID. Keys are derived for it: never use an ID for two gateways, and never reuse one.
    #[schemars(example = 1)]
    pub id: u32,
    /// Data plane.
    #[serde(default)]
    #[schemars(extend("x-enabled" = true))]
    pub dataplane: Backend,
    /// Interfaces to the devices.
    #[serde(default)]
    #[schemars(extend("x-enabled" = true, "examples" = [["eth1"]]))]
    pub interfaces: Vec<String>,
    /// Addresses at which devices reach the gateway, at most 4 IPv4 and 4 IPv6 addresses; by default those of the interfaces.
    #[schemars(extend("examples" = [["192.0.2.1"]]))]
    pub addresses: Option<Vec<IpAddr>>,
    /// Prefixes of devices' addresses, up to 16: a REQUEST or RESPONSE from another address is dropped. By default the subnets of
    /// the interfaces (without interfaces, of the addresses), and fe80::/10 with IPv6. Set device_prefixes for interfaces without
    /// an address, for routed devices, and with "p4".
    #[serde(default, deserialize_with = "prefixes")]
    #[schemars(with = "Option<Vec<String>>", extend("examples" = [["192.0.2.0/24"]]))]
    pub device_prefixes: Option<Vec<Prefix>>,
    /// UDP port of LAP/1.
    #[serde(default = "default_port")]
    pub port: u16,
    /// UDP port for tickets: renewal of rows and keys, and keys of pairs, end to end with the controller; by default port plus 2, 0
    /// for none.
    #[schemars(example = 20_552)]
    pub ticket_port: Option<u16>,
    /// Traffic that passes the gateway.
    #[serde(default)]
    #[schemars(extend("x-enabled" = true))]
    pub gate: Gate,
    /// Link control protocols that pass a gate without a session, in both directions, by destination address: "stp", "cdp", "lldp",
    /// "ptp", "eapol", "lacp", "mrp", "profinet-dcp". Every device can then send them: see docs/operations/gates.md.
    #[serde(default, deserialize_with = "control_protocols")]
    #[schemars(with = "Vec<String>", extend("items" = control_protocol_schema(), "examples" = [["lldp"]]))]
    pub always_pass: Vec<ControlProtocol>,
    /// DHCP servers that devices can reach without a session, besides broadcast and the link's multicast group: at most 4 IPv4 and
    /// 4 IPv6 addresses (ff05::1:3: all servers of the site). With an IPv4 address, a sealed gate passes replies of these servers
    /// only.
    #[serde(default)]
    #[schemars(extend("examples" = [["192.0.2.3"]]))]
    pub dhcp_servers: Vec<IpAddr>,
    /// Sealed gate: interfaces through which opened datagrams may leave without passing the network stack and its filters.
    #[serde(default)]
    #[schemars(extend("examples" = [["eth0"]]))]
    pub forward_to: Vec<String>,
    /// Gate after the end of the gateway. A switch continues until its gateway receives SIGTERM or SIGINT, or until another gateway
    /// takes control of the switch; devices then authenticate again.
    #[serde(default)]
    pub gate_on_exit: GateOnExit,
    /// Directory in which the gate's program and memory stay pinned, on the BPF filesystem, which systemd mounts at /sys/fs/bpf.
    /// Only root or the gateway's user may own it or write to it (mode 0700).
    #[serde(default = "default_pin_directory")]
    #[schemars(extend("format" = "path"))]
    pub pin_directory: PathBuf,
    /// Session lifetime, seconds; devices renew after about 3/4 of it.
    #[serde(default = "default_session_lifetime_s")]
    pub session_lifetime_s: u32,
    /// Number of slots, one per device, about 650 B each with the default ring; if all are in use, idle devices are evicted. By
    /// default 100000; 65536 on a switch.
    #[schemars(example = 100_000)]
    pub slots: Option<u32>,
    /// Number of rows held for each device: rows after the current row.
    #[serde(default = "default_ring")]
    pub ring: u32,
    /// Number of remaining rows at which more rows are fetched; less than ring.
    #[serde(default = "default_low_rows")]
    pub low_rows: u32,
    /// Number of rows that a device may use before the controller has recorded it; a crash of the gateway loses at most that many,
    /// or up to 14 rows of a device that authenticates several times a minute.
    #[serde(default = "default_mark_block")]
    #[schemars(range(min = 3, max = 14))]
    pub mark_block: u32,
    /// Seconds that the gateway continues without its controller.
    #[serde(default = "default_offline_limit_s")]
    #[schemars(range(min = 1))]
    pub offline_limit_s: u32,
    /// Limit per second and CPU of NAKs.
    #[serde(default = "default_nak_per_s")]
    pub nak_per_s: u32,
    /// Limit per second and CPU of reports of wrong tags and wrong proofs.
    #[serde(default = "default_alarm_per_s")]
    pub alarm_per_s: u32,
    /// Limit per second and CPU of messages of devices without a slot, which go to the slow path. With 0 no further device can
    /// authenticate.
    #[serde(default = "default_miss_per_s")]
    pub miss_per_s: u32,
    /// Interval at which the controller is polled for changes, milliseconds: the delay of a revocation, plus the duration of a
    /// query.
    #[serde(default = "default_feed_poll_ms")]
    #[schemars(range(min = 1, max = 60_000))]
    pub feed_poll_ms: u64,
    /// "host" only: number of threads per address; by default one per CPU.
    #[schemars(range(min = 1), example = 2)]
    pub threads: Option<usize>,
}

/// `[controller]`: either `socket`, or the other fields.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ControllerSection {
    /// Socket of a controller on this machine; needs no certificate. The gateway runs as the controller's user, as a member of
    /// the controller's socket_group, or as root.
    #[schemars(extend("format" = "path", "x-enabled" = true), example = "/run/linewarden-controller/controller.sock")]
    pub socket: Option<PathBuf>,
    /// In place of socket, controllers on other machines, HOST:PORT, tried in this order.
    #[serde(default)]
    #[schemars(extend("examples" = [["ctl-a.example:20560", "ctl-b.example:20560"]]))]
    pub addresses: Vec<String>,
    /// CA of the controllers' certificates, PEM.
    #[schemars(extend("format" = "path"), example = "ca.pem")]
    pub ca: Option<PathBuf>,
    /// Certificate of `linewarden certificate gateway` for this gateway's ID, PEM; reloaded for each connection, as is its key.
    #[schemars(extend("format" = "path"), example = "gateway-1.pem")]
    pub cert: Option<PathBuf>,
    /// Private key of the certificate, PEM, mode 0600.
    #[schemars(extend("format" = "path"), example = "gateway-1.key")]
    pub key: Option<PathBuf>,
    /// Name in the controllers' certificates, by default the host.
    #[schemars(example = "ctl.example")]
    pub server_name: Option<String>,
}

/// `[attest]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttestSection {
    /// Maximum number of provers, about 400 B each. By default 100000; 65536 on a switch. To disable attestation, remove
    /// `[attest]`.
    #[schemars(range(min = 1), example = 100_000)]
    pub provers: Option<u32>,
    /// Length of a period, seconds: devices measure their configuration once per period.
    #[serde(default = "default_period_s")]
    #[schemars(range(min = 1, max = ATTEST_PERIOD_S_MAX))]
    pub period_s: u32,
}

/// `[evidence]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EvidenceSection {
    /// Key of `linewarden-gateway evidence key` that signs statements; mode 0600.
    #[schemars(extend("format" = "path"), example = "gateway.evidence-key")]
    pub key: PathBuf,
    /// TPM of the key, if `evidence key --tpm` created it.
    #[schemars(example = "device:/dev/tpmrm0")]
    pub tpm: Option<String>,
    /// File with the number of starts; keep it as long as the key.
    #[schemars(extend("format" = "path"), example = "gateway.boot-count")]
    pub boot_count: PathBuf,
    /// Unix socket for `linewarden-gateway evidence export`, owned by root; by default none.
    #[schemars(extend("format" = "path"), example = "/run/linewarden-gateway/evidence.sock")]
    pub socket: Option<PathBuf>,
    /// Evidence in packets that pass the gate; by default none. See docs/operations/evidence-in-packets.md for the MTU.
    pub in_packets: Option<PacketCarrier>,
    /// Secret key of the tags, shared with the appraiser: 32 hexadecimal digits, mode 0600; create one with
    /// `openssl rand -hex 16`.
    #[schemars(extend("format" = "path"), example = "packet.key")]
    pub packet_key_file: Option<PathBuf>,
}

/// How packets carry evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PacketCarrier {
    /// IPv6 packets that pass the gate carry evidence, 104 bytes in a hop-by-hop option; needs a gate.
    Option,
    /// a copy of a frame carries the evidence; only P4 switches can do this, and a gateway refuses the value.
    Clone,
}

/// `[p4]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct P4Section {
    /// Address of its P4Runtime server, which also serves evidence.
    #[schemars(extend("format" = "socket-address"), example = "127.0.0.1:9559")]
    pub address: SocketAddr,
    /// TLS, required if the switch is on another machine, because the connection transports keys of devices, and its client controls
    /// the switch: CA of the switch's certificate, PEM.
    #[schemars(extend("format" = "path"), example = "switch-ca.pem")]
    pub ca: Option<PathBuf>,
    /// This gateway's client certificate, PEM, if the switch requires one.
    #[schemars(extend("format" = "path"), example = "gateway.pem")]
    pub cert: Option<PathBuf>,
    /// Private key of the client certificate, PEM, mode 0600.
    #[schemars(extend("format" = "path"), example = "gateway.key")]
    pub key: Option<PathBuf>,
    /// Name in the switch's certificate, by default the address.
    #[schemars(example = "switch.example")]
    pub domain: Option<String>,
    /// Device ID of the switch in P4Runtime.
    #[serde(default)]
    pub device_id: u64,
    /// Election ID: the P4Runtime client with the highest one controls the switch.
    #[serde(default = "default_election_id")]
    pub election_id: u64,
    /// Port of the devices: all MAC addresses that are not listed below.
    #[schemars(example = 0)]
    pub devices_port: u16,
    /// MAC address behind another port. Repeat the table for further addresses.
    #[serde(default)]
    pub bridge: Vec<BridgeSection>,
}

/// `[[p4.bridge]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BridgeSection {
    /// MAC address.
    #[serde(deserialize_with = "mac")]
    #[schemars(with = "String", extend("format" = "mac"), example = "02:00:00:00:00:01")]
    pub mac: Mac,
    /// Port of the switch.
    #[schemars(example = 1)]
    pub port: u16,
    /// Side of the port.
    #[serde(default)]
    pub side: Side,
}

/// The side of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// services, and the rest of the network; frames from there pass unchecked.
    #[default]
    Services,
    /// devices; frames from there are checked.
    Devices,
}

/// `[log]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogSection {
    /// Log level: error, warn, info, debug, trace, or a filter such as "warn,linewarden_gateway=debug".
    #[schemars(example = &"info")]
    pub level: Option<String>,
}

/// `[audit]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditSection {
    /// File to which records are appended.
    #[schemars(extend("format" = "path"), example = "audit.jsonl")]
    pub path: PathBuf,
    /// Limit of records per kind and second; further records are only counted. To disable the audit log, remove `[audit]`.
    #[serde(default = "default_audit_per_s")]
    #[schemars(range(min = 1))]
    pub per_s: u32,
    /// Maximum size of the file, bytes; to rotate it, move it and send SIGHUP.
    #[serde(default = "default_audit_bytes_max")]
    #[schemars(range(min = 4096))]
    pub bytes_max: u64,
}

/// The data plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// an eBPF program on the interfaces; needs root, or CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW and CAP_PERFMON.
    #[default]
    Xdp,
    /// threads on UDP sockets; needs no privilege, and has no gate.
    Host,
    /// a P4 switch, see `[p4]`; set addresses; interfaces, threads, ticket_port, the sealed gate and `[evidence]` are not
    /// available.
    P4,
}

/// The gate mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Gate {
    /// all traffic passes.
    #[default]
    Off,
    /// only traffic of devices with a session that is bound to their MAC address passes, and ARP, neighbor discovery and DHCP.
    Bound,
    /// only datagrams that are sealed with the key of a session pass, in both directions, and ARP, neighbor discovery and DHCP; see
    /// docs/operations/sealed-gate.md for MTU and tunnels.
    Sealed,
}

/// The state of the gate after the gateway has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GateOnExit {
    /// keeps the gate until the next start or `linewarden-gateway remove-gate`: live sessions pass until they expire.
    #[default]
    Keep,
    /// removes the gate, and all traffic passes.
    Remove,
}

fn default_election_id() -> u64 {
    1
}
fn default_port() -> u16 {
    linewarden_protocol::wire::LAP_PORT
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

/// Parses prefixes, such as `192.0.2.0/24`.
fn prefixes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Prefix>>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let prefix = |text: String| {
        let error = |error| serde::de::Error::custom(format_args!("{text:?}: {error}"));
        text.parse::<Prefix>().map_err(error)
    };
    texts.into_iter().map(prefix).collect::<Result<_, _>>().map(Some)
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

/// The schema of the name of a control protocol.
fn control_protocol_schema() -> serde_json::Value {
    let names: Vec<&str> = ControlProtocol::ALL
        .iter()
        .map(|protocol| protocol.name())
        .collect();
    serde_json::json!({ "type": "string", "enum": names })
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
    pub(super) fn provers(&self, dataplane: Backend) -> u32 {
        self.provers.unwrap_or(match dataplane {
            Backend::P4 => p4runtime::PROVERS,
            Backend::Xdp | Backend::Host => 100_000,
        })
    }
}
