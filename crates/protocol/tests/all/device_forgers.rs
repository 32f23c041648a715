//! Forged CHALLENGEs and PUF readings (LAP/1 1.5): forged messages end no handshake, cost a bounded number of
//! readings, and lock no device out.

use crate::device_support::{LOCAL_IP, TestChallenge, authenticate, config, nonce, respond, row_key, sent};
use linewarden_protocol::device::{
    Device, Failure, IgnoredReason, Output, Phase, PufFailed, READING_INTERVAL_MS, READINGS_AT_ONCE,
};
use linewarden_protocol::ids::Mode;
use linewarden_protocol::keys::RowKey;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// A CHALLENGE with the nonce's echo and a wrong tag.
fn forged(mode: Mode, idx: u32, nonce: &[u8; 16]) -> [u8; 64] {
    let mut challenge = TestChallenge::of(mode, 0).challenge(nonce);
    challenge[16..20].copy_from_slice(&idx.to_be_bytes());
    challenge[63] ^= 1;
    challenge
}

/// Reads the PUF as long as the device requests readings; returns the number of readings and the next output.
fn read_all(device: &mut Device, mut output: Output, now_ms: u64) -> (u64, Output) {
    let mode = device.config().mode;
    let mut readings = 0;
    while let Output::EvaluatePuf(query) = output {
        readings += 1;
        output = device.puf_result(Ok(row_key(mode, query.idx.0)), now_ms);
    }
    (readings, output)
}

#[test]
fn a_flood_of_forged_challenges_costs_4_readings_and_then_one_a_second_and_ends_no_handshake() {
    let mut device = Device::new(config(Mode::Pool));
    let _request = device.start(nonce(1), 0).unwrap();
    let mut readings = 0;
    for now_ms in 0..5_000 {
        let challenge = forged(Mode::Pool, now_ms as u32, &nonce(1));
        let output = device
            .handle(&challenge, &LOCAL_IP, now_ms)
            .unwrap_or(Output::None);
        let (count, output) = read_all(&mut device, output, now_ms);
        readings += count;
        assert!(!matches!(output, Output::Failed { .. }), "at {now_ms} ms");
        while let output @ (Output::Transmit(_) | Output::EvaluatePuf(_)) = device.poll(now_ms) {
            readings += read_all(&mut device, output, now_ms).0;
        }
        let allowed = READINGS_AT_ONCE + now_ms / READING_INTERVAL_MS;
        assert!(readings <= allowed, "{readings} readings after {now_ms} ms");
    }
    assert_eq!(readings, READINGS_AT_ONCE + 4);
    assert_eq!(
        device.phase(),
        Phase::AwaitChallenge,
        "the handshake is still open"
    );
}

#[test]
fn forged_challenges_of_the_right_row_cost_one_reading_together() {
    for mode in [Mode::Pool, Mode::Key] {
        let mut device = Device::new(config(mode));
        let _request = device.start(nonce(1), 0).unwrap();
        let mut readings = 0;
        for fresh in 1..=200u8 {
            let offer = TestChallenge {
                fresh: [fresh; 8],
                ..TestChallenge::of(mode, 3)
            };
            let mut challenge = offer.challenge(&nonce(1));
            challenge[63] ^= 1;
            match device.handle(&challenge, &LOCAL_IP, 1) {
                Ok(output) => readings += read_all(&mut device, output, 1).0,
                Err(ignored) => assert_eq!(ignored, IgnoredReason::ChallengeTag),
            }
        }
        // In key mode the second reading shows that there are no other helper data to try.
        assert_eq!(readings, if mode == Mode::Key { 2 } else { 1 });
        let genuine = TestChallenge::of(mode, 3).challenge(&nonce(1));
        let _response = sent(device.handle(&genuine, &LOCAL_IP, 1).unwrap());
    }
}

/// During a key renewal the device reads with one set of helper data after the other.
#[test]
fn a_second_set_of_helper_data_is_tried_for_the_same_challenge() {
    let mut device = Device::new(config(Mode::Key));
    let _request = device.start(nonce(1), 0).unwrap();
    let challenge = TestChallenge::of(Mode::Key, 0).challenge(&nonce(1));
    let _query = device.handle(&challenge, &LOCAL_IP, 0).unwrap();
    let renewed = device.puf_result(Ok(RowKey::from_bytes([9; 16])), 0);
    assert!(matches!(renewed, Output::EvaluatePuf(_)), "{renewed:?}");
    let _response = sent(device.puf_result(Ok(row_key(Mode::Key, 0)), 0));
}

#[test]
fn rows_that_are_not_enrolled_cost_no_reading() {
    let mut device = Device::new(config(Mode::Pool));
    let _request = device.start(nonce(1), 0).unwrap();
    for idx in 0..100 {
        let challenge = forged(Mode::Pool, idx, &nonce(1));
        let ignored =
            device.handle_with_enrolled_rows(&challenge, &LOCAL_IP, 1, |query| query.challenge == [0; 8]);
        assert_eq!(ignored, Err(IgnoredReason::UnknownRow));
    }
    let _response = respond(&mut device, &TestChallenge::of(Mode::Pool, 3), 1, 1);
}

/// The device knows the next row of its gateway.
#[test]
fn a_device_with_an_earlier_session_reads_the_puf_for_the_expected_row_first() {
    let mut device = Device::new(config(Mode::Pool));
    authenticate(&mut device, 1, 10, 0);
    let renew_ms = device.session().unwrap().renew_at_ms;
    let _due = device.poll(renew_ms);
    let nonce = device.row_statement().write_into(nonce(2));
    let _request = device.start(nonce, renew_ms).unwrap();
    // Any row is plausible for another gateway, which the device does not know yet.
    for idx in 0..1_000 {
        let mut of_gateway_8 = forged(Mode::Pool, idx, &nonce);
        of_gateway_8[20..24].copy_from_slice(&8u32.to_be_bytes());
        for challenge in [of_gateway_8, forged(Mode::Pool, 1_010 - idx, &nonce)] {
            if let Ok(output) = device.handle(&challenge, &LOCAL_IP, renew_ms) {
                let _ = read_all(&mut device, output, renew_ms);
            }
        }
    }
    let mut rows = Vec::new();
    let now_ms = renew_ms + 20;
    let mut output = device.poll(now_ms);
    while output != Output::None {
        output = match output {
            Output::EvaluatePuf(query) => {
                rows.push(query.idx.0);
                device.puf_result(Ok(row_key(Mode::Pool, query.idx.0)), now_ms)
            }
            Output::Transmit(_) => device.poll(now_ms),
            output => panic!("{output:?} after {rows:?}"),
        };
    }
    assert!(rows[..2].contains(&11), "{rows:?}");
    let genuine = TestChallenge::of(Mode::Pool, 11).challenge(&nonce);
    let _response = sent(device.handle(&genuine, &LOCAL_IP, now_ms).unwrap());
}

/// An attacker on the device's segment sends a forged CHALLENGE for another row each millisecond, faster than the
/// gateway. The device has just started and does not know the next row.
#[test]
fn a_genuine_challenge_wins_against_a_thousand_forged_ones_a_second() {
    const ROWS: u32 = 256;
    const SEED: u64 = 0x1f0a_57e2;
    println!("seed {SEED:#x}");
    for run in 0..10 {
        let mut random = StdRng::seed_from_u64(SEED + run);
        let genuine_row = random.random_range(0..ROWS);
        let mut device = Device::new(config(Mode::Pool));
        let (mut now_ms, mut handshakes, mut readings) = (0, 1, 0);
        let mut current_nonce = device.row_statement().write_into(random.random());
        let mut outputs = vec![device.start(current_nonce, now_ms).unwrap()];
        let mut genuine_at_ms = None;
        let forge = |random: &mut StdRng, current_nonce: &[u8; 16]| {
            forged(Mode::Pool, random.random_range(0..ROWS), current_nonce)
        };
        while device.phase() != Phase::AwaitAck {
            assert!(now_ms < 600_000, "run {run}: locked out, {readings} readings");
            while let Some(output) = outputs.pop() {
                match output {
                    Output::Transmit(_) => genuine_at_ms = Some(now_ms + 1),
                    Output::EvaluatePuf(query) => {
                        readings += 1;
                        // Another forged CHALLENGE arrives while the PUF is read.
                        let _ = device.handle(&forge(&mut random, &current_nonce), &LOCAL_IP, now_ms);
                        outputs.push(device.puf_result(Ok(row_key(Mode::Pool, query.idx.0)), now_ms));
                    }
                    Output::NeedNonce => {
                        handshakes += 1;
                        current_nonce = device.row_statement().write_into(random.random());
                        outputs.push(device.start(current_nonce, now_ms).unwrap());
                    }
                    _ => {}
                }
            }
            outputs.extend(device.handle(&forge(&mut random, &current_nonce), &LOCAL_IP, now_ms));
            if genuine_at_ms == Some(now_ms) {
                let challenge = TestChallenge::of(Mode::Pool, genuine_row).challenge(&current_nonce);
                outputs.extend(device.handle(&challenge, &LOCAL_IP, now_ms));
            }
            outputs.push(device.poll(now_ms));
            now_ms += 1;
        }
        println!("run {run}: {handshakes} handshakes, {readings} readings, {now_ms} ms");
        // As stated in docs/protocols.md 1.5.
        assert!(now_ms <= 46_000, "run {run}: {now_ms} ms");
    }
}

#[test]
fn a_puf_that_cannot_be_read_is_read_again_and_ends_the_handshake_with_its_last_request() {
    let mut device = Device::new(config(Mode::Key));
    let _request = device.start(nonce(1), 0).unwrap();
    let challenge = TestChallenge::of(Mode::Key, 0).challenge(&nonce(1));
    let mut readings = 0;
    let failure = loop {
        let now_ms = device.next_deadline().unwrap();
        match device.poll(now_ms) {
            Output::Transmit(_) => {
                if let Ok(Output::EvaluatePuf(_)) = device.handle(&challenge, &LOCAL_IP, now_ms) {
                    readings += 1;
                    assert_eq!(device.puf_result(Err(PufFailed), now_ms), Output::None);
                }
            }
            Output::EvaluatePuf(_) => {
                readings += 1;
                assert_eq!(device.puf_result(Err(PufFailed), now_ms), Output::None);
            }
            Output::Failed { failure, .. } => break failure,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(failure, Failure::ChallengesRejected);
    assert!(readings > READINGS_AT_ONCE, "{readings} readings");
    assert_eq!(device.rejected_challenges(), 0, "no challenge was checked");
}

#[test]
fn a_clone_with_another_puf_never_responds() {
    let mut device = Device::new(config(Mode::Pool));
    let _request = device.start(nonce(1), 0).unwrap();
    let challenge = TestChallenge::of(Mode::Pool, 0).challenge(&nonce(1));
    let query = device.handle(&challenge, &LOCAL_IP, 0).unwrap();
    assert!(matches!(query, Output::EvaluatePuf(_)));
    let output = device.puf_result(Ok(RowKey::from_bytes([1; 16])), 0);
    assert_eq!(output, Output::None);
    for now_ms in 0..5_000 {
        let result = device.handle(&challenge, &LOCAL_IP, now_ms);
        assert_eq!(result, Err(IgnoredReason::ChallengeTag));
    }
}
