//! The packet tests: each record has a description, a state, a packet and the expected verdict. The oracle, `xdp`
//! (`BPF_PROG_TEST_RUN`) and `host` process the packet. Their output, counters, events and memory must agree exactly;
//! replies are also checked against LAP/1 without the oracle.

use std::collections::BTreeSet;

use linewarden_protocol::verdict::Verdict;

use crate::records::{Group, Record};
use crate::support::fixture::TestFixture;

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
    run(crate::records::malformed::groups());
}

#[test]
fn messages_from_invalid_addresses_and_frames_for_other_stations() {
    run(crate::records::admission::groups());
}

#[test]
fn proofs() {
    run(crate::records::attest::groups());
}

#[test]
fn requests() {
    run(crate::records::request::groups());
}

#[test]
fn responses() {
    run(crate::records::response::groups());
}

#[test]
fn repeated_responses() {
    run(crate::records::repeated::groups());
}

#[test]
fn responses_from_owned_addresses() {
    run(crate::records::owner::groups());
}

#[test]
fn closed_sessions() {
    run(crate::records::closed::groups());
}

#[test]
fn frames_with_the_gate_off() {
    run(crate::records::frame::groups());
}

#[test]
fn frames_at_the_bound_gate() {
    run(crate::records::gate::groups());
}

#[test]
fn the_slow_path() {
    run(crate::records::slow::groups());
}

#[test]
fn frames_that_always_pass() {
    run(crate::records::always::groups());
}

#[test]
fn frames_at_the_sealed_gate() {
    run(crate::records::sealed::groups());
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
    let groups = crate::records::all();
    let covered: BTreeSet<Verdict> = groups
        .iter()
        .flat_map(|group| &group.records)
        .map(|record| record.verdict)
        .chain(crate::classic::covered_verdicts())
        .collect();
    let all = Verdict::ALL.iter().copied();
    let missing: Vec<Verdict> = all.filter(|verdict| !covered.contains(verdict)).collect();
    assert_eq!(missing, WITHOUT_RECORD);
}
