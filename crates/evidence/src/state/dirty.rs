//! Cells of a register array that packets have written since evidence was made last.

use crate::encoding::byte_len;

/// The cells that have changed, each with what it held when it was measured last. Belongs to whoever owns the array's memory,
/// and is guarded by what guards that.
///
/// A bit for each cell, and for each dirty one its old value: marking a cell that is dirty already is one look at its bit.
#[derive(Clone, Debug)]
pub struct DirtyCells {
    value_bytes: usize,
    is_dirty: Box<[u64]>,
    size: u32,
    indices: Vec<u32>,
    old: Vec<u8>,
}

impl DirtyCells {
    /// For an array of `size` cells of `width` bits, none of them dirty.
    #[must_use]
    pub fn new(width: u32, size: u32) -> Self {
        let words = usize::try_from(size.div_ceil(64)).unwrap_or(usize::MAX);
        Self {
            value_bytes: byte_len(width),
            is_dirty: vec![0; words].into(),
            size,
            indices: Vec::new(),
            old: Vec::new(),
        }
    }

    /// To be called before a cell is written; `old` is what it holds, big-endian in as many bytes as the width needs.
    ///
    /// A cell beyond the array, or a value of another length, is not of this array: it is not marked, and a rescan tells.
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
            self.old.extend_from_slice(old);
        }
    }

    /// As [`Self::mark`], for arrays of at most 64 bits.
    #[inline]
    pub fn mark_u64(&mut self, index: u32, old: u64) {
        let bytes = old.to_be_bytes();
        if let Some(at) = bytes.len().checked_sub(self.value_bytes) {
            self.mark(index, bytes.get(at..).unwrap_or_default());
        }
    }

    /// Whether nothing has been written.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// How many cells have been.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.indices.len()
    }

    pub(super) const fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Goes through the dirty cells with their old values, and forgets them.
    pub(super) fn drain(&mut self, mut each: impl FnMut(u32, &[u8])) {
        // Values of no bits change never; chunks of no bytes there are none.
        for (&index, old) in self
            .indices
            .iter()
            .zip(self.old.chunks_exact(self.value_bytes.max(1)))
        {
            each(index, old);
        }
        for index in self.indices.drain(..) {
            let word = usize::try_from(index >> 6).unwrap_or(usize::MAX);
            if let Some(word) = self.is_dirty.get_mut(word) {
                *word &= !(1u64 << (index & 63));
            }
        }
        self.old.clear();
    }
}
