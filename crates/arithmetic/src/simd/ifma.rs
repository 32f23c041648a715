//! Eight words in a 512-bit register, multiplied by AVX-512 IFMA.

use core::arch::x86_64::{
    __m512i, _mm_cvtsi32_si128, _mm512_add_epi64, _mm512_and_si512, _mm512_cmpeq_epi64_mask,
    _mm512_madd52hi_epu64, _mm512_madd52lo_epu64, _mm512_maskz_set1_epi64, _mm512_or_si512,
    _mm512_set1_epi64, _mm512_setzero_si512, _mm512_shuffle_i64x2, _mm512_sll_epi64, _mm512_slli_epi64,
    _mm512_srai_epi64, _mm512_srl_epi64, _mm512_srli_epi64, _mm512_sub_epi64, _mm512_unpackhi_epi64,
    _mm512_unpacklo_epi64, _mm512_xor_si512,
};
use core::mem::transmute;

use super::{LANES, WORD_BITS, WordVector};

/// Eight words. Only code that runs on a CPU with AVX-512F and AVX-512 IFMA uses this type.
///
/// Any word is a valid factor: the multiplier uses only its low 52 bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Ifma(__m512i);

// SAFETY of each block marked "see above": code uses this type only if the CPU has the instructions.
impl WordVector for Ifma {
    type Factor = Self;
    type Register = Self;
    const START_LOW: u64 = 0;
    const START_HIGH: u64 = 0;

    #[inline(always)]
    fn splat(word: u64) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_set1_epi64(word.cast_signed()) })
    }
    #[inline(always)]
    fn load(words: [u64; LANES]) -> Self {
        // SAFETY: both types have 64 bytes, and any bit pattern is valid.
        Self(unsafe { transmute::<[u64; LANES], __m512i>(words) })
    }
    #[inline(always)]
    fn store(self) -> [u64; LANES] {
        // SAFETY: both types have 64 bytes, and any bit pattern is valid.
        unsafe { transmute::<__m512i, [u64; LANES]>(self.0) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_add_epi64(self.0, other.0) })
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_sub_epi64(self.0, other.0) })
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_and_si512(self.0, other.0) })
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_or_si512(self.0, other.0) })
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_xor_si512(self.0, other.0) })
    }
    #[inline(always)]
    fn shl<const BITS: u32>(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_slli_epi64::<BITS>(self.0) })
    }
    #[inline(always)]
    fn shr<const BITS: u32>(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_srli_epi64::<BITS>(self.0) })
    }
    #[inline(always)]
    fn shl_by(self, bits: u32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_sll_epi64(self.0, _mm_cvtsi32_si128(bits.cast_signed())) })
    }
    #[inline(always)]
    fn shr_by(self, bits: u32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_srl_epi64(self.0, _mm_cvtsi32_si128(bits.cast_signed())) })
    }
    #[inline(always)]
    fn equal(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_maskz_set1_epi64(_mm512_cmpeq_epi64_mask(self.0, other.0), -1) })
    }
    #[inline(always)]
    fn carry(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_srai_epi64::<WORD_BITS>(self.0) })
    }

    #[inline(always)]
    fn factor(self) -> Self {
        self
    }
    #[inline(always)]
    fn low_factor(self) -> Self {
        self
    }
    #[inline(always)]
    fn word(factor: Self) -> Self {
        factor.low()
    }
    #[inline(always)]
    fn merge(a: Self, b: Self, mask: Self) -> Self {
        a.or(b.and(mask))
    }
    #[inline(always)]
    fn madd(low: &mut Self, high: &mut Self, a: Self, b: Self) {
        // SAFETY: see above.
        unsafe {
            low.0 = _mm512_madd52lo_epu64(low.0, a.0, b.0);
            high.0 = _mm512_madd52hi_epu64(high.0, a.0, b.0);
        }
    }
    #[inline(always)]
    fn mul_low(a: Self, b: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_madd52lo_epu64(_mm512_setzero_si512(), a.0, b.0) })
    }

    #[inline(always)]
    fn columns(rows: [&[u64; LANES]; LANES]) -> [Self; LANES] {
        let mut columns = [Self::splat(0); LANES];
        for (column, row) in columns.iter_mut().zip(rows) {
            *column = Self::load(*row);
        }
        // SAFETY: see above.
        unsafe { transpose(columns) }
    }
    #[inline(always)]
    fn rows(columns: [Self; LANES]) -> [[u64; LANES]; LANES] {
        // SAFETY: see above; both types have 512 bytes, and any bit pattern is valid.
        unsafe { transmute::<[Self; LANES], [[u64; LANES]; LANES]>(transpose(columns)) }
    }
}

/// Transposes 8 rows of 8 words in three steps: the first interleaves words, the second and third move quarters of a
/// register.
///
/// # Safety
/// The CPU has AVX-512F. (Not enforced by `target_feature`, which does not guarantee inlining.)
#[inline(always)]
unsafe fn transpose(rows: [Ifma; 8]) -> [Ifma; 8] {
    let [r0, r1, r2, r3, r4, r5, r6, r7] = rows;
    // SAFETY: guaranteed by the caller.
    unsafe {
        // Each quarter (128 bits) now holds two rows' words of one column: columns 0, 2, 4, 6, and 1, 3, 5, 7.
        let ((a0, a1), (b0, b1)) = (pairs(r0, r1), pairs(r2, r3));
        let ((c0, c1), (d0, d1)) = (pairs(r4, r5), pairs(r6, r7));
        // Each register now holds four rows' words of two columns; `ab04` has columns 0 and 4 of rows 0 to 3.
        let ((ab04, ab26), (ab15, ab37)) = (quarters(a0, b0), quarters(a1, b1));
        let ((cd04, cd26), (cd15, cd37)) = (quarters(c0, d0), quarters(c1, d1));
        let ((o0, o4), (o2, o6)) = (quarters(ab04, cd04), quarters(ab26, cd26));
        let ((o1, o5), (o3, o7)) = (quarters(ab15, cd15), quarters(ab37, cd37));
        [o0, o1, o2, o3, o4, o5, o6, o7]
    }
}

/// Returns the even words of both rows, interleaved, and the odd words of both rows, interleaved.
///
/// # Safety
/// The CPU has AVX-512F.
#[inline(always)]
unsafe fn pairs(a: Ifma, b: Ifma) -> (Ifma, Ifma) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        (
            Ifma(_mm512_unpacklo_epi64(a.0, b.0)),
            Ifma(_mm512_unpackhi_epi64(a.0, b.0)),
        )
    }
}

/// Returns quarters 0 and 2 of a, then of b, in one register; and quarters 1 and 3 likewise.
///
/// # Safety
/// The CPU has AVX-512F.
#[inline(always)]
unsafe fn quarters(a: Ifma, b: Ifma) -> (Ifma, Ifma) {
    const EVEN: i32 = 0b10_00_10_00;
    const ODD: i32 = 0b11_01_11_01;
    // SAFETY: guaranteed by the caller.
    unsafe {
        (
            Ifma(_mm512_shuffle_i64x2::<EVEN>(a.0, b.0)),
            Ifma(_mm512_shuffle_i64x2::<ODD>(a.0, b.0)),
        )
    }
}
