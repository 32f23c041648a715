//! Eight numbers side by side: words of 52 bits, one of each number in a vector.
//!
//! Eight numbers are an array of [`WordVector`]s, least significant first: lane k of vector i is word i of number k. A
//! *reduced* word is below 2^52; sums of products are larger until [`WordVector::low`] and [`WordVector::carry`] split
//! them. All operations run in constant time.

mod accumulator;
mod backend;
#[cfg(target_arch = "x86_64")]
mod fma;
pub(crate) mod group;
#[cfg(target_arch = "x86_64")]
mod ifma;
pub(crate) mod kernel;
mod portable;
mod register;
pub(crate) mod row;
mod sweep;
#[cfg(test)]
mod tests;

pub use backend::Backend;
pub(crate) use backend::{BackendTask, Kind};
#[cfg(target_arch = "x86_64")]
pub(crate) use fma::{Fma, Half};
#[cfg(target_arch = "x86_64")]
pub(crate) use ifma::Ifma;
pub(crate) use kernel::Kernels;
pub(crate) use portable::Portable;
pub(crate) use register::Register;

/// Bits of a reduced word.
pub(crate) const WORD_BITS: u32 = 52;
/// Numbers processed side by side.
pub(crate) const LANES: usize = 8;

/// A word of each of eight numbers.
///
/// Sums are signed, modulo 2^64: a backend may split a product into a high half that is one too high and a negative low
/// half. To read the value of a sum, use [`WordVector::low`] and [`WordVector::carry`].
pub(crate) trait WordVector: Copy {
    /// A reduced word in the form for multiplication.
    type Factor: Copy;
    /// The register type that kernels for long numbers use.
    type Register: Kernels;

    /// The same word in all lanes.
    fn splat(word: u64) -> Self;
    fn load(words: [u64; LANES]) -> Self;
    fn store(self) -> [u64; LANES];

    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    /// `self 2^BITS mod 2^64`.
    fn shl<const BITS: u32>(self) -> Self;
    /// `floor(self / 2^BITS)`, unsigned.
    fn shr<const BITS: u32>(self) -> Self;
    /// `self 2^bits mod 2^64` for a variable count of at most 64.
    fn shl_by(self, bits: u32) -> Self;
    /// `floor(self / 2^bits)`, for a variable count.
    fn shr_by(self, bits: u32) -> Self;
    /// All ones where the words are equal, zeros elsewhere.
    fn equal(self, other: Self) -> Self;
    /// The bits of `self` where `mask` has ones, of `other` elsewhere.
    #[inline(always)]
    fn select(self, other: Self, mask: Self) -> Self {
        other.xor(mask.and(self.xor(other)))
    }

    /// `self mod 2^52`.
    #[inline(always)]
    fn low(self) -> Self {
        self.and(Self::splat((1 << WORD_BITS) - 1))
    }
    /// `floor(self / 2^52)`, signed.
    fn carry(self) -> Self;

    /// Converts a reduced word to a factor.
    fn factor(self) -> Self::Factor;
    /// Converts `self mod 2^52` to a factor. Backends that multiply only the low 52 bits of a factor need not clear the
    /// upper bits.
    #[inline(always)]
    fn low_factor(self) -> Self::Factor {
        self.low().factor()
    }
    /// The reduced word of a factor.
    fn word(factor: Self::Factor) -> Self;
    /// `a | (b & mask)`, bit by bit.
    fn merge(a: Self::Factor, b: Self::Factor, mask: Self) -> Self::Factor;
    /// Part of a sum's initial value, once for each low half that [`WordVector::madd`] will add.
    const START_LOW: u64;
    /// Part of a sum's initial value, once for each high half that [`WordVector::madd`] will add.
    const START_HIGH: u64;
    /// Initial value of a sum to which [`WordVector::madd`] will add `lows` low and `highs` high halves.
    #[inline(always)]
    fn accumulator(lows: u64, highs: u64) -> Self {
        let lows = lows.wrapping_mul(Self::START_LOW);
        Self::splat(lows.wrapping_add(highs.wrapping_mul(Self::START_HIGH)))
    }
    /// Adds to `low` the product's low 52 bits, and to `high` the bits above.
    fn madd(low: &mut Self, high: &mut Self, a: Self::Factor, b: Self::Factor);
    /// The product's low 52 bits, reduced.
    fn mul_low(a: Self::Factor, b: Self::Factor) -> Self;

    /// Transposes eight words of each number: each row has the words of one number, and each result has one word of all
    /// numbers.
    fn columns(rows: [&[u64; LANES]; LANES]) -> [Self; LANES];
    /// The inverse of `columns`.
    fn rows(columns: [Self; LANES]) -> [[u64; LANES]; LANES];
}
