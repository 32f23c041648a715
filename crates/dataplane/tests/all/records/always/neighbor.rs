//! Neighbor discovery: exact messages, frames that resemble them, and the addresses between which messages pass.

use std::net::Ipv6Addr;

use linewarden_protocol::verdict::Verdict::*;

use super::{
    ALL_NODES, ALL_ROUTERS, Case, GATEWAY_IP, GLOBAL, LINK_LOCAL, OTHER, REMOTE, SAME_PREFIX, SOLICITED,
    between, nd, padded, with_byte,
};
use crate::records::{Record, record};

/// The body of a message: four reserved bytes, a target, and options.
fn target(ip: &str, options: &[u8]) -> Vec<u8> {
    let ip: Ipv6Addr = ip.parse().unwrap();
    [&[0; 4][..], &ip.octets(), options].concat()
}

/// `count` options of eight bytes.
fn options(count: usize) -> Vec<u8> {
    [14, 1, 1, 2, 3, 4, 5, 6].repeat(count)
}

/// Exact messages and frames that resemble them, and whether each frame passes without a session.
pub(super) fn cases() -> Vec<Case> {
    let ns = |to: &str| nd(LINK_LOCAL, to, 135, &target(OTHER, &options(1)));
    let na = |from: &str, to: &str| nd(from, to, 136, &target(from, &[]));
    vec![
        (
            "a router solicitation",
            nd(LINK_LOCAL, ALL_ROUTERS, 133, &[0; 4]),
            true,
        ),
        (
            "a router solicitation from the unspecified address",
            nd("::", ALL_ROUTERS, 133, &[0; 4]),
            true,
        ),
        (
            "a router solicitation to all nodes",
            nd(LINK_LOCAL, ALL_NODES, 133, &[0; 4]),
            false,
        ),
        ("a neighbor solicitation", ns(SOLICITED), true),
        (
            "a neighbor solicitation to all nodes, not a solicited-node group",
            ns(ALL_NODES),
            false,
        ),
        (
            "a neighbor solicitation for duplicate address detection",
            nd("::", SOLICITED, 135, &target(LINK_LOCAL, &[])),
            true,
        ),
        (
            "a neighbor solicitation without source to one host",
            nd("::", OTHER, 135, &target(LINK_LOCAL, &[])),
            false,
        ),
        ("a neighbor solicitation to a neighbor", ns(OTHER), true),
        (
            "a neighbor solicitation from a neighbor to a service",
            ns(REMOTE),
            true,
        ),
        (
            "a neighbor solicitation to the gateway",
            nd(GLOBAL, GATEWAY_IP, 135, &target(GATEWAY_IP, &options(1))),
            true,
        ),
        (
            "a neighbor solicitation to the same network",
            nd(GLOBAL, SAME_PREFIX, 135, &target(SAME_PREFIX, &[])),
            true,
        ),
        (
            "a neighbor solicitation to another network",
            nd(GLOBAL, REMOTE, 135, &target(REMOTE, &[])),
            false,
        ),
        (
            "a neighbor solicitation about a group",
            nd(LINK_LOCAL, SOLICITED, 135, &target(ALL_NODES, &[])),
            false,
        ),
        (
            "a neighbor solicitation from a group",
            nd(ALL_NODES, OTHER, 135, &target(OTHER, &[])),
            false,
        ),
        ("a neighbor advertisement", na(LINK_LOCAL, OTHER), true),
        (
            "an unsolicited neighbor advertisement to all nodes",
            na(GLOBAL, ALL_NODES),
            true,
        ),
        (
            "a neighbor advertisement to all routers",
            na(GLOBAL, ALL_ROUTERS),
            false,
        ),
        (
            "an unsolicited neighbor advertisement to another network",
            na(GLOBAL, REMOTE),
            false,
        ),
        (
            "a neighbor solicitation with a hop limit of 64",
            between(LINK_LOCAL, SOLICITED).icmpv6(135, &target(OTHER, &[])),
            false,
        ),
        (
            "a neighbor solicitation with a hop limit of 254",
            with_byte(ns(SOLICITED), 21, 254),
            false,
        ),
        (
            "a neighbor solicitation with code 1",
            with_byte(ns(SOLICITED), 55, 1),
            false,
        ),
        (
            "a neighbor solicitation with a truncated target",
            nd(LINK_LOCAL, SOLICITED, 135, &[0; 19]),
            false,
        ),
        (
            "a router solicitation of 7 B",
            nd(LINK_LOCAL, ALL_ROUTERS, 133, &[0; 3]),
            false,
        ),
        (
            "eight options",
            nd(LINK_LOCAL, SOLICITED, 135, &target(OTHER, &options(8))),
            true,
        ),
        (
            "nine options",
            nd(LINK_LOCAL, SOLICITED, 135, &target(OTHER, &options(9))),
            false,
        ),
        ("an option of length 0", with_byte(ns(SOLICITED), 79, 0), false),
        (
            "an option beyond the packet",
            with_byte(ns(SOLICITED), 79, 2),
            false,
        ),
        (
            "one byte of an option",
            nd(LINK_LOCAL, SOLICITED, 135, &target(OTHER, &[1])),
            false,
        ),
        (
            "an option of 64 B",
            nd(
                LINK_LOCAL,
                SOLICITED,
                135,
                &target(OTHER, &with_byte(vec![0; 64], 1, 8)),
            ),
            true,
        ),
        (
            "1,400 bytes behind the target",
            nd(LINK_LOCAL, SOLICITED, 135, &target(OTHER, &[0x5a; 1400])),
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
            between(LINK_LOCAL, SOLICITED)
                .vlan(3)
                .ip_fields(0, 0, 255)
                .icmpv6(135, &target(OTHER, &[])),
            true,
        ),
        (
            "behind two tags",
            between(LINK_LOCAL, SOLICITED)
                .tag(0x88a8, 0)
                .vlan(3)
                .ip_fields(0, 0, 255)
                .icmpv6(135, &target(OTHER, &[])),
            true,
        ),
    ]
}

/// Unicast neighbor discovery if the devices have two prefixes on one link, a part of a /64, or only IPv4 prefixes.
pub(super) fn prefixes() -> Vec<Record> {
    const SECOND: &str = "fd66:0:0:1::9";
    // Prefixes of the devices, and whether a solicitation passes between each of the pairs below.
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
        ("the first prefix to the second", GLOBAL, SECOND),
        ("the second prefix to the first", SECOND, GLOBAL),
        ("a device to its own /64", "fd66::1", SAME_PREFIX),
        ("a foreign source to its own /64", "fd77::8", REMOTE),
        ("a device to a service", GLOBAL, REMOTE),
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
