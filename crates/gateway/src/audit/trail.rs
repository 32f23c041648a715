//! Records on their way out of the node: bounded, and counted where the bound is met.

use std::collections::BTreeMap;

use linewarden_dataplane::Counters;

use super::record::{Happening, KINDS, Record};
use crate::time::Clock;

/// Records that may wait for somebody to take them.
const WAITING_MAX: usize = 8192;
/// How often verdicts are summed up, ns.
const VERDICTS_NS: u64 = 60_000_000_000;

/// What happened, until it is taken. Off until a rate is set.
#[derive(Debug, Default)]
pub(crate) struct Trail {
    /// Of each kind a second; 0: nothing is recorded.
    per_s: u32,
    now: Clock,
    second: u64,
    count: [u32; KINDS],
    suppressed: [Option<(&'static str, u64)>; KINDS],
    waiting: Vec<Record>,
    lost: u64,
    events_lost: u64,
    verdicts: Counters,
    verdicts_due_ns: Option<u64>,
}

impl Trail {
    /// From now on at most so many records of each kind are made a second; 0: none.
    pub(crate) fn set_rate(&mut self, per_s: u32) {
        self.per_s = per_s;
    }

    /// What follows happens at this moment.
    pub(crate) fn at(&mut self, now: Clock) {
        let second = now.monotonic_ns / 1_000_000_000;
        if second != self.second {
            self.second = second;
            self.count = [0; KINDS];
            for (of, count) in std::mem::take(&mut self.suppressed).into_iter().flatten() {
                self.push(Happening::Suppressed { of, count });
            }
        }
        self.now = now;
    }

    /// Whether anything is recorded.
    pub(crate) fn is_on(&self) -> bool {
        self.per_s > 0
    }

    /// Something happened.
    pub(crate) fn note(&mut self, what: Happening) {
        if !self.is_on() {
            return;
        }
        if let Some((kind, name)) = what.kind()
            && let (Some(count), Some(suppressed)) = (self.count.get_mut(kind), self.suppressed.get_mut(kind))
        {
            if *count >= self.per_s {
                suppressed.get_or_insert((name, 0)).1 += 1;
                return;
            }
            *count += 1;
        }
        self.push(what);
    }

    /// What the data plane has counted: now and then, and at the `end`, a record of what is new.
    pub(crate) fn counters(&mut self, counters: &Counters, end: bool) {
        if !self.is_on() {
            self.events_lost = counters.events_lost;
            self.verdicts = counters.clone();
            return;
        }
        let lost = counters.events_lost.saturating_sub(self.events_lost);
        if lost > 0 {
            self.events_lost = counters.events_lost;
            self.push(Happening::EventsLost { count: lost });
        }
        let now_ns = self.now.monotonic_ns;
        let due_ns = *self
            .verdicts_due_ns
            .get_or_insert(now_ns.saturating_add(VERDICTS_NS));
        if due_ns > now_ns && !end {
            return;
        }
        self.verdicts_due_ns = Some(now_ns.saturating_add(VERDICTS_NS));
        let before: BTreeMap<_, _> = self
            .verdicts
            .nonzero()
            .map(|(verdict, count)| (verdict.name(), count))
            .collect();
        let counts: BTreeMap<_, _> = counters
            .nonzero()
            .map(|(verdict, count)| {
                let name = verdict.name();
                (name, count.saturating_sub(before.get(name).copied().unwrap_or(0)))
            })
            .filter(|(_, count)| *count > 0)
            .collect();
        self.verdicts = counters.clone();
        if !counts.is_empty() {
            self.push(Happening::Verdicts { counts });
        }
    }

    /// What happened since it was taken last, oldest first; at the `end` also what was left out in this second.
    pub(crate) fn take(&mut self, end: bool) -> Vec<Record> {
        if end {
            for (of, count) in std::mem::take(&mut self.suppressed).into_iter().flatten() {
                self.push(Happening::Suppressed { of, count });
            }
        }
        let mut taken = std::mem::take(&mut self.waiting);
        let lost = std::mem::take(&mut self.lost);
        if lost > 0 {
            taken.push(Record {
                boot_ns: self.now.boot_ns,
                what: Happening::RecordsLost { count: lost },
            });
        }
        taken
    }

    fn push(&mut self, what: Happening) {
        if self.waiting.len() >= WAITING_MAX {
            self.lost += 1;
            return;
        }
        self.waiting.push(Record {
            boot_ns: self.now.boot_ns,
            what,
        });
    }
}

#[cfg(test)]
mod tests {
    use linewarden_protocol::ids::DeviceId;

    use super::*;

    fn at(ms: u64) -> Clock {
        Clock {
            monotonic_ns: ms * 1_000_000,
            boot_ns: ms * 1_000_000,
        }
    }

    fn evicted(device: u64) -> Happening {
        Happening::Evicted {
            device: DeviceId(device),
        }
    }

    fn revoked(device: u64) -> Happening {
        Happening::Revoked {
            device: DeviceId(device),
            shut_out: true,
        }
    }

    #[test]
    fn a_flood_of_one_kind_is_counted_and_hides_no_other() {
        let mut trail = Trail::default();
        trail.note(evicted(1));
        assert!(trail.take(true).is_empty(), "it is off");
        trail.set_rate(2);
        trail.at(at(1000));
        (0..7).for_each(|device| trail.note(evicted(device)));
        trail.note(revoked(9));
        let taken: Vec<Happening> = trail.take(false).into_iter().map(|record| record.what).collect();
        assert_eq!(taken, [evicted(0), evicted(1), revoked(9)]);
        trail.at(at(1999));
        trail.note(evicted(7));
        assert!(trail.take(false).is_empty());
        trail.at(at(2000));
        trail.note(evicted(8));
        let taken: Vec<Happening> = trail.take(false).into_iter().map(|record| record.what).collect();
        let suppressed = Happening::Suppressed {
            of: "evicted",
            count: 6,
        };
        assert_eq!(taken, [suppressed, evicted(8)]);
    }

    #[test]
    fn what_nobody_takes_is_bounded_and_counted() {
        let mut trail = Trail::default();
        trail.set_rate(u32::MAX);
        let total = WAITING_MAX as u64 + 5;
        (0..total).for_each(|device| trail.note(evicted(device)));
        let taken = trail.take(false);
        assert_eq!(taken.len(), WAITING_MAX + 1);
        let last = taken.last().map(|record| record.what.clone());
        assert_eq!(last, Some(Happening::RecordsLost { count: 5 }));
    }

    #[test]
    fn verdicts_are_summed_up_once_a_minute_and_at_the_end() {
        let mut trail = Trail::default();
        trail.set_rate(1);
        let mut counters = Counters::default();
        trail.at(at(0));
        trail.counters(&counters, false);
        counters.by_verdict[57] = 3;
        counters.events_lost = 2;
        trail.at(at(30_000));
        trail.counters(&counters, false);
        let taken: Vec<Happening> = trail.take(false).into_iter().map(|record| record.what).collect();
        assert_eq!(taken, [Happening::EventsLost { count: 2 }]);
        trail.at(at(60_000));
        trail.counters(&counters, false);
        counters.by_verdict[57] = 4;
        trail.counters(&counters, true);
        let counts = |count| Happening::Verdicts {
            counts: BTreeMap::from([("drop_tag", count)]),
        };
        let taken: Vec<Happening> = trail.take(true).into_iter().map(|record| record.what).collect();
        assert_eq!(taken, [counts(3), counts(1)]);
    }
}
