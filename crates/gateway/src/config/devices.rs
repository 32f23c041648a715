//! Where the gateway is and where its devices are: as the file says, or as the machine's interfaces do.

use std::net::IpAddr;

use linewarden_protocol::sources::Prefix;
use serde::{Deserialize as _, Deserializer};

use super::{FieldError, GatewaySection};
use crate::addresses::{self, OwnAddress};

/// Of the gateway and of its devices.
pub(super) struct Addresses {
    /// Which devices send to.
    pub(super) local: Vec<IpAddr>,
    pub(super) devices: Vec<Prefix>,
    /// All of this machine.
    pub(super) others: Vec<IpAddr>,
}

/// Prefixes as texts, such as `192.0.2.0/24`.
pub(super) fn prefixes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Prefix>>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let prefix = |text: String| {
        let error = |error| serde::de::Error::custom(format_args!("{text:?}: {error}"));
        text.parse::<Prefix>().map_err(error)
    };
    texts.into_iter().map(prefix).collect::<Result<_, _>>().map(Some)
}

impl GatewaySection {
    /// Looked up on this machine, but for those that are named.
    pub(super) fn find_addresses(&self) -> Result<Addresses, FieldError> {
        let own = addresses::own().map_err(|error| FieldError::new(&["gateway"], error))?;
        let local = self.local_addresses()?;
        let devices = match &self.device_prefixes {
            Some(prefixes) => prefixes.clone(),
            None => self.device_subnets(&own, &local)?,
        };
        Ok(Addresses {
            local,
            devices,
            others: own.into_iter().map(|own| own.address).collect(),
        })
    }

    /// Where devices are if nobody says so: in the subnets of the interfaces, or else of the addresses.
    fn device_subnets(&self, own: &[OwnAddress], local: &[IpAddr]) -> Result<Vec<Prefix>, FieldError> {
        let missing = |why: String| {
            let problem = format!(
                "device_prefixes is missing: {why}; list the subnets that devices are in, such as [\"192.0.2.0/24\"]"
            );
            FieldError::new(&["gateway"], problem)
        };
        let mut subnets = Vec::new();
        for name in &self.interfaces {
            let found = addresses::subnets_of(own, name);
            let why = || {
                missing(format!(
                    "interface {name} has no address that would tell, as a port of a bridge has none"
                ))
            };
            subnets.extend(found.ok_or_else(why)?);
        }
        let of_addresses = local.iter().filter(|_| self.interfaces.is_empty());
        for address in of_addresses {
            let here = |own: &&OwnAddress| address.is_unspecified() || own.subnet.contains(*address);
            let names: Vec<&str> = own
                .iter()
                .filter(here)
                .map(|own| own.interface.as_str())
                .collect();
            let found = names.iter().filter_map(|name| addresses::subnets_of(own, name));
            let before = subnets.len();
            subnets.extend(found.flatten());
            if subnets.len() == before {
                return Err(missing(format!(
                    "no interface of this machine is in a subnet of {address}"
                )));
            }
        }
        subnets.sort_unstable();
        subnets.dedup();
        Ok(subnets)
    }

    fn local_addresses(&self) -> Result<Vec<IpAddr>, FieldError> {
        if let Some(addresses) = &self.addresses {
            return Ok(addresses.clone());
        }
        let mut all = Vec::new();
        for name in &self.interfaces {
            let found = addresses::of_interface(name);
            all.extend(found.map_err(|error| FieldError::new(&["gateway", "interfaces"], error))?);
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::super::GatewayConfig;

    const REGISTRY: &str = "[registry]\npath = \"r\"\nmaster_key_file = \"k\"\n";

    fn parse(text: &str) -> GatewayConfig {
        toml::from_str(text).unwrap()
    }

    fn refused(text: &str) -> (String, String) {
        let mut errors = parse(text).resolve([1, 2], 3).unwrap_err();
        let error = errors.remove(0);
        (error.path.join("."), error.problem)
    }

    #[test]
    fn devices_are_where_the_file_says_or_in_the_subnets_of_the_interfaces() {
        let prefixes = |more: &str| -> Vec<String> {
            let text = format!("[gateway]\nid = 7\n{more}\n{REGISTRY}");
            let resolved = parse(&text).resolve([1, 2], 3).unwrap();
            resolved
                .config
                .device_prefixes
                .iter()
                .map(ToString::to_string)
                .collect()
        };
        assert!(prefixes("interfaces = [\"lo\"]").contains(&"127.0.0.0/8".to_owned()));
        let host = "dataplane = \"host\"\naddresses = [\"127.0.0.9\"]";
        assert!(prefixes(host).contains(&"127.0.0.0/8".to_owned()));
        let named = "interfaces = [\"lo\"]\ndevice_prefixes = [\"10.66.0.0/16\", \"fd66::/64\"]";
        assert_eq!(prefixes(named), ["10.66.0.0/16", "fd66::/64"]);
        let host = "dataplane = \"host\"\naddresses = [\"203.0.113.77\"]";
        let (path, problem) = refused(&format!("[gateway]\nid = 7\n{host}\n{REGISTRY}"));
        assert_eq!(path, "gateway");
        assert!(
            problem.contains("device_prefixes is missing") && problem.contains("203.0.113.77"),
            "{problem}"
        );
        for (prefixes, why) in [("", "1 to 16"), ("\"10.0.0.0/8\", \"10.0.0.0/8\"", "named twice")] {
            let (path, problem) = refused(&format!(
                "[gateway]\nid = 7\ninterfaces = [\"lo\"]\ndevice_prefixes = [{prefixes}]\n{REGISTRY}"
            ));
            assert_eq!(path, "gateway.device_prefixes");
            assert!(problem.contains(why), "{problem}");
        }
        let wrong = format!("[gateway]\nid = 7\ndevice_prefixes = [\"10.0.0.1/8\"]\n{REGISTRY}");
        let error = toml::from_str::<GatewayConfig>(&wrong).unwrap_err().to_string();
        assert!(error.contains("write 10.0.0.0/8"), "{error}");
    }
}
