//! The inputs of many blocks, kept as lanes load them.

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::KEY_BYTES;
use crate::matrix::Matrix;

/// What up to [`Inputs::ROOM`] blocks are computed from: the first words of all, then the second words, and so on. Of places that
/// were not set the matrix is all zero.
#[derive(Zeroize, ZeroizeOnDrop)]
#[repr(align(64))]
pub struct Inputs(pub(crate) [[u32; Inputs::ROOM]; 16]);

impl core::fmt::Debug for Inputs {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Inputs { .. }")
    }
}

impl Default for Inputs {
    fn default() -> Self {
        Self([[0; Self::ROOM]; 16])
    }
}

impl Inputs {
    /// How many there is room for.
    pub const ROOM: usize = 64;

    /// The matrix of that key, counter and nonce at a place below [`Inputs::ROOM`]; elsewhere nothing happens.
    #[inline]
    pub fn set(&mut self, at: usize, key: &[u8; KEY_BYTES], counter: u64, nonce: &[u8; 8]) {
        self.put(at, &Matrix::words_of(key, counter, nonce));
    }

    /// Likewise any matrix.
    #[inline]
    pub fn set_matrix(&mut self, at: usize, matrix: &Matrix) {
        self.put(at, &matrix.0);
    }

    #[inline]
    fn put(&mut self, at: usize, words: &[u32; 16]) {
        for (row, word) in self.0.iter_mut().zip(words) {
            if let Some(place) = row.get_mut(at) {
                *place = *word;
            }
        }
    }
}
