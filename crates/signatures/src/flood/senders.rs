//! Senders whose messages pass a filter.

use std::collections::{HashMap, VecDeque};

use super::filter::KNOWN_MAX;
use crate::reputation::MEMORY;
use crate::scheduler::{Source, Span, Time};

/// At most once in this time all known senders are looked through.
const PRUNED_AFTER: Span = Span::from_millis(1_000);
/// More than a filter lets pass in a second.
const CANDIDATES_MAX: usize = 8_192;

/// A message is verified within this time, or is too old.
const CANDIDATE_FOR: Span = Span::from_millis(10_000);

/// Known senders by their tags ([`super::filter::Tags`]), and strangers that may become known.
#[derive(Default)]
pub(super) struct Senders {
    /// Each sender, and when it sent last.
    known: HashMap<u32, (Source, Time)>,
    pruned_at: Time,
    /// When a known sender was last left out because the table was full.
    overflowed_at: Option<Time>,
    /// Strangers of whom a message is being verified, and since when.
    candidates: VecDeque<(u32, Source, Time)>,
}

impl Senders {
    pub(super) fn record_known(&mut self, tag: u32, sender: Source, now: Time) {
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&tag) {
            if now.since(self.pruned_at) >= PRUNED_AFTER {
                self.prune(now);
            }
            if self.known.len() >= KNOWN_MAX {
                self.overflowed_at = Some(now);
                return;
            }
        }
        self.known.insert(tag, (sender, now));
    }

    fn prune(&mut self, now: Time) {
        self.pruned_at = now;
        self.known.retain(|_, (_, sent)| now.since(*sent) < MEMORY);
    }

    pub(super) fn record_candidate(&mut self, tag: u32, sender: Source, now: Time) {
        if self.candidates.len() >= CANDIDATES_MAX {
            self.candidates.pop_front();
        }
        self.candidates.push_back((tag, sender, now));
    }

    /// Forgets a sender that is not known any more. Another sender may have the same tag.
    pub(super) fn forget(&mut self, tag: u32, sender: Source) {
        if self.known.get(&tag).is_some_and(|(known, _)| *known == sender) {
            self.known.remove(&tag);
        }
    }

    /// Whether more senders were known in the last minute than a filter has room for.
    pub(super) fn are_too_many(&self, now: Time) -> bool {
        self.overflowed_at.is_some_and(|at| now.since(at) < MEMORY)
    }

    /// Tags of known senders, with those that have become known.
    pub(super) fn tags(&mut self, now: Time, is_known: impl Fn(Source) -> bool) -> Vec<u32> {
        self.prune(now);
        for (tag, sender, since) in std::mem::take(&mut self.candidates) {
            if is_known(sender) {
                self.record_known(tag, sender, now);
            } else if now.since(since) < CANDIDATE_FOR {
                self.candidates.push_back((tag, sender, since));
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
        senders.record_candidate(70, Source(7), at(1));
        senders.record_candidate(80, Source(8), at(1));
        assert_eq!(senders.tags(at(2), |sender| sender == Source(7)), [70]);
        assert_eq!(
            senders.candidates,
            [(80, Source(8), at(1))],
            "may still be verified"
        );
        for number in 0..2 * CANDIDATES_MAX as u32 {
            senders.record_candidate(number, Source(9), at(3));
        }
        assert_eq!(senders.candidates.len(), CANDIDATES_MAX);
        assert_eq!(senders.tags(at(10_003), |_| false), [70]);
        assert!(senders.candidates.is_empty(), "too old");
    }

    #[test]
    fn senders_are_too_many_for_a_minute_after_one_was_left_out() {
        let mut senders = Senders::default();
        for tag in 0..KNOWN_MAX as u32 {
            senders.record_known(tag, Source(tag.into()), at(10));
        }
        senders.record_known(5, Source(5), at(20));
        assert!(!senders.are_too_many(at(20)), "it was known");
        senders.record_known(KNOWN_MAX as u32, Source(0), at(2_000));
        assert!(senders.are_too_many(at(2_000)));
        assert!(senders.are_too_many(at(61_999)) && !senders.are_too_many(at(62_000)));
        senders.record_known(KNOWN_MAX as u32, Source(0), at(62_000));
        assert!(!senders.are_too_many(at(62_000)), "the others are silent");
        assert_eq!(senders.tags(at(62_000), |_| false), [KNOWN_MAX as u32]);
    }

    #[test]
    fn a_stranger_with_a_known_senders_tag_does_not_take_it_away() {
        let mut senders = Senders::default();
        senders.record_known(70, Source(7), at(1));
        senders.forget(70, Source(8));
        assert_eq!(senders.tags(at(2), |_| false), [70]);
        senders.forget(70, Source(7));
        assert_eq!(senders.tags(at(3), |_| false), [0; 0]);
    }
}
