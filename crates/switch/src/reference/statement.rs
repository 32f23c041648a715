//! Statements and actions.

use num_bigint::{BigInt, Sign};
use num_traits::{ToPrimitive, Zero};

use super::eval::{self, Scope};
use super::number;
use super::state::Packet;
use super::{DropReason, Interpreter, checksum};
use crate::meter::{Color, Meter, MeterKind};
use crate::program::MeterUnit;
use crate::program::action::{Action, AnyStack, FieldSource, LValue, Statement};
use crate::program::expr::Data;
use crate::program::ids::{FieldRef, HeaderId, MeterId};
use crate::tables::EntryState;

/// Next statement of an action.
enum Flow {
    Next,
    Jump(u32),
}

impl<'a> Interpreter<'a> {
    /// Scope for the evaluation of expressions.
    pub(super) fn scope<'s>(&'s self, packet: &'s Packet<'a>, args: &'s [BigInt]) -> Scope<'s, 'a> {
        Scope {
            headers: &packet.headers,
            externs: self.externs,
            args,
        }
    }

    /// Runs an action with the arguments of a table entry.
    pub(super) fn action(
        &mut self,
        packet: &mut Packet<'a>,
        action: &Action,
        data: &[u8],
    ) -> Result<(), DropReason> {
        let (locations, _) = crate::executable::layout_args(action.params.iter().map(|param| param.bits));
        let args: Vec<BigInt> = locations
            .iter()
            .map(|(offset, bytes)| {
                let end = offset.saturating_add(*bytes) as usize;
                number::from_bytes(data.get(*offset as usize..end).unwrap_or_default())
            })
            .collect();
        self.statements(packet, &action.body, &args)
    }

    /// Runs a list of statements.
    pub(super) fn statements(
        &mut self,
        packet: &mut Packet<'a>,
        body: &[Statement],
        args: &[BigInt],
    ) -> Result<(), DropReason> {
        let mut index = 0;
        while let Some(statement) = body.get(index) {
            step(packet)?;
            index = match self.statement(packet, statement, args)? {
                Flow::Next => index + 1,
                Flow::Jump(to) => to as usize,
            };
        }
        Ok(())
    }

    fn statement(
        &mut self,
        packet: &mut Packet<'a>,
        statement: &Statement,
        args: &[BigInt],
    ) -> Result<Flow, DropReason> {
        match statement {
            Statement::Jump(to) => return Ok(Flow::Jump(*to)),
            Statement::JumpIfZero(value, to) => {
                if self.scope(packet, args).data(value).is_zero() {
                    return Ok(Flow::Jump(*to));
                }
            }
            Statement::Assert(value) => {
                if self.scope(packet, args).data(value).is_zero() {
                    return Err(DropReason::Assertion);
                }
            }
            Statement::Exit => packet.exit = true,
            Statement::LogMsg(..) | Statement::Noop => {}
            Statement::Assign(..)
            | Statement::AssignVl(..)
            | Statement::AssignHeader(..)
            | Statement::AssignUnion(..)
            | Statement::AssignStack(..)
            | Statement::AssignUnionStack(..)
            | Statement::Push(..)
            | Statement::Pop(..)
            | Statement::AddHeader(_)
            | Statement::RemoveHeader(_) => self.header_statement(packet, statement, args),
            Statement::Hash { .. }
            | Statement::Count(..)
            | Statement::Meter(..)
            | Statement::RegisterRead(..)
            | Statement::RegisterWrite(..)
            | Statement::Random(..) => self.extern_statement(packet, statement, args),
            Statement::Drop
            | Statement::MarkToDrop(_)
            | Statement::Digest(_)
            | Statement::Clone(..)
            | Statement::Resubmit(_)
            | Statement::Recirculate(_)
            | Statement::Truncate(_) => self.traffic_statement(packet, statement, args),
        }
        Ok(Flow::Next)
    }

    fn header_statement(&mut self, packet: &mut Packet<'a>, statement: &Statement, args: &[BigInt]) {
        let scope = self.scope(packet, args);
        match statement {
            Statement::Assign(target, value) => {
                let value = scope.data(value);
                self.store(packet, args, target, &value);
            }
            Statement::AssignVl(to, from) => {
                let (to, from) = (source(&scope, to), source(&scope, from));
                packet.headers.assign_variable(to, from);
            }
            Statement::AssignHeader(to, from) => {
                let (to, from) = (scope.header(to), scope.header(from));
                packet.headers.assign_header(to, from);
            }
            Statement::AssignUnion(to, from) => {
                let (to, from) = (scope.union(to), scope.union(from));
                packet.headers.assign_union(to, from);
            }
            Statement::AssignStack(to, from) => packet.headers.assign_stack(*to, *from),
            Statement::AssignUnionStack(to, from) => packet.headers.assign_union_stack(*to, *from),
            Statement::Push(stack, distance) => {
                let distance = elements(&scope.data(distance));
                match stack {
                    AnyStack::Headers(stack) => packet.headers.push(*stack, distance),
                    AnyStack::Unions(stack) => packet.headers.push_unions(*stack, distance),
                }
            }
            Statement::Pop(stack, distance) => {
                let distance = elements(&scope.data(distance));
                match stack {
                    AnyStack::Headers(stack) => packet.headers.pop(*stack, distance),
                    AnyStack::Unions(stack) => packet.headers.pop_unions(*stack, distance),
                }
            }
            Statement::AddHeader(header) => {
                if let Some(header) = scope.header(header)
                    && !packet.headers.is_valid(Some(header))
                {
                    packet.headers.clear(header);
                    packet.headers.mark_valid(header);
                    packet.length = packet.length.wrapping_add(packet.headers.bytes_of(header));
                }
            }
            Statement::RemoveHeader(header) => {
                if let Some(header) = scope.header(header)
                    && packet.headers.is_valid(Some(header))
                {
                    packet.length = packet.length.wrapping_sub(packet.headers.bytes_of(header));
                    packet.headers.mark_invalid(header);
                }
            }
            _ => {}
        }
    }

    fn extern_statement(&mut self, packet: &mut Packet<'a>, statement: &Statement, args: &[BigInt]) {
        let scope = self.scope(packet, args);
        match statement {
            Statement::Hash {
                target,
                base,
                calculation,
                size,
            } => {
                let base = number::low_u64(&scope.data(base));
                let size = number::low_u64(&scope.data(size)).max(1);
                let hash = checksum::output(self.program, self.calculations, packet, *calculation);
                let value = BigInt::from((hash % size).wrapping_add(base));
                self.store(packet, args, target, &value);
            }
            Statement::Count(counter, index) => {
                let index = scope.data(index).to_u64();
                if let Some(counter) = index.and_then(|index| self.externs.counter(*counter, index)) {
                    counter.count(packet.ingress_length);
                }
            }
            Statement::Meter(meter, index, target) => {
                let index = scope.data(index).to_u64();
                if let Some(color) = index.and_then(|index| self.color(packet, *meter, index)) {
                    self.store(packet, args, target, &color);
                }
            }
            Statement::RegisterRead(target, register, index) => {
                if let Some(cell) = eval::register_cell(self.externs, *register, &scope.data(index)) {
                    self.store(packet, args, target, &cell);
                }
            }
            Statement::RegisterWrite(register, index, value) => {
                let cell_target = LValue::Register(*register, index.clone());
                let value = scope.data(value);
                self.store(packet, args, &cell_target, &value);
            }
            Statement::Random(target, low, high) => {
                let low = number::low_u64(&scope.data(low));
                let high = number::low_u64(&scope.data(high));
                if low <= high {
                    let value = BigInt::from((self.random)(low, high));
                    self.store(packet, args, target, &value);
                }
            }
            _ => {}
        }
    }

    fn traffic_statement(&mut self, packet: &mut Packet<'a>, statement: &Statement, args: &[BigInt]) {
        let scope = self.scope(packet, args);
        let id = |data: &Data| number::low_u16(&scope.data(data));
        match statement {
            Statement::Drop => {
                self.set_named(packet, "standard_metadata", "egress_spec", self.config.drop_port);
                self.set_named(packet, "intrinsic_metadata", "mcast_grp", 0);
            }
            Statement::MarkToDrop(header) => {
                let has_field = self.set_header_field(packet, *header, "egress_spec", self.config.drop_port);
                if has_field {
                    self.set_header_field(packet, *header, "mcast_grp", 0);
                }
            }
            Statement::Digest(digest) => packet.requests.digest = id(digest),
            Statement::Clone(_, session, list) => {
                packet.requests.clone = Some((id(session) & 0x7fff, id(list)));
            }
            Statement::Resubmit(list) => packet.requests.resubmit = id(list),
            Statement::Recirculate(list) => packet.requests.recirculate = id(list),
            Statement::Truncate(length) => {
                let length = number::low_u64(&scope.data(length)) as usize;
                packet.bytes_max = packet.bytes_max.min(length);
            }
            _ => {}
        }
    }

    /// Color of a packet; `None` if the meter does not exist.
    fn color(&self, packet: &Packet<'a>, id: MeterId, index: u64) -> Option<BigInt> {
        self.execute(packet, id, &mut *self.externs.meter(id, index)?)
    }

    /// Color that the direct meter of a table entry gives a packet.
    pub(super) fn direct_color(
        &self,
        packet: &Packet<'a>,
        id: MeterId,
        state: &EntryState,
    ) -> Option<BigInt> {
        state.meter(|meter| self.execute(packet, id, meter))
    }

    fn execute(&self, packet: &Packet<'a>, id: MeterId, meter: &mut Meter) -> Option<BigInt> {
        let kind = match self.program.meters.get(id.index())?.unit {
            MeterUnit::Packets => MeterKind::Packets,
            MeterUnit::Bytes => MeterKind::Bytes,
        };
        let color = meter.execute(kind, self.now_us, packet.ingress_length, Color::Green);
        Some(BigInt::from(match color {
            Color::Green => 0,
            Color::Yellow => 1,
            Color::Red => 2,
        }))
    }

    fn store(&self, packet: &mut Packet<'a>, args: &[BigInt], target: &LValue, value: &BigInt) {
        let scope = self.scope(packet, args);
        match target {
            LValue::Field(field) => packet.headers.set(*field, value),
            LValue::Access(header, field) => {
                let header = scope.header(header);
                packet.headers.write(header, *field, value);
            }
            LValue::Register(register, index) => {
                let index = scope.data(index);
                let Some(mut registers) = self.externs.registers(*register) else {
                    return;
                };
                if let Some(index) = index.to_u64() {
                    let value = number::low_bits(value, registers.bits());
                    registers.set(index, &value);
                }
            }
        }
    }

    /// Stores a number in a field by name or alias; returns whether the field exists.
    pub(super) fn set_named(
        &self,
        packet: &mut Packet<'a>,
        header: &str,
        field: &str,
        value: impl Into<BigInt>,
    ) -> bool {
        let field = self.program.field_named(header, field);
        if let Some(field) = field {
            packet.headers.set(field, &value.into());
        }
        field.is_some()
    }

    fn set_header_field(&self, packet: &mut Packet<'a>, header: HeaderId, name: &str, value: u32) -> bool {
        let field = self
            .program
            .type_of(header)
            .and_then(|header_type| header_type.field(name));
        if let Some(field) = field {
            packet
                .headers
                .set(FieldRef { header, field }, &BigInt::from(value));
        }
        field.is_some()
    }
}

/// Consumes one step.
pub fn step(packet: &mut Packet<'_>) -> Result<(), DropReason> {
    packet.steps = packet.steps.checked_sub(1).ok_or(DropReason::StepLimit)?;
    Ok(())
}

/// Number of elements of a stack shift.
fn elements(distance: &BigInt) -> usize {
    match distance.sign() {
        Sign::Minus => 0,
        _ => distance.to_usize().unwrap_or(usize::MAX),
    }
}

fn source(scope: &Scope<'_, '_>, source: &FieldSource) -> Option<(HeaderId, u32)> {
    Some((scope.header(&source.header)?, source.field))
}
