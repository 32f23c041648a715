//! LRU and LFU: the device with the smallest number is evicted.
//!
//! Numbers only grow. A device is ordered by its number at the last scan. The first device of the order is read again:
//! if its number has grown, the device is moved; otherwise, it is evicted. This finds the smallest number, with one
//! step for each device that was used since the last scan.

use std::collections::BTreeSet;

use linewarden_protocol::ids::DeviceId;

use super::{EvictionHandle, Policy, SCAN_STEPS_MAX, Uses};

/// The meaning of the number by which devices are ordered.
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
    /// The number by which the device is ordered.
    number: u32,
}

/// Number and index of an entry.
type OrderKey = (u32, u32);

/// The order. A device needs 16 B, and about as much in the tree.
#[derive(Debug)]
pub(super) struct Ordered {
    sort_key: SortKey,
    entries: Vec<Entry>,
    free: Vec<u32>,
    order: BTreeSet<OrderKey>,
    /// The largest number so far.
    largest: u32,
    /// The position up to which a scan found no device to evict.
    passed: Option<OrderKey>,
}

impl Ordered {
    pub(super) fn new(sort_key: SortKey) -> Self {
        Self {
            sort_key,
            entries: Vec::new(),
            free: Vec::new(),
            order: BTreeSet::new(),
            largest: 0,
            passed: None,
        }
    }

    fn number(&self, entry: &Entry, uses: Uses) -> u32 {
        match self.sort_key {
            SortKey::LastUse => uses.until_s,
            SortKey::Uses => uses.since(entry.count_at_insertion),
        }
    }

    fn next(&self) -> Option<OrderKey> {
        match self.passed {
            None => self.order.first().copied(),
            Some((number, at)) => self.order.range((number, at.saturating_add(1))..).next().copied(),
        }
    }
}

impl Policy for Ordered {
    fn insert(&mut self, device: DeviceId, uses: Uses) -> EvictionHandle {
        let number = match self.sort_key {
            // The device's first session is about to start.
            SortKey::LastUse => uses.until_s.max(self.largest),
            SortKey::Uses => 0,
        };
        let entry = Entry {
            device,
            count_at_insertion: uses.expected(),
            number,
        };
        let at = match self.free.pop() {
            Some(at) => {
                if let Some(free_entry) = self.entries.get_mut(at as usize) {
                    *free_entry = entry;
                }
                at
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
            }
        };
        self.order.insert((number, at));
        EvictionHandle(at)
    }

    fn remove(&mut self, EvictionHandle(at): EvictionHandle) {
        if let Some(entry) = self.entries.get(at as usize)
            && self.order.remove(&(entry.number, at))
        {
            self.free.push(at);
        }
    }

    fn victim(&mut self, uses_of: &dyn Fn(DeviceId) -> Option<Uses>) -> Option<DeviceId> {
        for _ in 0..SCAN_STEPS_MAX {
            let Some((known_number, at)) = self.next() else {
                self.passed = None;
                return None;
            };
            let entry = self.entries.get(at as usize)?;
            let Some(uses) = uses_of(entry.device) else {
                self.passed = Some((known_number, at));
                continue;
            };
            let (device, number) = (entry.device, self.number(entry, uses));
            if number <= known_number {
                self.passed = None;
                return Some(device);
            }
            self.order.remove(&(known_number, at));
            self.order.insert((number, at));
            self.largest = self.largest.max(number);
            if let Some(entry) = self.entries.get_mut(at as usize) {
                entry.number = number;
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
