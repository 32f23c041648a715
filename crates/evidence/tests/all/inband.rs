//! Evidence in packets: byte-exact, inserted, overwritten, forged, moved, replayed.

use linewarden_evidence::inband::{
    Appraiser, CarriedEvidence, Counter, FrameError, MasterKey, PacketEvidenceError, Stamper,
    StamperCounters, read_clone, read_option,
};
use linewarden_evidence::state::{Digests, Snapshot};
use linewarden_evidence::{BootCount, Digest, Sequence, SwitchId};
use proptest::prelude::*;

use crate::common::config;

/// Frames from a Python program that was written from the documentation, with its own SipHash.
const BEFORE: &str = "0200000000020200000000018100000586dd60000000000c114020010db800000000000000000000000120010db800000000000000000000000203e807d0000cabcd64617461";
const AFTER: &str = "0200000000020200000000018100000586dd600000000074004020010db800000000000000000000000120010db8000000000000000000000002110c376401000000111111111111111111111111111111112222222222222222222222222222222233333333333333333333333333333333000000000000000700000000000000030000000000000009000000000000000555ab73ffb3831c9a9b00e1fa71fc69d203e807d0000cabcd64617461";
const CLONE: &str = "ffffffffffff0200000000018100000552410100000000000000061186dd0000000c20010db800000000000000000000000120010db800000000000000000000000203e807d0000c0000111111111111111111111111111111112222222222222222222222222222222233333333333333333333333333333333000000000000000700000000000000030000000000000009000000000000000555ab73ffb3831c9a9b00e1fa71fc69d2";

fn digests(seed: u8) -> Digests {
    let digest = |n: u8| Digest([n.wrapping_add(seed); 32]);
    Digests {
        registers: digest(0x11),
        tables: digest(0x22),
        program: digest(0x33),
    }
}

fn snapshot() -> Snapshot {
    Snapshot {
        switch: SwitchId(7),
        boot_count: BootCount(3),
        sequence: Sequence(9),
        digests: digests(0),
    }
}

fn master() -> MasterKey {
    MasterKey::new(std::array::from_fn(|i| i as u8))
}

fn stamper() -> Stamper {
    let snapshot = snapshot();
    Stamper::new(master().key(snapshot.switch, snapshot.boot_count), &snapshot)
}

/// The frame that the stamper sends.
fn stamped(stamper: &mut Stamper, frame: &[u8], counter: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let replaced = stamper.stamp(frame, Counter(counter), &mut out).unwrap();
    [&out, &frame[replaced..]].concat()
}

/// A UDP packet over IPv6, with `options` as its hop-by-hop header unless they are empty.
fn packet(options: &[u8], payload: usize) -> Vec<u8> {
    let udp = [0x03, 0xe8, 0x07, 0xd0, 0, 12, 0xab, 0xcd];
    let length = (options.len() + udp.len() + payload) as u16;
    let next = if options.is_empty() { 17 } else { 0 };
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd, 0x60, 0, 0, 0];
    frame.extend(length.to_be_bytes());
    frame.extend([next, 64]);
    for last in [1, 2] {
        frame.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    frame.extend(options);
    frame.extend(udp);
    frame.extend((0..payload).map(|n| n as u8));
    frame
}

/// A hop-by-hop header with these options, padded to units of 8 bytes.
fn header(options: &[u8]) -> Vec<u8> {
    let mut header = [&[17, 0], options].concat();
    while !header.len().is_multiple_of(8) {
        header.push(0);
    }
    header[1] = (header.len() / 8 - 1) as u8;
    header
}

fn carried(frame: &[u8]) -> CarriedEvidence {
    read_option(frame).unwrap().unwrap()
}

fn appraise(frame: &[u8]) -> Result<Counter, PacketEvidenceError> {
    let appraised = Appraiser::new(master()).appraise(&carried(frame), &digests(0))?;
    assert_eq!(*appraised.snapshot(), snapshot());
    Ok(appraised.counter())
}

/// The bytes after the hop-by-hop header, and the length in the IPv6 header.
fn payload(frame: &[u8]) -> (&[u8], usize) {
    let length = usize::from(u16::from_be_bytes([frame[18], frame[19]]));
    let options = if frame[20] == 0 {
        8 + 8 * usize::from(frame[55])
    } else {
        0
    };
    (&frame[54 + options..], length)
}

#[test]
fn the_bytes_are_those_of_an_independent_program() {
    let before = hex::decode(BEFORE).unwrap();
    let mut stamper = stamper();
    let after = stamped(&mut stamper, &before, 5);
    assert_eq!(hex::encode(&after), AFTER);
    assert_eq!(appraise(&after), Ok(Counter(5)));
    let mut clone = Vec::new();
    stamper.clone_frame(&before, Counter(5), &mut clone).unwrap();
    assert_eq!(hex::encode(&clone), CLONE);
    // The clone of the frame carries the same evidence.
    stamper.clone_frame(&after, Counter(5), &mut clone).unwrap();
    assert_eq!(hex::encode(&clone), CLONE);
    let reported = read_clone(&clone).unwrap().unwrap();
    assert!(Appraiser::new(master()).appraise(&reported, &digests(0)).is_ok());
    assert_eq!(read_clone(&before), Ok(None));
    assert_eq!(read_option(&before), Ok(None));
}

/// The fourth and sixth aspects in the paper about the published switch: evidence is present, and the payload is unchanged.
#[test]
fn only_the_headers_are_changed() {
    for options in [
        &[][..],
        &header(&[5, 2, 0, 0]),
        &header(&[0, 0, 1, 2, 9, 9, 5, 2, 0, 0, 0x3e, 4, 1, 2, 3, 4]),
    ] {
        let mut stamper = stamper();
        let before = packet(options, 333);
        let after = stamped(&mut stamper, &before, 1);
        assert_eq!(after.len(), before.len() + 104);
        assert_eq!(payload(&after), (payload(&before).0, payload(&before).1 + 104));
        assert_eq!(after[..18], before[..18]);
        assert_eq!(after[21..54], before[21..54]);
        // Existing options are unchanged, at their positions.
        if !options.is_empty() {
            assert_eq!(after[56..54 + options.len()], options[2..]);
            assert_eq!(after[54], 17);
            assert_eq!(after[54 + options.len()..][..4], [1, 0, 0x37, 100]);
        }
        // The second evidence replaces the first.
        let after_second = stamped(&mut stamper, &after, 2);
        assert_eq!(after_second.len(), after.len());
        assert_eq!(payload(&after_second).0, payload(&before).0);
        assert_eq!(appraise(&after), Ok(Counter(1)));
        assert_eq!(appraise(&after_second), Ok(Counter(2)));
    }
}

/// The fifth aspect in the paper about the published switch: a program cannot forge evidence.
#[test]
fn evidence_forged_by_a_program_is_replaced() {
    let forged = [&[0x37, 100], &[0xee; 100][..]].concat();
    let short = [0x37, 6, 9, 9, 9, 9, 9, 9];
    let alert = [5, 2, 0, 0];
    for options in [
        forged.clone(),
        short.to_vec(),
        [&short[..], &forged, &alert, &forged, &[0x37, 0]].concat(),
        [&alert[..], &forged, &short].concat(),
    ] {
        let mut stamper = stamper();
        let before = packet(&header(&options), 20);
        let after = stamped(&mut stamper, &before, 1);
        assert_eq!(appraise(&after), Ok(Counter(1)));
        let (bytes, options) = (
            payload(&after).0,
            &after[54..after.len() - payload(&after).0.len()],
        );
        assert_eq!(bytes, payload(&before).0);
        assert!(
            !options
                .windows(3)
                .any(|bytes| bytes == [0xee; 3] || bytes == [9; 3])
        );
    }
}

#[test]
fn evidence_of_another_packet_or_state_is_refused() {
    let mut stamper = stamper();
    let frame = stamped(&mut stamper, &packet(&header(&[5, 2, 0, 0]), 20), 1);
    assert_eq!(appraise(&frame), Ok(Counter(1)));
    // Moved to a packet of another length, with other ports, or another address.
    let options = frame[54..frame.len() - 28].to_vec();
    assert_eq!(appraise(&packet(&options, 20)), Ok(Counter(1)));
    assert_eq!(
        appraise(&packet(&options, 21)),
        Err(PacketEvidenceError::InvalidTag)
    );
    for position in [22, 38, frame.len() - 28] {
        let mut shifted = frame.clone();
        shifted[position] ^= 1;
        assert_eq!(
            appraise(&shifted),
            Err(PacketEvidenceError::InvalidTag),
            "byte {position}"
        );
    }
    // Fields that routers may change: traffic class, flow label, hop limit, checksum, options.
    for (position, mask) in [
        (14, 0x0f),
        (15, 0xff),
        (17, 1),
        (21, 0xff),
        (frame.len() - 21, 0xff),
    ] {
        let mut routed = frame.clone();
        routed[position] ^= mask;
        assert_eq!(appraise(&routed), Ok(Counter(1)), "byte {position}");
    }
    // Each byte of the content.
    let content = frame.len() - 28 - 96..frame.len() - 28;
    for position in content.clone() {
        let mut changed = frame.clone();
        changed[position] ^= 0x80;
        let error = appraise(&changed).unwrap_err();
        match position - content.start {
            0..48 => assert!(matches!(error, PacketEvidenceError::DigestMismatch { .. })),
            _ => assert_eq!(error, PacketEvidenceError::InvalidTag),
        }
    }
    let appraisal_error = |expected: Digests| {
        Appraiser::new(master())
            .appraise(&carried(&frame), &expected)
            .unwrap_err()
    };
    assert_eq!(
        appraisal_error(Digests {
            program: Digest([0; 32]),
            ..digests(0)
        }),
        PacketEvidenceError::DigestMismatch {
            program: true,
            tables: false,
            registers: false
        }
    );
    // The expected digest differs only behind the prefix that is in the packet.
    let mut other_digests = digests(0);
    other_digests.tables.0[31] ^= 1;
    assert_eq!(appraisal_error(other_digests), PacketEvidenceError::InvalidTag);
    let mut wrong_key = Appraiser::new(MasterKey::new([0; 16]));
    assert_eq!(
        wrong_key.appraise(&carried(&frame), &digests(0)),
        Err(PacketEvidenceError::InvalidTag)
    );
}

#[test]
fn a_packet_is_accepted_once_and_not_after_the_next_start() {
    let mut appraiser = Appraiser::new(master());
    let mut stamper = stamper();
    let mut stamp_and_appraise = |stamper: &mut Stamper, counter| {
        let frame = stamped(stamper, &packet(&[], 20), counter);
        let appraised = appraiser.appraise(&carried(&frame), &digests(0));
        appraised.map(|appraised| appraised.counter().0)
    };
    assert_eq!(stamp_and_appraise(&mut stamper, 5), Ok(5));
    assert_eq!(stamp_and_appraise(&mut stamper, 4), Ok(4));
    assert_eq!(
        stamp_and_appraise(&mut stamper, 5),
        Err(PacketEvidenceError::Replayed(Counter(5)))
    );
    assert_eq!(stamp_and_appraise(&mut stamper, 2_000), Ok(2_000));
    assert_eq!(
        stamp_and_appraise(&mut stamper, 6),
        Err(PacketEvidenceError::Replayed(Counter(6)))
    );
    assert_eq!(
        stamp_and_appraise(&mut stamper, 0),
        Err(PacketEvidenceError::Replayed(Counter(0)))
    );
    let next = Snapshot {
        boot_count: BootCount(4),
        ..snapshot()
    };
    let mut restarted = Stamper::new(master().key(next.switch, next.boot_count), &next);
    assert_eq!(stamp_and_appraise(&mut restarted, 1), Ok(1));
    assert_eq!(
        stamp_and_appraise(&mut stamper, 2_001),
        Err(PacketEvidenceError::OldBootCount {
            received: BootCount(3),
            known: BootCount(4)
        })
    );
}

#[test]
fn a_stamper_continues_with_another_state() {
    let mut stamper = stamper();
    let next = Snapshot {
        sequence: Sequence(10),
        digests: digests(1),
        ..snapshot()
    };
    stamper.update(&next);
    let frame = stamped(&mut stamper, &packet(&[], 20), 1);
    let mut appraiser = Appraiser::new(master());
    let appraised = appraiser.appraise(&carried(&frame), &digests(1)).unwrap();
    assert_eq!(*appraised.snapshot(), next);
}

#[test]
fn frames_without_space_are_unchanged_and_counted() {
    let mut stamper = stamper();
    let mut out = vec![1];
    let mut stamp_error = |frame: &[u8]| {
        let error = stamper.stamp(frame, Counter(1), &mut out).unwrap_err();
        assert!(out.is_empty());
        error
    };
    let mut ipv4 = packet(&[], 20);
    ipv4[12..14].copy_from_slice(&[8, 0]);
    assert_eq!(stamp_error(&ipv4), FrameError::NotIpv6);
    // One byte more than fits.
    assert_eq!(
        stamp_error(&packet(&[], 65_535 - 104 - 8 + 1)),
        FrameError::TooLong
    );
    // A header of 1,944 bytes has room for exactly 104 more bytes. A header of 1,952 bytes has too little room.
    let long = [&[0x3e, 255][..], &[0; 255]].concat().repeat(7);
    let full = header(&[&long[..], &[0x3e, 141], &[0; 141]].concat());
    assert_eq!(full.len(), 2048 - 104);
    let without_free_space = header(&[&full[2..], &[0; 8]].concat());
    assert_eq!(stamp_error(&packet(&without_free_space, 20)), FrameError::TooLong);
    let mut jumbo = packet(&[], 20);
    jumbo[18..20].fill(0);
    assert_eq!(stamp_error(&jumbo), FrameError::TooLong);
    let complete = packet(&header(&[5, 2, 0, 0]), 20);
    for cut in 0..complete.len() {
        assert_eq!(stamp_error(&complete[..cut]), FrameError::Malformed, "{cut}");
    }
    let mut overrun = complete.clone();
    overrun[57] = 200;
    assert_eq!(stamp_error(&overrun), FrameError::Malformed);
    let counts = StamperCounters {
        not_ipv6: 1,
        too_long: 3,
        malformed: complete.len() as u64 + 1,
        ..StamperCounters::default()
    };
    assert_eq!(stamper.counters(), counts);
    // The longest packet that fits.
    let longest = stamped(&mut stamper, &packet(&[], 65_535 - 104 - 8), 1);
    assert_eq!(payload(&longest).1, 65_535);
    assert_eq!(appraise(&longest), Ok(Counter(1)));
    let full = stamped(&mut stamper, &packet(&full, 20), 2);
    assert_eq!(appraise(&full), Ok(Counter(2)));
    // A packet without payload, in a frame of the smallest size.
    let mut empty = packet(&[], 0)[..54].to_vec();
    empty[18..20].fill(0);
    empty[20] = 59;
    empty.extend([0; 6]);
    assert_eq!(appraise(&stamped(&mut stamper, &empty, 3)), Ok(Counter(3)));
}

#[test]
fn clones_carry_the_evidence_of_frames_without_evidence() {
    let mut stamper = stamper();
    let mut ipv4 = vec![
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 8, 0,
    ];
    ipv4.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    ipv4.extend([0x03, 0xe8, 0x07, 0xd0, 0, 8, 0xab, 0xcd]);
    let arp = [&packet(&[], 0)[..12], &[8, 6], &[1; 28]].concat();
    let mut frames = vec![ipv4.clone(), arp, ipv4[..30].to_vec()];
    frames.push(packet(&[], 20));
    let mut appraiser = Appraiser::new(master());
    for (counter, frame) in (1..).zip(&frames) {
        let mut clone = Vec::new();
        stamper.clone_frame(frame, Counter(counter), &mut clone).unwrap();
        let reported = read_clone(&clone).unwrap().unwrap();
        assert_eq!(
            appraiser.appraise(&reported, &digests(0)).unwrap().counter(),
            Counter(counter)
        );
        // VLAN tags are kept.
        assert_eq!(clone[6..12], frame[6..12]);
        if counter == 1 {
            assert_eq!(clone[12..22], [0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 0x52, 0x41]);
            assert_eq!(reported.invariants.0[..8], [4, 17, 8, 0, 0, 0, 0, 8]);
        }
        // Switches may change VLAN tags; the tag binds all content.
        for position in clone.len() - 152..clone.len() {
            let mut changed = clone.clone();
            changed[position] ^= 1;
            if let Ok(Some(reported)) = read_clone(&changed) {
                let mut fresh_appraiser = Appraiser::new(master());
                assert!(
                    fresh_appraiser.appraise(&reported, &digests(0)).is_err(),
                    "byte {position}"
                );
            }
            // A truncated clone is not evidence.
            assert!(!matches!(read_clone(&clone[..position]), Ok(Some(_))));
        }
    }
    let mut out = Vec::new();
    assert_eq!(
        stamper.clone_frame(&ipv4[..15], Counter(1), &mut out),
        Err(FrameError::Malformed)
    );
    assert_eq!(stamper.counters().cloned, 4);
}

#[test]
fn debug_output_has_no_keys() {
    let output = format!("{:?} {:?} {:?}", master(), stamper(), Appraiser::new(master()));
    assert!(output.contains("MasterKey(..)") && output.contains("EvidenceKey(..)"));
    assert!(
        !output.contains("[0, 1, 2, 3") && !output.contains("v0"),
        "{output}"
    );
}

proptest! {
    #![proptest_config(config(500))]

    /// Any frame is either unchanged, or stamped with evidence that can be read and verified.
    #[test]
    fn any_frame_is_unchanged_or_carries_valid_evidence(
        options in prop::collection::vec(any::<u8>(), 0..120),
        payload_bytes in 0usize..60,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        has_options: bool,
    ) {
        let options = if has_options { header(&options) } else { Vec::new() };
        let mut frame = packet(&options, payload_bytes);
        for (position, byte) in edits {
            let position = position.index(frame.len());
            frame[position] = byte;
        }
        let mut out = Vec::new();
        let _ = read_clone(&frame);
        if let Ok(replaced) = stamper().stamp(&frame, Counter(1), &mut out) {
            let sent = [&out, &frame[replaced..]].concat();
            let evidence = read_option(&sent).unwrap().unwrap();
            prop_assert!(Appraiser::new(master()).appraise(&evidence, &digests(0)).is_ok());
            prop_assert!(sent.ends_with(&frame[replaced..]));
            prop_assert!(sent.len() == frame.len() || sent.len() == frame.len() + 104);
        }
    }

    #[test]
    fn a_frame_front_is_stamped_as_the_full_frame_or_not_at_all(
        options in prop::collection::vec(any::<u8>(), 0..120),
        has_options: bool,
        payload_bytes in 0usize..200,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        cut in any::<prop::sample::Index>(),
    ) {
        let options = if has_options { header(&options) } else { Vec::new() };
        let mut frame = packet(&options, payload_bytes);
        for (position, byte) in edits {
            let position = position.index(frame.len());
            frame[position] = byte;
        }
        let stamper = &mut stamper();
        let (mut stamped_frame, mut out) = (Vec::new(), Vec::new());
        let frame_result = stamper.stamp(&frame, Counter(1), &mut stamped_frame).ok();
        let stamped_before = stamper.counters();
        let (front, behind) = frame.split_at(cut.index(frame.len() + 1));
        match stamper.stamp_front(front, behind.len(), Counter(1), &mut out) {
            Some(replaced) => {
                prop_assert_eq!(frame_result, Some(replaced));
                prop_assert_eq!(out, stamped_frame);
            }
            None => {
                prop_assert_eq!(stamper.counters(), stamped_before);
                // Only Ethernet, IPv6, options and 8 bytes of the payload are parsed.
                prop_assert!(frame_result.is_none_or(|replaced| front.len() < replaced + 8));
            }
        }
    }
}
