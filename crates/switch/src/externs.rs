//! What packets change: registers, counters, meters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use num_bigint::BigUint;

use crate::meter::Meter;
use crate::program::Program;
use crate::program::ids::{CounterId, MeterId, RegisterId};

/// The cells of a register array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cells {
    /// Of up to 64 bits.
    Narrow(Vec<u64>),
    /// Of more.
    Wide(Vec<BigUint>),
}

/// A register array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registers {
    bits: u32,
    cells: Cells,
}

impl Registers {
    /// An array of zeros.
    #[must_use]
    pub fn new(size: u32, bits: u32) -> Self {
        let cells = match bits {
            0..=64 => Cells::Narrow(vec![0; size as usize]),
            _ => Cells::Wide(vec![BigUint::default(); size as usize]),
        };
        Self { bits, cells }
    }

    /// Most bytes of memory that a cell of so many bits takes.
    #[must_use]
    pub fn cell_bytes(bits: u32) -> usize {
        match bits {
            0..=64 => size_of::<u64>(),
            _ => size_of::<BigUint>() + bits.div_ceil(8).next_multiple_of(8) as usize,
        }
    }

    /// Width of a cell in bits.
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

    /// A cell of up to 64 bits; none if there is no such cell.
    #[inline]
    #[must_use]
    pub fn narrow(&self, index: u64) -> Option<u64> {
        match &self.cells {
            Cells::Narrow(cells) => cells.get(usize::try_from(index).ok()?).copied(),
            Cells::Wide(_) => None,
        }
    }

    /// Stores the low bits of a value in a cell of up to 64 bits; whether there is one.
    #[inline]
    pub fn set_narrow(&mut self, index: u64, value: u64) -> bool {
        let mask = u64::MAX >> (64 - self.bits.clamp(1, 64));
        let Cells::Narrow(cells) = &mut self.cells else {
            return false;
        };
        let Some(cell) = usize::try_from(index).ok().and_then(|index| cells.get_mut(index)) else {
            return false;
        };
        *cell = value & mask;
        true
    }

    /// A cell's value.
    #[must_use]
    pub fn get(&self, index: u64) -> Option<BigUint> {
        let at = usize::try_from(index).ok()?;
        match &self.cells {
            Cells::Narrow(cells) => cells.get(at).map(|cell| BigUint::from(*cell)),
            Cells::Wide(cells) => cells.get(at).cloned(),
        }
    }

    /// Stores the low bits of a value; whether there is such a cell.
    pub fn set(&mut self, index: u64, value: &BigUint) -> bool {
        let masked = value & ((BigUint::from(1u8) << self.bits) - 1u8);
        if let Cells::Narrow(_) = self.cells {
            let low = masked.iter_u64_digits().next().unwrap_or(0);
            return self.set_narrow(index, low);
        }
        let Cells::Wide(cells) = &mut self.cells else {
            return false;
        };
        let Some(cell) = usize::try_from(index).ok().and_then(|at| cells.get_mut(at)) else {
            return false;
        };
        *cell = masked;
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

/// A counter: packets and bytes.
#[derive(Debug, Default)]
pub struct Counter {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Counter {
    /// Counts a packet of so many bytes.
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

    /// Sets both.
    pub fn set(&self, packets: u64, bytes: u64) {
        self.packets.store(packets, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }
}

/// The registers, counters and meters of a program.
#[derive(Debug, Default)]
pub struct Externs {
    registers: Vec<Mutex<Registers>>,
    counters: Vec<Vec<Counter>>,
    meters: Vec<Vec<Mutex<Meter>>>,
}

impl Externs {
    /// Those of a program, all zero.
    #[must_use]
    pub fn of(program: &Program) -> Self {
        let registers = program
            .registers
            .iter()
            .map(|array| Mutex::new(Registers::new(array.size, array.bits)))
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
        // A thread that panicked left whole values: cells are written at once.
        Some(array.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A counter.
    #[inline]
    #[must_use]
    pub fn counter(&self, id: CounterId, index: u64) -> Option<&Counter> {
        self.counters.get(id.index())?.get(usize::try_from(index).ok()?)
    }

    /// Number of counters of an array.
    #[must_use]
    pub fn counters(&self, id: CounterId) -> usize {
        self.counters.get(id.index()).map_or(0, Vec::len)
    }

    /// Locks a meter.
    #[inline]
    #[must_use]
    pub fn meter(&self, id: MeterId, index: u64) -> Option<MutexGuard<'_, Meter>> {
        let meter = self.meters.get(id.index())?.get(usize::try_from(index).ok()?)?;
        Some(meter.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Number of meters of an array.
    #[must_use]
    pub fn meters(&self, id: MeterId) -> usize {
        self.meters.get(id.index()).map_or(0, Vec::len)
    }
}
