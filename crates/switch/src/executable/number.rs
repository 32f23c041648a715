//! Numbers of any width, as registers hold them.

use num_bigint::BigInt;

/// Low 128 bits of a number in two's complement.
pub fn low_bits(value: &BigInt) -> u128 {
    let digits = value.to_signed_bytes_le();
    let fill = if digits.last().is_some_and(|top| *top >= 0x80) {
        0xff
    } else {
        0
    };
    let mut bytes = [fill; 16];
    for (to, from) in bytes.iter_mut().zip(&digits) {
        *to = *from;
    }
    u128::from_le_bytes(bytes)
}

/// Returns the low 64 bits in two's complement.
pub fn low64(value: &BigInt) -> u64 {
    low_bits(value) as u64
}
