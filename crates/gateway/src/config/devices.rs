//! Where the gateway is and where its devices are: as the file says, or as the machine's interfaces do.

use std::net::IpAddr;

use linewarden_dataplane::Links;
use linewarden_dataplane::config::sources_problems;
use linewarden_protocol::sources::{DeviceSources, OwnAddress, Prefix};
use serde::{Deserialize as _, Deserializer};

use super::resolve::plane_field;
use super::{FieldError, GatewayConfig, GatewaySection};
use crate::addresses::{self, InterfaceAddress, InterfaceError};

/// Of the gateway and of its devices.
pub(super) struct Addresses {
    /// Which devices send to.
    pub(super) local: Vec<IpAddr>,
    pub(super) devices: Vec<Prefix>,
    /// The prefixes are subnets of the interfaces.
    pub(super) follows_interfaces: bool,
    /// All of this machine that a device could claim.
    pub(super) others: Vec<OwnAddress>,
    /// Interfaces without a subnet, while `device_prefixes` is not set: no device behind them is admitted.
    pub(super) without_subnet: Vec<FieldError>,
}

/// From where messages are taken, by the machine's addresses of the moment.
#[derive(Debug)]
pub struct FoundSources {
    /// The sources.
    pub sources: DeviceSources,
    /// See [`Resolved`](super::Resolved).
    pub without_subnet: Vec<FieldError>,
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

impl GatewayConfig {
    /// From where messages are taken, by the machine's addresses of the moment. `local`: those that devices send to, as the data plane
    /// was started with.
    ///
    /// # Errors
    /// The kernel gives no list; more than the data plane has room for.
    pub fn find_sources(&self, local: &[IpAddr]) -> Result<FoundSources, FieldError> {
        let found = self.gateway.find_beside(local.to_vec())?;
        let sources = DeviceSources::new(&found.devices, local, &found.others);
        if let Some(problem) = sources_problems(&sources).pop() {
            return Err(plane_field(problem));
        }
        Ok(FoundSources {
            sources: match found.follows_interfaces {
                true => sources.following_interfaces(),
                false => sources,
            },
            without_subnet: found.without_subnet,
        })
    }
}

impl GatewaySection {
    /// Looked up on this machine, but for those that are named.
    pub(super) fn find_addresses(&self) -> Result<Addresses, FieldError> {
        let found = self.find_beside(self.local_addresses()?)?;
        match found.without_subnet.first() {
            // An address that is named can come later, and its subnet with it.
            Some(problem) if self.addresses.is_none() && found.devices.is_empty() => Err(problem.clone()),
            _ => Ok(found),
        }
    }

    /// All but the addresses that devices send to.
    fn find_beside(&self, local: Vec<IpAddr>) -> Result<Addresses, FieldError> {
        let failed = |error: InterfaceError| FieldError::new(&["gateway"], error);
        let own = addresses::own().map_err(failed)?;
        let mut without_subnet = Vec::new();
        let here = if self.interfaces.is_empty() {
            self.around(&own, &local)?
        } else {
            let links = Links::list().map_err(|error| failed(InterfaceError::Links(error)))?;
            let mut here = Vec::new();
            for name in &self.interfaces {
                let behind = addresses::behind(&own, &links, name);
                let lack = addresses::without_subnet(&behind).filter(|_| self.device_prefixes.is_none());
                if let Some(lack) = lack {
                    without_subnet.push(missing(&format!(
                        "interface {name}, its bridge or bond, VLANs and macvlans have no {lack} in a subnet, so no device \
                         with such an address behind {name} is admitted"
                    )));
                }
                here.extend(behind);
            }
            here
        };
        let follows_interfaces = self.device_prefixes.is_none();
        let subnets = || merged(addresses::subnets_of(&here));
        Ok(Addresses {
            devices: self.device_prefixes.clone().unwrap_or_else(subnets),
            others: addresses::claimable(&own, &here),
            local,
            follows_interfaces,
            without_subnet,
        })
    }

    /// Without interfaces: what this machine has on the links of the addresses that devices send to.
    fn around(
        &self,
        own: &[InterfaceAddress],
        local: &[IpAddr],
    ) -> Result<Vec<InterfaceAddress>, FieldError> {
        let mut all = Vec::new();
        for address in local {
            let is_there =
                |own: &&InterfaceAddress| address.is_unspecified() || own.own.subnet.contains(*address);
            let there: Vec<_> = own.iter().filter(is_there).collect();
            let is_beside =
                |own: &&InterfaceAddress| there.iter().any(|there| there.interface == own.interface);
            let here: Vec<_> = own.iter().filter(is_beside).cloned().collect();
            if self.device_prefixes.is_none() && addresses::subnets_of(&here).is_empty() {
                return Err(missing(&format!(
                    "no interface of this machine is in a subnet of {address}"
                )));
            }
            all.extend(here);
        }
        Ok(all)
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

fn missing(why: &str) -> FieldError {
    let problem = format!(
        "device_prefixes is missing: {why}; write the subnets that devices are in, such as device_prefixes = \
         [\"192.0.2.0/24\", \"2001:db8::/64\"]"
    );
    FieldError::new(&["gateway"], problem)
}

/// Without those that others contain.
fn merged(mut prefixes: Vec<Prefix>) -> Vec<Prefix> {
    prefixes.sort_by_key(Prefix::bits);
    let mut kept: Vec<Prefix> = Vec::new();
    for prefix in prefixes {
        if !kept.iter().any(|wider| wider.covers(&prefix)) {
            kept.push(prefix);
        }
    }
    kept.sort_unstable();
    kept
}

#[cfg(test)]
mod tests {
    use super::super::GatewayConfig;
    use super::{Prefix, merged};

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
    fn prefixes_that_others_contain_are_left_out() {
        let prefixes = [
            "10.9.7.0/24",
            "10.9.0.0/16",
            "fe80::/10",
            "10.10.0.0/16",
            "10.9.0.0/16",
        ];
        let prefixes: Vec<Prefix> = prefixes.map(|text| text.parse().unwrap()).into();
        let kept: Vec<String> = merged(prefixes).iter().map(ToString::to_string).collect();
        assert_eq!(kept, ["10.9.0.0/16", "10.10.0.0/16", "fe80::/10"]);
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
