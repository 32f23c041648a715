//! Evidence in packets: byte for byte, inserted, overwritten, forged, shifted, replayed.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

// Other tests use more of it.
#[allow(dead_code)]
mod common;

use linewarden_evidence::inband::{
    Appraiser, Carried, Content, Counter, Counts, Form, FrameError, MasterKey, Refused, Route, Stamper,
    read_clone, read_option,
};
use linewarden_evidence::state::{Digests, Snapshot};
use linewarden_evidence::{BootCount, Digest, Sequence, SwitchId};
use proptest::prelude::*;

use common::config;

/// Of the packets that a program in Python wrote from the documentation, with its own SipHash.
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

fn stamper(form: Form) -> Stamper {
    let snapshot = snapshot();
    Stamper::new(
        master().key(snapshot.switch, snapshot.boot_count),
        form,
        &snapshot,
    )
}

/// The frame that leaves.
fn stamped(stamper: &mut Stamper, frame: &[u8], counter: u64, upstream: Option<&Route>) -> Vec<u8> {
    let mut out = Vec::new();
    let taken = stamper
        .stamp(frame, Counter(counter), upstream, &mut out)
        .unwrap();
    [&out, &frame[taken..]].concat()
}

/// An IPv6 packet of UDP, with this hop-by-hop header if it has one.
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

fn carried(frame: &[u8]) -> Carried {
    read_option(frame).unwrap().unwrap()
}

fn appraise(frame: &[u8]) -> Result<Counter, Refused> {
    let shown = Appraiser::new(master()).appraise(&carried(frame), &digests(0))?;
    assert_eq!(*shown.snapshot(), snapshot());
    Ok(shown.counter())
}

/// Behind the hop-by-hop header, and the length that the IPv6 header gives.
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
    let mut stamper = stamper(Form::Default);
    let after = stamped(&mut stamper, &before, 5, None);
    assert_eq!(hex::encode(&after), AFTER);
    assert_eq!(appraise(&after), Ok(Counter(5)));
    let mut clone = Vec::new();
    stamper.clone_frame(&before, Counter(5), &mut clone).unwrap();
    assert_eq!(hex::encode(&clone), CLONE);
    // The clone of the frame with its evidence says the same.
    stamper.clone_frame(&after, Counter(5), &mut clone).unwrap();
    assert_eq!(hex::encode(&clone), CLONE);
    let told = read_clone(&clone).unwrap().unwrap();
    assert!(Appraiser::new(master()).appraise(&told, &digests(0)).is_ok());
    assert_eq!(read_clone(&before), Ok(None));
    assert_eq!(read_option(&before), Ok(None));
}

#[test]
fn classic_content_is_laid_out_as_the_published_switch_has_it() {
    let mut stamper = stamper(Form::Classic);
    let before = packet(&[], 100);
    let after = stamped(&mut stamper, &before, 1, None);
    let mut wanted = vec![17, 12, 0x37, 100, 0, 0, 0, 0];
    for _ in 0..2 {
        for field in [0x11, 0x22, 0x33] {
            wanted.extend([field; 16]);
        }
    }
    assert_eq!(wanted.len(), 104);
    assert_eq!(after[54..158], wanted);
    assert_eq!(after.len(), before.len() + 104);
    assert_eq!(payload(&after), (&before[54..], before.len() + 50));
    assert_eq!(appraise(&after), Err(Refused::Classic));
    let mut clone = Vec::new();
    stamper.clone_frame(&before, Counter(1), &mut clone).unwrap();
    assert_eq!(clone.len(), 62);
    assert_eq!(
        clone[..14],
        [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x52, 0x41]
    );
    assert_eq!(clone[14..], wanted[8..56]);
    assert!(matches!(
        read_clone(&clone).unwrap().unwrap().content,
        Content::Classic { route: None, .. }
    ));
}

/// The paper's fourth and sixth aspects: evidence is there, and the payload is as it was.
#[test]
fn nothing_but_the_headers_is_changed() {
    for options in [
        &[][..],
        &header(&[5, 2, 0, 0]),
        &header(&[0, 0, 1, 2, 9, 9, 5, 2, 0, 0, 0x3e, 4, 1, 2, 3, 4]),
    ] {
        for form in [Form::Classic, Form::Default] {
            let mut stamper = stamper(form);
            let before = packet(options, 333);
            let after = stamped(&mut stamper, &before, 1, None);
            assert_eq!(after.len(), before.len() + 104);
            assert_eq!(payload(&after), (payload(&before).0, payload(&before).1 + 104));
            assert_eq!(after[..18], before[..18]);
            assert_eq!(after[21..54], before[21..54]);
            // Options that were there are there, at their places.
            if !options.is_empty() {
                assert_eq!(after[56..54 + options.len()], options[2..]);
                assert_eq!(after[54], 17);
                assert_eq!(after[54 + options.len()..][..4], [1, 0, 0x37, 100]);
            }
            // A second time it takes the place of the first.
            let again = stamped(&mut stamper, &after, 2, None);
            assert_eq!(again.len(), after.len());
            assert_eq!(payload(&again).0, payload(&before).0);
            if form == Form::Default {
                assert_eq!(appraise(&after), Ok(Counter(1)));
                assert_eq!(appraise(&again), Ok(Counter(2)));
            }
        }
    }
}

/// The paper's fifth aspect.
#[test]
fn what_a_program_has_forged_is_replaced() {
    let forged = [&[0x37, 100], &[0xee; 100][..]].concat();
    let short = [0x37, 6, 9, 9, 9, 9, 9, 9];
    let alert = [5, 2, 0, 0];
    for options in [
        forged.clone(),
        short.to_vec(),
        [&short[..], &forged, &alert, &forged, &[0x37, 0]].concat(),
        [&alert[..], &forged, &short].concat(),
    ] {
        for form in [Form::Classic, Form::Default] {
            let mut stamper = stamper(form);
            let before = packet(&header(&options), 20);
            let after = stamped(&mut stamper, &before, 1, None);
            let read = carried(&after);
            match read.content {
                Content::Classic { fields, route } => {
                    assert_eq!(fields[..16], [0x11; 16]);
                    assert_eq!(route, Some(Route(fields)));
                }
                Content::Default(_) => assert_eq!(appraise(&after), Ok(Counter(1))),
            }
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
}

#[test]
fn a_route_is_over_the_packet_as_it_came_in() {
    let other = Snapshot {
        digests: digests(0x40),
        ..snapshot()
    };
    let key = master().key(other.switch, other.boot_count);
    let mut first = Stamper::new(key, Form::Classic, &other);
    let mut second = stamper(Form::Classic);
    let came = stamped(&mut first, &packet(&header(&[5, 2, 0, 0]), 20), 1, None);
    let Content::Classic { route, .. } = carried(&came).content else {
        panic!("classic content");
    };
    assert_eq!(route, Some(Route::over([&other])));
    // Between coming in and leaving the program has written what it wants.
    let mut forged = came.clone();
    let at = forged.windows(16).position(|bytes| bytes == [0x51; 16]).unwrap();
    forged[at..at + 96].fill(0xee);
    let left = stamped(&mut second, &forged, 1, route.as_ref());
    let Content::Classic { fields, route } = carried(&left).content else {
        panic!("classic content");
    };
    assert_eq!(fields[..16], [0x11; 16]);
    assert_eq!(route, Some(Route::over([&other, &snapshot()])));
    assert_ne!(route, Some(Route::over([&snapshot()])));
}

#[test]
fn evidence_of_another_packet_or_state_is_refused() {
    let mut stamper = stamper(Form::Default);
    let frame = stamped(&mut stamper, &packet(&header(&[5, 2, 0, 0]), 20), 1, None);
    assert_eq!(appraise(&frame), Ok(Counter(1)));
    // Shifted to a packet of another length, to other ports, to another address.
    let options = frame[54..frame.len() - 28].to_vec();
    assert_eq!(appraise(&packet(&options, 20)), Ok(Counter(1)));
    assert_eq!(appraise(&packet(&options, 21)), Err(Refused::Tag));
    for at in [22, 38, frame.len() - 28] {
        let mut shifted = frame.clone();
        shifted[at] ^= 1;
        assert_eq!(appraise(&shifted), Err(Refused::Tag), "byte {at}");
    }
    // What changes on the way may: traffic class, flow label, hop limit, checksum; options come behind.
    for (at, mask) in [
        (14, 0x0f),
        (15, 0xff),
        (17, 1),
        (21, 0xff),
        (frame.len() - 21, 0xff),
    ] {
        let mut passed = frame.clone();
        passed[at] ^= mask;
        assert_eq!(appraise(&passed), Ok(Counter(1)), "byte {at}");
    }
    // Every bit of the content.
    let content = frame.len() - 28 - 96..frame.len() - 28;
    for at in content.clone() {
        let mut bent = frame.clone();
        bent[at] ^= 0x80;
        let refused = appraise(&bent).unwrap_err();
        match at - content.start {
            0..48 => assert!(matches!(refused, Refused::Differs { .. })),
            _ => assert_eq!(refused, Refused::Tag),
        }
    }
    let differs = |known: Digests| {
        Appraiser::new(master())
            .appraise(&carried(&frame), &known)
            .unwrap_err()
    };
    assert_eq!(
        differs(Digests {
            program: Digest([0; 32]),
            ..digests(0)
        }),
        Refused::Differs {
            program: true,
            tables: false,
            registers: false
        }
    );
    // Digests that only begin alike.
    let mut alike = digests(0);
    alike.tables.0[31] ^= 1;
    assert_eq!(differs(alike), Refused::Tag);
    let mut wrong = Appraiser::new(MasterKey::new([0; 16]));
    assert_eq!(wrong.appraise(&carried(&frame), &digests(0)), Err(Refused::Tag));
}

#[test]
fn a_packet_is_shown_once_and_not_after_the_next_start() {
    let mut appraiser = Appraiser::new(master());
    let mut stamper = stamper(Form::Default);
    let mut shown = |stamper: &mut Stamper, counter| {
        let frame = stamped(stamper, &packet(&[], 20), counter, None);
        let shown = appraiser.appraise(&carried(&frame), &digests(0));
        shown.map(|shown| shown.counter().0)
    };
    assert_eq!(shown(&mut stamper, 5), Ok(5));
    assert_eq!(shown(&mut stamper, 4), Ok(4));
    assert_eq!(shown(&mut stamper, 5), Err(Refused::Replayed(Counter(5))));
    assert_eq!(shown(&mut stamper, 2_000), Ok(2_000));
    assert_eq!(shown(&mut stamper, 6), Err(Refused::Replayed(Counter(6))));
    assert_eq!(shown(&mut stamper, 0), Err(Refused::Replayed(Counter(0))));
    let next = Snapshot {
        boot_count: BootCount(4),
        ..snapshot()
    };
    let mut restarted = Stamper::new(master().key(next.switch, next.boot_count), Form::Default, &next);
    assert_eq!(shown(&mut restarted, 1), Ok(1));
    assert_eq!(
        shown(&mut stamper, 2_001),
        Err(Refused::OldBoot {
            got: BootCount(3),
            known: BootCount(4)
        })
    );
}

#[test]
fn a_stamper_goes_on_with_another_state() {
    let mut stamper = stamper(Form::Default);
    let next = Snapshot {
        sequence: Sequence(10),
        digests: digests(1),
        ..snapshot()
    };
    stamper.update(&next);
    let frame = stamped(&mut stamper, &packet(&[], 20), 1, None);
    let mut appraiser = Appraiser::new(master());
    let shown = appraiser.appraise(&carried(&frame), &digests(1)).unwrap();
    assert_eq!(*shown.snapshot(), next);
}

#[test]
fn what_cannot_carry_it_is_left_alone_and_counted() {
    let mut stamper = stamper(Form::Default);
    let mut out = vec![1];
    let mut refused = |frame: &[u8]| {
        let error = stamper.stamp(frame, Counter(1), None, &mut out).unwrap_err();
        assert!(out.is_empty());
        error
    };
    let mut ipv4 = packet(&[], 20);
    ipv4[12..14].copy_from_slice(&[8, 0]);
    assert_eq!(refused(&ipv4), FrameError::NotIpv6);
    // One byte more than fits.
    assert_eq!(refused(&packet(&[], 65_535 - 104 - 8 + 1)), FrameError::TooLong);
    // 1,944 bytes, the most that has room for 104 more; and 8 more than that.
    let long = [&[0x3e, 255][..], &[0; 255]].concat().repeat(7);
    let full = header(&[&long[..], &[0x3e, 141], &[0; 141]].concat());
    assert_eq!(full.len(), 2048 - 104);
    let fuller = header(&[&full[2..], &[0; 8]].concat());
    assert_eq!(refused(&packet(&fuller, 20)), FrameError::TooLong);
    let mut jumbo = packet(&[], 20);
    jumbo[18..20].fill(0);
    assert_eq!(refused(&jumbo), FrameError::TooLong);
    let whole = packet(&header(&[5, 2, 0, 0]), 20);
    for cut in 0..whole.len() {
        assert_eq!(refused(&whole[..cut]), FrameError::Malformed, "{cut}");
    }
    let mut overrun = whole.clone();
    overrun[57] = 200;
    assert_eq!(refused(&overrun), FrameError::Malformed);
    let counts = Counts {
        not_ipv6: 1,
        too_long: 3,
        malformed: whole.len() as u64 + 1,
        ..Counts::default()
    };
    assert_eq!(stamper.counts(), counts);
    // The longest that fits.
    let longest = stamped(&mut stamper, &packet(&[], 65_535 - 104 - 8), 1, None);
    assert_eq!(payload(&longest).1, 65_535);
    assert_eq!(appraise(&longest), Ok(Counter(1)));
    let full = stamped(&mut stamper, &packet(&full, 20), 2, None);
    assert_eq!(appraise(&full), Ok(Counter(2)));
    // A packet without payload, in a frame of the smallest size.
    let mut empty = packet(&[], 0)[..54].to_vec();
    empty[18..20].fill(0);
    empty[20] = 59;
    empty.extend([0; 6]);
    assert_eq!(appraise(&stamped(&mut stamper, &empty, 3, None)), Ok(Counter(3)));
}

#[test]
fn clones_tell_of_frames_that_carry_nothing() {
    let mut stamper = stamper(Form::Default);
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
        let told = read_clone(&clone).unwrap().unwrap();
        assert_eq!(
            appraiser.appraise(&told, &digests(0)).unwrap().counter(),
            Counter(counter)
        );
        // VLAN tags are kept.
        assert_eq!(clone[6..12], frame[6..12]);
        if counter == 1 {
            assert_eq!(clone[12..22], [0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 0x52, 0x41]);
            assert_eq!(told.invariants.0[..8], [4, 17, 8, 0, 0, 0, 0, 8]);
        }
        // VLAN tags may change on the way; all of the content is bound.
        for at in clone.len() - 152..clone.len() {
            let mut bent = clone.clone();
            bent[at] ^= 1;
            if let Ok(Some(told)) = read_clone(&bent) {
                let mut fresh = Appraiser::new(master());
                assert!(fresh.appraise(&told, &digests(0)).is_err(), "byte {at}");
            }
            // Cut off it is none, or by chance one that proves nothing.
            if let Ok(Some(cut)) = read_clone(&clone[..at]) {
                assert_eq!(appraiser.appraise(&cut, &digests(0)), Err(Refused::Classic));
            }
        }
    }
    let mut out = Vec::new();
    assert_eq!(
        stamper.clone_frame(&ipv4[..15], Counter(1), &mut out),
        Err(FrameError::Malformed)
    );
    assert_eq!(stamper.counts().cloned, 4);
}

#[test]
fn no_key_is_shown() {
    let shown = format!(
        "{:?} {:?} {:?}",
        master(),
        stamper(Form::Default),
        Appraiser::new(master())
    );
    assert!(shown.contains("MasterKey(..)") && shown.contains("EvidenceKey(..)"));
    assert!(!shown.contains("[0, 1, 2, 3") && !shown.contains("v0"), "{shown}");
}

proptest! {
    #![proptest_config(config(500))]

    /// Any frame at all: what leaves is a packet again, once stamped it reads as ours.
    #[test]
    fn any_frame_is_left_alone_or_carries_what_is_ours(
        options in prop::collection::vec(any::<u8>(), 0..120),
        payload_bytes in 0usize..60,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        has_options: bool,
    ) {
        let options = if has_options { header(&options) } else { Vec::new() };
        let mut frame = packet(&options, payload_bytes);
        for (at, byte) in edits {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        for form in [Form::Classic, Form::Default] {
            let mut stamper = stamper(form);
            let mut out = Vec::new();
            let _ = read_clone(&frame);
            let Ok(taken) = stamper.stamp(&frame, Counter(1), None, &mut out) else {
                continue;
            };
            let left = [&out, &frame[taken..]].concat();
            let read = read_option(&left).unwrap().unwrap();
            if form == Form::Default {
                prop_assert!(Appraiser::new(master()).appraise(&read, &digests(0)).is_ok());
            }
            prop_assert!(left.ends_with(&frame[taken..]));
            prop_assert!(left.len() == frame.len() || left.len() == frame.len() + 104);
        }
    }

    #[test]
    fn a_front_is_stamped_as_the_whole_frame_or_not_at_all(
        options in prop::collection::vec(any::<u8>(), 0..120),
        has_options: bool,
        payload_bytes in 0usize..200,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        cut in any::<prop::sample::Index>(),
    ) {
        let options = if has_options { header(&options) } else { Vec::new() };
        let mut frame = packet(&options, payload_bytes);
        for (at, byte) in edits {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        let stamper = &mut stamper(Form::Default);
        let (mut whole, mut out) = (Vec::new(), Vec::new());
        let of_whole = stamper.stamp(&frame, Counter(1), None, &mut whole).ok();
        let stamped_before = stamper.counts();
        let (front, behind) = frame.split_at(cut.index(frame.len() + 1));
        match stamper.stamp_front(front, behind.len(), Counter(1), None, &mut out) {
            Some(taken) => {
                prop_assert_eq!(of_whole, Some(taken));
                prop_assert_eq!(out, whole);
            }
            None => {
                prop_assert_eq!(stamper.counts(), stamped_before);
                // Ethernet, IPv6, options and 8 bytes are all that is looked at.
                prop_assert!(of_whole.is_none_or(|taken| front.len() < taken + 8));
            }
        }
    }
}
