//! Freshness values (LAP/1 1.4.1): when they are drawn, and the current value.
//!
//! ```text
//!            two draws             8 s: one draw
//!  No value ───────────► Current ───────────────┐
//!     ▲                  │ ▲  ▲                 │
//!     │ not allowed,     │ │  └─────────────────┘
//!     │ discarded        │ └─ suspend, or more than 16 s without a draw: two draws
//!     └──────────────────┘
//! ```

use super::context::{Context, RandomSource};
use crate::time::Clock;

/// Interval of freshness values, ns.
const INTERVAL_NS: u64 = 8_000_000_000;
/// An increase of the suspended time by more than this shows a suspend, ns. A smaller increase may arise because the
/// two clocks of a [`Clock`] are not read at the same time.
const SUSPEND_NS: u64 = 100_000_000;

/// The freshness values of the data plane.
#[derive(Debug, Default)]
pub(super) struct FreshValues {
    schedule: Schedule,
    /// The current value; `None` until a value is drawn.
    current: Option<[u8; 8]>,
    draws_failed: u64,
}

impl FreshValues {
    /// The current value; `None` until a value is drawn.
    pub(super) fn current(&self) -> Option<[u8; 8]> {
        self.current
    }

    pub(super) fn draws_failed(&self) -> u64 {
        self.draws_failed
    }

    /// Draws the values that are due. If no replies may be sent (`is_allowed` is false), clears all values.
    pub(super) fn refresh(&mut self, is_allowed: bool, context: &mut Context, random: RandomSource<'_>) {
        let now_ns = context.now_ns();
        if !is_allowed {
            // The values are cleared at once; otherwise, the last value would be accepted for up to 16 s more.
            if self.schedule.forget() {
                self.current = None;
                context.data_plane.set_fresh([0; 8], now_ns);
                context.data_plane.set_fresh([0; 8], now_ns);
            }
            return;
        }
        let count = self.schedule.draws_due(context.clock);
        for _ in 0..count {
            // Without random numbers, the old value expires, and the data plane stops without a command
            // (LAP/1 1.4.1). Zero means no value, so the next tick draws another value.
            let Some(fresh) = random().filter(|fresh| *fresh != [0; 8]) else {
                self.draws_failed += 1;
                return;
            };
            context.data_plane.set_fresh(fresh, now_ns);
            self.current = Some(fresh);
        }
        if count > 0 {
            self.schedule.record_draw(context.clock);
        }
    }

    /// Continues with the value of an earlier process, which drew the value at `drawn_at_ns` of the monotonic clock.
    pub(super) fn adopt(&mut self, fresh: [u8; 8], drawn_at_ns: u64) {
        self.schedule = Schedule::resumed(drawn_at_ns);
        self.current = Some(fresh);
    }

    /// Discards the values; two new values are due. The data plane accepts the old values until they are replaced.
    pub(super) fn discard(&mut self) {
        self.schedule = Schedule::default();
        self.current = None;
    }

    /// Discards the values, and stops the replies of the data plane until two new values are drawn.
    pub(super) fn clear(&mut self, context: &mut Context) {
        context.data_plane.set_fresh([0; 8], 0);
        self.discard();
    }
}

/// Determines when freshness values are drawn.
#[derive(Clone, Copy, Debug, Default)]
struct Schedule {
    due_ns: Option<u64>,
    suspended_ns: u64,
}

impl Schedule {
    /// Continues the schedule of an earlier process, which drew the current value at `drawn_at_ns`.
    fn resumed(drawn_at_ns: u64) -> Self {
        Self {
            due_ns: Some(drawn_at_ns.saturating_add(INTERVAL_NS)),
            suspended_ns: 0,
        }
    }

    /// Returns how many values to draw now: two at the start and after a suspend, so that no earlier value is
    /// accepted; one at the end of an interval.
    fn draws_due(&mut self, clock: Clock) -> usize {
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
    fn forget(&mut self) -> bool {
        std::mem::take(self).due_ns.is_some()
    }

    fn has_woken(&self, clock: Clock) -> bool {
        clock.suspended_ns() > self.suspended_ns.saturating_add(SUSPEND_NS)
    }

    /// Records that the values were drawn.
    fn record_draw(&mut self, clock: Clock) {
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
        let mut freshness = Schedule::default();
        assert_eq!(freshness.draws_due(at(5, 0)), 2);
        assert_eq!(freshness.draws_due(at(6, 0)), 2, "until they were drawn");
        freshness.record_draw(at(6, 0));
        assert_eq!(freshness.draws_due(at(INTERVAL_NS + 5, 0)), 0);
        assert_eq!(freshness.draws_due(at(INTERVAL_NS + 6, 0)), 1);
    }

    #[test]
    fn two_values_are_drawn_after_a_long_pause() {
        let mut freshness = Schedule::default();
        freshness.record_draw(at(0, 0));
        assert_eq!(freshness.draws_due(at(2 * INTERVAL_NS, 0)), 1);
        assert_eq!(freshness.draws_due(at(2 * INTERVAL_NS + 1, 0)), 2);
    }

    #[test]
    fn two_values_are_drawn_after_a_suspend_but_not_after_clock_jitter() {
        let mut freshness = Schedule::default();
        freshness.record_draw(at(0, 40));
        assert_eq!(freshness.draws_due(at(1, 40 + SUSPEND_NS)), 0);
        assert_eq!(freshness.draws_due(at(2, 41 + SUSPEND_NS)), 2);
        freshness.record_draw(at(3, 60 * SECOND_NS));
        assert_eq!(freshness.draws_due(at(4, 60 * SECOND_NS)), 0);
    }

    #[test]
    fn values_are_discarded_once_and_two_are_drawn_afterwards() {
        let mut freshness = Schedule::default();
        assert!(!freshness.forget(), "no value was drawn");
        freshness.record_draw(at(0, 0));
        assert!(freshness.forget());
        assert!(!freshness.forget());
        assert_eq!(freshness.draws_due(at(1, 0)), 2);
    }

    #[test]
    fn many_short_differences_do_not_add_up() {
        let mut freshness = Schedule::default();
        freshness.record_draw(at(0, 0));
        for step in 1..1000 {
            assert_eq!(freshness.draws_due(at(step, SUSPEND_NS * (step % 2))), 0);
        }
    }
}
