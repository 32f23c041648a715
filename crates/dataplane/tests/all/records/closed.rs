//! Sessions that user space closes because the device is now at another gateway (LAP/1 1.4.11).

use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::verdict::Verdict::{self, *};

use super::{Group, Record, group, record, valid_response};
use crate::support::device::{A, B, sealed_frame, service_end};
use crate::support::fixture::TestFixture;
use crate::support::test_config::TestConfig;

fn with_session(w: &mut TestFixture) {
    w.pool(A, 0, 4);
    w.open_bound(A, false);
}

fn with_closed_session(w: &mut TestFixture) {
    with_session(w);
    assert!(w.close(A, false));
    assert!(!w.close(A, false), "the session has ended");
}

/// The close call names a session that does not exist, so A's session continues.
fn with_other_session_closed(w: &mut TestFixture) {
    with_session(w);
    assert!(!w.close(A, true));
}

/// The close call names the session before the current one, so the current session continues.
fn with_old_session_closed(w: &mut TestFixture) {
    with_session(w);
    let old = w.device_session(A).id;
    w.open_bound(A, false);
    assert!(!w.close_session_of(A, old), "a newer session is never closed");
}

/// A's winning RESPONSE for row `idx`, repeated.
fn repeated_winner(w: &TestFixture, idx: u32) -> Vec<u8> {
    A.frame(false)
        .udp(&w.response(A).idx(idx).bound(A.mac()).bytes(A))
}

fn to_the_gateway() -> Vec<Record> {
    vec![
        record(
            "no ACK is repeated",
            with_closed_session,
            |w| repeated_winner(w, 0),
            DropReplay,
        ),
        record(
            "closing another session",
            with_other_session_closed,
            |w| repeated_winner(w, 0),
            ReplyAckRepeated,
        ),
        record(
            "closing an older session",
            with_old_session_closed,
            |w| repeated_winner(w, 1),
            ReplyAckRepeated,
        ),
        record(
            "the device returns",
            with_closed_session,
            |w| valid_response(w, A, true),
            ReplyAck,
        ),
        record(
            "the device returns, from another address",
            with_closed_session,
            |w| A.frame(true).udp(&w.response(A).bound(A.mac()).bytes(A)),
            ReplyAck,
        ),
        record(
            "in key mode",
            |w| {
                w.key(A, 3);
                w.open_bound(A, false);
                assert!(w.close(A, false));
            },
            |w| repeated_winner(w, 3),
            DropReplay,
        ),
        record(
            "another device opens a session at the closed session's address",
            |w| {
                with_closed_session(w);
                w.pool(B, 0, 4);
            },
            |w| {
                let end = Endpoint {
                    port: 4000,
                    ..A.end(false)
                };
                let response = w.response(B).bound(A.mac()).bytes(B);
                FrameBuilder::new(end, crate::support::device::gateway_end(false)).udp(&response)
            },
            ReplyAck,
        ),
        record(
            "the device's rows remain installed",
            with_closed_session,
            |_| A.frame(false).udp(&request()),
            ReplyChallenge,
        ),
    ]
}

fn request() -> Vec<u8> {
    use zerocopy::IntoBytes as _;
    A.request([1; 16]).as_bytes().to_vec()
}

fn through_the_bound_gate() -> Vec<Record> {
    let frame = |_: &TestFixture| FrameBuilder::new(A.end(false), service_end(false)).udp(b"a measurement");
    let case =
        |name: &str, setup: fn(&mut TestFixture), verdict: Verdict| record(name, setup, frame, verdict);
    vec![
        case("before the close", with_session, PassSession),
        case("after the close", with_closed_session, DropGate),
        case("closing another session", with_other_session_closed, PassSession),
        case("closing an older session", with_old_session_closed, PassSession),
    ]
}

fn through_the_sealed_gate() -> Vec<Record> {
    let frame = |w: &TestFixture| {
        let to = service_end(false);
        sealed_frame(A, &to).udp(&w.device_session(A).seal(1, &to, b"a measurement"))
    };
    let case =
        |name: &str, setup: fn(&mut TestFixture), verdict: Verdict| record(name, setup, frame, verdict);
    vec![
        case("sealed, before the close", with_session, PassData),
        case("sealed, after the close", with_closed_session, DropSession),
        case(
            "sealed, closing another session",
            with_other_session_closed,
            PassData,
        ),
        case(
            "sealed, closing an older session",
            with_old_session_closed,
            PassData,
        ),
    ]
}

pub fn groups() -> Vec<Group> {
    vec![
        group(TestConfig::OFF, to_the_gateway()),
        group(TestConfig::BOUND, to_the_gateway()),
        group(TestConfig::BOUND, through_the_bound_gate()),
        group(TestConfig::SEALED, through_the_sealed_gate()),
    ]
}
