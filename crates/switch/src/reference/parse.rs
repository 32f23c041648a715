//! Parser.

use num_bigint::BigInt;
use num_traits::{Signed, ToPrimitive, Zero};

use super::number;
use super::state::Packet;
use super::statement::step;
use super::{DropReason, Interpreter};
use crate::program::Program;
use crate::program::expr::Data;
use crate::program::ids::{FieldRef, HeaderId, StateId};
use crate::program::parser::{Extract, KeyPart, Match, ParserOp, State};

/// Errors that core.p4 declares, in the order in which BMv2 assigns codes to errors without a code in the JSON.
const CORE_ERRORS: [&str; 7] = [
    "NoError",
    "PacketTooShort",
    "NoMatch",
    "StackOutOfBounds",
    "HeaderTooShort",
    "ParserTimeout",
    "ParserInvalidArgument",
];

/// Reason to stop the parser.
enum ParserStop {
    /// Parser error.
    Error(BigInt),
    /// Drop of the packet.
    Drop(DropReason),
}

impl From<DropReason> for ParserStop {
    fn from(reason: DropReason) -> Self {
        Self::Drop(reason)
    }
}

impl ParserStop {
    fn core(program: &Program, name: &str) -> Self {
        Self::Error(BigInt::from(core_error(program, name)))
    }
}

/// Returns the code of an error that core.p4 declares. Errors without a code in the JSON have the codes after the
/// highest code in the JSON.
fn core_error(program: &Program, name: &str) -> u32 {
    if let Some(code) = program.errors.get(name) {
        return *code;
    }
    let first_code = program.errors.values().max().map_or(0, |highest| highest + 1);
    let errors_without_code = CORE_ERRORS
        .iter()
        .filter(|error| !program.errors.contains_key(**error));
    let error = (first_code..)
        .zip(errors_without_code)
        .find(|(_, error)| **error == name);
    error.map_or(first_code, |(code, _)| code)
}

impl<'a> Interpreter<'a> {
    /// Parses a packet and verifies its checksums.
    pub(super) fn parse(&mut self, packet: &mut Packet<'a>) -> Result<(), DropReason> {
        let program = self.program;
        packet.parser_error = BigInt::from(core_error(program, "NoError"));
        packet.checksum_error = false;
        let Some(mut state_id) = program.parser.init else {
            return Ok(());
        };
        let mut parsed = 0;
        while let Some(state) = program.parser.states.get(state_id.index()) {
            step(packet)?;
            match self.state(packet, state, &mut parsed) {
                Ok(Some(next)) => state_id = next,
                Ok(None) => break,
                Err(ParserStop::Error(error)) => {
                    packet.parser_error = error;
                    break;
                }
                Err(ParserStop::Drop(reason)) => return Err(reason),
            }
        }
        packet.parsed = 0;
        packet.data.drain(..parsed.min(packet.data.len()));
        self.verify_checksums(packet);
        Ok(())
    }

    /// Runs one state; returns the next state.
    fn state(
        &mut self,
        packet: &mut Packet<'a>,
        state: &State,
        parsed: &mut usize,
    ) -> Result<Option<StateId>, ParserStop> {
        for op in &state.ops {
            self.op(packet, op, parsed)?;
        }
        let key: Vec<u8> = state
            .key
            .iter()
            .flat_map(|part| key_part(packet, part, *parsed))
            .collect();
        let transition = state
            .transitions
            .iter()
            .find(|transition| self.matches(state, &transition.matches, &key, packet));
        Ok(transition.map_or(state.default, |transition| transition.next))
    }

    fn op(&mut self, packet: &mut Packet<'a>, op: &ParserOp, parsed: &mut usize) -> Result<(), ParserStop> {
        match op {
            ParserOp::Extract(extract, length) => self.extract(packet, extract, length.as_ref(), parsed)?,
            ParserOp::Set(field, value) => {
                let value = self.scope(packet, &[]).data(value);
                packet.headers.set(*field, &value);
            }
            ParserOp::SetVl(to, from) => {
                let from = Some((from.header, from.field));
                packet.headers.assign_variable(Some((to.header, to.field)), from);
            }
            ParserOp::SetLookahead(field, offset, bits) => {
                let end = *offset as usize + *bits as usize;
                if end.div_ceil(8) > unparsed_bytes(packet, *parsed) {
                    return Err(ParserStop::core(self.program, "PacketTooShort"));
                }
                let value = number::bits_of(&packet.data, *parsed * 8 + *offset as usize, *bits);
                if packet.headers.bits(*field) == *bits {
                    packet.headers.load(*field, &value);
                } else {
                    packet.headers.set(*field, &value);
                }
            }
            ParserOp::Verify(condition, error) => {
                let scope = self.scope(packet, &[]);
                if !scope.bool(condition) {
                    return Err(ParserStop::Error(scope.data(error)));
                }
            }
            ParserOp::Shift(bytes) => self.skip(packet, &BigInt::from(*bytes), parsed)?,
            ParserOp::Advance(bits) => {
                let bits = self.scope(packet, &[]).data(bits);
                let bytes = self.full_bytes(&bits)?;
                self.skip(packet, &bytes, parsed)?;
            }
            ParserOp::Statement(statement) => {
                packet.parsed = *parsed;
                self.statements(packet, std::slice::from_ref(statement), &[])?;
            }
        }
        Ok(())
    }

    fn full_bytes(&self, bits: &BigInt) -> Result<BigInt, ParserStop> {
        if (bits & BigInt::from(7)).is_zero() {
            Ok(bits >> 3u32)
        } else {
            Err(ParserStop::core(self.program, "ParserInvalidArgument"))
        }
    }

    /// Skips bytes of the packet; fails if the packet is too short.
    fn skip(&self, packet: &Packet<'a>, bytes: &BigInt, parsed: &mut usize) -> Result<(), ParserStop> {
        match bytes
            .to_usize()
            .filter(|bytes| *bytes <= unparsed_bytes(packet, *parsed))
        {
            Some(bytes) => {
                *parsed += bytes;
                Ok(())
            }
            None => Err(ParserStop::core(self.program, "PacketTooShort")),
        }
    }

    fn extract(
        &self,
        packet: &mut Packet<'a>,
        extracted: &Extract,
        length: Option<&Data>,
        parsed: &mut usize,
    ) -> Result<(), ParserStop> {
        let next = match extracted {
            Extract::Header(header) => Some(*header),
            Extract::Stack(stack) => packet.headers.element(*stack, packet.headers.count(*stack)),
            Extract::UnionStack(stack, member) => {
                let index = packet.headers.union_count(*stack);
                let union = packet.headers.union_element(*stack, index);
                union.and_then(|union| packet.headers.member(Some(union), *member))
            }
        };
        let Some(header) = next else {
            return Err(ParserStop::core(self.program, "StackOutOfBounds"));
        };
        self.extract_header(packet, header, length, parsed)?;
        match extracted {
            Extract::Header(_) => {}
            Extract::Stack(stack) => packet.headers.grow(*stack),
            Extract::UnionStack(stack, _) => packet.headers.grow_unions(*stack),
        }
        Ok(())
    }

    fn extract_header(
        &self,
        packet: &mut Packet<'a>,
        header: HeaderId,
        length: Option<&Data>,
        parsed: &mut usize,
    ) -> Result<(), ParserStop> {
        let Some(header_type) = self.program.type_of(header) else {
            return Ok(());
        };
        let mut bit = *parsed * 8;
        let mut end = *parsed;
        if header_type.variable().is_some() {
            let bits = match (length, &header_type.variable_bits) {
                (Some(length), _) => self.scope(packet, &[]).data(length),
                (None, Some(length_expression)) => {
                    self.skip(
                        packet,
                        &BigInt::from(header_type.fixed_bits() / 8),
                        &mut end.clone(),
                    )?;
                    load_ahead(packet, header, bit);
                    let fields = packet.headers.fields(header);
                    let fields: Vec<BigInt> = fields.map(|field| packet.headers.field(field)).collect();
                    self.scope(packet, &fields).data(length_expression)
                }
                (None, None) => BigInt::zero(),
            };
            let bytes = self.full_bytes(&bits)?;
            if bytes.is_negative() {
                return Err(ParserStop::core(self.program, "PacketTooShort"));
            }
            let total_bytes = bytes + header_type.fixed_bits() / 8;
            self.skip(packet, &total_bytes, &mut end)?;
            if header_type.max_bytes != 0 && total_bytes > BigInt::from(header_type.max_bytes) {
                return Err(ParserStop::core(self.program, "HeaderTooShort"));
            }
            packet.headers.set_variable_bits(header, number::low_u32(&bits));
        } else {
            self.skip(packet, &BigInt::from(header_type.fixed_bits() / 8), &mut end)?;
        }
        for field in packet.headers.fields(header) {
            let bits = packet.headers.bits(field);
            let value = number::bits_of(&packet.data, bit, bits);
            packet.headers.load(field, &value);
            bit += bits as usize;
        }
        packet.headers.mark_valid(header);
        *parsed = end;
        Ok(())
    }

    fn matches(&self, state: &State, matches: &Match, key: &[u8], packet: &Packet<'a>) -> bool {
        match matches {
            Match::Value { value, mask: None } => value == key,
            Match::Value {
                value,
                mask: Some(mask),
            } => *value == masked(key, mask),
            Match::ValueSet(set, mask) => {
                let Some(members) = self.forwarding.value_set(*set) else {
                    return false;
                };
                let widths: Vec<u32> = state.key.iter().map(|part| width(packet, part)).collect();
                members.iter().any(|member| {
                    let member = pad(member, &widths);
                    match mask {
                        Some(mask) => masked(&member, mask) == masked(key, mask),
                        None => member == key,
                    }
                })
            }
        }
    }
}

/// Stores the fields before the variable-length field, whose length may depend on them.
fn load_ahead(packet: &mut Packet<'_>, header: HeaderId, first_bit: usize) {
    let mut bit = first_bit;
    for field in packet.headers.fields(header) {
        let declaration = packet.headers.declaration(field);
        if declaration.is_some_and(|declaration| declaration.variable) {
            break;
        }
        let bits = packet.headers.bits(field);
        let value = number::bits_of(&packet.data, bit, bits);
        packet.headers.load(field, &value);
        bit += bits as usize;
    }
}

/// Number of unparsed bytes.
fn unparsed_bytes(packet: &Packet<'_>, parsed: usize) -> usize {
    packet.data.len().saturating_sub(parsed)
}

fn masked(bytes: &[u8], mask: &[u8]) -> Vec<u8> {
    bytes.iter().zip(mask).map(|(byte, mask)| byte & mask).collect()
}

/// Converts a member of a value set to the format of a key, with padding.
fn pad(member: &[u8], widths: &[u32]) -> Vec<u8> {
    let total_bits: u32 = widths.iter().sum();
    let mut bit = (member.len() * 8).saturating_sub(total_bits as usize);
    let mut padded = Vec::new();
    for bits in widths {
        let value = number::bits_of(member, bit, *bits);
        padded.extend(number::to_bytes(value.magnitude(), *bits));
        bit += *bits as usize;
    }
    padded
}

fn field_of(packet: &Packet<'_>, part: &KeyPart) -> Option<FieldRef> {
    let (header, field) = match part {
        KeyPart::Field(field) => return Some(*field),
        KeyPart::StackLast(stack, field) => (packet.headers.last(*stack), *field),
        KeyPart::UnionStackLast(stack, member, field) => {
            let union = packet.headers.union_last(*stack);
            (packet.headers.member(union, *member), *field)
        }
        KeyPart::Lookahead(..) => return None,
    };
    header.map(|header| FieldRef { header, field })
}

/// Width of a key part, even if the header does not exist.
fn width(packet: &Packet<'_>, part: &KeyPart) -> u32 {
    let (header, field) = match part {
        KeyPart::Lookahead(_, bits) => return *bits,
        KeyPart::Field(field) => (Some(field.header), *field),
        KeyPart::StackLast(stack, field) => (packet.headers.element(*stack, 0), field_at(*field)),
        KeyPart::UnionStackLast(stack, member, field) => {
            let union = packet.headers.union_element(*stack, 0);
            (packet.headers.member(union, *member), field_at(*field))
        }
    };
    header.map_or(0, |header| packet.headers.bits(FieldRef { header, ..field }))
}

fn field_at(field: u32) -> FieldRef {
    FieldRef {
        header: HeaderId(0),
        field,
    }
}

fn key_part(packet: &Packet<'_>, part: &KeyPart, parsed: usize) -> Vec<u8> {
    let bits = width(packet, part);
    let value = match part {
        KeyPart::Lookahead(offset, bits) => {
            number::bits_of(&packet.data, parsed * 8 + *offset as usize, *bits)
        }
        _ => field_of(packet, part).map_or_else(BigInt::zero, |field| packet.headers.raw(field).into()),
    };
    number::to_bytes(value.magnitude(), bits)
}
