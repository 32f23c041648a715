//! What is computed ahead for signers whose messages have held: multiples of the points that their messages are verified with.
//!
//! A table costs as much as a few verifications, and makes all that follow three times as fast. A forger has none made: only messages that held
//! count.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Messages of a signer that have held before its table is made: by then it has cost what a table costs.
const MESSAGES: u32 = 8;

/// Bytes that the tables of several signers may take together.
#[derive(Debug, Default)]
pub(crate) struct Room {
    limit: AtomicUsize,
    taken: AtomicUsize,
}

impl Room {
    /// Tables that are there stay.
    pub(crate) fn set(&self, bytes: usize) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    fn take(&self, bytes: usize) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let with = |taken: usize| taken.checked_add(bytes).filter(|with| *with <= limit);
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, with)
            .is_ok()
    }
}

/// A signer's table, or how near it is to one.
pub struct Ahead<T> {
    table: OnceLock<T>,
    held: AtomicU32,
    begun: AtomicBool,
    room: OnceLock<Arc<Room>>,
}

impl<T> Default for Ahead<T> {
    fn default() -> Self {
        Self {
            table: OnceLock::new(),
            held: AtomicU32::new(0),
            begun: AtomicBool::new(false),
            room: OnceLock::new(),
        }
    }
}

impl<T> fmt::Debug for Ahead<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ahead")
            .field("is_there", &self.table.get().is_some())
            .finish_non_exhaustive()
    }
}

impl<T> Ahead<T> {
    /// The table, if it is there.
    #[must_use]
    pub fn get(&self) -> Option<&T> {
        self.table.get()
    }

    /// Takes the room for the table from here, from now on: without it, there is enough. The first one that is given stays.
    pub(crate) fn draw_from(&self, room: &Arc<Room>) {
        let _ = self.room.set(Arc::clone(room));
    }

    /// Notes that a message of the signer has held.
    pub(crate) fn has_held(&self) {
        if self.table.get().is_none() {
            self.held.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the table is to be made now, of `bytes`: that is said once, when enough messages have held, and if there is room.
    pub(crate) fn is_due(&self, bytes: usize) -> bool {
        self.held.load(Ordering::Relaxed) >= MESSAGES
            && !self.begun.swap(true, Ordering::Relaxed)
            && self.room.get().is_none_or(|room| room.take(bytes))
    }

    /// The table that was said to be due.
    pub(crate) fn set(&self, table: T) {
        let _ = self.table.set(table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_due_once_after_enough_messages() {
        let ahead = Ahead::<u8>::default();
        for _ in 1..MESSAGES {
            ahead.has_held();
            assert!(!ahead.is_due(1));
        }
        ahead.has_held();
        assert!(ahead.is_due(1));
        assert!(!ahead.is_due(1));
        ahead.set(7);
        assert_eq!(ahead.get(), Some(&7));
    }

    #[test]
    fn tables_take_no_more_than_their_room() {
        let room = Arc::new(Room::default());
        room.set(25);
        let all: [Ahead<u8>; 4] = Default::default();
        let due = all.iter().filter(|ahead| {
            ahead.draw_from(&room);
            (0..MESSAGES).for_each(|_| ahead.has_held());
            ahead.is_due(10)
        });
        assert_eq!(due.count(), 2);
    }
}
