//! What passes a gate without a session, what no device may send, and what passes with one although it has options
//! (LAP/1 1.4.17).

use std::net::{IpAddr, Ipv6Addr};

use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::gateway::ControlProtocol;
use linewarden_protocol::verdict::Verdict::{self, *};

use super::{Group, Record, group, record};
use crate::support::device::{A, B, gateway_end, service_end};
use crate::support::shape::{DHCP_SERVER, DHCP_SERVER6, Shape};
use crate::support::world::World;

const GROUP: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
/// A link-local address of a device's, and of another node.
const NEAR: &str = "fe80::1:2";
const OTHER: &str = "fe80::9";
const ALL_NODES: &str = "ff02::1";
const ALL_ROUTERS: &str = "ff02::2";
const SOLICITED: &str = "ff02::1:ff00:9";
/// Behind the gateway, and in a device's own /64.
const FAR: &str = "fd77::9";
const BESIDE: &str = "fd66::1:99";
const OWN: &str = "fd66::fe";
const GLOBAL: &str = "fd66::1:1";

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

fn between(from: &str, to: &str) -> FrameBuilder {
    let from = Endpoint {
        mac: A.mac(),
        ..end(from)
    };
    FrameBuilder::new(from, end(to))
}

/// Neighbor discovery from here to there, with the right hop limit: type, and what is behind the checksum.
fn nd(from: &str, to: &str, kind: u8, body: &[u8]) -> Vec<u8> {
    between(from, to).ip_fields(0, 0, 255).icmpv6(kind, body)
}

/// Four reserved bytes, a target, and options.
fn target(ip: &str, options: &[u8]) -> Vec<u8> {
    let ip: Ipv6Addr = ip.parse().unwrap();
    [&[0; 4][..], &ip.octets(), options].concat()
}

/// So many options of eight bytes.
fn options(count: usize) -> Vec<u8> {
    [14, 1, 1, 2, 3, 4, 5, 6].repeat(count)
}

fn dhcp(from: &str, to: &str) -> FrameBuilder {
    between(from, to)
}

fn ports(from: &str, to: &str, ports: (u16, u16)) -> Vec<u8> {
    let (mut source, mut sink) = (end(from), end(to));
    source.mac = A.mac();
    (source.port, sink.port) = ports;
    FrameBuilder::new(source, sink).udp(&[7; 300])
}

/// The same, with its code, hop limit or length field changed.
fn changed(mut frame: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    frame[at] = value;
    frame
}

fn padded(frame: &[u8], bytes: usize) -> Vec<u8> {
    [frame, &vec![0xaa; bytes]].concat()
}

type Case = (&'static str, Vec<u8>, bool);

/// Frames in their exact form and in others: whether they pass without a session.
fn neighbor_discovery() -> Vec<Case> {
    let ns = |to: &str| nd(NEAR, to, 135, &target(OTHER, &options(1)));
    let na = |from: &str, to: &str| nd(from, to, 136, &target(from, &[]));
    vec![
        ("a router solicitation", nd(NEAR, ALL_ROUTERS, 133, &[0; 4]), true),
        (
            "one before there is an address",
            nd("::", ALL_ROUTERS, 133, &[0; 4]),
            true,
        ),
        ("one to all nodes", nd(NEAR, ALL_NODES, 133, &[0; 4]), false),
        ("a neighbor solicitation", ns(SOLICITED), true),
        ("one to all nodes, which is no group of it", ns(ALL_NODES), false),
        (
            "one for an address that may be taken",
            nd("::", SOLICITED, 135, &target(NEAR, &[])),
            true,
        ),
        (
            "one without source to one host",
            nd("::", OTHER, 135, &target(NEAR, &[])),
            false,
        ),
        ("one to a neighbor", ns(OTHER), true),
        ("one from a neighbor's view to a service", ns(FAR), true),
        (
            "one to the gateway",
            nd(GLOBAL, OWN, 135, &target(OWN, &options(1))),
            true,
        ),
        (
            "one to the same network",
            nd(GLOBAL, BESIDE, 135, &target(BESIDE, &[])),
            true,
        ),
        (
            "one to another network",
            nd(GLOBAL, FAR, 135, &target(FAR, &[])),
            false,
        ),
        (
            "one about a group",
            nd(NEAR, SOLICITED, 135, &target(ALL_NODES, &[])),
            false,
        ),
        (
            "one from a group",
            nd(ALL_NODES, OTHER, 135, &target(OTHER, &[])),
            false,
        ),
        ("a neighbor advertisement", na(NEAR, OTHER), true),
        ("one to all nodes, unasked", na(GLOBAL, ALL_NODES), true),
        ("one to all routers", na(GLOBAL, ALL_ROUTERS), false),
        ("one to another network, unasked", na(GLOBAL, FAR), false),
        (
            "a hop limit of 64",
            between(NEAR, SOLICITED).icmpv6(135, &target(OTHER, &[])),
            false,
        ),
        ("a hop limit of 254", changed(ns(SOLICITED), 21, 254), false),
        ("code 1", changed(ns(SOLICITED), 55, 1), false),
        (
            "a target that is cut off",
            nd(NEAR, SOLICITED, 135, &[0; 19]),
            false,
        ),
        (
            "a solicitation of 7 B",
            nd(NEAR, ALL_ROUTERS, 133, &[0; 3]),
            false,
        ),
        (
            "eight options",
            nd(NEAR, SOLICITED, 135, &target(OTHER, &options(8))),
            true,
        ),
        (
            "nine options",
            nd(NEAR, SOLICITED, 135, &target(OTHER, &options(9))),
            false,
        ),
        ("an option of length 0", changed(ns(SOLICITED), 79, 0), false),
        (
            "an option beyond the packet",
            changed(ns(SOLICITED), 79, 2),
            false,
        ),
        (
            "a byte of an option",
            nd(NEAR, SOLICITED, 135, &target(OTHER, &[1])),
            false,
        ),
        (
            "an option of 64 B",
            nd(NEAR, SOLICITED, 135, &target(OTHER, &changed(vec![0; 64], 1, 8))),
            true,
        ),
        (
            "1,400 bytes behind the target",
            nd(NEAR, SOLICITED, 135, &target(OTHER, &[0x5a; 1400])),
            false,
        ),
        ("padding behind the packet", padded(&ns(SOLICITED), 18), true),
        (
            "more than padding behind the packet",
            padded(&ns(SOLICITED), 19),
            false,
        ),
        (
            "in a VLAN",
            between(NEAR, SOLICITED)
                .vlan(3)
                .ip_fields(0, 0, 255)
                .icmpv6(135, &target(OTHER, &[])),
            true,
        ),
        (
            "behind two tags",
            between(NEAR, SOLICITED)
                .tag(0x88a8, 0)
                .vlan(3)
                .ip_fields(0, 0, 255)
                .icmpv6(135, &target(OTHER, &[])),
            true,
        ),
    ]
}

/// Unicast neighbor discovery with two of the devices' prefixes on one link, and with a part of one /64.
fn prefixes() -> Vec<Record> {
    const SECOND: &str = "fd66:0:0:1::9";
    let sets: [(&'static [&'static str], [bool; 5]); 3] = [
        (
            &["10.66.0.0/16", "fd66::/64", "fd66:0:0:1::/64"],
            [true, true, true, false, false],
        ),
        (
            &["10.66.0.0/16", "fd66::/112"],
            [false, false, true, false, false],
        ),
        (&["10.66.0.0/16"], [false; 5]),
    ];
    let pairs = [
        ("one prefix to the other", GLOBAL, SECOND),
        ("the other prefix", SECOND, GLOBAL),
        ("a device to its /64", "fd66::1", BESIDE),
        ("a foreign source to its /64", "fd77::8", FAR),
        ("a device to a service", GLOBAL, FAR),
    ];
    let mut records = Vec::new();
    for (set, passes) in sets {
        for ((name, from, to), passes) in pairs.into_iter().zip(passes) {
            let frame = nd(from, to, 135, &target(to, &options(1)));
            let verdict = if passes { PassAlways } else { DropGate };
            records.push(record(
                format!("neighbor solicitation from {name}, devices in {set:?}"),
                move |w| w.move_devices(set),
                move |_| frame.clone(),
                verdict,
            ));
        }
    }
    records
}

fn arp_and_dhcp() -> Vec<Case> {
    let arp = between("10.66.128.1", "10.66.0.9").arp_request();
    let discover = dhcp("0.0.0.0", "255.255.255.255").dhcp();
    let solicit = dhcp(NEAR, "ff02::1:2").dhcp();
    vec![
        ("an ARP request", arp.clone(), true),
        ("an ARP reply", changed(arp.clone(), 21, 2), true),
        (
            "an ARP request in a VLAN",
            between("10.66.128.1", "10.66.0.9").vlan(9).arp_request(),
            true,
        ),
        ("another operation of ARP", changed(arp.clone(), 21, 3), false),
        ("ARP of another network", changed(arp.clone(), 16, 9), false),
        ("ARP with longer addresses", changed(arp.clone(), 18, 8), false),
        ("ARP with padding", padded(&arp, 18), true),
        ("ARP with more behind it", padded(&arp, 19), false),
        ("ARP that is cut off", arp[..41].to_vec(), false),
        ("DHCP to all", discover.clone(), true),
        (
            "DHCP to all, from an address",
            dhcp("10.66.128.1", "255.255.255.255").dhcp(),
            true,
        ),
        ("DHCP with more behind it", padded(&discover, 19), false),
        (
            "DHCP to a service",
            dhcp("10.66.128.1", "10.77.0.1").dhcp(),
            false,
        ),
        (
            "DHCP to the gateway",
            dhcp("10.66.128.1", "10.66.0.254").dhcp(),
            false,
        ),
        (
            "DHCP to the network's broadcast address",
            dhcp("10.66.128.1", "10.66.255.255").dhcp(),
            false,
        ),
        ("DHCPv6 to the link's relays", solicit.clone(), true),
        (
            "DHCPv6 from an address that is routed",
            dhcp(GLOBAL, "ff02::1:2").dhcp(),
            false,
        ),
        (
            "DHCPv6 to the site's servers",
            dhcp(NEAR, "ff05::1:3").dhcp(),
            false,
        ),
        ("DHCPv6 to a service", dhcp(GLOBAL, "fd77::1").dhcp(), false),
        ("DHCPv6 to all nodes", dhcp(NEAR, ALL_NODES).dhcp(), false),
        ("DHCP's ports on IPv6", ports(NEAR, "ff02::1:2", (68, 67)), false),
        (
            "DHCPv6's ports on IPv4",
            ports("0.0.0.0", "255.255.255.255", (546, 547)),
            false,
        ),
        (
            "DHCP's port from another",
            ports("0.0.0.0", "255.255.255.255", (69, 67)),
            false,
        ),
        (
            "ports of the same sum",
            ports("0.0.0.0", "255.255.255.255", (66, 69)),
            false,
        ),
        (
            "ports of the same sum, IPv6",
            ports(NEAR, "ff02::1:2", (545, 548)),
            false,
        ),
    ]
}

/// What the gate says where a frame does not pass.
fn closed(frame: &[u8]) -> Verdict {
    match (frame[12], frame[13]) {
        (0x08, 0x00) | (0x86, 0xdd) => DropGate,
        _ => DropGateType,
    }
}

fn listed() -> Vec<Record> {
    let cases = neighbor_discovery().into_iter().chain(arp_and_dhcp());
    let records = cases.map(|(name, frame, passes)| {
        let verdict = if passes { PassAlways } else { closed(&frame) };
        record(name, |_| {}, move |_| frame.clone(), verdict)
    });
    records.collect()
}

/// Frames of routers, DHCP servers and bridges.
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
            ports("10.66.0.9", "255.255.255.255", (67, 68)),
        ),
        (
            "a DHCP server's reply to one host".to_owned(),
            ports("10.66.0.9", "10.66.128.2", (67, 68)),
        ),
        (
            "a DHCPv6 server's reply".to_owned(),
            ports(NEAR, OTHER, (547, 546)),
        ),
        (
            "a DHCP server's message from another port".to_owned(),
            ports("10.66.0.9", "255.255.255.255", (30067, 68)),
        ),
        (
            "a DHCP server's message from a client's port".to_owned(),
            ports("10.66.0.9", "10.66.128.2", (68, 68)),
        ),
        (
            "a DHCPv6 server's message from another port".to_owned(),
            ports(NEAR, OTHER, (30547, 546)),
        ),
        (
            "a router advertisement".to_owned(),
            nd(NEAR, ALL_NODES, 134, &[0; 12]),
        ),
        (
            "a router advertisement of no form".to_owned(),
            between(GLOBAL, FAR).icmpv6(134, &[0; 900]),
        ),
        ("a redirect".to_owned(), nd(NEAR, OTHER, 137, &[0; 36])),
        (
            "a query for groups, IPv6".to_owned(),
            nd(NEAR, ALL_NODES, 130, &[0; 20]),
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
            "a query for groups, IPv4".to_owned(),
            between("10.66.0.9", "224.0.0.1").ip(2, &[0x11, 0, 0, 0, 0, 0, 0, 0]),
        ),
    ];
    let bridges = [
        [0x01, 0x80, 0xc2, 0, 0, 0],
        [0x01, 0x80, 0xc2, 0, 0, 8],
        [0x01, 0, 0x0c, 0xcc, 0xcc, 0xcd],
        [0x01, 0, 0x0c, 0xcc, 0xcc, 0xcc],
    ];
    roles.extend(bridges.map(|mac| (format!("a bridge's, to {mac:02x?}"), llc(mac))));
    roles
}

fn with_session(w: &mut World) {
    w.pool(A, 0, 4);
    w.open_bound(A, false);
}

fn no_device_s() -> Vec<Record> {
    let mut records = Vec::new();
    for (name, frame) in roles() {
        let again = frame.clone();
        records.push(record(name.clone(), |_| {}, move |_| frame.clone(), DropGateRole));
        let name = format!("{name}, of a live session");
        records.push(record(name, with_session, move |_| again.clone(), DropGateRole));
    }
    records
}

/// Every type of ICMPv6, between neighbors.
fn types() -> Vec<Record> {
    let types = (0..=255).map(|kind| {
        let verdict = match kind {
            133 | 135 | 136 => PassAlways,
            130 | 134 | 137 => DropGateRole,
            _ => DropGate,
        };
        let frame = nd(NEAR, OTHER, kind, &[0; 20][..if kind == 133 { 4 } else { 20 }]);
        record(
            format!("ICMPv6 type {kind}"),
            |_| {},
            move |_| frame.clone(),
            verdict,
        )
    });
    types.collect()
}

fn igmp(options: &[u8], ttl: u8, to: &str, message: &[u8]) -> Vec<u8> {
    let mut group = end(to);
    group.mac = [1, 0, 0x5e, 1, 1, 1];
    FrameBuilder::new(A.end(false), group)
        .options(options)
        .ip_fields(0xc0, 0, ttl)
        .ip(2, message)
}

fn mld(from: &str, to: &str, hop_limit: u8, options: [u8; 6], message: &[u8]) -> Vec<u8> {
    let header = [&[58, 0][..], &options, message].concat();
    between(from, to).ip_fields(0, 0, hop_limit).ip(0, &header)
}

/// Reports of groups, and what looks like them.
fn reports() -> Vec<Case> {
    const ALERT: [u8; 4] = [0x94, 4, 0, 0];
    const REPORT: [u8; 8] = [0x16, 0, 0, 0, 239, 1, 1, 1];
    const ALERT6: [u8; 6] = [5, 2, 0, 0, 1, 0];
    const REPORT6: [u8; 28] = {
        let mut report = [0; 28];
        report[0] = 143;
        report
    };
    let kind = |kind: u8| changed(REPORT.to_vec(), 0, kind);
    let kind6 = |kind: u8| changed(REPORT6[..24].to_vec(), 0, kind);
    vec![
        ("IGMP version 1", igmp(&ALERT, 1, "239.1.1.1", &kind(0x12)), true),
        ("IGMP version 2", igmp(&ALERT, 1, "239.1.1.1", &REPORT), true),
        (
            "IGMP version 2, leave",
            igmp(&ALERT, 1, "224.0.0.2", &kind(0x17)),
            true,
        ),
        (
            "IGMP version 3",
            igmp(&ALERT, 1, "224.0.0.22", &[&kind(0x22), &[0; 8][..]].concat()),
            true,
        ),
        (
            "an IGMP query behind the option",
            igmp(&ALERT, 1, "224.0.0.1", &kind(0x11)),
            false,
        ),
        ("IGMP with TTL 2", igmp(&ALERT, 2, "239.1.1.1", &REPORT), false),
        ("IGMP to one host", igmp(&ALERT, 1, "10.77.0.9", &REPORT), false),
        ("IGMP of 7 B", igmp(&ALERT, 1, "239.1.1.1", &REPORT[..7]), false),
        (
            "IGMP behind another option",
            igmp(&[7, 4, 4, 0], 1, "239.1.1.1", &REPORT),
            false,
        ),
        (
            "IGMP behind two options",
            igmp(&[0x94, 4, 0, 0, 1, 1, 1, 1], 1, "239.1.1.1", &REPORT),
            false,
        ),
        (
            "UDP behind a router alert",
            between("10.66.128.1", "239.1.1.1").options(&ALERT).udp(b"x"),
            false,
        ),
        (
            "MLD version 1",
            mld(NEAR, "ff02::99", 1, ALERT6, &kind6(131)),
            true,
        ),
        (
            "MLD version 1, done",
            mld(NEAR, ALL_ROUTERS, 1, ALERT6, &kind6(132)),
            true,
        ),
        ("MLD version 2", mld(NEAR, "ff02::16", 1, ALERT6, &REPORT6), true),
        (
            "MLD before there is an address",
            mld("::", "ff02::16", 1, ALERT6, &REPORT6),
            true,
        ),
        (
            "MLD, padded by Pad1",
            mld(NEAR, "ff02::16", 1, [5, 2, 0, 0, 0, 0], &REPORT6),
            true,
        ),
        (
            "MLD, padded in front",
            mld(NEAR, "ff02::16", 1, [1, 0, 5, 2, 0, 0], &REPORT6),
            true,
        ),
        (
            "MLD, padded in front by Pad1",
            mld(NEAR, "ff02::16", 1, [0, 0, 5, 2, 0, 0], &REPORT6),
            true,
        ),
        (
            "an MLD query behind the option",
            mld(NEAR, ALL_NODES, 1, ALERT6, &kind6(130)),
            false,
        ),
        (
            "MLD with hop limit 2",
            mld(NEAR, "ff02::16", 2, ALERT6, &REPORT6),
            false,
        ),
        (
            "MLD from an address that is routed",
            mld(GLOBAL, "ff02::16", 1, ALERT6, &REPORT6),
            false,
        ),
        ("MLD to one host", mld(NEAR, FAR, 1, ALERT6, &REPORT6), false),
        (
            "MLD version 1 that is cut off",
            mld(NEAR, "ff02::99", 1, ALERT6, &kind6(131)[..23]),
            false,
        ),
        (
            "MLD with code 1",
            mld(NEAR, "ff02::16", 1, ALERT6, &changed(REPORT6.to_vec(), 1, 1)),
            false,
        ),
        (
            "MLD behind another value",
            mld(NEAR, "ff02::16", 1, [5, 2, 0, 1, 1, 0], &REPORT6),
            false,
        ),
        (
            "MLD behind evidence",
            mld(NEAR, "ff02::16", 1, [0x37, 4, 0, 0, 0, 0], &REPORT6),
            false,
        ),
        (
            "neighbor discovery behind a router alert",
            mld(NEAR, SOLICITED, 1, ALERT6, &kind6(135)),
            false,
        ),
    ]
}

fn memberships() -> Vec<Record> {
    let mut records = Vec::new();
    for (name, frame, is_report) in reports() {
        let (with, without) = if is_report {
            (PassSession, DropGate)
        } else {
            (DropGateExtension, DropGateExtension)
        };
        let again = frame.clone();
        records.push(record(name, |_| {}, move |_| frame.clone(), without));
        let name = format!("{name}, of a live session");
        records.push(record(name, with_session, move |_| again.clone(), with));
    }
    records
}

/// A message of each named protocol to each of its addresses.
fn control(protocol: ControlProtocol) -> Vec<Vec<u8>> {
    let to = |(mac, ether_type): &([u8; 6], u16)| {
        let to = Endpoint {
            mac: *mac,
            ..end("10.66.0.9")
        };
        let from = Endpoint {
            mac: B.mac(),
            ..end("10.66.128.2")
        };
        let ether_type = if *ether_type == 0 { 46 } else { *ether_type };
        FrameBuilder::new(from, to).ethernet(ether_type, &[2; 46])
    };
    protocol.addresses().iter().map(to).collect()
}

/// Whether it passes where the operator has named all, and nowhere else.
fn controls(named: bool) -> Vec<Record> {
    let mut records = Vec::new();
    for protocol in ControlProtocol::ALL {
        let is_bridge_s = matches!(protocol, ControlProtocol::Stp | ControlProtocol::Cdp);
        let verdict = match (named, is_bridge_s) {
            (true, _) => PassAlways,
            (false, true) => DropGateRole,
            (false, false) => DropGateType,
        };
        for (number, frame) in control(*protocol).into_iter().enumerate() {
            // Of another type, or to a host.
            let (other, host) = (changed(frame.clone(), 13, 0xff), changed(frame.clone(), 0, 0x02));
            let name = format!("{}, address {number}, named {named}", protocol.name());
            let record =
                |name, frame: Vec<u8>, verdict| record(name, |_| {}, move |_| frame.clone(), verdict);
            records.push(record(format!("{name}, to a host"), host, DropGateType));
            let is_llc = other[12] < 6;
            if !is_llc {
                records.push(record(format!("{name}, another type"), other, DropGateType));
            }
            records.push(record(name, frame, verdict));
        }
    }
    records
}

/// Servers that the operator has named.
fn servers() -> Vec<Record> {
    let named = [DHCP_SERVER, DHCP_SERVER6].map(|server: IpAddr| server.to_string());
    let frames = [
        (
            "DHCP to a server",
            dhcp("10.66.128.1", &named[0]).dhcp(),
            PassAlways,
        ),
        (
            "DHCP to another server",
            dhcp("10.66.128.1", "10.77.0.10").dhcp(),
            DropGate,
        ),
        ("DHCPv6 to a server", dhcp(GLOBAL, &named[1]).dhcp(), PassAlways),
        (
            "DHCPv6 to the site's servers",
            dhcp(NEAR, "ff05::1:3").dhcp(),
            PassAlways,
        ),
        (
            "DHCPv6 to another server",
            dhcp(GLOBAL, "fd77::10").dhcp(),
            DropGate,
        ),
        (
            "DHCP to all",
            dhcp("0.0.0.0", "255.255.255.255").dhcp(),
            PassAlways,
        ),
        (
            "a server's reply from a device",
            ports(&named[0], "255.255.255.255", (67, 68)),
            DropGateRole,
        ),
    ];
    let records = frames.map(|(name, frame, verdict)| record(name, |_| {}, move |_| frame.clone(), verdict));
    records.into()
}

pub fn groups() -> Vec<Group> {
    assert_eq!(gateway_end(true).ip, OWN.parse::<IpAddr>().unwrap());
    let exact = || {
        let records = [listed(), prefixes(), no_device_s(), types(), controls(false)];
        records.into_iter().flatten()
    };
    let named = || controls(true).into_iter().chain(servers());
    let sealed_named = Shape {
        lists: true,
        ..Shape::SEALED
    };
    vec![
        group(Shape::OPEN, exact().chain(memberships()).collect()),
        group(Shape::LISTED, named().collect()),
        group(Shape::SEALED, exact().collect()),
        group(sealed_named, named().collect()),
    ]
}
