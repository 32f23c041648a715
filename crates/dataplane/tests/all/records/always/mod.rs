//! Frames that pass a gate without a session, frames that no device is allowed to send, and frames with options that
//! pass only with a session (LAP/1 1.4.17).

mod control;
mod dhcp;
mod membership;
mod neighbor;

use std::net::IpAddr;

use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::verdict::Verdict::{self, *};

use super::{Group, Record, group, record};
use crate::support::device::{A, gateway_end, service_end};
use crate::support::fixture::TestFixture;
use crate::support::test_config::TestConfig;

const GROUP: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
/// A link-local address of a device.
const LINK_LOCAL: &str = "fe80::1:2";
/// A link-local address of another node.
const OTHER: &str = "fe80::9";
const ALL_NODES: &str = "ff02::1";
const ALL_ROUTERS: &str = "ff02::2";
const SOLICITED: &str = "ff02::1:ff00:9";
/// An address behind the gateway.
const REMOTE: &str = "fd77::9";
/// An address in the devices' own /64.
const SAME_PREFIX: &str = "fd66::1:99";
/// The gateway's own address.
const GATEWAY_IP: &str = "fd66::fe";
/// A global address of a device.
const GLOBAL: &str = "fd66::1:1";

/// The endpoint with this address at the services' MAC address, or at a group MAC address.
fn end(ip: &str) -> Endpoint {
    let ip: IpAddr = ip.parse().unwrap();
    Endpoint {
        mac: if ip.is_multicast() {
            GROUP
        } else {
            service_end(true).mac
        },
        ip,
        port: 9,
    }
}

/// A frame from A's MAC address with the given IP addresses.
fn between(from: &str, to: &str) -> FrameBuilder {
    let from = Endpoint {
        mac: A.mac(),
        ..end(from)
    };
    FrameBuilder::new(from, end(to))
}

/// A neighbor discovery message with the required hop limit, of type `kind`; `body` follows the checksum.
fn nd(from: &str, to: &str, kind: u8, body: &[u8]) -> Vec<u8> {
    between(from, to).ip_fields(0, 0, 255).icmpv6(kind, body)
}

/// A datagram from A's MAC address with the given IP addresses, source port and destination port.
fn datagram(from: &str, to: &str, ports: (u16, u16)) -> Vec<u8> {
    let (mut source, mut destination) = (end(from), end(to));
    source.mac = A.mac();
    (source.port, destination.port) = ports;
    FrameBuilder::new(source, destination).udp(&[7; 300])
}

/// The frame with one byte replaced, for example a code, hop limit or length field.
fn with_byte(mut frame: Vec<u8>, index: usize, value: u8) -> Vec<u8> {
    frame[index] = value;
    frame
}

fn padded(frame: &[u8], bytes: usize) -> Vec<u8> {
    [frame, &vec![0xaa; bytes]].concat()
}

/// A description, a frame, and whether the frame passes.
type Case = (&'static str, Vec<u8>, bool);

/// The verdict of the gate for a frame of this Ethernet type that does not pass.
fn drop_verdict(frame: &[u8]) -> Verdict {
    match (frame[12], frame[13]) {
        (0x08, 0x00) | (0x86, 0xdd) => DropGate,
        _ => DropGateType,
    }
}

fn neighbor_and_dhcp_frames() -> Vec<Record> {
    let cases = neighbor::cases().into_iter().chain(dhcp::cases());
    let records = cases.map(|(name, frame, passes)| {
        let verdict = if passes { PassAlways } else { drop_verdict(&frame) };
        record(name, |_| {}, move |_| frame.clone(), verdict)
    });
    records.collect()
}

/// Frames of routers, DHCP servers and bridges, which devices are not allowed to send.
fn roles() -> Vec<(String, Vec<u8>)> {
    let llc = |mac: [u8; 6]| {
        let to = Endpoint {
            mac,
            ..end("10.66.0.9")
        };
        let from = Endpoint {
            mac: A.mac(),
            ..end("10.66.128.1")
        };
        FrameBuilder::new(from, to).ethernet(38, &[0x42; 46])
    };
    let mut roles = vec![
        (
            "a DHCP server's reply".to_owned(),
            datagram("10.66.0.9", "255.255.255.255", (67, 68)),
        ),
        (
            "a DHCP server's reply to one host".to_owned(),
            datagram("10.66.0.9", "10.66.128.2", (67, 68)),
        ),
        (
            "a DHCPv6 server's reply".to_owned(),
            datagram(LINK_LOCAL, OTHER, (547, 546)),
        ),
        (
            "a DHCP server's message from another port".to_owned(),
            datagram("10.66.0.9", "255.255.255.255", (30067, 68)),
        ),
        (
            "a DHCP server's message from a client's port".to_owned(),
            datagram("10.66.0.9", "10.66.128.2", (68, 68)),
        ),
        (
            "a DHCPv6 server's message from another port".to_owned(),
            datagram(LINK_LOCAL, OTHER, (30547, 546)),
        ),
        (
            "a router advertisement".to_owned(),
            nd(LINK_LOCAL, ALL_NODES, 134, &[0; 12]),
        ),
        (
            "a malformed router advertisement".to_owned(),
            between(GLOBAL, REMOTE).icmpv6(134, &[0; 900]),
        ),
        ("a redirect".to_owned(), nd(LINK_LOCAL, OTHER, 137, &[0; 36])),
        (
            "a membership query, IPv6".to_owned(),
            nd(LINK_LOCAL, ALL_NODES, 130, &[0; 20]),
        ),
        (
            "a redirect, IPv4".to_owned(),
            between("10.66.0.9", "10.66.128.2").ip(1, &[5, 0, 0, 0, 1, 2, 3, 4]),
        ),
        (
            "a router advertisement, IPv4".to_owned(),
            between("10.66.0.9", "224.0.0.1").ip(1, &[9, 0, 0, 0, 1, 2]),
        ),
        (
            "a membership query, IPv4".to_owned(),
            between("10.66.0.9", "224.0.0.1").ip(2, &[0x11, 0, 0, 0, 0, 0, 0, 0]),
        ),
    ];
    let bridges = [
        [0x01, 0x80, 0xc2, 0, 0, 0],
        [0x01, 0x80, 0xc2, 0, 0, 8],
        [0x01, 0, 0x0c, 0xcc, 0xcc, 0xcd],
        [0x01, 0, 0x0c, 0xcc, 0xcc, 0xcc],
    ];
    roles.extend(bridges.map(|mac| (format!("a bridge's frame, to {mac:02x?}"), llc(mac))));
    roles
}

fn with_session(w: &mut TestFixture) {
    w.pool(A, 0, 4);
    w.open_bound(A, false);
}

fn role_frames_from_devices() -> Vec<Record> {
    let mut records = Vec::new();
    for (name, frame) in roles() {
        let same_frame = frame.clone();
        records.push(record(name.clone(), |_| {}, move |_| frame.clone(), DropGateRole));
        let name = format!("{name}, of a live session");
        records.push(record(
            name,
            with_session,
            move |_| same_frame.clone(),
            DropGateRole,
        ));
    }
    records
}

/// Every type of ICMPv6, between two link-local addresses.
fn icmpv6_types() -> Vec<Record> {
    let types = (0..=255).map(|kind| {
        let verdict = match kind {
            133 | 135 | 136 => PassAlways,
            130 | 134 | 137 => DropGateRole,
            _ => DropGate,
        };
        let frame = nd(
            LINK_LOCAL,
            OTHER,
            kind,
            &[0; 20][..if kind == 133 { 4 } else { 20 }],
        );
        record(
            format!("ICMPv6 type {kind}"),
            |_| {},
            move |_| frame.clone(),
            verdict,
        )
    });
    types.collect()
}

pub fn groups() -> Vec<Group> {
    assert_eq!(gateway_end(true).ip, GATEWAY_IP.parse::<IpAddr>().unwrap());
    let without_lists = || {
        let records = [
            neighbor_and_dhcp_frames(),
            neighbor::prefixes(),
            role_frames_from_devices(),
            icmpv6_types(),
            control::records(false),
        ];
        records.into_iter().flatten()
    };
    let with_lists = || control::records(true).into_iter().chain(dhcp::listed_servers());
    let sealed_with_lists = TestConfig {
        lists: true,
        ..TestConfig::SEALED
    };
    vec![
        group(
            TestConfig::BOUND,
            without_lists().chain(membership::records()).collect(),
        ),
        group(TestConfig::LISTED, with_lists().collect()),
        group(TestConfig::SEALED, without_lists().collect()),
        group(sealed_with_lists, with_lists().collect()),
    ]
}
