//! The configuration of a data plane, and the settings that can change while it runs.

use std::net::{IpAddr, Ipv6Addr};

use linewarden_protocol::commit;
use linewarden_protocol::gateway::ControlProtocol;
use linewarden_protocol::ids::GatewayId;
use linewarden_protocol::sources::{DeviceSources, EXCLUDED_MAX, OwnAddress, PREFIXES_MAX, Prefix};

use crate::store::Geometry;
use crate::store::provers::ProverGeometry;

/// The gate (LAP/1 1.4.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Authenticates only; other traffic is not filtered.
    Off,
    /// Forwards only traffic of live BOUND sessions, and of the protocols on the always-pass list.
    Bound,
    /// Forwards only sealed datagrams, in both directions, and traffic of the protocols on the always-pass list.
    Sealed,
}

/// A data plane's configuration.
// There are more than 15 fields because each is an independent setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Identifier of this gateway.
    pub gateway_id: GatewayId,
    /// Lifetime of a session, seconds; not 0.
    pub session_lifetime_s: u32,
    /// UDP port of LAP/1.
    pub lap_port: u16,
    /// The gateway's own addresses, at most four of each family.
    pub local: Vec<IpAddr>,
    /// Prefixes from which devices send. A REQUEST or RESPONSE from another address is dropped (LAP/1 1.4.13). At
    /// most [`PREFIXES_MAX`].
    pub device_prefixes: Vec<Prefix>,
    /// Whether the prefixes are the subnets of the machine's interfaces and change with these subnets. Evidence does not
    /// contain such prefixes.
    pub follows_interfaces: bool,
    /// Further addresses of the gateway's machine. No device may use them.
    pub other_addresses: Vec<OwnAddress>,
    /// `xdp` only: a frame may be spread over several buffers (XDP fragments, not IP fragments), as drivers deliver
    /// frames of a large MTU. Not allowed with a sealed gate or with `inband_evidence`, which need the whole packet in
    /// one buffer.
    pub fragments: bool,
    /// The gate.
    pub gate: Gate,
    /// Link control protocols that pass the gate without a session. Each one at most once; protocols must not share
    /// addresses.
    pub always_pass: Vec<ControlProtocol>,
    /// DHCP servers to which clients may send past the gate, in addition to broadcast and the link's multicast group.
    /// At most four per family. If the list has an IPv4 server, a sealed gate drops messages of all other IPv4
    /// servers to devices.
    pub dhcp_servers: Vec<IpAddr>,
    /// Maximum number of NAKs per second on each CPU.
    pub nak_per_s: u32,
    /// Maximum number of events about wrong tags and wrong PROOFs per second on each CPU. With `xdp`, user space
    /// verifies the PROOFs that still wait in the packet path when verdicts are read; events about these PROOFs have a
    /// separate limit of the same size.
    pub alarm_per_s: u32,
    /// Maximum number of messages of unknown devices that take the slow path, per second on each CPU. 0 disables the
    /// slow path.
    pub miss_per_s: u32,
    /// An event is sent when fewer rows than this number follow the current row. Must be below `ring`; 0 disables the
    /// event.
    pub low_rows: u32,
    /// An event is also sent when this many rows, or fewer, can still be spent below the mark. Must be at most 13.
    pub low_credit: u32,
    /// Sizes of the store.
    pub geometry: Geometry,
    /// Maximum number of provers (LAP/1 3.2). 0: PROOFs are not served.
    pub provers: u32,
    /// Whether IPv6 packets carry evidence when they pass the gate towards services. Only for `xdp` with a gate.
    pub inband_evidence: bool,
}

/// Settings that may change while a data plane runs. Fields as in [`Config`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "documented once, in `Config`")]
pub struct LiveSettings {
    /// From `device_prefixes`, `local` and `other_addresses`.
    pub sources: DeviceSources,
    pub session_lifetime_s: u32,
    pub low_rows: u32,
    pub low_credit: u32,
    pub nak_per_s: u32,
    pub alarm_per_s: u32,
    pub miss_per_s: u32,
    /// Interfaces, by index, through which opened datagrams may leave without passing the network stack. Only with a
    /// sealed gate.
    pub forward_to: Vec<u32>,
}

/// What is wrong with a [`Config`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A field has an invalid value.
    #[error("{field} = {value}: {hint}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// The configured value.
        value: String,
        /// The valid values.
        hint: &'static str,
    },
    /// The backend does not support a configured feature.
    #[error("the {backend} data plane does not support {feature}; use the xdp data plane")]
    Unsupported {
        /// Name of the backend.
        backend: &'static str,
        /// The configured feature.
        feature: &'static str,
    },
}

/// Whether the address can be a DHCP server: a host, or the group of all DHCPv6 servers of a site (RFC 8415 7.1).
fn may_be_dhcp_server(ip: IpAddr) -> bool {
    let group = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 1, 3);
    let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    ip == group || !(ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || is_broadcast)
}

/// Maximum number of addresses per family.
pub const LOCAL_ADDRESSES_MAX: usize = 4;

/// Reports why a data plane cannot use these sources. An empty prefix list is valid: no device is admitted, for
/// example before an interface has an address.
#[must_use]
pub fn source_problems(sources: &DeviceSources) -> Vec<ConfigError> {
    let mut problems = Vec::new();
    let mut refuse_if = |is_invalid, value, hint| {
        if is_invalid {
            let field = "device_prefixes";
            problems.push(ConfigError::Field { field, value, hint });
        }
    };
    let prefixes = sources.prefixes().len();
    refuse_if(
        prefixes > PREFIXES_MAX,
        format!("{prefixes} prefixes"),
        "at most 16 prefixes; use wider prefixes",
    );
    for v4 in [true, false] {
        let of_family = sources.excluded().iter().filter(|ip| ip.is_ipv4() == v4);
        let count = of_family.count();
        refuse_if(
            count > EXCLUDED_MAX,
            format!("{count} addresses of this machine are inside the prefixes"),
            "at most 64 addresses per family; use narrower prefixes",
        );
    }
    problems
}

impl Config {
    /// The settings that can change at run time. `forward_to` is empty.
    #[must_use]
    pub fn live_settings(&self) -> LiveSettings {
        LiveSettings {
            sources: self.sources(),
            session_lifetime_s: self.session_lifetime_s,
            low_rows: self.low_rows,
            low_credit: self.low_credit,
            nak_per_s: self.nak_per_s,
            alarm_per_s: self.alarm_per_s,
            miss_per_s: self.miss_per_s,
            forward_to: Vec::new(),
        }
    }

    /// The sources from which messages are accepted.
    #[must_use]
    pub fn sources(&self) -> DeviceSources {
        let sources = DeviceSources::new(&self.device_prefixes, &self.local, &self.other_addresses);
        match self.follows_interfaces {
            true => sources.following_interfaces(),
            false => sources,
        }
    }

    /// Sizes of the provers' memory. At least one slot, because no array may be empty.
    #[must_use]
    pub fn prover_geometry(&self) -> ProverGeometry {
        ProverGeometry {
            slots: self.provers.max(1),
            hash_seed: self.geometry.hash_seed,
        }
    }

    /// Checks all fields.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.problems().into_iter().next().map_or(Ok(()), Err)
    }

    /// All invalid fields.
    #[must_use]
    pub fn problems(&self) -> Vec<ConfigError> {
        let mut problems = Vec::new();
        let mut refuse_if = |is_invalid, field, value: String, hint| {
            if is_invalid {
                problems.push(ConfigError::Field { field, value, hint });
            }
        };
        let Geometry { slots, ring, .. } = self.geometry;
        let of_family = |v4| self.local.iter().filter(|ip| ip.is_ipv4() == v4).count();
        refuse_if(
            self.session_lifetime_s == 0,
            "session_lifetime_s",
            "0".into(),
            "a session must last at least a second",
        );
        refuse_if(
            self.lap_port == 0,
            "lap_port",
            "0".into(),
            "set a UDP port; the LAP/1 port is 20550",
        );
        for (name, count) in [
            ("local (IPv4)", of_family(true)),
            ("local (IPv6)", of_family(false)),
        ] {
            refuse_if(
                count > LOCAL_ADDRESSES_MAX,
                name,
                count.to_string(),
                "at most 4 addresses per family",
            );
        }
        refuse_if(
            self.local.is_empty(),
            "local",
            "[]".into(),
            "set the gateway's own addresses",
        );
        refuse_if(
            self.fragments && (self.gate == Gate::Sealed || self.inband_evidence),
            "fragments",
            "true".into(),
            "a sealed gate and in-band evidence need the whole packet in one buffer",
        );
        let slots_fit = (1..=1 << 28).contains(&slots);
        refuse_if(
            !slots_fit,
            "slots",
            slots.to_string(),
            "from 1 to 268435456 devices",
        );
        // An invalid number of slots is reported separately.
        refuse_if(
            slots_fit && (ring == 0 || self.geometry.row_count().is_none()),
            "ring",
            ring.to_string(),
            "at least 1, and slots × ring below 2^32",
        );
        refuse_if(
            ring > 0 && self.low_rows >= ring,
            "low_rows",
            self.low_rows.to_string(),
            "less than `ring`, otherwise every RESPONSE reports low rows",
        );
        refuse_if(
            self.provers > 1 << 28,
            "provers",
            self.provers.to_string(),
            "at most 268435456",
        );
        refuse_if(
            self.low_credit >= commit::CREDIT_MAX,
            "low_credit",
            self.low_credit.to_string(),
            "less than 14, the maximum credit",
        );
        refuse_if(
            self.inband_evidence && self.gate == Gate::Off,
            "in_packets",
            "some".into(),
            "in-band evidence requires a gate; set one",
        );
        problems.extend(source_problems(&self.sources()));
        problems.extend(self.gate_problems());
        problems
    }

    /// Checks the settings of traffic that passes the gate without a session.
    fn gate_problems(&self) -> Vec<ConfigError> {
        let mut problems = Vec::new();
        let mut refuse = |field, value: String, hint| {
            problems.push(ConfigError::Field { field, value, hint });
        };
        let servers = &self.dhcp_servers;
        for v4 in [true, false] {
            let count = servers.iter().filter(|ip| ip.is_ipv4() == v4).count();
            if count > LOCAL_ADDRESSES_MAX {
                refuse(
                    "dhcp_servers",
                    count.to_string(),
                    "at most 4 addresses per family",
                );
            }
        }
        if let Some(invalid) = servers.iter().find(|ip| !may_be_dhcp_server(**ip)) {
            let hint = "the address of one server, or ff05::1:3 for all of the site";
            refuse("dhcp_servers", invalid.to_string(), hint);
        }
        if self.gate == Gate::Off && !(servers.is_empty() && self.always_pass.is_empty()) {
            let field = match servers.is_empty() {
                true => "always_pass",
                false => "dhcp_servers",
            };
            refuse(
                field,
                "some".into(),
                "all traffic passes without a gate; set a gate or remove this setting",
            );
        }
        problems
    }
}

/// The features that a backend supports. A configuration that needs an unsupported feature is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Sees, and can drop, traffic that is not addressed to the gateway.
    pub gate: bool,
    /// Opens and seals the traffic through the gate.
    pub sealed: bool,
    /// Verifies PROOFs.
    pub attest: bool,
    /// Adds evidence of the gateway to packets that pass the gate.
    pub inband_evidence: bool,
}

impl Capabilities {
    /// The first feature that the configuration needs and the backend does not support.
    #[must_use]
    pub fn first_missing(&self, config: &Config) -> Option<&'static str> {
        let requested = [
            (config.gate != Gate::Off, self.gate, "gate"),
            (config.gate == Gate::Sealed, self.sealed, "sealed gate"),
            (config.provers != 0, self.attest, "PROOFs"),
            (config.inband_evidence, self.inband_evidence, "in-band evidence"),
        ];
        let missing = requested
            .into_iter()
            .find(|(is_requested, is_supported, _)| *is_requested && !is_supported);
        missing.map(|(.., feature)| feature)
    }
}
