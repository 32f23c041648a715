//! The set hashes of register arrays.

use super::dirty::DirtyCells;
use super::entry_store::ObjectDigest;
use super::error::StateError;
use crate::encoding::{CellEncoder, Class, Object, byte_len};
use crate::lthash::{Digest, DigestKind, LtHash};

/// A register array whose memory differs from the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayDrift {
    /// The digest from the folded changes.
    pub measured: Digest,
    /// The digest of the memory.
    pub in_memory: Digest,
}

/// The id of a declared array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArrayId(usize);

/// Whether an array is part of the attested state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// Part of the attested state.
    Static,
    /// The array counts packets or similar events: statements contain its digest, but the registers' digest does not
    /// include the array.
    Volatile,
}

#[derive(Clone, Debug)]
struct Array {
    name: String,
    size: u32,
    value_bytes: usize,
    stability: Stability,
    /// The encoders of the old and of the new value of a cell.
    encoders: [CellEncoder; 2],
    hash: LtHash,
    /// Number of nonzero cells.
    cells: u64,
}

/// All arrays.
#[derive(Clone, Debug, Default)]
pub(super) struct Registers {
    arrays: Vec<Array>,
    /// The sum over all arrays that are not volatile.
    sum: LtHash,
    /// A scratch buffer.
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
            return Err(StateError::DuplicateArray(name.to_owned()));
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

    /// Applies the changes of an array; returns the number of changed cells and whether the sum has changed.
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
            .ok_or(StateError::UnknownArray(id.0))?;
        let is_attested = array.stability == Stability::Static;
        if dirty.is_empty() {
            return Ok((0, false));
        }
        let mut changed = 0;
        let value = &mut self.value;
        value.resize(array.value_bytes, 0);
        dirty.drain(|index, old_value| {
            value.fill(0);
            read(index, value);
            if value != old_value {
                changed += 1;
                let sum = is_attested.then_some(&mut self.sum);
                array.change(index, old_value, value, sum);
            }
        });
        Ok((changed, is_attested && changed > 0))
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

    /// Whether the sum matches the arrays' hashes.
    pub fn is_sum_valid(&self) -> bool {
        let mut sum = LtHash::EMPTY;
        let static_arrays = self
            .arrays
            .iter()
            .filter(|array| array.stability == Stability::Static);
        static_arrays.for_each(|array| sum.add_all(&array.hash));
        sum == self.sum
    }

    /// The current measurement of an array, for comparison with a copy of its memory.
    pub fn check(&self, id: ArrayId) -> Result<ArrayCheck, StateError> {
        self.arrays
            .get(id.0)
            .map(|array| ArrayCheck(array.clone()))
            .ok_or(StateError::UnknownArray(id.0))
    }
}

/// The measurement of an array at one moment.
#[derive(Clone, Debug)]
pub struct ArrayCheck(Array);

impl ArrayCheck {
    /// Visits the encodings of the nonzero cells. [`super::MeasuredState::fold`] describes `read`.
    pub fn each_cell(&self, mut read: impl FnMut(u32, &mut [u8]), mut on_cell: impl FnMut(&[u8])) {
        let array = &self.0;
        let [mut encoder, _] = array.encoders.clone();
        let mut value = vec![0; array.value_bytes];
        for index in 0..array.size {
            value.fill(0);
            read(index, &mut value);
            if let Some(element) = encoder.encode(index, &value) {
                on_cell(element);
            }
        }
    }

    /// Compares the memory of the array with the measurement. `read` must return the memory at the moment of the
    /// measurement.
    #[must_use]
    pub fn compare(&self, read: impl FnMut(u32, &mut [u8])) -> Option<ArrayDrift> {
        let mut memory_hash = LtHash::EMPTY;
        self.each_cell(read, |element| {
            LtHash::exchange(&mut [&mut memory_hash], None, Some(element))
        });
        let measured = &self.0.hash;
        (memory_hash != *measured).then(|| ArrayDrift {
            measured: measured.digest(DigestKind::Object),
            in_memory: memory_hash.digest(DigestKind::Object),
        })
    }
}

impl Array {
    /// Replaces the old value of a cell by the new value in the array's set hash, and in `sum` if given. A zero value is
    /// in no set.
    fn change(&mut self, index: u32, old: &[u8], new: &[u8], sum: Option<&mut LtHash>) {
        let [old_encoder, new_encoder] = &mut self.encoders;
        let (old, new) = (old_encoder.encode(index, old), new_encoder.encode(index, new));
        let (present_before, present_after) = (u64::from(old.is_some()), u64::from(new.is_some()));
        self.cells = self
            .cells
            .wrapping_add(present_after)
            .wrapping_sub(present_before);
        match sum {
            Some(sum) => LtHash::exchange(&mut [&mut self.hash, sum], old, new),
            None => LtHash::exchange(&mut [&mut self.hash], old, new),
        }
    }
}
