//! Replies of equal length, written over the received frame.

use core::net::IpAddr;

use zerocopy::FromBytes as _;
use zerocopy::byteorder::big_endian::U16;

use super::checksum::{self, Sum};
use super::{Frame, Mac, header};

/// Time to live, or hop limit, of a reply.
const REPLY_TTL: u8 = 64;

/// Reverses a frame whose UDP payload was replaced by a reply of equal length.
///
/// Swaps MAC addresses, IP addresses and ports; sets TTL or hop limit to 64; computes the IPv4 header checksum and
/// the UDP checksum in full. VLAN tags, all other header fields and the bytes after the datagram are kept. `None` if
/// `parsed` is not a UDP datagram of this frame.
#[must_use]
pub fn reverse_frame(frame: &mut [u8], parsed: &Frame) -> Option<()> {
    let (ip, udp) = parsed.datagram()?;
    let datagram = frame.get_mut(udp.at..udp.payload().end)?;
    let (header, _) = header::Udp::mut_from_prefix(datagram).ok()?;
    (header.src, header.dst) = (header.dst, header.src);
    header.checksum = U16::ZERO;
    // Both addresses enter the sum, so their order is irrelevant.
    let checksum = match (ip.src, ip.dst) {
        (IpAddr::V4(a), IpAddr::V4(b)) => checksum::udp(&a.octets(), &b.octets(), datagram),
        (IpAddr::V6(a), IpAddr::V6(b)) => checksum::udp(&a.octets(), &b.octets(), datagram),
        _ => return None,
    };
    let (header, _) = header::Udp::mut_from_prefix(datagram).ok()?;
    header.checksum = U16::new(checksum);
    match ip.src {
        IpAddr::V4(_) => reverse_ipv4(frame, ip.at)?,
        IpAddr::V6(_) => reverse_ipv6(frame, ip.at)?,
    }
    reverse_ethernet(frame, parsed.src_mac, parsed.dst_mac)
}

fn reverse_ipv4(frame: &mut [u8], at: usize) -> Option<()> {
    let header = frame.get_mut(at..)?.get_mut(..size_of::<header::Ipv4>())?;
    let ip = header::Ipv4::mut_from_bytes(header).ok()?;
    (ip.src, ip.dst) = (ip.dst, ip.src);
    ip.ttl = REPLY_TTL;
    ip.checksum = U16::ZERO;
    let checksum = Sum::default().bytes(header).finish();
    header::Ipv4::mut_from_bytes(header).ok()?.checksum = U16::new(checksum);
    Some(())
}

fn reverse_ipv6(frame: &mut [u8], at: usize) -> Option<()> {
    let (ip, _) = header::Ipv6::mut_from_prefix(frame.get_mut(at..)?).ok()?;
    (ip.src, ip.dst) = (ip.dst, ip.src);
    ip.hop_limit = REPLY_TTL;
    Some(())
}

fn reverse_ethernet(frame: &mut [u8], src: Mac, dst: Mac) -> Option<()> {
    let (ethernet, _) = header::Ethernet::mut_from_prefix(frame).ok()?;
    (ethernet.src, ethernet.dst) = (dst, src);
    Some(())
}
