//! Who has not shown yet who they are. The newest come in, whoever is silent: where there are too many, of an address or of all, the
//! oldest goes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot::{Sender, channel};

/// At once. Who means well is done long before so many others have come.
const NEWCOMERS_MAX: usize = 2_048;
/// Of one address, which may be that of many behind a translator; likewise.
const OF_ADDRESS_MAX: usize = 64;

/// All of them.
#[derive(Default)]
pub(super) struct Newcomers {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    next: u64,
    /// By their numbers; who is dropped has been pushed out.
    inside: BTreeMap<u64, (IpAddr, Sender<()>)>,
    /// The numbers of each address.
    of: HashMap<IpAddr, BTreeSet<u64>>,
}

/// One of them, until it is dropped.
pub(super) struct Newcomer {
    number: u64,
    of: Arc<Newcomers>,
}

impl Queue {
    fn remove(&mut self, number: u64) {
        let Some((address, _)) = self.inside.remove(&number) else {
            return;
        };
        if let Some(numbers) = self.of.get_mut(&address) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.of.remove(&address);
            }
        }
    }

    /// Who has to go for one more of that address.
    fn oldest(&self, address: IpAddr) -> Option<u64> {
        let own = self.of.get(&address);
        let own = own.filter(|numbers| numbers.len() >= OF_ADDRESS_MAX);
        let is_full = self.inside.len() >= NEWCOMERS_MAX;
        let any = || self.inside.keys().next().filter(|_| is_full);
        own.and_then(BTreeSet::first).or_else(any).copied()
    }
}

impl Newcomers {
    /// One more of that address, and what ends when that one has to go for others.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> (Newcomer, impl Future<Output = ()> + use<>) {
        let (inside, outside) = channel();
        let mut queue = self.queue();
        if let Some(oldest) = queue.oldest(address) {
            queue.remove(oldest);
        }
        let number = queue.next;
        queue.next += 1;
        queue.inside.insert(number, (address, inside));
        queue.of.entry(address).or_default().insert(number);
        drop(queue);
        let newcomer = Newcomer {
            number,
            of: Arc::clone(self),
        };
        // Nothing is ever sent.
        (newcomer, async { drop(outside.await) })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Whole at every moment, whoever panicked.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        self.of.queue().remove(self.number);
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

    /// One comes, so many others of the addresses that `of` gives them, and one more.
    async fn the_oldest_goes(most: usize, of: impl Fn(usize) -> IpAddr) {
        let newcomers = Arc::new(Newcomers::default());
        let (_first, first) = newcomers.enter(of(0));
        let (second, _) = newcomers.enter(of(0));
        drop(second);
        let rest: Vec<_> = (1..most).map(|number| newcomers.enter(of(number))).collect();
        let mut first = std::pin::pin!(first);
        assert!(!has_ended(first.as_mut()).await, "there is room");
        let (last, ends) = newcomers.enter(of(0));
        assert!(has_ended(first).await);
        assert!(!has_ended(std::pin::pin!(ends)).await);
        drop((rest, last, _first));
        let queue = newcomers.queue();
        assert!(
            queue.inside.is_empty() && queue.of.is_empty(),
            "nobody is remembered"
        );
    }

    #[tokio::test]
    async fn the_oldest_goes_where_there_are_too_many() {
        the_oldest_goes(NEWCOMERS_MAX, address).await;
        the_oldest_goes(OF_ADDRESS_MAX, |_| address(1)).await;
    }

    #[tokio::test]
    async fn who_has_too_many_pushes_out_nobody_else() {
        let newcomers = Arc::new(Newcomers::default());
        let (_first, first) = newcomers.enter(address(1));
        let _flood: Vec<_> = (0..2 * NEWCOMERS_MAX)
            .map(|_| newcomers.enter(address(2)))
            .collect();
        assert!(!has_ended(std::pin::pin!(first)).await);
    }
}
