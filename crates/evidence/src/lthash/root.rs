//! BLAKE3 of the leaves' hashes: a chain of four compressions, each waiting for the one before. What counts is how long one takes, so
//! the words of the message are brought into their order beside it, and nothing is copied in between.

use super::lanes::LEAVES;

/// The hashes of all leaves.
const INPUT_BYTES: usize = 32 * LEAVES;

/// BLAKE3's keyed hash of them.
pub(super) fn keyed_hash(key: &[u8; 32], input: &[u8; INPUT_BYTES]) -> [u8; 32] {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has the feature.
        return unsafe { x86::keyed_hash(key, input) };
    }
    *blake3::keyed_hash(key, input).as_bytes()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_add_epi32, _mm_or_si128, _mm_setr_epi8, _mm_setr_epi32, _mm_shuffle_epi8,
        _mm_shuffle_epi32, _mm_slli_epi32, _mm_srli_epi32, _mm_xor_si128, _mm256_blend_epi32,
        _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_permutevar8x32_epi32, _mm256_setr_epi32,
    };
    use std::hint::black_box;
    use std::mem::transmute;

    use super::super::lanes::{BLOCK_BYTES, BLOCK_BYTES_U32, CHUNK_END, CHUNK_START, IV, KEYED_HASH, ROOT};
    use super::INPUT_BYTES;

    /// Left to itself the compiler makes two shuffles of one of these, which is one more to wait for.
    struct Rotations {
        by_16: __m128i,
        by_8: __m128i,
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn keyed_hash(key: &[u8; 32], input: &[u8; INPUT_BYTES]) -> [u8; 32] {
        let rotations = black_box(Rotations {
            by_16: _mm_setr_epi8(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13),
            by_8: _mm_setr_epi8(1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12),
        });
        // SAFETY: both are 32 bytes of any bits; the CPU is little-endian.
        let mut chain = unsafe { transmute::<[u8; 32], [__m128i; 2]>(*key) };
        let (blocks, _) = input.as_chunks::<BLOCK_BYTES>();
        for (number, block) in blocks.iter().enumerate() {
            let mut flags = KEYED_HASH;
            if number == 0 {
                flags |= CHUNK_START;
            }
            if number + 1 == blocks.len() {
                flags |= CHUNK_END | ROOT;
            }
            chain = compress(chain, block, flags, &rotations);
        }
        // SAFETY: as above.
        unsafe { transmute::<[__m128i; 2], [u8; 32]>(chain) }
    }

    /// The state as four rows; the columns of a round are its four lanes, and the diagonals are when all rows but b are turned.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn compress(chain: [__m128i; 2], block: &[u8; BLOCK_BYTES], flags: u32, by: &Rotations) -> [__m128i; 2] {
        let [mut a, mut b] = chain;
        let [iv0, iv1, iv2, iv3] = IV.map(u32::cast_signed);
        let mut c = _mm_setr_epi32(iv0, iv1, iv2, iv3);
        let mut d = _mm_setr_epi32(0, 0, BLOCK_BYTES_U32.cast_signed(), flags.cast_signed());
        let mut message = Message::of(block);
        for round in 0..7 {
            if round > 0 {
                message = message.next();
            }
            let [x, y] = halves(message.columns);
            mix(&mut a, &mut b, &mut c, &mut d, x, y, by);
            a = _mm_shuffle_epi32::<0b10_01_00_11>(a);
            d = _mm_shuffle_epi32::<0b01_00_11_10>(d);
            c = _mm_shuffle_epi32::<0b00_11_10_01>(c);
            let [x, y] = halves(message.diagonals);
            mix(&mut a, &mut b, &mut c, &mut d, x, y, by);
            a = _mm_shuffle_epi32::<0b00_11_10_01>(a);
            d = _mm_shuffle_epi32::<0b01_00_11_10>(d);
            c = _mm_shuffle_epi32::<0b10_01_00_11>(c);
        }
        [_mm_xor_si128(a, c), _mm_xor_si128(b, d)]
    }

    /// The function G in all lanes.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn mix(
        a: &mut __m128i,
        b: &mut __m128i,
        c: &mut __m128i,
        d: &mut __m128i,
        x: __m128i,
        y: __m128i,
        by: &Rotations,
    ) {
        // First what is there: b comes last.
        *a = _mm_add_epi32(_mm_add_epi32(*a, x), *b);
        *d = _mm_shuffle_epi8(_mm_xor_si128(*d, *a), by.by_16);
        *c = _mm_add_epi32(*c, *d);
        *b = _mm_xor_si128(*b, *c);
        *b = _mm_or_si128(_mm_srli_epi32::<12>(*b), _mm_slli_epi32::<20>(*b));
        *a = _mm_add_epi32(_mm_add_epi32(*a, y), *b);
        *d = _mm_shuffle_epi8(_mm_xor_si128(*d, *a), by.by_8);
        *c = _mm_add_epi32(*c, *d);
        *b = _mm_xor_si128(*b, *c);
        *b = _mm_or_si128(_mm_srli_epi32::<7>(*b), _mm_slli_epi32::<25>(*b));
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn halves(words: __m256i) -> [__m128i; 2] {
        [
            _mm256_castsi256_si128(words),
            _mm256_extracti128_si256::<1>(words),
        ]
    }

    /// A block's words in the order in which a round takes them: of the columns first the x, then the y; of the diagonals likewise,
    /// the last one first, as the rows are turned then.
    #[derive(Clone, Copy)]
    struct Message {
        columns: __m256i,
        diagonals: __m256i,
    }

    impl Message {
        #[inline]
        #[target_feature(enable = "avx2")]
        fn of(block: &[u8; BLOCK_BYTES]) -> Self {
            // SAFETY: both are 64 bytes of any bits; the CPU is little-endian.
            let [low, high] = unsafe { transmute::<[u8; BLOCK_BYTES], [__m256i; 2]>(*block) };
            Self {
                columns: _mm256_permutevar8x32_epi32(low, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7)),
                diagonals: _mm256_permutevar8x32_epi32(high, _mm256_setr_epi32(6, 0, 2, 4, 7, 1, 3, 5)),
            }
        }

        /// For the next round, by the paper's permutation.
        #[inline]
        #[target_feature(enable = "avx2")]
        fn next(self) -> Self {
            let columns = _mm256_setr_epi32(1, 5, 7, 2, 3, 2, 0, 7);
            let diagonals = _mm256_setr_epi32(4, 4, 3, 5, 1, 6, 6, 0);
            let taken = |places| {
                (
                    _mm256_permutevar8x32_epi32(self.columns, places),
                    _mm256_permutevar8x32_epi32(self.diagonals, places),
                )
            };
            let (of_columns, of_diagonals) = (taken(columns), taken(diagonals));
            Self {
                columns: _mm256_blend_epi32::<0b10100000>(of_columns.0, of_columns.1),
                diagonals: _mm256_blend_epi32::<0b10111101>(of_diagonals.0, of_diagonals.1),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_is_what_the_library_makes(key: [u8; 32], input in prop::collection::vec(any::<u8>(), INPUT_BYTES)) {
            let input: [u8; INPUT_BYTES] = input.try_into().unwrap();
            let wanted = *blake3::keyed_hash(&key, &input).as_bytes();
            prop_assert_eq!(keyed_hash(&key, &input), wanted);
        }
    }
}
