//! Points of edwards25519, eight side by side.
//!
//! The curve is `-x^2 + y^2 = 1 + d x^2 y^2`, with formulas of Hisil, Wong, Carter and Dawson (*Twisted Edwards curves revisited*, 2008).
//! The formulas hold for any two points, including equal points and points of small order: -1 is a square modulo p, and
//! d is not a square.

use super::field::{Element, PRODUCT_BOUND, Sum};
use crate::elliptic::BackendWords;

/// 2 d, with d = -121665 / 121666 (RFC 8032, 5.1).
const D2: [u64; 4] = [
    0xebd6_9b94_26b2_f159,
    0x00e0_149a_8283_b156,
    0x198e_80f2_eef3_d130,
    0x2406_d9dc_56df_fce7,
];

/// (X, Y, Z, T): the point (X / Z, Y / Z), with T = X Y / Z.
#[derive(Clone, Copy)]
pub(super) struct Extended<W> {
    pub(super) projective: Projective<W>,
    pub(super) t: Element<W>,
}

/// (X, Y, Z), without T, which only additions use.
#[derive(Clone, Copy)]
pub(super) struct Projective<W> {
    pub(super) x: Element<W>,
    pub(super) y: Element<W>,
    pub(super) z: Element<W>,
}

/// The intermediate result of doublings and additions: the point with X = E F, Y = G H, Z = F G and T = E H.
#[derive(Clone, Copy)]
pub(super) struct Completed<W> {
    e: Element<W>,
    f: Element<W>,
    g: Element<W>,
    h: Element<W>,
}

/// A point with Z = 1, prepared for addition: y + x, y - x, 2 d x y.
#[derive(Clone, Copy)]
pub(super) struct AffineAddend<W> {
    pub(super) sum: Element<W>,
    pub(super) difference: Element<W>,
    pub(super) t: Element<W>,
}

/// A point prepared for addition: Y + X, Y - X, 2 d T, 2 Z.
#[derive(Clone, Copy)]
pub(super) struct Addend<W> {
    pub(super) affine: AffineAddend<W>,
    pub(super) z: Element<W>,
}

impl<W: BackendWords> AffineAddend<W> {
    #[inline(always)]
    pub(super) fn new(x: &Element<W>, y: &Element<W>) -> Self {
        Self::with_t(x, y, &x.mul(y).fold())
    }

    #[inline(always)]
    fn with_t(x: &Element<W>, y: &Element<W>, t: &Element<W>) -> Self {
        Self {
            sum: y.as_sum().plus::<3, 6>(&x.as_sum()).fold(),
            difference: y.as_sum().minus::<3, 7>(&x.as_sum()).fold(),
            t: t.mul(&Element::splat(&D2)).fold(),
        }
    }
}

impl<W: BackendWords> Addend<W> {
    #[inline(always)]
    pub(super) fn new(point: &Extended<W>) -> Self {
        let Projective { x, y, z } = &point.projective;
        Self {
            affine: AffineAddend::with_t(x, y, &point.t),
            z: z.as_sum().twice::<6>().fold(),
        }
    }
}

impl<W: BackendWords> Projective<W> {
    /// (0, 1).
    #[inline(always)]
    pub(super) fn neutral() -> Self {
        let [zero, one] = [Element::splat(&[0, 0, 0, 0]), Element::splat(&[1, 0, 0, 0])];
        Self {
            x: zero,
            y: one,
            z: one,
        }
    }

    /// Doubles the point. Costs 4 squarings, without the conversion of the result by [`Completed`].
    #[inline(always)]
    pub(super) fn double(&self) -> Completed<W> {
        let a = self.x.square();
        let b = self.y.square();
        let c: Sum<W, { 2 * PRODUCT_BOUND }> = self.z.square().twice();
        let d = self.x.as_sum().plus::<3, 6>(&self.y.as_sum()).fold().square();
        let h: Sum<W, { 2 * PRODUCT_BOUND }> = a.plus(&b);
        let g: Sum<W, { 2 * PRODUCT_BOUND + 1 }> = a.minus(&b);
        Completed {
            e: h.minus::<PRODUCT_BOUND, { 3 * PRODUCT_BOUND + 1 }>(&d).fold(),
            f: c.plus::<{ 2 * PRODUCT_BOUND + 1 }, { 4 * PRODUCT_BOUND + 1 }>(&g)
                .fold(),
            g: g.fold(),
            h: h.fold(),
        }
    }
}

impl<W: BackendWords> Extended<W> {
    #[inline(always)]
    pub(super) fn neutral() -> Self {
        Self {
            projective: Projective::neutral(),
            t: Element::splat(&[0, 0, 0, 0]),
        }
    }

    /// Adds a point. Costs 4 multiplications, without the conversion of the result by [`Completed`].
    #[inline(always)]
    pub(super) fn add(&self, other: &Addend<W>) -> Completed<W> {
        self.add_with_z(&other.affine, &self.projective.z.mul(&other.z))
    }

    /// Adds a point with Z = 1. Costs 3 multiplications, without the conversion of the result by [`Completed`].
    #[inline(always)]
    pub(super) fn add_affine(&self, other: &AffineAddend<W>) -> Completed<W> {
        self.add_with_z(other, &self.projective.z.as_sum().twice())
    }

    #[inline(always)]
    fn add_with_z(&self, other: &AffineAddend<W>, zz: &Sum<W, PRODUCT_BOUND>) -> Completed<W> {
        let Projective { x, y, .. } = &self.projective;
        let a = y
            .as_sum()
            .minus::<3, 7>(&x.as_sum())
            .fold()
            .mul(&other.difference);
        let b = y.as_sum().plus::<3, 6>(&x.as_sum()).fold().mul(&other.sum);
        let c = self.t.mul(&other.t);
        Completed {
            e: b.minus::<PRODUCT_BOUND, { 2 * PRODUCT_BOUND + 1 }>(&a).fold(),
            f: zz.minus::<PRODUCT_BOUND, { 2 * PRODUCT_BOUND + 1 }>(&c).fold(),
            g: zz.plus::<PRODUCT_BOUND, { 2 * PRODUCT_BOUND }>(&c).fold(),
            h: b.plus::<PRODUCT_BOUND, { 2 * PRODUCT_BOUND }>(&a).fold(),
        }
    }
}

impl<W: BackendWords> Completed<W> {
    /// The point without T. Costs 3 multiplications.
    #[inline(always)]
    pub(super) fn projective(&self) -> Projective<W> {
        Projective {
            x: self.e.mul(&self.f).fold(),
            y: self.g.mul(&self.h).fold(),
            z: self.f.mul(&self.g).fold(),
        }
    }

    /// Adds T to the result of [`Completed::projective`]. Costs one multiplication.
    #[inline(always)]
    pub(super) fn extend(&self, projective: Projective<W>) -> Extended<W> {
        Extended {
            projective,
            t: self.e.mul(&self.h).fold(),
        }
    }

    /// The point with T. Costs 4 multiplications.
    #[inline(always)]
    pub(super) fn extended(&self) -> Extended<W> {
        self.extend(self.projective())
    }
}
