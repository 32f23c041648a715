//! Multiples of points: of eight public keys, one per lane, and of points with precomputed tables.
#![allow(
    clippy::indexing_slicing,
    reason = "indices are lanes, words, and digits, which do not exceed the index of the last multiple"
)]

use std::marker::PhantomData;
use std::sync::OnceLock;

use super::digits::Digit;
use super::field::{Element, invert_all};
use super::point::{Addend, AffineAddend, Extended, Projective};
use crate::elliptic::comb::{BASE_WINDOW, KEY_WINDOW, PERIOD, TEETH};
use crate::elliptic::{BackendCode, BackendWords, WORDS, load, select, store};
use crate::simd::LANES;

/// A word of each lane.
type Lanes = [u64; LANES];

/// The multiples of eight points, from 0 to 16, as the fields of an [`Addend`]: sum, difference, t, -t, z.
pub(super) struct Multiples([[[Lanes; WORDS]; 5]; (1 << (KEY_WINDOW - 1)) + 1]);

impl Multiples {
    #[inline(always)]
    pub(super) fn new<W: BackendWords>(base: &AffineAddend<W>) -> Self {
        let mut multiples = Self([[[[0; LANES]; WORDS]; 5]; (1 << (KEY_WINDOW - 1)) + 1]);
        let mut point = Extended::<W>::neutral();
        for entry in &mut multiples.0 {
            let Addend {
                affine: AffineAddend { sum, difference, t },
                z,
            } = Addend::new(&point);
            let negative = t.as_sum().negative::<4>().fold();
            for (words, coordinate) in entry.iter_mut().zip([sum, difference, t, negative, z]) {
                for (lanes, word) in words.iter_mut().zip(coordinate.words()) {
                    *lanes = word.store();
                }
            }
            point = point.add_affine(base).extended();
        }
        multiples
    }

    /// For each lane, the multiple of its point that the digit selects.
    #[inline(always)]
    pub(super) fn select<W: BackendWords>(&self, digits: &[Digit; LANES]) -> Addend<W> {
        let entries = digits.map(|digit| &self.0[digit.index]);
        let negative = digits.map(|digit| usize::from(digit.negative));
        Addend {
            affine: AffineAddend {
                sum: gather_coordinate(&entries, negative),
                difference: gather_coordinate(&entries, negative.map(|negative| 1 - negative)),
                t: gather_coordinate(&entries, negative.map(|negative| 2 + negative)),
            },
            z: gather_coordinate(&entries, [4; LANES]),
        }
    }
}

/// For each lane, the selected coordinate of the lane's entry.
#[inline(always)]
fn gather_coordinate<W: BackendWords>(
    entries: &[&[[Lanes; WORDS]; 5]; LANES],
    coordinate: [usize; LANES],
) -> Element<W> {
    let mut words = [W::splat(0); WORDS];
    for (index, word) in words.iter_mut().enumerate() {
        let mut lanes = [0; LANES];
        for (lane, out) in lanes.iter_mut().enumerate() {
            *out = entries[lane][coordinate[lane]][index][lane];
        }
        *word = W::load(lanes);
    }
    Element::from_words(words)
}

/// A multiple in one lane's words: sum, difference, t.
type Entry = [[u64; WORDS]; 3];

/// For a point P and each tooth of a comb, the multiples of `2^(PERIOD tooth) P` from 0 to `2^(WINDOW - 1)`.
pub(super) struct Comb<const WINDOW: usize>(Vec<Entry>);

impl<const WINDOW: usize> Comb<WINDOW> {
    /// Number of multiples per tooth.
    const COUNT: usize = (1 << (WINDOW - 1)) + 1;
    pub(super) const BYTES: usize = TEETH * Self::COUNT * size_of::<Entry>();

    /// Computes the comb of a point that is the same in all lanes. The computation takes as long as a few
    /// verifications: about a thousand doublings and additions, for eight teeth side by side.
    #[inline(always)]
    pub(super) fn new<W: BackendWords>([x, y]: &[Element<W>; 2]) -> Self {
        let mut entries = vec![Entry::default(); TEETH * Self::COUNT];
        let roots = roots(&AffineAddend::new(x, y));
        for (entries, roots) in entries.chunks_mut(LANES * Self::COUNT).zip(roots.chunks(LANES)) {
            fill_teeth::<W>(roots, entries);
        }
        Self(entries)
    }

    /// For each lane, the multiple that the lane's digit selects from one tooth of the lane's comb.
    #[inline(always)]
    pub(super) fn select<W: BackendWords>(
        combs: &[&Self; LANES],
        tooth: usize,
        digits: &[Digit; LANES],
    ) -> AffineAddend<W> {
        let mut lane_words = [[[0; WORDS]; LANES]; 3];
        let mut mask = [0; LANES];
        for (lane, (comb, digit)) in combs.iter().zip(digits).enumerate() {
            let entry = &comb.0[tooth * Self::COUNT + digit.index];
            let negative = usize::from(digit.negative);
            lane_words[0][lane] = entry[negative];
            lane_words[1][lane] = entry[1 - negative];
            lane_words[2][lane] = entry[2];
            mask[lane] = if digit.negative { u64::MAX } else { 0 };
        }
        let t = Element::from_words(load(&lane_words[2]));
        let negative = t.as_sum().negative::<4>().fold();
        AffineAddend {
            sum: Element::from_words(load(&lane_words[0])),
            difference: Element::from_words(load(&lane_words[1])),
            t: Element::from_words(select(negative.words(), t.words(), W::load(mask))),
        }
    }
}

/// The root of each tooth: the point times `2^(PERIOD tooth)`, as X, Y, Z and T.
#[inline(always)]
fn roots<W: BackendWords>(base: &AffineAddend<W>) -> [[[u64; WORDS]; 4]; TEETH] {
    let mut roots = [[[0; WORDS]; 4]; TEETH];
    let mut point = Extended::neutral().add_affine(base).extended();
    for bit in 0..=(TEETH - 1) * PERIOD {
        if bit > 0 {
            point = point.projective.double().extended();
        }
        if bit % PERIOD == 0 {
            roots[bit / PERIOD] = [
                store(point.projective.x.words())[0],
                store(point.projective.y.words())[0],
                store(point.projective.z.words())[0],
                store(point.t.words())[0],
            ];
        }
    }
    roots
}

/// Fills the entries of at most eight teeth with multiples of their roots; each tooth has the same number of entries.
#[inline(always)]
fn fill_teeth<W: BackendWords>(roots: &[[[u64; WORDS]; 4]], entries: &mut [Entry]) {
    let count = entries.len() / roots.len();
    let mut lane_words = [[[0; WORDS]; LANES]; 4];
    for lane in 0..LANES {
        for (lane_words, coordinate) in lane_words.iter_mut().zip(roots[lane.min(roots.len() - 1)]) {
            lane_words[lane] = coordinate;
        }
    }
    let root = Addend::new(&Extended {
        projective: Projective {
            x: Element::from_words(load(&lane_words[0])),
            y: Element::from_words(load(&lane_words[1])),
            z: Element::from_words(load(&lane_words[2])),
        },
        t: Element::from_words(load(&lane_words[3])),
    });
    let mut points = vec![Extended::<W>::neutral()];
    let mut multiple = Extended::neutral();
    while points.len() < count {
        multiple = multiple.add(&root).extended();
        points.push(multiple);
    }
    let mut inverses = Vec::with_capacity(count);
    for point in &points {
        inverses.push(point.projective.z);
    }
    invert_all(&mut inverses);
    // A loop without closures: closures would not be compiled for the vector instructions.
    for (index, (point, inverse)) in points.iter().zip(inverses).enumerate() {
        let x = point.projective.x.mul(&inverse).fold();
        let y = point.projective.y.mul(&inverse).fold();
        let AffineAddend { sum, difference, t } = AffineAddend::new(&x, &y);
        let (sum, difference, t) = (store(sum.words()), store(difference.words()), store(t.words()));
        for (tooth, entries) in entries.chunks_mut(count).enumerate() {
            entries[index] = [sum[tooth], difference[tooth], t[tooth]];
        }
    }
}

/// The comb of the base point, 782 KiB.
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

/// The base point B: y is 4 / 5, and x is even (RFC 8032, 5.1).
#[inline(always)]
pub(super) fn base_point<W: BackendWords>() -> [Element<W>; 2] {
    const X: [u64; 4] = [
        0xc956_2d60_8f25_d51a,
        0x692c_c760_9525_a7b2,
        0xc0a4_e231_fdd6_dc5c,
        0x2169_36d3_cd6e_53fe,
    ];
    const Y: [u64; 4] = [
        0x6666_6666_6666_6658,
        0x6666_6666_6666_6666,
        0x6666_6666_6666_6666,
        0x6666_6666_6666_6666,
    ];
    [Element::splat(&X), Element::splat(&Y)]
}
