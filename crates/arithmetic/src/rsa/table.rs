//! Numbers kept ready to be factors of a product.

use std::slice::ChunksExactMut;

use zeroize::Zeroize as _;

use super::{Fault, RsaPublic, Size};
use crate::eight::group::Group;
use crate::eight::row::{Row, WORDS_MAX, store_rows};
use crate::eight::{Backend, Kernels, LANES, Task, Word8};

/// Numbers modulo one key, in the form in which [`product_eight`](super::product_eight) and its like multiply: 320 bytes each of 2,048 bits, 512
/// of 3,072.
///
/// Wiped when dropped: components of Rapid Authentication are signatures that nobody else may have.
pub struct Table {
    size: Size,
    rows: Vec<Row>,
}

/// One number of a table.
#[derive(Clone, Copy)]
pub struct Element<'a>(&'a [Row]);

impl Table {
    /// A table of so many numbers, all zero.
    #[must_use]
    pub fn new(size: Size, length: usize) -> Self {
        Self {
            size,
            rows: vec![Row::default(); length * size.rows()],
        }
    }

    /// What a table of one number takes, in bytes.
    #[must_use]
    pub fn bytes_of_one(size: Size) -> usize {
        size_of::<Self>() + size.rows() * size_of::<Row>()
    }

    /// One number of another table.
    #[must_use]
    pub fn of(number: Element<'_>) -> Self {
        let rows = number.0.to_vec();
        // 3,072 bits are half as many rows more than 2,048.
        let size = if Size::Bits2048.rows() == rows.len() {
            Size::Bits2048
        } else {
            Size::Bits3072
        };
        Self { size, rows }
    }

    /// Numbers in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len() / self.size.rows()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Puts a wide number, modulo the key's n, into a place. Nothing happens where there is no such place.
    ///
    /// # Errors
    /// A number longer than a wide one; a key of another size than the table's.
    pub fn set(&mut self, index: usize, key: &RsaPublic, number: &[u8]) -> Result<(), Fault> {
        if key.size() != self.size {
            return Err(Fault::Mixed);
        }
        if number.len() > self.size.wide_bytes() {
            return Err(Fault::Length);
        }
        if let Some(rows) = self.rows.chunks_exact_mut(self.size.rows()).nth(index) {
            key.factor(rows, number);
        }
        Ok(())
    }

    /// [`Table::set`] of eight places from one on, in much less time; numbers for which there are no places are left out.
    ///
    /// # Errors
    /// As there.
    pub fn set_eight(
        &mut self,
        backend: Backend,
        first: usize,
        key: &RsaPublic,
        numbers: [&[u8]; LANES],
    ) -> Result<(), Fault> {
        if key.size() != self.size {
            return Err(Fault::Mixed);
        }
        if numbers.iter().any(|number| number.len() > self.size.wide_bytes()) {
            return Err(Fault::Length);
        }
        let rows = self.size.rows();
        let from = self.rows.get_mut(first * rows..).unwrap_or_default();
        backend.run(Forms {
            key,
            numbers,
            elements: from.chunks_exact_mut(rows),
        });
        Ok(())
    }

    /// The number at a place; constant in time but for the place, which is public.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Element<'_>> {
        let rows = self.size.rows();
        self.rows.get(index * rows..(index + 1) * rows).map(Element)
    }
}

/// Wide numbers in the form in which tables have them.
struct Forms<'a> {
    key: &'a RsaPublic,
    numbers: [&'a [u8]; LANES],
    elements: ChunksExactMut<'a, Row>,
}

impl Task for Forms<'_> {
    type Output = ();

    #[inline(always)]
    fn run<W: Word8>(self) {
        match self.key.size() {
            Size::Bits2048 => self.sized::<W::Register, 8>(),
            Size::Bits3072 => self.sized::<W::Register, 12>(),
        }
    }
}

impl Forms<'_> {
    #[inline(always)]
    fn sized<W: Kernels, const B: usize>(mut self) {
        let prepared = [self.key.prepared(); LANES];
        let n = Group::<W, B>::load(prepared.get(..W::LANES).unwrap_or_default());
        for numbers in self.numbers.chunks(W::LANES) {
            let mut number = [W::splat(0); WORDS_MAX];
            W::load_be(&mut number, numbers);
            // What is reduced is over R; n's entry is R^2.
            let mut form = n.reduce(&number);
            n.enter(&mut form);
            n.enter(&mut form);
            store_rows(self.elements.by_ref().take(W::LANES), &n.least(&form));
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

    /// Whether it belongs to keys of this size.
    pub(super) fn is_of(self, size: Size) -> bool {
        self.0.len() == size.rows()
    }
}
