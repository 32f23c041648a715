//! S3-FIFO (Yang et al., SOSP 2023).
//!
//! A new device is added to a small queue, which has a tenth of the slots. At the tail of the small queue, a device that
//! was used more than once moves to the main queue. Other devices are evicted. Their IDs stay in a ghost queue, which
//! is as long as the main queue. A device that returns while its ID is a ghost is added to the main queue. At the tail
//! of the main queue, a device returns to the head one time for each use, at most three times. Many devices that
//! authenticate only one time pass through the small queue and do not change the main queue.

use std::collections::{HashMap, VecDeque};

use linewarden_protocol::ids::DeviceId;

use super::list::{List, Slab};
use super::{EvictionHandle, Policy, SCAN_STEPS_MAX, Uses};

/// The small queue has 1/`SMALL_PART` of all slots.
const SMALL_PART: usize = 10;
/// Maximum number of uses that are counted.
const USES_MAX: u32 = 3;
/// A device with more uses than this in the small queue moves to the main queue.
const PROMOTION_USES: u32 = 1;

/// Maximum number of times that a device without new uses is at the tail of the main queue until the device is evicted.
const TAIL_VISITS_MAX: usize = USES_MAX as usize + 1;

/// Bit of an entry's policy state: the entry is in the main queue. The lower bits count its uses.
const IN_MAIN_QUEUE: u8 = 0x80;

/// The small queue, the main queue and the ghosts.
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
        let was_ghost = self.ghosts.take(device);
        let policy_state = if was_ghost { IN_MAIN_QUEUE } else { 0 };
        let index = self.slab.add(device, uses.count_after_admission(), policy_state);
        let queue = if was_ghost {
            &mut self.main
        } else {
            &mut self.small
        };
        queue.push(&mut self.slab, index);
        EvictionHandle(index)
    }

    fn remove(&mut self, EvictionHandle(index): EvictionHandle) {
        let Some(entry) = self.slab.get(index) else {
            return;
        };
        let queue = match entry.policy_state & IN_MAIN_QUEUE {
            0 => &mut self.small,
            _ => &mut self.main,
        };
        queue.unlink(&mut self.slab, index);
        self.slab.remove(index);
    }

    fn victim(&mut self, uses_of: &dyn Fn(DeviceId) -> Option<Uses>) -> Option<DeviceId> {
        // All scanned devices may have to stay, so the number of steps is limited.
        let mut small_steps_left = self.small.len();
        let mut main_steps_left = TAIL_VISITS_MAX * self.main.len();
        for _ in 0..SCAN_STEPS_MAX {
            let is_small_full = self.small.len() * SMALL_PART >= self.slab.len();
            let result = if small_steps_left > 0 && (is_small_full || main_steps_left == 0) {
                small_steps_left -= 1;
                self.check_small_tail(uses_of)?
            } else if main_steps_left > 0 {
                main_steps_left -= 1;
                self.check_main_tail(uses_of)?
            } else {
                return None;
            };
            match result {
                TailResult::Evicted(device) => return Some(device),
                TailResult::Promoted => main_steps_left += TAIL_VISITS_MAX,
                TailResult::Kept => {}
            }
        }
        None
    }
}

impl S3Fifo {
    fn check_small_tail(&mut self, uses_of: &dyn Fn(DeviceId) -> Option<Uses>) -> Option<TailResult> {
        let index = self.small.tail();
        let entry = self.slab.get_mut(index)?;
        let device = entry.device;
        match uses_of(device) {
            None => {
                self.small.unlink(&mut self.slab, index);
                self.small.push(&mut self.slab, index);
            }
            Some(uses) if uses.since(entry.last_count) > PROMOTION_USES => {
                (entry.last_count, entry.policy_state) = (uses.count, IN_MAIN_QUEUE);
                self.small.unlink(&mut self.slab, index);
                self.main.push(&mut self.slab, index);
                return Some(TailResult::Promoted);
            }
            Some(_) => {
                self.ghosts.add(device, self.slab.len());
                return Some(TailResult::Evicted(device));
            }
        }
        Some(TailResult::Kept)
    }

    fn check_main_tail(&mut self, uses_of: &dyn Fn(DeviceId) -> Option<Uses>) -> Option<TailResult> {
        let index = self.main.tail();
        let entry = self.slab.get_mut(index)?;
        if let Some(uses) = uses_of(entry.device) {
            let earlier_uses = u32::from(entry.policy_state & !IN_MAIN_QUEUE);
            let uses_left = (earlier_uses + uses.since(entry.last_count).min(USES_MAX)).min(USES_MAX);
            let Some(uses_left) = uses_left.checked_sub(1) else {
                return Some(TailResult::Evicted(entry.device));
            };
            entry.policy_state = IN_MAIN_QUEUE | u8::try_from(uses_left).unwrap_or_default();
            if uses.since(entry.last_count) > 0 {
                entry.last_count = uses.count;
            }
        }
        self.main.unlink(&mut self.slab, index);
        self.main.push(&mut self.slab, index);
        Some(TailResult::Kept)
    }
}

/// Devices that were evicted from the small queue.
#[derive(Debug, Default)]
struct Ghosts {
    /// Devices and entry numbers, oldest first. An entry is valid if `numbers` contains its number for the device.
    queue: VecDeque<(DeviceId, u64)>,
    /// The number of the valid entry of each ghost.
    numbers: HashMap<DeviceId, u64>,
    /// The number of the newest entry.
    last_number: u64,
}

impl Ghosts {
    /// Adds a device. `slots` is the number of devices in both queues. The number of ghosts is limited to the main
    /// queue's share of `slots`.
    fn add(&mut self, device: DeviceId, slots: usize) {
        self.last_number += 1;
        self.queue.push_back((device, self.last_number));
        self.numbers.insert(device, self.last_number);
        while self.queue.len() > slots - slots / SMALL_PART
            && let Some((oldest, number)) = self.queue.pop_front()
        {
            if self.numbers.get(&oldest) == Some(&number) {
                self.numbers.remove(&oldest);
            }
        }
    }

    /// Removes a device; returns whether the device was a ghost.
    fn take(&mut self, device: DeviceId) -> bool {
        self.numbers.remove(&device).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Eviction;
    use super::super::tests::Cache;

    #[test]
    fn a_device_used_twice_and_a_ghost_enter_the_main_queue() {
        let mut cache = Cache::new(Eviction::S3Fifo);
        (1..=4).for_each(|id| cache.insert(id));
        cache.authenticate(1);
        cache.authenticate(1);
        cache.authenticate(2);
        // Device 1 moves to the main queue; device 2 was used only once.
        assert_eq!(cache.evict(), Some(2));
        cache.insert(2);
        cache.insert(5);
        // Device 2 was a ghost: now device 2 is in the main queue, and is evicted after the new devices.
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
    fn devices_that_authenticate_once_do_not_change_the_main_queue() {
        let mut cache = Cache::new(Eviction::S3Fifo);
        (1..=20).for_each(|id| cache.insert(id));
        for id in 1..=18 {
            (0..3).for_each(|_| cache.authenticate(id));
        }
        for new_id in 100..300 {
            let victim = cache.evict();
            assert!(victim.is_some_and(|id| id > 18), "{victim:?}");
            cache.insert(new_id);
        }
    }
}
