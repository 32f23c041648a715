//! The socket to the gateway, and the device's own addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use nix::ifaddrs::getifaddrs;

/// Why a socket or interface cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// A socket operation failed.
    #[error("{operation}: {source}")]
    Socket {
        /// The operation.
        operation: &'static str,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// An interface cannot be used.
    #[error("interface {name}: {problem}")]
    Interface {
        /// Name of the interface.
        name: String,
        /// The problem.
        problem: String,
    },
}

/// A socket that is connected to one gateway.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) socket: UdpSocket,
    pub(crate) local: IpAddr,
}

impl Link {
    /// Opens a non-blocking socket; the kernel selects the source address. Sends no packet.
    pub(crate) fn open(gateway: SocketAddr) -> Result<Self, LinkError> {
        let error = |operation| move |source| LinkError::Socket { operation, source };
        let socket = connect(gateway)?;
        socket
            .set_nonblocking(true)
            .map_err(error("making the socket non-blocking failed"))?;
        let local = local_ip(&socket)?;
        Ok(Self { socket, local })
    }
}

/// The source address that the kernel would select for the gateway now.
pub(crate) fn route_source(gateway: SocketAddr) -> Result<IpAddr, LinkError> {
    local_ip(&connect(gateway)?)
}

/// Opens a socket at an address that the kernel selects, and connects the socket to the gateway. Sends no packet.
fn connect(gateway: SocketAddr) -> Result<UdpSocket, LinkError> {
    let error = |operation| move |source| LinkError::Socket { operation, source };
    let unspecified: IpAddr = match gateway {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((unspecified, 0)).map_err(error("opening a socket failed"))?;
    socket
        .connect(gateway)
        .map_err(error("finding a route to the gateway failed"))?;
    Ok(socket)
}

fn local_ip(socket: &UdpSocket) -> Result<IpAddr, LinkError> {
    let local = socket.local_addr().map_err(|source| LinkError::Socket {
        operation: "reading the socket's address failed",
        source,
    })?;
    Ok(local.ip().to_canonical())
}

/// An address as 16 bytes, LAP/1 1.2: IPv4 as ::ffff:a.b.c.d.
pub(crate) fn wire_address(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The MAC address of an interface in the calling thread's network namespace.
///
/// # Errors
/// The interface does not exist, or has no MAC address.
pub fn interface_mac(name: &str) -> Result<[u8; 6], LinkError> {
    let problem = |problem: String| LinkError::Interface {
        name: name.to_owned(),
        problem,
    };
    let mut exists = false;
    for entry in getifaddrs().map_err(|error| problem(error.to_string()))? {
        if entry.interface_name != name {
            continue;
        }
        exists = true;
        let link = entry.address.as_ref().and_then(|address| address.as_link_addr());
        if let Some(mac) = link.and_then(nix::sys::socket::LinkAddr::addr)
            && mac != [0; 6]
        {
            return Ok(mac);
        }
    }
    Err(problem(if exists {
        "no MAC address to bind a session to".to_owned()
    } else {
        "interface not found; `ip link` lists interfaces".to_owned()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_has_the_source_address_of_its_route() {
        let gateway: SocketAddr = "127.0.0.1:20550".parse().unwrap();
        let link = Link::open(gateway).unwrap();
        assert_eq!(link.local, IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert_eq!(route_source(gateway).unwrap(), link.local);
        assert_eq!(wire_address(link.local)[10..], [0xff, 0xff, 127, 0, 0, 1]);
    }

    #[test]
    fn an_interface_without_a_mac_address_is_named() {
        for (name, problem) in [("lo", "no MAC"), ("lw-none0", "not found")] {
            let error = interface_mac(name).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(problem), "{error}");
        }
    }
}
