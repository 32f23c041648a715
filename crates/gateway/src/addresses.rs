//! Which addresses an interface has, in which subnets, and which number.

use std::net::IpAddr;

use linewarden_dataplane::Links;
use linewarden_protocol::sources::{OwnAddress, Prefix};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::SockaddrStorage;

/// Why an interface cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// No such interface.
    #[error("there is no interface {name}; `ip link` lists them")]
    Unknown {
        /// The name asked for.
        name: String,
    },
    /// No address that devices could send to.
    #[error("interface {name} has no address; give it one, or list `addresses` in the configuration")]
    NoAddress {
        /// The interface.
        name: String,
    },
    /// The kernel gave no list.
    #[error("cannot list the interfaces' addresses: {0}")]
    List(nix::Error),
    /// The kernel gave no list.
    #[error("cannot list the interfaces: {0}")]
    Links(std::io::Error),
}

/// The number of an interface of the calling thread's network namespace.
///
/// # Errors
/// There is none of that name.
pub fn index(name: &str) -> Result<u32, InterfaceError> {
    if_nametoindex(name).map_err(|_| InterfaceError::Unknown {
        name: name.to_owned(),
    })
}

/// An address of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The interface that has it.
    pub interface: String,
    /// The address.
    pub own: OwnAddress,
}

impl InterfaceAddress {
    fn is_link_local(&self) -> bool {
        matches!(self.own.address, IpAddr::V6(v6) if v6.is_unicast_link_local())
    }

    /// The subnet has room for another host; on the loopback interface devices have the gateway's own address.
    fn has_subnet(&self) -> bool {
        let width = if self.own.address.is_ipv4() { 32 } else { 128 };
        self.own.subnet.bits() < width || self.own.address.is_loopback()
    }
}

/// Bits of the prefix of link-local addresses (RFC 4291 2.4).
const LINK_LOCAL_BITS: u8 = 10;

/// All addresses of the calling thread's network namespace.
///
/// # Errors
/// The kernel gives no list.
pub fn own() -> Result<Vec<InterfaceAddress>, InterfaceError> {
    let entries = getifaddrs().map_err(InterfaceError::List)?;
    let own = |entry: nix::ifaddrs::InterfaceAddress| {
        let address = ip(entry.address.as_ref()?)?;
        // An address without a mask has no subnet.
        let bits = match entry.netmask.as_ref().and_then(ip) {
            Some(IpAddr::V4(mask)) => mask.to_bits().count_ones(),
            Some(IpAddr::V6(mask)) => mask.to_bits().count_ones(),
            None if address.is_ipv4() => 32,
            None => 128,
        };
        let subnet = Prefix::around(address, u8::try_from(bits).ok()?)?;
        // Behind a colon is the label of an address (ip-address(8)).
        let interface = entry.interface_name.split(':').next()?.to_owned();
        Some(InterfaceAddress {
            interface,
            own: OwnAddress { address, subnet },
        })
    };
    Ok(entries.filter_map(own).collect())
}

/// Of this machine's addresses those that frames which come in by an interface may be for: of the interface, of its bridge or bond, and
/// of VLANs and macvlans on any of these. None of an interface that does not exist.
#[must_use]
pub fn behind(own: &[InterfaceAddress], links: &Links, interface: &str) -> Vec<InterfaceAddress> {
    // An interface can be called by an alternative name, which its addresses are not listed under.
    let stack = index(interface).map_or_else(|_| Vec::new(), |index| links.stack_of(index));
    let is_in_stack = |own: &&InterfaceAddress| stack.contains(&&*own.interface);
    own.iter().filter(is_in_stack).cloned().collect()
}

/// The subnets of these addresses, where devices are; with IPv6 the link-local one too, which every host is in (RFC 4861). Empty if all
/// of them are single addresses or link-local.
#[must_use]
pub fn subnets_of(here: &[InterfaceAddress]) -> Vec<Prefix> {
    let routed = here.iter().filter(|own| !own.is_link_local() && own.has_subnet());
    let mut subnets: Vec<Prefix> = routed.map(|own| own.own.subnet).collect();
    if !subnets.is_empty() {
        let link_local = here.iter().find(|own| own.is_link_local());
        subnets.extend(link_local.and_then(|own| Prefix::around(own.own.address, LINK_LOCAL_BITS)));
    }
    subnets
}

/// What these addresses lack: an address in a subnet, of a family that there are only single addresses of. `None`: nothing.
#[must_use]
pub fn without_subnet(here: &[InterfaceAddress]) -> Option<&'static str> {
    if subnets_of(here).is_empty() {
        return Some("address");
    }
    let is_lacking = |v4| {
        let routed = here
            .iter()
            .filter(|own| !own.is_link_local() && own.own.address.is_ipv4() == v4);
        let mut routed = routed.peekable();
        routed.peek().is_some() && !routed.any(InterfaceAddress::has_subnet)
    };
    let families = [("IPv4 address", true), ("IPv6 address", false)];
    families
        .into_iter()
        .find_map(|(name, v4)| is_lacking(v4).then_some(name))
}

/// This machine's addresses that a device could claim: without link-local addresses of interfaces that are not on the devices' side,
/// which name other hosts there.
#[must_use]
pub fn claimable(own: &[InterfaceAddress], here: &[InterfaceAddress]) -> Vec<OwnAddress> {
    let is_claimable = |own: &&InterfaceAddress| !own.is_link_local() || here.contains(own);
    own.iter().filter(is_claimable).map(|own| own.own).collect()
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

/// The addresses of an interface, IPv6 link-local ones left out: devices could not reach them across a router, and
/// they need a scope.
///
/// # Errors
/// No such interface, or it has none.
pub fn of_interface(name: &str) -> Result<Vec<IpAddr>, InterfaceError> {
    index(name)?;
    let addresses: Vec<IpAddr> = own()?
        .into_iter()
        .filter(|own| own.interface == name)
        .map(|own| own.own.address)
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

    fn of(interface: &str, address: &str, bits: u8) -> InterfaceAddress {
        let address = address.parse().unwrap();
        let subnet = Prefix::around(address, bits).unwrap();
        InterfaceAddress {
            interface: interface.to_owned(),
            own: OwnAddress { address, subnet },
        }
    }

    #[test]
    fn devices_are_in_the_subnets_of_their_interface() {
        let subnets = |here: &[InterfaceAddress]| {
            let found = subnets_of(here);
            found
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(" ")
        };
        let eth1 = [
            of("eth1", "192.0.2.1", 25),
            of("eth1", "2001:db8::1", 64),
            of("eth1", "fe80::1", 64),
        ];
        assert_eq!(subnets(&eth1), "192.0.2.0/25 2001:db8::/64 fe80::/10");
        assert_eq!(subnets(&[of("eth2", "fe80::2", 64)]), "");
        let alone = [of("ppp0", "10.0.0.1", 32), of("ppp0", "2001:db8::1", 128)];
        assert_eq!(subnets(&alone), "");
        assert_eq!(without_subnet(&alone), Some("address"));
        assert_eq!(without_subnet(&eth1), None);
        // DHCPv6 gives single addresses.
        let mixed = [of("eth1", "192.0.2.1", 25), of("eth1", "2001:db8::7", 128)];
        assert_eq!(without_subnet(&mixed), Some("IPv6 address"));
        let lo = behind(&own().unwrap(), &Links::list().unwrap(), "lo");
        assert!(subnets_of(&lo).contains(&"127.0.0.0/8".parse().unwrap()));
        assert!(behind(&lo, &Links::list().unwrap(), "lw-none0").is_empty());
    }

    #[test]
    fn link_local_addresses_of_other_interfaces_are_not_counted() {
        let here = [of("eth1", "10.0.0.1", 24), of("eth1", "fe80::1", 64)];
        let mut own = here.to_vec();
        own.extend((1..99).map(|n| of("other", &format!("fe80::5:{n:x}"), 64)));
        own.push(of("eth2", "10.0.1.1", 24));
        let claimable: Vec<String> = claimable(&own, &here)
            .iter()
            .map(|own| own.address.to_string())
            .collect();
        assert_eq!(claimable, ["10.0.0.1", "fe80::1", "10.0.1.1"]);
    }

    #[test]
    fn loopback_has_its_address_and_an_unknown_interface_is_named() {
        assert!(
            of_interface("lo")
                .unwrap()
                .contains(&"127.0.0.1".parse().unwrap())
        );
        let error = of_interface("lw-none0").unwrap_err();
        assert!(error.to_string().contains("lw-none0"), "{error}");
    }
}
