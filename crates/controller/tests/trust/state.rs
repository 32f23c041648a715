//! The trust state of one gateway.

use linewarden_controller::trust::{EvidenceRejected, GatewayTrust, GatewayTrustState, TrustMemory};
use linewarden_evidence::keys::Signer as _;
use linewarden_evidence::statement::{Nonce, verify};
use linewarden_evidence::{BootCount, Sequence};
use proptest::prelude::*;

use crate::attested_data_plane::{AttestedDataPlane, nonces, signer};
use crate::{EVERY, RESPONSE_TIMEOUT, S, distrust_reason};

/// A gateway that became trusted at 0 s.
fn trusted() -> (AttestedDataPlane, GatewayTrust, impl FnMut() -> Option<[u8; 32]>) {
    let mut data_plane = AttestedDataPlane::new(3);
    let mut trust = GatewayTrust::new(data_plane.policy());
    let mut random = nonces();
    assert!(!trust.may_have_rows(0), "no evidence was submitted");
    let nonce = trust.poll(0, &mut random).nonce.unwrap();
    assert!(!trust.may_have_rows(0), "evidence is requested");
    trust.appraise(&data_plane.statement(nonce), None, S).unwrap();
    assert!(trust.may_have_rows(S));
    (data_plane, trust, random)
}

#[test]
fn evidence_is_requested_after_each_interval_with_a_new_nonce() {
    let (mut data_plane, mut trust, mut random) = trusted();
    assert_eq!(trust.poll(EVERY, &mut random).nonce, None);
    let second = trust.poll(EVERY + S, &mut random).nonce.unwrap();
    assert_eq!(
        trust.poll(EVERY + 2 * S, &mut random).nonce,
        Some(second),
        "a response may be lost"
    );
    trust
        .appraise(&data_plane.statement(second), None, EVERY + 3 * S)
        .unwrap();
    let third = trust.poll(2 * EVERY + 3 * S, &mut random).nonce.unwrap();
    assert_ne!(second, third);
}

#[test]
fn a_difference_ends_trust_and_is_in_the_reason() {
    let (mut data_plane, mut trust, mut random) = trusted();
    data_plane.set(8);
    let nonce = trust.poll(EVERY + S, &mut random).nonce.unwrap();
    trust
        .appraise(
            &data_plane.statement(nonce),
            Some(&data_plane.inventory()),
            EVERY + S,
        )
        .unwrap();
    assert!(!trust.may_have_rows(EVERY + S));
    let reason = distrust_reason(trust.state()).to_owned();
    assert!(
        reason.contains("control") && reason.contains("07 is now 08"),
        "{reason}"
    );
    data_plane.set(7);
    let nonce = trust.poll(2 * EVERY + S, &mut random).nonce.unwrap();
    trust
        .appraise(&data_plane.statement(nonce), None, 2 * EVERY + S)
        .unwrap();
    assert!(
        trust.may_have_rows(2 * EVERY + S),
        "the data plane was remediated"
    );
}

#[test]
fn missing_evidence_ends_trust_and_the_reason_contains_the_last_rejection() {
    let (mut data_plane, mut trust, mut random) = trusted();
    let request_ns = EVERY + S;
    let nonce = trust.poll(request_ns, &mut random).nonce.unwrap();
    assert!(
        trust.may_have_rows(request_ns + RESPONSE_TIMEOUT - 1),
        "the evidence is not overdue yet"
    );
    assert!(
        !trust.may_have_rows(request_ns + RESPONSE_TIMEOUT),
        "without a poll"
    );
    let error = trust
        .appraise(&data_plane.statement(nonce), None, request_ns + RESPONSE_TIMEOUT)
        .unwrap_err();
    assert!(matches!(error, EvidenceRejected::NotRequested), "{error}");
    let trust_status = trust.poll(request_ns + RESPONSE_TIMEOUT, &mut random);
    assert!(distrust_reason(&trust_status.state).contains("no evidence received for 10 s"));
    let nonce = trust_status.nonce.expect("evidence is requested again");
    let forged = AttestedDataPlane::new(3).statement(nonce);
    trust
        .appraise(&forged, None, request_ns + RESPONSE_TIMEOUT)
        .unwrap_err();
    let trust_status = trust.poll(request_ns + 2 * RESPONSE_TIMEOUT, &mut random);
    assert!(
        distrust_reason(&trust_status.state).contains("signature does not verify"),
        "{trust_status:?}"
    );
}

/// A gateway that never polls gets no nonce, and is trusted no longer than one that polls.
#[test]
fn a_gateway_that_does_not_poll_loses_trust() {
    let (_, trust, _) = trusted();
    let due_ns = S + EVERY;
    assert!(trust.may_have_rows(due_ns + RESPONSE_TIMEOUT - 1));
    assert!(!trust.may_have_rows(due_ns + RESPONSE_TIMEOUT));
}

#[test]
fn without_random_numbers_no_gateway_stays_trusted() {
    let (_, mut trust, _) = trusted();
    let request_ns = EVERY + S;
    assert_eq!(
        trust.poll(request_ns, &mut || None).state,
        GatewayTrustState::Trusted
    );
    assert!(
        distrust_reason(&trust.poll(request_ns + RESPONSE_TIMEOUT, &mut || None).state).contains("random")
    );
}

#[test]
fn an_older_state_ends_trust_even_if_it_matches() {
    for (boot_count, is_refused) in [(2, true), (3, true), (4, false)] {
        let (mut data_plane, mut trust, mut random) = trusted();
        // Two states later than the first one.
        data_plane.set(1);
        data_plane.set(7);
        let nonce = trust.poll(EVERY + S, &mut random).nonce.unwrap();
        trust
            .appraise(&data_plane.statement(nonce), None, EVERY + S)
            .unwrap();
        data_plane.restore(boot_count);
        let nonce = trust.poll(2 * EVERY + S, &mut random).nonce.unwrap();
        trust
            .appraise(&data_plane.statement(nonce), None, 2 * EVERY + S)
            .unwrap();
        assert_eq!(
            trust.may_have_rows(2 * EVERY + S),
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
    let (mut data_plane, mut trust, mut random) = trusted();
    trust.restart();
    assert!(!trust.may_have_rows(2 * S));
    let nonce = trust.poll(2 * S, &mut random).nonce.expect("at once");
    trust.appraise(&data_plane.statement(nonce), None, 2 * S).unwrap();
    assert!(trust.may_have_rows(2 * S));
}

/// Even if the gateway registers more often.
#[test]
fn evidence_is_requested_at_most_once_a_second() {
    let (mut data_plane, mut trust, mut random) = trusted();
    let mut requests = 0;
    for now_ns in (2 * S..4 * S).step_by(S as usize / 10) {
        trust.restart();
        requests += u32::from(trust.poll(now_ns, &mut random).nonce.is_some());
    }
    assert_eq!(requests, 2);
    let nonce = trust.poll(5 * S, &mut random).nonce.expect("a second later");
    trust.appraise(&data_plane.statement(nonce), None, 5 * S).unwrap();
    assert!(trust.may_have_rows(5 * S));
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
    /// Signed by the gateway for the pending nonce; whether the state matches the reference values.
    Genuine(bool),
    /// The bytes of an earlier statement.
    Replay(usize),
    /// Signed by another key for the pending nonce.
    OtherKey,
    OtherNonce([u8; 32]),
    /// The gateway's statement with one bit changed.
    Changed(usize, u8),
    Noise(Vec<u8>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..20u64).prop_map(|seconds| Step::Wait(seconds * S)),
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
        let (mut random, mut now) = (nonces(), 0);
        let mut pending: Option<(Nonce, u64)> = None;
        // Time of the next request.
        let mut due = 0;
        let mut earlier_statements: Vec<Vec<u8>> = Vec::new();
        let mut last_matched = false;
        for step in steps {
            let live = pending.filter(|(_, at)| now - at < RESPONSE_TIMEOUT);
            let nonce = pending.map_or(Nonce([0; 32]), |(nonce, _)| nonce);
            let state = trust.state().clone();
            let forged = match step {
                Step::Wait(time) => { now += time; None }
                Step::Poll => {
                    if pending.is_some() && live.is_none() {
                        (pending, last_matched) = (None, false);
                    }
                    let requested = trust.poll(now, &mut random).nonce;
                    pending = requested.map(|requested| (requested, pending.filter(|(pending, _)| *pending == requested).map_or(now, |(_, at)| at)));
                    None
                }
                Step::Genuine(matches_reference) => {
                    data_plane.set(if matches_reference { 7 } else { 8 });
                    let statement = data_plane.statement(nonce);
                    let outcome = trust.appraise(&statement, None, now);
                    prop_assert_eq!(outcome.is_ok(), live.is_some());
                    if live.is_some() {
                        (pending, last_matched, due) = (None, matches_reference, now + EVERY);
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
                    // The key's name, which is not signed and not read.
                    let key = data_plane.signer.public_key();
                    verify(&statement, &key, nonce).is_err().then_some(statement)
                }
                Step::Noise(bytes) => Some(bytes),
            };
            if let Some(forged) = forged {
                prop_assert!(trust.appraise(&forged, None, now).is_err());
                prop_assert_eq!(trust.state(), &state);
            }
            let since = pending.map_or(due, |(_, at)| at);
            let is_live = now.saturating_sub(since) < RESPONSE_TIMEOUT;
            prop_assert_eq!(trust.may_have_rows(now), last_matched && is_live);
        }
    }
}
