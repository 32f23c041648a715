//! Answers that user space gives in the program's place, sent out of the interface that the message came in by.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use linewarden_protocol::frame;
use linewarden_protocol::wire::MESSAGE_BYTES;

use super::LOOPBACK;
use crate::{ask, miss};

/// A packet socket that only sends.
#[derive(Debug)]
pub(super) struct Sender {
    socket: OwnedFd,
}

impl Sender {
    /// In the calling thread's network namespace.
    pub(super) fn open() -> io::Result<Self> {
        // Protocol 0: nothing is received.
        // SAFETY: takes no pointer.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened and owned by nobody else.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let sender = Self { socket };
        // Past the queueing discipline, as what the program itself sends goes: a sealed gate's egress program lets no
        // other datagram out unsealed.
        let bypass: libc::c_int = 1;
        // SAFETY: the value is an int, valid for its size during the call.
        let result = unsafe {
            libc::setsockopt(
                sender.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_QDISC_BYPASS,
                (&raw const bypass).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(sender)
    }

    /// Sends a frame out of an interface.
    pub(super) fn send(&self, ifindex: u32, frame: &[u8]) -> io::Result<()> {
        if ifindex == LOOPBACK {
            return send_by_stack(frame);
        }
        // SAFETY: all zeros is a valid sockaddr_ll.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as libc::sa_family_t;
        to.sll_ifindex = i32::try_from(ifindex).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the frame and the address are valid for their sizes during the call.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        match sent < 0 {
            true => Err(io::Error::last_os_error()),
            false => Ok(()),
        }
    }
}

/// On the loopback interface the kernel takes a frame to 127.0.0.0/8 only from its own output path.
fn send_by_stack(frame: &[u8]) -> io::Result<()> {
    let malformed = || io::Error::from(io::ErrorKind::InvalidInput);
    let (parsed, at) = miss::datagram(frame).ok_or_else(malformed)?;
    let (ip, udp) = parsed.datagram().ok_or_else(malformed)?;
    let payload = frame.get(at..at + MESSAGE_BYTES).ok_or_else(malformed)?;
    // What comes to this port never reaches a socket: the program takes it.
    let socket = UdpSocket::from(ask::exit_only((ip.src, udp.src_port).into())?);
    socket.send_to(payload, (ip.dst, udp.dst_port)).map(drop)
}

/// The frame as the reply to itself; `None` if it holds no message.
pub(super) fn reply_to(frame: &[u8], message: &[u8; MESSAGE_BYTES]) -> Option<Vec<u8>> {
    let (parsed, at) = miss::datagram(frame)?;
    let mut reply = frame.to_vec();
    reply.get_mut(at..at + MESSAGE_BYTES)?.copy_from_slice(message);
    frame::turn_round(&mut reply, &parsed)?;
    Some(reply)
}
