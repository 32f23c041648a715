//! The winning RESPONSE again: the same ACK, for the same message from the same place only (LAP/1 1.4.4).

use linewarden_protocol::verdict::Verdict::{self, *};

use super::{Group, Record, from, group, record, right};
use crate::support::device::{A, B};
use crate::support::shape::{LEASE_S, Shape};
use crate::support::world::World;

/// The winning RESPONSE again: A's, of row 7, BOUND, from its own place in VLAN 5.
fn again(
    description: &str,
    given: fn(&mut World),
    packet: fn(&World, &[u8]) -> Vec<u8>,
    verdict: Verdict,
) -> Record {
    record(
        description,
        move |w| {
            w.pool(A, 7, 3);
            let response = w.response(A).bound(A.mac()).bytes(A);
            assert_eq!(w.send(&A.frame(false).vlan(5).udp(&response)), ReplyAck);
            given(w);
        },
        move |w| {
            // The fresh value that it was won with, whatever has been drawn since.
            let mut winner = w.response(A).idx(7).bound(A.mac());
            winner.fresh = w.first_fresh();
            packet(w, &winner.bytes(A))
        },
        verdict,
    )
}

fn repeated() -> Vec<Record> {
    let nothing: fn(&mut World) = |_| {};
    vec![
        again(
            "again: the same ACK",
            nothing,
            |_, m| A.frame(false).vlan(5).udp(m),
            ReplyAckAgain,
        ),
        again(
            "again, with another priority and TTL",
            nothing,
            |_, m| A.frame(false).tag(0x8100, 0xe005).ip_fields(4, 9, 3).udp(m),
            ReplyAckAgain,
        ),
        again(
            "again, when its fresh value is no longer accepted",
            |w| {
                for _ in 0..4 {
                    w.rotate_fresh();
                }
            },
            |_, m| A.frame(false).vlan(5).udp(m),
            ReplyAckAgain,
        ),
        again(
            "again, from another port",
            nothing,
            |_, m| from(|end| end.port += 1).vlan(5).udp(m),
            DropReplay,
        ),
        again(
            "again, from another address",
            nothing,
            |_, m| from(|end| end.ip = B.end(false).ip).vlan(5).udp(m),
            DropReplay,
        ),
        again(
            "again, over IPv6",
            nothing,
            |_, m| A.frame(true).vlan(5).udp(m),
            DropReplay,
        ),
        again(
            "again, from another MAC address",
            nothing,
            |_, m| from(|end| end.mac = B.mac()).vlan(5).udp(m),
            DropReplay,
        ),
        again(
            "again, from another VLAN",
            nothing,
            |_, m| A.frame(false).vlan(6).udp(m),
            DropReplay,
        ),
        again(
            "again, from no VLAN",
            nothing,
            |_, m| A.frame(false).udp(m),
            DropReplay,
        ),
        again(
            "again, from a VLAN in that VLAN",
            nothing,
            |_, m| A.frame(false).vlan(5).vlan(1).udp(m),
            DropReplay,
        ),
        again(
            "the same row with another nonce",
            nothing,
            |w, _| {
                let response = w.response(A).idx(7).bound(A.mac()).nonce(1).bytes(A);
                A.frame(false).vlan(5).udp(&response)
            },
            DropReplay,
        ),
        again(
            "again, after the lease",
            |w| {
                w.advance(LEASE_S + 1);
                w.rotate_fresh();
            },
            |_, m| A.frame(false).vlan(5).udp(m),
            DropReplay,
        ),
        again(
            "again, after a revocation",
            |w| w.revoke(A),
            |_, m| A.frame(false).vlan(5).udp(m),
            DropRevoked,
        ),
        again(
            "again, after the next session",
            |w| {
                let next = w.response(A).bound(A.mac()).bytes(A);
                assert_eq!(w.send(&A.frame(false).vlan(5).udp(&next)), ReplyAck);
            },
            |_, m| A.frame(false).vlan(5).udp(m),
            DropIndex,
        ),
        again(
            "again, while the fresh value is too old",
            |w| w.advance(17),
            |_, m| A.frame(false).vlan(5).udp(m),
            DropStopped,
        ),
        record(
            "key mode: again",
            |w| {
                w.key(A, 3);
                w.open_bound(A, false);
            },
            |w| A.frame(false).udp(&w.response(A).idx(3).bound(A.mac()).bytes(A)),
            ReplyAckAgain,
        ),
        record(
            "not BOUND: again from another MAC address",
            |w| {
                w.pool(A, 0, 3);
                let frame = right(w, A, false);
                assert_eq!(w.send(&frame), ReplyAck);
            },
            |w| from(|end| end.mac = B.mac()).udp(&w.response(A).idx(0).bytes(A)),
            DropReplay,
        ),
        record(
            "the last row, again",
            |w| {
                w.pool(A, 0, 1);
                w.open_bound(A, false);
            },
            |w| A.frame(false).udp(&w.response(A).idx(0).bound(A.mac()).bytes(A)),
            ReplyAckAgain,
        ),
    ]
}

pub fn groups() -> Vec<Group> {
    vec![group(Shape::OFF, repeated())]
}
