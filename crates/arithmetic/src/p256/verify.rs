//! Verification of ECDSA signatures, eight side by side.
#![allow(clippy::indexing_slicing)] // Lanes of arrays of eight, and digits that are within their tables.

use super::digits::{Digit, Digits, digit_count};
use super::field::{Element, P};
use super::multiples::{BaseComb, Comb, Multiples};
use super::point::{Affine, Point};
use super::{ORDER, PublicPoint, Request, Signer};
use crate::elliptic::comb::{BASE_WINDOW, KEY_WINDOW, STEPS};
use crate::elliptic::{self, BackendTask, BackendWords, Words, limbs_of_be, load, splat, store, words};
use crate::simd::LANES;

/// Number of groups of eight signatures for which the inverses of s are computed together.
const GROUPS: usize = 16;

/// Signatures verified side by side, as numbers.
struct Group<W> {
    key: Affine<W>,
    digest: Words<W>,
    r: Words<W>,
    /// s in Montgomery form; after the common inversion, its inverse.
    s: Words<W>,
    /// `r + n` if this sum is below p, otherwise r: the point's x modulo n is r if x is r or this number.
    other_r: Words<W>,
    /// Whether r and s are in `1..n`.
    in_range: [bool; LANES],
}

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

/// The task of computing the multiples of a public point.
pub(super) struct MakeComb<'a>(pub(super) &'a PublicPoint);

impl BackendTask for MakeComb<'_> {
    type Output = Comb<KEY_WINDOW>;

    #[inline(always)]
    fn run<W: BackendWords>(self) -> Self::Output {
        let [x, y] = self
            .0
            .coordinates
            .map(|words| Element::<W, 2>::from_words(splat(&words)));
        Comb::new(&Affine { x, y })
    }
}

#[inline(always)]
fn verify_groups<W: BackendWords>(requests: &[Request<'_>], results: &mut Vec<bool>) {
    let mut groups = Vec::with_capacity(GROUPS);
    let mut inverses = Vec::with_capacity(GROUPS);
    for requests in requests.chunks(LANES) {
        let group = Group::<W>::new(requests);
        inverses.push(group.s);
        groups.push(group);
    }
    ORDER.invert_all(&mut inverses);
    for ((group, inverse), requests) in groups.iter_mut().zip(inverses).zip(requests.chunks(LANES)) {
        group.s = inverse;
        let point = match combs(requests) {
            Some(combs) => group.point_by_combs(&combs),
            None => group.point(),
        };
        results.extend(group.results(&point).iter().take(requests.len()));
    }
}

/// The request of each lane; unused lanes repeat the last request.
fn fill_lanes<'a, 'b>(requests: &'a [Request<'b>]) -> [Option<&'a Request<'b>>; LANES] {
    std::array::from_fn(|lane| requests.get(lane).or(requests.last()))
}

/// The combs of all lanes, if every request has one.
fn combs<'b>(requests: &[Request<'b>]) -> Option<[&'b Comb<KEY_WINDOW>; LANES]> {
    let comb = |request: &Request<'b>| match request.signer {
        Signer::Precomputed(precomputed) => Some(&precomputed.comb),
        Signer::Plain(_) => None,
    };
    let mut combs = [requests.first().and_then(comb)?; LANES];
    for (comb_of_lane, request) in combs.iter_mut().zip(fill_lanes(requests)) {
        *comb_of_lane = comb(request?)?;
    }
    Some(combs)
}

impl<W: BackendWords> Group<W> {
    #[inline(always)]
    fn new(requests: &[Request<'_>]) -> Self {
        let mut in_range = [false; LANES];
        let mut numbers = [[[0; 5]; LANES]; 6];
        for (lane, request) in fill_lanes(requests).into_iter().enumerate() {
            let Some(request) = request else { continue };
            let (r, s) = (limbs_of_be(request.r), limbs_of_be(request.s));
            in_range[lane] = [r, s]
                .iter()
                .all(|number| *number != [0; 4] && elliptic::subtract(number, &ORDER.limbs).1);
            // A signature whose r or s is out of range is invalid in any case, but an s of 0 would make the inverses of
            // all groups in its lane invalid.
            let [r, s] = if in_range[lane] { [r, s] } else { [[1, 0, 0, 0]; 2] };
            let other_r = match elliptic::add(&r, &ORDER.limbs) {
                (sum, false) if elliptic::subtract(&sum, &P).1 => sum,
                _ => r,
            };
            let lane_numbers = [&limbs_of_be(request.digest), &r, &s, &other_r].map(words);
            let [x, y] = request.signer.point().coordinates;
            for (number, words) in numbers.iter_mut().zip(lane_numbers.into_iter().chain([x, y])) {
                number[lane] = words;
            }
        }
        let [digest, r, s, other_r, x, y] = &numbers;
        Self {
            key: Affine {
                x: Element::from_words(load(x)),
                y: Element::from_words(load(y)),
            },
            digest: load(digest),
            r: load(r),
            s: ORDER.to_montgomery(&load(s)),
            other_r: load(other_r),
            in_range,
        }
    }

    /// For each lane, whether the signature is valid: r and s are in range, and the x of the finite point is `r` or
    /// `other_r`.
    #[inline(always)]
    fn results(&self, point: &Point<W>) -> [bool; LANES] {
        let zz: Element<W, 2> = point.z.square().carry();
        let is_finite = point.z.as_sum().is_zero().xor(W::splat(u64::MAX));
        let valid = has_x(&point.x, &zz, &self.r)
            .or(has_x(&point.x, &zz, &self.other_r))
            .and(is_finite)
            .store();
        std::array::from_fn(|lane| self.in_range[lane] && valid[lane] != 0)
    }

    /// u1 = `digest / s` and u2 = `r / s`.
    #[inline(always)]
    fn factors(&self) -> [[Digits; LANES]; 2] {
        [
            digits_of(&ORDER.mul(&self.digest, &self.s)),
            digits_of(&ORDER.mul(&self.r, &self.s)),
        ]
    }

    /// `u1 G + u2 Q`.
    #[inline(always)]
    fn point(&self) -> Point<W> {
        let [base_digits, key_digits] = self.factors();
        let multiples = Multiples::new(&self.key);
        let base_combs = [BaseComb::of_base::<W>(); LANES];
        let top = digit_count(KEY_WINDOW) - 1;
        let mut sum = multiples.select::<W>(&digits(&key_digits, KEY_WINDOW, top)).point;
        // A single loop: the compiler would unroll an inner loop over doublings to five times the code.
        for bit in (0..top * KEY_WINDOW).rev() {
            sum = sum.double();
            if bit % KEY_WINDOW == 0 {
                sum = sum.add(&multiples.select(&digits(&key_digits, KEY_WINDOW, bit / KEY_WINDOW)));
            }
            if bit % BASE_WINDOW == 0 {
                let digits = digits(&base_digits, BASE_WINDOW, bit / BASE_WINDOW);
                sum = sum.add_affine(&Comb::select(&base_combs, 0, &digits));
            }
        }
        sum
    }

    /// `u1 G + u2 Q` for points with combs.
    #[inline(always)]
    fn point_by_combs(&self, combs: &[&Comb<KEY_WINDOW>; LANES]) -> Point<W> {
        let [base_digits, key_digits] = self.factors();
        let base_combs = [BaseComb::of_base::<W>(); LANES];
        let mut sum = Point::infinity();
        for step in &STEPS {
            for _ in 0..step.doublings {
                sum = sum.double();
            }
            sum = sum.add_affine(&if step.is_base {
                let digits = digits(&base_digits, BASE_WINDOW, step.position);
                Comb::select(&base_combs, step.tooth, &digits)
            } else {
                Comb::select(combs, step.tooth, &digits(&key_digits, KEY_WINDOW, step.position))
            });
        }
        sum
    }
}

/// One digit of each lane's factor.
fn digits(factors: &[Digits; LANES], width: usize, position: usize) -> [Digit; LANES] {
    factors.map(|digits| digits.digit(width, position))
}

/// All ones in lanes where `X / Z^2` is r.
#[inline(always)]
fn has_x<W: BackendWords>(x: &Element<W, 2>, zz: &Element<W, 2>, r: &Words<W>) -> W {
    let r = Element::<W, 1>::from_words(*r).in_montgomery_form();
    r.mul::<2, 2>(zz).minus::<2, 4>(&x.as_sum()).is_zero()
}

/// The digits of numbers below 2 n.
#[inline(always)]
fn digits_of<W: BackendWords>(numbers: &Words<W>) -> [Digits; LANES] {
    store(numbers).map(|number| Digits::new(&ORDER.canonical(&number)))
}

/// All ones in lanes where the point is on the curve: `y^2 = x^3 - 3 x + b`. x and y are below p, in Montgomery form.
pub(super) fn is_on_curve<W: BackendWords>(x: &Words<W>, y: &Words<W>) -> W {
    let (x, y) = (Element::<W, 1>::from_words(*x), Element::<W, 1>::from_words(*y));
    let b = Element::<W, 1>::from_words(splat(&words(&super::B))).in_montgomery_form();
    let square: Element<W, 2> = x.square().carry();
    let three = Element::<W, 1>::one().as_sum().three_times::<3>();
    let factor: Element<W, 5> = square.as_sum().minus(&three).carry();
    let right_side = factor.mul::<1, 2>(&x).plus::<2, 4>(&b.as_sum());
    right_side.minus::<2, 6>(&y.square::<2>()).is_zero()
}
