//! Deadlines at which devices must be polled.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Deadlines of devices, at most one active deadline per device.
///
/// A device's deadline changes with nearly every message. The old entry stays in the heap and is skipped when its time
/// comes, because the entry differs from the armed deadline.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    /// The active deadline of each device.
    deadlines_ms: Vec<Option<u64>>,
}

impl Timers {
    /// Adds a device; its slot index is the number of devices before it.
    pub(super) fn add(&mut self) {
        self.deadlines_ms.push(None);
        // Four entries per device (two handshake timers, renewal, expiry), so that the heap does not grow during a run.
        let capacity = 4 * self.deadlines_ms.len();
        self.heap.reserve(capacity.saturating_sub(self.heap.len()));
    }

    /// Sets or clears a device's deadline.
    pub(super) fn arm(&mut self, slot_index: u32, deadline_ms: Option<u64>) {
        let Some(armed) = self.deadlines_ms.get_mut(slot_index as usize) else {
            return;
        };
        if *armed == deadline_ms {
            return;
        }
        *armed = deadline_ms;
        if let Some(deadline) = deadline_ms {
            self.heap.push(Reverse((deadline, slot_index)));
        }
    }

    /// Removes and returns one device whose deadline has passed.
    pub(super) fn pop_due(&mut self, now_ms: u64) -> Option<u32> {
        while let Some(Reverse((entry_ms, slot_index))) = self.heap.peek().copied() {
            if entry_ms > now_ms {
                return None;
            }
            self.heap.pop();
            match self.deadlines_ms.get_mut(slot_index as usize) {
                Some(armed) if *armed == Some(entry_ms) => {
                    *armed = None;
                    return Some(slot_index);
                }
                _ => {}
            }
        }
        None
    }

    /// A lower limit of the next deadline; `None` if there is no deadline.
    pub(super) fn next_ms(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((entry_ms, _))| *entry_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_deadline_armed_last_counts() {
        let mut timers = Timers::default();
        for _ in 0..3 {
            timers.add();
        }
        timers.arm(0, Some(10));
        timers.arm(1, Some(5));
        timers.arm(0, Some(20));
        timers.arm(2, Some(7));
        timers.arm(2, None);
        assert_eq!(timers.pop_due(4), None);
        assert_eq!(timers.pop_due(15), Some(1));
        assert_eq!(timers.pop_due(15), None);
        assert_eq!(timers.next_ms(), Some(20));
        assert_eq!(timers.pop_due(20), Some(0));
        assert_eq!((timers.pop_due(u64::MAX), timers.next_ms()), (None, None));
    }
}
