//! The 16 input words of a block, and the block function on one matrix.

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::permute::{block, permute};
use crate::rounds::Rounds;
use crate::{BLOCK_BYTES, KEY_BYTES};

/// The ASCII text "voltadaasabranca".
const CONSTANT: [u32; 4] = [0x746c_6f76, 0x6161_6461, 0x7262_6173, 0x6163_6e61];

/// Input of the block function: key words in 0–3 and 8–11, counter in 4 and 5, nonce in 12 and 13, constants in 6, 7, 14 and
/// 15; words are little-endian.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Matrix(pub(crate) [u32; 16]);

impl core::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Matrix { .. }")
    }
}

impl Matrix {
    /// The matrix of a key, counter and nonce.
    #[must_use]
    #[inline]
    pub fn new(key: &[u8; KEY_BYTES], counter: u64, nonce: &[u8; 8]) -> Self {
        Self(Self::input_words(key, counter, nonce))
    }

    /// The matrix with the given words 4, 5, 12 and 13.
    #[inline]
    pub(crate) fn with_input(key: &[u8; KEY_BYTES], input: [u32; 4]) -> Self {
        Self(words_with(key, input))
    }

    /// The words of [`Matrix::new`].
    #[inline(always)]
    pub(crate) fn input_words(key: &[u8; KEY_BYTES], counter: u64, nonce: &[u8; 8]) -> [u32; 16] {
        let [n0, n1] = words(nonce);
        words_with(key, [counter as u32, (counter >> 32) as u32, n0, n1])
    }

    /// A matrix of arbitrary words. The block function of a matrix without the constants is **not** Forró, and the
    /// known security results do not apply (see the documentation of the crate).
    #[must_use]
    pub fn from_words(words: [u32; 16]) -> Self {
        Self(words)
    }

    /// The block of keystream. For many blocks use [`blocks`](crate::blocks).
    #[must_use]
    #[inline]
    pub fn block<R: Rounds>(&self) -> [u8; BLOCK_BYTES] {
        bytes(&block::<R, u32>(&self.0))
    }
}

#[inline(always)]
fn words_with(key: &[u8; KEY_BYTES], [i0, i1, i2, i3]: [u32; 4]) -> [u32; 16] {
    let [k0, k1, k2, k3, k4, k5, k6, k7] = words(key);
    let [c0, c1, c2, c3] = CONSTANT;
    [k0, k1, k2, k3, i0, i1, c0, c1, k4, k5, k6, k7, i2, i3, c2, c3]
}

/// HForró: derives a key from a key and 16 bytes that need not be secret, like HSalsa20 and HChaCha20.
#[must_use]
pub fn hforro<R: Rounds>(key: &[u8; KEY_BYTES], input: &[u8; 16]) -> [u8; KEY_BYTES] {
    let matrix = Matrix::with_input(key, words(input));
    let mut permuted = permute::<R, u32>(matrix.0);
    let [.., m4, m5, m6, m7, _, _, _, _, m12, m13, m14, m15] = permuted;
    let derived = bytes(&[m6, m7, m14, m15, m4, m5, m12, m13]);
    permuted.zeroize();
    derived
}

/// Decodes little-endian words.
#[inline(always)]
pub(crate) fn words<const BYTES: usize, const WORDS: usize>(bytes: &[u8; BYTES]) -> [u32; WORDS] {
    const { assert!(BYTES == 4 * WORDS) };
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

/// Encodes words in little-endian order.
#[inline(always)]
pub(crate) fn bytes<const WORDS: usize, const BYTES: usize>(words: &[u32; WORDS]) -> [u8; BYTES] {
    const { assert!(BYTES == 4 * WORDS) };
    let mut bytes = [0; BYTES];
    for (bytes, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    bytes
}
