//! The Internet checksum (RFC 1071), for IPv4 headers, UDP and ICMPv6.

use super::header::PROTOCOL_UDP;

/// An intermediate one's complement sum of 16-bit words.
#[derive(Clone, Copy, Default)]
pub struct Sum(u64);

impl Sum {
    /// Adds bytes; an odd last byte is padded with zero.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let words = bytes.chunks(2).map(|pair| match *pair {
            [high, low] => u64::from(u16::from_be_bytes([high, low])),
            [high] => u64::from(high) << 8,
            _ => 0,
        });
        Self(self.0 + words.sum::<u64>())
    }

    /// Adds a word.
    #[must_use]
    pub fn word(self, word: u16) -> Self {
        Self(self.0 + u64::from(word))
    }

    /// Subtracts a sum (RFC 1624: adds its complement).
    #[must_use]
    pub fn subtract(self, other: Self) -> Self {
        self.word(other.finish())
    }

    /// Adds the pseudo header of RFC 768 or RFC 8200 8.1: addresses (4 or 16 bytes each), protocol, length.
    #[must_use]
    pub fn pseudo_header(self, src: &[u8], dst: &[u8], protocol: u8, length: u16) -> Self {
        let addresses = self.bytes(src).bytes(dst);
        Self(addresses.0 + u64::from(protocol) + u64::from(length))
    }

    /// The checksum: the complement of the folded sum.
    #[must_use]
    pub fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::try_from(sum).unwrap_or_default()
    }
}

/// The checksum of a UDP datagram whose checksum field is zero. A zero result is sent as `0xffff`, because zero means
/// "no checksum".
#[must_use]
pub fn udp(src: &[u8], dst: &[u8], datagram: &[u8]) -> u16 {
    let length = u16::try_from(datagram.len()).unwrap_or(u16::MAX);
    match Sum::default()
        .pseudo_header(src, dst, PROTOCOL_UDP, length)
        .bytes(datagram)
        .finish()
    {
        0 => 0xffff,
        checksum => checksum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 1071 section 3: the sum of these bytes is ddf2.
    #[test]
    fn agrees_with_the_example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().bytes(&bytes).finish(), !0xddf2);
    }

    #[test]
    fn a_zero_udp_checksum_is_sent_as_ones() {
        let mut datagram = [0u8; 10];
        let sum = udp(&[0; 4], &[0; 4], &datagram);
        datagram[8..].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(udp(&[0; 4], &[0; 4], &datagram), 0xffff);
    }
}
