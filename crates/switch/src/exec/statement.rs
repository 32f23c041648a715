//! Execution of statements as trees.

use num_bigint::{BigInt, BigUint};
use num_traits::{Signed, ToPrimitive, Zero};

use super::field_access::read_wide;
use super::machine::Machine;
use crate::executable::number::low64;
use crate::executable::op::PacketRequest;
use crate::externs::Registers;
use crate::program::action::{AnyStack, FieldSource, LValue, Statement};
use crate::program::expr::Data;
use crate::program::ids::{FieldRef, HeaderId, RegisterId, StackId, UnionId, UnionStackId};

impl Machine<'_> {
    /// Executes a statement that is not a jump.
    pub(super) fn statement(&mut self, statement: &Statement) {
        match statement {
            Statement::Assign(target, value) => {
                let value = self.data(value);
                self.store(target, &value);
            }
            Statement::AssignVl(to, from) => self.assign_variable(to, from),
            Statement::AssignHeader(to, from) => {
                if let (Some(to), from) = (self.header(to), self.header(from)) {
                    self.assign_header(to, from);
                }
            }
            Statement::AssignUnion(to, from) => {
                let (to, from) = (self.union(to), self.union(from));
                if let Some(to) = to {
                    self.assign_union(to, from);
                }
            }
            Statement::AssignStack(to, from) => self.assign_stack(*to, *from),
            Statement::AssignUnionStack(to, from) => self.assign_union_stack(*to, *from),
            Statement::Push(stack, count) => {
                let count = self.count(count);
                self.shift(*stack, count, true);
            }
            Statement::Pop(stack, count) => {
                let count = self.count(count);
                self.shift(*stack, count, false);
            }
            Statement::AddHeader(header) => {
                if let Some(header) = self.header(header) {
                    self.validate(header);
                }
            }
            Statement::RemoveHeader(header) => {
                if let Some(header) = self.header(header).filter(|header| self.is_valid(*header)) {
                    self.context.length -= i64::from(self.header_bytes(header));
                    self.set_valid(header, false);
                }
            }
            Statement::Drop => self.drop_packet(),
            Statement::MarkToDrop(header) => self.mark_to_drop(*header),
            Statement::Exit => self.context.exit = true,
            Statement::LogMsg(format, values) => self.log(format, values),
            Statement::Hash {
                target,
                base,
                calculation,
                size,
            } => {
                let (base, size) = (low64(&self.data(base)), low64(&self.data(size)).max(1));
                let value = (self.hash(calculation.index()) % size).wrapping_add(base);
                self.store(target, &BigInt::from(value));
            }
            Statement::Count(counter, index) => {
                if let Some(index) = self.data(index).to_u64()
                    && let Some(counter) = self.environment.externs.counter(*counter, index)
                {
                    counter.count(self.context.ingress_length);
                }
            }
            Statement::Meter(meter, index, target) => {
                if let Some(index) = self.data(index).to_u64()
                    && let Some(color) = self.meter(*meter, index)
                {
                    self.store(target, &BigInt::from(color));
                }
            }
            Statement::RegisterRead(target, register, index) => {
                if let Some(index) = self.data(index).to_u64() {
                    self.read_cell(target, *register, index);
                }
            }
            Statement::RegisterWrite(register, index, value) => {
                let (index, value) = (self.data(index), self.data(value));
                self.set_cell(*register, &index, &value);
            }
            Statement::Random(target, low, high) => {
                let (low, high) = (low64(&self.data(low)), low64(&self.data(high)));
                if low <= high {
                    let value = self.random.between(low, high);
                    self.store(target, &BigInt::from(value));
                }
            }
            Statement::Clone(_, session, list) => {
                let (session, list) = (low64(&self.data(session)), low64(&self.data(list)));
                self.request(PacketRequest::Clone, session, list);
            }
            Statement::Resubmit(list) => self.request_one(PacketRequest::Resubmit, list),
            Statement::Recirculate(list) => self.request_one(PacketRequest::Recirculate, list),
            Statement::Digest(number) => self.request_one(PacketRequest::Digest, number),
            Statement::Truncate(bytes) => self.request_one(PacketRequest::Truncate, bytes),
            Statement::Assert(value) => {
                let holds = !self.data(value).is_zero();
                self.request(PacketRequest::Assert, u64::from(holds), 0);
            }
            Statement::Jump(_) | Statement::JumpIfZero(..) | Statement::Noop => {}
        }
    }

    fn request_one(&mut self, request: PacketRequest, value: &Data) {
        let value = low64(&self.data(value));
        self.request(request, value, 0);
    }

    /// Evaluates a number of stack elements; negative values count as 0.
    fn count(&mut self, data: &Data) -> usize {
        let value = self.data(data);
        if value.is_negative() {
            0
        } else {
            value.to_usize().unwrap_or(usize::MAX)
        }
    }

    fn store(&mut self, target: &LValue, value: &BigInt) {
        match target {
            LValue::Field(field) => self.set_field(field.header, field.field, value),
            LValue::Access(header, field) => {
                if let Some(header) = self.header(header) {
                    self.set_field(header, *field, value);
                }
            }
            LValue::Register(register, index) => {
                let index = self.data(index);
                self.set_cell(*register, &index, value);
            }
        }
    }

    /// Stores the value of a register cell in `target`; does nothing if the cell does not exist.
    fn read_cell(&mut self, target: &LValue, id: RegisterId, index: u64) {
        let target_bits = match target {
            LValue::Field(field) => self.plain_bits(*field),
            _ => None,
        };
        // Values that need no arithmetic are copied from memory to memory.
        if let Some((start, bits)) = target_bits {
            let arena = &mut self.context.arena;
            let mut copy_cell = |array: &Registers| read_wide(array, index, arena, start, bits);
            let is_copied = match self.locked_registers.iter().find(|(locked, _)| *locked == id) {
                Some((_, array)) => copy_cell(array),
                None => self
                    .environment
                    .externs
                    .registers(id)
                    .is_some_and(|array| copy_cell(&array)),
            };
            if is_copied {
                return;
            }
        }
        if let Some(value) = self.cell(id, index) {
            self.store(target, &BigInt::from(value));
        }
    }

    /// Returns start and width in bits of a field that truncates stored values; `None` for other fields.
    fn plain_bits(&self, field: FieldRef) -> Option<(usize, usize)> {
        let layout = self
            .header_layout(field.header)?
            .fields
            .get(field.field as usize)?;
        let start = layout.end as usize * 8 - usize::from(layout.shift) - layout.bits as usize;
        (!layout.variable && !layout.saturating).then_some((start, layout.bits as usize))
    }

    fn cell(&mut self, id: RegisterId, index: u64) -> Option<BigUint> {
        match self.locked_registers.iter().find(|(locked, _)| *locked == id) {
            Some((_, array)) => array.get(index),
            None => self.environment.externs.registers(id)?.get(index),
        }
    }

    fn set_cell(&mut self, id: RegisterId, index: &BigInt, value: &BigInt) {
        let Some(index) = index.to_u64() else { return };
        let bits = self
            .environment
            .executable
            .program
            .registers
            .get(id.index())
            .map_or(1, |array| array.bits);
        let low: BigInt = value & ((BigInt::from(1) << bits) - 1);
        let low = low.to_biguint().unwrap_or_default();
        match self.locked_registers.iter_mut().find(|(locked, _)| *locked == id) {
            Some((_, array)) => {
                array.set(index, &low);
            }
            None => {
                if let Some(mut array) = self.environment.externs.registers(id) {
                    array.set(index, &low);
                }
            }
        }
    }

    /// Makes a header valid; sets all fields to 0 if the header was invalid.
    fn validate(&mut self, header: HeaderId) {
        if self.is_valid(header) {
            return;
        }
        let Some(layout) = self.environment.executable.layout.headers.get(header.index()) else {
            return;
        };
        let range = layout.start as usize..(layout.start + layout.bytes) as usize;
        if let Some(bytes) = self.context.arena.get_mut(range) {
            bytes.fill(0);
        }
        if let Some(variable) = layout.variable {
            let range = variable.bytes as usize..(variable.bytes + variable.bits_max.div_ceil(8)) as usize;
            if let Some(bytes) = self.context.arena.get_mut(range) {
                bytes.fill(0);
            }
        }
        self.set_valid(header, true);
        self.context.length += i64::from(self.header_bytes(header));
    }

    fn assign_variable(&mut self, to: &FieldSource, from: &FieldSource) {
        let Some(target) = self.header(&to.header) else {
            return;
        };
        // The field of an element outside of the stack is empty.
        let source = self.header(&from.header);
        let bits = source.map_or(0, |source| self.variable_bits(source));
        let value = source.map_or_else(BigInt::zero, |source| self.field(source, from.field));
        self.set_variable_bits(target, bits);
        self.set_field(target, to.field, &value);
    }

    fn assign_header(&mut self, to: HeaderId, from: Option<HeaderId>) {
        let Some(from) = from.filter(|from| self.is_valid(*from)) else {
            self.set_valid(to, false);
            return;
        };
        self.set_valid(to, true);
        self.copy_fields(to, from);
    }

    fn copy_fields(&mut self, to: HeaderId, from: HeaderId) {
        if to == from {
            return;
        }
        let layout = &self.environment.executable.layout;
        let (Some(target), Some(source)) = (layout.header(to), layout.header(from)) else {
            return;
        };
        if target.metadata == source.metadata && target.bytes == source.bytes {
            let range = source.start as usize..(source.start + source.bytes) as usize;
            if range.end <= self.context.arena.len() {
                self.context.arena.copy_within(range, target.start as usize);
            }
        } else {
            let fields = source.fields.len().saturating_sub(1);
            for field in (0u32..).take(fields) {
                let value = self.field(from, field);
                self.set_field(to, field, &value);
            }
        }
        if let (Some(_), Some(variable)) = (target.variable, source.variable) {
            let bits = self.variable_bits(from);
            let value = self.field(from, variable.field);
            self.set_variable_bits(to, bits);
            self.set_field(to, variable.field, &value);
        }
    }

    /// Copies a union member by member. `None`, an element outside of the stack, counts as a union without a valid member.
    fn assign_union(&mut self, to: UnionId, from: Option<UnionId>) {
        let program = &self.environment.executable.program;
        let source = from.and_then(|from| program.unions.get(from.index()));
        let Some(target) = program.unions.get(to.index()) else {
            return;
        };
        for (index, to) in target.headers.iter().enumerate() {
            let from = source.and_then(|source| source.headers.get(index));
            self.assign_header(*to, from.copied());
        }
    }

    fn assign_stack(&mut self, to: StackId, from: StackId) {
        let program = &self.environment.executable.program;
        let (Some(target), Some(source)) = (program.stacks.get(to.index()), program.stacks.get(from.index()))
        else {
            return;
        };
        let count = self.stack_count(from);
        self.set_stack_count(to, count);
        for (to, from) in target.headers.iter().zip(&source.headers) {
            self.assign_header(*to, Some(*from));
        }
    }

    fn assign_union_stack(&mut self, to: UnionStackId, from: UnionStackId) {
        let program = &self.environment.executable.program;
        let (Some(target), Some(source)) = (
            program.union_stacks.get(to.index()),
            program.union_stacks.get(from.index()),
        ) else {
            return;
        };
        let count = self.union_stack_count(from);
        self.set_union_stack_count(to, count);
        for (to, from) in target.unions.iter().zip(&source.unions) {
            self.assign_union(*to, Some(*from));
        }
    }

    pub(super) fn union_stack_count(&self, stack: UnionStackId) -> u16 {
        let offset = self.environment.executable.layout.union_stack(stack);
        offset.map_or(0, |offset| super::bits::load2(&self.context.arena, offset))
    }

    pub(super) fn set_union_stack_count(&mut self, stack: UnionStackId, count: u16) {
        if let Some(offset) = self.environment.executable.layout.union_stack(stack) {
            super::bits::store2(&mut self.context.arena, offset, count);
        }
    }

    /// Shifts stack elements to the back (`push`) or front; freed elements become invalid.
    fn shift(&mut self, stack: AnyStack, count: usize, push: bool) {
        if count == 0 {
            return;
        }
        let program = &self.environment.executable.program;
        let elements: Vec<Vec<HeaderId>> = match stack {
            AnyStack::Headers(id) => {
                let Some(stack) = program.stacks.get(id.index()) else {
                    return;
                };
                stack.headers.iter().map(|header| vec![*header]).collect()
            }
            AnyStack::Unions(id) => {
                let Some(stack) = program.union_stacks.get(id.index()) else {
                    return;
                };
                let headers = |union: &UnionId| {
                    program
                        .unions
                        .get(union.index())
                        .map(|union| union.headers.clone())
                };
                stack.unions.iter().filter_map(headers).collect()
            }
        };
        let size = elements.len();
        let count_before = match stack {
            AnyStack::Headers(id) => usize::from(self.stack_count(id)),
            AnyStack::Unions(id) => usize::from(self.union_stack_count(id)),
        };
        let distance = count.min(size);
        let order: Vec<usize> = match push {
            true => (distance..size).rev().collect(),
            false => (0..size - distance).collect(),
        };
        for index in order {
            let from = if push { index - distance } else { index + distance };
            if let (Some(to), Some(from)) = (elements.get(index), elements.get(from)) {
                for (to, from) in to.iter().zip(from) {
                    self.swap(*to, *from);
                }
            }
        }
        let freed = if push { 0..distance } else { size - distance..size };
        for element in elements.get(freed).unwrap_or(&[]) {
            for header in element {
                self.set_valid(*header, false);
            }
        }
        let count = if push {
            size.min(count_before.saturating_add(count))
        } else {
            count_before.saturating_sub(count)
        };
        let count = u16::try_from(count).unwrap_or(u16::MAX);
        match stack {
            AnyStack::Headers(id) => self.set_stack_count(id, count),
            AnyStack::Unions(id) => self.set_union_stack_count(id, count),
        }
    }

    /// Exchanges two headers of the same type.
    fn swap(&mut self, a: HeaderId, b: HeaderId) {
        let layout = &self.environment.executable.layout;
        let (Some(first), Some(second)) = (layout.header(a), layout.header(b)) else {
            return;
        };
        let arena = &mut self.context.arena;
        let mut exchange = |a: u32, b: u32, bytes: u32| {
            for index in 0..bytes {
                let (a, b) = ((a + index) as usize, (b + index) as usize);
                if a < arena.len() && b < arena.len() {
                    arena.swap(a, b);
                }
            }
        };
        exchange(first.valid, second.valid, 1);
        exchange(first.start, second.start, first.bytes.min(second.bytes));
        if let (Some(a), Some(b)) = (first.variable, second.variable) {
            exchange(a.length, b.length, 4);
            exchange(a.bytes, b.bytes, a.bits_max.min(b.bits_max).div_ceil(8));
        }
    }

    /// `drop` of P4_14: uses the fields of the standard metadata.
    fn drop_packet(&mut self) {
        let standard = self.environment.executable.standard_metadata;
        self.store_field(standard.egress_spec, u64::from(self.environment.drop_port));
        if let Some(group) = standard.mcast_grp {
            self.store_field(group, 0);
        }
    }

    /// `mark_to_drop`: uses the fields of the given header.
    pub(super) fn mark_to_drop(&mut self, header: HeaderId) {
        let executable = self.environment.executable;
        let Some(header_type) = executable.program.type_of(header) else {
            return;
        };
        let drop_port = BigInt::from(self.environment.drop_port);
        if let Some(field) = header_type.field("egress_spec") {
            self.set_field(header, field, &drop_port);
            if let Some(group) = header_type.field("mcast_grp") {
                self.set_field(header, group, &BigInt::zero());
            }
        }
    }

    fn log(&mut self, format: &str, values: &[Data]) {
        let mut line = String::new();
        let mut values = values.iter();
        let mut rest = format;
        while let Some(position) = rest.find("{}") {
            let (before, after) = rest.split_at(position);
            line.push_str(before);
            match values.next() {
                Some(value) => line.push_str(&self.data(value).to_string()),
                None => line.push_str("{}"),
            }
            rest = after.get(2..).unwrap_or("");
        }
        line.push_str(rest);
        tracing::info!(target: "linewarden::switch::program", "{line}");
    }
}
