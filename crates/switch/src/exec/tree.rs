//! Evaluation of expression trees with arbitrary-precision integers, for wide and rare expressions.

use std::borrow::Cow;

use num_bigint::{BigInt, BigUint, Sign};
use num_traits::{One, Signed, ToPrimitive, Zero};

use super::bits::{self, load1, load2, load4, store1, store2, store4};
use super::machine::Machine;
use crate::layout::{FieldLayout, HeaderLayout};
use crate::program::expr::{Binary, Bool, Cast, Compare, Data, HeaderExpr, UnionExpr};
use crate::program::ids::{HeaderId, RegisterId, StackId, UnionId};

/// Left shifts by more bits give 0: no field is that wide.
const SHIFT_MAX: u32 = 1 << 17;

impl Machine<'_> {
    /// Layout of a header.
    pub(super) fn header_layout(&self, header: HeaderId) -> Option<&HeaderLayout> {
        // The layout outlives the machine, but the result borrows `self`. Code that changes the machine while it uses
        // the layout takes the layout from `environment` instead.
        self.environment.executable.layout.headers.get(header.index())
    }

    pub(super) fn is_valid(&self, header: HeaderId) -> bool {
        self.header_layout(header)
            .is_some_and(|layout| layout.metadata || load1(&self.context.arena, layout.valid) != 0)
    }

    /// Current width of a variable-length field, bits.
    pub(super) fn variable_bits(&self, header: HeaderId) -> u32 {
        let variable = self.header_layout(header).and_then(|layout| layout.variable);
        variable.map_or(0, |variable| {
            load4(&self.context.arena, variable.length).min(variable.bits_max)
        })
    }

    /// Current wire length of a header, bytes.
    pub(super) fn header_bytes(&self, header: HeaderId) -> u32 {
        self.header_layout(header).map_or(0, |layout| layout.bytes) + self.variable_bits(header) / 8
    }

    /// Bits of a field as an unsigned number.
    pub(super) fn field_bits(&self, header: HeaderId, layout: FieldLayout) -> BigUint {
        let arena = &self.context.arena;
        if layout.variable {
            let bits = self.variable_bits(header) as usize;
            let start = layout.start() as usize * 8;
            return BigUint::from_bytes_be(&bits::read(arena, start, bits));
        }
        let start = layout.end as usize * 8 - usize::from(layout.shift) - layout.bits as usize;
        BigUint::from_bytes_be(&bits::read(arena, start, layout.bits as usize))
    }

    /// Value of a field; 0 if the field does not exist.
    pub(super) fn field(&self, header: HeaderId, field: u32) -> BigInt {
        let Some(layout) = self
            .header_layout(header)
            .and_then(|layout| layout.fields.get(field as usize))
            .copied()
        else {
            return BigInt::zero();
        };
        let value = BigInt::from(self.field_bits(header, layout));
        if layout.signed && value.bit(u64::from(layout.bits) - 1) {
            return value - (BigInt::one() << layout.bits);
        }
        value
    }

    /// Stores a value in a field: wrapped to its width, or saturated.
    pub(super) fn set_field(&mut self, header: HeaderId, field: u32, value: &BigInt) {
        let Some(layout) = self
            .header_layout(header)
            .and_then(|layout| layout.fields.get(field as usize))
            .copied()
        else {
            return;
        };
        let width = if layout.variable {
            self.variable_bits(header)
        } else {
            layout.bits
        };
        let start = match layout.variable {
            true => layout.start() as usize * 8,
            false => layout.end as usize * 8 - usize::from(layout.shift) - layout.bits as usize,
        };
        let mut value = Cow::Borrowed(value);
        if layout.saturating {
            value = Cow::Owned(saturate(&value, layout.bits, layout.signed));
        }
        if value.is_negative() {
            value = Cow::Owned(&*value & ((BigInt::one() << width) - 1));
        }
        bits::write_number(&mut self.context.arena, start, width as usize, value.magnitude());
    }

    /// Returns the header of an expression; `None` if the element is outside of the stack.
    pub(super) fn header(&mut self, expression: &HeaderExpr) -> Option<HeaderId> {
        match expression {
            HeaderExpr::Header(header) => Some(*header),
            HeaderExpr::Element(stack, index) => {
                let index = self.data(index).to_usize()?;
                self.environment
                    .executable
                    .program
                    .stacks
                    .get(stack.index())?
                    .headers
                    .get(index)
                    .copied()
            }
            HeaderExpr::Member(union, member) => {
                let union = self.union(union)?;
                let headers = &self
                    .environment
                    .executable
                    .program
                    .unions
                    .get(union.index())?
                    .headers;
                headers.get(*member as usize).copied()
            }
            HeaderExpr::Last(stack) => self.last(*stack),
        }
    }

    pub(super) fn union(&mut self, expression: &UnionExpr) -> Option<UnionId> {
        match expression {
            UnionExpr::Union(union) => Some(*union),
            UnionExpr::Element(stack, index) => {
                let index = self.data(index).to_usize()?;
                self.environment
                    .executable
                    .program
                    .union_stacks
                    .get(stack.index())?
                    .unions
                    .get(index)
                    .copied()
            }
        }
    }

    /// Last element of a stack.
    pub(super) fn last(&self, stack: StackId) -> Option<HeaderId> {
        let count = usize::from(self.stack_count(stack));
        let headers = &self
            .environment
            .executable
            .program
            .stacks
            .get(stack.index())?
            .headers;
        headers.get(count.checked_sub(1)?).copied()
    }

    pub(super) fn stack_count(&self, stack: StackId) -> u16 {
        let offset = self.environment.executable.layout.stack(stack);
        offset.map_or(0, |offset| load2(&self.context.arena, offset))
    }

    pub(super) fn set_stack_count(&mut self, stack: StackId, count: u16) {
        if let Some(offset) = self.environment.executable.layout.stack(stack) {
            store2(&mut self.context.arena, offset, count);
        }
    }

    /// Sets the validity of a header; a valid member of a union invalidates the other members.
    pub(super) fn set_valid(&mut self, header: HeaderId, valid: bool) {
        let executable = self.environment.executable;
        let Some(layout) = executable.layout.headers.get(header.index()) else {
            return;
        };
        if layout.metadata {
            return;
        }
        store1(&mut self.context.arena, layout.valid, u8::from(valid));
        let Some(union) = layout.union.filter(|_| valid) else {
            return;
        };
        let members = executable
            .program
            .unions
            .get(union.index())
            .map_or(&[][..], |union| union.headers.as_slice());
        for member in members.iter().filter(|member| **member != header) {
            if let Some(layout) = executable.layout.headers.get(member.index()) {
                store1(&mut self.context.arena, layout.valid, 0);
            }
        }
    }

    pub(super) fn set_variable_bits(&mut self, header: HeaderId, count: u32) {
        if let Some(variable) = self.header_layout(header).and_then(|layout| layout.variable) {
            store4(
                &mut self.context.arena,
                variable.length,
                count.min(variable.bits_max),
            );
        }
    }

    /// Value of a register cell; 0 if the cell does not exist.
    fn register(&mut self, id: RegisterId, index: &BigInt) -> BigInt {
        let Some(index) = index.to_u64() else {
            return BigInt::zero();
        };
        if let Some((_, array)) = self.locked_registers.iter().find(|(locked, _)| *locked == id) {
            return BigInt::from(array.get(index).unwrap_or_default());
        }
        let array = self.environment.externs.registers(id);
        BigInt::from(array.and_then(|array| array.get(index)).unwrap_or_default())
    }

    /// Argument of the running action.
    fn argument(&self, index: u32) -> BigInt {
        let Some((start, bytes)) = self.arg_layout.get(index as usize).copied() else {
            return BigInt::zero();
        };
        let range = start as usize..start as usize + bytes as usize;
        BigInt::from_bytes_be(Sign::Plus, self.args.get(range).unwrap_or(&[]))
    }

    /// Evaluates an integer expression.
    pub(super) fn data(&mut self, expression: &Data) -> BigInt {
        match expression {
            Data::Const(value) => value.clone(),
            Data::Field(field) => self.field(field.header, field.field),
            Data::StackLast(stack, field) => match self.last(*stack) {
                Some(header) => self.field(header, *field),
                None => BigInt::zero(),
            },
            Data::Access(header, field) => match self.header(header) {
                Some(header) => self.field(header, *field),
                None => BigInt::zero(),
            },
            Data::Param(index) => self.argument(*index),
            Data::Register(register, index) => {
                let index = self.data(index);
                self.register(*register, &index)
            }
            Data::Binary(op, left, right) => {
                let (left, right) = (self.data(left), self.data(right));
                binary(*op, left, &right)
            }
            Data::Not(value) => !self.data(value),
            Data::Cast(cast, value, width) => {
                let value = self.data(value);
                match cast {
                    Cast::TwoCompMod => two_comp_mod(value, *width),
                    Cast::Saturate => saturate(&value, *width, true),
                    Cast::SaturateUnsigned => saturate(&value, *width, false),
                }
            }
            Data::FromBool(condition) => BigInt::from(u8::from(self.condition(condition))),
            Data::LastIndex(stack) => BigInt::from(self.stack_count(*stack)) - 1,
            Data::Size(stack) => BigInt::from(self.stack_count(*stack)),
            Data::Select(condition, left, right) => match self.condition(condition) {
                true => self.data(left),
                false => self.data(right),
            },
        }
    }

    /// Evaluates a condition.
    pub(super) fn condition(&mut self, expression: &Bool) -> bool {
        match expression {
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
            Bool::HeaderEq(left, right) => match (self.header(left), self.header(right)) {
                (Some(left), Some(right)) => self.headers_equal(left, right),
                _ => false,
            },
            Bool::UnionEq(left, right) => match (self.union(left), self.union(right)) {
                (Some(left), Some(right)) => self.unions_equal(left, right),
                _ => false,
            },
            Bool::Eq(left, right) => self.condition(left) == self.condition(right),
            Bool::And(left, right) => self.condition(left) && self.condition(right),
            Bool::Or(left, right) => self.condition(left) || self.condition(right),
            Bool::Not(inner) => !self.condition(inner),
            Bool::Valid(header) => self.header(header).is_some_and(|header| self.is_valid(header)),
            Bool::ValidUnion(union) => match self.union(union) {
                Some(union) => self.valid_member(union).is_some(),
                None => false,
            },
            Bool::FromData(data) => !self.data(data).is_zero(),
            Bool::Select(condition, left, right) => match self.condition(condition) {
                true => self.condition(left),
                false => self.condition(right),
            },
        }
    }

    /// Index of the valid member of a union.
    pub(super) fn valid_member(&self, union: UnionId) -> Option<usize> {
        let headers = &self
            .environment
            .executable
            .program
            .unions
            .get(union.index())?
            .headers;
        headers.iter().position(|header| self.is_valid(*header))
    }

    fn unions_equal(&self, left: UnionId, right: UnionId) -> bool {
        let (Some(a), Some(b)) = (self.valid_member(left), self.valid_member(right)) else {
            return false;
        };
        let header = |union: UnionId, index: usize| {
            let union = self.environment.executable.program.unions.get(union.index())?;
            union.headers.get(index).copied()
        };
        match (header(left, a), header(right, b)) {
            (Some(left), Some(right)) => a == b && self.headers_equal(left, right),
            _ => false,
        }
    }

    fn headers_equal(&self, left: HeaderId, right: HeaderId) -> bool {
        let program = &self.environment.executable.program;
        let same_type = match (
            program.headers.get(left.index()),
            program.headers.get(right.index()),
        ) {
            (Some(left), Some(right)) => left.header_type == right.header_type,
            _ => false,
        };
        if !(same_type && self.is_valid(left) && self.is_valid(right)) {
            return false;
        }
        let fields = program
            .type_of(left)
            .map_or(0, |header_type| header_type.fields.len());
        (0u32..)
            .take(fields)
            .all(|field| self.field(left, field) == self.field(right, field))
    }
}

fn binary(op: Binary, left: BigInt, right: &BigInt) -> BigInt {
    match op {
        Binary::Add => left + right,
        Binary::Sub => left - right,
        Binary::Mul => left * right,
        Binary::Div | Binary::Mod if left.is_negative() || !right.is_positive() => BigInt::zero(),
        Binary::Div => left / right,
        Binary::Mod => left % right,
        Binary::And => left & right,
        Binary::Or => left | right,
        Binary::Xor => left ^ right,
        Binary::Shl | Binary::Shr if right.is_negative() => BigInt::zero(),
        Binary::Shl => match right.to_u32().filter(|shift| *shift <= SHIFT_MAX) {
            Some(shift) => left << shift,
            None => BigInt::zero(),
        },
        // Rounds toward negative infinity.
        Binary::Shr => match right.to_u32() {
            Some(shift) => left >> shift,
            None if left.is_negative() => BigInt::from(-1),
            None => BigInt::zero(),
        },
    }
}

fn two_comp_mod(value: BigInt, width: u32) -> BigInt {
    let modulus = BigInt::one() << width;
    let wrapped: BigInt = value & (&modulus - 1);
    if wrapped.bit(u64::from(width) - 1) {
        wrapped - modulus
    } else {
        wrapped
    }
}

fn saturate(value: &BigInt, width: u32, signed: bool) -> BigInt {
    let (low, high) = match signed {
        true => (
            -(BigInt::one() << (width - 1)),
            (BigInt::one() << (width - 1)) - 1,
        ),
        false => (BigInt::zero(), (BigInt::one() << width) - 1),
    };
    value.clone().clamp(low, high)
}
