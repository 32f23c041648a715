//! A socket of the device's own, whose messages go plainly or inside DATA (LAP/1 1.7.2).
//!
//! Inside DATA is the way through a sealed gate; past any other gate they go plainly. The device does not know which gate
//! there is, so whoever uses the socket says how each message goes, and is told how each came.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};

use linewarden_protocol::device::Device;
use linewarden_protocol::wire::{self, DATA_HEADER_BYTES};
use linewarden_socket::kernel_drops;

use crate::tunnel::Tunnels;

/// Whose seal, and at which address of the device's.
pub(crate) struct Seal<'a> {
    pub(crate) device: &'a Device,
    pub(crate) tunnels: &'a mut Tunnels,
    pub(crate) own: IpAddr,
}

/// What has come.
pub(crate) struct Received<'b> {
    pub(crate) message: &'b [u8],
    pub(crate) from: SocketAddr,
    pub(crate) sealed: bool,
}

/// A socket that follows the device's address.
pub(crate) struct OwnSocket {
    port: u16,
    bound: Option<(IpAddr, UdpSocket)>,
    /// What the kernel had dropped of sockets before this one.
    dropped_before: u64,
}

impl OwnSocket {
    /// At that UDP port; 0 for any.
    pub(crate) fn new(port: u16) -> Self {
        Self {
            port,
            bound: None,
            dropped_before: 0,
        }
    }

    /// Datagrams that the kernel has dropped, for want of room in the receive buffer.
    pub(crate) fn kernel_drops(&self) -> u64 {
        let bound = self.bound.as_ref();
        let drops = bound.and_then(|(_, socket)| kernel_drops(socket).ok());
        self.dropped_before + drops.unwrap_or_default()
    }

    /// What to wait for.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.bound.as_ref().map(|(_, socket)| socket.as_fd())
    }

    /// Opens the socket unless it is open at that address already.
    pub(crate) fn bind(&mut self, own: IpAddr) -> io::Result<&UdpSocket> {
        if self.bound.as_ref().is_none_or(|(bound, _)| *bound != own) {
            self.dropped_before = self.kernel_drops();
            self.bound = None;
            let socket = UdpSocket::bind((own, self.port))?;
            socket.set_nonblocking(true)?;
            self.bound = Some((own, socket));
        }
        let (_, socket) = self.bound.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        Ok(socket)
    }

    /// Sends as it is.
    pub(crate) fn send_plain(&self, message: &[u8], to: SocketAddr) -> io::Result<()> {
        let (_, socket) = self.bound.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        socket.send_to(message, to).map(drop)
    }

    /// The next datagram as it is: its length, and where it is from.
    pub(crate) fn receive_plain(&self, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
        let (_, socket) = self.bound.as_ref()?;
        received(socket, buffer)
    }

    /// Sends to UDP port `to.port()` of `to.ip()`.
    pub(crate) fn send(
        &mut self,
        seal: &mut Seal<'_>,
        to: SocketAddr,
        sealed: bool,
        message: &[u8],
    ) -> io::Result<()> {
        let socket = self.bind(seal.own)?;
        if !sealed {
            return socket.send_to(message, to).map(drop);
        }
        let mut out = vec![0; DATA_HEADER_BYTES + message.len()];
        let length = seal
            .tunnels
            .seal(seal.device, seal.own, to, message, &mut out)
            .ok_or(io::ErrorKind::NotConnected)?;
        let gate = SocketAddr::new(to.ip(), seal.tunnels.lap_port());
        socket
            .send_to(out.get(..length).unwrap_or_default(), gate)
            .map(drop)
    }

    /// The next message that has come to the device's present address; an empty one where something inside DATA did not
    /// open.
    pub(crate) fn receive<'b>(&self, seal: &mut Seal<'_>, buffer: &'b mut [u8]) -> Option<Received<'b>> {
        let (bound, socket) = self.bound.as_ref()?;
        let port = socket.local_addr().ok().filter(|_| *bound == seal.own)?.port();
        let (length, from) = received(socket, buffer)?;
        let came = buffer.get(..length)?;
        let sealed = came.starts_with(&wire::MAGIC.to_be_bytes());
        let message = match sealed {
            false => came,
            true => seal
                .tunnels
                .open_own(seal.device, seal.own, from, port, came)
                .unwrap_or_default(),
        };
        Some(Received {
            message,
            from,
            sealed,
        })
    }
}

fn received(socket: &UdpSocket, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
    loop {
        match socket.recv_from(buffer) {
            Ok(received) => return Some(received),
            // An ICMP error, which anybody may have sent.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(_) => return None,
        }
    }
}
