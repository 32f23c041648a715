//! Splits a point's factor into odd digits. No digit is 0, so each window needs exactly one addition, in all lanes.
//!
//! For odd k and windows of w bits, `k = sum of d_i 2^(w i)` with
//! `d_i = 2 floor(k / 2^(w i + 1)) mod 2^(w + 1) + 1 - 2^w`, and the topmost digit lacks the last term, `- 2^w` (Joye
//! and Tunstall, *Exponent recoding and regular exponentiation algorithms*, 2009). For even k, the digits are those of
//! n - k, negated.

use super::ORDER;
use crate::elliptic::{bits, subtract};

/// Bits that the digits must cover.
const BITS: usize = 256;

/// A digit: the odd number `2 index + 1`, or its negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digit {
    pub(super) index: usize,
    pub(super) negative: bool,
}

/// A point's factor, represented by an odd number in `0..=n` or by the negative of that number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Digits {
    odd: [u64; 4],
    negative: bool,
}

/// Number of digits with `width` bits.
pub(super) const fn digit_count(width: usize) -> usize {
    BITS.div_ceil(width)
}

impl Digits {
    /// The digits of a number in `0..=n`.
    pub(super) fn new(number: &[u64; 4]) -> Self {
        let negative = number[0] & 1 == 0;
        let odd = if negative {
            subtract(&ORDER.limbs, number).0
        } else {
            *number
        };
        Self { odd, negative }
    }

    /// The digit with weight `2^(width position)`, at most 15 bits wide.
    pub(super) fn digit(&self, width: usize, position: usize) -> Digit {
        let bit = width * position;
        let middle = 1 << width;
        let window = bits(&self.odd, bit, width + 1) | 1;
        if bit + width >= BITS {
            Digit {
                index: window >> 1,
                negative: self.negative,
            }
        } else if window > middle {
            Digit {
                index: (window - middle) >> 1,
                negative: self.negative,
            }
        } else {
            Digit {
                index: (middle - window) >> 1,
                negative: !self.negative,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use num_bigint::{BigInt, BigUint, Sign};

    use super::*;
    use crate::testing::limbs;

    #[test]
    fn digits_make_up_the_number() {
        let n = BigInt::from_bytes_le(Sign::Plus, &ORDER.limbs.map(u64::to_le_bytes).concat());
        let edge_cases = [
            [0; 4],
            [1, 0, 0, 0],
            [2, 0, 0, 0],
            [u64::MAX, 0, u64::MAX, 0],
            [0x5555_5555_5555_5555; 4],
            subtract(&ORDER.limbs, &[1, 0, 0, 0]).0,
            subtract(&ORDER.limbs, &[2, 0, 0, 0]).0,
            ORDER.limbs,
        ];
        let near = |bit: u32| {
            let power = BigUint::from(1u32) << bit;
            [&power - 1u32, power.clone(), power + 1u32]
        };
        let powers = (0..256)
            .flat_map(near)
            .filter(|number| BigInt::from(number.clone()) < n);
        let powers = powers.map(|number| limbs(&number, 4).try_into().unwrap());
        for number in powers.chain(edge_cases) {
            let digits = Digits::new(&number);
            for width in [4, 5, 8, 10, 13] {
                let mut sum = BigInt::from(0);
                for position in (0..digit_count(width)).rev() {
                    let Digit { index, negative } = digits.digit(width, position);
                    assert!(index < 1 << (width - 1), "{number:?} {width} {position}");
                    let digit = BigInt::from(2 * index + 1);
                    sum = (sum << width) + if negative { -digit } else { digit };
                }
                let number = BigInt::from_bytes_le(Sign::Plus, &number.map(u64::to_le_bytes).concat());
                assert_eq!((sum - &number) % &n, BigInt::from(0), "{number} {width}");
            }
        }
    }
}
