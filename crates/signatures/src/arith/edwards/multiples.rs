//! Multiples of points: per lane of eight public keys, and of the base point.
#![allow(
    clippy::indexing_slicing,
    reason = "indices are lanes, words, and digits that are at most the last multiple"
)]

use std::marker::PhantomData;
use std::sync::OnceLock;

use super::digits::Digit;
use super::field::{Element, invert_all};
use super::point::{Addend, AffineAddend, Extended};
use crate::arith::eight::LANES;
use crate::arith::five::{Code, Outline, WORDS, load, store};

/// Bits of a window of a public key's factor: of 16 multiples and 51 additions, the least work.
pub(super) const KEY_WINDOW: usize = 5;
/// Bits of a window of the base point's factor, a multiple of the other.
pub(super) const BASE_WINDOW: usize = 10;

/// A word of each lane.
type Lanes = [u64; LANES];

/// The multiples of eight points, none to 16: sum, difference, t, -t, z.
pub(super) struct Multiples([[[Lanes; WORDS]; 5]; (1 << (KEY_WINDOW - 1)) + 1]);

impl Multiples {
    #[inline(always)]
    pub(super) fn new<W: Outline>(of: &AffineAddend<W>) -> Self {
        let mut multiples = Self([[[[0; LANES]; WORDS]; 5]; (1 << (KEY_WINDOW - 1)) + 1]);
        let mut point = Extended::<W>::neutral();
        for entry in &mut multiples.0 {
            let Addend {
                of: AffineAddend { sum, difference, t },
                z,
            } = Addend::new(&point);
            let negative = t.sum().negative::<4>().fold();
            for (row, coordinate) in entry.iter_mut().zip([sum, difference, t, negative, z]) {
                for (lanes, word) in row.iter_mut().zip(coordinate.words()) {
                    *lanes = word.store();
                }
            }
            point = point.add_affine(of).extended();
        }
        multiples
    }

    /// Of each lane's point the multiple that its digit is.
    #[inline(always)]
    pub(super) fn take<W: Outline>(&self, digits: &[Digit; LANES]) -> Addend<W> {
        let entries = digits.map(|digit| &self.0[digit.index]);
        let negative = digits.map(|digit| usize::from(digit.negative));
        Addend {
            of: AffineAddend {
                sum: take(&entries, negative),
                difference: take(&entries, negative.map(|negative| 1 - negative)),
                t: take(&entries, negative.map(|negative| 2 + negative)),
            },
            z: take(&entries, [4; LANES]),
        }
    }
}

/// Of each lane its own coordinate of its own entry.
#[inline(always)]
fn take<W: Outline>(entries: &[&[[Lanes; WORDS]; 5]; LANES], coordinate: [usize; LANES]) -> Element<W> {
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

/// The multiples of the base point, none to `2^(BASE_WINDOW - 1)`: sum, difference, t, -t.
pub(super) struct BaseMultiples(Vec<[[u64; WORDS]; 4]>);

impl BaseMultiples {
    /// Computed once, in under a millisecond.
    #[inline(always)]
    pub(super) fn get<W: Outline>() -> &'static Self {
        static MULTIPLES: OnceLock<BaseMultiples> = OnceLock::new();
        MULTIPLES.get_or_init(|| W::call(Compute(PhantomData::<W>)))
    }

    #[inline(always)]
    fn new<W: Outline>() -> Self {
        let [x, y] = base_point();
        let base = AffineAddend::<W>::new(&x, &y);
        let mut points = vec![Extended::neutral()];
        let mut last = Extended::neutral();
        for _ in 0..1 << (BASE_WINDOW - 1) {
            last = last.add_affine(&base).extended();
            points.push(last);
        }
        let mut inverses: Vec<Element<W>> = points.iter().map(|point| point.of.z).collect();
        invert_all(&mut inverses);
        let mut entries = Vec::with_capacity(points.len());
        // A loop and no closures: those would not be compiled for the vectors.
        for (point, inverse) in points.iter().zip(inverses) {
            let x = point.of.x.mul(&inverse).fold();
            let y = point.of.y.mul(&inverse).fold();
            let AffineAddend { sum, difference, t } = AffineAddend::new(&x, &y);
            let negative = t.sum().negative::<4>().fold();
            entries.push([
                store(sum.words())[0],
                store(difference.words())[0],
                store(t.words())[0],
                store(negative.words())[0],
            ]);
        }
        Self(entries)
    }

    /// The multiples that the digits are.
    #[inline(always)]
    pub(super) fn take<W: Outline>(&self, digits: &[Digit; LANES]) -> AffineAddend<W> {
        let entries = digits.map(|digit| &self.0[digit.index]);
        let mut of_lanes = [[[0; WORDS]; LANES]; 3];
        for (lane, (entry, digit)) in entries.iter().zip(digits).enumerate() {
            let negative = usize::from(digit.negative);
            of_lanes[0][lane] = entry[negative];
            of_lanes[1][lane] = entry[1 - negative];
            of_lanes[2][lane] = entry[2 + negative];
        }
        AffineAddend {
            sum: Element::from_words(load(&of_lanes[0])),
            difference: Element::from_words(load(&of_lanes[1])),
            t: Element::from_words(load(&of_lanes[2])),
        }
    }
}

/// To compute the multiples of the base point, as a function of its own.
struct Compute<W>(PhantomData<W>);

impl<W: Outline> Code for Compute<W> {
    type Output = BaseMultiples;

    #[inline(always)]
    fn run(self) -> BaseMultiples {
        BaseMultiples::new::<W>()
    }
}

/// The base point B: y is 4 / 5, and x is even (RFC 8032, 5.1).
#[inline(always)]
pub(super) fn base_point<W: Outline>() -> [Element<W>; 2] {
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
