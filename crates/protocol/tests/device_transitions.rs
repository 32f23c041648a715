//! Every (state, event) pair of the device role: what comes out, and where the machine stands afterwards.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod device_support;

use device_support::{
    DEVICE, LEASE_S, LOCAL_IP, Offer, SUITE, answer, authenticate, bytes, config, nonce, row_key, sent,
    stated,
};
use linewarden_protocol::device::{Device, Failure, Ignored, Output, Phase, PufFailed, StartError};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode};
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{self, message_type};
use zerocopy::IntoBytes as _;

/// The phases, told apart where a session from before or a waiting CHALLENGE changes what happens. In `AwaitReading` one waits
/// until the gateway's will have come.
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
    AckLeaseOver,
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
    PollLeaseOver,
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
    Event::AckLeaseOver,
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
    Event::PollLeaseOver,
    Event::Abandon,
];

/// What came out, without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Out {
    Nothing,
    Request,
    Response,
    Evaluate,
    NeedNonce,
    Authenticated,
    Expired,
    Failed(Failure),
    Refused(StartError),
    Ignored(Ignored),
}

/// Every state is reached at this time, so that the session before it was renewable for a while.
const NOW_MS: u64 = 10_000_000;
const OLD_ROW: u32 = 4;
const ROW: u32 = 5;
const OLD_SESSION_AT_MS: u64 = NOW_MS - LEASE_S as u64 * 1_000 + 100_000;
const HANDSHAKE: u64 = 2;

/// A device in that state and the RESPONSE it sent, if it did.
fn reach(state: State, mode: Mode) -> (Device, Option<[u8; 64]>) {
    let mut device = Device::new(config(mode));
    let renewal = matches!(
        state,
        State::Authenticated | State::RenewalAwaitChallenge | State::RenewalAwaitPuf | State::RenewalAwaitAck
    );
    if renewal {
        authenticate(&mut device, 1, OLD_ROW, OLD_SESSION_AT_MS);
    }
    if matches!(state, State::Idle | State::Authenticated) {
        return (device, None);
    }
    let _request = device.start(nonce(HANDSHAKE), NOW_MS).unwrap();
    let nonce = stated(&device, HANDSHAKE);
    let offer = Offer::of(mode, ROW);
    let mut response = None;
    match state {
        State::AwaitPuf | State::RenewalAwaitPuf => {
            let _query = feed(&mut device, &offer.challenge(&nonce));
        }
        State::AwaitPufQueued => {
            let _query = feed(&mut device, &offer.challenge(&nonce));
            let next = Offer {
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
            response = Some(answer(&mut device, &offer, HANDSHAKE, NOW_MS));
        }
        State::Idle | State::AwaitChallenge | State::Authenticated | State::RenewalAwaitChallenge => {}
    }
    (device, response)
}

fn feed(device: &mut Device, message: &[u8]) -> Result<Output, Ignored> {
    device.handle(message, &LOCAL_IP, NOW_MS)
}

/// An ACK for the RESPONSE sent, or for one that never was.
fn ack(mode: Mode, response: Option<[u8; 64]>, lease_s: u32, seen_ip: [u8; 16]) -> [u8; 64] {
    let response = response.unwrap_or_else(|| {
        let mut other = Device::new(config(mode));
        let _request = other.start(nonce(HANDSHAKE), NOW_MS).unwrap();
        answer(&mut other, &Offer::of(mode, ROW), HANDSHAKE, NOW_MS)
    });
    Offer::of(mode, ROW).ack(&response, lease_s, seen_ip)
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

fn apply(device: &mut Device, event: Event, mode: Mode, response: Option<[u8; 64]>) -> Out {
    let offer = Offer::of(mode, ROW);
    let of_handshake = stated(device, HANDSHAKE);
    let challenge = |offer: Offer| offer.challenge(&of_handshake);
    let other_ip = [9; 16];
    let started = |result: Result<Output, StartError>| result.map_or_else(Out::Refused, out);
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
        Event::PufRight => return out(device.puf_result(Ok(row_key(mode, ROW)), NOW_MS)),
        Event::PufWrong => return out(device.puf_result(Ok(wrong_key()), NOW_MS)),
        Event::PufFails => return out(device.puf_result(Err(PufFailed), NOW_MS)),
        Event::PollEarly => return out(device.poll(NOW_MS + 19)),
        Event::PollDue => return out(device.poll(NOW_MS + 20)),
        Event::PollGiveUp => return out(device.poll(NOW_MS + 60_000)),
        Event::PollLeaseOver => return out(device.poll(NOW_MS + 100_000)),
        Event::Abandon => {
            device.abandon();
            return Out::Nothing;
        }
        Event::Challenge => challenge(offer).to_vec(),
        Event::ChallengeAgain => challenge(Offer {
            fresh: [0x77; 8],
            ..offer
        })
        .to_vec(),
        Event::ChallengeOtherEcho => offer.challenge(&nonce(99)).to_vec(),
        Event::ChallengeOtherDevice => challenge(Offer {
            device: DeviceId(1),
            ..offer
        })
        .to_vec(),
        Event::ChallengeUnpinnedGateway => challenge(Offer {
            gateway: GatewayId(99),
            ..offer
        })
        .to_vec(),
        Event::ChallengeSpentRow => challenge(Offer {
            idx: OLD_ROW,
            ..offer
        })
        .to_vec(),
        Event::Ack => ack(mode, response, LEASE_S, LOCAL_IP).to_vec(),
        Event::AckOtherRow => altered(ack(mode, response, LEASE_S, LOCAL_IP), 19).to_vec(),
        Event::AckOtherSession => altered(ack(mode, response, LEASE_S, LOCAL_IP), 31).to_vec(),
        Event::AckWrongTag => altered(ack(mode, response, LEASE_S, LOCAL_IP), 47).to_vec(),
        Event::AckOtherAddress => ack(mode, response, LEASE_S, other_ip).to_vec(),
        Event::AckLeaseOver => ack(mode, response, 0, LOCAL_IP).to_vec(),
        Event::Nak => plain(message_type::NAK).to_vec(),
        Event::Request => plain(message_type::REQUEST).to_vec(),
        Event::Response => plain(message_type::RESPONSE).to_vec(),
        Event::DataUp => plain(message_type::DATA_UP).to_vec(),
        Event::DataDown => plain(message_type::DATA_DOWN).to_vec(),
        Event::Malformed => vec![0; 64],
    };
    feed(device, &message).map_or_else(Out::Ignored, out)
}

fn wrong_key() -> linewarden_protocol::keys::RowKey {
    linewarden_protocol::keys::RowKey::from_bytes([0x66; 16])
}

fn out(output: Output) -> Out {
    match output {
        Output::None => Out::Nothing,
        Output::Transmit(message) if message[3] == message_type::REQUEST => Out::Request,
        Output::Transmit(_) => Out::Response,
        Output::EvaluatePuf(_) => Out::Evaluate,
        Output::NeedNonce => Out::NeedNonce,
        Output::Postponed { .. } => panic!("nothing here is postponed"),
        Output::Authenticated(_) => Out::Authenticated,
        Output::SessionExpired => Out::Expired,
        Output::Failed { failure, .. } => Out::Failed(failure),
    }
}

/// The table: output and next phase. The session before is alive unless said otherwise.
fn expected(state: State, event: Event, mode: Mode) -> (Out, Phase) {
    use Event as E;
    use State as S;
    let rests = if has_session(state) {
        Phase::Authenticated
    } else {
        Phase::Idle
    };
    let stays = phase(state);
    let awaits_challenge = matches!(
        state,
        S::AwaitChallenge | S::AwaitReading | S::RenewalAwaitChallenge
    );
    let awaits_puf = matches!(state, S::AwaitPuf | S::AwaitPufQueued | S::RenewalAwaitPuf);
    let awaits_ack = matches!(state, S::AwaitAck | S::RenewalAwaitAck);
    let resting = matches!(state, S::Idle | S::Authenticated);
    match event {
        E::Start if resting => (Out::Request, Phase::AwaitChallenge),
        // An Idle machine has no last nonce.
        E::StartSameNonce if state == S::Idle => (Out::Request, Phase::AwaitChallenge),
        E::StartZeroNonce | E::StartSameNonce if resting => (Out::Refused(StartError::BadNonce), stays),
        E::Start | E::StartZeroNonce | E::StartSameNonce => (Out::Refused(StartError::UnderWay), stays),

        E::ChallengeOtherDevice => (Out::Ignored(Ignored::OtherDevice), stays),
        E::Challenge
        | E::ChallengeAgain
        | E::ChallengeOtherEcho
        | E::ChallengeUnpinnedGateway
        | E::ChallengeSpentRow
            if resting || awaits_ack =>
        {
            (Out::Ignored(Ignored::NotAwaited), stays)
        }
        E::ChallengeOtherEcho => (Out::Ignored(Ignored::NonceEcho), stays),
        E::ChallengeUnpinnedGateway => (Out::Ignored(Ignored::Gateway), stays),
        E::ChallengeSpentRow if has_session(state) && mode == Mode::Pool => {
            (Out::Ignored(Ignored::IndexSpent), stays)
        }
        E::ChallengeSpentRow if state == S::AwaitReading => (Out::Nothing, stays),
        E::Challenge | E::ChallengeAgain if state == S::AwaitReading => {
            (Out::Ignored(Ignored::Duplicate), stays)
        }
        E::Challenge | E::ChallengeAgain | E::ChallengeSpentRow if awaits_challenge => {
            (Out::Evaluate, Phase::AwaitPuf)
        }
        E::Challenge => (Out::Ignored(Ignored::Duplicate), stays),
        E::ChallengeAgain if state == S::AwaitPufQueued => (Out::Ignored(Ignored::Duplicate), stays),
        E::ChallengeAgain | E::ChallengeSpentRow => (Out::Nothing, stays),

        E::Ack if awaits_ack => (Out::Authenticated, Phase::Authenticated),
        E::AckOtherRow | E::AckOtherSession if awaits_ack => (Out::Ignored(Ignored::OtherResponse), stays),
        E::AckWrongTag if awaits_ack => (Out::Ignored(Ignored::AckTag), stays),
        // The gateway replaced the session before: it is gone here too.
        E::AckOtherAddress if awaits_ack => (Out::Failed(Failure::AddressChanged), Phase::Idle),
        E::AckLeaseOver if awaits_ack => (Out::Failed(Failure::LeaseOver), Phase::Idle),
        E::Ack
        | E::AckOtherRow
        | E::AckOtherSession
        | E::AckWrongTag
        | E::AckOtherAddress
        | E::AckLeaseOver => (Out::Ignored(Ignored::NotAwaited), stays),

        E::Nak if awaits_challenge => (Out::Nothing, stays),
        E::Nak => (Out::Ignored(Ignored::NotAwaited), stays),
        E::Request | E::Response | E::DataUp => (Out::Ignored(Ignored::Direction), stays),
        E::DataDown => (Out::Ignored(Ignored::Unserved), stays),
        E::Malformed => (Out::Ignored(Ignored::Malformed(Verdict::DropMagic)), stays),

        E::PufRight if awaits_puf => (Out::Response, Phase::AwaitAck),
        // Of the same row in pool mode: one reading judges both. In key mode there may be other helper data.
        E::PufWrong if awaits_puf && mode == Mode::Key => (Out::Evaluate, Phase::AwaitPuf),
        E::PufWrong | E::PufFails if awaits_puf => (Out::Nothing, Phase::AwaitChallenge),
        E::PufRight | E::PufWrong | E::PufFails => (Out::Nothing, stays),

        // The renewal was due long before.
        E::PollEarly | E::PollDue | E::PollGiveUp if state == S::Authenticated => (Out::NeedNonce, stays),
        E::PollLeaseOver if has_session(state) => (Out::Expired, if resting { Phase::Idle } else { stays }),
        E::PollEarly => (Out::Nothing, stays),
        E::PollDue | E::PollGiveUp | E::PollLeaseOver if state == S::AwaitReading => {
            (Out::Evaluate, Phase::AwaitPuf)
        }
        E::PollDue | E::PollGiveUp | E::PollLeaseOver if awaits_challenge => (Out::Request, stays),
        E::PollDue if awaits_ack => (Out::Response, stays),
        E::PollGiveUp | E::PollLeaseOver if awaits_ack => (Out::Failed(Failure::NoAck), rests),
        E::PollDue | E::PollGiveUp | E::PollLeaseOver => (Out::Nothing, stays),

        E::Abandon => (Out::Nothing, Phase::Idle),
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

/// Whether a session lives after that transition.
fn session_after(state: State, event: Event, next: Phase) -> bool {
    match event {
        Event::Ack | Event::AckOtherAddress | Event::AckLeaseOver if phase(state) == Phase::AwaitAck => {
            next == Phase::Authenticated
        }
        Event::PollLeaseOver | Event::Abandon => false,
        _ => has_session(state),
    }
}

#[test]
fn every_event_in_every_state_does_what_the_table_says() {
    for mode in [Mode::Pool, Mode::Key] {
        for state in STATES {
            for event in EVENTS {
                let (mut device, response) = reach(state, mode);
                assert_eq!(device.phase(), phase(state), "{state:?} is not reached");
                let got = apply(&mut device, event, mode, response);
                let (want, next) = expected(state, event, mode);
                assert_eq!(got, want, "{mode:?} {state:?} {event:?}: output");
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

/// Whatever was ignored left no trace: the handshake then ends as if it had not come.
#[test]
fn what_is_ignored_changes_nothing() {
    for state in STATES {
        for event in EVENTS {
            let (mut touched, response) = reach(state, Mode::Pool);
            let (untouched, _) = reach(state, Mode::Pool);
            if matches!(
                apply(&mut touched, event, Mode::Pool, response),
                Out::Ignored(_) | Out::Refused(_)
            ) {
                assert_eq!(
                    format!("{touched:?}"),
                    format!("{untouched:?}"),
                    "{state:?} {event:?}"
                );
            }
        }
    }
}

#[test]
fn a_nak_is_remembered_for_display_and_changes_nothing() {
    let (mut device, _) = reach(State::AwaitChallenge, Mode::Pool);
    let message = bytes(&wire::Nak {
        header: wire::Header::new(message_type::NAK, SUITE, 0, DEVICE),
        idx: 9.into(),
        reason: wire::nak_reason::NO_ROWS,
        reserved: [0; 43],
    });
    assert_eq!(feed(&mut device, &message), Ok(Output::None));
    let seen = device.last_nak().expect("the NAK is remembered for display");
    assert_eq!((seen.reason, seen.idx.0), (wire::nak_reason::NO_ROWS, 9));
    let repeat = sent(device.poll(NOW_MS + 20));
    assert_eq!(repeat[3], message_type::REQUEST, "and changes nothing");
}
