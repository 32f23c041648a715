//! Checksums that a network stack has left to hardware that its link does not have.
//!
//! A stack that sends through a veth or a tap device leaves the checksum of TCP, UDP or SCTP unfinished: the field of TCP and UDP has
//! the sum over the pseudo-header, folded and not complemented, that of SCTP zero. To other sockets of the machine the kernel
//! says so beside the frame; to XDP it says nothing. But such a field can be recognised, for what it must hold follows from the
//! headers alone, and the payload need not be read for that.
//!
//! A finished checksum may happen to hold just that. Completing it then changes nothing: with p the sum of the pseudo-header
//! and d that of the rest, what is completed becomes -(p + d), and a finished one is -(p + d) already. So nobody has to
//! know which of the two it was.
//!
//! What is lost is the detection of damage: a frame that was damaged on its way and holds this value is made to look whole. Of damaged frames
//! that is one in 2^16, and on links in memory, which damage none. (Behind a bridge to a wire there is the wire's
//! own CRC before.) Frames of other drivers are left as they came. Who sends such a field on purpose gains nothing: he could have sent
//! the right one.
//!
//! A finished frame costs 9 ns, an unfinished one 26 ns at 64 bytes and 103 at 1,362 (on a busy virtual core).
//!
//! Not found: checksums inside of tunnels, and those behind a routing header whose last destination stands elsewhere.

use super::super::checksum::{self, Layout, SCTP, TCP, UDP, be16, fold};

/// Whether an interface of this driver may have a network stack at its other end, with no wire between: a veth's peer, or the
/// virtual machine behind a tap device. (virtio-net tells its host to finish checksums while an XDP program is attached.)
pub(super) fn is_software(driver: &str) -> bool {
    matches!(driver, "veth" | "tun")
}

/// Completes the checksum of a frame if it is unfinished. True when that has changed it.
pub(super) fn complete(frame: &mut [u8]) -> bool {
    let Some(found) = find(frame) else {
        return false;
    };
    // What lies behind the IP packet to fill a frame up belongs to no checksum.
    let Some(packet) = frame.get_mut(..found.end) else {
        return false;
    };
    // All of it, and with two bytes the next two, which do not change.
    let at = found.start + found.offset;
    let field = |packet: &[u8]| (be16(packet, at), be16(packet, at + 2));
    let before = field(packet);
    checksum::complete(packet, found.start, found.offset).is_some() && field(packet) != before
}

/// A checksum that may be unfinished: it covers the frame between `start` and `end`, and stands `offset` bytes behind `start`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Found {
    start: usize,
    end: usize,
    offset: usize,
}

fn find(frame: &[u8]) -> Option<Found> {
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
        // Never zero, which says "no checksum" to UDP: a sum of anything but zeros is folded to 1 to 0xffff.
        holds == fold(layout.pseudo_sum(frame)? + length as u64)
    };
    is_candidate.then_some(Found {
        start: layout.l4,
        end,
        offset,
    })
}

#[cfg(test)]
#[path = "unfinished_tests.rs"]
mod tests;
