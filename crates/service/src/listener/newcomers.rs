//! Who has not shown yet who they are. The newest come in, whoever is silent: where there are too many, the oldest goes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot::{Sender, channel};

/// At once. Who means well is done long before so many others have come.
const NEWCOMERS_MAX: usize = 2_048;

/// All of them.
#[derive(Default)]
pub(super) struct Newcomers {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    next: u64,
    /// By their numbers; who is dropped has been pushed out.
    inside: BTreeMap<u64, Sender<()>>,
}

/// One of them, until it is dropped.
pub(super) struct Newcomer {
    number: u64,
    of: Arc<Newcomers>,
}

impl Newcomers {
    /// One more, and what ends when that one has to go for others.
    pub(super) fn enter(self: &Arc<Self>) -> (Newcomer, impl Future<Output = ()> + use<>) {
        let (inside, outside) = channel();
        let mut queue = self.queue();
        if queue.inside.len() >= NEWCOMERS_MAX {
            queue.inside.pop_first();
        }
        let number = queue.next;
        queue.next += 1;
        queue.inside.insert(number, inside);
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
        self.of.queue().inside.remove(&self.number);
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

    #[tokio::test]
    async fn the_oldest_goes_where_there_are_too_many() {
        let newcomers = Arc::new(Newcomers::default());
        let (_first, first) = newcomers.enter();
        let (second, _) = newcomers.enter();
        drop(second);
        let rest: Vec<_> = (1..NEWCOMERS_MAX).map(|_| newcomers.enter()).collect();
        let mut first = std::pin::pin!(first);
        assert!(!has_ended(first.as_mut()).await, "there is room");
        let (_last, last) = newcomers.enter();
        assert!(has_ended(first).await);
        assert!(!has_ended(std::pin::pin!(last)).await);
        drop(rest);
    }
}
