//! Exponential backoff.

/// First delay, ns.
const FIRST_NS: u64 = 50_000_000;
/// Longest delay, ns.
const MAX_NS: u64 = 5_000_000_000;

/// The backoff state of one kind of request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    /// Failures since the last success.
    failures: u32,
    /// No request is sent before this time, monotonic clock.
    until_ns: u64,
}

impl Backoff {
    /// Records a failure; returns whether it is the first since a success.
    pub(crate) fn fail(&mut self, now_ns: u64) -> bool {
        let delay_ns = (FIRST_NS << self.failures.min(16)).min(MAX_NS);
        self.until_ns = now_ns.saturating_add(delay_ns);
        self.failures = self.failures.saturating_add(1);
        self.failures == 1
    }

    /// Records a success; returns whether failures preceded it.
    pub(crate) fn succeed(&mut self) -> bool {
        let recovered = self.failures > 0;
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
    fn delays_double_up_to_the_maximum_and_a_success_resets_them() {
        let mut backoff = Backoff::default();
        assert!(backoff.is_due(0));
        assert!(backoff.fail(0));
        assert!(!backoff.is_due(FIRST_NS - 1));
        assert!(backoff.is_due(FIRST_NS));
        for _ in 0..40 {
            assert!(!backoff.fail(0));
        }
        assert!(backoff.is_due(MAX_NS));
        assert!(!backoff.is_due(MAX_NS - 1));
        assert!(backoff.succeed());
        assert!(!backoff.succeed());
        assert!(backoff.is_due(0));
    }
}
