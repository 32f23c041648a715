//! Versions of the forwarding state without locks on the packet path.
//!
//! There are two copies of the state. Readers see the live one and never wait. A writer changes the other, in a batch;
//! when the batch is complete, the copies are exchanged in one step, and what was live is brought up to date from the
//! log of changes before the next batch, as soon as its last reader has gone (left-right; Ramalhete and Correia, 2015).
//! So an update costs twice its own work and never a copy of a table, and a reader sees a batch whole or not at all.
//!
//! A batch that is dropped, or that fails where it must be all or nothing, is undone change by change.

use arc_swap::ArcSwap;
use std::ops::Deref;
use std::sync::Arc;

/// A state that is changed step by step, each of which can be made again on a copy, and undone.
pub trait Replicated {
    /// What is asked for.
    type Op;
    /// What was done, in full. Cheap to clone.
    type Change: Clone + std::fmt::Debug;
    /// Why something was not done.
    type Error;

    /// Does what is asked for, or nothing at all.
    ///
    /// # Errors
    /// If it cannot be done; then nothing has changed.
    fn apply(&mut self, op: Self::Op) -> Result<Self::Change, Self::Error>;

    /// Makes a change that was made on another copy, which was then as this one is now.
    fn redo(&mut self, change: &Self::Change);

    /// Takes back the last change.
    fn undo(&mut self, change: &Self::Change);
}

/// A state and how many batches made it.
#[derive(Clone, Debug)]
struct Versioned<T> {
    version: u64,
    state: T,
}

/// The writer's side: one at a time changes the state.
#[derive(Debug)]
pub struct Publisher<T: Replicated + Clone> {
    live: Arc<ArcSwap<Versioned<T>>>,
    /// The copy that no new reader comes to.
    spare: Arc<Versioned<T>>,
    /// What was done on the live copy and not yet on the spare one.
    log: Vec<T::Change>,
    /// Batches published so far.
    version: u64,
}

/// A reader's side; clone one for each thread.
#[derive(Debug)]
pub struct Reader<T> {
    live: Arc<ArcSwap<Versioned<T>>>,
}

/// The state as it was at one time; it does not change while it is held.
///
/// The next but one batch waits until it is dropped: hold it for a batch of packets, and never while waiting for
/// something else.
#[derive(Debug)]
pub struct Snapshot<T>(arc_swap::Guard<Arc<Versioned<T>>>);

/// A snapshot in the writer's own hands.
#[derive(Debug)]
pub struct Current<'a, T: Replicated + Clone> {
    snapshot: Snapshot<T>,
    _publisher: &'a Publisher<T>,
}

impl<T: Replicated + Clone> Deref for Current<'_, T> {
    type Target = Snapshot<T>;

    fn deref(&self) -> &Snapshot<T> {
        &self.snapshot
    }
}

/// Changes that become visible together, or never.
#[derive(Debug)]
pub struct Batch<'a, T: Replicated + Clone> {
    publisher: &'a mut Publisher<T>,
    committed: bool,
}

/// Why a batch that must be all or nothing was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("update {index} of the batch cannot be done, so none was: {error}")]
pub struct BatchError<E> {
    /// Which of the batch's updates, from 0.
    pub index: usize,
    /// Why.
    pub error: E,
}

impl<T: Replicated + Clone> Publisher<T> {
    /// Publishes a state; the one copy of it is made here.
    #[must_use]
    pub fn new(state: T) -> Self {
        let spare = Arc::new(Versioned {
            version: 0,
            state: state.clone(),
        });
        let live = Arc::new(ArcSwap::from_pointee(Versioned { version: 0, state }));
        Self {
            live,
            spare,
            log: Vec::new(),
            version: 0,
        }
    }
    /// A reader of what is published here.
    #[must_use]
    pub fn reader(&self) -> Reader<T> {
        Reader {
            live: self.live.clone(),
        }
    }

    /// The state that readers see now. It cannot be held while a batch begins, which would wait for itself.
    #[must_use]
    pub fn current(&self) -> Current<'_, T> {
        Current {
            snapshot: Snapshot(self.live.load()),
            _publisher: self,
        }
    }

    /// Begins a batch. Waits while a reader still holds a snapshot from before the last batch.
    pub fn begin(&mut self) -> Batch<'_, T> {
        while !self.catch_up() {
            std::thread::yield_now();
        }
        Batch {
            publisher: self,
            committed: false,
        }
    }

    /// Begins a batch, unless a reader still holds a snapshot from before the last one.
    pub fn try_begin(&mut self) -> Option<Batch<'_, T>> {
        self.catch_up().then_some(()).map(|()| Batch {
            publisher: self,
            committed: false,
        })
    }

    /// Makes all of the changes visible together, or none.
    ///
    /// # Errors
    /// The first that cannot be made; none was then.
    pub fn all_or_nothing(
        &mut self,
        ops: impl IntoIterator<Item = T::Op>,
    ) -> Result<(), BatchError<T::Error>> {
        let mut batch = self.begin();
        for (index, op) in ops.into_iter().enumerate() {
            batch.apply(op).map_err(|error| BatchError { index, error })?;
        }
        batch.commit();
        Ok(())
    }

    /// Does to the spare copy what was done to the live one; `false` if a reader still uses it.
    fn catch_up(&mut self) -> bool {
        let Some(spare) = Arc::get_mut(&mut self.spare) else {
            return false;
        };
        for change in self.log.drain(..) {
            spare.state.redo(&change);
        }
        true
    }
}

impl<T: Replicated + Clone> Batch<'_, T> {
    /// Makes one change, visible to this batch's later ones at once, and to readers with [`Batch::commit`].
    ///
    /// # Errors
    /// If it cannot be made; what the batch did before stays done.
    pub fn apply(&mut self, op: T::Op) -> Result<T::Change, T::Error> {
        let change = self.state_mut().apply(op)?;
        self.publisher.log.push(change.clone());
        Ok(change)
    }

    /// The state with this batch's changes so far.
    #[must_use]
    pub fn state(&self) -> &T {
        &self.publisher.spare.state
    }

    /// This batch's changes so far.
    #[must_use]
    pub fn changes(&self) -> &[T::Change] {
        &self.publisher.log
    }

    /// Takes back all but the first `kept` changes.
    pub fn undo_to(&mut self, kept: usize) {
        while self.publisher.log.len() > kept
            && let Some(change) = self.publisher.log.pop()
        {
            self.state_mut().undo(&change);
        }
    }

    /// Makes the batch visible in one step; returns the number of the version that readers then see. A batch without
    /// changes makes no version.
    pub fn commit(mut self) -> u64 {
        self.committed = true;
        if !self.publisher.log.is_empty() {
            self.publisher.version += 1;
            self.publish();
        }
        self.publisher.version
    }

    fn publish(&mut self) {
        let version = self.publisher.version;
        Arc::make_mut(&mut self.publisher.spare).version = version;
        let next = self.publisher.spare.clone();
        self.publisher.spare = self.publisher.live.swap(next);
    }

    /// No reader has the spare copy while there is a batch: it is not copied here.
    fn state_mut(&mut self) -> &mut T {
        &mut Arc::make_mut(&mut self.publisher.spare).state
    }
}

impl<T: Replicated + Clone> Drop for Batch<'_, T> {
    fn drop(&mut self) {
        if !self.committed {
            self.undo_to(0);
        }
    }
}

impl<T> Reader<T> {
    /// The state as it is now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<T> {
        Snapshot(self.live.load())
    }
}

impl<T> Clone for Reader<T> {
    fn clone(&self) -> Self {
        Self {
            live: self.live.clone(),
        }
    }
}

impl<T> Snapshot<T> {
    /// How many batches made this state.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.0.version
    }
}

impl<T> Deref for Snapshot<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.state
    }
}
