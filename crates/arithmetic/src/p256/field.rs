//! Numbers modulo p = 2^256 - 2^224 + 2^192 + 2^96 - 1, eight side by side, in Montgomery form with R = 2^260.
//!
//! The bound of a number is a parameter of its type, in units of p, and each operation checks at compile time that its
//! result fits. For a <= A p and b <= B p, a Montgomery product is at most `a b / R + p`. That is below (A B / 16 + 1)
//! p, since p < 2^256: no subtraction is necessary after a multiplication.
//!
//! p + 1 = 2^96 + 2^192 + 2^256 - 2^224 makes the reduction cheap: the quotient q equals the lowest word, since -1/p =
//! 1 mod 2^52, and `q p = q (p + 1) - q` requires three products. A general modulus requires five products, and a sixth
//! one for q.
#![allow(
    clippy::indexing_slicing,
    reason = "arrays of fixed size, and indices that are constants once the loops are unrolled"
)]

use crate::elliptic::montgomery::{Modulus, power_of_two};
use crate::elliptic::{
    BackendWords, COLUMNS, Columns, Counts, PRODUCT, WORDS, WordKernel, Words, add_at, add_product, carry,
    columns, equal, map, select, splat, square, sum_counts, words, zip,
};
use crate::simd::WordVector;

/// p, in limbs of 64 bits.
pub(super) const P: [u64; 4] = [u64::MAX, 0xffff_ffff, 0, 0xffff_ffff_0000_0001];
/// p as a general modulus, for rare operations.
pub(super) const P_MODULUS: Modulus = Modulus::new(P);
const P_WORDS: [u64; WORDS] = words(&P);
/// `R mod p`: 1 in Montgomery form.
const ONE: [u64; WORDS] = words(&power_of_two(260, &P));
/// `R^2 mod p`.
const R2: [u64; WORDS] = words(&power_of_two(520, &P));

/// The nonzero words of p + 1, each after its index. The reduction multiplies the quotient by each word and adds the
/// product at that offset from the quotient's column.
const FOLDS: [(usize, u64); 3] = [(1, 1 << 44), (3, 1 << 36), (4, (1 << 48) - (1 << 16))];

/// The numbers of low and high halves that the reduction adds to each column.
const REDUCTION: Counts = {
    let mut counts = [(0, 0); COLUMNS];
    let mut i = 0;
    while i < WORDS {
        let mut fold = 0;
        while fold < FOLDS.len() {
            counts[i + FOLDS[fold].0].0 += 1;
            counts[i + FOLDS[fold].0 + 1].1 += 1;
            fold += 1;
        }
        i += 1;
    }
    counts
};

/// A number of at most M p, in reduced words: a valid factor.
#[derive(Clone, Copy)]
pub(super) struct Element<W, const M: u64>(Words<W>);

/// A sum in `0..=M p`. Its words are not reduced: they are signed, with an absolute value below 2^62.
#[derive(Clone, Copy)]
pub(super) struct Sum<W, const M: u64>(Words<W>);

impl<W: BackendWords> Element<W, 1> {
    pub(super) fn zero() -> Self {
        Self(splat(&[0; WORDS]))
    }

    /// 1 in Montgomery form.
    pub(super) fn one() -> Self {
        Self(splat(&ONE))
    }
}

impl<W: BackendWords, const M: u64> Element<W, M> {
    /// An element from reduced words of numbers of at most M p.
    #[inline(always)]
    pub(super) fn from_words(words: Words<W>) -> Self {
        Self(words)
    }

    #[inline(always)]
    pub(super) fn words(&self) -> &Words<W> {
        &self.0
    }

    /// The Montgomery form of a number.
    #[inline(always)]
    pub(super) fn in_montgomery_form(&self) -> Element<W, 2> {
        const { assert!(M <= 16) };
        self.mul::<1, 2>(&Element(splat(&R2))).carry()
    }

    #[inline(always)]
    pub(super) fn as_sum(&self) -> Sum<W, M> {
        Sum(self.0)
    }

    /// The same number with a larger bound.
    #[inline(always)]
    pub(super) fn widen<const OUT: u64>(&self) -> Element<W, OUT> {
        const { assert!(M <= OUT) };
        Element(self.0)
    }

    #[inline(always)]
    pub(super) fn mul<const N: u64, const OUT: u64>(&self, other: &Element<W, N>) -> Sum<W, OUT> {
        const { assert!(M * N <= 16 * (OUT - 1)) };
        Sum(W::run_kernel(&Product, [&self.0, &other.0]))
    }

    #[inline(always)]
    pub(super) fn square<const OUT: u64>(&self) -> Sum<W, OUT> {
        const { assert!(M * M <= 16 * (OUT - 1)) };
        Sum(W::run_kernel(&Square, [&self.0]))
    }

    /// `self other + a b`, reduced together.
    #[inline(always)]
    pub(super) fn mul_add<const N: u64, const A: u64, const B: u64, const OUT: u64>(
        &self,
        other: &Element<W, N>,
        a: &Element<W, A>,
        b: &Element<W, B>,
    ) -> Sum<W, OUT> {
        const { assert!(M * N + A * B <= 16 * (OUT - 1)) };
        Sum(W::run_kernel(&SumOfProducts, [&self.0, &other.0, &a.0, &b.0]))
    }

    /// `self other - 8 a^2`, reduced together.
    #[inline(always)]
    pub(super) fn mul_less_eight_squares<const N: u64, const OUT: u64>(
        &self,
        other: &Element<W, N>,
        a: &Element<W, 2>,
    ) -> Sum<W, OUT> {
        // `8 a^2 <= 32 p^2 < 2 p R`: adding `2 p R` before the reduction makes the sum positive, and the result larger
        // by 2 p.
        const { assert!(M * N <= 16 * (OUT - 3)) };
        Sum(W::run_kernel(&ProductLessSquares, [&self.0, &other.0, &a.0]))
    }

    #[inline(always)]
    pub(super) fn select(&self, other: &Self, mask: W) -> Self {
        Self(select(&self.0, &other.0, mask))
    }
}

impl<W: BackendWords, const M: u64> Sum<W, M> {
    #[inline(always)]
    pub(super) fn plus<const N: u64, const OUT: u64>(&self, other: &Sum<W, N>) -> Sum<W, OUT> {
        const { assert!(M + N <= OUT) };
        Sum(zip(&self.0, &other.0, WordVector::add))
    }

    #[inline(always)]
    pub(super) fn minus<const N: u64, const OUT: u64>(&self, other: &Sum<W, N>) -> Sum<W, OUT> {
        const { assert!(M + N <= OUT) };
        Sum(zip(&add_multiple_of_p(&self.0, N), &other.0, WordVector::sub))
    }

    #[inline(always)]
    pub(super) fn negative(&self) -> Sum<W, M> {
        let zero = Sum::<W, 0>(splat(&[0; WORDS]));
        zero.minus(self)
    }

    #[inline(always)]
    pub(super) fn twice<const OUT: u64>(&self) -> Sum<W, OUT> {
        self.plus(self)
    }

    #[inline(always)]
    pub(super) fn three_times<const OUT: u64>(&self) -> Sum<W, OUT> {
        const { assert!(3 * M <= OUT) };
        Sum(map(&self.0, |word| {
            WordVector::add(WordVector::add(word, word), word)
        }))
    }

    /// `2^BITS` times the number.
    #[inline(always)]
    pub(super) fn shl<const BITS: u32, const OUT: u64>(&self) -> Sum<W, OUT> {
        const { assert!(M << BITS <= OUT) };
        Sum(map(&self.0, WordVector::shl::<BITS>))
    }

    /// Subtracts `t p`, with `t = floor(sum / 2^256)` estimated from the topmost word alone.
    ///
    /// t does not include carries from the other words. The difference `sum - t 2^256` is therefore within 2^220 of
    /// `0..2^256`. The function then adds `t (2^224 - 2^192 - 2^96 + 1)`, since `2^256 - p` is the number in
    /// parentheses. The result is not negative, since the sum is not negative, and the result is below
    /// `2^256 + (M + 1) 2^224 < 2 p`.
    #[inline(always)]
    pub(super) fn reduce_partially(&self) -> Sum<W, 2> {
        const { assert!(M <= 64) };
        let [a, b, c, d, e] = self.0;
        // Shifted right by 48 bits, with the sign.
        let t = e.shl::<4>().carry();
        Sum([
            a.add(t),
            b.sub(t.shl::<44>()),
            c,
            d.sub(t.shl::<36>()),
            e.and(W::splat((1 << 48) - 1)).add(t.shl::<16>()),
        ])
    }

    /// All ones where the number is 0 modulo p.
    #[inline(always)]
    pub(super) fn is_zero(&self) -> W {
        let number = self.reduce_partially().carry().0;
        equal(&number, &splat(&[0; WORDS])).or(equal(&number, &splat(&P_WORDS)))
    }

    #[inline(always)]
    pub(super) fn carry(&self) -> Element<W, M> {
        const { assert!(M <= 16) };
        Element(carry(&self.0))
    }
}

struct Product;

impl WordKernel<2> for Product {
    #[inline(always)]
    fn run<W: BackendWords>(&self, [a, b]: [&Words<W>; 2]) -> Words<W> {
        let mut columns = columns(&sum_counts(&PRODUCT, &REDUCTION));
        add_product(&mut columns, a, b);
        reduce(columns)
    }
}

struct Square;

impl WordKernel<1> for Square {
    #[inline(always)]
    fn run<W: BackendWords>(&self, [a]: [&Words<W>; 1]) -> Words<W> {
        reduce(square(a, &REDUCTION))
    }
}

/// a b + c d
struct SumOfProducts;

impl WordKernel<4> for SumOfProducts {
    #[inline(always)]
    fn run<W: BackendWords>(&self, [a, b, c, d]: [&Words<W>; 4]) -> Words<W> {
        let mut columns = columns(&sum_counts(&sum_counts(&PRODUCT, &PRODUCT), &REDUCTION));
        add_product(&mut columns, a, b);
        add_product(&mut columns, c, d);
        reduce(columns)
    }
}

/// a b - 8 c^2 + 2 p R
struct ProductLessSquares;

impl WordKernel<3> for ProductLessSquares {
    #[inline(always)]
    fn run<W: BackendWords>(&self, [a, b, c]: [&Words<W>; 3]) -> Words<W> {
        let squares = square(c, &[(0, 0); COLUMNS]);
        let mut columns: Columns<W> = columns(&sum_counts(&PRODUCT, &REDUCTION));
        for (column, square) in columns.iter_mut().zip(squares) {
            *column = column.sub(square.shl::<3>());
        }
        let [.., v, w, x, y, z] = columns;
        columns[WORDS..].copy_from_slice(&add_multiple_of_p(&[v, w, x, y, z], 2));
        add_product(&mut columns, a, b);
        reduce(columns)
    }
}

/// Adds `times p`. Written with some negative words, p has only four nonzero words.
#[inline(always)]
fn add_multiple_of_p<W: WordVector>(words: &Words<W>, times: u64) -> Words<W> {
    let [a, b, c, d, e] = *words;
    [
        a.sub(W::splat(times)),
        b.add(W::splat(times << 44)),
        c,
        d.add(W::splat(times << 36)),
        e.add(W::splat(times * ((1 << 48) - (1 << 16)))),
    ]
}

/// Montgomery reduction of columns prepared for [`REDUCTION`].
#[inline(always)]
fn reduce<W: BackendWords>(mut columns: Columns<W>) -> Words<W> {
    if W::INLINE {
        reduce_column(&mut columns, 0);
        reduce_column(&mut columns, 1);
        reduce_column(&mut columns, 2);
        reduce_column(&mut columns, 3);
        reduce_column(&mut columns, 4);
    } else {
        for column in 0..WORDS {
            reduce_column(&mut columns, column);
        }
    }
    let [.., a, b, c, d, e] = columns;
    [a, b, c, d, e]
}

/// Adds the multiple of p that makes a column 0 modulo 2^52, and propagates the carry.
#[inline(always)]
fn reduce_column<W: WordVector>(columns: &mut Columns<W>, column: usize) {
    let quotient = columns[column].low_factor();
    columns[column + 1] = columns[column + 1].add(columns[column].carry());
    let [a, b, c] = FOLDS;
    add_at(columns, column + a.0, quotient, W::splat(a.1).factor());
    add_at(columns, column + b.0, quotient, W::splat(b.1).factor());
    add_at(columns, column + c.0, quotient, W::splat(c.1).factor());
}

#[cfg(test)]
#[path = "field_tests.rs"]
mod tests;
