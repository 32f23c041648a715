//! Recognition of copies of messages that wait, are being processed, or were completed recently.
//!
//! A message is identified by a keyed hash of all its bytes: a garbled copy is another message and suppresses nothing,
//! and a collision cannot be forged without the key. A copy is dropped only if the message was admitted with the same
//! or a better rank ([`Rank`]). If a source repeats another source's immediate message beyond the quota of the
//! repeating source, the original is therefore not demoted. If an unknown sender repeats a known sender's message, the
//! original is not shed as a message of an unknown sender.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128 as _, SipHasher24};
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::generations::Generations;
use super::hashing::FingerprintHash;
use super::job::Fingerprint;
use super::rank::Rank;
use super::time::{Span, Time};

/// The key of fingerprints: random for each process, and secret. Producers compute fingerprints; the
/// scheduler never sees a message.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct FingerprintKey([u8; 16]);

impl FingerprintKey {
    /// A key of 16 random bytes.
    pub const fn new(random: [u8; 16]) -> Self {
        Self(random)
    }

    /// SipHash-2-4 of all bytes of a datagram, 128 bits. The bytes must include everything that affects the
    /// processing of the message.
    pub fn of(&self, datagram: &[u8]) -> Fingerprint {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(datagram);
        Fingerprint::new(hasher.finish128().as_u128())
    }
}

/// The ranks with which recent messages were admitted.
pub(super) struct RecentMessages {
    rank_by_message: Generations<Fingerprint, Rank, FingerprintHash>,
}

impl RecentMessages {
    /// Stores at least `size` messages for at least `lifetime`, and at most for twice that time.
    pub(super) fn new(size: usize, lifetime: Span) -> Self {
        Self {
            rank_by_message: Generations::new(size, lifetime),
        }
    }

    /// Whether a message with this rank is a copy of a message that was admitted with the same or a better rank.
    pub(super) fn is_copy(&mut self, fingerprint: Fingerprint, rank: Rank, now: Time) -> bool {
        self.rank_by_message
            .get(&fingerprint, now)
            .is_some_and(|admitted_rank| *admitted_rank <= rank)
    }

    pub(super) fn record_admitted(&mut self, fingerprint: Fingerprint, rank: Rank, now: Time) {
        self.rank_by_message.insert(fingerprint, rank, now);
    }

    /// Records that an unknown sender's message was verified: no further copy is admitted, from any sender.
    pub(super) fn record_verified(&mut self, fingerprint: Fingerprint, now: Time) {
        self.rank_by_message.insert(fingerprint, Rank::BEST, now);
    }

    /// Removes a dropped message, so that a copy may be admitted.
    pub(super) fn forget(&mut self, fingerprint: Fingerprint) {
        self.rank_by_message.remove(&fingerprint);
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::Priority;
    use super::*;

    fn key() -> FingerprintKey {
        FingerprintKey::new(std::array::from_fn(|index| index as u8))
    }

    /// The first of SipHash's 128-bit vectors with input, from its authors' `vectors.h` (key 00..0f, input
    /// 00).
    #[test]
    fn fingerprint_is_siphash_2_4_128() {
        let bytes = [
            0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc, 0x45,
        ];
        assert_eq!(key().of(&[0]).bits().to_le_bytes(), bytes);
    }

    #[test]
    fn every_byte_and_the_length_change_the_fingerprint() {
        let message = [7; 40];
        let genuine = key().of(&message);
        for index in 0..message.len() {
            let mut garbled = message;
            garbled[index] ^= 0x80;
            assert_ne!(key().of(&garbled), genuine);
        }
        assert_ne!(key().of(&message[..39]), genuine);
        assert_ne!(FingerprintKey::new([0; 16]).of(&message), genuine);
    }

    #[test]
    fn a_copy_needs_an_original_of_the_same_or_a_better_rank() {
        let mut recent = RecentMessages::new(100, Span::from_millis(1));
        let is_copy = |recent: &mut RecentMessages, message: &[u8], level, is_unknown| {
            recent.is_copy(key().of(message), Rank::new(level, is_unknown), Time::ZERO)
        };
        let one = key().of(b"one");
        recent.record_admitted(one, Rank::new(Priority::URGENT, true), Time::ZERO);
        assert!(is_copy(&mut recent, b"one", Priority::URGENT, true));
        assert!(
            !is_copy(&mut recent, b"one", Priority::URGENT, false),
            "from a known sender"
        );
        recent.record_admitted(one, Rank::new(Priority::URGENT, false), Time::ZERO);
        assert!(is_copy(&mut recent, b"one", Priority::URGENT, false));
        assert!(is_copy(&mut recent, b"one", Priority::LEAST, true));
        assert!(!is_copy(&mut recent, b"one", Priority::IMMEDIATE, true));
        assert!(!is_copy(&mut recent, b"other", Priority::LEAST, true));
        recent.record_admitted(one, Rank::new(Priority::IMMEDIATE, false), Time::ZERO);
        assert!(is_copy(&mut recent, b"one", Priority::IMMEDIATE, false));
        recent.forget(one);
        assert!(!is_copy(&mut recent, b"one", Priority::LEAST, true));
    }
}
