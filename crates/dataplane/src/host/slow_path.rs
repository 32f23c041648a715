//! The `host` part of the slow path: messages that threads hand to user space.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::origin::{MacSource, Origin};
use crate::miss::Miss;
use crate::timestamps::Timestamps;
use crate::wake_fd::WakeFd;

/// Maximum number of messages that wait for user space. Further messages are dropped, and their senders repeat them.
const WAITING_MAX: usize = 4096;

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
