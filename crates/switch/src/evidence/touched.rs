//! Which register arrays packets have written since evidence was made last.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::program::ids::RegisterId;

/// Flags that are set under an array's lock and looked at without it, and a number that says that something is new: each worker
/// compares it with the one that it has seen, so nobody takes the news from another. A packet that wrote nothing asks only this.
#[derive(Debug)]
pub struct Touched {
    news: AtomicU64,
    arrays: Box<[AtomicBool]>,
}

impl Touched {
    /// For so many arrays.
    #[must_use]
    pub fn new(arrays: usize) -> Self {
        Self {
            news: AtomicU64::new(0),
            arrays: (0..arrays).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// An array has a cell that was marked dirty.
    pub fn set(&self, array: RegisterId) {
        if let Some(flag) = self.arrays.get(array.index()) {
            flag.store(true, Ordering::Release);
        }
        self.ask();
    }

    /// Has workers look at the measurement again, though no array was written.
    pub fn ask(&self) {
        self.news.fetch_add(1, Ordering::Release);
    }

    /// How much has been new so far. Who reads it before taking the flags misses nothing.
    #[inline]
    #[must_use]
    pub fn news(&self) -> u64 {
        self.news.load(Ordering::Acquire)
    }

    /// The arrays that have; their flags are taken back. One that is marked while this runs is in it or in the next.
    pub fn take(&self) -> impl Iterator<Item = RegisterId> {
        let taken = |(flag, id): (&AtomicBool, u32)| {
            let was = flag.load(Ordering::Acquire) && flag.swap(false, Ordering::AcqRel);
            was.then_some(RegisterId(id))
        };
        self.arrays.iter().zip(0u32..).filter_map(taken)
    }
}
