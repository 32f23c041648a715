//! Backoff and timeout of a sender with a full queue.

use std::time::{Duration, Instant};

use super::sys;

/// Maximum wait between two flushes: about 10,000 frames of Gigabit Ethernet, longer than a temporarily full queue
/// needs.
const WAIT_MAX: Duration = Duration::from_millis(10);
/// Pause between two attempts. A driver sends no notification when its queue has space again.
const PAUSE: Duration = Duration::from_micros(50);

/// Waits for a temporarily full queue, but not for a queue that stays full because its link is slower than the traffic: that
/// would slow down all other ports.
#[derive(Debug, Default)]
pub(super) struct SendBackoff {
    full_since: Option<Instant>,
    exhausted: bool,
    /// Whether the queue was full since the last flush.
    was_full: bool,
}

impl SendBackoff {
    /// Pauses before another attempt; false after the timeout.
    pub(super) fn pause(&mut self) -> bool {
        self.was_full = true;
        if self.exhausted {
            return false;
        }
        let since = self.full_since.get_or_insert_with(Instant::now);
        self.exhausted = since.elapsed() >= WAIT_MAX;
        !self.exhausted && sys::poll(&mut [], Some(PAUSE)).is_ok()
    }

    /// Called after a flush. Waiting is allowed again only if this flush did not wait.
    pub(super) fn reset(&mut self) {
        self.exhausted &= self.was_full;
        self.was_full = false;
        self.full_since = None;
    }
}
