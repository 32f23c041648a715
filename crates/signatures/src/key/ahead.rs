//! What processors compute ahead for signers whose messages have held: multiples of the points that their messages are verified with.
//!
//! A table costs as much as a few verifications, and makes all that follow two to three times as fast. A forger has none made: only messages
//! that held count.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Messages of a signer that processors have found to hold before its table is made: by then they have cost what a table costs.
const MESSAGES: u32 = 8;

/// Bytes that the tables of several signers may take together.
#[derive(Debug, Default)]
pub(crate) struct Room {
    limit: AtomicUsize,
    taken: AtomicUsize,
}

impl Room {
    /// Tables that are there stay: what they take, if that is more, or else what they may.
    pub(crate) fn set(&self, bytes: usize) -> usize {
        self.limit.store(bytes, Ordering::Relaxed);
        bytes.max(self.taken.load(Ordering::Relaxed))
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

    /// Whether enough messages have held, and nobody makes the table yet.
    pub(crate) fn is_due(&self) -> bool {
        self.held.load(Ordering::Relaxed) >= MESSAGES && !self.begun.load(Ordering::Relaxed)
    }

    /// Makes the table, of so many bytes, and says so: unless it is there, another thread makes it, or there is no room.
    pub(crate) fn make(&self, bytes: usize, make: impl FnOnce() -> T) -> bool {
        if self.begun.swap(true, Ordering::Relaxed) {
            return false;
        }
        if !self.room.get().is_none_or(|room| room.take(bytes)) {
            self.begun.store(false, Ordering::Relaxed);
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
        let ahead = Ahead::<u8>::default();
        for _ in 1..MESSAGES {
            ahead.has_held();
            assert!(!ahead.is_due());
        }
        ahead.has_held();
        assert!(ahead.is_due());
        let made = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for number in 0..4 {
                let (ahead, made) = (&ahead, &made);
                scope.spawn(move || {
                    let is_mine = ahead.make(1, || {
                        made.fetch_add(1, Ordering::Relaxed);
                        number
                    });
                    assert!(!is_mine || ahead.get() == Some(&number));
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
        assert!(ahead.get().is_some() && !ahead.is_due());
    }

    #[test]
    fn tables_take_no_more_than_their_room() {
        let room = Arc::new(Room::default());
        assert_eq!(room.set(25), 25);
        let all: [Ahead<u8>; 4] = Default::default();
        let made = |all: &[Ahead<u8>]| {
            let made = all.iter().filter(|ahead| {
                ahead.draw_from(&room);
                ahead.make(10, || 1)
            });
            made.count()
        };
        assert_eq!((made(&all), made(&all)), (2, 0));
        assert_eq!(room.set(5), 20, "what is there stays");
        assert_eq!(made(&all), 0);
        assert_eq!(room.set(35), 35);
        assert_eq!(made(&all), 1);
    }
}
