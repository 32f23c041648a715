//! Datagrams of local programs, sealed under the session's key on their way to a service behind a sealed gate, and the
//! service's, opened (LAP/1 1.4.7).
//!
//! ```text
//!  program ──► listener ──► flow's socket ══ DATA_UP ══► service's address, LAP's port   (the gate opens it)
//!  program ◄── listener ◄── flow's socket ◄═ DATA_DOWN ═ service's address and port      (the gate has sealed it)
//! ```
//! Each local peer of a listener is a *flow* with a socket, and so a port, of its own towards the network, as the
//! service tells peers apart. Numbers are the session's and shared by all flows. Without a session datagrams are
//! dropped, as on any link that is down: UDP's users repeat.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};

use linewarden_protocol::device::Device;
use linewarden_protocol::device_end::DeviceEnd;
use linewarden_socket::kernel_drops;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};

use crate::agent::AgentError;
use crate::ends::Ends;
use crate::report::TunnelCounts;

/// Local peers at a time, over all tunnels; one more takes the place of the one that was silent for longest.
const FLOWS_MAX: usize = 256;
/// A peer that is silent for so long is forgotten, ms: RFC 4787 wants at least two minutes of a translator.
const FLOW_IDLE_MS: u64 = 180_000;
/// Between two attempts to renew a session whose numbers come to an end, ms.
const RENEW_PAUSE_MS: u64 = 60_000;
/// Datagrams of one socket before the others, and the session, have their turn.
const BATCH: usize = 64;
/// The longest datagram.
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// Local programs' way to one service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Where local programs send.
    pub listen: SocketAddr,
    /// The service, of the family of the gateway's address.
    pub service: SocketAddr,
}

/// One local peer.
#[derive(Debug)]
struct Flow {
    /// Of its tunnel.
    number: usize,
    peer: SocketAddr,
    /// Towards the network, at the device's address.
    socket: UdpSocket,
    port: u16,
    used_ms: u64,
}

impl Flow {
    fn kernel_drops(&self) -> u64 {
        kernel_drops(&self.socket).unwrap_or_default()
    }
}

/// All tunnels of an agent.
#[derive(Debug, Default)]
pub(crate) struct Tunnels {
    listeners: Vec<(Tunnel, UdpSocket)>,
    flows: Vec<Flow>,
    lap_port: u16,
    ends: Ends,
    /// The device's address that the flows' sockets have.
    own: Option<IpAddr>,
    /// When a session whose numbers come to an end is renewed, at the earliest.
    renew_at_ms: u64,
    counts: TunnelCounts,
    /// What the kernel had dropped of flows that are closed.
    dropped_before: u64,
    /// Room for a datagram, and for it sealed.
    buffers: [Vec<u8>; 2],
}

impl Tunnels {
    /// Listens. `lap_port` is where gateways take DATA.
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
            ..Self::default()
        })
    }

    /// What to wait for.
    pub(crate) fn sockets(&self, device: &Device) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listeners = self.listeners.iter().map(|(_, socket)| socket.as_fd());
        let sockets = listeners.chain(self.flows.iter().map(|flow| flow.socket.as_fd()));
        sockets.filter(|_| !device.awaits_prompt_ack())
    }

    /// Where gateways take DATA.
    pub(crate) fn lap_port(&self) -> u16 {
        self.lap_port
    }

    pub(crate) fn counts(&self) -> TunnelCounts {
        let listeners = self.listeners.iter().map(|(_, socket)| kernel_drops(socket));
        let listeners: u64 = listeners.map(io::Result::unwrap_or_default).sum();
        let flows: u64 = self.flows.iter().map(Flow::kernel_drops).sum();
        TunnelCounts {
            kernel_drops: self.dropped_before + listeners + flows,
            ..self.counts
        }
    }

    /// Seals a datagram of the device's own to UDP port `to.port()` of `to.ip()`; its length in `out`.
    pub(crate) fn seal(
        &mut self,
        device: &Device,
        own: IpAddr,
        to: SocketAddr,
        payload: &[u8],
        out: &mut [u8],
    ) -> Option<usize> {
        self.ends.seal(device, own, to, payload, out)?.ok()
    }

    /// Opens what has come from `from` to the device's own port `port`.
    pub(crate) fn open_own<'m>(
        &mut self,
        device: &Device,
        own: IpAddr,
        from: SocketAddr,
        port: u16,
        message: &'m [u8],
    ) -> Option<&'m [u8]> {
        let opened = self.ends.open(device, own, from, message);
        opened
            .filter(|opened| opened.port == port)
            .map(|opened| opened.payload)
    }

    /// Carries what is there, both ways, under the device's session; `own` is its address. Whether the session should
    /// be renewed, because its numbers come to an end.
    ///
    /// While an ACK is about to come all datagrams wait in their sockets: the gateway may have replaced the session, and
    /// what is sealed under the one that the device still has would be lost.
    pub(crate) fn carry(&mut self, device: &Device, own: Option<IpAddr>, now_ms: u64) -> bool {
        if self.listeners.is_empty() || device.awaits_prompt_ack() {
            return false;
        }
        let is_new = own != self.own;
        self.own = own;
        let is_over = |flow: &mut Flow| is_new || now_ms.saturating_sub(flow.used_ms) >= FLOW_IDLE_MS;
        let over = self.flows.extract_if(.., is_over);
        self.dropped_before += over.map(|flow| flow.kernel_drops()).sum::<u64>();
        let mut buffers = std::mem::take(&mut self.buffers);
        let [buffer, message] = &mut buffers;
        self.downwards(device, buffer, now_ms);
        for number in 0..self.listeners.len() {
            self.upwards(number, device, [&mut *buffer, &mut *message], now_ms);
        }
        self.buffers = buffers;
        let renew = self.ends.is_nearly_exhausted() && now_ms >= self.renew_at_ms;
        if renew {
            self.renew_at_ms = now_ms.saturating_add(RENEW_PAUSE_MS);
        }
        renew
    }

    /// Takes what local programs have sent to one listener.
    fn upwards(&mut self, number: usize, device: &Device, [buffer, message]: [&mut [u8]; 2], now_ms: u64) {
        for _ in 0..BATCH {
            let Some((tunnel, listener)) = self.listeners.get(number) else {
                return;
            };
            let (service, received) = (tunnel.service, listener.recv_from(buffer));
            let (length, peer) = match received {
                Ok(received) => received,
                // An ICMP error about an answer to a program that has ended: the next datagram may be another's.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(_) => return,
            };
            let payload = buffer.get(..length).unwrap_or_default();
            let sealed = self
                .own
                .and_then(|own| self.ends.seal(device, own, service, payload, message));
            let sealed = match sealed {
                Some(Ok(bytes)) => message.get(..bytes).unwrap_or_default(),
                Some(Err(error)) => {
                    tracing::debug!(%error, "a datagram was not sealed");
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
                .flow(number, peer, now_ms)
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
            // Once for a run of them: a program that sends too much does so again and again.
            if self.counts.dropped_too_long.is_power_of_two() || self.counts.dropped_too_long == 0 {
                tracing::warn!(
                    %service,
                    bytes,
                    dropped = self.counts.dropped_too_long + 1,
                    "a datagram is too long for the way to the gateway once {} B of seal are added; it was dropped",
                    DeviceEnd::OVERHEAD_BYTES
                );
            }
            self.counts.dropped_too_long += 1;
        } else {
            tracing::debug!(%error, %service, "sending failed");
            self.counts.dropped_unsent += 1;
        }
    }

    /// The flow of a local peer, made if it is new.
    fn flow(&mut self, number: usize, peer: SocketAddr, now_ms: u64) -> io::Result<&Flow> {
        let known = self
            .flows
            .iter()
            .position(|flow| flow.number == number && flow.peer == peer);
        let at = match known {
            Some(at) => at,
            None => {
                let flow = self.new_flow(number, peer)?;
                if self.flows.len() >= FLOWS_MAX {
                    let oldest = self.flows.iter().enumerate().min_by_key(|(_, flow)| flow.used_ms);
                    if let Some((oldest, _)) = oldest {
                        self.dropped_before += self.flows.swap_remove(oldest).kernel_drops();
                    }
                }
                self.flows.push(flow);
                self.flows.len() - 1
            }
        };
        let flow = self.flows.get_mut(at).ok_or(io::ErrorKind::NotFound)?;
        flow.used_ms = now_ms;
        Ok(flow)
    }

    /// A socket at the device's address that never sends fragments, which no sealed gate lets through.
    fn new_flow(&self, number: usize, peer: SocketAddr) -> io::Result<Flow> {
        let own = self.own.ok_or(io::ErrorKind::AddrNotAvailable)?;
        let socket = UdpSocket::bind((own, 0))?;
        socket.set_nonblocking(true)?;
        match own {
            IpAddr::V4(_) => set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO)?,
            IpAddr::V6(_) => set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO)?,
        }
        Ok(Flow {
            number,
            peer,
            port: socket.local_addr()?.port(),
            socket,
            used_ms: 0,
        })
    }

    /// Takes what has come from the network for all flows.
    fn downwards(&mut self, device: &Device, buffer: &mut [u8], now_ms: u64) {
        for flow in &mut self.flows {
            let Some((tunnel, listener)) = self.listeners.get(flow.number) else {
                continue;
            };
            for _ in 0..BATCH {
                let (length, from) = match flow.socket.recv_from(buffer) {
                    Ok(received) => received,
                    // An ICMP error, which anybody may have sent.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                    Err(_) => break,
                };
                let message = buffer.get(..length).unwrap_or_default();
                let opened = self
                    .own
                    .and_then(|own| self.ends.open(device, own, from, message));
                // Only of the service, as if the program had a connected socket, and for this flow's port.
                match opened.filter(|opened| opened.port == flow.port && is_same(from, tunnel.service)) {
                    Some(opened) if listener.send_to(opened.payload, flow.peer).is_ok() => {
                        self.counts.down += 1;
                        flow.used_ms = now_ms;
                    }
                    _ => self.counts.dropped_unopened += 1,
                }
            }
        }
    }
}

/// Address and port; an IPv6 scope does not count.
fn is_same(a: SocketAddr, b: SocketAddr) -> bool {
    (a.ip(), a.port()) == (b.ip(), b.port())
}
