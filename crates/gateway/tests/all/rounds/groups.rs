//! When rounds start and end, and provers that cannot be challenged.

use super::*;

#[test]
fn groups_with_slow_members_do_not_delay_other_groups() {
    let mut fixture = NodeHarness::new(&[policy(60, 15_000), policy(60, 15_000), policy(2, 500)]);
    fixture.run_for(300 * SECOND_NS);
    let counts = [0, 1, 2].map(|group| fixture.rounds(group).count());
    assert!(counts[0] >= 3 && counts[1] >= 3, "{counts:?}");
    assert!(counts[2] >= 140, "{counts:?}");
    let mut numbers: Vec<u32> = fixture.outcomes.iter().map(|outcome| outcome.number.0).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), fixture.outcomes.len(), "no number twice");
}

#[test]
fn a_missing_proof_keeps_a_round_open_for_at_most_half_the_interval() {
    let mut fixture = NodeHarness::new(&[policy(8, 7_999)]);
    fixture.run_for(40 * SECOND_NS);
    assert!(fixture.rounds(0).count() >= 4);
    for round in fixture.rounds(0) {
        assert!((4_000..4_200).contains(&round.duration_ms), "{round:?}");
    }
}

/// The gateway has no address of the provers' address family. The kernel rejects each challenge, as it does without a
/// route when an interface is down.
#[test]
fn unreachable_provers_are_not_missed_and_are_reported_once() {
    let mut fixture = NodeHarness::new(&[policy(2, 500), policy(2, 500)]);
    fixture.address = IpAddr::V6(Ipv6Addr::LOCALHOST);
    fixture.node.set_audit_rate(1_000);
    fixture.run_for(60 * SECOND_NS);
    assert!(fixture.rounds(0).count() > 20 && fixture.rounds(1).count() > 20);
    for round in &fixture.outcomes {
        assert_eq!(round.observations, [], "no prover was challenged");
        assert!(
            round.duration_ms < 100,
            "the round has no pending request: {round:?}"
        );
    }
    let status = fixture.node.status();
    assert_eq!((status.attest.unreachable, status.attest.requests), (2, 0));
    let records = fixture.node.take_audit_records(false);
    let reported: Vec<_> = records
        .iter()
        .filter(|record| matches!(record.event, AuditEvent::DevicesUnreachable { .. }))
        .collect();
    assert_eq!(reported.len(), 2, "once for each group: {reported:?}");
}

/// The prover itself may have chosen an address to which no gateway can send.
#[test]
fn provers_at_an_unreachable_unproven_address_are_missed() {
    let mut fixture = NodeHarness::new(&[policy(2, 500)]);
    fixture.address = IpAddr::V6(Ipv6Addr::LOCALHOST);
    fixture.is_responsive = false;
    fixture.run_for(20 * SECOND_NS);
    assert!(fixture.rounds(0).count() > 5);
    for round in fixture.rounds(0) {
        let outcomes: Vec<ProofOutcome> = round
            .observations
            .iter()
            .map(|observation| observation.outcome)
            .collect();
        assert_eq!(outcomes, [ProofOutcome::Missed], "{round:?}");
    }
    assert_eq!(fixture.node.status().attest.unreachable, 0);
}

/// A prover without room counts once, although it has keys of two periods and is updated repeatedly.
#[test]
fn provers_without_room_are_counted_once() {
    const PROVERS: usize = 200;
    let mut fixture = NodeHarness::new(&vec![policy(60, 500); PROVERS]);
    fixture.run_for(5 * SECOND_NS);
    let attest = fixture.node.status().attest.clone();
    assert!(attest.provers >= 64 && attest.provers_refused > 0, "{attest:?}");
    assert_eq!(
        attest.provers + attest.provers_refused,
        PROVERS as u64,
        "{attest:?}"
    );
}

#[test]
fn without_random_bytes_no_round_begins_and_the_node_does_not_spin() {
    let mut fixture = NodeHarness::new(&[policy(2, 500)]);
    fixture.run_for(3 * SECOND_NS);
    assert!(fixture.rounds(0).count() > 0);
    fixture.is_random = false;
    // Run until the open round has ended.
    fixture.run_for(3 * SECOND_NS);
    let (outcomes_before, failed_draws) = (fixture.outcomes.len(), fixture.node.status().draws_failed);
    let mut ticks = 0;
    let until_ns = fixture.now_ns + 10 * SECOND_NS;
    while fixture.now_ns < until_ns && ticks < 1_000 {
        fixture.tick();
        ticks += 1;
        let due_ns = fixture.node.due_ns(fixture.now_ns);
        // A busy loop would return the same time forever.
        fixture.now_ns = due_ns.max(fixture.now_ns + 1_000);
    }
    assert!(ticks < 1_000, "{ticks} ticks in 10 s");
    assert!(
        fixture.node.status().draws_failed > failed_draws,
        "the node keeps retrying"
    );
    assert_eq!(fixture.outcomes.len(), outcomes_before);
    fixture.is_random = true;
    fixture.run_for(10 * SECOND_NS);
    assert!(fixture.outcomes.len() > outcomes_before);
}
