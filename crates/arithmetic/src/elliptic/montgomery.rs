//! Arithmetic modulo the order of a group, eight numbers side by side.
//!
//! Montgomery multiplication with R = 2^260. Numbers are below 2 n for an odd modulus n below 2^256: for a b <= 16 n 2^256 the result
//! `(a b + q n) / R` with q < R is below n + n.

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
    /// `R mod n`, `R^2 mod n` and `R^3 mod n`.
    one: [u64; WORDS],
    r2: [u64; WORDS],
    r3: [u64; WORDS],
}

/// The halves of quotient times modulus, without the low ones in the columns from which the quotient is taken: those are added later.
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

#[inline(always)]
fn reduce<W: BackendWords>(modulus: &Modulus, mut columns: [W; COLUMNS]) -> Words<W> {
    if W::INLINE {
        reduce_once(modulus, &mut columns, 0);
        reduce_once(modulus, &mut columns, 1);
        reduce_once(modulus, &mut columns, 2);
        reduce_once(modulus, &mut columns, 3);
        reduce_once(modulus, &mut columns, 4);
    } else {
        for at in 0..WORDS {
            reduce_once(modulus, &mut columns, at);
        }
    }
    let [.., a, b, c, d, e] = columns;
    carry(&[a, b, c, d, e])
}

/// Adds the multiple of n that makes a column 0 modulo 2^52, and propagates the carry.
#[inline(always)]
fn reduce_once<W: WordVector>(modulus: &Modulus, columns: &mut [W; COLUMNS], at: usize) {
    let quotient = W::mul_low(columns[at].low_factor(), W::splat(modulus.n0).factor()).factor();
    columns[at] = columns[at].add(W::accumulator(1, 0));
    add_row(columns, at, quotient, &factors(&splat::<W>(&modulus.words)));
    columns[at + 1] = columns[at + 1].add(columns[at].carry());
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

    /// `low + high R`, below 2 n, for words of 260 bits.
    #[inline(always)]
    pub(crate) fn reduce_wide<W: BackendWords>(&self, low: &Words<W>, high: &Words<W>) -> Words<W> {
        let low = self.mul(low, &splat(&self.r2));
        let high = self.mul(high, &splat(&self.r3));
        let one = splat(&[1, 0, 0, 0, 0]);
        self.mul(&carry(&super::zip(&low, &high, WordVector::add)), &one)
    }

    /// Inverts Montgomery forms, none of them 0, with Montgomery's trick, which needs a single power.
    ///
    /// Exponents are public.
    #[inline(always)]
    pub(crate) fn invert_all<W: BackendWords>(&self, numbers: &mut [Words<W>]) {
        let mut product = splat(&self.one);
        let mut before = Vec::with_capacity(numbers.len());
        for number in numbers.iter() {
            before.push(product);
            product = self.mul(&product, number);
        }
        // Fermat: n is a prime.
        let mut inverse = self.power(&product, &subtract(&self.limbs, &[2, 0, 0, 0]).0);
        for (number, before) in numbers.iter_mut().zip(before).rev() {
            let product = inverse;
            inverse = self.mul(&product, number);
            *number = self.mul(&product, &before);
        }
    }

    /// A Montgomery form to a power, by windows of four bits.
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

    /// The canonical number in limbs of a number below 2 n in words.
    pub(crate) fn canonical(&self, number: &[u64; WORDS]) -> [u64; 4] {
        // 2 n may have 257 bits, of which the limbs hold 256: the difference is correct nevertheless.
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
