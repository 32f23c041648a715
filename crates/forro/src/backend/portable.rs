//! Four lanes in plain Rust, which compilers vectorize for the target (SSE2, NEON).

use cipher::consts::U4;

use super::lanes::{Compare, Lanes, equal_rows};
use crate::BLOCK_BYTES;
use crate::matrix::{Matrix, bytes};
use crate::permute::Word;

/// A word of four matrices.
#[derive(Clone, Copy)]
pub(crate) struct Word4([u32; 4]);

impl Word4 {
    #[inline(always)]
    fn zip(mut self, other: Self, op: impl Fn(u32, u32) -> u32) -> Self {
        for (own, other) in self.0.iter_mut().zip(other.0) {
            *own = op(*own, other);
        }
        self
    }
}

impl Word for Word4 {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, u32::wrapping_add)
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        self.zip(other, |a, b| a ^ b)
    }
    #[inline(always)]
    fn rotate<const N: i32>(self) -> Self {
        Self(self.0.map(|word| word.rotate_left(N.unsigned_abs())))
    }
}

impl Lanes for Word4 {
    type Count = U4;

    #[inline(always)]
    fn splat(word: u32) -> Self {
        Self([word; 4])
    }

    #[inline(always)]
    fn from_lanes(word: impl Fn(usize) -> u32) -> Self {
        Self(core::array::from_fn(word))
    }

    #[inline(always)]
    fn gather(matrices: &[Matrix]) -> [Self; 16] {
        let mut lanes = [[0; 16]; 4];
        for (lane, matrix) in lanes.iter_mut().zip(matrices) {
            *lane = matrix.0;
        }
        let [mut a, mut b, mut c, mut d] = lanes.map(IntoIterator::into_iter);
        core::array::from_fn(|_| {
            Self([&mut a, &mut b, &mut c, &mut d].map(|lane| lane.next().unwrap_or_default()))
        })
    }

    #[inline(always)]
    fn scatter(words: [Self; 16], out: &mut [[u8; BLOCK_BYTES]]) {
        let lanes = [
            words.map(|Word4([word, ..])| word),
            words.map(|Word4([_, word, ..])| word),
            words.map(|Word4([.., word, _])| word),
            words.map(|Word4([.., word])| word),
        ];
        for (out, lane) in out.iter_mut().zip(&lanes) {
            *out = bytes(lane);
        }
    }
}

impl Compare for Word4 {
    #[inline(always)]
    fn load(words: &[u32]) -> Self {
        Self(words.first_chunk().copied().unwrap_or_default())
    }

    #[inline(always)]
    fn equal(words: [Self; 16], expected: &[&[u8; BLOCK_BYTES]]) -> u64 {
        let mut rows = [[0; BLOCK_BYTES]; 4];
        Self::scatter(words, &mut rows);
        equal_rows(&rows, expected)
    }
}
