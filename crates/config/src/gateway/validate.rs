//! Validates the fields of a configuration, and reports all errors.

use std::net::{IpAddr, Ipv4Addr};

use linewarden_dataplane as dataplane;
use linewarden_gateway::data_plane::DataPlaneOptions;
use linewarden_gateway::{ATTEST_PERIOD_S_MAX, Eviction, Settings, WIPE_AFTER_MS};
use linewarden_protocol::ids::GatewayId;
use linewarden_protocol::sources::Prefix;
use linewarden_protocol::ticket;

use super::controller::ControllerAddress;
use super::fields::{
    Backend, EvidenceSection, Gate, GatewayConfig, GatewaySection, P4Section, PacketCarrier,
};
use crate::problem::FieldError;

/// The mark of a device is moved when it allows spending at most this number of rows.
const LOW_CREDIT: u32 = 2;

/// The validated configuration of a gateway, with the content of TLS files. Interfaces and addresses of the
/// machine are not read yet.
#[derive(Debug)]
pub struct ValidGateway {
    /// The controllers.
    pub(super) controller: ControllerAddress,
    /// The configuration of the data plane, with placeholders for addresses and random seeds.
    pub(super) config: dataplane::Config,
    /// The settings of the node.
    pub(super) settings: Settings,
    /// The kind of the data plane, and its options.
    pub(super) data_plane: DataPlaneOptions,
    /// The port of the ticket relay, if any.
    pub(super) ticket_port: Option<u16>,
}

impl ValidGateway {
    /// Validates the fields.
    ///
    /// # Errors
    /// All fields that cannot be used.
    pub(super) fn new(fields: &GatewayConfig) -> Result<Self, Vec<FieldError>> {
        let section = &fields.gateway;
        let mut errors = Vec::new();
        let controller = fields.controller.validate().map_err(|found| errors.extend(found));
        errors.extend(fields.evidence_contradictions());
        errors.extend(fields.p4_contradictions());
        errors.extend(section.contradictions());
        let mut refuse = |error| errors.push(error);
        let ticket_port = section.ticket_port().map_err(&mut refuse);
        let p4 = fields.p4.as_ref().filter(|_| section.dataplane == Backend::P4);
        let p4 = p4.map(P4Section::options).transpose();
        let p4 = p4.map_err(&mut refuse).ok().flatten();
        let config = fields.data_plane_config();
        let data_plane = match (section.dataplane, p4) {
            (Backend::Xdp, _) => Some(DataPlaneOptions::Xdp {
                pin_directory: section.pin_directory_if_kept().map(ToOwned::to_owned),
            }),
            (Backend::Host, _) => Some(DataPlaneOptions::Host {
                threads: section.threads,
            }),
            (Backend::P4, Some(options)) => Some(DataPlaneOptions::P4(Box::new(options))),
            // `p4_contradictions` or `P4Section::options` has reported the error.
            (Backend::P4, None) => None,
        };
        errors.extend(data_plane_errors(&config, data_plane.as_ref()));
        let settings = fields.settings();
        fields.add_settings_errors(&settings, &mut errors);
        match (controller, data_plane, ticket_port) {
            (Ok(controller), Some(data_plane), Ok(ticket_port)) if errors.is_empty() => Ok(Self {
                controller,
                config,
                settings,
                data_plane,
                ticket_port,
            }),
            _ => Err(errors),
        }
    }
}

impl GatewayConfig {
    /// Returns the configuration of the data plane, with placeholders for addresses and seeds.
    fn data_plane_config(&self) -> dataplane::Config {
        let section = &self.gateway;
        // The validation may run on another machine, which does not have the gateway's addresses.
        let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let loopback = || Prefix::containing(localhost, 8).into_iter().collect();
        dataplane::Config {
            gateway_id: GatewayId(section.id),
            session_lifetime_s: section.session_lifetime_s,
            lap_port: section.port,
            local: section.addresses.clone().unwrap_or_else(|| vec![localhost]),
            device_prefixes: section.device_prefixes.clone().unwrap_or_else(loopback),
            follows_interfaces: false,
            other_addresses: Vec::new(),
            // The value is set from the MTU of the interfaces, once the interfaces are known.
            fragments: false,
            gate: match section.gate {
                Gate::Off => dataplane::Gate::Off,
                Gate::Bound => dataplane::Gate::Bound,
                Gate::Sealed => dataplane::Gate::Sealed,
            },
            always_pass: section.always_pass.clone(),
            dhcp_servers: section.dhcp_servers.clone(),
            nak_per_s: section.nak_per_s,
            alarm_per_s: section.alarm_per_s,
            miss_per_s: section.miss_per_s,
            low_rows: section.low_rows,
            low_credit: LOW_CREDIT,
            geometry: dataplane::Geometry {
                slots: section.slots(),
                ring: section.ring,
                hash_seed: [0; 2],
            },
            provers: self
                .attest
                .as_ref()
                .map_or(0, |attest| attest.provers(section.dataplane)),
            // `evidence_contradictions` has reported evidence without a gate, and evidence in copies of frames.
            inband_evidence: section.gate != Gate::Off
                && self
                    .evidence
                    .as_ref()
                    .is_some_and(|evidence| evidence.in_packets.is_some()),
        }
    }

    fn add_settings_errors(&self, settings: &Settings, errors: &mut Vec<FieldError>) {
        for error in settings.problems() {
            let path = match error.field {
                "attest_period_s" => ["attest", "period_s"],
                field => ["gateway", field],
            };
            // The check of the data plane may have reported a problem of this field already.
            if !errors.iter().any(|other| other.path == path) {
                let problem = format!("must be {}; found {}", error.allowed, error.value);
                errors.push(FieldError::new(&path, problem));
            }
        }
    }

    fn settings(&self) -> Settings {
        let section = &self.gateway;
        let attest = self.attest.as_ref();
        Settings {
            gateway: GatewayId(section.id),
            mark_block: section.mark_block,
            low_credit: LOW_CREDIT,
            ring: section.ring,
            low_rows: section.low_rows,
            feed_poll_ms: section.feed_poll_ms,
            offline_limit_s: section.offline_limit_s,
            wipe_after_ms: WIPE_AFTER_MS,
            eviction: Eviction::default(),
            spare_live_sessions: section.gate != Gate::Off,
            attest_period_s: attest.map_or(ATTEST_PERIOD_S_MAX, |attest| attest.period_s),
        }
    }

    fn evidence_contradictions(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let mut refuse = |path: &[&'static str], problem: String| errors.push(FieldError::new(path, problem));
        let has_evidence = self.evidence.is_some();
        match self.gateway.dataplane {
            Backend::Host if has_evidence => refuse(
                &["evidence"],
                "the host data plane is part of the gateway's own process and cannot be measured from outside; use \
                 `dataplane = \"xdp\"`, or \"p4\" with a switch that measures itself"
                    .to_owned(),
            ),
            Backend::P4 if has_evidence => refuse(
                &["evidence"],
                "the switch measures itself and has its own key: start the switch with --evidence-key, and remove [evidence]"
                    .to_owned(),
            ),
            Backend::Xdp | Backend::Host | Backend::P4 => {}
        }
        if let (Some(evidence), Backend::Xdp) = (&self.evidence, self.gateway.dataplane) {
            in_packets_contradictions(evidence, self.gateway.gate, &mut refuse);
        }
        errors
    }
}

impl GatewaySection {
    fn ticket_port(&self) -> Result<Option<u16>, FieldError> {
        let refuse = |problem: String| Err(FieldError::new(&["gateway", "ticket_port"], problem));
        if self.dataplane == Backend::P4 {
            return Ok(None);
        }
        let Some(port) = self.ticket_port.or(ticket::ticket_port(self.port)) else {
            let problem = format!(
                "ticket_port is missing: the default, {} plus 2, is not a port; set a UDP port, or 0 to relay no tickets",
                self.port
            );
            return Err(FieldError::new(&["gateway"], problem));
        };
        if port == self.port {
            return refuse(format!(
                "{port} is the port of LAP (`port`); set another UDP port, or 0 to relay no tickets"
            ));
        }
        Ok(Some(port).filter(|port| *port != 0))
    }

    /// Returns errors of fields that contradict other fields.
    fn contradictions(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let mut refuse = |path: &[&'static str], problem: String| errors.push(FieldError::new(path, problem));
        let is_host = self.dataplane == Backend::Host;
        if self.interfaces.is_empty() && self.dataplane == Backend::Xdp {
            let problem = "interfaces is missing: set the interfaces on the devices' side, such as [\"eth1\"] (the data \
                           planes host and p4 need none)";
            refuse(&["gateway"], problem.to_owned());
        } else if self.interfaces.is_empty() && self.addresses.is_none() && is_host {
            let problem = "addresses is missing: set the addresses to which devices send, or interfaces with \
                           addresses";
            refuse(&["gateway"], problem.to_owned());
        }
        if is_host && self.gate != Gate::Off {
            let problem = "the host data plane receives only messages for itself and has no gate; use dataplane = \"xdp\" or \"p4\"";
            refuse(&["gateway", "gate"], problem.to_owned());
        }
        if !self.forward_to.is_empty() && self.gate != Gate::Sealed {
            let problem = "only a sealed gate forwards; remove `forward_to`, or set gate = \"sealed\"";
            refuse(&["gateway", "forward_to"], problem.to_owned());
        }
        if self.device_prefixes.as_ref().is_some_and(Vec::is_empty) {
            let problem = "[]: set the subnets of the devices, 1 to 16 prefixes such as \"192.0.2.0/24\"";
            refuse(&["gateway", "device_prefixes"], problem.to_owned());
        }
        let addresses = self.addresses.as_deref().unwrap_or_default();
        let prefixes = self.device_prefixes.as_deref().unwrap_or_default();
        let protocols: Vec<&str> = self.always_pass.iter().map(|protocol| protocol.name()).collect();
        for (path, repeated) in [
            ("always_pass", first_duplicate(&protocols)),
            ("dhcp_servers", first_duplicate(&self.dhcp_servers)),
            ("interfaces", first_duplicate(&self.interfaces)),
            ("forward_to", first_duplicate(&self.forward_to)),
            ("addresses", first_duplicate(addresses)),
            ("device_prefixes", first_duplicate(prefixes)),
        ] {
            if let Some(name) = repeated {
                refuse(
                    &["gateway", path],
                    format!("{name} occurs twice; remove one of the two entries"),
                );
            }
        }
        if let Some(name) = self.forward_to.iter().find(|name| self.interfaces.contains(name)) {
            let problem = format!(
                "{name} is also in `interfaces`, where frames must be sealed; remove {name} from one of the two lists"
            );
            refuse(&["gateway", "forward_to"], problem);
        }
        errors
    }
}

/// Passes contradictions in the settings of evidence in packets to `refuse`.
fn in_packets_contradictions(
    evidence: &EvidenceSection,
    gate: Gate,
    refuse: &mut dyn FnMut(&[&'static str], String),
) {
    let has_key = evidence.packet_key_file.is_some();
    match evidence.in_packets {
        None if has_key => {
            let problem =
                "packets carry no evidence: set in_packets = \"option\", or remove `packet_key_file`";
            refuse(&["evidence", "packet_key_file"], problem.to_owned());
        }
        None => return,
        Some(PacketCarrier::Clone) => {
            let problem = "\"clone\": the xdp data plane cannot send a copy of a frame, because it does not know the route of \
                           a packet yet; use \"option\"";
            refuse(&["evidence", "in_packets"], problem.to_owned());
        }
        Some(PacketCarrier::Option) if gate == Gate::Off => {
            let problem = "without a gate, the gateway handles LAP messages only; set [gateway] gate, or remove `in_packets`";
            refuse(&["evidence", "in_packets"], problem.to_owned());
        }
        Some(PacketCarrier::Option) => {}
    }
    if evidence.in_packets.is_some() && !has_key {
        let problem = "packet_key_file is missing: set the file of the tags' secret key, of mode 0600; `openssl rand -hex 16` \
                       creates a key";
        refuse(&["evidence"], problem.to_owned());
    }
}

/// Returns a name that is listed twice.
fn first_duplicate<T: PartialEq + ToString>(names: &[T]) -> Option<String> {
    let mut names = names.iter().enumerate();
    let all_names = names.clone();
    let is_before =
        |index: usize, name: &T| all_names.clone().take(index).any(|(_, earlier)| earlier == name);
    names
        .find(|(index, name)| is_before(*index, name))
        .map(|(_, name)| name.to_string())
}

/// Returns the errors of a data plane's configuration.
pub(super) fn data_plane_errors(
    config: &dataplane::Config,
    options: Option<&DataPlaneOptions>,
) -> Vec<FieldError> {
    let mut errors = config.problems();
    if let Some(DataPlaneOptions::P4(options)) = options {
        errors.extend(options.check(config).err());
    }
    errors.into_iter().map(data_plane_field).collect()
}

/// Converts an error of the data plane's configuration to a field of this configuration.
pub(super) fn data_plane_field(error: dataplane::ConfigError) -> FieldError {
    let path = match &error {
        dataplane::ConfigError::Field { field, .. } => match *field {
            "lap_port" => vec!["gateway", "port"],
            "local" | "local (IPv4)" | "local (IPv6)" => vec!["gateway", "addresses"],
            "provers" => vec!["attest", "provers"],
            "bridge" => vec!["p4", "bridge"],
            "default_port" => vec!["p4", "devices_port"],
            other => vec!["gateway", other],
        },
        dataplane::ConfigError::Unsupported { .. } => vec!["gateway", "dataplane"],
    };
    let problem = match &error {
        dataplane::ConfigError::Field { value, hint, .. } => format!("{value}: {hint}"),
        dataplane::ConfigError::Unsupported { .. } => error.to_string(),
    };
    FieldError::new(&path, problem)
}
