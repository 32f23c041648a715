//! Parsing of numbers in the JSON: hexadecimal digits with optional 0x and sign.

use num_bigint::{BigInt, BigUint};

/// Parses digits such as `0x1f`, `1f` or `-0x05`.
pub fn signed(text: &str) -> Option<BigInt> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let value = BigInt::from(unsigned(digits)?);
    Some(if negative { -value } else { value })
}

/// Parses digits such as `0x1f` or `1f`.
pub fn unsigned(text: &str) -> Option<BigUint> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    BigUint::parse_bytes(digits.as_bytes(), 16)
}

/// Parses digits as bytes, two digits for each byte. For an odd number of digits, the first digit alone is one byte.
/// Leading zeros are kept.
pub fn bytes(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    if digits.is_empty() {
        return None;
    }
    let even = if digits.len().is_multiple_of(2) {
        digits.to_owned()
    } else {
        format!("0{digits}")
    };
    hex::decode(even).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_with_and_without_prefix_and_sign() {
        assert_eq!(signed("0x1f"), Some(BigInt::from(31)));
        assert_eq!(signed("1f"), Some(BigInt::from(31)));
        assert_eq!(signed("-0x05"), Some(BigInt::from(-5)));
        assert_eq!(signed("0x"), None);
        assert_eq!(signed("zz"), None);
        assert_eq!(bytes("0x00a"), Some(vec![0x00, 0x0a]));
        assert_eq!(bytes("0xabcd"), Some(vec![0xab, 0xcd]));
        assert_eq!(bytes(""), None);
    }
}
