//! AVX2: eight lanes.

use core::arch::x86_64::{
    __m256i, _mm_cvtsi32_si128, _mm256_add_epi32, _mm256_or_si256, _mm256_permute2x128_si256,
    _mm256_setr_epi8, _mm256_shuffle_epi8, _mm256_sll_epi32, _mm256_srl_epi32, _mm256_unpackhi_epi32,
    _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64, _mm256_xor_si256,
};
use core::mem::transmute;

use cipher::StreamCipherClosure;
use cipher::consts::{U8, U64};

use super::lanes::{BlockCounter, Compare, Lanes, Stream, equal_rows, matching, matrix_blocks};
use crate::BLOCK_BYTES;
use crate::inputs::Inputs;
use crate::matrix::Matrix;
use crate::permute::Word;
use crate::rounds::Rounds;

/// A word of eight matrices. Only the three functions below create values, and only if the CPU has AVX2.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Word8(__m256i);

#[target_feature(enable = "avx2")]
pub(super) fn process<R: Rounds, N: BlockCounter>(
    matrix: &mut Matrix,
    closure: impl StreamCipherClosure<BlockSize = U64>,
) {
    closure.call(&mut Stream::<R, Word8, N>::new(matrix));
}

#[target_feature(enable = "avx2")]
pub(super) fn blocks<R: Rounds>(matrices: &[Matrix], out: &mut [[u8; BLOCK_BYTES]]) {
    matrix_blocks::<R, Word8>(matrices, out);
}

#[target_feature(enable = "avx2")]
pub(super) fn equal<R: Rounds>(inputs: &Inputs, expected: &[&[u8; BLOCK_BYTES]]) -> u64 {
    matching::<R, Word8>(inputs, expected)
}

impl Word for Word8 {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: a value of this type exists only where the CPU has AVX2.
        Self(unsafe { _mm256_add_epi32(self.0, other.0) })
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_xor_si256(self.0, other.0) })
    }
    #[inline(always)]
    fn rotate<const N: i32>(self) -> Self {
        // SAFETY: as above.
        Self(unsafe { rotate::<N>(self.0) })
    }
}

/// Rotates words to the left: a rotation by 8 bits is a shuffle, any other rotation two shifts.
///
/// # Safety
/// The CPU has AVX2. (Not marked with `target_feature`, because such functions are not reliably inlined.)
#[inline(always)]
unsafe fn rotate<const N: i32>(words: __m256i) -> __m256i {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if N == 8 {
            let bytes = _mm256_setr_epi8(
                3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14, 3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10,
                15, 12, 13, 14,
            );
            return _mm256_shuffle_epi8(words, bytes);
        }
        // Constant counts become immediates.
        _mm256_or_si256(
            _mm256_sll_epi32(words, _mm_cvtsi32_si128(N)),
            _mm256_srl_epi32(words, _mm_cvtsi32_si128(32 - N)),
        )
    }
}

impl Lanes for Word8 {
    type Count = U8;

    #[inline(always)]
    fn splat(word: u32) -> Self {
        Self::from_lanes(|_| word)
    }

    #[inline(always)]
    fn from_lanes(word: impl Fn(usize) -> u32) -> Self {
        let words: [u32; 8] = core::array::from_fn(word);
        // SAFETY: both types are 32 bytes; all bit patterns are valid.
        Self(unsafe { transmute::<[u32; 8], __m256i>(words) })
    }

    #[inline(always)]
    fn gather(matrices: &[Matrix]) -> [Self; 16] {
        let mut halves = [[Self::splat(0).0; 8]; 2];
        let [first, second] = &mut halves;
        for ((first, second), matrix) in first.iter_mut().zip(second).zip(matrices) {
            // SAFETY: both types are 64 bytes; all bit patterns are valid.
            [*first, *second] = unsafe { transmute::<[u32; 16], [__m256i; 2]>(matrix.0) };
        }
        let [first, second] = halves;
        // SAFETY: called only by the functions above, where the CPU has AVX2.
        let halves = unsafe { [transpose(first), transpose(second)] };
        // SAFETY: both types are 16 vectors.
        unsafe { transmute::<[[__m256i; 8]; 2], [Self; 16]>(halves) }
    }

    #[inline(always)]
    fn scatter(words: [Self; 16], out: &mut [[u8; BLOCK_BYTES]]) {
        // SAFETY: both types are 16 vectors.
        let [first, second] = unsafe { transmute::<[Self; 16], [[__m256i; 8]; 2]>(words) };
        // SAFETY: a value of this type exists only where the CPU has AVX2.
        let (first, second) = unsafe { (transpose(first), transpose(second)) };
        for ((out, first), second) in out.iter_mut().zip(first).zip(second) {
            // SAFETY: both types are 64 bytes; all bit patterns are valid.
            *out = unsafe { transmute::<[__m256i; 2], [u8; 64]>([first, second]) };
        }
    }
}

impl Compare for Word8 {
    #[inline(always)]
    fn load(words: &[u32]) -> Self {
        let words: [u32; 8] = words.first_chunk().copied().unwrap_or_default();
        // SAFETY: both types are 32 bytes; all bit patterns are valid.
        Self(unsafe { transmute::<[u32; 8], __m256i>(words) })
    }

    #[inline(always)]
    fn equal(words: [Self; 16], expected: &[&[u8; BLOCK_BYTES]]) -> u64 {
        let mut rows = [[0; BLOCK_BYTES]; 8];
        Self::scatter(words, &mut rows);
        equal_rows(&rows, expected)
    }
}

/// Transposes 8 rows of 8 words.
///
/// # Safety
/// The CPU has AVX2. (Not marked with `target_feature`, because such functions are not reliably inlined.)
#[inline(always)]
unsafe fn transpose([r0, r1, r2, r3, r4, r5, r6, r7]: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        const LOW: i32 = 0x20;
        const HIGH: i32 = 0x31;
        let [a0, a1, a2, a3] = transpose_halves([r0, r1, r2, r3]);
        let [b0, b1, b2, b3] = transpose_halves([r4, r5, r6, r7]);
        [
            _mm256_permute2x128_si256::<LOW>(a0, b0),
            _mm256_permute2x128_si256::<LOW>(a1, b1),
            _mm256_permute2x128_si256::<LOW>(a2, b2),
            _mm256_permute2x128_si256::<LOW>(a3, b3),
            _mm256_permute2x128_si256::<HIGH>(a0, b0),
            _mm256_permute2x128_si256::<HIGH>(a1, b1),
            _mm256_permute2x128_si256::<HIGH>(a2, b2),
            _mm256_permute2x128_si256::<HIGH>(a3, b3),
        ]
    }
}

/// Transposes four rows in each half of 128 bits: result `c` holds columns `c` and `c + 4`, one half each.
///
/// # Safety
/// The CPU has AVX2. (Not marked with `target_feature`, because such functions are not reliably inlined.)
#[inline(always)]
unsafe fn transpose_halves([r0, r1, r2, r3]: [__m256i; 4]) -> [__m256i; 4] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let (low01, high01) = (_mm256_unpacklo_epi32(r0, r1), _mm256_unpackhi_epi32(r0, r1));
        let (low23, high23) = (_mm256_unpacklo_epi32(r2, r3), _mm256_unpackhi_epi32(r2, r3));
        [
            _mm256_unpacklo_epi64(low01, low23),
            _mm256_unpackhi_epi64(low01, low23),
            _mm256_unpacklo_epi64(high01, high23),
            _mm256_unpackhi_epi64(high01, high23),
        ]
    }
}
