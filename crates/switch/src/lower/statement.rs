//! Statements and actions.

use std::collections::BTreeSet;

use num_bigint::BigInt;

use serde::Serialize;

use super::access;
use super::builder::{Builder, Label, LowerError};
use super::value::{Reg, Want, narrow_store};
use crate::exec::op::{Alu, Asked, Op, Pc, R};
use crate::layout;
use crate::program::action::{Action, CloneKind, Place, Statement};
use crate::program::expr::{Bool, Data};
use crate::program::ids::{FieldRef, RegisterId};

/// An action in executable form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ActionCode {
    /// Its first operation.
    pub start: Pc,
    /// Where each argument lies among the argument bytes, and how many bytes it takes there.
    pub args: Vec<(u32, u32)>,
    /// Bytes of all arguments.
    pub arg_bytes: u32,
}

/// Where the arguments of an action lie: those of up to 64 bits in 8 bytes each, wider ones in as many as they need.
pub fn lay_args(widths: impl Iterator<Item = u32>) -> (Vec<(u32, u32)>, u32) {
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
        let (args, arg_bytes) = lay_args(self.params.iter().copied());
        self.args = args.iter().map(|(at, _)| *at).collect();
        let start = self.here()?;
        self.held = registers_of(&action.body).into_iter().collect();
        if !self.held.is_empty() {
            let held = self.held.clone();
            let set = self.lock_set(&held)?;
            self.emit(Op::Lock { set });
        }
        self.body(&action.body)?;
        self.emit(Op::Return);
        self.params.clear();
        self.args.clear();
        self.held.clear();
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
            found.ok_or_else(|| LowerError::Dangling("a jump".to_owned()))
        };
        match statement {
            Statement::Jump(to) => {
                let to = label(*to)?;
                self.emit(Op::Jump { to: Self::to(to) });
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

    /// A statement that does not jump.
    pub fn plain(&mut self, statement: &Statement) -> Result<(), LowerError> {
        let done = match statement {
            Statement::Assign(Place::Field(field), value) => self.assign(*field, value)?,
            Statement::Assign(Place::Access(header, field), value) => {
                match access::known(self.program, header) {
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
            Statement::Assign(Place::Register(register, index), value) => {
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
            Statement::Count(counter, index) => match self.narrow(index, Want::Exact)? {
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
                // Both kinds set the same request; the pipeline that ends next carries it out.
                debug_assert!(matches!(kind, CloneKind::Ingress | CloneKind::Egress));
                self.ask(Asked::Clone, session, Some(list))?
            }
            Statement::Resubmit(list) => self.ask(Asked::Resubmit, list, None)?,
            Statement::Recirculate(list) => self.ask(Asked::Recirculate, list, None)?,
            Statement::Digest(number) => self.ask(Asked::Digest, number, None)?,
            Statement::Truncate(bytes) => self.ask(Asked::Truncate, bytes, None)?,
            Statement::Assert(value) => {
                // Not its low bits only: any number but 0 holds.
                let holds = Data::FromBool(Box::new(Bool::FromData(Box::new(value.clone()))));
                self.ask(Asked::Assert, &holds, None)?
            }
            _ => false,
        };
        if !done {
            self.tree(statement)?;
        }
        Ok(())
    }

    fn ask(&mut self, what: Asked, value: &Data, second: Option<&Data>) -> Result<bool, LowerError> {
        let Some(r) = self.narrow(value, Want::Low(64))? else {
            return Ok(false);
        };
        let b = match second {
            Some(second) => match self.narrow(second, Want::Low(64))? {
                Some(b) => b,
                None => return Ok(false),
            },
            None => r,
        };
        self.emit(Op::Ask { what, r, b });
        Ok(true)
    }

    fn validity(&mut self, header: &crate::program::expr::HeaderExpr, valid: bool) -> bool {
        let Some(header) = access::known(self.program, header) else {
            return false;
        };
        let Some(place) = self.layout.header(header) else {
            return false;
        };
        // Unions and fields of variable length are rare: they are left to the tree.
        if place.union.is_some() || place.variable.is_some() || place.metadata {
            return false;
        }
        self.emit(match valid {
            true => Op::AddHeader { header: header.0 },
            false => Op::RemoveHeader { header: header.0 },
        });
        true
    }

    /// Whether the field is one that plain stores serve, within 64 bits counted with those below it.
    fn stores_narrow(&self, field: FieldRef) -> Option<layout::Place> {
        let place = self.layout.field(field)?;
        let plain = !place.variable && !place.saturating && place.bits + u32::from(place.shift) <= 64;
        plain.then_some(place)
    }

    /// Stores the low bits of a register in a field; false if that takes more.
    pub fn store(&mut self, field: FieldRef, r: R) -> bool {
        match self.stores_narrow(field) {
            Some(place) => {
                self.emit(narrow_store(r, place));
                true
            }
            None => false,
        }
    }

    /// One operation for the three that add a constant to a byte in its place, if those are what was emitted.
    fn join_sum(&mut self, first: usize) {
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

    /// Stores an argument of the action in a field of whole bytes, or in one with bytes of its own.
    fn store_arg(&mut self, place: layout::Place, value: &Data) -> bool {
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
        let op = if place.own {
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

    /// Stores a value in a field; false if only a tree does.
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
            let Some(r) = self.narrow(value, Want::Low(place.bits))? else {
                return Ok(false);
            };
            self.emit(narrow_store(r, place));
            self.join_sum(first);
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
        let Some(reg) = self.value(value, Want::Low(place.bits))? else {
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

    /// A field of whole bytes from another one: bytes are copied.
    fn copy(&mut self, to: FieldRef, place: layout::Place, value: &Data) -> bool {
        let Data::Field(from) = value else { return false };
        let Some(source) = self.layout.field(*from) else {
            return false;
        };
        let same =
            source.bits == place.bits && source.whole_bytes() && place.whole_bytes() && !source.variable;
        // Loads and stores are as fast for what fits a register.
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

    fn held_slot(&self, register: RegisterId) -> Option<u8> {
        let at = self.held.iter().position(|held| *held == register)?;
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
        place: &Place,
        register: RegisterId,
        index: &Data,
    ) -> Result<bool, LowerError> {
        let (Place::Field(field), Some(held)) = (place, self.held_slot(register)) else {
            return Ok(false);
        };
        if !self.narrow_register(register) {
            return self.wide_register_read(*field, held, index);
        }
        if self.stores_narrow(*field).is_none() {
            return Ok(false);
        }
        let Some(index) = self.narrow(index, Want::Exact)? else {
            return Ok(false);
        };
        let r = self.r()?;
        let missing = self.label()?;
        self.emit(Op::RegisterRead {
            r,
            index,
            held,
            missing: Self::to(missing),
        });
        self.store(*field, r);
        self.bind(missing)?;
        Ok(true)
    }

    /// Into a field that takes what it is given, cut to its width.
    fn wide_register_read(&mut self, field: FieldRef, held: u8, index: &Data) -> Result<bool, LowerError> {
        let place = self.layout.field(field);
        let Some(place) = place.filter(|place| !place.variable && !place.saturating) else {
            return Ok(false);
        };
        let Some(index) = self.narrow(index, Want::Exact)? else {
            return Ok(false);
        };
        self.emit(Op::CellRead {
            index,
            held,
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
        let (Some(held), true) = (self.held_slot(register), self.narrow_register(register)) else {
            return Ok(false);
        };
        let bits = self
            .program
            .registers
            .get(register.index())
            .map_or(64, |array| array.bits);
        let (Some(index), Some(r)) = (
            self.narrow(index, Want::Exact)?,
            self.narrow(value, Want::Low(bits))?,
        ) else {
            return Ok(false);
        };
        self.emit(Op::RegisterWrite { r, index, held });
        Ok(true)
    }

    fn meter(
        &mut self,
        meter: crate::program::ids::MeterId,
        index: &Data,
        place: &Place,
    ) -> Result<bool, LowerError> {
        let (Place::Field(field), Ok(meter)) = (place, u16::try_from(meter.0)) else {
            return Ok(false);
        };
        if self.stores_narrow(*field).is_none() {
            return Ok(false);
        }
        let Some(index) = self.narrow(index, Want::Exact)? else {
            return Ok(false);
        };
        let r = self.r()?;
        let missing = self.label()?;
        self.emit(Op::Meter {
            r,
            index,
            meter,
            missing: Self::to(missing),
        });
        self.store(*field, r);
        self.bind(missing)?;
        Ok(true)
    }

    fn hash(
        &mut self,
        target: &Place,
        base: &Data,
        calculation: u32,
        size: &Data,
    ) -> Result<bool, LowerError> {
        let Place::Field(field) = target else {
            return Ok(false);
        };
        if self.stores_narrow(*field).is_none() {
            return Ok(false);
        }
        // BMv2 reads both as 64 bits and adds in 64 bits.
        let (Some(base), Some(size)) = (
            self.narrow(base, Want::Low(64))?,
            self.narrow(size, Want::Low(64))?,
        ) else {
            return Ok(false);
        };
        let (hash, one, r) = (self.r()?, self.r()?, self.r()?);
        let nonzero = self.label()?;
        self.emit(Op::Hash { r: hash, calculation });
        self.emit(Op::Move { r: one, a: size });
        self.emit(Op::BranchNe {
            a: one,
            to: Self::to(nonzero),
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

    fn random(&mut self, place: &Place, low: &Data, high: &Data) -> Result<bool, LowerError> {
        let Place::Field(field) = place else {
            return Ok(false);
        };
        if self.stores_narrow(*field).is_none() {
            return Ok(false);
        }
        let (Some(low), Some(high)) = (
            self.narrow(low, Want::Low(64))?,
            self.narrow(high, Want::Low(64))?,
        ) else {
            return Ok(false);
        };
        let r = self.r()?;
        let missing = self.label()?;
        self.emit(Op::Random {
            r,
            low,
            high,
            missing: Self::to(missing),
        });
        self.store(*field, r);
        self.bind(missing)?;
        Ok(true)
    }
}

/// A constant as the bytes of a field of whole bytes.
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

/// The register arrays that statements touch, in order.
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
            Statement::Assign(Place::Register(register, _), _) => {
                found.insert(*register);
            }
            _ => {}
        }
    }
    found
}
