//! Implementations with x86 vectors.

use std::arch::x86_64::{
    __m256i, __m512i, _mm_cvtsi32_si128, _mm256_add_epi16, _mm256_add_epi32, _mm256_load_si256,
    _mm256_or_si256, _mm256_permute2x128_si256, _mm256_set1_epi32, _mm256_setr_epi8, _mm256_shuffle_epi8,
    _mm256_sll_epi32, _mm256_srl_epi32, _mm256_sub_epi16, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64,
    _mm256_unpacklo_epi32, _mm256_unpacklo_epi64, _mm256_xor_si256, _mm512_add_epi16, _mm512_add_epi32,
    _mm512_ror_epi32, _mm512_set1_epi32, _mm512_shuffle_i32x4, _mm512_sub_epi16, _mm512_unpackhi_epi32,
    _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64, _mm512_xor_si512,
};
use std::cell::UnsafeCell;
use std::mem::transmute;

use super::super::{LtHash, WORDS};
use super::{BLOCK_WORDS, Block, Halves, LEAVES, Lanes, Leaves, blocks, exchange_by, hashes_by};

/// Created only by functions of this module that require AVX2.
#[derive(Clone, Copy)]
struct Lanes8(__m256i);

/// Created only by functions of this module that require AVX-512 F and BW.
#[derive(Clone, Copy)]
struct Lanes16(__m512i);

#[target_feature(enable = "avx2")]
pub(super) fn hashes_avx2(key: &[u8; 32], state: &[u16; WORDS]) -> [u8; 32 * LEAVES] {
    hashes_by::<Lanes8>(key, state)
}

/// [`hashes_avx2`] for CPUs with AVX-512, which have twice as many registers and rotation instructions.
#[target_feature(enable = "avx512f,avx512vl")]
pub(super) fn hashes_avx512(key: &[u8; 32], state: &[u16; WORDS]) -> [u8; 32 * LEAVES] {
    hashes_by::<Lanes8>(key, state)
}

#[target_feature(enable = "avx2")]
pub(super) fn exchange_avx2(
    key: &[u8; 32],
    old: Option<&Block>,
    new: Option<&Block>,
    states: &mut [&mut LtHash],
) {
    exchange_by::<Lanes8, 8>(key, old, new, states);
}

#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn exchange_avx512(
    key: &[u8; 32],
    old: Option<&Block>,
    new: Option<&Block>,
    states: &mut [&mut LtHash],
) {
    exchange_by::<Lanes16, 16>(key, old, new, states);
}

impl Lanes<8> for Lanes8 {
    #[inline(always)]
    fn from_words(words: [u32; 8]) -> Self {
        // SAFETY: both types are 32 bytes; all bit patterns are valid.
        Self(unsafe { transmute::<[u32; 8], __m256i>(words) })
    }
    #[inline(always)]
    fn splat(word: u32) -> Self {
        // SAFETY: values of this type are used only where the CPU has AVX2.
        Self(unsafe { _mm256_set1_epi32(word.cast_signed()) })
    }
    #[inline(always)]
    fn words(self) -> [u32; 8] {
        // SAFETY: both types are 32 bytes; all bit patterns are valid.
        unsafe { transmute::<__m256i, [u32; 8]>(self.0) }
    }
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
    fn rotate<const BITS: u32>(self) -> Self {
        // SAFETY: as above.
        Self(unsafe { rotate8::<BITS>(self.0) })
    }
    #[inline(always)]
    fn sub_halves(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_sub_epi16(self.0, other.0) })
    }
    #[inline(always)]
    fn add_blocks(words: &[Self; BLOCK_WORDS], states: &mut [&mut LtHash], first_block: usize) {
        let (low, high) = words.split_at(BLOCK_WORDS / 2);
        let part =
            |words: &[Self]| std::array::from_fn(|i| words.get(i).map_or(Self::splat(0), |word| *word).0);
        // SAFETY: as above.
        let (low, high) = unsafe { (transposed8(part(low)), transposed8(part(high))) };
        for state in states {
            let blocks = blocks::<8>(state, first_block).into_iter().flatten();
            for (block, change) in blocks.zip(low.iter().zip(&high)) {
                // SAFETY: all types are 64 bytes; all bit patterns are valid; and as above.
                *block = unsafe {
                    let [low, high] = transmute::<Halves, [__m256i; 2]>(*block);
                    let sum = [
                        _mm256_add_epi16(low, *change.0),
                        _mm256_add_epi16(high, *change.1),
                    ];
                    transmute::<[__m256i; 2], Halves>(sum)
                };
            }
        }
    }
}

impl Leaves for Lanes8 {
    #[inline(always)]
    fn from_halves(halves: &[u16; 2 * LEAVES]) -> Self {
        // SAFETY: both types are 32 bytes; all bit patterns are valid; the CPU is little-endian, so low halves come
        // first.
        Self(unsafe { transmute::<[u16; 2 * LEAVES], __m256i>(*halves) })
    }
    #[inline(always)]
    fn transpose([a, b, c, d, e, f, g, h]: [Self; 8]) -> [Self; LEAVES] {
        // SAFETY: values of this type exist only where the CPU has AVX2.
        let [a, b, c, d, e, f, g, h] = unsafe { transposed8([a.0, b.0, c.0, d.0, e.0, f.0, g.0, h.0]) };
        [
            Self(a),
            Self(b),
            Self(c),
            Self(d),
            Self(e),
            Self(f),
            Self(g),
            Self(h),
        ]
    }
}

/// A shuffle that rotates words by 16 bits. If the compiler knew this constant, it would split the shuffle into two
/// half-word shuffles, which cost a twentieth of the total time. So the constant is in a cell, and `#[used]` hides it
/// from the optimizer.
#[repr(align(32))]
struct OpaqueConstant(UnsafeCell<[u8; 32]>);

// SAFETY: the content is never written.
unsafe impl Sync for OpaqueConstant {}

#[used]
static BY_16: OpaqueConstant = OpaqueConstant(UnsafeCell::new([
    2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12,
    13,
]));

/// Rotates each word right by `BITS`: with one shuffle for whole bytes, else with two shifts.
///
/// # Safety
/// The CPU has AVX2. (Not marked with `target_feature`, because such functions are not reliably inlined.)
#[inline(always)]
unsafe fn rotate8<const BITS: u32>(words: __m256i) -> __m256i {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match BITS {
            8 => {
                let bytes = _mm256_setr_epi8(
                    1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12, 1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11,
                    8, 13, 14, 15, 12,
                );
                _mm256_shuffle_epi8(words, bytes)
            }
            16 => _mm256_shuffle_epi8(words, _mm256_load_si256(BY_16.0.get().cast())),
            _ => _mm256_or_si256(
                _mm256_srl_epi32(words, _mm_cvtsi32_si128(BITS.cast_signed())),
                _mm256_sll_epi32(words, _mm_cvtsi32_si128((32 - BITS).cast_signed())),
            ),
        }
    }
}

/// Transposes rows to columns in three steps: by words, by pairs of words, and by halves of vectors.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
#[allow(clippy::indexing_slicing)] // All indices are below 8.
unsafe fn transposed8(rows: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let pairs: [__m256i; 8] = std::array::from_fn(|i| match i % 2 {
            0 => _mm256_unpacklo_epi32(rows[i], rows[i + 1]),
            _ => _mm256_unpackhi_epi32(rows[i - 1], rows[i]),
        });
        // The words i and i + 4 of four rows.
        let fours: [__m256i; 8] = std::array::from_fn(|i| {
            let (first, second) = (pairs[i / 4 * 4 + i % 4 / 2], pairs[i / 4 * 4 + i % 4 / 2 + 2]);
            match i % 2 {
                0 => _mm256_unpacklo_epi64(first, second),
                _ => _mm256_unpackhi_epi64(first, second),
            }
        });
        std::array::from_fn(|i| match i / 4 {
            0 => _mm256_permute2x128_si256::<0x20>(fours[i], fours[i + 4]),
            _ => _mm256_permute2x128_si256::<0x31>(fours[i - 4], fours[i]),
        })
    }
}

impl Lanes<16> for Lanes16 {
    #[inline(always)]
    fn from_words(words: [u32; 16]) -> Self {
        // SAFETY: both types are 64 bytes; all bit patterns are valid.
        Self(unsafe { transmute::<[u32; 16], __m512i>(words) })
    }
    #[inline(always)]
    fn splat(word: u32) -> Self {
        // SAFETY: values of this type are used only where the CPU has AVX-512 F and BW.
        Self(unsafe { _mm512_set1_epi32(word.cast_signed()) })
    }
    #[inline(always)]
    fn words(self) -> [u32; 16] {
        // SAFETY: both types are 64 bytes; all bit patterns are valid.
        unsafe { transmute::<__m512i, [u32; 16]>(self.0) }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: a value of this type exists only where the CPU has AVX-512 F and BW.
        Self(unsafe { _mm512_add_epi32(self.0, other.0) })
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_xor_si512(self.0, other.0) })
    }
    #[inline(always)]
    fn rotate<const BITS: u32>(self) -> Self {
        // SAFETY: as above.
        Self(unsafe {
            match BITS {
                16 => _mm512_ror_epi32::<16>(self.0),
                12 => _mm512_ror_epi32::<12>(self.0),
                8 => _mm512_ror_epi32::<8>(self.0),
                // No other rotation is used.
                _ => _mm512_ror_epi32::<7>(self.0),
            }
        })
    }
    #[inline(always)]
    fn sub_halves(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_sub_epi16(self.0, other.0) })
    }
    #[inline(always)]
    fn add_blocks(words: &[Self; BLOCK_WORDS], states: &mut [&mut LtHash], first_block: usize) {
        // SAFETY: as above.
        let changes = unsafe { transposed16(words.map(|word| word.0)) };
        for state in states {
            let blocks = blocks::<16>(state, first_block).into_iter().flatten();
            for (block, change) in blocks.zip(&changes) {
                // SAFETY: all types are 64 bytes; all bit patterns are valid; and as above.
                *block = unsafe {
                    let sum = _mm512_add_epi16(transmute::<Halves, __m512i>(*block), *change);
                    transmute::<__m512i, Halves>(sum)
                };
            }
        }
    }
}

/// As [`transposed8`], but in four steps: by words, by pairs of words, and twice by quarters of vectors.
///
/// # Safety
/// The CPU has AVX-512 F.
#[inline(always)]
#[allow(clippy::indexing_slicing)] // All indices are below 16.
unsafe fn transposed16(rows: [__m512i; 16]) -> [__m512i; 16] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let pairs: [__m512i; 16] = std::array::from_fn(|i| match i % 2 {
            0 => _mm512_unpacklo_epi32(rows[i], rows[i + 1]),
            _ => _mm512_unpackhi_epi32(rows[i - 1], rows[i]),
        });
        // The words i, i + 4, i + 8 and i + 12 of four rows.
        let fours: [__m512i; 16] = std::array::from_fn(|i| {
            let (first, second) = (pairs[i / 4 * 4 + i % 4 / 2], pairs[i / 4 * 4 + i % 4 / 2 + 2]);
            match i % 2 {
                0 => _mm512_unpacklo_epi64(first, second),
                _ => _mm512_unpackhi_epi64(first, second),
            }
        });
        // Quarters 0 and 2, or quarters 1 and 3, of two vectors.
        let eights: [__m512i; 16] = std::array::from_fn(|i| {
            let (first, second) = (fours[i / 8 * 8 + i % 4], fours[i / 8 * 8 + i % 4 + 4]);
            match i % 8 / 4 {
                0 => _mm512_shuffle_i32x4::<0x88>(first, second),
                _ => _mm512_shuffle_i32x4::<0xdd>(first, second),
            }
        });
        std::array::from_fn(|i| match i / 8 {
            0 => _mm512_shuffle_i32x4::<0x88>(eights[i], eights[i + 8]),
            _ => _mm512_shuffle_i32x4::<0xdd>(eights[i - 8], eights[i]),
        })
    }
}
