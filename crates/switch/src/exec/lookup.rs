//! Table lookups, parser transitions, and parser operations that are executed as trees.

use super::bits::{self, load1};
use super::context::TableContinuation;
use super::machine::Machine;
use crate::executable::number::low64;
use crate::executable::op::Pc;
use crate::executable::plan::{KeyPlan, KeyStep};
use crate::program::ids::{FieldRef, HeaderId, UnionStackId};
use crate::program::parser::{Extract, KeyPart, Match, ParserOp};
use crate::tables::TableId;

impl<'a> Machine<'a> {
    /// Applies a table; returns the next operation.
    pub(super) fn apply(&mut self, table: u32) -> Pc {
        let environment = self.environment;
        let executable = environment.executable;
        let (Some(plan), Some(successors)) = (
            executable.keys.get(table as usize),
            executable.table_successors.get(table as usize),
        ) else {
            return Pc::MAX;
        };
        let id = TableId(table);
        let tables = environment.forwarding.tables();
        let Some(match_table) = tables.table(id) else {
            return successors.no_action;
        };
        let entry = match_table.lookup(self.key(plan));
        let (target, next_by_action) = match entry {
            Some(entry) => {
                if let Some(state) = entry.state() {
                    state.count(self.context.ingress_length);
                    state.record_hit(environment.now_us / 1000);
                    self.direct_meter(table, state);
                }
                (Some(entry.target()), &successors.hit)
            }
            None => (match_table.default_target(), &successors.miss),
        };
        let Some(target) = target else {
            return successors.no_action;
        };
        let call = tables.resolve(id, target, || self.selector_hash(table));
        let Some(call) = call else {
            return successors.no_action;
        };
        let Some(code) = executable.actions.get(call.action.0 as usize) else {
            return successors.no_action;
        };
        let next = next_by_action
            .get(call.action.0 as usize)
            .copied()
            .unwrap_or(successors.no_action);
        let TableContinuation { action_start, next } = self.scratch.predict(
            table,
            TableContinuation {
                action_start: code.start,
                next,
            },
        );
        self.call(next, &call.data, &code.args);
        action_start
    }

    /// Returns the key of a table: a slice of the arena if the key is one byte range without a mask, of a valid header. In other
    /// cases the slice is a copy of the parts.
    fn key(&mut self, plan: &KeyPlan) -> &[u8] {
        let contiguous = match (plan.steps.as_slice(), &plan.mask) {
            ([KeyStep::Copy { valid, at, bytes }], None) => {
                let is_valid = valid.is_none_or(|valid| load1(&self.context.arena, valid) != 0);
                is_valid.then_some(*at as usize..(*at + *bytes) as usize)
            }
            _ => None,
        };
        match contiguous {
            Some(contiguous) => self.context.arena.get(contiguous).unwrap_or(&[]),
            None => {
                self.gather(plan);
                &self.scratch.key
            }
        }
    }

    fn gather(&mut self, plan: &KeyPlan) {
        let key = &mut self.scratch.key;
        key.clear();
        let arena = &self.context.arena;
        for step in &plan.steps {
            let (KeyStep::Copy { valid, .. } | KeyStep::Bits { valid, .. }) = *step;
            if valid.is_some_and(|at| arena.get(at as usize) == Some(&0)) {
                key.resize(key.len() + step.bytes() as usize, 0);
                continue;
            }
            match *step {
                KeyStep::Copy { at, bytes, .. } => {
                    let part = arena.get(at as usize..(at + bytes) as usize).unwrap_or(&[]);
                    key.extend_from_slice(part);
                }
                KeyStep::Bits { bit, bits, .. } if bits <= 64 => {
                    let value = bits::read64(arena, bit as usize, bits as usize).to_be_bytes();
                    key.extend_from_slice(value.get(8 - bits.div_ceil(8) as usize..).unwrap_or(&[]));
                }
                KeyStep::Bits { bit, bits, .. } => {
                    key.extend_from_slice(&bits::read(arena, bit as usize, bits as usize));
                }
            }
        }
        if let Some(mask) = &plan.mask {
            for (byte, mask) in key.iter_mut().zip(mask) {
                *byte &= mask;
            }
        }
    }

    fn direct_meter(&mut self, table: u32, state: &crate::tables::EntryState) {
        let program = &self.environment.executable.program;
        let Some((meter, target)) = program
            .tables
            .get(table as usize)
            .and_then(|table| table.direct_meter)
        else {
            return;
        };
        let kind = self.meter_kind(meter);
        let color = state.meter(|meter| {
            meter.execute(
                kind,
                self.environment.now_us,
                self.context.ingress_length,
                crate::meter::Color::Green,
            )
        });
        self.set_field(
            target.header,
            target.field,
            &num_bigint::BigInt::from(color.value()),
        );
    }

    /// Hash for the member selection in a group of this table.
    fn selector_hash(&mut self, table: u32) -> u32 {
        use crate::program::pipeline::TableKind;
        let program = &self.environment.executable.program;
        let profile = match program.tables.get(table as usize).map(|table| table.kind) {
            Some(TableKind::Selector(profile)) => profile,
            _ => return 0,
        };
        let selector = program
            .profiles
            .get(profile.index())
            .and_then(|profile| profile.selector);
        selector.map_or(0, |calculation| self.hash(calculation.index()) as u32)
    }

    /// Evaluates a select expression with a key of any size; returns the next operation.
    pub(super) fn select(&mut self, index: u32) -> Pc {
        let Some(choice) = self.environment.executable.parser_selects.get(index as usize) else {
            return Pc::MAX;
        };
        let mut key = Vec::new();
        let mut widths = Vec::new();
        for part in &choice.key {
            let (bytes, width) = self.key_part(part);
            key.extend(bytes);
            widths.push(width);
        }
        for (matches, target) in &choice.cases {
            if self.matches(matches, &key, &widths) {
                return *target;
            }
        }
        choice.default
    }

    fn matches(&self, matches: &Match, key: &[u8], widths: &[usize]) -> bool {
        let masked = |mask: Option<&Vec<u8>>| -> Vec<u8> {
            match mask {
                Some(mask) => key.iter().zip(mask).map(|(byte, mask)| byte & mask).collect(),
                None => key.to_vec(),
            }
        };
        match matches {
            Match::Value { value, mask } => masked(mask.as_ref()) == *value,
            Match::ValueSet(id, mask) => {
                let Some(members) = self.environment.forwarding.value_set(*id) else {
                    return false;
                };
                let packed_key = packed(&masked(mask.as_ref()), widths);
                match mask {
                    None => members.contains(&packed_key),
                    Some(mask) => {
                        let mask = packed(mask, widths);
                        members.iter().any(|member| {
                            member.len() == packed_key.len()
                                && member
                                    .iter()
                                    .zip(&mask)
                                    .zip(&packed_key)
                                    .all(|((byte, mask), expected)| byte & mask == *expected)
                        })
                    }
                }
            }
        }
    }

    /// Returns a part of a transition key, padded to whole bytes, and the width of the part in bits.
    fn key_part(&mut self, part: &KeyPart) -> (Vec<u8>, usize) {
        match part {
            KeyPart::Field(field) => self.field_bytes(*field),
            KeyPart::StackLast(stack, field) => {
                let sample = self
                    .environment
                    .executable
                    .program
                    .stacks
                    .get(stack.index())
                    .and_then(|s| s.headers.first());
                let header = self.last(*stack);
                self.element_bytes(header, sample.copied(), *field)
            }
            KeyPart::UnionStackLast(stack, member, field) => {
                let count = usize::from(self.union_stack_count(*stack));
                let header = count
                    .checked_sub(1)
                    .and_then(|index| self.union_stack_header(*stack, index, *member));
                let sample = self.union_stack_header(*stack, 0, *member);
                self.element_bytes(header, sample, *field)
            }
            KeyPart::Lookahead(offset, width) => (
                bits::read(self.payload(), *offset as usize, *width as usize),
                *width as usize,
            ),
        }
    }

    /// Returns a field of the stack element `header`, and its width in bits. If the element does not exist, the bytes are zeros,
    /// and another element `sample` defines the width.
    fn element_bytes(
        &self,
        header: Option<HeaderId>,
        sample: Option<HeaderId>,
        field: u32,
    ) -> (Vec<u8>, usize) {
        if let Some(header) = header {
            return self.field_bytes(FieldRef { header, field });
        }
        let width = sample.map_or(0, |header| {
            self.environment
                .executable
                .program
                .bits(FieldRef { header, field })
        });
        (vec![0; width.div_ceil(8) as usize], width as usize)
    }

    fn field_bytes(&self, field: FieldRef) -> (Vec<u8>, usize) {
        let Some(layout) = self.environment.executable.layout.field(field) else {
            return (Vec::new(), 0);
        };
        if layout.variable {
            let width = self.variable_bits(field.header) as usize;
            return (
                bits::read(&self.context.arena, layout.start() as usize * 8, width),
                width,
            );
        }
        let start = layout.end as usize * 8 - usize::from(layout.shift) - layout.bits as usize;
        (
            bits::read(&self.context.arena, start, layout.bits as usize),
            layout.bits as usize,
        )
    }

    fn union_stack_header(&self, stack: UnionStackId, index: usize, member: u32) -> Option<HeaderId> {
        let program = &self.environment.executable.program;
        let union = program.union_stacks.get(stack.index())?.unions.get(index)?;
        program
            .unions
            .get(union.index())?
            .headers
            .get(member as usize)
            .copied()
    }

    /// Executes a parser operation as a tree; returns the parser error code as the error.
    pub(super) fn parser_op(&mut self, op: &ParserOp) -> Result<(), u32> {
        let errors = self.environment.errors;
        match op {
            ParserOp::Extract(extract, length) => self.extract_tree(extract, length.as_ref()),
            ParserOp::Set(field, value) => {
                let value = self.data(value);
                self.set_field(field.header, field.field, &value);
                Ok(())
            }
            ParserOp::SetVl(to, from) => {
                let bits = self.variable_bits(from.header);
                let value = self.field(from.header, from.field);
                self.set_variable_bits(to.header, bits);
                self.set_field(to.header, to.field, &value);
                Ok(())
            }
            ParserOp::SetLookahead(field, offset, width) => {
                let end = (*offset as usize + *width as usize).div_ceil(8);
                if self.payload().len() < end {
                    return Err(errors.packet_too_short);
                }
                let bytes = bits::read(self.payload(), *offset as usize, *width as usize);
                let mut value = num_bigint::BigInt::from_bytes_be(num_bigint::Sign::Plus, &bytes);
                let target = self.environment.executable.program.field(*field);
                if target.is_some_and(|target| target.signed && target.bits == *width)
                    && value.bit(u64::from(*width) - 1)
                {
                    // The bits fill the field, including its sign bit.
                    value -= num_bigint::BigInt::from(1u8) << *width;
                }
                self.set_field(field.header, field.field, &value);
                Ok(())
            }
            ParserOp::Verify(condition, error) => {
                if self.condition(condition) {
                    return Ok(());
                }
                // BMv2 uses the low 32 bits of the error code.
                Err(low64(&self.data(error)) as u32)
            }
            ParserOp::Shift(bytes) => self.advance(u64::from(*bytes)),
            ParserOp::Advance(bits) => {
                let bits = self.data(bits);
                if !low64(&bits).is_multiple_of(8) {
                    return Err(errors.invalid_argument);
                }
                let bits = num_traits::ToPrimitive::to_u64(&bits).ok_or(errors.packet_too_short)?;
                self.advance(bits / 8)
            }
            ParserOp::Statement(statement) => {
                self.statement(statement);
                Ok(())
            }
        }
    }

    fn advance(&mut self, bytes: u64) -> Result<(), u32> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if self.payload().len() < bytes {
            return Err(self.environment.errors.packet_too_short);
        }
        self.context.parsed += bytes;
        Ok(())
    }

    fn extract_tree(
        &mut self,
        extract: &Extract,
        length: Option<&crate::program::expr::Data>,
    ) -> Result<(), u32> {
        let errors = self.environment.errors;
        match extract {
            Extract::Header(header) => self.extract_into(*header, length),
            Extract::Stack(stack) => {
                let count = self.stack_count(*stack);
                let headers = self
                    .environment
                    .executable
                    .program
                    .stacks
                    .get(stack.index())
                    .map(|stack| &stack.headers);
                let next = headers
                    .and_then(|headers| headers.get(usize::from(count)))
                    .copied();
                let next = next.ok_or(errors.stack_out_of_bounds)?;
                self.extract_into(next, length)?;
                self.set_stack_count(*stack, count + 1);
                Ok(())
            }
            Extract::UnionStack(stack, member) => {
                let count = self.union_stack_count(*stack);
                let next = self.union_stack_header(*stack, usize::from(count), *member);
                let next = next.ok_or(errors.stack_out_of_bounds)?;
                self.extract_into(next, length)?;
                self.set_union_stack_count(*stack, count + 1);
                Ok(())
            }
        }
    }

    /// Extracts a header from the packet. The length of its variable-length field in bits is the value of `length`, or, if
    /// `length` is `None`, of the expression of the header type.
    fn extract_into(
        &mut self,
        header: HeaderId,
        length: Option<&crate::program::expr::Data>,
    ) -> Result<(), u32> {
        let executable = self.environment.executable;
        let errors = self.environment.errors;
        let Some(layout) = executable.layout.header(header) else {
            return Ok(());
        };
        let packet = self.payload();
        let too_short = packet.len() < layout.bytes as usize;
        let Some(variable) = layout.variable else {
            if too_short {
                return Err(errors.packet_too_short);
            }
            self.take_bits(packet, 0, layout.start * 8, layout.bytes * 8);
            self.context.parsed += layout.bytes as usize;
            self.set_valid(header, true);
            return Ok(());
        };
        let bits = match length {
            // BMv2 checks the length expression of the program before the length of the packet.
            Some(length) => self.data(length),
            None if too_short => return Err(errors.packet_too_short),
            None => {
                // The length depends on the preceding fields, which are extracted first.
                self.take_bits(packet, 0, layout.start * 8, variable.bits_before);
                match executable.lengths.get(header.index()).and_then(Option::as_ref) {
                    Some(length) => self.data(length),
                    None => num_bigint::BigInt::default(),
                }
            }
        };
        let low = low64(&bits);
        if !low.is_multiple_of(8) {
            return Err(errors.invalid_argument);
        }
        let bits = num_traits::ToPrimitive::to_u32(&bits).ok_or(errors.packet_too_short)?;
        let total_bytes = u64::from(layout.bytes) + u64::from(bits / 8);
        if (packet.len() as u64) < total_bytes {
            return Err(errors.packet_too_short);
        }
        if bits > variable.bits_max {
            return Err(errors.header_too_short);
        }
        let bits_after = layout.bytes * 8 - variable.bits_before;
        self.take_bits(packet, 0, layout.start * 8, variable.bits_before);
        self.take_bits(packet, variable.bits_before as usize, variable.bytes * 8, bits);
        let from = (variable.bits_before + bits) as usize;
        self.take_bits(packet, from, layout.start * 8 + variable.bits_before, bits_after);
        self.set_variable_bits(header, bits);
        self.context.parsed += total_bytes as usize;
        self.set_valid(header, true);
        Ok(())
    }

    /// Copies bits of the packet into the arena.
    fn take_bits(&mut self, packet: &'a [u8], from: usize, to: u32, count: u32) {
        let bytes = bits::read(packet, from, count as usize);
        bits::write(&mut self.context.arena, to as usize, count as usize, &bytes);
    }
}

/// Removes the padding of a key's parts; the result is right-aligned in whole bytes.
fn packed(key: &[u8], widths: &[usize]) -> Vec<u8> {
    let mut value = num_bigint::BigUint::default();
    let mut offset = 0;
    for width in widths {
        let bytes = width.div_ceil(8);
        let part = key.get(offset..offset + bytes).unwrap_or(&[]);
        let mask = (num_bigint::BigUint::from(1u8) << *width) - 1u8;
        value = (value << *width) | (num_bigint::BigUint::from_bytes_be(part) & mask);
        offset += bytes;
    }
    let digits = value.to_bytes_be();
    let size = widths.iter().sum::<usize>().div_ceil(8);
    let mut out = vec![0; size];
    for (to, from) in out.iter_mut().rev().zip(digits.iter().rev()) {
        *to = *from;
    }
    out
}
