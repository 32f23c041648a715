//! LRU and LFU: the device with the smallest sort value is evicted. The sort value is the expiry of the last session
//! (LRU) or the number of authentications (LFU).
//!
//! Sort values only grow. The order contains each device's sort value at the last scan. A scan reads the first device
//! of the order again: if its sort value has grown, the device is moved; otherwise, the device is evicted. This finds
//! the smallest sort value, with one step for each device that was used since the last scan.

use std::collections::BTreeSet;

use linewarden_protocol::ids::DeviceId;

use super::{EvictionHandle, Policy, SCAN_STEPS_MAX, Uses};

/// The meaning of the sort values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SortKey {
    /// The expiry of the last session: least recently used.
    LastUse,
    /// Authentications since insertion: least frequently used, without aging.
    Uses,
}

#[derive(Debug)]
struct Entry {
    device: DeviceId,
    /// The device's count of authentications at insertion.
    count_at_insertion: u32,
    /// The sort value at the last scan.
    sort_value: u32,
}

/// Sort value and index of an entry.
type OrderKey = (u32, u32);

/// The order. A device needs 16 B, and about as much in the tree.
#[derive(Debug)]
pub(super) struct Ordered {
    sort_key: SortKey,
    entries: Vec<Entry>,
    free_indexes: Vec<u32>,
    order: BTreeSet<OrderKey>,
    /// The largest sort value so far.
    largest: u32,
    /// The position up to which (inclusive) a scan found no device to evict.
    scanned_up_to: Option<OrderKey>,
}

impl Ordered {
    pub(super) fn new(sort_key: SortKey) -> Self {
        Self {
            sort_key,
            entries: Vec::new(),
            free_indexes: Vec::new(),
            order: BTreeSet::new(),
            largest: 0,
            scanned_up_to: None,
        }
    }

    fn sort_value(&self, entry: &Entry, uses: Uses) -> u32 {
        match self.sort_key {
            SortKey::LastUse => uses.until_s,
            SortKey::Uses => uses.since(entry.count_at_insertion),
        }
    }

    /// Returns the first position that the current scan has not read.
    fn next(&self) -> Option<OrderKey> {
        match self.scanned_up_to {
            None => self.order.first().copied(),
            Some((value, index)) => self
                .order
                .range((value, index.saturating_add(1))..)
                .next()
                .copied(),
        }
    }
}

impl Policy for Ordered {
    fn insert(&mut self, device: DeviceId, uses: Uses) -> EvictionHandle {
        let sort_value = match self.sort_key {
            // The device's first session is about to start.
            SortKey::LastUse => uses.until_s.max(self.largest),
            SortKey::Uses => 0,
        };
        let entry = Entry {
            device,
            count_at_insertion: uses.count_after_admission(),
            sort_value,
        };
        let index = match self.free_indexes.pop() {
            Some(index) => {
                if let Some(free_entry) = self.entries.get_mut(index as usize) {
                    *free_entry = entry;
                }
                index
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
            }
        };
        self.order.insert((sort_value, index));
        EvictionHandle(index)
    }

    fn remove(&mut self, EvictionHandle(index): EvictionHandle) {
        if let Some(entry) = self.entries.get(index as usize)
            && self.order.remove(&(entry.sort_value, index))
        {
            self.free_indexes.push(index);
        }
    }

    fn victim(&mut self, uses_of: &dyn Fn(DeviceId) -> Option<Uses>) -> Option<DeviceId> {
        for _ in 0..SCAN_STEPS_MAX {
            let Some((known_value, index)) = self.next() else {
                self.scanned_up_to = None;
                return None;
            };
            let entry = self.entries.get(index as usize)?;
            let Some(uses) = uses_of(entry.device) else {
                self.scanned_up_to = Some((known_value, index));
                continue;
            };
            let (device, sort_value) = (entry.device, self.sort_value(entry, uses));
            if sort_value <= known_value {
                self.scanned_up_to = None;
                return Some(device);
            }
            self.order.remove(&(known_value, index));
            self.order.insert((sort_value, index));
            self.largest = self.largest.max(sort_value);
            if let Some(entry) = self.entries.get_mut(index as usize) {
                entry.sort_value = sort_value;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::Eviction;
    use super::super::tests::Cache;

    #[test]
    fn lru_evicts_the_device_that_authenticated_longest_ago() {
        let mut cache = Cache::new(Eviction::Lru);
        (1..=4).for_each(|id| cache.insert(id));
        [2, 1, 4].into_iter().for_each(|id| cache.authenticate(id));
        assert_eq!([cache.evict(), cache.evict()], [Some(3), Some(2)]);
        cache.authenticate(1);
        assert_eq!([cache.evict(), cache.evict()], [Some(4), Some(1)]);
    }

    #[test]
    fn lfu_evicts_the_device_that_authenticated_least_often() {
        let mut cache = Cache::new(Eviction::Lfu);
        (1..=3).for_each(|id| cache.insert(id));
        [1, 1, 1, 2, 2, 3]
            .into_iter()
            .for_each(|id| cache.authenticate(id));
        assert_eq!(cache.evict(), Some(3));
        cache.insert(4);
        assert_eq!(
            [cache.evict(), cache.evict(), cache.evict()],
            [Some(4), Some(2), Some(1)]
        );
    }
}
