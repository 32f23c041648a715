//! When a request may be sent after failures.

use std::time::Duration;

use linewarden_protocol::backoff::Backoff;

/// The first and the longest delay.
const FIRST: Duration = Duration::from_millis(50);
const MAX: Duration = Duration::from_secs(5);

/// The retries of one kind of request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryTimer {
    backoff: Backoff,
    /// No request is sent before this time, monotonic clock.
    until_ns: u64,
}

impl Default for RetryTimer {
    fn default() -> Self {
        Self {
            backoff: Backoff::new(FIRST, MAX),
            until_ns: 0,
        }
    }
}

impl RetryTimer {
    /// Records a failure; returns whether it is the first since a success. `random` selects the delay.
    pub(crate) fn fail(&mut self, now_ns: u64, random: u64) -> bool {
        let is_first = self.backoff.failures() == 0;
        let delay_ns = u64::try_from(self.backoff.next(random).as_nanos()).unwrap_or(u64::MAX);
        self.until_ns = now_ns.saturating_add(delay_ns);
        is_first
    }

    /// Records a success; returns whether failures preceded it.
    pub(crate) fn succeed(&mut self) -> bool {
        let recovered = self.backoff.failures() > 0;
        *self = Self::default();
        recovered
    }

    /// Returns when a request that is due at `requested_ns` may be sent.
    pub(crate) fn due_ns(&self, requested_ns: u64) -> u64 {
        requested_ns.max(self.until_ns)
    }

    /// Whether a request may be sent.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.until_ns <= now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_after_a_failure_until_its_delay_has_passed() {
        let (first_ns, max_ns) = (FIRST.as_nanos() as u64, MAX.as_nanos() as u64);
        let mut timer = RetryTimer::default();
        assert!(timer.is_due(0));
        assert!(timer.fail(0, 0));
        assert!(!timer.is_due(first_ns / 2 - 1));
        assert!(timer.is_due(first_ns / 2));
        for _ in 0..40 {
            assert!(!timer.fail(0, u64::MAX));
        }
        assert!(timer.is_due(max_ns));
        assert!(!timer.is_due(max_ns - 2));
        assert!(timer.succeed());
        assert!(!timer.succeed());
        assert!(timer.is_due(0));
    }
}
