//! Point arithmetic on big numbers: slow, with textbook formulas.

use num_bigint::BigUint;

pub fn from_hex(hex: &str) -> BigUint {
    BigUint::parse_bytes(hex.as_bytes(), 16).expect("hexadecimal")
}

/// `number^-1` modulo a prime.
pub fn inverse(number: &BigUint, prime: &BigUint) -> BigUint {
    number.modinv(prime).expect("a number other than 0")
}

/// `a - b` modulo `modulus`.
pub fn subtract(a: &BigUint, b: &BigUint, modulus: &BigUint) -> BigUint {
    (a + modulus - b % modulus) % modulus
}

/// 32 bytes, most significant first.
pub fn to_be(number: &BigUint) -> [u8; 32] {
    let mut bytes = to_le(number);
    bytes.reverse();
    bytes
}

/// 32 bytes, least significant first.
pub fn to_le(number: &BigUint) -> [u8; 32] {
    let mut bytes = number.to_bytes_le();
    assert!(bytes.len() <= 32);
    bytes.resize(32, 0);
    bytes.try_into().expect("32 bytes")
}

/// A group written additively.
pub trait Group {
    type Point: Clone;
    fn neutral(&self) -> Self::Point;
    fn add(&self, a: &Self::Point, b: &Self::Point) -> Self::Point;

    fn multiple(&self, factor: &BigUint, point: &Self::Point) -> Self::Point {
        (0..factor.bits()).rev().fold(self.neutral(), |sum, bit| {
            let double = self.add(&sum, &sum);
            if factor.bit(bit) {
                self.add(&double, point)
            } else {
                double
            }
        })
    }
}
