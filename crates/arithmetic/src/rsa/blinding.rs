//! Base blinding: a private operation computes with a random number instead of its input.
//!
//! The input is multiplied by `r^e`, and the result by `r^-1` (Kocher, 1996). r is drawn once, and squared after each operation; an
//! attacker neither observes nor influences r.

use std::sync::{Mutex, PoisonError};

use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::public::LIMBS_MAX;
use crate::Modulus;

/// Number of random bytes from which r is derived.
pub const BLINDING_BYTES: usize = 32;

/// `r^e` and `r^-1` modulo n, both in Montgomery form.
pub(super) type Pair = Zeroizing<[[u64; LIMBS_MAX]; 2]>;

/// The pair of the next operation.
pub(super) struct Blinding(Mutex<Pair>);

impl Blinding {
    pub(super) fn new(pair: Pair) -> Self {
        Self(Mutex::new(pair))
    }

    /// Returns the pair for an operation, and computes the pair of the next one.
    pub(super) fn next_pair(&self, n: &Modulus) -> Pair {
        // If a panic interrupted the squaring, the pair is inconsistent, and the check of the next result fails.
        let mut next = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pair = next.clone();
        for (next, pair) in next.iter_mut().zip(&*pair) {
            if let (Some(next), Some(pair)) = (next.get_mut(..n.len()), pair.get(..n.len())) {
                n.square(next, pair);
            }
        }
        pair
    }
}

/// Fills `out` with the MGF1 of the random bytes, with SHA-256 (RFC 8017, B.2.1).
pub(super) fn expand(random: &[u8; BLINDING_BYTES], out: &mut [u8]) {
    for (counter, block) in (0u32..).zip(out.chunks_mut(32)) {
        let hash = Sha256::new()
            .chain_update(random)
            .chain_update(counter.to_be_bytes())
            .finalize();
        for (out, byte) in block.iter_mut().zip(hash) {
            *out = byte;
        }
    }
}
