//! Who may have messages treated as immediate. A priority is what an unverified message says of itself, so it
//! costs.
//!
//! Each source has a token bucket. A source of which nothing was found valid lately, a stranger, also needs a
//! token of the bucket that all strangers share: otherwise who invents a new source for each message would
//! have as many buckets. Strangers and others are remembered apart, so that inventing sources makes nobody
//! forgotten who has sent something valid. A wrong signature costs its source nothing: the source may be as
//! forged as the rest.
//!
//! What this rests on: a message that was taken says something of its source. One that was refused says
//! nothing, whatever its signature: who repeats another's message from invented sources makes none known,
//! unless his copy comes before the original; then it is one source for each message. Sources that are bound
//! to the signer's key would not have even this weakness. Who forges a known source's name can use up its
//! tokens: its immediate messages are then urgent ones, and not lost.

use super::generations::Generations;
use super::hashing::SourceHash;
use super::job::Source;
use super::time::{Span, Time};

/// A token bucket's parameters.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Tokens that a full bucket holds. Zero: nothing is ever allowed.
    pub burst: u32,
    /// What one token takes to come back.
    pub interval: Span,
}

/// A bucket as the generic cell rate algorithm keeps it (ITU-T I.371): when it will be full again.
#[derive(Clone, Copy, Default)]
struct Bucket {
    full_at: Time,
}

impl Bucket {
    fn has_token(self, rate: Rate, now: Time) -> bool {
        let missing = self.full_at.since(now);
        rate.burst > 0 && missing <= rate.interval.times(u64::from(rate.burst) - 1)
    }

    fn take(&mut self, rate: Rate, now: Time) {
        self.full_at = self.full_at.max(now) + rate.interval;
    }
}

/// Quotas of immediate messages.
#[derive(Clone, Copy, Debug)]
pub struct QuotaLimits {
    /// Of each source.
    pub source: Rate,
    /// Of all strangers together, besides their own.
    pub strangers: Rate,
    /// Sources that are remembered at least, of strangers and of others each.
    pub sources: usize,
    /// How long a valid message makes its source no stranger, at least.
    pub memory: Span,
}

/// Who has how much left.
pub(super) struct Quotas {
    limits: QuotaLimits,
    strangers: Bucket,
    of_strangers: Generations<Source, Bucket, SourceHash>,
    of_others: Generations<Source, Bucket, SourceHash>,
}

impl Quotas {
    pub(super) fn new(limits: QuotaLimits) -> Self {
        Self {
            limits,
            strangers: Bucket::default(),
            of_strangers: Generations::new(limits.sources, limits.memory),
            of_others: Generations::new(limits.sources, limits.memory),
        }
    }

    /// Whether nothing of a source was found valid lately.
    pub(super) fn is_stranger(&mut self, source: Source, now: Time) -> bool {
        self.of_others.get(&source, now).is_none()
    }

    /// Takes the tokens for an immediate message, if they are there.
    pub(super) fn allow(&mut self, source: Source, now: Time) -> bool {
        let QuotaLimits {
            source: rate,
            strangers: shared,
            ..
        } = self.limits;
        if let Some(bucket) = self.of_others.get_mut(&source, now) {
            let allowed = bucket.has_token(rate, now);
            if allowed {
                bucket.take(rate, now);
            }
            return allowed;
        }
        let bucket = self.of_strangers.touch(source, now, Bucket::default);
        let allowed = bucket.has_token(rate, now) && self.strangers.has_token(shared, now);
        if allowed {
            bucket.take(rate, now);
            self.strangers.take(shared, now);
        }
        allowed
    }

    /// Notes that a message of this source was accepted: it is known from now on, or for longer. What it has used up stays used up.
    pub(super) fn trust(&mut self, source: Source, now: Time) {
        // Nearly all accepted messages are a known source's: one look-up for these.
        if self.of_others.renew(source, now) {
            return;
        }
        let used = self.of_strangers.get(&source, now).copied().unwrap_or_default();
        self.of_strangers.remove(&source);
        self.of_others.touch(source, now, || used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: QuotaLimits = QuotaLimits {
        source: Rate {
            burst: 3,
            interval: Span::from_nanos(100),
        },
        strangers: Rate {
            burst: 5,
            interval: Span::from_nanos(10),
        },
        sources: 4,
        memory: Span::from_millis(1),
    };

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    fn allowed(quotas: &mut Quotas, source: u64, now: u64, tries: u32) -> usize {
        (0..tries)
            .filter(|_| quotas.allow(Source(source), at(now)))
            .count()
    }

    #[test]
    fn a_source_has_its_burst_and_its_rate() {
        let mut quotas = Quotas::new(LIMITS);
        quotas.trust(Source(1), at(0));
        assert_eq!(allowed(&mut quotas, 1, 0, 9), 3);
        assert_eq!(allowed(&mut quotas, 1, 99, 9), 0);
        assert_eq!(allowed(&mut quotas, 1, 100, 9), 1);
        assert_eq!(allowed(&mut quotas, 1, 350, 9), 2, "half a token stays");
        assert_eq!(allowed(&mut quotas, 1, 400, 9), 1);
        assert_eq!(allowed(&mut quotas, 1, 9_000, 9), 3, "never more than the burst");
    }

    #[test]
    fn strangers_share_a_bucket_and_others_do_not_feel_it() {
        let mut quotas = Quotas::new(LIMITS);
        quotas.trust(Source(1), at(0));
        let invented: usize = (100..200).map(|source| allowed(&mut quotas, source, 0, 1)).sum();
        assert_eq!(invented, 5);
        assert_eq!(allowed(&mut quotas, 1, 0, 9), 3, "nor is it forgotten");
        assert!(quotas.is_stranger(Source(300), at(10)) && quotas.allow(Source(300), at(10)));
    }

    #[test]
    fn who_becomes_known_has_no_new_tokens() {
        let mut quotas = Quotas::new(LIMITS);
        assert_eq!(allowed(&mut quotas, 1, 0, 9), 3);
        assert!(quotas.is_stranger(Source(1), at(0)));
        quotas.trust(Source(1), at(0));
        assert!(!quotas.is_stranger(Source(1), at(0)));
        assert_eq!(allowed(&mut quotas, 1, 0, 9), 0);
    }

    #[test]
    fn a_source_that_was_silent_is_a_stranger_again() {
        let mut quotas = Quotas::new(LIMITS);
        quotas.trust(Source(1), at(0));
        assert!(quotas.is_stranger(Source(1), Time::ZERO + Span::from_millis(3)));
    }

    #[test]
    fn who_is_accepted_stays_known_and_claims_keep_nobody_so() {
        let mut quotas = Quotas::new(LIMITS);
        let later = |halves: u64| Time::from_nanos(halves * LIMITS.memory.as_nanos() / 2);
        quotas.trust(Source(2), Time::ZERO);
        for halves in 0..8 {
            quotas.trust(Source(1), later(halves));
            quotas.allow(Source(2), later(halves));
        }
        assert!(!quotas.is_stranger(Source(1), later(8)));
        assert!(quotas.is_stranger(Source(2), later(8)));
    }

    #[test]
    fn a_bucket_of_nothing_allows_nothing() {
        let none = Rate {
            burst: 0,
            interval: Span::ZERO,
        };
        let mut quotas = Quotas::new(QuotaLimits {
            source: none,
            ..LIMITS
        });
        assert_eq!(allowed(&mut quotas, 1, 1_000_000, 3), 0);
    }
}
