//! The transmit ring shared with the kernel (`PACKET_TX_RING`, `TPACKET_V2`).
//!
//! By itself the kernel would send the ring's own pages. That is not safe on virtual links: their receiver holds such a
//! page in a socket's queue after the link's driver has let go of the sender, and with that of the slot, which is then
//! overwritten under the receiver's eyes. So each frame says, in a `virtio_net_hdr`, that it consists of nothing but
//! headers; these the kernel copies (`tpacket_fill_skb`).

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::super::sys::{self, Mapping};
use super::offload::VNET_BYTES;

/// Slots lie in blocks of at least this many bytes.
const BLOCK_BYTES: usize = 64 << 10;
/// What a driver's queue commonly holds, frames.
const RING_FRAMES_MAX: usize = 512;
/// Bounds the ring where frames are long.
const RING_BYTES_MAX: usize = 8 << 20;
/// Where a slot's data begins: behind its header, where the kernel looks without `PACKET_TX_HAS_OFF`.
const DATA_OFFSET: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);

/// The ring. Slots from `oldest` to `next` hold frames that were not yet seen to be taken by the kernel.
#[derive(Debug)]
pub(super) struct TxRing {
    memory: Mapping,
    slot_bytes: usize,
    slots: usize,
    next: usize,
    waiting: usize,
    /// Longest frame, bytes.
    frame_bytes: usize,
}

/// Whether a frame went into the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pushed {
    Done,
    Full,
    TooLong,
}

impl TxRing {
    /// Asks the kernel for a ring for frames of at most `frame_bytes` and maps it.
    pub(super) fn map(fd: &OwnedFd, frame_bytes: usize) -> io::Result<Self> {
        // What `hdr_len` can say.
        let frame_bytes = frame_bytes.min(u16::MAX.into());
        let slot_bytes = (DATA_OFFSET + VNET_BYTES + frame_bytes).next_power_of_two();
        let block_bytes = BLOCK_BYTES.max(slot_bytes);
        let slots = (RING_BYTES_MAX / slot_bytes).clamp(block_bytes / slot_bytes, RING_FRAMES_MAX);
        let to_u32 = |n: usize| u32::try_from(n).map_err(io::Error::other);
        let request = libc::tpacket_req {
            tp_block_size: to_u32(block_bytes)?,
            tp_block_nr: to_u32(slots * slot_bytes / block_bytes)?,
            tp_frame_size: to_u32(slot_bytes)?,
            tp_frame_nr: to_u32(slots)?,
        };
        sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_TX_RING, request)?;
        Ok(Self {
            memory: Mapping::of(fd, slots * slot_bytes, 0)?,
            slot_bytes,
            slots,
            next: 0,
            waiting: 0,
            frame_bytes,
        })
    }

    /// Frames in the ring that the kernel was not yet seen to take.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    fn slot(&self, number: usize) -> Option<NonNull<u8>> {
        self.memory
            .at(number % self.slots * self.slot_bytes, self.slot_bytes)
    }

    fn status(&self, number: usize) -> Option<&AtomicU32> {
        let slot = self.slot(number)?;
        // SAFETY: a slot begins with `tp_status`, a u32 at an aligned address inside the mapping, which lives as long as
        // `self`, and which the kernel too changes only as a whole.
        Some(unsafe { AtomicU32::from_ptr(slot.cast().as_ptr()) })
    }

    /// Puts a frame, given in two parts, into the next slot, to be taken with the next call of `sys::kick`.
    pub(super) fn push(&mut self, headers: &[u8], payload: &[u8]) -> Pushed {
        let length = headers.len() + payload.len();
        if length > self.frame_bytes {
            return Pushed::TooLong;
        }
        let (Some(slot), Some(status)) = (self.slot(self.next), self.status(self.next)) else {
            return Pushed::Full;
        };
        // Acquire: the kernel has read the last frame before it gives the slot back.
        if self.waiting == self.slots || status.load(Ordering::Acquire) != libc::TP_STATUS_AVAILABLE {
            return Pushed::Full;
        }
        let mut vnet = [0; VNET_BYTES];
        // `hdr_len`: all of it, which 16 bits can say, as `map` has seen to.
        let [low, high] = (length as u16).to_ne_bytes();
        (vnet[2], vnet[3]) = (low, high);
        let header = libc::tpacket2_hdr {
            tp_status: libc::TP_STATUS_AVAILABLE,
            tp_len: (VNET_BYTES + length) as u32,
            tp_snaplen: 0,
            tp_mac: 0,
            tp_net: 0,
            tp_sec: 0,
            tp_nsec: 0,
            tp_vlan_tci: 0,
            tp_vlan_tpid: 0,
            tp_padding: [0; 4],
        };
        // SAFETY: TP_STATUS_AVAILABLE says that the slot is ours until the status is changed below. It has room for the
        // header and, from DATA_OFFSET on, for VNET_BYTES and frames of up to `frame_bytes`, as `map` has computed its
        // size. The sources are slices of other memory.
        unsafe {
            slot.cast::<libc::tpacket2_hdr>().write(header);
            let mut to = slot.add(DATA_OFFSET);
            for part in [&vnet, headers, payload] {
                to.copy_from_nonoverlapping(NonNull::from(part).cast(), part.len());
                to = to.add(part.len());
            }
        }
        // Release: the frame is written before the kernel may read it.
        status.store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
        self.next = (self.next + 1) % self.slots;
        self.waiting += 1;
        Pushed::Done
    }

    /// Counts off the frames that the kernel has taken, from the oldest on. Returns their number and bytes.
    pub(super) fn settle(&mut self) -> (usize, usize) {
        let mut taken = (0, 0);
        while self.waiting > 0 {
            let oldest = self.next + self.slots - self.waiting;
            let (Some(slot), Some(status)) = (self.slot(oldest), self.status(oldest)) else {
                break;
            };
            if status.load(Ordering::Acquire) & libc::TP_STATUS_SEND_REQUEST != 0 {
                break;
            }
            // SAFETY: the header was written by `push`, and the kernel changes nothing but the status, which is not read
            // here.
            let length = unsafe { (&raw const (*slot.cast::<libc::tpacket2_hdr>().as_ptr()).tp_len).read() };
            taken = (taken.0 + 1, taken.1 + length as usize - VNET_BYTES);
            self.waiting -= 1;
        }
        taken
    }

    /// Takes all waiting frames back. Returns how many.
    pub(super) fn give_up(&mut self) -> usize {
        let waiting = self.waiting;
        while self.waiting > 0 {
            self.next = (self.next + self.slots - 1) % self.slots;
            self.waiting -= 1;
            if let Some(status) = self.status(self.next) {
                status.store(libc::TP_STATUS_AVAILABLE, Ordering::Release);
            }
        }
        waiting
    }
}
