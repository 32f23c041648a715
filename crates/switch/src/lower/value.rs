//! Expressions in 64 and 128 bits.
//!
//! An expression is lowered either for its exact value or for its low bits only (what a mask or a field keeps).
//! Sums, differences, products, left shifts and all bitwise operations have low bits that depend on the operands'
//! low bits alone; shifts to the right, quotients, comparisons and saturation need exact operands.

use num_bigint::BigInt;
use num_traits::{One, Signed, ToPrimitive};

use super::access;
use super::builder::{Builder, LowerError, low_bits};
use super::range::{self, Range};
use crate::exec::op::{Alu, Op, R, W};
use crate::layout::Place;
use crate::program::expr::{Binary, Cast, Data};
use crate::program::ids::FieldRef;

/// What is wanted of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Its value.
    Exact,
    /// So many of its low bits.
    Low(u32),
}

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reg {
    /// 64 bits.
    Narrow(R),
    /// 128 bits.
    Wide(W),
}

/// The lane in which an operation is done.
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

type Lowered<T> = Result<Option<T>, LowerError>;

impl Builder<'_> {
    pub fn range(&self, data: &Data) -> Option<Range> {
        range::of(self.program, &self.params, data)
    }

    /// The lane that serves; none: only integers of any size do.
    pub fn lane(&self, data: &Data, want: Want) -> Option<Lane> {
        let range = self.range(data);
        let fits = |bits| range.as_ref().is_some_and(|range| range.fits(bits));
        let low = |bits| matches!(want, Want::Low(wanted) if wanted <= bits);
        if fits(64) || low(64) {
            Some(Lane::Narrow)
        } else if fits(128) || low(128) {
            Some(Lane::Wide)
        } else {
            None
        }
    }

    /// A value in 64 bits; none if it cannot be had there.
    pub fn narrow(&mut self, data: &Data, want: Want) -> Lowered<R> {
        match self.value(data, want)? {
            Some(Reg::Narrow(r)) => Ok(Some(r)),
            Some(Reg::Wide(a)) if matches!(want, Want::Low(bits) if bits <= 64) => {
                let r = self.r()?;
                self.emit(Op::Narrow { r, a });
                Ok(Some(r))
            }
            _ => Ok(None),
        }
    }

    /// A value in 128 bits; none if it cannot be had there.
    pub fn in_wide(&mut self, data: &Data, want: Want) -> Lowered<W> {
        let signed = self.range(data).is_some_and(|range| range.is_negative());
        match self.value(data, want)? {
            Some(Reg::Wide(w)) => Ok(Some(w)),
            Some(Reg::Narrow(a)) => {
                let w = self.w()?;
                self.emit(Op::Widen { w, a, signed });
                Ok(Some(w))
            }
            None => Ok(None),
        }
    }

    fn in_lane(&mut self, data: &Data, want: Want, lane: Lane) -> Lowered<Reg> {
        Ok(match lane {
            Lane::Narrow => self.narrow(data, want)?.map(Reg::Narrow),
            Lane::Wide => self.in_wide(data, want)?.map(Reg::Wide),
        })
    }

    /// A value in the lane that serves; none if it takes integers of any size.
    pub fn value(&mut self, data: &Data, want: Want) -> Lowered<Reg> {
        let Some(lane) = self.lane(data, want) else {
            return Ok(None);
        };
        let found = match data {
            Data::Const(value) => Some(self.constant(value, lane)?),
            Data::Field(field) => self.field(*field, want)?,
            Data::Access(header, field) => match access::known(self.program, header) {
                Some(header) => self.field(
                    FieldRef {
                        header,
                        field: *field,
                    },
                    want,
                )?,
                None => None,
            },
            Data::Param(at) => self.param(*at)?,
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
            Data::Binary(op, left, right) => self.binary(*op, left, right, want, lane)?,
            Data::Not(value) => self.complement(value, want, lane)?,
            Data::Cast(cast, value, bits) => self.cast(*cast, value, *bits)?,
            Data::FromBool(condition) => Some(self.truth(condition)?),
            Data::Select(condition, left, right) => self.select(condition, left, right, want, lane)?,
            Data::StackLast(..) | Data::Register(..) => None,
        };
        if found.is_some() {
            return Ok(found);
        }
        // A part that is rare is a tree of its own; what stands around it stays fast.
        if lane == Lane::Narrow && self.range(data).is_some() {
            let r = self.r()?;
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
                let r = self.r()?;
                // The low 64 bits: that is all this lane holds.
                self.emit(Op::Const {
                    r,
                    value: bits as u64,
                });
                Reg::Narrow(r)
            }
            Lane::Wide => {
                let w = self.w()?;
                let constant = self.wide(bits)?;
                self.emit(Op::WideConst { w, constant });
                Reg::Wide(w)
            }
        })
    }

    fn count(&mut self, at: Option<u32>) -> Lowered<Reg> {
        let Some(at) = at else { return Ok(None) };
        let r = self.r()?;
        self.emit(Op::Load2 { r, at });
        Ok(Some(Reg::Narrow(r)))
    }

    fn field(&mut self, field: FieldRef, want: Want) -> Lowered<Reg> {
        let Some(mut place) = self.layout.field(field).filter(|place| !place.variable) else {
            return Ok(None);
        };
        if let Want::Low(bits) = want
            && bits < place.bits
        {
            place.bits = bits;
            place.signed = false;
        }
        self.load(place)
    }

    /// Loads a field; none if it is too wide.
    pub fn load(&mut self, place: Place) -> Lowered<Reg> {
        let bits = place.bits;
        let span = bits + u32::from(place.shift);
        if span <= 64 {
            let r = self.r()?;
            self.emit(narrow_load(r, place));
            if place.signed && bits < 64 {
                self.emit(Op::SignExtend { r, bits: bits as u8 });
            }
            return Ok(Some(Reg::Narrow(r)));
        }
        if span > 128 {
            return Ok(None);
        }
        let w = self.w()?;
        self.emit(Op::WideLoad {
            w,
            at: place.end - 16,
            shift: place.shift,
            bits: bits as u8,
        });
        if place.signed && bits < 128 {
            self.emit(Op::WideSignExtend { w, bits: bits as u8 });
        }
        if bits <= 64 {
            let r = self.r()?;
            self.emit(Op::Narrow { r, a: w });
            return Ok(Some(Reg::Narrow(r)));
        }
        Ok(Some(Reg::Wide(w)))
    }

    fn param(&mut self, at: u32) -> Lowered<Reg> {
        let (Some(bits), Some(place)) = (self.params.get(at as usize), self.args.get(at as usize)) else {
            return Ok(None);
        };
        let (bits, place) = (*bits, *place);
        if bits <= 64 {
            let r = self.r()?;
            self.emit(Op::Arg { r, at: place });
            return Ok(Some(Reg::Narrow(r)));
        }
        if bits > 128 {
            return Ok(None);
        }
        let w = self.w()?;
        self.emit(Op::WideArg {
            w,
            at: place,
            bytes: bits.div_ceil(8) as u8,
        });
        Ok(Some(Reg::Wide(w)))
    }

    fn binary(&mut self, op: Binary, left: &Data, right: &Data, want: Want, lane: Lane) -> Lowered<Reg> {
        // A mask is lowered once or not at all: trying its value again in another way would double the work at each
        // level of a deep expression.
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
                // The lane holds the result, or its low bits are all that is wanted: either way the operands' low
                // bits decide.
                let bits = match want {
                    Want::Low(bits) if bits <= lane.bits() => bits.max(1),
                    _ => lane.bits(),
                };
                let fits = self.range_fits(op, left, right, lane);
                let bits = if fits { lane.bits() } else { bits };
                self.alu(alu, left, Want::Low(bits), right, Want::Low(bits), lane)
            }
            Binary::Shl => self.shift_left(left, right, want, lane),
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
                self.alu(alu, left, Want::Exact, right, Want::Exact, lane)
            }
        }
    }

    fn range_fits(&self, op: Binary, left: &Data, right: &Data, lane: Lane) -> bool {
        let whole = Data::Binary(op, Box::new(left.clone()), Box::new(right.clone()));
        self.range(&whole).is_some_and(|range| range.fits(lane.bits()))
    }

    /// `value & (2^n - 1)`, and any other mask that is a constant: only so many bits of the value matter.
    fn masked(&mut self, value: &Data, mask: &BigInt, lane: Lane) -> Lowered<Reg> {
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
            return self.in_lane(value, Want::Low(bits), lane);
        }
        if all_ones
            && lane == Lane::Narrow
            && let Data::Binary(Binary::Add, sum, add) = value
            && let Data::Const(add) = add.as_ref()
        {
            let Some(a) = self.narrow(sum, Want::Low(bits))? else {
                return Ok(None);
            };
            let r = self.r()?;
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
            Want::Low(bits),
            &Data::Const(mask.clone()),
            Want::Exact,
            lane,
        )
    }

    /// One operation on two values of a lane.
    fn alu(
        &mut self,
        op: Alu,
        left: &Data,
        left_want: Want,
        right: &Data,
        right_want: Want,
        lane: Lane,
    ) -> Lowered<Reg> {
        let Some(a) = self.in_lane(left, left_want, lane)? else {
            return Ok(None);
        };
        match a {
            Reg::Narrow(a) => {
                if let Data::Const(value) = right {
                    let r = self.r()?;
                    self.emit(Op::AluConst {
                        op,
                        r,
                        a,
                        value: low_bits(value) as u64,
                    });
                    return Ok(Some(Reg::Narrow(r)));
                }
                let Some(b) = self.narrow(right, right_want)? else {
                    return Ok(None);
                };
                let r = self.r()?;
                self.emit(Op::Alu { op, r, a, b });
                Ok(Some(Reg::Narrow(r)))
            }
            Reg::Wide(a) => {
                let Some(b) = self.in_wide(right, right_want)? else {
                    return Ok(None);
                };
                let w = self.w()?;
                self.emit(Op::WideAlu { op, w, a, b });
                Ok(Some(Reg::Wide(w)))
            }
        }
    }

    fn shift_left(&mut self, left: &Data, right: &Data, want: Want, lane: Lane) -> Lowered<Reg> {
        let Some(by) = self.range(right) else {
            return Ok(None);
        };
        if by.is_negative() || !by.fits(64) {
            return Ok(None);
        }
        let bits = match want {
            Want::Low(bits) if bits <= lane.bits() => bits,
            _ => lane.bits(),
        };
        // What a constant shift moves out need not be computed.
        let needed = match right {
            Data::Const(by) => bits.saturating_sub(by.to_u32().unwrap_or(u32::MAX)).max(1),
            _ => bits,
        };
        self.shift(Alu::Shl, left, Want::Low(needed), right, lane)
    }

    fn shift_right(&mut self, left: &Data, right: &Data) -> Lowered<Reg> {
        let (Some(value), Some(by)) = (self.range(left), self.range(right)) else {
            return Ok(None);
        };
        if by.is_negative() || !by.fits(64) {
            return Ok(None);
        }
        let Some(lane) = lane_of(&value) else {
            return Ok(None);
        };
        let op = if value.is_negative() { Alu::Sar } else { Alu::Shr };
        self.shift(op, left, Want::Exact, right, lane)
    }

    fn shift(&mut self, op: Alu, left: &Data, want: Want, right: &Data, lane: Lane) -> Lowered<Reg> {
        let Some(a) = self.in_lane(left, want, lane)? else {
            return Ok(None);
        };
        if let (Reg::Narrow(a), Data::Const(by)) = (a, right) {
            let r = self.r()?;
            self.emit(Op::AluConst {
                op,
                r,
                a,
                value: low_bits(by) as u64,
            });
            return Ok(Some(Reg::Narrow(r)));
        }
        let Some(by) = self.narrow(right, Want::Exact)? else {
            return Ok(None);
        };
        Ok(Some(match a {
            Reg::Narrow(a) => {
                let r = self.r()?;
                self.emit(Op::Alu { op, r, a, b: by });
                Reg::Narrow(r)
            }
            Reg::Wide(a) => {
                let (b, w) = (self.w()?, self.w()?);
                self.emit(Op::Widen {
                    w: b,
                    a: by,
                    signed: false,
                });
                self.emit(Op::WideAlu { op, w, a, b });
                Reg::Wide(w)
            }
        }))
    }

    fn complement(&mut self, value: &Data, want: Want, lane: Lane) -> Lowered<Reg> {
        let bits = match want {
            Want::Low(bits) if bits <= lane.bits() => bits,
            _ => lane.bits(),
        };
        let exact = self.range(value).is_some_and(|range| range.fits(lane.bits()));
        let wanted = if exact { Want::Exact } else { Want::Low(bits) };
        Ok(match self.in_lane(value, wanted, lane)? {
            Some(Reg::Narrow(a)) => {
                let r = self.r()?;
                self.emit(Op::Not { r, a });
                Some(Reg::Narrow(r))
            }
            Some(Reg::Wide(a)) => {
                let w = self.w()?;
                self.emit(Op::WideNot { w, a });
                Some(Reg::Wide(w))
            }
            None => None,
        })
    }

    fn cast(&mut self, cast: Cast, value: &Data, bits: u32) -> Lowered<Reg> {
        let target = match cast {
            Cast::SaturateUnsigned => Range::unsigned(bits),
            Cast::TwoCompMod | Cast::Saturate => Range::signed(bits),
        };
        let from = self.range(value);
        if from.as_ref().is_some_and(|range| range.within(&target)) {
            return self.value(value, Want::Exact);
        }
        if cast == Cast::TwoCompMod {
            let Some(lane) = lane_of(&target) else {
                return Ok(None);
            };
            return Ok(match self.in_lane(value, Want::Low(bits), lane)? {
                Some(Reg::Narrow(a)) => {
                    let r = self.r()?;
                    self.emit(Op::Move { r, a });
                    self.emit(Op::SignExtend { r, bits: bits as u8 });
                    Some(Reg::Narrow(r))
                }
                Some(Reg::Wide(a)) => {
                    let w = self.w()?;
                    self.emit(Op::WideMove { w, a });
                    self.emit(Op::WideSignExtend { w, bits: bits as u8 });
                    Some(Reg::Wide(w))
                }
                None => None,
            });
        }
        let Some(from) = from else { return Ok(None) };
        // Value and bounds in one lane, all signed or all unsigned.
        let Some(lane) = lane_of(&from.join(&target)) else {
            return Ok(None);
        };
        let (signed, to_signed) = (from.is_negative(), cast == Cast::Saturate);
        let result = self.in_lane(value, Want::Exact, lane)?;
        let clamped = match result {
            Some(Reg::Narrow(a)) => {
                let r = self.r()?;
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
                let w = self.w()?;
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
        // The caller's lane is that of the target's range.
        Ok(match clamped {
            Some(Reg::Wide(a)) if target.fits(64) => {
                let r = self.r()?;
                self.emit(Op::Narrow { r, a });
                Some(Reg::Narrow(r))
            }
            other => other,
        })
    }

    fn truth(&mut self, condition: &crate::program::expr::Bool) -> Result<Reg, LowerError> {
        let r = self.r()?;
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
        want: Want,
        lane: Lane,
    ) -> Lowered<Reg> {
        if self.lane(left, want).is_none() || self.lane(right, want).is_none() {
            return Ok(None);
        }
        let (other, end) = (self.label()?, self.label()?);
        let (r, w) = (self.r()?, self.w()?);
        let move_to = |builder: &mut Self, from: Reg| match from {
            Reg::Narrow(a) => builder.emit(Op::Move { r, a }),
            Reg::Wide(a) => builder.emit(Op::WideMove { w, a }),
        };
        self.branch(condition, false, other)?;
        let Some(first) = self.in_lane(left, want, lane)? else {
            return self.unfinished(&[other, end]);
        };
        move_to(self, first);
        self.emit(Op::Jump { to: Self::to(end) });
        self.bind(other)?;
        let Some(second) = self.in_lane(right, want, lane)? else {
            return self.unfinished(&[end]);
        };
        move_to(self, second);
        self.bind(end)?;
        Ok(Some(match lane {
            Lane::Narrow => Reg::Narrow(r),
            Lane::Wide => Reg::Wide(w),
        }))
    }

    /// Gives up half way: what was emitted is harmless, but its labels must stand somewhere.
    fn unfinished(&mut self, labels: &[super::builder::Label]) -> Lowered<Reg> {
        for label in labels {
            self.bind(*label)?;
        }
        Ok(None)
    }
}

/// A value and the constant that masks it, where the lane holds the mask.
fn mask_of<'d>(left: &'d Data, right: &'d Data, lane: Lane) -> Option<(&'d Data, &'d BigInt)> {
    let (value, mask) = match (left, right) {
        (value, Data::Const(mask)) | (Data::Const(mask), value) => (value, mask),
        _ => return None,
    };
    (!mask.is_negative() && mask.bits() <= u64::from(lane.bits())).then_some((value, mask))
}

/// The narrowest lane that holds a range.
pub fn lane_of(range: &Range) -> Option<Lane> {
    if range.fits(64) {
        Some(Lane::Narrow)
    } else if range.fits(128) {
        Some(Lane::Wide)
    } else {
        None
    }
}

fn narrow_load(r: R, place: Place) -> Op {
    if place.shift == 0 {
        match place.bits {
            8 => return Op::Load1 { r, at: place.end - 1 },
            16 => return Op::Load2 { r, at: place.end - 2 },
            32 => return Op::Load4 { r, at: place.end - 4 },
            64 => return Op::Load8 { r, at: place.end - 8 },
            _ => {}
        }
    }
    Op::Load {
        r,
        at: place.end - 8,
        shift: place.shift,
        bits: place.bits as u8,
    }
}

/// The operation that stores a register in a field of at most 64 bits, counted with those below it.
pub fn narrow_store(r: R, place: Place) -> Op {
    if place.own {
        return Op::Store8 {
            r,
            at: place.end - 8,
            bits: place.bits as u8,
        };
    }
    if place.shift == 0 {
        match place.bits {
            8 => return Op::Store1 { r, at: place.end - 1 },
            16 => return Op::Store2 { r, at: place.end - 2 },
            32 => return Op::Store4 { r, at: place.end - 4 },
            64 => {
                return Op::Store8 {
                    r,
                    at: place.end - 8,
                    bits: 64,
                };
            }
            _ => {}
        }
    }
    Op::Store {
        r,
        at: place.end - 8,
        shift: place.shift,
        bits: place.bits as u8,
    }
}
