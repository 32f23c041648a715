//! What holds of every policy.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// A data plane that only counts.
pub(super) struct Cache {
    policy: Box<dyn Policy>,
    inside: HashMap<u64, (Ticket, Uses)>,
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

    /// Comes in, by an authentication of its own; the counter of its line stands somewhere.
    pub(super) fn enter(&mut self, id: u64) {
        let count = COUNT_MASK.wrapping_sub(1).wrapping_add(id as u32) & COUNT_MASK;
        let ticket = self.policy.enter(DeviceId(id), Uses { count, until_s: 0 });
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
        self.evict_but(|_| false)
    }

    fn evict_but(&mut self, is_needed: impl Fn(u64) -> bool) -> Option<u64> {
        let inside = &self.inside;
        let uses_of = |device: DeviceId| (!is_needed(device.0)).then(|| inside[&device.0].1);
        let victim = self.policy.victim(&uses_of)?.0;
        self.leave(victim);
        Some(victim)
    }

    fn leave(&mut self, id: u64) {
        let (ticket, _) = self.inside.remove(&id).unwrap();
        self.policy.leave(ticket);
    }
}

#[test]
fn nobody_can_leave() {
    for eviction in Eviction::ALL {
        let mut cache = Cache::new(eviction);
        assert_eq!(cache.evict(), None);
        (1..=30).for_each(|id| cache.enter(id));
        assert_eq!(cache.evict_but(|_| true), None, "{eviction:?}");
        // Whoever can is found behind all who cannot; a look may end before.
        let found = (0..8).find_map(|_| cache.evict_but(|id| id != 17));
        assert_eq!(found, Some(17), "{eviction:?}");
    }
}

#[test]
fn the_authentication_that_brings_a_device_is_no_use() {
    let came = Uses { count: 7, until_s: 0 };
    let seen = came.expected();
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
    fn everybody_who_entered_and_did_not_leave_is_found_once(
        which in 0usize..4,
        ops in prop::collection::vec((0u64..20, 0u8..4), 1..200),
    ) {
        let mut cache = Cache::new(Eviction::ALL[which]);
        for (id, what) in ops {
            match (what, cache.inside.contains_key(&id)) {
                (0, false) => cache.enter(id),
                (1, true) => cache.leave(id),
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
