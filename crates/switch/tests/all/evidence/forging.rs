//! Aspect 5: programs that forge evidence.

use linewarden_evidence::inband::{Appraiser, is_clone, read_clone, read_option};
use linewarden_switch::evidence::Carrier;
use linewarden_switch::tables::FieldMatch;
use proptest::prelude::*;

use super::fixture::{
    ADDRESS, ProgramRequest, SwitchFixture, ipv6, master, read_by_program, request_frame, short_digests,
};

/// Switch whose program adds an option with false digests to every packet, with this head.
fn forging_fixture(carrier: Carrier, content_header: u128) -> SwitchFixture {
    let mut fixture = SwitchFixture::new("evidence", Some(carrier));
    let false_digests = fixture.action("EvidenceIngress.false_digests", &[u128::MAX, content_header]);
    fixture.insert(
        "EvidenceIngress.forge",
        &[FieldMatch::Exact(ADDRESS.to_vec())],
        false_digests,
    );
    fixture
}

#[test]
fn false_options_are_replaced() {
    for content_header in [0, 0x0100_0000] {
        let mut fixture = forging_fixture(Carrier::Option, content_header);
        let snapshot = fixture.snapshot();
        let mut appraiser = Appraiser::new(master());
        let first_output = fixture.send_one(0, &ipv6(17, b"a datagram"));
        // The program also overwrites the option of the previous switch.
        let second_output = fixture.send_one(0, &first_output);
        for frame in [&first_output, &second_output] {
            let evidence = read_option(frame).unwrap().unwrap();
            appraiser.appraise(&evidence, &snapshot.digests).unwrap();
        }
        assert_eq!(first_output.len(), second_output.len());
    }
}

#[test]
fn false_options_in_cloned_packets_are_dropped() {
    let mut fixture = forging_fixture(Carrier::Clone { port: 9 }, 0);
    assert_eq!(fixture.send(0, &ipv6(17, b"a datagram")), []);
    assert_eq!(fixture.attester().settings().identity.forged_packets(), 1);
}

/// A packet without space for a true option must not be sent with a false option.
#[test]
fn false_option_in_packet_without_space_is_dropped() {
    let mut fixture = forging_fixture(Carrier::Option, 0);
    let longest = ipv6(17, &vec![0; 65_535 - 104]);
    let sent = fixture.send(0, &longest);
    // The switch replaces the program's option in place, which needs no additional space.
    let fields = read_option(&sent[0].1).unwrap().unwrap().content.fields;
    assert_eq!(fields.as_slice(), short_digests(&fixture.snapshot()).concat());
    let too_long = ipv6(17, &vec![0; 65_535 - 103]);
    let sent = fixture.send(0, &too_long);
    assert!(
        sent.iter()
            .all(|(_, frame)| !matches!(read_option(frame), Ok(Some(_)))),
        "the length field has overflowed, so no reader accepts the option as evidence"
    );
}

/// Readers of other projects possibly accept evidence that the reader of this project rejects.
#[test]
fn lookalike_of_evidence_is_sent_only_unchanged() {
    let mut fixture = SwitchFixture::new("evidence", Some(Carrier::Option));
    let tagged = [&[2; 12][..], &[0x81, 0, 0, 1].repeat(3), &[0x52, 0x41], &[7; 60]].concat();
    assert_eq!(
        fixture.send_one(0, &tagged),
        tagged,
        "a received lookalike after three VLAN tags is sent unchanged"
    );
    // The program's option in a packet whose length field is too small.
    let mut fixture = forging_fixture(Carrier::Option, 0);
    let mut short = ipv6(17, b"a datagram");
    short[18..20].copy_from_slice(&200u16.to_be_bytes());
    assert_eq!(fixture.send(0, &short), []);
    assert_eq!(fixture.attester().settings().identity.forged_packets(), 1);
}

#[test]
fn evidence_ethertype_is_dropped_unless_received() {
    let mut fixture = SwitchFixture::new("evidence", Some(Carrier::Clone { port: 9 }));
    assert_eq!(
        fixture.send(0, &request_frame(ProgramRequest::SendAsEvidence, 0, 0)),
        []
    );
    assert_eq!(fixture.attester().settings().identity.forged_packets(), 1);
    let mut upstream = SwitchFixture::new("evidence", Some(Carrier::Clone { port: 9 }));
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
    let before = fixture.snapshot();
    fixture.send_one(0, &request_frame(ProgramRequest::WriteDigest, 0, 0xdead));
    assert_eq!(before, fixture.snapshot());
    assert_eq!(
        read_by_program(&fixture.send_one(0, &request_frame(ProgramRequest::Nothing, 0, 0))),
        short_digests(&before)
    );
    // Without evidence, the fields are neither readable nor writable.
    let mut plain = SwitchFixture::plain("evidence");
    plain.send_one(0, &request_frame(ProgramRequest::WriteDigest, 0, 0xdead));
    assert_eq!(
        read_by_program(&plain.send_one(0, &request_frame(ProgramRequest::Nothing, 0, 0))),
        [[0; 16]; 3]
    );
}

/// A packet-in begins with a header of the program and carries no evidence.
#[test]
fn cpu_port_gets_no_evidence() {
    let mut fixture = SwitchFixture::new("router", Some(Carrier::Clone { port: 9 }));
    let to_controller = fixture.action("RouterIngress.to_port", &[510]);
    fixture.insert(
        "RouterIngress.others",
        &[FieldMatch::Exact(vec![8, 6])],
        to_controller,
    );
    let arp = [&[2; 12][..], &[8, 6], &[0; 28]].concat();
    assert_eq!(fixture.send(0, &arp), [(510, arp.clone())]);
    // This header shifts part of a MAC address to the EtherType's position, where it can equal the evidence EtherType.
    for in_band in [None, Some(Carrier::Clone { port: 9 })] {
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

/// Base frames with up to three changed bytes and up to three additional VLAN tags, truncated or extended at the end.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let mut upstream = SwitchFixture::new("evidence", Some(Carrier::Option));
    let mut cloning = SwitchFixture::new("evidence", Some(Carrier::Clone { port: 9 }));
    let plain = ipv6(17, b"a datagram");
    let bases = vec![
        upstream.send_one(0, &plain),
        cloning.send(0, &plain)[1].1.clone(),
        // A hop-by-hop header with padding: alone, followed by a destination header, or after a routing header.
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
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    let tags = 0..4usize;
    (base, changes, tags, 0..12usize, any::<bool>()).prop_map(
        |(mut frame, changes, tags, tail_bytes, is_truncated)| {
            for (index, byte) in changes {
                // Change headers more often than payload.
                let position_limit = frame.len().min(80);
                let index = index.index(position_limit);
                frame[index] = byte;
            }
            for _ in 0..tags {
                frame.splice(12..12, [0x81, 0, 0, 1]);
            }
            match is_truncated {
                true => frame.truncate(frame.len() - tail_bytes),
                false => frame.resize(frame.len() + tail_bytes, 0),
            }
            frame
        },
    )
}

proptest! {
    /// For any input, evidence in an output frame is true, or was already in the input.
    #[test]
    fn evidence_in_output_is_true_or_was_received(sent in prop::collection::vec(frames(), 1..8)) {
        for carrier in [Carrier::Option, Carrier::Clone { port: 9 }] {
            let genuine = SwitchFixture::new("evidence", Some(carrier));
            for mut fixture in [
                genuine,
                forging_fixture(carrier, 0),
                forging_fixture(carrier, 0x0100_0000),
            ] {
                let mut appraiser = Appraiser::new(master());
                for frame in &sent {
                    for (port, output) in fixture.send(0, frame) {
                        if output == *frame {
                            continue;
                        }
                        let digests = fixture.snapshot().digests;
                        for read_result in [read_option(&output), read_clone(&output)] {
                            if let Ok(Some(evidence)) = read_result {
                                let appraisal = appraiser.appraise(&evidence, &digests);
                                prop_assert!(appraisal.is_ok(), "port {port}: {appraisal:?}");
                            }
                        }
                        prop_assert!(port == 9 || !is_clone(&output));
                    }
                }
            }
        }
    }
}
