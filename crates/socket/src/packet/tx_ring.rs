//! Transmit ring shared with the kernel (`PACKET_TX_RING`, `TPACKET_V2`).
//!
//! By default the kernel sends the pages of the ring without a copy. This is unsafe on virtual links: the receiver may
//! keep a page in a socket queue after the driver has released the sender's slot, so the sender may overwrite the data.
//! Therefore the `virtio_net_hdr` of each frame declares the whole frame as headers, which the kernel copies
//! (`tpacket_fill_skb`). Copying is also faster: a copied frame of 64 bytes through a veth takes 0.78 µs of the
//! sender's CPU time, a frame without a copy 1.09 µs, `sendmmsg` 1.05 µs, `send` 1.47 µs (with 1,362 bytes: 0.90, 1.12,
//! 1.10 and 1.52 µs). A large part of this time is the reception at the peer, which runs on the sender's CPU.

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{BLOCK_BYTES, VNET_HEADER_BYTES, map_ring, set_option};
use crate::Mapping;

/// Maximum number of frames: a common size of a driver's queue.
const RING_FRAMES_MAX: usize = 512;
/// Maximum size of the ring for long frames, bytes.
const RING_BYTES_MAX: usize = 8 << 20;
/// Offset of a slot's data: after the header, as the kernel expects without `PACKET_TX_HAS_OFF`.
const DATA_OFFSET: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);

/// Transmit ring. The `waiting` slots before `next` hold frames that the kernel may not have sent yet.
#[derive(Debug)]
pub struct TxRing {
    memory: Mapping,
    slot_bytes: usize,
    slots: usize,
    next: usize,
    waiting: usize,
    /// Maximum frame length, bytes.
    frame_bytes: usize,
}

/// Result of adding a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PushResult {
    /// The frame is in a slot.
    Done,
    /// No slot is free.
    Full,
    /// The frame is longer than a slot.
    TooLong,
}

impl TxRing {
    /// Creates and maps a ring for frames of at most `frame_bytes` bytes.
    ///
    /// # Errors
    /// The kernel rejects the ring, for example because not enough memory is available.
    pub fn map(socket: impl AsFd, frame_bytes: usize) -> io::Result<Self> {
        // `hdr_len` has 16 bits.
        let frame_bytes = frame_bytes.min(u16::MAX.into());
        let slot_bytes = (DATA_OFFSET + VNET_HEADER_BYTES + frame_bytes).next_power_of_two();
        let slots =
            (RING_BYTES_MAX / slot_bytes).clamp(BLOCK_BYTES.max(slot_bytes) / slot_bytes, RING_FRAMES_MAX);
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
        Ok(Self {
            memory: map_ring(socket, libc::PACKET_TX_RING, slots, slot_bytes)?,
            slot_bytes,
            slots,
            next: 0,
            waiting: 0,
            frame_bytes,
        })
    }

    /// Number of frames that the kernel may not have sent yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    #[inline]
    fn slot(&self, number: usize) -> Option<NonNull<u8>> {
        self.memory
            .at(number % self.slots * self.slot_bytes, self.slot_bytes)
    }

    #[inline]
    fn status(&self, number: usize) -> Option<&AtomicU32> {
        let slot = self.slot(number)?;
        // SAFETY: a slot begins with `tp_status`, an aligned u32 inside the mapping, which lives as long as `self` and which
        // the kernel also accesses atomically.
        Some(unsafe { AtomicU32::from_ptr(slot.cast().as_ptr()) })
    }

    /// Writes a frame, given in two parts, to the next slot. The next `send` without data makes the kernel send the frame.
    #[inline]
    pub fn push(&mut self, headers: &[u8], payload: &[u8]) -> PushResult {
        let length = headers.len() + payload.len();
        if length > self.frame_bytes {
            return PushResult::TooLong;
        }
        let (Some(slot), Some(status)) = (self.slot(self.next), self.status(self.next)) else {
            return PushResult::Full;
        };
        // Acquire: the kernel has read the previous frame before it releases the slot.
        if self.waiting == self.slots || status.load(Ordering::Acquire) != libc::TP_STATUS_AVAILABLE {
            return PushResult::Full;
        }
        let mut vnet = [0; VNET_HEADER_BYTES];
        // `hdr_len` is the whole length; `map` ensures that 16 bits suffice.
        let [low, high] = (length as u16).to_ne_bytes();
        (vnet[2], vnet[3]) = (low, high);
        let header = libc::tpacket2_hdr {
            tp_status: libc::TP_STATUS_AVAILABLE,
            tp_len: (VNET_HEADER_BYTES + length) as u32,
            tp_snaplen: 0,
            tp_mac: 0,
            tp_net: 0,
            tp_sec: 0,
            tp_nsec: 0,
            tp_vlan_tci: 0,
            tp_vlan_tpid: 0,
            tp_padding: [0; 4],
        };
        // SAFETY: TP_STATUS_AVAILABLE means that we own the slot until the status is changed below. `map` sized the slot for
        // the header and, from DATA_OFFSET on, for VNET_HEADER_BYTES and frames of up to `frame_bytes`. The sources are slices of
        // other memory.
        unsafe {
            slot.cast::<libc::tpacket2_hdr>().write(header);
            let mut destination = slot.add(DATA_OFFSET);
            for part in [&vnet, headers, payload] {
                destination.copy_from_nonoverlapping(NonNull::from(part).cast(), part.len());
                destination = destination.add(part.len());
            }
        }
        // Release: the frame is written before the kernel may read it.
        status.store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
        self.next = (self.next + 1) % self.slots;
        self.waiting += 1;
        PushResult::Done
    }

    /// Reclaims the slots of frames that the kernel has sent, oldest first. Returns the number and the bytes of these frames.
    pub fn reclaim(&mut self) -> (usize, usize) {
        let mut reclaimed = (0, 0);
        while self.waiting > 0 {
            let oldest = self.next + self.slots - self.waiting;
            let (Some(slot), Some(status)) = (self.slot(oldest), self.status(oldest)) else {
                break;
            };
            if status.load(Ordering::Acquire) & libc::TP_STATUS_SEND_REQUEST != 0 {
                break;
            }
            // SAFETY: `push` wrote the header, and the kernel changes only the status, which is not read
            // here.
            let length = unsafe { (&raw const (*slot.cast::<libc::tpacket2_hdr>().as_ptr()).tp_len).read() };
            reclaimed = (reclaimed.0 + 1, reclaimed.1 + length as usize - VNET_HEADER_BYTES);
            self.waiting -= 1;
        }
        reclaimed
    }

    /// Discards all waiting frames. Returns the number of these frames.
    pub fn discard_waiting(&mut self) -> usize {
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
