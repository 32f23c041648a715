//! Statements, rescans, several workers, and exchanged programs.

use std::collections::BTreeSet;

use linewarden_evidence::encoding::Class;
use linewarden_evidence::inband::{Appraiser, Form, read_option};
use linewarden_evidence::keys::{Ed25519Signer, Signer as _};
use linewarden_evidence::statement::{Nonce, verify};
use linewarden_switch::evidence::{Carrier, EvidenceError};
use linewarden_switch::switch::{Settings, Switch};
use linewarden_switch::tables::HashSeed;

use super::bench::{Ask, Bench, NoRandom, Sent, ask, ipv6, master, program, route, settings};

fn signer() -> Ed25519Signer {
    Ed25519Signer::from_pem(&Ed25519Signer::generate_pem().unwrap()).unwrap()
}

#[test]
fn a_statement_is_of_the_state_and_proves_its_inventory() {
    let mut bench = Bench::new("evidence", None);
    bench.one(0, &ask(Ask::WriteWide, 1, 77));
    let mut signer = signer();
    let (statement, inventory) = bench
        .attester()
        .statement(Nonce([9; 32]), "test", Some(&BTreeSet::new()), &mut signer)
        .unwrap();
    let evidence = verify(&statement, &signer.public_key(), Nonce([9; 32])).unwrap();
    assert_eq!(*evidence.snapshot(), bench.snapshot());
    let wide = evidence.objects().iter().find(|object| {
        object.object.class == Class::Register && object.object.name == "EvidenceIngress.wide"
    });
    assert_eq!(wide.unwrap().entries, 1);
    assert!(
        !evidence
            .objects()
            .iter()
            .any(|object| object.object.name.ends_with("linewarden_evidence"))
    );
    inventory.unwrap().prove(&evidence).unwrap();
}

#[test]
fn volatile_arrays_stand_beside_the_digest() {
    let mut bench = Bench::plain("evidence");
    let mut asked = settings(None);
    asked.volatile.insert("EvidenceIngress.large".to_owned());
    bench.switch.attest(asked.clone(), None).unwrap();
    bench.slot.run(&bench.switch);
    let before = bench.snapshot();
    bench.one(0, &ask(Ask::WriteLarge, 1, 77));
    assert_eq!(before.digests, bench.snapshot().digests);
    asked.volatile.insert("EvidenceIngress.larger".to_owned());
    let refused = bench.switch.attest(asked, None).map(|_| ());
    assert!(matches!(refused, Err(EvidenceError::NoArray(name)) if name == "EvidenceIngress.larger"));
}

#[test]
fn what_was_set_before_measuring_counts_as_if_it_came_later() {
    let fill = |bench: &mut Bench| {
        let target = bench.action("RouterIngress.to_port", &[3]);
        bench.insert("RouterIngress.routes4", &[route(0x0a00_0000, 8)], target);
    };
    let mut later = Bench::new("router", None);
    fill(&mut later);
    let mut before = Bench::plain("router");
    fill(&mut before);
    before.switch.attest(settings(None), None).unwrap();
    assert_eq!(later.snapshot().digests, before.snapshot().digests);
    let mut written = Bench::plain("evidence");
    written.one(0, &ask(Ask::WriteWide, 1, 77));
    written.switch.attest(settings(None), None).unwrap();
    let mut measured = Bench::new("evidence", None);
    measured.one(0, &ask(Ask::WriteWide, 1, 77));
    assert_eq!(written.snapshot().digests, measured.snapshot().digests);
}

#[test]
fn a_rescan_finds_what_was_measured() {
    let mut bench = Bench::new("evidence", None);
    bench.one(0, &ask(Ask::WriteLarge, 1, 77));
    assert!(bench.switch.rescan().unwrap().unwrap().is_clean());
    assert_eq!(Bench::plain("evidence").switch.rescan().unwrap(), None);
}

#[test]
fn programs_are_exchanged_and_numbers_go_on() {
    let mut bench = Bench::new("evidence", Some((Carrier::Option, Form::Default)));
    let mut appraiser = Appraiser::new(master());
    let mut appraise = |frame: &[u8], digests| {
        let carried = read_option(frame).unwrap().unwrap();
        appraiser
            .appraise(&carried, digests)
            .map(|evidence| *evidence.snapshot())
    };
    let first = bench.snapshot();
    let frame = bench.one(0, &ipv6(17, b"a datagram"));
    assert_eq!(appraise(&frame, &first.digests), Ok(first));
    let asked = bench.attester().settings().clone();
    let mut next = Switch::new(&program("evidence"), Settings::default(), &HashSeed::new([2; 4])).unwrap();
    next.attest(asked, Some(&bench.switch)).unwrap();
    bench.slot.run(&next);
    bench.switch = next;
    let second = bench.snapshot();
    assert_eq!(first.digests, second.digests, "the same program with nothing set");
    assert!(first.sequence < second.sequence);
    let frame = bench.one(0, &ipv6(17, b"a datagram"));
    assert_eq!(
        appraise(&frame, &second.digests),
        Ok(second),
        "its counter goes on"
    );
}

/// Whoever asks for the digests folds what was written; packets carry it all the same.
#[test]
fn a_reader_of_the_digests_takes_no_news_from_workers() {
    let mut bench = Bench::new("evidence", Some((Carrier::Option, Form::Default)));
    let mut appraiser = Appraiser::new(master());
    bench.one(0, &ipv6(17, b"a datagram"));
    let small = bench.register("EvidenceIngress.small");
    for value in 1..4 {
        assert!(
            bench
                .switch
                .externs()
                .registers(small)
                .unwrap()
                .set_narrow(0, value)
        );
        let known = bench.snapshot();
        let carried = read_option(&bench.one(0, &ipv6(17, b"a datagram")))
            .unwrap()
            .unwrap();
        assert_eq!(
            *appraiser.appraise(&carried, &known.digests).unwrap().snapshot(),
            known
        );
    }
}

/// Workers write registers and send, the control plane changes tables: no packet carries a number twice, and equal numbers
/// of states are equal states.
#[test]
fn several_workers_make_no_two_packets_alike() {
    let mut bench = Bench::new("evidence", Some((Carrier::Clone { port: 9 }, Form::Default)));
    let slot = bench.slot.clone();
    let frames: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let working: Vec<_> = (0..4u32)
            .map(|thread| {
                let mut worker = slot.worker();
                scope.spawn(move || {
                    let mut sent = Sent::default();
                    for round in 0..200 {
                        worker.batch(1, |taking| {
                            let write = ask(Ask::WriteLarge, thread * 1000 + round, round + 1);
                            taking.packet(0, &write, &mut NoRandom, &mut sent);
                            taking.packet(0, &ipv6(17, b"a datagram"), &mut NoRandom, &mut sent);
                        });
                    }
                    sent.0
                })
            })
            .collect();
        for port in 0..200 {
            let target = bench.action("EvidenceIngress.false_digests", &[port, 0]);
            bench.change(
                "EvidenceIngress.forge",
                linewarden_switch::tables::TableOp::SetDefault(None),
            );
            let address = linewarden_switch::tables::FieldMatch::Exact(vec![port as u8; 16]);
            bench.insert("EvidenceIngress.forge", &[address], target);
        }
        let sent = working.into_iter().flat_map(|thread| thread.join().unwrap());
        sent.filter(|(port, _)| *port == 9)
            .map(|(_, frame)| frame)
            .collect()
    });
    let mut counters = std::collections::BTreeSet::new();
    let mut states = std::collections::BTreeMap::new();
    for frame in &frames {
        let carried = linewarden_evidence::inband::read_clone(frame).unwrap().unwrap();
        let linewarden_evidence::inband::Content::Default(tagged) = carried.content else {
            panic!("not the default content");
        };
        assert!(counters.insert(tagged.counter), "{:?} twice", tagged.counter);
        let fields = states.entry(tagged.sequence).or_insert(tagged.fields);
        assert_eq!(*fields, tagged.fields, "two states with {:?}", tagged.sequence);
    }
    assert_eq!(frames.len(), 4 * 200 * 2);
    assert!(bench.switch.rescan().unwrap().unwrap().is_clean());
}
