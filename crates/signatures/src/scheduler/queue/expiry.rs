//! When waiting jobs expire.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::super::time::Time;

/// What is beside the valid entries before the heap is gone through.
const STALE_MIN: usize = 64;

/// A heap of expiries. Jobs that left otherwise stay in it until their time comes or they are more than half
/// of it; so adding one costs O(1) on average, as arrivals mostly expire in their order.
#[derive(Default)]
pub(super) struct Expiries {
    heap: BinaryHeap<Reverse<(Time, u64, u32)>>,
}

impl Expiries {
    /// Notes that job `number` in place `id` expires then. `waits` tells if a job still does; `waiting` is
    /// how many do.
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

    /// Number and place of one that expires until now, which may have left long ago.
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

    /// When the next one expires, at the earliest.
    pub(super) fn next(&self) -> Time {
        self.heap
            .peek()
            .map_or(Time::NEVER, |Reverse((expires, ..))| *expires)
    }
}
