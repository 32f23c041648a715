//! Offloads that a sender's network stack left to the hardware and that a virtual link does not perform: insertion of a VLAN
//! tag, completion of a partial checksum, segmentation of a frame of up to 64 KiB.
//!
//! The kernel describes the offloads in a `virtio_net_hdr` (`PACKET_VNET_HDR`; OASIS virtio 1.2, 5.1.6). The header is
//! required because only the header contains the segment size, and because only the kernel can determine which of several nested
//! checksums is partial.

use linewarden_socket::packet::{VNET_HEADER_BYTES, VlanTag};

use super::super::RxCounters;
use super::super::checksum::{
    Layout, TAG_BYTES, TCP, UDP, be16, complete, fold, not_zero, ones_sum, set_be16,
};

/// Kind of segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Segments {
    Tcp,
    Udp,
}

/// Pending offloads of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PendingOffload {
    /// Partial checksum: start of the covered data, and offset of the checksum field from this start.
    checksum: Option<(usize, usize)>,
    /// Kind and payload length of the segments; the kind is `None` if unsupported.
    segments: Option<(Option<Segments>, usize)>,
}

impl PendingOffload {
    /// Parses the header; `None` if no offload is pending, as for all frames from a physical link.
    fn parse(header: [u8; VNET_HEADER_BYTES]) -> Option<Self> {
        const NEEDS_CHECKSUM: u8 = 1;
        let [flags, kind, _, _, size0, size1, start0, start1, offset0, offset1] = header;
        let number = |low, high| usize::from(u16::from_ne_bytes([low, high]));
        let checksum =
            (flags & NEEDS_CHECKSUM != 0).then(|| (number(start0, start1), number(offset0, offset1)));
        // The top bit requests ECN handling, which `segment` always performs.
        let segments = match kind & 0x7f {
            0 => None,
            1 | 4 => Some(Some(Segments::Tcp)),
            5 => Some(Some(Segments::Udp)),
            _ => Some(None),
        };
        let segments = segments.map(|kind| (kind, number(size0, size1)));
        (checksum.is_some() || segments.is_some()).then_some(Self { checksum, segments })
    }
}

/// Performs the offloads of the frame after the `virtio_net_hdr` in `buffer` and passes the result to `take`: the frame,
/// its segments, or nothing.
pub(super) fn complete_offload(
    buffer: &mut [u8],
    tag: Option<VlanTag>,
    scratch: &mut Vec<u8>,
    counters: &mut RxCounters,
    take: &mut dyn FnMut(&[u8]),
) {
    let Some((&header, _)) = buffer.split_first_chunk::<VNET_HEADER_BYTES>() else {
        return;
    };
    let Some(frame) = with_tag(buffer, tag) else {
        counters.dropped_offload += 1;
        return;
    };
    let Some(mut offload) = PendingOffload::parse(header) else {
        return hand_over(frame, counters, take);
    };
    if let (Some((start, _)), Some(_)) = (offload.checksum.as_mut(), tag) {
        *start += TAG_BYTES;
    }
    let result = match offload {
        PendingOffload {
            segments: Some((kind, payload_bytes)),
            checksum,
        } => kind.and_then(|kind| {
            segment(frame, kind, payload_bytes, checksum, scratch, &mut |frame| {
                hand_over(frame, counters, take);
            })
            .map(|()| counters.segmented += 1)
        }),
        PendingOffload {
            checksum: Some((start, offset)),
            ..
        } => complete(frame, start, offset).map(|()| {
            counters.checksums_completed += 1;
            hand_over(frame, counters, take);
        }),
        PendingOffload { .. } => None,
    };
    if result.is_none() {
        counters.dropped_offload += 1;
    }
}

fn hand_over(frame: &[u8], counters: &mut RxCounters, take: &mut dyn FnMut(&[u8])) {
    counters.frames += 1;
    counters.bytes += frame.len() as u64;
    take(frame);
}

/// Returns the frame after the `virtio_net_hdr` with its tag restored. The addresses move into the space of the
/// `virtio_net_hdr`.
fn with_tag(buffer: &mut [u8], tag: Option<VlanTag>) -> Option<&mut [u8]> {
    const ADDRESSES: usize = 12;
    let Some(tag) = tag else {
        return buffer.get_mut(VNET_HEADER_BYTES..);
    };
    let frame = buffer.get_mut(VNET_HEADER_BYTES - TAG_BYTES..)?;
    if frame.len() < TAG_BYTES + ADDRESSES {
        return None;
    }
    frame.copy_within(TAG_BYTES..TAG_BYTES + ADDRESSES, 0);
    let [tpid0, tpid1] = tag.tpid.to_be_bytes();
    let [tci0, tci1] = tag.tci.to_be_bytes();
    *frame.get_mut(ADDRESSES..)?.first_chunk_mut()? = [tpid0, tpid1, tci0, tci1];
    Some(frame)
}

/// Segments a frame as the kernel's GSO does (RFC 9293; for UDP each segment is a datagram).
/// If the frame is not supported, returns `None` before the first segment is passed to `take`.
fn segment(
    frame: &[u8],
    kind: Segments,
    payload_bytes: usize,
    checksum: Option<(usize, usize)>,
    scratch: &mut Vec<u8>,
    take: &mut dyn FnMut(&[u8]),
) -> Option<()> {
    let layout = Layout::of(frame)?;
    let (protocol, l4_bytes, checksum_offset) = match kind {
        Segments::Tcp => (TCP, usize::from(frame.get(layout.l4 + 12)? >> 4) * 4, 16),
        Segments::Udp => (UDP, 8, 6),
    };
    // A partial checksum that does not start at the L4 header means that the segments are inside of a tunnel.
    let is_outermost = checksum.is_none_or(|(start, _)| start == layout.l4);
    let is_well_formed = kind == Segments::Udp || l4_bytes >= 20;
    if layout.protocol != protocol || !is_outermost || !is_well_formed || payload_bytes == 0 {
        return None;
    }
    let (headers, payload) = frame.split_at_checked(layout.l4 + l4_bytes)?;
    if payload.is_empty() {
        return None;
    }
    let pseudo_sum = layout.pseudo_sum(frame)?;
    let count = payload.len().div_ceil(payload_bytes);
    for (number, chunk) in payload.chunks(payload_bytes).enumerate() {
        scratch.clear();
        scratch.extend_from_slice(headers);
        scratch.extend_from_slice(chunk);
        let payload_offset = number * payload_bytes;
        set_ip_header(scratch, layout, number)?;
        let l4 = scratch.get_mut(layout.l4..)?;
        match kind {
            Segments::Tcp => set_tcp_header(l4, payload_offset, number == 0, number + 1 == count)?,
            Segments::Udp => set_be16(l4, 4, u16::try_from(l4.len()).ok()?)?,
        }
        set_be16(l4, checksum_offset, 0)?;
        let sum = !fold(pseudo_sum + l4.len() as u64 + ones_sum(l4));
        set_be16(
            l4,
            checksum_offset,
            if kind == Segments::Udp { not_zero(sum) } else { sum },
        )?;
        take(scratch);
    }
    Some(())
}

/// Sets the length in the IP header. For IPv4, also adds `number` to the identification and sets the header checksum.
fn set_ip_header(segment: &mut [u8], layout: Layout, number: usize) -> Option<()> {
    let ip = segment.get_mut(layout.l3..)?;
    if layout.ipv6 {
        return set_be16(ip, 4, u16::try_from(ip.len() - 40).ok()?);
    }
    set_be16(ip, 2, u16::try_from(ip.len()).ok()?)?;
    let id = be16(ip, 4)?.wrapping_add(number as u16);
    set_be16(ip, 4, id)?;
    set_be16(ip, 10, 0)?;
    let sum = !fold(ones_sum(ip.get(..layout.l4 - layout.l3)?));
    set_be16(ip, 10, sum)
}

/// Sets the sequence number, and clears flags that belong to another segment: only the first segment has CWR (RFC 3168), only
/// the last segment has FIN and PSH.
fn set_tcp_header(tcp: &mut [u8], payload_offset: usize, is_first: bool, is_last: bool) -> Option<()> {
    const FIN: u8 = 0x01;
    const PSH: u8 = 0x08;
    const CWR: u8 = 0x80;
    let sequence = tcp.get_mut(4..)?.first_chunk_mut()?;
    *sequence = u32::from_be_bytes(*sequence)
        .wrapping_add(payload_offset as u32)
        .to_be_bytes();
    let flags = tcp.get_mut(13)?;
    if !is_first {
        *flags &= !CWR;
    }
    if !is_last {
        *flags &= !(FIN | PSH);
    }
    Some(())
}

#[cfg(test)]
#[path = "offload_tests.rs"]
mod tests;
