//! Odd multiples of points: per lane of eight public keys, and of the base point.
#![allow(clippy::indexing_slicing)] // Lanes of arrays of eight, and multiples that digits count within their tables.

use std::marker::PhantomData;
use std::sync::OnceLock;

use super::digits::Digit;
use super::field::{Element, P_MODULUS, Sum};
use super::point::{Addend, Affine, Point};
use crate::arith::eight::LANES;
use crate::arith::five::{Code, Outline, WORDS, Words, load, splat, store, words};

/// Bits of a window of a public key's factor: of 16 multiples and 52 additions, the least work.
pub(super) const KEY_WINDOW: usize = 5;
/// Bits of a window of the base point's factor, a multiple of the other.
pub(super) const BASE_WINDOW: usize = 10;

/// A word of each lane.
type Lanes = [u64; LANES];

/// The odd multiples of eight points, one to 31.
pub(super) struct Multiples([[[Lanes; WORDS]; 6]; 1 << (KEY_WINDOW - 1)]);

impl Multiples {
    #[inline(always)]
    pub(super) fn new<W: Outline>(of: &Affine<W>) -> Self {
        let mut multiples = Self([[[[0; LANES]; WORDS]; 6]; 1 << (KEY_WINDOW - 1)]);
        let mut chain = Chain::new(of);
        let mut next = of.point();
        for entry in &mut multiples.0 {
            let Addend { point, zz, zzz } = Addend::new(next);
            let negative: Element<W, 2> = point.y.sum().negative().carry();
            for (row, words) in entry.iter_mut().zip([
                point.x.words(),
                point.y.words(),
                negative.words(),
                point.z.words(),
                zz.words(),
                zzz.words(),
            ]) {
                for (lanes, word) in row.iter_mut().zip(words) {
                    *lanes = word.store();
                }
            }
            next = chain.next();
        }
        multiples
    }

    /// Of each lane's point the multiple that its digit is.
    #[inline(always)]
    pub(super) fn take<W: Outline>(&self, digits: &[Digit; LANES]) -> Addend<W> {
        let entries = digits.map(|digit| &self.0[digit.index]);
        let sign = digits.map(|digit| 1 + usize::from(digit.negative));
        let x = Element::from_words(take(&entries, [0; LANES]));
        let y = Element::from_words(take(&entries, sign));
        let z = Element::from_words(take(&entries, [3; LANES]));
        let zz = Element::from_words(take(&entries, [4; LANES]));
        let zzz = Element::from_words(take(&entries, [5; LANES]));
        Addend {
            point: Point { x, y, z },
            zz,
            zzz,
        }
    }
}

/// Of each lane its own coordinate of its own entry.
#[inline(always)]
fn take<W: Outline>(entries: &[&[[Lanes; WORDS]; 6]; LANES], coordinate: [usize; LANES]) -> Words<W> {
    let mut words = [W::splat(0); WORDS];
    for (index, word) in words.iter_mut().enumerate() {
        let mut lanes = [0; LANES];
        for (lane, out) in lanes.iter_mut().enumerate() {
            *out = entries[lane][coordinate[lane]][index][lane];
        }
        *word = W::load(lanes);
    }
    words
}

/// A multiple in one lane's words: x, y and -y.
type Entry = [[u64; WORDS]; 3];

/// The odd multiples of the base point, from 1 to `2^BASE_WINDOW - 1`.
pub(super) struct BaseMultiples(Vec<Entry>);

impl BaseMultiples {
    /// Computed once, in under a millisecond.
    #[inline(always)]
    pub(super) fn get<W: Outline>() -> &'static Self {
        static MULTIPLES: OnceLock<BaseMultiples> = OnceLock::new();
        MULTIPLES.get_or_init(|| W::call(Compute(PhantomData::<W>)))
    }

    /// The multiples that the digits are.
    #[inline(always)]
    pub(super) fn take<W: Outline>(&self, digits: &[Digit; LANES]) -> Affine<W> {
        let entries = digits.map(|digit| &self.0[digit.index]);
        let mut of_lanes = [[[0; WORDS]; LANES]; 2];
        for (lane, (entry, digit)) in entries.iter().zip(digits).enumerate() {
            of_lanes[0][lane] = entry[0];
            of_lanes[1][lane] = entry[1 + usize::from(digit.negative)];
        }
        Affine {
            x: Element::from_words(load(&of_lanes[0])),
            y: Element::from_words(load(&of_lanes[1])),
        }
    }
}

/// To compute the multiples of the base point, as a function of its own.
struct Compute<W>(PhantomData<W>);

impl<W: Outline> Code for Compute<W> {
    type Output = BaseMultiples;

    #[inline(always)]
    fn run(self) -> BaseMultiples {
        BaseMultiples(affine_multiples::<W>(&base_point(), 1 << (BASE_WINDOW - 1)))
    }
}

/// The base point (FIPS 186-5; SP 800-186, 3.2.1.3).
#[inline(always)]
pub(super) fn base_point<W: Outline>() -> Affine<W> {
    const X: [u64; 4] = [
        0xf4a1_3945_d898_c296,
        0x7703_7d81_2deb_33a0,
        0xf8bc_e6e5_63a4_40f2,
        0x6b17_d1f2_e12c_4247,
    ];
    const Y: [u64; 4] = [
        0xcbb6_4068_37bf_51f5,
        0x2bce_3357_6b31_5ece,
        0x8ee7_eb4a_7c0f_9e16,
        0x4fe3_42e2_fe1a_7f9b,
    ];
    let [x, y] = [X, Y].map(|limbs| Element::<W, 1>::from_words(splat(&words(&limbs))));
    Affine {
        x: x.enter(),
        y: y.enter(),
    }
}

/// The first odd multiples of the point in lane 0.
#[inline(always)]
fn affine_multiples<W: Outline>(of: &Affine<W>, count: usize) -> Vec<Entry> {
    let mut chain = Chain::new(of);
    let mut points = vec![of.point()];
    while points.len() < count {
        points.push(chain.next());
    }
    let mut inverses: Vec<Words<W>> = points.iter().map(|point| *point.z.words()).collect();
    P_MODULUS.invert_all(&mut inverses);
    let mut entries = Vec::with_capacity(count);
    // A loop and no closures: those would not be compiled for the vectors.
    for (point, inverse) in points.iter().zip(inverses) {
        let inverse = Element::<W, 2>::from_words(inverse);
        let square: Element<W, 2> = inverse.square().carry();
        let x: Element<W, 2> = point.x.mul(&square).carry();
        let y: Element<W, 2> = point.y.mul(&inverse.mul::<2, 2>(&square).carry()).carry();
        let negative: Element<W, 2> = y.sum().negative().carry();
        entries.push([
            store(x.words())[0],
            store(y.words())[0],
            store(negative.words())[0],
        ]);
    }
    entries
}

/// P, 3 P, 5 P and so on, by additions of 2 P that bring both points to a new common Z, which makes the next one cheap.
///
/// Meloni, *New point addition formulae for ECC applications* (2007): 5 multiplications and 2 squarings. For points of large order: no
/// multiple that is used is 2 P or -2 P.
struct Chain<W> {
    /// The last multiple, and 2 P with the same Z.
    last: Point<W>,
    step: [Element<W, 2>; 2],
}

impl<W: Outline> Chain<W> {
    #[inline(always)]
    fn new(first: &Affine<W>) -> Self {
        let Point { x, y, z } = first.point().double();
        let zz: Element<W, 2> = z.square().carry();
        let zzz: Element<W, 2> = z.mul(&zz).carry();
        let last = Point {
            x: first.x.mul(&zz).carry(),
            y: first.y.mul(&zzz).carry(),
            z,
        };
        Self { last, step: [x, y] }
    }

    #[inline(always)]
    fn next(&mut self) -> Point<W> {
        let [x, y] = &self.step;
        let dx: Element<W, 4> = x.sum().minus(&self.last.x.sum()).carry();
        let dy: Element<W, 4> = y.sum().minus(&self.last.y.sum()).carry();
        let square: Element<W, 2> = dx.square().carry();
        let step_x: Sum<W, 2> = x.mul(&square);
        let last_x: Sum<W, 2> = self.last.x.mul(&square);
        let next_x: Element<W, 2> = dy
            .square::<2>()
            .minus::<4, 6>(&step_x.plus(&last_x))
            .shrink()
            .carry();
        let step_y: Sum<W, 2> = y.mul(&step_x.minus::<2, 4>(&last_x).carry());
        let down: Element<W, 4> = step_x.minus(&next_x.sum()).carry();
        let next_y: Element<W, 2> = dy.mul::<4, 2>(&down).minus::<2, 4>(&step_y).shrink().carry();
        let z = self.last.z.mul::<4, 2>(&dx).carry().widen();
        self.step = [step_x.carry(), step_y.carry()];
        self.last = Point {
            x: next_x,
            y: next_y,
            z,
        };
        self.last
    }
}
