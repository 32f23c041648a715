//! When an operation is attempted again after failures.

use std::time::Duration;

use linewarden_protocol::backoff::Backoff;

/// The time of the next attempt, ms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryTimer {
    backoff: Backoff,
    due_ms: u64,
}

impl RetryTimer {
    /// The first attempt is due at once. The delays grow from `first_ms` to `max_ms`, less the jitter.
    pub(crate) const fn new((first_ms, max_ms): (u64, u64)) -> Self {
        Self {
            backoff: Backoff::new(Duration::from_millis(first_ms), Duration::from_millis(max_ms)),
            due_ms: 0,
        }
    }

    /// Attempts at one interval, less the jitter.
    pub(crate) const fn every(interval_ms: u64) -> Self {
        Self::new((interval_ms, interval_ms))
    }

    /// When the next attempt is due, ms.
    pub(crate) const fn due_ms(&self) -> u64 {
        self.due_ms
    }

    pub(crate) const fn is_due(&self, now_ms: u64) -> bool {
        self.due_ms <= now_ms
    }

    /// The longest delay after the next failure, ms.
    pub(crate) fn delay_ms_max(&self) -> u64 {
        milliseconds(self.backoff.delay_max())
    }

    /// Records a failure; returns the delay before the next attempt, ms. `random` selects the delay.
    pub(crate) fn fail(&mut self, now_ms: u64, random: u64) -> u64 {
        let delay_ms = milliseconds(self.backoff.next(random));
        self.due_ms = now_ms.saturating_add(delay_ms);
        delay_ms
    }

    /// Records a success; the next attempt is due at once.
    pub(crate) const fn succeed(&mut self) {
        self.succeed_until(0);
    }

    /// Records a success; the next attempt is due at `due_ms`.
    pub(crate) const fn succeed_until(&mut self, due_ms: u64) {
        self.backoff.reset();
        self.due_ms = due_ms;
    }
}

pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A random number for the delay of a retry. If the kernel has none, only the jitter is missing.
pub(crate) fn random() -> u64 {
    getrandom::u64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_up_to_the_maximum_and_a_success_resets_them() {
        let mut timer = RetryTimer::new((1_000, 5_000));
        assert!(timer.is_due(0));
        for (full, random) in [
            (1_000, 0),
            (2_000, 1 << 63),
            (4_000, 0),
            (5_000, 1 << 63),
            (5_000, 0),
        ] {
            assert_eq!(timer.delay_ms_max(), full);
            let delay_ms = timer.fail(7, random);
            assert_eq!(delay_ms, if random == 0 { full / 2 } else { full * 3 / 4 });
            assert!(!timer.is_due(6 + delay_ms) && timer.is_due(7 + delay_ms));
        }
        timer.succeed();
        assert!(timer.is_due(0));
        assert_eq!(timer.delay_ms_max(), 1_000);
        timer.succeed_until(9);
        assert!(!timer.is_due(8) && timer.is_due(9));
    }
}
