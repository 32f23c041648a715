//! Counters and events of one thread, read by another thread. Each value has one writer, so no locked instruction is
//! needed per packet.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use linewarden_protocol::verdict::{VERDICT_SLOTS, Verdict};

use crate::counters::Counters;
use crate::event::{EVENT_BYTES, Event, SESSION_EVENT_BYTES};
use crate::handling_time::{HANDLING_BUCKETS, HandlingTimes, bucket_of};

/// Maximum number of unread events of one thread: at 10 ms between two drains, 1.6 million per second.
const EVENTS: usize = 1 << 14;
const EVENT_WORDS: usize = SESSION_EVENT_BYTES / 8;

/// Counters and events of one thread. The alignment keeps the counters of two threads in different cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Stats {
    by_verdict: [AtomicU64; VERDICT_SLOTS],
    events_lost: AtomicU64,
    /// Histogram of timed RESPONSEs, see [`crate::handling_time`].
    handling_times: [AtomicU64; HANDLING_BUCKETS],
    /// `struct lw_session_event`s as words, or only their first words; event `n` is at `n % EVENTS`.
    ring: Box<[[AtomicU64; EVENT_WORDS]]>,
    /// Number of events written; advanced by the packet thread.
    written_count: AtomicU64,
    /// Number of events read; advanced by the draining thread.
    read_count: AtomicU64,
}

impl Stats {
    pub(crate) fn new() -> Self {
        let empty = || std::array::from_fn(|_| AtomicU64::new(0));
        Self {
            by_verdict: std::array::from_fn(|_| AtomicU64::new(0)),
            events_lost: AtomicU64::new(0),
            handling_times: std::array::from_fn(|_| AtomicU64::new(0)),
            ring: (0..EVENTS).map(|_| empty()).collect(),
            written_count: AtomicU64::new(0),
            read_count: AtomicU64::new(0),
        }
    }

    /// Called by the owning thread only.
    #[inline]
    pub(crate) fn count(&self, verdict: Verdict) {
        self.count_many(verdict, 1);
    }

    /// Called by the owning thread only.
    #[inline]
    pub(super) fn count_many(&self, verdict: Verdict, times: u64) {
        if let Some(counter) = self.by_verdict.get(usize::from(verdict.number())) {
            counter.store(counter.load(Relaxed).wrapping_add(times), Relaxed);
        }
    }

    /// Records the handling time of an accepted RESPONSE. Called by the owning thread only.
    pub(super) fn record_handling_time(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        if let Some(bucket) = self.handling_times.get(bucket_of(ns)) {
            bucket.store(bucket.load(Relaxed).wrapping_add(1), Relaxed);
        }
    }

    pub(super) fn handling_histogram(&self) -> HandlingTimes {
        HandlingTimes {
            buckets: std::array::from_fn(|index| {
                self.handling_times
                    .get(index)
                    .map_or(0, |bucket| bucket.load(Relaxed))
            }),
        }
    }

    /// Called by the owning thread only. If the ring is full, the event is lost and the loss is counted.
    pub(super) fn report(&self, event: &[u64]) {
        let written_count = self.written_count.load(Relaxed);
        let has_room = written_count.wrapping_sub(self.read_count.load(Acquire)) < EVENTS as u64;
        let Some(event_cell) = self
            .ring
            .get(written_count as usize % EVENTS)
            .filter(|_| has_room)
        else {
            self.events_lost
                .store(self.events_lost.load(Relaxed).wrapping_add(1), Relaxed);
            return;
        };
        event_cell
            .iter()
            .zip(event)
            .for_each(|(cell, word)| cell.store(*word, Relaxed));
        self.written_count.store(written_count.wrapping_add(1), Release);
    }

    /// Called by one thread at a time, which the `&mut` of [`crate::Telemetry::drain_events`] ensures.
    pub(super) fn drain(&self, sink: &mut dyn FnMut(Event)) {
        let written_count = self.written_count.load(Acquire);
        let mut read_count = self.read_count.load(Relaxed);
        while read_count != written_count {
            if let Some(event_cell) = self.ring.get(read_count as usize % EVENTS) {
                let mut bytes = [0u8; SESSION_EVENT_BYTES];
                for (bytes, cell) in bytes.chunks_exact_mut(8).zip(event_cell) {
                    bytes.copy_from_slice(&cell.load(Relaxed).to_ne_bytes());
                }
                // An event without session fields leaves the last words of its cell unchanged.
                let short = bytes.get(..EVENT_BYTES).unwrap_or_default();
                if let Some(event) = Event::from_bytes(&bytes).or_else(|| Event::from_bytes(short)) {
                    sink(event);
                }
            }
            read_count = read_count.wrapping_add(1);
        }
        self.read_count.store(read_count, Release);
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut counters = Counters {
            events_lost: self.events_lost.load(Relaxed),
            ..Counters::default()
        };
        for (sum, counter) in counters.by_verdict.iter_mut().zip(&self.by_verdict) {
            *sum = counter.load(Relaxed);
        }
        counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong_tag(device: u64) -> [u64; EVENT_BYTES / 8] {
        [4, device.to_be(), 0, 0, 0, 0]
    }

    #[test]
    fn a_full_ring_counts_lost_events_and_keeps_the_order_of_the_others() {
        let stats = Stats::new();
        let mut reported = Vec::new();
        let total = EVENTS as u64 + 3;
        (1..=total).for_each(|device| stats.report(&wrong_tag(device)));
        stats.drain(&mut |event| reported.push(event.device.0));
        assert_eq!(reported, (1..=EVENTS as u64).collect::<Vec<_>>());
        assert_eq!(stats.counters().events_lost, 3);
        stats.report(&wrong_tag(7));
        stats.drain(&mut |event| reported.push(event.device.0));
        assert_eq!((reported.len(), reported.last()), (EVENTS + 1, Some(&7)));
    }
}
