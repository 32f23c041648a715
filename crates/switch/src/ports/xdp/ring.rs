//! Rings of an XDP socket (Documentation/networking/af_xdp.rst). Each ring has one producer and one consumer; one of
//! the two is the kernel, and the other is the switch.

use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use linewarden_socket::Mapping;

/// Entry of a ring: plain integers for which every byte pattern is valid.
///
/// # Safety
/// Implement the trait only for plain integers.
pub(super) unsafe trait Entry: Copy {}

// SAFETY: an integer.
unsafe impl Entry for u64 {}
// SAFETY: integers.
unsafe impl Entry for libc::xdp_desc {}

/// Ring whose number of entries is a power of two.
#[derive(Debug)]
pub(super) struct Ring<T> {
    memory: Mapping,
    /// Shared indices and flags, inside the mapping.
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    first_entry: usize,
    entries: u32,
    /// Own index; free-running like the shared indices.
    own_index: u32,
    /// Last known index of the kernel.
    kernel_index: u32,
    entry_type: PhantomData<T>,
}

// SAFETY: the pointers refer to atomics inside the mapping, which the ring owns.
unsafe impl<T: Entry> Send for Ring<T> {}

impl<T: Entry> Ring<T> {
    /// Maps a ring of the socket; the offset selects the ring.
    pub(super) fn map(
        fd: &OwnedFd,
        entries: u32,
        offsets: libc::xdp_ring_offset,
        page_offset: libc::off_t,
    ) -> io::Result<Self> {
        let first_entry = offsets.desc as usize;
        let memory = Mapping::of(fd, first_entry + entries as usize * size_of::<T>(), page_offset)?;
        let word = |offset: u64| {
            let word = memory
                .at(offset as usize, 4)
                .map(NonNull::<u8>::cast::<AtomicU32>);
            word.filter(|word| word.is_aligned() && entries.is_power_of_two())
                .ok_or_else(|| io::Error::other("invalid ring offsets from the kernel"))
        };
        Ok(Self {
            producer: word(offsets.producer)?,
            consumer: word(offsets.consumer)?,
            flags: word(offsets.flags)?,
            first_entry,
            entries,
            own_index: 0,
            kernel_index: 0,
            entry_type: PhantomData,
            memory,
        })
    }

    fn word(&self, word: NonNull<AtomicU32>) -> &AtomicU32 {
        // SAFETY: `map` has checked that the word is inside the mapping, which lives as long as `self`; the kernel also
        // accesses the word atomically.
        unsafe { word.as_ref() }
    }

    fn entry(&self, index: u32) -> Option<NonNull<T>> {
        let position = (index & (self.entries - 1)) as usize;
        let offset = self.first_entry + position * size_of::<T>();
        self.memory.at(offset, size_of::<T>()).map(NonNull::cast)
    }

    /// Whether the kernel requires a wake-up for new entries.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.word(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// As producer: adds an entry that is not yet visible to the kernel. False if the ring is full.
    pub(super) fn push(&mut self, value: T) -> bool {
        if self.unconsumed() == self.entries {
            // Acquire: the kernel has read the consumed entries.
            self.kernel_index = self.word(self.consumer).load(Ordering::Acquire);
            if self.unconsumed() == self.entries {
                return false;
            }
        }
        let Some(entry) = self.entry(self.own_index) else {
            return false;
        };
        // SAFETY: inside the mapping; the consumer index shows that we own the entry until the producer index passes it.
        unsafe { entry.write_unaligned(value) };
        self.own_index = self.own_index.wrapping_add(1);
        true
    }

    /// As producer: number of entries that the kernel may not have consumed yet.
    pub(super) fn unconsumed(&self) -> u32 {
        self.own_index.wrapping_sub(self.kernel_index)
    }

    /// As producer: makes the entries visible to the kernel.
    pub(super) fn publish(&mut self) {
        // Release: the entries are written before the index.
        self.word(self.producer).store(self.own_index, Ordering::Release);
    }

    /// As producer: passes the entries that the kernel has consumed to `take`, and returns the number of these entries.
    /// Entries whose consumption a [`Self::push`] into a full ring has already detected are not passed and not counted.
    pub(super) fn reclaim(&mut self, mut take: impl FnMut(T)) -> u32 {
        let consumed = self.word(self.consumer).load(Ordering::Acquire);
        let count = consumed.wrapping_sub(self.kernel_index);
        for number in 0..count {
            if let Some(entry) = self.entry(self.kernel_index.wrapping_add(number)) {
                // SAFETY: inside the mapping; the kernel only reads the entries of this ring.
                take(unsafe { entry.read_unaligned() });
            }
        }
        self.kernel_index = consumed;
        count
    }

    /// As consumer: takes the next entry. [`Self::release`] returns the entry to the kernel.
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.own_index == self.kernel_index {
            // Acquire: the kernel has written the produced entries.
            self.kernel_index = self.word(self.producer).load(Ordering::Acquire);
            if self.own_index == self.kernel_index {
                return None;
            }
        }
        let entry = self.entry(self.own_index)?;
        self.own_index = self.own_index.wrapping_add(1);
        // SAFETY: inside the mapping; the producer index has passed the entry, and the kernel writes it again only after
        // `release`.
        Some(unsafe { entry.read_unaligned() })
    }

    /// As consumer: returns the popped entries to the kernel.
    pub(super) fn release(&mut self) {
        // Release: the entries are read before the index is written.
        self.word(self.consumer).store(self.own_index, Ordering::Release);
    }
}

/// Frame memory in chunks of equal size. The kernel accesses the memory at the addresses in the
/// rings.
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

    /// Registration structure for the kernel.
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

    /// Passes the frame of a descriptor to `take`; an empty slice if the descriptor is out of range. `take` may modify the
    /// frame.
    ///
    /// # Safety
    /// The switch has received the chunk through the receive ring and has not returned it to the kernel, and no other
    /// reference into the chunk exists.
    pub(super) unsafe fn with_frame(&self, descriptor: &libc::xdp_desc, take: impl FnOnce(&mut [u8])) {
        let length = descriptor.len as usize;
        match self.memory.at(descriptor.addr as usize, length) {
            // SAFETY: inside the initialized mapping, and the caller guarantees exclusive access; `take` cannot keep the slice.
            Some(frame) => take(unsafe { std::slice::from_raw_parts_mut(frame.as_ptr(), length) }),
            None => take(&mut []),
        }
    }

    /// Writes a frame, given in two parts, to a chunk. False if the frame does not fit.
    ///
    /// # Safety
    /// The caller owns the chunk at this address, and no other reference into the chunk exists.
    pub(super) unsafe fn write(&self, address: u64, headers: &[u8], payload: &[u8]) -> bool {
        let length = headers.len() + payload.len();
        match self.memory.at(address as usize, length) {
            Some(frame) if length <= self.chunk_bytes => {
                // SAFETY: `length` bytes inside the mapping, owned as the caller guarantees; the sources are slices of
                // other memory or of received chunks, which are different chunks.
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
