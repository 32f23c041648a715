//! The set hashes of register arrays.

use super::dirty::DirtyCells;
use super::{ArrayDrift, ObjectDigest, StateError};
use crate::encoding::{CellEncoder, Class, Object, byte_len};
use crate::lthash::{DigestKind, LtHash};

/// An array that was declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArrayId(usize);

/// What an array's content says of a data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// It is part of the state that is attested.
    Static,
    /// It counts packets or the like and tells nothing: its digest is in statements, but not in the registers' digest.
    Volatile,
}

#[derive(Clone, Debug)]
struct Array {
    name: String,
    size: u32,
    value_bytes: usize,
    stability: Stability,
    /// For what a cell held and for what it holds.
    encoders: [CellEncoder; 2],
    hash: LtHash,
    /// Cells that are not zero.
    cells: u64,
}

/// All arrays.
#[derive(Clone, Debug, Default)]
pub(super) struct Registers {
    arrays: Vec<Array>,
    /// Of all arrays that are not volatile.
    sum: LtHash,
    /// A place to work in.
    value: Vec<u8>,
}

impl Registers {
    pub const fn sum(&self) -> &LtHash {
        &self.sum
    }

    pub fn declare(
        &mut self,
        name: &str,
        width: u32,
        size: u32,
        stability: Stability,
    ) -> Result<ArrayId, StateError> {
        if self.arrays.iter().any(|array| array.name == name) {
            return Err(StateError::Twice(name.to_owned()));
        }
        self.arrays.push(Array {
            name: name.to_owned(),
            size,
            value_bytes: byte_len(width),
            stability,
            encoders: [CellEncoder::new(name, width), CellEncoder::new(name, width)],
            hash: LtHash::EMPTY,
            cells: 0,
        });
        Ok(ArrayId(self.arrays.len().saturating_sub(1)))
    }

    /// How many cells have another value, and whether the sum has changed with them.
    pub fn fold(
        &mut self,
        id: ArrayId,
        dirty: &mut DirtyCells,
        mut read: impl FnMut(u32, &mut [u8]),
    ) -> Result<(usize, bool), StateError> {
        let array = self
            .arrays
            .get_mut(id.0)
            .filter(|array| array.value_bytes == dirty.value_bytes())
            .ok_or(StateError::Array(id.0))?;
        let counts = array.stability == Stability::Static;
        if dirty.is_empty() {
            return Ok((0, false));
        }
        let mut changed = 0;
        let value = &mut self.value;
        value.resize(array.value_bytes, 0);
        dirty.drain(|index, was| {
            value.fill(0);
            read(index, value);
            if value != was {
                changed += 1;
                let sum = counts.then_some(&mut self.sum);
                array.change(index, was, value, sum);
            }
        });
        Ok((changed, counts && changed > 0))
    }

    pub fn objects(&self) -> Vec<ObjectDigest> {
        let digest = |array: &Array| ObjectDigest {
            object: Object {
                class: Class::Register,
                name: array.name.clone(),
            },
            digest: array.hash.digest(DigestKind::Object),
            entries: array.cells,
            is_volatile: array.stability == Stability::Volatile,
        };
        self.arrays.iter().map(digest).collect()
    }

    /// Whether the sum is that of the arrays' hashes.
    pub fn is_summed(&self) -> bool {
        let mut sum = LtHash::EMPTY;
        let counted = self
            .arrays
            .iter()
            .filter(|array| array.stability == Stability::Static);
        counted.for_each(|array| sum.add_all(&array.hash));
        sum == self.sum
    }

    /// An array as it is measured now, to be compared with a copy of its memory.
    pub fn check(&self, id: ArrayId) -> Result<ArrayCheck, StateError> {
        self.arrays
            .get(id.0)
            .map(|array| ArrayCheck(array.clone()))
            .ok_or(StateError::Array(id.0))
    }
}

/// An array as it was measured at one moment.
#[derive(Clone, Debug)]
pub struct ArrayCheck(Array);

impl ArrayCheck {
    /// Goes through the encodings of the cells that are not zero; `read` as in [`super::Measured::fold`].
    pub fn each_cell(&self, mut read: impl FnMut(u32, &mut [u8]), mut each: impl FnMut(&[u8])) {
        let array = &self.0;
        let [mut encoder, _] = array.encoders.clone();
        let mut value = vec![0; array.value_bytes];
        for index in 0..array.size {
            value.fill(0);
            read(index, &mut value);
            if let Some(element) = encoder.encode(index, &value) {
                each(element);
            }
        }
    }

    /// Compares memory of the same moment with what was measured.
    #[must_use]
    pub fn compare(&self, read: impl FnMut(u32, &mut [u8])) -> Option<ArrayDrift> {
        let mut found = LtHash::EMPTY;
        self.each_cell(read, |element| {
            LtHash::exchange(&mut [&mut found], None, Some(element))
        });
        let measured = &self.0.hash;
        (found != *measured).then(|| ArrayDrift {
            measured: measured.digest(DigestKind::Object),
            found: found.digest(DigestKind::Object),
        })
    }
}

impl Array {
    /// Takes out of the set what a cell held and puts in what it holds; likewise in a sum that the array is part of. A zero is in no set.
    fn change(&mut self, index: u32, old: &[u8], new: &[u8], sum: Option<&mut LtHash>) {
        let [for_old, for_new] = &mut self.encoders;
        let (old, new) = (for_old.encode(index, old), for_new.encode(index, new));
        let (was, is) = (u64::from(old.is_some()), u64::from(new.is_some()));
        self.cells = self.cells.wrapping_add(is).wrapping_sub(was);
        match sum {
            Some(sum) => LtHash::exchange(&mut [&mut self.hash, sum], old, new),
            None => LtHash::exchange(&mut [&mut self.hash], old, new),
        }
    }
}
