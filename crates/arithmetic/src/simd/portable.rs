//! Eight words in plain integers: the reference for the vector backends.

use super::{LANES, WORD_BITS, WordVector};

/// Eight words in an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Portable([u64; LANES]);

impl Portable {
    #[inline(always)]
    fn zip(self, other: Self, mut each: impl FnMut(u64, u64) -> u64) -> Self {
        let mut out = self.0;
        for (out, other) in out.iter_mut().zip(other.0) {
            *out = each(*out, other);
        }
        Self(out)
    }
}

const MASK: u64 = (1 << WORD_BITS) - 1;

impl WordVector for Portable {
    type Factor = Self;
    type Register = Self;
    const START_LOW: u64 = 0;
    const START_HIGH: u64 = 0;

    fn splat(word: u64) -> Self {
        Self([word; LANES])
    }
    fn load(words: [u64; LANES]) -> Self {
        Self(words)
    }
    fn store(self) -> [u64; LANES] {
        self.0
    }
    #[inline(never)]
    fn add(self, other: Self) -> Self {
        self.zip(other, u64::wrapping_add)
    }
    #[inline(never)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, u64::wrapping_sub)
    }
    #[inline(never)]
    fn and(self, other: Self) -> Self {
        self.zip(other, |a, b| a & b)
    }
    #[inline(never)]
    fn or(self, other: Self) -> Self {
        self.zip(other, |a, b| a | b)
    }
    #[inline(never)]
    fn xor(self, other: Self) -> Self {
        self.zip(other, |a, b| a ^ b)
    }
    fn shl<const BITS: u32>(self) -> Self {
        Self(self.0.map(|word| word << BITS))
    }
    fn shr<const BITS: u32>(self) -> Self {
        Self(self.0.map(|word| word >> BITS))
    }
    #[inline(never)]
    fn shl_by(self, bits: u32) -> Self {
        Self(self.0.map(|word| word.checked_shl(bits).unwrap_or(0)))
    }
    #[inline(never)]
    fn shr_by(self, bits: u32) -> Self {
        Self(self.0.map(|word| word.checked_shr(bits).unwrap_or(0)))
    }
    #[inline(never)]
    fn equal(self, other: Self) -> Self {
        // Only zero has a clear topmost bit and a negative with a clear topmost bit.
        self.zip(other, |a, b| {
            let difference = a ^ b;
            ((difference | difference.wrapping_neg()) >> 63).wrapping_sub(1)
        })
    }
    #[inline(never)]
    fn carry(self) -> Self {
        Self(
            self.0
                .map(|word| (word.cast_signed() >> WORD_BITS).cast_unsigned()),
        )
    }
    fn factor(self) -> Self {
        debug_assert!(self.0.iter().all(|word| *word <= MASK));
        self
    }
    fn word(factor: Self) -> Self {
        factor
    }
    fn merge(a: Self, b: Self, mask: Self) -> Self {
        a.or(b.and(mask))
    }
    #[inline(never)] // The compiled code is long, and many functions call it.
    fn madd(low: &mut Self, high: &mut Self, a: Self, b: Self) {
        *low = low.zip(a.zip(b, |a, b| a.wrapping_mul(b) & MASK), u64::wrapping_add);
        *high = high.zip(
            a.zip(b, |a, b| ((u128::from(a) * u128::from(b)) >> WORD_BITS) as u64),
            u64::wrapping_add,
        );
    }
    #[inline(never)]
    fn mul_low(a: Self, b: Self) -> Self {
        a.zip(b, |a, b| a.wrapping_mul(b) & MASK)
    }
    #[allow(clippy::indexing_slicing)] // Both indices are below eight.
    fn columns(rows: [&[u64; LANES]; LANES]) -> [Self; LANES] {
        std::array::from_fn(|word| Self(rows.map(|row| row[word])))
    }
    fn rows(columns: [Self; LANES]) -> [[u64; LANES]; LANES] {
        Self::columns(columns.each_ref().map(|column| &column.0)).map(Self::store)
    }
}
