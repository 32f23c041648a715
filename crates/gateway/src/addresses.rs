//! Which addresses an interface has, and which number.

use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;

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

/// The addresses of an interface, IPv6 link-local ones left out: devices could not reach them across a router, and
/// they need a scope.
///
/// # Errors
/// No such interface, or it has none.
pub fn of_interface(name: &str) -> Result<Vec<IpAddr>, InterfaceError> {
    index(name)?;
    let addresses: Vec<IpAddr> = getifaddrs()
        .map_err(InterfaceError::List)?
        .filter(|entry| entry.interface_name == name)
        .filter_map(|entry| entry.address)
        .filter_map(|address| {
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        })
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
