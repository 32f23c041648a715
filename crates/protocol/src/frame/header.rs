//! Header layouts and their numbers.

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Ethernet type of IPv4.
pub const ETHER_IPV4: u16 = 0x0800;
/// Ethernet type of ARP.
pub const ETHER_ARP: u16 = 0x0806;
/// Ethernet type of a VLAN tag (IEEE 802.1Q).
pub const ETHER_VLAN: u16 = 0x8100;
/// Ethernet type of an outer VLAN tag (IEEE 802.1ad).
pub const ETHER_QINQ: u16 = 0x88a8;
/// Ethernet type of IPv6.
pub const ETHER_IPV6: u16 = 0x86dd;
/// Ethernet types of tags that name a network or a path through bridges and are not parsed: types from before IEEE
/// 802.1ad (0x9100, 0x9200, 0x9300), I-TAG (IEEE 802.1ah), VN-Tag, E-TAG (IEEE 802.1BR).
pub const ETHER_TAGS: [u16; 6] = [0x9100, 0x9200, 0x9300, 0x88e7, 0x8926, 0x893f];
/// Lower values in the Ethernet type field are lengths (IEEE 802.3).
pub const ETHER_TYPE_MIN: u16 = 0x0600;
/// IP protocol number of ICMP.
pub const PROTOCOL_ICMP: u8 = 1;
/// IP protocol number of IGMP.
pub const PROTOCOL_IGMP: u8 = 2;
/// IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;
/// IP protocol number of ICMPv6.
pub const PROTOCOL_ICMPV6: u8 = 58;
/// IPv6 next header: hop-by-hop options.
pub const NEXT_HOP_BY_HOP: u8 = 0;
/// IPv6 next header: Fragment.
pub const NEXT_FRAGMENT: u8 = 44;
/// IPv6 next headers that are extension headers other than Fragment: hop-by-hop, routing, AH, destination options,
/// mobility, HIP, shim6 (IANA's list of IPv6 extension header types, without ESP, whose following headers are
/// encrypted).
pub const NEXT_EXTENSIONS: [u8; 7] = [0, 43, 51, 60, 135, 139, 140];

macro_rules! header {
    ($(#[$doc:meta])* $name:ident, $bytes:expr, { $($(#[$fdoc:meta])* $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }
        const _: () = assert!(size_of::<$name>() == $bytes);
    };
}

header!(
    /// Ethernet II.
    Ethernet, 14, {
        /// Destination.
        dst: [u8; 6],
        /// Source.
        src: [u8; 6],
        /// Ethernet type.
        ether_type: U16,
    }
);
header!(
    /// One VLAN tag behind its Ethernet type.
    Vlan, 4, {
        /// Priority 3 bit, drop eligible 1 bit, VID 12 bit.
        tci: U16,
        /// Ethernet type of what follows.
        ether_type: U16,
    }
);
header!(
    /// IPv4 without options (RFC 791).
    Ipv4, 20, {
        /// Version 4 bit, header length in 32-bit words 4 bit.
        version_ihl: u8,
        /// Type of service.
        tos: u8,
        /// Header and payload, bytes.
        total_length: U16,
        /// Identification.
        id: U16,
        /// Reserved, DF, MF, fragment offset in 8-byte units 13 bit.
        fragment: U16,
        /// Time to live.
        ttl: u8,
        /// Protocol.
        protocol: u8,
        /// Header checksum.
        checksum: U16,
        /// Source.
        src: [u8; 4],
        /// Destination.
        dst: [u8; 4],
    }
);
header!(
    /// IPv6 (RFC 8200).
    Ipv6, 40, {
        /// Version 4 bit, traffic class 8 bit, flow label 20 bit.
        version_class_flow: [u8; 4],
        /// Bytes behind this header.
        payload_length: U16,
        /// Next header.
        next_header: u8,
        /// Hop limit.
        hop_limit: u8,
        /// Source.
        src: [u8; 16],
        /// Destination.
        dst: [u8; 16],
    }
);
header!(
    /// UDP (RFC 768).
    Udp, 8, {
        /// Source port.
        src: U16,
        /// Destination port.
        dst: U16,
        /// Header and payload, bytes.
        length: U16,
        /// Checksum; 0 means none, on IPv4 only.
        checksum: U16,
    }
);
