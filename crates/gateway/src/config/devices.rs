//! Where the gateway is and where its devices are: as the file says, or as the machine's interfaces do.

use std::net::IpAddr;

use linewarden_dataplane::config::sources_problems;
use linewarden_protocol::sources::{DeviceSources, OwnAddress, Prefix};
use serde::{Deserialize as _, Deserializer};

use super::resolve::plane_field;
use super::{FieldError, GatewayConfig, GatewaySection};
use crate::addresses::{self, InterfaceAddress};

/// Of the gateway and of its devices.
pub(super) struct Addresses {
    /// Which devices send to.
    pub(super) local: Vec<IpAddr>,
    pub(super) devices: Vec<Prefix>,
    /// All of this machine that a device could be taken for.
    pub(super) others: Vec<OwnAddress>,
    /// What keeps devices out for now.
    pub(super) warnings: Vec<FieldError>,
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
    /// From where messages are taken by what the machine's interfaces have at the moment.
    ///
    /// # Errors
    /// An interface is gone, or has lost its addresses; more than the data plane has room for.
    pub fn device_sources(&self) -> Result<DeviceSources, FieldError> {
        let found = self.gateway.find_addresses()?;
        let sources = DeviceSources::new(&found.devices, &found.local, &found.others);
        match sources_problems(&sources).pop() {
            Some(problem) => Err(plane_field(problem)),
            None => Ok(sources),
        }
    }
}

impl GatewaySection {
    /// Looked up on this machine, but for those that are named.
    pub(super) fn find_addresses(&self) -> Result<Addresses, FieldError> {
        let own = addresses::own().map_err(|error| FieldError::new(&["gateway"], error))?;
        let local = self.local_addresses()?;
        let mut warnings = Vec::new();
        let here = self.devices_side(&own, &local, &mut warnings)?;
        let devices = match &self.device_prefixes {
            Some(prefixes) => prefixes.clone(),
            None => merged(addresses::subnets_of(&here)),
        };
        warnings.extend(local.iter().filter_map(|ip| outside(*ip, &devices)));
        let others = addresses::reached_from(&own, &here);
        Ok(Addresses {
            local,
            devices,
            others,
            warnings,
        })
    }

    /// This machine's addresses on the devices' side: of the interfaces and what lies on them, or else where the addresses are.
    fn devices_side(
        &self,
        own: &[InterfaceAddress],
        local: &[IpAddr],
        warnings: &mut Vec<FieldError>,
    ) -> Result<Vec<InterfaceAddress>, FieldError> {
        let is_asked = self.device_prefixes.is_none();
        let missing = |why: String| {
            let problem = format!(
                "device_prefixes is missing: {why}; list the subnets that devices are in, such as [\"192.0.2.0/24\"]"
            );
            FieldError::new(&["gateway"], problem)
        };
        let mut side = Vec::new();
        for name in &self.interfaces {
            let found = addresses::behind(own, name);
            let (here, is_port) =
                found.map_err(|error| FieldError::new(&["gateway", "interfaces"], error))?;
            if is_asked && addresses::subnets_of(&here).is_empty() {
                if is_port {
                    let why = "is a port of a bridge or bond that has no address that would tell";
                    return Err(missing(format!("interface {name} {why}")));
                }
                let problem = format!(
                    "{name} has no address in a subnet: until it has, no device behind it is answered, unless device_prefixes names \
                     the subnets"
                );
                warnings.push(FieldError::new(&["gateway", "interfaces"], problem));
            }
            side.extend(here);
        }
        for address in local.iter().filter(|_| self.interfaces.is_empty()) {
            let is_there =
                |own: &&InterfaceAddress| address.is_unspecified() || own.own.subnet.contains(*address);
            let names: Vec<&str> = own
                .iter()
                .filter(is_there)
                .map(|own| own.interface.as_str())
                .collect();
            let of_names = |own: &&InterfaceAddress| names.contains(&own.interface.as_str());
            let here: Vec<_> = own.iter().filter(of_names).cloned().collect();
            if is_asked && addresses::subnets_of(&here).is_empty() {
                return Err(missing(format!(
                    "no interface of this machine is in a subnet of {address}"
                )));
            }
            side.extend(here);
        }
        Ok(side)
    }

    /// What the file says that can never be: a named address that devices of its family may send to, and no prefix of theirs.
    pub(super) fn families_without_devices(&self) -> Option<String> {
        let prefixes = self.device_prefixes.as_deref()?;
        let is_served = |ip: &&IpAddr| {
            prefixes
                .iter()
                .any(|prefix| prefix.network().is_ipv4() == ip.is_ipv4())
        };
        let address = self.addresses.iter().flatten().find(|ip| !is_served(ip))?;
        Some(format!(
            "none is of the family of {address}, which is in addresses: no device could send to it"
        ))
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

/// A gateway's address that no prefix contains: right where devices come through a router, or have a part of the subnet; else a
/// mistake.
fn outside(address: IpAddr, devices: &[Prefix]) -> Option<FieldError> {
    let is_inside = address.is_unspecified() || devices.iter().any(|prefix| prefix.contains(address));
    let problem =
        || format!("{address} lies in none of the device_prefixes: devices of its subnet are not answered");
    (!is_inside).then(|| FieldError::new(&["gateway"], problem()))
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
    fn an_address_where_no_device_is_is_named() {
        let with = |addresses: &str, prefixes: &str| {
            format!(
                "[gateway]\nid = 7\ninterfaces = [\"lo\"]\naddresses = [{addresses}]\ndevice_prefixes = [{prefixes}]\n{REGISTRY}"
            )
        };
        let (path, problem) = refused(&with("\"127.0.0.9\", \"fd66::1\"", "\"127.0.0.0/8\""));
        assert_eq!(path, "gateway.device_prefixes");
        assert!(problem.contains("fd66::1"), "{problem}");
        let warnings = |prefixes: &str| {
            let resolved = parse(&with("\"192.0.2.1\"", prefixes)).resolve([1, 2], 3);
            resolved.unwrap().warnings
        };
        assert!(warnings("\"192.0.2.0/24\"").is_empty());
        // Right for a part of the subnet and for routed devices, so no more than a warning.
        let narrow = warnings("\"192.0.2.128/25\"");
        assert!(narrow[0].problem.contains("192.0.2.1 lies in none"), "{narrow:?}");
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
