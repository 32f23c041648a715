use proptest::collection::vec;
use proptest::prelude::*;

use super::super::super::checksum::samples::{assert_right_sums, oversized, plain_sum};
use super::super::super::checksum::{crc32c, set_be16};
use super::*;

/// Frame with an IP packet, and the offsets of its L4 header and checksum.
struct Sample {
    frame: Vec<u8>,
    ipv6: bool,
    udp: bool,
    tags: usize,
    l4: usize,
    at: usize,
}

impl Sample {
    /// Frame with correct lengths and an empty checksum field.
    fn new(tags: usize, ipv6: bool, udp: bool, payload: &[u8]) -> Self {
        let (mut frame, l4) = oversized(tags, ipv6, udp, 0x18, payload);
        let l3 = 14 + 4 * tags;
        let packet_bytes = (frame.len() - l3) as u16;
        let l4_bytes = (frame.len() - l4) as u16;
        if ipv6 {
            set_be16(&mut frame, l3 + 4, packet_bytes - 40).unwrap();
        } else {
            set_be16(&mut frame, l3 + 2, packet_bytes).unwrap();
            let sum = !plain_sum(&[&frame[l3..l4]]);
            set_be16(&mut frame, l3 + 10, sum).unwrap();
        }
        if udp {
            set_be16(&mut frame, l4 + 4, l4_bytes).unwrap();
        }
        let at = l4 + if udp { 6 } else { 16 };
        Self {
            frame,
            ipv6,
            udp,
            tags,
            l4,
            at,
        }
    }

    /// Sum over the pseudo-header, as a network stack leaves it.
    fn pseudo_sum(&self) -> u16 {
        let l3 = 14 + 4 * self.tags;
        let addresses = if self.ipv6 {
            &self.frame[l3 + 8..l3 + 40]
        } else {
            &self.frame[l3 + 12..l3 + 20]
        };
        let length = (self.frame.len() - self.l4) as u32;
        let protocol = if self.udp { UDP } else { TCP };
        plain_sum(&[addresses, &length.to_be_bytes(), &[0, protocol]])
    }

    fn unfinished(&self) -> Vec<u8> {
        let mut frame = self.frame.clone();
        set_be16(&mut frame, self.at, self.pseudo_sum()).unwrap();
        frame
    }

    fn finished(&self) -> Vec<u8> {
        let mut frame = self.frame.clone();
        let sum = !plain_sum(&[&self.pseudo_sum().to_be_bytes(), &frame[self.l4..]]);
        set_be16(&mut frame, self.at, if sum == 0 { 0xffff } else { sum }).unwrap();
        frame
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_unfinished_checksum_is_completed_and_a_finished_one_kept(
        payload in vec(any::<u8>(), 0..1400),
        tags in 0usize..3,
        ipv6: bool,
        udp: bool,
        padding in 0usize..20,
    ) {
        let sample = Sample::new(tags, ipv6, udp, &payload);
        let finished = sample.finished();
        let protocol = if udp { UDP } else { TCP };
        assert_right_sums(&finished, 14 + 4 * tags, sample.l4, ipv6, protocol);
        // Padding need not be zero.
        let padded = |mut frame: Vec<u8>| { frame.resize(frame.len() + padding, 0xa5); frame };
        let mut frame = padded(sample.unfinished());
        prop_assert!(complete(&mut frame));
        prop_assert_eq!(&frame, &padded(finished.clone()));
        prop_assert!(!complete(&mut frame));
        prop_assert_eq!(frame, padded(finished));
    }

    /// The payload is chosen so that the correct checksum equals the partial one.
    #[test]
    fn a_finished_checksum_that_resembles_an_unfinished_one_is_unchanged(
        mut payload in vec(any::<u8>(), 2..1400),
        tags in 0usize..3,
        ipv6: bool,
        udp: bool,
    ) {
        payload[..2].fill(0);
        let mut sample = Sample::new(tags, ipv6, udp, &payload);
        let pseudo = sample.pseudo_sum();
        let rest = plain_sum(&[&sample.frame[sample.l4..]]);
        // pseudo + rest + word + pseudo = 0xffff
        let word = !plain_sum(&[&pseudo.to_be_bytes(), &pseudo.to_be_bytes(), &rest.to_be_bytes()]);
        let at = sample.l4 + if udp { 8 } else { 32 };
        set_be16(&mut sample.frame, at, word).unwrap();
        let finished = sample.finished();
        prop_assert_eq!(be16(&finished, sample.at), Some(pseudo));
        let mut frame = finished.clone();
        prop_assert!(find_partial_checksum(&frame).is_some());
        prop_assert!(!complete(&mut frame));
        prop_assert_eq!(frame, finished);
    }

    /// A wrong checksum with any other value must stay wrong for the receiver.
    #[test]
    fn a_wrong_checksum_is_unchanged(
        payload in vec(any::<u8>(), 0..100),
        ipv6: bool,
        udp: bool,
        wrong: u16,
    ) {
        let sample = Sample::new(0, ipv6, udp, &payload);
        prop_assume!(wrong != sample.pseudo_sum());
        let mut frame = sample.frame.clone();
        set_be16(&mut frame, sample.at, wrong).unwrap();
        let before = frame.clone();
        prop_assert!(!complete(&mut frame));
        prop_assert_eq!(frame, before);
    }

    #[test]
    fn no_frame_panics(
        mut frame in vec(any::<u8>(), 0..200),
        ether_type in prop::sample::select(vec![0x0800u16, 0x86dd, 0x8100, 0x88a8, 0x1234]),
    ) {
        set_be16(&mut frame, 12, ether_type);
        complete(&mut frame);
    }

    #[test]
    fn a_truncated_frame_is_unchanged(payload in vec(any::<u8>(), 1..100), ipv6: bool, udp: bool, kept in 0usize..150) {
        let full_frame = Sample::new(1, ipv6, udp, &payload).unfinished();
        let mut frame = full_frame[..kept.min(full_frame.len() - 1)].to_vec();
        let before = frame.clone();
        prop_assert!(!complete(&mut frame));
        prop_assert_eq!(frame, before);
    }
}

#[test]
fn udp_without_a_checksum_keeps_none() {
    for ipv6 in [false, true] {
        let mut frame = Sample::new(0, ipv6, true, b"payload").frame;
        let before = frame.clone();
        assert!(!complete(&mut frame));
        assert_eq!(frame, before);
    }
}

#[test]
fn a_fragment_is_unchanged() {
    let mut frame = Sample::new(0, false, true, b"payload").unfinished();
    frame[14 + 6] = 0x20;
    let before = frame.clone();
    assert!(!complete(&mut frame));
    assert_eq!(frame, before);
}

#[test]
fn a_missing_sctp_crc_is_computed() {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([
        0x45, 0, 0, 36, 0, 0, 0x40, 0, 64, SCTP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ]);
    frame.extend([1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 9, 9, 9, 9]);
    let crc = crc32c(&frame[34..]).to_le_bytes();
    assert!(complete(&mut frame));
    assert_eq!(frame[42..46], crc);
    assert!(!complete(&mut frame));
}

#[test]
fn physical_links_differ_from_links_in_memory() {
    for (driver, is_physical) in [
        ("veth", true),
        ("tun", true),
        ("virtio_net", false),
        ("ixgbe", false),
        ("", false),
    ] {
        assert_eq!(is_software(driver), is_physical, "{driver}");
    }
}
