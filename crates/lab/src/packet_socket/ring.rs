//! The receive ring shared with the kernel (`TPACKET_V2`, packet(7), Documentation/networking/packet_mmap.rst).

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of one slot: header, link address and a frame of up to about 1,950 bytes.
const SLOT_BYTES: usize = 2048;
/// Bytes of a block of 32 slots.
const BLOCK_BYTES: usize = 64 << 10;
/// Offset of the `sockaddr_ll` in a slot: the header rounded up to 16 bytes.
const ADDRESS_OFFSET: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(16);

/// One received frame. The frame is valid until the closure that receives the frame returns.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The frame from the destination MAC on, cut off at about 1,950 bytes. The kernel has removed the outermost VLAN tag.
    pub frame: &'a [u8],
    /// The tag control information of the removed VLAN tag.
    pub vlan_tci: Option<u16>,
    /// The frame was sent by this host on this interface; otherwise it was received from the link.
    pub outgoing: bool,
    /// Time at which the kernel put the frame into the ring, ns of the real-time clock ([`crate::clock::real_ns`]).
    pub at_ns: u64,
}

/// The mapped ring; unmapped when dropped.
#[derive(Debug)]
pub(super) struct RxRing {
    base: NonNull<u8>,
    slots: usize,
    /// Index of the next slot to read.
    next: usize,
}

// SAFETY: this value is the only owner of the mapping, no thread-local state is involved, and every access needs
// `&mut self`.
unsafe impl Send for RxRing {}

impl RxRing {
    /// Creates a ring of at least `frames` slots and maps it.
    pub(super) fn map(fd: &OwnedFd, frames: u32) -> io::Result<Self> {
        let slots_per_block = BLOCK_BYTES / SLOT_BYTES;
        let slots = (frames as usize).max(slots_per_block).next_power_of_two();
        let to_u32 = |n: usize| u32::try_from(n).map_err(io::Error::other);
        let request = libc::tpacket_req {
            tp_block_size: to_u32(BLOCK_BYTES)?,
            tp_block_nr: to_u32(slots / slots_per_block)?,
            tp_frame_size: to_u32(SLOT_BYTES)?,
            tp_frame_nr: to_u32(slots)?,
        };
        super::set_option(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        // SAFETY: creates a new mapping at an address of the kernel's choice, with exactly the ring's size.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                slots * SLOT_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(mapped.cast()).ok_or_else(|| io::Error::other("mmap returned null"))?;
        Ok(Self { base, slots, next: 0 })
    }

    /// Passes the next frame, if there is one, to `on_frame` and returns its slot to the kernel.
    pub(super) fn next(&mut self, on_frame: &mut impl FnMut(Received<'_>)) -> bool {
        // SAFETY: `next` is below `slots`, so the slot is inside the mapping.
        let slot = unsafe { self.base.add(self.next * SLOT_BYTES) };
        // SAFETY: a slot begins with `tp_status`, a u32 at an aligned address, which the kernel, too, changes only
        // atomically.
        let status = unsafe { AtomicU32::from_ptr(slot.cast().as_ptr()) };
        // Acquire: the frame was written before the status.
        let flags = status.load(Ordering::Acquire);
        if flags & libc::TP_STATUS_USER == 0 {
            return false;
        }
        // SAFETY: with TP_STATUS_USER the slot is owned by user space until the status is cleared below.
        on_frame(unsafe { read_slot(slot, flags) });
        // Release: the frame was read before the kernel may write to the slot.
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % self.slots;
        true
    }
}

impl Drop for RxRing {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping of `map`; no borrow of it outlives `next`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.slots * SLOT_BYTES) };
    }
}

/// Reads a slot's header.
///
/// # Safety
/// `slot` is a slot of a mapped ring, and user space owns the slot for `'a`.
unsafe fn read_slot<'a>(slot: NonNull<u8>, flags: u32) -> Received<'a> {
    // SAFETY: the header is at the slot's start; the caller guarantees that it is filled and does not change.
    let header = unsafe { slot.cast::<libc::tpacket2_hdr>().as_ref() };
    // SAFETY: the link address follows the header inside the slot.
    let address = unsafe { slot.add(ADDRESS_OFFSET).cast::<libc::sockaddr_ll>().as_ref() };
    let offset = usize::from(header.tp_mac);
    let length = (header.tp_snaplen as usize).min(SLOT_BYTES.saturating_sub(offset));
    Received {
        // SAFETY: offset and length, which the kernel wrote, are clamped to the slot.
        frame: unsafe { std::slice::from_raw_parts(slot.add(offset.min(SLOT_BYTES)).as_ptr(), length) },
        vlan_tci: (flags & libc::TP_STATUS_VLAN_VALID != 0).then_some(header.tp_vlan_tci),
        outgoing: address.sll_pkttype == libc::PACKET_OUTGOING,
        at_ns: u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec),
    }
}
