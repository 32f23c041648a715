//! Lowering of statements and actions.

use std::collections::BTreeSet;

use num_bigint::BigInt;

use serde::Serialize;

use super::access;
use super::builder::{Builder, Label, LowerError};
use super::value::{Precision, Reg, narrow_store};
use crate::exec::op::{Alu, Op, PacketRequest, Pc, R};
use crate::layout;
use crate::program::action::{Action, CloneKind, LValue, Statement};
use crate::program::expr::{Bool, Data};
use crate::program::ids::{FieldRef, RegisterId};

/// Action in executable form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ActionCode {
    /// First operation.
    pub start: Pc,
    /// Offset and length of each argument in the argument bytes.
    pub args: Vec<(u32, u32)>,
    /// Length of all arguments, bytes.
    pub arg_bytes: u32,
}

/// Layout of the arguments of an action: 8 bytes for arguments of up to 64 bits, the needed length for wider ones.
pub fn layout_args(widths: impl Iterator<Item = u32>) -> (Vec<(u32, u32)>, u32) {
    let mut at = 0u32;
    let args = widths
        .map(|bits| {
            let bytes = if bits <= 64 { 8 } else { bits.div_ceil(8) };
            let place = (at, bytes);
            at += bytes;
            place
        })
        .collect();
    (args, at)
}

impl Builder<'_> {
    /// Lowers an action.
    pub fn action(&mut self, action: &Action) -> Result<ActionCode, LowerError> {
        self.context = format!("action {}", action.name);
        self.params = action.params.iter().map(|param| param.bits).collect();
        let (args, arg_bytes) = layout_args(self.params.iter().copied());
        self.args = args.iter().map(|(at, _)| *at).collect();
        let start = self.current_pc()?;
        self.locked_registers = registers_of(&action.body).into_iter().collect();
        if !self.locked_registers.is_empty() {
            let held = self.locked_registers.clone();
            let set = self.lock_set(&held)?;
            self.emit(Op::Lock { set });
        }
        self.body(&action.body)?;
        self.emit(Op::Return);
        self.params.clear();
        self.args.clear();
        self.locked_registers.clear();
        Ok(ActionCode {
            start,
            args,
            arg_bytes,
        })
    }

    /// Lowers statements with their jumps.
    pub fn body(&mut self, body: &[Statement]) -> Result<(), LowerError> {
        let labels = (0..=body.len())
            .map(|_| self.label())
            .collect::<Result<Vec<_>, _>>()?;
        let behind: BTreeSet<u32> = body
            .iter()
            .zip(0u32..)
            .filter_map(|(statement, at)| match statement {
                Statement::Jump(to) | Statement::JumpIfZero(_, to) if *to <= at => Some(*to),
                _ => None,
            })
            .collect();
        for (at, (statement, label)) in (0u32..).zip(body.iter().zip(&labels)) {
            self.bind(*label)?;
            if behind.contains(&at) {
                self.emit(Op::Fuel);
            }
            let mark = self.mark();
            self.statement(statement, &labels)?;
            self.release(mark);
        }
        match labels.last() {
            Some(end) => self.bind(*end),
            None => Ok(()),
        }
    }

    fn statement(&mut self, statement: &Statement, labels: &[Label]) -> Result<(), LowerError> {
        let label = |to: u32| {
            let found = labels.get(to as usize).copied();
            found.ok_or_else(|| LowerError::UnresolvedReference("jump target".to_owned()))
        };
        match statement {
            Statement::Jump(to) => {
                let to = label(*to)?;
                self.emit(Op::Jump {
                    to: Self::label_pc(to),
                });
                Ok(())
            }
            Statement::JumpIfZero(value, to) => {
                let to = label(*to)?;
                let condition = Bool::FromData(Box::new(value.clone()));
                match value {
                    Data::FromBool(condition) => self.branch(condition, false, to),
                    _ => self.branch(&condition, false, to),
                }
            }
            other => self.plain(other),
        }
    }

    /// Lowers a statement that is not a jump.
    pub fn plain(&mut self, statement: &Statement) -> Result<(), LowerError> {
        let done = match statement {
            Statement::Assign(LValue::Field(field), value) => self.assign(*field, value)?,
            Statement::Assign(LValue::Access(header, field), value) => {
                match access::static_header(self.program, header) {
                    Some(header) => self.assign(
                        FieldRef {
                            header,
                            field: *field,
                        },
                        value,
                    )?,
                    None => false,
                }
            }
            Statement::Assign(LValue::Register(register, index), value) => {
                self.register_write(*register, index, value)?
            }
            Statement::RegisterRead(place, register, index) => self.register_read(place, *register, index)?,
            Statement::RegisterWrite(register, index, value) => {
                self.register_write(*register, index, value)?
            }
            Statement::AddHeader(header) => self.validity(header, true),
            Statement::RemoveHeader(header) => self.validity(header, false),
            Statement::MarkToDrop(header) => {
                self.emit(Op::MarkToDrop { spec: header.0 });
                true
            }
            Statement::Exit => {
                self.emit(Op::Exit);
                true
            }
            Statement::Noop => true,
            Statement::Count(counter, index) => match self.narrow(index, Precision::Exact)? {
                Some(index) => {
                    self.emit(Op::Count {
                        counter: counter.0,
                        index,
                    });
                    true
                }
                None => false,
            },
            Statement::Meter(meter, index, place) => self.meter(*meter, index, place)?,
            Statement::Hash {
                target,
                base,
                calculation,
                size,
            } => self.hash(target, base, calculation.0, size)?,
            Statement::Random(place, low, high) => self.random(place, low, high)?,
            Statement::Clone(kind, session, list) => {
                // Both kinds set the same request; the end of the current pipeline executes it.
                debug_assert!(matches!(kind, CloneKind::Ingress | CloneKind::Egress));
                self.request(PacketRequest::Clone, session, Some(list))?
            }
            Statement::Resubmit(list) => self.request(PacketRequest::Resubmit, list, None)?,
            Statement::Recirculate(list) => self.request(PacketRequest::Recirculate, list, None)?,
            Statement::Digest(number) => self.request(PacketRequest::Digest, number, None)?,
            Statement::Truncate(bytes) => self.request(PacketRequest::Truncate, bytes, None)?,
            Statement::Assert(value) => {
                // The full value is required: any nonzero value is true.
                let holds = Data::FromBool(Box::new(Bool::FromData(Box::new(value.clone()))));
                self.request(PacketRequest::Assert, &holds, None)?
            }
            _ => false,
        };
        if !done {
            self.tree(statement)?;
        }
        Ok(())
    }

    fn request(
        &mut self,
        packet_request: PacketRequest,
        value: &Data,
        second: Option<&Data>,
    ) -> Result<bool, LowerError> {
        let Some(r) = self.narrow(value, Precision::Low(64))? else {
            return Ok(false);
        };
        let b = match second {
            Some(second) => match self.narrow(second, Precision::Low(64))? {
                Some(b) => b,
                None => return Ok(false),
            },
            None => r,
        };
        self.emit(Op::Request {
            request: packet_request,
            value: r,
            second: b,
        });
        Ok(true)
    }

    fn validity(&mut self, header: &crate::program::expr::HeaderExpr, valid: bool) -> bool {
        let Some(header) = access::static_header(self.program, header) else {
            return false;
        };
        let Some(place) = self.layout.header(header) else {
            return false;
        };
        // Unions and variable-length fields are rare and are executed as trees.
        if place.union.is_some() || place.variable.is_some() || place.metadata {
            return false;
        }
        self.emit(match valid {
            true => Op::AddHeader { header: header.0 },
            false => Op::RemoveHeader { header: header.0 },
        });
        true
    }

    /// Location of a field that a plain store supports: at most 64 bits including the bits below.
    fn stores_narrow(&self, field: FieldRef) -> Option<layout::FieldLayout> {
        let place = self.layout.field(field)?;
        let plain = !place.variable && !place.saturating && place.bits + u32::from(place.shift) <= 64;
        plain.then_some(place)
    }

    /// Emits a store of a register's low bits in a field; false if a plain store is not possible.
    pub fn store(&mut self, field: FieldRef, r: R) -> bool {
        match self.stores_narrow(field) {
            Some(place) => {
                self.emit(narrow_store(r, place));
                true
            }
            None => false,
        }
    }

    /// Peephole: merges the three operations that add a constant to a byte into one.
    fn merge_byte_addition(&mut self, first: usize) {
        let Some(
            [
                Op::Load1 { at: from, .. },
                Op::AddMasked { bits: 8, value, .. },
                Op::Store1 { at, .. },
            ],
        ) = self.code.get(first..)
        else {
            return;
        };
        if from == at {
            let (at, value) = (*at, *value as u8);
            self.code.truncate(first);
            self.emit(Op::AddToByte { at, value });
        }
    }

    /// Emits a store of an action argument in a field of whole bytes or with separate bytes.
    fn store_arg(&mut self, place: layout::FieldLayout, value: &Data) -> bool {
        let Data::Param(param) = value else { return false };
        let (Some(width), Some(arg)) = (
            self.params.get(*param as usize),
            self.args.get(*param as usize).copied(),
        ) else {
            return false;
        };
        if *width > 64 || place.bits > 64 {
            return false;
        }
        let op = if place.has_own_word {
            Op::StoreArg {
                arg,
                at: place.end - 8,
                bits: place.bits as u8,
            }
        } else if place.whole_bytes() {
            Op::CopyArg {
                arg,
                at: place.start(),
                bytes: (place.bits / 8) as u8,
            }
        } else {
            return false;
        };
        self.emit(op);
        true
    }

    /// Emits an assignment to a field; false if only a tree supports it.
    pub fn assign(&mut self, field: FieldRef, value: &Data) -> Result<bool, LowerError> {
        let Some(place) = self.layout.field(field) else {
            return Ok(false);
        };
        if place.variable || place.saturating {
            return Ok(false);
        }
        if self.copy(field, place, value) || self.store_arg(place, value) {
            return Ok(true);
        }
        let span = place.bits + u32::from(place.shift);
        if span <= 64 {
            let first = self.code.len();
            let Some(r) = self.narrow(value, Precision::Low(place.bits))? else {
                return Ok(false);
            };
            self.emit(narrow_store(r, place));
            self.merge_byte_addition(first);
            return Ok(true);
        }
        if let Data::Const(value) = value
            && place.whole_bytes()
        {
            let constant = self.bytes(constant_bytes(value, place.bits))?;
            self.emit(Op::Fill {
                at: place.start(),
                constant,
            });
            return Ok(true);
        }
        if span > 128 {
            return Ok(false);
        }
        let Some(reg) = self.value(value, Precision::Low(place.bits))? else {
            return Ok(false);
        };
        let w = match reg {
            Reg::Wide(w) => w,
            Reg::Narrow(a) => {
                let signed = self.range(value).is_some_and(|range| range.is_negative());
                let w = self.w()?;
                self.emit(Op::Widen { w, a, signed });
                w
            }
        };
        self.emit(Op::WideStore {
            w,
            at: place.end - 16,
            shift: place.shift,
            bits: place.bits as u8,
        });
        Ok(true)
    }

    /// Emits a byte copy between fields of whole bytes.
    fn copy(&mut self, to: FieldRef, place: layout::FieldLayout, value: &Data) -> bool {
        let Data::Field(from) = value else { return false };
        let Some(source) = self.layout.field(*from) else {
            return false;
        };
        let same =
            source.bits == place.bits && source.whole_bytes() && place.whole_bytes() && !source.variable;
        // Loads and stores are as fast for values that fit in a register.
        if !same || place.bits <= 64 || to == *from {
            return false;
        }
        self.emit(Op::Copy {
            from: source.start(),
            to: place.start(),
            bytes: place.bits / 8,
        });
        true
    }

    fn lock_index(&self, register: RegisterId) -> Option<u8> {
        let at = self.locked_registers.iter().position(|held| *held == register)?;
        u8::try_from(at).ok()
    }

    fn narrow_register(&self, register: RegisterId) -> bool {
        self.program
            .registers
            .get(register.index())
            .is_some_and(|array| array.bits <= 64)
    }

    fn register_read(
        &mut self,
        place: &LValue,
        register: RegisterId,
        index: &Data,
    ) -> Result<bool, LowerError> {
        let (LValue::Field(field), Some(held)) = (place, self.lock_index(register)) else {
            return Ok(false);
        };
        if !self.narrow_register(register) {
            return self.wide_register_read(*field, held, index);
        }
        if self.stores_narrow(*field).is_none() {
            return Ok(false);
        }
        let Some(index) = self.narrow(index, Precision::Exact)? else {
            return Ok(false);
        };
        let r = self.r()?;
        let missing = self.label()?;
        self.emit(Op::RegisterRead {
            r,
            index,
            lock_index: held,
            missing: Self::label_pc(missing),
        });
        self.store(*field, r);
        self.bind(missing)?;
        Ok(true)
    }

    /// Emits a wide read into a field that truncates to its width.
    fn wide_register_read(&mut self, field: FieldRef, held: u8, index: &Data) -> Result<bool, LowerError> {
        let place = self.layout.field(field);
        let Some(place) = place.filter(|place| !place.variable && !place.saturating) else {
            return Ok(false);
        };
        let Some(index) = self.narrow(index, Precision::Exact)? else {
            return Ok(false);
        };
        self.emit(Op::CellRead {
            index,
            lock_index: held,
            bit: place.end * 8 - u32::from(place.shift) - place.bits,
            bits: place.bits,
        });
        Ok(true)
    }

    fn register_write(
        &mut self,
        register: RegisterId,
        index: &Data,
        value: &Data,
    ) -> Result<bool, LowerError> {
        let (Some(held), true) = (self.lock_index(register), self.narrow_register(register)) else {
            return Ok(false);
        };
        let bits = self
            .program
            .registers
            .get(register.index())
            .map_or(64, |array| array.bits);
        let (Some(index), Some(r)) = (
            self.narrow(index, Precision::Exact)?,
            self.narrow(value, Precision::Low(bits))?,
        ) else {
            return Ok(false);
        };
        self.emit(Op::RegisterWrite {
            r,
            index,
            lock_index: held,
        });
        Ok(true)
    }

    fn meter(
        &mut self,
        meter: crate::program::ids::MeterId,
        index: &Data,
        place: &LValue,
    ) -> Result<bool, LowerError> {
        let (LValue::Field(field), Ok(meter)) = (place, u16::try_from(meter.0)) else {
            return Ok(false);
        };
        if self.stores_narrow(*field).is_none() {
            return Ok(false);
        }
        let Some(index) = self.narrow(index, Precision::Exact)? else {
            return Ok(false);
        };
        let r = self.r()?;
        let missing = self.label()?;
        self.emit(Op::Meter {
            r,
            index,
            meter,
            missing: Self::label_pc(missing),
        });
        self.store(*field, r);
        self.bind(missing)?;
        Ok(true)
    }

    fn hash(
        &mut self,
        target: &LValue,
        base: &Data,
        calculation: u32,
        size: &Data,
    ) -> Result<bool, LowerError> {
        let LValue::Field(field) = target else {
            return Ok(false);
        };
        if self.stores_narrow(*field).is_none() {
            return Ok(false);
        }
        // BMv2 reads both values as 64 bits and adds in 64 bits.
        let (Some(base), Some(size)) = (
            self.narrow(base, Precision::Low(64))?,
            self.narrow(size, Precision::Low(64))?,
        ) else {
            return Ok(false);
        };
        let (hash, one, r) = (self.r()?, self.r()?, self.r()?);
        let nonzero = self.label()?;
        self.emit(Op::Hash { r: hash, calculation });
        self.emit(Op::Move { r: one, a: size });
        self.emit(Op::BranchNe {
            a: one,
            to: Self::label_pc(nonzero),
            value: 0,
        });
        self.emit(Op::Const { r: one, value: 1 });
        self.bind(nonzero)?;
        self.emit(Op::Alu {
            op: Alu::Mod,
            r,
            a: hash,
            b: one,
        });
        self.emit(Op::Alu {
            op: Alu::Add,
            r,
            a: r,
            b: base,
        });
        Ok(self.store(*field, r))
    }

    fn random(&mut self, place: &LValue, low: &Data, high: &Data) -> Result<bool, LowerError> {
        let LValue::Field(field) = place else {
            return Ok(false);
        };
        if self.stores_narrow(*field).is_none() {
            return Ok(false);
        }
        let (Some(low), Some(high)) = (
            self.narrow(low, Precision::Low(64))?,
            self.narrow(high, Precision::Low(64))?,
        ) else {
            return Ok(false);
        };
        let r = self.r()?;
        let missing = self.label()?;
        self.emit(Op::Random {
            r,
            low,
            high,
            missing: Self::label_pc(missing),
        });
        self.store(*field, r);
        self.bind(missing)?;
        Ok(true)
    }
}

/// Encodes a constant for a field of whole bytes.
fn constant_bytes(value: &BigInt, bits: u32) -> Vec<u8> {
    let digits = value.to_signed_bytes_le();
    let fill = if digits.last().is_some_and(|top| *top >= 0x80) {
        0xff
    } else {
        0
    };
    let mut bytes = vec![fill; (bits / 8) as usize];
    for (to, from) in bytes.iter_mut().rev().zip(&digits) {
        *to = *from;
    }
    bytes
}

/// Register arrays that the statements access, in order.
pub fn registers_of(body: &[Statement]) -> BTreeSet<RegisterId> {
    let mut found = BTreeSet::new();
    for statement in body {
        super::walk::statement(statement, &mut |data| {
            if let Data::Register(register, _) = data {
                found.insert(*register);
            }
        });
        match statement {
            Statement::RegisterRead(_, register, _) | Statement::RegisterWrite(register, ..) => {
                found.insert(*register);
            }
            Statement::Assign(LValue::Register(register, _), _) => {
                found.insert(*register);
            }
            _ => {}
        }
    }
    found
}
