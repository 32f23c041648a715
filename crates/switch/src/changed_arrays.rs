//! Register arrays that packets have written since the last measurement.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::program::ids::RegisterId;

/// One flag per array and a change counter. A flag is set under the array's lock and read without the lock. Each worker
/// compares the counter with the value that the worker has read last, so every worker detects each change.
/// Usually a worker reads only the counter.
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

    /// Flags an array that has a dirty cell.
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

    /// Returns the change counter. A caller that reads the counter before the flags misses no change.
    #[inline]
    #[must_use]
    pub fn change_count(&self) -> u64 {
        self.change_count.load(Ordering::Acquire)
    }

    /// Takes the flagged arrays and clears their flags. An array that is flagged concurrently is in this or the next result.
    pub fn take(&self) -> impl Iterator<Item = RegisterId> {
        let take_flag = |(flag, id): (&AtomicBool, u32)| {
            let was_flagged = flag.load(Ordering::Acquire) && flag.swap(false, Ordering::AcqRel);
            was_flagged.then_some(RegisterId(id))
        };
        self.arrays.iter().zip(0u32..).filter_map(take_flag)
    }
}
