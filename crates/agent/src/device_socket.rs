//! A UDP socket at the device's address, whose messages are sent plainly or inside DATA (LAP/1 1.7.2).
//!
//! Messages must be inside DATA to pass a sealed gate, and plain to pass any other gate. The device does not know the type of
//! the gate, so the caller selects the form of each sent message, and the socket reports the form of each received message.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};

use linewarden_protocol::device::Device;
use linewarden_protocol::wire::{self, DATA_HEADER_BYTES};
use linewarden_socket::kernel_drops;

use crate::tunnel::Tunnels;

/// The context for sealing: device, tunnels and the device's address.
pub(crate) struct SealContext<'a> {
    pub(crate) device: &'a Device,
    pub(crate) tunnels: &'a mut Tunnels,
    pub(crate) device_address: IpAddr,
}

/// A received message.
pub(crate) struct Received<'b> {
    pub(crate) message: &'b [u8],
    pub(crate) from: SocketAddr,
    /// Whether the message was inside DATA.
    pub(crate) sealed: bool,
}

/// A socket that follows the device's address.
pub(crate) struct DeviceSocket {
    port: u16,
    bound: Option<(IpAddr, UdpSocket)>,
    /// Kernel drops of closed sockets.
    closed_socket_drops: u64,
}

impl DeviceSocket {
    /// Creates a socket for that UDP port; 0 for any.
    pub(crate) fn new(port: u16) -> Self {
        Self {
            port,
            bound: None,
            closed_socket_drops: 0,
        }
    }

    /// Datagrams that the kernel dropped because the receive buffer was full.
    pub(crate) fn kernel_drops(&self) -> u64 {
        let bound = self.bound.as_ref();
        let drops = bound.and_then(|(_, socket)| kernel_drops(socket).ok());
        self.closed_socket_drops + drops.unwrap_or_default()
    }

    /// The descriptor to poll.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.bound.as_ref().map(|(_, socket)| socket.as_fd())
    }

    /// Opens the socket at the device's address, if it is not open there already.
    pub(crate) fn bind(&mut self, device_address: IpAddr) -> io::Result<&UdpSocket> {
        if self
            .bound
            .as_ref()
            .is_none_or(|(bound, _)| *bound != device_address)
        {
            self.closed_socket_drops = self.kernel_drops();
            self.bound = None;
            let socket = UdpSocket::bind((device_address, self.port))?;
            socket.set_nonblocking(true)?;
            self.bound = Some((device_address, socket));
        }
        let (_, socket) = self.bound.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        Ok(socket)
    }

    /// Sends a message plainly.
    pub(crate) fn send_plain(&self, message: &[u8], to: SocketAddr) -> io::Result<()> {
        let (_, socket) = self.bound.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        socket.send_to(message, to).map(drop)
    }

    /// Receives a datagram unchanged: its length and sender.
    pub(crate) fn receive_plain(&self, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
        let (_, socket) = self.bound.as_ref()?;
        receive_datagram(socket, buffer)
    }

    /// Sends a message to UDP port `to.port()` of `to.ip()`, plainly or inside DATA.
    pub(crate) fn send(
        &mut self,
        seal: &mut SealContext<'_>,
        to: SocketAddr,
        sealed: bool,
        message: &[u8],
    ) -> io::Result<()> {
        let socket = self.bind(seal.device_address)?;
        if !sealed {
            return socket.send_to(message, to).map(drop);
        }
        let mut out = vec![0; DATA_HEADER_BYTES + message.len()];
        let length = seal
            .tunnels
            .seal(seal.device, seal.device_address, to, message, &mut out)
            .ok_or(io::ErrorKind::NotConnected)?;
        let lap_address = SocketAddr::new(to.ip(), seal.tunnels.lap_port());
        socket
            .send_to(out.get(..length).unwrap_or_default(), lap_address)
            .map(drop)
    }

    /// The next message to the device's present address; an empty message if DATA did not verify.
    pub(crate) fn receive<'b>(
        &self,
        seal: &mut SealContext<'_>,
        buffer: &'b mut [u8],
    ) -> Option<Received<'b>> {
        let (bound, socket) = self.bound.as_ref()?;
        let port = socket
            .local_addr()
            .ok()
            .filter(|_| *bound == seal.device_address)?
            .port();
        let (length, from) = receive_datagram(socket, buffer)?;
        let datagram = buffer.get(..length)?;
        let sealed = datagram.starts_with(&wire::MAGIC.to_be_bytes());
        let message = match sealed {
            false => datagram,
            true => seal
                .tunnels
                .open_for_port(seal.device, seal.device_address, from, port, datagram)
                .unwrap_or_default(),
        };
        Some(Received {
            message,
            from,
            sealed,
        })
    }
}

fn receive_datagram(socket: &UdpSocket, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
    loop {
        match socket.recv_from(buffer) {
            Ok(received) => return Some(received),
            // An ICMP error, which may be forged.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(_) => return None,
        }
    }
}
