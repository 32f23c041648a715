//! The ring buffers with the program's events and misses.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libbpf_rs::{MapCore, RingBuffer, RingBufferBuilder};

use crate::error::DataPlaneError;
use crate::event::Event;
use crate::miss::Miss;

/// Size of the fields of `struct lw_miss` before its frame, bytes.
const MISS_HEADER_BYTES: usize = 8;

/// Entries that were read from the rings.
#[derive(Default)]
struct Inbox {
    events: Vec<Event>,
    misses: Vec<Miss>,
}

/// libbpf's reader.
struct Reader(RingBuffer<'static>);

// SAFETY: libbpf's reader is not bound to the thread that created it; the mutex around it admits one thread at a time,
// and its callbacks hold only data that may be sent.
unsafe impl Send for Reader {}

/// The rings of events and of misses.
pub(super) struct Rings {
    reader: Mutex<Reader>,
    epoll_fd: RawFd,
    inbox: Arc<Mutex<Inbox>>,
}

impl Rings {
    pub(super) fn map(events: &dyn MapCore, misses: &dyn MapCore) -> Result<Self, DataPlaneError> {
        let inbox = Arc::new(Mutex::new(Inbox::default()));
        let error = |error| DataPlaneError::kernel("mapping the event rings", error);
        let mut builder = RingBufferBuilder::new();
        let event_inbox = Arc::clone(&inbox);
        builder
            .add(events, move |bytes| {
                lock(&event_inbox).events.extend(Event::from_bytes(bytes));
                0
            })
            .map_err(error)?;
        let miss_inbox = Arc::clone(&inbox);
        builder
            .add(misses, move |bytes| {
                lock(&miss_inbox).misses.extend(miss(bytes));
                0
            })
            .map_err(error)?;
        let reader = builder.build().map_err(error)?;
        Ok(Self {
            epoll_fd: reader.epoll_fd(),
            reader: Mutex::new(Reader(reader)),
            inbox,
        })
    }

    /// A descriptor that becomes readable when the program reports an event that user space must handle, provided that
    /// [`Store::arm_wake`](crate::Store::arm_wake) was called before.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the reader's own and stays open as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.epoll_fd) }
    }

    pub(super) fn take_events(&self) -> Result<Vec<Event>, DataPlaneError> {
        self.consume()?;
        Ok(std::mem::take(&mut lock(&self.inbox).events))
    }

    pub(super) fn take_misses(&self) -> Result<Vec<Miss>, DataPlaneError> {
        self.consume()?;
        Ok(std::mem::take(&mut lock(&self.inbox).misses))
    }

    /// Adds an event that user space detected.
    pub(super) fn report(&self, event: Event) {
        lock(&self.inbox).events.push(event);
    }

    fn consume(&self) -> Result<(), DataPlaneError> {
        let error = |error| DataPlaneError::kernel("reading the event rings", error);
        // A panic leaves the reader usable, because its state is in the kernel.
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        reader.0.consume().map_err(error)
    }
}

fn lock(inbox: &Mutex<Inbox>) -> MutexGuard<'_, Inbox> {
    // A panic leaves both lists consistent.
    inbox.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads `struct lw_miss`.
fn miss(bytes: &[u8]) -> Option<Miss> {
    let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let (length, ingress) = (word(0)? as usize, word(4)?);
    let frame = bytes.get(MISS_HEADER_BYTES..)?.get(..length)?;
    Miss::of_frame(frame, ingress)
}
