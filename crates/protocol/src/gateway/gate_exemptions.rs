//! Frames that pass a gate without a session, and frames that devices must never send (LAP/1 1.4.17).

use core::net::{IpAddr, Ipv6Addr};

use zerocopy::FromBytes as _;

use super::GatewayConfig;
use super::control;
use crate::frame::{Frame, Ip, Network, Transport, header};

/// ICMPv6 types (RFC 4861, RFC 3810).
const MLD_QUERY: u8 = 130;
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOR_SOLICITATION: u8 = 135;
const NEIGHBOR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
/// ICMP types (RFC 792, RFC 1256).
const ICMP_REDIRECT: u8 = 5;
const ICMP_ROUTER_ADVERTISEMENT: u8 = 9;
/// IGMP type (RFC 3376).
const IGMP_QUERY: u8 = 0x11;

/// UDP ports of DHCP: a client's, a server's (RFC 2131, RFC 8415 7.2).
const DHCP_V4: (u16, u16) = (68, 67);
const DHCP_V6: (u16, u16) = (546, 547);
/// All relay agents and servers of DHCPv6 on a link.
const DHCP_V6_GROUP: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// Maximum padding of an ARP packet on Ethernet. More bytes are not padding.
const PADDING_MAX: usize = 18;
/// The hop limit of neighbor discovery, which no router can forward (RFC 4861).
const HOP_LIMIT: u8 = 255;
/// Maximum number of options in a message. Hosts send at most eight options of eight bytes: link-layer addresses,
/// nonces.
const OPTIONS_MAX: usize = 16;
const HOST_OPTION_BYTES_MAX: usize = 64;

/// ARP over Ethernet for IPv4: types and address lengths.
const ARP_HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_BYTES: usize = 28;

/// The direction of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FrameDirection {
    /// From a device.
    Up,
    /// To a device.
    Down,
}

/// Whether a frame is on the list of frames that pass without a session.
pub(super) fn is_exempt(
    config: &GatewayConfig,
    direction: FrameDirection,
    bytes: &[u8],
    parsed: &Frame,
) -> bool {
    match &parsed.network {
        Network::Arp => is_arp(bytes.get(parsed.network_at..).unwrap_or_default()),
        Network::Other(_) => config
            .always_pass
            .iter()
            .any(|protocol| protocol.is_message(parsed)),
        Network::Ip(ip) if has_only_padding_behind(bytes, ip) => match ip.transport {
            Transport::Icmpv6(kind) => {
                is_neighbor_discovery(kind, direction, bytes, ip)
                    && has_link_destination(config, kind, direction, ip)
            }
            Transport::Udp(udp) => {
                is_dhcp(ip, (udp.src_port, udp.dst_port), direction) && is_dhcp_allowed(config, direction, ip)
            }
            _ => false,
        },
        Network::Ip(_) => false,
    }
}

/// Whether the sender acts as a router, DHCP server or bridge, which devices must not do.
pub(super) fn is_infrastructure_frame(bytes: &[u8], parsed: &Frame) -> bool {
    let Network::Ip(ip) = &parsed.network else {
        return control::is_bridge_frame(parsed);
    };
    match ip.transport {
        Transport::Icmpv6(kind) => [MLD_QUERY, ROUTER_ADVERTISEMENT, REDIRECT].contains(&kind),
        Transport::Udp(udp) => is_for_dhcp_client(ip, udp.dst_port),
        Transport::Other(protocol) if ip.src.is_ipv4() => {
            match (
                protocol,
                packet_bytes(bytes, ip).and_then(|packet| packet.get(20)),
            ) {
                (header::PROTOCOL_ICMP, Some(kind)) => {
                    [ICMP_REDIRECT, ICMP_ROUTER_ADVERTISEMENT].contains(kind)
                }
                (header::PROTOCOL_IGMP, Some(kind)) => *kind == IGMP_QUERY,
                _ => false,
            }
        }
        _ => false,
    }
}

fn is_arp(rest: &[u8]) -> bool {
    let is_operation = |operation: &[u8]| operation == [0, 1] || operation == [0, 2];
    (ARP_BYTES..=ARP_BYTES + PADDING_MAX).contains(&rest.len())
        && rest.starts_with(&ARP_HEAD)
        && rest.get(6..8).is_some_and(is_operation)
}

/// The IP packet, by its own length field.
fn packet_bytes<'a>(bytes: &'a [u8], ip: &Ip) -> Option<&'a [u8]> {
    bytes.get(ip.at..super::sealed::packet_end(bytes, ip)?)
}

/// Whether only padding follows the packet.
fn has_only_padding_behind(bytes: &[u8], ip: &Ip) -> bool {
    super::sealed::packet_end(bytes, ip).is_some_and(|end| bytes.len().saturating_sub(end) <= PADDING_MAX)
}

/// Whether a message has the form of RFC 4861 6.1 and 7.1; the checksum is not verified.
fn is_neighbor_discovery(kind: u8, direction: FrameDirection, bytes: &[u8], ip: &Ip) -> bool {
    let fixed_bytes = match (kind, direction) {
        (ROUTER_SOLICITATION, _) => 8,
        (ROUTER_ADVERTISEMENT, FrameDirection::Down) => 16,
        (NEIGHBOR_SOLICITATION | NEIGHBOR_ADVERTISEMENT, _) => 24,
        _ => return false,
    };
    let Some((header, message)) =
        packet_bytes(bytes, ip).and_then(|packet| header::Ipv6::ref_from_prefix(packet).ok())
    else {
        return false;
    };
    let Some((fixed, options)) = message.split_at_checked(fixed_bytes) else {
        return false;
    };
    let has_target = fixed_bytes == 24;
    header.hop_limit == HOP_LIMIT
        && fixed.get(1) == Some(&0)
        && !(has_target && fixed.get(8) == Some(&0xff))
        && (kind == ROUTER_ADVERTISEMENT || options.len() <= HOST_OPTION_BYTES_MAX)
        && are_valid_options(options)
}

fn are_valid_options(mut rest: &[u8]) -> bool {
    for _ in 0..OPTIONS_MAX {
        let [_, eights, ..] = rest else {
            break;
        };
        match rest.split_at_checked(usize::from(*eights) * 8) {
            Some((_, following)) if *eights > 0 => rest = following,
            _ => return false,
        }
    }
    rest.is_empty()
}

/// Whether the destination is a group of this message type or one host on the link. Packets that a router would
/// forward are excluded.
fn has_link_destination(config: &GatewayConfig, kind: u8, direction: FrameDirection, ip: &Ip) -> bool {
    let (IpAddr::V6(src), IpAddr::V6(dst)) = (ip.src, ip.dst) else {
        return false;
    };
    if src.is_multicast() || (kind == ROUTER_ADVERTISEMENT && !src.is_unicast_link_local()) {
        return false;
    }
    if !dst.is_multicast() {
        return is_on_link(config, direction, src, dst);
    }
    match kind {
        ROUTER_SOLICITATION => dst == ALL_ROUTERS,
        NEIGHBOR_SOLICITATION => is_solicited_node(dst),
        _ => dst == ALL_NODES,
    }
}

/// ff02::1:ff00:0/104 (RFC 4291 2.7.1).
fn is_solicited_node(dst: Ipv6Addr) -> bool {
    let [prefix @ .., high, _] = dst.segments();
    prefix == [0xff02, 0, 0, 0, 0, 1] && high >> 8 == 0xff
}

/// Whether both addresses are on the link. No router forwards from or to a link-local address (RFC 4291 2.5.6) or an
/// address of the gateway itself. Otherwise, the device address must be in the device prefixes, and the peer's address
/// in these prefixes or in the device's /64, where a service can be.
fn is_on_link(config: &GatewayConfig, direction: FrameDirection, src: Ipv6Addr, dst: Ipv6Addr) -> bool {
    let (device, peer) = match direction {
        FrameDirection::Up => (src, dst),
        FrameDirection::Down => (dst, src),
    };
    let is_device_address = |ip: Ipv6Addr| {
        let sources = config.sources.as_ref();
        sources.is_none_or(|sources| sources.contains(ip.into()))
    };
    let is_one_network = src.to_bits() >> 64 == dst.to_bits() >> 64;
    !src.is_unspecified()
        && (src.is_unicast_link_local()
            || dst.is_unicast_link_local()
            || config.local_addresses.contains(&peer.into())
            || (is_device_address(device) && (is_one_network || is_device_address(peer))))
}

/// Whether a datagram to this port is for a DHCP client. Clients accept messages from any port of a server.
pub(super) fn is_for_dhcp_client(ip: &Ip, port: u16) -> bool {
    port == dhcp_ports(ip).0
}

/// The client port and the server port, in the family of the packet.
fn dhcp_ports(ip: &Ip) -> (u16, u16) {
    if ip.src.is_ipv4() { DHCP_V4 } else { DHCP_V6 }
}

/// Whether these are the ports of a DHCP message: upwards of a client's message, downwards of a server's message.
fn is_dhcp(ip: &Ip, ports: (u16, u16), direction: FrameDirection) -> bool {
    let (client, server) = dhcp_ports(ip);
    match direction {
        FrameDirection::Up => ports == (client, server),
        FrameDirection::Down => ports == (server, client),
    }
}

/// Whether the destination and the source of a DHCP message are allowed.
fn is_dhcp_allowed(config: &GatewayConfig, direction: FrameDirection, ip: &Ip) -> bool {
    let is_server = |ip: &IpAddr| config.dhcp_servers.contains(ip);
    match (direction, ip.src, ip.dst) {
        (FrameDirection::Up, IpAddr::V4(_), IpAddr::V4(dst)) => dst.is_broadcast() || is_server(&ip.dst),
        (FrameDirection::Up, IpAddr::V6(src), IpAddr::V6(dst)) => {
            (dst == DHCP_V6_GROUP && src.is_unicast_link_local()) || is_server(&ip.dst)
        }
        (FrameDirection::Down, IpAddr::V4(_), _) => {
            let has_ipv4_servers = config.dhcp_servers.iter().any(IpAddr::is_ipv4);
            !has_ipv4_servers || is_server(&ip.src) || config.local_addresses.contains(&ip.src)
        }
        (FrameDirection::Down, IpAddr::V6(src), IpAddr::V6(dst)) => {
            let is_source_on_link = src.is_unicast_link_local() || config.local_addresses.contains(&ip.src);
            (is_source_on_link && dst.is_unicast_link_local()) || is_server(&ip.src)
        }
        _ => false,
    }
}
