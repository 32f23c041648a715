//! Eight numbers side by side: words of 52 bits, one of each number in a vector.
//!
//! A number is a row of [`Word8`]s, least significant first: word i of lane k is word i of the k-th number. A *reduced* word is below
//! 2^52; what sums of products make is more, until [`Word8::low`] and [`Word8::carry`] take it apart again. All is in constant time.

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
mod starts;
mod sweep;
#[cfg(test)]
mod tests;

pub use backend::Backend;
pub(crate) use backend::{Kind, Task};
#[cfg(target_arch = "x86_64")]
pub(crate) use fma::{Fma, Half};
#[cfg(target_arch = "x86_64")]
pub(crate) use ifma::Ifma;
pub(crate) use kernel::Kernels;
pub(crate) use portable::Portable;
pub(crate) use register::Register;

/// Bits of a reduced word.
pub(crate) const WORD_BITS: u32 = 52;
/// Numbers side by side.
pub(crate) const LANES: usize = 8;

/// A word of each of eight numbers.
///
/// Sums are modulo 2^64, read as signed: a backend may add to an accumulator, for one product, a high half that is one too many, and a low
/// half that is negative instead. Whoever wants the value takes [`Word8::low`] and [`Word8::carry`].
pub(crate) trait Word8: Copy {
    /// A reduced word in the form in which it is multiplied.
    type Factor: Copy;
    /// What kernels for long numbers work on.
    type Register: Kernels;

    /// The same in all lanes.
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
    /// `self 2^bits mod 2^64` for a count that is known late, of at most 64.
    fn shl_by(self, bits: u32) -> Self;
    /// `floor(self / 2^bits)`, likewise.
    fn shr_by(self, bits: u32) -> Self;
    /// All ones where the words are equal, zeros elsewhere.
    fn equal(self, other: Self) -> Self;
    /// What is of `self` where `mask` has ones, of `other` elsewhere.
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

    /// Of a reduced word.
    fn factor(self) -> Self::Factor;
    /// Of `self mod 2^52`: cheaper where a factor's upper bits are not looked at.
    #[inline(always)]
    fn low_factor(self) -> Self::Factor {
        self.low().factor()
    }
    /// The reduced word that is multiplied in this form.
    fn word(factor: Self::Factor) -> Self;
    /// The bits of a factor, and those of another where the mask has ones.
    fn merge(a: Self::Factor, b: Self::Factor, mask: Self) -> Self::Factor;
    /// What a sum begins with for each low half that [`Word8::madd`] will add to it.
    const START_LOW: u64;
    /// For each high half.
    const START_HIGH: u64;
    /// Where a sum begins to which [`Word8::madd`] will add so many low and so many high halves; it counts for nothing else.
    #[inline(always)]
    fn accumulator(lows: u64, highs: u64) -> Self {
        let lows = lows.wrapping_mul(Self::START_LOW);
        Self::splat(lows.wrapping_add(highs.wrapping_mul(Self::START_HIGH)))
    }
    /// Adds to `low` the product's low 52 bits, and to `high` what is above them.
    fn madd(low: &mut Self, high: &mut Self, a: Self::Factor, b: Self::Factor);
    /// The product's low 52 bits, reduced.
    fn mul_low(a: Self::Factor, b: Self::Factor) -> Self;

    /// Eight words of each number, a number a row, to those eight words.
    fn columns(rows: [&[u64; LANES]; LANES]) -> [Self; LANES];
    /// The other way round.
    fn rows(columns: [Self; LANES]) -> [[u64; LANES]; LANES];
}
