//! Sessions that user space has closed because their device is at another gateway (LAP/1 1.4.11).

use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::verdict::Verdict::{self, *};

use super::{Group, Record, group, record, right};
use crate::support::device::{A, B, sealed_frame, service_end};
use crate::support::fixture::TestFixture;
use crate::support::test_config::TestConfig;

fn with_session(w: &mut TestFixture) {
    w.pool(A, 0, 4);
    w.open_bound(A, false);
}

fn closed(w: &mut TestFixture) {
    with_session(w);
    assert!(w.close(A, false));
    assert!(!w.close(A, false), "the session has ended");
}

/// A call names a session that does not exist.
fn spared(w: &mut TestFixture) {
    with_session(w);
    assert!(!w.close(A, true));
}

/// The device has opened a new session before the call.
fn renewed(w: &mut TestFixture) {
    with_session(w);
    let old = w.device_session(A).id;
    w.open_bound(A, false);
    assert!(!w.close_one(A, old), "a newer session is never closed");
}

/// The winning RESPONSE again.
fn winner(w: &TestFixture, idx: u32) -> Vec<u8> {
    A.frame(false)
        .udp(&w.response(A).idx(idx).bound(A.mac()).bytes(A))
}

fn to_the_gateway() -> Vec<Record> {
    vec![
        record("no ACK is repeated", closed, |w| winner(w, 0), DropReplay),
        record(
            "a call with another name",
            spared,
            |w| winner(w, 0),
            ReplyAckRepeated,
        ),
        record(
            "a call with an older session's name",
            renewed,
            |w| winner(w, 1),
            ReplyAckRepeated,
        ),
        record("the device returns", closed, |w| right(w, A, true), ReplyAck),
        record(
            "the device returns, from another address",
            closed,
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
            |w| winner(w, 3),
            DropReplay,
        ),
        record(
            "its address is free",
            |w| {
                closed(w);
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
            "its rows stay",
            closed,
            |_| A.frame(false).udp(&request()),
            ReplyChallenge,
        ),
    ]
}

fn request() -> Vec<u8> {
    use zerocopy::IntoBytes as _;
    A.request([1; 16]).as_bytes().to_vec()
}

fn through_the_open_gate() -> Vec<Record> {
    let frame = |_: &TestFixture| FrameBuilder::new(A.end(false), service_end(false)).udp(b"a measurement");
    let case =
        |name: &str, given: fn(&mut TestFixture), verdict: Verdict| record(name, given, frame, verdict);
    vec![
        case("before", with_session, PassSession),
        case("after", closed, DropGate),
        case("a call with another name", spared, PassSession),
        case("a call with an older session's name", renewed, PassSession),
    ]
}

fn through_the_sealed_gate() -> Vec<Record> {
    let frame = |w: &TestFixture| {
        let to = service_end(false);
        sealed_frame(A, &to).udp(&w.device_session(A).seal(1, &to, b"a measurement"))
    };
    let case =
        |name: &str, given: fn(&mut TestFixture), verdict: Verdict| record(name, given, frame, verdict);
    vec![
        case("sealed, before", with_session, PassData),
        case("sealed, after", closed, DropSession),
        case("sealed, a call with another name", spared, PassData),
        case("sealed, a call with an older session's name", renewed, PassData),
    ]
}

pub fn groups() -> Vec<Group> {
    vec![
        group(TestConfig::OFF, to_the_gateway()),
        group(TestConfig::OPEN, to_the_gateway()),
        group(TestConfig::OPEN, through_the_open_gate()),
        group(TestConfig::SEALED, through_the_sealed_gate()),
    ]
}
