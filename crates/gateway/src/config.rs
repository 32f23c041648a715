//! The configuration of a gateway as people write it (TOML), and what it becomes.
//!
//! Reading the file is the caller's business; this module knows the fields, their defaults and what goes together.
//! Paths are taken relative to the configuration file.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use linewarden_controller::Policy;
use linewarden_dataplane as dataplane;
use linewarden_protocol::ids::GatewayId;
use linewarden_protocol::ticket;
use serde::Deserialize;

use crate::addresses;
use crate::classic;
use crate::node::Settings;

/// A whole configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayConfig {
    /// The gateway itself.
    pub gateway: GatewaySection,
    /// Where its devices come from.
    pub registry: RegistrySection,
    /// One of the papers' profiles; insecure.
    pub classic: Option<ClassicSection>,
    /// Its log.
    #[serde(default)]
    pub log: LogSection,
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
    /// UDP port of LAP/1.
    #[serde(default = "default_port")]
    pub port: u16,
    /// UDP port of the desk, where devices' tickets are taken; LAP's plus 2 if not given, none if 0.
    pub desk_port: Option<u16>,
    /// The gate.
    #[serde(default)]
    pub gate: Gate,
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
    /// Devices that fit.
    #[serde(default = "default_slots")]
    pub slots: u32,
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
    /// Reports of wrong tags a second and CPU.
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
    /// The file.
    pub path: PathBuf,
    /// The master key's file, of mode 0600.
    pub master_key_file: Option<PathBuf>,
    /// Or the environment variable that holds it.
    pub master_key_env: Option<String>,
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
    /// The CRPs, see [`classic::parse_crps`].
    pub crps_file: PathBuf,
}

/// `[log]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSection {
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter by module.
    pub level: Option<String>,
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
fn default_pin_directory() -> PathBuf {
    PathBuf::from("/sys/fs/bpf/linewarden")
}
fn default_lease_s() -> u32 {
    300
}
fn default_slots() -> u32 {
    100_000
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

/// The mark is moved ahead when no more rows than this may be spent.
const LOW_CREDIT: u32 = 2;

/// A field that cannot be used; whoever read the file knows its line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", path.join("."))]
pub struct FieldError {
    /// Tables and key, outermost first.
    pub path: Vec<&'static str>,
    /// What is wrong and what would do.
    pub problem: String,
}

fn field<T>(path: &[&'static str], problem: impl ToString) -> Result<T, FieldError> {
    Err(FieldError {
        path: path.to_vec(),
        problem: problem.to_string(),
    })
}

impl GatewayConfig {
    /// Makes the paths absolute, seen from the configuration file's directory.
    pub fn resolve_paths(&mut self, directory: &Path) {
        self.registry.path = directory.join(&self.registry.path);
        if let Some(file) = &mut self.registry.master_key_file {
            *file = directory.join(&*file);
        }
        let pins = &mut self.gateway.pin_directory;
        *pins = directory.join(&*pins);
        if let Some(classic) = &mut self.classic {
            classic.crps_file = directory.join(&classic.crps_file);
        }
    }

    /// Checks everything that can be checked without the registry, and gives what the data plane and the node need.
    /// Interfaces and their addresses are looked up; `hash_seed` and `classic_seed` are random.
    ///
    /// # Errors
    /// The first field that cannot be used.
    pub fn resolve(&self, hash_seed: [u64; 2], classic_seed: u64) -> Result<Resolved, FieldError> {
        self.check_sources()?;
        let section = &self.gateway;
        let interfaces = section.interface_indices()?;
        let forward_to = section.forward_indices(&interfaces)?;
        let config = dataplane::Config {
            gateway_id: GatewayId(section.id),
            lease_s: section.lease_s,
            lap_port: section.port,
            local: section.local_addresses()?,
            gate: match section.gate {
                Gate::Off => dataplane::Gate::Off,
                Gate::Open => dataplane::Gate::Open,
                Gate::Sealed => dataplane::Gate::Sealed,
            },
            nak_per_s: section.nak_per_s,
            alarm_per_s: section.alarm_per_s,
            miss_per_s: section.miss_per_s,
            low_rows: section.low_rows,
            low_credit: LOW_CREDIT,
            geometry: dataplane::Geometry {
                slots: section.slots,
                ring: section.ring,
                hash_seed,
            },
            classic: self.classic(classic_seed)?,
        };
        config.check().map_err(plane_field)?;
        let settings = Settings {
            mark_block: section.mark_block,
            low_credit: LOW_CREDIT,
            ring: section.ring,
            low_rows: section.low_rows,
            feed_poll_ms: section.feed_poll_ms,
            link_lease_s: section.link_lease_s,
            spare_live_sessions: section.gate != Gate::Off,
        };
        settings.check().map_err(|error| FieldError {
            path: vec!["gateway", error.field],
            problem: error.to_string(),
        })?;
        Ok(Resolved {
            policy: Policy {
                lease_rows: section.ring.saturating_add(1),
                mark_block: section.mark_block,
            },
            config,
            settings,
            interfaces,
            forward_to,
            desk_port: section.desk_port(self.classic.as_ref())?,
        })
    }

    fn check_sources(&self) -> Result<(), FieldError> {
        match (&self.registry.master_key_file, &self.registry.master_key_env) {
            (Some(_), Some(_)) => field(
                &["registry", "master_key_env"],
                "name either a master_key_file or a master_key_env, not both",
            ),
            (None, None) => field(
                &["registry"],
                "master_key_file is missing: the path of the key file, of mode 0600 (or name a master_key_env)",
            ),
            _ => Ok(()),
        }
    }

    fn classic(&self, seed: u64) -> Result<Option<dataplane::Classic>, FieldError> {
        let Some(section) = &self.classic else {
            return Ok(None);
        };
        if ![64, 128, 256].contains(&section.response_bits) {
            let problem = format!("{} is not 64, 128 or 256", section.response_bits);
            return field(&["classic", "response_bits"], problem);
        }
        let response_bytes = section.response_bits / 8;
        let crps = classic::read_crps(&section.crps_file, response_bytes).map_err(|error| FieldError {
            path: vec!["classic", "crps_file"],
            problem: error.to_string(),
        })?;
        Ok(Some(dataplane::Classic {
            profile: match section.profile {
                ClassicProfile::Iot => dataplane::ClassicProfile::Iot,
                ClassicProfile::Uav => dataplane::ClassicProfile::Uav,
            },
            port: section.port,
            response_bytes,
            crps,
            seed,
        }))
    }
}

impl GatewaySection {
    /// Where the program is kept beyond the end of the process, if it is.
    #[must_use]
    pub fn pins(&self) -> Option<&Path> {
        (self.gate != Gate::Off && self.when_gone == WhenGone::Closed).then_some(&self.pin_directory)
    }

    fn desk_port(&self, classic: Option<&ClassicSection>) -> Result<Option<u16>, FieldError> {
        let path = &["gateway", "desk_port"];
        let Some(port) = self.desk_port.or(ticket::desk_port(self.port)) else {
            return field(
                &["gateway"],
                format!(
                    "desk_port is missing: {} plus 2 is no port; name one, or 0 for none",
                    self.port
                ),
            );
        };
        if port == self.port {
            return field(path, format!("{port} is LAP's port; name another, or 0 for none"));
        }
        match classic.filter(|classic| classic.port == port) {
            Some(_) => field(
                path,
                format!("{port} is the classic profile's port; name another, or 0 for none"),
            ),
            None => Ok(Some(port).filter(|port| *port != 0)),
        }
    }

    fn interface_indices(&self) -> Result<Vec<u32>, FieldError> {
        if self.interfaces.is_empty() && self.dataplane == Backend::Xdp {
            return field(
                &["gateway"],
                "interfaces is missing: name the interfaces on the devices' side, such as [\"eth1\"] (only the host \
                 data plane needs none)",
            );
        }
        if self.dataplane == Backend::Host && self.gate != Gate::Off {
            return field(
                &["gateway", "gate"],
                "the host data plane sees only what is sent to it and has no gate; use dataplane = \"xdp\"",
            );
        }
        if self.threads == Some(0) {
            return field(&["gateway", "threads"], "0: at least 1");
        }
        let index =
            |name: &String| addresses::index(name).or_else(|error| field(&["gateway", "interfaces"], error));
        self.interfaces.iter().map(index).collect()
    }

    fn forward_indices(&self, interfaces: &[u32]) -> Result<Vec<u32>, FieldError> {
        let path = &["gateway", "forward_to"];
        if !self.forward_to.is_empty() && self.gate != Gate::Sealed {
            return field(
                path,
                "only a sealed gate forwards; leave it out, or set gate = \"sealed\"",
            );
        }
        let index = |name: &String| match addresses::index(name) {
            Ok(index) if interfaces.contains(&index) => field(
                path,
                format!("{name} is on the devices' side, where frames must be sealed"),
            ),
            Ok(index) => Ok(index),
            Err(error) => field(path, error),
        };
        self.forward_to.iter().map(index).collect()
    }

    fn local_addresses(&self) -> Result<Vec<IpAddr>, FieldError> {
        if let Some(addresses) = &self.addresses {
            return Ok(addresses.clone());
        }
        if self.interfaces.is_empty() {
            return field(
                &["gateway"],
                "addresses is missing: list the addresses that devices send to, or name interfaces that have them",
            );
        }
        let mut all = Vec::new();
        for name in &self.interfaces {
            match addresses::of_interface(name) {
                Ok(addresses) => all.extend(addresses),
                Err(error) => return field(&["gateway", "interfaces"], error),
            }
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }
}

/// Errors of the data plane's configuration by the names of this one.
fn plane_field(error: dataplane::ConfigError) -> FieldError {
    let path = match &error {
        dataplane::ConfigError::Field { field, .. } => match *field {
            "lap_port" => vec!["gateway", "port"],
            "local" | "local (IPv4)" | "local (IPv6)" => vec!["gateway", "addresses"],
            "classic.port" => vec!["classic", "port"],
            "classic.response_bytes" => vec!["classic", "response_bits"],
            "classic.crps" => vec!["classic", "crps_file"],
            other => vec!["gateway", other],
        },
        dataplane::ConfigError::Unsupported { .. } => vec!["gateway", "dataplane"],
    };
    FieldError {
        path,
        problem: error.to_string(),
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
    /// Interface numbers, in the order of the names.
    pub interfaces: Vec<u32>,
    /// Numbers of the interfaces that are forwarded to.
    pub forward_to: Vec<u32>,
    /// Where devices' tickets are taken, if anywhere.
    pub desk_port: Option<u16>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> GatewayConfig {
        toml::from_str(text).unwrap()
    }

    fn refused(text: &str) -> (String, String) {
        let error = parse(text).resolve([1, 2], 3).unwrap_err();
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
