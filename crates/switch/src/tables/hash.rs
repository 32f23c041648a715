//! The keyed hash of the tables.
//!
//! Devices choose addresses, and programs learn them into tables: with a hash that is known, a sender could pick keys
//! that all fall into one bucket and make every lookup a walk. So the hash has a key of 256 bits that stays in the
//! process. AHash is chosen over SipHash-1-3 because it costs a fraction of it on the short keys of tables; what is
//! asked of it is only that collisions cannot be planned without the key, never that it is a signature.

use std::fmt;
use std::hash::{BuildHasher, Hasher};

/// The secret under which tables hash their keys.
///
/// Every copy of one table must use the same, so that a copy is made by cloning; different tables may share one.
#[derive(Clone)]
pub struct HashSeed(ahash::RandomState);

impl HashSeed {
    /// A seed from 256 random bits.
    #[must_use]
    pub fn new(random: [u64; 4]) -> Self {
        let [a, b, c, d] = random;
        Self(ahash::RandomState::with_seeds(a, b, c, d))
    }

    /// A seed from the operating system's randomness, by way of the standard library's own hash keys.
    #[must_use]
    pub fn random() -> Self {
        Self::new(std::array::from_fn(|_| {
            // Each has a key of its own; what is hashed does not matter.
            std::collections::hash_map::RandomState::new()
                .build_hasher()
                .finish()
        }))
    }
}

impl fmt::Debug for HashSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashSeed(secret)")
    }
}

impl BuildHasher for HashSeed {
    type Hasher = ahash::AHasher;

    #[inline]
    fn build_hasher(&self) -> Self::Hasher {
        self.0.build_hasher()
    }
}
