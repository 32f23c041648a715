//! Arithmetic modulo the order of a group, eight numbers side by side.
//!
//! Montgomery multiplication with the radix R = 2^260, for an odd modulus n below 2^256. The product of numbers a and b
//! is `(a b + q n) / R` with a quotient q below R. If `a b <= n R`, the product is below 2 n. The condition holds if a
//! and b are below 2 n.

use super::{
    BackendWords, COLUMNS, Counts, PRODUCT, WORDS, WordKernel, Words, add, add_product, add_row, carry,
    columns, sum_counts,
};
use super::{factors, limbs, splat, square, subtract, words};
use crate::simd::{WORD_BITS, WordVector};

/// An odd modulus n with 2^252 < n < 2^256.
pub(crate) struct Modulus {
    /// n, in limbs of 64 bits.
    pub(crate) limbs: [u64; 4],
    words: [u64; WORDS],
    /// `-n^-1 mod 2^52`.
    n0: u64,
    /// `R mod n`.
    one: [u64; WORDS],
    /// `R^2 mod n`.
    r2: [u64; WORDS],
    /// `R^3 mod n`.
    r3: [u64; WORDS],
}

/// The halves of the product of quotient and modulus, without one low half in each of the five lower columns. These
/// columns determine the quotient, so [`reduce_column`] prepares a column for that half only after computing the
/// quotient.
const REDUCTION: Counts = {
    let mut counts = PRODUCT;
    let mut i = 0;
    while i < WORDS {
        counts[i].0 -= 1;
        i += 1;
    }
    counts
};

struct Product<'a>(&'a Modulus);

impl WordKernel<2> for Product<'_> {
    #[inline(always)]
    fn run<W: BackendWords>(&self, [a, b]: [&Words<W>; 2]) -> Words<W> {
        let mut columns = columns(&sum_counts(&PRODUCT, &REDUCTION));
        add_product(&mut columns, a, b);
        reduce(self.0, columns)
    }
}

struct Square<'a>(&'a Modulus);

impl WordKernel<1> for Square<'_> {
    #[inline(always)]
    fn run<W: BackendWords>(&self, [a]: [&Words<W>; 1]) -> Words<W> {
        reduce(self.0, square(a, &REDUCTION))
    }
}

/// `columns / R mod n`, below 2 n.
#[inline(always)]
fn reduce<W: BackendWords>(modulus: &Modulus, mut columns: [W; COLUMNS]) -> Words<W> {
    if W::INLINE {
        reduce_column(modulus, &mut columns, 0);
        reduce_column(modulus, &mut columns, 1);
        reduce_column(modulus, &mut columns, 2);
        reduce_column(modulus, &mut columns, 3);
        reduce_column(modulus, &mut columns, 4);
    } else {
        for column in 0..WORDS {
            reduce_column(modulus, &mut columns, column);
        }
    }
    let [.., a, b, c, d, e] = columns;
    carry(&[a, b, c, d, e])
}

/// Adds the multiple of n that makes a column 0 modulo 2^52, and propagates the carry.
#[inline(always)]
fn reduce_column<W: WordVector>(modulus: &Modulus, columns: &mut [W; COLUMNS], column: usize) {
    let quotient = W::mul_low(columns[column].low_factor(), W::splat(modulus.n0).factor()).factor();
    columns[column] = columns[column].add(W::accumulator(1, 0));
    add_row(columns, column, quotient, &factors(&splat::<W>(&modulus.words)));
    columns[column + 1] = columns[column + 1].add(columns[column].carry());
}

impl Modulus {
    pub(crate) const fn new(limbs: [u64; 4]) -> Self {
        // Newton: each step doubles the number of correct bits; n is its own inverse modulo 8.
        let mut inverse = limbs[0];
        let mut step = 0;
        while step < 5 {
            inverse = inverse.wrapping_mul(2u64.wrapping_sub(limbs[0].wrapping_mul(inverse)));
            step += 1;
        }
        Self {
            limbs,
            words: words(&limbs),
            n0: inverse.wrapping_neg() & ((1 << WORD_BITS) - 1),
            one: words(&power_of_two(260, &limbs)),
            r2: words(&power_of_two(520, &limbs)),
            r3: words(&power_of_two(780, &limbs)),
        }
    }

    /// `a b / R`, below 2 n.
    #[inline(always)]
    pub(crate) fn mul<W: BackendWords>(&self, a: &Words<W>, b: &Words<W>) -> Words<W> {
        W::run_kernel(&Product(self), [a, b])
    }

    /// `a^2 / R`, below 2 n.
    #[inline(always)]
    pub(crate) fn square<W: BackendWords>(&self, a: &Words<W>) -> Words<W> {
        W::run_kernel(&Square(self), [a])
    }

    /// The Montgomery form of a number below 2^256.
    #[inline(always)]
    pub(crate) fn to_montgomery<W: BackendWords>(&self, number: &Words<W>) -> Words<W> {
        self.mul(number, &splat(&self.r2))
    }

    /// `low + high R mod n`, below 2 n, for two numbers of 260 bits.
    #[inline(always)]
    pub(crate) fn reduce_wide<W: BackendWords>(&self, low: &Words<W>, high: &Words<W>) -> Words<W> {
        let low = self.mul(low, &splat(&self.r2));
        let high = self.mul(high, &splat(&self.r3));
        let one = splat(&[1, 0, 0, 0, 0]);
        self.mul(&carry(&super::zip(&low, &high, WordVector::add)), &one)
    }

    /// Inverts nonzero numbers in Montgomery form with a single exponentiation (Montgomery's trick).
    ///
    /// The exponent, n - 2, is public.
    #[inline(always)]
    pub(crate) fn invert_all<W: BackendWords>(&self, numbers: &mut [Words<W>]) {
        let mut product = splat(&self.one);
        let mut prefixes = Vec::with_capacity(numbers.len());
        for number in numbers.iter() {
            prefixes.push(product);
            product = self.mul(&product, number);
        }
        // The power n - 2 is the inverse by Fermat's little theorem, since n is prime.
        let mut inverse = self.power(&product, &subtract(&self.limbs, &[2, 0, 0, 0]).0);
        for (number, prefix) in numbers.iter_mut().zip(prefixes).rev() {
            let product_inverse = inverse;
            inverse = self.mul(&product_inverse, number);
            *number = self.mul(&product_inverse, &prefix);
        }
    }

    /// Raises a number in Montgomery form to a power, by windows of four bits.
    #[inline(always)]
    fn power<W: BackendWords>(&self, base: &Words<W>, exponent: &[u64; 4]) -> Words<W> {
        let mut powers = [splat(&self.one); 16];
        for i in 1..powers.len() {
            powers[i] = self.mul(&powers[i - 1], base);
        }
        let mut power = powers[super::bits(exponent, 252, 4)];
        for window in (0..63).rev() {
            for _ in 0..4 {
                power = self.square(&power);
            }
            power = self.mul(&power, &powers[super::bits(exponent, 4 * window, 4)]);
        }
        power
    }

    /// Converts a number below 2 n in words to the equal number below n in limbs.
    pub(crate) fn canonical(&self, number: &[u64; WORDS]) -> [u64; 4] {
        // A number below 2 n may have 257 bits, and `limbs` drops the topmost bit. Subtracting n modulo 2^256
        // nevertheless gives the correct result, since the result is below n.
        let limbs = limbs(number);
        match subtract(&limbs, &self.limbs) {
            (_, true) if number[WORDS - 1] >> 48 == 0 => limbs,
            (difference, _) => difference,
        }
    }
}

/// `2^exponent mod n`.
pub(crate) const fn power_of_two(exponent: u32, n: &[u64; 4]) -> [u64; 4] {
    let mut power = [1, 0, 0, 0];
    let mut i = 0;
    while i < exponent {
        let (double, overflow) = add(&power, &power);
        power = match subtract(&double, n) {
            (_, true) if !overflow => double,
            (difference, _) => difference,
        };
        i += 1;
    }
    power
}

#[cfg(test)]
#[path = "montgomery_tests.rs"]
mod tests;
