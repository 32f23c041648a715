//! Lowering of statements and actions.

use std::collections::BTreeSet;

use num_bigint::BigInt;

use super::access;
use super::builder::{Builder, Label, LowerError};
use super::value::{Precision, Reg, narrow_store};
use crate::executable::op::{Alu, Op, PacketRequest, R};
use crate::executable::{ActionCode, layout_args};
use crate::layout;
use crate::program::action::{Action, CloneKind, LValue, Statement};
use crate::program::expr::{Bool, Data};
use crate::program::ids::{FieldRef, RegisterId};

impl Builder<'_> {
    /// Lowers an action.
    pub fn action(&mut self, action: &Action) -> Result<ActionCode, LowerError> {
        self.context = format!("action {}", action.name);
        self.params = action.params.iter().map(|param| param.bits).collect();
        let (args, arg_bytes) = layout_args(self.params.iter().copied());
        self.args = args.iter().map(|(offset, _)| *offset).collect();
        let start = self.current_pc()?;
        self.locked_registers = registers_of(&action.body).into_iter().collect();
        if !self.locked_registers.is_empty() {
            let registers = self.locked_registers.clone();
            let set = self.lock_set(&registers)?;
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
        let backward_targets: BTreeSet<u32> = body
            .iter()
            .zip(0u32..)
            .filter_map(|(statement, index)| match statement {
                Statement::Jump(to) | Statement::JumpIfZero(_, to) if *to <= index => Some(*to),
                _ => None,
            })
            .collect();
        for (index, (statement, label)) in (0u32..).zip(body.iter().zip(&labels)) {
            self.bind(*label)?;
            if backward_targets.contains(&index) {
                self.emit(Op::Fuel);
            }
            let allocation = self.allocation();
            self.statement(statement, &labels)?;
            self.release(allocation);
        }
        match labels.last() {
            Some(end) => self.bind(*end),
            None => Ok(()),
        }
    }

    fn statement(&mut self, statement: &Statement, labels: &[Label]) -> Result<(), LowerError> {
        let label = |to: u32| {
            let label = labels.get(to as usize).copied();
            label.ok_or_else(|| LowerError::UnresolvedReference("jump target".to_owned()))
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
        let is_lowered = match statement {
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
            Statement::RegisterRead(target, register, index) => {
                self.register_read(target, *register, index)?
            }
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
            Statement::Meter(meter, index, target) => self.meter(*meter, index, target)?,
            Statement::Hash {
                target,
                base,
                calculation,
                size,
            } => self.hash(target, base, calculation.0, size)?,
            Statement::Random(target, low, high) => self.random(target, low, high)?,
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
        if !is_lowered {
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
        let Some(header_layout) = self.layout.header(header) else {
            return false;
        };
        // Unions and variable-length fields are rare and are executed as trees.
        if header_layout.union.is_some() || header_layout.variable.is_some() || header_layout.metadata {
            return false;
        }
        self.emit(match valid {
            true => Op::AddHeader { header: header.0 },
            false => Op::RemoveHeader { header: header.0 },
        });
        true
    }

    /// Returns the layout of a field that a plain store supports: at most 64 bits, including the bits below the field in its
    /// last byte.
    fn plain_store_layout(&self, field: FieldRef) -> Option<layout::FieldLayout> {
        let field_layout = self.layout.field(field)?;
        let is_supported = !field_layout.variable
            && !field_layout.saturating
            && field_layout.bits + u32::from(field_layout.shift) <= 64;
        is_supported.then_some(field_layout)
    }

    /// Emits a store of a register's low bits in a field; false if a plain store is not possible.
    pub fn store(&mut self, field: FieldRef, r: R) -> bool {
        match self.plain_store_layout(field) {
            Some(field_layout) => {
                self.emit(narrow_store(r, field_layout));
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

    /// Emits a store of an action argument in a field that consists of whole bytes or has 8 bytes of its own; false if not
    /// possible.
    fn store_arg(&mut self, field_layout: layout::FieldLayout, value: &Data) -> bool {
        let Data::Param(param) = value else { return false };
        let (Some(width), Some(arg)) = (
            self.params.get(*param as usize),
            self.args.get(*param as usize).copied(),
        ) else {
            return false;
        };
        if *width > 64 || field_layout.bits > 64 {
            return false;
        }
        let op = if field_layout.has_own_word {
            Op::StoreArg {
                arg,
                at: field_layout.end - 8,
                bits: field_layout.bits as u8,
            }
        } else if field_layout.whole_bytes() {
            Op::CopyArg {
                arg,
                at: field_layout.start(),
                bytes: (field_layout.bits / 8) as u8,
            }
        } else {
            return false;
        };
        self.emit(op);
        true
    }

    /// Emits an assignment to a field; false if only a tree supports it.
    pub fn assign(&mut self, field: FieldRef, value: &Data) -> Result<bool, LowerError> {
        let Some(field_layout) = self.layout.field(field) else {
            return Ok(false);
        };
        if field_layout.variable || field_layout.saturating {
            return Ok(false);
        }
        if self.copy(field, field_layout, value) || self.store_arg(field_layout, value) {
            return Ok(true);
        }
        let span = field_layout.bits + u32::from(field_layout.shift);
        if span <= 64 {
            let first = self.code.len();
            let Some(r) = self.narrow(value, Precision::Low(field_layout.bits))? else {
                return Ok(false);
            };
            self.emit(narrow_store(r, field_layout));
            self.merge_byte_addition(first);
            return Ok(true);
        }
        if let Data::Const(value) = value
            && field_layout.whole_bytes()
        {
            let constant = self.byte_constant(constant_bytes(value, field_layout.bits))?;
            self.emit(Op::Fill {
                at: field_layout.start(),
                constant,
            });
            return Ok(true);
        }
        if span > 128 {
            return Ok(false);
        }
        let Some(reg) = self.value(value, Precision::Low(field_layout.bits))? else {
            return Ok(false);
        };
        let w = match reg {
            Reg::Wide(w) => w,
            Reg::Narrow(a) => {
                let signed = self.range(value).is_some_and(|range| range.is_negative());
                let w = self.alloc_w()?;
                self.emit(Op::Widen { w, a, signed });
                w
            }
        };
        self.emit(Op::WideStore {
            w,
            at: field_layout.end - 16,
            shift: field_layout.shift,
            bits: field_layout.bits as u8,
        });
        Ok(true)
    }

    /// Emits a byte copy between fields of whole bytes; false if a copy is not possible or not faster.
    fn copy(&mut self, to: FieldRef, target: layout::FieldLayout, value: &Data) -> bool {
        let Data::Field(from) = value else { return false };
        let Some(source) = self.layout.field(*from) else {
            return false;
        };
        let is_byte_copy =
            source.bits == target.bits && source.whole_bytes() && target.whole_bytes() && !source.variable;
        // For values that fit in a register, a load and a store are as fast.
        if !is_byte_copy || target.bits <= 64 || to == *from {
            return false;
        }
        self.emit(Op::Copy {
            from: source.start(),
            to: target.start(),
            bytes: target.bits / 8,
        });
        true
    }

    fn lock_index(&self, register: RegisterId) -> Option<u8> {
        let index = self
            .locked_registers
            .iter()
            .position(|locked| *locked == register)?;
        u8::try_from(index).ok()
    }

    fn has_narrow_cells(&self, register: RegisterId) -> bool {
        self.program
            .registers
            .get(register.index())
            .is_some_and(|array| array.bits <= 64)
    }

    fn register_read(
        &mut self,
        target: &LValue,
        register: RegisterId,
        index: &Data,
    ) -> Result<bool, LowerError> {
        let (LValue::Field(field), Some(lock_index)) = (target, self.lock_index(register)) else {
            return Ok(false);
        };
        if !self.has_narrow_cells(register) {
            return self.wide_register_read(*field, lock_index, index);
        }
        if self.plain_store_layout(*field).is_none() {
            return Ok(false);
        }
        let Some(index) = self.narrow(index, Precision::Exact)? else {
            return Ok(false);
        };
        let r = self.alloc_r()?;
        let missing = self.label()?;
        self.emit(Op::RegisterRead {
            r,
            index,
            lock_index,
            missing: Self::label_pc(missing),
        });
        self.store(*field, r);
        self.bind(missing)?;
        Ok(true)
    }

    /// Emits a read of a register cell wider than 64 bits: the field keeps the low bits; false if not possible.
    fn wide_register_read(
        &mut self,
        field: FieldRef,
        lock_index: u8,
        index: &Data,
    ) -> Result<bool, LowerError> {
        let field_layout = self.layout.field(field);
        let Some(field_layout) =
            field_layout.filter(|field_layout| !field_layout.variable && !field_layout.saturating)
        else {
            return Ok(false);
        };
        let Some(index) = self.narrow(index, Precision::Exact)? else {
            return Ok(false);
        };
        self.emit(Op::CellRead {
            index,
            lock_index,
            bit: field_layout.end * 8 - u32::from(field_layout.shift) - field_layout.bits,
            bits: field_layout.bits,
        });
        Ok(true)
    }

    fn register_write(
        &mut self,
        register: RegisterId,
        index: &Data,
        value: &Data,
    ) -> Result<bool, LowerError> {
        let (Some(lock_index), true) = (self.lock_index(register), self.has_narrow_cells(register)) else {
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
        self.emit(Op::RegisterWrite { r, index, lock_index });
        Ok(true)
    }

    fn meter(
        &mut self,
        meter: crate::program::ids::MeterId,
        index: &Data,
        target: &LValue,
    ) -> Result<bool, LowerError> {
        let (LValue::Field(field), Ok(meter)) = (target, u16::try_from(meter.0)) else {
            return Ok(false);
        };
        if self.plain_store_layout(*field).is_none() {
            return Ok(false);
        }
        let Some(index) = self.narrow(index, Precision::Exact)? else {
            return Ok(false);
        };
        let r = self.alloc_r()?;
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
        if self.plain_store_layout(*field).is_none() {
            return Ok(false);
        }
        // BMv2 reads base and size as 64 bits and adds in 64 bits.
        let (Some(base), Some(size)) = (
            self.narrow(base, Precision::Low(64))?,
            self.narrow(size, Precision::Low(64))?,
        ) else {
            return Ok(false);
        };
        let (hash, divisor, r) = (self.alloc_r()?, self.alloc_r()?, self.alloc_r()?);
        let nonzero = self.label()?;
        self.emit(Op::Hash { r: hash, calculation });
        self.emit(Op::Move { r: divisor, a: size });
        self.emit(Op::BranchNe {
            a: divisor,
            to: Self::label_pc(nonzero),
            value: 0,
        });
        self.emit(Op::Const { r: divisor, value: 1 });
        self.bind(nonzero)?;
        self.emit(Op::Alu {
            op: Alu::Mod,
            r,
            a: hash,
            b: divisor,
        });
        self.emit(Op::Alu {
            op: Alu::Add,
            r,
            a: r,
            b: base,
        });
        Ok(self.store(*field, r))
    }

    fn random(&mut self, target: &LValue, low: &Data, high: &Data) -> Result<bool, LowerError> {
        let LValue::Field(field) = target else {
            return Ok(false);
        };
        if self.plain_store_layout(*field).is_none() {
            return Ok(false);
        }
        let (Some(low), Some(high)) = (
            self.narrow(low, Precision::Low(64))?,
            self.narrow(high, Precision::Low(64))?,
        ) else {
            return Ok(false);
        };
        let r = self.alloc_r()?;
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

/// Returns the register arrays that the statements access, in the order of ids.
pub fn registers_of(body: &[Statement]) -> BTreeSet<RegisterId> {
    let mut registers = BTreeSet::new();
    for statement in body {
        super::walk::statement(statement, &mut |data| {
            if let Data::Register(register, _) = data {
                registers.insert(*register);
            }
        });
        match statement {
            Statement::RegisterRead(_, register, _) | Statement::RegisterWrite(register, ..) => {
                registers.insert(*register);
            }
            Statement::Assign(LValue::Register(register, _), _) => {
                registers.insert(*register);
            }
            _ => {}
        }
    }
    registers
}
