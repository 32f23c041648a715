//! Sends ATTEST_REQUESTs (LAP/1 3.2) from the gateway's own addresses and the LAP port, so that each PROOF returns to
//! the address and port where the packet path expects PROOFs.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use linewarden_protocol::wire::AttestRequest;
use zerocopy::IntoBytes as _;

use crate::error::DataPlaneError;

/// Maximum number of requests per system call.
const REQUESTS_PER_CALL: usize = 64;

/// The sockets from which ATTEST_REQUESTs are sent, all in one network namespace.
#[derive(Debug)]
pub(crate) struct AttestRequestSender<S> {
    /// By local address. This sender receives nothing on these sockets.
    sockets: Vec<(IpAddr, S)>,
    /// Sockets that find the source address of a route, for IPv4 and IPv6. `None`: the family has at most one socket.
    route_probes: [Option<UdpSocket>; 2],
}

impl<S: AsFd> AttestRequestSender<S> {
    /// Uses sockets that are bound to these addresses. The calling thread must be in the network namespace of the sockets.
    pub(crate) fn new(sockets: Vec<(IpAddr, S)>) -> io::Result<Self> {
        let has_several = |v4| sockets.iter().filter(|(ip, _)| ip.is_ipv4() == v4).count() > 1;
        let probe = |is_needed: bool, any: IpAddr| {
            let open = || {
                let probe = UdpSocket::bind((any, 0))?;
                discard_received(probe.as_fd())?;
                Ok::<_, io::Error>(probe)
            };
            is_needed.then(open).transpose()
        };
        let route_probes = [
            probe(has_several(true), Ipv4Addr::UNSPECIFIED.into())?,
            probe(has_several(false), Ipv6Addr::UNSPECIFIED.into())?,
        ];
        Ok(Self {
            sockets,
            route_probes,
        })
    }

    /// Sends the requests in order until the kernel has no room or cannot send one. Returns how many were sent.
    ///
    /// # Errors
    /// The first request cannot be sent, for example because no route or no address of its family exists. Continue
    /// with the next request.
    pub(crate) fn send_requests(
        &self,
        requests: &[(SocketAddr, AttestRequest)],
    ) -> Result<usize, DataPlaneError> {
        let mut sent = 0;
        while let Some((to, _)) = requests.get(sent) {
            let result = match self.socket_for(to) {
                Some(socket) => {
                    let remaining = requests.get(sent..).unwrap_or_default();
                    let uses_same_socket = |(to, _): &&(SocketAddr, AttestRequest)| {
                        self.socket_for(to)
                            .is_some_and(|candidate| candidate.as_raw_fd() == socket.as_raw_fd())
                    };
                    let batch_len = 1 + remaining
                        .iter()
                        .take(REQUESTS_PER_CALL)
                        .skip(1)
                        .take_while(uses_same_socket)
                        .count();
                    send_batch(socket, remaining.get(..batch_len).unwrap_or_default())
                }
                None => Err(io::ErrorKind::AddrNotAvailable.into()),
            };
            match result {
                Ok(count) => sent += count,
                Err(error) if is_temporary(&error) => break,
                Err(error) if sent == 0 => {
                    return Err(DataPlaneError::kernel(
                        format!("sending ATTEST_REQUEST to {to}"),
                        error,
                    ));
                }
                // The failing request is the first one of the next call.
                Err(_) => break,
            }
        }
        Ok(sent)
    }

    /// The socket from which a request to that address is sent.
    fn socket_for(&self, to: &SocketAddr) -> Option<BorrowedFd<'_>> {
        let of_family = |(ip, _): &&(IpAddr, S)| ip.is_ipv4() == to.is_ipv4();
        let [v4, v6] = &self.route_probes;
        let source = if to.is_ipv4() { v4 } else { v6 };
        let source = source.as_ref().and_then(|probe| source_of_route(probe, to).ok());
        let by_route = source.and_then(|source| self.sockets.iter().find(|(ip, _)| *ip == source));
        let entry = by_route.or_else(|| self.sockets.iter().find(of_family));
        entry.map(|(_, socket)| socket.as_fd())
    }
}

/// Whether sending the same request later can succeed.
fn is_temporary(error: &io::Error) -> bool {
    let temporary_errors = [libc::EAGAIN, libc::ENOBUFS, libc::ENOMEM, libc::EINTR];
    error
        .raw_os_error()
        .is_some_and(|number| temporary_errors.contains(&number))
}

/// The source address that the kernel selects for this destination.
fn source_of_route(probe: &UdpSocket, to: &SocketAddr) -> io::Result<IpAddr> {
    // A connected socket keeps its local address, even when it connects to another destination. Therefore the socket is
    // disconnected first.
    // SAFETY: all zeros is a valid sockaddr, of no family.
    let unspecified: libc::sockaddr = unsafe { std::mem::zeroed() };
    let bytes = size_of::<libc::sockaddr>() as libc::socklen_t;
    // SAFETY: `unspecified` is valid for its size during the call.
    unsafe { libc::connect(probe.as_raw_fd(), &raw const unspecified, bytes) };
    probe.connect(to)?;
    Ok(probe.local_addr()?.ip())
}

/// Sends requests with one system call. Returns how many the kernel accepted, at least one.
fn send_batch(socket: BorrowedFd<'_>, requests: &[(SocketAddr, AttestRequest)]) -> io::Result<usize> {
    let mut names: Vec<_> = requests.iter().map(|(to, _)| sockaddr(*to)).collect();
    let part = |(_, request): &(SocketAddr, AttestRequest)| libc::iovec {
        iov_base: request.as_bytes().as_ptr().cast_mut().cast(),
        iov_len: size_of::<AttestRequest>(),
    };
    let mut parts: Vec<libc::iovec> = requests.iter().map(part).collect();
    let to_header =
        |((name, bytes), part): (&mut (libc::sockaddr_in6, libc::socklen_t), &mut libc::iovec)| {
            // SAFETY: all zeros is a valid mmsghdr.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_name = (&raw mut *name).cast();
            message.msg_hdr.msg_namelen = *bytes;
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            message
        };
    let mut messages: Vec<libc::mmsghdr> = names.iter_mut().zip(&mut parts).map(to_header).collect();
    // SAFETY: the messages point to names and parts, and the parts point to requests. The call only reads all of them, and
    // they outlive the call.
    let sent = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            messages.len() as libc::c_uint,
            libc::MSG_DONTWAIT,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// A socket that sends datagrams and receives none, for data planes whose packets reach no socket. The address of the
/// socket need not be configured yet. Sockets of this kind can share an address, so that one gateway can take over from
/// another gateway. A socket without SO_REUSEADDR cannot share this address.
pub(crate) fn send_only_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let (family, level, freebind) = match address {
        SocketAddr::V4(_) => (libc::AF_INET, libc::SOL_IP, libc::IP_FREEBIND),
        SocketAddr::V6(_) => (libc::AF_INET6, libc::SOL_IPV6, libc::IPV6_FREEBIND),
    };
    // SAFETY: takes no pointer.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened; no other owner exists.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // The filter is attached before the socket has a port, so that no datagram is ever queued.
    discard_received(socket.as_fd())?;
    set_option(&socket, level, freebind, &1i32)?;
    set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1i32)?;
    if address.is_ipv6() {
        set_option(&socket, libc::SOL_IPV6, libc::IPV6_V6ONLY, &1i32)?;
    }
    let (name, bytes) = sockaddr(address);
    // SAFETY: `name` holds a socket address of that many bytes.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const name).cast(), bytes) } {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the kernel drop every datagram for a socket before the datagram uses memory.
fn discard_received(socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut accept_no_byte = libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let program = libc::sock_fprog {
        len: 1,
        filter: &raw mut accept_no_byte,
    };
    set_option(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

fn set_option<T>(socket: &impl AsFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    let bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is valid for its size during the call, and the call copies the data to which the value points.
    match unsafe { libc::setsockopt(fd, level, name, (&raw const *value).cast(), bytes) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A socket address in the kernel's format, and its length.
pub(crate) fn sockaddr(address: SocketAddr) -> (libc::sockaddr_in6, libc::socklen_t) {
    // SAFETY: all zeros is a valid sockaddr_in6, and a sockaddr_in is shorter and made of integers as well.
    let mut name: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    match (address.ip(), &address) {
        (IpAddr::V4(ip), _) => {
            // SAFETY: sockaddr_in fits into sockaddr_in6, which is aligned at least as strictly.
            let v4 = unsafe { &mut *(&raw mut name).cast::<libc::sockaddr_in>() };
            v4.sin_family = libc::AF_INET as libc::sa_family_t;
            v4.sin_port = address.port().to_be();
            v4.sin_addr.s_addr = u32::from_ne_bytes(ip.octets());
            (name, size_of::<libc::sockaddr_in>() as libc::socklen_t)
        }
        (IpAddr::V6(ip), full) => {
            name.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            name.sin6_port = address.port().to_be();
            name.sin6_addr.s6_addr = ip.octets();
            if let SocketAddr::V6(v6) = full {
                name.sin6_scope_id = v6.scope_id();
            }
            (name, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
        }
    }
}
