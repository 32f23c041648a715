//! Proofs of devices, and the outcome of a round.

use super::*;

/// Where a device is challenged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestTarget {
    Reachable,
    /// The kernel rejects each challenge.
    Unreachable,
    /// The kernel rejects the first challenge; then the device has a session at another address.
    OtherSession,
}

/// A device gets the round's nonce from another device, and sends a proof. Returns the outcome for the device and the
/// device's address in this outcome.
fn outcome_of_proof(target: RequestTarget) -> (ProofOutcome, IpAddr) {
    let mut fixture = NodeHarness::new(&[policy(60, 15_000)]);
    fixture.is_responsive = false;
    if target != RequestTarget::Reachable {
        fixture.address = IpAddr::V6(Ipv6Addr::LOCALHOST);
    }
    let (device, _, k2) = keys(0, &start(1));
    let round = Round {
        gateway: GATEWAY,
        number: RoundNumber(1),
        nonce: NONCE,
        start: start(1),
    };
    let proof = round.proof_message(device, k2.for_gateway(GATEWAY).prove(&round));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let gateway = fixture.gateway;
    let requests = |fixture: &NodeHarness| fixture.node.status().attest.requests;
    // A device that has sent a proof is not challenged again.
    fixture.run_in_real_time_until(|fixture| target != RequestTarget::Reachable || requests(fixture) == 1);
    fixture.run_in_real_time_until(|fixture| {
        socket.send_to(proof.as_bytes(), gateway).unwrap();
        fixture.has_proven(device, round.number)
    });
    assert_eq!(requests(&fixture), u64::from(target == RequestTarget::Reachable));
    if target == RequestTarget::OtherSession {
        fixture.admit(device);
        let mut client = TestDevice::new(device, Mode::Key, gateway);
        assert!(client.authenticate(TIMEOUT).is_some());
    }
    fixture.run_for(40 * SECOND_NS);
    assert_eq!(
        requests(&fixture),
        u64::from(target != RequestTarget::Unreachable)
    );
    let [round] = &fixture.outcomes[..] else {
        panic!("{:?}", fixture.outcomes)
    };
    let [observation] = round.observations[..] else {
        panic!("{round:?}")
    };
    (observation.outcome, observation.address)
}

/// Otherwise, a proof without a challenge would count as a proof from an unreachable address. The device would then be
/// excused whenever the gateway cannot send to this address.
#[test]
fn a_proof_counts_only_after_a_challenge_was_sent() {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    assert_eq!(
        outcome_of_proof(RequestTarget::Reachable),
        (ProofOutcome::Ok(Current), loopback)
    );
    let unknown_address = IpAddr::V6(Ipv6Addr::LOCALHOST);
    assert_eq!(
        outcome_of_proof(RequestTarget::Unreachable),
        (ProofOutcome::Missed, unknown_address)
    );
    let session = IpAddr::V4(Ipv4Addr::new(127, 0, 1, 1));
    assert_eq!(
        outcome_of_proof(RequestTarget::OtherSession),
        (ProofOutcome::Ok(Current), session)
    );
}

/// The device's proof in that round may use the old key; the new key is used from the next round on.
#[test]
fn a_device_enrolled_again_during_a_round_is_reported_with_its_old_enrollment() {
    let mut fixture = NodeHarness::new(&[policy(60, 15_000)]);
    while fixture.node.status().attest.requests == 0 {
        fixture.tick();
        fixture.now_ns += 1_000_000;
    }
    (fixture.enrolled_at, fixture.revision) = (EnrollmentTime(2), 2);
    fixture.run_for(40 * SECOND_NS);
    assert_eq!(
        fixture.node.status().attest.requests,
        1,
        "the device is not challenged again"
    );
    fixture.run_for(60 * SECOND_NS);
    assert_eq!(
        fixture.node.status().attest.requests,
        5,
        "the second round sends four challenges"
    );
    let observations = fixture.rounds(0).flat_map(|round| &round.observations);
    let observations: Vec<_> = observations
        .map(|observation| (observation.enrolled_at.0, observation.outcome))
        .collect();
    assert_eq!(
        observations,
        [(1, ProofOutcome::Missed), (2, ProofOutcome::Missed)]
    );
}
