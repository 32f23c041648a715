//! The repeated winning RESPONSE gets the same ACK, if it comes from the same address (LAP/1 1.4.4).

use linewarden_protocol::verdict::Verdict::{self, *};

use super::{Group, Record, from, group, record, valid_response};
use crate::support::device::{A, B};
use crate::support::fixture::TestFixture;
use crate::support::test_config::{SESSION_LIFETIME_S, TestConfig};

/// A has won with a BOUND RESPONSE for row 7 from its own address in VLAN 5. `packet` gets that RESPONSE, to repeat it.
fn repeated_response(
    description: &str,
    setup: fn(&mut TestFixture),
    packet: fn(&TestFixture, &[u8]) -> Vec<u8>,
    verdict: Verdict,
) -> Record {
    record(
        description,
        move |w| {
            w.pool(A, 7, 3);
            let response = w.response(A).bound(A.mac()).bytes(A);
            assert_eq!(w.send(&A.frame(false).vlan(5).udp(&response)), ReplyAck);
            setup(w);
        },
        move |w| {
            // The RESPONSE won under the first fresh value, which `setup` may have replaced.
            let mut winner = w.response(A).idx(7).bound(A.mac());
            winner.fresh = w.first_fresh();
            packet(w, &winner.bytes(A))
        },
        verdict,
    )
}

fn repeated() -> Vec<Record> {
    let nothing: fn(&mut TestFixture) = |_| {};
    vec![
        repeated_response(
            "repeated: the same ACK",
            nothing,
            |_, m| A.frame(false).vlan(5).udp(m),
            ReplyAckRepeated,
        ),
        repeated_response(
            "repeated, with another priority and TTL",
            nothing,
            |_, m| A.frame(false).tag(0x8100, 0xe005).ip_fields(4, 9, 3).udp(m),
            ReplyAckRepeated,
        ),
        repeated_response(
            "repeated, when its fresh value is no longer accepted",
            |w| {
                for _ in 0..4 {
                    w.rotate_fresh();
                }
            },
            |_, m| A.frame(false).vlan(5).udp(m),
            ReplyAckRepeated,
        ),
        repeated_response(
            "repeated, from another port",
            nothing,
            |_, m| from(|end| end.port += 1).vlan(5).udp(m),
            DropReplay,
        ),
        repeated_response(
            "repeated, from another address",
            nothing,
            |_, m| from(|end| end.ip = B.end(false).ip).vlan(5).udp(m),
            DropReplay,
        ),
        repeated_response(
            "repeated, over IPv6",
            nothing,
            |_, m| A.frame(true).vlan(5).udp(m),
            DropReplay,
        ),
        repeated_response(
            "repeated, from another MAC address",
            nothing,
            |_, m| from(|end| end.mac = B.mac()).vlan(5).udp(m),
            DropReplay,
        ),
        repeated_response(
            "repeated, from another VLAN",
            nothing,
            |_, m| A.frame(false).vlan(6).udp(m),
            DropReplay,
        ),
        repeated_response(
            "repeated, from no VLAN",
            nothing,
            |_, m| A.frame(false).udp(m),
            DropReplay,
        ),
        repeated_response(
            "repeated, from a VLAN nested in that VLAN",
            nothing,
            |_, m| A.frame(false).vlan(5).vlan(1).udp(m),
            DropReplay,
        ),
        repeated_response(
            "the same row with another nonce",
            nothing,
            |w, _| {
                let response = w.response(A).idx(7).bound(A.mac()).nonce(1).bytes(A);
                A.frame(false).vlan(5).udp(&response)
            },
            DropReplay,
        ),
        repeated_response(
            "repeated, after the session has expired",
            |w| {
                w.advance(SESSION_LIFETIME_S + 1);
                w.rotate_fresh();
            },
            |_, m| A.frame(false).vlan(5).udp(m),
            DropReplay,
        ),
        repeated_response(
            "repeated, after a revocation",
            |w| w.revoke(A),
            |_, m| A.frame(false).vlan(5).udp(m),
            DropRevoked,
        ),
        repeated_response(
            "repeated, after the next session was opened",
            |w| {
                let next = w.response(A).bound(A.mac()).bytes(A);
                assert_eq!(w.send(&A.frame(false).vlan(5).udp(&next)), ReplyAck);
            },
            |_, m| A.frame(false).vlan(5).udp(m),
            DropIndex,
        ),
        repeated_response(
            "repeated, while the fresh value is too old",
            |w| w.advance(17),
            |_, m| A.frame(false).vlan(5).udp(m),
            DropStopped,
        ),
        record(
            "key mode: repeated",
            |w| {
                w.key(A, 3);
                w.open_bound(A, false);
            },
            |w| A.frame(false).udp(&w.response(A).idx(3).bound(A.mac()).bytes(A)),
            ReplyAckRepeated,
        ),
        record(
            "not BOUND: repeated from another MAC address",
            |w| {
                w.pool(A, 0, 3);
                let frame = valid_response(w, A, false);
                assert_eq!(w.send(&frame), ReplyAck);
            },
            |w| from(|end| end.mac = B.mac()).udp(&w.response(A).idx(0).bytes(A)),
            DropReplay,
        ),
        record(
            "the last row, repeated",
            |w| {
                w.pool(A, 0, 1);
                w.open_bound(A, false);
            },
            |w| A.frame(false).udp(&w.response(A).idx(0).bound(A.mac()).bytes(A)),
            ReplyAckRepeated,
        ),
    ]
}

pub fn groups() -> Vec<Group> {
    vec![group(TestConfig::OFF, repeated())]
}
