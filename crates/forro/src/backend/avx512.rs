//! AVX-512: sixteen lanes, two groups of blocks at once. A group is a matrix in 16 registers, so two groups use all 32 registers.

use core::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_cmpneq_epi32_mask, _mm512_rol_epi32, _mm512_shuffle_i32x4,
    _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
    _mm512_xor_si512,
};
use core::mem::transmute;

use cipher::StreamCipherClosure;
use cipher::consts::{U16, U64};

use super::four_groups;
use super::lanes::{BlockCounter, Compare, Lanes, Stream, matching, matrix_blocks};
use super::two_groups::TwoGroups;
use crate::BLOCK_BYTES;
use crate::inputs::Inputs;
use crate::matrix::Matrix;
use crate::permute::Word;
use crate::rounds::Rounds;

/// A word of sixteen matrices. Only the three functions below create values, and only if the CPU has AVX-512F.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Word16(__m512i);

#[target_feature(enable = "avx512f")]
pub(super) fn process<R: Rounds, N: BlockCounter>(
    matrix: &mut Matrix,
    closure: impl StreamCipherClosure<BlockSize = U64>,
) {
    closure.call(&mut Stream::<R, TwoGroups<Word16>, N>::new(matrix));
}

#[target_feature(enable = "avx512f")]
pub(super) fn blocks<R: Rounds>(matrices: &[Matrix], out: &mut [[u8; BLOCK_BYTES]]) {
    matrix_blocks::<R, TwoGroups<Word16>>(matrices, out);
}

#[target_feature(enable = "avx512f")]
pub(super) fn equal<R: Rounds>(inputs: &Inputs, expected: &[&[u8; BLOCK_BYTES]]) -> u64 {
    // Two groups one after another are faster than four at once.
    match expected.len() <= 2 * Word16::LANES {
        true => matching::<R, Word16>(inputs, expected),
        false => four_groups::matching::<R, Word16>(inputs, expected),
    }
}

impl Word for Word16 {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: a value of this type exists only where the CPU has AVX-512F.
        Self(unsafe { _mm512_add_epi32(self.0, other.0) })
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_xor_si512(self.0, other.0) })
    }
    #[inline(always)]
    fn rotate<const N: i32>(self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_rol_epi32::<N>(self.0) })
    }
}

impl Lanes for Word16 {
    type Count = U16;

    #[inline(always)]
    fn splat(word: u32) -> Self {
        Self::from_lanes(|_| word)
    }

    #[inline(always)]
    fn from_lanes(word: impl Fn(usize) -> u32) -> Self {
        let words: [u32; 16] = core::array::from_fn(word);
        // SAFETY: both types are 64 bytes; all bit patterns are valid.
        Self(unsafe { transmute::<[u32; 16], __m512i>(words) })
    }

    #[inline(always)]
    fn gather(matrices: &[Matrix]) -> [Self; 16] {
        let row = |matrix: &Matrix| {
            // SAFETY: both types are 64 bytes; all bit patterns are valid.
            unsafe { transmute::<[u32; 16], __m512i>(matrix.0) }
        };
        let rows = match matrices.as_array::<16>() {
            Some(matrices) => matrices.each_ref().map(row),
            None => {
                let mut rows = [Self::splat(0).0; 16];
                for (out, matrix) in rows.iter_mut().zip(matrices) {
                    *out = row(matrix);
                }
                rows
            }
        };
        // SAFETY: called only by the functions above, where the CPU has AVX-512F.
        let words = unsafe { transpose(rows) };
        // SAFETY: both types have the same size; all bit patterns are valid.
        unsafe { transmute::<[__m512i; 16], [Self; 16]>(words) }
    }

    #[inline(always)]
    fn scatter(words: [Self; 16], out: &mut [[u8; BLOCK_BYTES]]) {
        // SAFETY: a value of this type exists only where the CPU has AVX-512F.
        let rows = unsafe { transpose(transmute::<[Self; 16], [__m512i; 16]>(words)) };
        for (out, row) in out.iter_mut().zip(rows) {
            // SAFETY: both types are 64 bytes; all bit patterns are valid.
            *out = unsafe { transmute::<__m512i, [u8; 64]>(row) };
        }
    }
}

impl Compare for Word16 {
    #[inline(always)]
    fn load(words: &[u32]) -> Self {
        let words: [u32; 16] = words.first_chunk().copied().unwrap_or_default();
        // SAFETY: both types are 64 bytes; all bit patterns are valid.
        Self(unsafe { transmute::<[u32; 16], __m512i>(words) })
    }

    #[inline(always)]
    fn equal(words: [Self; 16], expected: &[&[u8; BLOCK_BYTES]]) -> u64 {
        // SAFETY: a value of this type exists only where the CPU has AVX-512F.
        let rows = unsafe { transpose(transmute::<[Self; 16], [__m512i; 16]>(words)) };
        let rows = expected.iter().zip(rows).enumerate();
        rows.fold(0, |equal, (lane, (expected, row))| {
            // SAFETY: both types are 64 bytes; all bit patterns are valid.
            let expected = unsafe { transmute::<[u8; 64], __m512i>(**expected) };
            // SAFETY: as above.
            let differs = unsafe { _mm512_cmpneq_epi32_mask(row, expected) };
            equal | u64::from(differs == 0) << lane
        })
    }
}

/// Transposes 16 rows of 16 words.
///
/// # Safety
/// The CPU has AVX-512F. (Not marked with `target_feature`, because such functions are not reliably inlined.)
#[inline(always)]
unsafe fn transpose(rows: [__m512i; 16]) -> [__m512i; 16] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let [
            r0,
            r1,
            r2,
            r3,
            r4,
            r5,
            r6,
            r7,
            r8,
            r9,
            r10,
            r11,
            r12,
            r13,
            r14,
            r15,
        ] = rows;
        let [a0, a1, a2, a3] = transpose_quarters([r0, r1, r2, r3]);
        let [b0, b1, b2, b3] = transpose_quarters([r4, r5, r6, r7]);
        let [c0, c1, c2, c3] = transpose_quarters([r8, r9, r10, r11]);
        let [d0, d1, d2, d3] = transpose_quarters([r12, r13, r14, r15]);
        let [o0, o4, o8, o12] = collect_quarters([a0, b0, c0, d0]);
        let [o1, o5, o9, o13] = collect_quarters([a1, b1, c1, d1]);
        let [o2, o6, o10, o14] = collect_quarters([a2, b2, c2, d2]);
        let [o3, o7, o11, o15] = collect_quarters([a3, b3, c3, d3]);
        [
            o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14, o15,
        ]
    }
}

/// Transposes four rows in each quarter of 128 bits: result `c` holds columns `c`, `c + 4`, `c + 8` and `c + 12`, one
/// quarter each.
///
/// # Safety
/// The CPU has AVX-512F. (Not marked with `target_feature`, because such functions are not reliably inlined.)
#[inline(always)]
unsafe fn transpose_quarters([r0, r1, r2, r3]: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let (low01, high01) = (_mm512_unpacklo_epi32(r0, r1), _mm512_unpackhi_epi32(r0, r1));
        let (low23, high23) = (_mm512_unpacklo_epi32(r2, r3), _mm512_unpackhi_epi32(r2, r3));
        [
            _mm512_unpacklo_epi64(low01, low23),
            _mm512_unpackhi_epi64(low01, low23),
            _mm512_unpacklo_epi64(high01, high23),
            _mm512_unpackhi_epi64(high01, high23),
        ]
    }
}

/// Result `i` holds quarter `i` of each of the four registers.
///
/// # Safety
/// The CPU has AVX-512F. (Not marked with `target_feature`, because such functions are not reliably inlined.)
#[inline(always)]
unsafe fn collect_quarters([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        // Quarters 0 and 2 of both operands, or quarters 1 and 3.
        const EVEN: i32 = 0b10_00_10_00;
        const ODD: i32 = 0b11_01_11_01;
        let (ab_even, ab_odd) = (
            _mm512_shuffle_i32x4::<EVEN>(a, b),
            _mm512_shuffle_i32x4::<ODD>(a, b),
        );
        let (cd_even, cd_odd) = (
            _mm512_shuffle_i32x4::<EVEN>(c, d),
            _mm512_shuffle_i32x4::<ODD>(c, d),
        );
        [
            _mm512_shuffle_i32x4::<EVEN>(ab_even, cd_even),
            _mm512_shuffle_i32x4::<EVEN>(ab_odd, cd_odd),
            _mm512_shuffle_i32x4::<ODD>(ab_even, cd_even),
            _mm512_shuffle_i32x4::<ODD>(ab_odd, cd_odd),
        ]
    }
}
