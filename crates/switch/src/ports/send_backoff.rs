//! Backoff and timeout of a sender with a full queue.

use std::time::{Duration, Instant};

use super::sys;

/// Maximum wait between two flushes. Gigabit Ethernet sends about 15,000 frames of 64 bytes in this time, so a
/// temporarily full queue has space before the timeout.
const WAIT_MAX: Duration = Duration::from_millis(10);
/// Pause between two attempts. A driver sends no notification when its queue has space again.
const PAUSE: Duration = Duration::from_micros(50);

/// Waits for a temporarily full queue, but not for a queue that stays full because its link is slower than the traffic:
/// waiting for that queue would slow down all other ports.
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

    /// Resets the backoff after a flush. After a timeout, [`Self::pause`] waits again only after a flush in which the queue
    /// was not full.
    pub(super) fn reset(&mut self) {
        self.exhausted &= self.was_full;
        self.was_full = false;
        self.full_since = None;
    }
}
