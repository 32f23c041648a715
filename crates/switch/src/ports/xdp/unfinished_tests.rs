use proptest::collection::vec;
use proptest::prelude::*;

use super::super::super::checksum::samples::{assert_valid_sums, oversized, plain_sum};
use super::super::super::checksum::{crc32c, set_be16};
use super::*;

/// Frame with an IP packet, and the offsets of the L4 header and of the checksum field.
struct Sample {
    frame: Vec<u8>,
    ipv6: bool,
    udp: bool,
    tags: usize,
    l4: usize,
    checksum_offset: usize,
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
        let checksum_offset = l4 + if udp { 6 } else { 16 };
        Self {
            frame,
            ipv6,
            udp,
            tags,
            l4,
            checksum_offset,
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

    fn with_partial_checksum(&self) -> Vec<u8> {
        let mut frame = self.frame.clone();
        set_be16(&mut frame, self.checksum_offset, self.pseudo_sum()).unwrap();
        frame
    }

    fn with_complete_checksum(&self) -> Vec<u8> {
        let mut frame = self.frame.clone();
        let sum = !plain_sum(&[&self.pseudo_sum().to_be_bytes(), &frame[self.l4..]]);
        set_be16(
            &mut frame,
            self.checksum_offset,
            if sum == 0 { 0xffff } else { sum },
        )
        .unwrap();
        frame
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn partial_checksum_is_completed_and_complete_checksum_is_unchanged(
        payload in vec(any::<u8>(), 0..1400),
        tags in 0usize..3,
        ipv6: bool,
        udp: bool,
        padding in 0usize..20,
    ) {
        let sample = Sample::new(tags, ipv6, udp, &payload);
        let complete_frame = sample.with_complete_checksum();
        let protocol = if udp { UDP } else { TCP };
        assert_valid_sums(&complete_frame, 14 + 4 * tags, sample.l4, ipv6, protocol);
        // Padding need not be zero.
        let padded = |mut frame: Vec<u8>| { frame.resize(frame.len() + padding, 0xa5); frame };
        let mut frame = padded(sample.with_partial_checksum());
        prop_assert!(complete(&mut frame));
        prop_assert_eq!(&frame, &padded(complete_frame.clone()));
        prop_assert!(!complete(&mut frame));
        prop_assert_eq!(frame, padded(complete_frame));
    }

    /// The payload is chosen so that the complete checksum equals the partial checksum.
    #[test]
    fn complete_checksum_with_the_value_of_a_partial_checksum_is_unchanged(
        mut payload in vec(any::<u8>(), 2..1400),
        tags in 0usize..3,
        ipv6: bool,
        udp: bool,
    ) {
        payload[..2].fill(0);
        let mut sample = Sample::new(tags, ipv6, udp, &payload);
        let pseudo_sum = sample.pseudo_sum();
        let data_sum = plain_sum(&[&sample.frame[sample.l4..]]);
        // pseudo_sum + data_sum + word + pseudo_sum = 0xffff
        let word = !plain_sum(&[&pseudo_sum.to_be_bytes(), &pseudo_sum.to_be_bytes(), &data_sum.to_be_bytes()]);
        let word_offset = sample.l4 + if udp { 8 } else { 32 };
        set_be16(&mut sample.frame, word_offset, word).unwrap();
        let complete_frame = sample.with_complete_checksum();
        prop_assert_eq!(be16(&complete_frame, sample.checksum_offset), Some(pseudo_sum));
        let mut frame = complete_frame.clone();
        prop_assert!(find_partial_checksum(&frame).is_some());
        prop_assert!(!complete(&mut frame));
        prop_assert_eq!(frame, complete_frame);
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
        set_be16(&mut frame, sample.checksum_offset, wrong).unwrap();
        let original = frame.clone();
        prop_assert!(!complete(&mut frame));
        prop_assert_eq!(frame, original);
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
    fn a_truncated_frame_is_unchanged(payload in vec(any::<u8>(), 1..100), ipv6: bool, udp: bool, length in 0usize..150) {
        let full_frame = Sample::new(1, ipv6, udp, &payload).with_partial_checksum();
        let mut frame = full_frame[..length.min(full_frame.len() - 1)].to_vec();
        let original = frame.clone();
        prop_assert!(!complete(&mut frame));
        prop_assert_eq!(frame, original);
    }
}

#[test]
fn udp_frame_without_a_checksum_is_unchanged() {
    for ipv6 in [false, true] {
        let mut frame = Sample::new(0, ipv6, true, b"payload").frame;
        let original = frame.clone();
        assert!(!complete(&mut frame));
        assert_eq!(frame, original);
    }
}

#[test]
fn a_fragment_is_unchanged() {
    let mut frame = Sample::new(0, false, true, b"payload").with_partial_checksum();
    frame[14 + 6] = 0x20;
    let original = frame.clone();
    assert!(!complete(&mut frame));
    assert_eq!(frame, original);
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
fn virtual_links_are_recognized_by_their_driver() {
    for (driver, is_virtual) in [
        ("veth", true),
        ("tun", true),
        ("virtio_net", false),
        ("ixgbe", false),
        ("", false),
    ] {
        assert_eq!(is_software(driver), is_virtual, "{driver}");
    }
}
