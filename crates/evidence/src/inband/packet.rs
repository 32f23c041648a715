//! Frame parsing for evidence: the positions of headers, and the invariant part of a packet.

use super::FrameError;

const ETHERNET_BYTES: usize = 14;
const VLAN_BYTES: usize = 4;
const VLANS_MAX: usize = 2;
/// IEEE 802.1Q, 802.1ad, and its predecessor.
const VLAN_TYPES: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
pub(super) const IPV6_BYTES: usize = 40;
/// Next header numbers (IANA).
pub(super) const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
/// Padding of an Ethernet frame of minimum size after an IPv6 header without payload.
const PADDING_MAX: usize = 6;
/// Bytes of the transport header bound by a tag.
const TRANSPORT_BYTES: usize = 8;

/// The part of a packet that does not change between a switch and the appraiser, 48 bytes:
/// `family u8 (4, 6, 0 other) | protocol u8 | Ethernet type u16 | length u32 | source[16] | destination[16] | transport[8]`.
///
/// * IPv6: the next header and the length are those after the hop-by-hop header, because its options may change. The
///   destination is zero if a routing header follows, which changes it.
/// * IPv4: protocol, number of bytes after the header, addresses as `::ffff:a.b.c.d`; all fragments except the first have
///   zeros as transport bytes.
/// * Other frames: number of bytes after the Ethernet type, and both MAC addresses padded with zeros.
/// * Transport: the first 8 bytes of TCP, UDP, SCTP, ESP and ICMP; zeros for all other protocols. Checksums are replaced by
///   zeros, because network cards compute checksums when they send the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Invariants(pub [u8; 48]);

impl Invariants {
    /// Length in bytes.
    pub const BYTES: usize = 48;

    /// The invariants of a frame with an Ethernet header.
    ///
    /// # Errors
    /// A truncated header.
    pub fn of(frame: &[u8]) -> Result<Self, FrameError> {
        let ethernet = Ethernet::parse(frame)?;
        match ethernet.ethertype {
            IPV6 => Ok(Self::of_ipv6(&Ipv6::parse(&ethernet)?)),
            IPV4 => Self::of_ipv4(&ethernet),
            _ => Ok(Self::of_other(&ethernet)),
        }
    }

    pub(super) fn of_ipv6(packet: &Ipv6<'_>) -> Self {
        let next = packet.after_options();
        let destination = match next {
            ROUTING => &[0; 16],
            _ => packet.destination(),
        };
        let length = u32::try_from(packet.after_bytes).unwrap_or(u32::MAX);
        Self::from_parts(
            6,
            next,
            IPV6,
            length,
            packet.source(),
            destination,
            transport(next, packet.after),
        )
    }

    fn of_ipv4(ethernet: &Ethernet<'_>) -> Result<Self, FrameError> {
        let header = ethernet
            .payload
            .first_chunk::<20>()
            .ok_or(FrameError::Malformed)?;
        let [version, _, length @ ..] = header;
        let header_bytes = usize::from(version & 15) * 4;
        let (length, fragment) = (be16(length, 0), be16(header, 6) & 0x1fff);
        let after = ethernet.payload.get(header_bytes..usize::from(length));
        let (Some(after), 4, true) = (after, version >> 4, header_bytes >= 20) else {
            return Err(FrameError::Malformed);
        };
        let mapped = |offset: usize| {
            let mut address = [0; 16];
            let (prefix, v4) = address.split_at_mut(12);
            prefix.copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
            v4.copy_from_slice(header.get(offset..offset + 4).unwrap_or(&[0; 4]));
            address
        };
        let protocol = header.get(9).copied().unwrap_or_default();
        let first = match fragment {
            0 => transport(protocol, after),
            _ => [0; 8],
        };
        let bytes = u32::try_from(after.len()).unwrap_or(u32::MAX);
        Ok(Self::from_parts(
            4,
            protocol,
            IPV4,
            bytes,
            &mapped(12),
            &mapped(16),
            first,
        ))
    }

    pub(super) fn of_other(ethernet: &Ethernet<'_>) -> Self {
        let mac = |offset: usize| {
            let mut padded = [0; 16];
            let address = padded.split_at_mut(6).0;
            address.copy_from_slice(ethernet.frame.get(offset..offset + 6).unwrap_or(&[0; 6]));
            padded
        };
        let length = u32::try_from(ethernet.payload.len()).unwrap_or(u32::MAX);
        Self::from_parts(0, 0, ethernet.ethertype, length, &mac(6), &mac(0), [0; 8])
    }

    fn from_parts(
        family: u8,
        protocol: u8,
        ethertype: u16,
        length: u32,
        source: &[u8; 16],
        destination: &[u8; 16],
        transport: [u8; TRANSPORT_BYTES],
    ) -> Self {
        let mut bytes = [0; Self::BYTES];
        let (head, rest) = bytes.split_at_mut(8);
        let (addresses, last) = rest.split_at_mut(32);
        let (from, to) = addresses.split_at_mut(16);
        let [a, b] = ethertype.to_be_bytes();
        let [c, d, e, f] = length.to_be_bytes();
        head.copy_from_slice(&[family, protocol, a, b, c, d, e, f]);
        from.copy_from_slice(source);
        to.copy_from_slice(destination);
        last.copy_from_slice(&transport);
        Self(bytes)
    }
}

/// The first 8 bytes of the transport header, with zeros in place of checksums; zeros for other protocols.
fn transport(protocol: u8, after: &[u8]) -> [u8; TRANSPORT_BYTES] {
    let bound_mask: u64 = match protocol {
        // TCP, SCTP, ESP.
        6 | 132 | 50 => u64::MAX,
        17 => 0xffff_ffff_ffff_0000,
        // ICMP, ICMPv6.
        1 | 58 => 0xffff_0000_ffff_ffff,
        _ => 0,
    };
    match after.first_chunk::<TRANSPORT_BYTES>() {
        Some(first) => (u64::from_be_bytes(*first) & bound_mask).to_be_bytes(),
        None => [0; 8],
    }
}

fn be16(bytes: &[u8], offset: usize) -> u16 {
    match bytes.get(offset..).and_then(<[u8]>::first_chunk::<2>) {
        Some(pair) => u16::from_be_bytes(*pair),
        None => 0,
    }
}

/// A frame split at its Ethernet type.
pub(super) struct Ethernet<'a> {
    pub frame: &'a [u8],
    pub ethertype: u16,
    /// MAC addresses and VLAN tags.
    pub addresses_and_tags: &'a [u8],
    /// The bytes after the Ethernet type.
    pub payload: &'a [u8],
}

impl<'a> Ethernet<'a> {
    pub fn parse(frame: &'a [u8]) -> Result<Self, FrameError> {
        let mut type_offset = ETHERNET_BYTES - 2;
        for tags in 0..=VLANS_MAX {
            let (head, rest) = frame.split_at_checked(type_offset).ok_or(FrameError::Malformed)?;
            let (ethertype, payload) = rest.split_first_chunk::<2>().ok_or(FrameError::Malformed)?;
            let ethertype = u16::from_be_bytes(*ethertype);
            if tags == VLANS_MAX || !VLAN_TYPES.contains(&ethertype) {
                return Ok(Self {
                    frame,
                    ethertype,
                    addresses_and_tags: head,
                    payload,
                });
            }
            type_offset += VLAN_BYTES;
        }
        Err(FrameError::Malformed)
    }
}

/// An IPv6 packet with valid lengths.
pub(super) struct Ipv6<'a> {
    pub header: &'a [u8; IPV6_BYTES],
    /// The hop-by-hop header; empty if there is none.
    pub options: &'a [u8],
    /// The bytes after both headers; after [`Ipv6::parse_front`], possibly only the first of these bytes.
    pub after: &'a [u8],
    /// Number of bytes after both headers.
    pub after_bytes: usize,
    /// Offset of the IPv6 header in the frame.
    pub offset: usize,
}

impl<'a> Ipv6<'a> {
    pub fn parse(ethernet: &Ethernet<'a>) -> Result<Self, FrameError> {
        Self::parse_front(ethernet, 0)
    }

    /// Parses the start of a frame; `bytes_behind` bytes follow the start.
    ///
    /// # Errors
    /// As [`Self::parse`]; also if the start of the frame is too short to parse these headers.
    pub fn parse_front(ethernet: &Ethernet<'a>, bytes_behind: usize) -> Result<Self, FrameError> {
        if ethernet.ethertype != IPV6 {
            return Err(FrameError::NotIpv6);
        }
        let (header, rest) = ethernet
            .payload
            .split_first_chunk::<IPV6_BYTES>()
            .ok_or(FrameError::Malformed)?;
        let [version, _, _, _, high, low, next, ..] = header;
        if version >> 4 != 6 {
            return Err(FrameError::Malformed);
        }
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if length == 0 && (*next == HOP_BY_HOP || rest.len() + bytes_behind > PADDING_MAX) {
            return Err(FrameError::TooLong);
        }
        if length > rest.len() + bytes_behind {
            return Err(FrameError::Malformed);
        }
        let payload = rest.get(..length).unwrap_or(rest);
        let options_bytes = match *next {
            HOP_BY_HOP => 8 + 8 * usize::from(*payload.get(1).ok_or(FrameError::Malformed)?),
            _ => 0,
        };
        let (options, after) = payload
            .split_at_checked(options_bytes)
            .ok_or(FrameError::Malformed)?;
        let after_bytes = length - options_bytes;
        if after.len() < after_bytes.min(TRANSPORT_BYTES) {
            return Err(FrameError::Malformed);
        }
        Ok(Self {
            header,
            options,
            after,
            after_bytes,
            offset: ethernet.addresses_and_tags.len() + 2,
        })
    }

    pub fn next(&self) -> u8 {
        let [_, _, _, _, _, _, next, ..] = self.header;
        *next
    }

    /// The next header after the hop-by-hop header.
    fn after_options(&self) -> u8 {
        self.options.first().copied().unwrap_or_else(|| self.next())
    }

    fn source(&self) -> &'a [u8; 16] {
        let (_, addresses) = self.header.split_at(8);
        addresses.first_chunk().unwrap_or(&[0; 16])
    }

    fn destination(&self) -> &'a [u8; 16] {
        self.header.last_chunk().unwrap_or(&[0; 16])
    }
}
