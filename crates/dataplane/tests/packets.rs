//! The packet tests: records of description, state, packet in and verdict, run through the oracle, `xdp`
//! (`BPF_PROG_TEST_RUN`) and `host`. Packet out, counters, events and memory must agree byte for byte; replies are
//! also checked against LAP/1 without the oracle.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod records;
mod support;

use std::collections::BTreeSet;

use linewarden_protocol::verdict::Verdict;

use records::{Group, Record};
use support::fixture::TestFixture;

fn run(groups: Vec<Group>) {
    for group in groups {
        let mut fixture = TestFixture::new(group.shape);
        for Record {
            description,
            setup,
            packet,
            verdict,
        } in group.records
        {
            fixture.reset();
            setup(&mut fixture);
            let frame = packet(&fixture);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let got = fixture.send(&frame);
                fixture.compare_lines();
                got
            }));
            match result {
                Ok(got) => assert_eq!(got, verdict, "{description} ({:?})", group.shape),
                Err(panic) => {
                    eprintln!("failed record: {description} ({:?})", group.shape);
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
}

#[test]
fn messages_that_are_not_lap() {
    run(records::malformed::groups());
}

#[test]
fn messages_from_invalid_addresses_and_frames_for_other_stations() {
    run(records::admission::groups());
}

#[test]
fn proofs() {
    run(records::attest::groups());
}

#[test]
fn requests() {
    run(records::request::groups());
}

#[test]
fn responses() {
    run(records::response::groups());
}

#[test]
fn repeated_responses() {
    run(records::repeated::groups());
}

#[test]
fn responses_from_owned_addresses() {
    run(records::owner::groups());
}

#[test]
fn closed_sessions() {
    run(records::closed::groups());
}

#[test]
fn frames_with_the_gate_off() {
    run(records::frame::groups());
}

#[test]
fn frames_at_the_bound_gate() {
    run(records::gate::groups());
}

#[test]
fn the_slow_path() {
    run(records::slow::groups());
}

#[test]
fn frames_that_always_pass() {
    run(records::always::groups());
}

#[test]
fn frames_at_the_sealed_gate() {
    run(records::sealed::groups());
}

#[test]
fn classic_profiles() {
    run(records::classic::groups());
}

#[test]
fn frames_of_p4dra() {
    run(records::p4dra::groups());
}

/// Verdicts that no record can cause, and why.
const WITHOUT_RECORD: [Verdict; 8] = [
    // Towards a device, which records do not send: see `sealed.rs`.
    Verdict::PassSealed,
    // Depends on a rate: see `shed.rs`.
    Verdict::DropShed,
    // Needs two CPUs at the same time: see `stress.rs`.
    Verdict::DropLostRace,
    // A tag that verifies and begins with eight zero bytes needs a search of 2^64.
    Verdict::DropSessionZero,
    // Towards a device.
    Verdict::DropUnsealed,
    Verdict::DropTooBig,
    Verdict::DropSegments,
    Verdict::DropExhausted,
];

#[test]
fn every_verdict_has_a_record() {
    let groups = records::all();
    let covered: BTreeSet<Verdict> = groups
        .iter()
        .flat_map(|group| &group.records)
        .map(|record| record.verdict)
        .collect();
    let all = Verdict::ALL.iter().copied();
    let missing: Vec<Verdict> = all.filter(|verdict| !covered.contains(verdict)).collect();
    assert_eq!(missing, WITHOUT_RECORD);
}
