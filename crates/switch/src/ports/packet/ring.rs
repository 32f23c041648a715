//! The receive ring shared with the kernel (`TPACKET_V2`; packet(7), Documentation/networking/packet_mmap.rst).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use super::super::sys::{self, Mapping};
use super::offload::{VNET_BYTES, VlanTag};

/// Slots lie in blocks of at least this many bytes.
const BLOCK_BYTES: usize = 64 << 10;
/// Bytes of a slot before the frame: header, link address, alignment, the `virtio_net_hdr`.
const BEFORE_FRAME_BYTES: usize = 96;

/// A frame in the ring.
#[derive(Debug)]
pub(super) enum Arrived<'a> {
    /// The `virtio_net_hdr` and all of the frame.
    Whole {
        buffer: &'a mut [u8],
        tag: Option<VlanTag>,
    },
    /// It is too long for a slot; all of it waits at the socket.
    AtSocket,
    /// It is too long for a slot, and there was no room at the socket either.
    Lost,
}

/// What the next slot says.
pub(super) struct Next {
    /// Frames were lost before this one.
    pub(super) losing: bool,
}

/// The ring.
#[derive(Debug)]
pub(super) struct RxRing {
    memory: Mapping,
    slot_bytes: usize,
    slots: usize,
    next: usize,
}

impl RxRing {
    /// Asks the kernel for a ring of about `bytes`, with slots that hold frames of `frame_bytes`, and maps it.
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

    /// Hands the next frame to `take` if there is one, and its slot back to the kernel.
    pub(super) fn next(&mut self, take: impl FnOnce(Arrived<'_>)) -> Option<Next> {
        let slot = self.memory.at(self.next * self.slot_bytes, self.slot_bytes)?;
        // SAFETY: a slot begins with `tp_status`, a u32 at an aligned address inside the mapping, which the kernel too
        // changes only as a whole.
        let status = unsafe { AtomicU32::from_ptr(slot.cast().as_ptr()) };
        // Acquire: the frame was written before the status.
        let flags = status.load(Ordering::Acquire);
        if flags & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: TP_STATUS_USER says that the slot is ours until the status is cleared below; its header is filled, and
        // is copied, so that no reference to it stays.
        let header = unsafe { slot.cast::<libc::tpacket2_hdr>().read() };
        let start = usize::from(header.tp_mac)
            .saturating_sub(VNET_BYTES)
            .max(size_of::<libc::tpacket2_hdr>());
        let room = self.slot_bytes.saturating_sub(start);
        let length = (header.tp_snaplen as usize + VNET_BYTES).min(room);
        take(if header.tp_snaplen == header.tp_len {
            // SAFETY: the slot is ours as above, start and length are clamped to what lies behind its
            // header, and `take` cannot keep the slice.
            let buffer = unsafe {
                std::slice::from_raw_parts_mut(slot.add(start.min(self.slot_bytes)).as_ptr(), length)
            };
            Arrived::Whole {
                buffer,
                tag: tag(flags, header.tp_vlan_tci, header.tp_vlan_tpid),
            }
        } else if flags & libc::TP_STATUS_COPY != 0 {
            Arrived::AtSocket
        } else {
            Arrived::Lost
        });
        // Release: the frame was read before the kernel may write again.
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % self.slots;
        Some(Next {
            losing: flags & libc::TP_STATUS_LOSING != 0,
        })
    }
}

/// The tag that the kernel took out, from a frame's status and fields.
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
