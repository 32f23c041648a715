//! Senders whose messages pass a filter.

use std::collections::{HashMap, VecDeque};

use super::filter::KNOWN_MAX;
use crate::reputation::ENTRY_LIFETIME;
use crate::scheduler::{Source, Span, Time};

/// Minimum interval between two scans of all known senders.
const PRUNE_INTERVAL: Span = Span::from_millis(1_000);
/// Maximum number of candidates, more than the messages of unknown senders that a filter passes in a second.
const CANDIDATES_MAX: usize = 8_192;

/// Lifetime of a candidate. Within this time, the message of the candidate is verified or becomes too old.
const CANDIDATE_LIFETIME: Span = Span::from_millis(10_000);

/// Known senders by their tags ([`super::filter::Tags`]), and unknown senders that may become
/// known.
#[derive(Default)]
pub(super) struct Senders {
    /// By tag: the sender, and the time of the sender's latest message.
    known: HashMap<u32, (Source, Time)>,
    pruned_at: Time,
    /// Latest time at which a known sender was omitted because the table was full.
    overflowed_at: Option<Time>,
    /// Unknown senders with a message in verification, and when the message arrived.
    candidates: VecDeque<(u32, Source, Time)>,
}

impl Senders {
    pub(super) fn record_known(&mut self, tag: u32, sender: Source, now: Time) {
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&tag) {
            if now.saturating_since(self.pruned_at) >= PRUNE_INTERVAL {
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
        self.known
            .retain(|_, (_, sent)| now.saturating_since(*sent) < ENTRY_LIFETIME);
    }

    pub(super) fn record_candidate(&mut self, tag: u32, sender: Source, now: Time) {
        if self.candidates.len() >= CANDIDATES_MAX {
            self.candidates.pop_front();
        }
        self.candidates.push_back((tag, sender, now));
    }

    /// Removes a sender that is not known any more. Another sender may have the same tag.
    pub(super) fn forget(&mut self, tag: u32, sender: Source) {
        if self.known.get(&tag).is_some_and(|(known, _)| *known == sender) {
            self.known.remove(&tag);
        }
    }

    /// Whether more senders were known in the last minute than a filter can hold.
    pub(super) fn is_overflowed(&self, now: Time) -> bool {
        self.overflowed_at
            .is_some_and(|at| now.saturating_since(at) < ENTRY_LIFETIME)
    }

    /// Tags of known senders, including candidates that have become known.
    pub(super) fn tags(&mut self, now: Time, is_known: impl Fn(Source) -> bool) -> Vec<u32> {
        self.prune(now);
        for (tag, sender, arrived) in std::mem::take(&mut self.candidates) {
            if is_known(sender) {
                self.record_known(tag, sender, now);
            } else if now.saturating_since(arrived) < CANDIDATE_LIFETIME {
                self.candidates.push_back((tag, sender, arrived));
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
    fn an_overflow_lasts_for_a_minute() {
        let mut senders = Senders::default();
        for tag in 0..KNOWN_MAX as u32 {
            senders.record_known(tag, Source(tag.into()), at(10));
        }
        senders.record_known(5, Source(5), at(20));
        assert!(!senders.is_overflowed(at(20)), "already known");
        senders.record_known(KNOWN_MAX as u32, Source(0), at(2_000));
        assert!(senders.is_overflowed(at(2_000)));
        assert!(senders.is_overflowed(at(61_999)) && !senders.is_overflowed(at(62_000)));
        senders.record_known(KNOWN_MAX as u32, Source(0), at(62_000));
        assert!(!senders.is_overflowed(at(62_000)), "the others sent nothing");
        assert_eq!(senders.tags(at(62_000), |_| false), [KNOWN_MAX as u32]);
    }

    #[test]
    fn an_unknown_sender_does_not_take_over_a_known_senders_tag() {
        let mut senders = Senders::default();
        senders.record_known(70, Source(7), at(1));
        senders.forget(70, Source(8));
        assert_eq!(senders.tags(at(2), |_| false), [70]);
        senders.forget(70, Source(7));
        assert_eq!(senders.tags(at(3), |_| false), [0; 0]);
    }
}
