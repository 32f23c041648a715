//! An odd modulus of 512 to 4,096 bits, and Montgomery multiplication by it, one number at a time.
//!
//! The multiplication is Montgomery's (*Modular multiplication without trial division*, 1985): with special
//! instructions if the CPU has them, otherwise in the variant that Koç, Acar and Kaliski (1996) call CIOS. With
//! `R = 2^(64 L)` for L limbs, the Montgomery form of x is `x R mod n`. No branch and no address depends on a number's
//! value.

use std::fmt;

use zeroize::Zeroize as _;

#[cfg(target_arch = "x86_64")]
use super::adx::Adx;

/// Size of the largest modulus, in limbs of 64 bits.
pub const LIMBS_MAX: usize = 64;
/// Size of the smallest modulus, in limbs of 64 bits.
pub const LIMBS_MIN: usize = 8;

/// Why a number is not a valid modulus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ModulusError {
    /// Montgomery's method requires an inverse of the modulus modulo 2^64.
    #[error("invalid modulus: the number is even")]
    Even,
    /// The number does not have 8 to 64 whole limbs with the topmost bit set.
    #[error("invalid modulus: expected 512 to 4,096 bits, a multiple of 64, with the topmost bit set")]
    InvalidSize,
}

/// An odd modulus n whose topmost bit is set, with precomputed constants for multiplication.
#[derive(Clone, PartialEq, Eq)]
pub struct Modulus {
    #[cfg(target_arch = "x86_64")]
    adx: Option<Adx>,
    limbs: Box<[u64]>,
    /// `-n^-1 mod 2^64`.
    n0: u64,
    /// `R mod n`.
    one: Box<[u64]>,
    /// `R^2 mod n`.
    r2: Box<[u64]>,
    /// `R^3 mod n`.
    r3: Box<[u64]>,
}

impl fmt::Debug for Modulus {
    /// Prints only the size: a prime factor is secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Modulus({} bits)", 64 * self.limbs.len())
    }
}

impl Drop for Modulus {
    fn drop(&mut self) {
        for secret in [&mut self.limbs, &mut self.one, &mut self.r2, &mut self.r3] {
            secret.zeroize();
        }
        self.n0.zeroize();
    }
}

impl Modulus {
    /// Prepares a modulus from its limbs, least significant first.
    ///
    /// # Errors
    /// An even number, or a number that does not have 8 to 64 limbs with the topmost bit set.
    pub fn new(limbs: &[u64]) -> Result<Self, ModulusError> {
        let (Some(first), Some(last)) = (limbs.first(), limbs.last()) else {
            return Err(ModulusError::InvalidSize);
        };
        if !(LIMBS_MIN..=LIMBS_MAX).contains(&limbs.len()) || last >> 63 == 0 {
            return Err(ModulusError::InvalidSize);
        }
        if first & 1 == 0 {
            return Err(ModulusError::Even);
        }
        // Newton: each step doubles the number of correct bits; n is its own inverse modulo 8.
        let mut inverse = *first;
        for _ in 0..5 {
            inverse = inverse.wrapping_mul(2u64.wrapping_sub(first.wrapping_mul(inverse)));
        }
        let n0 = inverse.wrapping_neg();
        let mut modulus = Self {
            #[cfg(target_arch = "x86_64")]
            adx: Adx::new(limbs, n0),
            limbs: limbs.into(),
            n0,
            one: vec![0; limbs.len()].into(),
            r2: vec![0; limbs.len()].into(),
            r3: vec![0; limbs.len()].into(),
        };
        modulus.set_powers_of_r();
        Ok(modulus)
    }

    /// Computes `one`, `r2` and `r3`. `R mod n` is `2^(64 L) - n`, since the topmost bit of n is set.
    fn set_powers_of_r(&mut self) {
        let mut carry = true;
        for (one, limb) in self.one.iter_mut().zip(&self.limbs) {
            (*one, carry) = (!limb).overflowing_add(u64::from(carry));
        }
        self.r2 = self.power_of_two(128 * self.limbs.len());
        let mut cube = self.r2.clone();
        self.square(&mut cube, &self.r2);
        self.r3 = cube;
    }

    /// `2^exponent mod n`, not in Montgomery form, for an exponent of at least `64 L`. The running time depends on the exponent.
    pub(crate) fn power_of_two(&self, exponent: usize) -> Box<[u64]> {
        // 2^exponent is the Montgomery form of 2^(exponent - 64 L). The topmost five bits of the remaining exponent are
        // processed by doublings, which are faster, the lower bits by squarings.
        let exponent = exponent.saturating_sub(64 * self.limbs.len());
        let squarings = (usize::BITS - exponent.leading_zeros()).saturating_sub(5);
        let mut power = self.one.clone();
        for _ in 0..exponent >> squarings {
            self.double(&mut power);
        }
        let mut square = self.one.clone();
        for bit in (0..squarings).rev() {
            self.square(&mut square, &power);
            std::mem::swap(&mut power, &mut square);
            if exponent >> bit & 1 == 1 {
                self.double(&mut power);
            }
        }
        square.zeroize();
        power
    }

    /// Number of 64-bit limbs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.limbs.len()
    }

    /// Always false; completes [`Modulus::len`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The modulus, least significant limb first.
    #[must_use]
    pub fn limbs(&self) -> &[u64] {
        &self.limbs
    }

    /// `-n^-1 mod 2^64`.
    #[must_use]
    pub fn n0(&self) -> u64 {
        self.n0
    }

    /// 1 in Montgomery form, `R mod n`.
    #[must_use]
    pub fn one(&self) -> &[u64] {
        &self.one
    }

    /// Whether the modulus is greater than a number with as many limbs as the modulus. Runs in constant time.
    #[must_use]
    pub fn is_above(&self, number: &[u64]) -> bool {
        debug_assert_eq!(number.len(), self.len());
        let mut borrow = false;
        for (limb, n_limb) in number.iter().zip(&self.limbs) {
            borrow = limb.borrowing_sub(*n_limb, borrow).1;
        }
        borrow
    }

    /// `out = a b / R mod n`, all with [`Modulus::len`] limbs; a must be below n, b may exceed n, and out is below n.
    pub fn mul(&self, out: &mut [u64], a: &[u64], b: &[u64]) {
        debug_assert!([out.len(), a.len(), b.len()] == [self.len(); 3]);
        #[cfg(target_arch = "x86_64")]
        if let Some(adx) = &self.adx {
            return adx.multiply(out, a, b);
        }
        self.multiply(out, a, b);
    }

    /// `out = a^2 / R mod n`, like [`Modulus::mul`] but faster; a must be below n.
    pub fn square(&self, out: &mut [u64], a: &[u64]) {
        debug_assert!([out.len(), a.len()] == [self.len(); 2]);
        #[cfg(target_arch = "x86_64")]
        if let Some(adx) = &self.adx {
            return adx.square(out, a);
        }
        self.multiply(out, a, a);
    }

    /// [`Modulus::mul`] on any CPU.
    fn multiply(&self, out: &mut [u64], a: &[u64], b: &[u64]) {
        let length = self.limbs.len();
        let mut sum = [0u64; LIMBS_MAX + 2];
        let Some(sum) = sum.get_mut(..length + 2) else {
            return;
        };
        for digit in b {
            accumulate(sum, a, *digit);
            let quotient = sum.first().map_or(0, |first| first.wrapping_mul(self.n0));
            accumulate(sum, &self.limbs, quotient);
            sum.copy_within(1.., 0);
            if let Some(top) = sum.last_mut() {
                *top = 0;
            }
        }
        let top = sum.get(length).copied().unwrap_or_default();
        subtract(out, sum, &self.limbs, top);
    }

    /// `number = 2 number mod n`.
    fn double(&self, number: &mut [u64]) {
        let mut sum = [0u64; LIMBS_MAX];
        let mut carry = 0;
        for (out, limb) in sum.iter_mut().zip(number.iter()) {
            *out = limb << 1 | carry;
            carry = limb >> 63;
        }
        subtract(number, &sum, &self.limbs, carry);
    }

    /// The Montgomery form of a number below n.
    pub fn to_montgomery(&self, out: &mut [u64], number: &[u64]) {
        self.mul(out, &self.r2, number);
    }

    /// The number with this Montgomery form.
    pub fn from_montgomery(&self, out: &mut [u64], form: &[u64]) {
        let mut one = [0u64; LIMBS_MAX];
        one[0] = 1;
        if let Some(one) = one.get(..form.len()) {
            self.mul(out, form, one);
        }
    }

    /// The Montgomery form of `low + high R` modulo n, a number that may be wider than n. `low` has [`Modulus::len`]
    /// limbs, `high` has at most as many.
    pub fn reduce_wide(&self, out: &mut [u64], low: &[u64], high: &[u64]) {
        let length = self.limbs.len();
        debug_assert!(low.len() == length && high.len() <= length);
        let mut upper = [0u64; LIMBS_MAX];
        let mut padded = [0u64; LIMBS_MAX];
        for (padded, limb) in padded.iter_mut().zip(high) {
            *padded = *limb;
        }
        let (Some(upper), Some(padded)) = (upper.get_mut(..length), padded.get(..length)) else {
            return;
        };
        self.mul(upper, &self.r3, padded);
        self.mul(out, &self.r2, low);
        self.add(out, upper);
    }

    /// `number = number - other mod n`, both below n.
    pub(crate) fn sub(&self, number: &mut [u64], other: &[u64]) {
        let mut borrow = false;
        for (limb, other_limb) in number.iter_mut().zip(other) {
            (*limb, borrow) = limb.borrowing_sub(*other_limb, borrow);
        }
        let mask = std::hint::black_box(u64::from(borrow)).wrapping_neg();
        let mut carry = false;
        for (limb, n_limb) in number.iter_mut().zip(&self.limbs) {
            (*limb, carry) = limb.carrying_add(n_limb & mask, carry);
        }
    }

    /// `sum = sum + number mod n`, both below n.
    fn add(&self, sum: &mut [u64], number: &[u64]) {
        let mut wide = [0u64; LIMBS_MAX];
        let mut carry = false;
        for ((wide, a), b) in wide.iter_mut().zip(sum.iter()).zip(number) {
            (*wide, carry) = a.carrying_add(*b, carry);
        }
        subtract(sum, &wide, &self.limbs, u64::from(carry));
    }
}

/// `sum = sum + number digit`; the sum is longer than the number, so that the carry fits.
pub(super) fn accumulate(sum: &mut [u64], number: &[u64], digit: u64) {
    let (low, high) = sum.split_at_mut(number.len());
    let mut carry = 0u64;
    for (limb, number_limb) in low.iter_mut().zip(number) {
        (*limb, carry) = number_limb.carrying_mul_add(digit, *limb, carry);
    }
    for limb in high {
        let (next, overflow) = limb.overflowing_add(carry);
        *limb = next;
        carry = u64::from(overflow);
    }
}

/// `out = number - n`, or `out = number` if the difference is negative. `top` is the part of the number above the limbs
/// of n. Returns the part of the result above the limbs of n. Runs in constant time.
pub(super) fn subtract(out: &mut [u64], number: &[u64], n: &[u64], top: u64) -> u64 {
    let mut borrow = false;
    let number = number.get(..n.len()).unwrap_or_default();
    // Blocks of eight limbs first: the compiler translates each block to one chain of subtractions with borrow.
    let ((outs, out_rest), (limbs, limb_rest), (ns, n_rest)) = (
        out.as_chunks_mut::<8>(),
        number.as_chunks::<8>(),
        n.as_chunks::<8>(),
    );
    for ((out, limbs), ns) in outs.iter_mut().zip(limbs).zip(ns) {
        borrow = subtract_limbs(out, limbs, ns, borrow);
    }
    borrow = subtract_limbs(out_rest, limb_rest, n_rest, borrow);
    let (new_top, negative) = top.overflowing_sub(u64::from(borrow));
    let keep_mask = std::hint::black_box(u64::from(negative)).wrapping_neg();
    for (out, limb) in out.iter_mut().zip(number) {
        *out ^= keep_mask & (*out ^ limb);
    }
    new_top ^ keep_mask & (new_top ^ top)
}

/// `out = number - n - borrow`, limb by limb. Returns the borrow out of the last limb.
#[inline(always)]
fn subtract_limbs(out: &mut [u64], number: &[u64], n: &[u64], mut borrow: bool) -> bool {
    for ((out, limb), n_limb) in out.iter_mut().zip(number).zip(n) {
        (*out, borrow) = limb.borrowing_sub(*n_limb, borrow);
    }
    borrow
}

#[cfg(test)]
mod tests;
