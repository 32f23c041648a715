//! ECDSA verification on P-256 (FIPS 186-5, 6.4.2), eight signatures side by side, each with its own key.
//!
//! Every lane executes the same steps, and returns the same result as a single verification: no equation combines
//! several signatures. All inputs are public, and the running time depends on them.

mod digits;
mod field;
mod multiples;
mod point;
mod verify;

use std::fmt;

use crate::elliptic::comb::KEY_WINDOW;
use crate::elliptic::montgomery::Modulus;
use crate::elliptic::{self, WORDS, limbs_of_be, splat, store, words};
use crate::simd::{Backend, Portable};

/// The order n of the group, a prime.
const ORDER: Modulus = Modulus::new([
    0xf3b9_cac2_fc63_2551,
    0xbce6_faad_a717_9e84,
    u64::MAX,
    0xffff_ffff_0000_0000,
]);
/// The curve's constant b.
const B: [u64; 4] = [
    0x3bce_3c3e_27d2_604b,
    0x651d_06b0_cc53_b0f6,
    0xb3eb_bd55_7698_86bc,
    0x5ac6_35d8_aa3a_93e7,
];

/// The base point's coordinates (SP 800-186, 3.2.1.3), most significant byte first.
pub const BASE_POINT: [u8; 64] = [
    0x6b, 0x17, 0xd1, 0xf2, 0xe1, 0x2c, 0x42, 0x47, 0xf8, 0xbc, 0xe6, 0xe5, 0x63, 0xa4, 0x40, 0xf2, 0x77,
    0x03, 0x7d, 0x81, 0x2d, 0xeb, 0x33, 0xa0, 0xf4, 0xa1, 0x39, 0x45, 0xd8, 0x98, 0xc2, 0x96, 0x4f, 0xe3,
    0x42, 0xe2, 0xfe, 0x1a, 0x7f, 0x9b, 0x8e, 0xe7, 0xeb, 0x4a, 0x7c, 0x0f, 0x9e, 0x16, 0x2b, 0xce, 0x33,
    0x57, 0x6b, 0x31, 0x5e, 0xce, 0xcb, 0xb6, 0x40, 0x68, 0x37, 0xbf, 0x51, 0xf5,
];

/// Why bytes are not a valid public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PointError {
    /// The encoding is not the uncompressed form of SEC 1, the only supported encoding.
    #[error(
        "invalid P-256 key: expected SEC 1's uncompressed form, the byte 4 and two coordinates of 32 bytes"
    )]
    Encoding,
    /// A coordinate is not below p, the prime of the field.
    #[error("invalid P-256 key: a coordinate is not below the prime of the field")]
    Coordinate,
    /// The coordinates do not satisfy the curve's equation.
    #[error("invalid P-256 key: the point is not on the curve P-256")]
    NotOnCurve,
}

/// A point of the curve other than infinity; every such point has order n.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublicPoint {
    /// x and y, in Montgomery form.
    coordinates: [[u64; WORDS]; 2],
    /// The coordinates as numbers, most significant byte first.
    bytes: [u8; 64],
}

impl PublicPoint {
    /// The point with these coordinates, most significant byte first.
    ///
    /// # Errors
    /// Fails if a coordinate is not below p, or if no point of the curve has these coordinates.
    pub fn from_affine(x_bytes: &[u8; 32], y_bytes: &[u8; 32]) -> Result<Self, PointError> {
        let coordinates = [x_bytes, y_bytes].map(limbs_of_be);
        if coordinates
            .iter()
            .any(|coordinate| !elliptic::subtract(coordinate, &field::P).1)
        {
            return Err(PointError::Coordinate);
        }
        let [x, y] =
            coordinates.map(|limbs| field::P_MODULUS.to_montgomery::<Portable>(&splat(&words(&limbs))));
        let coordinates = [x, y].map(|coordinate| {
            let [first, ..] = store(&coordinate);
            words(&field::P_MODULUS.canonical(&first))
        });
        let [x, y] = coordinates.map(|coordinate| splat::<Portable>(&coordinate));
        if !elliptic::any(verify::is_on_curve(&x, &y)) {
            return Err(PointError::NotOnCurve);
        }
        let mut bytes = [0; 64];
        for (out, byte) in bytes.iter_mut().zip(x_bytes.iter().chain(y_bytes)) {
            *out = *byte;
        }
        Ok(Self { coordinates, bytes })
    }

    /// The coordinates, x first, most significant byte first.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 64] {
        &self.bytes
    }

    /// Decodes SEC 1's uncompressed form (2.3.4).
    ///
    /// # Errors
    /// Fails like [`PublicPoint::from_affine`], and for bytes in another encoding.
    pub fn from_sec1(bytes: &[u8]) -> Result<Self, PointError> {
        match bytes {
            [4, coordinates @ ..] => match coordinates.as_chunks() {
                ([x, y], []) => Self::from_affine(x, y),
                _ => Err(PointError::Encoding),
            },
            _ => Err(PointError::Encoding),
        }
    }
}

/// A point with precomputed multiples, which reduce the time of a verification to two fifths.
pub struct PrecomputedPoint {
    point: PublicPoint,
    comb: multiples::Comb<KEY_WINDOW>,
}

impl PrecomputedPoint {
    /// Bytes of memory of one point.
    pub const BYTES: usize = size_of::<Self>() + multiples::Comb::<KEY_WINDOW>::BYTES;

    /// Computes the multiples, which takes as long as seven verifications without them.
    #[must_use]
    pub fn new(backend: Backend, point: &PublicPoint) -> Self {
        Self {
            point: *point,
            comb: elliptic::run(backend, verify::MakeComb(point)),
        }
    }
}

impl fmt::Debug for PrecomputedPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PrecomputedPoint")
            .field(&self.point)
            .finish_non_exhaustive()
    }
}

/// The signer of a signature.
#[derive(Debug, Clone, Copy)]
pub enum Signer<'a> {
    /// A point without precomputed multiples.
    Plain(&'a PublicPoint),
    /// A point with precomputed multiples.
    Precomputed(&'a PrecomputedPoint),
}

impl Signer<'_> {
    fn point(&self) -> &PublicPoint {
        match self {
            Self::Plain(point) => point,
            Self::Precomputed(precomputed) => &precomputed.point,
        }
    }
}

/// A signature to verify.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The signer.
    pub signer: Signer<'a>,
    /// The leftmost 256 bits of the message's hash.
    pub digest: &'a [u8; 32],
    /// The first number of the signature, most significant byte first.
    pub r: &'a [u8; 32],
    /// The second number of the signature, most significant byte first.
    pub s: &'a [u8; 32],
}

/// Verifies signatures and returns the results in the same order. A signature with r or s outside `1..n` is invalid.
///
/// Accepts any number of signatures. The most efficient counts are multiples of 128, then multiples of eight. A group
/// of eight consecutive signatures uses precomputed multiples only if all eight signers are [`Signer::Precomputed`]. If
/// [`Backend::widest`] returns `None`, another library that verifies one signature at a time is faster.
#[must_use]
pub fn verify(backend: Backend, requests: &[Request<'_>]) -> Vec<bool> {
    elliptic::run(backend, verify::Verify(requests))
}
