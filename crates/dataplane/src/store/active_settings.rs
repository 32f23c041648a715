//! The settings that are active in the memory that packet paths work on. Each setting is one word, which is read one time
//! per message. The settings are independent, except the session lifetimes: these are written and read in a fixed order, so
//! that no ACK promises a longer lifetime than its session has.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::config::LiveSettings;
use crate::layout::{Control, LiveCells};

/// The active settings, read at one time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ActiveSettings {
    pub(crate) session_lifetime_s: u32,
    /// The shortest lifetime that was ever active.
    session_lifetime_min_s: u32,
    /// Boot-time second since which `session_lifetime_s` applies; 0: since the start.
    session_lifetime_from_s: u32,
    pub(crate) low_rows: u32,
    pub(crate) low_credit: u32,
    pub(crate) nak_per_s: u32,
    pub(crate) alarm_per_s: u32,
    pub(crate) miss_per_s: u32,
}

impl ActiveSettings {
    pub(crate) fn read(control: &Control) -> Self {
        let cells = &control.live;
        Self {
            // Read first: if the settings change meanwhile, the old value is combined with a later
            // `session_lifetime_from_s`, so the shortest lifetime is selected.
            session_lifetime_s: cells.session_lifetime_s.load(Acquire),
            session_lifetime_min_s: cells.session_lifetime_min_s.load(Relaxed),
            session_lifetime_from_s: cells.session_lifetime_from_s.load(Relaxed),
            low_rows: cells.low_rows.load(Relaxed),
            low_credit: cells.low_credit.load(Relaxed),
            nak_per_s: cells.nak_per_s.load(Relaxed),
            alarm_per_s: cells.alarm_per_s.load(Relaxed),
            miss_per_s: cells.miss_per_s.load(Relaxed),
        }
    }

    pub(super) fn of(live: &LiveSettings) -> Self {
        Self {
            session_lifetime_s: live.session_lifetime_s,
            session_lifetime_min_s: live.session_lifetime_s,
            session_lifetime_from_s: 0,
            low_rows: live.low_rows,
            low_credit: live.low_credit,
            nak_per_s: live.nak_per_s,
            alarm_per_s: live.alarm_per_s,
            miss_per_s: live.miss_per_s,
        }
    }

    /// The settings after `live` becomes active at `boot_s`.
    pub(super) fn updated(&self, live: &LiveSettings, boot_s: u32) -> Self {
        let next = Self::of(live);
        if next.session_lifetime_s == self.session_lifetime_s {
            return Self {
                session_lifetime_min_s: self.session_lifetime_min_s,
                session_lifetime_from_s: self.session_lifetime_from_s,
                ..next
            };
        }
        Self {
            session_lifetime_min_s: self.session_lifetime_min_s.min(next.session_lifetime_s),
            // Sessions opened in the same second may have either lifetime.
            session_lifetime_from_s: boot_s.saturating_add(1),
            ..next
        }
    }

    /// The lifetime for the repeated ACK of a session that ends at `until_s`. The lifetime in the first ACK is not
    /// stored. A session from before the last change gets the shortest lifetime that was ever active, so that no device
    /// relies on a longer session than it has.
    pub(crate) fn repeated_lifetime_s(&self, until_s: u32) -> u32 {
        let is_current = u64::from(until_s)
            >= u64::from(self.session_lifetime_from_s) + u64::from(self.session_lifetime_s);
        if is_current {
            self.session_lifetime_s
        } else {
            self.session_lifetime_min_s
        }
    }

    pub(super) fn write(&self, cells: &LiveCells) {
        cells
            .session_lifetime_min_s
            .store(self.session_lifetime_min_s, Release);
        cells
            .session_lifetime_from_s
            .store(self.session_lifetime_from_s, Release);
        cells.low_rows.store(self.low_rows, Relaxed);
        cells.low_credit.store(self.low_credit, Relaxed);
        cells.nak_per_s.store(self.nak_per_s, Relaxed);
        cells.alarm_per_s.store(self.alarm_per_s, Relaxed);
        cells.miss_per_s.store(self.miss_per_s, Relaxed);
        // Written last, see `read`.
        cells.session_lifetime_s.store(self.session_lifetime_s, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(lifetime_s: u32) -> LiveSettings {
        LiveSettings {
            session_lifetime_s: lifetime_s,
            ..LiveSettings::default()
        }
    }

    #[test]
    fn no_repeated_ack_promises_more_than_the_session_has() {
        // A lifetime, and the boot-time seconds at which it becomes active and is replaced.
        let changes = [
            (300, 0, 1000),
            (60, 1000, 2000),
            (600, 2000, 2500),
            (90, 2500, 2501),
            (91, 2501, 3000),
        ];
        let mut active = ActiveSettings::of(&live(300));
        let mut opened: Vec<(u32, u32)> = Vec::new();
        for (lifetime_s, since_s, next_s) in changes {
            if since_s > 0 {
                active = active.updated(&live(lifetime_s), since_s);
            }
            for (until_s, opened_with_s) in &opened {
                assert!(
                    active.repeated_lifetime_s(*until_s) <= *opened_with_s,
                    "{until_s} {opened_with_s} {active:?}"
                );
            }
            for at_s in since_s + 1..=next_s {
                let until_s = at_s + lifetime_s;
                assert_eq!(active.repeated_lifetime_s(until_s), lifetime_s, "repeated ACK");
                opened.push((until_s, lifetime_s));
            }
        }
    }

    #[test]
    fn other_settings_do_not_change_the_lifetime_history() {
        let first = ActiveSettings::of(&live(300)).updated(&live(200), 50);
        let second = first.updated(
            &LiveSettings {
                nak_per_s: 7,
                ..live(200)
            },
            90,
        );
        assert_eq!(
            (
                second.session_lifetime_from_s,
                second.session_lifetime_min_s,
                second.nak_per_s
            ),
            (51, 200, 7)
        );
    }
}
