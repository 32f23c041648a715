//! Numbers modulo p = 2^255 - 19, eight side by side, in words of 52 bits.
//!
//! 2^260 is 608 modulo p: the upper five columns of a product, times 608, are added to the lower ones. The bound of a number is a parameter
//! of its type, in units of 2^255, and each operation checks at compile time that its result fits.
//!
//! Words of 51 bits, common in other implementations, would save carries in sums. But every high half of a product
//! would have to be doubled, and the upper columns multiplied by 19 before carries are propagated: 102 operations per
//! multiplication instead of 87.
#![allow(
    clippy::indexing_slicing,
    reason = "arrays of fixed size, and indices that are constants once the loops are unrolled"
)]

use crate::elliptic::{
    BackendCode, BackendWords, COLUMNS, Columns, Counts, PRODUCT, WORDS, WordKernel, Words, add_product,
    add_row, carry, columns, limbs, splat, square, subtract, sum_counts, words, zip,
};
use crate::simd::WordVector;

/// p, in limbs of 64 bits.
pub(super) const P: [u64; 4] = [u64::MAX - 18, u64::MAX, u64::MAX, u64::MAX >> 1];
/// `2^260 mod p`.
const FOLD: u64 = 608;
/// Bits of the topmost word below 2^255.
const TOP_BITS: u32 = 47;
/// How many times p is added to a product. Without that addition, the lower columns may be negative: some backends
/// compute a high half that is one too high. The deficit is at most 5 low halves of 2^51 in the topmost column, and one
/// more half for the upper columns: in total slightly more than 96 * 2^255.
const BIAS: u64 = 100;
/// Upper bound of a product before [`Sum::fold`], in units of 2^255.
///
/// A lower column k (0 to 4) has at most k + 1 low and k high halves below 2^52: all lower columns are in total at most
/// 9.1 * 2^260. The upper columns contribute less than 1.1 * 2^260, and [`BIAS`] p contributes less than 100 * 2^255.
pub(super) const PRODUCT_BOUND: u64 = 430;

/// The numbers of low and high halves that folding the upper columns adds to each column.
const FOLDING: Counts = {
    let mut counts = [(0, 0); COLUMNS];
    let mut i = 0;
    while i < WORDS {
        counts[i].0 += 1;
        if i + 1 < WORDS {
            counts[i + 1].1 += 1;
        }
        i += 1;
    }
    counts[0].0 += 1;
    counts
};

/// A number below 2^256 + 2^220, in reduced words: a valid factor.
#[derive(Clone, Copy)]
pub(super) struct Element<W>(Words<W>);

/// A sum in `0..M 2^255`. Its words are not reduced: they are signed, with an absolute value below 2^59.
#[derive(Clone, Copy)]
pub(super) struct Sum<W, const M: u64>(Words<W>);

impl<W: BackendWords> Element<W> {
    /// The same number in all lanes.
    #[inline(always)]
    pub(super) fn splat(limbs: &[u64; 4]) -> Self {
        Self(splat(&words(limbs)))
    }

    #[inline(always)]
    pub(super) fn from_words(words: Words<W>) -> Self {
        Self(words)
    }

    #[inline(always)]
    pub(super) fn words(&self) -> &Words<W> {
        &self.0
    }

    #[inline(always)]
    pub(super) fn as_sum(&self) -> Sum<W, 3> {
        Sum(self.0)
    }

    #[inline(always)]
    pub(super) fn mul(&self, other: &Self) -> Sum<W, PRODUCT_BOUND> {
        Sum(W::run_kernel(&Product, [&self.0, &other.0]))
    }

    #[inline(always)]
    pub(super) fn square(&self) -> Sum<W, PRODUCT_BOUND> {
        Sum(W::run_kernel(&Square, [&self.0]))
    }

    /// `self^(2^times)`.
    #[inline(always)]
    fn square_repeatedly(&self, times: usize) -> Self {
        W::call(RepeatedSquare(*self, times))
    }

    /// Returns `self^(2^250 - 1)` and `self^11`, intermediate results for the exponents p - 2 and (p - 5) / 8.
    #[inline(always)]
    fn powers(&self) -> (Self, Self) {
        let mul = |a: &Self, b: &Self| a.mul(b).fold();
        let to_9 = mul(&self.square_repeatedly(3), self);
        let to_11 = mul(&to_9, &self.square_repeatedly(1));
        // `ones_i` is `self^(2^i - 1)`.
        let ones_5 = mul(&to_11.square_repeatedly(1), &to_9);
        let ones_10 = mul(&ones_5.square_repeatedly(5), &ones_5);
        let ones_20 = mul(&ones_10.square_repeatedly(10), &ones_10);
        let ones_40 = mul(&ones_20.square_repeatedly(20), &ones_20);
        let ones_50 = mul(&ones_40.square_repeatedly(10), &ones_10);
        let ones_100 = mul(&ones_50.square_repeatedly(50), &ones_50);
        let ones_200 = mul(&ones_100.square_repeatedly(100), &ones_100);
        (mul(&ones_200.square_repeatedly(50), &ones_50), to_11)
    }

    /// `self^(p - 2)`: the inverse, or 0 for 0.
    #[inline(always)]
    pub(super) fn invert(&self) -> Self {
        let (ones_250, to_11) = self.powers();
        ones_250.square_repeatedly(5).mul(&to_11).fold()
    }

    /// `self^((p - 5) / 8)`.
    #[inline(always)]
    pub(super) fn power_for_roots(&self) -> Self {
        self.powers().0.square_repeatedly(2).mul(self).fold()
    }
}

/// Inverts nonzero numbers with a single exponentiation (Montgomery's trick).
#[inline(always)]
pub(super) fn invert_all<W: BackendWords>(numbers: &mut [Element<W>]) {
    let mut product = Element::splat(&[1, 0, 0, 0]);
    let mut prefixes = Vec::with_capacity(numbers.len());
    for number in numbers.iter() {
        prefixes.push(product);
        product = product.mul(number).fold();
    }
    let mut inverse = product.invert();
    for (number, prefix) in numbers.iter_mut().zip(prefixes).rev() {
        let product_inverse = inverse;
        inverse = product_inverse.mul(number).fold();
        *number = product_inverse.mul(&prefix).fold();
    }
}

impl<W: BackendWords, const M: u64> Sum<W, M> {
    #[inline(always)]
    pub(super) fn plus<const N: u64, const OUT: u64>(&self, other: &Sum<W, N>) -> Sum<W, OUT> {
        const { assert!(M + N <= OUT) };
        Sum(zip(&self.0, &other.0, WordVector::add))
    }

    /// The difference plus (N + 1) p, which is more than N 2^255.
    #[inline(always)]
    pub(super) fn minus<const N: u64, const OUT: u64>(&self, other: &Sum<W, N>) -> Sum<W, OUT> {
        const { assert!(M + N < OUT) };
        let [a, b, c, d, e] = zip(&self.0, &other.0, WordVector::sub);
        Sum([
            a.sub(W::splat(19 * (N + 1))),
            b,
            c,
            d,
            e.add(W::splat((N + 1) << TOP_BITS)),
        ])
    }

    #[inline(always)]
    pub(super) fn negative<const OUT: u64>(&self) -> Sum<W, OUT> {
        Sum::<W, 0>(splat(&[0; WORDS])).minus(self)
    }

    #[inline(always)]
    pub(super) fn twice<const OUT: u64>(&self) -> Sum<W, OUT> {
        self.plus(self)
    }

    /// Subtracts `(t - 1) p`, with `t = floor(sum / 2^255)` estimated from the topmost word alone, and propagates carries.
    ///
    /// The estimate t ignores the carry into the topmost word, which can be negative (above -2^9). Subtracting `t p`
    /// could therefore give a negative number. For the same reason t can be -1: the code multiplies 19 by `t + 1`,
    /// which is never negative.
    #[inline(always)]
    pub(super) fn fold(&self) -> Element<W> {
        const { assert!(M < 1 << 11) };
        let [a, b, c, d, e] = self.0;
        let top = W::splat(1 << TOP_BITS);
        let t_plus_1 = e.add(top).shr::<TOP_BITS>();
        let mut a = a.sub(W::splat(2 * 19)).add(W::accumulator(1, 0));
        W::madd(&mut a, &mut W::splat(0), t_plus_1.factor(), W::splat(19).factor());
        let e = e.and(W::splat((1 << TOP_BITS) - 1)).or(top);
        Element(carry(&[a, b, c, d, e]))
    }
}

struct RepeatedSquare<W>(Element<W>, usize);

impl<W: BackendWords> BackendCode for RepeatedSquare<W> {
    type Output = Element<W>;

    #[inline(always)]
    fn run(self) -> Element<W> {
        let Self(mut power, times) = self;
        for _ in 0..times {
            power = power.square().fold();
        }
        power
    }
}

struct Product;

impl WordKernel<2> for Product {
    #[inline(always)]
    fn run<W: BackendWords>(&self, [a, b]: [&Words<W>; 2]) -> Words<W> {
        let mut columns = columns(&sum_counts(&PRODUCT, &FOLDING));
        add_product(&mut columns, a, b);
        reduce(columns)
    }
}

struct Square;

impl WordKernel<1> for Square {
    #[inline(always)]
    fn run<W: BackendWords>(&self, [a]: [&Words<W>; 1]) -> Words<W> {
        reduce(square(a, &FOLDING))
    }
}

/// Adds 608 times the product's upper columns, and [`BIAS`] p, to the lower columns. The columns must be prepared for
/// [`FOLDING`].
#[inline(always)]
fn reduce<W: WordVector>(mut columns: Columns<W>) -> Words<W> {
    let fold = W::splat(FOLD).factor();
    columns[0] = columns[0].sub(W::splat(19 * BIAS));
    columns[WORDS - 1] = columns[WORDS - 1].add(W::splat(BIAS << TOP_BITS));
    for i in WORDS..COLUMNS - 1 {
        columns[i + 1] = columns[i + 1].add(columns[i].carry());
    }
    let [.., f, g, h, i, j] = columns;
    let upper = [
        f.low_factor(),
        g.low_factor(),
        h.low_factor(),
        i.low_factor(),
        j.low_factor(),
    ];
    columns[WORDS] = W::accumulator(0, 1);
    add_row(&mut columns, 0, fold, &upper);
    let [mut a, b, c, d, e, top, ..] = columns;
    W::madd(&mut a, &mut W::splat(0), top.factor(), fold);
    [a, b, c, d, e]
}

/// The canonical value of an element, below p.
pub(super) fn canonical(number: &[u64; WORDS]) -> [u64; 4] {
    let [a, b, c, d, e] = *number;
    let (sum, _) = crate::elliptic::add(
        &limbs(&[a, b, c, d, e & ((1 << TOP_BITS) - 1)]),
        &[19 * (e >> TOP_BITS), 0, 0, 0],
    );
    match subtract(&sum, &P) {
        (_, true) => sum,
        (difference, _) => difference,
    }
}

#[cfg(test)]
#[path = "field_tests.rs"]
mod tests;
