//! Senders whose messages pass a filter.

use std::collections::{HashMap, VecDeque};

use super::filter::KNOWN_MAX;
use crate::reputation::MEMORY;
use crate::scheduler::{Source, Span, Time};

/// At most once in this time all known senders are looked through.
const PRUNED_AFTER: Span = Span::from_millis(1_000);
/// More than a filter lets pass in a second.
const CANDIDATES_MAX: usize = 8_192;

/// Known senders by their tags ([`super::filter::Tags`]), and strangers that may become known.
#[derive(Default)]
pub(super) struct Senders {
    /// When each sent last.
    known: HashMap<u32, Time>,
    pruned_at: Time,
    /// When a known sender was last left out because the table was full.
    overflowed_at: Option<Time>,
    /// Strangers of whom a message is being verified.
    candidates: VecDeque<(u32, Source)>,
}

impl Senders {
    pub(super) fn record_known(&mut self, tag: u32, now: Time) {
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&tag) {
            if now.since(self.pruned_at) >= PRUNED_AFTER {
                self.prune(now);
            }
            if self.known.len() >= KNOWN_MAX {
                self.overflowed_at = Some(now);
                return;
            }
        }
        self.known.insert(tag, now);
    }

    fn prune(&mut self, now: Time) {
        self.pruned_at = now;
        self.known.retain(|_, sent| now.since(*sent) < MEMORY);
    }

    pub(super) fn record_candidate(&mut self, tag: u32, sender: Source) {
        if self.candidates.len() >= CANDIDATES_MAX {
            self.candidates.pop_front();
        }
        self.candidates.push_back((tag, sender));
    }

    /// Forgets a sender that is not known any more.
    pub(super) fn forget(&mut self, tag: u32) {
        self.known.remove(&tag);
    }

    /// Whether more senders were known in the last minute than a filter has room for.
    pub(super) fn are_too_many(&self, now: Time) -> bool {
        self.overflowed_at.is_some_and(|at| now.since(at) < MEMORY)
    }

    /// Tags of known senders, with those that have become known.
    pub(super) fn tags(&mut self, now: Time, is_known: impl Fn(Source) -> bool) -> Vec<u32> {
        self.prune(now);
        for (tag, sender) in std::mem::take(&mut self.candidates) {
            if is_known(sender) {
                self.record_known(tag, now);
            } else {
                self.candidates.push_back((tag, sender));
            }
        }
        self.known.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    #[test]
    fn candidates_that_have_become_known_get_a_tag() {
        let mut senders = Senders::default();
        senders.record_candidate(70, Source(7));
        senders.record_candidate(80, Source(8));
        assert_eq!(senders.tags(at(1), |sender| sender == Source(7)), [70]);
        assert_eq!(senders.candidates, [(80, Source(8))], "may still be verified");
        for number in 0..2 * CANDIDATES_MAX as u32 {
            senders.record_candidate(number, Source(9));
        }
        assert_eq!(senders.candidates.len(), CANDIDATES_MAX);
    }

    #[test]
    fn senders_are_too_many_for_a_minute_after_one_was_left_out() {
        let mut senders = Senders::default();
        for tag in 0..KNOWN_MAX as u32 {
            senders.record_known(tag, at(10));
        }
        senders.record_known(5, at(20));
        assert!(!senders.are_too_many(at(20)), "it was known");
        senders.record_known(KNOWN_MAX as u32, at(2_000));
        assert!(senders.are_too_many(at(2_000)));
        assert!(senders.are_too_many(at(61_999)) && !senders.are_too_many(at(62_000)));
        senders.record_known(KNOWN_MAX as u32, at(62_000));
        assert!(!senders.are_too_many(at(62_000)), "the others are silent");
        assert_eq!(senders.tags(at(62_000), |_| false), [KNOWN_MAX as u32]);
    }
}
