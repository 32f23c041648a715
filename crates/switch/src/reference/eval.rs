//! Evaluation of expressions.

use num_bigint::BigInt;
use num_traits::{One, Signed, ToPrimitive, Zero};

use super::number;
use super::state::Headers;
use crate::externs::Externs;
use crate::program::expr::{Binary, Bool, Cast, Compare, Data, HeaderExpr, UnionExpr};
use crate::program::ids::{HeaderId, RegisterId, UnionId};

/// Maximum left shift, bits. A larger shift gives 0: no field is wider.
pub const SHIFT_MAX_BITS: u32 = 1 << 16;

/// Scope of an expression.
#[derive(Clone, Copy)]
pub struct Scope<'s, 'p> {
    /// Headers of the packet.
    pub headers: &'s Headers<'p>,
    /// Externs.
    pub externs: &'s Externs,
    /// Arguments of the action; in a header's length expression, the fields of the header.
    pub args: &'s [BigInt],
}

impl Scope<'_, '_> {
    /// Evaluates an integer expression.
    pub fn data(&self, data: &Data) -> BigInt {
        match data {
            Data::Const(value) => value.clone(),
            Data::Field(field) => self.headers.field(*field),
            Data::StackLast(stack, field) => self.headers.read(self.headers.last(*stack), *field),
            Data::Access(header, field) => self.headers.read(self.header(header), *field),
            Data::Param(index) => self.args.get(*index as usize).cloned().unwrap_or_default(),
            Data::Register(register, index) => {
                register_cell(self.externs, *register, &self.data(index)).unwrap_or_default()
            }
            Data::Binary(binary, left, right) => binary_of(*binary, &self.data(left), &self.data(right)),
            Data::Not(value) => -self.data(value) - BigInt::one(),
            Data::Cast(cast, value, bits) => cast_of(*cast, &self.data(value), *bits),
            Data::FromBool(condition) => BigInt::from(u8::from(self.bool(condition))),
            Data::LastIndex(stack) => BigInt::from(self.headers.count(*stack)) - 1,
            Data::Size(stack) => BigInt::from(self.headers.count(*stack)),
            Data::Select(condition, left, right) => match self.bool(condition) {
                true => self.data(left),
                false => self.data(right),
            },
        }
    }

    /// Evaluates a condition.
    pub fn bool(&self, condition: &Bool) -> bool {
        match condition {
            Bool::Const(value) => *value,
            Bool::Compare(compare, left, right) => {
                let (left, right) = (self.data(left), self.data(right));
                match compare {
                    Compare::Eq => left == right,
                    Compare::Ne => left != right,
                    Compare::Lt => left < right,
                    Compare::Le => left <= right,
                    Compare::Gt => left > right,
                    Compare::Ge => left >= right,
                }
            }
            Bool::HeaderEq(left, right) => self.headers.header_eq(self.header(left), self.header(right)),
            Bool::UnionEq(left, right) => self.headers.union_eq(self.union(left), self.union(right)),
            Bool::Eq(left, right) => self.bool(left) == self.bool(right),
            Bool::And(left, right) => self.bool(left) && self.bool(right),
            Bool::Or(left, right) => self.bool(left) || self.bool(right),
            Bool::Not(value) => !self.bool(value),
            Bool::Valid(header) => self.headers.is_valid(self.header(header)),
            Bool::ValidUnion(union) => self.headers.valid_member(self.union(union)).is_some(),
            Bool::FromData(value) => !self.data(value).is_zero(),
            Bool::Select(condition, left, right) => match self.bool(condition) {
                true => self.bool(left),
                false => self.bool(right),
            },
        }
    }

    /// Resolves a header; `None` if the element is outside of the stack.
    pub fn header(&self, header: &HeaderExpr) -> Option<HeaderId> {
        match header {
            HeaderExpr::Header(header) => Some(*header),
            HeaderExpr::Element(stack, index) => self.headers.element(*stack, self.data(index).to_usize()?),
            HeaderExpr::Member(union, member) => self.headers.member(self.union(union), *member),
            HeaderExpr::Last(stack) => self.headers.last(*stack),
        }
    }

    /// Resolves a union; `None` if the element is outside of the stack.
    pub fn union(&self, union: &UnionExpr) -> Option<UnionId> {
        match union {
            UnionExpr::Union(union) => Some(*union),
            UnionExpr::Element(stack, index) => {
                self.headers.union_element(*stack, self.data(index).to_usize()?)
            }
        }
    }
}

/// Value of a register cell; `None` if the cell does not exist.
pub fn register_cell(externs: &Externs, register: RegisterId, index: &BigInt) -> Option<BigInt> {
    let cell = externs.registers(register)?.get(index.to_u64()?)?;
    Some(BigInt::from(cell))
}

fn binary_of(binary: Binary, left: &BigInt, right: &BigInt) -> BigInt {
    match binary {
        Binary::Add => left + right,
        Binary::Sub => left - right,
        Binary::Mul => left * right,
        Binary::Div => number::divide(left, right).map_or_else(BigInt::zero, |(quotient, _)| quotient),
        Binary::Mod => number::divide(left, right).map_or_else(BigInt::zero, |(_, remainder)| remainder),
        Binary::And => left & right,
        Binary::Or => left | right,
        Binary::Xor => left ^ right,
        Binary::Shl => match right.to_u32() {
            Some(shift) if shift <= SHIFT_MAX_BITS => left << shift,
            _ => BigInt::zero(),
        },
        Binary::Shr if right.is_negative() => BigInt::zero(),
        Binary::Shr => match right.to_u64() {
            Some(shift) => left >> shift,
            None if left.is_negative() => -BigInt::one(),
            None => BigInt::zero(),
        },
    }
}

fn cast_of(cast: Cast, value: &BigInt, bits: u32) -> BigInt {
    let signed = match cast {
        Cast::TwoCompMod => return number::wrap_signed(value, bits),
        Cast::Saturate => true,
        Cast::SaturateUnsigned => false,
    };
    let (low, high) = number::range(bits, signed);
    number::clamp(value, low, high)
}
