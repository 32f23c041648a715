//! Replies to datagrams that user space handles.

use std::io;
use std::sync::Arc;

use super::origin::Origin;
use super::socket::Socket;

/// Size of one control message, in words of 8 bytes: `in6_pktinfo` after its header.
pub(super) const CONTROL_WORDS: usize = 5;

/// The origin of a datagram and the data needed to reply.
#[derive(Clone)]
pub(crate) struct ReplyHandle {
    pub(super) socket: Arc<Socket>,
    pub(super) from: Origin,
    pub(super) name: libc::sockaddr_in6,
    pub(super) name_bytes: libc::socklen_t,
    pub(super) control: [u64; CONTROL_WORDS],
    pub(super) control_bytes: usize,
    /// MAC address of the sender of a BOUND message; otherwise 0.
    pub(super) mac: u64,
}

impl std::fmt::Debug for ReplyHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplyHandle")
            .field("from", &self.from)
            .finish_non_exhaustive()
    }
}

impl ReplyHandle {
    /// Sends a datagram to the sender, from the address to which the message was sent.
    pub(super) fn send(&self, payload: &[u8]) -> io::Result<()> {
        let mut part = libc::iovec {
            iov_base: payload.as_ptr().cast_mut().cast(),
            iov_len: payload.len(),
        };
        // SAFETY: all zeros is a valid msghdr.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = (&raw const self.name).cast_mut().cast();
        header.msg_namelen = self.name_bytes;
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        if self.socket.is_wildcard() {
            header.msg_control = self.control.as_ptr().cast_mut().cast();
            header.msg_controllen = self.control_bytes as _;
        }
        // SAFETY: the header points to the name, the part with the payload and the control words. The call only reads them,
        // and they live until the call returns.
        let sent = unsafe { libc::sendmsg(self.socket.raw_fd(), &raw const header, 0) };
        match sent < 0 {
            true => Err(io::Error::last_os_error()),
            false => Ok(()),
        }
    }
}
