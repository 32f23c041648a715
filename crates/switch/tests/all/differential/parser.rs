//! Random parsers.

use linewarden_switch::program::Program;
use linewarden_switch::program::expr::{Binary, Data};
use linewarden_switch::program::ids::{FieldRef, StateId, TypeId, UnionStackId, ValueSetId};
use linewarden_switch::program::parser::{
    Extract, KeyPart, Match, Parser, ParserOp, State, Transition, ValueSet,
};
use num_bigint::BigInt;

use super::expression::Expressions;
use super::shape;
use super::source::Source;
use super::statement::{StatementContext, Statements};

/// Generates the parser and its value sets.
pub fn parser(source: &mut Source, program: &mut Program) {
    let count = source.between(1, 6);
    let mut states = Vec::new();
    for index in 0..count {
        let state = state(source, program, index, count);
        states.push(state);
    }
    program.parser = Parser {
        init: (!source.percent(2)).then_some(StateId(0)),
        states,
    };
}

fn state(source: &mut Source, program: &mut Program, index: usize, count: usize) -> State {
    let mut ops = Vec::new();
    let mut advances = false;
    for _ in 0..source.below(4) {
        let (op, op_advances) = op(source, program);
        advances |= op_advances;
        ops.push(op);
    }
    // Only a state that consumes bytes has transitions to itself or to earlier states, so that each loop ends.
    let first = if advances { 0 } else { index + 1 };
    let next = |source: &mut Source| match source.below(5) {
        0 => None,
        _ if first >= count => None,
        _ => Some(StateId(source.between(first, count - 1) as u32)),
    };
    let mut key = Vec::new();
    for _ in 0..source.below(3) {
        key.push(key_part(source, program));
    }
    let widths: Vec<u32> = key.iter().map(|part| key_bits(program, part)).collect();
    let mut transitions = Vec::new();
    if !key.is_empty() {
        for _ in 0..source.between(1, 4) {
            let matches = matches(source, program, &widths);
            transitions.push(Transition {
                matches,
                next: next(source),
            });
        }
    }
    State {
        name: format!("s{index}"),
        ops,
        key,
        transitions,
        default: next(source),
    }
}

/// Length in bits of the variable field; `None` if the type has no such field, or defines its length itself.
fn length(source: &mut Source, program: &Program, header_type: TypeId) -> Option<Data> {
    let declaration = &program.types[header_type.index()];
    declaration.variable()?;
    if declaration.variable_bits.is_some() {
        return None;
    }
    let mut expressions = Expressions {
        source,
        program,
        params: 0,
    };
    Some(match expressions.source.below(10) {
        0 => expressions.data(1),
        1..=4 => Data::Const(BigInt::from(8 * expressions.source.below(14))),
        5 => Data::Const(BigInt::from(expressions.source.below(30))),
        _ => Data::Binary(
            Binary::Mul,
            Box::new(Data::Binary(
                Binary::And,
                Box::new(Data::Field(expressions.field())),
                Box::new(Data::Const(BigInt::from(7))),
            )),
            Box::new(Data::Const(BigInt::from(8))),
        ),
    })
}

fn extract(source: &mut Source, program: &Program) -> ParserOp {
    let (stacks, unions) = (shape::stacks(program), program.union_stacks.len());
    let (extracted, header) = match source.below(4) {
        0 if !stacks.is_empty() => {
            let stack = source.pick(&stacks).unwrap();
            (Extract::Stack(stack), program.stacks[stack.index()].headers[0])
        }
        1 if unions > 0 => {
            let stack = UnionStackId(source.below(unions) as u32);
            let union = program.union_stacks[stack.index()].unions[0];
            let members = &program.unions[union.index()].headers;
            let member = source.below(members.len());
            (Extract::UnionStack(stack, member as u32), members[member])
        }
        _ => {
            let header = source.pick(&shape::packet_headers(program)).unwrap();
            (Extract::Header(header), header)
        }
    };
    let header_type = program.headers[header.index()].header_type;
    ParserOp::Extract(extracted, length(source, program, header_type))
}

/// Parser operation, and whether it always consumes bytes.
fn op(source: &mut Source, program: &Program) -> (ParserOp, bool) {
    let kind = source.below(12);
    if kind < 6 {
        return (extract(source, program), true);
    }
    let mut expressions = Expressions {
        source,
        program,
        params: 0,
    };
    let op = match kind {
        6 => {
            let field = user_field(expressions.source, program);
            let depth = expressions.source.below(3);
            ParserOp::Set(field, expressions.data(depth))
        }
        7 => {
            let field = user_field(expressions.source, program);
            let offset = expressions.source.below(20) as u32;
            let bits = match expressions.source.below(2) {
                0 => program.bits(field),
                _ => shape::width(expressions.source),
            };
            ParserOp::SetLookahead(field, offset, bits)
        }
        8 => {
            let code = match expressions.source.below(3) {
                0 => expressions.data(1),
                _ => Data::Const(BigInt::from(expressions.source.below(12))),
            };
            ParserOp::Verify(expressions.bool(2), code)
        }
        9 => ParserOp::Shift(expressions.source.below(4) as u32),
        10 => ParserOp::Advance(match expressions.source.below(3) {
            0 => expressions.data(1),
            _ => Data::Const(BigInt::from(8 * expressions.source.below(4))),
        }),
        _ => {
            let context = match expressions.source.below(5) {
                4 => StatementContext::Action,
                _ => StatementContext::Plain,
            };
            let mut statements = Statements { expressions, context };
            ParserOp::Statement(statements.simple())
        }
    };
    (op, false)
}

fn user_field(source: &mut Source, program: &Program) -> FieldRef {
    let fields: Vec<FieldRef> = shape::fixed_fields(program)
        .into_iter()
        .filter(|field| field.header != shape::STANDARD)
        .collect();
    source.pick(&fields).unwrap()
}

fn key_part(source: &mut Source, program: &Program) -> KeyPart {
    let stacks = shape::stacks(program);
    match source.below(6) {
        0 => {
            let offset = source.below(12) as u32;
            KeyPart::Lookahead(offset, shape::width(source))
        }
        1 if !stacks.is_empty() => {
            let stack = source.pick(&stacks).unwrap();
            let fields = shape::fixed_fields_of(program, program.stacks[stack.index()].headers[0]);
            KeyPart::StackLast(stack, source.pick(&fields).unwrap().field)
        }
        2 if !program.union_stacks.is_empty() => {
            let union = program.union_stacks[0].unions[0];
            let members = &program.unions[union.index()].headers;
            let member = source.below(members.len());
            let fields = shape::fixed_fields_of(program, members[member]);
            let field = source.pick(&fields).unwrap().field;
            KeyPart::UnionStackLast(UnionStackId(0), member as u32, field)
        }
        _ => {
            let fields = shape::fixed_fields(program);
            KeyPart::Field(source.pick(&fields).unwrap())
        }
    }
}

fn key_bits(program: &Program, part: &KeyPart) -> u32 {
    match part {
        KeyPart::Field(field) => program.bits(*field),
        KeyPart::StackLast(stack, field) => program.bits(FieldRef {
            header: program.stacks[stack.index()].headers[0],
            field: *field,
        }),
        KeyPart::UnionStackLast(stack, member, field) => {
            let union = program.union_stacks[stack.index()].unions[0];
            program.bits(FieldRef {
                header: program.unions[union.index()].headers[*member as usize],
                field: *field,
            })
        }
        KeyPart::Lookahead(_, bits) => *bits,
    }
}

/// Random values of these widths in bits, each padded to whole bytes.
fn padded(source: &mut Source, widths: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for bits in widths {
        let mut part = source.bytes(bits.div_ceil(8) as usize);
        if !bits.is_multiple_of(8) {
            part[0] &= (1 << (bits % 8)) - 1;
        }
        bytes.extend(part);
    }
    bytes
}

fn matches(source: &mut Source, program: &mut Program, widths: &[u32]) -> Match {
    let bits: u32 = widths.iter().sum();
    let mask = match source.below(3) {
        0 => None,
        _ => Some(padded(source, widths)),
    };
    if source.percent(15) {
        let existing = program.value_sets.iter().position(|set| set.bits == bits);
        let index = existing.unwrap_or_else(|| {
            program.value_sets.push(ValueSet {
                name: format!("v{}", program.value_sets.len()),
                bits,
                size: None,
            });
            program.value_sets.len() - 1
        });
        return Match::ValueSet(ValueSetId(index as u32), mask);
    }
    let mut value = padded(source, widths);
    if let Some(mask) = &mask {
        for (byte, mask) in value.iter_mut().zip(mask) {
            *byte &= mask;
        }
    }
    Match::Value { value, mask }
}
