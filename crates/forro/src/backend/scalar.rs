//! One lane.

use cipher::consts::U1;

use super::lanes::{Compare, Lanes, equal_rows};
use crate::BLOCK_BYTES;
use crate::matrix::{Matrix, bytes};

impl Lanes for u32 {
    type Count = U1;

    #[inline(always)]
    fn splat(word: u32) -> Self {
        word
    }

    #[inline(always)]
    fn from_lanes(word: impl Fn(usize) -> u32) -> Self {
        word(0)
    }

    #[inline(always)]
    fn gather(matrices: &[Matrix]) -> [Self; 16] {
        matrices.first().map_or([0; 16], |matrix| matrix.0)
    }

    #[inline(always)]
    fn scatter(words: [Self; 16], out: &mut [[u8; BLOCK_BYTES]]) {
        if let Some(out) = out.first_mut() {
            *out = bytes(&words);
        }
    }
}

impl Compare for u32 {
    #[inline(always)]
    fn load(words: &[u32]) -> Self {
        words.first().copied().unwrap_or_default()
    }

    #[inline(always)]
    fn equal(words: [Self; 16], expected: &[&[u8; BLOCK_BYTES]]) -> u64 {
        equal_rows(&[bytes(&words)], expected)
    }
}
