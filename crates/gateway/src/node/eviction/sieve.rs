//! SIEVE (Zhang et al., NSDI 2024).
//!
//! New devices are added at the head. A hand moves from the tail to the head. The hand skips devices that were used
//! since its last visit, and stops at the first device without a use: this device is evicted. The next scan continues
//! there.

use linewarden_protocol::ids::DeviceId;

use super::list::{List, NONE, Slab};
use super::{EvictionHandle, Policy, SCAN_STEPS_MAX, Uses};

/// The queue and its hand.
#[derive(Debug)]
pub(super) struct Sieve {
    slab: Slab,
    queue: List,
    hand: u32,
}

impl Default for Sieve {
    fn default() -> Self {
        Self {
            slab: Slab::default(),
            queue: List::default(),
            hand: NONE,
        }
    }
}

impl Policy for Sieve {
    fn insert(&mut self, device: DeviceId, uses: Uses) -> EvictionHandle {
        let index = self.slab.add(device, uses.count_after_admission(), 0);
        self.queue.push(&mut self.slab, index);
        EvictionHandle(index)
    }

    fn remove(&mut self, EvictionHandle(index): EvictionHandle) {
        if self.hand == index {
            self.hand = self.slab.get(index).map_or(NONE, |entry| entry.newer);
        }
        self.queue.unlink(&mut self.slab, index);
        self.slab.remove(index);
    }

    fn victim(&mut self, uses_of: &dyn Fn(DeviceId) -> Option<Uses>) -> Option<DeviceId> {
        for _ in 0..(2 * self.queue.len()).min(SCAN_STEPS_MAX) {
            if self.hand == NONE {
                self.hand = self.queue.tail();
            }
            let entry = self.slab.get_mut(self.hand)?;
            self.hand = entry.newer;
            let Some(uses) = uses_of(entry.device) else {
                continue;
            };
            if uses.since(entry.last_count) == 0 {
                return Some(entry.device);
            }
            entry.last_count = uses.count;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::Eviction;
    use super::super::tests::Cache;

    #[test]
    fn the_hand_skips_used_devices_and_continues_where_it_stopped() {
        let mut cache = Cache::new(Eviction::Sieve);
        (1..=5).for_each(|id| cache.insert(id));
        cache.authenticate(1);
        cache.authenticate(3);
        assert_eq!([cache.evict(), cache.evict()], [Some(2), Some(4)]);
        cache.authenticate(5);
        // The hand passes device 5, wraps around, and finds device 1, which was not used since the hand's last visit.
        assert_eq!([cache.evict(), cache.evict()], [Some(1), Some(3)]);
    }
}
