//! Copies of messages that wait, are being worked on, or were lately done.
//!
//! A message is known by a keyed hash of all its bytes, so a garbled copy is another message and suppresses
//! nothing, and without the key nobody can make one that is taken for another. A copy is dropped only if one
//! of the same rank or a better one was let in ([`Rank`]): who repeats another's immediate message beyond his
//! quota cannot have it treated as less than immediate, and a stranger who repeats a known source's message
//! cannot have it shed as a stranger's.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128 as _, SipHasher24};
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::generations::Generations;
use super::hashing::FingerprintHash;
use super::job::Fingerprint;
use super::rank::Rank;
use super::time::{Span, Time};

/// The key of fingerprints: random for each process, known to nobody else. Producers make fingerprints; the
/// scheduler never sees a message.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct FingerprintKey([u8; 16]);

impl FingerprintKey {
    /// From 16 random bytes.
    pub const fn new(random: [u8; 16]) -> Self {
        Self(random)
    }

    /// SipHash-2-4 of all bytes of a datagram, 128 bits. What decides about the treatment of the message must
    /// be among them.
    pub fn of(&self, datagram: &[u8]) -> Fingerprint {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(datagram);
        Fingerprint::new(hasher.finish128().as_u128())
    }
}

/// What was let in lately, and with which rank.
pub(super) struct Recent {
    seen: Generations<Fingerprint, Rank, FingerprintHash>,
}

impl Recent {
    /// Remembers at least `size` messages for at least `memory`, and at most twice that.
    pub(super) fn new(size: usize, memory: Span) -> Self {
        Self {
            seen: Generations::new(size, memory),
        }
    }

    /// Whether a message that would be let in with this rank is a copy of one that was let in with the same
    /// or a better one.
    pub(super) fn is_copy(&mut self, fingerprint: Fingerprint, rank: Rank, now: Time) -> bool {
        self.seen.get(&fingerprint, now).is_some_and(|seen| *seen <= rank)
    }

    pub(super) fn let_in(&mut self, fingerprint: Fingerprint, rank: Rank, now: Time) {
        self.seen.insert(fingerprint, rank, now);
    }

    /// A stranger's message was verified: no copy of it is worth anything, whoever it is of.
    pub(super) fn done(&mut self, fingerprint: Fingerprint, now: Time) {
        self.seen.insert(fingerprint, Rank::BEST, now);
    }

    /// Nothing is known of a message that was dropped: a copy may come instead of it.
    pub(super) fn forget(&mut self, fingerprint: Fingerprint) {
        self.seen.remove(&fingerprint);
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::Priority;
    use super::*;

    fn key() -> FingerprintKey {
        FingerprintKey::new(std::array::from_fn(|at| at as u8))
    }

    /// The first of SipHash's 128-bit vectors with input, of its authors' `vectors.h` (key 00..0f, input 00).
    #[test]
    fn it_is_siphash_2_4_128() {
        let bytes = [
            0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc, 0x45,
        ];
        assert_eq!(key().of(&[0]).bits().to_le_bytes(), bytes);
    }

    #[test]
    fn every_byte_and_the_length_count() {
        let message = [7; 40];
        let genuine = key().of(&message);
        for at in 0..message.len() {
            let mut garbled = message;
            garbled[at] ^= 0x80;
            assert_ne!(key().of(&garbled), genuine);
        }
        assert_ne!(key().of(&message[..39]), genuine);
        assert_ne!(FingerprintKey::new([0; 16]).of(&message), genuine);
    }

    #[test]
    fn a_copy_is_one_of_what_had_as_good_a_rank() {
        let mut recent = Recent::new(100, Span::from_millis(1));
        let is_copy = |recent: &mut Recent, message: &[u8], level, stranger| {
            recent.is_copy(key().of(message), Rank::new(level, stranger), Time::ZERO)
        };
        let one = key().of(b"one");
        recent.let_in(one, Rank::new(Priority::URGENT, true), Time::ZERO);
        assert!(is_copy(&mut recent, b"one", Priority::URGENT, true));
        assert!(
            !is_copy(&mut recent, b"one", Priority::URGENT, false),
            "of a known source"
        );
        recent.let_in(one, Rank::new(Priority::URGENT, false), Time::ZERO);
        assert!(is_copy(&mut recent, b"one", Priority::URGENT, false));
        assert!(is_copy(&mut recent, b"one", Priority::LEAST, true));
        assert!(!is_copy(&mut recent, b"one", Priority::IMMEDIATE, true));
        assert!(!is_copy(&mut recent, b"other", Priority::LEAST, true));
        recent.let_in(one, Rank::new(Priority::IMMEDIATE, false), Time::ZERO);
        assert!(is_copy(&mut recent, b"one", Priority::IMMEDIATE, false));
        recent.forget(one);
        assert!(!is_copy(&mut recent, b"one", Priority::LEAST, true));
    }
}
