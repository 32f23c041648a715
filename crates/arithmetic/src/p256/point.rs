//! Points of P-256, eight side by side, in Jacobian coordinates: (X, Y, Z) is the point (X / Z^2, Y / Z^3).
//!
//! The formulas are those of Hankerson, Menezes and Vanstone (*Guide to Elliptic Curve Cryptography*, 2004, 3.2.2). The
//! addition of a point to itself, to its negative or to infinity requires another formula. Infinity is represented as
//! (0, 0, 0), so that in all these cases the difference H of the x coordinates is zero. A signer can cause these
//! exceptional cases, so each addition checks for them.

use super::field::{Element, Sum};
use crate::elliptic::{BackendCode, BackendWords, any};

#[derive(Clone, Copy)]
pub(super) struct Point<W> {
    pub(super) x: Element<W, 2>,
    pub(super) y: Element<W, 2>,
    pub(super) z: Element<W, 4>,
}

/// A point with Z = 1, not infinity.
#[derive(Clone, Copy)]
pub(super) struct Affine<W> {
    pub(super) x: Element<W, 2>,
    pub(super) y: Element<W, 2>,
}

/// A point other than infinity, with Z^2 and Z^3 precomputed for additions.
#[derive(Clone, Copy)]
pub(super) struct Addend<W> {
    pub(super) point: Point<W>,
    pub(super) zz: Element<W, 2>,
    pub(super) zzz: Element<W, 2>,
}

/// The coordinates of two points for a common Z: U1 and U2 (x), -S1 and S2 (y), and the product of both Z.
struct CommonDenominator<W> {
    u1: Element<W, 2>,
    u2: Sum<W, 2>,
    s1_negative: Sum<W, 2>,
    s2: Sum<W, 2>,
    z: Element<W, 4>,
}

impl<W: BackendWords> Affine<W> {
    pub(super) fn point(&self) -> Point<W> {
        Point {
            x: self.x,
            y: self.y,
            z: Element::one().widen(),
        }
    }
}

impl<W: BackendWords> Addend<W> {
    #[inline(always)]
    pub(super) fn new(point: Point<W>) -> Self {
        let zz = point.z.square().carry();
        let zzz = point.z.mul(&zz).carry();
        Self { point, zz, zzz }
    }
}

impl<W: BackendWords> Point<W> {
    pub(super) fn infinity() -> Self {
        let zero = Element::zero();
        Self {
            x: zero.widen(),
            y: zero.widen(),
            z: zero.widen(),
        }
    }

    /// Doubles the point: 4 multiplications and 4 squarings. One multiplication and one squaring share a reduction.
    ///
    /// No point has order 2, so only the double of infinity is infinity.
    #[inline(always)]
    pub(super) fn double(&self) -> Self {
        let delta: Sum<W, 2> = self.z.square();
        let gamma: Element<W, 2> = self.y.square().carry();
        let beta: Sum<W, 2> = self.x.mul(&gamma);
        let difference: Element<W, 4> = self.x.as_sum().minus(&delta).carry();
        let sum: Element<W, 4> = self.x.as_sum().plus(&delta).carry();
        let alpha: Element<W, 6> = difference.mul::<4, 2>(&sum).three_times().carry();
        let square: Sum<W, 4> = alpha.square();
        let x: Element<W, 2> = square
            .minus::<16, 20>(&beta.shl::<3, 16>())
            .reduce_partially()
            .carry();
        let x_difference: Element<W, 10> = beta.shl::<2, 8>().minus(&x.as_sum()).carry();
        let y = alpha
            .mul_less_eight_squares::<10, 7>(&x_difference, &gamma)
            .reduce_partially()
            .carry();
        let z = self.y.mul::<4, 2>(&self.z).twice().carry();
        Self { x, y, z }
    }

    /// Adds a point: 11 multiplications and 3 squarings.
    #[inline(always)]
    pub(super) fn add(&self, other: &Addend<W>) -> Self {
        let zz: Element<W, 2> = self.z.square().carry();
        let zzz: Element<W, 2> = self.z.mul(&zz).carry();
        let s1: Sum<W, 2> = self.y.mul(&other.zzz);
        let common = CommonDenominator {
            u1: self.x.mul(&other.zz).carry(),
            u2: other.point.x.mul(&zz),
            s1_negative: s1.negative(),
            s2: other.point.y.mul(&zzz),
            z: self.z.mul::<4, 2>(&other.point.z).carry().widen(),
        };
        self.add_common(&common, &other.point)
    }

    /// Adds an affine point: 8 multiplications and 3 squarings.
    #[inline(always)]
    pub(super) fn add_affine(&self, other: &Affine<W>) -> Self {
        let zz: Element<W, 2> = self.z.square().carry();
        let zzz: Element<W, 2> = self.z.mul(&zz).carry();
        let common = CommonDenominator {
            u1: self.x,
            u2: other.x.mul(&zz),
            s1_negative: self.y.as_sum().negative(),
            s2: other.y.mul(&zzz),
            z: self.z,
        };
        self.add_common(&common, &other.point())
    }

    #[inline(always)]
    fn add_common(&self, common: &CommonDenominator<W>, other: &Self) -> Self {
        let h: Sum<W, 4> = common.u2.minus(&common.u1.as_sum());
        let h: Element<W, 4> = h.carry();
        let r: Element<W, 4> = common.s2.plus(&common.s1_negative).carry();
        let s1_negative: Element<W, 2> = common.s1_negative.carry();
        let hh: Element<W, 2> = h.square().carry();
        let hhh: Element<W, 2> = h.mul(&hh).carry();
        let v: Sum<W, 2> = common.u1.mul(&hh);
        let square: Sum<W, 2> = r.square();
        let subtrahend: Sum<W, 6> = hhh.as_sum().plus(&v.twice::<4>());
        let x: Element<W, 2> = square.minus::<6, 8>(&subtrahend).reduce_partially().carry();
        let x_difference: Element<W, 4> = v.minus(&x.as_sum()).carry();
        let y = r
            .mul_add::<4, 2, 2, 3>(&x_difference, &s1_negative, &hhh)
            .reduce_partially()
            .carry();
        let z = common.z.mul::<4, 2>(&h).carry().widen();
        let sum = Self { x, y, z };
        // The lowest word of p is 2^52 - 1, so the lowest word of `k p` is -k modulo 2^52. If h is `k p` with k in
        // 0..4, the lowest word of h plus 3 is below 4 modulo 2^52.
        let suspect = h.words()[0].add(W::splat(3)).low().shr::<2>().equal(W::splat(0));
        if any(suspect) {
            W::call(ExceptionalSums {
                a: self,
                b: other,
                sum: &sum,
                h: &h,
                r: &r,
            })
        } else {
            sum
        }
    }

    /// The coordinates of `self` where `mask` has ones, of `other` elsewhere.
    #[inline(always)]
    pub(super) fn select(&self, other: &Self, mask: W) -> Self {
        Self {
            x: self.x.select(&other.x, mask),
            y: self.y.select(&other.y, mask),
            z: self.z.select(&other.z, mask),
        }
    }
}

/// The task of computing the correct sums of lanes in which H is zero; the other lanes keep their sums.
struct ExceptionalSums<'a, W> {
    a: &'a Point<W>,
    b: &'a Point<W>,
    sum: &'a Point<W>,
    h: &'a Element<W, 4>,
    r: &'a Element<W, 4>,
}

impl<W: BackendWords> BackendCode for ExceptionalSums<'_, W> {
    type Output = Point<W>;

    #[inline(always)]
    fn run(self) -> Point<W> {
        let same_x = self
            .a
            .double()
            .select(&Point::infinity(), self.r.as_sum().is_zero());
        let exception = self.b.select(&same_x, self.a.z.as_sum().is_zero());
        exception.select(self.sum, self.h.as_sum().is_zero())
    }
}

#[cfg(test)]
#[path = "point_tests.rs"]
mod tests;
