//! Who may have messages treated as immediate. A priority is what an unverified message says of itself, so it
//! costs.
//!
//! What is charged is lane time ([`QuotaLimits::token`]), not messages: forging one that takes thirty times as long costs thirty times as
//! much. A *sender* is a source together with the signer that its messages name. A sender of whom something was found valid lately is
//! known, and has a token bucket of its own; so whoever names a signer from elsewhere, whose identifier is public, uses up nothing of the
//! signer's. Others are strangers: they have a bucket for each source, and also need tokens of one that all strangers share, for otherwise
//! a new source for each message would have a bucket for each. Strangers and known senders are remembered apart, so that inventing sources
//! makes no sender forgotten. A wrong signature of a stranger costs its source [`QuotaLimits::wrong`] tokens more. Known senders are not
//! charged for wrong signatures, which others may send in their names, but are strangers again after [`QuotaLimits::wrong_max`] of them
//! without a valid one.
//!
//! What this rests on: a message that was taken says something of its sender. One that was refused says
//! nothing, whatever its signature: who repeats another's message from invented sources makes none known,
//! unless his copy comes before the original; then it is one source for each message. Who forges a known sender's address and
//! name can use up its tokens: its immediate messages are then urgent ones, and not lost.

use super::generations::Generations;
use super::hashing::SourceHash;
use super::job::{Meta, Source};
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
    /// Whether there are so many tokens; or the bucket is full, if it never holds so many.
    fn has_tokens(self, rate: Rate, tokens: u64, now: Time) -> bool {
        let missing = self.full_at.since(now);
        let burst = u64::from(rate.burst);
        burst > 0 && missing <= rate.interval.times(burst.saturating_sub(tokens))
    }

    fn take(&mut self, rate: Rate, tokens: u64, now: Time) {
        self.full_at = self.full_at.max(now) + rate.interval.times(tokens);
    }

    /// Takes tokens that need not be there, up to as many as a full bucket holds.
    fn fine(&mut self, rate: Rate, tokens: u64, now: Time) {
        self.take(rate, tokens, now);
        self.full_at = self.full_at.min(now + rate.interval.times(rate.burst.into()));
    }
}

/// Quotas of immediate messages.
#[derive(Clone, Copy, Debug)]
pub struct QuotaLimits {
    /// Lane time that a token stands for; a message takes one for each part of it that it begins.
    pub token: Span,
    /// Of each known sender, and of each source of strangers.
    pub source: Rate,
    /// Of all strangers together, besides their own.
    pub strangers: Rate,
    /// Tokens that a stranger's wrong signature takes from its source.
    pub wrong: u32,
    /// Wrong signatures without a valid one after which a known sender is a stranger again.
    pub wrong_max: u32,
    /// Sources that are remembered at least, of strangers and of others each.
    pub sources: usize,
    /// How long a valid message makes its source no stranger, at least.
    pub memory: Span,
}

/// A known sender.
#[derive(Default)]
struct Known {
    bucket: Bucket,
    /// Wrong signatures since the last valid one.
    wrong: u32,
}

/// Who has how much left.
pub(super) struct Quotas {
    limits: QuotaLimits,
    strangers: Bucket,
    /// By source.
    of_strangers: Generations<Source, Bucket, SourceHash>,
    /// By sender.
    of_known: Generations<Source, Known, SourceHash>,
}

impl Quotas {
    pub(super) fn new(limits: QuotaLimits) -> Self {
        Self {
            limits,
            strangers: Bucket::default(),
            of_strangers: Generations::new(limits.sources, limits.memory),
            of_known: Generations::new(limits.sources, limits.memory),
        }
    }

    /// Whether nothing of a sender was found valid lately.
    pub(super) fn is_stranger(&mut self, sender: Source, now: Time) -> bool {
        self.of_known.get(&sender, now).is_none()
    }

    /// Takes the tokens for an immediate message of this cost, if they are there.
    pub(super) fn allow(&mut self, meta: &Meta, cost: Span, now: Time) -> bool {
        let QuotaLimits {
            source: rate,
            strangers: shared,
            token,
            ..
        } = self.limits;
        let tokens = cost.as_nanos().div_ceil(token.as_nanos().max(1)).max(1);
        if let Some(Known { bucket, .. }) = self.of_known.get_mut(&meta.sender, now) {
            let allowed = bucket.has_tokens(rate, tokens, now);
            if allowed {
                bucket.take(rate, tokens, now);
            }
            return allowed;
        }
        let bucket = self.of_strangers.touch(meta.source, now, Bucket::default);
        let allowed = bucket.has_tokens(rate, tokens, now) && self.strangers.has_tokens(shared, tokens, now);
        if allowed {
            bucket.take(rate, tokens, now);
            self.strangers.take(shared, tokens, now);
        }
        allowed
    }

    /// Notes that a message was accepted: its sender is known from now on, or for longer. What the source has used up stays used up.
    pub(super) fn trust(&mut self, meta: &Meta, now: Time) {
        // Nearly all accepted messages are a known sender's: one look-up for these.
        if let Some(known) = self.of_known.renew(meta.sender, now) {
            known.wrong = 0;
            return;
        }
        let bucket = self.of_strangers.get(&meta.source, now).copied();
        self.of_known.insert(
            meta.sender,
            Known {
                bucket: bucket.unwrap_or_default(),
                wrong: 0,
            },
            now,
        );
    }

    /// Notes that a message's signature was wrong.
    pub(super) fn distrust(&mut self, meta: &Meta, now: Time) {
        let QuotaLimits {
            source: rate,
            wrong,
            wrong_max,
            ..
        } = self.limits;
        match self.of_known.get_mut(&meta.sender, now) {
            Some(known) if known.wrong < wrong_max => known.wrong += 1,
            Some(_) => self.of_known.remove(&meta.sender),
            None => self
                .of_strangers
                .touch(meta.source, now, Bucket::default)
                .fine(rate, wrong.into(), now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::class::Class;
    use super::super::job::Priority;
    use super::*;

    const LIMITS: QuotaLimits = QuotaLimits {
        token: Span::from_micros(250),
        wrong: 2,
        wrong_max: 3,
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

    fn meta(source: u64, signer: u64) -> Meta {
        Meta {
            sender: Source(source << 32 | signer),
            ..Meta::new(Class::RA_VERIFY, Priority::IMMEDIATE, Source(source), Time::ZERO)
        }
    }

    fn sender(source: u64) -> Source {
        meta(source, 1).sender
    }

    fn trust(quotas: &mut Quotas, source: u64, now: Time) {
        quotas.trust(&meta(source, 1), now);
    }

    fn allowed(quotas: &mut Quotas, source: u64, now: u64, tries: u32) -> usize {
        let cost = LIMITS.token;
        (0..tries)
            .filter(|_| quotas.allow(&meta(source, 1), cost, at(now)))
            .count()
    }

    #[test]
    fn a_source_has_its_burst_and_its_rate() {
        let mut quotas = Quotas::new(LIMITS);
        trust(&mut quotas, 1, at(0));
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
        trust(&mut quotas, 1, at(0));
        let invented: usize = (100..200).map(|source| allowed(&mut quotas, source, 0, 1)).sum();
        assert_eq!(invented, 5);
        assert_eq!(allowed(&mut quotas, 1, 0, 9), 3, "nor is it forgotten");
        assert!(quotas.is_stranger(sender(300), at(10)) && allowed(&mut quotas, 300, 10, 1) == 1);
    }

    #[test]
    fn who_becomes_known_has_no_new_tokens() {
        let mut quotas = Quotas::new(LIMITS);
        assert_eq!(allowed(&mut quotas, 1, 0, 9), 3);
        assert!(quotas.is_stranger(sender(1), at(0)));
        trust(&mut quotas, 1, at(0));
        assert!(!quotas.is_stranger(sender(1), at(0)));
        assert_eq!(allowed(&mut quotas, 1, 0, 9), 0);
    }

    #[test]
    fn a_source_that_was_silent_is_a_stranger_again() {
        let mut quotas = Quotas::new(LIMITS);
        trust(&mut quotas, 1, at(0));
        assert!(quotas.is_stranger(sender(1), Time::ZERO + Span::from_millis(3)));
    }

    #[test]
    fn who_is_accepted_stays_known_and_claims_keep_nobody_so() {
        let mut quotas = Quotas::new(LIMITS);
        let later = |halves: u64| Time::from_nanos(halves * LIMITS.memory.as_nanos() / 2);
        trust(&mut quotas, 2, Time::ZERO);
        for halves in 0..8 {
            trust(&mut quotas, 1, later(halves));
            quotas.allow(&meta(2, 1), LIMITS.token, later(halves));
        }
        assert!(!quotas.is_stranger(sender(1), later(8)));
        assert!(quotas.is_stranger(sender(2), later(8)));
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

    #[test]
    fn a_signer_that_is_named_from_elsewhere_keeps_its_tokens() {
        let mut quotas = Quotas::new(LIMITS);
        trust(&mut quotas, 1, at(0));
        assert_eq!(allowed(&mut quotas, 2, 0, 9), 3, "a stranger's own");
        quotas.distrust(&meta(2, 1), at(0));
        assert!(!quotas.is_stranger(sender(1), at(0)));
        assert_eq!(allowed(&mut quotas, 1, 0, 9), 3);
        // Nor is another signer known that is named from a known sender's source.
        assert!(quotas.is_stranger(meta(1, 2).sender, at(0)));
    }

    #[test]
    fn tokens_are_lane_time() {
        let mut quotas = Quotas::new(LIMITS);
        trust(&mut quotas, 1, at(0));
        let cost = |parts: u64| Span::from_nanos(LIMITS.token.as_nanos() / 2 * parts);
        assert!(quotas.allow(&meta(1, 1), cost(3), at(0)), "two of three tokens");
        assert!(!quotas.allow(&meta(1, 1), cost(3), at(0)));
        assert!(quotas.allow(&meta(1, 1), cost(1), at(0)));
        // What costs more than a full bucket takes it all, and what comes after waits for longer.
        assert!(quotas.allow(&meta(1, 1), cost(12), at(300)));
        assert_eq!(allowed(&mut quotas, 1, 300 + 399, 1), 0);
        assert_eq!(allowed(&mut quotas, 1, 300 + 400, 9), 1);
    }

    #[test]
    fn wrong_signatures_cost_strangers_tokens_and_known_senders_their_standing() {
        let mut quotas = Quotas::new(LIMITS);
        quotas.distrust(&meta(2, 1), at(0));
        assert_eq!(allowed(&mut quotas, 2, 0, 9), 1);
        (0..100).for_each(|_| quotas.distrust(&meta(2, 1), at(0)));
        assert_eq!(
            allowed(&mut quotas, 2, 100, 9),
            1,
            "a full bucket is lost at most"
        );
        trust(&mut quotas, 1, at(0));
        for _ in 0..3 {
            (0..3).for_each(|_| quotas.distrust(&meta(1, 1), at(0)));
            assert!(!quotas.is_stranger(sender(1), at(0)));
            trust(&mut quotas, 1, at(0));
        }
        (0..4).for_each(|_| quotas.distrust(&meta(1, 1), at(0)));
        assert!(quotas.is_stranger(sender(1), at(0)));
    }
}
