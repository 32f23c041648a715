//! Precomputed multiples of the points of signers whose messages are valid.
//!
//! A table costs as much as a few verifications, and makes later verifications two to three times as fast. Only valid messages count, so a
//! forger cannot cause a table to be made.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Number of valid messages of a signer that CPU lanes verify before a lane makes the signer's table. Verifying these
/// messages takes about as long as making the table.
const VALID_MESSAGES_MIN: u32 = 8;

/// Memory budget that the tables of several signers share.
#[derive(Debug, Default)]
pub(crate) struct MemoryBudget {
    limit: AtomicUsize,
    used: AtomicUsize,
}

impl MemoryBudget {
    /// Sets the budget in bytes. Existing tables stay. Returns the larger of the budget and the size of the existing
    /// tables.
    pub(crate) fn set(&self, bytes: usize) -> usize {
        self.limit.store(bytes, Ordering::Relaxed);
        bytes.max(self.used.load(Ordering::Relaxed))
    }

    /// Reserves memory; returns false if the budget does not suffice.
    fn reserve(&self, bytes: usize) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let add = |used: usize| used.checked_add(bytes).filter(|total| *total <= limit);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .is_ok()
    }
}

/// The table of a signer, or the progress toward a table.
pub struct Precomputed<T> {
    table: OnceLock<T>,
    valid_messages: AtomicU32,
    /// Whether a thread has started to make the table.
    has_started: AtomicBool,
    budget: OnceLock<Arc<MemoryBudget>>,
}

impl<T> Default for Precomputed<T> {
    fn default() -> Self {
        Self {
            table: OnceLock::new(),
            valid_messages: AtomicU32::new(0),
            has_started: AtomicBool::new(false),
            budget: OnceLock::new(),
        }
    }
}

impl<T> fmt::Debug for Precomputed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Precomputed")
            .field("has_table", &self.table.get().is_some())
            .finish_non_exhaustive()
    }
}

impl<T> Precomputed<T> {
    /// The table, if it exists.
    #[must_use]
    pub fn get(&self) -> Option<&T> {
        self.table.get()
    }

    /// Sets the memory budget of the table. Without this call the budget is unlimited; only the first call has an effect.
    pub(crate) fn set_budget(&self, budget: &Arc<MemoryBudget>) {
        let _ = self.budget.set(Arc::clone(budget));
    }

    /// Records a valid message of the signer.
    pub(crate) fn record_valid(&self) {
        if self.table.get().is_none() {
            self.valid_messages.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether enough messages were valid, and no thread has started to make the table.
    pub(crate) fn is_due(&self) -> bool {
        self.valid_messages.load(Ordering::Relaxed) >= VALID_MESSAGES_MIN
            && !self.has_started.load(Ordering::Relaxed)
    }

    /// Makes the table, which has `bytes` bytes, and returns true. Returns false if the table exists, if another thread
    /// makes the table, or if the budget is used up.
    pub(crate) fn make(&self, bytes: usize, make: impl FnOnce() -> T) -> bool {
        if self.has_started.swap(true, Ordering::Relaxed) {
            return false;
        }
        if !self.budget.get().is_none_or(|budget| budget.reserve(bytes)) {
            self.has_started.store(false, Ordering::Relaxed);
            return false;
        }
        self.table.set(make()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_due_after_enough_messages_and_made_once() {
        let precomputed = Precomputed::<u8>::default();
        for _ in 1..VALID_MESSAGES_MIN {
            precomputed.record_valid();
            assert!(!precomputed.is_due());
        }
        precomputed.record_valid();
        assert!(precomputed.is_due());
        let made = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for number in 0..4 {
                let (precomputed, made) = (&precomputed, &made);
                scope.spawn(move || {
                    let is_mine = precomputed.make(1, || {
                        made.fetch_add(1, Ordering::Relaxed);
                        number
                    });
                    assert!(!is_mine || precomputed.get() == Some(&number));
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
        assert!(precomputed.get().is_some() && !precomputed.is_due());
    }

    #[test]
    fn tables_stay_within_their_budget() {
        let budget = Arc::new(MemoryBudget::default());
        assert_eq!(budget.set(25), 25);
        let tables: [Precomputed<u8>; 4] = Default::default();
        let make_tables = |tables: &[Precomputed<u8>]| {
            let made = tables.iter().filter(|precomputed| {
                precomputed.set_budget(&budget);
                precomputed.make(10, || 1)
            });
            made.count()
        };
        assert_eq!((make_tables(&tables), make_tables(&tables)), (2, 0));
        assert_eq!(budget.set(5), 20, "existing tables stay");
        assert_eq!(make_tables(&tables), 0);
        assert_eq!(budget.set(35), 35);
        assert_eq!(make_tables(&tables), 1);
    }
}
