//! The bound gate: which frames pass to services behind the gateway (LAP/1 1.4.9, docs/protocols.md 1.4.12).

use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::verdict::Verdict::{self, *};

use super::{Group, Record, group, record};
use crate::support::device::{A, B, gateway_end, service_end};
use crate::support::fixture::TestFixture;
use crate::support::test_config::{SESSION_LIFETIME_S, TestConfig};

/// A frame from A to the service.
fn through(v6: bool) -> FrameBuilder {
    FrameBuilder::new(A.end(v6), service_end(v6))
}

fn with_session(w: &mut TestFixture) {
    w.pool(A, 0, 4);
    w.open_bound(A, false);
}

/// Opens a session behind two VLAN tags.
fn with_session_in_two_vlans(w: &mut TestFixture) {
    w.pool(A, 0, 4);
    let response = w.response(A).bound(A.mac()).bytes(A);
    assert_eq!(
        w.send(&A.frame(false).tag(0x88a8, 7).vlan(9).udp(&response)),
        ReplyAck
    );
}

fn case(description: &str, setup: fn(&mut TestFixture), frame: Vec<u8>, verdict: Verdict) -> Record {
    record(description, setup, move |_| frame.clone(), verdict)
}

fn by_session() -> Vec<Record> {
    let data = b"a measurement";
    let unbound: fn(&mut TestFixture) = |w| {
        w.pool(A, 0, 4);
        let response = w.response(A).bytes(A);
        assert_eq!(w.send(&A.frame(false).udp(&response)), ReplyAck);
    };
    let revoked: fn(&mut TestFixture) = |w| {
        with_session(w);
        w.revoke(A);
    };
    let expired: fn(&mut TestFixture) = |w| {
        with_session(w);
        w.advance(SESSION_LIFETIME_S + 1);
    };
    let almost_expired: fn(&mut TestFixture) = |w| {
        with_session(w);
        w.advance(SESSION_LIFETIME_S - 100);
    };
    let renewed: fn(&mut TestFixture) = |w| {
        with_session(w);
        w.advance(SESSION_LIFETIME_S - 100);
        w.rotate_fresh();
        w.open_bound(A, false);
        w.advance(SESSION_LIFETIME_S - 100);
    };
    let busy: fn(&mut TestFixture) = |w| {
        with_session(w);
        let frame = A.frame(false).udp(&w.response(A).bound(A.mac()).bytes(A));
        w.interrupted_win(A, &frame);
    };
    let wiped: fn(&mut TestFixture) = |w| {
        with_session(w);
        w.wipe(A);
    };
    let moved: fn(&mut TestFixture) = |w| {
        with_session(w);
        let mut end = A.end(false);
        end.mac = B.mac();
        let response = w.response(A).bound(B.mac()).bytes(A);
        let frame = FrameBuilder::new(end, gateway_end(false));
        assert_eq!(w.send(&frame.udp(&response)), ReplyAck);
    };
    let swept: fn(&mut TestFixture) = |w| {
        with_session(w);
        w.sweep();
    };
    let other_mac = {
        let end = Endpoint {
            mac: B.mac(),
            ..A.end(false)
        };
        FrameBuilder::new(end, service_end(false))
    };
    vec![
        case(
            "no session",
            |w| w.pool(A, 0, 2),
            through(false).udp(data),
            DropGate,
        ),
        case(
            "a live session",
            with_session,
            through(false).udp(data),
            PassSession,
        ),
        case(
            "a live session, the other IP version",
            with_session,
            through(true).udp(data),
            PassSession,
        ),
        case(
            "a live session, TCP",
            with_session,
            through(false).ip(6, &[0x50; 20]),
            PassSession,
        ),
        case(
            "a live session, ICMP",
            with_session,
            through(false).ip(1, &[8, 0, 0, 0]),
            PassSession,
        ),
        case(
            "a live session, another IP address",
            with_session,
            {
                let end = Endpoint {
                    ip: B.end(false).ip,
                    ..A.end(false)
                };
                FrameBuilder::new(end, service_end(false)).udp(data)
            },
            PassSession,
        ),
        case(
            "a live session, not IP",
            with_session,
            through(false).ethernet(0x88cc, &[0; 40]),
            PassSession,
        ),
        case("another MAC address", with_session, other_mac.udp(data), DropGate),
        case(
            "another VLAN",
            with_session,
            through(false).vlan(3).udp(data),
            DropGate,
        ),
        case(
            "a session in two VLANs",
            with_session_in_two_vlans,
            through(false).tag(0x88a8, 7).vlan(9).udp(data),
            PassSession,
        ),
        case(
            "a session in two VLANs, other priority bits",
            with_session_in_two_vlans,
            through(false).tag(0x88a8, 0xe007).tag(0x8100, 0xf009).udp(data),
            PassSession,
        ),
        case(
            "the outer VLAN only",
            with_session_in_two_vlans,
            through(false).tag(0x88a8, 7).udp(data),
            DropGate,
        ),
        case(
            "the VLANs in the other order",
            with_session_in_two_vlans,
            through(false).tag(0x88a8, 9).vlan(7).udp(data),
            DropGate,
        ),
        case(
            "a session that is not BOUND",
            unbound,
            through(false).udp(data),
            DropGate,
        ),
        case("revoked", revoked, through(false).udp(data), DropGate),
        case(
            "the session has expired",
            expired,
            through(false).udp(data),
            DropSessionExpired,
        ),
        case(
            "the session is about to expire",
            almost_expired,
            through(false).udp(data),
            PassSession,
        ),
        case(
            "the session was renewed before it expired",
            renewed,
            through(false).udp(data),
            PassSession,
        ),
        case(
            "the session is being replaced",
            busy,
            through(false).udp(data),
            DropGate,
        ),
        case("wiped", wiped, through(false).udp(data), DropGate),
        case(
            "the old MAC address after the session has moved",
            moved,
            through(false).udp(data),
            DropGate,
        ),
        case(
            "the new MAC address after the session has moved",
            moved,
            other_mac.udp(data),
            PassSession,
        ),
        case("after a sweep", swept, through(false).udp(data), PassSession),
    ]
}

/// Opens a session in VLAN 300, which is a customer VLAN or a service VLAN, depending on the tag type.
fn with_session_in_vlan(tag_type: u16) -> impl Fn(&mut TestFixture) {
    move |w| {
        w.pool(A, 0, 4);
        let response = w.response(A).bound(A.mac()).bytes(A);
        let frame = A.frame(false).tag(tag_type, 300).udp(&response);
        assert_eq!(w.send(&frame), ReplyAck);
    }
}

/// Frames with VLAN tags, for a session without VLAN, in customer VLAN 300, in service VLAN 300, or in two VLANs.
fn tagged_frames() -> Vec<Record> {
    let data = b"a measurement";
    let data_case = |setup: fn(&mut TestFixture), name: &str, builder: FrameBuilder, verdict| {
        case(name, setup, builder.udp(data), verdict)
    };
    let customer: fn(&mut TestFixture) = |w| with_session_in_vlan(0x8100)(w);
    let service: fn(&mut TestFixture) = |w| with_session_in_vlan(0x88a8)(w);
    let plain = || through(false);
    let mut records = vec![
        data_case(with_session, "a priority tag", plain().vlan(0), PassSession),
        data_case(
            with_session,
            "a service's priority tag",
            plain().tag(0x88a8, 0xe000),
            PassSession,
        ),
        data_case(
            with_session,
            "two priority tags",
            plain().tag(0x88a8, 0).vlan(0),
            PassSession,
        ),
        data_case(
            with_session,
            "a VLAN behind a priority tag",
            plain().vlan(0).vlan(300),
            DropGate,
        ),
        data_case(
            customer,
            "the session's VLAN behind a priority tag",
            plain().tag(0x8100, 0xa000).vlan(300),
            PassSession,
        ),
        data_case(
            customer,
            "a priority tag behind the session's VLAN",
            plain().vlan(300).vlan(0),
            PassSession,
        ),
        data_case(customer, "no tag", plain(), DropGate),
        data_case(customer, "a priority tag alone", plain().vlan(0), DropGate),
        data_case(
            customer,
            "a customer's VLAN as a service's",
            plain().tag(0x88a8, 300),
            DropGate,
        ),
        data_case(customer, "a customer's VLAN", plain().vlan(300), PassSession),
        data_case(
            service,
            "a service's VLAN as a customer's",
            plain().vlan(300),
            DropGate,
        ),
        data_case(service, "a service's VLAN", plain().tag(0x88a8, 300), PassSession),
        data_case(
            with_session_in_two_vlans,
            "both VLANs as a customer's",
            plain().vlan(7).vlan(9),
            DropGate,
        ),
        data_case(
            with_session_in_two_vlans,
            "a third tag",
            plain().tag(0x88a8, 7).vlan(9).vlan(1),
            DropGateVlan,
        ),
        data_case(
            with_session_in_two_vlans,
            "a third tag, a priority tag",
            plain().tag(0x88a8, 7).vlan(9).vlan(0),
            DropGateVlan,
        ),
        case(
            "ARP behind three tags",
            with_session,
            plain().vlan(0).vlan(0).vlan(0).arp_request(),
            DropGateVlan,
        ),
        case(
            "PROFINET behind a priority tag",
            with_session,
            plain().tag(0x8100, 0xc000).ethernet(0x8892, &[0x80; 46]),
            PassSession,
        ),
        case(
            "GOOSE behind a priority tag",
            with_session,
            plain().tag(0x8100, 0x8000).ethernet(0x88b8, &[0; 60]),
            PassSession,
        ),
        case(
            "PROFINET behind a priority tag, without a session",
            |_| {},
            plain().vlan(0).ethernet(0x8892, &[0x80; 46]),
            DropGateType,
        ),
        case("RARP", |_| {}, plain().ethernet(0x8035, &[0; 28]), DropGateType),
        case(
            "an ICMPv6 type on IPv4",
            |_| {},
            plain().ip(58, &[135; 24]),
            DropGate,
        ),
        case(
            "ICMPv6 without a type",
            |_| {},
            through(true).ip(58, &[]),
            DropGate,
        ),
        record(
            "a REQUEST behind a priority tag",
            |w| w.pool(A, 0, 2),
            |w| A.frame(false).tag(0x8100, 0xe000).udp(&w.request(A)),
            ReplyChallenge,
        ),
        record(
            "a repeated ACK to a priority tag, for a session without VLAN",
            with_session,
            |w| {
                A.frame(false)
                    .vlan(0)
                    .udp(&w.response(A).bound(A.mac()).idx(0).bytes(A))
            },
            ReplyAckRepeated,
        ),
    ];
    for tag in [0x9100, 0x9200, 0x9300, 0x88e7, 0x8926, 0x893f] {
        let name = format!("a tag of type {tag:#06x}");
        records.push(data_case(with_session, &name, plain().tag(tag, 0), DropGateVlan));
        let name = format!("after a VLAN tag, a tag of type {tag:#06x}");
        records.push(data_case(
            customer,
            &name,
            plain().vlan(300).tag(tag, 5),
            DropGateVlan,
        ));
    }
    // More types than the gate counts separately; it counts all further types together.
    records.extend((0..40u16).map(|number| {
        let frame = plain().ethernet(0x7000 + number, &[0; 46]);
        case(&format!("scanned type {number}"), |_| {}, frame, DropGateType)
    }));
    records
}

/// Frames that are dropped even if the sender has a session.
fn dropped_in_a_session() -> Vec<Record> {
    let lap = |v6: bool| {
        let target = Endpoint {
            port: 20_550,
            ..service_end(v6)
        };
        FrameBuilder::new(A.end(v6), target).udp(&[0; 64])
    };
    let mut records = vec![
        case(
            "the LAP port behind the gateway",
            with_session,
            lap(false),
            DropGatePort,
        ),
        case(
            "the LAP port behind the gateway, IPv6",
            with_session,
            lap(true),
            DropGatePort,
        ),
        case(
            "a fragment",
            with_session,
            through(false).fragment(0, true).udp(b"x"),
            DropGateFragment,
        ),
        case(
            "a later fragment",
            with_session,
            through(false).fragment(9, false).udp(b"x"),
            DropGateFragment,
        ),
        case(
            "a fragment to the gateway",
            with_session,
            A.frame(false).fragment(0, true).udp(b"x"),
            DropGateFragment,
        ),
        case(
            "an IPv6 fragment",
            with_session,
            through(true).fragment(0, true).udp(b"x"),
            DropGateFragment,
        ),
        case(
            "IPv4 options",
            with_session,
            through(false).options(&[1; 4]).udp(b"x"),
            DropGateExtension,
        ),
        case(
            "IPv4 options in a fragment",
            with_session,
            through(false).options(&[1; 4]).fragment(2, true).udp(b"x"),
            DropGateFragment,
        ),
        case(
            "neighbor discovery behind hop-by-hop",
            with_session,
            through(true).extension(0).icmpv6(135, &[0; 20]),
            DropGateExtension,
        ),
        case(
            "a frame truncated in its UDP header",
            with_session,
            through(false).udp(b"x")[..40].to_vec(),
            DropTruncated,
        ),
        case(
            "a wrong UDP length",
            with_session,
            {
                let mut frame = through(false).udp(b"x");
                frame[38..40].copy_from_slice(&[0, 2]);
                frame
            },
            DropTruncated,
        ),
    ];
    for number in [0, 43, 51, 60, 135, 139, 140] {
        records.push(case(
            &format!("IPv6 extension header {number}"),
            with_session,
            through(true).extension(number).udp(b"x"),
            DropGateExtension,
        ));
    }
    let length_max = through(true).vlan(5).udp(b"").len();
    records.extend((0..length_max).map(|length| {
        let frame = through(true).vlan(5).udp(b"")[..length].to_vec();
        case(
            &format!("truncated after {length} B"),
            with_session,
            frame,
            DropTruncated,
        )
    }));
    records
}

/// Frames to the gateway's own addresses.
fn to_the_gateway() -> Vec<Record> {
    vec![
        record(
            "a REQUEST",
            |w| w.pool(A, 0, 2),
            |w| A.frame(false).udp(&w.request(A)),
            ReplyChallenge,
        ),
        record(
            "a BOUND RESPONSE",
            |w| w.pool(A, 0, 2),
            |w| A.frame(true).udp(&w.response(A).bound(A.mac()).bytes(A)),
            ReplyAck,
        ),
        record(
            "an unknown device",
            |_| {},
            |w| A.frame(false).udp(&w.request(A)),
            DropUnknownDevice,
        ),
        record(
            "a datagram of 1 B",
            with_session,
            |_| A.frame(false).udp(b"x"),
            DropLength,
        ),
        record(
            "a truncated REQUEST",
            with_session,
            |w| A.frame(false).udp(&w.request(A))[..60].to_vec(),
            DropTruncated,
        ),
        case(
            "another port of the gateway, with a session",
            with_session,
            {
                let mut end = gateway_end(false);
                end.port = 22;
                FrameBuilder::new(A.end(false), end).udp(b"x")
            },
            PassSession,
        ),
        case(
            "another port of the gateway, without a session",
            |_| {},
            {
                let mut end = gateway_end(false);
                end.port = 22;
                FrameBuilder::new(A.end(false), end).udp(b"x")
            },
            DropGate,
        ),
    ]
}

pub fn groups() -> Vec<Group> {
    let records = [by_session(), dropped_in_a_session(), to_the_gateway()];
    vec![
        group(TestConfig::BOUND, records.into_iter().flatten().collect()),
        group(TestConfig::BOUND, tagged_frames()),
    ]
}
