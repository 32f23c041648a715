//! What the sender's stack has left to hardware that a software link does not have: the VLAN tag beside the frame, a
//! checksum that covers only the pseudo-header, a frame of up to 64 KiB that was to be cut into segments.
//!
//! The kernel tells of them in a `virtio_net_hdr` (`PACKET_VNET_HDR`; OASIS virtio 1.2, 5.1.6). It is asked for rather than
//! the frame parsed, because the segments' size stands nowhere else, and because only the kernel knows which of several
//! nested checksums is unfinished.

use super::super::RxCounters;
use super::super::checksum::{
    Layout, TAG_BYTES, TCP, UDP, be16, complete, fold, not_zero, ones_sum, set_be16,
};

/// Bytes of the `virtio_net_hdr` before each frame.
pub(super) const VNET_BYTES: usize = 10;

/// A VLAN tag that the kernel took out of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct VlanTag {
    pub(super) tpid: u16,
    pub(super) tci: u16,
}

/// What kind of segments a frame is to be cut into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Segments {
    Tcp,
    Udp,
}

/// What the kernel says is left to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Work {
    /// The checksum covers the frame from the first of these offsets on and stands at the second from there.
    checksum: Option<(usize, usize)>,
    /// Kind and payload bytes of the segments; `None` of the kind that is not known here.
    segments: Option<(Option<Segments>, usize)>,
}

impl Work {
    /// `None` when there is nothing to do, which is what frames from a real wire say.
    fn parse(header: [u8; VNET_BYTES]) -> Option<Self> {
        const NEEDS_CHECKSUM: u8 = 1;
        let [flags, kind, _, _, size0, size1, start0, start1, offset0, offset1] = header;
        let number = |low, high| usize::from(u16::from_ne_bytes([low, high]));
        let checksum =
            (flags & NEEDS_CHECKSUM != 0).then(|| (number(start0, start1), number(offset0, offset1)));
        // The top bit says that TCP's ECN bits need care, which `segment` always takes.
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

/// Finishes a frame that stands in `buffer` behind its `virtio_net_hdr` and hands what comes out to `take`: itself, its
/// segments, or nothing.
pub(super) fn finish(
    buffer: &mut [u8],
    tag: Option<VlanTag>,
    scratch: &mut Vec<u8>,
    counters: &mut RxCounters,
    take: &mut dyn FnMut(&[u8]),
) {
    let Some((&header, _)) = buffer.split_first_chunk::<VNET_BYTES>() else {
        return;
    };
    let Some(frame) = with_tag(buffer, tag) else {
        counters.dropped_offload += 1;
        return;
    };
    let Some(mut work) = Work::parse(header) else {
        return hand_over(frame, counters, take);
    };
    if let (Some((start, _)), Some(_)) = (work.checksum.as_mut(), tag) {
        *start += TAG_BYTES;
    }
    let done = match work {
        Work {
            segments: Some((kind, payload_bytes)),
            checksum,
        } => kind.and_then(|kind| {
            segment(frame, kind, payload_bytes, checksum, scratch, &mut |frame| {
                hand_over(frame, counters, take);
            })
            .map(|()| counters.segmented += 1)
        }),
        Work {
            checksum: Some((start, offset)),
            ..
        } => complete(frame, start, offset).map(|()| {
            counters.checksums_completed += 1;
            hand_over(frame, counters, take);
        }),
        Work { .. } => None,
    };
    if done.is_none() {
        counters.dropped_offload += 1;
    }
}

fn hand_over(frame: &[u8], counters: &mut RxCounters, take: &mut dyn FnMut(&[u8])) {
    counters.frames += 1;
    counters.bytes += frame.len() as u64;
    take(frame);
}

/// The frame behind the `virtio_net_hdr`, with its tag put back behind the addresses; these move over the
/// `virtio_net_hdr`.
fn with_tag(buffer: &mut [u8], tag: Option<VlanTag>) -> Option<&mut [u8]> {
    const ADDRESSES: usize = 12;
    let Some(tag) = tag else {
        return buffer.get_mut(VNET_BYTES..);
    };
    let frame = buffer.get_mut(VNET_BYTES - TAG_BYTES..)?;
    if frame.len() < TAG_BYTES + ADDRESSES {
        return None;
    }
    frame.copy_within(TAG_BYTES..TAG_BYTES + ADDRESSES, 0);
    let [tpid0, tpid1] = tag.tpid.to_be_bytes();
    let [tci0, tci1] = tag.tci.to_be_bytes();
    *frame.get_mut(ADDRESSES..)?.first_chunk_mut()? = [tpid0, tpid1, tci0, tci1];
    Some(frame)
}

/// Cuts a frame into segments, as the kernel's own GSO does (RFC 9293; for UDP each segment is a datagram of its own).
/// `None`, before any was handed over, when this is no frame that can be cut here.
fn segment(
    frame: &[u8],
    kind: Segments,
    payload_bytes: usize,
    checksum: Option<(usize, usize)>,
    scratch: &mut Vec<u8>,
    take: &mut dyn FnMut(&[u8]),
) -> Option<()> {
    let layout = Layout::of(frame)?;
    let (protocol, l4_bytes, sum_at) = match kind {
        Segments::Tcp => (TCP, usize::from(frame.get(layout.l4 + 12)? >> 4) * 4, 16),
        Segments::Udp => (UDP, 8, 6),
    };
    // An unfinished checksum elsewhere means that what is to be cut lies inside a tunnel.
    let outermost = checksum.is_none_or(|(start, _)| start == layout.l4);
    let well_formed = kind == Segments::Udp || l4_bytes >= 20;
    if layout.protocol != protocol || !outermost || !well_formed || payload_bytes == 0 {
        return None;
    }
    let (headers, payload) = frame.split_at_checked(layout.l4 + l4_bytes)?;
    if payload.is_empty() {
        return None;
    }
    let pseudo_sum = layout.pseudo_sum(frame)?;
    let count = payload.len().div_ceil(payload_bytes);
    for (number, part) in payload.chunks(payload_bytes).enumerate() {
        scratch.clear();
        scratch.extend_from_slice(headers);
        scratch.extend_from_slice(part);
        let sent_before = number * payload_bytes;
        set_ip_header(scratch, layout, number)?;
        let l4 = scratch.get_mut(layout.l4..)?;
        match kind {
            Segments::Tcp => set_tcp_header(l4, sent_before, number == 0, number + 1 == count)?,
            Segments::Udp => set_be16(l4, 4, u16::try_from(l4.len()).ok()?)?,
        }
        set_be16(l4, sum_at, 0)?;
        let sum = !fold(pseudo_sum + l4.len() as u64 + ones_sum(l4));
        set_be16(
            l4,
            sum_at,
            if kind == Segments::Udp { not_zero(sum) } else { sum },
        )?;
        take(scratch);
    }
    Some(())
}

/// Lengths, and for IPv4 the identification, which counts up, and the header's checksum.
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

/// Sequence number, and the flags that belong to one segment only: CWR (RFC 3168) to the first, FIN and PSH to the last.
fn set_tcp_header(tcp: &mut [u8], sent_before: usize, first: bool, last: bool) -> Option<()> {
    const FIN: u8 = 0x01;
    const PSH: u8 = 0x08;
    const CWR: u8 = 0x80;
    let sequence = tcp.get_mut(4..)?.first_chunk_mut()?;
    *sequence = u32::from_be_bytes(*sequence)
        .wrapping_add(sent_before as u32)
        .to_be_bytes();
    let flags = tcp.get_mut(13)?;
    if !first {
        *flags &= !CWR;
    }
    if !last {
        *flags &= !(FIN | PSH);
    }
    Some(())
}

#[cfg(test)]
#[path = "offload_tests.rs"]
mod tests;
