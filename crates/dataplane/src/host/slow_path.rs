//! The `host` part of the slow path: messages that threads hand to user space, and replies through the threads'
//! sockets.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::engine::{MacSource, Origin, Timestamps};
use super::socket::Socket;
use crate::miss::Miss;
use crate::wake_fd::WakeFd;

/// Maximum number of messages that wait for user space. Further messages are dropped, and their senders repeat them.
const WAITING_MAX: usize = 4096;
/// Size of one control message, in words of 8 bytes: `in6_pktinfo` after its header.
pub(super) const CONTROL_WORDS: usize = 5;

/// The origin of a datagram and the data needed to reply.
#[derive(Clone)]
pub struct ReplyHandle {
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

/// The MAC address of a sender, which was looked up when the message arrived.
pub(super) struct KnownMac(pub(super) u64);

impl MacSource for KnownMac {
    fn sender_mac(&mut self, _: &Origin, _: Timestamps) -> Option<u64> {
        Some(self.0)
    }
    fn refreshed_mac(&mut self, _: &Origin, _: Timestamps, _: u64) -> Option<u64> {
        None
    }
    fn unbound_mac(&mut self) -> u64 {
        0
    }
}

/// Messages of unknown devices from all threads, and the descriptor that wakes user space.
#[derive(Debug)]
pub(super) struct SlowPath {
    waiting: Mutex<VecDeque<Miss>>,
    wake_fd: WakeFd,
}

impl SlowPath {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            waiting: Mutex::new(VecDeque::new()),
            wake_fd: WakeFd::new()?,
        })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Miss>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, miss: Miss) {
        let mut waiting = self.lock();
        if waiting.len() < WAITING_MAX {
            waiting.push_back(miss);
        }
    }

    pub(super) fn take(&self) -> VecDeque<Miss> {
        std::mem::take(&mut *self.lock())
    }

    /// Wakes user space if it waits.
    pub(super) fn wake(&self, listening: &AtomicU64) {
        if listening.swap(0, AcqRel) != 0 {
            self.wake_fd.signal();
        }
    }

    /// Resets the wake descriptor before user space waits again.
    pub(super) fn reset_wake(&self) {
        self.wake_fd.reset();
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wake_fd.fd()
    }
}
