//! Builds frames for tests, simulated devices and attackers, with correct lengths and checksums.
//!
//! ```
//! use linewarden_protocol::frame::builder::FrameBuilder;
//! use linewarden_protocol::frame::{parse, write::Endpoint};
//!
//! let device = Endpoint { mac: [2, 0, 0, 0, 0, 1], ip: [10, 66, 0, 1].into(), port: 40_000 };
//! let gateway = Endpoint { mac: [2, 0, 0, 0, 0, 2], ip: [10, 66, 0, 254].into(), port: 20_550 };
//! let frame = FrameBuilder::new(device, gateway).vlan(7).udp(b"hello");
//! assert_eq!(parse(&frame).unwrap().datagram().unwrap().1.payload_bytes, 5);
//! ```

use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;

use zerocopy::IntoBytes as _;
use zerocopy::byteorder::big_endian::U16;

use super::checksum::{self, Sum};
use super::header::{
    ETHER_ARP, ETHER_IPV4, ETHER_IPV6, ETHER_VLAN, NEXT_FRAGMENT, PROTOCOL_ICMPV6, PROTOCOL_UDP,
    Udp as UdpHeader,
};
use super::write::{self, Endpoint};

/// Describes the layers around a payload; the last call ([`udp`](Self::udp) and the like) returns the bytes.
#[derive(Clone, Debug)]
pub struct FrameBuilder {
    from: Endpoint,
    to: Endpoint,
    /// Ethernet type of the tag and its TCI, outer first.
    tags: Vec<(u16, u16)>,
    tos: u8,
    id: u16,
    ttl: u8,
    options: Vec<u8>,
    /// Offset in 8-byte units, and whether more fragments follow.
    fragment: Option<(u16, bool)>,
    /// Next-header number of each extension header, and its bytes without the next-header field.
    extensions: Vec<(u8, Vec<u8>)>,
    padding: Vec<u8>,
}

impl FrameBuilder {
    /// A frame between two ends.
    ///
    /// Both addresses must be of the same family. Otherwise the family of `from` applies and `to` becomes `::` or
    /// `0.0.0.0`.
    #[must_use]
    pub fn new(from: Endpoint, to: Endpoint) -> Self {
        Self {
            from,
            to,
            tags: Vec::new(),
            tos: 0,
            id: 0,
            ttl: write::TTL,
            options: Vec::new(),
            fragment: None,
            extensions: Vec::new(),
            padding: Vec::new(),
        }
    }

    /// Adds an 802.1Q tag of this VID inside the tags already added.
    #[must_use]
    pub fn vlan(self, vid: u16) -> Self {
        self.tag(ETHER_VLAN, vid & 0x0fff)
    }

    /// Adds a tag with any Ethernet type and TCI (priority, DEI, VID).
    #[must_use]
    pub fn tag(mut self, ether_type: u16, tci: u16) -> Self {
        self.tags.push((ether_type, tci));
        self
    }

    /// IPv4 type of service, identification and time to live (IPv6: traffic class and hop limit).
    #[must_use]
    pub fn ip_fields(mut self, tos: u8, id: u16, ttl: u8) -> Self {
        (self.tos, self.id, self.ttl) = (tos, id, ttl);
        self
    }

    /// IPv4 options, padded with end-of-options to a multiple of 4; at most 40 bytes are kept.
    #[must_use]
    pub fn options(mut self, options: &[u8]) -> Self {
        self.options = options.iter().copied().take(40).collect();
        self.options.resize(self.options.len().next_multiple_of(4), 0);
        self
    }

    /// Makes the packet a fragment: offset in 8-byte units, and whether more fragments follow. On IPv6 this adds a
    /// Fragment header.
    #[must_use]
    pub fn fragment(mut self, offset: u16, more_follow: bool) -> Self {
        self.fragment = Some((offset & 0x1fff, more_follow));
        self
    }

    /// Adds an IPv6 extension header of this number, 8 bytes: next header, length 0, six zero bytes (`PadN`).
    #[must_use]
    pub fn extension(mut self, number: u8) -> Self {
        self.extensions.push((number, vec![0, 1, 4, 0, 0, 0, 0]));
        self
    }

    /// Bytes after the packet, as short Ethernet frames have them.
    #[must_use]
    pub fn padding(mut self, bytes: &[u8]) -> Self {
        self.padding = bytes.to_vec();
        self
    }

    /// A UDP datagram with this payload (at most 65,507 bytes; IPv6: 65,527).
    #[must_use]
    pub fn udp(&self, payload: &[u8]) -> Vec<u8> {
        let mut datagram = Vec::with_capacity(size_of::<UdpHeader>() + payload.len());
        let header = UdpHeader {
            src: U16::new(self.from.port),
            dst: U16::new(self.to.port),
            length: U16::new(length_u16(size_of::<UdpHeader>() + payload.len())),
            checksum: U16::ZERO,
        };
        datagram.extend_from_slice(header.as_bytes());
        datagram.extend_from_slice(payload);
        let (src, dst) = self.addresses();
        let sum = checksum::udp(&src, &dst, &datagram);
        patch(&mut datagram, 6, sum);
        self.ip(PROTOCOL_UDP, &datagram)
    }

    /// An ICMPv6 message (RFC 4443): type, code 0, checksum, body.
    #[must_use]
    pub fn icmpv6(&self, kind: u8, body: &[u8]) -> Vec<u8> {
        let mut message = vec![kind, 0, 0, 0];
        message.extend_from_slice(body);
        let (src, dst) = self.addresses();
        let sum = Sum::default()
            .pseudo_header(&src, &dst, PROTOCOL_ICMPV6, length_u16(message.len()))
            .bytes(&message)
            .finish();
        patch(&mut message, 2, sum);
        self.ip(PROTOCOL_ICMPV6, &message)
    }

    /// A neighbor solicitation for `target` (RFC 4861 4.3), with the sender's link-layer address.
    #[must_use]
    pub fn neighbor_solicitation(&self, target: [u8; 16]) -> Vec<u8> {
        let mut body = vec![0; 4];
        body.extend_from_slice(&target);
        body.extend_from_slice(&[1, 1]);
        body.extend_from_slice(&self.from.mac);
        self.icmpv6(135, &body)
    }

    /// An ARP request (RFC 826) for the IPv4 address of `to`.
    #[must_use]
    pub fn arp_request(&self) -> Vec<u8> {
        let octets = |ip| match ip {
            IpAddr::V4(v4) => v4.octets(),
            IpAddr::V6(_) => [0; 4],
        };
        let mut body = vec![0, 1, 8, 0, 6, 4, 0, 1];
        body.extend_from_slice(&self.from.mac);
        body.extend_from_slice(&octets(self.from.ip));
        body.extend_from_slice(&[0; 6]);
        body.extend_from_slice(&octets(self.to.ip));
        self.ethernet(ETHER_ARP, &body)
    }

    /// A DHCP message of a client (RFC 2131 on IPv4, RFC 8415 on IPv6): correct ports and the smallest valid form of
    /// DISCOVER or SOLICIT.
    #[must_use]
    pub fn dhcp(&self) -> Vec<u8> {
        let mut client = self.clone();
        if self.from.ip.is_ipv6() {
            (client.from.port, client.to.port) = (546, 547);
            return client.udp(&[1, 0xab, 0xcd, 0xef]);
        }
        (client.from.port, client.to.port) = (68, 67);
        let mut discover = vec![1, 1, 6, 0];
        discover.resize(28, 0);
        discover.extend_from_slice(&self.from.mac);
        discover.resize(236, 0);
        discover.extend_from_slice(&[99, 130, 83, 99, 53, 1, 1, 255]);
        client.udp(&discover)
    }

    /// An IP packet of any protocol.
    #[must_use]
    pub fn ip(&self, protocol: u8, body: &[u8]) -> Vec<u8> {
        match self.from.ip {
            IpAddr::V4(_) => self.ethernet(ETHER_IPV4, &self.ipv4(protocol, body)),
            IpAddr::V6(_) => self.ethernet(ETHER_IPV6, &self.ipv6(protocol, body)),
        }
    }

    /// A frame of any Ethernet type, with the tags and the padding.
    #[must_use]
    pub fn ethernet(&self, ether_type: u16, body: &[u8]) -> Vec<u8> {
        let mut frame = Vec::with_capacity(18 + body.len() + self.padding.len());
        frame.extend_from_slice(&self.to.mac);
        frame.extend_from_slice(&self.from.mac);
        for (tag_type, tci) in &self.tags {
            frame.extend_from_slice(&tag_type.to_be_bytes());
            frame.extend_from_slice(&tci.to_be_bytes());
        }
        frame.extend_from_slice(&ether_type.to_be_bytes());
        frame.extend_from_slice(body);
        frame.extend_from_slice(&self.padding);
        frame
    }

    fn ipv4(&self, protocol: u8, body: &[u8]) -> Vec<u8> {
        let (src, dst) = self.addresses();
        let header_bytes = 20 + self.options.len();
        let fragment = match self.fragment {
            Some((offset, more_follow)) => offset | u16::from(more_follow) << 13,
            None => 0x4000,
        };
        let mut packet = vec![0x40 | u8::try_from(header_bytes / 4).unwrap_or(15), self.tos];
        packet.extend_from_slice(&length_u16(header_bytes + body.len()).to_be_bytes());
        packet.extend_from_slice(&self.id.to_be_bytes());
        packet.extend_from_slice(&fragment.to_be_bytes());
        packet.extend_from_slice(&[self.ttl, protocol, 0, 0]);
        packet.extend_from_slice(&src);
        packet.extend_from_slice(&dst);
        packet.extend_from_slice(&self.options);
        let sum = Sum::default().bytes(&packet).finish();
        patch(&mut packet, 10, sum);
        packet.extend_from_slice(body);
        packet
    }

    fn ipv6(&self, protocol: u8, body: &[u8]) -> Vec<u8> {
        let (src, dst) = self.addresses();
        let mut chain = self.extensions.clone();
        if let Some((offset, more_follow)) = self.fragment {
            let mut header = vec![0];
            header.extend_from_slice(&(offset << 3 | u16::from(more_follow)).to_be_bytes());
            header.extend_from_slice(&[0, 0, 0, 1]);
            chain.push((NEXT_FRAGMENT, header));
        }
        let mut payload = Vec::new();
        let numbers = chain.iter().map(|(number, _)| *number);
        for ((_, rest), next) in chain.iter().zip(numbers.clone().skip(1).chain([protocol])) {
            payload.push(next);
            payload.extend_from_slice(rest);
        }
        payload.extend_from_slice(body);
        let first = numbers.clone().next().unwrap_or(protocol);
        let mut packet = vec![0x60 | self.tos >> 4, self.tos << 4, 0, 0];
        packet.extend_from_slice(&length_u16(payload.len()).to_be_bytes());
        packet.extend_from_slice(&[first, self.ttl]);
        packet.extend_from_slice(&src);
        packet.extend_from_slice(&dst);
        packet.extend_from_slice(&payload);
        packet
    }

    /// Both addresses in the length of the sender's family.
    fn addresses(&self) -> (Vec<u8>, Vec<u8>) {
        match (self.from.ip, self.to.ip) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => (src.octets().to_vec(), dst.octets().to_vec()),
            (IpAddr::V6(src), IpAddr::V6(dst)) => (src.octets().to_vec(), dst.octets().to_vec()),
            (IpAddr::V4(src), _) => (src.octets().to_vec(), vec![0; 4]),
            (IpAddr::V6(src), _) => (src.octets().to_vec(), vec![0; 16]),
        }
    }
}

/// Lengths beyond the field saturate: the frame is then malformed, which parsing detects.
fn length_u16(bytes: usize) -> u16 {
    u16::try_from(bytes).unwrap_or(u16::MAX)
}

fn patch(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(field) = bytes.get_mut(at..at + 2) {
        field.copy_from_slice(&value.to_be_bytes());
    }
}
