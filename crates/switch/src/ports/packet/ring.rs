//! Receive ring shared with the kernel (`TPACKET_V2`; packet(7), Documentation/networking/packet_mmap.rst).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use super::super::sys::{self, Mapping};
use super::offload::{VNET_BYTES, VlanTag};

/// Minimum size of a block of slots, bytes.
const BLOCK_BYTES: usize = 64 << 10;
/// Bytes of a slot before the frame: header, link address, alignment, the `virtio_net_hdr`.
const BEFORE_FRAME_BYTES: usize = 96;

/// Frame in the ring.
#[derive(Debug)]
pub(super) enum RxFrame<'a> {
    /// `virtio_net_hdr` and the complete frame.
    Whole {
        buffer: &'a mut [u8],
        tag: Option<VlanTag>,
    },
    /// The frame is too long for a slot and is queued at the socket.
    AtSocket,
    /// The frame is too long for a slot and was dropped because the socket buffer was full.
    Lost,
}

/// Status of a slot.
pub(super) struct RxSlot {
    /// Whether frames were dropped before the frame of this slot.
    pub(super) frames_lost: bool,
}

/// Receive ring.
#[derive(Debug)]
pub(super) struct RxRing {
    memory: Mapping,
    slot_bytes: usize,
    slots: usize,
    next: usize,
}

impl RxRing {
    /// Creates and maps a ring of about `bytes` bytes with slots for frames of `frame_bytes` bytes.
    pub(super) fn map(fd: &OwnedFd, bytes: usize, frame_bytes: usize) -> io::Result<Self> {
        let slot_bytes = (frame_bytes + BEFORE_FRAME_BYTES).next_power_of_two();
        let block_bytes = BLOCK_BYTES.max(slot_bytes);
        let slots = bytes.max(block_bytes).next_power_of_two() / slot_bytes;
        let to_u32 = |n: usize| u32::try_from(n).map_err(io::Error::other);
        let request = libc::tpacket_req {
            tp_block_size: to_u32(block_bytes)?,
            tp_block_nr: to_u32(slots * slot_bytes / block_bytes)?,
            tp_frame_size: to_u32(slot_bytes)?,
            tp_frame_nr: to_u32(slots)?,
        };
        sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, request)?;
        Ok(Self {
            memory: Mapping::of(fd, slots * slot_bytes, 0)?,
            slot_bytes,
            slots,
            next: 0,
        })
    }

    /// Passes the next frame to `take` and releases its slot to the kernel. `None` if no frame is available.
    pub(super) fn next(&mut self, take: impl FnOnce(RxFrame<'_>)) -> Option<RxSlot> {
        let slot = self.memory.at(self.next * self.slot_bytes, self.slot_bytes)?;
        // SAFETY: a slot begins with `tp_status`, an aligned u32 inside the mapping, which the kernel also accesses
        // atomically.
        let status = unsafe { AtomicU32::from_ptr(slot.cast().as_ptr()) };
        // Acquire: the frame was written before the status.
        let flags = status.load(Ordering::Acquire);
        if flags & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: TP_STATUS_USER means that we own the slot until the status is cleared below. The header is initialized
        // and copied, so no reference remains.
        let header = unsafe { slot.cast::<libc::tpacket2_hdr>().read() };
        let start = usize::from(header.tp_mac)
            .saturating_sub(VNET_BYTES)
            .max(size_of::<libc::tpacket2_hdr>());
        let length_max = self.slot_bytes.saturating_sub(start);
        let length = (header.tp_snaplen as usize + VNET_BYTES).min(length_max);
        take(if header.tp_snaplen == header.tp_len {
            // SAFETY: we own the slot as above, start and length are clamped to the space after its
            // header, and `take` cannot keep the slice.
            let buffer = unsafe {
                std::slice::from_raw_parts_mut(slot.add(start.min(self.slot_bytes)).as_ptr(), length)
            };
            RxFrame::Whole {
                buffer,
                tag: tag(flags, header.tp_vlan_tci, header.tp_vlan_tpid),
            }
        } else if flags & libc::TP_STATUS_COPY != 0 {
            RxFrame::AtSocket
        } else {
            RxFrame::Lost
        });
        // Release: the frame was read before the kernel may write again.
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % self.slots;
        Some(RxSlot {
            frames_lost: flags & libc::TP_STATUS_LOSING != 0,
        })
    }
}

/// Returns the VLAN tag that the kernel removed from the frame with this status; `None` if the kernel removed no tag.
pub(super) fn tag(status: u32, tci: u16, tpid: u16) -> Option<VlanTag> {
    let tpid_known = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
    (status & libc::TP_STATUS_VLAN_VALID != 0).then_some(VlanTag {
        tpid: if tpid_known {
            tpid
        } else {
            libc::ETH_P_8021Q as u16
        },
        tci,
    })
}
