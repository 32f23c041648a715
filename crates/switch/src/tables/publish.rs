//! Versioned state without locks on the packet path.
//!
//! There are two copies of the state. Readers use the published copy and never wait. A writer changes the spare copy in a
//! batch. At the end of the batch the copies are swapped atomically. The old copy becomes the spare copy. Before the next
//! batch, the writer waits until the last reader has released the spare copy, and applies the log of changes to this copy
//! (left-right; Ramalhete and Correia, 2015). So an update is applied twice, but no table is copied, and a reader sees a
//! batch completely or not at all.
//!
//! A dropped or failed batch is undone change by change.

use arc_swap::ArcSwap;
use std::ops::Deref;
use std::sync::Arc;

/// State with changes that can be repeated on a copy and undone.
pub trait Replicated {
    /// Operation.
    type Op;
    /// Applied change with all details. Cheap to clone.
    type Change: Clone + std::fmt::Debug;
    /// Error of an operation.
    type Error;

    /// Applies an operation completely or not at all.
    ///
    /// # Errors
    /// The operation was rejected; the state is unchanged.
    fn apply(&mut self, op: Self::Op) -> Result<Self::Change, Self::Error>;

    /// Repeats a change that was applied to another copy, which was in the same state before the change.
    fn redo(&mut self, change: &Self::Change);

    /// Undoes the last change.
    fn undo(&mut self, change: &Self::Change);
}

/// State and its version.
#[derive(Clone, Debug)]
struct Versioned<T> {
    version: u64,
    state: T,
}

/// Writer of the state; exclusive.
#[derive(Debug)]
pub struct Publisher<T: Replicated + Clone> {
    published: Arc<ArcSwap<Versioned<T>>>,
    /// Copy that new readers do not use.
    spare: Arc<Versioned<T>>,
    /// Changes of the published copy that are not yet applied to the spare copy; during a batch, the changes of the batch.
    log: Vec<T::Change>,
    /// Number of published batches.
    version: u64,
}

/// Reader of the state; clone one for each thread.
#[derive(Debug)]
pub struct Reader<T> {
    published: Arc<ArcSwap<Versioned<T>>>,
}

/// Immutable snapshot of the state.
///
/// The next batch does not wait for this snapshot, but the batch after the next waits until the snapshot is dropped.
/// Therefore keep a snapshot only for a batch of packets, and never in a thread that blocks.
#[derive(Debug)]
pub struct Snapshot<T>(arc_swap::Guard<Arc<Versioned<T>>>);

/// Snapshot that borrows the writer.
#[derive(Debug)]
pub struct WriterSnapshot<'a, T: Replicated + Clone> {
    snapshot: Snapshot<T>,
    _publisher: &'a Publisher<T>,
}

impl<T: Replicated + Clone> Deref for WriterSnapshot<'_, T> {
    type Target = Snapshot<T>;

    fn deref(&self) -> &Snapshot<T> {
        &self.snapshot
    }
}

/// Batch of changes that become visible together or never.
#[derive(Debug)]
pub struct Batch<'a, T: Replicated + Clone> {
    publisher: &'a mut Publisher<T>,
    committed: bool,
}

/// Error of an atomic batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("batch rejected because update {index} failed: {error}")]
pub struct BatchError<E> {
    /// Index of the failed update, from 0.
    pub index: usize,
    /// Cause.
    pub error: E,
}

impl<T: Replicated + Clone> Publisher<T> {
    /// Publishes a state. Only this function copies the state.
    #[must_use]
    pub fn new(state: T) -> Self {
        let spare = Arc::new(Versioned {
            version: 0,
            state: state.clone(),
        });
        let published = Arc::new(ArcSwap::from_pointee(Versioned { version: 0, state }));
        Self {
            published,
            spare,
            log: Vec::new(),
            version: 0,
        }
    }
    /// Creates a reader.
    #[must_use]
    pub fn reader(&self) -> Reader<T> {
        Reader {
            published: self.published.clone(),
        }
    }

    /// Current published state. The result borrows the publisher, so no batch can start and wait forever for this snapshot.
    #[must_use]
    pub fn current(&self) -> WriterSnapshot<'_, T> {
        WriterSnapshot {
            snapshot: Snapshot(self.published.load()),
            _publisher: self,
        }
    }

    /// Starts a batch. Waits while a reader holds a snapshot from before the latest commit.
    pub fn begin(&mut self) -> Batch<'_, T> {
        while !self.catch_up() {
            std::thread::yield_now();
        }
        Batch {
            publisher: self,
            committed: false,
        }
    }

    /// Starts a batch; `None` while a reader holds a snapshot from before the latest commit.
    pub fn try_begin(&mut self) -> Option<Batch<'_, T>> {
        self.catch_up().then_some(()).map(|()| Batch {
            publisher: self,
            committed: false,
        })
    }

    /// Applies all operations atomically, or none.
    ///
    /// # Errors
    /// The first rejected operation; the state is unchanged.
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

    /// Applies the log to the spare copy; `false` if a reader still uses that copy.
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
    /// Applies one operation. Later operations of this batch see the change immediately; readers see it after
    /// [`Batch::commit`].
    ///
    /// # Errors
    /// The operation was rejected; earlier changes of the batch stay.
    pub fn apply(&mut self, op: T::Op) -> Result<T::Change, T::Error> {
        let change = self.state_mut().apply(op)?;
        self.publisher.log.push(change.clone());
        Ok(change)
    }

    /// State including the changes of this batch.
    #[must_use]
    pub fn state(&self) -> &T {
        &self.publisher.spare.state
    }

    /// Changes of this batch.
    #[must_use]
    pub fn changes(&self) -> &[T::Change] {
        &self.publisher.log
    }

    /// Undoes all changes of the batch except the first `count` changes.
    pub fn undo_to(&mut self, count: usize) {
        while self.publisher.log.len() > count
            && let Some(change) = self.publisher.log.pop()
        {
            self.state_mut().undo(&change);
        }
    }

    /// Publishes the batch atomically; returns the new version. A batch without changes creates no
    /// version.
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
        self.publisher.spare = self.publisher.published.swap(next);
    }

    /// Returns the state of the spare copy. No reader uses the spare copy during a batch, so `make_mut` does not copy the
    /// state.
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
    /// Takes a snapshot of the current state.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<T> {
        Snapshot(self.published.load())
    }
}

impl<T> Clone for Reader<T> {
    fn clone(&self) -> Self {
        Self {
            published: self.published.clone(),
        }
    }
}

impl<T> Snapshot<T> {
    /// Version: the number of batches that produced this state.
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
