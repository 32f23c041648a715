//! The rules of the device in LAP/1 1.5, by clause.

use crate::device_support::{
    GATEWAY, LOCAL_IP, MAC, SESSION_LIFETIME_S, TestChallenge, authenticate, config, nonce,
    nonce_with_statement, respond, row_key, sent,
};
use linewarden_protocol::device::{
    Device, DeviceConfig, Failure, GatewayPolicy, IgnoredReason, Output, Phase, READINGS_AT_ONCE,
    RESPONSE_LIFETIME_MS, UNPLANNED_INTERVAL_MS,
};
use linewarden_protocol::ids::{GatewayId, Mode, RowIndex};
use linewarden_protocol::nonce::RowStatement;
use linewarden_protocol::wire::{self, FLAG_BOUND, Message};

/// Polls the device at its deadlines up to `until_ms`, without input; returns the outputs and their times.
fn run_alone(device: &mut Device, until_ms: u64) -> Vec<(u64, Output)> {
    let mut outputs = Vec::new();
    while let Some(due_ms) = device.next_deadline().filter(|due| *due <= until_ms) {
        let output = device.poll(due_ms);
        if output == Output::None {
            // At this deadline, the device only wipes the key of a replaced session.
            assert!(
                device.next_deadline() > Some(due_ms),
                "the deadline at {due_ms} ms must produce an output"
            );
            continue;
        }
        outputs.push((due_ms, output));
    }
    outputs
}

#[test]
fn a_request_is_sent_8_times_byte_identically_doubling_from_20_ms() {
    let mut device = Device::new(config(Mode::Pool));
    let first = sent(device.start(nonce(1), 1_000).unwrap());
    let outputs = run_alone(&mut device, 20_000);
    let (copies, rest) = outputs.split_at(7);
    let times: Vec<u64> = copies.iter().map(|(at, _)| at - 1_000).collect();
    assert_eq!(times, [20, 60, 140, 300, 620, 1_260, 2_540]);
    assert!(copies.iter().all(|(_, copy)| *copy == Output::Transmit(first)));
    let (at, failure) = rest[0];
    assert_eq!(at, 1_000 + 5_100);
    assert!(
        matches!(failure, Output::Failed { failure: Failure::NoChallenge, retry_at_ms } if (3_750..=5_000).contains(&(retry_at_ms - at))),
        "{failure:?}"
    );
    assert_eq!(rest[1].1, Output::NeedNonce);
    assert_eq!(rest.len(), 2, "a nonce is requested once: {rest:?}");
}

#[test]
fn a_response_is_repeated_byte_identically_for_60_s_at_most_5_s_apart() {
    let mut device = Device::new(config(Mode::Pool));
    let _request = device.start(nonce(1), 0).unwrap();
    let response = respond(&mut device, &TestChallenge::of(Mode::Pool, 3), 1, 50);
    let outputs = run_alone(&mut device, 50 + RESPONSE_LIFETIME_MS);
    let (last, copies) = outputs.split_last().unwrap();
    assert_eq!(last.1, Output::NeedNonce, "a new REQUEST needs a new nonce");
    let (failed, copies) = copies.split_last().unwrap();
    assert!(
        matches!(failed, (at, Output::Failed { failure: Failure::NoAck, .. }) if *at == 50 + RESPONSE_LIFETIME_MS)
    );
    assert!(copies.iter().all(|(_, copy)| *copy == Output::Transmit(response)));
    let gaps: Vec<u64> = copies.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert_eq!(gaps[..8], [40, 80, 160, 320, 640, 1_280, 2_560, 5_000]);
    assert!(gaps[8..].iter().all(|gap| *gap == 5_000), "{gaps:?}");
}

#[test]
fn a_waiting_challenge_is_verified_with_the_reading_for_a_forged_one_of_the_same_row() {
    let mut device = Device::new(config(Mode::Pool));
    let _request = device.start(nonce(1), 0).unwrap();
    let genuine = TestChallenge::of(Mode::Pool, 3).challenge(&nonce(1));
    let mut forged = genuine;
    forged[63] ^= 1;
    let _query = device.handle(&forged, &LOCAL_IP, 1).unwrap();
    assert_eq!(device.handle(&genuine, &LOCAL_IP, 1), Ok(Output::None));
    assert_eq!(
        device.handle(&genuine, &LOCAL_IP, 1),
        Err(IgnoredReason::Duplicate)
    );
    let _response = sent(device.puf_result(Ok(row_key(Mode::Pool, 3)), 1));
}

#[test]
fn one_challenge_per_nonce_gets_a_response() {
    let mut device = Device::new(config(Mode::Pool));
    let _request = device.start(nonce(1), 0).unwrap();
    let response = respond(&mut device, &TestChallenge::of(Mode::Pool, 3), 1, 0);
    for idx in [3, 4] {
        let offer = TestChallenge {
            fresh: [9; 8],
            ..TestChallenge::of(Mode::Pool, idx)
        };
        let result = device.handle(&offer.challenge(&nonce(1)), &LOCAL_IP, 5);
        assert_eq!(result, Err(IgnoredReason::Unexpected));
    }
    assert_eq!(sent(device.poll(20)), response);
}

#[test]
fn a_response_carries_the_binding_that_was_configured() {
    for mac in [Some(MAC), None] {
        let mut device = Device::new(DeviceConfig {
            bound_mac: mac,
            ..config(Mode::Pool)
        });
        let _request = device.start(nonce(1), 0).unwrap();
        let challenge = TestChallenge::of(Mode::Pool, 3).challenge(&nonce(1));
        let _query = device.handle(&challenge, &LOCAL_IP, 0).unwrap();
        let response = sent(device.puf_result(Ok(row_key(Mode::Pool, 3)), 0));
        let Ok(Message::Response(response)) = wire::parse(&response) else {
            panic!("no RESPONSE");
        };
        assert_eq!(response.header.flags, if mac.is_some() { FLAG_BOUND } else { 0 });
    }
}

#[test]
fn the_session_lifetime_counts_from_the_first_response_and_is_renewed_at_three_quarters() {
    let mut renewals = Vec::new();
    for number in [1, 0x1234_0000, u64::MAX] {
        let mut device = Device::new(config(Mode::Pool));
        let mut jitter = nonce(number);
        jitter[12..14].copy_from_slice(&(number as u16 ^ 0x8000).to_be_bytes());
        let _request = device.start(jitter, 1_000).unwrap();
        let offer = TestChallenge::of(Mode::Pool, 0);
        let _query = device
            .handle(&offer.challenge(&jitter), &LOCAL_IP, 1_000)
            .unwrap();
        let response = sent(device.puf_result(Ok(row_key(Mode::Pool, 0)), 2_000));
        let ack = offer.ack(&response, SESSION_LIFETIME_S, LOCAL_IP);
        let _authenticated = device.handle(&ack, &LOCAL_IP, 9_000).unwrap();
        let session = device.session().unwrap();
        let lifetime_ms = u64::from(SESSION_LIFETIME_S) * 1_000;
        assert_eq!(session.expires_at_ms, 2_000 + lifetime_ms);
        let part = (session.renew_at_ms - 2_000) as f64 / lifetime_ms as f64;
        assert!((0.6875..=0.8125).contains(&part), "{part}");
        renewals.push(session.renew_at_ms);
        assert_eq!(device.poll(session_renewal(&device) - 1), Output::None);
        assert_eq!(device.poll(session_renewal(&device)), Output::NeedNonce);
    }
    assert!(renewals.windows(2).any(|pair| pair[0] != pair[1]), "no jitter");
}

fn session_renewal(device: &Device) -> u64 {
    device.session().unwrap().renew_at_ms
}

#[test]
fn after_a_suspend_beyond_the_session_lifetime_the_session_has_expired_first() {
    let mut device = Device::new(config(Mode::Pool));
    authenticate(&mut device, 1, 0, 0);
    let much_later = u64::from(SESSION_LIFETIME_S) * 5_000;
    assert_eq!(device.poll(much_later), Output::SessionExpired);
    assert!(device.session().is_none());
    assert_eq!(device.poll(much_later), Output::NeedNonce);
    assert_eq!(device.poll(much_later), Output::None);
    authenticate(&mut device, 2, 1, much_later);
}

/// The gateway's messages sealed under the previous session may arrive for one more second. The device must not seal
/// after the gateway has replaced the session, even if the ACK has not arrived yet.
#[test]
fn the_session_stays_live_during_its_renewal_and_accepts_messages_for_one_more_second() {
    let mut device = Device::new(config(Mode::Pool));
    authenticate(&mut device, 1, 0, 0);
    assert!(device.previous_session().is_none() && !device.awaits_prompt_ack());
    let first = device.session().unwrap().id;
    let renew_ms = session_renewal(&device);
    assert_eq!(device.poll(renew_ms), Output::NeedNonce);
    let _request = device.start(nonce(2), renew_ms).unwrap();
    assert!(!device.awaits_prompt_ack());
    let offer = TestChallenge::of(Mode::Pool, 1);
    let response = respond(&mut device, &offer, 2, renew_ms);
    assert_eq!(device.session().unwrap().id, first);
    for (copies, at_ms) in [(1, 0), (2, 20), (3, 60), (4, 140)] {
        let _copy = device.poll(renew_ms + at_ms);
        assert_eq!(device.awaits_prompt_ack(), copies < 4, "{copies}");
    }
    let acked_ms = renew_ms + 150;
    let ack = offer.ack(&response, SESSION_LIFETIME_S, LOCAL_IP);
    let output = device.handle(&ack, &LOCAL_IP, acked_ms).unwrap();
    assert!(
        matches!(output, Output::Authenticated(id) if id != first),
        "{output:?}"
    );
    assert_eq!(device.poll(acked_ms + 999), Output::None);
    assert_eq!(device.previous_session().map(|previous| previous.id), Some(first));
    assert_eq!(device.next_deadline(), Some(acked_ms + 1_000));
    assert_eq!(device.poll(acked_ms + 1_000), Output::None);
    assert!(device.previous_session().is_none());
}

#[test]
fn a_relayed_response_gives_no_session_and_the_device_starts_again() {
    let mut device = Device::new(config(Mode::Pool));
    let _request = device.start(nonce(1), 0).unwrap();
    let offer = TestChallenge::of(Mode::Pool, 0);
    let response = respond(&mut device, &offer, 1, 0);
    let relay = [0x42; 16];
    let output = device
        .handle(&offer.ack(&response, SESSION_LIFETIME_S, relay), &LOCAL_IP, 10)
        .unwrap();
    assert!(matches!(
        output,
        Output::Failed {
            failure: Failure::AddressChanged,
            ..
        }
    ));
    assert!(device.session().is_none());
    let outputs = run_alone(&mut device, 10_000);
    assert_eq!(outputs.last().map(|(_, output)| *output), Some(Output::NeedNonce));
}

#[test]
fn dropping_acks_costs_a_pool_device_one_row_per_10_minutes_after_the_first() {
    let mut device = Device::new(config(Mode::Pool));
    let hours = 3;
    let mut responses_at = Vec::new();
    let mut now_ms = 0;
    let mut number = 1;
    let mut output = device.start(nonce(number), now_ms).unwrap();
    while now_ms < hours * 3_600_000 {
        match output {
            Output::NeedNonce => {
                number += 1;
                output = device.start(nonce(number), now_ms).unwrap();
                continue;
            }
            Output::Transmit(_) if device.phase() == Phase::AwaitChallenge => {
                let idx = u32::try_from(responses_at.len()).unwrap();
                let _response = respond(&mut device, &TestChallenge::of(Mode::Pool, idx), number, now_ms);
                responses_at.push(now_ms);
            }
            Output::Postponed { .. } => {
                panic!("the machine does not request a nonce before it may start")
            }
            _ => {}
        }
        now_ms = device.next_deadline().unwrap();
        output = device.poll(now_ms);
    }
    let unplanned = &responses_at[1..];
    assert!(
        unplanned
            .windows(2)
            .all(|pair| pair[1] - pair[0] >= UNPLANNED_INTERVAL_MS),
        "{responses_at:?}"
    );
    assert_eq!(unplanned.len() as u64, hours * 6, "the handshake does not end");
}

#[test]
fn a_caller_that_restarts_repeatedly_is_limited_in_pool_mode_only() {
    for mode in [Mode::Pool, Mode::Key] {
        let mut device = Device::new(config(mode));
        authenticate(&mut device, 1, 0, 0);
        authenticate(&mut device, 2, 1, 1_000);
        let third = device.start(nonce(3), 2_000).unwrap();
        match mode {
            Mode::Key => assert!(matches!(third, Output::Transmit(_))),
            Mode::Pool => {
                assert_eq!(
                    third,
                    Output::Postponed {
                        until_ms: 1_000 + UNPLANNED_INTERVAL_MS
                    }
                );
                assert_eq!(device.poll(600_999), Output::None);
                let early = TestChallenge::of(mode, 2).challenge(&nonce(3));
                assert_eq!(
                    device.handle(&early, &LOCAL_IP, 600_999),
                    Err(IgnoredReason::Unexpected),
                    "no RESPONSE before a CHALLENGE"
                );
                assert!(matches!(device.poll(601_000), Output::Transmit(_)));
            }
        }
    }
}

#[test]
fn planned_renewals_are_not_limited() {
    let mut device = Device::new(config(Mode::Pool));
    authenticate(&mut device, 1, 0, 0);
    for row in 1..50 {
        let renew_ms = session_renewal(&device);
        assert_eq!(device.poll(renew_ms), Output::NeedNonce);
        authenticate(&mut device, u64::from(row) + 1, row, renew_ms);
    }
}

#[test]
fn a_row_is_accepted_again_until_its_ack_verifies_and_never_afterwards() {
    let mut device = Device::new(config(Mode::Pool));
    let _request = device.start(nonce(1), 0).unwrap();
    let _lost = respond(&mut device, &TestChallenge::of(Mode::Pool, 5), 1, 0);
    let _copies = run_alone(&mut device, RESPONSE_LIFETIME_MS);
    authenticate(&mut device, 2, 5, RESPONSE_LIFETIME_MS);
    let renew_ms = session_renewal(&device);
    let _due = device.poll(renew_ms);
    let _request = device.start(nonce(3), renew_ms).unwrap();
    let spent = TestChallenge::of(Mode::Pool, 5);
    let nonce = nonce_with_statement(&device, 3);
    assert_eq!(
        device.handle(&spent.challenge(&nonce), &LOCAL_IP, renew_ms),
        Err(IgnoredReason::IndexSpent)
    );
    let other_challenge = TestChallenge {
        gateway: GatewayId(8),
        ..spent
    };
    assert!(
        matches!(
            device.handle(&other_challenge.challenge(&nonce), &LOCAL_IP, renew_ms),
            Ok(Output::EvaluatePuf(_))
        ),
        "another gateway has a range of its own"
    );
}

/// Each REQUEST of the pool mode states the lowest row above all rows to which the device has responded, with or
/// without an ACK. The CHALLENGE is verified with that statement: a CHALLENGE for another statement gets no RESPONSE.
#[test]
fn a_request_states_the_first_unanswered_row() {
    let mut device = Device::new(config(Mode::Pool));
    device.raise_first_unanswered_row(RowIndex(3));
    let request_statement = |device: &mut Device, nonce, now_ms| {
        let request = sent(device.start(nonce, now_ms).unwrap());
        let Ok(Message::Request(request)) = wire::parse(&request) else {
            panic!("not a REQUEST");
        };
        RowStatement::from_nonce(&request.nonce)
    };
    let statement_of = |row| RowStatement {
        first_unanswered_row: RowIndex(row),
        has_refused_row: false,
    };
    assert_eq!(
        request_statement(&mut device, nonce(1), 0),
        statement_of(3),
        "from persistent storage"
    );
    let _unacknowledged = respond(&mut device, &TestChallenge::of(Mode::Pool, 9), 1, 0);
    assert_eq!(device.responded_row(), Some((GATEWAY, RowIndex(9))));
    let _copies = run_alone(&mut device, RESPONSE_LIFETIME_MS);
    assert_eq!(
        request_statement(&mut device, nonce(2), RESPONSE_LIFETIME_MS),
        statement_of(10)
    );
    let altered = TestChallenge::of(Mode::Pool, 150).challenge(&statement_of(150).write_into(nonce(2)));
    let _query = device.handle(&altered, &LOCAL_IP, RESPONSE_LIFETIME_MS);
    let output = device.puf_result(Ok(row_key(Mode::Pool, 150)), RESPONSE_LIFETIME_MS);
    assert_eq!(output, Output::None, "the CHALLENGE is for another statement");
    let later_ms = RESPONSE_LIFETIME_MS + 20;
    let _response = respond(&mut device, &TestChallenge::of(Mode::Pool, 5), 2, later_ms);
    assert_eq!(
        device.first_unanswered_row(),
        RowIndex(10),
        "the row never decreases"
    );
    assert_eq!(device.last_accepted_row(), None);

    let mut device = Device::new(config(Mode::Key));
    authenticate(&mut device, 1, 0, 0);
    let statement = request_statement(&mut device, [7; 16], 1);
    assert_eq!(
        statement,
        statement_of(0x0707_0707),
        "in key mode the nonce is unchanged"
    );
}

/// A caller that knows that the device has responded to a row refuses the row without a reading, and the handshake
/// continues.
#[test]
fn a_refused_row_costs_no_reading_and_is_stated() {
    let mut device = Device::new(config(Mode::Pool));
    let _request = device.start(nonce(1), 0).unwrap();
    let spent = TestChallenge::of(Mode::Pool, 4).challenge(&nonce(1));
    for _ in 0..2 * READINGS_AT_ONCE {
        let query = device.handle(&spent, &LOCAL_IP, 0).unwrap();
        assert!(matches!(query, Output::EvaluatePuf(_)));
        assert_eq!(device.offered_row(), Some((GATEWAY, RowIndex(4))));
        assert_eq!(device.refuse_row(0), Output::None);
    }
    let _query = device.handle(&spent, &LOCAL_IP, 0).unwrap();
    let genuine = TestChallenge::of(Mode::Pool, 5);
    let _queued = device
        .handle(&genuine.challenge(&nonce(1)), &LOCAL_IP, 0)
        .unwrap();
    let next = device.refuse_row(0);
    assert!(
        matches!(next, Output::EvaluatePuf(query) if query.idx == RowIndex(5)),
        "{next:?}"
    );
    let response = sent(device.puf_result(Ok(row_key(Mode::Pool, 5)), 0));
    assert!(device.row_statement().has_refused_row);
    let _session = device
        .handle(
            &genuine.ack(&response, SESSION_LIFETIME_S, LOCAL_IP),
            &LOCAL_IP,
            0,
        )
        .unwrap();
    assert_eq!(device.last_accepted_row(), Some((GATEWAY, RowIndex(5))));
    assert!(
        !device.row_statement().has_refused_row,
        "a session clears the statement"
    );
}

#[test]
fn delays_after_failures_grow_up_to_a_minute_and_a_success_resets_them() {
    let mut device = Device::new(config(Mode::Key));
    let mut now_ms = 0;
    let mut delays = Vec::new();
    for number in 1..=6 {
        let _request = device.start(nonce(number), now_ms).unwrap();
        let outputs = run_alone(&mut device, now_ms + 5_100);
        let (at, Output::Failed { retry_at_ms, .. }) = *outputs.last().unwrap() else {
            panic!("{outputs:?}");
        };
        delays.push(retry_at_ms - at);
        now_ms = retry_at_ms;
        assert_eq!(device.poll(now_ms), Output::NeedNonce);
    }
    for (delay, full) in delays.iter().zip([5_000, 10_000, 20_000, 40_000, 60_000, 60_000]) {
        assert!((full * 3 / 4..=full).contains(delay), "{delays:?}");
    }
    authenticate(&mut device, 7, 0, now_ms);
}

#[test]
fn the_policy_pins_one_to_four_gateways() {
    assert_eq!(GatewayPolicy::pinned(&[]), None);
    assert_eq!(GatewayPolicy::pinned(&[GatewayId(1); 5]), None);
    let policy = GatewayPolicy::pinned(&[GatewayId(1), GatewayId(2)]).unwrap();
    assert!(policy.allows(GatewayId(2)) && !policy.allows(GatewayId(3)));
    assert!(GatewayPolicy::ANY.allows(GatewayId(3)));
}
