//! Writes plain UDP frames without allocation, for simulated devices and load generators.

use core::net::IpAddr;

use zerocopy::IntoBytes as _;
use zerocopy::byteorder::big_endian::U16;

use super::checksum::{self, Sum};
use super::header::{
    ETHER_IPV4, ETHER_IPV6, ETHER_QINQ, ETHER_VLAN, Ethernet, Ipv4, Ipv6, PROTOCOL_UDP, Udp as UdpHeader,
    Vlan,
};
use super::{Mac, VLAN_SERVICE, VLAN_TAGGED};

/// Time to live, or hop limit, of written frames.
pub const TTL: u8 = 64;

/// One end of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// MAC address.
    pub mac: Mac,
    /// IP address.
    pub ip: IpAddr,
    /// UDP port.
    pub port: u16,
}

/// Writes an Ethernet frame with a UDP datagram to the front of `out` and returns its length.
///
/// `vlans` are as in [`super::Meta`], outer first. `None` if `out` is too small, the addresses are of two families, or
/// the payload does not fit into a packet; `out` may then be partly written.
#[must_use]
pub fn udp(out: &mut [u8], from: &Endpoint, to: &Endpoint, vlans: [u16; 2], payload: &[u8]) -> Option<usize> {
    let mut writer = Writer { out, at: 0 };
    let ether_type = match (from.ip, to.ip) {
        (IpAddr::V4(_), IpAddr::V4(_)) => ETHER_IPV4,
        (IpAddr::V6(_), IpAddr::V6(_)) => ETHER_IPV6,
        _ => return None,
    };
    link(&mut writer, from.mac, to.mac, vlans, ether_type)?;
    let udp_bytes = u16::try_from(payload.len().checked_add(size_of::<UdpHeader>())?).ok()?;
    match (from.ip, to.ip) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let header = ipv4(src.octets(), dst.octets(), PROTOCOL_UDP, udp_bytes)?;
            writer.push(header.as_bytes())?;
            datagram(&mut writer, from, to, (&src.octets(), &dst.octets()), payload)?;
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let header = ipv6(src.octets(), dst.octets(), PROTOCOL_UDP, udp_bytes);
            writer.push(header.as_bytes())?;
            datagram(&mut writer, from, to, (&src.octets(), &dst.octets()), payload)?;
        }
        _ => return None,
    }
    Some(writer.at)
}

/// An IPv4 header without options, with its checksum; `None` if the packet would be too long.
#[must_use]
pub(super) fn ipv4(src: [u8; 4], dst: [u8; 4], protocol: u8, body_bytes: u16) -> Option<Ipv4> {
    let mut header = Ipv4 {
        version_ihl: 0x45,
        tos: 0,
        total_length: U16::new(body_bytes.checked_add(20)?),
        id: U16::ZERO,
        // Don't fragment.
        fragment: U16::new(0x4000),
        ttl: TTL,
        protocol,
        checksum: U16::ZERO,
        src,
        dst,
    };
    header.checksum = U16::new(Sum::default().bytes(header.as_bytes()).finish());
    Some(header)
}

/// An IPv6 header.
#[must_use]
pub(super) fn ipv6(src: [u8; 16], dst: [u8; 16], next_header: u8, body_bytes: u16) -> Ipv6 {
    Ipv6 {
        version_class_flow: [0x60, 0, 0, 0],
        payload_length: U16::new(body_bytes),
        next_header,
        hop_limit: TTL,
        src,
        dst,
    }
}

fn link(writer: &mut Writer<'_>, src: Mac, dst: Mac, vlans: [u16; 2], inner: u16) -> Option<()> {
    let tags = || vlans.iter().filter(|vlan| **vlan & VLAN_TAGGED != 0);
    let kind = |vlan: &u16| match vlan & VLAN_SERVICE {
        0 => ETHER_VLAN,
        _ => ETHER_QINQ,
    };
    let next = |written: usize| U16::new(tags().nth(written).map_or(inner, kind));
    let ethernet = Ethernet {
        dst,
        src,
        ether_type: next(0),
    };
    writer.push(ethernet.as_bytes())?;
    tags().enumerate().try_for_each(|(i, vlan)| {
        let tag = Vlan {
            tci: U16::new(vlan & 0x0fff),
            ether_type: next(i + 1),
        };
        writer.push(tag.as_bytes())
    })
}

fn datagram(
    writer: &mut Writer<'_>,
    from: &Endpoint,
    to: &Endpoint,
    (src, dst): (&[u8], &[u8]),
    payload: &[u8],
) -> Option<()> {
    let start = writer.at;
    let mut header = UdpHeader {
        src: U16::new(from.port),
        dst: U16::new(to.port),
        length: U16::new(u16::try_from(payload.len() + size_of::<UdpHeader>()).ok()?),
        checksum: U16::ZERO,
    };
    writer.push(header.as_bytes())?;
    writer.push(payload)?;
    let written = writer.out.get_mut(start..writer.at)?;
    header.checksum = U16::new(checksum::udp(src, dst, written));
    written
        .get_mut(..size_of::<UdpHeader>())?
        .copy_from_slice(header.as_bytes());
    Some(())
}

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn push(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.at.checked_add(bytes.len())?;
        self.out.get_mut(self.at..end)?.copy_from_slice(bytes);
        self.at = end;
        Some(())
    }
}
