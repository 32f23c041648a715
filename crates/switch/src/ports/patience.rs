//! How long a sender waits for a full queue.

use std::time::{Duration, Instant};

use super::sys;

/// The most from one flush to the next: some 10,000 frames of Gigabit Ethernet, longer than any queue needs that is full for
/// a moment only.
const WAIT_MAX: Duration = Duration::from_millis(10);
/// Between two tries. A driver's full queue tells nobody when it has room again.
const PAUSE: Duration = Duration::from_micros(50);

/// A queue that is full for a moment is waited for; one that stays full, of a link that is slower than what is sent there, is
/// not, or it would slow down all other ports.
#[derive(Debug, Default)]
pub(super) struct Patience {
    since: Option<Instant>,
    exhausted: bool,
    /// The queue was full since the last flush.
    troubled: bool,
}

impl Patience {
    /// Pauses a little, for another try; false when it has been waited for long enough.
    pub(super) fn pause(&mut self) -> bool {
        self.troubled = true;
        if self.exhausted {
            return false;
        }
        let since = self.since.get_or_insert_with(Instant::now);
        self.exhausted = since.elapsed() >= WAIT_MAX;
        !self.exhausted && sys::poll(&mut [], Some(PAUSE)).is_ok()
    }

    /// A flush has ended. Waiting begins anew only when it went without.
    pub(super) fn renew(&mut self) {
        self.exhausted &= self.troubled;
        self.troubled = false;
        self.since = None;
    }
}
