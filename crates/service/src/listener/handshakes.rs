//! Pending TLS handshakes. A new connection is always accepted: if too many handshakes are pending, from one address or
//! in total, the oldest of these handshakes is evicted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot::{Sender, channel};

/// Maximum number of pending handshakes. A legitimate handshake ends long before this number of other handshakes begins.
const HANDSHAKES_MAX: usize = 2_048;
/// Maximum number of pending handshakes from one address, which may be a NAT shared by many hosts.
const HANDSHAKES_PER_ADDRESS_MAX: usize = 64;

/// All pending handshakes.
#[derive(Default)]
pub(super) struct PendingHandshakes {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// Number of the next handshake.
    next_number: u64,
    /// Pending handshakes by number. When the sender is dropped, the handshake is evicted.
    pending: BTreeMap<u64, (IpAddr, Sender<()>)>,
    /// Numbers of the pending handshakes by address.
    by_address: HashMap<IpAddr, BTreeSet<u64>>,
}

/// A pending handshake. On drop, the handshake is no longer pending.
pub(super) struct PendingHandshake {
    number: u64,
    handshakes: Arc<PendingHandshakes>,
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

    /// The handshake to evict before another handshake from the address is added; `None` if no limit is reached.
    fn eviction_candidate(&self, address: IpAddr) -> Option<u64> {
        let numbers_at_limit = self
            .by_address
            .get(&address)
            .filter(|numbers| numbers.len() >= HANDSHAKES_PER_ADDRESS_MAX);
        let is_full = self.pending.len() >= HANDSHAKES_MAX;
        let oldest_of_all = || self.pending.keys().next().filter(|_| is_full);
        numbers_at_limit
            .and_then(BTreeSet::first)
            .or_else(oldest_of_all)
            .copied()
    }
}

impl PendingHandshakes {
    /// Adds a handshake from the address. The returned future completes when the handshake is evicted.
    pub(super) fn add(
        self: &Arc<Self>,
        address: IpAddr,
    ) -> (PendingHandshake, impl Future<Output = ()> + use<>) {
        let (eviction_sender, eviction) = channel();
        let mut queue = self.queue();
        if let Some(oldest) = queue.eviction_candidate(address) {
            queue.remove(oldest);
        }
        let number = queue.next_number;
        queue.next_number += 1;
        queue.pending.insert(number, (address, eviction_sender));
        queue.by_address.entry(address).or_default().insert(number);
        drop(queue);
        let pending = PendingHandshake {
            number,
            handshakes: Arc::clone(self),
        };
        // No value is ever sent; the receiver ends when the sender is dropped.
        (pending, async { drop(eviction.await) })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // The data is consistent even if a holder of the lock panicked.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PendingHandshake {
    fn drop(&mut self) {
        self.handshakes.queue().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_evicted(mut eviction: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
        tokio::select! {
            biased;
            () = eviction.as_mut() => true,
            () = std::future::ready(()) => false,
        }
    }

    fn address(number: usize) -> IpAddr {
        IpAddr::from((number as u128).to_be_bytes())
    }

    /// Adds `limit` handshakes from the addresses that `address_of` returns, then one more handshake.
    async fn the_oldest_is_evicted(limit: usize, address_of: impl Fn(usize) -> IpAddr) {
        let handshakes = Arc::new(PendingHandshakes::default());
        let (first, first_eviction) = handshakes.add(address_of(0));
        let (second, _) = handshakes.add(address_of(0));
        drop(second);
        let others: Vec<_> = (1..limit)
            .map(|number| handshakes.add(address_of(number)))
            .collect();
        let mut first_eviction = std::pin::pin!(first_eviction);
        assert!(
            !is_evicted(first_eviction.as_mut()).await,
            "the limit is not reached"
        );
        let (last, last_eviction) = handshakes.add(address_of(0));
        assert!(is_evicted(first_eviction).await);
        assert!(!is_evicted(std::pin::pin!(last_eviction)).await);
        drop((others, last, first));
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
    async fn an_address_over_its_limit_evicts_only_its_own_handshakes() {
        let handshakes = Arc::new(PendingHandshakes::default());
        let (_first, first_eviction) = handshakes.add(address(1));
        let _flood: Vec<_> = (0..2 * HANDSHAKES_MAX)
            .map(|_| handshakes.add(address(2)))
            .collect();
        assert!(!is_evicted(std::pin::pin!(first_eviction)).await);
    }
}
