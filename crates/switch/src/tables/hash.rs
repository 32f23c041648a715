//! Keyed hash of the tables.
//!
//! Devices choose addresses, and programs insert addresses into tables. With a known hash function a sender could choose
//! keys that collide and degrade lookups to linear time. Therefore the hash has a secret 256-bit key. AHash costs a
//! fraction of SipHash-1-3 for the short keys of tables. The only requirement is that collisions cannot be constructed
//! without the key; the hash is not an authenticator.

use std::fmt;
use std::hash::{BuildHasher, Hasher};

/// Secret key of the hash of tables.
///
/// All copies of a table must use the same seed, so tables are copied by cloning; different tables may share a seed.
#[derive(Clone)]
pub struct HashSeed(ahash::RandomState);

impl HashSeed {
    /// Creates a seed from 256 random bits.
    #[must_use]
    pub fn new(random: [u64; 4]) -> Self {
        let [a, b, c, d] = random;
        Self(ahash::RandomState::with_seeds(a, b, c, d))
    }

    /// Creates a seed from the operating system's randomness through the hash keys of the standard library.
    #[must_use]
    pub fn random() -> Self {
        Self::new(std::array::from_fn(|_| {
            // Each hasher has a different random key; the input does not matter.
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
