//! Which register arrays packets have written since evidence was made last.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::program::ids::RegisterId;

/// Flags that are set under an array's lock and looked at without it: a packet that wrote nothing asks one of them.
#[derive(Debug)]
pub struct Touched {
    any: AtomicBool,
    arrays: Box<[AtomicBool]>,
}

impl Touched {
    /// For so many arrays.
    #[must_use]
    pub fn new(arrays: usize) -> Self {
        Self {
            any: AtomicBool::new(false),
            arrays: (0..arrays).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// An array has a cell that was marked dirty.
    pub fn set(&self, array: RegisterId) {
        if let Some(flag) = self.arrays.get(array.index()) {
            flag.store(true, Ordering::Release);
        }
        self.any.store(true, Ordering::Release);
    }

    /// Has workers look at the measurement again, though no array was written.
    pub fn ask(&self) {
        self.any.store(true, Ordering::Release);
    }

    /// Whether any array has.
    #[inline]
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// The arrays that have; their flags are taken back. One that is marked while this runs is in it or in the next.
    pub fn take(&self) -> impl Iterator<Item = RegisterId> {
        let any = self.any.swap(false, Ordering::AcqRel);
        let arrays = if any { &*self.arrays } else { &[] };
        let taken = |(flag, id): (&AtomicBool, u32)| {
            let was = flag.load(Ordering::Acquire) && flag.swap(false, Ordering::AcqRel);
            was.then_some(RegisterId(id))
        };
        arrays.iter().zip(0u32..).filter_map(taken)
    }
}
