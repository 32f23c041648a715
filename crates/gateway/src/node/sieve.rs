//! Whom to evict when every place is taken: SIEVE (Zhang et al., NSDI 2024).
//!
//! Newcomers enter at the head. A hand walks from the tail to the head, spares whom it finds visited since it was
//! last there, and evicts the first that was not; it goes on from there the next time. What counts as a visit is known
//! without a word from the packet path: every authentication raises the generation in the commit word.

use linewarden_protocol::ids::DeviceId;

/// Entries that one look passes: a millisecond or so.
const STEPS_MAX: usize = 4096;
/// No entry.
const NONE: u32 = u32::MAX;

/// Where a device stands in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u32);

#[derive(Debug)]
struct Entry {
    device: DeviceId,
    /// Towards the head.
    newer: u32,
    /// Towards the tail.
    older: u32,
    /// The low bits of the generation when the hand was here last.
    seen: u8,
}

/// The order of the devices in the data plane; 24 B each.
#[derive(Debug)]
pub(super) struct Sieve {
    entries: Vec<Entry>,
    free: Vec<u32>,
    head: u32,
    tail: u32,
    hand: u32,
}

impl Default for Sieve {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            head: NONE,
            tail: NONE,
            hand: NONE,
        }
    }
}

impl Sieve {
    /// A device enters, at that generation.
    pub(super) fn enter(&mut self, device: DeviceId, generation: u8) -> Ticket {
        let entry = Entry {
            device,
            newer: NONE,
            older: self.head,
            seen: generation,
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
                u32::try_from(self.entries.len() - 1).unwrap_or(NONE)
            }
        };
        match self.entries.get_mut(self.head as usize) {
            Some(head) => head.newer = at,
            None => self.tail = at,
        }
        self.head = at;
        Ticket(at)
    }

    /// A device leaves.
    pub(super) fn leave(&mut self, Ticket(at): Ticket) {
        let Some(&Entry { newer, older, .. }) = self.entries.get(at as usize) else {
            return;
        };
        match self.entries.get_mut(newer as usize) {
            Some(entry) => entry.older = older,
            None => self.head = older,
        }
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = newer,
            None => self.tail = newer,
        }
        if self.hand == at {
            self.hand = newer;
        }
        self.free.push(at);
    }

    /// The next device to evict: the first under the hand whose generation is what it was. `generation_of` gives
    /// `None` for one that cannot leave now. `None` if two rounds found nobody, or there was no time for them: the next call
    /// goes on there.
    pub(super) fn victim(&mut self, generation_of: impl Fn(DeviceId) -> Option<u8>) -> Option<DeviceId> {
        let round = self.entries.len() - self.free.len();
        for _ in 0..(2 * round).min(STEPS_MAX) {
            if self.hand == NONE {
                self.hand = self.tail;
            }
            let entry = self.entries.get_mut(self.hand as usize)?;
            let generation = generation_of(entry.device);
            let was = entry.seen;
            entry.seen = generation.unwrap_or(was);
            let device = entry.device;
            self.hand = entry.newer;
            if generation == Some(was) {
                return Some(device);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_hand_spares_who_was_visited_and_goes_on_where_it_stopped() {
        let mut sieve = Sieve::default();
        let mut generations: HashMap<DeviceId, u8> = HashMap::new();
        let mut tickets = HashMap::new();
        for id in 1..=5 {
            generations.insert(DeviceId(id), 0);
            tickets.insert(DeviceId(id), sieve.enter(DeviceId(id), 0));
        }
        for id in [1, 3] {
            generations.insert(DeviceId(id), 1);
        }
        let mut evict = |generations: &HashMap<DeviceId, u8>| {
            let victim = sieve.victim(|device| generations.get(&device).copied()).unwrap();
            sieve.leave(tickets[&victim]);
            victim.0
        };
        assert_eq!([evict(&generations), evict(&generations)], [2, 4]);
        generations.insert(DeviceId(5), 9);
        // The hand passes 5, turns round, and finds 1 unvisited since.
        assert_eq!(evict(&generations), 1);
        assert_eq!(evict(&generations), 3);
    }

    #[test]
    fn nobody_can_leave() {
        let mut sieve = Sieve::default();
        assert_eq!(sieve.victim(|_| Some(0)), None);
        let _ = sieve.enter(DeviceId(1), 0);
        assert_eq!(sieve.victim(|_| None), None);
    }

    proptest! {
        #[test]
        fn everybody_who_entered_and_did_not_leave_is_found_once(ops in prop::collection::vec((0u64..20, 0u8..3), 1..200)) {
            let mut sieve = Sieve::default();
            let mut inside: HashMap<DeviceId, Ticket> = HashMap::new();
            for (id, what) in ops {
                let device = DeviceId(id);
                match (what, inside.get(&device).copied()) {
                    (0, None) => {
                        inside.insert(device, sieve.enter(device, 0));
                    }
                    (1, Some(ticket)) => {
                        inside.remove(&device);
                        sieve.leave(ticket);
                    }
                    (2, _) => {
                        let victim = sieve.victim(|_| Some(0));
                        prop_assert_eq!(victim.is_some(), !inside.is_empty());
                        if let Some(ticket) = victim.and_then(|victim| inside.remove(&victim)) {
                            sieve.leave(ticket);
                        }
                    }
                    _ => {}
                }
            }
            let mut found = 0;
            while let Some(victim) = sieve.victim(|_| Some(0)) {
                let ticket = inside.remove(&victim);
                prop_assert!(ticket.is_some());
                sieve.leave(ticket.unwrap());
                found += 1;
            }
            prop_assert!(inside.is_empty(), "{found}");
        }
    }
}
