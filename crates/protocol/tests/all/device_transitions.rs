//! Every (state, event) pair of the device role: the output and the next state.

use crate::device_support::{
    DEVICE, LOCAL_IP, SESSION_LIFETIME_S, SUITE, TestChallenge, authenticate, bytes, config, nonce,
    nonce_with_statement, respond, row_key, sent,
};
use linewarden_protocol::device::{Device, Failure, IgnoredReason, Output, Phase, PufFailed, StartError};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode};
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{self, message_type};
use zerocopy::IntoBytes as _;

/// The phases, subdivided where a previous session or a queued CHALLENGE changes the result. In `AwaitReading` a
/// CHALLENGE is queued, and the device waits until another PUF reading is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Idle,
    AwaitChallenge,
    AwaitPuf,
    AwaitPufQueued,
    AwaitReading,
    AwaitAck,
    Authenticated,
    RenewalAwaitChallenge,
    RenewalAwaitPuf,
    RenewalAwaitAck,
}

const STATES: [State; 10] = [
    State::Idle,
    State::AwaitChallenge,
    State::AwaitPuf,
    State::AwaitPufQueued,
    State::AwaitReading,
    State::AwaitAck,
    State::Authenticated,
    State::RenewalAwaitChallenge,
    State::RenewalAwaitPuf,
    State::RenewalAwaitAck,
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    Start,
    StartZeroNonce,
    StartSameNonce,
    Challenge,
    ChallengeAgain,
    ChallengeOtherEcho,
    ChallengeOtherDevice,
    ChallengeUnpinnedGateway,
    ChallengeSpentRow,
    Ack,
    AckOtherRow,
    AckOtherSession,
    AckWrongTag,
    AckOtherAddress,
    AckSessionExpired,
    Nak,
    Request,
    Response,
    DataUp,
    DataDown,
    Malformed,
    PufRight,
    PufWrong,
    PufFails,
    PollEarly,
    PollDue,
    PollGiveUp,
    PollSessionExpired,
    Abandon,
}

const EVENTS: [Event; 29] = [
    Event::Start,
    Event::StartZeroNonce,
    Event::StartSameNonce,
    Event::Challenge,
    Event::ChallengeAgain,
    Event::ChallengeOtherEcho,
    Event::ChallengeOtherDevice,
    Event::ChallengeUnpinnedGateway,
    Event::ChallengeSpentRow,
    Event::Ack,
    Event::AckOtherRow,
    Event::AckOtherSession,
    Event::AckWrongTag,
    Event::AckOtherAddress,
    Event::AckSessionExpired,
    Event::Nak,
    Event::Request,
    Event::Response,
    Event::DataUp,
    Event::DataDown,
    Event::Malformed,
    Event::PufRight,
    Event::PufWrong,
    Event::PufFails,
    Event::PollEarly,
    Event::PollDue,
    Event::PollGiveUp,
    Event::PollSessionExpired,
    Event::Abandon,
];

/// The output without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ExpectedOutput {
    Nothing,
    Request,
    Response,
    Evaluate,
    NeedNonce,
    Authenticated,
    Expired,
    Failed(Failure),
    Refused(StartError),
    Ignored(IgnoredReason),
}

/// The time at which each state is reached. The renewal of a previous session has been due for a while.
const NOW_MS: u64 = 10_000_000;
const OLD_ROW: u32 = 4;
const ROW: u32 = 5;
const OLD_SESSION_AT_MS: u64 = NOW_MS - SESSION_LIFETIME_S as u64 * 1_000 + 100_000;
const HANDSHAKE: u64 = 2;

/// Returns a device in this state, and the RESPONSE that it sent, if any.
fn reach(state: State, mode: Mode) -> (Device, Option<[u8; 64]>) {
    let mut device = Device::new(config(mode));
    let is_renewal = matches!(
        state,
        State::Authenticated | State::RenewalAwaitChallenge | State::RenewalAwaitPuf | State::RenewalAwaitAck
    );
    if is_renewal {
        authenticate(&mut device, 1, OLD_ROW, OLD_SESSION_AT_MS);
    }
    if matches!(state, State::Idle | State::Authenticated) {
        return (device, None);
    }
    let _request = device.start(nonce(HANDSHAKE), NOW_MS).unwrap();
    let nonce = nonce_with_statement(&device, HANDSHAKE);
    let offer = TestChallenge::of(mode, ROW);
    let mut response = None;
    match state {
        State::AwaitPuf | State::RenewalAwaitPuf => {
            let _query = feed(&mut device, &offer.challenge(&nonce));
        }
        State::AwaitPufQueued => {
            let _query = feed(&mut device, &offer.challenge(&nonce));
            let next = TestChallenge {
                fresh: [0x77; 8],
                ..offer
            };
            let _nothing = feed(&mut device, &next.challenge(&nonce));
        }
        State::AwaitReading => {
            let _query = feed(&mut device, &offer.challenge(&nonce));
            let _nothing = device.puf_result(Err(PufFailed), NOW_MS);
            let _nothing = feed(&mut device, &offer.challenge(&nonce));
        }
        State::AwaitAck | State::RenewalAwaitAck => {
            response = Some(respond(&mut device, &offer, HANDSHAKE, NOW_MS));
        }
        State::Idle | State::AwaitChallenge | State::Authenticated | State::RenewalAwaitChallenge => {}
    }
    (device, response)
}

fn feed(device: &mut Device, message: &[u8]) -> Result<Output, IgnoredReason> {
    device.handle(message, &LOCAL_IP, NOW_MS)
}

/// Returns an ACK for the RESPONSE that was sent, or for a RESPONSE that was never sent.
fn ack(mode: Mode, response: Option<[u8; 64]>, lifetime_s: u32, seen_ip: [u8; 16]) -> [u8; 64] {
    let response = response.unwrap_or_else(|| {
        let mut other = Device::new(config(mode));
        let _request = other.start(nonce(HANDSHAKE), NOW_MS).unwrap();
        respond(&mut other, &TestChallenge::of(mode, ROW), HANDSHAKE, NOW_MS)
    });
    TestChallenge::of(mode, ROW).ack(&response, lifetime_s, seen_ip)
}

fn altered(mut message: [u8; 64], at: usize) -> [u8; 64] {
    message[at] ^= 1;
    message
}

fn plain(kind: u8) -> [u8; 64] {
    let mut message = [0u8; 64];
    message[..16].copy_from_slice(wire::Header::new(kind, SUITE, 0, DEVICE).as_bytes());
    message
}

fn apply(device: &mut Device, event: Event, mode: Mode, response: Option<[u8; 64]>) -> ExpectedOutput {
    let offer = TestChallenge::of(mode, ROW);
    let handshake_nonce = nonce_with_statement(device, HANDSHAKE);
    let challenge = |offer: TestChallenge| offer.challenge(&handshake_nonce);
    let other_ip = [9; 16];
    let started =
        |result: Result<Output, StartError>| result.map_or_else(ExpectedOutput::Refused, without_payload);
    let message: Vec<u8> = match event {
        Event::Start => return started(device.start(nonce(3), NOW_MS)),
        Event::StartZeroNonce => return started(device.start([0; 16], NOW_MS)),
        Event::StartSameNonce => {
            let last = if device.phase() == Phase::Authenticated {
                1
            } else {
                HANDSHAKE
            };
            return started(device.start(nonce(last), NOW_MS));
        }
        Event::PufRight => return without_payload(device.puf_result(Ok(row_key(mode, ROW)), NOW_MS)),
        Event::PufWrong => return without_payload(device.puf_result(Ok(wrong_key()), NOW_MS)),
        Event::PufFails => return without_payload(device.puf_result(Err(PufFailed), NOW_MS)),
        Event::PollEarly => return without_payload(device.poll(NOW_MS + 19)),
        Event::PollDue => return without_payload(device.poll(NOW_MS + 20)),
        Event::PollGiveUp => return without_payload(device.poll(NOW_MS + 60_000)),
        Event::PollSessionExpired => return without_payload(device.poll(NOW_MS + 100_000)),
        Event::Abandon => {
            device.abandon();
            return ExpectedOutput::Nothing;
        }
        Event::Challenge => challenge(offer).to_vec(),
        Event::ChallengeAgain => challenge(TestChallenge {
            fresh: [0x77; 8],
            ..offer
        })
        .to_vec(),
        Event::ChallengeOtherEcho => offer.challenge(&nonce(99)).to_vec(),
        Event::ChallengeOtherDevice => challenge(TestChallenge {
            device: DeviceId(1),
            ..offer
        })
        .to_vec(),
        Event::ChallengeUnpinnedGateway => challenge(TestChallenge {
            gateway: GatewayId(99),
            ..offer
        })
        .to_vec(),
        Event::ChallengeSpentRow => challenge(TestChallenge {
            idx: OLD_ROW,
            ..offer
        })
        .to_vec(),
        Event::Ack => ack(mode, response, SESSION_LIFETIME_S, LOCAL_IP).to_vec(),
        Event::AckOtherRow => altered(ack(mode, response, SESSION_LIFETIME_S, LOCAL_IP), 19).to_vec(),
        Event::AckOtherSession => altered(ack(mode, response, SESSION_LIFETIME_S, LOCAL_IP), 31).to_vec(),
        Event::AckWrongTag => altered(ack(mode, response, SESSION_LIFETIME_S, LOCAL_IP), 47).to_vec(),
        Event::AckOtherAddress => ack(mode, response, SESSION_LIFETIME_S, other_ip).to_vec(),
        Event::AckSessionExpired => ack(mode, response, 0, LOCAL_IP).to_vec(),
        Event::Nak => plain(message_type::NAK).to_vec(),
        Event::Request => plain(message_type::REQUEST).to_vec(),
        Event::Response => plain(message_type::RESPONSE).to_vec(),
        Event::DataUp => plain(message_type::DATA_UP).to_vec(),
        Event::DataDown => plain(message_type::DATA_DOWN).to_vec(),
        Event::Malformed => vec![0; 64],
    };
    feed(device, &message).map_or_else(ExpectedOutput::Ignored, without_payload)
}

fn wrong_key() -> linewarden_protocol::keys::RowKey {
    linewarden_protocol::keys::RowKey::from_bytes([0x66; 16])
}

fn without_payload(output: Output) -> ExpectedOutput {
    match output {
        Output::None => ExpectedOutput::Nothing,
        Output::Transmit(message) if message[3] == message_type::REQUEST => ExpectedOutput::Request,
        Output::Transmit(_) => ExpectedOutput::Response,
        Output::EvaluatePuf(_) => ExpectedOutput::Evaluate,
        Output::NeedNonce => ExpectedOutput::NeedNonce,
        Output::Postponed { .. } => panic!("no output is postponed in this test"),
        Output::Authenticated(_) => ExpectedOutput::Authenticated,
        Output::SessionExpired => ExpectedOutput::Expired,
        Output::Failed { failure, .. } => ExpectedOutput::Failed(failure),
    }
}

/// The table: output and next phase. The previous session is live unless stated otherwise.
fn expected(state: State, event: Event, mode: Mode) -> (ExpectedOutput, Phase) {
    use Event as E;
    use State as S;
    let idle_phase = if has_session(state) {
        Phase::Authenticated
    } else {
        Phase::Idle
    };
    let same_phase = phase(state);
    let awaits_challenge = matches!(
        state,
        S::AwaitChallenge | S::AwaitReading | S::RenewalAwaitChallenge
    );
    let awaits_puf = matches!(state, S::AwaitPuf | S::AwaitPufQueued | S::RenewalAwaitPuf);
    let awaits_ack = matches!(state, S::AwaitAck | S::RenewalAwaitAck);
    let is_idle = matches!(state, S::Idle | S::Authenticated);
    match event {
        E::Start if is_idle => (ExpectedOutput::Request, Phase::AwaitChallenge),
        // An idle device has no previous nonce.
        E::StartSameNonce if state == S::Idle => (ExpectedOutput::Request, Phase::AwaitChallenge),
        E::StartZeroNonce | E::StartSameNonce if is_idle => {
            (ExpectedOutput::Refused(StartError::BadNonce), same_phase)
        }
        E::Start | E::StartZeroNonce | E::StartSameNonce => (
            ExpectedOutput::Refused(StartError::HandshakeInProgress),
            same_phase,
        ),

        E::ChallengeOtherDevice => (ExpectedOutput::Ignored(IgnoredReason::OtherDevice), same_phase),
        E::Challenge
        | E::ChallengeAgain
        | E::ChallengeOtherEcho
        | E::ChallengeUnpinnedGateway
        | E::ChallengeSpentRow
            if is_idle || awaits_ack =>
        {
            (ExpectedOutput::Ignored(IgnoredReason::Unexpected), same_phase)
        }
        E::ChallengeOtherEcho => (ExpectedOutput::Ignored(IgnoredReason::NonceEcho), same_phase),
        E::ChallengeUnpinnedGateway => (ExpectedOutput::Ignored(IgnoredReason::Gateway), same_phase),
        E::ChallengeSpentRow if has_session(state) && mode == Mode::Pool => {
            (ExpectedOutput::Ignored(IgnoredReason::IndexSpent), same_phase)
        }
        E::ChallengeSpentRow if state == S::AwaitReading => (ExpectedOutput::Nothing, same_phase),
        E::Challenge | E::ChallengeAgain if state == S::AwaitReading => {
            (ExpectedOutput::Ignored(IgnoredReason::Duplicate), same_phase)
        }
        E::Challenge | E::ChallengeAgain | E::ChallengeSpentRow if awaits_challenge => {
            (ExpectedOutput::Evaluate, Phase::AwaitPuf)
        }
        E::Challenge => (ExpectedOutput::Ignored(IgnoredReason::Duplicate), same_phase),
        E::ChallengeAgain if state == S::AwaitPufQueued => {
            (ExpectedOutput::Ignored(IgnoredReason::Duplicate), same_phase)
        }
        E::ChallengeAgain | E::ChallengeSpentRow => (ExpectedOutput::Nothing, same_phase),

        E::Ack if awaits_ack => (ExpectedOutput::Authenticated, Phase::Authenticated),
        E::AckOtherRow | E::AckOtherSession if awaits_ack => (
            ExpectedOutput::Ignored(IgnoredReason::ResponseMismatch),
            same_phase,
        ),
        E::AckWrongTag if awaits_ack => (ExpectedOutput::Ignored(IgnoredReason::AckTag), same_phase),
        // The gateway has replaced the previous session, so the device closes this session.
        E::AckOtherAddress if awaits_ack => (ExpectedOutput::Failed(Failure::AddressChanged), Phase::Idle),
        E::AckSessionExpired if awaits_ack => (ExpectedOutput::Failed(Failure::SessionExpired), Phase::Idle),
        E::Ack
        | E::AckOtherRow
        | E::AckOtherSession
        | E::AckWrongTag
        | E::AckOtherAddress
        | E::AckSessionExpired => (ExpectedOutput::Ignored(IgnoredReason::Unexpected), same_phase),

        E::Nak if awaits_challenge => (ExpectedOutput::Nothing, same_phase),
        E::Nak => (ExpectedOutput::Ignored(IgnoredReason::Unexpected), same_phase),
        E::Request | E::Response | E::DataUp => {
            (ExpectedOutput::Ignored(IgnoredReason::Direction), same_phase)
        }
        E::DataDown => (
            ExpectedOutput::Ignored(IgnoredReason::UnsupportedType),
            same_phase,
        ),
        E::Malformed => (
            ExpectedOutput::Ignored(IgnoredReason::Malformed(Verdict::DropMagic)),
            same_phase,
        ),

        E::PufRight if awaits_puf => (ExpectedOutput::Response, Phase::AwaitAck),
        // In pool mode one reading decides about both CHALLENGEs of the row. In key mode there may be other helper
        // data.
        E::PufWrong if awaits_puf && mode == Mode::Key => (ExpectedOutput::Evaluate, Phase::AwaitPuf),
        E::PufWrong | E::PufFails if awaits_puf => (ExpectedOutput::Nothing, Phase::AwaitChallenge),
        E::PufRight | E::PufWrong | E::PufFails => (ExpectedOutput::Nothing, same_phase),

        // The renewal has been due for a while.
        E::PollEarly | E::PollDue | E::PollGiveUp if state == S::Authenticated => {
            (ExpectedOutput::NeedNonce, same_phase)
        }
        E::PollSessionExpired if has_session(state) => (
            ExpectedOutput::Expired,
            if is_idle { Phase::Idle } else { same_phase },
        ),
        E::PollEarly => (ExpectedOutput::Nothing, same_phase),
        E::PollDue | E::PollGiveUp | E::PollSessionExpired if state == S::AwaitReading => {
            (ExpectedOutput::Evaluate, Phase::AwaitPuf)
        }
        E::PollDue | E::PollGiveUp | E::PollSessionExpired if awaits_challenge => {
            (ExpectedOutput::Request, same_phase)
        }
        E::PollDue if awaits_ack => (ExpectedOutput::Response, same_phase),
        E::PollGiveUp | E::PollSessionExpired if awaits_ack => {
            (ExpectedOutput::Failed(Failure::NoAck), idle_phase)
        }
        E::PollDue | E::PollGiveUp | E::PollSessionExpired => (ExpectedOutput::Nothing, same_phase),

        E::Abandon => (ExpectedOutput::Nothing, Phase::Idle),
    }
}

fn phase(state: State) -> Phase {
    match state {
        State::Idle => Phase::Idle,
        State::AwaitChallenge | State::AwaitReading | State::RenewalAwaitChallenge => Phase::AwaitChallenge,
        State::AwaitPuf | State::AwaitPufQueued | State::RenewalAwaitPuf => Phase::AwaitPuf,
        State::AwaitAck | State::RenewalAwaitAck => Phase::AwaitAck,
        State::Authenticated => Phase::Authenticated,
    }
}

fn has_session(state: State) -> bool {
    matches!(
        state,
        State::Authenticated | State::RenewalAwaitChallenge | State::RenewalAwaitPuf | State::RenewalAwaitAck
    )
}

/// Whether a session is live after this transition.
fn session_after(state: State, event: Event, next: Phase) -> bool {
    match event {
        Event::Ack | Event::AckOtherAddress | Event::AckSessionExpired if phase(state) == Phase::AwaitAck => {
            next == Phase::Authenticated
        }
        Event::PollSessionExpired | Event::Abandon => false,
        _ => has_session(state),
    }
}

#[test]
fn every_event_in_every_state_matches_the_table() {
    for mode in [Mode::Pool, Mode::Key] {
        for state in STATES {
            for event in EVENTS {
                let (mut device, response) = reach(state, mode);
                assert_eq!(device.phase(), phase(state), "{state:?} is not reached");
                let got = apply(&mut device, event, mode, response);
                let (expected_output, next) = expected(state, event, mode);
                assert_eq!(got, expected_output, "{mode:?} {state:?} {event:?}: output");
                assert_eq!(device.phase(), next, "{mode:?} {state:?} {event:?}: next phase");
                assert_eq!(
                    device.session().is_some(),
                    session_after(state, event, next),
                    "{mode:?} {state:?} {event:?}: session"
                );
            }
        }
    }
}

/// Ignored messages leave no trace in the device's state.
#[test]
fn ignored_messages_change_nothing() {
    for state in STATES {
        for event in EVENTS {
            let (mut device, response) = reach(state, Mode::Pool);
            let (expected, _) = reach(state, Mode::Pool);
            if matches!(
                apply(&mut device, event, Mode::Pool, response),
                ExpectedOutput::Ignored(_) | ExpectedOutput::Refused(_)
            ) {
                assert_eq!(
                    format!("{device:?}"),
                    format!("{expected:?}"),
                    "{state:?} {event:?}"
                );
            }
        }
    }
}

#[test]
fn a_nak_is_stored_for_display_and_changes_no_state() {
    let (mut device, _) = reach(State::AwaitChallenge, Mode::Pool);
    let message = bytes(&wire::Nak {
        header: wire::Header::new(message_type::NAK, SUITE, 0, DEVICE),
        idx: 9.into(),
        reason: wire::nak_reason::NO_ROWS,
        reserved: [0; 43],
    });
    assert_eq!(feed(&mut device, &message), Ok(Output::None));
    let stored = device.last_nak().expect("the NAK is stored for display");
    assert_eq!((stored.reason, stored.idx.0), (wire::nak_reason::NO_ROWS, 9));
    let repeat = sent(device.poll(NOW_MS + 20));
    assert_eq!(repeat[3], message_type::REQUEST, "a NAK changes nothing");
}
