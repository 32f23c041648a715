//! Lowering of expressions to 64 and 128 bits.
//!
//! An expression is lowered for its exact value, or only for its low bits if a mask or field discards the high bits. The
//! low bits of sums, differences, products, left shifts and bitwise operations depend only on the operands' low
//! bits. Right shifts, quotients, comparisons and saturation need exact operands.

use num_bigint::BigInt;
use num_traits::{One, Signed, ToPrimitive};

use super::access;
use super::builder::{Builder, LowerError};
use super::range::{self, Range};
use crate::executable::number::low_bits;
use crate::executable::op::{Alu, Op, R, W};
use crate::layout::FieldLayout;
use crate::program::expr::{Binary, Cast, Data};
use crate::program::ids::FieldRef;

/// Required precision of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Exact value.
    Exact,
    /// Number of low bits.
    Low(u32),
}

/// Register of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reg {
    /// 64 bits.
    Narrow(R),
    /// 128 bits.
    Wide(W),
}

/// Register width of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    Narrow,
    Wide,
}

impl Lane {
    const fn bits(self) -> u32 {
        match self {
            Self::Narrow => 64,
            Self::Wide => 128,
        }
    }
}

type LowerResult<T> = Result<Option<T>, LowerError>;

impl Builder<'_> {
    pub fn range(&self, data: &Data) -> Option<Range> {
        range::of(self.program, &self.params, data)
    }

    /// Narrowest suitable lane; `None` if arbitrary precision is required.
    pub fn lane(&self, data: &Data, precision: Precision) -> Option<Lane> {
        let range = self.range(data);
        let fits = |bits| range.as_ref().is_some_and(|range| range.fits(bits));
        let low = |bits| matches!(precision, Precision::Low(low_bits) if low_bits <= bits);
        if fits(64) || low(64) {
            Some(Lane::Narrow)
        } else if fits(128) || low(128) {
            Some(Lane::Wide)
        } else {
            None
        }
    }

    /// Emits a value in 64 bits; `None` if not possible.
    pub fn narrow(&mut self, data: &Data, precision: Precision) -> LowerResult<R> {
        match self.value(data, precision)? {
            Some(Reg::Narrow(r)) => Ok(Some(r)),
            Some(Reg::Wide(a)) if matches!(precision, Precision::Low(bits) if bits <= 64) => {
                let r = self.alloc_r()?;
                self.emit(Op::Narrow { r, a });
                Ok(Some(r))
            }
            _ => Ok(None),
        }
    }

    /// Emits a value in 128 bits; `None` if not possible.
    pub fn wide_value(&mut self, data: &Data, precision: Precision) -> LowerResult<W> {
        let signed = self.range(data).is_some_and(|range| range.is_negative());
        match self.value(data, precision)? {
            Some(Reg::Wide(w)) => Ok(Some(w)),
            Some(Reg::Narrow(a)) => {
                let w = self.alloc_w()?;
                self.emit(Op::Widen { w, a, signed });
                Ok(Some(w))
            }
            None => Ok(None),
        }
    }

    fn in_lane(&mut self, data: &Data, precision: Precision, lane: Lane) -> LowerResult<Reg> {
        Ok(match lane {
            Lane::Narrow => self.narrow(data, precision)?.map(Reg::Narrow),
            Lane::Wide => self.wide_value(data, precision)?.map(Reg::Wide),
        })
    }

    /// Emits a value in the narrowest suitable lane; `None` if arbitrary precision is required.
    pub fn value(&mut self, data: &Data, precision: Precision) -> LowerResult<Reg> {
        let Some(lane) = self.lane(data, precision) else {
            return Ok(None);
        };
        let reg = match data {
            Data::Const(value) => Some(self.constant(value, lane)?),
            Data::Field(field) => self.field(*field, precision)?,
            Data::Access(header, field) => match access::static_header(self.program, header) {
                Some(header) => self.field(
                    FieldRef {
                        header,
                        field: *field,
                    },
                    precision,
                )?,
                None => None,
            },
            Data::Param(index) => self.param(*index)?,
            Data::Size(stack) => self.count(self.layout.stack(*stack))?,
            Data::LastIndex(stack) => match self.count(self.layout.stack(*stack))? {
                Some(Reg::Narrow(r)) => {
                    self.emit(Op::AluConst {
                        op: Alu::Sub,
                        r,
                        a: r,
                        value: 1,
                    });
                    Some(Reg::Narrow(r))
                }
                other => other,
            },
            Data::Binary(op, left, right) => self.binary(*op, left, right, precision, lane)?,
            Data::Not(value) => self.complement(value, precision, lane)?,
            Data::Cast(cast, value, bits) => self.cast(*cast, value, *bits)?,
            Data::FromBool(condition) => Some(self.bool_value(condition)?),
            Data::Select(condition, left, right) => self.select(condition, left, right, precision, lane)?,
            Data::StackLast(..) | Data::Register(..) => None,
        };
        if reg.is_some() {
            return Ok(reg);
        }
        // Only the rare part becomes a tree; the surrounding expression stays fast.
        if lane == Lane::Narrow && self.range(data).is_some() {
            let r = self.alloc_r()?;
            let expression = self.expression(data)?;
            self.emit(Op::Tree { r, expression });
            return Ok(Some(Reg::Narrow(r)));
        }
        Ok(None)
    }

    fn constant(&mut self, value: &BigInt, lane: Lane) -> Result<Reg, LowerError> {
        let bits = low_bits(value);
        Ok(match lane {
            Lane::Narrow => {
                let r = self.alloc_r()?;
                // This lane holds only the low 64 bits.
                self.emit(Op::Const {
                    r,
                    value: bits as u64,
                });
                Reg::Narrow(r)
            }
            Lane::Wide => {
                let w = self.alloc_w()?;
                let constant = self.wide_constant(bits)?;
                self.emit(Op::WideConst { w, constant });
                Reg::Wide(w)
            }
        })
    }

    fn count(&mut self, at: Option<u32>) -> LowerResult<Reg> {
        let Some(at) = at else { return Ok(None) };
        let r = self.alloc_r()?;
        self.emit(Op::Load2 { r, at });
        Ok(Some(Reg::Narrow(r)))
    }

    fn field(&mut self, field: FieldRef, precision: Precision) -> LowerResult<Reg> {
        let Some(mut layout) = self.layout.field(field).filter(|layout| !layout.variable) else {
            return Ok(None);
        };
        if let Precision::Low(bits) = precision
            && bits < layout.bits
        {
            layout.bits = bits;
            layout.signed = false;
        }
        self.load(layout)
    }

    /// Emits a load of a field; `None` if the field is too wide.
    pub fn load(&mut self, field: FieldLayout) -> LowerResult<Reg> {
        let bits = field.bits;
        let span = bits + u32::from(field.shift);
        if span <= 64 {
            let r = self.alloc_r()?;
            self.emit(narrow_load(r, field));
            if field.signed && bits < 64 {
                self.emit(Op::SignExtend { r, bits: bits as u8 });
            }
            return Ok(Some(Reg::Narrow(r)));
        }
        if span > 128 {
            return Ok(None);
        }
        let w = self.alloc_w()?;
        self.emit(Op::WideLoad {
            w,
            at: field.end - 16,
            shift: field.shift,
            bits: bits as u8,
        });
        if field.signed && bits < 128 {
            self.emit(Op::WideSignExtend { w, bits: bits as u8 });
        }
        if bits <= 64 {
            let r = self.alloc_r()?;
            self.emit(Op::Narrow { r, a: w });
            return Ok(Some(Reg::Narrow(r)));
        }
        Ok(Some(Reg::Wide(w)))
    }

    fn param(&mut self, index: u32) -> LowerResult<Reg> {
        let index = index as usize;
        let (Some(bits), Some(offset)) = (self.params.get(index), self.args.get(index)) else {
            return Ok(None);
        };
        let (bits, offset) = (*bits, *offset);
        if bits <= 64 {
            let r = self.alloc_r()?;
            self.emit(Op::Arg { r, at: offset });
            return Ok(Some(Reg::Narrow(r)));
        }
        if bits > 128 {
            return Ok(None);
        }
        let w = self.alloc_w()?;
        self.emit(Op::WideArg {
            w,
            at: offset,
            bytes: bits.div_ceil(8) as u8,
        });
        Ok(Some(Reg::Wide(w)))
    }

    fn binary(
        &mut self,
        op: Binary,
        left: &Data,
        right: &Data,
        precision: Precision,
        lane: Lane,
    ) -> LowerResult<Reg> {
        // A masked value is lowered at most once: a second attempt would double the work at each level of a deep
        // expression.
        if op == Binary::And
            && let Some((value, mask)) = mask_of(left, right, lane)
        {
            return self.masked(value, mask, lane);
        }
        match op {
            Binary::Add | Binary::Sub | Binary::Mul | Binary::And | Binary::Or | Binary::Xor => {
                let alu = match op {
                    Binary::Add => Alu::Add,
                    Binary::Sub => Alu::Sub,
                    Binary::Mul => Alu::Mul,
                    Binary::And => Alu::And,
                    Binary::Or => Alu::Or,
                    _ => Alu::Xor,
                };
                // The lane holds the result, or only low bits are required: in both cases the low bits of the operands
                // suffice.
                let bits = match precision {
                    Precision::Low(bits) if bits <= lane.bits() => bits.max(1),
                    _ => lane.bits(),
                };
                let fits = self.range_fits(op, left, right, lane);
                let bits = if fits { lane.bits() } else { bits };
                self.alu(alu, left, Precision::Low(bits), right, Precision::Low(bits), lane)
            }
            Binary::Shl => self.shift_left(left, right, precision, lane),
            Binary::Shr => self.shift_right(left, right),
            Binary::Div | Binary::Mod => {
                let alu = if op == Binary::Div { Alu::Div } else { Alu::Mod };
                let (Some(a), Some(b)) = (self.range(left), self.range(right)) else {
                    return Ok(None);
                };
                if a.is_negative() || b.is_negative() {
                    return Ok(None);
                }
                let Some(lane) = lane_of(&a.join(&b)) else {
                    return Ok(None);
                };
                self.alu(alu, left, Precision::Exact, right, Precision::Exact, lane)
            }
        }
    }

    fn range_fits(&self, op: Binary, left: &Data, right: &Data, lane: Lane) -> bool {
        let result = Data::Binary(op, Box::new(left.clone()), Box::new(right.clone()));
        self.range(&result).is_some_and(|range| range.fits(lane.bits()))
    }

    /// Emits `value & mask` for a constant mask: bits of the value above the highest bit of the mask do not matter.
    fn masked(&mut self, value: &Data, mask: &BigInt, lane: Lane) -> LowerResult<Reg> {
        let bits = u32::try_from(mask.bits()).unwrap_or(u32::MAX);
        if bits == 0 {
            return Ok(Some(self.constant(mask, lane)?));
        }
        let all_ones = mask == &((BigInt::one() << bits) - 1);
        if all_ones
            && self
                .range(value)
                .is_some_and(|range| range.within(&Range::unsigned(bits)))
        {
            return self.in_lane(value, Precision::Low(bits), lane);
        }
        if all_ones
            && lane == Lane::Narrow
            && let Data::Binary(Binary::Add, sum, add) = value
            && let Data::Const(add) = add.as_ref()
        {
            let Some(a) = self.narrow(sum, Precision::Low(bits))? else {
                return Ok(None);
            };
            let r = self.alloc_r()?;
            self.emit(Op::AddMasked {
                r,
                a,
                bits: bits as u8,
                value: low_bits(add) as u64,
            });
            return Ok(Some(Reg::Narrow(r)));
        }
        self.alu(
            Alu::And,
            value,
            Precision::Low(bits),
            &Data::Const(mask.clone()),
            Precision::Exact,
            lane,
        )
    }

    /// Emits an operation on two values of a lane.
    fn alu(
        &mut self,
        op: Alu,
        left: &Data,
        left_precision: Precision,
        right: &Data,
        right_precision: Precision,
        lane: Lane,
    ) -> LowerResult<Reg> {
        let Some(a) = self.in_lane(left, left_precision, lane)? else {
            return Ok(None);
        };
        match a {
            Reg::Narrow(a) => {
                if let Data::Const(value) = right {
                    let r = self.alloc_r()?;
                    self.emit(Op::AluConst {
                        op,
                        r,
                        a,
                        value: low_bits(value) as u64,
                    });
                    return Ok(Some(Reg::Narrow(r)));
                }
                let Some(b) = self.narrow(right, right_precision)? else {
                    return Ok(None);
                };
                let r = self.alloc_r()?;
                self.emit(Op::Alu { op, r, a, b });
                Ok(Some(Reg::Narrow(r)))
            }
            Reg::Wide(a) => {
                let Some(b) = self.wide_value(right, right_precision)? else {
                    return Ok(None);
                };
                let w = self.alloc_w()?;
                self.emit(Op::WideAlu { op, w, a, b });
                Ok(Some(Reg::Wide(w)))
            }
        }
    }

    fn shift_left(
        &mut self,
        left: &Data,
        right: &Data,
        precision: Precision,
        lane: Lane,
    ) -> LowerResult<Reg> {
        let Some(shift) = self.range(right) else {
            return Ok(None);
        };
        if shift.is_negative() || !shift.fits(64) {
            return Ok(None);
        }
        let bits = match precision {
            Precision::Low(bits) if bits <= lane.bits() => bits,
            _ => lane.bits(),
        };
        // Bits that a constant shift discards are not computed.
        let needed_bits = match right {
            Data::Const(shift) => bits.saturating_sub(shift.to_u32().unwrap_or(u32::MAX)).max(1),
            _ => bits,
        };
        self.shift(Alu::Shl, left, Precision::Low(needed_bits), right, lane)
    }

    fn shift_right(&mut self, left: &Data, right: &Data) -> LowerResult<Reg> {
        let (Some(value), Some(shift)) = (self.range(left), self.range(right)) else {
            return Ok(None);
        };
        if shift.is_negative() || !shift.fits(64) {
            return Ok(None);
        }
        let Some(lane) = lane_of(&value) else {
            return Ok(None);
        };
        let op = if value.is_negative() { Alu::Sar } else { Alu::Shr };
        self.shift(op, left, Precision::Exact, right, lane)
    }

    fn shift(
        &mut self,
        op: Alu,
        left: &Data,
        precision: Precision,
        right: &Data,
        lane: Lane,
    ) -> LowerResult<Reg> {
        let Some(a) = self.in_lane(left, precision, lane)? else {
            return Ok(None);
        };
        if let (Reg::Narrow(a), Data::Const(amount)) = (a, right) {
            let r = self.alloc_r()?;
            self.emit(Op::AluConst {
                op,
                r,
                a,
                value: low_bits(amount) as u64,
            });
            return Ok(Some(Reg::Narrow(r)));
        }
        let Some(amount) = self.narrow(right, Precision::Exact)? else {
            return Ok(None);
        };
        Ok(Some(match a {
            Reg::Narrow(a) => {
                let r = self.alloc_r()?;
                self.emit(Op::Alu { op, r, a, b: amount });
                Reg::Narrow(r)
            }
            Reg::Wide(a) => {
                let (b, w) = (self.alloc_w()?, self.alloc_w()?);
                self.emit(Op::Widen {
                    w: b,
                    a: amount,
                    signed: false,
                });
                self.emit(Op::WideAlu { op, w, a, b });
                Reg::Wide(w)
            }
        }))
    }

    fn complement(&mut self, value: &Data, precision: Precision, lane: Lane) -> LowerResult<Reg> {
        let bits = match precision {
            Precision::Low(bits) if bits <= lane.bits() => bits,
            _ => lane.bits(),
        };
        let exact = self.range(value).is_some_and(|range| range.fits(lane.bits()));
        let operand_precision = if exact {
            Precision::Exact
        } else {
            Precision::Low(bits)
        };
        Ok(match self.in_lane(value, operand_precision, lane)? {
            Some(Reg::Narrow(a)) => {
                let r = self.alloc_r()?;
                self.emit(Op::Not { r, a });
                Some(Reg::Narrow(r))
            }
            Some(Reg::Wide(a)) => {
                let w = self.alloc_w()?;
                self.emit(Op::WideNot { w, a });
                Some(Reg::Wide(w))
            }
            None => None,
        })
    }

    fn cast(&mut self, cast: Cast, value: &Data, bits: u32) -> LowerResult<Reg> {
        let target = match cast {
            Cast::SaturateUnsigned => Range::unsigned(bits),
            Cast::TwoCompMod | Cast::Saturate => Range::signed(bits),
        };
        let source = self.range(value);
        if source.as_ref().is_some_and(|range| range.within(&target)) {
            return self.value(value, Precision::Exact);
        }
        if cast == Cast::TwoCompMod {
            let Some(lane) = lane_of(&target) else {
                return Ok(None);
            };
            return Ok(match self.in_lane(value, Precision::Low(bits), lane)? {
                Some(Reg::Narrow(a)) => {
                    let r = self.alloc_r()?;
                    self.emit(Op::Move { r, a });
                    self.emit(Op::SignExtend { r, bits: bits as u8 });
                    Some(Reg::Narrow(r))
                }
                Some(Reg::Wide(a)) => {
                    let w = self.alloc_w()?;
                    self.emit(Op::WideMove { w, a });
                    self.emit(Op::WideSignExtend { w, bits: bits as u8 });
                    Some(Reg::Wide(w))
                }
                None => None,
            });
        }
        let Some(source) = source else { return Ok(None) };
        // Value and bounds must be in one lane, all signed or all unsigned.
        let Some(lane) = lane_of(&source.join(&target)) else {
            return Ok(None);
        };
        let (signed, to_signed) = (source.is_negative(), cast == Cast::Saturate);
        let result = self.in_lane(value, Precision::Exact, lane)?;
        let clamped = match result {
            Some(Reg::Narrow(a)) => {
                let r = self.alloc_r()?;
                self.emit(Op::Move { r, a });
                self.emit(Op::Clamp {
                    r,
                    signed,
                    bits: bits as u8,
                    to_signed,
                });
                Some(Reg::Narrow(r))
            }
            Some(Reg::Wide(a)) => {
                let w = self.alloc_w()?;
                self.emit(Op::WideMove { w, a });
                self.emit(Op::WideClamp {
                    w,
                    signed,
                    bits: bits as u8,
                    to_signed,
                });
                Some(Reg::Wide(w))
            }
            None => None,
        };
        // The caller expects the lane of the target's range.
        Ok(match clamped {
            Some(Reg::Wide(a)) if target.fits(64) => {
                let r = self.alloc_r()?;
                self.emit(Op::Narrow { r, a });
                Some(Reg::Narrow(r))
            }
            other => other,
        })
    }

    fn bool_value(&mut self, condition: &crate::program::expr::Bool) -> Result<Reg, LowerError> {
        let r = self.alloc_r()?;
        let end = self.label()?;
        self.emit(Op::Const { r, value: 1 });
        self.branch(condition, true, end)?;
        self.emit(Op::Const { r, value: 0 });
        self.bind(end)?;
        Ok(Reg::Narrow(r))
    }

    fn select(
        &mut self,
        condition: &crate::program::expr::Bool,
        left: &Data,
        right: &Data,
        precision: Precision,
        lane: Lane,
    ) -> LowerResult<Reg> {
        if self.lane(left, precision).is_none() || self.lane(right, precision).is_none() {
            return Ok(None);
        }
        let (alternative, end) = (self.label()?, self.label()?);
        let (r, w) = (self.alloc_r()?, self.alloc_w()?);
        let move_to = |builder: &mut Self, from: Reg| match from {
            Reg::Narrow(a) => builder.emit(Op::Move { r, a }),
            Reg::Wide(a) => builder.emit(Op::WideMove { w, a }),
        };
        self.branch(condition, false, alternative)?;
        let Some(first) = self.in_lane(left, precision, lane)? else {
            return self.abandon(&[alternative, end]);
        };
        move_to(self, first);
        self.emit(Op::Jump {
            to: Self::label_pc(end),
        });
        self.bind(alternative)?;
        let Some(second) = self.in_lane(right, precision, lane)? else {
            return self.abandon(&[end]);
        };
        move_to(self, second);
        self.bind(end)?;
        Ok(Some(match lane {
            Lane::Narrow => Reg::Narrow(r),
            Lane::Wide => Reg::Wide(w),
        }))
    }

    /// Abandons a partial emission: the emitted operations have no effect, but their labels must be bound.
    fn abandon(&mut self, labels: &[super::builder::Label]) -> LowerResult<Reg> {
        for label in labels {
            self.bind(*label)?;
        }
        Ok(None)
    }
}

/// Splits a masked expression into value and constant mask if the mask fits in the lane.
fn mask_of<'d>(left: &'d Data, right: &'d Data, lane: Lane) -> Option<(&'d Data, &'d BigInt)> {
    let (value, mask) = match (left, right) {
        (value, Data::Const(mask)) | (Data::Const(mask), value) => (value, mask),
        _ => return None,
    };
    (!mask.is_negative() && mask.bits() <= u64::from(lane.bits())).then_some((value, mask))
}

/// Returns the narrowest lane for the values of a range; `None` if no lane is wide enough.
pub fn lane_of(range: &Range) -> Option<Lane> {
    if range.fits(64) {
        Some(Lane::Narrow)
    } else if range.fits(128) {
        Some(Lane::Wide)
    } else {
        None
    }
}

fn narrow_load(r: R, field: FieldLayout) -> Op {
    if field.shift == 0 {
        match field.bits {
            8 => return Op::Load1 { r, at: field.end - 1 },
            16 => return Op::Load2 { r, at: field.end - 2 },
            32 => return Op::Load4 { r, at: field.end - 4 },
            64 => return Op::Load8 { r, at: field.end - 8 },
            _ => {}
        }
    }
    Op::Load {
        r,
        at: field.end - 8,
        shift: field.shift,
        bits: field.bits as u8,
    }
}

/// Returns the operation that stores a register in a field of at most 64 bits, including the bits below the field in its last
/// byte.
pub fn narrow_store(r: R, field: FieldLayout) -> Op {
    if field.has_own_word {
        return Op::Store8 {
            r,
            at: field.end - 8,
            bits: field.bits as u8,
        };
    }
    if field.shift == 0 {
        match field.bits {
            8 => return Op::Store1 { r, at: field.end - 1 },
            16 => return Op::Store2 { r, at: field.end - 2 },
            32 => return Op::Store4 { r, at: field.end - 4 },
            64 => {
                return Op::Store8 {
                    r,
                    at: field.end - 8,
                    bits: 64,
                };
            }
            _ => {}
        }
    }
    Op::Store {
        r,
        at: field.end - 8,
        shift: field.shift,
        bits: field.bits as u8,
    }
}
