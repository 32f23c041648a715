//! Odd multiples of points: of eight public keys, one per lane, and of points with precomputed tables.
#![allow(clippy::indexing_slicing)] // Lanes of arrays of eight, and digits that are within their tables.

use std::marker::PhantomData;
use std::sync::OnceLock;

use super::BASE_POINT;
use super::digits::Digit;
use super::field::{Element, P_MODULUS, Sum};
use super::point::{Addend, Affine, Point};
use crate::elliptic::comb::{BASE_WINDOW, KEY_WINDOW, PERIOD, TEETH};
use crate::elliptic::{BackendCode, BackendWords, WORDS, Words, limbs_of_be, load, splat, store, words};
use crate::simd::LANES;

/// A word of each lane.
type Lanes = [u64; LANES];

/// The odd multiples of eight points, from 1 to 31, each as x, y, -y, z, z^2 and z^3.
pub(super) struct Multiples([[[Lanes; WORDS]; 6]; 1 << (KEY_WINDOW - 1)]);

impl Multiples {
    #[inline(always)]
    pub(super) fn new<W: BackendWords>(base: &Affine<W>) -> Self {
        let mut multiples = Self([[[[0; LANES]; WORDS]; 6]; 1 << (KEY_WINDOW - 1)]);
        let mut next = base.point();
        let mut chain = OddMultiples::new(&next);
        for entry in &mut multiples.0 {
            let Addend { point, zz, zzz } = Addend::new(next);
            let negative: Element<W, 2> = point.y.as_sum().negative().carry();
            for (entry_words, words) in entry.iter_mut().zip([
                point.x.words(),
                point.y.words(),
                negative.words(),
                point.z.words(),
                zz.words(),
                zzz.words(),
            ]) {
                for (lanes, word) in entry_words.iter_mut().zip(words) {
                    *lanes = word.store();
                }
            }
            next = chain.next();
        }
        multiples
    }

    /// For each lane, the multiple of its point that the digit selects.
    #[inline(always)]
    pub(super) fn select<W: BackendWords>(&self, digits: &[Digit; LANES]) -> Addend<W> {
        let entries = digits.map(|digit| &self.0[digit.index]);
        let y_index = digits.map(|digit| 1 + usize::from(digit.negative));
        let x = Element::from_words(gather_coordinate(&entries, [0; LANES]));
        let y = Element::from_words(gather_coordinate(&entries, y_index));
        let z = Element::from_words(gather_coordinate(&entries, [3; LANES]));
        let zz = Element::from_words(gather_coordinate(&entries, [4; LANES]));
        let zzz = Element::from_words(gather_coordinate(&entries, [5; LANES]));
        Addend {
            point: Point { x, y, z },
            zz,
            zzz,
        }
    }
}

/// For each lane, the selected coordinate of the lane's entry.
#[inline(always)]
fn gather_coordinate<W: BackendWords>(
    entries: &[&[[Lanes; WORDS]; 6]; LANES],
    coordinate: [usize; LANES],
) -> Words<W> {
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

/// A multiple in one lane's words: x and y.
type Entry = [[u64; WORDS]; 2];

/// For a point P and each tooth of a comb, the odd multiples of `2^(PERIOD tooth) P` from 1 to `2^WINDOW - 1`.
pub(super) struct Comb<const WINDOW: usize>(Vec<Entry>);

impl<const WINDOW: usize> Comb<WINDOW> {
    /// Number of multiples per tooth.
    const COUNT: usize = 1 << (WINDOW - 1);
    pub(super) const BYTES: usize = TEETH * Self::COUNT * size_of::<Entry>();

    /// Computes the comb of a point that is the same in all lanes. The computation takes as long as a few
    /// verifications: about a thousand doublings and additions, for eight teeth side by side.
    #[inline(always)]
    pub(super) fn new<W: BackendWords>(base: &Affine<W>) -> Self {
        let mut entries = vec![Entry::default(); TEETH * Self::COUNT];
        let roots = roots(&base.point());
        for (entries, roots) in entries.chunks_mut(LANES * Self::COUNT).zip(roots.chunks(LANES)) {
            fill_teeth::<W>(roots, entries);
        }
        Self(entries)
    }

    #[inline(always)]
    fn entry(&self, tooth: usize, digit: &Digit) -> &Entry {
        &self.0[tooth * Self::COUNT + digit.index]
    }

    /// For each lane, the multiple that the lane's digit selects from one tooth of the lane's comb.
    #[inline(always)]
    pub(super) fn select<W: BackendWords>(
        combs: &[&Self; LANES],
        tooth: usize,
        digits: &[Digit; LANES],
    ) -> Affine<W> {
        let mut lane_words = [[[0; WORDS]; LANES]; 2];
        let mut negative = [0; LANES];
        for (lane, (comb, digit)) in combs.iter().zip(digits).enumerate() {
            let [x, y] = comb.entry(tooth, digit);
            (lane_words[0][lane], lane_words[1][lane]) = (*x, *y);
            negative[lane] = if digit.negative { u64::MAX } else { 0 };
        }
        let y = Element::<W, 2>::from_words(load(&lane_words[1]));
        Affine {
            x: Element::from_words(load(&lane_words[0])),
            y: y.as_sum().negative().carry().select(&y, W::load(negative)),
        }
    }
}

/// The root of each tooth: the point times `2^(PERIOD tooth)`, in Jacobian coordinates.
#[inline(always)]
fn roots<W: BackendWords>(base: &Point<W>) -> [[[u64; WORDS]; 3]; TEETH] {
    let mut roots = [[[0; WORDS]; 3]; TEETH];
    let mut point = *base;
    for bit in 0..=(TEETH - 1) * PERIOD {
        if bit > 0 {
            point = point.double();
        }
        if bit % PERIOD == 0 {
            roots[bit / PERIOD] = [
                store(point.x.words())[0],
                store(point.y.words())[0],
                store(point.z.words())[0],
            ];
        }
    }
    roots
}

/// Fills the entries of at most eight teeth with multiples of their roots; each tooth has the same number of entries.
#[inline(always)]
fn fill_teeth<W: BackendWords>(roots: &[[[u64; WORDS]; 3]], entries: &mut [Entry]) {
    let count = entries.len() / roots.len();
    let mut lane_words = [[[0; WORDS]; LANES]; 3];
    for lane in 0..LANES {
        let [x, y, z] = roots[lane.min(roots.len() - 1)];
        (lane_words[0][lane], lane_words[1][lane], lane_words[2][lane]) = (x, y, z);
    }
    let root = Point {
        x: Element::from_words(load(&lane_words[0])),
        y: Element::from_words(load(&lane_words[1])),
        z: Element::from_words(load(&lane_words[2])),
    };
    let mut chain = OddMultiples::new(&root);
    let mut points = vec![root];
    while points.len() < count {
        points.push(chain.next());
    }
    let mut inverses: Vec<Words<W>> = points.iter().map(|point| *point.z.words()).collect();
    P_MODULUS.invert_all(&mut inverses);
    // A loop without closures: closures would not be compiled for the vector instructions.
    for (index, (point, inverse)) in points.iter().zip(inverses).enumerate() {
        let inverse = Element::<W, 2>::from_words(inverse);
        let square: Element<W, 2> = inverse.square().carry();
        let x: Element<W, 2> = point.x.mul(&square).carry();
        let y: Element<W, 2> = point.y.mul(&inverse.mul::<2, 2>(&square).carry()).carry();
        let (x, y) = (store(x.words()), store(y.words()));
        for (tooth, entries) in entries.chunks_mut(count).enumerate() {
            entries[index] = [x[tooth], y[tooth]];
        }
    }
}

/// The comb of the base point, 520 KiB.
pub(super) type BaseComb = Comb<BASE_WINDOW>;

impl BaseComb {
    /// Returns the comb of the base point. The first call computes the comb, in a few milliseconds.
    #[inline(always)]
    pub(super) fn of_base<W: BackendWords>() -> &'static Self {
        static COMB: OnceLock<BaseComb> = OnceLock::new();
        COMB.get_or_init(|| W::call(ComputeBaseComb(PhantomData::<W>)))
    }
}

/// Computes the comb of the base point, as a separate function.
struct ComputeBaseComb<W>(PhantomData<W>);

impl<W: BackendWords> BackendCode for ComputeBaseComb<W> {
    type Output = BaseComb;

    #[inline(always)]
    fn run(self) -> BaseComb {
        Comb::new::<W>(&base_point())
    }
}

/// The base point.
#[inline(always)]
pub(super) fn base_point<W: BackendWords>() -> Affine<W> {
    let (x, y) = BASE_POINT.split_at(32);
    let [x, y] = [x, y].map(|bytes| {
        let bytes = bytes.first_chunk().unwrap_or(&[0; 32]);
        Element::<W, 1>::from_words(splat(&words(&limbs_of_be(bytes))))
    });
    Affine {
        x: x.in_montgomery_form(),
        y: y.in_montgomery_form(),
    }
}

/// Computes P, 3 P, 5 P and so on. Each addition of 2 P brings both points to a new common Z, so that the next addition
/// is cheap.
///
/// An addition by the formulas of Meloni, *New point addition formulae for ECC applications* (2007), takes 5
/// multiplications and 2 squarings. The formulas hold only if the two points differ and are not negatives of each
/// other. Points of large order satisfy this condition: no odd multiple used here is 2 P or -2 P.
struct OddMultiples<W> {
    /// The latest multiple.
    latest: Point<W>,
    /// X and Y of 2 P, with the same Z as the latest multiple.
    step: [Element<W, 2>; 2],
}

impl<W: BackendWords> OddMultiples<W> {
    #[inline(always)]
    fn new(first: &Point<W>) -> Self {
        let Point { x, y, z } = first.double();
        // The doubling multiplies Z by 2 Y.
        let ratio: Element<W, 4> = first.y.as_sum().twice().carry();
        let zz: Element<W, 2> = ratio.square().carry();
        let zzz: Element<W, 2> = ratio.mul(&zz).carry();
        let latest = Point {
            x: first.x.mul(&zz).carry(),
            y: first.y.mul(&zzz).carry(),
            z,
        };
        Self { latest, step: [x, y] }
    }

    #[inline(always)]
    fn next(&mut self) -> Point<W> {
        let [x, y] = &self.step;
        let dx: Element<W, 4> = x.as_sum().minus(&self.latest.x.as_sum()).carry();
        let dy: Element<W, 4> = y.as_sum().minus(&self.latest.y.as_sum()).carry();
        let square: Element<W, 2> = dx.square().carry();
        let step_x: Sum<W, 2> = x.mul(&square);
        let latest_x: Sum<W, 2> = self.latest.x.mul(&square);
        let next_x: Element<W, 2> = dy
            .square::<2>()
            .minus::<4, 6>(&step_x.plus(&latest_x))
            .reduce_partially()
            .carry();
        let step_y: Sum<W, 2> = y.mul(&step_x.minus::<2, 4>(&latest_x).carry());
        let x_difference: Element<W, 4> = step_x.minus(&next_x.as_sum()).carry();
        let next_y: Element<W, 2> = dy
            .mul::<4, 2>(&x_difference)
            .minus::<2, 4>(&step_y)
            .reduce_partially()
            .carry();
        let z = self.latest.z.mul::<4, 2>(&dx).carry().widen();
        self.step = [step_x.carry(), step_y.carry()];
        self.latest = Point {
            x: next_x,
            y: next_y,
            z,
        };
        self.latest
    }
}
