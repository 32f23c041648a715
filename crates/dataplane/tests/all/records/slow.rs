//! Messages of unknown devices if the gateway has a slow path (LAP/1 1.4.6).

use linewarden_protocol::verdict::Verdict::*;

use super::{Group, Record, group, record, valid_response};
use crate::support::device::{A, UNKNOWN};
use crate::support::fixture::TestFixture;
use crate::support::test_config::TestConfig;

fn messages() -> Vec<Record> {
    let request = |w: &TestFixture| UNKNOWN.frame(false).udp(&w.request(UNKNOWN));
    let response = |w: &TestFixture| UNKNOWN.frame(false).udp(&w.response(UNKNOWN).bytes(UNKNOWN));
    vec![
        record("a REQUEST of an unknown device", |_| {}, request, SlowPath),
        record(
            "a REQUEST of a device that was wiped",
            |w| {
                w.pool(A, 0, 3);
                w.wipe(A);
            },
            |w| A.frame(true).udp(&w.request(A)),
            SlowPath,
        ),
        record("a RESPONSE of an unknown device", |_| {}, response, SlowPath),
        record(
            "a BOUND RESPONSE of an unknown device",
            |_| {},
            |w| valid_response(w, UNKNOWN, true),
            SlowPath,
        ),
        record(
            "a RESPONSE of an unknown device under an invalid fresh value",
            |_| {},
            |w| {
                let response = w.response(UNKNOWN).fresh([9; 8]);
                UNKNOWN.frame(false).udp(&response.bytes(UNKNOWN))
            },
            DropUnknownDevice,
        ),
        record(
            "a RESPONSE of a known device",
            |w| w.pool(A, 0, 3),
            |w| valid_response(w, A, true),
            ReplyAck,
        ),
    ]
}

pub fn groups() -> Vec<Group> {
    vec![group(TestConfig::SLOW, messages())]
}
