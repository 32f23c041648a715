//! The owner of an address: a RESPONSE from an address at which another device has a session (docs/protocols.md
//! 1.4.13, step 4).

use linewarden_protocol::verdict::Verdict::{self, *};

use super::{Group, Record, from, group, record, valid_response};
use crate::support::device::{A, B, TestDevice};
use crate::support::fixture::TestFixture;
use crate::support::test_config::{SESSION_LIFETIME_S, TestConfig};

/// A has a session at its own address before `setup`. `packet` usually is a RESPONSE of B.
fn with_session_of_a(
    description: &str,
    setup: fn(&mut TestFixture),
    packet: fn(&TestFixture) -> Vec<u8>,
    verdict: Verdict,
) -> Record {
    record(
        description,
        move |w| {
            w.pool(A, 0, 4);
            w.pool(B, 0, 4);
            w.open_bound(A, false);
            setup(w);
        },
        packet,
        verdict,
    )
}

fn owned() -> Vec<Record> {
    let nothing: fn(&mut TestFixture) = |_| {};
    let from_ip_of_a: fn(&TestFixture) -> Vec<u8> = |w| {
        let response = w.response(B).bound(B.mac()).bytes(B);
        from(|end| end.mac = B.mac()).udp(&response)
    };
    let from_mac_of_a: fn(&TestFixture) -> Vec<u8> = |w| {
        let response = w.response(B).bound(A.mac()).bytes(B);
        from(|end| end.ip = B.end(false).ip).udp(&response)
    };
    vec![
        with_session_of_a("from A's IP address", nothing, from_ip_of_a, DropAddressOwned),
        with_session_of_a(
            "from A's IP address, not BOUND",
            nothing,
            |w| from(|end| end.mac = B.mac()).udp(&w.response(B).bytes(B)),
            DropAddressOwned,
        ),
        with_session_of_a(
            "from A's MAC address, BOUND",
            nothing,
            from_mac_of_a,
            DropAddressOwned,
        ),
        with_session_of_a(
            "from A's MAC address, not BOUND",
            nothing,
            |w| from(|end| end.ip = B.end(false).ip).udp(&w.response(B).bytes(B)),
            ReplyAck,
        ),
        with_session_of_a(
            "from A's MAC address in another VLAN",
            nothing,
            |w| {
                let response = w.response(B).bound(A.mac()).bytes(B);
                from(|end| end.ip = B.end(false).ip).vlan(3).udp(&response)
            },
            ReplyAck,
        ),
        with_session_of_a(
            "with a wrong tag: the owner is checked first",
            nothing,
            |w| from(|_| {}).udp(&w.response(B).nonce(3).bound(B.mac()).bytes(B)),
            DropAddressOwned,
        ),
        with_session_of_a(
            "after A's session has expired",
            |w| {
                w.advance(SESSION_LIFETIME_S + 10);
                w.rotate_fresh();
            },
            from_ip_of_a,
            ReplyAck,
        ),
        with_session_of_a("after A was revoked", |w| w.revoke(A), from_ip_of_a, ReplyAck),
        with_session_of_a("after A was wiped", |w| w.wipe(A), from_ip_of_a, ReplyAck),
        with_session_of_a(
            "after A has moved to IPv6",
            |w| w.open_bound(A, true),
            from_ip_of_a,
            ReplyAck,
        ),
        with_session_of_a(
            "from A's MAC address, which A kept when it moved to IPv6",
            |w| w.open_bound(A, true),
            from_mac_of_a,
            DropAddressOwned,
        ),
        with_session_of_a(
            "from A's former address, which B has now, although A's entry still exists",
            |w| {
                w.open_bound(A, true);
                let response = w.response(B).bytes(B);
                assert_eq!(w.send(&from(|_| {}).udp(&response)), ReplyAck);
            },
            |w| valid_response(w, A, true),
            DropAddressOwned,
        ),
        with_session_of_a(
            "while A's line is being written",
            |w| {
                let frame = valid_response(w, A, true);
                w.interrupted_win(A, &frame);
            },
            from_ip_of_a,
            DropAddressOwned,
        ),
        with_session_of_a(
            "while A's line is being written, after A's session was closed",
            |w| {
                let session = w.last_device_session(A).unwrap();
                assert!(w.close_session_of(A, session.id));
                w.sweep();
                let frame = valid_response(w, A, true);
                w.interrupted_win(A, &frame);
            },
            |w| from(|end| end.mac = B.mac()).udp(&w.response(B).bytes(B)),
            ReplyAck,
        ),
        with_session_of_a("after a sweep", |w| w.sweep(), from_ip_of_a, DropAddressOwned),
    ]
}

/// A device authenticates from one address after another: from more addresses than the tables have entries.
fn roam(w: &mut TestFixture) {
    const ROAMING: TestDevice = TestDevice(77);
    const ADDRESSES: u16 = 4 * 256 + 76;
    w.key(ROAMING, 0);
    // The switch is so slow that the fresh value would expire meanwhile.
    w.leave_switch_behind();
    for number in 0..ADDRESSES {
        let [high, low] = number.to_be_bytes();
        let mac = [2, 7, 7, 7, high, low];
        let response = w.response(ROAMING).bound(mac).bytes(ROAMING);
        let frame = from(|end| {
            end.mac = mac;
            end.ip = [10, 66, 16 + high, low].into();
        });
        assert_eq!(w.send(&frame.udp(&response)), ReplyAck, "address {number}");
    }
}

fn roaming_device() -> Vec<Record> {
    let setup: fn(&mut TestFixture) = |w| {
        w.pool(A, 0, 3);
        roam(w);
    };
    vec![
        record(
            "after another device has used many addresses",
            setup,
            |w| valid_response(w, A, true),
            ReplyAck,
        ),
        record(
            "after another device has used many addresses, from one of these addresses",
            setup,
            |w| {
                let mac = [2, 7, 7, 7, 0, 5];
                let builder = from(|end| {
                    end.mac = mac;
                    end.ip = [10, 66, 16, 5].into();
                });
                builder.udp(&w.response(A).bound(mac).bytes(A))
            },
            ReplyAck,
        ),
    ]
}

fn full_tables() -> Vec<Record> {
    vec![
        record(
            "no space for the address, not BOUND",
            |w| w.pool(A, 0, 3),
            |w| valid_response(w, A, false),
            DropTableFull,
        ),
        record(
            "no space for the address, BOUND",
            |w| w.pool(A, 0, 3),
            |w| valid_response(w, A, true),
            DropTableFull,
        ),
        record(
            "after a RESPONSE for whose address there was no space, the row is still available",
            |w| {
                w.pool(A, 0, 3);
                let frame = valid_response(w, A, true);
                assert_eq!(w.send(&frame), DropTableFull);
            },
            |w| A.frame(false).udp(&w.request(A)),
            ReplyChallenge,
        ),
        record(
            "no space for the address, repeated RESPONSE",
            |w| {
                w.pool(A, 0, 3);
                let frame = valid_response(w, A, true);
                assert_eq!(w.send(&frame), DropTableFull);
            },
            |w| A.frame(false).udp(&w.response(A).idx(0).bound(A.mac()).bytes(A)),
            DropTableFull,
        ),
    ]
}

pub fn groups() -> Vec<Group> {
    let config = TestConfig {
        no_bindings: true,
        ..TestConfig::OFF
    };
    vec![
        group(TestConfig::OFF, owned()),
        group(TestConfig::OFF, roaming_device()),
        group(config, full_tables()),
    ]
}
