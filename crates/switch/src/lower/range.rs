//! Value ranges of expressions: proof that an expression can be computed in 64 or 128 bits.

use num_bigint::BigInt;
use num_traits::{One, Signed, ToPrimitive, Zero};

use crate::program::Program;
use crate::program::expr::{Binary, Cast, Data};
use crate::program::ids::FieldRef;

/// All integers from `low` to `high`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    pub low: BigInt,
    pub high: BigInt,
}

/// Maximum left shift with a known range, bits. Larger shifts are evaluated with arbitrary-precision integers.
const SHIFT_MAX: u32 = 256;

impl Range {
    pub fn unsigned(bits: u32) -> Self {
        Self {
            low: BigInt::zero(),
            high: (BigInt::one() << bits) - 1,
        }
    }

    pub fn signed(bits: u32) -> Self {
        let half = BigInt::one() << (bits.max(1) - 1);
        Self {
            low: -half.clone(),
            high: half - 1,
        }
    }

    pub fn single(value: BigInt) -> Self {
        Self {
            low: value.clone(),
            high: value,
        }
    }

    pub fn is_negative(&self) -> bool {
        self.low.is_negative()
    }

    /// Whether all values fit in this number of bits, unsigned or signed.
    pub fn fits(&self, bits: u32) -> bool {
        self.within(&Self::unsigned(bits)) || self.within(&Self::signed(bits))
    }

    pub fn within(&self, other: &Self) -> bool {
        self.low >= other.low && self.high <= other.high
    }

    pub fn join(&self, other: &Self) -> Self {
        Self {
            low: self.low.clone().min(other.low.clone()),
            high: self.high.clone().max(other.high.clone()),
        }
    }

    fn corners(&self, other: &Self, op: impl Fn(&BigInt, &BigInt) -> BigInt) -> Self {
        let values = [
            op(&self.low, &other.low),
            op(&self.low, &other.high),
            op(&self.high, &other.low),
            op(&self.high, &other.high),
        ];
        let mut range = Self::single(values[0].clone());
        for value in values {
            range = range.join(&Self::single(value));
        }
        range
    }
}

/// Returns the number of bits of the largest absolute value.
fn magnitude(range: &Range) -> u32 {
    let bits = range.low.bits().max(range.high.bits());
    u32::try_from(bits).unwrap_or(u32::MAX)
}

/// Range of a field.
pub fn of_field(program: &Program, field: FieldRef) -> Range {
    match program.field(field) {
        Some(field) if field.signed => Range::signed(field.bits),
        Some(field) => Range::unsigned(field.bits),
        None => Range::unsigned(1),
    }
}

/// Returns the range of an expression; `None` if no useful bound is known. `param_bits` are the widths of
/// the action's parameters.
pub fn of(program: &Program, param_bits: &[u32], data: &Data) -> Option<Range> {
    let of = |data: &Data| of(program, param_bits, data);
    Some(match data {
        Data::Const(value) => Range::single(value.clone()),
        Data::Field(field) => of_field(program, *field),
        Data::StackLast(stack, field) => {
            let header = *program.stacks.get(stack.index())?.headers.first()?;
            of_field(
                program,
                FieldRef {
                    header,
                    field: *field,
                },
            )
        }
        Data::Access(header, field) => {
            let header = super::access::representative_header(program, header)?;
            of_field(
                program,
                FieldRef {
                    header,
                    field: *field,
                },
            )
        }
        Data::Param(index) => Range::unsigned(*param_bits.get(*index as usize)?),
        Data::Register(register, _) => Range::unsigned(program.registers.get(register.index())?.bits),
        Data::Binary(op, left, right) => binary(*op, &of(left)?, &of(right)?)?,
        Data::Not(value) => {
            let range = of(value)?;
            Range {
                low: -range.high - 1,
                high: -range.low - 1,
            }
        }
        Data::Cast(cast, value, bits) => {
            let target = match cast {
                Cast::TwoCompMod | Cast::Saturate => Range::signed(*bits),
                Cast::SaturateUnsigned => Range::unsigned(*bits),
            };
            // A value that needs no cast keeps its range, which determines how the value is widened.
            match of(value) {
                Some(range) if range.within(&target) => range,
                _ => target,
            }
        }
        Data::FromBool(_) => Range::unsigned(1),
        Data::LastIndex(_) => Range {
            low: BigInt::from(-1),
            high: BigInt::from(u16::MAX),
        },
        Data::Size(_) => Range::unsigned(16),
        Data::Select(_, left, right) => of(left)?.join(&of(right)?),
    })
}

fn binary(op: Binary, left: &Range, right: &Range) -> Option<Range> {
    Some(match op {
        Binary::Add => Range {
            low: &left.low + &right.low,
            high: &left.high + &right.high,
        },
        Binary::Sub => Range {
            low: &left.low - &right.high,
            high: &left.high - &right.low,
        },
        Binary::Mul => left.corners(right, |a, b| a * b),
        // A negative operand gives 0.
        Binary::Div | Binary::Mod => {
            let high = if op == Binary::Div {
                left.high.clone()
            } else {
                left.high.clone().min(right.high.clone())
            };
            Range {
                low: BigInt::zero(),
                high: high.max(BigInt::zero()),
            }
        }
        Binary::And => and(left, right),
        Binary::Or | Binary::Xor => {
            let bits = magnitude(left).max(magnitude(right));
            match left.is_negative() || right.is_negative() {
                true => Range::signed(bits + 1),
                false => Range::unsigned(bits),
            }
        }
        Binary::Shl => {
            let shift_max = right.high.to_u32().filter(|bits| *bits <= SHIFT_MAX)?;
            let high = (&left.high << shift_max).max(BigInt::zero());
            Range {
                low: (&left.low << shift_max).min(BigInt::zero()),
                high,
            }
        }
        Binary::Shr => Range {
            low: left.low.clone().min(BigInt::zero()),
            high: left.high.clone().max(BigInt::zero()),
        },
    })
}

fn and(left: &Range, right: &Range) -> Range {
    match (left.is_negative(), right.is_negative()) {
        (false, false) => Range {
            low: BigInt::zero(),
            high: left.high.clone().min(right.high.clone()),
        },
        // With a non-negative operand the result is between 0 and the operand.
        (false, true) => Range {
            low: BigInt::zero(),
            high: left.high.clone(),
        },
        (true, false) => Range {
            low: BigInt::zero(),
            high: right.high.clone(),
        },
        (true, true) => Range::signed(magnitude(left).max(magnitude(right)) + 1),
    }
}
