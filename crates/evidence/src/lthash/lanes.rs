//! BLAKE3, eight or sixteen compressions side by side.
//!
//! One BLAKE3 over the 2,048 bytes of a state is a chain of 32 dependent compressions: 1.1 µs, more than the update
//! of an element itself. Eight chains of four compressions, one lane for each chain, take a third of this time.
//!
//! An element's expansion is 32 independent compressions that differ only in a counter. For a replacement, both
//! elements are expanded side by side, and only the difference leaves the registers and is added to the states:
//! neither expansion is written to memory.

#[cfg(target_arch = "x86_64")]
mod x86;

use super::{LtHash, WORDS};

/// Leaves of a state.
pub(super) const LEAVES: usize = 8;
/// Words of a block.
const BLOCK_WORDS: usize = 16;
/// Blocks of a state.
const BLOCKS: usize = WORDS / (2 * BLOCK_WORDS);
const BLOCK_BYTES: usize = 64;
const BLOCK_BYTES_U32: u32 = 64;
/// A block in the layout of a state.
type Halves = [u16; 2 * BLOCK_WORDS];
/// Flags of the compression function (BLAKE3 paper, table 3).
const CHUNK_START: u32 = 1;
const CHUNK_END: u32 = 2;
const ROOT: u32 = 8;
const KEYED_HASH: u32 = 16;
/// SHA-256's initial values, which BLAKE3 uses too.
const IV: [u32; 4] = [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a];
/// The order of the message words in each round: the permutation of the BLAKE3 paper (table 2), applied repeatedly.
const SCHEDULE: [[usize; BLOCK_WORDS]; 7] = schedule();

#[allow(clippy::indexing_slicing)] // Computed while compiling: an index out of bounds does not compile.
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

/// One 32-bit word of each of N compressions.
trait Lanes<const N: usize>: Copy {
    fn from_words(words: [u32; N]) -> Self;
    /// The same word in all lanes.
    fn splat(word: u32) -> Self;
    fn words(self) -> [u32; N];
    fn add(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    /// Rotates each word right.
    fn rotate<const BITS: u32>(self) -> Self;
    /// [`round`], compiled for this type.
    #[inline(always)]
    fn round<const ROUND: usize>(v: &mut [Self; BLOCK_WORDS], block: &[Self; BLOCK_WORDS]) {
        round::<Self, N, ROUND>(v, block);
    }
    /// Subtracts the 16-bit halves of words separately.
    fn sub_halves(self, other: Self) -> Self;
    /// Adds `N` blocks to each state from block `first_block` on: lane `i` of all `words` is block `i`. The 16-bit
    /// halves of words are added separately.
    fn add_blocks(words: &[Self; BLOCK_WORDS], states: &mut [&mut LtHash], first_block: usize);
}

/// Operations on leaves.
trait Leaves: Lanes<LEAVES> {
    /// Words from their halves, the low half first.
    fn from_halves(halves: &[u16; 2 * LEAVES]) -> Self;
    /// Transposes: argument `i` is word `i` of all leaves, result `l` is all words of leaf `l`.
    fn transpose(words: [Self; 8]) -> [Self; LEAVES];
}

/// An element of at most one block, padded with zeros.
pub(super) struct Block {
    bytes: [u8; BLOCK_BYTES],
    len: u32,
}

impl Block {
    /// `None` if the element is longer than one block.
    pub(super) fn of(element: &[u8]) -> Option<Self> {
        let mut bytes = [0; BLOCK_BYTES];
        bytes.get_mut(..element.len())?.copy_from_slice(element);
        let len = u32::try_from(element.len()).ok()?;
        Some(Self { bytes, len })
    }
}

/// Removes the expansion of `old`, if given, from all states, and adds the expansion of `new`, if given.
pub(super) fn exchange(key: &[u8; 32], old: Option<&Block>, new: Option<&Block>, states: &mut [&mut LtHash]) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            // SAFETY: the CPU has both features.
            return unsafe { x86::exchange_avx512(key, old, new, states) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has the feature.
            return unsafe { x86::exchange_avx2(key, old, new, states) };
        }
    }
    exchange_by::<[u32; LEAVES], LEAVES>(key, old, new, states);
}

/// As [`exchange`], with lanes of type `L`.
#[inline(always)]
fn exchange_by<L: Lanes<N>, const N: usize>(
    key: &[u8; 32],
    old: Option<&Block>,
    new: Option<&Block>,
    states: &mut [&mut LtHash],
) {
    // Usually there is only a new element: then nothing is subtracted or copied. The code avoids closures, because they are
    // not reliably inlined: a closure that is not inlined is compiled without the CPU features of the caller.
    match (old, new) {
        (None, None) => {}
        (None, Some(new)) => {
            let new = ExpansionStart::<L>::of::<N>(key, new);
            for first_block in (0..BLOCKS).step_by(N) {
                L::add_blocks(&new.expand(first_block), states, first_block);
            }
        }
        (Some(old), None) => {
            let old = ExpansionStart::<L>::of::<N>(key, old);
            for first_block in (0..BLOCKS).step_by(N) {
                let mut change = [L::splat(0); BLOCK_WORDS];
                for (word, old) in change.iter_mut().zip(old.expand(first_block)) {
                    *word = word.sub_halves(old);
                }
                L::add_blocks(&change, states, first_block);
            }
        }
        (Some(old), Some(new)) => {
            let (old, new) = (
                ExpansionStart::<L>::of::<N>(key, old),
                ExpansionStart::<L>::of::<N>(key, new),
            );
            for first_block in (0..BLOCKS).step_by(N) {
                let mut change = new.expand(first_block);
                for (word, old) in change.iter_mut().zip(old.expand(first_block)) {
                    *word = word.sub_halves(old);
                }
                L::add_blocks(&change, states, first_block);
            }
        }
    }
}

/// The part of an element's expansion that is the same for all blocks: blocks differ in a counter, on which three of
/// the first round's four columns do not depend.
struct ExpansionStart<L> {
    chain: [L; 8],
    message: [L; BLOCK_WORDS],
    v: [L; BLOCK_WORDS],
}

impl<L> ExpansionStart<L> {
    #[inline(always)]
    #[allow(clippy::indexing_slicing)] // All indices are constants of the algorithm.
    fn of<const N: usize>(key: &[u8; 32], element: &Block) -> Self
    where
        L: Lanes<N>,
    {
        const FLAGS: u32 = KEYED_HASH | CHUNK_START | CHUNK_END | ROOT;
        let mut chain = [[0]; 8];
        for (word, bytes) in chain.iter_mut().zip(key.as_chunks().0) {
            *word = [u32::from_le_bytes(*bytes)];
        }
        let mut message = [[0]; BLOCK_WORDS];
        for (word, bytes) in message.iter_mut().zip(element.bytes.as_chunks().0) {
            *word = [u32::from_le_bytes(*bytes)];
        }
        let mut v = start(&chain, [0], element.len, FLAGS);
        column::<_, 1, 0>(&mut v, &message, 1);
        column::<_, 1, 0>(&mut v, &message, 2);
        column::<_, 1, 0>(&mut v, &message, 3);
        Self {
            chain: splat_all(&chain),
            message: splat_all(&message),
            v: splat_all(&v),
        }
    }

    /// Computes `N` blocks from `first_block` on, word by word.
    #[inline(always)]
    #[allow(clippy::indexing_slicing)] // All indices are constants of the algorithm.
    fn expand<const N: usize>(&self, first_block: usize) -> [L; BLOCK_WORDS]
    where
        L: Lanes<N>,
    {
        let mut v = self.v;
        let mut counter = [first_block as u32; N];
        for (lane, word) in (0..).zip(&mut counter) {
            *word += lane;
        }
        v[12] = L::from_words(counter);
        column::<L, N, 0>(&mut v, &self.message, 0);
        diagonals::<L, N, 0>(&mut v, &self.message);
        later_rounds(&mut v, &self.message);
        let (low, high) = v.split_at_mut(BLOCK_WORDS / 2);
        for ((low, high), chain) in low.iter_mut().zip(high).zip(&self.chain) {
            *low = low.xor(*high);
            *high = high.xor(*chain);
        }
        v
    }
}

/// Each word in all lanes.
#[inline(always)]
fn splat_all<L: Lanes<N>, const N: usize, const COUNT: usize>(words: &[[u32; 1]; COUNT]) -> [L; COUNT] {
    let mut all = [L::splat(0); COUNT];
    for (lanes, [word]) in all.iter_mut().zip(words) {
        *lanes = L::splat(*word);
    }
    all
}

/// The keyed hashes of the leaves of `state`, one after the other. Leaf l is made of the state's 4-byte groups l, l + 8,
/// l + 16 and so on.
pub(super) fn hashes(key: &[u8; 32], state: &[u16; WORDS]) -> [u8; 32 * LEAVES] {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512vl") && is_x86_feature_detected!("avx512f") {
            // SAFETY: the CPU has both features, which include AVX2.
            return unsafe { x86::hashes_avx512(key, state) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has the feature.
            return unsafe { x86::hashes_avx2(key, state) };
        }
    }
    hashes_by::<[u32; LEAVES]>(key, state)
}

/// Both halves of the compression state.
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

/// As [`hashes`], with lanes of type `L`.
#[inline(always)]
fn hashes_by<L: Leaves>(key: &[u8; 32], state: &[u16; WORDS]) -> [u8; 32 * LEAVES] {
    let mut chain = words(key).map(|word| L::splat(u32::from_le_bytes(*word)));
    let blocks = state.as_chunks::<{ 2 * LEAVES }>().0.as_chunks::<BLOCK_WORDS>().0;
    for (number, block) in blocks.iter().enumerate() {
        let mut words = [L::splat(0); BLOCK_WORDS];
        for (word, halves) in words.iter_mut().zip(block) {
            *word = L::from_halves(halves);
        }
        let mut flags = KEYED_HASH;
        if number == 0 {
            flags |= CHUNK_START;
        }
        if number + 1 == blocks.len() {
            flags |= CHUNK_END | ROOT;
        }
        let v = permute(&chain, &words, BLOCK_BYTES_U32, flags);
        let (low, high) = halves(&v);
        for ((chain, &low), &high) in chain.iter_mut().zip(low).zip(high) {
            *chain = low.xor(high);
        }
    }
    let mut hashes = [0; 32 * LEAVES];
    for (hash, words) in hashes.as_chunks_mut::<32>().0.iter_mut().zip(L::transpose(chain)) {
        for (out, word) in hash.as_chunks_mut::<4>().0.iter_mut().zip(words.words()) {
            *out = word.to_le_bytes();
        }
    }
    hashes
}

/// The compression function's rounds.
#[inline(always)]
fn permute<L: Lanes<N>, const N: usize>(
    chain: &[L; 8],
    block: &[L; BLOCK_WORDS],
    block_bytes: u32,
    flags: u32,
) -> [L; BLOCK_WORDS] {
    let mut v = start(chain, L::splat(0), block_bytes, flags);
    L::round::<0>(&mut v, block);
    later_rounds(&mut v, block);
    v
}

/// The initial state of the rounds; counters are below 2³².
#[inline(always)]
#[allow(clippy::indexing_slicing)] // All indices are constants of the algorithm.
fn start<L: Lanes<N>, const N: usize>(
    chain: &[L; 8],
    counter: L,
    block_bytes: u32,
    flags: u32,
) -> [L; BLOCK_WORDS] {
    let mut v = [L::splat(0); BLOCK_WORDS];
    v[..8].copy_from_slice(chain);
    for (lanes, word) in v[8..]
        .iter_mut()
        .zip([IV[0], IV[1], IV[2], IV[3], 0, 0, block_bytes, flags])
    {
        *lanes = L::splat(word);
    }
    v[12] = counter;
    v
}

/// All rounds but the first.
#[inline(always)]
fn later_rounds<L: Lanes<N>, const N: usize>(v: &mut [L; 16], block: &[L; BLOCK_WORDS]) {
    L::round::<1>(v, block);
    L::round::<2>(v, block);
    L::round::<3>(v, block);
    L::round::<4>(v, block);
    L::round::<5>(v, block);
    L::round::<6>(v, block);
}

#[inline(always)]
fn round<L: Lanes<N>, const N: usize, const ROUND: usize>(v: &mut [L; 16], block: &[L; BLOCK_WORDS]) {
    column::<L, N, ROUND>(v, block, 0);
    column::<L, N, ROUND>(v, block, 1);
    column::<L, N, ROUND>(v, block, 2);
    column::<L, N, ROUND>(v, block, 3);
    diagonals::<L, N, ROUND>(v, block);
}

/// One of the four columns of a round. The round is a constant, so the word positions are constants, too.
#[inline(always)]
#[allow(clippy::indexing_slicing)] // All indices are constants of the algorithm.
fn column<L: Lanes<N>, const N: usize, const ROUND: usize>(
    v: &mut [L; 16],
    block: &[L; BLOCK_WORDS],
    index: usize,
) {
    let m = |i: usize| block[const { SCHEDULE[ROUND] }[i]];
    mix(
        v,
        [index, index + 4, index + 8, index + 12],
        m(2 * index),
        m(2 * index + 1),
    );
}

#[inline(always)]
#[allow(clippy::indexing_slicing)] // All indices are constants of the algorithm.
fn diagonals<L: Lanes<N>, const N: usize, const ROUND: usize>(v: &mut [L; 16], block: &[L; BLOCK_WORDS]) {
    let m = |i: usize| block[const { SCHEDULE[ROUND] }[i]];
    mix(v, [0, 5, 10, 15], m(8), m(9));
    mix(v, [1, 6, 11, 12], m(10), m(11));
    mix(v, [2, 7, 8, 13], m(12), m(13));
    mix(v, [3, 4, 9, 14], m(14), m(15));
}

/// The function G on four words of the state.
#[inline(always)]
#[allow(clippy::indexing_slicing)] // All indices are constants of the algorithm.
fn mix<L: Lanes<N>, const N: usize>(v: &mut [L; 16], [a, b, c, d]: [usize; 4], x: L, y: L) {
    v[a] = v[a].add(x).add(v[b]);
    v[d] = v[d].xor(v[a]).rotate::<16>();
    v[c] = v[c].add(v[d]);
    v[b] = v[b].xor(v[c]).rotate::<12>();
    v[a] = v[a].add(y).add(v[b]);
    v[d] = v[d].xor(v[a]).rotate::<8>();
    v[c] = v[c].add(v[d]);
    v[b] = v[b].xor(v[c]).rotate::<7>();
}

#[allow(clippy::indexing_slicing)] // i is below the length of both.
impl<const N: usize> Lanes<N> for [u32; N] {
    #[inline(always)]
    fn from_words(words: Self) -> Self {
        words
    }
    #[inline(always)]
    fn splat(word: u32) -> Self {
        [word; N]
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
    /// A separate function: if it were inlined, the code for eight lanes of integers would take 300 KB and be slower
    /// by a fifth.
    #[inline(never)]
    fn round<const ROUND: usize>(v: &mut [Self; BLOCK_WORDS], block: &[Self; BLOCK_WORDS]) {
        round::<Self, N, ROUND>(v, block);
    }
    #[inline(always)]
    fn sub_halves(self, other: Self) -> Self {
        std::array::from_fn(|i| {
            let high = (self[i] >> 16).wrapping_sub(other[i] >> 16) << 16;
            high | (self[i].wrapping_sub(other[i]) & 0xffff)
        })
    }
    fn add_blocks(words: &[Self; BLOCK_WORDS], states: &mut [&mut LtHash], first_block: usize) {
        for state in states {
            let blocks = blocks::<N>(state, first_block).into_iter().flatten();
            for (lane, block) in blocks.enumerate() {
                for (halves, word) in block.as_chunks_mut().0.iter_mut().zip(words) {
                    let [low, high]: &mut [u16; 2] = halves;
                    *low = low.wrapping_add(word[lane] as u16);
                    *high = high.wrapping_add((word[lane] >> 16) as u16);
                }
            }
        }
    }
}

#[allow(clippy::indexing_slicing)] // i is below the length of both.
impl Leaves for [u32; LEAVES] {
    #[inline(always)]
    fn from_halves(halves: &[u16; 2 * LEAVES]) -> Self {
        let (halves, _) = halves.as_chunks::<2>();
        std::array::from_fn(|i| u32::from(halves[i][0]) | u32::from(halves[i][1]) << 16)
    }
    #[inline(always)]
    fn transpose(words: [Self; 8]) -> [Self; LEAVES] {
        std::array::from_fn(|leaf| std::array::from_fn(|word| words[word][leaf]))
    }
}

/// N blocks of a state.
#[inline(always)]
fn blocks<const N: usize>(state: &mut LtHash, first_block: usize) -> Option<&mut [Halves; N]> {
    let (blocks, _) = state.0.as_chunks_mut();
    blocks.get_mut(first_block..)?.first_chunk_mut()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The reference hashes, computed one leaf after the other by the library.
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
            let reference_hashes = expected(&key, &state);
            prop_assert_eq!(&hashes(&key, &state)[..], &reference_hashes[..]);
            prop_assert_eq!(&hashes_by::<[u32; LEAVES]>(&key, &state)[..], &reference_hashes[..]);
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the CPU has the feature.
                prop_assert_eq!(&unsafe { x86::hashes_avx2(&key, &state) }[..], &reference_hashes[..]);
            }
        }

        #[test]
        fn elements_are_exchanged_as_the_library_expands_them(
            key: [u8; 32],
            before in prop::collection::vec(any::<u16>(), WORDS),
            old in prop::option::of(prop::collection::vec(any::<u8>(), 0..80)),
            new in prop::option::of(prop::collection::vec(any::<u8>(), 0..80)),
        ) {
            let is_short = |element: &Option<Vec<u8>>| element.as_ref().is_none_or(|element| element.len() <= BLOCK_BYTES);
            let block = |element: &Option<Vec<u8>>| element.as_deref().and_then(Block::of);
            for element in [&old, &new] {
                prop_assert_eq!(block(element).is_some(), element.is_some() && is_short(element));
            }
            prop_assume!(is_short(&old) && is_short(&new));
            let before = LtHash(before.try_into().unwrap());
            let mut reference_state = before.clone();
            for (element, sign) in [(&old, u16::MAX), (&new, 1)] {
                for (word, change) in reference_state.0.iter_mut().zip(expanded(&key, element.as_deref())) {
                    *word = word.wrapping_add(change.wrapping_mul(sign));
                }
            }
            let (old, new) = (block(&old), block(&new));
            let check = |exchange: &dyn Fn(&mut [&mut LtHash])| {
                let (mut first, mut second) = (before.clone(), before.clone());
                exchange(&mut [&mut first, &mut second]);
                prop_assert!(first == reference_state && second == reference_state);
                Ok(())
            };
            let (old, new) = (old.as_ref(), new.as_ref());
            check(&|states| exchange(&key, old, new, states))?;
            check(&|states| exchange_by::<[u32; 8], 8>(&key, old, new, states))?;
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the CPU has the feature.
                check(&|states| unsafe { x86::exchange_avx2(&key, old, new, states) })?;
            }
        }
    }

    /// The reference expansion, computed by the library; zeros for no element.
    fn expanded(key: &[u8; 32], element: Option<&[u8]>) -> Vec<u16> {
        let mut bytes = vec![0; 2 * WORDS];
        if let Some(element) = element {
            blake3::Hasher::new_keyed(key)
                .update(element)
                .finalize_xof()
                .fill(&mut bytes);
        }
        bytes
            .as_chunks()
            .0
            .iter()
            .map(|word| u16::from_le_bytes(*word))
            .collect()
    }
}
