//! Splits the scalar by which a point is multiplied into signed digits: for windows of w bits, a digit is in `-2^(w-1)
//! ..= 2^(w-1)` (Booth, *A signed binary multiplication technique*, 1951).
//!
//! Unlike the digits of P-256, these digits may be 0, since additions on this curve have no exceptional cases. A factor
//! k is never replaced by L - k (with the negated point) or by k + L: a key may have a component of small order, and L
//! times that component is not the neutral point.

use crate::elliptic::bits;

/// Bits of a factor, which is below L. The digits cover one bit more, for the carry into the topmost digit.
const BITS: usize = 253;

/// A digit: `index`, or `-index` if `negative`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digit {
    pub(super) index: usize,
    pub(super) negative: bool,
}

/// Number of digits with `width` bits.
pub(super) const fn digit_count(width: usize) -> usize {
    (BITS + 1).div_ceil(width)
}

/// The digit with weight `2^(width position)`, at most 15 bits wide.
pub(super) fn digit(number: &[u64; 4], width: usize, position: usize) -> Digit {
    // The bits of the window, and the bit below the window.
    let window = match (width * position).checked_sub(1) {
        Some(below) => bits(number, below, width + 1),
        None => bits(number, 0, width) << 1,
    };
    let rounded = window.div_ceil(2);
    if window >> width == 0 {
        Digit {
            index: rounded,
            negative: false,
        }
    } else {
        Digit {
            index: (1 << width) - rounded,
            negative: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use num_bigint::{BigInt, BigUint};

    use super::*;
    use crate::testing::limbs;

    #[test]
    fn digits_make_up_the_number() {
        let l_less_1 = [0x5812_631a_5cf5_d3ec, 0x14de_f9de_a2f7_9cd6, 0, 1 << 60];
        let edge_cases = [
            [0; 4],
            [1, 0, 0, 0],
            [u64::MAX, 0, u64::MAX, 0],
            [u64::MAX, u64::MAX, u64::MAX, (1 << 60) - 1],
            [
                0x5555_5555_5555_5555,
                0xaaaa_aaaa_aaaa_aaaa,
                0x1084_2108_4210_8421,
                0x0fed_cba9_8765_4321,
            ],
            l_less_1,
        ];
        let near = |bit: u32| {
            let power = BigUint::from(1u32) << bit;
            [&power - 1u32, power.clone(), power + 1u32]
        };
        let powers = (0..=252)
            .flat_map(near)
            .map(|number| limbs(&number, 4).try_into().unwrap());
        for number in powers.chain(edge_cases) {
            for width in [4, 5, 8, 10, 13] {
                let mut sum = BigInt::from(0);
                for position in (0..digit_count(width)).rev() {
                    let Digit { index, negative } = digit(&number, width, position);
                    assert!(index <= 1 << (width - 1), "{number:?} {width} {position}");
                    sum = (sum << width)
                        + if negative {
                            -BigInt::from(index)
                        } else {
                            BigInt::from(index)
                        };
                }
                let bytes = number.map(u64::to_le_bytes).concat();
                assert_eq!(
                    sum,
                    BigInt::from_bytes_le(num_bigint::Sign::Plus, &bytes),
                    "{width}"
                );
            }
        }
    }
}
