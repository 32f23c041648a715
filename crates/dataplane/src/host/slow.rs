//! The slow path's beginning and end: what threads hand to user space, and how it answers from their sockets.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::engine::{MacSource, Moment, Origin};
use super::socket::Socket;
use crate::bell::Bell;
use crate::miss::Miss;

/// Messages that may wait for user space; further ones are dropped, and their senders repeat.
const WAITING_MAX: usize = 4096;
/// Room for one control message: `in6_pktinfo` behind its header.
pub(super) const CONTROL_WORDS: usize = 5;

/// How a datagram came and how the answer to it goes back.
#[derive(Clone)]
pub struct Letter {
    pub(super) socket: Arc<Socket>,
    pub(super) from: Origin,
    pub(super) name: libc::sockaddr_in6,
    pub(super) name_bytes: libc::socklen_t,
    pub(super) control: [u64; CONTROL_WORDS],
    pub(super) control_bytes: usize,
    /// Of a BOUND message: the sender's.
    pub(super) mac: u64,
}

impl std::fmt::Debug for Letter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Letter")
            .field("from", &self.from)
            .finish_non_exhaustive()
    }
}

impl Letter {
    /// Sends a datagram back, from the address that was asked.
    pub(super) fn answer(&self, payload: &[u8]) -> io::Result<()> {
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
        // SAFETY: the header points to the name, the part with the payload and the control words, which the call only
        // reads and which live until it returns.
        let sent = unsafe { libc::sendmsg(self.socket.raw_fd(), &raw const header, 0) };
        match sent < 0 {
            true => Err(io::Error::last_os_error()),
            false => Ok(()),
        }
    }
}

/// What was found out about the sender's MAC address when its message came.
pub(super) struct Known(pub(super) u64);

impl MacSource for Known {
    fn bound(&mut self, _: &Origin, _: Moment) -> Option<u64> {
        Some(self.0)
    }
    fn refreshed(&mut self, _: &Origin, _: Moment, _: u64) -> Option<u64> {
        None
    }
    fn unbound(&mut self) -> u64 {
        0
    }
}

/// Messages of unknown devices, of all threads, and the bell that wakes user space.
#[derive(Debug)]
pub(super) struct SlowPath {
    waiting: Mutex<VecDeque<Miss>>,
    bell: Bell,
}

impl SlowPath {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            waiting: Mutex::new(VecDeque::new()),
            bell: Bell::new()?,
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

    /// Wakes user space if it sleeps.
    pub(super) fn ring(&self, listening: &AtomicU64) {
        if listening.swap(0, AcqRel) != 0 {
            self.bell.ring();
        }
    }

    /// Silences the bell, to listen again.
    pub(super) fn silence(&self) {
        self.bell.silence();
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }
}
