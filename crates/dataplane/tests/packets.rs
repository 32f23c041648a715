//! The packet tests: each record has a description, a state, a packet and the expected verdict. The oracle, `xdp`
//! (`BPF_PROG_TEST_RUN`) and `host` process the packet. Their output, counters, events and memory must agree exactly;
//! replies are also checked against LAP/1 without the oracle.
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
        let mut fixture = TestFixture::new(group.test_config);
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
                Ok(got) => assert_eq!(got, verdict, "{description} ({:?})", group.test_config),
                Err(panic) => {
                    eprintln!("failed record: {description} ({:?})", group.test_config);
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

/// Verdicts that no record can cause, and the reasons.
const WITHOUT_RECORD: [Verdict; 8] = [
    // A packet towards a device, which records do not send: see `sealed.rs`.
    Verdict::PassSealed,
    // Depends on the rate of packets: see `shed.rs`.
    Verdict::DropShed,
    // Needs two CPUs at the same time: see `stress.rs`.
    Verdict::DropLostRace,
    // Needs a valid tag that begins with eight zero bytes, and thus about 2^64 attempts.
    Verdict::DropSessionZero,
    // Packets towards a device.
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
