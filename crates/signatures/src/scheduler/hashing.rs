//! Hashes for the maps of sources and fingerprints; each job needs several look-ups.

use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

/// Hash of fingerprints. Fingerprints are hashes under a secret key already, so half of their bits suffice.
pub(super) type FingerprintHash = BuildHasherDefault<LowerHalfHasher>;

/// See [`FingerprintHash`].
#[derive(Default)]
pub(super) struct LowerHalfHasher(u64);

impl Hasher for LowerHalfHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            self.0 ^= u64::from(*byte) << (8 * (index % 8));
        }
    }

    fn write_u128(&mut self, bits: u128) {
        self.0 = bits as u64;
    }
}

/// Hash of sources, which attackers choose: a folded multiplication by a secret number, then a multiplication by a
/// known number for tables that use few bits. The secret is random for each map, so that attackers cannot find
/// colliding sources.
#[derive(Clone)]
pub(super) struct SourceHash {
    add: u64,
    multiply: u64,
}

impl Default for SourceHash {
    fn default() -> Self {
        // The random keys of the standard library.
        let random = |number: u64| RandomState::new().hash_one(number);
        Self {
            add: random(0),
            multiply: random(1) | 1,
        }
    }
}

impl BuildHasher for SourceHash {
    type Hasher = FoldedHasher;

    fn build_hasher(&self) -> FoldedHasher {
        FoldedHasher {
            state: self.add,
            multiply: self.multiply,
        }
    }
}

/// See [`SourceHash`].
pub(super) struct FoldedHasher {
    state: u64,
    multiply: u64,
}

impl Hasher for FoldedHasher {
    fn finish(&self) -> u64 {
        /// The multiplier of Moremur, a finalizer of 64 bits (P. Evensen, 2019).
        const MIX: u64 = 0x3c79_ac49_2ba7_b653;
        let mixed = (self.state ^ self.state >> 32).wrapping_mul(MIX);
        mixed ^ mixed >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(self.multiply);
        self.state = product as u64 ^ (product >> 64) as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::job::{Fingerprint, Source};
    use super::*;

    #[test]
    fn neighboring_sources_spread_over_a_small_table() {
        // Includes secrets with few set bits, which can occur by chance.
        let random = (0..300).map(|_| SourceHash::default());
        let few_bits = [1, 3, 1 << 56 | 1].map(|multiply| SourceHash { add: 0, multiply });
        for hash in random.chain(few_bits) {
            for step in [1, 256, 1 << 32, 1 << 48] {
                let slots: HashSet<u64> = (0..256)
                    .map(|number| hash.hash_one(Source(number * step)) % 256)
                    .collect();
                // 162 of 256 are expected; 90 is 12 standard deviations fewer.
                let (hit, multiply) = (slots.len(), hash.multiply);
                assert!(hit > 90, "step {step}, multiplied by {multiply:#x}: {hit}");
            }
        }
        let [a, b] = [(); 2].map(|()| SourceHash::default());
        assert_ne!(a.hash_one(Source(1)), b.hash_one(Source(1)));
    }

    #[test]
    fn fingerprints_hash_to_their_lower_half() {
        let hash = FingerprintHash::default();
        assert_eq!(hash.hash_one(Fingerprint::new(7 << 64 | 9)), 9);
    }
}
