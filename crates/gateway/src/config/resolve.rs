//! From what people wrote to what the data plane and the node need, with every mistake on the way.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use linewarden_controller::Policy;
use linewarden_dataplane as dataplane;
use linewarden_evidence::inband::Form;
use linewarden_protocol::ids::GatewayId;
use linewarden_protocol::sources::Prefix;
use linewarden_protocol::ticket;

use super::devices::Addresses;
use super::{
    Backend, Carrier, ClassicProfile, ClassicSection, ControllerSection, EvidenceSection, FieldError, Gate,
    GatewayConfig, GatewaySection, LOW_CREDIT, P4Section, Resolved, TrustSection,
};
use crate::node::{ATTEST_PERIOD_S_MAX, Eviction, P4DRA_ROUND_S, Settings, WIPE_AFTER_MS};
use crate::{addresses, classic, p4dra};

/// Shorter audit files could not hold what a day brings.
const AUDIT_BYTES_MIN: u64 = 4096;
/// Seldomer, nobody could speak of trust.
const TRUST_EVERY_S_MAX: u32 = 86_400;
/// So long a gateway that says nothing keeps its rows at most.
const TRUST_ANSWER_S_MAX: u32 = 600;

/// What is said of a path that is empty.
const NO_PATH: &str = "\"\": name a path";

fn is_empty(path: Option<&PathBuf>) -> bool {
    path.is_some_and(|path| path.as_os_str().is_empty())
}

impl TrustSection {
    /// What is wrong with its fields, whoever has it: a gateway beside its own registry, or a controller of gateways elsewhere.
    #[must_use]
    pub fn mistakes(&self) -> Vec<(&'static str, String)> {
        let paths = [
            ("reference", Some(&self.reference)),
            ("reference_key", self.reference_key.as_ref()),
            ("key", Some(&self.key)),
        ];
        let empty = paths.into_iter().filter(|(_, path)| is_empty(*path));
        let mut wrong: Vec<_> = empty.map(|(field, _)| (field, NO_PATH.to_owned())).collect();
        for (field, value, most) in [
            ("every_s", self.every_s, TRUST_EVERY_S_MAX),
            ("answer_s", self.answer_s, TRUST_ANSWER_S_MAX),
        ] {
            if !(1..=most).contains(&value) {
                wrong.push((field, format!("{value}: allowed is 1 to {most}")));
            }
        }
        wrong
    }
}

impl ControllerSection {
    fn problems(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if self.addresses.is_empty() {
            errors.push(FieldError::new(
                &["controller", "addresses"],
                "[]: name a controller, HOST:PORT",
            ));
        }
        let has_port = |address: &str| {
            address
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        for address in self.addresses.iter().filter(|address| !has_port(address)) {
            let problem = format!("{address:?}: expected is HOST:PORT");
            errors.push(FieldError::new(&["controller", "addresses"], problem));
        }
        errors
    }
}

impl GatewayConfig {
    /// Checks everything that can be checked without this machine's interfaces and the registry.
    ///
    /// # Errors
    /// All fields that cannot be used.
    pub fn check(&self) -> Result<(), Vec<FieldError>> {
        // Where devices send to may be known to the machine only.
        let somewhere = || vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
        let local = self.gateway.addresses.clone().unwrap_or_else(somewhere);
        let devices = self.gateway.device_prefixes.clone();
        let devices = devices.unwrap_or_else(|| {
            somewhere()
                .into_iter()
                .filter_map(|ip| Prefix::around(ip, 8))
                .collect()
        });
        self.plane(
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

    /// [`GatewayConfig::check`], then gives what the data plane and the node need. Interfaces and their addresses are
    /// looked up; `hash_seed` and `classic_seed` are random.
    ///
    /// # Errors
    /// All fields that cannot be used.
    pub fn resolve(&self, hash_seed: [u64; 2], classic_seed: u64) -> Result<Resolved, Vec<FieldError>> {
        self.check()?;
        let section = &self.gateway;
        let mut errors = Vec::new();
        let interfaces = section.interface_indices(&mut errors);
        let forward_to = section.forward_indices(&interfaces, &mut errors);
        let mut addresses = match errors.is_empty() {
            true => section.find_addresses().map_err(|error| vec![error])?,
            false => return Err(errors),
        };
        let without_subnet = std::mem::take(&mut addresses.without_subnet);
        let upper_subnets = addresses.upper_subnets.take();
        let mut config = self.plane(hash_seed, classic_seed, addresses)?;
        if let Some(p4dra) = &mut config.p4dra {
            p4dra.interfaces.clone_from(&interfaces);
        }
        let p4 = self.p4.as_ref().map(P4Section::options).transpose();
        let p4 = p4.map_err(|error| vec![error])?;
        Ok(Resolved {
            policy: Policy {
                lease_rows: section.ring.saturating_add(1),
                mark_block: section.mark_block,
            },
            config,
            settings: self.settings(),
            without_subnet,
            upper_subnets,
            interfaces,
            forward_to,
            desk_port: section.desk_port(self.classic.as_ref()).unwrap_or_default(),
            p4,
        })
    }

    /// The data plane's part, when everything is in order.
    fn plane(
        &self,
        hash_seed: [u64; 2],
        classic_seed: u64,
        addresses: Addresses,
    ) -> Result<dataplane::Config, Vec<FieldError>> {
        let mut errors = self.sources();
        errors.extend(self.empty_paths());
        errors.extend(self.evidence_contradictions());
        errors.extend(self.p4_contradictions());
        let section = &self.gateway;
        errors.extend(section.contradictions());
        errors.extend(section.desk_port(self.classic.as_ref()).err());
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
            lease_s: section.lease_s,
            lap_port: section.port,
            local: addresses.local,
            device_prefixes: addresses.devices,
            follows_interfaces: addresses.follows_interfaces,
            other_addresses: addresses.others,
            // As their MTU asks, once the interfaces are known.
            fragments: false,
            gate: match section.gate {
                Gate::Off => dataplane::Gate::Off,
                Gate::Open => dataplane::Gate::Open,
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
            // What goes without a gate, or in a frame of its own, is told of below.
            in_packets: self.evidence.as_ref().and_then(|evidence| match section.gate {
                Gate::Off => None,
                Gate::Open | Gate::Sealed => evidence.form(),
            }),
        };
        errors.extend(config.problems().into_iter().map(plane_field));
        if section.dataplane == Backend::P4
            && let Some(p4) = &self.p4
        {
            match p4.options() {
                Ok(options) => errors.extend(options.check(&config).err().map(plane_field)),
                Err(error) => errors.push(error),
            }
        }
        for error in self.settings().problems() {
            let path = match error.field {
                "attest_period_s" => ["attest", "period_s"],
                "p4dra_round_s" => ["p4dra_classic", "round_s"],
                field => ["gateway", field],
            };
            // The data plane has said the same in its words.
            if !errors.iter().any(|other| other.path == path) {
                let problem = format!("{}: allowed is {}", error.value, error.allowed);
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
            link_lease_s: section.link_lease_s,
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

    fn sources(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        match (&self.registry, &self.controller) {
            (Some(_), Some(_)) => errors.push(FieldError::new(
                &["controller"],
                "name either a [registry], which this gateway's process then works on, or a [controller] elsewhere, not both",
            )),
            (None, None) => errors.push(FieldError::new(
                &["registry"],
                "is missing: where the devices come from; or a [controller] that knows them",
            )),
            _ => {}
        }
        if let Some(controller) = &self.controller {
            errors.extend(controller.problems());
            let theirs = [
                (self.trust.is_some(), &["trust"][..]),
                (
                    self.attest
                        .as_ref()
                        .is_some_and(|attest| attest.signing_key.is_some()),
                    &["attest", "signing_key"][..],
                ),
            ];
            let named = theirs.into_iter().filter(|(is_named, _)| *is_named);
            errors.extend(named.map(|(_, field)| {
                FieldError::new(
                    field,
                    "this is the controller's to decide; leave it out beside [controller]",
                )
            }));
        }
        let keys = self
            .registry
            .as_ref()
            .map(|registry| (&registry.master_key_file, &registry.master_key_env));
        match keys {
            None => {}
            Some((Some(_), Some(_))) => errors.push(FieldError::new(
                &["registry", "master_key_env"],
                "name either a master_key_file or a master_key_env, not both",
            )),
            Some((None, None)) => errors.push(FieldError::new(
                &["registry"],
                "master_key_file is missing: the path of the key file, of mode 0600 (or name a master_key_env)",
            )),
            _ => {}
        }
        if self
            .attest
            .as_ref()
            .is_some_and(|attest| attest.provers == Some(0))
        {
            let problem = "0: at least 1; leave [attest] out to attest nobody";
            errors.push(FieldError::new(&["attest", "provers"], problem));
        }
        if let Some(audit) = &self.audit {
            if audit.per_s == 0 {
                let problem = "0: at least 1; leave [audit] out to keep no record";
                errors.push(FieldError::new(&["audit", "per_s"], problem));
            }
            if audit.bytes_max < AUDIT_BYTES_MIN {
                let problem = format!("{}: at least {AUDIT_BYTES_MIN}", audit.bytes_max);
                errors.push(FieldError::new(&["audit", "bytes_max"], problem));
            }
        }
        errors
    }

    fn evidence_contradictions(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let mut refuse = |path: &[&'static str], problem: String| errors.push(FieldError::new(path, problem));
        let has_evidence = self.evidence.is_some();
        match self.gateway.dataplane {
            Backend::Host if has_evidence => refuse(
                &["evidence"],
                "the host data plane is a part of the gateway's own process, whose word for itself is worth nothing; use \
                 `dataplane = \"xdp\"`, or \"p4\" with a switch that measures itself"
                    .to_owned(),
            ),
            Backend::P4 if has_evidence => refuse(
                &["evidence"],
                "the switch measures itself and has a key of its own: start it with --evidence-key; leave [evidence] out"
                    .to_owned(),
            ),
            Backend::Xdp | Backend::Host | Backend::P4 => {}
        }
        if let (Some(evidence), Backend::Xdp) = (&self.evidence, self.gateway.dataplane) {
            in_packets_contradictions(evidence, self.gateway.gate, &mut refuse);
        }
        let Some(trust) = &self.trust else {
            return errors;
        };
        if self.evidence.is_none() && self.gateway.dataplane != Backend::P4 {
            let problem = "it needs [evidence], by which the data plane shows what it runs";
            refuse(&["trust"], problem.to_owned());
        }
        for (field, problem) in trust.mistakes() {
            refuse(&["trust", field], problem);
        }
        errors
    }

    fn empty_paths(&self) -> Vec<FieldError> {
        let audit = self.audit.as_ref().map(|audit| &audit.path);
        let attest = self.attest.as_ref();
        let evidence = self.evidence.as_ref();
        let controller = self.controller.as_ref();
        let paths: [(&[&'static str], Option<&PathBuf>); 12] = [
            (&["evidence", "key"], evidence.map(|section| &section.key)),
            (
                &["evidence", "boot_count"],
                evidence.map(|section| &section.boot_count),
            ),
            (
                &["evidence", "socket"],
                evidence.and_then(|section| section.socket.as_ref()),
            ),
            (
                &["evidence", "packet_key_file"],
                evidence.and_then(|section| section.packet_key_file.as_ref()),
            ),
            (
                &["registry", "path"],
                self.registry.as_ref().and_then(|registry| registry.path.file()),
            ),
            (&["controller", "ca"], controller.map(|section| &section.ca)),
            (&["controller", "cert"], controller.map(|section| &section.cert)),
            (&["controller", "key"], controller.map(|section| &section.key)),
            (
                &["registry", "master_key_file"],
                self.registry
                    .as_ref()
                    .and_then(|registry| registry.master_key_file.as_ref()),
            ),
            (&["gateway", "pin_directory"], Some(&self.gateway.pin_directory)),
            (&["audit", "path"], audit),
            (
                &["attest", "signing_key"],
                attest.and_then(|attest| attest.signing_key.as_ref()),
            ),
        ];
        let empty = paths.into_iter().filter(|(_, path)| is_empty(*path));
        empty.map(|(field, _)| FieldError::new(field, NO_PATH)).collect()
    }

    /// Without its interfaces, which only the machine knows.
    fn p4dra(&self) -> Result<Option<dataplane::P4dra>, FieldError> {
        let Some(section) = &self.p4dra_classic else {
            return Ok(None);
        };
        if self.gateway.dataplane == Backend::Host && self.gateway.interfaces.is_empty() {
            let problem = "interfaces is missing: [p4dra_classic] comes in raw frames; name the interfaces that its provers \
                           are on";
            return Err(FieldError::new(&["gateway"], problem));
        }
        let path = ["p4dra_classic", "provers_file"];
        if section.provers_file.as_os_str().is_empty() {
            return Err(FieldError::new(&path, "\"\": name a path"));
        }
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
    fn desk_port(&self, classic: Option<&ClassicSection>) -> Result<Option<u16>, FieldError> {
        let refuse = |problem: String| Err(FieldError::new(&["gateway", "desk_port"], problem));
        if self.dataplane == Backend::P4 {
            return Ok(None);
        }
        let Some(port) = self.desk_port.or(ticket::desk_port(self.port)) else {
            let problem = format!(
                "desk_port is missing: {} plus 2 is no port; name one, or 0 for none",
                self.port
            );
            return Err(FieldError::new(&["gateway"], problem));
        };
        if port == self.port {
            return refuse(format!("{port} is LAP's port; name another, or 0 for none"));
        }
        match classic.filter(|classic| classic.port == port) {
            Some(_) => refuse(format!(
                "{port} is the classic profile's port; name another, or 0 for none"
            )),
            None => Ok(Some(port).filter(|port| *port != 0)),
        }
    }

    /// Fields that do not go together.
    fn contradictions(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let mut refuse = |path: &[&'static str], problem: String| errors.push(FieldError::new(path, problem));
        let is_host = self.dataplane == Backend::Host;
        if self.interfaces.is_empty() && self.dataplane == Backend::Xdp {
            let problem = "interfaces is missing: name the interfaces on the devices' side, such as [\"eth1\"] (the data \
                           planes host and p4 need none)";
            refuse(&["gateway"], problem.to_owned());
        } else if self.interfaces.is_empty() && self.addresses.is_none() && is_host {
            let problem = "addresses is missing: list the addresses that devices send to, or name interfaces that have \
                           them";
            refuse(&["gateway"], problem.to_owned());
        }
        if is_host && self.gate != Gate::Off {
            let problem = "the host data plane sees only what is sent to it and has no gate; use dataplane = \"xdp\" or \"p4\"";
            refuse(&["gateway", "gate"], problem.to_owned());
        }
        if self.threads == Some(0) {
            refuse(&["gateway", "threads"], "0: at least 1".to_owned());
        }
        if !self.forward_to.is_empty() && self.gate != Gate::Sealed {
            let problem = "only a sealed gate forwards; leave it out, or set gate = \"sealed\"";
            refuse(&["gateway", "forward_to"], problem.to_owned());
        }
        if self.device_prefixes.as_ref().is_some_and(Vec::is_empty) {
            let problem =
                "[]: name the subnets that devices are in, 1 to 16 prefixes such as \"192.0.2.0/24\"";
            refuse(&["gateway", "device_prefixes"], problem.to_owned());
        }
        let addresses = self.addresses.as_deref().unwrap_or_default();
        let prefixes = self.device_prefixes.as_deref().unwrap_or_default();
        let protocols: Vec<&str> = self.always_pass.iter().map(|protocol| protocol.name()).collect();
        for (path, repeated) in [
            ("always_pass", repeated(&protocols)),
            ("dhcp_servers", repeated(&self.dhcp_servers)),
            ("interfaces", repeated(&self.interfaces)),
            ("forward_to", repeated(&self.forward_to)),
            ("addresses", repeated(addresses)),
            ("device_prefixes", repeated(prefixes)),
        ] {
            if let Some(name) = repeated {
                refuse(&["gateway", path], format!("{name} is named twice"));
            }
        }
        if let Some(name) = self.forward_to.iter().find(|name| self.interfaces.contains(name)) {
            let problem = format!("{name} is on the devices' side, where frames must be sealed");
            refuse(&["gateway", "forward_to"], problem);
        }
        errors
    }

    fn interface_indices(&self, errors: &mut Vec<FieldError>) -> Vec<u32> {
        indices("interfaces", &self.interfaces, errors)
    }

    fn forward_indices(&self, inside: &[u32], errors: &mut Vec<FieldError>) -> Vec<u32> {
        let found = indices("forward_to", &self.forward_to, errors);
        // By another name.
        if found.iter().any(|index| inside.contains(index)) {
            let problem = "an interface on the devices' side, where frames must be sealed";
            errors.push(FieldError::new(&["gateway", "forward_to"], problem));
        }
        found
    }
}

/// What packets cannot carry, and what is missing for it.
fn in_packets_contradictions(
    evidence: &EvidenceSection,
    gate: Gate,
    refuse: &mut dyn FnMut(&[&'static str], String),
) {
    let has_key = evidence.packet_key_file.is_some();
    match evidence.in_packets {
        None if evidence.packet_content.is_some() => {
            let problem = "packets carry nothing: set in_packets = \"option\", or leave it out";
            refuse(&["evidence", "packet_content"], problem.to_owned());
        }
        None if has_key => {
            let problem = "packets carry nothing: set in_packets = \"option\", or leave it out";
            refuse(&["evidence", "packet_key_file"], problem.to_owned());
        }
        None => return,
        Some(Carrier::Clone) => {
            let problem = "\"clone\": the xdp data plane sends no frame beside another: where it sees which packets pass, the way \
                           that they will take is not known yet; use \"option\"";
            refuse(&["evidence", "in_packets"], problem.to_owned());
        }
        Some(Carrier::Option) if gate == Gate::Off => {
            let problem = "what passes without a gate is none of the gateway's business; set [gateway] gate, or leave it out";
            refuse(&["evidence", "in_packets"], problem.to_owned());
        }
        Some(Carrier::Option) => {}
    }
    if evidence.form() == Some(Form::Default) && !has_key {
        let problem = "packet_key_file is missing: the secret of packets' tags, in a file of mode 0600; `openssl rand -hex 16` \
                       makes one";
        refuse(&["evidence"], problem.to_owned());
    }
}

/// One that is there twice.
fn repeated<T: PartialEq + ToString>(names: &[T]) -> Option<String> {
    let mut names = names.iter().enumerate();
    let all = names.clone();
    let is_before = |at: usize, name: &T| all.clone().take(at).any(|(_, other)| other == name);
    names
        .find(|(at, name)| is_before(*at, name))
        .map(|(_, name)| name.to_string())
}

/// Numbers of these interfaces, in their order.
fn indices(field: &'static str, names: &[String], errors: &mut Vec<FieldError>) -> Vec<u32> {
    let mut found = Vec::new();
    for name in names {
        match addresses::index(name) {
            Ok(index) => found.push(index),
            Err(error) => errors.push(FieldError::new(&["gateway", field], error)),
        }
    }
    found
}

/// Errors of the data plane's configuration by the names of this one.
pub(super) fn plane_field(error: dataplane::ConfigError) -> FieldError {
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
            "elsewhere" => vec!["p4", "devices_port"],
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
