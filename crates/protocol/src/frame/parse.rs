//! The parser: one pass from the outer header to the inner header; every length is checked before use.

use zerocopy::FromBytes as _;

use super::header::{
    self, ETHER_ARP, ETHER_IPV4, ETHER_IPV6, ETHER_QINQ, ETHER_VLAN, NEXT_EXTENSIONS, NEXT_FRAGMENT,
    NEXT_HOP_BY_HOP, PROTOCOL_ICMPV6, PROTOCOL_UDP,
};
use super::{Frame, Ip, Network, Transport, Udp, VLAN_SERVICE, VLAN_TAGGED, membership, v4, v6};

/// The frame ends before its headers end, or their lengths contradict each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Truncated;

/// Maximum number of parsed VLAN tags.
const TAGS_MAX: usize = 2;
/// Mask of MF and the fragment offset in the fragment field of the IPv4 header.
const IPV4_FRAGMENT: u16 = 0x3fff;

/// Parses an Ethernet II frame.
///
/// # Errors
/// [`Truncated`] if a VLAN tag, IP header or UDP header is cut off or contradicts the lengths around it. A
/// contradicting UDP *length* is not an error but [`Transport::UdpLength`], because the port is known then.
pub fn parse(frame: &[u8]) -> Result<Frame, Truncated> {
    let (ethernet, _) = header::Ethernet::ref_from_prefix(frame).map_err(|_| Truncated)?;
    let mut at = size_of::<header::Ethernet>();
    let mut ether_type = ethernet.ether_type.get();
    let mut vlans = [0; TAGS_MAX];
    let mut entries = vlans.iter_mut();
    for _ in 0..TAGS_MAX {
        let kind = match ether_type {
            ETHER_VLAN => VLAN_TAGGED,
            ETHER_QINQ => VLAN_TAGGED | VLAN_SERVICE,
            _ => break,
        };
        let tag: &header::Vlan = read(frame, at)?;
        let vid = tag.tci.get() & 0x0fff;
        if vid != 0
            && let Some(entry) = entries.next()
        {
            *entry = vid | kind;
        }
        ether_type = tag.ether_type.get();
        at += size_of::<header::Vlan>();
    }
    let network = match ether_type {
        ETHER_IPV4 => Network::Ip(ipv4(frame, at)?),
        ETHER_IPV6 => Network::Ip(ipv6(frame, at)?),
        ETHER_ARP => Network::Arp,
        other => Network::Other(other),
    };
    Ok(Frame {
        dst_mac: ethernet.dst,
        src_mac: ethernet.src,
        vlans,
        network_at: at,
        network,
    })
}

fn ipv4(frame: &[u8], at: usize) -> Result<Ip, Truncated> {
    let ip: &header::Ipv4 = read(frame, at)?;
    let header_bytes = usize::from(ip.version_ihl & 0x0f) * 4;
    let total = usize::from(ip.total_length.get());
    let fits = ip.version_ihl >> 4 == 4
        && header_bytes >= size_of::<header::Ipv4>()
        && total >= header_bytes
        && total <= frame.len() - at;
    if !fits {
        return Err(Truncated);
    }
    let transport = if ip.fragment.get() & IPV4_FRAGMENT != 0 {
        Transport::Fragment
    } else if membership::is_igmp(ip, frame.get(at..at + total).ok_or(Truncated)?) {
        Transport::Membership
    } else if header_bytes != size_of::<header::Ipv4>() {
        Transport::Extension
    } else if ip.protocol == PROTOCOL_UDP {
        udp(frame, at + header_bytes, total - header_bytes)?
    } else {
        Transport::Other(ip.protocol)
    };
    Ok(Ip {
        at,
        src: v4(ip.src),
        dst: v4(ip.dst),
        transport,
    })
}

fn ipv6(frame: &[u8], at: usize) -> Result<Ip, Truncated> {
    let ip: &header::Ipv6 = read(frame, at)?;
    let payload_at = at + size_of::<header::Ipv6>();
    let payload_bytes = usize::from(ip.payload_length.get());
    let [version, ..] = ip.version_class_flow;
    if version >> 4 != 6 || payload_bytes > frame.len() - payload_at {
        return Err(Truncated);
    }
    let payload = frame
        .get(payload_at..payload_at + payload_bytes)
        .ok_or(Truncated)?;
    let transport = match ip.next_header {
        NEXT_FRAGMENT => Transport::Fragment,
        NEXT_HOP_BY_HOP if membership::is_mld(ip, payload) => Transport::Membership,
        next if NEXT_EXTENSIONS.contains(&next) => Transport::Extension,
        PROTOCOL_UDP => udp(frame, payload_at, payload_bytes)?,
        PROTOCOL_ICMPV6 if payload_bytes > 0 => Transport::Icmpv6(*read::<u8>(frame, payload_at)?),
        other => Transport::Other(other),
    };
    Ok(Ip {
        at,
        src: v6(ip.src),
        dst: v6(ip.dst),
        transport,
    })
}

/// Parses the UDP header at `at`. `available` is the length that the IP header leaves for UDP; the frame has at least
/// this length after `at`.
fn udp(frame: &[u8], at: usize, available: usize) -> Result<Transport, Truncated> {
    if available < size_of::<header::Udp>() {
        return Err(Truncated);
    }
    let udp: &header::Udp = read(frame, at)?;
    let length = usize::from(udp.length.get());
    if length < size_of::<header::Udp>() || length > available {
        return Ok(Transport::UdpLength(udp.dst.get()));
    }
    Ok(Transport::Udp(Udp {
        at,
        src_port: udp.src.get(),
        dst_port: udp.dst.get(),
        payload_bytes: length - size_of::<header::Udp>(),
    }))
}

fn read<T>(frame: &[u8], at: usize) -> Result<&T, Truncated>
where
    T: zerocopy::FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned,
{
    let rest = frame.get(at..).ok_or(Truncated)?;
    T::ref_from_prefix(rest)
        .map(|(value, _)| value)
        .map_err(|_| Truncated)
}
