//! Values of a fixed width.

use std::fmt;

use super::wire::{DecodeError, DecodeProblem, Reader, Writer};

/// Maximum width, bits.
pub const WIDTH_MAX: u32 = 1 << 16;

/// An unsigned bit string of a fixed width. Signed values are in two's complement.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bits {
    width: u32,
    /// Big-endian, with the minimum number of bytes for the width; bits above the width are zero.
    bytes: Box<[u8]>,
}

/// Why a value is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BitsError {
    /// More bits than the width.
    #[error("value too large for {0} bits")]
    TooWide(u32),
    /// A width beyond [`WIDTH_MAX`].
    #[error("invalid width of {0} bits: the maximum is {WIDTH_MAX} bits")]
    InvalidWidth(u32),
}

impl Bits {
    /// A value from a big-endian number of any length.
    ///
    /// # Errors
    /// The number does not fit, or the width is above [`WIDTH_MAX`].
    pub fn new(width: u32, number: &[u8]) -> Result<Self, BitsError> {
        if width > WIDTH_MAX {
            return Err(BitsError::InvalidWidth(width));
        }
        let mut bytes = vec![0; byte_len(width)].into_boxed_slice();
        let skipped = number.len().saturating_sub(bytes.len());
        let (excess, number) = number.split_at_checked(skipped).unwrap_or_default();
        if let Some(out) = bytes
            .len()
            .checked_sub(number.len())
            .and_then(|start| bytes.get_mut(start..))
        {
            out.copy_from_slice(number);
        }
        let is_above = bytes
            .first()
            .is_some_and(|&first| first & !first_mask(width) != 0);
        match is_above || excess.iter().any(|&byte| byte != 0) {
            true => Err(BitsError::TooWide(width)),
            false => Ok(Self { width, bytes }),
        }
    }

    /// A value from a number.
    ///
    /// # Errors
    /// The number does not fit, or the width is above [`WIDTH_MAX`].
    pub fn from_u64(width: u32, number: u64) -> Result<Self, BitsError> {
        Self::new(width, &number.to_be_bytes())
    }

    /// The width, bits.
    #[must_use]
    pub const fn width(&self) -> u32 {
        self.width
    }

    /// Big-endian, with the minimum number of bytes for the width.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether the value is zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.bytes.iter().all(|&byte| byte == 0)
    }

    /// The bitwise AND with `mask`, which has the same width.
    pub(crate) fn and(mut self, mask: &Self) -> Self {
        for (byte, mask) in self.bytes.iter_mut().zip(&mask.bytes) {
            *byte &= mask;
        }
        self
    }

    /// `ones` set bits, followed by clear bits.
    pub(crate) fn prefix(width: u32, ones: u32) -> Self {
        let mut bytes = vec![0; byte_len(width)].into_boxed_slice();
        let padding = padding(width);
        for (byte_index, byte) in (0u32..).zip(&mut bytes) {
            for bit in 0..8 {
                let position = byte_index * 8 + bit;
                if position >= padding && position - padding < ones {
                    *byte |= 0x80 >> bit;
                }
            }
        }
        Self { width, bytes }
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.u32(self.width).raw(&self.bytes);
    }

    pub(crate) fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        let width = reader.u32(field)?;
        if width > WIDTH_MAX {
            return Err(reader.refuse(field, DecodeProblem::TooLong));
        }
        let bytes = reader.raw(field, byte_len(width))?;
        Self::new(width, bytes).map_err(|_| reader.refuse(field, DecodeProblem::NotCanonical))
    }
}

/// Number of bytes of a value with this width.
pub(crate) const fn byte_len(width: u32) -> usize {
    // No width exceeds the range of `usize`.
    width.div_ceil(8) as usize
}

/// Number of unused bits in the first byte.
const fn padding(width: u32) -> u32 {
    width.wrapping_neg() & 7
}

/// Mask of the value's bits in the first byte.
const fn first_mask(width: u32) -> u8 {
    0xff >> padding(width)
}

/// `0x..` without leading zeros.
impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        let mut digits = self
            .bytes
            .iter()
            .flat_map(|byte| [byte >> 4, byte & 15])
            .skip_while(|&digit| digit == 0)
            .peekable();
        if digits.peek().is_none() {
            return f.write_str("0");
        }
        digits.try_for_each(|digit| write!(f, "{digit:x}"))
    }
}

impl fmt::Debug for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}/{}", self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_one_form() {
        let nine = Bits::new(9, &[0, 0, 1, 0xff]).unwrap();
        assert_eq!(nine, Bits::from_u64(9, 511).unwrap());
        assert_eq!(nine.bytes(), [1, 0xff]);
        assert_eq!(nine.to_string(), "0x1ff");
        assert_eq!(Bits::from_u64(12, 0).unwrap().to_string(), "0x0");
        assert!(Bits::new(0, &[]).unwrap().bytes().is_empty());
        for (width, number) in [(9, 512), (0, 1), (7, 128)] {
            assert_eq!(Bits::from_u64(width, number), Err(BitsError::TooWide(width)));
        }
    }

    #[test]
    fn prefixes_begin_at_the_highest_bit() {
        for (width, ones, number) in [
            (9, 0, 0),
            (9, 1, 256),
            (9, 9, 511),
            (12, 5, 0xf80),
            (32, 8, 0xff00_0000),
        ] {
            assert_eq!(Bits::prefix(width, ones), Bits::from_u64(width, number).unwrap());
        }
    }
}
