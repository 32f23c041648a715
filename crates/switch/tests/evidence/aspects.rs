//! The six validated aspects, numbered as in the paper.

use linewarden_evidence::inband::{
    Appraiser, Content, ContentFormat, Route, read_clone, read_option, resembles_evidence,
};
use linewarden_switch::evidence::Carrier;
use linewarden_switch::forwarding::{ForwardingOp, MirrorSession, Replica};
use linewarden_switch::tables::{TableChange, TableOp};
use proptest::prelude::*;

use super::fixture::{
    ProgramRequest, SwitchFixture, ipv6, master, read_by_program, request_frame, route, shorts,
};

const OPTION_BYTES: usize = 104;

/// 1: a digest is recomputed when the measured state changes, and only then.
#[test]
fn every_state_change_changes_its_digest() {
    let mut fixture = SwitchFixture::new("router", None);
    let mut seen = vec![fixture.snapshot()];
    let forward = fixture.action("RouterIngress.forward4", &[3, 0x0000_5e00_0001]);
    let entry = fixture.insert("RouterIngress.routes4", &[route(0x0a00_0000, 8)], forward.clone());
    seen.push(fixture.snapshot());
    let other = fixture.action("RouterIngress.to_port", &[3]);
    fixture.change("RouterIngress.routes4", TableOp::Modify(entry, other.clone()));
    seen.push(fixture.snapshot());
    fixture.change("RouterIngress.routes4", TableOp::SetDefault(Some(other)));
    seen.push(fixture.snapshot());
    let replicas = [Replica { rid: 1, port: 2 }];
    fixture
        .switch
        .change(ForwardingOp::Group(7, Some(replicas.as_slice().into())))
        .unwrap();
    seen.push(fixture.snapshot());
    let mirror = MirrorSession {
        port: Some(4),
        ..MirrorSession::default()
    };
    fixture
        .switch
        .change(ForwardingOp::Mirror(9, Some(mirror)))
        .unwrap();
    seen.push(fixture.snapshot());
    for (at, snapshot) in seen.iter().enumerate() {
        for other in &seen[at + 1..] {
            assert_ne!(snapshot.digests.tables, other.digests.tables);
            assert!(snapshot.sequence < other.sequence);
        }
        assert_eq!(snapshot.digests.program, seen[0].digests.program);
        assert_eq!(snapshot.digests.registers, seen[0].digests.registers);
    }
    assert_eq!(fixture.snapshot(), seen[5], "nothing has changed since");
}

/// 1, for registers, written by packets or by the control plane.
#[test]
fn register_write_by_packet_changes_digest_at_once() {
    let mut fixture = SwitchFixture::new("evidence", None);
    let before = fixture.snapshot();
    for (request, index) in [
        (ProgramRequest::WriteSmall, 3),
        (ProgramRequest::WriteLarge, 65_535),
        (ProgramRequest::WriteWide, 1),
    ] {
        let before = fixture.snapshot();
        fixture.one(0, &request_frame(request, index, 0xabcd));
        let after = fixture.snapshot();
        assert_ne!(before.digests.registers, after.digests.registers);
        assert_eq!(before.digests.tables, after.digests.tables);
    }
    let large = fixture.register("EvidenceIngress.large");
    let by_packets = fixture.snapshot();
    fixture
        .switch
        .externs()
        .registers(large)
        .unwrap()
        .set_narrow(9, 1);
    assert_ne!(by_packets.digests.registers, fixture.snapshot().digests.registers);
    for (request, index) in [
        (ProgramRequest::WriteSmall, 3),
        (ProgramRequest::WriteLarge, 65_535),
        (ProgramRequest::WriteWide, 1),
    ] {
        fixture.one(0, &request_frame(request, index, 0));
    }
    fixture.switch.externs().registers(large).unwrap().reset();
    assert_eq!(before.digests, fixture.snapshot().digests, "all zero again");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// 2: equal states have equal digests for every history; different states have different digests.
    #[test]
    fn digests_depend_on_state_not_on_history(
        first in prop::collection::btree_map(0u32..64, 1u128..4, 0..20),
        second in prop::collection::btree_map(0u32..64, 1u128..4, 0..20),
    ) {
        let fill = |fixture: &mut SwitchFixture, routes: &mut dyn Iterator<Item = (&u32, &u128)>| {
            for (address, port) in routes {
                let target = fixture.action("RouterIngress.to_port", &[*port]);
                fixture.insert("RouterIngress.routes4", &[route(address << 8, 24)], target);
            }
        };
        let mut forth = SwitchFixture::new("router", None);
        fill(&mut forth, &mut first.iter());
        // In reverse order, and after deleted entries.
        let mut back = SwitchFixture::plain("router");
        fill(&mut back, &mut second.iter());
        back.switch.start_attestation(super::fixture::settings(None), None).unwrap();
        let other = back.snapshot();
        let handles: Vec<_> = {
            let forwarding = back.switch.forwarding();
            let table = forwarding.tables().table(back.table("RouterIngress.routes4")).unwrap();
            table.iter().map(|entry| entry.handle()).collect()
        };
        for handle in handles {
            let deleted = back.change("RouterIngress.routes4", TableOp::Delete(handle));
            prop_assert!(matches!(deleted, TableChange::Deleted(_)));
        }
        fill(&mut back, &mut first.iter().rev());
        prop_assert_eq!(forth.snapshot().digests, back.snapshot().digests);
        prop_assert_eq!(first == second, forth.snapshot().digests == other.digests);
    }

    /// 6: without its evidence option, a packet is byte for byte the packet of a switch without evidence.
    #[test]
    fn evidence_leaves_packets_intact(
        payload in prop::collection::vec(any::<u8>(), 0..1400),
        next_header in prop_oneof![Just(17u8), Just(58), Just(59), any::<u8>().prop_filter("an option that may be malformed", |next| *next != 0)],
        form in prop_oneof![Just(ContentFormat::Classic), Just(ContentFormat::Default)],
    ) {
        let frame = ipv6(next_header, &payload);
        let plain = SwitchFixture::plain("evidence").one(0, &frame);
        prop_assert_eq!(&plain, &frame);
        let stamped = SwitchFixture::new("evidence", Some((Carrier::Option, form))).one(0, &frame);
        prop_assert_eq!(stamped.len(), frame.len() + OPTION_BYTES);
        prop_assert!(resembles_evidence(&stamped) && !resembles_evidence(&frame));
        let mut taken_out = stamped.clone();
        taken_out.drain(54..54 + OPTION_BYTES);
        taken_out[18..20].copy_from_slice(&frame[18..20]);
        prop_assert_eq!(stamped[20], 0, "a hop-by-hop header follows");
        prop_assert_eq!(stamped[54], next_header);
        taken_out[20] = next_header;
        prop_assert_eq!(taken_out, plain);
        let cloning = SwitchFixture::new("evidence", Some((Carrier::Clone { port: 9 }, form))).send(0, &frame);
        prop_assert_eq!(&cloning[0], &(1, frame));
        prop_assert_eq!((cloning[1].0, cloning.len()), (9, 2));
        prop_assert!(resembles_evidence(&cloning[1].1));
    }
}

/// 3: control plane and program read the same digests.
#[test]
fn control_plane_and_program_read_the_digests() {
    let mut fixture = SwitchFixture::new("evidence", None);
    let before = shorts(&fixture.snapshot());
    assert_eq!(
        read_by_program(&fixture.one(0, &request_frame(ProgramRequest::WriteLarge, 5, 6))),
        before
    );
    let target = fixture.action("NoAction", &[]);
    let address = linewarden_switch::tables::FieldMatch::Exact(super::fixture::ADDRESS.to_vec());
    fixture.insert("EvidenceIngress.forge", &[address], target);
    let after = shorts(&fixture.snapshot());
    assert_ne!((before[0], before[1]), (after[0], after[1]));
    assert_eq!(
        read_by_program(&fixture.one(0, &request_frame(ProgramRequest::Nothing, 0, 0))),
        after
    );
}

/// 4: packets carry the state in which the switch sent them.
#[test]
fn packets_carry_evidence_of_the_processing_state() {
    for carrier in [Carrier::Option, Carrier::Clone { port: 9 }] {
        let mut fixture = SwitchFixture::new("evidence", Some((carrier, ContentFormat::Default)));
        let mut appraiser = Appraiser::new(master());
        let mut counters = Vec::new();
        for round in 0..20 {
            let known = fixture.snapshot();
            let sent = fixture.send(0, &ipv6(17, b"a datagram"));
            let carried = match carrier {
                Carrier::Option => read_option(&sent[0].1),
                Carrier::Clone { .. } => read_clone(&sent[1].1),
            };
            let carried = carried.unwrap().unwrap();
            let evidence = appraiser.appraise(&carried, &known.digests).unwrap();
            assert_eq!(*evidence.snapshot(), known);
            counters.push(evidence.counter());
            assert!(appraiser.appraise(&carried, &known.digests).is_err(), "a replay");
            fixture.send(
                0,
                &request_frame(ProgramRequest::WriteSmall, round % 16, round + 1),
            );
            assert!(
                appraiser.appraise(&carried, &fixture.snapshot().digests).is_err(),
                "another state"
            );
        }
        assert!(counters.is_sorted_by(|a, b| a < b));
    }
}

/// 4, in the published format, on a path across several switches.
#[test]
fn classic_content_has_the_path() {
    let classic = Some((Carrier::Option, ContentFormat::Classic));
    let (mut first, mut second) = (
        SwitchFixture::new("evidence", classic),
        SwitchFixture::new("evidence", classic),
    );
    second.one(0, &request_frame(ProgramRequest::WriteSmall, 0, 1));
    let between = first.one(0, &ipv6(17, b"a datagram"));
    let behind = second.one(0, &between);
    assert_eq!(between.len(), behind.len(), "the option is exchanged");
    let content = |frame: &[u8]| read_option(frame).unwrap().unwrap().content;
    let (one, two) = (first.snapshot(), second.snapshot());
    let expected = |last: &_, passed: &[_]| Content::Classic {
        fields: shorts(last).concat().try_into().unwrap(),
        route: Some(Route::of_switches(passed)),
    };
    assert_eq!(content(&between), expected(&one, &[one]));
    assert_eq!(content(&behind), expected(&two, &[one, two]));
}

/// Packets other than IPv6 cannot carry an option, and reach the controller unchanged.
#[test]
fn packets_without_space_for_evidence_are_unchanged() {
    let mut fixture = SwitchFixture::new("evidence", Some((Carrier::Option, ContentFormat::Default)));
    let arp = [&[2; 12][..], &[8, 6], &[0; 28]].concat();
    assert_eq!(fixture.one(0, &arp), arp);
    assert_eq!(
        fixture.one(0, b"short"),
        b"short",
        "the parser's error path: all of it is payload"
    );
}
