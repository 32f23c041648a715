//! S3-FIFO (Yang et al., SOSP 2023).
//!
//! A newcomer enters a small queue, a tenth of the places. At its end who was used more than once moves to the main queue;
//! who was not is evicted, and remembered in a ghost queue for as many evictions as the main queue has places: who comes
//! back in that time enters the main queue at once. There whoever reaches the end goes round once more for each use, three
//! times at most. A scan passes through the small queue and leaves the main one alone.

use std::collections::{HashMap, VecDeque};

use linewarden_protocol::ids::DeviceId;

use super::list::{List, Slab};
use super::{Policy, STEPS_MAX, Ticket, Uses};

/// The small queue's share of all places is one in so many.
const SMALL_PART: usize = 10;
/// More uses than these are not counted.
const USES_MAX: u32 = 3;
/// Uses in the small queue with which a device moves to the main one are more than these.
const ONCE: u32 = 1;

/// Whoever can leave does so when the end of the main queue has met him so often.
const ROUNDS: usize = USES_MAX as usize + 1;

/// In an entry's mark: it is in the main queue; the lower bits count its uses.
const MAIN: u8 = 0x80;

/// Both queues, and those that were in the small one lately.
#[derive(Debug, Default)]
pub(super) struct S3Fifo {
    slab: Slab,
    small: List,
    main: List,
    ghosts: Ghosts,
}

/// What became of the one at the end of a queue.
enum End {
    Evicted(DeviceId),
    /// From the small queue to the main one.
    Moves,
    Stays,
}

impl Policy for S3Fifo {
    fn enter(&mut self, device: DeviceId, uses: Uses) -> Ticket {
        let is_back = self.ghosts.take(device);
        let mark = if is_back { MAIN } else { 0 };
        let at = self.slab.add(device, uses.expected(), mark);
        let queue = if is_back { &mut self.main } else { &mut self.small };
        queue.push(&mut self.slab, at);
        Ticket(at)
    }

    fn leave(&mut self, Ticket(at): Ticket) {
        let Some(entry) = self.slab.get(at) else {
            return;
        };
        let queue = match entry.mark & MAIN {
            0 => &mut self.small,
            _ => &mut self.main,
        };
        queue.unlink(&mut self.slab, at);
        self.slab.remove(at);
    }

    fn victim(&mut self, uses_of: &dyn Fn(DeviceId) -> Option<Uses>) -> Option<DeviceId> {
        // All that are looked at may turn out to be needed.
        let mut small_left = self.small.len();
        let mut main_left = ROUNDS * self.main.len();
        for _ in 0..STEPS_MAX {
            let is_small_full = self.small.len() * SMALL_PART >= self.slab.len();
            let end = if small_left > 0 && (is_small_full || main_left == 0) {
                small_left -= 1;
                self.end_of_small(uses_of)?
            } else if main_left > 0 {
                main_left -= 1;
                self.end_of_main(uses_of)?
            } else {
                return None;
            };
            match end {
                End::Evicted(device) => return Some(device),
                End::Moves => main_left += ROUNDS,
                End::Stays => {}
            }
        }
        None
    }
}

impl S3Fifo {
    fn end_of_small(&mut self, uses_of: &dyn Fn(DeviceId) -> Option<Uses>) -> Option<End> {
        let at = self.small.tail();
        let entry = self.slab.get_mut(at)?;
        let device = entry.device;
        match uses_of(device) {
            None => {
                self.small.unlink(&mut self.slab, at);
                self.small.push(&mut self.slab, at);
            }
            Some(uses) if uses.since(entry.seen) > ONCE => {
                (entry.seen, entry.mark) = (uses.count, MAIN);
                self.small.unlink(&mut self.slab, at);
                self.main.push(&mut self.slab, at);
                return Some(End::Moves);
            }
            Some(_) => {
                self.ghosts.add(device, self.slab.len());
                return Some(End::Evicted(device));
            }
        }
        Some(End::Stays)
    }

    fn end_of_main(&mut self, uses_of: &dyn Fn(DeviceId) -> Option<Uses>) -> Option<End> {
        let at = self.main.tail();
        let entry = self.slab.get_mut(at)?;
        if let Some(uses) = uses_of(entry.device) {
            let before = u32::from(entry.mark & !MAIN);
            let left = (before + uses.since(entry.seen).min(USES_MAX)).min(USES_MAX);
            let Some(left) = left.checked_sub(1) else {
                return Some(End::Evicted(entry.device));
            };
            entry.mark = MAIN | u8::try_from(left).unwrap_or_default();
            if uses.since(entry.seen) > 0 {
                entry.seen = uses.count;
            }
        }
        self.main.unlink(&mut self.slab, at);
        self.main.push(&mut self.slab, at);
        Some(End::Stays)
    }
}

/// Devices that left the small queue, oldest first.
#[derive(Debug, Default)]
struct Ghosts {
    queue: VecDeque<(DeviceId, u64)>,
    /// With the number of the entry in the queue that counts.
    numbers: HashMap<DeviceId, u64>,
    added: u64,
}

impl Ghosts {
    /// One more, of as many as a main queue of `places` in all holds.
    fn add(&mut self, device: DeviceId, places: usize) {
        self.added += 1;
        self.queue.push_back((device, self.added));
        self.numbers.insert(device, self.added);
        while self.queue.len() > places - places / SMALL_PART
            && let Some((oldest, number)) = self.queue.pop_front()
        {
            if self.numbers.get(&oldest) == Some(&number) {
                self.numbers.remove(&oldest);
            }
        }
    }

    /// Whether it was here; it is no more.
    fn take(&mut self, device: DeviceId) -> bool {
        self.numbers.remove(&device).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Eviction;
    use super::super::tests::Cache;

    #[test]
    fn used_twice_it_moves_to_main_and_a_ghost_enters_there() {
        let mut cache = Cache::new(Eviction::S3Fifo);
        (1..=4).for_each(|id| cache.enter(id));
        cache.authenticate(1);
        cache.authenticate(1);
        cache.authenticate(2);
        // 1 moves to the main queue; 2 was used once only.
        assert_eq!(cache.evict(), Some(2));
        cache.enter(2);
        cache.enter(5);
        // 2 was a ghost: now it is in main, behind the newcomers.
        assert_eq!(
            [cache.evict(), cache.evict(), cache.evict()],
            [Some(3), Some(4), Some(5)]
        );
        assert_eq!([cache.evict(), cache.evict()], [Some(1), Some(2)]);
    }

    #[test]
    fn one_that_moves_to_main_leaves_from_there_if_nobody_else_is_left() {
        let mut cache = Cache::new(Eviction::S3Fifo);
        cache.enter(9);
        (0..2).for_each(|_| cache.authenticate(9));
        assert_eq!(cache.evict(), Some(9));
    }

    #[test]
    fn a_scan_leaves_the_main_queue_alone() {
        let mut cache = Cache::new(Eviction::S3Fifo);
        (1..=20).for_each(|id| cache.enter(id));
        for id in 1..=18 {
            (0..3).for_each(|_| cache.authenticate(id));
        }
        for scanned in 100..300 {
            let victim = cache.evict();
            assert!(victim.is_some_and(|id| id > 18), "{victim:?}");
            cache.enter(scanned);
        }
    }
}
