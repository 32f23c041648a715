//! P4 integers of any width in P4Runtime's encoding (specification 8.4, "Bytestrings").
//!
//! A sender uses the shortest big-endian string that holds the value, at least one byte. A receiver accepts any
//! number of leading zeros (copies of the sign bit for `int<W>`) and checks that the value fits in W bits. The
//! empty string is invalid.

use std::fmt;

use thiserror::Error;

/// Reason to reject a byte string. The P4Runtime status of all variants is OUT_OF_RANGE.
///
/// (Sections 9.1.1 and 9.1.2 require INVALID_ARGUMENT for "does not conform to Bytestrings"; section 8.4 itself
/// requires OUT_OF_RANGE.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BytesError {
    /// The string is empty.
    #[error("byte string is empty: encode zero as one byte 0x00")]
    Empty,
    /// The value is wider than the type.
    #[error("value does not fit: it needs {needed_bits} bits, the type has {width_bits}")]
    TooWide {
        /// Bits of the shortest representation.
        needed_bits: usize,
        /// Bits of the type.
        width_bits: u32,
    },
}

/// A value of `bit<W>`, or the two's complement of a value of `int<W>`: W bits, big-endian, in the
/// fewest whole bytes that hold W bits.
///
/// Values of the same width are ordered as unsigned numbers.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bits {
    width: u32,
    bytes: Box<[u8]>,
}

impl Bits {
    /// Zero in `width` bits.
    pub fn zero(width: u32) -> Self {
        Self {
            width,
            bytes: vec![0; bytes_for(width)].into_boxed_slice(),
        }
    }

    /// Value with all `width` bits set: the highest value of `bit<W>`, or the mask of an exact match.
    pub fn ones(width: u32) -> Self {
        Self::prefix(width, width)
    }

    /// Mask of a prefix: the `length` most significant of `width` bits are set; all bits if `length` exceeds
    /// `width`.
    pub fn prefix(width: u32, length: u32) -> Self {
        let mut mask = Self::zero(width);
        let unused = (mask.bytes.len() * 8).saturating_sub(width as usize);
        let (first, end) = (unused, unused + length.min(width) as usize);
        for (index, byte) in mask.bytes.iter_mut().enumerate() {
            let start = index * 8;
            for bit in first.max(start)..end.min(start + 8) {
                *byte |= 0x80 >> (bit - start);
            }
        }
        mask
    }

    /// `value` in `width` bits; `None` if it does not fit.
    pub fn from_u128(width: u32, value: u128) -> Option<Self> {
        Self::parse(width, &value.to_be_bytes()).ok()
    }

    /// Parses a received string as a `bit<W>`.
    pub fn parse(width: u32, string: &[u8]) -> Result<Self, BytesError> {
        if string.is_empty() {
            return Err(BytesError::Empty);
        }
        let needed_bits = unsigned_bits(string);
        if needed_bits > width as usize {
            return Err(BytesError::TooWide {
                needed_bits,
                width_bits: width,
            });
        }
        Ok(Self::resized(width, string, 0))
    }

    /// Parses a received string as an `int<W>`: the W bits of the two's complement.
    pub fn parse_signed(width: u32, string: &[u8]) -> Result<Self, BytesError> {
        if string.is_empty() {
            return Err(BytesError::Empty);
        }
        let needed_bits = signed_bits(string);
        if needed_bits > width as usize {
            return Err(BytesError::TooWide {
                needed_bits,
                width_bits: width,
            });
        }
        let mut value = Self::resized(width, string, sign_byte(string));
        value.clear_unused();
        Ok(value)
    }

    /// Width W, bits.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// The value in ⌈W/8⌉ bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The shortest string of the value as a `bit<W>`.
    pub fn canonical(&self) -> &[u8] {
        let zeros = self.bytes.iter().take_while(|byte| **byte == 0).count();
        let start = zeros.min(self.bytes.len().saturating_sub(1));
        match self.bytes.get(start..) {
            Some(string) if !string.is_empty() => string,
            // Only for a width of 0 bits.
            _ => &[0],
        }
    }

    /// The shortest string of the value as an `int<W>`.
    pub fn canonical_signed(&self) -> Vec<u8> {
        let mut bytes = self.bytes.to_vec();
        let unused = (bytes.len() * 8).saturating_sub(self.width as usize);
        let negative = self.bit_from_top(unused);
        if let (true, Some(first)) = (negative, bytes.first_mut()) {
            *first |= !(0xff_u8 >> unused);
        }
        let length = signed_bits(&bytes).div_ceil(8).max(1);
        let start = bytes.len().saturating_sub(length);
        let mut string = bytes.split_off(start);
        if string.is_empty() {
            string.push(0);
        }
        string
    }

    /// Whether no bit is set.
    pub fn is_zero(&self) -> bool {
        self.bytes.iter().all(|byte| *byte == 0)
    }

    /// Whether all W bits are set.
    pub fn is_ones(&self) -> bool {
        *self == Self::ones(self.width)
    }

    /// Whether every set bit is also set in `mask`; false if the widths differ.
    pub fn is_subset_of(&self, mask: &Self) -> bool {
        self.width == mask.width
            && self
                .bytes
                .iter()
                .zip(&mask.bytes)
                .all(|(value, mask)| value & !mask == 0)
    }

    /// The value; `None` if it needs more than 64 bits.
    pub fn to_u64(&self) -> Option<u64> {
        let canonical = self.canonical();
        let mut bytes = [0; 8];
        let start = bytes.len().checked_sub(canonical.len())?;
        bytes.get_mut(start..)?.copy_from_slice(canonical);
        Some(u64::from_be_bytes(bytes))
    }

    /// The last ⌈`width`/8⌉ bytes of `string`, padded in front with `fill`.
    fn resized(width: u32, string: &[u8], fill: u8) -> Self {
        let length = bytes_for(width);
        let tail = string
            .get(string.len().saturating_sub(length)..)
            .unwrap_or_default();
        let mut bytes = vec![fill; length - tail.len()];
        bytes.extend_from_slice(tail);
        Self {
            width,
            bytes: bytes.into_boxed_slice(),
        }
    }

    fn clear_unused(&mut self) {
        let unused = (self.bytes.len() * 8).saturating_sub(self.width as usize);
        if let Some(first) = self.bytes.first_mut() {
            *first &= 0xff_u8 >> unused;
        }
    }

    fn bit_from_top(&self, position: usize) -> bool {
        self.bytes
            .get(position / 8)
            .is_some_and(|byte| byte & (0x80 >> (position % 8)) != 0)
    }
}

impl fmt::Debug for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}w{self}", self.width)
    }
}

impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.canonical()
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn bytes_for(width: u32) -> usize {
    width.div_ceil(8) as usize
}

/// Bits of the shortest representation as a `bit<W>`; zero needs one bit.
fn unsigned_bits(string: &[u8]) -> usize {
    match string.iter().position(|byte| *byte != 0) {
        None => 1,
        Some(first) => {
            let zeros = string.get(first).map_or(8, |byte| byte.leading_zeros() as usize);
            (string.len() - first) * 8 - zeros
        }
    }
}

/// Bits of the shortest representation as an `int<W>`, including the sign bit.
fn signed_bits(string: &[u8]) -> usize {
    let sign = sign_byte(string);
    // XOR with the sign clears all copies of the sign bit. The representation needs one of these copies.
    match string.iter().position(|byte| *byte != sign) {
        None => 1,
        Some(first) => {
            let copies = string
                .get(first)
                .map_or(8, |byte| (byte ^ sign).leading_zeros() as usize);
            (string.len() - first) * 8 - copies + 1
        }
    }
}

fn sign_byte(string: &[u8]) -> u8 {
    if string.first().is_some_and(|byte| byte & 0x80 != 0) {
        0xff
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Table of valid encodings of the specification: width, signed, string, and whether the encoding is
    /// canonical.
    const VALID: [(u32, bool, &[u8], bool); 14] = [
        (8, false, b"\x63", true),
        (16, false, b"\x00\x63", false),
        (16, false, b"\x63", true),
        (16, false, b"\x30\x64", true),
        (16, false, b"\x00\x30\x64", false),
        (12, false, b"\x00\x63", false),
        (12, false, b"\x63", true),
        (12, false, b"\x00\x00\x63", false),
        (8, true, b"\x63", true),
        (8, true, b"\x9d", true),
        (8, true, b"\xff\x9d", false),
        (12, true, b"\xfd\x1d", true),
        (16, true, b"\x00\x00", false),
        (16, true, b"\x00", true),
    ];
    const INVALID: [(u32, bool, &[u8]); 9] = [
        (8, false, b"\x01\x63"),
        (8, false, b""),
        (16, false, b"\x01\x00\x63"),
        (12, false, b"\x10\x63"),
        (12, false, b"\x01\x00\x63"),
        (12, false, b"\x00\x40\x63"),
        (8, true, b"\x00\x9d"),
        (12, true, b"\x8d\x1d"),
        (16, true, b""),
    ];

    fn parse(width: u32, signed: bool, string: &[u8]) -> Result<Bits, BytesError> {
        if signed {
            Bits::parse_signed(width, string)
        } else {
            Bits::parse(width, string)
        }
    }

    #[test]
    fn encodings_match_the_tables_of_the_specification() {
        for (width, signed, string, canonical) in VALID {
            let value = parse(width, signed, string).unwrap();
            let encoded = if signed {
                value.canonical_signed()
            } else {
                value.canonical().to_vec()
            };
            assert_eq!(
                encoded == string,
                canonical,
                "{width} {signed} {string:02x?}: {encoded:02x?}"
            );
            assert_eq!(parse(width, signed, &encoded), Ok(value));
        }
        for (width, signed, string) in INVALID {
            assert!(
                parse(width, signed, string).is_err(),
                "{width} {signed} {string:02x?}"
            );
        }
    }

    #[test]
    fn prefix_masks_start_at_the_top_bit_of_the_width_not_of_the_first_byte() {
        assert_eq!(Bits::prefix(9, 1).as_bytes(), [0x01, 0x00]);
        assert_eq!(Bits::prefix(9, 2).as_bytes(), [0x01, 0x80]);
        assert_eq!(Bits::prefix(32, 20).as_bytes(), [0xff, 0xff, 0xf0, 0x00]);
        assert_eq!(Bits::prefix(9, 0), Bits::zero(9));
        assert_eq!(Bits::prefix(9, 40), Bits::ones(9));
        assert!(
            Bits::from_u128(12, 0x230)
                .unwrap()
                .is_subset_of(&Bits::prefix(12, 8))
        );
        assert!(
            !Bits::from_u128(12, 0x231)
                .unwrap()
                .is_subset_of(&Bits::prefix(12, 8))
        );
    }

    /// Value of a string of at most 16 bytes, computed from the definition.
    fn number(string: &[u8], signed: bool) -> i128 {
        let mut value: i128 = if signed && string[0] >= 0x80 { -1 } else { 0 };
        for byte in string {
            value = (value << 8) | i128::from(*byte);
        }
        value
    }

    proptest! {
        #[test]
        fn only_unsigned_values_in_the_range_of_the_width_are_parsed(
            string in prop::collection::vec(any::<u8>(), 1..=12), width in 1_u32..=100,
        ) {
            let value = number(&string, false);
            let parsed = Bits::parse(width, &string);
            prop_assert_eq!(parsed.is_ok(), value < 1 << width);
            if let Ok(bits) = parsed {
                prop_assert_eq!(number(bits.canonical(), false), value);
                prop_assert!(bits.canonical().len() == 1 || bits.canonical()[0] != 0);
                prop_assert_eq!(bits.as_bytes().len(), (width as usize).div_ceil(8));
                prop_assert_eq!(bits.to_u64(), u64::try_from(value).ok());
                let padded = [&[0; 40][..], &string].concat();
                prop_assert_eq!(Bits::parse(width, &padded), Ok(bits));
            }
        }

        #[test]
        fn only_signed_values_in_the_range_of_the_width_are_parsed(
            string in prop::collection::vec(any::<u8>(), 1..=12), width in 1_u32..=100,
        ) {
            let value = number(&string, true);
            let bound = 1_i128 << (width - 1);
            let parsed = Bits::parse_signed(width, &string);
            prop_assert_eq!(parsed.is_ok(), (-bound..bound).contains(&value));
            if let Ok(bits) = parsed {
                let encoded = bits.canonical_signed();
                prop_assert_eq!(number(&encoded, true), value);
                prop_assert!(encoded.len() == 1 || number(&encoded[1..], true) != value);
                let padded = [&[if value < 0 { 0xff } else { 0 }; 40][..], &string].concat();
                prop_assert_eq!(Bits::parse_signed(width, &padded), Ok(bits));
            }
        }

        #[test]
        fn values_of_equal_width_are_ordered_as_numbers(a in any::<u64>(), b in any::<u64>(), width in 64_u32..300) {
            let bits = |value: u64| Bits::from_u128(width, u128::from(value)).unwrap();
            prop_assert_eq!(bits(a).cmp(&bits(b)), a.cmp(&b));
        }
    }
}
