//! Verification of Ed25519 signatures, eight side by side.
#![allow(
    clippy::indexing_slicing,
    reason = "indices are lanes, and words of a hash, which has ten words"
)]

use super::digits::{Digit, digit, digit_count};
use super::field::{Element, canonical, invert_all};
use super::multiples::{BaseComb, Comb, Multiples};
use super::point::{AffineAddend, Extended, Projective};
use super::{ORDER, PublicKey, Request, Signer};
use crate::elliptic::comb::{BASE_WINDOW, KEY_WINDOW, STEPS};
use crate::elliptic::{BackendTask, BackendWords, WORDS, limbs_of_le, load, splat, store, subtract};
use crate::simd::{LANES, WORD_BITS};

/// The curve's constant d.
const D: [u64; 4] = [
    0x75eb_4dca_1359_78a3,
    0x0070_0a4d_4141_d8ab,
    0x8cc7_4079_7779_e898,
    0x5203_6cee_2b6f_fe73,
];
/// A square root of -1.
const SQRT_MINUS_1: [u64; 4] = [
    0xc4ee_1b27_4a0e_a0b0,
    0x2f43_1806_ad2f_e478,
    0x2b4d_0099_3dfb_d7a7,
    0x2b83_2480_4fc1_df0b,
];
/// Number of groups of eight signatures for which the inverses of Z are computed together.
const GROUPS: usize = 16;

/// The task of verifying requests, in order.
pub(super) struct Verify<'a, 'b>(pub(super) &'a [Request<'b>]);

impl BackendTask for Verify<'_, '_> {
    type Output = Vec<bool>;

    #[inline(always)]
    fn run<W: BackendWords>(self) -> Vec<bool> {
        let mut results = Vec::with_capacity(self.0.len());
        for requests in self.0.chunks(LANES * GROUPS) {
            verify_groups::<W>(requests, &mut results);
        }
        results
    }
}

#[inline(always)]
fn verify_groups<W: BackendWords>(requests: &[Request<'_>], results: &mut Vec<bool>) {
    let mut points: Vec<Projective<W>> = Vec::with_capacity(GROUPS);
    let mut inverses = Vec::with_capacity(GROUPS);
    for requests in requests.chunks(LANES) {
        let factors = Factors::new::<W>(&fill_lanes(requests));
        let point = match combs(requests) {
            Some(combs) => factors.combination_by_combs(&combs),
            None => factors.combination(&fill_lanes(requests)),
        };
        inverses.push(point.z);
        points.push(point);
    }
    invert_all(&mut inverses);
    for ((point, inverse), requests) in points.iter().zip(&inverses).zip(requests.chunks(LANES)) {
        let x = store(point.x.mul(inverse).fold().words());
        let y = store(point.y.mul(inverse).fold().words());
        for (request, (x, y)) in requests.iter().zip(x.iter().zip(&y)) {
            let ([parity, ..], [low @ .., top]) = (canonical(x), canonical(y));
            let encoded = [low[0], low[1], low[2], top | parity << 63];
            results.push(is_reduced(request.s) && encoded == limbs_of_le(request.r));
        }
    }
}

/// Whether `s < L`.
fn is_reduced(s: &[u8; 32]) -> bool {
    subtract(&limbs_of_le(s), &ORDER.limbs).1
}

/// The request of each lane; unused lanes repeat the last request.
fn fill_lanes<'a, 'b>(requests: &'a [Request<'b>]) -> [&'a Request<'b>; LANES] {
    std::array::from_fn(|lane| &requests[lane.min(requests.len() - 1)])
}

/// The combs of all lanes, if every request has one.
fn combs<'b>(requests: &[Request<'b>]) -> Option<[&'b Comb<KEY_WINDOW>; LANES]> {
    let comb = |request: &Request<'b>| match request.signer {
        Signer::Precomputed(precomputed) => Some(&precomputed.comb),
        Signer::Plain(_) => None,
    };
    let mut combs = [requests.first().and_then(comb)?; LANES];
    for (comb_of_lane, request) in combs.iter_mut().zip(fill_lanes(requests)) {
        *comb_of_lane = comb(request)?;
    }
    Some(combs)
}

/// The task of computing the multiples of a key's negative point.
pub(super) struct MakeComb<'a>(pub(super) &'a PublicKey);

impl BackendTask for MakeComb<'_> {
    type Output = Comb<KEY_WINDOW>;

    #[inline(always)]
    fn run<W: BackendWords>(self) -> Self::Output {
        let [x, y] = &self.0.negative;
        Comb::new::<W>(&[Element::from_words(splat(x)), Element::from_words(splat(y))])
    }
}

/// In each lane, the factors of the base point (`base`, the signature's s) and of the key's point (`key`, the hash h).
/// `base` is 0 if the signature's s is not below L: such a signature is invalid in any case.
struct Factors {
    base: [[u64; 4]; LANES],
    key: [[u64; 4]; LANES],
}

impl Factors {
    #[inline(always)]
    fn new<W: BackendWords>(requests: &[&Request<'_>; LANES]) -> Self {
        Self {
            base: requests.map(|request| match limbs_of_le(request.s) {
                s if is_reduced(request.s) => s,
                _ => [0; 4],
            }),
            key: challenges::<W>(&requests.map(|request| request.hash)),
        }
    }

    /// `s B - h A`.
    #[inline(always)]
    fn combination<W: BackendWords>(&self, requests: &[&Request<'_>; LANES]) -> Projective<W> {
        let negative = requests.map(|request| request.signer.key().negative);
        let x = Element::<W>::from_words(load(&negative.map(|[x, _]| x)));
        let y = Element::from_words(load(&negative.map(|[_, y]| y)));
        let multiples = Multiples::new(&AffineAddend::new(&x, &y));
        let base_combs = [BaseComb::of_base::<W>(); LANES];

        // A single loop: the compiler would unroll an inner loop over doublings to five times the code.
        let mut sum = Projective::<W>::neutral();
        for bit in (0..digit_count(KEY_WINDOW) * KEY_WINDOW).rev() {
            let double = sum.double();
            sum = double.projective();
            if bit % KEY_WINDOW == 0 {
                let multiple = multiples.select(&digits(&self.key, KEY_WINDOW, bit / KEY_WINDOW));
                let completed = double.extend(sum).add(&multiple);
                sum = completed.projective();
                if bit % BASE_WINDOW == 0 {
                    let digits = digits(&self.base, BASE_WINDOW, bit / BASE_WINDOW);
                    let multiple = Comb::select(&base_combs, 0, &digits);
                    sum = completed.extend(sum).add_affine(&multiple).projective();
                }
            }
        }
        sum
    }

    /// `s B - h A` for keys with combs.
    #[inline(always)]
    fn combination_by_combs<W: BackendWords>(&self, combs: &[&Comb<KEY_WINDOW>; LANES]) -> Projective<W> {
        let base_combs = [BaseComb::of_base::<W>(); LANES];
        let mut sum = Extended::<W>::neutral();
        for step in &STEPS {
            for _ in 0..step.doublings {
                sum = sum.projective.double().extended();
            }
            let completed = sum.add_affine(&if step.is_base {
                let digits = digits(&self.base, BASE_WINDOW, step.position);
                Comb::select(&base_combs, step.tooth, &digits)
            } else {
                Comb::select(combs, step.tooth, &digits(&self.key, KEY_WINDOW, step.position))
            });
            sum = completed.extended();
        }
        sum.projective
    }
}

/// One digit of each lane's factor.
fn digits(factors: &[[u64; 4]; LANES], width: usize, position: usize) -> [Digit; LANES] {
    factors.map(|number| digit(&number, width, position))
}

/// Hashes of 64 bytes as numbers modulo L.
#[inline(always)]
fn challenges<W: BackendWords>(hashes: &[&[u8; 64]; LANES]) -> [[u64; 4]; LANES] {
    let words = hashes.map(hash_words);
    let low = words.map(|[a, b, c, d, e, ..]| [a, b, c, d, e]);
    let high = words.map(|[.., a, b, c, d, e]| [a, b, c, d, e]);
    store(&ORDER.reduce_wide::<W>(&load(&low), &load(&high))).map(|number| ORDER.canonical(&number))
}

/// The 52-bit words of a hash.
fn hash_words(hash: &[u8; 64]) -> [u64; 2 * WORDS] {
    let byte = |index: usize| hash.get(index).copied().unwrap_or(0);
    std::array::from_fn(|word| {
        // A word begins at the start or in the middle of a byte, and spans 7 bytes.
        let bit = word * WORD_BITS as usize;
        let bytes = std::array::from_fn(|i| byte(bit / 8 + i));
        u64::from_le_bytes(bytes) >> (bit % 8) & ((1 << WORD_BITS) - 1)
    })
}

/// The task of decompressing a point: returns the x of the requested parity, and `p - x`; `None` if no point has this
/// y.
///
/// The square root of `u / v` is computed as in RFC 8032 (5.1.3, step 3): `u v^3 (u v^7)^((p - 5) / 8)`, times a square
/// root of -1 if necessary. Of the two roots x and `p - x`, one is even and the other is odd. The exception is x = 0,
/// but only points of small order have x = 0.
pub(super) struct Decompress<'a> {
    pub(super) y: &'a [u64; 4],
    pub(super) x_is_odd: bool,
}

impl BackendTask for Decompress<'_> {
    type Output = Option<[[u64; 4]; 2]>;

    #[inline(always)]
    fn run<W: BackendWords>(self) -> Self::Output {
        let one = Element::<W>::splat(&[1, 0, 0, 0]);
        let yy = Element::splat(self.y).square().fold();
        let u = yy.as_sum().minus::<3, 7>(&one.as_sum()).fold();
        let v = yy
            .mul(&Element::splat(&D))
            .fold()
            .as_sum()
            .plus::<3, 6>(&one.as_sum())
            .fold();
        let v3 = v.square().fold().mul(&v).fold();
        let v7 = v3.square().fold().mul(&v).fold();
        let mut x = u.mul(&v7).fold().power_for_roots().mul(&u.mul(&v3).fold()).fold();
        let vxx = lane_0(&x.square().fold().mul(&v).fold());
        if vxx == lane_0(&u.as_sum().negative::<4>().fold()) {
            x = x.mul(&Element::splat(&SQRT_MINUS_1)).fold();
        } else if vxx != lane_0(&u) {
            return None;
        }
        let (x, negative) = (lane_0(&x), lane_0(&x.as_sum().negative::<4>().fold()));
        Some(if (x[0] & 1 == 1) == self.x_is_odd {
            [x, negative]
        } else {
            [negative, x]
        })
    }
}

/// The number in lane 0.
#[inline(always)]
fn lane_0<W: BackendWords>(number: &Element<W>) -> [u64; 4] {
    canonical(&store(number.words())[0])
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
