//! Which addresses an interface has, in which subnets, and which number.

use std::net::IpAddr;

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
    /// Nor did it of the interfaces.
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

    /// There is room for another host beside it; on the loopback interface the devices have the very address.
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
        // Without a mask it is alone.
        let bits = match entry.netmask.as_ref().and_then(ip) {
            Some(IpAddr::V4(mask)) => mask.to_bits().count_ones(),
            Some(IpAddr::V6(mask)) => mask.to_bits().count_ones(),
            None if address.is_ipv4() => 32,
            None => 128,
        };
        let subnet = Prefix::around(address, u8::try_from(bits).ok()?)?;
        Some(InterfaceAddress {
            interface: entry.interface_name,
            own: OwnAddress { address, subnet },
        })
    };
    Ok(entries.filter_map(own).collect())
}

/// Those addresses that frames which come in by an interface may be for, and whether it is a port of a bridge or bond: its own, those of
/// its bridge or bond, and of VLANs and macvlans on either.
///
/// # Errors
/// The kernel gives no list of interfaces.
pub fn behind(
    own: &[InterfaceAddress],
    interface: &str,
) -> Result<(Vec<InterfaceAddress>, bool), InterfaceError> {
    let (members, is_port) =
        linewarden_dataplane::stack_of(index(interface)?).map_err(InterfaceError::Links)?;
    let is_member = |own: &&InterfaceAddress| {
        own.interface == interface || index(&own.interface).is_ok_and(|index| members.contains(&index))
    };
    Ok((own.iter().filter(is_member).cloned().collect(), is_port))
}

/// The subnets of these addresses, for the devices in them; with IPv6 the link-local one too, where every host is (RFC 4861). Empty:
/// there is none, but perhaps the link-local one.
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

/// These addresses without link-local ones of other links, which no device could be reached at.
#[must_use]
pub fn reached_from(own: &[InterfaceAddress], here: &[InterfaceAddress]) -> Vec<OwnAddress> {
    let is_reached = |own: &&InterfaceAddress| !own.is_link_local() || here.contains(own);
    own.iter().filter(is_reached).map(|own| own.own).collect()
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
        // Nobody else has room there.
        let alone = [of("ppp0", "10.0.0.1", 32), of("ppp0", "2001:db8::1", 128)];
        assert_eq!(subnets(&alone), "");
        let (lo, is_port) = behind(&own().unwrap(), "lo").unwrap();
        assert!(!is_port && subnets_of(&lo).contains(&"127.0.0.0/8".parse().unwrap()));
    }

    #[test]
    fn link_local_addresses_of_other_links_are_no_device_s_business() {
        let here = [of("eth1", "10.0.0.1", 24), of("eth1", "fe80::1", 64)];
        let mut own = here.to_vec();
        own.extend((1..99).map(|n| of("other", &format!("fe80::5:{n:x}"), 64)));
        own.push(of("eth2", "10.0.1.1", 24));
        let reached: Vec<String> = reached_from(&own, &here)
            .iter()
            .map(|own| own.address.to_string())
            .collect();
        assert_eq!(reached, ["10.0.0.1", "fe80::1", "10.0.1.1"]);
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
