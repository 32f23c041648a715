//! Delays between attempts: exponential backoff with jitter.

use core::time::Duration;

/// The delay before the next attempt of an operation that failed.
///
/// The longest delay doubles with each failure from `first` to `max`. *Equal jitter* selects the delay at random between
/// half of the longest delay and the longest delay. Clients that fail at the same moment, for example because a
/// controller restarts, therefore do not retry at the same moment. The lower bound of a half keeps a client from
/// retrying at once, as *full jitter* would allow. Source of both terms: M. Brooker, "Exponential Backoff And Jitter",
/// AWS Architecture Blog, 2015.
///
/// Randomness is an argument. It need not be secret, but must differ between clients.
///
/// ```
/// use core::time::Duration;
/// use linewarden_protocol::backoff::Backoff;
///
/// let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
/// assert_eq!(backoff.next(0), Duration::from_millis(50));
/// assert_eq!(backoff.next(1 << 63), Duration::from_millis(150));
/// backoff.reset();
/// assert!(backoff.next(u64::MAX) < Duration::from_millis(100));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    /// Creates the state before the first failure. With `first` equal to `max`, only the jitter varies the delay.
    #[must_use]
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self {
            first,
            max,
            failures: 0,
        }
    }

    /// The number of failures since the last reset.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// Sets the number of failures, for callers that count failures themselves.
    #[must_use]
    pub const fn after(self, failures: u32) -> Self {
        Self { failures, ..self }
    }

    /// The longest delay after the next failure.
    #[must_use]
    pub fn delay_max(&self) -> Duration {
        let factor = 1u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.max)
    }

    /// Records a failure; returns the longest delay. For protocols that specify another jitter, or none.
    pub fn next_max(&mut self) -> Duration {
        let delay_max = self.delay_max();
        self.failures = self.failures.saturating_add(1);
        delay_max
    }

    /// Records a failure; returns the delay. `random` is uniformly distributed.
    pub fn next(&mut self, random: u64) -> Duration {
        let delay_max = self.next_max();
        let half = delay_max / 2;
        half + random_part(delay_max - half, random)
    }

    /// Records a success: the delay after the next failure is `first`, less the jitter.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Returns a uniformly distributed duration, shorter than `limit` (at most 584 years), from a uniformly distributed
/// number.
#[must_use]
pub fn random_part(limit: Duration, random: u64) -> Duration {
    let limit_ns = limit.as_nanos().min(u128::from(u64::MAX));
    // Below `limit_ns`, and therefore below 2^64.
    Duration::from_nanos(((limit_ns * u128::from(random)) >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NANOSECOND: Duration = Duration::from_nanos(1);

    /// A backoff with `first` at most `max`, as all users have.
    fn backoff() -> impl Strategy<Value = Backoff> {
        let ns = 1..3_600_000_000_000u64;
        (ns.clone(), ns)
            .prop_map(|(a, b)| Backoff::new(Duration::from_nanos(a.min(b)), Duration::from_nanos(a.max(b))))
    }

    proptest! {
        #[test]
        fn delays_are_between_a_half_and_the_longest_delay(
            mut backoff in backoff(),
            randoms in prop::collection::vec(any::<u64>(), 1..80),
        ) {
            for random in randoms {
                let delay_max = backoff.delay_max();
                let delay = backoff.next(random);
                prop_assert!(delay_max / 2 <= delay && delay <= delay_max);
            }
        }

        #[test]
        fn the_longest_delay_doubles_up_to_the_maximum(mut backoff in backoff()) {
            let (first, max) = (backoff.first, backoff.max);
            prop_assert_eq!(backoff.next_max(), first);
            let mut previous = first;
            for failures in 1..100 {
                prop_assert_eq!(backoff.failures(), failures);
                let delay_max = backoff.next_max();
                prop_assert_eq!(delay_max, (previous * 2).min(max));
                previous = delay_max;
            }
            prop_assert_eq!(previous, max);
            prop_assert_eq!(backoff.after(u32::MAX).delay_max(), max);
        }

        #[test]
        fn a_success_resets_the_delay(
            mut backoff in backoff(),
            randoms in prop::collection::vec(any::<u64>(), 0..80),
            random in any::<u64>(),
        ) {
            let fresh = backoff;
            for random in randoms {
                backoff.next(random);
            }
            backoff.reset();
            prop_assert_eq!(backoff, fresh);
            prop_assert!(backoff.next(random) <= fresh.first);
        }

        #[test]
        fn the_delay_grows_with_the_random_number(
            mut backoff in backoff(),
            randoms in any::<[u64; 2]>(),
        ) {
            let [low, high] = [randoms[0].min(randoms[1]), randoms[0].max(randoms[1])];
            let mut other = backoff;
            prop_assert!(other.next(low) <= backoff.next(high));
        }

        #[test]
        fn a_random_part_is_shorter_than_its_limit(limit_ns in 1..u64::MAX, random in any::<u64>()) {
            let limit = Duration::from_nanos(limit_ns);
            prop_assert!(random_part(limit, random) < limit);
            prop_assert_eq!(random_part(limit, u64::MAX), limit - NANOSECOND);
            prop_assert_eq!(random_part(limit, 0), Duration::ZERO);
        }

        /// A thousand nodes lose their controller at one moment. In no interval of a twentieth of the longest delay, more
        /// than a fifth of the nodes send their tenth attempt. Without jitter, all nodes would.
        #[test]
        fn nodes_with_different_random_numbers_do_not_retry_in_step(seed in any::<u64>()) {
            use rand::{RngExt as _, SeedableRng as _};
            const NODES: usize = 1_000;
            let max = Duration::from_secs(5);
            let attempt_at = |node: usize| {
                let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed.wrapping_add(node as u64));
                let mut backoff = Backoff::new(Duration::from_millis(50), max);
                (0..10).map(|_| backoff.next(rng.random())).sum::<Duration>()
            };
            let mut at: alloc::vec::Vec<Duration> = (0..NODES).map(attempt_at).collect();
            at.sort();
            let width = max / 20;
            let crowd = at.iter().map(|start| at.partition_point(|end| *end < *start + width) - at.partition_point(|end| end < start));
            prop_assert!(crowd.max().unwrap() <= NODES / 5);
        }
    }

    #[test]
    fn two_nodes_that_fail_together_drift_apart() {
        let mut nodes = [Backoff::new(Duration::from_secs(1), Duration::from_secs(30)); 2];
        let mut at = [Duration::ZERO; 2];
        for (random, other) in [(0, u64::MAX), (1 << 62, 1 << 63), (7, 1 << 60)] {
            at[0] += nodes[0].next(random);
            at[1] += nodes[1].next(other);
            assert!(at[0] + Duration::from_millis(400) < at[1], "{at:?}");
        }
    }
}
