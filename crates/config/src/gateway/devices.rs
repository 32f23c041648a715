//! Addresses of the gateway and its devices: from the file, or from the machine's interfaces.

use std::collections::BTreeSet;
use std::net::IpAddr;

use linewarden_dataplane::Links;
use linewarden_dataplane::config::source_problems;
use linewarden_gateway::addresses::{self, InterfaceAddress, InterfaceError};
use linewarden_protocol::sources::{DeviceSources, OwnAddress, PREFIXES_MAX, Prefix};

use super::fields::{GatewayConfig, GatewaySection};
use super::validate::data_plane_field;
use crate::problem::FieldError;

/// Addresses of the gateway and of its devices.
pub(super) struct Addresses {
    /// Addresses to which devices send.
    pub(super) local: Vec<IpAddr>,
    /// Prefixes of the devices' addresses.
    pub(super) devices: Vec<Prefix>,
    /// Whether `devices` contains the subnets of the interfaces, because `device_prefixes` is not set.
    pub(super) follows_interfaces: bool,
    /// The machine's addresses that a device could claim.
    pub(super) others: Vec<OwnAddress>,
    /// Interfaces without a subnet, while `device_prefixes` is not set: no device behind them is admitted.
    pub(super) without_subnet: Vec<FieldError>,
    /// See [`ResolvedGateway`](super::ResolvedGateway).
    pub(super) upper_subnets: Option<FieldError>,
}

/// The sources from which messages are accepted, according to the machine's current addresses.
#[derive(Debug)]
pub struct DetectedSources {
    /// The sources.
    pub sources: DeviceSources,
    /// See [`ResolvedGateway`](super::ResolvedGateway).
    pub without_subnet: Vec<FieldError>,
    /// The machine's addresses and subnets for which the data plane has no room.
    pub overflow: Vec<FieldError>,
}

impl GatewayConfig {
    /// Returns the sources from which messages are accepted, according to the machine's current addresses. `local`: the
    /// addresses to which devices send, as at the start of the data plane. `current`: the sources until now. Router
    /// advertisements add subnets: if there are more than the data plane has room for, the subnets of `current` stay.
    ///
    /// # Errors
    /// The kernel returns no list.
    pub fn detect_sources(
        &self,
        local: &[IpAddr],
        current: &DeviceSources,
    ) -> Result<DetectedSources, FieldError> {
        let detected = self.gateway.detect_with_local(local.to_vec())?;
        let sources_in = |prefixes: &[Prefix]| DeviceSources::new(prefixes, local, &detected.others);
        let all_sources = sources_in(&detected.devices);
        let overflow: Vec<_> = source_problems(&all_sources)
            .into_iter()
            .map(data_plane_field)
            .collect();
        let sources = match &overflow[..] {
            [] => all_sources,
            _ => sources_in(&within_room(detected.devices.clone(), current.prefixes())),
        };
        Ok(DetectedSources {
            sources: match detected.follows_interfaces {
                true => sources.following_interfaces(),
                false => sources,
            },
            without_subnet: detected.without_subnet,
            overflow,
        })
    }
}

impl GatewaySection {
    /// Looks up addresses and prefixes on this machine, unless the file contains them.
    pub(super) fn detect_addresses(&self) -> Result<Addresses, FieldError> {
        let detected = self.detect_with_local(self.local_addresses()?)?;
        match detected.without_subnet.first() {
            Some(problem) if self.interfaces.is_empty() => Err(problem.clone()),
            // A configured address can be assigned later, together with its subnet.
            Some(problem) if self.addresses.is_none() && detected.devices.is_empty() => Err(problem.clone()),
            _ => Ok(detected),
        }
    }

    /// Looks up prefixes and addresses, except `local`, the addresses to which devices send.
    fn detect_with_local(&self, local: Vec<IpAddr>) -> Result<Addresses, FieldError> {
        let field_error = |error: InterfaceError| FieldError::new(&["gateway"], error);
        let own = addresses::machine_addresses().map_err(field_error)?;
        let mut without_subnet = Vec::new();
        let (device_side, devices) = if self.interfaces.is_empty() {
            let device_side = self.addresses_around(&own, &local, &mut without_subnet);
            (device_side.clone(), device_side)
        } else {
            let links = Links::list().map_err(|error| field_error(InterfaceError::Links(error)))?;
            self.addresses_by_side(
                |name| addresses::addresses_behind(&own, &links, name),
                &mut without_subnet,
            )
        };
        let follows_interfaces = self.device_prefixes.is_none();
        let subnets = without_contained(addresses::subnets_of(&devices));
        Ok(Addresses {
            upper_subnets: self.upper_subnets(&devices, &subnets),
            devices: self.device_prefixes.clone().unwrap_or(subnets),
            others: addresses::claimable(&own, &device_side),
            local,
            follows_interfaces,
            without_subnet,
        })
    }

    /// Returns the addresses to which devices may send, and the subset whose subnets contain devices. The subset omits
    /// addresses that are also on the services' side, such as addresses of a bridge with ports on both sides. `behind`
    /// returns the addresses of the stack that handles an interface's frames.
    fn addresses_by_side(
        &self,
        behind: impl Fn(&str) -> Vec<InterfaceAddress>,
        without_subnet: &mut Vec<FieldError>,
    ) -> (Vec<InterfaceAddress>, Vec<InterfaceAddress>) {
        let services: Vec<_> = self.forward_to.iter().flat_map(|name| behind(name)).collect();
        let (mut device_side, mut devices) = (Vec::new(), Vec::new());
        for name in &self.interfaces {
            let stack_addresses = behind(name);
            let has_no_services = |address: &&InterfaceAddress| !services.contains(address);
            let of_devices: Vec<_> = stack_addresses.iter().filter(has_no_services).cloned().collect();
            let family = addresses::without_subnet(&of_devices).filter(|_| self.device_prefixes.is_none());
            without_subnet.extend(family.map(|family| self.missing_subnet(name, family)));
            device_side.extend(stack_addresses);
            devices.extend(of_devices);
        }
        (device_side, devices)
    }

    fn missing_subnet(&self, name: &str, family: &str) -> FieldError {
        let subnets_elsewhere = match self.forward_to.is_empty() {
            true => "",
            false => " apart from those of forward_to",
        };
        missing_prefixes(&format!(
            "interface {name}, its bridge or bond, VLANs and macvlans have no {family} with a subnet{subnets_elsewhere} (/32 and \
             /128 are single addresses), so no device with such an address behind {name} is admitted"
        ))
    }

    /// Returns a warning about device subnets that belong to a VLAN, bridge, bond or macvlan on an interface instead
    /// of the interface: these subnets may contain services.
    fn upper_subnets(&self, devices: &[InterfaceAddress], subnets: &[Prefix]) -> Option<FieldError> {
        let is_upper = |address: &&InterfaceAddress| !self.interfaces.contains(&address.interface);
        let upper: BTreeSet<String> = devices
            .iter()
            .filter(is_upper)
            .flat_map(|address| {
                let subnets = addresses::subnets_of(std::slice::from_ref(address));
                subnets
                    .into_iter()
                    .map(|subnet| format!("{subnet} of {}", address.interface))
            })
            .collect();
        if self.device_prefixes.is_some() || self.interfaces.is_empty() || upper.is_empty() {
            return None;
        }
        let upper: Vec<String> = upper.into_iter().collect();
        let subnets: Vec<String> = subnets.iter().map(|subnet| format!("\"{subnet}\"")).collect();
        let problem = format!(
            "device_prefixes is not set, so every address in {} counts as a device's address, and an enrolled device can \
             use the address of a service there; set this line, without subnets that contain services: device_prefixes = [{}]",
            upper.join(", "),
            subnets.join(", ")
        );
        Some(FieldError::new(&["gateway"], problem))
    }

    /// Returns the machine's addresses on the interfaces whose subnets contain an address to which devices send
    /// (`local`). For a configuration without interfaces.
    fn addresses_around(
        &self,
        own: &[InterfaceAddress],
        local: &[IpAddr],
        without_subnet: &mut Vec<FieldError>,
    ) -> Vec<InterfaceAddress> {
        let mut addresses = Vec::new();
        for address in local {
            let is_in_subnet =
                |own: &&InterfaceAddress| address.is_unspecified() || own.address.subnet.contains(*address);
            let matching: Vec<_> = own.iter().filter(is_in_subnet).collect();
            let is_on_same_interface = |own: &&InterfaceAddress| {
                matching
                    .iter()
                    .any(|matching| matching.interface == own.interface)
            };
            let on_interfaces: Vec<_> = own.iter().filter(is_on_same_interface).cloned().collect();
            if self.device_prefixes.is_none() && addresses::subnets_of(&on_interfaces).is_empty() {
                without_subnet.push(missing_prefixes(&format!(
                    "no interface of this machine is in a subnet of {address}"
                )));
            }
            addresses.extend(on_interfaces);
        }
        addresses
    }

    fn local_addresses(&self) -> Result<Vec<IpAddr>, FieldError> {
        if let Some(addresses) = &self.addresses {
            return Ok(addresses.clone());
        }
        let mut local = Vec::new();
        for name in &self.interfaces {
            let result = addresses::interface_addresses(name);
            local.extend(result.map_err(|error| FieldError::new(&["gateway", "interfaces"], error))?);
        }
        local.sort_unstable();
        local.dedup();
        Ok(local)
    }
}

fn missing_prefixes(reason: &str) -> FieldError {
    let problem = format!(
        "device_prefixes is missing: {reason}; set the subnets of the devices, such as device_prefixes = \
         [\"192.0.2.0/24\", \"2001:db8::/64\"]"
    );
    FieldError::new(&["gateway"], problem)
}

/// Returns at most [`PREFIXES_MAX`] of the prefixes, preferably prefixes that are in `current`.
fn within_room(mut prefixes: Vec<Prefix>, current: &[Prefix]) -> Vec<Prefix> {
    if prefixes.len() > PREFIXES_MAX {
        prefixes.sort_by_key(|prefix| !current.contains(prefix));
        prefixes.truncate(PREFIXES_MAX);
        prefixes.sort_unstable();
    }
    prefixes
}

/// Removes prefixes that are contained in other prefixes.
fn without_contained(mut prefixes: Vec<Prefix>) -> Vec<Prefix> {
    prefixes.sort_by_key(Prefix::bits);
    let mut remaining: Vec<Prefix> = Vec::new();
    for prefix in prefixes {
        if !remaining.iter().any(|wider| wider.covers(&prefix)) {
            remaining.push(prefix);
        }
    }
    remaining.sort_unstable();
    remaining
}

#[cfg(test)]
mod tests {
    use super::super::tests::{CONTROLLER, parse, refused, resolve};
    use super::{
        GatewayConfig, InterfaceAddress, OwnAddress, Prefix, addresses, within_room, without_contained,
    };

    #[test]
    fn prefixes_contained_in_others_are_removed() {
        let prefixes = [
            "10.9.7.0/24",
            "10.9.0.0/16",
            "fe80::/10",
            "10.10.0.0/16",
            "10.9.0.0/16",
        ];
        let prefixes: Vec<Prefix> = prefixes.map(|text| text.parse().unwrap()).into();
        let remaining: Vec<String> = without_contained(prefixes)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(remaining, ["10.9.0.0/16", "10.10.0.0/16", "fe80::/10"]);
    }

    /// Router advertisements add subnets.
    #[test]
    fn current_subnets_stay_if_there_are_too_many_subnets() {
        let subnet = |n: u8| Prefix::containing([10, n, 0, 0].into(), 16).unwrap();
        let current: Vec<Prefix> = (100..110).map(subnet).collect();
        let detected: Vec<Prefix> = (90..110).map(subnet).collect();
        let selected = within_room(detected, &current);
        assert_eq!(selected.len(), 16);
        assert!(current.iter().all(|prefix| selected.contains(prefix)));
        assert_eq!(within_room((90..110).map(subnet).collect(), &selected), selected);
        assert_eq!(within_room(current.clone(), &selected), current);
    }

    /// A trunk with a VLAN of devices and a VLAN of services, and a bridge with ports on both sides.
    #[test]
    fn service_subnets_are_excluded_and_upper_subnets_are_listed() {
        let detect = |more: &str| {
            let text = format!("[gateway]\nid = 7\ninterfaces = [\"eth1\"]\n{more}\n{CONTROLLER}");
            let section = parse(&text).gateway;
            let address_of = |interface: &str, address: &str| {
                let address = address.parse().unwrap();
                let subnet = Prefix::containing(address, 24).unwrap();
                InterfaceAddress {
                    interface: interface.to_owned(),
                    address: OwnAddress { address, subnet },
                }
            };
            let [devices, services, bridge] = [
                address_of("eth1.100", "10.1.0.1"),
                address_of("eth1.200", "10.2.0.1"),
                address_of("br0", "10.3.0.1"),
            ];
            let behind = |name: &str| match name {
                "eth1" => vec![devices.clone(), services.clone(), bridge.clone()],
                "eth1.200" => vec![services.clone()],
                "eth2" => vec![bridge.clone()],
                _ => panic!("{name}"),
            };
            let mut missing = Vec::new();
            let (device_side, devices) = section.addresses_by_side(behind, &mut missing);
            assert_eq!((device_side.len(), missing), (3, Vec::new()));
            let subnets = without_contained(addresses::subnets_of(&devices));
            let texts: Vec<String> = subnets.iter().map(ToString::to_string).collect();
            let warning = section.upper_subnets(&devices, &subnets);
            (texts.join(" "), warning.map(|warning| warning.problem))
        };
        let (subnets, warning) = detect("");
        assert_eq!(subnets, "10.1.0.0/24 10.2.0.0/24 10.3.0.0/24");
        let warning = warning.unwrap();
        for part in [
            "10.1.0.0/24 of eth1.100, 10.2.0.0/24 of eth1.200, 10.3.0.0/24 of br0",
            "device_prefixes = [\"10.1.0.0/24\", \"10.2.0.0/24\", \"10.3.0.0/24\"]",
        ] {
            assert!(warning.contains(part), "{warning}");
        }
        let (subnets, warning) = detect("forward_to = [\"eth1.200\", \"eth2\"]");
        assert_eq!(subnets, "10.1.0.0/24");
        assert!(warning.unwrap().contains("device_prefixes = [\"10.1.0.0/24\"]"));
        let (_, warning) = detect("device_prefixes = [\"10.1.0.0/24\"]");
        assert_eq!(warning, None);
    }

    #[test]
    fn devices_are_in_the_configured_prefixes_or_in_the_subnets_of_the_interfaces() {
        let prefixes = |more: &str| -> Vec<String> {
            let text = format!("[gateway]\nid = 7\n{more}\n{CONTROLLER}");
            let resolved = resolve(&parse(&text)).unwrap();
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
        let (path, problem) = refused(&format!("[gateway]\nid = 7\n{host}\n{CONTROLLER}"));
        assert_eq!(path, "gateway");
        assert!(
            problem.contains("device_prefixes is missing") && problem.contains("203.0.113.77"),
            "{problem}"
        );
        for (prefixes, reason) in [
            ("", "1 to 16"),
            ("\"10.0.0.0/8\", \"10.0.0.0/8\"", "occurs twice"),
        ] {
            let (path, problem) = refused(&format!(
                "[gateway]\nid = 7\ninterfaces = [\"lo\"]\ndevice_prefixes = [{prefixes}]\n{CONTROLLER}"
            ));
            assert_eq!(path, "gateway.device_prefixes");
            assert!(problem.contains(reason), "{problem}");
        }
        let wrong = format!("[gateway]\nid = 7\ndevice_prefixes = [\"10.0.0.1/8\"]\n{CONTROLLER}");
        let error = toml::from_str::<GatewayConfig>(&wrong).unwrap_err().to_string();
        assert!(error.contains("write 10.0.0.0/8"), "{error}");
    }
}
