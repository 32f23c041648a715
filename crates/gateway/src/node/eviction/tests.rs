//! Properties of all policies.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// A data plane that only counts.
pub(super) struct Cache {
    policy: Box<dyn Policy>,
    inside: HashMap<u64, (EvictionHandle, Uses)>,
    now_s: u32,
}

impl Cache {
    pub(super) fn new(eviction: Eviction) -> Self {
        Self {
            policy: eviction.policy(),
            inside: HashMap::new(),
            now_s: 0,
        }
    }

    /// Inserts a device, by its own authentication; the counter of its line has any value.
    pub(super) fn insert(&mut self, id: u64) {
        let count = COUNT_MASK.wrapping_sub(1).wrapping_add(id as u32) & COUNT_MASK;
        let ticket = self.policy.insert(DeviceId(id), Uses { count, until_s: 0 });
        self.inside.insert(id, (ticket, Uses { count, until_s: 0 }));
        self.authenticate(id);
    }

    pub(super) fn authenticate(&mut self, id: u64) {
        self.now_s += 1;
        let (_, uses) = self.inside.get_mut(&id).unwrap();
        uses.count = (uses.count + 1) & COUNT_MASK;
        uses.until_s = self.now_s;
    }

    pub(super) fn evict(&mut self) -> Option<u64> {
        self.evict_except(|_| false)
    }

    fn evict_except(&mut self, is_needed: impl Fn(u64) -> bool) -> Option<u64> {
        let inside = &self.inside;
        let uses_of = |device: DeviceId| (!is_needed(device.0)).then(|| inside[&device.0].1);
        let victim = self.policy.victim(&uses_of)?.0;
        self.remove(victim);
        Some(victim)
    }

    fn remove(&mut self, id: u64) {
        let (ticket, _) = self.inside.remove(&id).unwrap();
        self.policy.remove(ticket);
    }
}

#[test]
fn a_policy_finds_only_devices_that_may_leave() {
    for eviction in Eviction::ALL {
        let mut cache = Cache::new(eviction);
        assert_eq!(cache.evict(), None);
        (1..=30).for_each(|id| cache.insert(id));
        assert_eq!(cache.evict_except(|_| true), None, "{eviction:?}");
        // The device that may leave is found behind all others; a scan may end before.
        let found = (0..8).find_map(|_| cache.evict_except(|id| id != 17));
        assert_eq!(found, Some(17), "{eviction:?}");
    }
}

#[test]
fn the_authentication_that_brings_a_device_is_no_use() {
    let first_use = Uses { count: 7, until_s: 0 };
    let seen = first_use.expected();
    let at = |count| Uses { count, until_s: 0 }.since(seen);
    assert_eq!([at(7), at(8), at(9), at(5000)], [0, 0, 1, 4992]);
    let wrapped = Uses {
        count: COUNT_MASK,
        until_s: 0,
    }
    .expected();
    assert_eq!(Uses { count: 2, until_s: 0 }.since(wrapped), 2);
}

proptest! {
    #[test]
    fn every_inserted_device_is_evicted_once(
        operation in 0usize..4,
        ops in prop::collection::vec((0u64..20, 0u8..4), 1..200),
    ) {
        let mut cache = Cache::new(Eviction::ALL[operation]);
        for (id, action) in ops {
            match (action, cache.inside.contains_key(&id)) {
                (0, false) => cache.insert(id),
                (1, true) => cache.remove(id),
                (2, true) => cache.authenticate(id),
                (3, _) => {
                    let some = !cache.inside.is_empty();
                    prop_assert_eq!(cache.evict().is_some(), some);
                }
                _ => {}
            }
        }
        for _ in 0..cache.inside.len() {
            prop_assert!(cache.evict().is_some());
        }
        prop_assert!(cache.inside.is_empty());
        prop_assert_eq!(cache.evict(), None);
    }
}
