//! Cells of a register array that packets have written since the last measurement.

use crate::encoding::byte_len;

/// The changed cells, each with its value at the last measurement. The owner of the array stores the changed cells
/// next to the array, and protects them with the lock of the array.
///
/// The record has one bit per cell, and the old value of each dirty cell: marking a dirty cell again only checks its bit.
#[derive(Clone, Debug)]
pub struct DirtyCells {
    value_bytes: usize,
    is_dirty: Box<[u64]>,
    size: u32,
    /// The indices of the dirty cells.
    indices: Vec<u32>,
    /// The old values of the dirty cells, in the order of `indices`, without separators.
    old_values: Vec<u8>,
}

impl DirtyCells {
    /// Creates the record for an array of `size` cells of `width` bits; no cell is dirty.
    #[must_use]
    pub fn new(width: u32, size: u32) -> Self {
        let words = usize::try_from(size.div_ceil(64)).unwrap_or(usize::MAX);
        Self {
            value_bytes: byte_len(width),
            is_dirty: vec![0; words].into(),
            size,
            indices: Vec::new(),
            old_values: Vec::new(),
        }
    }

    /// Marks a cell before it is written; `old` is its current value, big-endian, in as many bytes as the width
    /// requires.
    ///
    /// The call has no effect for an index beyond the array and for a value of another length. A rescan detects such a
    /// change.
    #[inline]
    pub fn mark(&mut self, index: u32, old: &[u8]) {
        let bit = 1u64 << (index & 63);
        let word = usize::try_from(index >> 6).unwrap_or(usize::MAX);
        let Some(word) = self.is_dirty.get_mut(word) else {
            return;
        };
        if *word & bit == 0 && index < self.size && old.len() == self.value_bytes {
            *word |= bit;
            self.indices.push(index);
            self.old_values.extend_from_slice(old);
        }
    }

    /// As [`Self::mark`], for arrays of at most 64 bits.
    #[inline]
    pub fn mark_u64(&mut self, index: u32, old: u64) {
        let bytes = old.to_be_bytes();
        if let Some(start) = bytes.len().checked_sub(self.value_bytes) {
            self.mark(index, bytes.get(start..).unwrap_or_default());
        }
    }

    /// Whether no cell is dirty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// Number of dirty cells.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.indices.len()
    }

    pub(super) const fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Visits the dirty cells with their old values; after that, no cell is dirty.
    pub(super) fn drain(&mut self, mut each: impl FnMut(u32, &[u8])) {
        // The chunk size must not be zero. An array with cells of width zero has no bytes to visit, so 1 is harmless.
        for (&index, old) in self
            .indices
            .iter()
            .zip(self.old_values.chunks_exact(self.value_bytes.max(1)))
        {
            each(index, old);
        }
        for index in self.indices.drain(..) {
            let word = usize::try_from(index >> 6).unwrap_or(usize::MAX);
            if let Some(word) = self.is_dirty.get_mut(word) {
                *word &= !(1u64 << (index & 63));
            }
        }
        self.old_values.clear();
    }
}
