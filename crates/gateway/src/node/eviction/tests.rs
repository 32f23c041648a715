//! Properties of all policies.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// A data plane that only counts authentications.
pub(super) struct Cache {
    policy: Box<dyn Policy>,
    entries: HashMap<u64, (EvictionHandle, Uses)>,
    now_s: u32,
}

impl Cache {
    pub(super) fn new(eviction: Eviction) -> Self {
        Self {
            policy: eviction.policy(),
            entries: HashMap::new(),
            now_s: 0,
        }
    }

    /// Inserts a device and counts the authentication that causes the insertion. The line's count before is an
    /// arbitrary value, `id - 2` modulo 2^24.
    pub(super) fn insert(&mut self, id: u64) {
        let count = COUNT_MASK.wrapping_sub(1).wrapping_add(id as u32) & COUNT_MASK;
        let handle = self.policy.insert(DeviceId(id), Uses { count, until_s: 0 });
        self.entries.insert(id, (handle, Uses { count, until_s: 0 }));
        self.authenticate(id);
    }

    pub(super) fn authenticate(&mut self, id: u64) {
        self.now_s += 1;
        let (_, uses) = self.entries.get_mut(&id).unwrap();
        uses.count = (uses.count + 1) & COUNT_MASK;
        uses.until_s = self.now_s;
    }

    pub(super) fn evict(&mut self) -> Option<u64> {
        self.evict_except(|_| false)
    }

    fn evict_except(&mut self, is_needed: impl Fn(u64) -> bool) -> Option<u64> {
        let entries = &self.entries;
        let uses_of = |device: DeviceId| (!is_needed(device.0)).then(|| entries[&device.0].1);
        let victim = self.policy.victim(&uses_of)?.0;
        self.remove(victim);
        Some(victim)
    }

    fn remove(&mut self, id: u64) {
        let (handle, _) = self.entries.remove(&id).unwrap();
        self.policy.remove(handle);
    }
}

#[test]
fn a_policy_evicts_only_devices_that_may_leave() {
    for eviction in Eviction::ALL {
        let mut cache = Cache::new(eviction);
        assert_eq!(cache.evict(), None);
        (1..=30).for_each(|id| cache.insert(id));
        assert_eq!(cache.evict_except(|_| true), None, "{eviction:?}");
        // Only device 17 may leave. One scan may be too short to reach device 17.
        let victim = (0..8).find_map(|_| cache.evict_except(|id| id != 17));
        assert_eq!(victim, Some(17), "{eviction:?}");
    }
}

#[test]
fn the_authentication_that_causes_the_insertion_is_not_a_use() {
    let before_admission = Uses { count: 7, until_s: 0 };
    let count_at_insertion = before_admission.count_after_admission();
    let uses_at = |count| Uses { count, until_s: 0 }.since(count_at_insertion);
    assert_eq!(
        [uses_at(7), uses_at(8), uses_at(9), uses_at(5000)],
        [0, 0, 1, 4992]
    );
    let wrapped = Uses {
        count: COUNT_MASK,
        until_s: 0,
    }
    .count_after_admission();
    assert_eq!(Uses { count: 2, until_s: 0 }.since(wrapped), 2);
}

proptest! {
    #[test]
    fn every_inserted_device_is_evicted_once(
        policy in 0usize..4,
        ops in prop::collection::vec((0u64..20, 0u8..4), 1..200),
    ) {
        let mut cache = Cache::new(Eviction::ALL[policy]);
        for (id, action) in ops {
            match (action, cache.entries.contains_key(&id)) {
                (0, false) => cache.insert(id),
                (1, true) => cache.remove(id),
                (2, true) => cache.authenticate(id),
                (3, _) => {
                    let is_occupied = !cache.entries.is_empty();
                    prop_assert_eq!(cache.evict().is_some(), is_occupied);
                }
                _ => {}
            }
        }
        for _ in 0..cache.entries.len() {
            prop_assert!(cache.evict().is_some());
        }
        prop_assert!(cache.entries.is_empty());
        prop_assert_eq!(cache.evict(), None);
    }
}
