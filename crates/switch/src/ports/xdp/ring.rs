//! The rings of an XDP socket (Documentation/networking/af_xdp.rst). Each has one producer and one consumer, of which one is
//! the kernel.

use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::super::sys::Mapping;

/// What stands in a ring: plain integers, for which every pattern of bytes is valid.
///
/// # Safety
/// Implement it only for such types.
pub(super) unsafe trait Entry: Copy {}

// SAFETY: an integer.
unsafe impl Entry for u64 {}
// SAFETY: integers.
unsafe impl Entry for libc::xdp_desc {}

/// A ring of a power of two of entries.
#[derive(Debug)]
pub(super) struct Ring<T> {
    memory: Mapping,
    /// The shared indices and flags, inside the mapping.
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    first_entry: usize,
    entries: u32,
    /// Our own index; free running, as the shared ones are.
    ours: u32,
    /// The kernel's, as it was last seen.
    theirs: u32,
    holds: PhantomData<T>,
}

// SAFETY: the pointers lead into the mapping, which the ring owns, and to atomics.
unsafe impl<T: Entry> Send for Ring<T> {}

impl<T: Entry> Ring<T> {
    /// Maps a ring that the socket has, at an offset that names it.
    pub(super) fn map(
        fd: &OwnedFd,
        entries: u32,
        offsets: libc::xdp_ring_offset,
        at: libc::off_t,
    ) -> io::Result<Self> {
        let first_entry = offsets.desc as usize;
        let memory = Mapping::of(fd, first_entry + entries as usize * size_of::<T>(), at)?;
        let word = |offset: u64| {
            let word = memory
                .at(offset as usize, 4)
                .map(NonNull::<u8>::cast::<AtomicU32>);
            word.filter(|word| word.is_aligned() && entries.is_power_of_two())
                .ok_or_else(|| io::Error::other("the kernel describes a ring that cannot be"))
        };
        Ok(Self {
            producer: word(offsets.producer)?,
            consumer: word(offsets.consumer)?,
            flags: word(offsets.flags)?,
            first_entry,
            entries,
            ours: 0,
            theirs: 0,
            holds: PhantomData,
            memory,
        })
    }

    fn word(&self, word: NonNull<AtomicU32>) -> &AtomicU32 {
        // SAFETY: one of the three that `map` has found inside the mapping, which lives as long as `self`; the kernel too
        // changes it only as a whole.
        unsafe { word.as_ref() }
    }

    fn entry(&self, index: u32) -> Option<NonNull<T>> {
        let place = (index & (self.entries - 1)) as usize;
        let at = self.first_entry + place * size_of::<T>();
        self.memory.at(at, size_of::<T>()).map(NonNull::cast)
    }

    /// The kernel asks to be told of new entries.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.word(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// As producer: puts an entry in, not yet visible to the kernel. False when the ring is full.
    pub(super) fn push(&mut self, value: T) -> bool {
        if self.unconsumed() == self.entries {
            // Acquire: the kernel has read what it has consumed.
            self.theirs = self.word(self.consumer).load(Ordering::Acquire);
            if self.unconsumed() == self.entries {
                return false;
            }
        }
        let Some(entry) = self.entry(self.ours) else {
            return false;
        };
        // SAFETY: inside the mapping; ours until the producer index passes it, as the consumer index shows.
        unsafe { entry.write_unaligned(value) };
        self.ours = self.ours.wrapping_add(1);
        true
    }

    /// As producer: entries that the kernel was not yet seen to consume.
    pub(super) fn unconsumed(&self) -> u32 {
        self.ours.wrapping_sub(self.theirs)
    }

    /// As producer: makes the entries visible.
    pub(super) fn publish(&mut self) {
        // Release: the entries are written before.
        self.word(self.producer).store(self.ours, Ordering::Release);
    }

    /// As producer: hands the entries that the kernel has consumed to `take`, unless a [`Self::push`] into a full ring has
    /// looked before. Returns how many.
    pub(super) fn settle(&mut self, mut take: impl FnMut(T)) -> u32 {
        let consumed = self.word(self.consumer).load(Ordering::Acquire);
        let count = consumed.wrapping_sub(self.theirs);
        for number in 0..count {
            if let Some(entry) = self.entry(self.theirs.wrapping_add(number)) {
                // SAFETY: inside the mapping; the kernel only reads this ring's entries.
                take(unsafe { entry.read_unaligned() });
            }
        }
        self.theirs = consumed;
        count
    }

    /// As consumer: the next entry. It is the kernel's again after [`Self::release`].
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.ours == self.theirs {
            // Acquire: the kernel has written what it has produced.
            self.theirs = self.word(self.producer).load(Ordering::Acquire);
            if self.ours == self.theirs {
                return None;
            }
        }
        let entry = self.entry(self.ours)?;
        self.ours = self.ours.wrapping_add(1);
        // SAFETY: inside the mapping; the producer index has passed it, and the kernel writes it again only after
        // `release`.
        Some(unsafe { entry.read_unaligned() })
    }

    /// As consumer: gives back the entries that were popped.
    pub(super) fn release(&mut self) {
        // Release: the entries were read before.
        self.word(self.consumer).store(self.ours, Ordering::Release);
    }
}

/// The memory that frames lie in, in chunks of one size; the kernel writes and reads it at the addresses that the rings
/// name.
#[derive(Debug)]
pub(super) struct Umem {
    memory: Mapping,
    pub(super) chunk_bytes: usize,
}

impl Umem {
    pub(super) fn new(chunks: usize, chunk_bytes: usize) -> io::Result<Self> {
        Ok(Self {
            memory: Mapping::anonymous(chunks * chunk_bytes)?,
            chunk_bytes,
        })
    }

    /// How the kernel wants it described.
    pub(super) fn registration(&self) -> libc::xdp_umem_reg {
        libc::xdp_umem_reg {
            addr: self.memory.address(),
            len: self.memory.bytes() as u64,
            chunk_size: self.chunk_bytes as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        }
    }

    /// Hands the frame that a descriptor names to `take`, which may change it; an empty one when it lies outside.
    ///
    /// # Safety
    /// The kernel has given the chunk to us, by the receive ring, it was not given back, and nobody else has a reference into
    /// it.
    pub(super) unsafe fn with_frame(&self, descriptor: &libc::xdp_desc, take: impl FnOnce(&mut [u8])) {
        let length = descriptor.len as usize;
        match self.memory.at(descriptor.addr as usize, length) {
            // SAFETY: inside the mapping, initialised by it, and by the caller's promise nobody else's; `take` cannot keep it.
            Some(frame) => take(unsafe { std::slice::from_raw_parts_mut(frame.as_ptr(), length) }),
            None => take(&mut []),
        }
    }

    /// Writes a frame, given in two parts, into a chunk. False when it does not fit.
    ///
    /// # Safety
    /// The chunk at this address is ours, not the kernel's, and nobody has a reference into it.
    pub(super) unsafe fn write(&self, address: u64, headers: &[u8], payload: &[u8]) -> bool {
        let length = headers.len() + payload.len();
        match self.memory.at(address as usize, length) {
            Some(frame) if length <= self.chunk_bytes => {
                // SAFETY: `length` bytes inside the mapping, ours by the caller's promise; the sources are slices of
                // other memory, or of chunks that were received, which are others.
                unsafe {
                    frame.copy_from_nonoverlapping(NonNull::from(headers).cast(), headers.len());
                    frame
                        .add(headers.len())
                        .copy_from_nonoverlapping(NonNull::from(payload).cast(), payload.len());
                }
                true
            }
            _ => false,
        }
    }
}
