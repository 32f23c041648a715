//! Frames and sums for tests of the checksum completion.

use super::{TCP, UDP};

/// Computes the sum of RFC 1071, word by word; the sum of a packet with a correct checksum is 0xffff.
pub(in super::super) fn plain_sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
    }
    sum as u16
}

/// Creates an Ethernet header with this number of VLAN tags.
pub(in super::super) fn ethernet_header(tags: usize, ipv6: bool) -> Vec<u8> {
    let mut header = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for tag in 0..tags {
        header.extend([0x81, 0, 0, 7 + tag as u8]);
    }
    header.extend(if ipv6 { [0x86, 0xdd] } else { [0x08, 0x00] });
    header
}

/// Creates an oversized frame that a sender passes to its hardware: IPv4 with options, or IPv6 with a hop-by-hop header.
/// Returns the frame and the offset of the L4 header.
pub(in super::super) fn oversized(
    tags: usize,
    ipv6: bool,
    udp: bool,
    flags: u8,
    payload: &[u8],
) -> (Vec<u8>, usize) {
    let mut frame = ethernet_header(tags, ipv6);
    let l4_header = if udp { 8 } else { 32 };
    let protocol = if udp { UDP } else { TCP };
    if ipv6 {
        frame.extend([0x60, 0, 0, 0, 0, 0, 0, 64]);
        frame.extend([0xfd; 16]);
        frame.extend([0xfe; 16]);
        frame.extend([protocol, 0, 1, 4, 0, 0, 0, 0]);
    } else {
        frame.extend([0x46, 0, 0, 0, 0xff, 0xfe, 0x40, 0, 64, protocol, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 1, 0]);
    }
    let l4 = frame.len();
    frame.extend([0x12, 0x34, 0x56, 0x78]);
    frame.resize(l4 + l4_header, 0);
    if !udp {
        frame[l4 + 4..l4 + 8].copy_from_slice(&0xffff_ff00u32.to_be_bytes());
        frame[l4 + 12] = 0x80;
        frame[l4 + 13] = flags;
    }
    frame.extend_from_slice(payload);
    (frame, l4)
}

pub(in super::super) fn assert_valid_sums(frame: &[u8], l3: usize, l4: usize, ipv6: bool, protocol: u8) {
    let covered = &frame[l4..];
    let length = (covered.len() as u32).to_be_bytes();
    let addresses = if ipv6 {
        &frame[l3 + 8..l3 + 40]
    } else {
        &frame[l3 + 12..l3 + 20]
    };
    assert_eq!(plain_sum(&[addresses, &length, &[0, protocol], covered]), 0xffff);
    if ipv6 {
        let length = u16::from_be_bytes([frame[l3 + 4], frame[l3 + 5]]);
        assert_eq!(usize::from(length), frame.len() - l3 - 40);
    } else {
        assert_eq!(plain_sum(&[&frame[l3..l4]]), 0xffff);
        let length = u16::from_be_bytes([frame[l3 + 2], frame[l3 + 3]]);
        assert_eq!(usize::from(length), frame.len() - l3);
    }
}
