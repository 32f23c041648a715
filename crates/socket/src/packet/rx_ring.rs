//! Receive ring shared with the kernel (`TPACKET_V2`; packet(7), Documentation/networking/packet_mmap.rst).

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{BLOCK_BYTES, VNET_HEADER_BYTES, VlanTag, map_ring, set_option};
use crate::Mapping;

/// Bytes of a slot before the frame: header, link address, alignment, the `virtio_net_hdr`.
const BEFORE_FRAME_BYTES: usize = 96;
/// Offset of the `sockaddr_ll` in a slot.
const ADDRESS_OFFSET: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);
/// Bytes of header and `sockaddr_ll`, where no frame starts.
const HEADERS_BYTES: usize = ADDRESS_OFFSET + size_of::<libc::sockaddr_ll>();

/// Slot with a received frame.
#[derive(Debug)]
pub struct RxSlot<'a> {
    /// The `virtio_net_hdr`, if the ring has these headers, and the frame from the destination MAC on, cut off at the end of the
    /// slot. The kernel has removed the outermost VLAN tag.
    pub buffer: &'a mut [u8],
    /// VLAN tag that the kernel removed.
    pub tag: Option<VlanTag>,
    /// Whether this host sent the frame on this interface; otherwise, the frame was received from the link.
    pub outgoing: bool,
    /// Time at which the kernel put the frame into the ring, ns since 1970.
    pub at_ns: u64,
    /// Whether the slot has the complete frame.
    pub is_complete: bool,
    /// Whether the complete frame is queued at the socket, because the frame is too long for a slot (`PACKET_COPY_THRESH`).
    pub is_at_socket: bool,
    /// Whether frames were dropped since the previous query of [`statistics`](super::statistics).
    pub frames_lost: bool,
}

/// Receive ring; unmapped when dropped.
#[derive(Debug)]
pub struct RxRing {
    memory: Mapping,
    slot_bytes: usize,
    slots: usize,
    /// Bytes of the `virtio_net_hdr` before each frame.
    vnet_bytes: usize,
    /// Index of the next slot to read.
    next: usize,
}

impl RxRing {
    /// Creates and maps a ring of about `bytes` bytes with slots for frames of `frame_bytes` bytes. With `vnet_headers`, each
    /// frame follows its `virtio_net_hdr`.
    ///
    /// # Errors
    /// The kernel rejects the ring, for example because not enough memory is available.
    pub fn map(socket: impl AsFd, bytes: usize, frame_bytes: usize, vnet_headers: bool) -> io::Result<Self> {
        if vnet_headers {
            set_option(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
        }
        let slot_bytes = (frame_bytes + BEFORE_FRAME_BYTES).next_power_of_two();
        let slots = bytes.max(BLOCK_BYTES).max(slot_bytes).next_power_of_two() / slot_bytes;
        Ok(Self {
            memory: map_ring(socket, libc::PACKET_RX_RING, slots, slot_bytes)?,
            slot_bytes,
            slots,
            vnet_bytes: if vnet_headers { VNET_HEADER_BYTES } else { 0 },
            next: 0,
        })
    }

    /// Passes the next frame to `take` and releases its slot to the kernel. Returns the result of `take`; `None` if no frame is
    /// available.
    #[inline]
    pub fn next<T>(&mut self, take: impl FnOnce(RxSlot<'_>) -> T) -> Option<T> {
        let slot = self.memory.at(self.next * self.slot_bytes, self.slot_bytes)?;
        // SAFETY: a slot begins with `tp_status`, an aligned u32 inside the mapping, which the kernel also accesses
        // atomically.
        let status = unsafe { AtomicU32::from_ptr(slot.cast().as_ptr()) };
        // Acquire: the frame was written before the status.
        let flags = status.load(Ordering::Acquire);
        if flags & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: TP_STATUS_USER means that we own the slot until the status is changed below. The header is initialized
        // and copied, so no reference remains.
        let header = unsafe { slot.cast::<libc::tpacket2_hdr>().read() };
        // SAFETY: as above; the link address follows the header, and `BEFORE_FRAME_BYTES` has space for both.
        let address = unsafe { slot.add(ADDRESS_OFFSET).cast::<libc::sockaddr_ll>().read() };
        let start = usize::from(header.tp_mac)
            .saturating_sub(self.vnet_bytes)
            .clamp(HEADERS_BYTES, self.slot_bytes);
        let length = (header.tp_snaplen as usize + self.vnet_bytes).min(self.slot_bytes - start);
        let taken = take(RxSlot {
            // SAFETY: we own the slot as above, start and length are clamped to the space after its headers, and `take` cannot
            // keep the slice.
            buffer: unsafe { std::slice::from_raw_parts_mut(slot.add(start).as_ptr(), length) },
            tag: VlanTag::of(flags, header.tp_vlan_tci, header.tp_vlan_tpid),
            outgoing: address.sll_pkttype == libc::PACKET_OUTGOING,
            at_ns: u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec),
            is_complete: header.tp_snaplen == header.tp_len,
            is_at_socket: flags & libc::TP_STATUS_COPY != 0,
            frames_lost: flags & libc::TP_STATUS_LOSING != 0,
        });
        // Release: the frame was read before the kernel may write again.
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % self.slots;
        Some(taken)
    }
}
