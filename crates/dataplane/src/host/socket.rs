//! The UDP socket of one thread.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use super::options::HostOptions;
use crate::attest_request_sender::sockaddr;

/// A socket that shares its address with the sockets of the other threads (SO_REUSEPORT). The kernel distributes the
/// senders over the sockets.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    /// The address to which the socket is bound.
    address: SocketAddr,
}

/// An operation on a socket failed.
#[derive(Debug, thiserror::Error)]
#[error("{operation} failed for {address}: {source}{hint}")]
pub(crate) struct SocketError {
    operation: &'static str,
    address: SocketAddr,
    source: io::Error,
    hint: &'static str,
}

impl Socket {
    /// Fails if another socket is bound to the address. With SO_REUSEPORT alone both sockets would silently share the
    /// traffic.
    pub(crate) fn check_unused(address: SocketAddr) -> Result<(), SocketError> {
        let socket = Self::open_unbound(address)?;
        socket.bind(address)
    }

    pub(crate) fn open(address: SocketAddr, options: &HostOptions) -> Result<Self, SocketError> {
        let socket = Self::open_unbound(address)?;
        let (level, packet_info, ttl) = if address.is_ipv6() {
            (
                libc::IPPROTO_IPV6,
                libc::IPV6_RECVPKTINFO,
                libc::IPV6_UNICAST_HOPS,
            )
        } else {
            (libc::IPPROTO_IP, libc::IP_PKTINFO, libc::IP_TTL)
        };
        let check = |step, result: io::Result<()>| {
            result.map_err(|source| SocketError {
                operation: step,
                address,
                source,
                hint: "",
            })
        };
        check(
            "setting SO_REUSEPORT",
            socket.set(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1),
        )?;
        check("enabling packet information", socket.set(level, packet_info, 1))?;
        check("setting the time to live", socket.set(level, ttl, 64))?;
        socket.set_buffers(options);
        if let Some(busy_poll_us) = options.busy_poll_us {
            let microseconds = i32::try_from(busy_poll_us).unwrap_or(i32::MAX);
            if let Err(error) = socket.set(libc::SOL_SOCKET, libc::SO_BUSY_POLL, microseconds) {
                tracing::warn!(%address, %error, "host data plane: enabling busy polling failed; it needs CAP_NET_ADMIN");
            }
        }
        socket.bind(address)?;
        Ok(socket)
    }

    fn open_unbound(address: SocketAddr) -> Result<Self, SocketError> {
        let is_v6 = address.is_ipv6();
        let family = if is_v6 { libc::AF_INET6 } else { libc::AF_INET };
        let error = |source| SocketError {
            operation: "opening a socket",
            address,
            source,
            hint: "",
        };
        // SAFETY: takes no pointer.
        let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(error(io::Error::last_os_error()));
        }
        let socket = Self {
            // SAFETY: just opened; no other owner exists.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            address,
        };
        if is_v6 {
            // Without this option `::` would also receive IPv4, with mapped addresses.
            socket
                .set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)
                .map_err(error)?;
        }
        Ok(socket)
    }

    /// Sets the size of the receive buffer, which stores a burst while the thread is not scheduled. Only CAP_NET_ADMIN
    /// permits more than the system's limit.
    fn set_buffers(&self, options: &HostOptions) {
        let bytes = i32::try_from(options.receive_buffer_bytes).unwrap_or(i32::MAX);
        if self.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes).is_err() {
            // Without the capability the kernel grants at most net.core.rmem_max; this is not an error.
            let _ = self.set(libc::SOL_SOCKET, libc::SO_RCVBUF, bytes);
        }
    }

    fn set(&self, level: i32, name: i32, value: i32) -> io::Result<()> {
        // SAFETY: the value is an int, valid for its size during the call.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                name,
                (&raw const value).cast(),
                size_of::<i32>() as libc::socklen_t,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    fn bind(&self, address: SocketAddr) -> Result<(), SocketError> {
        let (name, length) = sockaddr(address);
        // SAFETY: `name` holds a socket address of `length` bytes.
        let result = unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const name).cast(), length) };
        if result == 0 {
            return Ok(());
        }
        let source = io::Error::last_os_error();
        let hint = match source.raw_os_error() {
            Some(libc::EADDRINUSE) => {
                "; another process uses the address: check whether a second gateway runs on this machine"
            }
            Some(libc::EADDRNOTAVAIL) => "; configure the address on an interface of this machine",
            Some(libc::EACCES) => "; a port below 1024 needs CAP_NET_BIND_SERVICE",
            _ => "",
        };
        Err(SocketError {
            operation: "binding a socket",
            address,
            source,
            hint,
        })
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(super) fn ip(&self) -> IpAddr {
        self.address.ip()
    }

    /// Whether the socket is bound to all addresses. Each reply must then select its source address.
    pub(crate) fn is_wildcard(&self) -> bool {
        self.ip().is_unspecified()
    }

    /// Wakes the thread that waits on the socket. The socket receives nothing afterwards.
    pub(crate) fn shut_down(&self) {
        // For an unconnected socket the call fails with ENOTCONN, but the socket is shut down.
        // SAFETY: takes no pointer.
        unsafe { libc::shutdown(self.fd.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
