//! LRU and LFU: the device with the smallest number is evicted.
//!
//! Numbers only grow. A device is ordered by its number at the last scan. The first device of the order is read again: if its number has
//! grown, it is moved, otherwise it is evicted. This is the exact order, with one step for each device that was used since.

use std::collections::BTreeSet;

use linewarden_protocol::ids::DeviceId;

use super::{EvictionHandle, Policy, SCAN_STEPS_MAX, Uses};

/// The meaning of the number.
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
    /// Its count of authentications at insertion.
    entered: u32,
    /// The number by which it is ordered.
    number: u32,
}

/// Number and index of an entry.
type OrderKey = (u32, u32);

/// The order: 16 B and about as much in the tree for a device.
#[derive(Debug)]
pub(super) struct Ordered {
    by: SortKey,
    entries: Vec<Entry>,
    free: Vec<u32>,
    order: BTreeSet<OrderKey>,
    /// The largest number so far.
    most: u32,
    /// The position up to which a scan found no device to evict.
    passed: Option<OrderKey>,
}

impl Ordered {
    pub(super) fn new(by: SortKey) -> Self {
        Self {
            by,
            entries: Vec::new(),
            free: Vec::new(),
            order: BTreeSet::new(),
            most: 0,
            passed: None,
        }
    }

    fn number(&self, entry: &Entry, uses: Uses) -> u32 {
        match self.by {
            SortKey::LastUse => uses.until_s,
            SortKey::Uses => uses.since(entry.entered),
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
        let number = match self.by {
            // Its first session is about to start.
            SortKey::LastUse => uses.until_s.max(self.most),
            SortKey::Uses => 0,
        };
        let entry = Entry {
            device,
            entered: uses.expected(),
            number,
        };
        let at = match self.free.pop() {
            Some(at) => {
                if let Some(place) = self.entries.get_mut(at as usize) {
                    *place = entry;
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
            let Some((filed, at)) = self.next() else {
                self.passed = None;
                return None;
            };
            let entry = self.entries.get(at as usize)?;
            let Some(uses) = uses_of(entry.device) else {
                self.passed = Some((filed, at));
                continue;
            };
            let (device, number) = (entry.device, self.number(entry, uses));
            if number <= filed {
                self.passed = None;
                return Some(device);
            }
            self.order.remove(&(filed, at));
            self.order.insert((number, at));
            self.most = self.most.max(number);
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
