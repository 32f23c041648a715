//! The owner of an address: a RESPONSE from an address at which another device has a session (docs/protocols.md
//! 1.4.13, step 4).

use linewarden_protocol::verdict::Verdict::{self, *};

use super::{Group, Record, from, group, record, right};
use crate::support::device::{A, B, TestDevice};
use crate::support::fixture::TestFixture;
use crate::support::test_config::{SESSION_LIFETIME_S, TestConfig};

/// B sends a right RESPONSE from an address at which A has a session.
fn at_as_place(
    description: &str,
    given: fn(&mut TestFixture),
    packet: fn(&TestFixture) -> Vec<u8>,
    verdict: Verdict,
) -> Record {
    record(
        description,
        move |w| {
            w.pool(A, 0, 4);
            w.pool(B, 0, 4);
            w.open_bound(A, false);
            given(w);
        },
        packet,
        verdict,
    )
}

fn owned() -> Vec<Record> {
    let nothing: fn(&mut TestFixture) = |_| {};
    let at_as_address: fn(&TestFixture) -> Vec<u8> = |w| {
        let response = w.response(B).bound(B.mac()).bytes(B);
        from(|end| end.mac = B.mac()).udp(&response)
    };
    let at_as_mac: fn(&TestFixture) -> Vec<u8> = |w| {
        let response = w.response(B).bound(A.mac()).bytes(B);
        from(|end| end.ip = B.end(false).ip).udp(&response)
    };
    vec![
        at_as_place(
            "from another's IP address",
            nothing,
            at_as_address,
            DropAddressOwned,
        ),
        at_as_place(
            "the same, not BOUND",
            nothing,
            |w| from(|end| end.mac = B.mac()).udp(&w.response(B).bytes(B)),
            DropAddressOwned,
        ),
        at_as_place(
            "from another's MAC address, BOUND",
            nothing,
            at_as_mac,
            DropAddressOwned,
        ),
        at_as_place(
            "from another's MAC address, not BOUND",
            nothing,
            |w| from(|end| end.ip = B.end(false).ip).udp(&w.response(B).bytes(B)),
            ReplyAck,
        ),
        at_as_place(
            "from another's MAC address in another VLAN",
            nothing,
            |w| {
                let response = w.response(B).bound(A.mac()).bytes(B);
                from(|end| end.ip = B.end(false).ip).vlan(3).udp(&response)
            },
            ReplyAck,
        ),
        at_as_place(
            "with a wrong tag: the owner is checked first",
            nothing,
            |w| from(|_| {}).udp(&w.response(B).nonce(3).bound(B.mac()).bytes(B)),
            DropAddressOwned,
        ),
        at_as_place(
            "after the other's session",
            |w| {
                w.advance(SESSION_LIFETIME_S + 10);
                w.rotate_fresh();
            },
            at_as_address,
            ReplyAck,
        ),
        at_as_place(
            "after the other was revoked",
            |w| w.revoke(A),
            at_as_address,
            ReplyAck,
        ),
        at_as_place(
            "after the other was wiped",
            |w| w.wipe(A),
            at_as_address,
            ReplyAck,
        ),
        at_as_place(
            "after the other has moved",
            |w| w.open_bound(A, true),
            at_as_address,
            ReplyAck,
        ),
        at_as_place(
            "after the other has moved, but kept its MAC address",
            |w| w.open_bound(A, true),
            at_as_mac,
            DropAddressOwned,
        ),
        at_as_place(
            "the address returned to its former owner, whose entry still exists",
            |w| {
                w.open_bound(A, true);
                let response = w.response(B).bytes(B);
                assert_eq!(w.send(&from(|_| {}).udp(&response)), ReplyAck);
            },
            |w| right(w, A, true),
            DropAddressOwned,
        ),
        at_as_place(
            "the other's line is being written",
            |w| {
                let frame = right(w, A, true);
                w.interrupted_win(A, &frame);
            },
            at_as_address,
            DropAddressOwned,
        ),
        at_as_place(
            "the other's session is closed, and its line is being written for another address",
            |w| {
                let held = w.last_device_session(A).unwrap();
                assert!(w.close_one(A, held.id));
                w.sweep();
                let frame = right(w, A, true);
                w.interrupted_win(A, &frame);
            },
            |w| from(|end| end.mac = B.mac()).udp(&w.response(B).bytes(B)),
            ReplyAck,
        ),
        at_as_place(
            "after a sweep, which keeps live sessions",
            |w| w.sweep(),
            at_as_address,
            DropAddressOwned,
        ),
    ]
}

/// A device in key mode that authenticates from more addresses than the tables hold entries, one after the other.
fn roam(w: &mut TestFixture) {
    const ROAMING: TestDevice = TestDevice(77);
    const PLACES: u16 = 4 * 256 + 76;
    w.key(ROAMING, 0);
    // Through the switch this takes longer than a fresh value is valid.
    w.leave_switch_behind();
    for place in 0..PLACES {
        let [high, low] = place.to_be_bytes();
        let mac = [2, 7, 7, 7, high, low];
        let response = w.response(ROAMING).bound(mac).bytes(ROAMING);
        let frame = from(|end| {
            end.mac = mac;
            end.ip = [10, 66, 16 + high, low].into();
        });
        assert_eq!(w.send(&frame.udp(&response)), ReplyAck, "place {place}");
    }
}

fn roaming_device() -> Vec<Record> {
    let given: fn(&mut TestFixture) = |w| {
        w.pool(A, 0, 3);
        roam(w);
    };
    vec![
        record(
            "after a device that used many addresses",
            given,
            |w| right(w, A, true),
            ReplyAck,
        ),
        record(
            "the same, from an earlier address",
            given,
            |w| {
                let mac = [2, 7, 7, 7, 0, 5];
                let place = from(|end| {
                    end.mac = mac;
                    end.ip = [10, 66, 16, 5].into();
                });
                place.udp(&w.response(A).bound(mac).bytes(A))
            },
            ReplyAck,
        ),
    ]
}

fn full_tables() -> Vec<Record> {
    vec![
        record(
            "no space for the address: no row is spent",
            |w| w.pool(A, 0, 3),
            |w| right(w, A, false),
            DropTableFull,
        ),
        record(
            "the same, BOUND",
            |w| w.pool(A, 0, 3),
            |w| right(w, A, true),
            DropTableFull,
        ),
        record(
            "and the row is still available",
            |w| {
                w.pool(A, 0, 3);
                let frame = right(w, A, true);
                assert_eq!(w.send(&frame), DropTableFull);
            },
            |w| A.frame(false).udp(&w.request(A)),
            ReplyChallenge,
        ),
        record(
            "and a repetition finds no space either",
            |w| {
                w.pool(A, 0, 3);
                let frame = right(w, A, true);
                assert_eq!(w.send(&frame), DropTableFull);
            },
            |w| A.frame(false).udp(&w.response(A).idx(0).bound(A.mac()).bytes(A)),
            DropTableFull,
        ),
    ]
}

pub fn groups() -> Vec<Group> {
    let full = TestConfig {
        no_bindings: true,
        ..TestConfig::OFF
    };
    vec![
        group(TestConfig::OFF, owned()),
        group(TestConfig::OFF, roaming_device()),
        group(full, full_tables()),
    ]
}
