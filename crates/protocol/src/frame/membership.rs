//! Multicast group reports, which hosts send with a router alert (RFC 2113, RFC 2711): IGMP (RFC 3376) and MLD (RFC
//! 3810). Only the exact form is accepted: the router alert is the only option, and the report follows.

use core::net::Ipv6Addr;

use super::header::{Ipv4, Ipv6, PROTOCOL_ICMPV6, PROTOCOL_IGMP};

/// Version and header length of an IPv4 header of 24 bytes.
const IPV4_24_BYTES: u8 = 0x46;
/// The IPv4 option router alert, value 0.
const IPV4_ROUTER_ALERT: [u8; 4] = [0x94, 0x04, 0, 0];
/// IGMP types that hosts send: report of versions 1 and 2, leave, report of version 3. Queries are sent by routers.
const IGMP_REPORTS: [u8; 4] = [0x12, 0x16, 0x17, 0x22];
/// Minimum length of an IGMP message.
const IGMP_BYTES: usize = 8;

/// Router alert for MLD (value 0) and two bytes of padding, in their possible orders: `PadN`, or `Pad1` twice.
const IPV6_ROUTER_ALERTS: [[u8; 6]; 4] = [
    [5, 2, 0, 0, 1, 0],
    [5, 2, 0, 0, 0, 0],
    [1, 0, 5, 2, 0, 0],
    [0, 0, 5, 2, 0, 0],
];
/// Length of a report or done of version 1, and minimum length of a report of version 2.
const MLD_V1_BYTES: usize = 24;
const MLD_V2_BYTES: usize = 8;

/// Whether an IPv4 packet is an IGMP report. `packet` has the length from its header and is not a fragment.
pub(super) fn is_igmp(ip: &Ipv4, packet: &[u8]) -> bool {
    let [group, ..] = ip.dst;
    let Some((options, message)) = packet.get(20..).and_then(|rest| rest.split_first_chunk()) else {
        return false;
    };
    ip.version_ihl == IPV4_24_BYTES
        && ip.protocol == PROTOCOL_IGMP
        && ip.ttl == 1
        && group & 0xf0 == 0xe0
        && *options == IPV4_ROUTER_ALERT
        && message.len() >= IGMP_BYTES
        && message.first().is_some_and(|kind| IGMP_REPORTS.contains(kind))
}

/// Whether an IPv6 packet is an MLD report. `payload` follows the IPv6 header, which announces a hop-by-hop header.
pub(super) fn is_mld(ip: &Ipv6, payload: &[u8]) -> bool {
    let Some(([next, length, options @ ..], message)) = payload.split_first_chunk::<8>() else {
        return false;
    };
    let [kind, code, ..] = message else {
        return false;
    };
    let bytes_min = match kind {
        131 | 132 => MLD_V1_BYTES,
        143 => MLD_V2_BYTES,
        _ => return false,
    };
    let src = Ipv6Addr::from(ip.src);
    (*next, *length) == (PROTOCOL_ICMPV6, 0)
        && IPV6_ROUTER_ALERTS.contains(options)
        && ip.hop_limit == 1
        && *code == 0
        && message.len() >= bytes_min
        && (src.is_unspecified() || src.is_unicast_link_local())
        && Ipv6Addr::from(ip.dst).is_multicast()
}
