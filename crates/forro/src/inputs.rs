//! The inputs of many blocks, kept as lanes load them.

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::KEY_BYTES;
use crate::matrix::Matrix;

/// Words of a matrix that are the key's, in its order.
const KEY_ROWS: [usize; 8] = [0, 1, 2, 3, 8, 9, 10, 11];

/// What up to [`Inputs::ROOM`] blocks are computed from: the first words of all, then the second words, and so on. Of places that
/// were not set the matrix is all zero.
#[derive(Zeroize, ZeroizeOnDrop)]
#[repr(align(64))]
pub struct Inputs {
    pub(crate) rows: [[u32; Inputs::ROOM]; 16],
    /// Counter and nonce that every place has, unless one was set to others since.
    shared: Option<(u64, [u8; 8])>,
}

impl core::fmt::Debug for Inputs {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Inputs { .. }")
    }
}

impl Default for Inputs {
    fn default() -> Self {
        Self {
            rows: [[0; Self::ROOM]; 16],
            shared: None,
        }
    }
}

impl Inputs {
    /// How many there is room for.
    pub const ROOM: usize = 64;

    /// Gives every place that counter and nonce, ahead of its key ([`Inputs::set_key`]). Nothing is done where all have them
    /// already: whoever computes blocks of one counter and nonce all the time writes nothing but keys.
    #[inline]
    pub fn share(&mut self, counter: u64, nonce: &[u8; 8]) {
        if self.shared != Some((counter, *nonce)) {
            self.share_anew(counter, nonce);
        }
    }

    #[cold]
    fn share_anew(&mut self, counter: u64, nonce: &[u8; 8]) {
        let words = Matrix::words_of(&[0; KEY_BYTES], counter, nonce);
        for (at, (row, word)) in self.rows.iter_mut().zip(words).enumerate() {
            if !KEY_ROWS.contains(&at) {
                row.fill(word);
            }
        }
        self.shared = Some((counter, *nonce));
    }

    /// The key at a place below [`Inputs::ROOM`], as four little-endian words; elsewhere nothing happens.
    #[inline]
    pub fn set_key(&mut self, at: usize, key: &[u64; 4]) {
        let halves = key.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]);
        for (row, half) in KEY_ROWS.into_iter().zip(halves) {
            if let Some(place) = self.rows.get_mut(row).and_then(|row| row.get_mut(at)) {
                *place = half;
            }
        }
    }

    /// Counter and nonce of one place, ahead of its key.
    #[inline]
    pub fn ask(&mut self, at: usize, counter: u64, nonce: &[u8; 8]) {
        if self.shared != Some((counter, *nonce)) {
            self.put(at, &Matrix::words_of(&[0; KEY_BYTES], counter, nonce));
        }
    }

    /// Any matrix.
    #[inline]
    pub fn set_matrix(&mut self, at: usize, matrix: &Matrix) {
        self.put(at, &matrix.0);
    }

    #[inline]
    fn put(&mut self, at: usize, words: &[u32; 16]) {
        self.shared = None;
        for (row, word) in self.rows.iter_mut().zip(words) {
            if let Some(place) = row.get_mut(at) {
                *place = *word;
            }
        }
    }
}
