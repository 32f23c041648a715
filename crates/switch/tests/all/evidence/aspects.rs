//! The six validated aspects, numbered as in the paper.

use linewarden_evidence::inband::{Appraiser, read_clone, read_option, resembles_evidence};
use linewarden_switch::evidence::Carrier;
use linewarden_switch::forwarding::{CloneSession, ForwardingOp, Replica};
use linewarden_switch::tables::{TableChange, TableOp};
use proptest::prelude::*;

use super::fixture::{
    ProgramRequest, SwitchFixture, ipv6, master, read_by_program, request_frame, route, short_digests,
};

const OPTION_BYTES: usize = 104;

/// 1: a digest is recomputed when the measured state changes, and only then.
#[test]
fn every_state_change_changes_its_digest() {
    let mut fixture = SwitchFixture::new("router", None);
    let mut snapshots = vec![fixture.snapshot()];
    let forward = fixture.action("RouterIngress.forward4", &[3, 0x0000_5e00_0001]);
    let entry = fixture.insert("RouterIngress.routes4", &[route(0x0a00_0000, 8)], forward.clone());
    snapshots.push(fixture.snapshot());
    let to_port = fixture.action("RouterIngress.to_port", &[3]);
    fixture.change("RouterIngress.routes4", TableOp::Modify(entry, to_port.clone()));
    snapshots.push(fixture.snapshot());
    fixture.change("RouterIngress.routes4", TableOp::SetDefault(Some(to_port)));
    snapshots.push(fixture.snapshot());
    let replicas = [Replica { rid: 1, port: 2 }];
    fixture
        .switch
        .change(ForwardingOp::Group(7, Some(replicas.as_slice().into())))
        .unwrap();
    snapshots.push(fixture.snapshot());
    let session = CloneSession {
        port: Some(4),
        ..CloneSession::default()
    };
    fixture
        .switch
        .change(ForwardingOp::CloneSession(9, Some(session)))
        .unwrap();
    snapshots.push(fixture.snapshot());
    for (index, snapshot) in snapshots.iter().enumerate() {
        for later in &snapshots[index + 1..] {
            assert_ne!(snapshot.digests.tables, later.digests.tables);
            assert!(snapshot.sequence < later.sequence);
        }
        assert_eq!(snapshot.digests.program, snapshots[0].digests.program);
        assert_eq!(snapshot.digests.registers, snapshots[0].digests.registers);
    }
    assert_eq!(
        fixture.snapshot(),
        snapshots[5],
        "equal without a change of the state"
    );
}

/// 1, for registers: packets and the control plane write them.
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
        fixture.send_one(0, &request_frame(request, index, 0xabcd));
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
        fixture.send_one(0, &request_frame(request, index, 0));
    }
    fixture.switch.externs().registers(large).unwrap().reset();
    assert_eq!(
        before.digests,
        fixture.snapshot().digests,
        "all registers are zero as before"
    );
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
        let mut direct = SwitchFixture::new("router", None);
        fill(&mut direct, &mut first.iter());
        // This fixture first has the entries of `second`, and then gets the entries of `first` in reverse order.
        let mut reordered = SwitchFixture::plain("router");
        fill(&mut reordered, &mut second.iter());
        reordered.switch.start_attestation(super::fixture::settings(None), None).unwrap();
        let with_second_routes = reordered.snapshot();
        let handles: Vec<_> = {
            let forwarding = reordered.switch.forwarding();
            let table = forwarding.tables().table(reordered.table("RouterIngress.routes4")).unwrap();
            table.iter().map(|entry| entry.handle()).collect()
        };
        for handle in handles {
            let deleted = reordered.change("RouterIngress.routes4", TableOp::Delete(handle));
            prop_assert!(matches!(deleted, TableChange::Deleted(_)));
        }
        fill(&mut reordered, &mut first.iter().rev());
        prop_assert_eq!(direct.snapshot().digests, reordered.snapshot().digests);
        prop_assert_eq!(first == second, direct.snapshot().digests == with_second_routes.digests);
    }

    /// 6: without its evidence option, a packet is byte for byte the packet of a switch without evidence.
    #[test]
    fn evidence_leaves_packets_intact(
        payload in prop::collection::vec(any::<u8>(), 0..1400),
        next_header in prop_oneof![Just(17u8), Just(58), Just(59), any::<u8>().prop_filter("an option that may be malformed", |next| *next != 0)],
    ) {
        let frame = ipv6(next_header, &payload);
        let plain = SwitchFixture::plain("evidence").send_one(0, &frame);
        prop_assert_eq!(&plain, &frame);
        let stamped = SwitchFixture::new("evidence", Some(Carrier::Option)).send_one(0, &frame);
        prop_assert_eq!(stamped.len(), frame.len() + OPTION_BYTES);
        prop_assert!(resembles_evidence(&stamped) && !resembles_evidence(&frame));
        let mut without_option = stamped.clone();
        without_option.drain(54..54 + OPTION_BYTES);
        without_option[18..20].copy_from_slice(&frame[18..20]);
        prop_assert_eq!(stamped[20], 0, "a hop-by-hop header follows");
        prop_assert_eq!(stamped[54], next_header);
        without_option[20] = next_header;
        prop_assert_eq!(without_option, plain);
        let frames_sent = SwitchFixture::new("evidence", Some(Carrier::Clone { port: 9 })).send(0, &frame);
        prop_assert_eq!(&frames_sent[0], &(1, frame));
        prop_assert_eq!((frames_sent[1].0, frames_sent.len()), (9, 2));
        prop_assert!(resembles_evidence(&frames_sent[1].1));
    }
}

/// 3: control plane and program read the same digests.
#[test]
fn control_plane_and_program_read_the_digests() {
    let mut fixture = SwitchFixture::new("evidence", None);
    let before = short_digests(&fixture.snapshot());
    assert_eq!(
        read_by_program(&fixture.send_one(0, &request_frame(ProgramRequest::WriteLarge, 5, 6))),
        before
    );
    let target = fixture.action("NoAction", &[]);
    let address = linewarden_switch::tables::FieldMatch::Exact(super::fixture::ADDRESS.to_vec());
    fixture.insert("EvidenceIngress.forge", &[address], target);
    let after = short_digests(&fixture.snapshot());
    assert_ne!((before[0], before[1]), (after[0], after[1]));
    assert_eq!(
        read_by_program(&fixture.send_one(0, &request_frame(ProgramRequest::Nothing, 0, 0))),
        after
    );
}

/// 4: packets carry evidence of the state in which the switch sent them.
#[test]
fn packets_carry_evidence_of_the_processing_state() {
    for carrier in [Carrier::Option, Carrier::Clone { port: 9 }] {
        let mut fixture = SwitchFixture::new("evidence", Some(carrier));
        let mut appraiser = Appraiser::new(master());
        let mut counters = Vec::new();
        for round in 0..20 {
            let snapshot = fixture.snapshot();
            let sent = fixture.send(0, &ipv6(17, b"a datagram"));
            let received = match carrier {
                Carrier::Option => read_option(&sent[0].1),
                Carrier::Clone { .. } => read_clone(&sent[1].1),
            };
            let received = received.unwrap().unwrap();
            let evidence = appraiser.appraise(&received, &snapshot.digests).unwrap();
            assert_eq!(*evidence.snapshot(), snapshot);
            counters.push(evidence.counter());
            assert!(
                appraiser.appraise(&received, &snapshot.digests).is_err(),
                "a replay is rejected"
            );
            fixture.send(
                0,
                &request_frame(ProgramRequest::WriteSmall, round % 16, round + 1),
            );
            assert!(
                appraiser
                    .appraise(&received, &fixture.snapshot().digests)
                    .is_err(),
                "evidence of an earlier state is rejected"
            );
        }
        assert!(counters.is_sorted_by(|a, b| a < b));
    }
}

/// Packets other than IPv6 cannot carry an option, and are sent unchanged.
#[test]
fn packets_without_space_for_evidence_are_unchanged() {
    let mut fixture = SwitchFixture::new("evidence", Some(Carrier::Option));
    let arp = [&[2; 12][..], &[8, 6], &[0; 28]].concat();
    assert_eq!(fixture.send_one(0, &arp), arp);
    assert_eq!(
        fixture.send_one(0, b"short"),
        b"short",
        "after a parser error, the whole packet is payload"
    );
}
