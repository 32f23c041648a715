//! The switch of `dataplane = "p4"`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use linewarden_dataplane::p4runtime::{Neighbour, P4Options, Place};
use linewarden_files::{PrivateFileError, read_bounded, read_private};
use linewarden_protocol::frame::Mac;
use linewarden_tls::{ClientTls, Identity, Part};
use serde::Deserialize;

use super::{Backend, FieldError, GatewayConfig, WhenGone, mac};

/// The longest chain or bundle of certificates that is read.
const CERTIFICATES_BYTES_MAX: usize = 1 << 20;
/// A key of RSA with 16,384 bits is below 13 KB.
const KEY_BYTES_MAX: usize = 16_384;

/// `[p4]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct P4Section {
    /// Where the switch serves P4Runtime, and its evidence.
    pub address: SocketAddr,
    /// TLS: the CA (PEM) of the switch's certificate. In the clear if left out, which is for a switch on this machine.
    pub ca: Option<PathBuf>,
    /// This gateway's certificate (PEM), for a switch that asks for one.
    pub cert: Option<PathBuf>,
    /// Its private key (PEM), of mode 0600.
    pub key: Option<PathBuf>,
    /// The name in the switch's certificate, where it is another than the address.
    pub domain: Option<String>,
    /// Its number there.
    #[serde(default)]
    pub device_id: u64,
    /// This gateway's rank: the highest of a switch's controllers holds it.
    #[serde(default = "default_election_id")]
    pub election_id: u64,
    /// The port of the devices, and of every address that `bridge` does not name.
    pub devices_port: u16,
    /// Who is behind which other port.
    #[serde(default)]
    pub bridge: Vec<BridgeSection>,
}

/// `[[p4.bridge]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BridgeSection {
    /// The address.
    #[serde(deserialize_with = "mac")]
    pub mac: Mac,
    /// The port that it is behind.
    pub port: u16,
    /// Whether devices are there: what comes in is judged.
    #[serde(default)]
    pub side: Side,
}

/// What is behind a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Services, and the rest of the network.
    #[default]
    Services,
    /// Devices.
    Devices,
}

fn default_election_id() -> u64 {
    1
}

impl P4Section {
    /// For the data plane.
    ///
    /// # Errors
    /// Files of TLS that cannot be used, or none where keys would go over a network.
    pub(super) fn options(&self) -> Result<P4Options, FieldError> {
        let neighbour = |BridgeSection { mac, port, side }: &BridgeSection| Neighbour {
            mac: *mac,
            port: *port,
            is_devices: *side == Side::Devices,
        };
        Ok(P4Options {
            address: self.address.to_string(),
            tls: self.tls()?,
            device_id: self.device_id,
            election_id: self.election_id.into(),
            bridge: self.bridge.iter().map(neighbour).collect(),
            elsewhere: Some(Place {
                port: self.devices_port,
                is_devices: true,
            }),
        })
    }

    fn tls(&self) -> Result<Option<ClientTls>, FieldError> {
        let refuse = |field: &'static str, why: &dyn std::fmt::Display| FieldError::new(&["p4", field], why);
        let Some(ca) = &self.ca else {
            return match (&self.cert, &self.key, &self.domain) {
                (None, None, None) if self.address.ip().is_loopback() => Ok(None),
                (None, None, None) => Err(refuse(
                    "address",
                    &"keys of devices go through this connection: name the switch's `ca`, or one on this machine",
                )),
                _ => Err(FieldError::new(
                    &["p4"],
                    "cert, key and domain are TLS's: name the switch's `ca` too",
                )),
            };
        };
        let read = |field: &'static str, path: &Path| {
            read_bounded(path, CERTIFICATES_BYTES_MAX)
                .map_err(|error| refuse(field, &format_args!("{}: {error}", path.display())))
        };
        let mut tls = ClientTls::new(&read("ca", ca)?).map_err(|error| refuse("ca", &error))?;
        match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                let chain = read("cert", cert)?;
                let secret = read_private(key, KEY_BYTES_MAX).map_err(|error| FieldError {
                    is_unsafe: matches!(error, PrivateFileError::Unsafe { .. }),
                    ..refuse("key", &format_args!("{}: {error}", key.display()))
                })?;
                let identity = Identity::from_pem(&chain, &secret).map_err(|error| match error.part {
                    Part::Key => refuse("key", &error),
                    _ => refuse("cert", &error),
                })?;
                tls = tls.with_identity(identity);
            }
            (None, None) => {}
            _ => {
                return Err(FieldError::new(
                    &["p4"],
                    "cert and key go together: name both, or neither",
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

    /// The files that it names.
    pub(super) fn paths(&mut self) -> [Option<&mut PathBuf>; 3] {
        [self.ca.as_mut(), self.cert.as_mut(), self.key.as_mut()]
    }
}

impl GatewayConfig {
    /// Fields that do not go together with a switch, or without one.
    pub(super) fn p4_contradictions(&self) -> Vec<FieldError> {
        let section = &self.gateway;
        let mut errors = Vec::new();
        let mut refuse = |path: &[&'static str], problem: &str| errors.push(FieldError::new(path, problem));
        if section.dataplane != Backend::P4 {
            if self.p4.is_some() {
                refuse(
                    &["p4"],
                    "only the p4 data plane has a switch; set dataplane = \"p4\", or leave [p4] out",
                );
            }
            return errors;
        }
        if self.p4.is_none() {
            let problem = "[p4] is missing: where the switch serves P4Runtime, and what is behind its ports";
            refuse(&["gateway", "dataplane"], problem);
        }
        if !section.interfaces.is_empty() {
            let problem = "the switch has its own; leave it out, and name ports in [p4]";
            refuse(&["gateway", "interfaces"], problem);
        }
        if section.threads.is_some() {
            refuse(
                &["gateway", "threads"],
                "only the host data plane has threads; leave it out",
            );
        }
        if section.desk_port.is_some_and(|port| port != 0) {
            let problem =
                "a switch takes no tickets, for devices' messages do not reach this machine; leave it out";
            refuse(&["gateway", "desk_port"], problem);
        }
        if section.when_gone == WhenGone::Open {
            let problem = "a switch keeps its gate when its gateway has ended; leave it out";
            refuse(&["gateway", "when_gone"], problem);
        }
        if section.addresses.as_ref().is_none_or(Vec::is_empty) {
            let problem =
                "addresses is missing: list the addresses that devices send to, which the switch answers for";
            refuse(&["gateway"], problem);
        }
        if section.device_prefixes.is_none() {
            let problem = "device_prefixes is missing: list the subnets that devices are in, such as [\"192.0.2.0/24\"]";
            refuse(&["gateway"], problem);
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
[gateway]
id = 1
dataplane = \"p4\"
addresses = [\"192.0.2.1\"]
device_prefixes = [\"192.0.2.0/24\"]
gate = \"open\"
[registry]
path = \"r\"
master_key_file = \"k\"
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
        let errors = config.check().unwrap_err();
        let told = |error: FieldError| (error.path.join("."), error.problem);
        errors.into_iter().map(told).collect()
    }

    #[test]
    fn a_switch_is_what_the_file_says_with_the_defaults_of_a_switch() {
        let config: GatewayConfig = toml::from_str(TEXT).unwrap();
        let resolved = config.resolve([1, 2], 3).unwrap();
        let place = |port, is_devices| Place { port, is_devices };
        let options = resolved.p4.unwrap();
        assert_eq!((options.device_id, options.election_id), (0, 1));
        assert_eq!(options.elsewhere, Some(place(3, true)));
        let places: Vec<_> = options
            .bridge
            .iter()
            .map(|at| place(at.port, at.is_devices))
            .collect();
        assert_eq!(places, [place(1, false), place(2, true)]);
        assert_eq!(
            (resolved.config.geometry.slots, resolved.config.miss_per_s),
            (65_536, 10_000)
        );
        assert_eq!((resolved.desk_port, config.gateway.pins()), (None, None));
    }

    #[test]
    fn as_many_provers_as_the_switch_has_room_for_unless_it_says_fewer() {
        for (attest, provers) in [("[attest]", 65_536), ("[attest]\nprovers = 9", 9)] {
            let text = TEXT.replacen("[p4]", &format!("{attest}\n[p4]"), 1);
            let config: GatewayConfig = toml::from_str(&text).unwrap();
            let resolved = config.resolve([0; 2], 0).unwrap();
            assert_eq!(resolved.config.provers, provers);
        }
    }

    #[test]
    fn what_a_switch_has_not_is_refused_by_its_field() {
        for (before, after, field, why) in [
            (
                "id = 1",
                "id = 1\ninterfaces = [\"lo\"]",
                "gateway.interfaces",
                "[p4]",
            ),
            ("id = 1", "id = 1\nthreads = 2", "gateway.threads", "host"),
            ("id = 1", "id = 1\ndesk_port = 7", "gateway.desk_port", "tickets"),
            (
                "id = 1",
                "id = 1\nwhen_gone = \"open\"",
                "gateway.when_gone",
                "keeps its gate",
            ),
            ("id = 1", "id = 1\nport = 7", "gateway.dataplane", "20550"),
            ("id = 1", "id = 1\nslots = 65537", "gateway.dataplane", "65536"),
            ("\"open\"", "\"sealed\"", "gateway.dataplane", "sealed"),
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
            ("port = 1", "port = 3", "p4.bridge", "at once"),
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
                "name the switch's `ca`",
            ),
            ("[p4]", "[p4]\ndomain = \"x\"", "p4", "`ca` too"),
            ("[p4]", "[p4]\nca = \"/no/such\"", "p4.ca", "/no/such"),
            ("\"p4\"", "\"host\"\ngate = \"off\"", "p4", "leave [p4] out"),
        ] {
            assert!(TEXT.contains(before), "{before}");
            let text = match after.contains("gate = \"off\"") {
                true => TEXT
                    .replacen("gate = \"open\"\n", "", 1)
                    .replacen(before, after, 1),
                false => TEXT.replacen(before, after, 1),
            };
            let errors = refused(&text);
            let is_told = |(path, problem): &(String, String)| path == field && problem.contains(why);
            assert!(errors.iter().any(is_told), "{after}: {errors:?}");
        }
        let without = &TEXT[..TEXT.find("[p4]").unwrap()];
        assert_eq!(refused(without)[0].0, "gateway.dataplane");
    }
}
