//! Ethernet frames: parsing, building, and replies written in place.
//!
//! ```text
//! Ethernet II │ up to two VLAN tags │ IPv4 or IPv6 │ UDP │ payload │ padding
//! ```
//!
//! [`parse()`] reads only what the verifier and the gate need. It checks each length before the read and never reads
//! beyond it. Checksums of received frames are not verified: between local interfaces and with offloads they are
//! legitimately incomplete, and the messages carry tags. Checksums of sent frames are always correct.

#[cfg(feature = "alloc")]
pub mod builder;
pub mod checksum;
pub mod header;
mod membership;
mod parse;
mod reply;
pub mod write;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use parse::{Truncated, parse};
pub use reply::reverse_frame;

/// In a VLAN field of [`Meta`] and of a session: a VLAN is present.
pub const VLAN_TAGGED: u16 = 0x1000;
/// Together with [`VLAN_TAGGED`]: a service VLAN (tag type 0x88a8, IEEE 802.1ad), not a customer VLAN (0x8100).
pub const VLAN_SERVICE: u16 = 0x2000;

/// A MAC address.
pub type Mac = [u8; 6];

/// The origin and the destination of a datagram. A session is bound to the origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Meta {
    /// Index of the ingress interface.
    pub ingress: u32,
    /// VLANs, outer first, each `VID | VLAN_TAGGED`, with [`VLAN_SERVICE`] by the type of the tag; 0: none. A
    /// priority tag (VID 0) names no VLAN (IEEE 802.1Q 9.6) and is not stored.
    pub vlans: [u16; 2],
    /// Source MAC address.
    pub src_mac: Mac,
    /// Destination MAC address.
    pub dst_mac: Mac,
    /// Source IP address; IPv4 as ::ffff:a.b.c.d.
    pub src_ip: [u8; 16],
    /// Destination IP address; IPv4 as ::ffff:a.b.c.d.
    pub dst_ip: [u8; 16],
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
}

/// A parsed frame. Holds offsets, not references, so that the frame can be rewritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Destination MAC address.
    pub dst_mac: Mac,
    /// Source MAC address.
    pub src_mac: Mac,
    /// As in [`Meta`].
    pub vlans: [u16; 2],
    /// Offset of the network layer, after the VLAN tags.
    pub network_at: usize,
    /// The network layer.
    pub network: Network,
}

/// The network layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Network {
    /// ARP (RFC 826).
    Arp,
    /// Any other Ethernet type that is not IP. The Ethernet type of a third VLAN tag is such a type.
    Other(u16),
    /// IPv4 or IPv6 with a valid header.
    Ip(Ip),
}

/// An IP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ip {
    /// Offset of the IP header in the frame.
    pub at: usize,
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// The transport layer.
    pub transport: Transport,
}

/// The transport layer of an IP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// An IPv4 fragment (also a first fragment), or an IPv6 packet whose first extension header is Fragment.
    Fragment,
    /// IPv4 options, or an IPv6 extension header other than Fragment; what follows is not parsed.
    Extension,
    /// A multicast group report of a host (IGMP, MLD), with a router alert and no other option.
    Membership,
    /// A UDP datagram.
    Udp(Udp),
    /// A complete UDP header whose length contradicts the length of the packet, with its destination port.
    UdpLength(u16),
    /// An ICMPv6 message of this type (RFC 4443).
    Icmpv6(u8),
    /// Any other protocol number.
    Other(u8),
}

/// A UDP datagram (RFC 768) of consistent length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Udp {
    /// Offset of the UDP header in the frame.
    pub at: usize,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Length of the payload from the UDP header, within the frame.
    pub payload_bytes: usize,
}

impl Udp {
    /// The range of the payload in the frame.
    #[must_use]
    pub fn payload(&self) -> core::ops::Range<usize> {
        let start = self.at + size_of::<header::Udp>();
        start..start + self.payload_bytes
    }
}

impl Frame {
    /// Whether a reply may be sent by reversing the frame. Neither MAC address may be a group address: the reply would
    /// have the group as its source, or reach all stations. The IP source must name one host (RFC 1122 3.2.1.3). An
    /// IPv6 source in ::/64 except ::1 names no host: a mapped address would be used as its IPv4 address (RFC 4942
    /// 2.2).
    #[must_use]
    pub fn is_answerable(&self, ip: &Ip) -> bool {
        !is_group(&self.dst_mac) && !is_group(&self.src_mac) && is_host_address(ip.src)
    }

    /// The IP packet and the UDP datagram, if the frame contains a datagram.
    #[must_use]
    pub fn datagram(&self) -> Option<(Ip, Udp)> {
        match self.network {
            Network::Ip(ip) => match ip.transport {
                Transport::Udp(udp) => Some((ip, udp)),
                _ => None,
            },
            _ => None,
        }
    }

    /// The origin and the destination of a UDP datagram that was received on `ingress`; `None` if the frame contains no
    /// datagram.
    #[must_use]
    pub fn meta(&self, ingress: u32) -> Option<Meta> {
        let (ip, udp) = self.datagram()?;
        Some(Meta {
            ingress,
            vlans: self.vlans,
            src_mac: self.src_mac,
            dst_mac: self.dst_mac,
            src_ip: ip_bytes(ip.src),
            dst_ip: ip_bytes(ip.dst),
            src_port: udp.src_port,
            dst_port: udp.dst_port,
        })
    }
}

/// Whether a MAC address is a group address: multicast or broadcast.
#[must_use]
pub fn is_group(mac: &Mac) -> bool {
    let [first, ..] = mac;
    first & 1 == 1
}

/// Whether a source address names one host, possibly the local host.
#[must_use]
pub fn is_host_address(source: IpAddr) -> bool {
    match source {
        IpAddr::V4(address) => (1..224).contains(&address.octets()[0]),
        IpAddr::V6(address) => {
            (address.to_bits() >> 64 != 0 || address.is_loopback()) && !address.is_multicast()
        }
    }
}

/// An address as 16 bytes, the form in tags and sessions: IPv4 as ::ffff:a.b.c.d.
#[must_use]
pub fn ip_bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The reverse of [`ip_bytes`].
#[must_use]
pub fn ip_from_bytes(bytes: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(bytes).to_canonical()
}

/// The four bytes of an IPv4 address on the wire.
fn v4(bytes: [u8; 4]) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(bytes))
}

/// The sixteen bytes of an IPv6 address on the wire.
fn v6(bytes: [u8; 16]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(bytes))
}
