//! Partial checksums (CHECKSUM_PARTIAL) that a network stack left to the hardware of a virtual link.
//!
//! A stack that sends through a veth or tap device leaves a partial checksum of TCP, UDP or SCTP: the field of TCP and UDP holds the
//! folded, uncomplemented sum over the pseudo-header, the field of SCTP is zero. The kernel reports this state to other sockets, but
//! not to XDP. The port detects a partial checksum from the headers alone, without reading the payload, because the
//! headers determine the value of the field.
//!
//! A complete checksum may have the same value by chance. Completing it changes nothing: with p the sum of the pseudo-header
//! and d the sum of the rest, a completed checksum is -(p + d), which a complete checksum already equals. So both cases need not be
//! distinguished.
//!
//! The drawback is error detection: a corrupted frame that happens to hold this value gets a correct checksum. This affects one in
//! 2^16 corrupted frames, and virtual links do not corrupt frames. (Behind a bridge to a physical link, the CRC of that link
//! protects the frame.) Frames of other drivers are not changed. A sender gains nothing by sending such a field deliberately: the sender could
//! also send the correct checksum.
//!
//! A complete checksum costs 9 ns, a partial one 26 ns at 64 bytes and 103 ns at 1,362 bytes (on a busy virtual core).
//!
//! Not detected: checksums inside of tunnels, and checksums after a routing header with a different final destination.

use super::super::checksum::{self, Layout, SCTP, TCP, UDP, be16, fold};

/// Whether the peer of this driver's interfaces may be a network stack without a physical link: the peer of a veth, or the virtual
/// machine at a tap device. (virtio-net requests complete checksums from its host while an XDP program is attached.)
pub(super) fn is_software(driver: &str) -> bool {
    matches!(driver, "veth" | "tun")
}

/// Completes the checksum of a frame if it is partial. True if the frame was changed.
pub(super) fn complete(frame: &mut [u8]) -> bool {
    let Some(found) = find_partial_checksum(frame) else {
        return false;
    };
    // Padding after the IP packet is not covered by the checksum.
    let Some(packet) = frame.get_mut(..found.end) else {
        return false;
    };
    // Compares the whole field; a field of two bytes is compared with the following two bytes, which do not change.
    let at = found.start + found.offset;
    let field = |packet: &[u8]| (be16(packet, at), be16(packet, at + 2));
    let before = field(packet);
    checksum::complete(packet, found.start, found.offset).is_some() && field(packet) != before
}

/// Possibly partial checksum: it covers the frame from `start` to `end`, and its field is at `offset` bytes after `start`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PartialChecksum {
    start: usize,
    end: usize,
    offset: usize,
}

fn find_partial_checksum(frame: &[u8]) -> Option<PartialChecksum> {
    let layout = Layout::of(frame)?;
    let offset = match layout.protocol {
        TCP => 16,
        UDP => 6,
        SCTP => 8,
        _ => return None,
    };
    let end = layout.end(frame).filter(|end| *end <= frame.len())?;
    let at = layout.l4 + offset;
    let holds = be16(frame, at)?;
    let is_candidate = if layout.protocol == SCTP {
        holds == 0 && be16(frame, at + 2)? == 0
    } else {
        let length = end.checked_sub(layout.l4)?;
        // Never zero, which means "no checksum" in UDP: a nonzero sum folds to 1 to 0xffff.
        holds == fold(layout.pseudo_sum(frame)? + length as u64)
    };
    is_candidate.then_some(PartialChecksum {
        start: layout.l4,
        end,
        offset,
    })
}

#[cfg(test)]
#[path = "unfinished_tests.rs"]
mod tests;
