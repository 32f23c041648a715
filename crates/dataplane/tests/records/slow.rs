//! Messages of unknown devices with a slow path behind the data plane (LAP/1 1.4.6).

use linewarden_protocol::verdict::Verdict::*;

use super::{Group, Record, group, record, right};
use crate::support::device::{A, STRANGER};
use crate::support::shape::Shape;
use crate::support::world::World;

fn messages() -> Vec<Record> {
    let request = |w: &World| STRANGER.frame(false).udp(&w.request(STRANGER));
    let response = |w: &World| STRANGER.frame(false).udp(&w.response(STRANGER).bytes(STRANGER));
    vec![
        record("a REQUEST of a stranger", |_| {}, request, SlowPath),
        record(
            "a REQUEST of a device that was wiped",
            |w| {
                w.pool(A, 0, 3);
                w.wipe(A);
            },
            |w| A.frame(true).udp(&w.request(A)),
            SlowPath,
        ),
        record("a RESPONSE of a stranger", |_| {}, response, SlowPath),
        record(
            "a BOUND RESPONSE of a stranger",
            |_| {},
            |w| right(w, STRANGER, true),
            SlowPath,
        ),
        record(
            "an old RESPONSE of a stranger: not worth a question",
            |_| {},
            |w| {
                let response = w.response(STRANGER).fresh([9; 8]);
                STRANGER.frame(false).udp(&response.bytes(STRANGER))
            },
            DropUnknownDevice,
        ),
        record(
            "a known device is served here",
            |w| w.pool(A, 0, 3),
            |w| right(w, A, true),
            ReplyAck,
        ),
    ]
}

pub fn groups() -> Vec<Group> {
    vec![group(Shape::SLOW, messages())]
}
