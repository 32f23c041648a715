//! The six aspects, as the paper numbers them.

use linewarden_evidence::inband::{
    Appraiser, Content, Form, Route, read_clone, read_option, resembles_evidence,
};
use linewarden_switch::evidence::Carrier;
use linewarden_switch::forwarding::{ForwardingOp, MirrorSession, Replica};
use linewarden_switch::tables::{TableChange, TableOp};
use proptest::prelude::*;

use super::bench::{Ask, Bench, ask, ipv6, master, read_by_program, route, shorts};

const OPTION_BYTES: usize = 104;

/// 1: digests are made anew when what they are of changes, and only then.
#[test]
fn every_change_of_the_state_shows_in_its_digest() {
    let mut bench = Bench::new("router", None);
    let mut seen = vec![bench.snapshot()];
    let forward = bench.action("RouterIngress.forward4", &[3, 0x0000_5e00_0001]);
    let entry = bench.insert("RouterIngress.routes4", &[route(0x0a00_0000, 8)], forward.clone());
    seen.push(bench.snapshot());
    let other = bench.action("RouterIngress.to_port", &[3]);
    bench.change("RouterIngress.routes4", TableOp::Modify(entry, other.clone()));
    seen.push(bench.snapshot());
    bench.change("RouterIngress.routes4", TableOp::SetDefault(Some(other)));
    seen.push(bench.snapshot());
    let replicas = [Replica { rid: 1, port: 2 }];
    bench
        .switch
        .change(ForwardingOp::Group(7, Some(replicas.as_slice().into())))
        .unwrap();
    seen.push(bench.snapshot());
    let mirror = MirrorSession {
        port: Some(4),
        ..MirrorSession::default()
    };
    bench
        .switch
        .change(ForwardingOp::Mirror(9, Some(mirror)))
        .unwrap();
    seen.push(bench.snapshot());
    for (at, snapshot) in seen.iter().enumerate() {
        for other in &seen[at + 1..] {
            assert_ne!(snapshot.digests.tables, other.digests.tables);
            assert!(snapshot.sequence < other.sequence);
        }
        assert_eq!(snapshot.digests.program, seen[0].digests.program);
        assert_eq!(snapshot.digests.registers, seen[0].digests.registers);
    }
    assert_eq!(bench.snapshot(), seen[5], "nothing has changed since");
}

/// 1, for registers: whoever writes them.
#[test]
fn a_packets_register_write_shows_at_once() {
    let mut bench = Bench::new("evidence", None);
    let before = bench.snapshot();
    for (what, index) in [
        (Ask::WriteSmall, 3),
        (Ask::WriteLarge, 65_535),
        (Ask::WriteWide, 1),
    ] {
        let before = bench.snapshot();
        bench.one(0, &ask(what, index, 0xabcd));
        let after = bench.snapshot();
        assert_ne!(before.digests.registers, after.digests.registers);
        assert_eq!(before.digests.tables, after.digests.tables);
    }
    let large = bench.register("EvidenceIngress.large");
    let by_packets = bench.snapshot();
    bench.switch.externs().registers(large).unwrap().set_narrow(9, 1);
    assert_ne!(by_packets.digests.registers, bench.snapshot().digests.registers);
    for (what, index) in [
        (Ask::WriteSmall, 3),
        (Ask::WriteLarge, 65_535),
        (Ask::WriteWide, 1),
    ] {
        bench.one(0, &ask(what, index, 0));
    }
    bench.switch.externs().registers(large).unwrap().reset();
    assert_eq!(before.digests, bench.snapshot().digests, "all zero again");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// 2: one state, one digest, whatever the way to it; another state, another digest.
    #[test]
    fn digests_are_of_states_and_not_of_histories(
        first in prop::collection::btree_map(0u32..64, 1u128..4, 0..20),
        second in prop::collection::btree_map(0u32..64, 1u128..4, 0..20),
    ) {
        let fill = |bench: &mut Bench, routes: &mut dyn Iterator<Item = (&u32, &u128)>| {
            for (address, port) in routes {
                let target = bench.action("RouterIngress.to_port", &[*port]);
                bench.insert("RouterIngress.routes4", &[route(address << 8, 24)], target);
            }
        };
        let mut forth = Bench::new("router", None);
        fill(&mut forth, &mut first.iter());
        // Backwards, and after entries that were there and went.
        let mut back = Bench::plain("router");
        fill(&mut back, &mut second.iter());
        back.switch.attest(super::bench::settings(None), None).unwrap();
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

    /// 6: with its option taken out, a packet is what it would be without evidence, byte for byte.
    #[test]
    fn evidence_corrupts_nothing(
        payload in prop::collection::vec(any::<u8>(), 0..1400),
        next_header in prop_oneof![Just(17u8), Just(58), Just(59), any::<u8>().prop_filter("an option that may be malformed", |next| *next != 0)],
        form in prop_oneof![Just(Form::Classic), Just(Form::Default)],
    ) {
        let frame = ipv6(next_header, &payload);
        let plain = Bench::plain("evidence").one(0, &frame);
        prop_assert_eq!(&plain, &frame);
        let stamped = Bench::new("evidence", Some((Carrier::Option, form))).one(0, &frame);
        prop_assert_eq!(stamped.len(), frame.len() + OPTION_BYTES);
        prop_assert!(resembles_evidence(&stamped) && !resembles_evidence(&frame));
        let mut taken_out = stamped.clone();
        taken_out.drain(54..54 + OPTION_BYTES);
        taken_out[18..20].copy_from_slice(&frame[18..20]);
        prop_assert_eq!(stamped[20], 0, "a hop-by-hop header follows");
        prop_assert_eq!(stamped[54], next_header);
        taken_out[20] = next_header;
        prop_assert_eq!(taken_out, plain);
        let cloning = Bench::new("evidence", Some((Carrier::Clone { port: 9 }, form))).send(0, &frame);
        prop_assert_eq!(&cloning[0], &(1, frame));
        prop_assert_eq!((cloning[1].0, cloning.len()), (9, 2));
        prop_assert!(resembles_evidence(&cloning[1].1));
    }
}

/// 3: control plane and program read the same.
#[test]
fn control_plane_and_program_read_the_digests() {
    let mut bench = Bench::new("evidence", None);
    let before = shorts(&bench.snapshot());
    assert_eq!(
        read_by_program(&bench.one(0, &ask(Ask::WriteLarge, 5, 6))),
        before
    );
    let target = bench.action("NoAction", &[]);
    let address = linewarden_switch::tables::FieldMatch::Exact(super::bench::ADDRESS.to_vec());
    bench.insert("EvidenceIngress.forge", &[address], target);
    let after = shorts(&bench.snapshot());
    assert_ne!((before[0], before[1]), (after[0], after[1]));
    assert_eq!(read_by_program(&bench.one(0, &ask(Ask::Nothing, 0, 0))), after);
}

/// 4: what packets carry is the state in which the switch has sent them.
#[test]
fn packets_carry_evidence_of_the_state_that_handled_them() {
    for carrier in [Carrier::Option, Carrier::Clone { port: 9 }] {
        let mut bench = Bench::new("evidence", Some((carrier, Form::Default)));
        let mut appraiser = Appraiser::new(master());
        let mut counters = Vec::new();
        for round in 0..20 {
            let known = bench.snapshot();
            let sent = bench.send(0, &ipv6(17, b"a datagram"));
            let carried = match carrier {
                Carrier::Option => read_option(&sent[0].1),
                Carrier::Clone { .. } => read_clone(&sent[1].1),
            };
            let carried = carried.unwrap().unwrap();
            let evidence = appraiser.appraise(&carried, &known.digests).unwrap();
            assert_eq!(*evidence.snapshot(), known);
            counters.push(evidence.counter());
            assert!(appraiser.appraise(&carried, &known.digests).is_err(), "a replay");
            bench.send(0, &ask(Ask::WriteSmall, round % 16, round + 1));
            assert!(
                appraiser.appraise(&carried, &bench.snapshot().digests).is_err(),
                "another state"
            );
        }
        assert!(counters.is_sorted_by(|a, b| a < b));
    }
}

/// 4, in the published form, with the route over several switches.
#[test]
fn the_classic_content_has_the_route() {
    let classic = Some((Carrier::Option, Form::Classic));
    let (mut first, mut second) = (Bench::new("evidence", classic), Bench::new("evidence", classic));
    second.one(0, &ask(Ask::WriteSmall, 0, 1));
    let between = first.one(0, &ipv6(17, b"a datagram"));
    let behind = second.one(0, &between);
    assert_eq!(between.len(), behind.len(), "the option is exchanged");
    let content = |frame: &[u8]| read_option(frame).unwrap().unwrap().content;
    let (one, two) = (first.snapshot(), second.snapshot());
    let expected = |last: &_, passed: &[_]| Content::Classic {
        fields: shorts(last).concat().try_into().unwrap(),
        route: Some(Route::over(passed)),
    };
    assert_eq!(content(&between), expected(&one, &[one]));
    assert_eq!(content(&behind), expected(&two, &[one, two]));
}

/// What is no IPv6 has no room for an option, and goes to the controller as it is.
#[test]
fn what_cannot_carry_evidence_leaves_as_it_is() {
    let mut bench = Bench::new("evidence", Some((Carrier::Option, Form::Default)));
    let arp = [&[2; 12][..], &[8, 6], &[0; 28]].concat();
    assert_eq!(bench.one(0, &arp), arp);
    assert_eq!(
        bench.one(0, b"short"),
        b"short",
        "the parser's error path: all of it is payload"
    );
}
