//! Expiry of waiting jobs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::super::time::Time;

/// Minimum number of stale entries before the heap is cleaned.
const STALE_MIN: usize = 64;

/// A heap of expiries. Entries of jobs that left the queue earlier stay until they expire, or until they are more
/// than half of the heap. An addition costs O(1) on average, since most jobs expire in the order of arrival.
#[derive(Default)]
pub(super) struct Expiries {
    heap: BinaryHeap<Reverse<(Time, u64, u32)>>,
}

impl Expiries {
    /// Adds the expiry of job `number` in slot `id`. `waits` returns whether a job still waits; `waiting` is
    /// the number of waiting jobs.
    pub(super) fn add(
        &mut self,
        expires: Time,
        number: u64,
        id: u32,
        waiting: usize,
        waits: impl Fn(u64, u32) -> bool,
    ) {
        if expires == Time::NEVER {
            return;
        }
        if self.heap.len() > 2 * waiting + STALE_MIN {
            self.heap.retain(|Reverse((_, number, id))| waits(*number, *id));
        }
        self.heap.push(Reverse((expires, number, id)));
    }

    /// Number and slot of an entry that has expired by now; the job may have left earlier.
    pub(super) fn pop(&mut self, now: Time) -> Option<(u64, u32)> {
        let Reverse((expires, number, id)) = *self.heap.peek()?;
        if expires > now {
            return None;
        }
        self.heap.pop();
        Some((number, id))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Lower bound of the next expiry.
    pub(super) fn next(&self) -> Time {
        self.heap
            .peek()
            .map_or(Time::NEVER, |Reverse((expires, ..))| *expires)
    }
}
