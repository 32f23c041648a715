//! LRU and LFU: whoever has the smallest number leaves.
//!
//! Numbers only grow, so a device is filed by the number it had when it was looked at last, and whoever comes first by
//! those is looked at again: filed anew if its number has grown, evicted if not. That is the exact order, at a step for
//! each device that was used since.

use std::collections::BTreeSet;

use linewarden_protocol::ids::DeviceId;

use super::{Policy, STEPS_MAX, Ticket, Uses};

/// What the number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The end of the last lease: least recently used.
    LastUse,
    /// Authentications since it entered: least frequently used, without ageing.
    Uses,
}

#[derive(Debug)]
struct Entry {
    device: DeviceId,
    /// Its count of authentications when it entered.
    entered: u32,
    /// Under which it is filed.
    number: u32,
}

/// Number and place of an entry.
type Filed = (u32, u32);

/// The order: 16 B and about as much in the tree for a device.
#[derive(Debug)]
pub(super) struct Ordered {
    by: By,
    entries: Vec<Entry>,
    free: Vec<u32>,
    order: BTreeSet<Filed>,
    /// The largest number so far.
    most: u32,
    /// Up to where a look found nobody who could leave.
    passed: Option<Filed>,
}

impl Ordered {
    pub(super) fn new(by: By) -> Self {
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
            By::LastUse => uses.until_s,
            By::Uses => uses.since(entry.entered),
        }
    }

    fn next(&self) -> Option<Filed> {
        match self.passed {
            None => self.order.first().copied(),
            Some((number, at)) => self.order.range((number, at.saturating_add(1))..).next().copied(),
        }
    }
}

impl Policy for Ordered {
    fn enter(&mut self, device: DeviceId, uses: Uses) -> Ticket {
        let number = match self.by {
            // Its first lease is about to begin.
            By::LastUse => uses.until_s.max(self.most),
            By::Uses => 0,
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
        Ticket(at)
    }

    fn leave(&mut self, Ticket(at): Ticket) {
        if let Some(entry) = self.entries.get(at as usize)
            && self.order.remove(&(entry.number, at))
        {
            self.free.push(at);
        }
    }

    fn victim(&mut self, uses_of: &dyn Fn(DeviceId) -> Option<Uses>) -> Option<DeviceId> {
        for _ in 0..STEPS_MAX {
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
    fn lru_evicts_whoever_authenticated_longest_ago() {
        let mut cache = Cache::new(Eviction::Lru);
        (1..=4).for_each(|id| cache.enter(id));
        [2, 1, 4].into_iter().for_each(|id| cache.authenticate(id));
        assert_eq!([cache.evict(), cache.evict()], [Some(3), Some(2)]);
        cache.authenticate(1);
        assert_eq!([cache.evict(), cache.evict()], [Some(4), Some(1)]);
    }

    #[test]
    fn lfu_evicts_whoever_authenticated_least_often() {
        let mut cache = Cache::new(Eviction::Lfu);
        (1..=3).for_each(|id| cache.enter(id));
        [1, 1, 1, 2, 2, 3]
            .into_iter()
            .for_each(|id| cache.authenticate(id));
        assert_eq!(cache.evict(), Some(3));
        cache.enter(4);
        assert_eq!(
            [cache.evict(), cache.evict(), cache.evict()],
            [Some(4), Some(2), Some(1)]
        );
    }
}
