//! ARP, DHCP to all servers, and DHCP to the servers that the operator has listed.

use std::net::IpAddr;

use linewarden_protocol::verdict::Verdict::*;

use super::{ALL_NODES, Case, GLOBAL, LINK_LOCAL, between, datagram, padded, with_byte};
use crate::records::{Record, record};
use crate::support::test_config::{DHCP_SERVER, DHCP_SERVER6};

pub(super) fn cases() -> Vec<Case> {
    let arp = between("10.66.128.1", "10.66.0.9").arp_request();
    let discover = between("0.0.0.0", "255.255.255.255").dhcp();
    let solicit = between(LINK_LOCAL, "ff02::1:2").dhcp();
    vec![
        ("an ARP request", arp.clone(), true),
        ("an ARP reply", with_byte(arp.clone(), 21, 2), true),
        (
            "an ARP request in a VLAN",
            between("10.66.128.1", "10.66.0.9").vlan(9).arp_request(),
            true,
        ),
        ("another operation of ARP", with_byte(arp.clone(), 21, 3), false),
        ("ARP of another network", with_byte(arp.clone(), 16, 9), false),
        ("ARP with longer addresses", with_byte(arp.clone(), 18, 8), false),
        ("ARP with padding", padded(&arp, 18), true),
        ("ARP with more than padding behind it", padded(&arp, 19), false),
        ("truncated ARP", arp[..41].to_vec(), false),
        ("DHCP to all", discover.clone(), true),
        (
            "DHCP to all, from an address",
            between("10.66.128.1", "255.255.255.255").dhcp(),
            true,
        ),
        (
            "DHCP with more than padding behind it",
            padded(&discover, 19),
            false,
        ),
        (
            "DHCP to a service",
            between("10.66.128.1", "10.77.0.1").dhcp(),
            false,
        ),
        (
            "DHCP to the gateway",
            between("10.66.128.1", "10.66.0.254").dhcp(),
            false,
        ),
        (
            "DHCP to the network's broadcast address",
            between("10.66.128.1", "10.66.255.255").dhcp(),
            false,
        ),
        ("DHCPv6 to the link's relays", solicit.clone(), true),
        (
            "DHCPv6 from a routed address",
            between(GLOBAL, "ff02::1:2").dhcp(),
            false,
        ),
        (
            "DHCPv6 to the site's servers",
            between(LINK_LOCAL, "ff05::1:3").dhcp(),
            false,
        ),
        ("DHCPv6 to a service", between(GLOBAL, "fd77::1").dhcp(), false),
        (
            "DHCPv6 to all nodes",
            between(LINK_LOCAL, ALL_NODES).dhcp(),
            false,
        ),
        (
            "DHCP ports on IPv6",
            datagram(LINK_LOCAL, "ff02::1:2", (68, 67)),
            false,
        ),
        (
            "DHCPv6 ports on IPv4",
            datagram("0.0.0.0", "255.255.255.255", (546, 547)),
            false,
        ),
        (
            "DHCP server port from another port",
            datagram("0.0.0.0", "255.255.255.255", (69, 67)),
            false,
        ),
        (
            "ports with the same sum",
            datagram("0.0.0.0", "255.255.255.255", (66, 69)),
            false,
        ),
        (
            "ports with the same sum, IPv6",
            datagram(LINK_LOCAL, "ff02::1:2", (545, 548)),
            false,
        ),
    ]
}

/// DHCP to servers that the operator has listed, and to other servers.
pub(super) fn listed_servers() -> Vec<Record> {
    let addresses = [DHCP_SERVER, DHCP_SERVER6].map(|server: IpAddr| server.to_string());
    let frames = [
        (
            "DHCP to a listed server",
            between("10.66.128.1", &addresses[0]).dhcp(),
            PassAlways,
        ),
        (
            "DHCP to another server",
            between("10.66.128.1", "10.77.0.10").dhcp(),
            DropGate,
        ),
        (
            "DHCPv6 to a listed server",
            between(GLOBAL, &addresses[1]).dhcp(),
            PassAlways,
        ),
        (
            "DHCPv6 to the site's servers",
            between(LINK_LOCAL, "ff05::1:3").dhcp(),
            PassAlways,
        ),
        (
            "DHCPv6 to another server",
            between(GLOBAL, "fd77::10").dhcp(),
            DropGate,
        ),
        (
            "DHCP to all",
            between("0.0.0.0", "255.255.255.255").dhcp(),
            PassAlways,
        ),
        (
            "a listed server's reply, sent by a device",
            datagram(&addresses[0], "255.255.255.255", (67, 68)),
            DropGateRole,
        ),
    ];
    let records = frames.map(|(name, frame, verdict)| record(name, |_| {}, move |_| frame.clone(), verdict));
    records.into()
}
