//! Addresses, subnets and indexes of interfaces.

use std::net::IpAddr;

use linewarden_dataplane::Links;
use linewarden_protocol::sources::{OwnAddress, Prefix};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::SockaddrStorage;

/// The reason why an interface cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// The interface does not exist.
    #[error("interface {name} does not exist; `ip link` lists all interfaces")]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// The interface has no address to which devices could send.
    #[error("interface {name} has no address; assign one, or set `addresses` in the configuration")]
    NoAddress {
        /// The interface.
        name: String,
    },
    /// Listing the addresses failed.
    #[error("listing the addresses of interfaces failed: {0}")]
    List(nix::Error),
    /// Listing the interfaces failed.
    #[error("listing the interfaces failed: {0}")]
    Links(std::io::Error),
}

/// Returns the index of an interface of the calling thread's network namespace.
///
/// # Errors
/// The interface does not exist.
pub fn index(name: &str) -> Result<u32, InterfaceError> {
    if_nametoindex(name).map_err(|_| InterfaceError::Unknown {
        name: name.to_owned(),
    })
}

/// An address of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The interface.
    pub interface: String,
    /// The address.
    pub address: OwnAddress,
}

impl InterfaceAddress {
    fn is_link_local(&self) -> bool {
        matches!(self.address.address, IpAddr::V6(v6) if v6.is_unicast_link_local())
    }

    /// Whether the subnet has room for another host, or devices have the gateway's own address, as on the loopback
    /// interface.
    fn has_subnet(&self) -> bool {
        let width = if self.address.address.is_ipv4() { 32 } else { 128 };
        self.address.subnet.bits() < width || self.address.address.is_loopback()
    }
}

/// Prefix length of link-local addresses (RFC 4291 2.4).
const LINK_LOCAL_BITS: u8 = 10;

/// Returns all addresses of the calling thread's network namespace.
///
/// # Errors
/// The kernel returns no list.
pub fn machine_addresses() -> Result<Vec<InterfaceAddress>, InterfaceError> {
    let entries = getifaddrs().map_err(InterfaceError::List)?;
    let interface_address = |entry: nix::ifaddrs::InterfaceAddress| {
        let address = ip(entry.address.as_ref()?)?;
        // An address without a mask has no subnet.
        let bits = match entry.netmask.as_ref().and_then(ip) {
            Some(IpAddr::V4(mask)) => mask.to_bits().count_ones(),
            Some(IpAddr::V6(mask)) => mask.to_bits().count_ones(),
            None if address.is_ipv4() => 32,
            None => 128,
        };
        let subnet = Prefix::containing(address, u8::try_from(bits).ok()?)?;
        // The part after a colon is the label of an address (ip-address(8)).
        let interface = entry.interface_name.split(':').next()?.to_owned();
        Some(InterfaceAddress {
            interface,
            address: OwnAddress { address, subnet },
        })
    };
    Ok(entries.filter_map(interface_address).collect())
}

/// Returns the machine's addresses that frames received on an interface may have as destination: of the interface, of
/// its bridge or bond, and of VLANs and macvlans on any of these. Empty if the interface does not exist.
#[must_use]
pub fn addresses_behind(own: &[InterfaceAddress], links: &Links, interface: &str) -> Vec<InterfaceAddress> {
    // Addresses are not listed under an interface's alternative name.
    let stack = index(interface).map_or_else(|_| Vec::new(), |index| links.stack_of(index));
    let is_in_stack = |own: &&InterfaceAddress| stack.contains(&&*own.interface);
    own.iter().filter(is_in_stack).cloned().collect()
}

/// Returns the subnets of these addresses, in which devices are. With IPv6 this includes the link-local subnet, which
/// contains every host (RFC 4861). Empty if all addresses are single addresses or link-local.
#[must_use]
pub fn subnets_of(addresses: &[InterfaceAddress]) -> Vec<Prefix> {
    let routed = addresses
        .iter()
        .filter(|own| !own.is_link_local() && own.has_subnet());
    let mut subnets: Vec<Prefix> = routed.map(|own| own.address.subnet).collect();
    if !subnets.is_empty() {
        let link_local = addresses.iter().find(|own| own.is_link_local());
        subnets.extend(link_local.and_then(|own| Prefix::containing(own.address.address, LINK_LOCAL_BITS)));
    }
    subnets
}

/// Returns the kind of address that has no subnet: "address" if no address has a subnet, otherwise the family that has
/// single addresses only. `None` if no subnet is missing.
#[must_use]
pub fn without_subnet(addresses: &[InterfaceAddress]) -> Option<&'static str> {
    if subnets_of(addresses).is_empty() {
        return Some("address");
    }
    let lacks_subnet = |v4| {
        let routed = addresses
            .iter()
            .filter(|own| !own.is_link_local() && own.address.address.is_ipv4() == v4);
        let mut routed = routed.peekable();
        routed.peek().is_some() && !routed.any(InterfaceAddress::has_subnet)
    };
    let families = [("IPv4 address", true), ("IPv6 address", false)];
    families
        .into_iter()
        .find_map(|(name, v4)| lacks_subnet(v4).then_some(name))
}

/// Returns the machine's addresses that a device could claim. Link-local addresses of interfaces that are not on the
/// devices' side are omitted, because they belong to other hosts on that side.
#[must_use]
pub fn claimable(own: &[InterfaceAddress], device_side: &[InterfaceAddress]) -> Vec<OwnAddress> {
    let is_claimable = |own: &&InterfaceAddress| !own.is_link_local() || device_side.contains(own);
    own.iter().filter(is_claimable).map(|own| own.address).collect()
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

/// Returns the addresses of an interface, except IPv6 link-local addresses: devices could not reach these across a
/// router, and they need a scope.
///
/// # Errors
/// The interface does not exist, or has no address.
pub fn interface_addresses(name: &str) -> Result<Vec<IpAddr>, InterfaceError> {
    index(name)?;
    let addresses: Vec<IpAddr> = machine_addresses()?
        .into_iter()
        .filter(|own| own.interface == name)
        .map(|own| own.address.address)
        .filter(|ip| !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local()))
        .collect();
    if addresses.is_empty() {
        return Err(InterfaceError::NoAddress {
            name: name.to_owned(),
        });
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address_on(interface: &str, address: &str, bits: u8) -> InterfaceAddress {
        let address = address.parse().unwrap();
        let subnet = Prefix::containing(address, bits).unwrap();
        InterfaceAddress {
            interface: interface.to_owned(),
            address: OwnAddress { address, subnet },
        }
    }

    #[test]
    fn devices_are_in_the_subnets_of_their_interface() {
        let subnets = |addresses: &[InterfaceAddress]| {
            let prefixes = subnets_of(addresses);
            prefixes
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(" ")
        };
        let eth1 = [
            address_on("eth1", "192.0.2.1", 25),
            address_on("eth1", "2001:db8::1", 64),
            address_on("eth1", "fe80::1", 64),
        ];
        assert_eq!(subnets(&eth1), "192.0.2.0/25 2001:db8::/64 fe80::/10");
        assert_eq!(subnets(&[address_on("eth2", "fe80::2", 64)]), "");
        let alone = [
            address_on("ppp0", "10.0.0.1", 32),
            address_on("ppp0", "2001:db8::1", 128),
        ];
        assert_eq!(subnets(&alone), "");
        assert_eq!(without_subnet(&alone), Some("address"));
        assert_eq!(without_subnet(&eth1), None);
        // DHCPv6 assigns single addresses.
        let mixed = [
            address_on("eth1", "192.0.2.1", 25),
            address_on("eth1", "2001:db8::7", 128),
        ];
        assert_eq!(without_subnet(&mixed), Some("IPv6 address"));
        let lo = addresses_behind(&machine_addresses().unwrap(), &Links::list().unwrap(), "lo");
        assert!(subnets_of(&lo).contains(&"127.0.0.0/8".parse().unwrap()));
        assert!(addresses_behind(&lo, &Links::list().unwrap(), "lw-none0").is_empty());
    }

    #[test]
    fn link_local_addresses_of_other_interfaces_are_not_counted() {
        let device_side = [
            address_on("eth1", "10.0.0.1", 24),
            address_on("eth1", "fe80::1", 64),
        ];
        let mut own = device_side.to_vec();
        own.extend((1..99).map(|n| address_on("other", &format!("fe80::5:{n:x}"), 64)));
        own.push(address_on("eth2", "10.0.1.1", 24));
        let claimable: Vec<String> = claimable(&own, &device_side)
            .iter()
            .map(|own| own.address.to_string())
            .collect();
        assert_eq!(claimable, ["10.0.0.1", "fe80::1", "10.0.1.1"]);
    }

    #[test]
    fn loopback_has_its_address_and_an_unknown_interface_is_named() {
        assert!(
            interface_addresses("lo")
                .unwrap()
                .contains(&"127.0.0.1".parse().unwrap())
        );
        let error = interface_addresses("lw-none0").unwrap_err();
        assert!(error.to_string().contains("lw-none0"), "{error}");
    }
}
