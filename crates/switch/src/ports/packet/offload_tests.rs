use proptest::collection::vec;
use proptest::prelude::*;

use super::super::super::checksum::samples::{assert_valid_sums, ethernet_header, oversized, plain_sum};
use super::super::super::checksum::{SCTP, crc32c};
use super::*;

const TCP4: u8 = 1;
const TCP6: u8 = 4;
const UDP_L4: u8 = 5;
const UFO: u8 = 3;

fn vnet(checksum: Option<(u16, u16)>, gso: u8, gso_size: u16) -> Vec<u8> {
    let (start, offset) = checksum.unwrap_or_default();
    let mut header = vec![u8::from(checksum.is_some()), gso, 0, 0];
    for number in [gso_size, start, offset] {
        header.extend(number.to_ne_bytes());
    }
    header
}

/// Performs the offloads of a frame and returns the result.
fn perform_offloads(header: &[u8], frame: &[u8], tag: Option<VlanTag>) -> (Vec<Vec<u8>>, RxCounters) {
    let mut buffer = [header, frame].concat();
    let (mut out, mut counters) = (Vec::new(), RxCounters::default());
    complete_offload(&mut buffer, tag, &mut Vec::new(), &mut counters, &mut |frame| {
        out.push(frame.to_vec());
    });
    assert_eq!(counters.frames as usize, out.len());
    assert_eq!(counters.bytes as usize, out.iter().map(Vec::len).sum::<usize>());
    (out, counters)
}

proptest! {
    #[test]
    fn segments_contain_the_sent_data(
        payload in vec(any::<u8>(), 1..5000),
        mss in 1u16..1500,
        mut tags in 0usize..3,
        ipv6: bool,
        udp: bool,
        tag_removed: bool,
        flags: u8,
    ) {
        let (frame, l4) = oversized(tags, ipv6, udp, flags, &payload);
        let kind = match (udp, ipv6) { (true, _) => UDP_L4, (_, true) => TCP6, _ => TCP4 };
        let checksum_offset = if udp { 6 } else { 16 };
        let tag = tag_removed.then_some(VlanTag { tpid: 0x88a8, tci: 0x2009 });
        let (out, counters) = perform_offloads(&vnet(Some((l4 as u16, checksum_offset)), kind | 0x80, mss), &frame, tag);
        let mut frame = frame;
        let mut l4 = l4;
        if tag_removed {
            frame.splice(12..12, [0x88, 0xa8, 0x20, 9]);
            (l4, tags) = (l4 + 4, tags + 1);
        }
        prop_assert_eq!(out.len(), payload.len().div_ceil(mss.into()));
        prop_assert_eq!(counters.segmented, 1);
        let header = if udp { 8 } else { 32 };
        let mut data = Vec::new();
        for (number, segment) in out.iter().enumerate() {
            let l3 = 14 + 4 * tags;
            assert_valid_sums(segment, l3, l4, ipv6, if udp { UDP } else { TCP });
            prop_assert_eq!(&segment[..l3], &frame[..l3]);
            if !ipv6 {
                let id = u16::from_be_bytes([segment[l3 + 4], segment[l3 + 5]]);
                prop_assert_eq!(id, 0xfffe_u16.wrapping_add(number as u16));
            }
            if udp {
                let length = u16::from_be_bytes([segment[l4 + 4], segment[l4 + 5]]);
                prop_assert_eq!(usize::from(length), segment.len() - l4);
            } else {
                let sequence = u32::from_be_bytes(segment[l4 + 4..l4 + 8].try_into().unwrap());
                prop_assert_eq!(sequence, 0xffff_ff00_u32.wrapping_add(data.len() as u32));
                let (first, last) = (number == 0, number + 1 == out.len());
                let flag_mask = if first { 0xff } else { 0x7f } & if last { 0xff } else { 0xf6 };
                prop_assert_eq!(segment[l4 + 13], flags & flag_mask);
            }
            prop_assert!(segment.len() - l4 - header <= usize::from(mss));
            data.extend_from_slice(&segment[l4 + header..]);
        }
        prop_assert_eq!(data, payload);
    }

    #[test]
    fn no_kernel_input_panics(
        header in vec(any::<u8>(), 0..12),
        mut frame in vec(any::<u8>(), 0..200),
        ether_type in prop::sample::select(vec![0x0800u16, 0x86dd, 0x8100, 0x88a8, 0x1234]),
        tag in any::<Option<(u16, u16)>>(),
    ) {
        if let Some(bytes) = frame.get_mut(12..14) {
            bytes.copy_from_slice(&ether_type.to_be_bytes());
        }
        let tag = tag.map(|(tpid, tci)| VlanTag { tpid, tci });
        let mut buffer = [header, frame].concat();
        complete_offload(&mut buffer, tag, &mut Vec::new(), &mut RxCounters::default(), &mut |_| {});
    }

    #[test]
    fn sums_agree_with_the_reference_sum(bytes in vec(any::<u8>(), 0..3000)) {
        prop_assert_eq!(fold(ones_sum(&bytes)) % 0xffff, plain_sum(&[&bytes]) % 0xffff);
    }
}

#[test]
fn a_frame_without_offloads_passes_unchanged() {
    let (frame, _) = oversized(0, false, true, 0, b"payload");
    let (out, counters) = perform_offloads(&vnet(None, 0, 0), &frame, None);
    assert_eq!(out, [frame]);
    assert_eq!((counters.checksums_completed, counters.segmented), (0, 0));
}

#[test]
fn the_tag_is_restored_after_the_addresses() {
    let (tagged, l4) = oversized(1, false, true, 0, b"payload");
    let (untagged, _) = oversized(0, false, true, 0, b"payload");
    let tag = VlanTag { tpid: 0x8100, tci: 7 };
    let (out, _) = perform_offloads(&vnet(None, 0, 0), &untagged, Some(tag));
    assert_eq!(out, [tagged.as_slice()]);

    // The kernel's offsets refer to the frame without its tag.
    let mut prepared = untagged;
    let sum = plain_sum(&[&[10, 0, 0, 1, 10, 0, 0, 2, 0, UDP, 0, 15]]);
    prepared[l4 - 4 + 6..l4 - 4 + 8].copy_from_slice(&sum.to_be_bytes());
    let (out, counters) = perform_offloads(&vnet(Some((l4 as u16 - 4, 6)), 0, 0), &prepared, Some(tag));
    let covered = &out[0][l4..];
    assert_eq!(
        plain_sum(&[&[10, 0, 0, 1, 10, 0, 0, 2, 0, UDP, 0, 15], covered]),
        0xffff
    );
    assert_eq!(counters.checksums_completed, 1);
}

#[test]
fn udp_checksum_of_zero_is_sent_as_0xffff() {
    let mut frame = ethernet_header(0, false);
    let start = frame.len();
    // The sum is 0xffff and its complement 0.
    frame.extend([0xff, 0xff, 0, 0, 0, 0, 0, 0]);
    let (out, _) = perform_offloads(&vnet(Some((start as u16, 6)), 0, 0), &frame, None);
    assert_eq!(out[0][start + 6..start + 8], [0xff, 0xff]);
}

#[test]
fn sctp_checksum_is_computed() {
    // RFC 3720 B.4: the CRC32C of 32 zero bytes, and of 0, 1, .. 31.
    assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    assert_eq!(
        crc32c(&std::array::from_fn::<u8, 32, _>(|n| n as u8)),
        0x46dd_794e
    );

    let mut frame = ethernet_header(0, false);
    frame.extend([
        0x45, 0, 0, 36, 0, 0, 0x40, 0, 64, SCTP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ]);
    let start = frame.len();
    frame.extend([1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 9, 9, 9, 9]);
    let (out, _) = perform_offloads(&vnet(Some((start as u16, 8)), 0, 0), &frame, None);
    assert_eq!(
        out[0][start + 8..start + 12],
        crc32c(&frame[start..]).to_le_bytes()
    );
}

#[test]
fn frames_that_cannot_be_segmented_are_counted_and_dropped() {
    let (tcp, l4) = oversized(0, false, false, 0, &[1; 3000]);
    let sum = Some((l4 as u16, 16));
    let mut fragment = tcp.clone();
    fragment[14 + 6] = 0x20;
    let mut not_ip = tcp.clone();
    not_ip[12] = 0x99;
    for (header, frame) in [
        (vnet(sum, UFO, 1000), &tcp),
        (vnet(sum, UDP_L4, 1000), &tcp),
        (vnet(sum, TCP4, 0), &tcp),
        // An inner TCP header in a tunnel.
        (vnet(Some((l4 as u16 + 50, 16)), TCP4, 1000), &tcp),
        (vnet(sum, TCP4, 1000), &fragment),
        (vnet(sum, TCP4, 1000), &not_ip),
        (vnet(Some((4000, 16)), 0, 0), &tcp),
    ] {
        let (out, counters) = perform_offloads(&header, frame, None);
        assert_eq!((out.len(), counters.dropped_offload), (0, 1));
    }
}

#[test]
fn frame_with_a_pending_routing_header_is_not_segmented() {
    let (mut frame, l4) = oversized(0, true, false, 0, &[1; 3000]);
    // The hop-by-hop header becomes a routing header with segments left.
    frame[14 + 6] = 43;
    frame[l4 - 8 + 3] = 1;
    let (out, counters) = perform_offloads(&vnet(Some((l4 as u16, 16)), TCP6, 1000), &frame, None);
    assert_eq!((out.len(), counters.dropped_offload), (0, 1));
}
