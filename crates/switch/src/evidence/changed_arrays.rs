//! Register arrays that packets have written since the last measurement.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::program::ids::RegisterId;

/// One flag per array, set under the array's lock and read without the lock, and a change counter. Each worker compares the
/// counter with the last value it has read, so workers do not consume changes of each other. The common case reads only the counter.
#[derive(Debug)]
pub struct ChangedArrays {
    change_count: AtomicU64,
    arrays: Box<[AtomicBool]>,
}

impl ChangedArrays {
    /// Creates flags for this number of arrays.
    #[must_use]
    pub fn new(arrays: usize) -> Self {
        Self {
            change_count: AtomicU64::new(0),
            arrays: (0..arrays).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// Marks an array that has a dirty cell.
    pub fn set(&self, array: RegisterId) {
        if let Some(flag) = self.arrays.get(array.index()) {
            flag.store(true, Ordering::Release);
        }
        self.notify();
    }

    /// Makes workers update their snapshots although no array was written.
    pub fn notify(&self) {
        self.change_count.fetch_add(1, Ordering::Release);
    }

    /// Change counter. Read the counter before taking the flags to miss no change.
    #[inline]
    #[must_use]
    pub fn change_count(&self) -> u64 {
        self.change_count.load(Ordering::Acquire)
    }

    /// Takes the flagged arrays and clears their flags. An array that is flagged concurrently is in this or the next result.
    pub fn take(&self) -> impl Iterator<Item = RegisterId> {
        let taken = |(flag, id): (&AtomicBool, u32)| {
            let was_flagged = flag.load(Ordering::Acquire) && flag.swap(false, Ordering::AcqRel);
            was_flagged.then_some(RegisterId(id))
        };
        self.arrays.iter().zip(0u32..).filter_map(taken)
    }
}
