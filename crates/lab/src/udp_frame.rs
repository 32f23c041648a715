//! Ethernet frames with one UDP datagram, as the lab's stations send them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::address::Mac;

/// Ethernet, IPv4 and UDP headers, bytes.
pub const HEADERS_V4: usize = 14 + 20 + 8;
/// Ethernet, IPv6 and UDP headers, bytes.
pub const HEADERS_V6: usize = 14 + 40 + 8;

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const UDP: u8 = 17;
const HOPS: u8 = 64;

/// One end of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Ethernet address.
    pub mac: Mac,
    /// IP address.
    pub ip: IpAddr,
    /// UDP port.
    pub port: u16,
}

impl Endpoint {
    /// An end with an IPv4 address.
    #[must_use]
    pub fn v4(mac: Mac, ip: Ipv4Addr, port: u16) -> Self {
        Self {
            mac,
            ip: ip.into(),
            port,
        }
    }

    /// An end with an IPv6 address.
    #[must_use]
    pub fn v6(mac: Mac, ip: Ipv6Addr, port: u16) -> Self {
        Self {
            mac,
            ip: ip.into(),
            port,
        }
    }
}

/// A datagram in its frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpFrame<'a> {
    /// Source.
    pub from: Endpoint,
    /// Destination, of the same IP version.
    pub to: Endpoint,
    /// What UDP carries.
    pub payload: &'a [u8],
}

impl<'a> UdpFrame<'a> {
    /// Writes the frame with right checksums and returns its length. `None` when it does not fit, or the ends have
    /// different IP versions.
    pub fn write(&self, frame: &mut [u8]) -> Option<usize> {
        let udp_bytes = u16::try_from(8 + self.payload.len()).ok()?;
        let (ethertype, udp_at) = match (self.from.ip, self.to.ip) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                write_ipv4(frame.get_mut(14..34)?, from, to, udp_bytes)?;
                (ETHERTYPE_IPV4, 34)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                write_ipv6(frame.get_mut(14..54)?, from, to, udp_bytes)?;
                (ETHERTYPE_IPV6, 54)
            }
            _ => return None,
        };
        frame.get_mut(0..6)?.copy_from_slice(&self.to.mac.0);
        frame.get_mut(6..12)?.copy_from_slice(&self.from.mac.0);
        frame.get_mut(12..14)?.copy_from_slice(&ethertype);

        let end = udp_at + usize::from(udp_bytes);
        let udp = frame.get_mut(udp_at..end)?;
        udp.get_mut(0..2)?.copy_from_slice(&self.from.port.to_be_bytes());
        udp.get_mut(2..4)?.copy_from_slice(&self.to.port.to_be_bytes());
        udp.get_mut(4..6)?.copy_from_slice(&udp_bytes.to_be_bytes());
        udp.get_mut(6..8)?.copy_from_slice(&[0, 0]);
        udp.get_mut(8..)?.copy_from_slice(self.payload);
        let checksum = match udp_checksum(self.from.ip, self.to.ip, udp) {
            0 => 0xffff,
            sum => sum,
        };
        udp.get_mut(6..8)?.copy_from_slice(&checksum.to_be_bytes());
        Some(end)
    }

    /// Reads a frame without VLAN tags, IP options, fragments and extension headers; `None` for all others.
    /// Checksums are not looked at ([`checksums_are_right`] does).
    #[must_use]
    pub fn parse(frame: &'a [u8]) -> Option<Self> {
        let mac = |at| Some(Mac(frame.get(at..at + 6)?.try_into().ok()?));
        let ip = frame.get(14..)?;
        let (from, to, udp_at) = match <[u8; 2]>::try_from(frame.get(12..14)?).ok()? {
            ETHERTYPE_IPV4 => {
                let unfragmented = ip.get(6)? & 0x3f == 0 && *ip.get(7)? == 0;
                if *ip.first()? != 0x45 || !unfragmented || *ip.get(9)? != UDP {
                    return None;
                }
                let address = |at: usize| Some(<[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?.into());
                (address(12)?, address(16)?, 20)
            }
            ETHERTYPE_IPV6 => {
                if ip.first()? >> 4 != 6 || *ip.get(6)? != UDP {
                    return None;
                }
                let address = |at: usize| Some(<[u8; 16]>::try_from(ip.get(at..at + 16)?).ok()?.into());
                (address(8)?, address(24)?, 40)
            }
            _ => return None,
        };
        let udp = ip.get(udp_at..)?;
        let number = |at: usize| Some(u16::from_be_bytes(udp.get(at..at + 2)?.try_into().ok()?));
        Some(Self {
            to: Endpoint {
                mac: mac(0)?,
                ip: to,
                port: number(2)?,
            },
            from: Endpoint {
                mac: mac(6)?,
                ip: from,
                port: number(0)?,
            },
            payload: udp.get(8..usize::from(number(4)?))?,
        })
    }
}

/// Whether the IPv4 header checksum and the UDP checksum of a frame that [`UdpFrame::parse`] reads are right.
#[must_use]
pub fn checksums_are_right(frame: &[u8]) -> bool {
    let check = || {
        let parsed = UdpFrame::parse(frame)?;
        let udp_at = match parsed.from.ip {
            IpAddr::V4(_) if finish(sum(frame.get(14..34)?)) != 0 => return None,
            IpAddr::V4(_) => 34,
            IpAddr::V6(_) => 54,
        };
        let udp = frame.get(udp_at..udp_at + 8 + parsed.payload.len())?;
        Some(udp_checksum(parsed.from.ip, parsed.to.ip, udp) == 0)
    };
    check().unwrap_or(false)
}

fn write_ipv4(header: &mut [u8], from: Ipv4Addr, to: Ipv4Addr, udp_bytes: u16) -> Option<()> {
    let total = udp_bytes.checked_add(20)?.to_be_bytes();
    let fixed = [0x45, 0, total[0], total[1], 0, 0, 0x40, 0, HOPS, UDP, 0, 0];
    header.get_mut(..12)?.copy_from_slice(&fixed);
    header.get_mut(12..16)?.copy_from_slice(&from.octets());
    header.get_mut(16..20)?.copy_from_slice(&to.octets());
    let checksum = finish(sum(header)).to_be_bytes();
    header.get_mut(10..12)?.copy_from_slice(&checksum);
    Some(())
}

fn write_ipv6(header: &mut [u8], from: Ipv6Addr, to: Ipv6Addr, udp_bytes: u16) -> Option<()> {
    let length = udp_bytes.to_be_bytes();
    header
        .get_mut(..8)?
        .copy_from_slice(&[0x60, 0, 0, 0, length[0], length[1], UDP, HOPS]);
    header.get_mut(8..24)?.copy_from_slice(&from.octets());
    header.get_mut(24..40)?.copy_from_slice(&to.octets());
    Some(())
}

/// RFC 768 and RFC 8200 8.1; over a datagram with its checksum in place, 0 when that is right.
fn udp_checksum(from: IpAddr, to: IpAddr, udp: &[u8]) -> u16 {
    let address = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => sum(&v4.octets()),
        IpAddr::V6(v6) => sum(&v6.octets()),
    };
    finish(address(from) + address(to) + u64::from(UDP) + udp.len() as u64 + sum(udp))
}

/// Sum of big-endian 16-bit words, an odd last byte padded with zero (RFC 1071).
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (pairs, odd) = bytes.as_chunks::<2>();
    let words: u64 = pairs
        .iter()
        .map(|pair| u64::from(u16::from_be_bytes(*pair)))
        .sum();
    words + odd.first().map_or(0, |last| u64::from(*last) << 8)
}

/// Folds the carries and complements.
pub(crate) fn finish(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{DeviceAddress, GATEWAY};

    #[test]
    fn what_is_written_is_read_back_with_right_checksums() {
        let device = DeviceAddress::new(5);
        for (from, to) in [
            (
                Endpoint::v4(device.mac(), device.v4(), 1),
                Endpoint::v4(GATEWAY.mac, GATEWAY.v4, 20550),
            ),
            (
                Endpoint::v6(device.mac(), device.v6(), 1),
                Endpoint::v6(GATEWAY.mac, GATEWAY.v6, 20550),
            ),
        ] {
            for payload in [&b""[..], b"x", b"odd", &[0xff; 64], &[7; 1400]] {
                let frame = UdpFrame { from, to, payload };
                let mut bytes = [0xaa; 1536];
                let length = frame.write(&mut bytes).unwrap();
                assert_eq!(UdpFrame::parse(&bytes[..length]), Some(frame));
                assert!(checksums_are_right(&bytes[..length]));
                bytes[length - 1] ^= 1;
                assert!(!checksums_are_right(&bytes[..length]));
            }
        }
    }

    /// RFC 1071 section 3's example.
    #[test]
    fn sums_as_in_rfc_1071() {
        assert_eq!(
            finish(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])),
            !0xddf2
        );
    }

    #[test]
    fn what_does_not_fit_or_mixes_versions_is_refused() {
        let device = DeviceAddress::new(5);
        let frame = UdpFrame {
            from: Endpoint::v4(device.mac(), device.v4(), 1),
            to: Endpoint::v6(GATEWAY.mac, GATEWAY.v6, 1),
            payload: b"",
        };
        assert_eq!(frame.write(&mut [0; 100]), None);
        let frame = UdpFrame {
            to: Endpoint::v4(GATEWAY.mac, GATEWAY.v4, 1),
            ..frame
        };
        assert_eq!(frame.write(&mut [0; 41]), None);
        assert_eq!(frame.write(&mut [0; 42]), Some(42));
        assert_eq!(UdpFrame::parse(&[0; 13]), None);
    }
}
