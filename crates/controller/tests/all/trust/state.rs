//! The trust state of one gateway.

use linewarden_controller::trust::{EvidenceRejected, GatewayTrust, TrustMemory};
use linewarden_evidence::keys::Signer as _;
use linewarden_evidence::statement::{Nonce, verify};
use linewarden_evidence::{BootCount, Sequence};
use linewarden_types::GatewayTrustState;
use proptest::prelude::*;

use crate::trust::attested_data_plane::{AttestedDataPlane, nonces, signer};
use crate::trust::{EVIDENCE_INTERVAL_NS, RESPONSE_TIMEOUT_NS, SECOND_NS, distrust_reason};

/// A gateway that became trusted at 1 s.
fn trusted_gateway() -> (AttestedDataPlane, GatewayTrust, impl FnMut() -> Option<[u8; 32]>) {
    let mut data_plane = AttestedDataPlane::new(3);
    let mut trust = GatewayTrust::new(data_plane.policy());
    let mut random = nonces();
    assert!(!trust.may_have_rows(0), "no evidence was submitted");
    let nonce = trust.poll(0, &mut random).nonce.unwrap();
    assert!(!trust.may_have_rows(0), "evidence is requested");
    trust
        .appraise(&data_plane.statement(nonce), None, SECOND_NS)
        .unwrap();
    assert!(trust.may_have_rows(SECOND_NS));
    (data_plane, trust, random)
}

#[test]
fn evidence_is_requested_after_each_interval_with_a_new_nonce() {
    let (mut data_plane, mut trust, mut random) = trusted_gateway();
    assert_eq!(trust.poll(EVIDENCE_INTERVAL_NS, &mut random).nonce, None);
    let second = trust
        .poll(EVIDENCE_INTERVAL_NS + SECOND_NS, &mut random)
        .nonce
        .unwrap();
    assert_eq!(
        trust
            .poll(EVIDENCE_INTERVAL_NS + 2 * SECOND_NS, &mut random)
            .nonce,
        Some(second),
        "a response may be lost"
    );
    trust
        .appraise(
            &data_plane.statement(second),
            None,
            EVIDENCE_INTERVAL_NS + 3 * SECOND_NS,
        )
        .unwrap();
    let third = trust
        .poll(2 * EVIDENCE_INTERVAL_NS + 3 * SECOND_NS, &mut random)
        .nonce
        .unwrap();
    assert_ne!(second, third);
}

#[test]
fn a_difference_ends_trust_and_is_in_the_reason() {
    let (mut data_plane, mut trust, mut random) = trusted_gateway();
    data_plane.set(8);
    let nonce = trust
        .poll(EVIDENCE_INTERVAL_NS + SECOND_NS, &mut random)
        .nonce
        .unwrap();
    trust
        .appraise(
            &data_plane.statement(nonce),
            Some(&data_plane.inventory()),
            EVIDENCE_INTERVAL_NS + SECOND_NS,
        )
        .unwrap();
    assert!(!trust.may_have_rows(EVIDENCE_INTERVAL_NS + SECOND_NS));
    let reason = distrust_reason(trust.state()).to_owned();
    assert!(
        reason.contains("control") && reason.contains("07 is now 08"),
        "{reason}"
    );
    data_plane.set(7);
    let nonce = trust
        .poll(2 * EVIDENCE_INTERVAL_NS + SECOND_NS, &mut random)
        .nonce
        .unwrap();
    trust
        .appraise(
            &data_plane.statement(nonce),
            None,
            2 * EVIDENCE_INTERVAL_NS + SECOND_NS,
        )
        .unwrap();
    assert!(
        trust.may_have_rows(2 * EVIDENCE_INTERVAL_NS + SECOND_NS),
        "the data plane was remediated"
    );
}

#[test]
fn missing_evidence_ends_trust_and_the_reason_contains_the_last_rejection() {
    let (mut data_plane, mut trust, mut random) = trusted_gateway();
    let request_ns = EVIDENCE_INTERVAL_NS + SECOND_NS;
    let nonce = trust.poll(request_ns, &mut random).nonce.unwrap();
    assert!(
        trust.may_have_rows(request_ns + RESPONSE_TIMEOUT_NS - 1),
        "the evidence is not overdue yet"
    );
    assert!(
        !trust.may_have_rows(request_ns + RESPONSE_TIMEOUT_NS),
        "without a poll"
    );
    let error = trust
        .appraise(
            &data_plane.statement(nonce),
            None,
            request_ns + RESPONSE_TIMEOUT_NS,
        )
        .unwrap_err();
    assert!(matches!(error, EvidenceRejected::NotRequested), "{error}");
    let trust_status = trust.poll(request_ns + RESPONSE_TIMEOUT_NS, &mut random);
    assert!(distrust_reason(&trust_status.state).contains("no evidence received for 10 s"));
    let nonce = trust_status.nonce.expect("evidence is requested again");
    let forged = AttestedDataPlane::new(3).statement(nonce);
    trust
        .appraise(&forged, None, request_ns + RESPONSE_TIMEOUT_NS)
        .unwrap_err();
    let trust_status = trust.poll(request_ns + 2 * RESPONSE_TIMEOUT_NS, &mut random);
    assert!(
        distrust_reason(&trust_status.state).contains("signature does not verify"),
        "{trust_status:?}"
    );
}

/// A gateway that never polls gets no nonce. It loses trust at the same time as a gateway that polls and submits nothing.
#[test]
fn a_gateway_that_does_not_poll_loses_trust() {
    let (_, trust, _) = trusted_gateway();
    let due_ns = SECOND_NS + EVIDENCE_INTERVAL_NS;
    assert!(trust.may_have_rows(due_ns + RESPONSE_TIMEOUT_NS - 1));
    assert!(!trust.may_have_rows(due_ns + RESPONSE_TIMEOUT_NS));
}

#[test]
fn without_random_numbers_no_gateway_stays_trusted() {
    let (_, mut trust, _) = trusted_gateway();
    let request_ns = EVIDENCE_INTERVAL_NS + SECOND_NS;
    assert_eq!(
        trust.poll(request_ns, &mut || None).state,
        GatewayTrustState::Trusted
    );
    assert!(
        distrust_reason(&trust.poll(request_ns + RESPONSE_TIMEOUT_NS, &mut || None).state).contains("random")
    );
}

#[test]
fn an_older_state_ends_trust_even_if_it_matches() {
    for (boot_count, is_refused) in [(2, true), (3, true), (4, false)] {
        let (mut data_plane, mut trust, mut random) = trusted_gateway();
        // These calls increase the sequence number of the state by two.
        data_plane.set(1);
        data_plane.set(7);
        let nonce = trust
            .poll(EVIDENCE_INTERVAL_NS + SECOND_NS, &mut random)
            .nonce
            .unwrap();
        trust
            .appraise(
                &data_plane.statement(nonce),
                None,
                EVIDENCE_INTERVAL_NS + SECOND_NS,
            )
            .unwrap();
        data_plane.restore(boot_count);
        let nonce = trust
            .poll(2 * EVIDENCE_INTERVAL_NS + SECOND_NS, &mut random)
            .nonce
            .unwrap();
        trust
            .appraise(
                &data_plane.statement(nonce),
                None,
                2 * EVIDENCE_INTERVAL_NS + SECOND_NS,
            )
            .unwrap();
        assert_eq!(
            trust.may_have_rows(2 * EVIDENCE_INTERVAL_NS + SECOND_NS),
            !is_refused,
            "start {boot_count}"
        );
        if is_refused {
            assert!(distrust_reason(trust.state()).contains("restored"));
        }
    }
}

#[test]
fn a_new_registration_must_submit_evidence() {
    let (mut data_plane, mut trust, mut random) = trusted_gateway();
    trust.restart();
    assert!(!trust.may_have_rows(2 * SECOND_NS));
    let nonce = trust
        .poll(2 * SECOND_NS, &mut random)
        .nonce
        .expect("evidence is requested at once");
    trust
        .appraise(&data_plane.statement(nonce), None, 2 * SECOND_NS)
        .unwrap();
    assert!(trust.may_have_rows(2 * SECOND_NS));
}

/// This holds even if the gateway registers more often.
#[test]
fn evidence_is_requested_at_most_once_a_second() {
    let (mut data_plane, mut trust, mut random) = trusted_gateway();
    let mut requests = 0;
    for now_ns in (2 * SECOND_NS..4 * SECOND_NS).step_by(SECOND_NS as usize / 10) {
        trust.restart();
        requests += u32::from(trust.poll(now_ns, &mut random).nonce.is_some());
    }
    assert_eq!(requests, 2);
    let nonce = trust
        .poll(5 * SECOND_NS, &mut random)
        .nonce
        .expect("evidence is requested again after a second");
    trust
        .appraise(&data_plane.statement(nonce), None, 5 * SECOND_NS)
        .unwrap();
    assert!(trust.may_have_rows(5 * SECOND_NS));
}

#[test]
fn the_memory_of_another_controller_counts_while_the_key_is_the_same() {
    for (is_same_key, newest_state, is_trusted) in
        [(true, (3, 2), true), (true, (4, 0), false), (false, (4, 0), true)]
    {
        let mut data_plane = AttestedDataPlane::new(3);
        let mut trust = GatewayTrust::new(data_plane.policy());
        let key = match is_same_key {
            true => data_plane.signer.public_key(),
            false => signer().public_key(),
        };
        trust.restart();
        trust.restore(&TrustMemory {
            key_fingerprint: key.fingerprint(),
            newest_state: Some((BootCount(newest_state.0), Sequence(newest_state.1))),
        });
        let nonce = trust.poll(0, &mut nonces()).nonce.unwrap();
        trust.appraise(&data_plane.statement(nonce), None, 0).unwrap();
        assert_eq!(
            trust.may_have_rows(0),
            is_trusted,
            "{is_same_key} {newest_state:?}"
        );
    }
}

/// A step in the life of a gateway.
#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Poll,
    /// A statement that the gateway has signed for the pending nonce. The value is true if the state matches the reference
    /// values.
    Genuine(bool),
    /// The bytes of an earlier statement.
    Replay(usize),
    /// A statement that another key has signed for the pending nonce.
    OtherKey,
    /// A statement that the gateway has signed for this nonce.
    OtherNonce([u8; 32]),
    /// The gateway's statement with one bit changed.
    Changed(usize, u8),
    Noise(Vec<u8>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..20u64).prop_map(|seconds| Step::Wait(seconds * SECOND_NS)),
        4 => Just(Step::Poll),
        3 => any::<bool>().prop_map(Step::Genuine),
        1 => any::<usize>().prop_map(Step::Replay),
        1 => Just(Step::OtherKey),
        1 => any::<[u8; 32]>().prop_map(Step::OtherNonce),
        2 => (any::<usize>(), 0..8u8).prop_map(|(at, bit)| Step::Changed(at, bit)),
        1 => prop::collection::vec(any::<u8>(), 0..64).prop_map(Step::Noise),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// The gateway is trusted only after its own key has signed a matching state for the pending nonce. A statement
    /// without this signature never changes the trust state.
    #[test]
    fn no_other_key_changes_the_trust_state(steps in prop::collection::vec(step(), 1..80)) {
        let (mut data_plane, mut other_key) = (AttestedDataPlane::new(3), AttestedDataPlane::new(3));
        let mut trust = GatewayTrust::new(data_plane.policy());
        let (mut random, mut now_ns) = (nonces(), 0);
        // The requested nonce, and the time of the request.
        let mut pending: Option<(Nonce, u64)> = None;
        // Time of the next request.
        let mut due_ns = 0;
        let mut earlier_statements: Vec<Vec<u8>> = Vec::new();
        let mut last_matched = false;
        for step in steps {
            let live_request = pending.filter(|(_, requested_ns)| now_ns - requested_ns < RESPONSE_TIMEOUT_NS);
            let nonce = pending.map_or(Nonce([0; 32]), |(nonce, _)| nonce);
            let state = trust.state().clone();
            let forged = match step {
                Step::Wait(time) => { now_ns += time; None }
                Step::Poll => {
                    if pending.is_some() && live_request.is_none() {
                        (pending, last_matched) = (None, false);
                    }
                    let requested = trust.poll(now_ns, &mut random).nonce;
                    pending = requested.map(|requested| {
                        let earlier_request = pending.filter(|(pending, _)| *pending == requested);
                        (requested, earlier_request.map_or(now_ns, |(_, requested_ns)| requested_ns))
                    });
                    None
                }
                Step::Genuine(matches_reference) => {
                    data_plane.set(if matches_reference { 7 } else { 8 });
                    let statement = data_plane.statement(nonce);
                    let outcome = trust.appraise(&statement, None, now_ns);
                    prop_assert_eq!(outcome.is_ok(), live_request.is_some());
                    if live_request.is_some() {
                        (pending, last_matched, due_ns) = (None, matches_reference, now_ns + EVIDENCE_INTERVAL_NS);
                        earlier_statements.push(statement);
                    }
                    None
                }
                Step::Replay(index) => earlier_statements.get(index % earlier_statements.len().max(1)).cloned(),
                Step::OtherKey => Some(other_key.statement(nonce)),
                Step::OtherNonce(other) => Some(data_plane.statement(Nonce(other))),
                Step::Changed(at, bit) => {
                    let mut statement = data_plane.statement(nonce);
                    let at = at % statement.len();
                    statement[at] ^= 1 << bit;
                    // A change of the key's name is no forgery, because the name is not signed and not read.
                    let key = data_plane.signer.public_key();
                    verify(&statement, &key, nonce).is_err().then_some(statement)
                }
                Step::Noise(bytes) => Some(bytes),
            };
            if let Some(forged) = forged {
                prop_assert!(trust.appraise(&forged, None, now_ns).is_err());
                prop_assert_eq!(trust.state(), &state);
            }
            let requested_ns = pending.map_or(due_ns, |(_, requested_ns)| requested_ns);
            let is_live = now_ns.saturating_sub(requested_ns) < RESPONSE_TIMEOUT_NS;
            prop_assert_eq!(trust.may_have_rows(now_ns), last_matched && is_live);
        }
    }
}
