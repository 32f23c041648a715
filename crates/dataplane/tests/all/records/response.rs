//! RESPONSE → ACK (LAP/1 1.4.3, 1.4.4, 1.4.13).

use linewarden_protocol::verdict::Verdict::{self, *};

use super::{Group, Record, from, group, record, valid_response};
use crate::support::device::{A, B, UNKNOWN};
use crate::support::fixture::TestFixture;
use crate::support::test_config::{SESSION_LIFETIME_S, TestConfig};

fn accepted() -> Vec<Record> {
    let accepted = |description: &str, setup: fn(&mut TestFixture), v6: bool, is_bound: bool| {
        record(
            description,
            setup,
            move |w| {
                let response = w.response(A);
                let response = if is_bound {
                    response.bound(A.mac())
                } else {
                    response
                };
                A.frame(v6).udp(&response.bytes(A))
            },
            ReplyAck,
        )
    };
    vec![
        accepted(
            "a valid RESPONSE, IPv4, not BOUND",
            |w| w.pool(A, 7, 3),
            false,
            false,
        ),
        accepted("BOUND", |w| w.pool(A, 7, 3), false, true),
        accepted("IPv6, not BOUND", |w| w.pool(A, 7, 3), true, false),
        accepted("IPv6, BOUND", |w| w.pool(A, 7, 3), true, true),
        accepted("the last row", |w| w.pool(A, 0, 1), false, true),
        accepted("a full ring of rows ahead", |w| w.pool(A, 0, 5), false, true),
        accepted("key mode: the key is kept", |w| w.key(A, 0), false, true),
        accepted(
            "key mode, the second-highest number",
            |w| w.key(A, u32::MAX - 1),
            false,
            true,
        ),
        accepted(
            "a row number close to the highest",
            |w| w.pool(A, u32::MAX - 3, 3),
            false,
            true,
        ),
        accepted(
            "under the previous fresh value",
            |w| {
                w.pool(A, 0, 3);
                let fresh = w.fresh();
                w.rotate_fresh();
                let frame = A.frame(false).udp(&w.response(A).fresh(fresh).bytes(A));
                assert_eq!(w.send(&frame), ReplyAck);
            },
            false,
            true,
        ),
        accepted(
            "during a session, from its address",
            |w| {
                w.pool(A, 0, 3);
                w.open_bound(A, false);
            },
            false,
            true,
        ),
        accepted(
            "during a session, from another address: the session moves",
            |w| {
                w.pool(A, 0, 3);
                w.open_bound(A, false);
            },
            true,
            true,
        ),
        accepted(
            "during a BOUND session, not BOUND",
            |w| {
                w.pool(A, 0, 3);
                w.open_bound(A, false);
            },
            false,
            false,
        ),
        accepted(
            "after the session has expired",
            |w| {
                w.pool(A, 0, 3);
                w.open_bound(A, false);
                w.advance(SESSION_LIFETIME_S + 100);
                w.rotate_fresh();
            },
            false,
            true,
        ),
        accepted(
            "back at the address of an earlier session",
            |w| {
                w.pool(A, 0, 5);
                w.open_bound(A, false);
                w.open_bound(A, true);
            },
            false,
            true,
        ),
        accepted(
            "the row after a refill of the empty line",
            |w| {
                w.pool(A, 0, 1);
                w.open_bound(A, false);
                assert!(w.refill(A, 3, 2));
            },
            false,
            true,
        ),
        accepted(
            "after the mark was moved",
            |w| {
                w.pool_on_credit(A, 0, 4, 1);
                w.open_bound(A, false);
                w.grant(A, 1);
            },
            false,
            true,
        ),
        accepted(
            "the mark cannot be moved back",
            |w| {
                w.pool_on_credit(A, 0, 4, 2);
                w.grant(A, 0);
                w.open_bound(A, false);
            },
            false,
            true,
        ),
        accepted(
            "the row after a refill of the ring",
            |w| {
                w.pool(A, 0, 2);
                assert!(w.refill(A, 0, 9));
                w.open_bound(A, false);
                assert!(w.refill(A, 0, 9));
            },
            false,
            true,
        ),
        accepted(
            "while the gateway is stopping: started handshakes still succeed",
            |w| {
                w.pool(A, 0, 2);
                w.set_stopping(true);
            },
            false,
            true,
        ),
        record(
            "BOUND, in two VLANs",
            |w| w.pool(A, 0, 3),
            |w| {
                let response = w.response(A).bound(A.mac()).bytes(A);
                A.frame(false).tag(0x88a8, 0x6007).vlan(0).udp(&response)
            },
            ReplyAck,
        ),
    ]
}

fn refused() -> Vec<Record> {
    let case = |description: &str, packet: fn(&TestFixture) -> Vec<u8>, verdict: Verdict| {
        record(description, |w| w.pool(A, 7, 3), packet, verdict)
    };
    let mut records = vec![
        case(
            "another gateway",
            |w| A.frame(false).udp(&w.response(A).gateway(78).bytes(A)),
            DropGateway,
        ),
        case(
            "another gateway, and unknown: the gateway is checked first",
            |w| {
                A.frame(false)
                    .udp(&w.response(UNKNOWN).gateway(78).bytes(UNKNOWN))
            },
            DropGateway,
        ),
        case(
            "an unknown device",
            |w| A.frame(false).udp(&w.response(UNKNOWN).bytes(UNKNOWN)),
            DropUnknownDevice,
        ),
        case(
            "one row ahead of the current row",
            |w| A.frame(false).udp(&w.response(A).idx(8).bytes(A)),
            DropIndex,
        ),
        case(
            "two rows behind the current row",
            |w| A.frame(false).udp(&w.response(A).idx(5).bytes(A)),
            DropIndex,
        ),
        case(
            "the row before the first installed one",
            |w| A.frame(false).udp(&w.response(A).idx(6).bytes(A)),
            DropReplay,
        ),
        case(
            "row 2^32 - 1",
            |w| A.frame(false).udp(&w.response(A).idx(u32::MAX).bytes(A)),
            DropIndex,
        ),
        case(
            "a zero fresh value",
            |w| A.frame(false).udp(&w.response(A).fresh([0; 8]).bytes(A)),
            DropFresh,
        ),
        case(
            "an invented fresh value",
            |w| A.frame(false).udp(&w.response(A).fresh([9; 8]).bytes(A)),
            DropFresh,
        ),
        case(
            "BOUND, sent from another MAC address",
            |w| {
                let response = w.response(A).bound(A.mac()).bytes(A);
                from(|end| end.mac = B.mac()).udp(&response)
            },
            DropTag,
        ),
        case(
            "a tag for BOUND, with the flag removed",
            |w| {
                let mut response = w.response(A).bound(A.mac()).bytes(A);
                response[5] = 0;
                A.frame(false).udp(&response)
            },
            DropTag,
        ),
        case(
            "with the flag BOUND added",
            |w| {
                let mut response = w.response(A).bytes(A);
                response[5] = 1;
                A.frame(false).udp(&response)
            },
            DropTag,
        ),
        case(
            "another device's key",
            |w| {
                let mut response = w.response(A).bytes(B);
                response[8..16].copy_from_slice(&A.id().0.to_be_bytes());
                A.frame(false).udp(&response)
            },
            DropTag,
        ),
        case(
            "zeros as a tag",
            |w| {
                let mut response = w.response(A).bytes(A);
                response[48..].fill(0);
                A.frame(false).udp(&response)
            },
            DropTag,
        ),
        record(
            "the key of the next row",
            |w| w.pool(A, 7, 3),
            |w| {
                let mut response = w.response(A).idx(8).bytes(A);
                response[32..36].copy_from_slice(&7u32.to_be_bytes());
                A.frame(false).udp(&response)
            },
            DropTag,
        ),
        record(
            "a revoked device",
            |w| {
                w.pool(A, 0, 3);
                w.revoke(A);
            },
            |w| valid_response(w, A, true),
            DropRevoked,
        ),
        record(
            "no row left",
            |w| {
                w.pool(A, 0, 1);
                w.open_bound(A, false);
            },
            |w| valid_response(w, A, true),
            DropNoRows,
        ),
        record(
            "valid, but the mark permits no row",
            |w| w.pool_on_credit(A, 7, 3, 0),
            |w| valid_response(w, A, true),
            DropMark,
        ),
        record(
            "a wrong tag, and the mark permits no row: no higher mark is requested",
            |w| w.pool_on_credit(A, 7, 3, 0),
            |w| {
                let mut response = w.response(A).bytes(A);
                response[63] ^= 1;
                A.frame(false).udp(&response)
            },
            DropTag,
        ),
        record(
            "the row at the mark",
            |w| {
                w.pool_on_credit(A, 7, 3, 1);
                w.open_bound(A, false);
            },
            |w| valid_response(w, A, true),
            DropMark,
        ),
        record(
            "beyond the mark, after a refill that skipped rows",
            |w| {
                w.pool_on_credit(A, 0, 1, 3);
                w.open_bound(A, false);
                assert!(w.refill(A, 5, 2));
            },
            |w| valid_response(w, A, true),
            DropMark,
        ),
        record(
            "the highest possible row number: no row can follow",
            |w| {
                w.pool(A, u32::MAX, 1);
                // The switch's verdict differs (`drop_mark`), because no mark can be above that number.
                w.leave_switch_behind();
            },
            |w| valid_response(w, A, true),
            DropNoRows,
        ),
        record(
            "key mode at the highest possible number",
            |w| w.key(A, u32::MAX),
            |w| valid_response(w, A, true),
            DropNoRows,
        ),
        record(
            "the fresh value before the previous one",
            |w| {
                w.pool(A, 0, 3);
                w.rotate_fresh();
            },
            |w| {
                let mut fresh = w.fresh();
                fresh[7] -= 2;
                A.frame(false).udp(&w.response(A).fresh(fresh).bytes(A))
            },
            DropFresh,
        ),
        record(
            "a valid RESPONSE, but the gateway's fresh value is too old",
            |w| {
                w.pool(A, 0, 3);
                w.advance(17);
            },
            |w| valid_response(w, A, true),
            DropStopped,
        ),
        record(
            "a line that a winner is writing",
            |w| {
                w.pool(A, 0, 3);
                let frame = valid_response(w, A, true);
                w.interrupted_win(A, &frame);
            },
            |w| valid_response(w, A, true),
            DropBusy,
        ),
        record(
            "the winning message, while its winner is writing",
            |w| {
                w.pool(A, 0, 3);
                let frame = valid_response(w, A, true);
                w.interrupted_win(A, &frame);
            },
            |w| A.frame(false).udp(&w.response(A).idx(0).bound(A.mac()).bytes(A)),
            DropBusy,
        ),
        record(
            "a line cleaned up after a crash: the row is spent, and there is no session",
            |w| {
                w.pool(A, 0, 3);
                let frame = valid_response(w, A, true);
                w.interrupted_win(A, &frame);
                w.recover();
            },
            |w| A.frame(false).udp(&w.response(A).idx(0).bound(A.mac()).bytes(A)),
            DropReplay,
        ),
    ];
    // One bit of each byte of the nonce and of the tag.
    let nonce_and_tag = (16..32).chain(48..64);
    records.extend(nonce_and_tag.map(|index| {
        record(
            format!("bit {} of byte {index} flipped", index % 8),
            |w| w.pool(A, 7, 3),
            move |w| {
                let mut response = w.response(A).bound(A.mac()).bytes(A);
                response[index] ^= 1 << (index % 8);
                A.frame(false).udp(&response)
            },
            DropTag,
        )
    }));
    records
}

pub fn groups() -> Vec<Group> {
    let records = [accepted(), refused()];
    vec![group(TestConfig::OFF, records.into_iter().flatten().collect())]
}
