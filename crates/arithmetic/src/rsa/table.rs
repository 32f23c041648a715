//! Tables of numbers modulo n, in the form in which batches multiply them.

use std::slice::ChunksExactMut;

use zeroize::Zeroize as _;

use super::{RsaError, RsaPublic, Size};
use crate::simd::group::ModulusGroup;
use crate::simd::row::{Row, WORDS_MAX, store_rows};
use crate::simd::{Backend, BackendTask, Kernels, LANES, WordVector};

/// Numbers modulo one key, in the form that [`product_batch`](super::product_batch) and similar functions multiply: 320 bytes each for
/// 2,048 bits, 512 for 3,072.
///
/// Wiped when dropped, since a signer's table of Rapid Authentication contains secret signatures.
pub struct Table {
    size: Size,
    rows: Vec<Row>,
}

/// One number of a table.
#[derive(Clone, Copy)]
pub struct Element<'a>(&'a [Row]);

impl Table {
    /// A table of `length` zeros.
    #[must_use]
    pub fn new(size: Size, length: usize) -> Self {
        Self {
            size,
            rows: vec![Row::default(); length * size.rows()],
        }
    }

    /// Bytes of a table with one entry.
    #[must_use]
    pub fn single_entry_bytes(size: Size) -> usize {
        size_of::<Self>() + size.rows() * size_of::<Row>()
    }

    /// A table with a copy of one number.
    #[must_use]
    pub fn single(number: Element<'_>) -> Self {
        let rows = number.0.to_vec();
        // The count of rows determines the size.
        let size = if Size::Bits2048.rows() == rows.len() {
            Size::Bits2048
        } else {
            Size::Bits3072
        };
        Self { size, rows }
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len() / self.size.rows()
    }

    /// Whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Stores a wide number, modulo the key's n, at an index. Does nothing if the index is beyond the end.
    ///
    /// # Errors
    /// A number of more than [`Size::wide_bytes`] bytes; a key of another size than the table's.
    pub fn set(&mut self, index: usize, key: &RsaPublic, number: &[u8]) -> Result<(), RsaError> {
        if key.size() != self.size {
            return Err(RsaError::MixedSizes);
        }
        if number.len() > self.size.wide_bytes() {
            return Err(RsaError::Length);
        }
        if let Some(rows) = self.rows.chunks_exact_mut(self.size.rows()).nth(index) {
            key.table_form(rows, number);
        }
        Ok(())
    }

    /// [`Table::set`] for eight consecutive indices from `first` on, in much less time than eight calls. Ignores
    /// numbers whose index is beyond the end.
    ///
    /// # Errors
    /// As for [`Table::set`].
    pub fn set_batch(
        &mut self,
        backend: Backend,
        first: usize,
        key: &RsaPublic,
        numbers: [&[u8]; LANES],
    ) -> Result<(), RsaError> {
        if key.size() != self.size {
            return Err(RsaError::MixedSizes);
        }
        if numbers.iter().any(|number| number.len() > self.size.wide_bytes()) {
            return Err(RsaError::Length);
        }
        let rows = self.size.rows();
        let entries = self.rows.get_mut(first * rows..).unwrap_or_default();
        backend.run(TableForms {
            key,
            numbers,
            elements: entries.chunks_exact_mut(rows),
        });
        Ok(())
    }

    /// The number at an index, or `None` beyond the end. The time does not depend on the number. It may depend on the
    /// index, which is public.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Element<'_>> {
        let rows = self.size.rows();
        self.rows.get(index * rows..(index + 1) * rows).map(Element)
    }
}

/// Converts wide numbers to the form in which a [`Table`] stores them.
struct TableForms<'a> {
    key: &'a RsaPublic,
    numbers: [&'a [u8]; LANES],
    elements: ChunksExactMut<'a, Row>,
}

impl BackendTask for TableForms<'_> {
    type Output = ();

    #[inline(always)]
    fn run<W: WordVector>(self) {
        match self.key.size() {
            Size::Bits2048 => self.run_sized::<W::Register, 8>(),
            Size::Bits3072 => self.run_sized::<W::Register, 12>(),
        }
    }
}

impl TableForms<'_> {
    #[inline(always)]
    fn run_sized<W: Kernels, const B: usize>(mut self) {
        let prepared = [self.key.prepared(); LANES];
        let n = ModulusGroup::<W, B>::load(prepared.get(..W::LANES).unwrap_or_default());
        for numbers in self.numbers.chunks(W::LANES) {
            let mut number = [W::splat(0); WORDS_MAX];
            W::load_be(&mut number, numbers);
            // The reduction divides by R, and each conversion multiplies by R.
            let mut form = n.reduce(&number);
            n.to_montgomery(&mut form);
            n.to_montgomery(&mut form);
            store_rows(self.elements.by_ref().take(W::LANES), &n.canonical(&form));
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.rows.zeroize();
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Table({} numbers of {:?})", self.len(), self.size)
    }
}

impl<'a> Element<'a> {
    pub(super) fn rows(self) -> &'a [Row] {
        self.0
    }

    /// Whether the element belongs to keys of this size.
    pub(super) fn is_of_size(self, size: Size) -> bool {
        self.0.len() == size.rows()
    }
}
