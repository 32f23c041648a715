//! Copies of messages that wait, are being worked on, or were lately done.
//!
//! A message is known by a keyed hash of all its bytes, so a garbled copy is another message and suppresses
//! nothing, and without the key nobody can make one that is taken for another. A copy is dropped only if one
//! at least as urgent was let in: who repeats another's immediate message beyond his quota cannot have it
//! treated as less than immediate.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128 as _, SipHasher24};
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::generations::Generations;
use super::hashing::FingerprintHash;
use super::job::{Fingerprint, Priority};
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

/// What was let in lately, and as how urgent.
pub(super) struct Recent {
    seen: Generations<Fingerprint, Priority, FingerprintHash>,
}

impl Recent {
    /// Remembers at least `size` messages for at least `memory`, and at most twice that.
    pub(super) fn new(size: usize, memory: Span) -> Self {
        Self {
            seen: Generations::new(size, memory),
        }
    }

    /// Whether a message that would be let in at this level is a copy of one that was let in at the same or a
    /// more urgent one.
    pub(super) fn is_copy(&mut self, fingerprint: Fingerprint, level: Priority, now: Time) -> bool {
        self.seen
            .get(&fingerprint, now)
            .is_some_and(|seen| *seen <= level)
    }

    pub(super) fn let_in(&mut self, fingerprint: Fingerprint, level: Priority, now: Time) {
        self.seen.insert(fingerprint, level, now);
    }

    /// Nothing is known of a message that was dropped: a copy may come instead of it.
    pub(super) fn forget(&mut self, fingerprint: Fingerprint) {
        self.seen.remove(&fingerprint);
    }
}

#[cfg(test)]
mod tests {
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
    fn a_copy_is_one_of_what_was_as_urgent() {
        let mut recent = Recent::new(100, Span::from_millis(1));
        let (one, other) = (key().of(b"one"), key().of(b"other"));
        recent.let_in(one, Priority::URGENT, Time::ZERO);
        assert!(
            recent.is_copy(one, Priority::URGENT, Time::ZERO)
                && recent.is_copy(one, Priority::LEAST, Time::ZERO)
        );
        assert!(
            !recent.is_copy(one, Priority::IMMEDIATE, Time::ZERO)
                && !recent.is_copy(other, Priority::LEAST, Time::ZERO)
        );
        recent.let_in(one, Priority::IMMEDIATE, Time::ZERO);
        assert!(recent.is_copy(one, Priority::IMMEDIATE, Time::ZERO));
        recent.forget(one);
        assert!(!recent.is_copy(one, Priority::LEAST, Time::ZERO));
    }
}
