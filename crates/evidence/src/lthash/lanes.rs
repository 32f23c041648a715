//! BLAKE3, eight compressions side by side.
//!
//! One BLAKE3 over the 2,048 bytes of a state is a chain of 32 compressions, each waiting for the one before: 1.1 µs, more than
//! the change of an element itself. Eight chains of four, a lane each, take a third of that. And the library computes the 32
//! blocks of an element's expansion side by side only where the CPU has AVX-512, else one after the other: seven times slower.

use super::{STATE_BYTES, WORDS};

/// Leaves of a state.
pub(super) const LEAVES: usize = 8;
/// Words of a block.
const BLOCK_WORDS: usize = 16;
const BLOCK_BYTES: usize = 64;
const BLOCK_BYTES_U32: u32 = 64;
/// Flags of the compression function (BLAKE3 paper, table 3).
const CHUNK_START: u32 = 1;
const CHUNK_END: u32 = 2;
const ROOT: u32 = 8;
const KEYED_HASH: u32 = 16;
/// SHA-256's initial values, which BLAKE3 takes over.
const IV: [u32; 4] = [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a];
/// In what order each round takes the message's words: the paper's permutation, applied again and again.
const SCHEDULE: [[usize; BLOCK_WORDS]; 7] = schedule();

#[allow(clippy::indexing_slicing)] // Computed while compiling: what is out of bounds does not compile.
const fn schedule() -> [[usize; BLOCK_WORDS]; 7] {
    const PERMUTATION: [usize; BLOCK_WORDS] = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];
    let mut rounds = [[0; BLOCK_WORDS]; 7];
    let mut word = 0;
    while word < BLOCK_WORDS {
        rounds[0][word] = word;
        word += 1;
    }
    let mut round = 1;
    while round < rounds.len() {
        let mut word = 0;
        while word < BLOCK_WORDS {
            rounds[round][word] = rounds[round - 1][PERMUTATION[word]];
            word += 1;
        }
        round += 1;
    }
    rounds
}

/// One 32-bit word of each leaf.
trait Lanes: Copy {
    fn from_words(words: [u32; LEAVES]) -> Self;
    /// From halves of words, the low one first.
    fn from_halves(halves: &[u16; 2 * LEAVES]) -> Self;
    fn words(self) -> [u32; LEAVES];
    fn add(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    /// Rotates each word right.
    fn rotate<const BITS: u32>(self) -> Self;
}

/// The keyed hashes of the leaves of `state`, one after the other. Leaf l is made of the state's 4-byte groups l, l + 8,
/// l + 16 and so on.
pub(super) fn hashes(key: &[u8; 32], state: &[u16; WORDS]) -> [u8; 32 * LEAVES] {
    #[cfg(target_arch = "x86_64")]
    {
        if has_avx512() {
            // SAFETY: the CPU has both features, which include AVX2.
            return unsafe { avx2::hashes_avx512(key, state) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has the feature.
            return unsafe { avx2::hashes(key, state) };
        }
    }
    hashes_by::<[u32; LEAVES]>(key, state)
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512vl") && is_x86_feature_detected!("avx512f")
}

/// BLAKE3's extendable output over an element, keyed, as far as it is faster here than by the library: for elements of one block, on CPUs
/// with AVX2 and without AVX-512. Whether it was done.
pub(super) fn expand(key: &[u8; 32], element: &[u8], out: &mut [u8; STATE_BYTES]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Some(block) = padded(element)
        && is_x86_feature_detected!("avx2")
        && !has_avx512()
    {
        // SAFETY: the CPU has the feature.
        unsafe { avx2::expand(key, &block, element.len(), out) };
        return true;
    }
    let _ = (key, element, out);
    false
}

/// An element of at most one block, with zeros behind it.
fn padded(element: &[u8]) -> Option<[u8; BLOCK_BYTES]> {
    let mut block = [0; BLOCK_BYTES];
    block.get_mut(..element.len())?.copy_from_slice(element);
    Some(block)
}

#[inline(always)]
fn expand_by<L: Lanes>(key: &[u8; 32], block: &[u8; BLOCK_BYTES], len: usize, out: &mut [u8; STATE_BYTES]) {
    const FLAGS: u32 = KEYED_HASH | CHUNK_START | CHUNK_END | ROOT;
    let in_all_lanes = |word: &[u8; 4]| L::from_words([u32::from_le_bytes(*word); LEAVES]);
    let chain = words(key).map(in_all_lanes);
    let mut message = [L::from_words([0; LEAVES]); BLOCK_WORDS];
    for (lanes, word) in message.iter_mut().zip(block.as_chunks::<4>().0) {
        *lanes = in_all_lanes(word);
    }
    // No block is longer than 64 bytes.
    let len = u32::try_from(len).unwrap_or_default();
    let mut number = 0;
    for blocks in out.as_chunks_mut::<{ BLOCK_BYTES * LEAVES }>().0 {
        let counter = L::from_words(std::array::from_fn(|_| {
            number += 1;
            number - 1
        }));
        let v = permute(&chain, &message, counter, len, FLAGS);
        let (low, high) = halves(&v);
        let mut after = [[0; LEAVES]; BLOCK_WORDS];
        let chained = high.iter().zip(&chain).map(|(&word, &chain)| word.xor(chain));
        let outputs = low
            .iter()
            .zip(high)
            .map(|(&low, &high)| low.xor(high))
            .chain(chained);
        for (lanes, word) in after.iter_mut().zip(outputs) {
            *lanes = word.words();
        }
        for (lane, block) in blocks.as_chunks_mut::<BLOCK_BYTES>().0.iter_mut().enumerate() {
            for (out, lanes) in block.as_chunks_mut::<4>().0.iter_mut().zip(&after) {
                *out = lanes.get(lane).copied().unwrap_or_default().to_le_bytes();
            }
        }
    }
}

/// Both halves of the compression's state.
#[inline(always)]
fn halves<L>(v: &[L; BLOCK_WORDS]) -> (&[L], &[L]) {
    v.split_at(BLOCK_WORDS / 2)
}

/// The words of a key.
#[inline(always)]
fn words(key: &[u8; 32]) -> [&[u8; 4]; 8] {
    let (words, _) = key.as_chunks::<4>();
    std::array::from_fn(|i| words.get(i).unwrap_or(&[0; 4]))
}

#[inline(always)]
fn hashes_by<L: Lanes>(key: &[u8; 32], state: &[u16; WORDS]) -> [u8; 32 * LEAVES] {
    let mut chain = words(key).map(|word| L::from_words([u32::from_le_bytes(*word); LEAVES]));
    let blocks = state.as_chunks::<{ 2 * LEAVES }>().0.as_chunks::<BLOCK_WORDS>().0;
    for (number, block) in blocks.iter().enumerate() {
        let block = block.map(|halves| L::from_halves(&halves));
        let mut flags = KEYED_HASH;
        if number == 0 {
            flags |= CHUNK_START;
        }
        if number + 1 == blocks.len() {
            flags |= CHUNK_END | ROOT;
        }
        let v = permute(&chain, &block, L::from_words([0; LEAVES]), BLOCK_BYTES_U32, flags);
        let (low, high) = halves(&v);
        for ((chain, &low), &high) in chain.iter_mut().zip(low).zip(high) {
            *chain = low.xor(high);
        }
    }
    let chain = chain.map(L::words);
    let mut hashes = [0; 32 * LEAVES];
    for (leaf, hash) in hashes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (out, lanes) in hash.as_chunks_mut::<4>().0.iter_mut().zip(&chain) {
            *out = lanes.get(leaf).copied().unwrap_or_default().to_le_bytes();
        }
    }
    hashes
}

/// The compression function's rounds; counters are below 2³².
#[inline(always)]
#[allow(clippy::indexing_slicing)] // All indices are constants of the algorithm.
fn permute<L: Lanes>(
    chain: &[L; 8],
    block: &[L; BLOCK_WORDS],
    counter: L,
    block_bytes: u32,
    flags: u32,
) -> [L; BLOCK_WORDS] {
    let mut v = [L::from_words([0; LEAVES]); 16];
    v[..8].copy_from_slice(chain);
    for (lanes, word) in v[8..]
        .iter_mut()
        .zip([IV[0], IV[1], IV[2], IV[3], 0, 0, block_bytes, flags])
    {
        *lanes = L::from_words([word; LEAVES]);
    }
    v[12] = counter;
    round::<L, 0>(&mut v, block);
    round::<L, 1>(&mut v, block);
    round::<L, 2>(&mut v, block);
    round::<L, 3>(&mut v, block);
    round::<L, 4>(&mut v, block);
    round::<L, 5>(&mut v, block);
    round::<L, 6>(&mut v, block);
    v
}

/// A round. Its number is a constant, so that the words' places are.
#[inline(always)]
#[allow(clippy::indexing_slicing)] // All indices are constants of the algorithm.
fn round<L: Lanes, const ROUND: usize>(v: &mut [L; 16], block: &[L; BLOCK_WORDS]) {
    let m = |i: usize| block[const { SCHEDULE[ROUND] }[i]];
    mix(v, [0, 4, 8, 12], m(0), m(1));
    mix(v, [1, 5, 9, 13], m(2), m(3));
    mix(v, [2, 6, 10, 14], m(4), m(5));
    mix(v, [3, 7, 11, 15], m(6), m(7));
    mix(v, [0, 5, 10, 15], m(8), m(9));
    mix(v, [1, 6, 11, 12], m(10), m(11));
    mix(v, [2, 7, 8, 13], m(12), m(13));
    mix(v, [3, 4, 9, 14], m(14), m(15));
}

/// The function G on four words of the state.
#[inline(always)]
#[allow(clippy::indexing_slicing)] // All indices are constants of the algorithm.
fn mix<L: Lanes>(v: &mut [L; 16], [a, b, c, d]: [usize; 4], x: L, y: L) {
    v[a] = v[a].add(v[b]).add(x);
    v[d] = v[d].xor(v[a]).rotate::<16>();
    v[c] = v[c].add(v[d]);
    v[b] = v[b].xor(v[c]).rotate::<12>();
    v[a] = v[a].add(v[b]).add(y);
    v[d] = v[d].xor(v[a]).rotate::<8>();
    v[c] = v[c].add(v[d]);
    v[b] = v[b].xor(v[c]).rotate::<7>();
}

#[allow(clippy::indexing_slicing)] // i is below the length of both.
impl Lanes for [u32; LEAVES] {
    #[inline(always)]
    fn from_words(words: Self) -> Self {
        words
    }
    #[inline(always)]
    fn from_halves(halves: &[u16; 2 * LEAVES]) -> Self {
        let (halves, _) = halves.as_chunks::<2>();
        std::array::from_fn(|i| u32::from(halves[i][0]) | u32::from(halves[i][1]) << 16)
    }
    #[inline(always)]
    fn words(self) -> Self {
        self
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i].wrapping_add(other[i]))
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] ^ other[i])
    }
    #[inline(always)]
    fn rotate<const BITS: u32>(self) -> Self {
        self.map(|word| word.rotate_right(BITS))
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm_cvtsi32_si128, _mm256_add_epi32, _mm256_or_si256, _mm256_setr_epi8, _mm256_shuffle_epi8,
        _mm256_sll_epi32, _mm256_srl_epi32, _mm256_xor_si256,
    };
    use std::mem::transmute;

    use super::{BLOCK_BYTES, LEAVES, Lanes, STATE_BYTES, WORDS, expand_by, hashes_by};

    /// Made only by [`hashes`], and so where the CPU has AVX2.
    #[derive(Clone, Copy)]
    struct Lanes8(__m256i);

    #[target_feature(enable = "avx2")]
    pub(super) fn hashes(key: &[u8; 32], state: &[u16; WORDS]) -> [u8; 32 * LEAVES] {
        hashes_by::<Lanes8>(key, state)
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn expand(key: &[u8; 32], block: &[u8; BLOCK_BYTES], len: usize, out: &mut [u8; STATE_BYTES]) {
        expand_by::<Lanes8>(key, block, len, out);
    }

    /// The same code for CPUs that have twice as many registers, and rotations.
    #[target_feature(enable = "avx512f,avx512vl")]
    pub(super) fn hashes_avx512(key: &[u8; 32], state: &[u16; WORDS]) -> [u8; 32 * LEAVES] {
        hashes_by::<Lanes8>(key, state)
    }

    impl Lanes for Lanes8 {
        #[inline(always)]
        fn from_words(words: [u32; LEAVES]) -> Self {
            // SAFETY: both are 32 bytes of any bits.
            Self(unsafe { transmute::<[u32; LEAVES], __m256i>(words) })
        }
        #[inline(always)]
        fn from_halves(halves: &[u16; 2 * LEAVES]) -> Self {
            // SAFETY: both are 32 bytes of any bits; the CPU is little-endian, so low halves lie first.
            Self(unsafe { transmute::<[u16; 2 * LEAVES], __m256i>(*halves) })
        }
        #[inline(always)]
        fn words(self) -> [u32; LEAVES] {
            // SAFETY: both are 32 bytes of any bits.
            unsafe { transmute::<__m256i, [u32; LEAVES]>(self.0) }
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: whoever has a value of this type runs where the CPU has AVX2.
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
            Self(unsafe { rotate::<BITS>(self.0) })
        }
    }

    /// By whole bytes it is a shuffle, else two shifts.
    ///
    /// # Safety
    /// The CPU has AVX2. (Not by `target_feature`, with which nothing is inlined for sure.)
    #[inline(always)]
    unsafe fn rotate<const BITS: u32>(words: __m256i) -> __m256i {
        // SAFETY: the caller's.
        unsafe {
            match BITS {
                8 => {
                    let bytes = _mm256_setr_epi8(
                        1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12, 1, 2, 3, 0, 5, 6, 7, 4, 9, 10,
                        11, 8, 13, 14, 15, 12,
                    );
                    _mm256_shuffle_epi8(words, bytes)
                }
                16 => {
                    let bytes = _mm256_setr_epi8(
                        2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11,
                        8, 9, 14, 15, 12, 13,
                    );
                    _mm256_shuffle_epi8(words, bytes)
                }
                _ => _mm256_or_si256(
                    _mm256_srl_epi32(words, _mm_cvtsi32_si128(BITS.cast_signed())),
                    _mm256_sll_epi32(words, _mm_cvtsi32_si128((32 - BITS).cast_signed())),
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same, one leaf after the other, by the library.
    fn expected(key: &[u8; 32], state: &[u16; WORDS]) -> Vec<u8> {
        let bytes: Vec<u8> = state.iter().flat_map(|word| word.to_le_bytes()).collect();
        let leaf = |l: usize| -> Vec<u8> {
            let groups = bytes.chunks(4).skip(l).step_by(LEAVES);
            groups.flatten().copied().collect()
        };
        (0..LEAVES)
            .flat_map(|l| *blake3::keyed_hash(key, &leaf(l)).as_bytes())
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn each_leaf_is_hashed_as_by_the_library(key: [u8; 32], state in prop::collection::vec(any::<u16>(), WORDS)) {
            let state = state.try_into().unwrap();
            let wanted = expected(&key, &state);
            prop_assert_eq!(&hashes(&key, &state)[..], &wanted[..]);
            prop_assert_eq!(&hashes_by::<[u32; LEAVES]>(&key, &state)[..], &wanted[..]);
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the CPU has the feature.
                prop_assert_eq!(&unsafe { avx2::hashes(&key, &state) }[..], &wanted[..]);
            }
        }

        #[test]
        fn an_element_is_expanded_as_by_the_library(key: [u8; 32], element in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut wanted = [0; STATE_BYTES];
            blake3::Hasher::new_keyed(&key).update(&element).finalize_xof().fill(&mut wanted);
            let Some(block) = padded(&element) else {
                prop_assert!(element.len() > BLOCK_BYTES);
                prop_assert!(!expand(&key, &element, &mut wanted));
                return Ok(());
            };
            let mut out = [0; STATE_BYTES];
            expand_by::<[u32; LEAVES]>(&key, &block, element.len(), &mut out);
            prop_assert_eq!(&out[..], &wanted[..]);
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                let mut out = [0; STATE_BYTES];
                // SAFETY: the CPU has the feature.
                unsafe { avx2::expand(&key, &block, element.len(), &mut out) };
                prop_assert_eq!(&out[..], &wanted[..]);
            }
        }
    }
}
