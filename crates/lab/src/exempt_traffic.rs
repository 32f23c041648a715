//! Sockets of the service that receive traffic which the gate exempts (neighbor discovery and DHCP): the ports of DHCP servers
//! and clients, and ICMPv6.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

/// Byte pattern that attackers put into messages that imitate exempt traffic.
pub(crate) const ATTACK_PATTERN: &[u8; 16] = b"in a disguise\0\0\0";
/// UDP ports of DHCP servers.
const DHCP_PORT: u16 = 67;
const DHCP_V6_PORT: u16 = 547;
/// UDP ports of DHCP clients.
const DHCP_CLIENT_PORT: u16 = 68;
const DHCP_V6_CLIENT_PORT: u16 = 546;
/// How long the drain datagram is retried.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The sockets. Without IPv6 in the kernel only the IPv4 sockets are open.
#[derive(Debug)]
pub(crate) struct ExemptTrafficSockets {
    dhcp: UdpSocket,
    other_sockets: Vec<UdpSocket>,
}

impl ExemptTrafficSockets {
    /// Opens the sockets in the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<Self> {
        let dhcp = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, DHCP_PORT))?;
        let other_sockets: Vec<_> = [
            UdpSocket::bind((Ipv4Addr::UNSPECIFIED, DHCP_CLIENT_PORT)),
            UdpSocket::bind((Ipv6Addr::UNSPECIFIED, DHCP_V6_PORT)),
            UdpSocket::bind((Ipv6Addr::UNSPECIFIED, DHCP_V6_CLIENT_PORT)),
            raw_icmpv6(),
        ]
        .into_iter()
        .flatten()
        .collect();
        for socket in other_sockets.iter().chain([&dhcp]) {
            socket.set_nonblocking(true)?;
        }
        Ok(Self { dhcp, other_sockets })
    }

    /// Messages with [`ATTACK_PATTERN`] that have arrived since the previous call. `neighbor`, a socket in the same
    /// namespace, sends a datagram that is received after all earlier datagrams; `None` if that datagram does not
    /// arrive.
    pub(crate) fn count(&self, neighbor: &UdpSocket) -> Option<u64> {
        let mut count = self.other_sockets.iter().map(|socket| drain(socket).0).sum();
        let start = Instant::now();
        while start.elapsed() < DRAIN_TIMEOUT {
            let _ = neighbor.send_to(b"drain", (Ipv4Addr::LOCALHOST, DHCP_PORT));
            let (with_pattern, without_pattern) = drain(&self.dhcp);
            count += with_pattern;
            if without_pattern > 0 {
                return Some(count);
            }
        }
        None
    }
}

/// Receives all messages; returns how many contain [`ATTACK_PATTERN`] and how many do not.
fn drain(socket: &UdpSocket) -> (u64, u64) {
    let (mut with_pattern, mut without_pattern) = (0, 0);
    let mut buffer = [0; 2048];
    while let Ok((bytes, _)) = socket.recv_from(&mut buffer) {
        let message = buffer.get(..bytes).unwrap_or_default();
        match message
            .windows(ATTACK_PATTERN.len())
            .any(|window| window == ATTACK_PATTERN)
        {
            true => with_pattern += 1,
            false => without_pattern += 1,
        }
    }
    (with_pattern, without_pattern)
}

/// A raw ICMPv6 socket, which receives a copy of each message before the kernel validates it; read like a UDP socket.
fn raw_icmpv6() -> io::Result<UdpSocket> {
    // SAFETY: no pointer is passed.
    let fd = unsafe {
        libc::socket(
            libc::AF_INET6,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            libc::IPPROTO_ICMPV6,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was opened here and has no other owner.
    Ok(UdpSocket::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}
