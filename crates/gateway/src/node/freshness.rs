//! The schedule of freshness values (LAP/1 1.4.1).

use crate::time::Clock;

/// Interval of freshness values, ns.
const INTERVAL_NS: u64 = 8_000_000_000;
/// An increase of the suspended time by more than this shows a suspend, ns. A smaller increase may arise because the
/// two clocks of a [`Clock`] are not read at the same time.
const SUSPEND_NS: u64 = 100_000_000;

/// Determines when freshness values are drawn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Freshness {
    due_ns: Option<u64>,
    suspended_ns: u64,
}

impl Freshness {
    /// Continues the schedule of an earlier process, which drew the current value at `drawn_at_ns`.
    pub(crate) fn resumed(drawn_at_ns: u64) -> Self {
        Self {
            due_ns: Some(drawn_at_ns.saturating_add(INTERVAL_NS)),
            suspended_ns: 0,
        }
    }

    /// Returns how many values to draw now: two at the start and after a suspend, so that no earlier value is
    /// accepted; one at the end of an interval.
    pub(crate) fn draws_due(&mut self, clock: Clock) -> usize {
        let woke_up = self.has_woken(clock);
        // Keeps the smallest value: a larger value may arise only because the two clocks are not read at the same time.
        if !woke_up {
            self.suspended_ns = self.suspended_ns.min(clock.suspended_ns());
        }
        match self.due_ns {
            None => 2,
            Some(_) if woke_up => 2,
            // No value was drawn for more than two intervals: the current value must not become the previous value,
            // which is accepted.
            Some(due_ns) if due_ns.saturating_add(INTERVAL_NS) < clock.monotonic_ns => 2,
            Some(due_ns) if due_ns <= clock.monotonic_ns => 1,
            Some(_) => 0,
        }
    }

    /// Discards the schedule of a gateway that must not draw values; returns whether values were drawn before.
    /// Afterwards, two values are due.
    pub(crate) fn forget(&mut self) -> bool {
        std::mem::take(self).due_ns.is_some()
    }

    fn has_woken(&self, clock: Clock) -> bool {
        clock.suspended_ns() > self.suspended_ns.saturating_add(SUSPEND_NS)
    }

    /// Records that the values were drawn.
    pub(crate) fn record_draw(&mut self, clock: Clock) {
        self.suspended_ns = clock.suspended_ns();
        self.due_ns = Some(clock.monotonic_ns.saturating_add(INTERVAL_NS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn at(monotonic_ns: u64, suspended_ns: u64) -> Clock {
        Clock {
            monotonic_ns,
            boot_ns: monotonic_ns + suspended_ns,
        }
    }

    #[test]
    fn two_values_are_drawn_at_the_start_then_one_every_eight_seconds() {
        let mut freshness = Freshness::default();
        assert_eq!(freshness.draws_due(at(5, 0)), 2);
        assert_eq!(freshness.draws_due(at(6, 0)), 2, "until they were drawn");
        freshness.record_draw(at(6, 0));
        assert_eq!(freshness.draws_due(at(INTERVAL_NS + 5, 0)), 0);
        assert_eq!(freshness.draws_due(at(INTERVAL_NS + 6, 0)), 1);
    }

    #[test]
    fn two_values_are_drawn_after_a_long_pause() {
        let mut freshness = Freshness::default();
        freshness.record_draw(at(0, 0));
        assert_eq!(freshness.draws_due(at(2 * INTERVAL_NS, 0)), 1);
        assert_eq!(freshness.draws_due(at(2 * INTERVAL_NS + 1, 0)), 2);
    }

    #[test]
    fn two_values_are_drawn_after_a_suspend_but_not_after_clock_jitter() {
        let mut freshness = Freshness::default();
        freshness.record_draw(at(0, 40));
        assert_eq!(freshness.draws_due(at(1, 40 + SUSPEND_NS)), 0);
        assert_eq!(freshness.draws_due(at(2, 41 + SUSPEND_NS)), 2);
        freshness.record_draw(at(3, 60 * SECOND_NS));
        assert_eq!(freshness.draws_due(at(4, 60 * SECOND_NS)), 0);
    }

    #[test]
    fn values_are_discarded_once_and_two_are_drawn_afterwards() {
        let mut freshness = Freshness::default();
        assert!(!freshness.forget(), "no value was drawn");
        freshness.record_draw(at(0, 0));
        assert!(freshness.forget());
        assert!(!freshness.forget());
        assert_eq!(freshness.draws_due(at(1, 0)), 2);
    }

    #[test]
    fn many_short_differences_do_not_add_up() {
        let mut freshness = Freshness::default();
        freshness.record_draw(at(0, 0));
        for step in 1..1000 {
            assert_eq!(freshness.draws_due(at(step, SUSPEND_NS * (step % 2))), 0);
        }
    }
}
