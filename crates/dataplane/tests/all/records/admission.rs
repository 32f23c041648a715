//! Messages from addresses that no device can have, and frames for other stations (docs/protocols.md 1.4.12, 1.4.13).

use std::net::IpAddr;

use linewarden_dataplane::Gate;
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::sources::OwnAddress;
use linewarden_protocol::verdict::Verdict::{self, *};

use super::{Group, Record, group, record};
use crate::support::device::{A, UNKNOWN, gateway_end, service_end};
use crate::support::fixture::TestFixture;
use crate::support::test_config::{TestConfig, device_prefixes, own_address};

/// Source addresses of messages with valid keys, and whether the gateway admits each address.
fn sources() -> Vec<(&'static str, IpAddr, bool)> {
    let v6 = |words: [u16; 8]| IpAddr::from(words);
    vec![
        ("the gateway's own address", gateway_end(false).ip, false),
        ("the gateway's own IPv6 address", gateway_end(true).ip, false),
        ("a service's address", service_end(false).ip, false),
        ("a service's IPv6 address", service_end(true).ip, false),
        ("127.0.0.1", [127, 0, 0, 1].into(), false),
        ("::1", v6([0, 0, 0, 0, 0, 0, 0, 1]), false),
        ("8.8.8.8", [8, 8, 8, 8].into(), false),
        ("below the prefix", [10, 65, 255, 255].into(), false),
        ("the prefix's first address", [10, 66, 0, 0].into(), true),
        (
            "the prefix's second-last address",
            [10, 66, 255, 254].into(),
            true,
        ),
        ("the prefix's broadcast address", [10, 66, 255, 255].into(), false),
        ("after the prefix", [10, 67, 0, 0].into(), false),
        (
            "the IPv6 prefix's last address",
            v6([0xfd66, 0, 0, 0, 0xffff, 0xffff, 0xffff, 0xffff]),
            true,
        ),
        ("after the IPv6 prefix", v6([0xfd66, 0, 0, 1, 0, 0, 0, 1]), false),
        ("a link-local address", v6([0xfe80, 0, 0, 0, 0, 0, 0, 1]), false),
    ]
}

fn from_sources() -> Vec<Record> {
    let frame = |source: IpAddr| {
        let mut end = A.end(source.is_ipv6());
        end.ip = source;
        FrameBuilder::new(end, gateway_end(source.is_ipv6()))
    };
    let setup = |w: &mut TestFixture| w.pool(A, 0, 4);
    let mut records = Vec::new();
    for (name, source, is_admitted) in sources() {
        let expected = |verdict: Verdict| if is_admitted { verdict } else { DropSourceNotDevice };
        records.extend([
            record(
                format!("REQUEST from {name}"),
                setup,
                move |w| frame(source).udp(&w.request(A)),
                expected(ReplyChallenge),
            ),
            record(
                format!("valid RESPONSE from {name}"),
                setup,
                move |w| frame(source).udp(&w.response(A).bound(A.mac()).bytes(A)),
                expected(ReplyAck),
            ),
            record(
                format!("REQUEST of an unknown device from {name}"),
                setup,
                move |w| frame(source).udp(&w.request(UNKNOWN)),
                expected(DropUnknownDevice),
            ),
        ]);
    }
    records.push(record(
        "the repeated winning RESPONSE, after the prefixes have changed to exclude its address",
        |w| {
            w.pool(A, 0, 4);
            w.open_bound(A, false);
            w.move_devices(&["192.0.2.0/24"]);
        },
        |w| {
            let response = w.response(A).bound(A.mac()).idx(0);
            A.frame(false).udp(&response.bytes(A))
        },
        DropSourceNotDevice,
    ));
    records.push(record(
        "REQUEST from the last address of a part of the subnet",
        |w| {
            w.pool(A, 0, 4);
            w.move_devices(&["10.66.128.0/18"]);
        },
        move |w| frame([10, 66, 191, 255].into()).udp(&w.request(A)),
        ReplyChallenge,
    ));
    records.push(record(
        "REQUEST from a prefix that was added",
        |w| {
            w.pool(A, 0, 4);
            w.move_devices(&["192.0.2.0/24", "8.8.0.0/16"]);
        },
        move |w| frame([8, 8, 8, 8].into()).udp(&w.request(A)),
        ReplyChallenge,
    ));
    records
}

/// Addresses of the gateway's machine change, usually to the address of a device that has a session.
fn gateway_addresses(gate: Gate) -> Vec<Record> {
    let with_session = |w: &mut TestFixture| {
        w.pool(A, 0, 4);
        w.open_bound(A, false);
        w.move_gateway(&[A.end(false).ip]);
    };
    let mut records = vec![record(
        "the repeated winning RESPONSE, after the gateway's machine temporarily had its address",
        move |w| {
            with_session(w);
            w.move_gateway(&[]);
        },
        |w| {
            let response = w.response(A).bound(A.mac()).idx(0);
            A.frame(false).udp(&response.bytes(A))
        },
        DropReplay,
    )];
    if gate == Gate::Bound {
        let datagram = |_: &TestFixture| FrameBuilder::new(A.end(false), service_end(false)).udp(b"datagram");
        let device_address = OwnAddress::host(A.end(false).ip);
        for (name, first_prefix, own, verdict) in [
            (
                "that the gateway's machine now has",
                0,
                vec![own_address(), device_address],
                DropGate,
            ),
            (
                "outside the prefixes, which the gateway's machine now has",
                1,
                vec![device_address],
                DropGate,
            ),
            ("outside the prefixes", 1, vec![], PassSession),
        ] {
            records.push(record(
                format!("a datagram of a session at an address {name}"),
                move |w| {
                    w.pool(A, 0, 4);
                    w.open_bound(A, false);
                    w.set_sources(&device_prefixes()[first_prefix..], &own);
                },
                datagram,
                verdict,
            ));
        }
    }
    for (refused, v6, verdict) in [
        (64, false, ReplyChallenge),
        (65, false, DropSourceNotDevice),
        (65, true, ReplyChallenge),
    ] {
        records.push(record(
            format!("REQUEST with {refused} refused IPv4 addresses, IPv6: {v6}"),
            move |w| {
                w.pool(A, 0, 4);
                let address = |n| IpAddr::from([10, 66, 1, n]);
                // The gateway also refuses its own address and the broadcast address of its subnet.
                w.move_gateway(&(0..refused - 2).map(address).collect::<Vec<_>>());
            },
            move |w| A.frame(v6).udp(&w.request(A)),
            verdict,
        ));
    }
    records
}

/// Frames for another station on the link, in whose name the gateway would reply, and frames for groups.
fn for_other_stations(verdict: Verdict) -> Vec<Record> {
    let setup = |w: &mut TestFixture| w.pool(A, 0, 4);
    let to = |v6, mac| {
        let mut end = gateway_end(v6);
        end.mac = mac;
        FrameBuilder::new(A.end(v6), end)
    };
    let other_mac = [2, 0, 0, 0, 0xaa, 1];
    let mut records = Vec::new();
    for v6 in [false, true] {
        let family = if v6 { "IPv6" } else { "IPv4" };
        records.extend([
            record(
                format!("{family}: REQUEST to another station's MAC address"),
                setup,
                move |w| to(v6, other_mac).udp(&w.request(A)),
                verdict,
            ),
            record(
                format!("{family}: valid RESPONSE to another station's MAC address"),
                setup,
                move |w| to(v6, other_mac).udp(&w.response(A).bound(A.mac()).bytes(A)),
                verdict,
            ),
            record(
                format!(
                    "{family}: REQUEST to an address that differs in one bit from the gateway's MAC address"
                ),
                setup,
                move |w| {
                    let [a, b, c, d, e, f] = gateway_end(v6).mac;
                    to(v6, [a, b, c, d, e, f ^ 0x80]).udp(&w.request(A))
                },
                verdict,
            ),
            record(
                format!("{family}: REQUEST to the gateway's MAC address"),
                setup,
                move |w| to(v6, gateway_end(v6).mac).udp(&w.request(A)),
                ReplyChallenge,
            ),
            record(
                format!("{family}: REQUEST to the broadcast address"),
                setup,
                move |w| to(v6, [0xff; 6]).udp(&w.request(A)),
                DropUnanswerable,
            ),
        ]);
    }
    records
}

fn malformed_for_other_stations() -> Vec<Record> {
    let mut end = gateway_end(false);
    end.mac = [2, 0, 0, 0, 0xaa, 1];
    let to = move || FrameBuilder::new(A.end(false), end);
    let with_short_udp_length = |mut frame: Vec<u8>| {
        frame[38..40].copy_from_slice(&[0, 3]);
        frame
    };
    vec![
        record(
            "a wrong UDP length for another station",
            |_| {},
            move |w| with_short_udp_length(to().udp(&w.request(A))),
            PassForeign,
        ),
        record(
            "options for another station",
            |_| {},
            move |w| to().options(&[1]).udp(&w.request(A)),
            PassForeign,
        ),
        record(
            "a fragment for another station",
            |_| {},
            move |w| to().fragment(0, true).udp(&w.request(A)),
            PassForeign,
        ),
    ]
}

pub fn groups() -> Vec<Group> {
    vec![
        group(TestConfig::OFF, from_sources()),
        group(TestConfig::OFF, gateway_addresses(Gate::Off)),
        group(TestConfig::BOUND, gateway_addresses(Gate::Bound)),
        group(TestConfig::OFF, for_other_stations(PassForeign)),
        group(TestConfig::OFF, malformed_for_other_stations()),
        group(TestConfig::BOUND, for_other_stations(DropGatePort)),
        group(TestConfig::SEALED, from_sources()),
        group(TestConfig::SEALED, for_other_stations(DropGatePort)),
    ]
}
