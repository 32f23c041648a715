//! What a receiver's thread knows of senders without a lock: who has sent something valid lately, and which sources something invalid.
//!
//! A table of fixed size: of what was noted last, each place keeps one. So what is noted may be forgotten early, which costs a sender
//! no more than to be taken for a new one; the hashes are keyed, so that nobody chooses which ones meet. The scheduler decides by what it
//! knows itself; this is for what is dropped before it is asked.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::scheduler::{Source, Span, Time};
use crate::udp::QUEUED_MAX;

/// Places, a power of two, in pairs.
const PLACES: usize = 1 << 16;
/// Bits of a hash that tell those apart that share a pair of places.
const TAG_BITS: u32 = 40;
/// Length of a tick, in which times are noted.
const TICK: Span = Span::from_micros(62_500);
/// What is older is not known any more.
pub(crate) const MEMORY: Span = Span::from_millis(60_000);

/// Which hashes were noted lately.
pub(crate) struct Recently(Box<[AtomicU64]>);

impl Default for Recently {
    fn default() -> Self {
        Self(std::iter::repeat_with(AtomicU64::default).take(PLACES).collect())
    }
}

/// When it was noted, in ticks, which fit 24 bits for twelve days; never zero.
fn tick(now: Time) -> u64 {
    now.as_nanos() / TICK.as_nanos() % ((1 << (64 - TAG_BITS)) - 1) + 1
}

impl Recently {
    fn pair(&self, source: Source) -> &[AtomicU64] {
        let place = (source.0 as usize % PLACES) & !1;
        self.0.get(place..place + 2).unwrap_or_default()
    }

    /// Notes a source, or a sender.
    pub(crate) fn note(&self, source: Source, now: Time) {
        let (tag, noted) = (source.0 >> (64 - TAG_BITS), tick(now));
        let entry = tag << (64 - TAG_BITS) | noted;
        let pair = self.pair(source);
        let own = pair
            .iter()
            .find(|place| place.load(Ordering::Relaxed) >> (64 - TAG_BITS) == tag);
        let oldest = || {
            pair.iter()
                .max_by_key(|place| age(place.load(Ordering::Relaxed), noted))
        };
        if let Some(place) = own.or_else(oldest) {
            place.store(entry, Ordering::Relaxed);
        }
    }

    /// Whether it was noted lately.
    pub(crate) fn has(&self, source: Source, now: Time) -> bool {
        let (tag, now) = (source.0 >> (64 - TAG_BITS), tick(now));
        self.pair(source).iter().any(|place| {
            let entry = place.load(Ordering::Relaxed);
            entry >> (64 - TAG_BITS) == tag && age(entry, now) <= MEMORY.as_nanos() / TICK.as_nanos()
        })
    }

    /// Forgets it.
    pub(crate) fn forget(&self, source: Source) {
        let tag = source.0 >> (64 - TAG_BITS);
        for place in self.pair(source) {
            let entry = place.load(Ordering::Relaxed);
            if entry >> (64 - TAG_BITS) == tag {
                // If it was noted again meanwhile, it stays.
                let _ = place.compare_exchange(entry, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }
}

/// Ticks since an entry was noted; the most for a place that is empty. A message that waited may have arrived before its sender was noted:
/// then its age is 0.
fn age(entry: u64, now: u64) -> u64 {
    // And one tick for rounding.
    const WAITED_MAX: u64 = QUEUED_MAX.as_nanos() as u64 / TICK.as_nanos() + 1;
    let ticks = (1 << (64 - TAG_BITS)) - 1;
    match entry & ticks {
        0 => u64::MAX,
        noted => Some((now + ticks - noted) % ticks)
            .filter(|age| *age < ticks - WAITED_MAX)
            .unwrap_or(0),
    }
}

/// New senders that a receiver takes while many wait: a token bucket of one thread.
pub(crate) struct Newcomers {
    full_at: Time,
}

impl Newcomers {
    /// One every so often, and so many at once.
    pub(crate) const INTERVAL: Span = Span::from_micros(200);
    const BURST: u64 = 64;

    pub(crate) fn new() -> Self {
        Self { full_at: Time::ZERO }
    }

    pub(crate) fn try_take(&mut self, now: Time) -> bool {
        let takes = self.full_at.since(now) <= Self::INTERVAL.times(Self::BURST - 1);
        if takes {
            self.full_at = self.full_at.max(now) + Self::INTERVAL;
        }
        takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Span::from_millis(1_000 * seconds)
    }

    #[test]
    fn what_was_noted_lately_is_known() {
        let recently = Recently::default();
        // Two that share a pair of places, and one in another.
        let [one, two, third, other] = [5 << 40 | 8, 6 << 40 | 9, 7 << 40 | 8, 5 << 40 | 10].map(Source);
        assert!(!recently.has(one, at(0)));
        recently.note(one, at(0));
        recently.note(two, at(1));
        assert!(recently.has(one, at(30)) && recently.has(two, at(30)) && !recently.has(other, at(30)));
        assert!(recently.has(two, at(0)), "it came before the other was noted");
        assert!(!recently.has(one, at(61)) && recently.has(two, at(61)), "an age");
        recently.note(one, at(61));
        recently.note(third, at(62));
        assert!(recently.has(one, at(62)) && recently.has(third, at(62)));
        assert!(!recently.has(two, at(62)), "the oldest makes room");
        recently.forget(one);
        assert!(!recently.has(one, at(62)) && recently.has(third, at(62)));
        assert!(!recently.has(one, at(7 * 86_400)), "half of the ticks later");
        // Ticks begin again after twelve days.
        let days = at(13 * 86_400);
        recently.note(one, days);
        assert!(recently.has(one, days));
    }

    #[test]
    fn new_senders_are_taken_at_a_bounded_rate() {
        let mut newcomers = Newcomers::new();
        let mut takes = |now| (0..1_000).filter(|_| newcomers.try_take(now)).count();
        assert_eq!(takes(at(0)), 64);
        assert_eq!(takes(at(0)), 0);
        assert_eq!(takes(Time::ZERO + Newcomers::INTERVAL.times(3)), 3);
        assert_eq!(takes(at(9)), 64);
    }
}
