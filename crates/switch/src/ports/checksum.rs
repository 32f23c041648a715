//! Checksums of TCP, UDP and SCTP: location, coverage, and completion of a partial checksum that a sender's network stack
//! left for its hardware.

/// Length of a VLAN tag (TPID and TCI), bytes.
pub(super) const TAG_BYTES: usize = 4;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const SCTP: u8 = 132;

const ETHERNET_HEADER_BYTES: usize = 14;

/// Completes a partial checksum, which covers the frame from `start`. The field at `start + offset` already contains the sum
/// over the pseudo-header. `None` if the frame is too short.
pub(super) fn complete(frame: &mut [u8], start: usize, offset: usize) -> Option<()> {
    const SCTP_CHECKSUM: usize = 8;
    if offset == SCTP_CHECKSUM
        && Layout::of(frame).is_some_and(|layout| layout.l4 == start && layout.protocol == SCTP)
    {
        let covered = frame.get_mut(start..)?;
        *covered.get_mut(offset..)?.first_chunk_mut()? = [0; 4];
        let sum = crc32c(covered).to_le_bytes();
        *covered.get_mut(offset..)?.first_chunk_mut()? = sum;
        return Some(());
    }
    let covered = frame.get_mut(start..)?;
    let sum = not_zero(!fold(ones_sum(covered)));
    *covered.get_mut(offset..)?.first_chunk_mut()? = sum.to_be_bytes();
    Some(())
}

/// Offsets of the headers in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    pub(super) l3: usize,
    pub(super) ipv6: bool,
    pub(super) l4: usize,
    pub(super) protocol: u8,
}

impl Layout {
    /// Parses a frame. `None` if the frame contains no unfragmented IP packet, or a routing header with another final
    /// destination.
    pub(super) fn of(frame: &[u8]) -> Option<Self> {
        const VLANS_MAX: usize = 4;
        let mut l3 = ETHERNET_HEADER_BYTES;
        for _ in 0..=VLANS_MAX {
            match be16(frame, l3 - 2)? {
                0x8100 | 0x88a8 => l3 += TAG_BYTES,
                0x0800 => return Self::ipv4(frame, l3),
                0x86dd => return Self::ipv6(frame, l3),
                _ => return None,
            }
        }
        None
    }

    fn ipv4(frame: &[u8], l3: usize) -> Option<Self> {
        const MORE_OR_OFFSET: u16 = 0x3fff;
        let header_bytes = usize::from(frame.get(l3)? & 0xf) * 4;
        let unfragmented = be16(frame, l3 + 6)? & MORE_OR_OFFSET == 0;
        (header_bytes >= 20 && unfragmented).then_some(Self {
            l3,
            ipv6: false,
            l4: l3 + header_bytes,
            protocol: *frame.get(l3 + 9)?,
        })
    }

    fn ipv6(frame: &[u8], l3: usize) -> Option<Self> {
        const HOP_BY_HOP: u8 = 0;
        const ROUTING: u8 = 43;
        const DESTINATION: u8 = 60;
        const EXTENSIONS_MAX: usize = 8;
        let mut protocol = *frame.get(l3 + 6)?;
        let mut l4 = l3 + 40;
        for _ in 0..EXTENSIONS_MAX {
            match protocol {
                // The pseudo-header uses the final destination, which differs from the destination in the header.
                ROUTING if *frame.get(l4 + 3)? != 0 => return None,
                HOP_BY_HOP | ROUTING | DESTINATION => {
                    protocol = *frame.get(l4)?;
                    l4 += 8 * (1 + usize::from(*frame.get(l4 + 1)?));
                }
                _ => {
                    return Some(Self {
                        l3,
                        ipv6: true,
                        l4,
                        protocol,
                    });
                }
            }
        }
        None
    }

    /// End of the IP packet according to its length field.
    pub(super) fn end(self, frame: &[u8]) -> Option<usize> {
        Some(if self.ipv6 {
            self.l3 + 40 + usize::from(be16(frame, self.l3 + 4)?)
        } else {
            self.l3 + usize::from(be16(frame, self.l3 + 2)?)
        })
    }

    /// Computes the sum over the pseudo-header without the length (RFC 9293 3.1, RFC 8200 8.1).
    pub(super) fn pseudo_sum(self, frame: &[u8]) -> Option<u64> {
        let addresses = if self.ipv6 {
            frame.get(self.l3 + 8..self.l3 + 40)?
        } else {
            frame.get(self.l3 + 12..self.l3 + 20)?
        };
        Some(ones_sum(addresses) + u64::from(self.protocol))
    }
}

pub(super) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn set_be16(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    *bytes.get_mut(at..)?.first_chunk_mut()? = value.to_be_bytes();
    Some(())
}

/// Computes the sum of the 16-bit words (RFC 1071); a single last byte is padded with zero. The sum of a frame of 64 KiB is
/// below 2^33.
pub(super) fn ones_sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let sum: u64 = words
        .iter()
        .map(|word| u64::from(u32::from_be_bytes(*word)))
        .sum();
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    let sum = sum + u64::from(u32::from_be_bytes(last));
    // Modulo 2^16 - 1 the upper halves can be added to the lower halves.
    (sum >> 32) + (sum & 0xffff_ffff)
}

/// Adds the carries until 16 bits remain.
pub(super) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// Replaces zero by 0xffff: in UDP, zero means "no checksum" (RFC 768).
pub(super) fn not_zero(sum: u16) -> u16 {
    if sum == 0 { 0xffff } else { sum }
}

/// Computes the CRC-32C of SCTP (RFC 9260 appendix A) with one table access for each byte.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        let [low, ..] = crc.to_le_bytes();
        let entry = CRC32C.get(usize::from(low ^ byte)).copied().unwrap_or_default();
        (crc >> 8) ^ entry
    })
}

/// CRC of each byte value.
static CRC32C: [u32; 256] = crc32c_table();

#[allow(clippy::indexing_slicing, reason = "evaluated at compile time")]
const fn crc32c_table() -> [u32; 256] {
    const REFLECTED_POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut table = [0u32; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (REFLECTED_POLYNOMIAL & (crc & 1).wrapping_neg());
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
#[path = "checksum_samples.rs"]
pub(super) mod samples;
