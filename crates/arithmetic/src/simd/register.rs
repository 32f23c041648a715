//! A register with one word of each of several numbers.

use super::{LANES, WordVector};

/// A word of each of [`Register::LANES`] numbers: a [`WordVector`], or half of one where a register holds four words.
///
/// The kernels for long numbers use this trait: with eight lanes in two registers, a kernel would need twice as many
/// registers. Items without documentation have the same meaning as in [`WordVector`].
pub(crate) trait Register: Copy {
    /// Numbers processed side by side: 4 or 8.
    const LANES: usize;
    type Factor: Copy;
    const START_LOW: u64;
    const START_HIGH: u64;
    /// Whether the columns and factors of a tile (see `sweep`) fit in the registers of the CPU.
    const TILES: bool;

    fn splat(word: u64) -> Self;
    /// Transposes eight words of each number. Each row has the words of one number, and there is one row per lane.
    fn columns(rows: &[&[u64; LANES]]) -> [Self; LANES];
    /// The inverse of `columns`: returns one row per lane.
    fn rows(columns: &[Self; LANES]) -> [[u64; LANES]; LANES];

    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn shl_by(self, bits: u32) -> Self;
    fn shr_by(self, bits: u32) -> Self;
    #[inline(always)]
    fn low(self) -> Self {
        self.and(Self::splat((1 << super::WORD_BITS) - 1))
    }
    fn carry(self) -> Self;

    fn factor(self) -> Self::Factor;
    #[inline(always)]
    fn low_factor(self) -> Self::Factor {
        self.low().factor()
    }
    fn word(factor: Self::Factor) -> Self;
    #[inline(always)]
    fn accumulator(lows: u64, highs: u64) -> Self {
        let lows = lows.wrapping_mul(Self::START_LOW);
        Self::splat(lows.wrapping_add(highs.wrapping_mul(Self::START_HIGH)))
    }
    fn madd(low: &mut Self, high: &mut Self, a: Self::Factor, b: Self::Factor);
    /// `a | (b & mask)`, bit by bit.
    fn merge(a: Self::Factor, b: Self::Factor, mask: Self) -> Self::Factor;
    /// Adds the low halves of `block[0] digits[4] + .. + block[4] digits[0]` to `low`, and returns the sum of the high
    /// halves.
    #[inline(always)]
    fn column(low: &mut Self, block: &[Self::Factor; 5], digits: &[Self::Factor; 5]) -> Self {
        let mut high = Self::splat(0);
        for (word, digit) in block.iter().zip(digits.iter().rev()) {
            Self::madd(low, &mut high, *word, *digit);
        }
        high
    }
}

impl<W: WordVector> Register for W {
    const LANES: usize = LANES;
    type Factor = <W as WordVector>::Factor;
    const START_LOW: u64 = W::START_LOW;
    const START_HIGH: u64 = W::START_HIGH;
    const TILES: bool = true;

    #[inline(always)]
    fn splat(word: u64) -> Self {
        W::splat(word)
    }
    #[inline(always)]
    fn columns(rows: &[&[u64; LANES]]) -> [Self; LANES] {
        W::columns(rows.first_chunk().copied().unwrap_or([&[0; LANES]; LANES]))
    }
    #[inline(always)]
    fn rows(columns: &[Self; LANES]) -> [[u64; LANES]; LANES] {
        W::rows(*columns)
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        WordVector::add(self, other)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        WordVector::sub(self, other)
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        WordVector::and(self, other)
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        WordVector::or(self, other)
    }
    #[inline(always)]
    fn shl_by(self, bits: u32) -> Self {
        WordVector::shl_by(self, bits)
    }
    #[inline(always)]
    fn shr_by(self, bits: u32) -> Self {
        WordVector::shr_by(self, bits)
    }
    #[inline(always)]
    fn carry(self) -> Self {
        WordVector::carry(self)
    }
    #[inline(always)]
    fn factor(self) -> Self::Factor {
        WordVector::factor(self)
    }
    #[inline(always)]
    fn low_factor(self) -> Self::Factor {
        WordVector::low_factor(self)
    }
    #[inline(always)]
    fn word(factor: Self::Factor) -> Self {
        W::word(factor)
    }
    #[inline(always)]
    fn madd(low: &mut Self, high: &mut Self, a: Self::Factor, b: Self::Factor) {
        W::madd(low, high, a, b);
    }
    #[inline(always)]
    fn merge(a: Self::Factor, b: Self::Factor, mask: Self) -> Self::Factor {
        W::merge(a, b, mask)
    }
}
