//! Quotas of immediate messages. The priority of an unverified message is only a claim, so immediate messages are charged.
//!
//! Charges are in lane time ([`QuotaLimits::token`]), not in messages: a forgery that takes thirty times as long costs thirty times as
//! much. A *sender* is a source together with the signer that its messages name. A sender with a recent valid message is known, and has a
//! token bucket of its own; an attacker that names a public signer identifier from another source therefore uses up no tokens of the
//! signer. Other senders are unknown: they have a bucket for each source, and also need tokens of one bucket that all unknown senders
//! share, since otherwise an attacker would get a new bucket with each new source. Unknown and known senders are stored separately, so that
//! invented sources displace no known sender. An invalid signature of an unknown sender costs its source [`QuotaLimits::invalid_penalty`]
//! more tokens. Known senders are not charged for invalid signatures, which attackers may send in their names. A known
//! sender becomes unknown after more than [`QuotaLimits::invalid_max`] invalid signatures without a valid signature in
//! between.
//!
//! Only an accepted message makes its sender known. A refused message does not make its sender known, even with a valid
//! signature. An attacker may send copies of a message from invented sources. The source of a copy becomes known only
//! if the copy arrives before the original: at most one source for each message. An attacker that forges a known
//! sender's address and signer can use up the tokens of the sender: immediate messages of the sender then become urgent
//! ones, but are not lost.

use super::generations::Generations;
use super::hashing::SourceHash;
use super::job::{Meta, Source};
use super::time::{Span, Time};

/// Parameters of a token bucket.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Tokens in a full bucket. Zero: no request is ever allowed.
    pub burst: u32,
    /// Time until one token is refilled.
    pub interval: Span,
}

/// A bucket of the generic cell rate algorithm (ITU-T I.371), stored as the time when the bucket will be full again.
#[derive(Clone, Copy, Default)]
struct Bucket {
    full_at: Time,
}

impl Bucket {
    /// Whether the bucket has this number of tokens. For more tokens than a full bucket has: whether the bucket is
    /// full.
    fn has_tokens(self, rate: Rate, tokens: u64, now: Time) -> bool {
        let missing = self.full_at.saturating_since(now);
        let burst = u64::from(rate.burst);
        burst > 0 && missing <= rate.interval.times(burst.saturating_sub(tokens))
    }

    fn take(&mut self, rate: Rate, tokens: u64, now: Time) {
        self.full_at = self.full_at.max(now) + rate.interval.times(tokens);
    }

    /// Takes tokens even if they are missing, at most until the bucket is empty.
    fn penalize(&mut self, rate: Rate, tokens: u64, now: Time) {
        self.take(rate, tokens, now);
        self.full_at = self.full_at.min(now + rate.interval.times(rate.burst.into()));
    }
}

/// Quotas of immediate messages.
#[derive(Clone, Copy, Debug)]
pub struct QuotaLimits {
    /// Lane time per token. A message costs one token for each started unit of this time.
    pub token: Span,
    /// Rate of each known sender, and of each source of unknown senders.
    pub source: Rate,
    /// Shared rate of all unknown senders, in addition to the rate of their sources.
    pub unknown_senders: Rate,
    /// Tokens that an invalid signature of an unknown sender costs its source.
    pub invalid_penalty: u32,
    /// Maximum number of invalid signatures since the sender's last valid signature. With more invalid signatures, a
    /// known sender becomes unknown.
    pub invalid_max: u32,
    /// Minimum number of remembered sources of unknown senders, and of remembered known senders.
    pub sources: usize,
    /// Minimum time for which a valid message keeps its sender known.
    pub memory: Span,
}

/// A known sender.
#[derive(Default)]
struct KnownSender {
    bucket: Bucket,
    /// Number of invalid signatures since the last valid signature.
    invalid_signatures: u32,
}

/// Remaining quotas.
pub(super) struct Quotas {
    limits: QuotaLimits,
    shared_unknown: Bucket,
    /// Buckets of the sources of unknown senders.
    unknown_sources: Generations<Source, Bucket, SourceHash>,
    /// Known senders with their buckets.
    known_senders: Generations<Source, KnownSender, SourceHash>,
}

impl Quotas {
    pub(super) fn new(limits: QuotaLimits) -> Self {
        Self {
            limits,
            shared_unknown: Bucket::default(),
            unknown_sources: Generations::new(limits.sources, limits.memory),
            known_senders: Generations::new(limits.sources, limits.memory),
        }
    }

    /// Whether no recent message of the sender was valid.
    pub(super) fn is_unknown(&mut self, sender: Source, now: Time) -> bool {
        self.known_senders.get(&sender, now).is_none()
    }

    /// Takes the tokens for an immediate message of this cost, if available.
    pub(super) fn try_charge(&mut self, meta: &Meta, cost: Span, now: Time) -> bool {
        let QuotaLimits {
            source: rate,
            unknown_senders: shared,
            token,
            ..
        } = self.limits;
        let tokens = cost.as_nanos().div_ceil(token.as_nanos().max(1)).max(1);
        if let Some(KnownSender { bucket, .. }) = self.known_senders.get_mut(&meta.sender, now) {
            let is_allowed = bucket.has_tokens(rate, tokens, now);
            if is_allowed {
                bucket.take(rate, tokens, now);
            }
            return is_allowed;
        }
        let bucket = self.unknown_sources.touch(meta.source, now, Bucket::default);
        let is_allowed =
            bucket.has_tokens(rate, tokens, now) && self.shared_unknown.has_tokens(shared, tokens, now);
        if is_allowed {
            bucket.take(rate, tokens, now);
            self.shared_unknown.take(shared, tokens, now);
        }
        is_allowed
    }

    /// Records an accepted message: its sender becomes or stays known. Tokens already spent stay spent.
    pub(super) fn record_valid(&mut self, meta: &Meta, now: Time) {
        // Nearly all accepted messages are from known senders, which need only one look-up.
        if let Some(known) = self.known_senders.refresh(meta.sender, now) {
            known.invalid_signatures = 0;
            return;
        }
        let bucket = self.unknown_sources.get(&meta.source, now).copied();
        self.known_senders.insert(
            meta.sender,
            KnownSender {
                bucket: bucket.unwrap_or_default(),
                invalid_signatures: 0,
            },
            now,
        );
    }

    /// Records an invalid signature.
    pub(super) fn record_invalid(&mut self, meta: &Meta, now: Time) {
        let QuotaLimits {
            source: rate,
            invalid_penalty: penalty,
            invalid_max,
            ..
        } = self.limits;
        match self.known_senders.get_mut(&meta.sender, now) {
            Some(known) if known.invalid_signatures < invalid_max => known.invalid_signatures += 1,
            Some(_) => self.known_senders.remove(&meta.sender),
            None => self
                .unknown_sources
                .touch(meta.source, now, Bucket::default)
                .penalize(rate, penalty.into(), now),
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
        invalid_penalty: 2,
        invalid_max: 3,
        source: Rate {
            burst: 3,
            interval: Span::from_nanos(100),
        },
        unknown_senders: Rate {
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

    fn record_valid(quotas: &mut Quotas, source: u64, now: Time) {
        quotas.record_valid(&meta(source, 1), now);
    }

    fn count_allowed(quotas: &mut Quotas, source: u64, now: u64, tries: u32) -> usize {
        let cost = LIMITS.token;
        (0..tries)
            .filter(|_| quotas.try_charge(&meta(source, 1), cost, at(now)))
            .count()
    }

    #[test]
    fn a_source_has_its_burst_and_its_rate() {
        let mut quotas = Quotas::new(LIMITS);
        record_valid(&mut quotas, 1, at(0));
        assert_eq!(count_allowed(&mut quotas, 1, 0, 9), 3);
        assert_eq!(count_allowed(&mut quotas, 1, 99, 9), 0);
        assert_eq!(count_allowed(&mut quotas, 1, 100, 9), 1);
        assert_eq!(count_allowed(&mut quotas, 1, 350, 9), 2, "half a token remains");
        assert_eq!(count_allowed(&mut quotas, 1, 400, 9), 1);
        assert_eq!(
            count_allowed(&mut quotas, 1, 9_000, 9),
            3,
            "never more than the burst"
        );
    }

    #[test]
    fn unknown_senders_share_a_bucket_without_effect_on_others() {
        let mut quotas = Quotas::new(LIMITS);
        record_valid(&mut quotas, 1, at(0));
        let admitted_sources: usize = (100..200)
            .map(|source| count_allowed(&mut quotas, source, 0, 1))
            .sum();
        assert_eq!(admitted_sources, 5);
        assert_eq!(count_allowed(&mut quotas, 1, 0, 9), 3, "and not forgotten");
        assert!(quotas.is_unknown(sender(300), at(10)) && count_allowed(&mut quotas, 300, 10, 1) == 1);
    }

    #[test]
    fn becoming_known_grants_no_new_tokens() {
        let mut quotas = Quotas::new(LIMITS);
        assert_eq!(count_allowed(&mut quotas, 1, 0, 9), 3);
        assert!(quotas.is_unknown(sender(1), at(0)));
        record_valid(&mut quotas, 1, at(0));
        assert!(!quotas.is_unknown(sender(1), at(0)));
        assert_eq!(count_allowed(&mut quotas, 1, 0, 9), 0);
    }

    #[test]
    fn an_inactive_sender_becomes_unknown() {
        let mut quotas = Quotas::new(LIMITS);
        record_valid(&mut quotas, 1, at(0));
        assert!(quotas.is_unknown(sender(1), Time::ZERO + Span::from_millis(3)));
    }

    #[test]
    fn accepted_messages_keep_a_sender_known_and_claims_do_not() {
        let mut quotas = Quotas::new(LIMITS);
        let later = |halves: u64| Time::from_nanos(halves * LIMITS.memory.as_nanos() / 2);
        record_valid(&mut quotas, 2, Time::ZERO);
        for halves in 0..8 {
            record_valid(&mut quotas, 1, later(halves));
            quotas.try_charge(&meta(2, 1), LIMITS.token, later(halves));
        }
        assert!(!quotas.is_unknown(sender(1), later(8)));
        assert!(quotas.is_unknown(sender(2), later(8)));
    }

    #[test]
    fn an_empty_bucket_allows_no_request() {
        let none = Rate {
            burst: 0,
            interval: Span::ZERO,
        };
        let mut quotas = Quotas::new(QuotaLimits {
            source: none,
            ..LIMITS
        });
        assert_eq!(count_allowed(&mut quotas, 1, 1_000_000, 3), 0);
    }

    #[test]
    fn a_signer_named_from_another_source_keeps_its_tokens() {
        let mut quotas = Quotas::new(LIMITS);
        record_valid(&mut quotas, 1, at(0));
        assert_eq!(
            count_allowed(&mut quotas, 2, 0, 9),
            3,
            "the tokens of the unknown sender"
        );
        quotas.record_invalid(&meta(2, 1), at(0));
        assert!(!quotas.is_unknown(sender(1), at(0)));
        assert_eq!(count_allowed(&mut quotas, 1, 0, 9), 3);
        // A known sender's source does not make another signer known.
        assert!(quotas.is_unknown(meta(1, 2).sender, at(0)));
    }

    #[test]
    fn tokens_are_lane_time() {
        let mut quotas = Quotas::new(LIMITS);
        record_valid(&mut quotas, 1, at(0));
        let cost = |parts: u64| Span::from_nanos(LIMITS.token.as_nanos() / 2 * parts);
        assert!(
            quotas.try_charge(&meta(1, 1), cost(3), at(0)),
            "two of three tokens"
        );
        assert!(!quotas.try_charge(&meta(1, 1), cost(3), at(0)));
        assert!(quotas.try_charge(&meta(1, 1), cost(1), at(0)));
        // A message that costs more than a full bucket empties it, and the next one waits longer.
        assert!(quotas.try_charge(&meta(1, 1), cost(12), at(300)));
        assert_eq!(count_allowed(&mut quotas, 1, 300 + 399, 1), 0);
        assert_eq!(count_allowed(&mut quotas, 1, 300 + 400, 9), 1);
    }

    #[test]
    fn invalid_signatures_cost_unknown_senders_tokens_and_make_known_senders_unknown() {
        let mut quotas = Quotas::new(LIMITS);
        quotas.record_invalid(&meta(2, 1), at(0));
        assert_eq!(count_allowed(&mut quotas, 2, 0, 9), 1);
        (0..100).for_each(|_| quotas.record_invalid(&meta(2, 1), at(0)));
        assert_eq!(
            count_allowed(&mut quotas, 2, 100, 9),
            1,
            "at most a full bucket is charged"
        );
        record_valid(&mut quotas, 1, at(0));
        for _ in 0..3 {
            (0..3).for_each(|_| quotas.record_invalid(&meta(1, 1), at(0)));
            assert!(!quotas.is_unknown(sender(1), at(0)));
            record_valid(&mut quotas, 1, at(0));
        }
        (0..4).for_each(|_| quotas.record_invalid(&meta(1, 1), at(0)));
        assert!(quotas.is_unknown(sender(1), at(0)));
    }
}
