//! Aspect 5: programs that forge evidence.

use linewarden_evidence::inband::{Appraiser, Content, ContentFormat, is_clone, read_clone, read_option};
use linewarden_switch::evidence::Carrier;
use linewarden_switch::tables::FieldMatch;
use proptest::prelude::*;

use super::fixture::{
    ADDRESS, ProgramRequest, SwitchFixture, ipv6, master, read_by_program, request_frame, shorts,
};

/// With the table filled, the program gives every packet an option with false digests, in the classic or the
/// default content format.
fn forging_fixture(carrier: Carrier, form: ContentFormat, head: u128) -> SwitchFixture {
    let mut fixture = SwitchFixture::new("evidence", Some((carrier, form)));
    let false_digests = fixture.action("EvidenceIngress.false_digests", &[u128::MAX, head]);
    fixture.insert(
        "EvidenceIngress.forge",
        &[FieldMatch::Exact(ADDRESS.to_vec())],
        false_digests,
    );
    fixture
}

#[test]
fn false_options_are_replaced() {
    for head in [0, 0x0100_0000] {
        let mut fixture = forging_fixture(Carrier::Option, ContentFormat::Default, head);
        let known = fixture.snapshot();
        let mut appraiser = Appraiser::new(master());
        let fresh = fixture.one(0, &ipv6(17, b"a datagram"));
        // Also over the option of the previous switch.
        let again = fixture.one(0, &fresh);
        for frame in [&fresh, &again] {
            let carried = read_option(frame).unwrap().unwrap();
            appraiser.appraise(&carried, &known.digests).unwrap();
        }
        assert_eq!(fresh.len(), again.len());
        let mut fixture = forging_fixture(Carrier::Option, ContentFormat::Classic, head);
        let known = shorts(&fixture.snapshot()).concat();
        let frame = fixture.one(0, &ipv6(17, b"a datagram"));
        let Content::Classic { fields, .. } = read_option(&frame).unwrap().unwrap().content else {
            panic!("not the classic content");
        };
        assert_eq!(fields.as_slice(), known);
    }
}

#[test]
fn false_options_in_cloned_packets_are_dropped() {
    let mut fixture = forging_fixture(Carrier::Clone { port: 9 }, ContentFormat::Default, 0);
    assert_eq!(fixture.send(0, &ipv6(17, b"a datagram")), []);
    assert_eq!(fixture.attester().settings().identity.forged_packets(), 1);
}

/// A packet without room for a true option must not leave with a false one.
#[test]
fn false_option_in_packet_without_space_is_dropped() {
    let mut fixture = forging_fixture(Carrier::Option, ContentFormat::Classic, 0);
    let longest = ipv6(17, &vec![0; 65_535 - 104]);
    let sent = fixture.send(0, &longest);
    // The program's option is replaced in place: there is room for that.
    let Content::Classic { fields, .. } = read_option(&sent[0].1).unwrap().unwrap().content else {
        panic!("not the classic content");
    };
    assert_eq!(fields.as_slice(), shorts(&fixture.snapshot()).concat());
    let too_long = ipv6(17, &vec![0; 65_535 - 103]);
    let sent = fixture.send(0, &too_long);
    assert!(
        sent.iter()
            .all(|(_, frame)| !matches!(read_option(frame), Ok(Some(_)))),
        "its length has wrapped: no reader accepts it as evidence"
    );
}

/// Another reader might accept as evidence what this project's reader rejects.
#[test]
fn lookalike_of_evidence_leaves_only_unchanged() {
    let mut fixture = SwitchFixture::new("evidence", Some((Carrier::Option, ContentFormat::Default)));
    let tagged = [&[2; 12][..], &[0x81, 0, 0, 1].repeat(3), &[0x52, 0x41], &[7; 60]].concat();
    assert_eq!(
        fixture.one(0, &tagged),
        tagged,
        "another switch's, behind three tags"
    );
    // The program's option in a packet whose length field is too small.
    let mut fixture = forging_fixture(Carrier::Option, ContentFormat::Classic, 0);
    let mut short = ipv6(17, b"a datagram");
    short[18..20].copy_from_slice(&200u16.to_be_bytes());
    assert_eq!(fixture.send(0, &short), []);
    assert_eq!(fixture.attester().settings().identity.forged_packets(), 1);
}

#[test]
fn evidence_ethertype_is_dropped_unless_received() {
    let mut fixture = SwitchFixture::new(
        "evidence",
        Some((Carrier::Clone { port: 9 }, ContentFormat::Default)),
    );
    assert_eq!(
        fixture.send(0, &request_frame(ProgramRequest::SendAsEvidence, 0, 0)),
        []
    );
    assert_eq!(fixture.attester().settings().identity.forged_packets(), 1);
    let mut upstream = SwitchFixture::new(
        "evidence",
        Some((Carrier::Clone { port: 9 }, ContentFormat::Default)),
    );
    let sent = upstream.send(0, &ipv6(17, b"a datagram"));
    let clone = &sent[1].1;
    assert!(is_clone(clone));
    assert_eq!(
        fixture.send(0, clone),
        [(1, clone.clone())],
        "unchanged, and without another clone"
    );
}

#[test]
fn program_writes_to_digest_fields_have_no_effect() {
    let mut fixture = SwitchFixture::new("evidence", None);
    let known = fixture.snapshot();
    fixture.one(0, &request_frame(ProgramRequest::WriteDigest, 0, 0xdead));
    assert_eq!(known, fixture.snapshot());
    assert_eq!(
        read_by_program(&fixture.one(0, &request_frame(ProgramRequest::Nothing, 0, 0))),
        shorts(&known)
    );
    // Without evidence, the fields are neither readable nor writable.
    let mut plain = SwitchFixture::plain("evidence");
    plain.one(0, &request_frame(ProgramRequest::WriteDigest, 0, 0xdead));
    assert_eq!(
        read_by_program(&plain.one(0, &request_frame(ProgramRequest::Nothing, 0, 0))),
        [[0; 16]; 3]
    );
}

/// A packet-in begins with a header of the program and carries no evidence.
#[test]
fn cpu_port_gets_no_evidence() {
    let mut fixture = SwitchFixture::new(
        "router",
        Some((Carrier::Clone { port: 9 }, ContentFormat::Default)),
    );
    let to_controller = fixture.action("RouterIngress.to_port", &[510]);
    fixture.insert(
        "RouterIngress.others",
        &[FieldMatch::Exact(vec![8, 6])],
        to_controller,
    );
    let arp = [&[2; 12][..], &[8, 6], &[0; 28]].concat();
    assert_eq!(fixture.send(0, &arp), [(510, arp.clone())]);
    // This header shifts part of a MAC address to the EtherType's position, where it can equal the evidence EtherType.
    for in_band in [None, Some((Carrier::Clone { port: 9 }, ContentFormat::Default))] {
        let mut fixture = SwitchFixture::new("evidence", in_band);
        assert_eq!(
            fixture
                .send(510, &request_frame(ProgramRequest::SendAsEvidence, 0, 0))
                .len(),
            1
        );
        assert_eq!(fixture.attester().settings().identity.forged_packets(), 0);
    }
}

/// Base frames, each changed in up to three places, truncated, or extended by up to three VLAN tags and extension headers.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let mut upstream = SwitchFixture::new("evidence", Some((Carrier::Option, ContentFormat::Default)));
    let mut cloning = SwitchFixture::new(
        "evidence",
        Some((Carrier::Clone { port: 9 }, ContentFormat::Default)),
    );
    let plain = ipv6(17, b"a datagram");
    let bases = vec![
        upstream.one(0, &plain),
        cloning.send(0, &plain)[1].1.clone(),
        // A hop-by-hop header with room, followed by a destination header, or with another header first.
        ipv6(0, &[&[17, 0, 1, 4, 0, 0, 0, 0][..], b"a datagram"].concat()),
        ipv6(
            0,
            &[&[60, 0, 1, 4, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0][..], b"more"].concat(),
        ),
        ipv6(
            43,
            &[&[0, 0, 0, 0, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0][..], b"more"].concat(),
        ),
        request_frame(ProgramRequest::SendAsEvidence, 0, 0),
        plain,
    ];
    let base = prop::sample::select(bases);
    let bends = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    let tags = 0..4usize;
    (base, bends, tags, 0..12usize, any::<bool>()).prop_map(|(mut frame, bends, tags, end, cut)| {
        for (at, byte) in bends {
            // Change headers more often than payload.
            let end = frame.len().min(80);
            let at = at.index(end);
            frame[at] = byte;
        }
        for _ in 0..tags {
            frame.splice(12..12, [0x81, 0, 0, 1]);
        }
        match cut {
            true => frame.truncate(frame.len() - end),
            false => frame.resize(frame.len() + end, 0),
        }
        frame
    })
}

proptest! {
    /// For any input, evidence in an output frame is true, or was already in the input.
    #[test]
    fn evidence_in_output_is_true_or_was_received(sent in prop::collection::vec(frames(), 1..8)) {
        for carrier in [Carrier::Option, Carrier::Clone { port: 9 }] {
            let genuine = SwitchFixture::new("evidence", Some((carrier, ContentFormat::Default)));
            for mut fixture in [
                genuine,
                forging_fixture(carrier, ContentFormat::Default, 0),
                forging_fixture(carrier, ContentFormat::Default, 0x0100_0000),
            ] {
                let mut appraiser = Appraiser::new(master());
                for frame in &sent {
                    for (port, left) in fixture.send(0, frame) {
                        if left == *frame {
                            continue;
                        }
                        let known = fixture.snapshot().digests;
                        for read in [read_option(&left), read_clone(&left)] {
                            if let Ok(Some(carried)) = read {
                                let appraised = appraiser.appraise(&carried, &known);
                                prop_assert!(appraised.is_ok(), "port {port}: {appraised:?}");
                            }
                        }
                        prop_assert!(port == 9 || !is_clone(&left));
                    }
                }
            }
        }
    }
}
