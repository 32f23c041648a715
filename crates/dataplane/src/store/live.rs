//! Settings that change while packets flow. Each is one word, which a message is judged by once; none depends on another
//! but the leases, which are written and read in an order that never promises too much.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::{Regions, Store, admission};
use crate::config::Live;
use crate::layout::{Control, LiveCells};

/// The settings in force, read at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InForce {
    pub(crate) lease_s: u32,
    /// The shortest there has been.
    lease_least_s: u32,
    /// Since when `lease_s` is in force, boot-time clock; 0: from the beginning.
    lease_from_s: u32,
    pub(crate) low_rows: u32,
    pub(crate) low_credit: u32,
    pub(crate) nak_per_s: u32,
    pub(crate) alarm_per_s: u32,
    pub(crate) miss_per_s: u32,
}

impl InForce {
    pub(crate) fn read(control: &Control) -> Self {
        let cells = &control.live;
        Self {
            // First: with an older one comes a later `lease_from_s`, and so the shortest.
            lease_s: cells.lease_s.load(Acquire),
            lease_least_s: cells.lease_least_s.load(Relaxed),
            lease_from_s: cells.lease_from_s.load(Relaxed),
            low_rows: cells.low_rows.load(Relaxed),
            low_credit: cells.low_credit.load(Relaxed),
            nak_per_s: cells.nak_per_s.load(Relaxed),
            alarm_per_s: cells.alarm_per_s.load(Relaxed),
            miss_per_s: cells.miss_per_s.load(Relaxed),
        }
    }

    fn of(live: &Live) -> Self {
        Self {
            lease_s: live.lease_s,
            lease_least_s: live.lease_s,
            lease_from_s: 0,
            low_rows: live.low_rows,
            low_credit: live.low_credit,
            nak_per_s: live.nak_per_s,
            alarm_per_s: live.alarm_per_s,
            miss_per_s: live.miss_per_s,
        }
    }

    /// What follows these when `live` comes into force at `boot_s`.
    fn then(&self, live: &Live, boot_s: u32) -> Self {
        let next = Self::of(live);
        if next.lease_s == self.lease_s {
            return Self {
                lease_least_s: self.lease_least_s,
                lease_from_s: self.lease_from_s,
                ..next
            };
        }
        Self {
            lease_least_s: self.lease_least_s.min(next.lease_s),
            // Sessions opened in the same second may be of either.
            lease_from_s: boot_s.saturating_add(1),
            ..next
        }
    }

    /// What a session that lasts `until_s` was told of its lease: it is not kept. One from before the last change is told
    /// the shortest there has been, so that no device relies on more than it has.
    pub(crate) fn lease_again(&self, until_s: u32) -> u32 {
        let is_of_now = u64::from(until_s) >= u64::from(self.lease_from_s) + u64::from(self.lease_s);
        if is_of_now {
            self.lease_s
        } else {
            self.lease_least_s
        }
    }

    fn write(&self, cells: &LiveCells) {
        cells.lease_least_s.store(self.lease_least_s, Release);
        cells.lease_from_s.store(self.lease_from_s, Release);
        cells.low_rows.store(self.low_rows, Relaxed);
        cells.low_credit.store(self.low_credit, Relaxed);
        cells.nak_per_s.store(self.nak_per_s, Relaxed);
        cells.alarm_per_s.store(self.alarm_per_s, Relaxed);
        cells.miss_per_s.store(self.miss_per_s, Relaxed);
        // Last, see `read`.
        cells.lease_s.store(self.lease_s, Release);
    }
}

impl Regions {
    /// The settings before the first packet.
    pub(crate) fn begin(&self, live: &Live) {
        if let Some(control) = self.control.first() {
            admission::put(control, &live.sources);
            InForce::of(live).write(&control.live);
        }
    }
}

impl Store {
    /// Puts other settings into force, at `boot_s` of the boot-time clock.
    pub fn set_live(&self, live: &Live, boot_s: u32) {
        if let Some(control) = self.regions.control.first() {
            admission::put(control, &live.sources);
            InForce::read(control).then(live, boot_s).write(&control.live);
        }
    }

    /// Events of wrong tags and wrong PROOFs a second and CPU.
    pub(crate) fn alarm_per_s(&self) -> u32 {
        let control = self.regions.control.first();
        control.map_or(0, |control| InForce::read(control).alarm_per_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(lease_s: u32) -> Live {
        Live {
            lease_s,
            ..Live::default()
        }
    }

    #[test]
    fn no_session_is_told_more_than_it_has() {
        // A lease, from when on, and until when.
        let changes = [
            (300, 0, 1000),
            (60, 1000, 2000),
            (600, 2000, 2500),
            (90, 2500, 2501),
            (91, 2501, 3000),
        ];
        let mut in_force = InForce::of(&live(300));
        let mut opened: Vec<(u32, u32)> = Vec::new();
        for (lease_s, since_s, next_s) in changes {
            if since_s > 0 {
                in_force = in_force.then(&live(lease_s), since_s);
            }
            for (until_s, has_s) in &opened {
                assert!(
                    in_force.lease_again(*until_s) <= *has_s,
                    "{until_s} {has_s} {in_force:?}"
                );
            }
            for at_s in since_s + 1..=next_s {
                let until_s = at_s + lease_s;
                assert_eq!(in_force.lease_again(until_s), lease_s, "the same ACK again");
                opened.push((until_s, lease_s));
            }
        }
    }

    #[test]
    fn other_settings_do_not_touch_what_is_known_of_leases() {
        let first = InForce::of(&live(300)).then(&live(200), 50);
        let second = first.then(
            &Live {
                nak_per_s: 7,
                ..live(200)
            },
            90,
        );
        assert_eq!(
            (second.lease_from_s, second.lease_least_s, second.nak_per_s),
            (51, 200, 7)
        );
    }
}
