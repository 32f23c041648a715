//! Which addresses an interface has, in which subnets, and which number.

use std::net::IpAddr;

use linewarden_protocol::sources::Prefix;
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
pub struct OwnAddress {
    /// The interface that has it.
    pub interface: String,
    /// The address.
    pub address: IpAddr,
    /// The subnet that it is in.
    pub subnet: Prefix,
}

/// Bits of the prefix of link-local addresses (RFC 4291 2.4).
const LINK_LOCAL_BITS: u8 = 10;

/// All addresses of the calling thread's network namespace.
///
/// # Errors
/// The kernel gives no list.
pub fn own() -> Result<Vec<OwnAddress>, InterfaceError> {
    let entries = getifaddrs().map_err(InterfaceError::List)?;
    let own = |entry: nix::ifaddrs::InterfaceAddress| {
        let address = ip(entry.address.as_ref()?)?;
        let bits = entry.netmask.as_ref().and_then(ip).map_or(0, |mask| match mask {
            IpAddr::V4(mask) => mask.to_bits().count_ones(),
            IpAddr::V6(mask) => mask.to_bits().count_ones(),
        });
        Some(OwnAddress {
            subnet: Prefix::around(address, u8::try_from(bits).ok()?)?,
            interface: entry.interface_name,
            address,
        })
    };
    Ok(entries.filter_map(own).collect())
}

/// The subnets of an interface, for the devices behind it; with IPv6 the link-local one too, where every host is (RFC 4861). `None`:
/// it has no address, but perhaps a link-local one.
#[must_use]
pub fn subnets_of(own: &[OwnAddress], interface: &str) -> Option<Vec<Prefix>> {
    let here: Vec<_> = own.iter().filter(|own| own.interface == interface).collect();
    let is_link_local =
        |own: &OwnAddress| matches!(own.address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let routed = here.iter().filter(|own| !is_link_local(own));
    let mut subnets: Vec<Prefix> = routed.map(|own| own.subnet).collect();
    if subnets.is_empty() {
        return None;
    }
    let link_local = here.iter().find(|own| is_link_local(own));
    subnets.extend(link_local.and_then(|own| Prefix::around(own.address, LINK_LOCAL_BITS)));
    Some(subnets)
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
        .map(|own| own.address)
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

    #[test]
    fn devices_are_in_the_subnets_of_their_interface() {
        let own = |interface: &str, address: &str, bits| OwnAddress {
            interface: interface.to_owned(),
            address: address.parse().unwrap(),
            subnet: Prefix::around(address.parse().unwrap(), bits).unwrap(),
        };
        let own = [
            own("eth1", "192.0.2.1", 25),
            own("eth1", "2001:db8::1", 64),
            own("eth1", "fe80::1", 64),
            own("eth2", "fe80::2", 64),
            own("eth3", "10.0.0.1", 8),
        ];
        let subnets = |name| {
            let found = subnets_of(&own, name)?;
            Some(
                found
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(" "),
            )
        };
        assert_eq!(subnets("eth1").unwrap(), "192.0.2.0/25 2001:db8::/64 fe80::/10");
        assert_eq!(subnets("eth3").unwrap(), "10.0.0.0/8");
        assert_eq!((subnets("eth2"), subnets("eth4")), (None, None));
        let lo = super::own().unwrap();
        assert!(
            subnets_of(&lo, "lo")
                .unwrap()
                .contains(&"127.0.0.0/8".parse().unwrap())
        );
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
