//! Lock-free tables that lanes fill for the receiving thread: recent senders of valid messages, and recent sources of
//! invalid messages.
//!
//! A table has a fixed size, and each slot keeps its latest entry. An entry may be overwritten before it is too old;
//! the sender or source of the entry then counts as new. The hashes are keyed, so that an attacker cannot choose
//! colliding entries. The scheduler keeps records of its own; these tables are for decisions before a message reaches
//! the scheduler.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::scheduler::{Source, Span, Time};
use crate::udp::QUEUED_MAX;

/// Number of slots, a power of two; slots are used in pairs.
const SLOTS: usize = 1 << 16;
/// Bits of a hash that distinguish the entries of a pair of slots.
const TAG_BITS: u32 = 40;
/// Resolution of recorded times.
const TICK: Span = Span::from_micros(62_500);
/// Entries older than this are ignored.
pub(crate) const ENTRY_LIFETIME: Span = Span::from_millis(60_000);

/// Sources recorded recently.
pub(crate) struct RecentSources(Box<[AtomicU64]>);

impl Default for RecentSources {
    fn default() -> Self {
        Self(std::iter::repeat_with(AtomicU64::default).take(SLOTS).collect())
    }
}

/// The time in ticks, never zero; 24 bits cover twelve days.
fn tick(now: Time) -> u64 {
    now.as_nanos() / TICK.as_nanos() % ((1 << (64 - TAG_BITS)) - 1) + 1
}

impl RecentSources {
    fn pair(&self, source: Source) -> &[AtomicU64] {
        let index = (source.0 as usize % SLOTS) & !1;
        self.0.get(index..index + 2).unwrap_or_default()
    }

    /// Records a source, or a sender.
    pub(crate) fn record(&self, source: Source, now: Time) {
        let (tag, recorded) = (source.0 >> (64 - TAG_BITS), tick(now));
        let entry = tag << (64 - TAG_BITS) | recorded;
        let pair = self.pair(source);
        let matching = pair
            .iter()
            .find(|slot| slot.load(Ordering::Relaxed) >> (64 - TAG_BITS) == tag);
        let oldest = || {
            pair.iter()
                .max_by_key(|slot| age(slot.load(Ordering::Relaxed), recorded))
        };
        if let Some(slot) = matching.or_else(oldest) {
            slot.store(entry, Ordering::Relaxed);
        }
    }

    /// Whether the source was recorded recently.
    pub(crate) fn contains(&self, source: Source, now: Time) -> bool {
        let (tag, now) = (source.0 >> (64 - TAG_BITS), tick(now));
        self.pair(source).iter().any(|slot| {
            let entry = slot.load(Ordering::Relaxed);
            entry >> (64 - TAG_BITS) == tag && age(entry, now) <= ENTRY_LIFETIME.as_nanos() / TICK.as_nanos()
        })
    }

    /// Removes a source, or a sender.
    pub(crate) fn forget(&self, source: Source) {
        let tag = source.0 >> (64 - TAG_BITS);
        for slot in self.pair(source) {
            let entry = slot.load(Ordering::Relaxed);
            if entry >> (64 - TAG_BITS) == tag {
                // If another thread has refreshed the entry in the meantime, the entry stays.
                let _ = slot.compare_exchange(entry, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }
}

/// Age of an entry in ticks; the maximum for an empty slot. A message that waited may have arrived before the sender of
/// the message was recorded: then the age is 0.
fn age(entry: u64, now: u64) -> u64 {
    // Plus one tick for rounding.
    const WAITED_MAX: u64 = QUEUED_MAX.as_nanos() as u64 / TICK.as_nanos() + 1;
    let ticks = (1 << (64 - TAG_BITS)) - 1;
    match entry & ticks {
        0 => u64::MAX,
        recorded => Some((now + ticks - recorded) % ticks)
            .filter(|age| *age < ticks - WAITED_MAX)
            .unwrap_or(0),
    }
}

/// Rate limit of new senders during overload: a token bucket of one thread.
pub(crate) struct NewSenderLimit {
    /// Time at which the bucket will be full again.
    full_at: Time,
}

impl NewSenderLimit {
    /// Interval between tokens.
    pub(crate) const INTERVAL: Span = Span::from_micros(200);
    /// Tokens of a full bucket.
    const BURST: u64 = 64;

    pub(crate) fn new() -> Self {
        Self { full_at: Time::ZERO }
    }

    /// Takes a token; returns false if the bucket is empty.
    pub(crate) fn try_take(&mut self, now: Time) -> bool {
        let is_allowed = self.full_at.saturating_since(now) <= Self::INTERVAL.times(Self::BURST - 1);
        if is_allowed {
            self.full_at = self.full_at.max(now) + Self::INTERVAL;
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Span::from_millis(1_000 * seconds)
    }

    #[test]
    fn recently_recorded_sources_are_known() {
        let sources = RecentSources::default();
        // Two sources that share a pair of slots, and one in another pair.
        let [first, second, third, unrelated] =
            [5 << 40 | 8, 6 << 40 | 9, 7 << 40 | 8, 5 << 40 | 10].map(Source);
        assert!(!sources.contains(first, at(0)));
        sources.record(first, at(0));
        sources.record(second, at(1));
        assert!(
            sources.contains(first, at(30))
                && sources.contains(second, at(30))
                && !sources.contains(unrelated, at(30))
        );
        assert!(
            sources.contains(second, at(0)),
            "arrived before the other source was recorded"
        );
        assert!(
            !sources.contains(first, at(61)) && sources.contains(second, at(61)),
            "expired"
        );
        sources.record(first, at(61));
        sources.record(third, at(62));
        assert!(sources.contains(first, at(62)) && sources.contains(third, at(62)));
        assert!(!sources.contains(second, at(62)), "the oldest entry is replaced");
        sources.forget(first);
        assert!(!sources.contains(first, at(62)) && sources.contains(third, at(62)));
        assert!(
            !sources.contains(first, at(7 * 86_400)),
            "more than half of the range of ticks later"
        );
        // Tick numbers wrap after twelve days.
        let days = at(13 * 86_400);
        sources.record(first, days);
        assert!(sources.contains(first, days));
    }

    #[test]
    fn new_senders_are_admitted_at_a_bounded_rate() {
        let mut limit = NewSenderLimit::new();
        let mut takes = |now| (0..1_000).filter(|_| limit.try_take(now)).count();
        assert_eq!(takes(at(0)), 64);
        assert_eq!(takes(at(0)), 0);
        assert_eq!(takes(Time::ZERO + NewSenderLimit::INTERVAL.times(3)), 3);
        assert_eq!(takes(at(9)), 64);
    }
}
