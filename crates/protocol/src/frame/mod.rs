//! Ethernet frames in, what they are out, replies turned round in place.
//!
//! ```text
//! Ethernet II │ up to two VLAN tags │ IPv4 or IPv6 │ UDP │ payload │ padding
//! ```
//!
//! [`parse`] reads as far as the verifier and the gate care and no farther. It checks each length before it reads
//! and never looks behind it. Checksums of what comes in are not verified: between local interfaces and under
//! offloads they are legitimately unfinished, and the messages carry tags. Checksums of what goes out are always
//! right.

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
pub use reply::turn_round;

/// In a VLAN field of [`Meta`] and of a session: there is a VLAN.
pub const VLAN_TAGGED: u16 = 0x1000;
/// Beside [`VLAN_TAGGED`]: a service VLAN (tag type 0x88a8, IEEE 802.1ad), not a customer's (0x8100).
pub const VLAN_SERVICE: u16 = 0x2000;

/// A MAC address.
pub type Mac = [u8; 6];

/// Where a datagram came from, as far as a session is bound to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Meta {
    /// Interface index that the frame came in on.
    pub ingress: u32,
    /// VLANs, outer first, each `VID | VLAN_TAGGED`, with [`VLAN_SERVICE`] by the tag's type; 0: none. A priority tag
    /// (VID 0) names no VLAN (IEEE 802.1Q 9.6) and has no place here.
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

/// A frame, as far as it is parsed. Holds offsets, not references, so that the frame can be rewritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Destination MAC address.
    pub dst_mac: Mac,
    /// Source MAC address.
    pub src_mac: Mac,
    /// As in [`Meta`].
    pub vlans: [u16; 2],
    /// Where what is behind the VLAN tags begins, bytes.
    pub network_at: usize,
    /// What is behind the VLAN tags.
    pub network: Network,
}

/// The network layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Network {
    /// ARP (RFC 826).
    Arp,
    /// Anything else that is not IP, named by its Ethernet type. A third VLAN tag is such a type.
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
    /// What it carries.
    pub transport: Transport,
}

/// What an IP packet carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// An IPv4 fragment (first ones too), or an IPv6 packet whose first extension header is Fragment.
    Fragment,
    /// IPv4 options, or an IPv6 extension header other than Fragment: not looked behind.
    Extension,
    /// A host's report of multicast groups (IGMP, MLD), behind a router alert and nothing else.
    Membership,
    /// A UDP datagram.
    Udp(Udp),
    /// A whole UDP header whose length contradicts the packet's; to that destination port.
    UdpLength(u16),
    /// ICMPv6 of that type (RFC 4443).
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
    /// Bytes of payload, by the UDP header; all of them lie within the frame.
    pub payload_bytes: usize,
}

impl Udp {
    /// Where the payload lies in the frame.
    #[must_use]
    pub fn payload(&self) -> core::ops::Range<usize> {
        let start = self.at + size_of::<header::Udp>();
        start..start + self.payload_bytes
    }
}

impl Frame {
    /// Whether a reply may turn the frame round: neither MAC address is a group's, which would become the gateway's own
    /// or be answered by all, and the IP source names one host (RFC 1122 3.2.1.3). An IPv6 source in ::/64 does not,
    /// but for ::1: a mapped one would be taken for its IPv4 address (RFC 4942 2.2).
    #[must_use]
    pub fn is_answerable(&self, ip: &Ip) -> bool {
        !is_group(&self.dst_mac) && !is_group(&self.src_mac) && names_a_host(ip.src)
    }

    /// The IP packet and UDP datagram, if it is one.
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

    /// What a session is bound to, for a UDP datagram that came in on `ingress`.
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

/// Whether a MAC address is that of a group: multicast or broadcast.
#[must_use]
pub fn is_group(mac: &Mac) -> bool {
    let [first, ..] = mac;
    first & 1 == 1
}

/// Whether an address as source names one host, be it this one.
#[must_use]
pub fn names_a_host(source: IpAddr) -> bool {
    match source {
        IpAddr::V4(address) => (1..224).contains(&address.octets()[0]),
        IpAddr::V6(address) => {
            (address.to_bits() >> 64 != 0 || address.is_loopback()) && !address.is_multicast()
        }
    }
}

/// An address in 16 bytes, as tags and sessions hold it: IPv4 as ::ffff:a.b.c.d.
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
