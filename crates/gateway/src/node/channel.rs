//! Questions to the controller, one of a kind at a time.

use super::backoff::Backoff;
use crate::time::Clock;

/// One kind of question: whether one is out, and when the next may be asked.
#[derive(Debug, Default)]
pub(super) struct Channel {
    pub(super) out: bool,
    pub(super) done: bool,
    /// When the one that is out was asked, boot-time clock.
    pub(super) asked_ns: u64,
    pub(super) backoff: Backoff,
    /// The answer that is out is of a registry that is gone.
    void: bool,
}

impl Channel {
    pub(super) fn is_free(&self, now_ns: u64) -> bool {
        !self.out && !self.done && self.backoff.is_due(now_ns)
    }

    /// Nothing that was asked before counts.
    pub(super) fn void(&mut self) {
        self.void = self.out;
        self.done = false;
    }

    /// The answer is here; whether it counts.
    pub(super) fn close(&mut self) -> bool {
        self.out = false;
        !std::mem::take(&mut self.void)
    }

    /// Asks, if it is free.
    pub(super) fn try_ask(&mut self, clock: Clock) -> bool {
        let is_free = self.is_free(clock.monotonic_ns);
        if is_free {
            self.out = true;
            self.asked_ns = clock.boot_ns;
        }
        is_free
    }
}
