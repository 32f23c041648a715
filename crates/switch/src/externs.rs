//! Stateful externs: registers, counters, meters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linewarden_evidence::state::{ArrayId, DirtyCells, MeasuredState, StateError};
use num_bigint::BigUint;

use crate::changed_arrays::ChangedArrays;
use crate::meter::Meter;
use crate::program::Program;
use crate::program::ids::{CounterId, MeterId, RegisterId};

/// Last part of the name of the register array in which a program can read the digests: cells 0, 1 and 2 hold the
/// digests of registers, tables and program, each truncated to its leading bits.
pub const DIGESTS_REGISTER: &str = "linewarden_evidence";

/// Cells of a register array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cells {
    /// Cells of up to 64 bits.
    Narrow(Vec<u64>),
    /// Wider cells.
    Wide(Vec<BigUint>),
}

impl Cells {
    /// Encodes a cell for evidence: big-endian in the length of `out`; zero if the cell does not exist.
    pub(crate) fn write(&self, index: u32, out: &mut [u8]) {
        match self {
            Self::Narrow(cells) => {
                let value = cells.get(index as usize).copied().unwrap_or_default();
                pad(&value.to_be_bytes(), out);
            }
            Self::Wide(cells) => {
                let value = cells.get(index as usize).map(BigUint::to_bytes_be);
                pad(value.as_deref().unwrap_or_default(), out);
            }
        }
    }
}

/// Writes a big-endian number right-aligned, with zeros in front.
fn pad(number: &[u8], out: &mut [u8]) {
    out.fill(0);
    for (to, from) in out.iter_mut().rev().zip(number.iter().rev()) {
        *to = *from;
    }
}

/// Tracks writes for evidence.
#[derive(Clone, Debug)]
struct WriteTracker {
    dirty: DirtyCells,
    changed_arrays: Arc<ChangedArrays>,
    id: RegisterId,
}

/// Register array.
#[derive(Clone, Debug)]
pub struct Registers {
    bits: u32,
    cells: Cells,
    /// Whether the array publishes the digests of the measurement to the program; writes of the program are ignored.
    is_digest_register: bool,
    tracker: Option<WriteTracker>,
}

impl Registers {
    /// Creates an array of zeros.
    #[must_use]
    pub fn new(size: u32, bits: u32) -> Self {
        let cells = match bits {
            0..=64 => Cells::Narrow(vec![0; size as usize]),
            _ => Cells::Wide(vec![BigUint::default(); size as usize]),
        };
        Self {
            bits,
            cells,
            is_digest_register: false,
            tracker: None,
        }
    }

    /// Cells.
    #[must_use]
    pub fn cells(&self) -> &Cells {
        &self.cells
    }

    /// Starts tracking writes.
    pub(crate) fn track(&mut self, changed_arrays: &Arc<ChangedArrays>, id: RegisterId) {
        let size = u32::try_from(self.len()).unwrap_or(u32::MAX);
        let mut tracker = WriteTracker {
            dirty: DirtyCells::new(self.bits, size),
            changed_arrays: Arc::clone(changed_arrays),
            id,
        };
        // The measurement starts with zero in all cells, so the next fold must measure each cell that is not zero.
        let zero = vec![0; self.bits.div_ceil(8) as usize];
        for index in 0..size {
            if self
                .get(u64::from(index))
                .is_some_and(|value| value != BigUint::default())
            {
                tracker.dirty.mark(index, &zero);
                tracker.changed_arrays.set(id);
            }
        }
        self.tracker = Some(tracker);
    }

    /// Adds the tracked writes to the measurement.
    pub(crate) fn fold(&mut self, measured: &mut MeasuredState, array: ArrayId) -> Result<(), StateError> {
        let Some(tracker) = &mut self.tracker else {
            return Ok(());
        };
        let cells = &self.cells;
        let result = measured.fold(array, &mut tracker.dirty, |index, out| cells.write(index, out));
        result.map(|_| ())
    }

    /// Writes the leading bits of a digest into a cell of the array that publishes digests. Writes to this array are not
    /// tracked. The function runs after each change of the state, so it allocates no memory.
    pub(crate) fn set_digest(&mut self, index: u64, digest: &[u8; 32]) {
        let Ok(index) = usize::try_from(index) else {
            return;
        };
        match &mut self.cells {
            Cells::Narrow(cells) => {
                let leading_bits = digest.first_chunk().copied().map_or(0, u64::from_be_bytes);
                if let Some(cell) = cells.get_mut(index) {
                    *cell = leading_bits >> (64 - self.bits.clamp(1, 64));
                }
            }
            Cells::Wide(cells) => {
                let Some(cell) = cells.get_mut(index) else {
                    return;
                };
                let mut digits = [0; 8];
                for (digit, bytes) in digits.iter_mut().rev().zip(digest.as_chunks().0) {
                    *digit = u32::from_be_bytes(*bytes);
                }
                // Whole words beyond the width are skipped; remaining bits are shifted out.
                let excess_bits = 256usize.saturating_sub(self.bits as usize);
                cell.assign_from_slice(digits.get(excess_bits / 32..).unwrap_or_default());
                match self.bits {
                    0..256 if excess_bits.is_multiple_of(32) => {}
                    0..256 => *cell >>= excess_bits % 32,
                    bits => *cell <<= bits - 256,
                }
            }
        }
    }

    /// Marks a cell as changed; `mark` records its old value.
    #[inline]
    fn mark_dirty(tracker: &mut Option<WriteTracker>, index: u64, mark: impl FnOnce(&mut DirtyCells, u32)) {
        if let (Some(tracker), Ok(index)) = (tracker, u32::try_from(index)) {
            mark(&mut tracker.dirty, index);
            tracker.changed_arrays.set(tracker.id);
        }
    }

    /// Maximum memory of a cell of this width, bytes.
    #[must_use]
    pub fn cell_bytes(bits: u32) -> usize {
        match bits {
            0..=64 => size_of::<u64>(),
            _ => size_of::<BigUint>() + bits.div_ceil(8).next_multiple_of(8) as usize,
        }
    }

    /// Width of a cell, bits.
    #[must_use]
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// Number of cells.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.cells {
            Cells::Narrow(cells) => cells.len(),
            Cells::Wide(cells) => cells.len(),
        }
    }

    /// Whether there are no cells.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Value of a cell of up to 64 bits; `None` if the cell does not exist or the cells are wider.
    #[inline]
    #[must_use]
    pub fn narrow(&self, index: u64) -> Option<u64> {
        match &self.cells {
            Cells::Narrow(cells) => cells.get(usize::try_from(index).ok()?).copied(),
            Cells::Wide(_) => None,
        }
    }

    /// Value of a cell of more than 64 bits; `None` if the cell does not exist or the cells are narrower.
    #[must_use]
    pub fn wide(&self, index: u64) -> Option<&BigUint> {
        match &self.cells {
            Cells::Narrow(_) => None,
            Cells::Wide(cells) => cells.get(usize::try_from(index).ok()?),
        }
    }

    /// Stores the low bits of a value in a cell of up to 64 bits; returns whether the cell exists. The array that publishes
    /// digests ignores the write.
    #[inline]
    pub fn set_narrow(&mut self, index: u64, value: u64) -> bool {
        let mask = u64::MAX >> (64 - self.bits.clamp(1, 64));
        let Cells::Narrow(cells) = &mut self.cells else {
            return false;
        };
        let Some(cell) = usize::try_from(index).ok().and_then(|index| cells.get_mut(index)) else {
            return false;
        };
        if self.is_digest_register {
            return true;
        }
        let old = *cell;
        Self::mark_dirty(&mut self.tracker, index, |dirty, index| {
            dirty.mark_u64(index, old)
        });
        *cell = value & mask;
        true
    }

    /// Value of a cell.
    #[must_use]
    pub fn get(&self, index: u64) -> Option<BigUint> {
        let index = usize::try_from(index).ok()?;
        match &self.cells {
            Cells::Narrow(cells) => cells.get(index).map(|cell| BigUint::from(*cell)),
            Cells::Wide(cells) => cells.get(index).cloned(),
        }
    }

    /// Stores the low bits of a value; returns whether the cell exists. The array that publishes digests ignores the write.
    pub fn set(&mut self, index: u64, value: &BigUint) -> bool {
        let masked = value & ((BigUint::from(1u8) << self.bits) - 1u8);
        if let Cells::Narrow(_) = self.cells {
            let low = masked.iter_u64_digits().next().unwrap_or(0);
            return self.set_narrow(index, low);
        }
        let Cells::Wide(cells) = &mut self.cells else {
            return false;
        };
        let Some(cell) = usize::try_from(index).ok().and_then(|index| cells.get_mut(index)) else {
            return false;
        };
        if self.is_digest_register {
            return true;
        }
        let old = std::mem::replace(cell, masked);
        let bytes = self.bits.div_ceil(8) as usize;
        Self::mark_dirty(&mut self.tracker, index, |dirty, index| {
            let mut padded = vec![0; bytes];
            pad(&old.to_bytes_be(), &mut padded);
            dirty.mark(index, &padded);
        });
        true
    }

    /// Sets all cells to 0.
    pub fn reset(&mut self) {
        for index in 0..self.len() as u64 {
            if self.get(index).is_some_and(|value| value != BigUint::default()) {
                self.set(index, &BigUint::default());
            }
        }
    }
}

/// Counter of packets and bytes.
#[derive(Debug, Default)]
pub struct Counter {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Counter {
    /// Counts a packet of this length, bytes.
    #[inline]
    pub fn count(&self, bytes: u64) {
        self.packets.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Packets and bytes.
    #[must_use]
    pub fn get(&self) -> (u64, u64) {
        (
            self.packets.load(Ordering::Relaxed),
            self.bytes.load(Ordering::Relaxed),
        )
    }

    /// Sets both counts.
    pub fn set(&self, packets: u64, bytes: u64) {
        self.packets.store(packets, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }
}

/// Registers, counters and meters of a program.
#[derive(Debug, Default)]
pub struct Externs {
    registers: Vec<Mutex<Registers>>,
    counters: Vec<Vec<Counter>>,
    meters: Vec<Vec<Mutex<Meter>>>,
}

impl Externs {
    /// Creates the externs of a program, all zero.
    #[must_use]
    pub fn of(program: &Program) -> Self {
        let registers = program
            .registers
            .iter()
            .map(|array| {
                let mut cells = Registers::new(array.size, array.bits);
                cells.is_digest_register = is_digest_register(&array.name);
                Mutex::new(cells)
            })
            .collect();
        let counters = program
            .counters
            .iter()
            .map(|array| (0..array.size).map(|_| Counter::default()).collect())
            .collect();
        let meters = program
            .meters
            .iter()
            .map(|array| (0..array.size).map(|_| Mutex::new(Meter::new())).collect())
            .collect();
        Self {
            registers,
            counters,
            meters,
        }
    }

    /// Locks a register array.
    #[inline]
    #[must_use]
    pub fn registers(&self, id: RegisterId) -> Option<MutexGuard<'_, Registers>> {
        let array = self.registers.get(id.index())?;
        // A panic cannot leave partial values: each cell is written in one step.
        Some(array.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counter of an array.
    #[inline]
    #[must_use]
    pub fn counter(&self, id: CounterId, index: u64) -> Option<&Counter> {
        self.counters.get(id.index())?.get(usize::try_from(index).ok()?)
    }

    /// Number of counters in an array.
    #[must_use]
    pub fn counter_count(&self, id: CounterId) -> usize {
        self.counters.get(id.index()).map_or(0, Vec::len)
    }

    /// Locks a meter.
    #[inline]
    #[must_use]
    pub fn meter(&self, id: MeterId, index: u64) -> Option<MutexGuard<'_, Meter>> {
        let meter = self.meters.get(id.index())?.get(usize::try_from(index).ok()?)?;
        Some(meter.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Number of meters in an array.
    #[must_use]
    pub fn meter_count(&self, id: MeterId) -> usize {
        self.meters.get(id.index()).map_or(0, Vec::len)
    }
}

/// Whether a register array with this name publishes the digests to the program.
#[must_use]
pub fn is_digest_register(name: &str) -> bool {
    name.rsplit('.').next() == Some(DIGESTS_REGISTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cell_of_any_width_contains_the_leading_bits_of_a_digest() {
        let dense: [u8; 32] = std::array::from_fn(|i| 0x81 + 3 * i as u8);
        let leading_zeros = std::array::from_fn(|i| u8::from(i > 20) * 7);
        for bits in [1, 8, 31, 32, 63, 64, 65, 127, 128, 200, 255, 256, 257, 300] {
            let mut array = Registers::new(3, bits);
            array.is_digest_register = true;
            for digest in [dense, leading_zeros, dense] {
                array.set_digest(1, &digest);
                let full_digest = BigUint::from_bytes_be(&digest);
                let expected = if bits < 256 {
                    full_digest >> (256 - bits)
                } else {
                    full_digest << (bits - 256)
                };
                assert_eq!(array.get(1), Some(expected), "{bits} bits");
            }
            array.set_digest(3, &dense);
            assert_eq!(array.get(0), Some(BigUint::default()));
            assert_eq!(array.get(2), Some(BigUint::default()));
        }
    }
}
