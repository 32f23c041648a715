//! Resolves a configuration for the data plane and the node, and reports all errors.

use std::net::{IpAddr, Ipv4Addr};

use linewarden_dataplane as dataplane;
use linewarden_evidence::inband::ContentFormat;
use linewarden_protocol::ids::GatewayId;
use linewarden_protocol::sources::Prefix;
use linewarden_protocol::ticket;

use super::devices::Addresses;
use super::{
    Backend, ClassicProfile, ClassicSection, ControllerSection, EvidenceSection, FieldError, Gate,
    GatewayConfig, GatewaySection, LOW_CREDIT, P4Section, PacketCarrier, ResolvedConfig,
};
use crate::node::{ATTEST_PERIOD_S_MAX, Eviction, P4DRA_ROUND_S, Settings, WIPE_AFTER_MS};
use crate::{addresses, classic, p4dra};

impl ControllerSection {
    fn problems(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let remote = [
            ("ca", self.ca.is_some()),
            ("cert", self.cert.is_some()),
            ("key", self.key.is_some()),
        ];
        if self.socket.is_some() {
            let set = [
                ("addresses", !self.addresses.is_empty()),
                ("server_name", self.server_name.is_some()),
            ];
            let set = remote.into_iter().chain(set).filter(|(_, is_set)| *is_set);
            errors.extend(set.map(|(field, _)| {
                let problem =
                    "remove this setting, or remove socket: a socket needs no address and no certificate";
                FieldError::new(&["controller", field], problem)
            }));
            return errors;
        }
        if self.addresses.is_empty() {
            errors.push(FieldError::new(
                &["controller"],
                "addresses is missing: HOST:PORT of at least one controller (or set socket, for a controller on this machine)",
            ));
            return errors;
        }
        let missing = remote.into_iter().filter(|(_, is_set)| !is_set);
        errors.extend(missing.map(|(field, _)| {
            let problem = format!("{field} is missing: the path of a PEM file");
            FieldError::new(&["controller"], problem)
        }));
        let has_port = |address: &str| {
            address
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        for address in self.addresses.iter().filter(|address| !has_port(address)) {
            let problem = format!("must be HOST:PORT; found {address:?}");
            errors.push(FieldError::new(&["controller", "addresses"], problem));
        }
        errors
    }
}

impl GatewayConfig {
    /// Checks the configuration without reading this machine's interfaces and connecting to a controller.
    ///
    /// # Errors
    /// All fields that cannot be used.
    pub fn check(&self) -> Result<(), Vec<FieldError>> {
        // This check may run on another machine, which does not have the gateway's addresses.
        let localhost = || vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
        let local = self.gateway.addresses.clone().unwrap_or_else(localhost);
        let devices = self.gateway.device_prefixes.clone();
        let devices = devices.unwrap_or_else(|| {
            localhost()
                .into_iter()
                .filter_map(|ip| Prefix::containing(ip, 8))
                .collect()
        });
        self.data_plane_config(
            [0; 2],
            0,
            Addresses {
                local,
                devices,
                follows_interfaces: false,
                others: Vec::new(),
                without_subnet: Vec::new(),
                upper_subnets: None,
            },
        )
        .map(drop)
    }

    /// Checks the configuration like [`GatewayConfig::check`], and returns the data plane's and the node's part.
    /// Looks up interfaces and their addresses; `hash_seed` and `classic_seed` are random.
    ///
    /// # Errors
    /// All fields that cannot be used.
    pub fn resolve(&self, hash_seed: [u64; 2], classic_seed: u64) -> Result<ResolvedConfig, Vec<FieldError>> {
        self.check()?;
        let section = &self.gateway;
        let mut errors = Vec::new();
        let interfaces = section.interface_indices(&mut errors);
        let forward_to = section.forward_indices(&interfaces, &mut errors);
        let mut addresses = match errors.is_empty() {
            true => section.detect_addresses().map_err(|error| vec![error])?,
            false => return Err(errors),
        };
        let without_subnet = std::mem::take(&mut addresses.without_subnet);
        let upper_subnets = addresses.upper_subnets.take();
        let mut config = self.data_plane_config(hash_seed, classic_seed, addresses)?;
        if let Some(p4dra) = &mut config.p4dra {
            p4dra.interfaces.clone_from(&interfaces);
        }
        let p4 = self.p4.as_ref().map(P4Section::options).transpose();
        let p4 = p4.map_err(|error| vec![error])?;
        Ok(ResolvedConfig {
            config,
            settings: self.settings(),
            without_subnet,
            upper_subnets,
            interfaces,
            forward_to,
            ticket_port: section.ticket_port(self.classic.as_ref()).unwrap_or_default(),
            p4,
        })
    }

    /// Returns the data plane's part, if there are no errors.
    fn data_plane_config(
        &self,
        hash_seed: [u64; 2],
        classic_seed: u64,
        addresses: Addresses,
    ) -> Result<dataplane::Config, Vec<FieldError>> {
        let mut errors = self.controller.problems();
        errors.extend(self.evidence_contradictions());
        errors.extend(self.p4_contradictions());
        let section = &self.gateway;
        errors.extend(section.contradictions());
        errors.extend(section.ticket_port(self.classic.as_ref()).err());
        let classic = self.classic(classic_seed).unwrap_or_else(|error| {
            errors.push(error);
            None
        });
        let p4dra = self.p4dra().unwrap_or_else(|error| {
            errors.push(error);
            None
        });
        let config = dataplane::Config {
            gateway_id: GatewayId(section.id),
            session_lifetime_s: section.session_lifetime_s,
            lap_port: section.port,
            local: addresses.local,
            device_prefixes: addresses.devices,
            follows_interfaces: addresses.follows_interfaces,
            other_addresses: addresses.others,
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
                hash_seed,
            },
            provers: self
                .attest
                .as_ref()
                .map_or(0, |attest| attest.provers(section.dataplane)),
            classic,
            p4dra,
            // `evidence_contradictions` has reported evidence without a gate, and evidence in copies of frames.
            inband_evidence: self.evidence.as_ref().and_then(|evidence| match section.gate {
                Gate::Off => None,
                Gate::Bound | Gate::Sealed => evidence.content_format(),
            }),
        };
        errors.extend(config.problems().into_iter().map(data_plane_field));
        if section.dataplane == Backend::P4
            && let Some(p4) = &self.p4
        {
            match p4.options() {
                Ok(options) => errors.extend(options.check(&config).err().map(data_plane_field)),
                Err(error) => errors.push(error),
            }
        }
        for error in self.settings().problems() {
            let path = match error.field {
                "attest_period_s" => ["attest", "period_s"],
                "p4dra_round_s" => ["p4dra_classic", "round_s"],
                field => ["gateway", field],
            };
            // The check of the data plane may have reported a problem of this field already.
            if !errors.iter().any(|other| other.path == path) {
                let problem = format!("must be {}; found {}", error.allowed, error.value);
                errors.push(FieldError::new(&path, problem));
            }
        }
        match errors.is_empty() {
            true => Ok(config),
            false => Err(errors),
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
            p4dra_round_s: self
                .p4dra_classic
                .as_ref()
                .map_or(P4DRA_ROUND_S, |section| section.round_s),
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

    /// Returns the data plane's part of `p4dra-classic`. Its interfaces are added later, because only the gateway's
    /// machine knows them.
    fn p4dra(&self) -> Result<Option<dataplane::P4dra>, FieldError> {
        let Some(section) = &self.p4dra_classic else {
            return Ok(None);
        };
        if self.gateway.dataplane == Backend::Host && self.gateway.interfaces.is_empty() {
            let problem = "interfaces is missing: [p4dra_classic] uses raw frames; set the interfaces of its \
                           provers";
            return Err(FieldError::new(&["gateway"], problem));
        }
        let path = ["p4dra_classic", "provers_file"];
        let provers = p4dra::read_provers(&section.provers_file).map_err(|error| FieldError {
            is_unsafe: error.is_unsafe(),
            ..FieldError::new(&path, error)
        })?;
        Ok(Some(dataplane::P4dra {
            ether_type: section.ether_type,
            controller: section.controller,
            interfaces: Vec::new(),
            provers,
        }))
    }

    fn classic(&self, seed: u64) -> Result<Option<dataplane::Classic>, FieldError> {
        let Some(section) = &self.classic else {
            return Ok(None);
        };
        if ![64, 128, 256].contains(&section.response_bits) {
            let problem = format!("{} is not 64, 128 or 256", section.response_bits);
            return Err(FieldError::new(&["classic", "response_bits"], problem));
        }
        let response_bytes = section.response_bits / 8;
        let crps = classic::read_crps(&section.crps_file, response_bytes)
            .map_err(|error| FieldError::new(&["classic", "crps_file"], error))?;
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
    fn ticket_port(&self, classic: Option<&ClassicSection>) -> Result<Option<u16>, FieldError> {
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
        match classic.filter(|classic| classic.port == port) {
            Some(_) => refuse(format!(
                "{port} is the port of [classic]; set another UDP port, or 0 to relay no tickets"
            )),
            None => Ok(Some(port).filter(|port| *port != 0)),
        }
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

    fn interface_indices(&self, errors: &mut Vec<FieldError>) -> Vec<u32> {
        indices("interfaces", &self.interfaces, errors)
    }

    fn forward_indices(&self, device_side: &[u32], errors: &mut Vec<FieldError>) -> Vec<u32> {
        let forward_to = indices("forward_to", &self.forward_to, errors);
        // An interface can have alternative names.
        if forward_to.iter().any(|index| device_side.contains(index)) {
            let problem = "names an interface that is also in `interfaces`, where frames must be sealed; remove the interface from one of the two lists";
            errors.push(FieldError::new(&["gateway", "forward_to"], problem));
        }
        forward_to
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
        None if evidence.packet_content.is_some() => {
            let problem =
                "packets carry no evidence: set in_packets = \"option\", or remove `packet_content`";
            refuse(&["evidence", "packet_content"], problem.to_owned());
        }
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
    if evidence.content_format() == Some(ContentFormat::Default) && !has_key {
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

/// Returns the indexes of these interfaces, in their order. An interface that does not exist is added to `errors`.
fn indices(field: &'static str, names: &[String], errors: &mut Vec<FieldError>) -> Vec<u32> {
    let mut indexes = Vec::new();
    for name in names {
        match addresses::index(name) {
            Ok(index) => indexes.push(index),
            Err(error) => errors.push(FieldError::new(&["gateway", field], error)),
        }
    }
    indexes
}

/// Converts an error of the data plane's configuration to a field of this configuration.
pub(super) fn data_plane_field(error: dataplane::ConfigError) -> FieldError {
    let path = match &error {
        dataplane::ConfigError::Field { field, .. } => match *field {
            "lap_port" => vec!["gateway", "port"],
            "local" | "local (IPv4)" | "local (IPv6)" => vec!["gateway", "addresses"],
            "classic.port" => vec!["classic", "port"],
            "classic.response_bytes" => vec!["classic", "response_bits"],
            "classic.crps" => vec!["classic", "crps_file"],
            "provers" => vec!["attest", "provers"],
            "p4dra.ether_type" => vec!["p4dra_classic", "ether_type"],
            "p4dra.controller" => vec!["p4dra_classic", "controller"],
            "p4dra.provers" => vec!["p4dra_classic", "provers_file"],
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
