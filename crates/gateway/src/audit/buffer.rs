//! The buffer of audit records in the node: bounded, with a count of lost records.

use std::collections::BTreeMap;

use linewarden_dataplane::Counters;

use super::record::{AuditEvent, AuditRecord, KIND_COUNT};
use crate::time::Clock;

/// Maximum number of records in the buffer.
const RECORDS_MAX: usize = 8192;
/// Interval of verdict records, ns.
const VERDICTS_NS: u64 = 60_000_000_000;

/// Records that [`AuditBuffer::take`] has not returned yet. Disabled until a rate is set.
#[derive(Debug, Default)]
pub(crate) struct AuditBuffer {
    /// Maximum number of records of each kind a second; 0 disables recording.
    per_s: u32,
    now: Clock,
    /// The current second of the monotonic clock.
    second: u64,
    /// Number of records of each kind in the current second.
    count: [u32; KIND_COUNT],
    /// Name of each kind, and number of its events without a record in the current second.
    suppressed: [Option<(&'static str, u64)>; KIND_COUNT],
    waiting: Vec<AuditRecord>,
    /// Number of records that had no room in `waiting`.
    lost: u64,
    /// Number of events that the data plane had lost at the last record.
    events_lost: u64,
    /// The counters at the last record of verdicts.
    verdicts: Counters,
    /// When the next record of verdicts is due, monotonic clock.
    verdicts_due_ns: Option<u64>,
}

impl AuditBuffer {
    /// Sets the maximum number of records of each kind a second; 0 disables recording.
    pub(crate) fn set_rate(&mut self, per_s: u32) {
        self.per_s = per_s;
    }

    /// Sets the time of the following records.
    pub(crate) fn set_time(&mut self, now: Clock) {
        let second = now.monotonic_ns / 1_000_000_000;
        if second != self.second {
            self.second = second;
            self.count = [0; KIND_COUNT];
            for (of, count) in std::mem::take(&mut self.suppressed).into_iter().flatten() {
                self.push(AuditEvent::Suppressed { of, count });
            }
        }
        self.now = now;
    }

    /// Whether recording is enabled.
    pub(crate) fn is_on(&self) -> bool {
        self.per_s > 0
    }

    /// Records an event, or counts it if its kind has reached the rate limit. Does nothing if recording is disabled.
    pub(crate) fn record(&mut self, event: AuditEvent) {
        if !self.is_on() {
            return;
        }
        if let Some((kind, name)) = event.kind()
            && let (Some(count), Some(suppressed)) = (self.count.get_mut(kind), self.suppressed.get_mut(kind))
        {
            if *count >= self.per_s {
                suppressed.get_or_insert((name, 0)).1 += 1;
                return;
            }
            *count += 1;
        }
        self.push(event);
    }

    /// Records events that the data plane has lost since the previous call. Every minute, or at once if `is_final`,
    /// also records the numbers of verdicts since the previous record of verdicts.
    pub(crate) fn record_counters(&mut self, counters: &Counters, is_final: bool) {
        if !self.is_on() {
            self.events_lost = counters.events_lost;
            self.verdicts = counters.clone();
            return;
        }
        let lost = counters.events_lost.saturating_sub(self.events_lost);
        if lost > 0 {
            self.events_lost = counters.events_lost;
            self.push(AuditEvent::EventsLost { count: lost });
        }
        let now_ns = self.now.monotonic_ns;
        let due_ns = *self
            .verdicts_due_ns
            .get_or_insert(now_ns.saturating_add(VERDICTS_NS));
        if due_ns > now_ns && !is_final {
            return;
        }
        self.verdicts_due_ns = Some(now_ns.saturating_add(VERDICTS_NS));
        let previous: BTreeMap<_, _> = self
            .verdicts
            .nonzero()
            .map(|(verdict, count)| (verdict.name(), count))
            .collect();
        let counts: BTreeMap<_, _> = counters
            .nonzero()
            .map(|(verdict, count)| {
                let name = verdict.name();
                (
                    name,
                    count.saturating_sub(previous.get(name).copied().unwrap_or(0)),
                )
            })
            .filter(|(_, count)| *count > 0)
            .collect();
        self.verdicts = counters.clone();
        if !counts.is_empty() {
            self.push(AuditEvent::Verdicts { counts });
        }
    }

    /// Takes the records, oldest first; if `is_final`, also the counts of events without a record in this second.
    pub(crate) fn take(&mut self, is_final: bool) -> Vec<AuditRecord> {
        if is_final {
            for (of, count) in std::mem::take(&mut self.suppressed).into_iter().flatten() {
                self.push(AuditEvent::Suppressed { of, count });
            }
        }
        let mut records = std::mem::take(&mut self.waiting);
        let lost = std::mem::take(&mut self.lost);
        if lost > 0 {
            records.push(AuditRecord {
                boot_ns: self.now.boot_ns,
                event: AuditEvent::RecordsLost { count: lost },
            });
        }
        records
    }

    fn push(&mut self, event: AuditEvent) {
        if self.waiting.len() >= RECORDS_MAX {
            self.lost += 1;
            return;
        }
        self.waiting.push(AuditRecord {
            boot_ns: self.now.boot_ns,
            event,
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

    fn evicted(device: u64) -> AuditEvent {
        AuditEvent::Evicted {
            device: DeviceId(device),
        }
    }

    fn revoked(device: u64) -> AuditEvent {
        AuditEvent::Blocked {
            device: DeviceId(device),
            was_installed: true,
        }
    }

    #[test]
    fn a_flood_of_one_kind_is_counted_and_suppresses_no_other_kind() {
        let mut buffer = AuditBuffer::default();
        buffer.record(evicted(1));
        assert!(buffer.take(true).is_empty(), "recording is disabled");
        buffer.set_rate(2);
        buffer.set_time(at(1000));
        (0..7).for_each(|device| buffer.record(evicted(device)));
        buffer.record(revoked(9));
        let records: Vec<AuditEvent> = buffer
            .take(false)
            .into_iter()
            .map(|record| record.event)
            .collect();
        assert_eq!(records, [evicted(0), evicted(1), revoked(9)]);
        buffer.set_time(at(1999));
        buffer.record(evicted(7));
        assert!(buffer.take(false).is_empty());
        buffer.set_time(at(2000));
        buffer.record(evicted(8));
        let records: Vec<AuditEvent> = buffer
            .take(false)
            .into_iter()
            .map(|record| record.event)
            .collect();
        let suppressed = AuditEvent::Suppressed {
            of: "evicted",
            count: 6,
        };
        assert_eq!(records, [suppressed, evicted(8)]);
    }

    #[test]
    fn records_that_are_not_taken_are_bounded_and_counted() {
        let mut buffer = AuditBuffer::default();
        buffer.set_rate(u32::MAX);
        let total = RECORDS_MAX as u64 + 5;
        (0..total).for_each(|device| buffer.record(evicted(device)));
        let records = buffer.take(false);
        assert_eq!(records.len(), RECORDS_MAX + 1);
        let last = records.last().map(|record| record.event.clone());
        assert_eq!(last, Some(AuditEvent::RecordsLost { count: 5 }));
    }

    #[test]
    fn verdicts_are_summed_up_once_a_minute_and_at_the_end() {
        let mut buffer = AuditBuffer::default();
        buffer.set_rate(1);
        let mut counters = Counters::default();
        buffer.set_time(at(0));
        buffer.record_counters(&counters, false);
        counters.by_verdict[57] = 3;
        counters.events_lost = 2;
        buffer.set_time(at(30_000));
        buffer.record_counters(&counters, false);
        let records: Vec<AuditEvent> = buffer
            .take(false)
            .into_iter()
            .map(|record| record.event)
            .collect();
        assert_eq!(records, [AuditEvent::EventsLost { count: 2 }]);
        buffer.set_time(at(60_000));
        buffer.record_counters(&counters, false);
        counters.by_verdict[57] = 4;
        buffer.record_counters(&counters, true);
        let counts = |count| AuditEvent::Verdicts {
            counts: BTreeMap::from([("drop_tag", count)]),
        };
        let records: Vec<AuditEvent> = buffer.take(true).into_iter().map(|record| record.event).collect();
        assert_eq!(records, [counts(3), counts(1)]);
    }
}
