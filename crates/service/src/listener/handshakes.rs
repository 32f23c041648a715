//! Pending TLS handshakes. New connections are always accepted: if too many handshakes are pending, from one address
//! or in total, the oldest is ended.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot::{Sender, channel};

/// Largest number of pending handshakes. A regular handshake ends long before so many others have begun.
const HANDSHAKES_MAX: usize = 2_048;
/// Largest number of pending handshakes from one address, which may be a NAT shared by many hosts.
const HANDSHAKES_PER_ADDRESS_MAX: usize = 64;

/// All pending handshakes.
#[derive(Default)]
pub(super) struct PendingHandshakes {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    next: u64,
    /// Pending handshakes by number. Dropping the sender evicts one.
    pending: BTreeMap<u64, (IpAddr, Sender<()>)>,
    /// Numbers by address.
    by_address: HashMap<IpAddr, BTreeSet<u64>>,
}

/// A pending handshake, until it is dropped.
pub(super) struct PendingHandshake {
    number: u64,
    queue: Arc<PendingHandshakes>,
}

impl Queue {
    fn remove(&mut self, number: u64) {
        let Some((address, _)) = self.pending.remove(&number) else {
            return;
        };
        if let Some(numbers) = self.by_address.get_mut(&address) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_address.remove(&address);
            }
        }
    }

    /// The handshake to evict for one more from the address.
    fn oldest(&self, address: IpAddr) -> Option<u64> {
        let own = self.by_address.get(&address);
        let own = own.filter(|numbers| numbers.len() >= HANDSHAKES_PER_ADDRESS_MAX);
        let is_full = self.pending.len() >= HANDSHAKES_MAX;
        let any = || self.pending.keys().next().filter(|_| is_full);
        own.and_then(BTreeSet::first).or_else(any).copied()
    }
}

impl PendingHandshakes {
    /// Adds a handshake from the address. The future completes when it is evicted.
    pub(super) fn add(
        self: &Arc<Self>,
        address: IpAddr,
    ) -> (PendingHandshake, impl Future<Output = ()> + use<>) {
        let (inside, outside) = channel();
        let mut queue = self.queue();
        if let Some(oldest) = queue.oldest(address) {
            queue.remove(oldest);
        }
        let number = queue.next;
        queue.next += 1;
        queue.pending.insert(number, (address, inside));
        queue.by_address.entry(address).or_default().insert(number);
        drop(queue);
        let pending = PendingHandshake {
            number,
            queue: Arc::clone(self),
        };
        // Nothing is ever sent: the sender is dropped.
        (pending, async { drop(outside.await) })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // The data is consistent even if a holder of the lock panicked.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PendingHandshake {
    fn drop(&mut self) {
        self.queue.queue().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn has_ended(mut ends: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
        tokio::select! {
            biased;
            () = ends.as_mut() => true,
            () = std::future::ready(()) => false,
        }
    }

    fn address(number: usize) -> IpAddr {
        IpAddr::from((number as u128).to_be_bytes())
    }

    /// Adds `most` handshakes from the addresses that `of` returns, then one more.
    async fn the_oldest_is_evicted(most: usize, of: impl Fn(usize) -> IpAddr) {
        let handshakes = Arc::new(PendingHandshakes::default());
        let (_first, first) = handshakes.add(of(0));
        let (second, _) = handshakes.add(of(0));
        drop(second);
        let rest: Vec<_> = (1..most).map(|number| handshakes.add(of(number))).collect();
        let mut first = std::pin::pin!(first);
        assert!(!has_ended(first.as_mut()).await, "the limit is not reached");
        let (last, ends) = handshakes.add(of(0));
        assert!(has_ended(first).await);
        assert!(!has_ended(std::pin::pin!(ends)).await);
        drop((rest, last, _first));
        let queue = handshakes.queue();
        assert!(
            queue.pending.is_empty() && queue.by_address.is_empty(),
            "all entries are removed"
        );
    }

    #[tokio::test]
    async fn the_oldest_is_evicted_at_the_limit() {
        the_oldest_is_evicted(HANDSHAKES_MAX, address).await;
        the_oldest_is_evicted(HANDSHAKES_PER_ADDRESS_MAX, |_| address(1)).await;
    }

    #[tokio::test]
    async fn an_address_over_its_limit_evicts_only_its_own() {
        let handshakes = Arc::new(PendingHandshakes::default());
        let (_first, first) = handshakes.add(address(1));
        let _flood: Vec<_> = (0..2 * HANDSHAKES_MAX)
            .map(|_| handshakes.add(address(2)))
            .collect();
        assert!(!has_ended(std::pin::pin!(first)).await);
    }
}
