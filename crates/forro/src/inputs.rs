//! The inputs of many blocks, in the layout that lanes load.

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::KEY_BYTES;
use crate::matrix::Matrix;

/// The indexes of the key words in a matrix, in the key's order.
const KEY_ROWS: [usize; 8] = [0, 1, 2, 3, 8, 9, 10, 11];

/// The inputs of up to [`Inputs::BLOCKS_MAX`] blocks: the first words of all matrices, then the second words, and so on.
/// The matrix of a slot that was not set is all zero.
#[derive(Zeroize, ZeroizeOnDrop)]
#[repr(align(64))]
pub struct Inputs {
    pub(crate) rows: [[u32; Inputs::BLOCKS_MAX]; 16],
    /// Counter and nonce of all slots; `None` after a slot was set separately.
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
            rows: [[0; Self::BLOCKS_MAX]; 16],
            shared: None,
        }
    }
}

impl Inputs {
    /// Maximum number of blocks of one `Inputs`: the number of slots.
    pub const BLOCKS_MAX: usize = 64;

    /// Sets counter and nonce of all slots, before [`Inputs::set_key`] sets their keys. Does nothing if all slots have
    /// this counter and nonce already.
    #[inline]
    pub fn set_shared_counter_and_nonce(&mut self, counter: u64, nonce: &[u8; 8]) {
        if self.shared != Some((counter, *nonce)) {
            self.write_shared(counter, nonce);
        }
    }

    #[cold]
    fn write_shared(&mut self, counter: u64, nonce: &[u8; 8]) {
        let words = Matrix::input_words(&[0; KEY_BYTES], counter, nonce);
        for (index, (row, word)) in self.rows.iter_mut().zip(words).enumerate() {
            if !KEY_ROWS.contains(&index) {
                row.fill(word);
            }
        }
        self.shared = Some((counter, *nonce));
    }

    /// Sets the key of a slot below [`Inputs::BLOCKS_MAX`], as four little-endian words; other slots are ignored.
    #[inline]
    pub fn set_key(&mut self, slot: usize, key: &[u64; 4]) {
        let halves = key.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]);
        for (row, half) in KEY_ROWS.into_iter().zip(halves) {
            if let Some(entry) = self.rows.get_mut(row).and_then(|row| row.get_mut(slot)) {
                *entry = half;
            }
        }
    }

    /// Sets counter and nonce of one slot, and may clear its key: call [`Inputs::set_key`] afterwards.
    #[inline]
    pub fn set_counter_and_nonce(&mut self, slot: usize, counter: u64, nonce: &[u8; 8]) {
        if self.shared != Some((counter, *nonce)) {
            self.put(slot, &Matrix::input_words(&[0; KEY_BYTES], counter, nonce));
        }
    }

    /// Sets the matrix of a slot.
    #[inline]
    pub fn set_matrix(&mut self, slot: usize, matrix: &Matrix) {
        self.put(slot, &matrix.0);
    }

    #[inline]
    fn put(&mut self, slot: usize, words: &[u32; 16]) {
        self.shared = None;
        for (row, word) in self.rows.iter_mut().zip(words) {
            if let Some(entry) = row.get_mut(slot) {
                *entry = *word;
            }
        }
    }
}
