//! The public key, and its operations on single numbers.

use zeroize::Zeroizing;

use super::{Element, KeyError, RsaError, Size};
use crate::simd::group::PreparedModulus;
use crate::simd::row::Row;
use crate::stack::run_and_wipe_stack;
use crate::{Modulus, limbs};

/// Maximum limbs of a *wide* number (see the documentation of the parent module).
pub(super) const WIDE_LIMBS_MAX: usize = 50;
/// Maximum limbs of a number modulo n.
pub(super) const LIMBS_MAX: usize = 48;

/// Bound of the stack usage of a product (`tests/residue.rs` measures the usage).
const STACK_BYTES: usize = 8 << 10;

/// A modulus n of 2,048 or 3,072 bits for e = 65537, prepared for single numbers and for eight at a time.
#[derive(Clone, PartialEq, Eq)]
pub struct RsaPublic {
    size: Size,
    modulus: Modulus,
    /// n, big-endian.
    bytes: Box<[u8]>,
    prepared: Box<PreparedModulus>,
    /// The Montgomery radix of batches of eight, modulo n.
    radix: Box<[u64]>,
}

impl std::fmt::Debug for RsaPublic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RsaPublic({:?})", self.size)
    }
}

impl RsaPublic {
    /// A key with a modulus of exactly 256 or 384 bytes.
    ///
    /// # Errors
    /// Another length, an even number, or a number whose topmost bit is clear.
    pub fn new(modulus: &[u8]) -> Result<Self, KeyError> {
        let size = Size::from_bytes(modulus.len()).ok_or(KeyError::Length)?;
        let mut n = [0; LIMBS_MAX];
        let n = n.get_mut(..size.limbs()).ok_or(KeyError::Length)?;
        limbs::from_be(n, modulus);
        let n_modulus = Modulus::new(n)?;
        Ok(Self {
            size,
            prepared: PreparedModulus::new(&n_modulus, size.blocks(), 2),
            radix: n_modulus.power_of_two(size.radix_bits()),
            modulus: n_modulus,
            bytes: modulus.into(),
        })
    }

    /// Size of the modulus.
    #[must_use]
    pub fn size(&self) -> Size {
        self.size
    }

    /// n, big-endian.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// n for single numbers.
    pub(super) fn modulus(&self) -> &Modulus {
        &self.modulus
    }

    /// n for eight at a time, prepared for the conversion of numbers to Montgomery form.
    pub(super) fn prepared(&self) -> &PreparedModulus {
        &self.prepared
    }

    /// `out = signature^65537 mod n`.
    ///
    /// # Errors
    /// A signature or output whose length differs from n's; a signature that is not below n.
    pub fn power(&self, out: &mut [u8], signature: &[u8]) -> Result<(), RsaError> {
        if out.len() != self.size.bytes() {
            return Err(RsaError::Length);
        }
        let mut power = self.number(signature)?;
        self.power_limbs(&mut power);
        limbs::to_be(out, self.limbs_of_size(&power));
        Ok(())
    }

    /// `out = first times all factors mod n`, for a first factor below n. The stack is wiped: a signature's factors are secret.
    ///
    /// # Errors
    /// Numbers whose length differs from n's; a first factor that is not below n; factors of another size.
    pub fn product(&self, out: &mut [u8], first: &[u8], factors: &[Element<'_>]) -> Result<(), RsaError> {
        if out.len() != self.size.bytes() {
            return Err(RsaError::Length);
        }
        if !factors.iter().all(|factor| factor.is_of_size(self.size)) {
            return Err(RsaError::MixedSizes);
        }
        run_and_wipe_stack::<STACK_BYTES, _>(|| {
            let mut product = self.number(first)?;
            self.multiply_all(&mut product, factors);
            limbs::to_be(out, self.limbs_of_size(&product));
            Ok(())
        })
    }

    /// Writes a factor in Montgomery form to `out`: `factor R mod n` with R = 2^2048 or 2^3072 according to n's size, least significant
    /// byte first, as long as n.
    ///
    /// # Errors
    /// An output whose length differs from n's; a factor of another size.
    pub fn montgomery_form(&self, out: &mut [u8], factor: Element<'_>) -> Result<(), RsaError> {
        if out.len() != self.size.bytes() {
            return Err(RsaError::Length);
        }
        if !factor.is_of_size(self.size) {
            return Err(RsaError::MixedSizes);
        }
        run_and_wipe_stack::<STACK_BYTES, _>(|| {
            let n = &self.modulus;
            let (mut number, mut form) = (Zeroizing::new([0; LIMBS_MAX]), Zeroizing::new([0; LIMBS_MAX]));
            if let Some(one) = number.first_mut() {
                *one = 1;
            }
            self.multiply_all(&mut number, &[factor]);
            if let Some(form) = form.get_mut(..n.len()) {
                n.to_montgomery(form, self.limbs_of_size(&number));
                for (bytes, limb) in out.chunks_exact_mut(8).zip(form) {
                    bytes.copy_from_slice(&limb.to_le_bytes());
                }
            }
        });
        Ok(())
    }

    /// Whether the signature is below n and `signature^65537 = hash times all factors mod n`, for a wide hash.
    ///
    /// # Errors
    /// A hash of more than [`Size::wide_bytes`] bytes; factors of another size.
    pub fn check(&self, signature: &[u8], hash: &[u8], factors: &[Element<'_>]) -> Result<bool, RsaError> {
        if hash.len() > self.size.wide_bytes() {
            return Err(RsaError::Length);
        }
        if !factors.iter().all(|factor| factor.is_of_size(self.size)) {
            return Err(RsaError::MixedSizes);
        }
        let Ok(mut power) = self.number(signature) else {
            return Ok(false);
        };
        self.power_limbs(&mut power);
        let mut product = self.reduce(hash);
        self.multiply_all(&mut product, factors);
        Ok(power == product)
    }

    /// The limbs of a number below n.
    pub(super) fn number(&self, bytes: &[u8]) -> Result<[u64; LIMBS_MAX], RsaError> {
        if bytes.len() != self.size.bytes() {
            return Err(RsaError::Length);
        }
        if !self.is_above(bytes) {
            return Err(RsaError::OutOfRange);
        }
        let mut number = [0; LIMBS_MAX];
        limbs::from_be(&mut number, bytes);
        Ok(number)
    }

    /// Whether n is above a number of n's length; not in constant time.
    pub(super) fn is_above(&self, bytes: &[u8]) -> bool {
        *bytes < *self.bytes
    }

    /// The limbs of a wide number modulo n.
    pub(super) fn reduce(&self, wide: &[u8]) -> [u64; LIMBS_MAX] {
        let form = self.to_montgomery(wide);
        let mut out = [0; LIMBS_MAX];
        if let Some(out) = out.get_mut(..self.modulus.len()) {
            self.modulus.from_montgomery(out, self.limbs_of_size(&form));
        }
        out
    }

    /// The Montgomery form of a wide number.
    fn to_montgomery(&self, wide: &[u8]) -> [u64; LIMBS_MAX] {
        let mut number = [0; WIDE_LIMBS_MAX];
        limbs::from_be(&mut number, wide);
        let (low, high) = number.split_at(self.modulus.len());
        let mut form = [0; LIMBS_MAX];
        if let Some(form) = form.get_mut(..self.modulus.len()) {
            let high = high.get(..self.modulus.len().min(high.len())).unwrap_or_default();
            self.modulus.reduce_wide(form, low, high);
        }
        form
    }

    /// `number = number^65537 mod n`.
    pub(super) fn power_limbs(&self, number: &mut [u64; LIMBS_MAX]) {
        let n = &self.modulus;
        let (mut power, mut square) = ([0; LIMBS_MAX], [0; LIMBS_MAX]);
        let (Some(power), Some(square), Some(number)) = (
            power.get_mut(..n.len()),
            square.get_mut(..n.len()),
            number.get_mut(..n.len()),
        ) else {
            return;
        };
        n.to_montgomery(power, number);
        for _ in 0..8 {
            n.square(square, power);
            n.square(power, square);
        }
        // The code multiplies by the number itself instead of the number's Montgomery form, so that the result is not
        // in Montgomery form.
        square.copy_from_slice(number);
        n.mul(number, power, square);
    }

    /// `product = product times all factors mod n`.
    fn multiply_all(&self, product: &mut [u64; LIMBS_MAX], factors: &[Element<'_>]) {
        let n = &self.modulus;
        // A factor is stored multiplied by the radix of batches of eight, but each multiplication divides by the
        // smaller radix of single numbers. After each chunk of factors, one multiplication corrects the difference.
        let excess_bits = self.size.radix_bits() - 64 * n.len();
        let (mut next, mut factor) = ([0; LIMBS_MAX], [0; LIMBS_MAX]);
        let (Some(product), Some(next), Some(factor)) = (
            product.get_mut(..n.len()),
            next.get_mut(..n.len()),
            factor.get_mut(..n.len()),
        ) else {
            return;
        };
        let chunk_len = 64 * n.len() / excess_bits;
        for factors in factors.chunks(chunk_len) {
            for element in factors {
                Row::limbs(factor, element.rows());
                n.mul(next, product, factor);
                product.copy_from_slice(next);
            }
            // The correction for the factors of this chunk is `2^-(excess_bits * factors.len())`. Its Montgomery form
            // is a power of two below n.
            factor.fill(0);
            let bit = 64 * n.len() - excess_bits * factors.len();
            if let Some(limb) = factor.get_mut(bit / 64) {
                *limb = 1 << (bit % 64);
            }
            n.mul(next, product, factor);
            product.copy_from_slice(next);
        }
    }

    /// Converts a wide number to the form in which a [`Table`](super::Table) stores it.
    pub(super) fn table_form(&self, rows: &mut [Row], wide: &[u8]) {
        self.rows_of_form(rows, &self.to_montgomery(wide));
    }

    /// Converts one number from the Montgomery form with the radix of single numbers to the form with the radix of
    /// batches of eight, as rows.
    pub(super) fn rows_of_form(&self, rows: &mut [Row], form: &[u64; LIMBS_MAX]) {
        let mut out = Zeroizing::new([0; LIMBS_MAX]);
        if let Some(out) = out.get_mut(..self.modulus.len()) {
            self.modulus.mul(out, self.limbs_of_size(form), &self.radix);
            Row::fill(rows, out);
        }
    }

    /// The lowest limbs of a number: as many limbs as n has.
    fn limbs_of_size<'a>(&self, number: &'a [u64; LIMBS_MAX]) -> &'a [u64] {
        number.get(..self.modulus.len()).unwrap_or_default()
    }
}
