//! Tunnels: datagrams of local programs, sealed under the session key on the path to a service behind a sealed gate,
//! and the service's datagrams, opened (LAP/1 1.4.7).
//!
//! ```text
//!  program ──► listener ──► flow's socket ══ DATA_UP ══► service's address, LAP's port   (the gate opens it)
//!  program ◄── listener ◄── flow's socket ◄═ DATA_DOWN ═ service's address and port      (the gate has sealed it)
//! ```
//! Each local program that sends to a listener is a *flow*. A flow has its own socket towards the network, and therefore its
//! own port, because services identify clients by port. All flows share the session's sequence numbers. Without a session,
//! datagrams are dropped, as on a link that is down.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};

use linewarden_protocol::data_endpoint::DataEndpoint;
use linewarden_protocol::device::Device;
use linewarden_socket::kernel_drops;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};

use crate::error::AgentError;
use crate::event::TunnelCounts;
use crate::retry::{self, RetryTimer};
use crate::session_endpoints::SessionEndpoints;

/// Maximum number of flows of all tunnels; a further flow replaces the flow that was idle longest.
const FLOWS_MAX: usize = 256;
/// Idle time after which a flow is closed, ms. For comparison: RFC 4787 requires that a NAT keeps a mapping for at
/// least two minutes.
const FLOW_IDLE_MS: u64 = 180_000;
/// Longest interval between attempts to renew a session whose sequence numbers run out, ms.
const RENEW_PAUSE_MS: u64 = 60_000;
/// Maximum number of datagrams of one socket before other sockets and the session are served.
const BATCH: usize = 64;
/// Maximum size of a datagram.
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// A tunnel of local programs to one service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Address for local programs.
    pub listen: SocketAddr,
    /// Address of the service, of the same family as the gateway's address.
    pub service: SocketAddr,
}

/// One local program that sends to a tunnel.
#[derive(Debug)]
struct Flow {
    /// Index of the flow's tunnel.
    tunnel: usize,
    /// Address of the local program.
    program: SocketAddr,
    /// Socket towards the network, at the device's address.
    socket: UdpSocket,
    port: u16,
    last_used_ms: u64,
}

impl Flow {
    fn kernel_drops(&self) -> u64 {
        kernel_drops(&self.socket).unwrap_or_default()
    }
}

/// All tunnels of an agent.
#[derive(Debug)]
pub(crate) struct Tunnels {
    listeners: Vec<(Tunnel, UdpSocket)>,
    flows: Vec<Flow>,
    lap_port: u16,
    endpoints: SessionEndpoints,
    /// The device's address, to which the sockets of flows are bound.
    device_address: Option<IpAddr>,
    /// Renewals of a session whose sequence numbers run out.
    renew_retry: RetryTimer,
    counts: TunnelCounts,
    /// Kernel drops of closed flows.
    closed_socket_drops: u64,
    /// Buffers for a datagram, plain and sealed.
    buffers: [Vec<u8>; 2],
}

impl Tunnels {
    /// No tunnels.
    pub(crate) fn empty() -> Self {
        Self {
            listeners: Vec::new(),
            flows: Vec::new(),
            lap_port: 0,
            endpoints: SessionEndpoints::default(),
            device_address: None,
            renew_retry: RetryTimer::every(RENEW_PAUSE_MS),
            counts: TunnelCounts::default(),
            closed_socket_drops: 0,
            buffers: Default::default(),
        }
    }

    /// Opens the listeners. `lap_port` is the gateway's port for DATA.
    pub(crate) fn open(tunnels: &[Tunnel], lap_port: u16) -> Result<Self, AgentError> {
        let listen = |tunnel: &Tunnel| {
            let socket = UdpSocket::bind(tunnel.listen).and_then(|socket| {
                socket.set_nonblocking(true)?;
                Ok(socket)
            });
            let Tunnel { listen, service } = *tunnel;
            let error = |source| AgentError::Listen {
                listen,
                service,
                source,
            };
            Ok((*tunnel, socket.map_err(error)?))
        };
        Ok(Self {
            listeners: tunnels.iter().map(listen).collect::<Result<_, _>>()?,
            lap_port,
            buffers: [vec![0; DATAGRAM_BYTES_MAX], vec![0; DATAGRAM_BYTES_MAX]],
            ..Self::empty()
        })
    }

    /// The sockets to poll.
    pub(crate) fn sockets(&self, device: &Device) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listeners = self.listeners.iter().map(|(_, socket)| socket.as_fd());
        let sockets = listeners.chain(self.flows.iter().map(|flow| flow.socket.as_fd()));
        sockets.filter(|_| !device.awaits_prompt_ack())
    }

    /// The gateway's port for DATA.
    pub(crate) fn lap_port(&self) -> u16 {
        self.lap_port
    }

    pub(crate) fn counts(&self) -> TunnelCounts {
        let listeners = self.listeners.iter().map(|(_, socket)| kernel_drops(socket));
        let listeners: u64 = listeners.map(io::Result::unwrap_or_default).sum();
        let flows: u64 = self.flows.iter().map(Flow::kernel_drops).sum();
        TunnelCounts {
            kernel_drops: self.closed_socket_drops + listeners + flows,
            ..self.counts
        }
    }

    /// Seals a datagram of the agent itself to UDP port `to.port()` of `to.ip()`, into `out`; returns the length of the message.
    pub(crate) fn seal(
        &mut self,
        device: &Device,
        device_address: IpAddr,
        to: SocketAddr,
        payload: &[u8],
        out: &mut [u8],
    ) -> Option<usize> {
        self.endpoints
            .seal(device, device_address, to, payload, out)?
            .ok()
    }

    /// Opens a message from `from` to the agent's own port `port`.
    pub(crate) fn open_for_port<'m>(
        &mut self,
        device: &Device,
        device_address: IpAddr,
        from: SocketAddr,
        port: u16,
        message: &'m [u8],
    ) -> Option<&'m [u8]> {
        let opened = self.endpoints.open(device, device_address, from, message);
        opened
            .filter(|opened| opened.port == port)
            .map(|opened| opened.payload)
    }

    /// Forwards datagrams in both directions under the device's session; `device_address` is the device's address.
    /// Returns whether the session should be renewed because its sequence numbers run out.
    ///
    /// While the device waits for an ACK, all datagrams wait in their sockets: the gateway may have replaced the
    /// session already, and would drop datagrams that are sealed under the old session.
    pub(crate) fn forward(&mut self, device: &Device, device_address: Option<IpAddr>, now_ms: u64) -> bool {
        if self.listeners.is_empty() || device.awaits_prompt_ack() {
            return false;
        }
        let is_address_changed = device_address != self.device_address;
        self.device_address = device_address;
        let is_expired =
            |flow: &mut Flow| is_address_changed || now_ms.saturating_sub(flow.last_used_ms) >= FLOW_IDLE_MS;
        let expired = self.flows.extract_if(.., is_expired);
        self.closed_socket_drops += expired.map(|flow| flow.kernel_drops()).sum::<u64>();
        let mut buffers = std::mem::take(&mut self.buffers);
        let [buffer, message] = &mut buffers;
        self.deliver_to_programs(device, buffer, now_ms);
        for tunnel_index in 0..self.listeners.len() {
            self.send_from_programs(tunnel_index, device, [&mut *buffer, &mut *message], now_ms);
        }
        self.buffers = buffers;
        let is_renewal_due = self.endpoints.is_nearly_exhausted() && self.renew_retry.is_due(now_ms);
        if is_renewal_due {
            self.renew_retry.fail(now_ms, retry::random());
        }
        is_renewal_due
    }

    /// Forwards datagrams from the local programs of one listener.
    fn send_from_programs(
        &mut self,
        tunnel_index: usize,
        device: &Device,
        [buffer, message]: [&mut [u8]; 2],
        now_ms: u64,
    ) {
        for _ in 0..BATCH {
            let Some((tunnel, listener)) = self.listeners.get(tunnel_index) else {
                return;
            };
            let (service, received) = (tunnel.service, listener.recv_from(buffer));
            let (length, program) = match received {
                Ok(received) => received,
                // An ICMP error for a program that has ended: the next datagram may be of another program.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(_) => return,
            };
            let payload = buffer.get(..length).unwrap_or_default();
            let sealed = self.device_address.and_then(|device_address| {
                self.endpoints
                    .seal(device, device_address, service, payload, message)
            });
            let sealed = match sealed {
                Some(Ok(bytes)) => message.get(..bytes).unwrap_or_default(),
                Some(Err(error)) => {
                    tracing::debug!(%error, "sealing a datagram failed");
                    self.counts.dropped_too_long += 1;
                    continue;
                }
                None => {
                    self.counts.dropped_no_session += 1;
                    continue;
                }
            };
            let to = SocketAddr::new(service.ip(), self.lap_port);
            let sent = self
                .flow(tunnel_index, program, now_ms)
                .and_then(|flow| flow.socket.send_to(sealed, to));
            self.count_sent(sent, payload.len(), service);
        }
    }

    fn count_sent(&mut self, sent: io::Result<usize>, bytes: usize, service: SocketAddr) {
        let Err(error) = sent else {
            self.counts.up += 1;
            return;
        };
        if error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error()) {
            // Logged at powers of two: a program that sends long datagrams does so repeatedly.
            if self.counts.dropped_too_long.is_power_of_two() || self.counts.dropped_too_long == 0 {
                tracing::warn!(
                    address = %service,
                    bytes,
                    count = self.counts.dropped_too_long + 1,
                    "datagram dropped: too long for the path to the gateway with {} B of seal",
                    DataEndpoint::OVERHEAD_BYTES
                );
            }
            self.counts.dropped_too_long += 1;
        } else {
            tracing::debug!(%error, address = %service, "sending a tunnel datagram failed");
            self.counts.dropped_unsent += 1;
        }
    }

    /// The flow of a local program; opened if the program has no flow yet.
    fn flow(&mut self, tunnel_index: usize, program: SocketAddr, now_ms: u64) -> io::Result<&Flow> {
        let known_index = self
            .flows
            .iter()
            .position(|flow| flow.tunnel == tunnel_index && flow.program == program);
        let index = match known_index {
            Some(index) => index,
            None => {
                let flow = self.new_flow(tunnel_index, program)?;
                if self.flows.len() >= FLOWS_MAX {
                    let oldest = self
                        .flows
                        .iter()
                        .enumerate()
                        .min_by_key(|(_, flow)| flow.last_used_ms);
                    if let Some((oldest, _)) = oldest {
                        self.closed_socket_drops += self.flows.swap_remove(oldest).kernel_drops();
                    }
                }
                self.flows.push(flow);
                self.flows.len() - 1
            }
        };
        let flow = self.flows.get_mut(index).ok_or(io::ErrorKind::NotFound)?;
        flow.last_used_ms = now_ms;
        Ok(flow)
    }

    /// Opens a socket at the device's address. The socket never sends fragments, because a sealed gate drops fragments.
    fn new_flow(&self, tunnel_index: usize, program: SocketAddr) -> io::Result<Flow> {
        let device_address = self.device_address.ok_or(io::ErrorKind::AddrNotAvailable)?;
        let socket = UdpSocket::bind((device_address, 0))?;
        socket.set_nonblocking(true)?;
        match device_address {
            IpAddr::V4(_) => set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO)?,
            IpAddr::V6(_) => set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO)?,
        }
        Ok(Flow {
            tunnel: tunnel_index,
            program,
            port: socket.local_addr()?.port(),
            socket,
            last_used_ms: 0,
        })
    }

    /// Delivers datagrams from the network for all flows.
    fn deliver_to_programs(&mut self, device: &Device, buffer: &mut [u8], now_ms: u64) {
        for flow in &mut self.flows {
            let Some((tunnel, listener)) = self.listeners.get(flow.tunnel) else {
                continue;
            };
            for _ in 0..BATCH {
                let (length, from) = match flow.socket.recv_from(buffer) {
                    Ok(received) => received,
                    // An ICMP error, which may be forged.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                    Err(_) => break,
                };
                let message = buffer.get(..length).unwrap_or_default();
                let opened = self
                    .device_address
                    .and_then(|device_address| self.endpoints.open(device, device_address, from, message));
                // Only datagrams from the service, as with a connected socket, and for this flow's port are accepted.
                match opened.filter(|opened| opened.port == flow.port && is_same(from, tunnel.service)) {
                    Some(opened) if listener.send_to(opened.payload, flow.program).is_ok() => {
                        self.counts.down += 1;
                        flow.last_used_ms = now_ms;
                    }
                    _ => self.counts.dropped_unopened += 1,
                }
            }
        }
    }
}

/// Whether address and port are equal; an IPv6 scope is ignored.
fn is_same(a: SocketAddr, b: SocketAddr) -> bool {
    (a.ip(), a.port()) == (b.ip(), b.port())
}
