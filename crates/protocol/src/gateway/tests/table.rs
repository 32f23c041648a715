//! The state machine of a device's line as one table: the verdict for each state and message.

use alloc::vec::Vec;

use super::support::{GatewayFixture, SESSION_LIFETIME_S, TestDevice};
use crate::gateway::FRESH_MAX_AGE_MS;
use crate::ids::Mode;
use crate::verdict::Verdict::{
    self, DropBusy as BUSY, DropFresh as FRESH, DropGateway as GATEWAY, DropIndex as INDEX,
    DropNoRows as NO_ROWS, DropReplay as REPLAY, DropRevoked as REVOKED, DropStopped as STOPPED,
    DropTag as TAG, DropUnknownDevice as UNKNOWN, ReplyAck as ACK, ReplyAckRepeated as AGAIN,
    ReplyChallenge as CHALLENGE, ReplyNak as NAK,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Absent,
    /// Installed without rows.
    Empty,
    Valid,
    /// A session, and rows left.
    ValidSession,
    /// A session that was opened with the last row.
    EmptySession,
    Key,
    KeySession,
    /// An expired session, and rows left.
    SessionExpired,
    /// A winner is writing.
    Busy,
    Revoked,
    RevokedSession,
    /// Revoked while a winner is writing.
    RevokedBusy,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    Request,
    /// A RESPONSE that is correct in everything.
    Response,
    /// The RESPONSE that won the previous row, or, without a winner, a RESPONSE with the previous number.
    Repeated,
    /// A RESPONSE with the number of the previous row, and a tag that did not win that row.
    Previous,
    Future,
    WrongTag,
    /// A freshness value that was never drawn.
    NotFresh,
    /// The freshness value before the previous one.
    Stale,
    /// A RESPONSE that is correct for another gateway.
    OtherGateway,
    /// The tag covers another MAC address than the sender's.
    OtherMac,
    /// A correct RESPONSE, but the gateway's freshness value is too old.
    Aged,
}

use Event::{
    Aged, Future, NotFresh, OtherGateway, OtherMac, Previous, Repeated, Request, Response, Stale, WrongTag,
};
use State::{
    Absent, Busy, Empty, EmptySession, Key, KeySession, Revoked, RevokedBusy, RevokedSession, SessionExpired,
    Valid, ValidSession,
};

const EVENTS: [Event; 11] = [
    Request,
    Response,
    Repeated,
    Previous,
    Future,
    WrongTag,
    NotFresh,
    Stale,
    OtherGateway,
    OtherMac,
    Aged,
];

/// Columns as in [`EVENTS`].
#[rustfmt::skip]
const TABLE: [(State, [Verdict; 11]); 12] = [
    (Absent,         [UNKNOWN,   UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, GATEWAY, UNKNOWN, STOPPED]),
    (Empty,          [NAK,       NO_ROWS, INDEX,   INDEX,   INDEX,   NO_ROWS, NO_ROWS, NO_ROWS, GATEWAY, NO_ROWS, STOPPED]),
    (Valid,          [CHALLENGE, ACK,     INDEX,   INDEX,   INDEX,   TAG,     FRESH,   FRESH,   GATEWAY, TAG,     STOPPED]),
    (ValidSession,   [CHALLENGE, ACK,     AGAIN,   REPLAY,  INDEX,   TAG,     FRESH,   FRESH,   GATEWAY, TAG,     STOPPED]),
    (EmptySession,   [NAK,       NO_ROWS, AGAIN,   REPLAY,  INDEX,   NO_ROWS, NO_ROWS, NO_ROWS, GATEWAY, NO_ROWS, STOPPED]),
    (Key,            [CHALLENGE, ACK,     INDEX,   INDEX,   INDEX,   TAG,     FRESH,   FRESH,   GATEWAY, TAG,     STOPPED]),
    (KeySession,     [CHALLENGE, ACK,     AGAIN,   REPLAY,  INDEX,   TAG,     FRESH,   FRESH,   GATEWAY, TAG,     STOPPED]),
    (SessionExpired, [CHALLENGE, ACK,     REPLAY,  REPLAY,  INDEX,   TAG,     FRESH,   FRESH,   GATEWAY, TAG,     STOPPED]),
    (Busy,           [BUSY,      BUSY,    BUSY,    BUSY,    BUSY,    BUSY,    BUSY,    BUSY,    GATEWAY, BUSY,    STOPPED]),
    (Revoked,        [REVOKED,   REVOKED, REVOKED, REVOKED, REVOKED, REVOKED, REVOKED, REVOKED, GATEWAY, REVOKED, STOPPED]),
    (RevokedSession, [REVOKED,   REVOKED, REVOKED, REVOKED, REVOKED, REVOKED, REVOKED, REVOKED, GATEWAY, REVOKED, STOPPED]),
    (RevokedBusy,    [REVOKED,   REVOKED, REVOKED, REVOKED, REVOKED, REVOKED, REVOKED, REVOKED, GATEWAY, REVOKED, STOPPED]),
];

/// A fixture whose device is in this state, and the RESPONSE that won last.
fn in_state(state: State) -> (GatewayFixture, TestDevice, Option<Vec<u8>>) {
    let mut fixture = GatewayFixture::new();
    let mode = if matches!(state, Key | KeySession) {
        Mode::Key
    } else {
        Mode::Pool
    };
    let device = TestDevice::new(1, mode);
    let rows = match state {
        Empty => 0,
        EmptySession => 1,
        _ => 3,
    };
    if state != Absent {
        fixture.gateway.install(device.install(0, rows)).unwrap();
    }
    let has_session = matches!(
        state,
        ValidSession | EmptySession | KeySession | SessionExpired | RevokedSession
    );
    let winner = has_session.then(|| fixture.authenticate(&device));
    if matches!(state, Busy | RevokedBusy) {
        drop(fixture.commit_only(&device));
    }
    if matches!(state, Revoked | RevokedSession | RevokedBusy) {
        fixture.gateway.revoke(device.id).unwrap();
    }
    if state == SessionExpired {
        fixture.pass_s(u64::from(SESSION_LIFETIME_S));
    }
    (fixture, device, winner)
}

fn message(
    event: Event,
    fixture: &mut GatewayFixture,
    device: &TestDevice,
    winner: Option<Vec<u8>>,
) -> Vec<u8> {
    let idx = fixture.idx(device);
    let previous_idx = idx.wrapping_sub(1);
    let valid = device.response(idx, fixture.fresh);
    match event {
        Request => device.request(0x4e),
        Response => valid,
        Repeated => winner.unwrap_or_else(|| device.response(previous_idx, fixture.fresh)),
        Previous => device.response_with(previous_idx, fixture.fresh, 0x77, Some(device.endpoint.mac)),
        Future => device.response(idx + 1, fixture.fresh),
        WrongTag => super::support::altered(&valid, 48, &[valid[48] ^ 1]),
        NotFresh => device.response(idx, [0; 8]),
        Stale => {
            let old = fixture.fresh;
            fixture.rotate_fresh_value();
            fixture.rotate_fresh_value();
            device.response(idx, old)
        }
        OtherGateway => super::support::altered(&valid, 36, &[0, 0, 0, 8]),
        OtherMac => device.response_with(idx, fixture.fresh, 0x4e, Some([2, 0, 0, 0, 0, 0xee])),
        Aged => {
            fixture.now = fixture.now.plus_ms(FRESH_MAX_AGE_MS + 1);
            valid
        }
    }
}

#[test]
fn each_state_gives_each_message_the_verdict_of_the_table() {
    for (state, verdicts) in TABLE {
        for (event, expected) in EVENTS.into_iter().zip(verdicts) {
            let (mut fixture, device, winner) = in_state(state);
            let payload = message(event, &mut fixture, &device, winner);
            let before = fixture.gateway.line(device.id);
            let (verdict, _) = fixture.send(&device, &payload);
            assert_eq!(verdict, expected, "{state:?} x {event:?}");
            assert_eq!(
                fixture.gateway.counter(verdict),
                if verdict == ACK {
                    expected_ack_count(state)
                } else {
                    1
                }
            );
            let after = fixture.gateway.line(device.id);
            if verdict == ACK {
                let (before, after) = (before.unwrap(), after.unwrap());
                assert_eq!(after.commit.idx().0, before.commit.idx().0 + 1, "{state:?}");
                assert_eq!(after.commit.generation(), before.commit.generation() + 1);
                assert_eq!(after.session_id, payload[48..56]);
                assert!(!after.commit.is_busy());
            } else {
                assert_eq!(before, after, "{state:?} x {event:?}: only a proof writes");
            }
        }
    }
}

fn expected_ack_count(state: State) -> u64 {
    1 + u64::from(matches!(
        state,
        ValidSession | EmptySession | KeySession | SessionExpired
    ))
}

/// The freshness value ages out on the monotonic clock alone, to the millisecond.
#[test]
fn a_gateway_replies_until_its_freshness_value_is_sixteen_seconds_old() {
    let (mut fixture, device, _) = in_state(Valid);
    fixture.now = fixture.now.plus_ms(FRESH_MAX_AGE_MS);
    assert_eq!(fixture.verdict(&device, &device.request(1)), CHALLENGE);
    fixture.now = fixture.now.plus_ms(1);
    assert_eq!(fixture.verdict(&device, &device.request(1)), STOPPED);
    fixture.rotate_fresh_value();
    assert_eq!(fixture.verdict(&device, &device.request(1)), CHALLENGE);
}

/// The previous value is accepted beside the current value; a suspend replaces both values.
#[test]
fn the_previous_freshness_value_is_accepted_until_a_suspend() {
    let (mut fixture, device, _) = in_state(Valid);
    let response = device.response(0, fixture.fresh);
    fixture.rotate_fresh_value();
    let (current, previous) = ([0xaa; 8], [0xbb; 8]);
    let value = |bytes| crate::gateway::FreshValue::from_wire(bytes).unwrap();
    let mut after_suspend = GatewayFixture::new();
    after_suspend.gateway.install(device.install(0, 1)).unwrap();
    after_suspend
        .gateway
        .replace_fresh_values(value(current), value(previous), after_suspend.now);
    assert_eq!(after_suspend.verdict(&device, &response), FRESH);
    assert_eq!(after_suspend.verdict(&device, &device.response(0, previous)), ACK);
    assert_eq!(fixture.verdict(&device, &response), ACK);
}
