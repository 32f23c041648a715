//! S3-FIFO (Yang et al., SOSP 2023).
//!
//! A new device is added to a small queue, a tenth of the slots. At its tail, a device that was used more than once moves to the main queue.
//! Other devices are evicted, and stay in a ghost queue for as many evictions as the main queue has slots. A device that returns in that time
//! is added to the main queue. At the tail of the main queue, a device goes round once more for each use, at most three times. A scan of
//! many devices passes through the small queue and does not change the main queue.

use std::collections::{HashMap, VecDeque};

use linewarden_protocol::ids::DeviceId;

use super::list::{List, Slab};
use super::{EvictionHandle, Policy, SCAN_STEPS_MAX, Uses};

/// The small queue has one of this many parts of all slots.
const SMALL_PART: usize = 10;
/// Maximum number of uses that are counted.
const USES_MAX: u32 = 3;
/// A device with more uses than this in the small queue moves to the main queue.
const PROMOTION_USES: u32 = 1;

/// A device of the main queue is evicted after this many rounds at most.
const ROUNDS: usize = USES_MAX as usize + 1;

/// In an entry's mark: the entry is in the main queue; the lower bits count its uses.
const MAIN: u8 = 0x80;

/// Both queues, and the ghosts.
#[derive(Debug, Default)]
pub(super) struct S3Fifo {
    slab: Slab,
    small: List,
    main: List,
    ghosts: Ghosts,
}

/// The result for the entry at the tail of a queue.
enum TailResult {
    Evicted(DeviceId),
    /// Moved from the small queue to the main queue.
    Promoted,
    Kept,
}

impl Policy for S3Fifo {
    fn insert(&mut self, device: DeviceId, uses: Uses) -> EvictionHandle {
        let is_back = self.ghosts.take(device);
        let mark = if is_back { MAIN } else { 0 };
        let at = self.slab.add(device, uses.expected(), mark);
        let queue = if is_back { &mut self.main } else { &mut self.small };
        queue.push(&mut self.slab, at);
        EvictionHandle(at)
    }

    fn remove(&mut self, EvictionHandle(at): EvictionHandle) {
        let Some(entry) = self.slab.get(at) else {
            return;
        };
        let queue = match entry.mark & MAIN {
            0 => &mut self.small,
            _ => &mut self.main,
        };
        queue.unlink(&mut self.slab, at);
        self.slab.remove(at);
    }

    fn victim(&mut self, uses_of: &dyn Fn(DeviceId) -> Option<Uses>) -> Option<DeviceId> {
        // All scanned devices may have to stay.
        let mut small_left = self.small.len();
        let mut main_left = ROUNDS * self.main.len();
        for _ in 0..SCAN_STEPS_MAX {
            let is_small_full = self.small.len() * SMALL_PART >= self.slab.len();
            let end = if small_left > 0 && (is_small_full || main_left == 0) {
                small_left -= 1;
                self.end_of_small(uses_of)?
            } else if main_left > 0 {
                main_left -= 1;
                self.end_of_main(uses_of)?
            } else {
                return None;
            };
            match end {
                TailResult::Evicted(device) => return Some(device),
                TailResult::Promoted => main_left += ROUNDS,
                TailResult::Kept => {}
            }
        }
        None
    }
}

impl S3Fifo {
    fn end_of_small(&mut self, uses_of: &dyn Fn(DeviceId) -> Option<Uses>) -> Option<TailResult> {
        let at = self.small.tail();
        let entry = self.slab.get_mut(at)?;
        let device = entry.device;
        match uses_of(device) {
            None => {
                self.small.unlink(&mut self.slab, at);
                self.small.push(&mut self.slab, at);
            }
            Some(uses) if uses.since(entry.seen) > PROMOTION_USES => {
                (entry.seen, entry.mark) = (uses.count, MAIN);
                self.small.unlink(&mut self.slab, at);
                self.main.push(&mut self.slab, at);
                return Some(TailResult::Promoted);
            }
            Some(_) => {
                self.ghosts.add(device, self.slab.len());
                return Some(TailResult::Evicted(device));
            }
        }
        Some(TailResult::Kept)
    }

    fn end_of_main(&mut self, uses_of: &dyn Fn(DeviceId) -> Option<Uses>) -> Option<TailResult> {
        let at = self.main.tail();
        let entry = self.slab.get_mut(at)?;
        if let Some(uses) = uses_of(entry.device) {
            let before = u32::from(entry.mark & !MAIN);
            let left = (before + uses.since(entry.seen).min(USES_MAX)).min(USES_MAX);
            let Some(left) = left.checked_sub(1) else {
                return Some(TailResult::Evicted(entry.device));
            };
            entry.mark = MAIN | u8::try_from(left).unwrap_or_default();
            if uses.since(entry.seen) > 0 {
                entry.seen = uses.count;
            }
        }
        self.main.unlink(&mut self.slab, at);
        self.main.push(&mut self.slab, at);
        Some(TailResult::Kept)
    }
}

/// Devices that left the small queue, oldest first.
#[derive(Debug, Default)]
struct Ghosts {
    queue: VecDeque<(DeviceId, u64)>,
    /// With the number of the valid entry in the queue.
    numbers: HashMap<DeviceId, u64>,
    added: u64,
}

impl Ghosts {
    /// Adds a device; the number of ghosts is that of the slots in the main queue.
    fn add(&mut self, device: DeviceId, places: usize) {
        self.added += 1;
        self.queue.push_back((device, self.added));
        self.numbers.insert(device, self.added);
        while self.queue.len() > places - places / SMALL_PART
            && let Some((oldest, number)) = self.queue.pop_front()
        {
            if self.numbers.get(&oldest) == Some(&number) {
                self.numbers.remove(&oldest);
            }
        }
    }

    /// Removes a device; returns whether it was a ghost.
    fn take(&mut self, device: DeviceId) -> bool {
        self.numbers.remove(&device).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Eviction;
    use super::super::tests::Cache;

    #[test]
    fn a_device_used_twice_and_a_ghost_are_in_the_main_queue() {
        let mut cache = Cache::new(Eviction::S3Fifo);
        (1..=4).for_each(|id| cache.insert(id));
        cache.authenticate(1);
        cache.authenticate(1);
        cache.authenticate(2);
        // 1 moves to the main queue; 2 was used once only.
        assert_eq!(cache.evict(), Some(2));
        cache.insert(2);
        cache.insert(5);
        // 2 was a ghost: now it is in the main queue, behind the new devices.
        assert_eq!(
            [cache.evict(), cache.evict(), cache.evict()],
            [Some(3), Some(4), Some(5)]
        );
        assert_eq!([cache.evict(), cache.evict()], [Some(1), Some(2)]);
    }

    #[test]
    fn the_last_device_of_the_main_queue_is_evicted() {
        let mut cache = Cache::new(Eviction::S3Fifo);
        cache.insert(9);
        (0..2).for_each(|_| cache.authenticate(9));
        assert_eq!(cache.evict(), Some(9));
    }

    #[test]
    fn a_scan_does_not_change_the_main_queue() {
        let mut cache = Cache::new(Eviction::S3Fifo);
        (1..=20).for_each(|id| cache.insert(id));
        for id in 1..=18 {
            (0..3).for_each(|_| cache.authenticate(id));
        }
        for scanned in 100..300 {
            let victim = cache.evict();
            assert!(victim.is_some_and(|id| id > 18), "{victim:?}");
            cache.insert(scanned);
        }
    }
}
