//! What the sender's stack has left to hardware that a software link does not have: the VLAN tag beside the frame, a
//! checksum that covers only the pseudo-header, a frame of up to 64 KiB that was to be cut into segments.
//!
//! The kernel tells of them in a `virtio_net_hdr` (`PACKET_VNET_HDR`; OASIS virtio 1.2, 5.1.6). It is asked for rather than
//! the frame parsed, because the segments' size stands nowhere else, and because only the kernel knows which of several
//! nested checksums is unfinished.

use super::super::RxCounters;

/// Bytes of the `virtio_net_hdr` before each frame.
pub(super) const VNET_BYTES: usize = 10;
/// Bytes of a VLAN tag, TPID and TCI.
const TAG_BYTES: usize = 4;

const ETHERNET_HEADER_BYTES: usize = 14;
const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

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

/// Completes an unfinished checksum: the field holds the sum over the pseudo-header already.
fn complete(frame: &mut [u8], start: usize, offset: usize) -> Option<()> {
    const SCTP_CHECKSUM: usize = 8;
    if offset == SCTP_CHECKSUM
        && Layout::of(frame).is_some_and(|layout| layout.l4 == start && layout.protocol == SCTP)
    {
        let covered = frame.get_mut(start..)?;
        *covered.get_mut(offset..)?.first_chunk_mut()? = [0; 4];
        let sum = crc32c(covered).to_le_bytes();
        *covered.get_mut(offset..)?.first_chunk_mut()? = sum;
        return Some(());
    }
    let covered = frame.get_mut(start..)?;
    let sum = not_zero(!fold(ones_sum(covered)));
    *covered.get_mut(offset..)?.first_chunk_mut()? = sum.to_be_bytes();
    Some(())
}

/// Where the headers of a frame lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Layout {
    l3: usize,
    ipv6: bool,
    l4: usize,
    protocol: u8,
}

impl Layout {
    /// `None` when there is no whole, unfragmented IP packet that is addressed to its last destination.
    fn of(frame: &[u8]) -> Option<Self> {
        const VLANS_MAX: usize = 4;
        let mut l3 = ETHERNET_HEADER_BYTES;
        for _ in 0..=VLANS_MAX {
            match be16(frame, l3 - 2)? {
                0x8100 | 0x88a8 => l3 += TAG_BYTES,
                0x0800 => return Self::ipv4(frame, l3),
                0x86dd => return Self::ipv6(frame, l3),
                _ => return None,
            }
        }
        None
    }

    fn ipv4(frame: &[u8], l3: usize) -> Option<Self> {
        const MORE_OR_OFFSET: u16 = 0x3fff;
        let header_bytes = usize::from(frame.get(l3)? & 0xf) * 4;
        let whole = be16(frame, l3 + 6)? & MORE_OR_OFFSET == 0;
        (header_bytes >= 20 && whole).then_some(Self {
            l3,
            ipv6: false,
            l4: l3 + header_bytes,
            protocol: *frame.get(l3 + 9)?,
        })
    }

    fn ipv6(frame: &[u8], l3: usize) -> Option<Self> {
        const HOP_BY_HOP: u8 = 0;
        const ROUTING: u8 = 43;
        const DESTINATION: u8 = 60;
        const EXTENSIONS_MAX: usize = 8;
        let mut protocol = *frame.get(l3 + 6)?;
        let mut l4 = l3 + 40;
        for _ in 0..EXTENSIONS_MAX {
            match protocol {
                // The pseudo-header has the last destination, which then is not the one in the header.
                ROUTING if *frame.get(l4 + 3)? != 0 => return None,
                HOP_BY_HOP | ROUTING | DESTINATION => {
                    protocol = *frame.get(l4)?;
                    l4 += 8 * (1 + usize::from(*frame.get(l4 + 1)?));
                }
                _ => {
                    return Some(Self {
                        l3,
                        ipv6: true,
                        l4,
                        protocol,
                    });
                }
            }
        }
        None
    }

    /// Sum over the pseudo-header but for its length (RFC 9293 3.1, RFC 8200 8.1).
    fn pseudo_sum(self, frame: &[u8]) -> Option<u64> {
        let addresses = if self.ipv6 {
            frame.get(self.l3 + 8..self.l3 + 40)?
        } else {
            frame.get(self.l3 + 12..self.l3 + 20)?
        };
        Some(ones_sum(addresses) + u64::from(self.protocol))
    }
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

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn set_be16(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    *bytes.get_mut(at..)?.first_chunk_mut()? = value.to_be_bytes();
    Some(())
}

/// Sum of the 16-bit words (RFC 1071), an odd last byte filled up with zero; below 2^33 for frames of 64 KiB.
fn ones_sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let sum: u64 = words
        .iter()
        .map(|word| u64::from(u32::from_be_bytes(*word)))
        .sum();
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    let sum = sum + u64::from(u32::from_be_bytes(last));
    // 2^16 counts as 1: the upper halves may be added to the lower ones.
    (sum >> 32) + (sum & 0xffff_ffff)
}

/// Adds the carries until 16 bits are left.
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// UDP says "no checksum" by zero, so that a sum of zero is sent as its other form (RFC 768).
fn not_zero(sum: u16) -> u16 {
    if sum == 0 { 0xffff } else { sum }
}

/// CRC-32C as SCTP uses it (RFC 9260 appendix A). SCTP through a virtual link is rare enough for one bit at a time.
fn crc32c(bytes: &[u8]) -> u32 {
    const REFLECTED_POLYNOMIAL: u32 = 0x82f6_3b78;
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (REFLECTED_POLYNOMIAL & (crc & 1).wrapping_neg())
        })
    })
}

#[cfg(test)]
#[path = "offload_tests.rs"]
mod tests;
