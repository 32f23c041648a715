//! Statements, rescans, several workers, and replaced programs.

use std::collections::BTreeSet;

use linewarden_evidence::encoding::Class;
use linewarden_evidence::inband::{Appraiser, read_option};
use linewarden_evidence::keys::{Ed25519Signer, Signer as _};
use linewarden_evidence::statement::{Nonce, verify};
use linewarden_switch::evidence::{Carrier, EvidenceError};
use linewarden_switch::switch::{Settings, Switch};
use linewarden_switch::tables::HashSeed;

use super::fixture::{
    NoRandom, ProgramRequest, RecordingSink, SwitchFixture, ipv6, master, program, request_frame, route,
    settings,
};

fn signer() -> Ed25519Signer {
    Ed25519Signer::from_pem(&Ed25519Signer::generate_pem().unwrap()).unwrap()
}

#[test]
fn statement_measures_state_and_proves_inventory() {
    let mut fixture = SwitchFixture::new("evidence", None);
    fixture.send_one(0, &request_frame(ProgramRequest::WriteWide, 1, 77));
    let mut signer = signer();
    let (statement, inventory) = fixture
        .attester()
        .statement(Nonce([9; 32]), "test", Some(&BTreeSet::new()), &mut signer)
        .unwrap();
    let evidence = verify(&statement, &signer.public_key(), Nonce([9; 32])).unwrap();
    assert_eq!(*evidence.snapshot(), fixture.snapshot());
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
fn volatile_arrays_are_excluded_from_digest() {
    let mut fixture = SwitchFixture::plain("evidence");
    let mut volatile_settings = settings(None);
    volatile_settings
        .volatile_registers
        .insert("EvidenceIngress.large".to_owned());
    fixture
        .switch
        .start_attestation(volatile_settings.clone(), None)
        .unwrap();
    fixture.slot.run(&fixture.switch);
    let before = fixture.snapshot();
    fixture.send_one(0, &request_frame(ProgramRequest::WriteLarge, 1, 77));
    assert_eq!(before.digests, fixture.snapshot().digests);
    volatile_settings
        .volatile_registers
        .insert("EvidenceIngress.larger".to_owned());
    let result = fixture
        .switch
        .start_attestation(volatile_settings, None)
        .map(|_| ());
    assert!(matches!(result, Err(EvidenceError::UnknownRegister(name)) if name == "EvidenceIngress.larger"));
}

#[test]
fn state_set_before_measuring_is_measured() {
    let fill = |fixture: &mut SwitchFixture| {
        let target = fixture.action("RouterIngress.to_port", &[3]);
        fixture.insert("RouterIngress.routes4", &[route(0x0a00_0000, 8)], target);
    };
    let mut filled_after_start = SwitchFixture::new("router", None);
    fill(&mut filled_after_start);
    let mut filled_before_start = SwitchFixture::plain("router");
    fill(&mut filled_before_start);
    filled_before_start
        .switch
        .start_attestation(settings(None), None)
        .unwrap();
    assert_eq!(
        filled_after_start.snapshot().digests,
        filled_before_start.snapshot().digests
    );
    let mut written_before_start = SwitchFixture::plain("evidence");
    written_before_start.send_one(0, &request_frame(ProgramRequest::WriteWide, 1, 77));
    written_before_start
        .switch
        .start_attestation(settings(None), None)
        .unwrap();
    let mut written_after_start = SwitchFixture::new("evidence", None);
    written_after_start.send_one(0, &request_frame(ProgramRequest::WriteWide, 1, 77));
    assert_eq!(
        written_before_start.snapshot().digests,
        written_after_start.snapshot().digests
    );
}

#[test]
fn rescan_matches_measured_state() {
    let mut fixture = SwitchFixture::new("evidence", None);
    fixture.send_one(0, &request_frame(ProgramRequest::WriteLarge, 1, 77));
    assert!(fixture.switch.rescan().unwrap().unwrap().is_clean());
    assert_eq!(SwitchFixture::plain("evidence").switch.rescan().unwrap(), None);
}

#[test]
fn sequence_numbers_continue_across_programs() {
    let mut fixture = SwitchFixture::new("evidence", Some(Carrier::Option));
    let mut appraiser = Appraiser::new(master());
    let mut appraise = |frame: &[u8], digests| {
        let evidence = read_option(frame).unwrap().unwrap();
        appraiser
            .appraise(&evidence, digests)
            .map(|appraised| *appraised.snapshot())
    };
    let first = fixture.snapshot();
    let frame = fixture.send_one(0, &ipv6(17, b"a datagram"));
    assert_eq!(appraise(&frame, &first.digests), Ok(first));
    let same_settings = fixture.attester().settings().clone();
    let mut next_switch =
        Switch::new(&program("evidence"), Settings::default(), &HashSeed::new([2; 4])).unwrap();
    next_switch
        .start_attestation(same_settings, Some(&fixture.switch))
        .unwrap();
    fixture.slot.run(&next_switch);
    fixture.switch = next_switch;
    let second = fixture.snapshot();
    assert_eq!(
        first.digests, second.digests,
        "the program and its state are the same"
    );
    assert!(first.sequence < second.sequence);
    let frame = fixture.send_one(0, &ipv6(17, b"a datagram"));
    assert_eq!(
        appraise(&frame, &second.digests),
        Ok(second),
        "the counter of the evidence continues"
    );
}

/// A read of the digests includes pending register writes, and later packets still carry evidence of these writes.
#[test]
fn reading_digests_loses_no_worker_changes() {
    let mut fixture = SwitchFixture::new("evidence", Some(Carrier::Option));
    let mut appraiser = Appraiser::new(master());
    fixture.send_one(0, &ipv6(17, b"a datagram"));
    let small = fixture.register("EvidenceIngress.small");
    for value in 1..4 {
        assert!(
            fixture
                .switch
                .externs()
                .registers(small)
                .unwrap()
                .set_narrow(0, value)
        );
        let snapshot = fixture.snapshot();
        let evidence = read_option(&fixture.send_one(0, &ipv6(17, b"a datagram")))
            .unwrap()
            .unwrap();
        assert_eq!(
            *appraiser
                .appraise(&evidence, &snapshot.digests)
                .unwrap()
                .snapshot(),
            snapshot
        );
    }
}

/// While workers write registers and send packets, the control plane changes tables: no evidence counter repeats, and
/// equal sequence numbers have equal digests.
#[test]
fn workers_never_repeat_an_evidence_counter() {
    let mut fixture = SwitchFixture::new("evidence", Some(Carrier::Clone { port: 9 }));
    let slot = fixture.slot.clone();
    let frames: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4u32)
            .map(|thread| {
                let mut worker = slot.worker();
                scope.spawn(move || {
                    let mut sent = RecordingSink::default();
                    for round in 0..200 {
                        worker.batch(1, |batch| {
                            let write =
                                request_frame(ProgramRequest::WriteLarge, thread * 1000 + round, round + 1);
                            batch.packet(0, &write, &mut NoRandom, &mut sent);
                            batch.packet(0, &ipv6(17, b"a datagram"), &mut NoRandom, &mut sent);
                        });
                    }
                    sent.0
                })
            })
            .collect();
        for port in 0..200 {
            let target = fixture.action("EvidenceIngress.false_digests", &[port, 0]);
            fixture.change(
                "EvidenceIngress.forge",
                linewarden_switch::tables::TableOp::SetDefault(None),
            );
            let address = linewarden_switch::tables::FieldMatch::Exact(vec![port as u8; 16]);
            fixture.insert("EvidenceIngress.forge", &[address], target);
        }
        let sent = workers.into_iter().flat_map(|thread| thread.join().unwrap());
        sent.filter(|(port, _)| *port == 9)
            .map(|(_, frame)| frame)
            .collect()
    });
    let mut counters = std::collections::BTreeSet::new();
    let mut states = std::collections::BTreeMap::new();
    for frame in &frames {
        let evidence = linewarden_evidence::inband::read_clone(frame).unwrap().unwrap();
        let tagged = evidence.content;
        assert!(
            counters.insert(tagged.counter),
            "{:?} is repeated",
            tagged.counter
        );
        let fields = states.entry(tagged.sequence).or_insert(tagged.fields);
        assert_eq!(*fields, tagged.fields, "two states with {:?}", tagged.sequence);
    }
    assert_eq!(frames.len(), 4 * 200 * 2);
    assert!(fixture.switch.rescan().unwrap().unwrap().is_clean());
}
