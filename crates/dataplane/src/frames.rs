//! Sends whole frames from user space: replies of the slow path in `xdp`.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// A packet socket (packet(7)) that only sends.
#[derive(Debug)]
pub(crate) struct FrameSender {
    socket: OwnedFd,
}

impl FrameSender {
    /// Opens the socket in the calling thread's network namespace. Needs CAP_NET_RAW.
    pub(crate) fn open() -> io::Result<Self> {
        // Protocol 0: nothing is received.
        // SAFETY: takes no pointer.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened; no other owner exists.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let sender = Self { socket };
        // With this option, frames bypass the queueing discipline, as the frames of the XDP program do. Otherwise the
        // egress program of a sealed gate would drop an unsealed frame.
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
    pub(crate) fn send(&self, ifindex: u32, frame: &[u8]) -> io::Result<()> {
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
