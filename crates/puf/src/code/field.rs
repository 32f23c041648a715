//! GF(2^7) and GF(2^8).
//!
//! Two kinds of arithmetic: powers of α by table, for public data (code construction), and lane-wise products
//! by shifts and masks, for secret data (decoding): no branch and no address depends on an operand.

/// A field GF(2^m) with the primitive polynomial that the published BCH tables use.
#[derive(Clone, Debug)]
pub struct Field {
    degree: u32,
    powers: Vec<u8>,
}

/// x^7 + x^3 + 1, the polynomial of Lin and Costello, Error Control Coding, for m = 7, without its leading
/// term.
const REDUCTION_7: u64 = 0x09;
/// x^8 + x^4 + x^3 + x^2 + 1, the polynomial of Lin and Costello for m = 8, without its leading term.
const REDUCTION_8: u64 = 0x1d;

/// The lowest bit of each lane.
const LOW_BITS: u64 = 0x0101_0101_0101_0101;

impl Field {
    /// The field GF(2^degree); `None` unless the degree is 7 or 8.
    pub fn new(degree: u32) -> Option<Self> {
        let reduction = match degree {
            7 => REDUCTION_7,
            8 => REDUCTION_8,
            _ => return None,
        };
        let order = (1_usize << degree) - 1;
        let mut powers = Vec::with_capacity(order);
        let mut power = 1_u64;
        for _ in 0..order {
            powers.push(power.to_le_bytes()[0]);
            power <<= 1;
            if power >> degree & 1 == 1 {
                power ^= 1 << degree | reduction;
            }
        }
        Some(Self { degree, powers })
    }

    /// m of GF(2^m).
    pub fn degree(&self) -> u32 {
        self.degree
    }

    /// The order of the multiplicative group, 2^m - 1.
    pub fn order(&self) -> usize {
        self.powers.len()
    }

    /// α^exponent.
    pub fn power(&self, exponent: usize) -> u8 {
        self.powers
            .get(exponent % self.powers.len())
            .copied()
            .unwrap_or_default()
    }
}

/// Lane-wise products of `8 L` field elements in GF(2^M).
///
/// Shift and add, `M` steps; the instructions do not depend on the operands.
#[inline(always)]
pub(super) fn mul_lanes<const M: u32, const L: usize>(mut a: [u64; L], b: [u64; L]) -> [u64; L] {
    let reduction = if M == 7 { REDUCTION_7 } else { REDUCTION_8 };
    let mut product = [0; L];
    for step in 0..M {
        for ((product, a), b) in product.iter_mut().zip(&mut a).zip(&b) {
            *product ^= *a & spread(b >> step & LOW_BITS);
            let top = *a >> (M - 1) & LOW_BITS;
            *a = (*a ^ top << (M - 1)) << 1 ^ spread(top) & reduction.wrapping_mul(LOW_BITS);
        }
    }
    product
}

/// Converts lanes of 0 or 1 to lanes of 0 or 255.
#[inline(always)]
fn spread(bits: u64) -> u64 {
    (bits << 8).wrapping_sub(bits)
}

/// One element in all eight lanes.
#[inline(always)]
pub(super) fn broadcast(element: u64) -> u64 {
    element.wrapping_mul(LOW_BITS)
}

/// The sum of all lanes.
#[inline(always)]
pub(super) fn sum_lanes<const L: usize>(lanes: [u64; L]) -> u64 {
    let mut sum = lanes.iter().fold(0, |sum, lane| sum ^ lane);
    for shift in [32, 16, 8] {
        sum ^= sum >> shift;
    }
    sum & 0xff
}

/// For each lane, bit `i` of the result is 1 if lane `i` is zero.
#[inline(always)]
pub(super) fn zero_lanes(mut lanes: u64) -> u64 {
    for shift in [4, 2, 1] {
        lanes |= lanes >> shift;
    }
    // Bits from neighboring lanes move in from above, but never reach a lane's lowest bit: 4 + 2 + 1 < 8.
    let zero = !lanes & LOW_BITS;
    // Lane i's flag, bit 8i, is added at bit 56 + i; all other partial products fall on distinct lower or
    // lost bits.
    zero.wrapping_mul(0x0102_0408_1020_4080) >> 56
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product_by_logarithm(field: &Field, a: u8, b: u8) -> u8 {
        let log = |x: u8| (0..field.order()).find(|&i| field.power(i) == x).unwrap();
        if a == 0 || b == 0 {
            0
        } else {
            field.power(log(a) + log(b))
        }
    }

    fn all_products_agree<const M: u32>() {
        let field = Field::new(M).unwrap();
        for a in 0..=u8::try_from(field.order()).unwrap() {
            for b0 in (0..=field.order()).step_by(8) {
                let b: [u8; 8] = std::array::from_fn(|i| u8::try_from(b0 + i).unwrap());
                let lanes = mul_lanes::<M, 1>([broadcast(a.into())], [u64::from_le_bytes(b)]);
                let expected = b.map(|b| product_by_logarithm(&field, a, b));
                assert_eq!(lanes[0].to_le_bytes(), expected, "{a} times {b:?}");
            }
        }
    }

    #[test]
    fn lane_products_agree_with_logarithms_for_all_operands() {
        all_products_agree::<7>();
        all_products_agree::<8>();
    }

    #[test]
    fn powers_reach_every_nonzero_element() {
        for degree in [7, 8] {
            let field = Field::new(degree).unwrap();
            let mut seen: Vec<u8> = (0..field.order()).map(|i| field.power(i)).collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), field.order());
            assert!(!seen.contains(&0));
        }
        assert!(Field::new(9).is_none());
    }

    #[test]
    fn zero_lanes_are_found() {
        for pattern in 0..=255_u64 {
            for filler in [0x01_u8, 0x80, 0xff, 0x10] {
                let bytes: [u8; 8] = std::array::from_fn(|i| if pattern >> i & 1 == 1 { 0 } else { filler });
                assert_eq!(zero_lanes(u64::from_le_bytes(bytes)), pattern);
            }
        }
    }
}
