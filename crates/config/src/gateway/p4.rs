//! The switch of `dataplane = "p4"`.

use std::path::Path;

use linewarden_dataplane::p4runtime::{BridgeEntry, P4Options, SwitchPort};
use linewarden_files::{PrivateFileError, read_bounded, read_private};
use linewarden_tls::{ClientTls, Identity, TlsPart};

use super::fields::{Backend, BridgeSection, GateOnExit, GatewayConfig, P4Section, Side};
use crate::problem::FieldError;

/// Maximum size of a certificate chain or bundle, bytes.
const CERTIFICATES_BYTES_MAX: usize = 1 << 20;
/// Maximum size of a key, bytes. An RSA key of 16,384 bits takes less than 13 KB.
const KEY_BYTES_MAX: usize = 16_384;

impl P4Section {
    /// Returns the options of the data plane.
    ///
    /// # Errors
    /// TLS files cannot be used, or TLS is missing for a switch on another machine.
    pub(super) fn options(&self) -> Result<P4Options, FieldError> {
        let entry = |BridgeSection { mac, port, side }: &BridgeSection| BridgeEntry {
            mac: *mac,
            port: *port,
            is_device_port: *side == Side::Devices,
        };
        Ok(P4Options {
            address: self.address.to_string(),
            tls: self.tls()?,
            device_id: self.device_id,
            election_id: self.election_id.into(),
            bridge: self.bridge.iter().map(entry).collect(),
            default_port: Some(SwitchPort {
                port: self.devices_port,
                is_device_port: true,
            }),
        })
    }

    fn tls(&self) -> Result<Option<ClientTls>, FieldError> {
        let refuse =
            |field: &'static str, reason: &dyn std::fmt::Display| FieldError::new(&["p4", field], reason);
        let Some(ca) = &self.ca else {
            return match (&self.cert, &self.key, &self.domain) {
                (None, None, None) if self.address.ip().is_loopback() => Ok(None),
                (None, None, None) => Err(refuse(
                    "address",
                    &"this connection carries device keys: set the switch's `ca`, or use a switch on this machine",
                )),
                _ => Err(FieldError::new(
                    &["p4"],
                    "cert, key and domain need TLS: set the switch's `ca` too",
                )),
            };
        };
        let read_field = |field: &'static str, path: &Path| {
            read_bounded(path, CERTIFICATES_BYTES_MAX)
                .map_err(|error| refuse(field, &format_args!("{}: {error}", path.display())))
        };
        let mut tls = ClientTls::new(&read_field("ca", ca)?).map_err(|error| refuse("ca", &error))?;
        match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                let chain = read_field("cert", cert)?;
                let secret = read_private(key, KEY_BYTES_MAX).map_err(|error| FieldError {
                    is_unsafe: matches!(error, PrivateFileError::Unsafe { .. }),
                    ..refuse("key", &format_args!("{}: {error}", key.display()))
                })?;
                let identity = Identity::from_pem(&chain, &secret).map_err(|error| match error.part {
                    TlsPart::Key => refuse("key", &error),
                    _ => refuse("cert", &error),
                })?;
                tls = tls.with_identity(identity);
            }
            (None, None) => {}
            _ => {
                return Err(FieldError::new(
                    &["p4"],
                    "cert and key belong together: set both or none",
                ));
            }
        }
        match &self.domain {
            Some(name) => tls
                .with_domain(name)
                .map(Some)
                .map_err(|error| refuse("domain", &error)),
            None => Ok(Some(tls)),
        }
    }
}

impl GatewayConfig {
    /// Returns errors of fields that a gateway with a switch cannot use or lacks, and of `[p4]` without a switch.
    pub(super) fn p4_contradictions(&self) -> Vec<FieldError> {
        let section = &self.gateway;
        let mut errors = Vec::new();
        let mut refuse = |path: &[&'static str], problem: &str| errors.push(FieldError::new(path, problem));
        if section.dataplane != Backend::P4 {
            if self.p4.is_some() {
                refuse(
                    &["p4"],
                    "only the p4 data plane has a switch; set dataplane = \"p4\", or remove [p4]",
                );
            }
            return errors;
        }
        if self.p4.is_none() {
            let problem = "[p4] is missing: set the switch's address and ports";
            refuse(&["gateway", "dataplane"], problem);
        }
        if !section.interfaces.is_empty() {
            let problem = "the switch has its own interfaces; remove `interfaces`, and set ports in [p4]";
            refuse(&["gateway", "interfaces"], problem);
        }
        if section.threads.is_some() {
            refuse(
                &["gateway", "threads"],
                "only the host data plane has threads; remove `threads`",
            );
        }
        if section.ticket_port.is_some_and(|port| port != 0) {
            let problem = "a gateway with a switch relays no tickets, because messages of devices do not reach this machine; remove `ticket_port`";
            refuse(&["gateway", "ticket_port"], problem);
        }
        if section.gate_on_exit == GateOnExit::Remove {
            let problem = "a switch keeps its gate when its gateway has ended; remove `gate_on_exit`";
            refuse(&["gateway", "gate_on_exit"], problem);
        }
        if section.addresses.as_ref().is_none_or(Vec::is_empty) {
            let problem = "addresses is missing: set the addresses to which devices send";
            refuse(&["gateway"], problem);
        }
        if section.device_prefixes.is_none() {
            let problem =
                "device_prefixes is missing: set the subnets of the devices, such as [\"192.0.2.0/24\"]";
            refuse(&["gateway"], problem);
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use linewarden_gateway::data_plane::DataPlaneOptions;

    use super::super::tests::resolve;
    use super::*;
    use crate::file::Configuration as _;

    const TEXT: &str = "\
[gateway]
id = 1
dataplane = \"p4\"
addresses = [\"192.0.2.1\"]
device_prefixes = [\"192.0.2.0/24\"]
gate = \"bound\"
[controller]
socket = \"s\"
[p4]
address = \"127.0.0.1:9559\"
devices_port = 3
[[p4.bridge]]
mac = \"02:00:00:00:00:01\"
port = 1
[[p4.bridge]]
mac = \"02:00:00:00:00:02\"
port = 2
side = \"devices\"
";

    fn refused(text: &str) -> Vec<(String, String)> {
        let config: GatewayConfig = toml::from_str(text).unwrap();
        let errors = config.validate().unwrap_err();
        let path_and_problem = |error: FieldError| (error.path.join("."), error.problem);
        errors.into_iter().map(path_and_problem).collect()
    }

    #[test]
    fn a_switch_section_is_resolved_with_defaults() {
        let config: GatewayConfig = toml::from_str(TEXT).unwrap();
        let resolved = resolve(&config).unwrap();
        let switch_port = |port, is_device_port| SwitchPort { port, is_device_port };
        let DataPlaneOptions::P4(options) = resolved.data_plane else {
            panic!("{:?}", resolved.data_plane);
        };
        assert_eq!((options.device_id, options.election_id), (0, 1));
        assert_eq!(options.default_port, Some(switch_port(3, true)));
        let ports: Vec<_> = options
            .bridge
            .iter()
            .map(|entry| switch_port(entry.port, entry.is_device_port))
            .collect();
        assert_eq!(ports, [switch_port(1, false), switch_port(2, true)]);
        assert_eq!(
            (resolved.config.geometry.slots, resolved.config.miss_per_s),
            (65_536, 10_000)
        );
        assert_eq!(
            (resolved.ticket_port, config.gateway.pin_directory_if_kept()),
            (None, None)
        );
    }

    #[test]
    fn provers_default_to_the_capacity_of_the_switch() {
        for (attest, provers) in [("[attest]", 65_536), ("[attest]\nprovers = 9", 9)] {
            let text = TEXT.replacen("[p4]", &format!("{attest}\n[p4]"), 1);
            let config: GatewayConfig = toml::from_str(&text).unwrap();
            let resolved = resolve(&config).unwrap();
            assert_eq!(resolved.config.provers, provers);
        }
    }

    #[test]
    fn unsupported_fields_with_a_switch_are_reported() {
        for (before, after, field, reason) in [
            (
                "id = 1",
                "id = 1\ninterfaces = [\"lo\"]",
                "gateway.interfaces",
                "[p4]",
            ),
            ("id = 1", "id = 1\nthreads = 2", "gateway.threads", "host"),
            (
                "id = 1",
                "id = 1\nticket_port = 7",
                "gateway.ticket_port",
                "tickets",
            ),
            (
                "id = 1",
                "id = 1\ngate_on_exit = \"remove\"",
                "gateway.gate_on_exit",
                "keeps its gate",
            ),
            ("id = 1", "id = 1\nport = 7", "gateway.dataplane", "20550"),
            ("id = 1", "id = 1\nslots = 65537", "gateway.dataplane", "65536"),
            ("\"bound\"", "\"sealed\"", "gateway.dataplane", "sealed"),
            ("addresses = [\"192.0.2.1\"]\n", "", "gateway", "addresses is"),
            (
                "device_prefixes = [\"192.0.2.0/24\"]\n",
                "",
                "gateway",
                "device_prefixes is",
            ),
            (
                "[p4]",
                "[attest]\nprovers = 65537\n[p4]",
                "gateway.dataplane",
                "65536 provers",
            ),
            (
                "[p4]",
                "[evidence]\nkey = \"k\"\nboot_count = \"b\"\n[p4]",
                "evidence",
                "--evidence-key",
            ),
            ("port = 2", "port = 510", "p4.bridge", "510"),
            (
                "port = 1",
                "port = 3",
                "p4.bridge",
                "for devices and for services",
            ),
            (
                "port = 1",
                "port = 1\nside = \"devices\"",
                "p4.bridge",
                "the gateway's addresses",
            ),
            ("devices_port = 3", "devices_port = 511", "p4.devices_port", "510"),
            ("00:02", "00:01", "p4.bridge", "each address once"),
            (
                "127.0.0.1:9559",
                "192.0.2.9:9559",
                "p4.address",
                "set the switch's `ca`",
            ),
            ("[p4]", "[p4]\ndomain = \"x\"", "p4", "`ca` too"),
            ("[p4]", "[p4]\nca = \"/no/such\"", "p4.ca", "/no/such"),
            ("\"p4\"", "\"host\"\ngate = \"off\"", "p4", "remove [p4]"),
        ] {
            assert!(TEXT.contains(before), "{before}");
            let text = match after.contains("gate = \"off\"") {
                true => TEXT
                    .replacen("gate = \"bound\"\n", "", 1)
                    .replacen(before, after, 1),
                false => TEXT.replacen(before, after, 1),
            };
            let errors = refused(&text);
            let is_reported = |(path, problem): &(String, String)| path == field && problem.contains(reason);
            assert!(errors.iter().any(is_reported), "{after}: {errors:?}");
        }
        let without_switch = &TEXT[..TEXT.find("[p4]").unwrap()];
        assert_eq!(refused(without_switch)[0].0, "gateway.dataplane");
    }
}
