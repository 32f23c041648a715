//! Detection of frames that a lenient parser would take for evidence.

use super::CLONE_ETHERTYPE;

/// Ethernet types of VLAN tags, including the types of early switches.
const VLAN_TYPES: [u16; 5] = [0x8100, 0x88a8, 0x9100, 0x9200, 0x9300];
const VLAN_BYTES: usize = 4;
const IPV6: u16 = 0x86dd;
const IPV6_BYTES: usize = 40;
const NEXT_HEADER_OFFSET: usize = 6;
const HOP_BY_HOP: u8 = 0;
const PAD_1: u8 = 0;
const OPTION: u8 = 0x37;

/// Whether a frame has, after any number of VLAN tags, the Ethernet type of clones, or an option 0x37 in a hop-by-hop
/// header, even if the lengths of the frame contradict each other. The function returns true for all evidence, and
/// possibly for other frames.
#[must_use]
pub fn resembles_evidence(frame: &[u8]) -> bool {
    let mut offset = 12;
    loop {
        let rest = frame.get(offset..).unwrap_or_default();
        let Some((ethertype, payload)) = rest.split_first_chunk::<2>() else {
            return false;
        };
        match u16::from_be_bytes(*ethertype) {
            CLONE_ETHERTYPE => return true,
            IPV6 => return has_option(payload),
            vlan_type if VLAN_TYPES.contains(&vlan_type) => offset += VLAN_BYTES,
            _ => return false,
        }
    }
}

/// Whether an IPv6 packet has the option, as far as its options can be parsed.
fn has_option(packet: &[u8]) -> bool {
    if packet.get(NEXT_HEADER_OFFSET) != Some(&HOP_BY_HOP) {
        return false;
    }
    let header = packet.get(IPV6_BYTES..).unwrap_or_default();
    let length = header.get(1).map_or(0, |eights| 8 + 8 * usize::from(*eights));
    let mut options = header.get(2..length.min(header.len())).unwrap_or_default();
    loop {
        options = match options {
            [PAD_1, rest @ ..] => rest,
            [OPTION, ..] => return true,
            [_, length, rest @ ..] => rest.get(usize::from(*length)..).unwrap_or_default(),
            _ => return false,
        };
    }
}
