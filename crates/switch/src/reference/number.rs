//! Conversion between arbitrary-precision integers and bits.

use num_bigint::{BigInt, BigUint, Sign};
use num_traits::{One, Signed, Zero};

/// `2^bits`.
pub fn power(bits: u32) -> BigInt {
    BigInt::one() << bits
}

/// Low bits of a number in two's complement.
pub fn low_bits(value: &BigInt, bits: u32) -> BigUint {
    let masked: BigInt = value & (power(bits) - 1);
    masked.magnitude().clone()
}

/// Low 64 bits of a number in two's complement.
pub fn low_u64(value: &BigInt) -> u64 {
    low_bits(value, 64).iter_u64_digits().next().unwrap_or(0)
}

/// Low 16 bits of a number in two's complement.
pub fn low_u16(value: &BigInt) -> u16 {
    (low_u64(value) & 0xffff) as u16
}

/// Low 32 bits of a number in two's complement.
pub fn low_u32(value: &BigInt) -> u32 {
    (low_u64(value) & 0xffff_ffff) as u32
}

/// Signed number of this width with the same low bits.
pub fn wrap_signed(value: &BigInt, bits: u32) -> BigInt {
    let low = BigInt::from(low_bits(value, bits));
    if bits > 0 && low >= power(bits - 1) {
        low - power(bits)
    } else {
        low
    }
}

/// Clamps a number to a range.
pub fn clamp(value: &BigInt, low: BigInt, high: BigInt) -> BigInt {
    if *value < low {
        low
    } else if *value > high {
        high
    } else {
        value.clone()
    }
}

/// Minimum and maximum of a field.
pub fn range(bits: u32, signed: bool) -> (BigInt, BigInt) {
    match (bits, signed) {
        (0, _) => (BigInt::zero(), BigInt::zero()),
        (_, true) => (-power(bits - 1), power(bits - 1) - 1),
        (_, false) => (BigInt::zero(), power(bits) - 1),
    }
}

/// Quotient and remainder; `None` where P4 leaves them undefined.
pub fn divide(left: &BigInt, right: &BigInt) -> Option<(BigInt, BigInt)> {
    if left.is_negative() || !right.is_positive() {
        return None;
    }
    Some((left / right, left % right))
}

/// Encodes a number of this width, padded in front to whole bytes.
pub fn to_bytes(value: &BigUint, bits: u32) -> Vec<u8> {
    let width = bits.div_ceil(8) as usize;
    let digits = value.to_bytes_be();
    let digits = if value.is_zero() { &[][..] } else { &digits };
    let mut bytes = vec![0; width.saturating_sub(digits.len())];
    bytes.extend_from_slice(digits);
    bytes
}

/// Reads bits of a byte string as a number; bits beyond its end are 0.
pub fn bits_of(bytes: &[u8], first_bit: usize, bits: u32) -> BigInt {
    let mut value = BigInt::zero();
    for position in first_bit..first_bit + bits as usize {
        let byte = bytes.get(position / 8).copied().unwrap_or(0);
        value = (value << 1) + BigInt::from(byte >> (7 - position % 8) & 1);
    }
    value
}

/// Converts a byte string to a number.
pub fn from_bytes(bytes: &[u8]) -> BigInt {
    BigInt::from_bytes_be(Sign::Plus, bytes)
}

/// Growable bit string.
#[derive(Default)]
pub struct Bits(Vec<bool>);

impl Bits {
    /// Appends the low bits of a number.
    pub fn push(&mut self, value: &BigUint, bits: u32) {
        self.0
            .extend((0..bits).rev().map(|bit| value.bit(u64::from(bit))));
    }

    /// Converts to bytes, with zero bits after the last bit.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
            .chunks(8)
            .map(|chunk| {
                let set = chunk.iter().enumerate().filter(|(_, bit)| **bit);
                set.fold(0, |byte, (index, _)| byte | 0x80 >> index)
            })
            .collect()
    }
}
