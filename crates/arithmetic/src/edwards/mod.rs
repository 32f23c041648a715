//! Ed25519 verification (RFC 8032, 5.1.7), eight signatures side by side, each with its own key.
//!
//! A signature (r, s) is valid if `s < L` and the encoding of `s B - h A` equals r byte by byte. B is the base point of
//! order L, A the signer's point, and h the hash modulo L. The equation has no cofactor, like the verification of
//! single signatures in other libraries. Every lane executes the same steps, and no equation combines several
//! signatures: in a combined equation, components of small order could cancel, so that invalid signatures would be
//! accepted. All inputs are public, and the running time depends on them.

mod digits;
mod field;
mod multiples;
mod point;
mod verify;

use std::fmt;

use sha2::{Digest as _, Sha512};

use crate::elliptic::comb::KEY_WINDOW;
use crate::elliptic::montgomery::Modulus;
use crate::elliptic::{self, WORDS, limbs_of_le, subtract, words};
use crate::simd::Backend;

/// The order L of the base point, a prime.
const ORDER: Modulus = Modulus::new([0x5812_631a_5cf5_d3ed, 0x14de_f9de_a2f7_9cd6, 0, 1 << 60]);

/// Why bytes are not a valid public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// y is not below p, the prime of the field: the canonical encoding of the point has `y - p` instead.
    #[error("invalid Ed25519 key: the y coordinate is not below the prime of the field")]
    NotCanonical,
    /// No point has this y.
    #[error("invalid Ed25519 key: the point is not on the curve edwards25519")]
    NotOnCurve,
    /// The point is one of the eight points of small order. With such a key, one signature can be valid for many
    /// messages.
    #[error("invalid Ed25519 key: the point has a small order")]
    SmallOrder,
}

/// A public key: a point that does not have small order, but may have a component of small order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublicKey {
    bytes: [u8; 32],
    /// The coordinates -x and y of the negative of the point.
    negative: [[u64; WORDS]; 2],
}

impl PublicKey {
    /// Decodes RFC 8032's encoding (5.1.2).
    ///
    /// # Errors
    /// Fails if the encoding is not canonical, if there is no such point, or if the point has small order.
    pub fn from_bytes(bytes: &[u8; 32]) -> Result<Self, KeyError> {
        let (y, x_is_odd) = split(bytes);
        if !subtract(&y, &field::P).1 {
            return Err(KeyError::NotCanonical);
        }
        if is_small_order(bytes) {
            return Err(KeyError::SmallOrder);
        }
        let backend = Backend::widest().unwrap_or(Backend::PORTABLE);
        let point = elliptic::run(backend, verify::Decompress { y: &y, x_is_odd });
        let [_, negative_x] = point.ok_or(KeyError::NotOnCurve)?;
        Ok(Self {
            bytes: *bytes,
            negative: [words(&negative_x), words(&y)],
        })
    }

    /// The encoded key.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.bytes
    }
}

/// A key with precomputed multiples of its point, which reduce the time of a verification to two fifths.
pub struct PrecomputedKey {
    key: PublicKey,
    comb: multiples::Comb<KEY_WINDOW>,
}

impl PrecomputedKey {
    /// Bytes of memory of one key.
    pub const BYTES: usize = size_of::<Self>() + multiples::Comb::<KEY_WINDOW>::BYTES;

    /// Computes the multiples, which takes as long as seven verifications without them.
    #[must_use]
    pub fn new(backend: Backend, key: &PublicKey) -> Self {
        Self {
            key: *key,
            comb: elliptic::run(backend, verify::MakeComb(key)),
        }
    }
}

impl fmt::Debug for PrecomputedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PrecomputedKey")
            .field(&self.key)
            .finish_non_exhaustive()
    }
}

/// The signer of a signature.
#[derive(Debug, Clone, Copy)]
pub enum Signer<'a> {
    /// A key without precomputed multiples.
    Plain(&'a PublicKey),
    /// A key with precomputed multiples.
    Precomputed(&'a PrecomputedKey),
}

impl<'a> Signer<'a> {
    fn key(&self) -> &'a PublicKey {
        match self {
            Self::Plain(key) => key,
            Self::Precomputed(precomputed) => &precomputed.key,
        }
    }
}

/// A signature to verify.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The signer.
    pub signer: Signer<'a>,
    /// The first half of the signature: an encoded point.
    pub r: &'a [u8; 32],
    /// The second half of the signature: a number, least significant byte first.
    pub s: &'a [u8; 32],
    /// SHA-512 of r, the key and the message, see [`hash`].
    pub hash: &'a [u8; 64],
}

/// Verifies signatures and returns the results in the same order.
///
/// Accepts any number of signatures. The most efficient counts are multiples of 128, then multiples of eight. A group
/// of eight consecutive signatures uses precomputed multiples only if all eight signers are [`Signer::Precomputed`]. If
/// [`Backend::widest`] returns `None`, another library that verifies one signature at a time is faster.
#[must_use]
pub fn verify(backend: Backend, requests: &[Request<'_>]) -> Vec<bool> {
    elliptic::run(backend, verify::Verify(requests))
}

/// SHA-512 of r, the key and the message.
#[must_use]
pub fn hash(r: &[u8; 32], key: &PublicKey, message: &[u8]) -> [u8; 64] {
    Sha512::new()
        .chain_update(r)
        .chain_update(key.bytes)
        .chain_update(message)
        .finalize()
        .into()
}

/// Whether bytes encode a point of order 1, 2, 4 or 8, in the canonical or another encoding.
#[must_use]
pub fn is_small_order(bytes: &[u8; 32]) -> bool {
    /// y of the points of order 4, 1, 2 and 8, and y + p where y + p is below 2^255. Either sign of x is possible.
    const Y: [[u64; 4]; 7] = [
        [0, 0, 0, 0],
        [1, 0, 0, 0],
        [u64::MAX - 19, u64::MAX, u64::MAX, u64::MAX >> 1],
        [
            0xb027_b2c2_8f95_e826,
            0xf098_eff2_89f4_c345,
            0x3933_c6d3_05ac_dfd5,
            0x05fc_536d_8802_38b1,
        ],
        [
            0x4fd8_4d3d_706a_17c7,
            0x0f67_100d_760b_3cba,
            0xc6cc_392c_fa53_202a,
            0x7a03_ac92_77fd_c74e,
        ],
        [u64::MAX - 18, u64::MAX, u64::MAX, u64::MAX >> 1],
        [u64::MAX - 17, u64::MAX, u64::MAX, u64::MAX >> 1],
    ];
    Y.contains(&split(bytes).0)
}

/// Splits the encoding of a point into y, which is below 2^255, and whether x is odd.
fn split(bytes: &[u8; 32]) -> ([u64; 4], bool) {
    let [low @ .., top] = limbs_of_le(bytes);
    ([low[0], low[1], low[2], top & (u64::MAX >> 1)], top >> 63 == 1)
}
