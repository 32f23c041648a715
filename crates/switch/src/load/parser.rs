//! Loading of the parser.

use std::collections::{HashMap, HashSet};

use num_bigint::BigInt;

use super::action::StatementReader;
use super::cursor::{LoadError, LoadResult, Node};
use super::expression::{BITS_MAX, ExpressionReader, Locals};
use super::number;
use super::scope::{Scope, next_index};
use crate::program::HeaderType;
use crate::program::expr::Data;
use crate::program::ids::{FieldRef, HeaderId, StateId};
use crate::program::parser::{Extract, KeyPart, Match, Parser, ParserOp, State, Transition};

/// Reads a parser.
pub fn parser(scope: &Scope, node: &Node<'_>) -> LoadResult<Parser> {
    let list = node.field("parse_states")?;
    let mut names = HashMap::new();
    for (index, state) in list.items()?.enumerate() {
        names.insert(
            state.str_at("name")?.to_owned(),
            StateId(next_index(index, &state)?),
        );
    }
    let reader = ParserReader { scope, names };
    let mut states = Vec::new();
    for state in list.items()? {
        states.push(reader.state(&state)?);
    }
    let init = match node.optional("init_state") {
        Some(init) => Some(reader.state_id(init.str()?, &init)?),
        None => None,
    };
    Ok(Parser { init, states })
}

struct ParserReader<'s> {
    scope: &'s Scope,
    names: HashMap<String, StateId>,
}

impl ParserReader<'_> {
    fn expressions(&self) -> ExpressionReader<'_> {
        ExpressionReader {
            scope: self.scope,
            locals: Locals::None,
        }
    }

    fn state_id(&self, name: &str, node: &Node<'_>) -> LoadResult<StateId> {
        let id = self.names.get(name).copied();
        id.ok_or_else(|| node.error(format_args!("unknown parser state {name:?}")))
    }

    fn state(&self, node: &Node<'_>) -> LoadResult<State> {
        let ops = node.field("parser_ops")?;
        let ops = ops
            .items()?
            .map(|op| self.op(&op))
            .collect::<LoadResult<Vec<_>>>()?;
        let key = node.field("transition_key")?;
        let key = key
            .items()?
            .map(|part| self.key_part(&part))
            .collect::<LoadResult<Vec<_>>>()?;
        let mut state = State {
            name: node.str_at("name")?.to_owned(),
            ops,
            key,
            transitions: Vec::new(),
            default: None,
        };
        let widths = self.key_widths(&state.key);
        let transitions = node.field("transitions")?;
        for transition in transitions.items()? {
            let next = match transition.optional("next_state") {
                Some(next) => Some(self.state_id(next.str()?, &next)?),
                None => None,
            };
            match self.transition(&transition, &widths)? {
                Some(matches) => state.transitions.push(Transition { matches, next }),
                None => state.default = next,
            }
        }
        Ok(state)
    }

    fn key_widths(&self, key: &[KeyPart]) -> Vec<u32> {
        key.iter()
            .map(|part| match part {
                KeyPart::Field(field) => self.bits(*field),
                KeyPart::StackLast(stack, field) => self
                    .scope
                    .stacks
                    .get(stack.index())
                    .and_then(|stack| stack.headers.first())
                    .map_or(0, |header| {
                        self.bits(FieldRef {
                            header: *header,
                            field: *field,
                        })
                    }),
                KeyPart::UnionStackLast(stack, member, field) => self
                    .scope
                    .union_stacks
                    .get(stack.index())
                    .and_then(|stack| stack.unions.first())
                    .and_then(|union| self.scope.unions.get(union.index()))
                    .and_then(|union| union.headers.get(*member as usize))
                    .map_or(0, |header| {
                        self.bits(FieldRef {
                            header: *header,
                            field: *field,
                        })
                    }),
                KeyPart::Lookahead(_, bits) => *bits,
            })
            .collect()
    }

    fn header_type(&self, header: HeaderId) -> Option<&HeaderType> {
        let header = self.scope.headers.get(header.index())?;
        self.scope.types.get(header.header_type.index())
    }

    fn bits(&self, field: FieldRef) -> u32 {
        self.header_type(field.header)
            .and_then(|header_type| header_type.fields.get(field.field as usize))
            .map_or(1, |field| field.bits)
    }

    /// Reads the match of a transition; `None` for the default transition.
    fn transition(&self, node: &Node<'_>, widths: &[u32]) -> LoadResult<Option<Match>> {
        let kind = match node.optional("type") {
            Some(kind) => kind.str()?.to_owned(),
            None => "hexstr".to_owned(),
        };
        let value = node.optional("value");
        if kind == "default" || value.as_ref().is_some_and(|value| value.value() == "default") {
            return Ok(None);
        }
        let Some(value) = value else {
            return Err(node.error("member \"value\" is missing"));
        };
        let key_bytes: usize = widths.iter().map(|bits| bits.div_ceil(8) as usize).sum();
        let mask = match node.optional("mask") {
            Some(mask) => {
                Some(number::bytes(mask.str()?).ok_or_else(|| mask.error("is not a hexadecimal number"))?)
            }
            None => None,
        };
        match kind.as_str() {
            "hexstr" => {
                let bytes =
                    number::bytes(value.str()?).ok_or_else(|| value.error("is not a hexadecimal number"))?;
                for part in std::iter::once(&bytes).chain(mask.as_ref()) {
                    if part.len() != key_bytes {
                        let actual = part.len();
                        return Err(node.error(format_args!(
                            "value has {actual} bytes: the key of the state has {key_bytes}"
                        )));
                    }
                }
                Ok(Some(Match::Value {
                    value: masked(bytes, mask.as_deref()),
                    mask,
                }))
            }
            "parse_vset" => {
                let id = self.scope.value_set(value.str()?, &value)?;
                if mask.as_ref().is_some_and(|mask| mask.len() != key_bytes) {
                    return Err(node.error(format_args!(
                        "mask width differs from the key of the state: {key_bytes} bytes"
                    )));
                }
                Ok(Some(Match::ValueSet(id, mask)))
            }
            other => Err(node.error(format_args!("unknown transition type {other:?}"))),
        }
    }

    fn key_part(&self, node: &Node<'_>) -> LoadResult<KeyPart> {
        let value = node.field("value")?;
        Ok(match node.str_at("type")? {
            "field" => KeyPart::Field(self.scope.field(&value)?),
            "stack_field" => {
                let (stack, field) = self.scope.stack_field(&value)?;
                KeyPart::StackLast(stack, field)
            }
            "union_stack_field" => {
                let (stack, member, header) = self.scope.union_member(&value)?;
                let name = value.item(2)?.str()?;
                let field = self
                    .scope
                    .type_of(header, &value)?
                    .field(name)
                    .ok_or_else(|| value.error(format_args!("unknown header field {name:?}")))?;
                KeyPart::UnionStackLast(stack, member, field)
            }
            "lookahead" => {
                let (offset, bits) = lookahead(&value)?;
                KeyPart::Lookahead(offset, bits)
            }
            other => return Err(node.error(format_args!("unknown key part type {other:?}"))),
        })
    }

    fn op(&self, node: &Node<'_>) -> LoadResult<ParserOp> {
        let params = node.field("parameters")?;
        let expect = |count: usize| -> Result<(), LoadError> {
            match params.len() == count {
                true => Ok(()),
                false => Err(node.error(format_args!(
                    "operation has {} parameters: expected {count}",
                    params.len()
                ))),
            }
        };
        let op = node.str_at("op")?;
        expect(if matches!(op, "extract_VL" | "set" | "verify") {
            2
        } else {
            1
        })?;
        let first = params.item(0)?;
        Ok(match op {
            "extract" | "extract_VL" => self.extract(op == "extract_VL", node, &params)?,
            "set" => self.set(&first, &params.item(1)?)?,
            "verify" => {
                let error = params.item(1)?;
                let code = match error.value().as_u64() {
                    Some(code) => Data::Const(BigInt::from(code)),
                    None => self.expressions().data(&error)?,
                };
                ParserOp::Verify(self.expressions().bool(&first)?, code)
            }
            "shift" => ParserOp::Shift(first.u32()?),
            "advance" => ParserOp::Advance(self.expressions().data(&first)?),
            "primitive" => {
                let reader = StatementReader {
                    scope: self.scope,
                    locals: Locals::None,
                    count: 0,
                };
                ParserOp::Statement(reader.statement(&first)?)
            }
            other => return Err(node.error(format_args!("unknown parser operation {other:?}"))),
        })
    }

    fn extract(&self, variable: bool, node: &Node<'_>, params: &Node<'_>) -> LoadResult<ParserOp> {
        let parameter = params.item(0)?;
        let value = parameter.field("value")?;
        let (extract, header) = match parameter.str_at("type")? {
            "regular" => {
                let header = self.scope.header(value.str()?, &value)?;
                (Extract::Header(header), Some(header))
            }
            "stack" => {
                let stack = self.scope.stack(value.str()?, &value)?;
                let header = self
                    .scope
                    .stacks
                    .get(stack.index())
                    .and_then(|stack| stack.headers.first());
                (Extract::Stack(stack), header.copied())
            }
            "union_stack" => {
                let (stack, member, header) = self.scope.union_member(&value)?;
                (Extract::UnionStack(stack, member), Some(header))
            }
            other => return Err(parameter.error(format_args!("unknown extract type {other:?}"))),
        };
        let header_type = header.and_then(|header| self.header_type(header));
        let has_field = header_type.is_some_and(|header_type| header_type.variable().is_some());
        let type_length = header_type.and_then(|header_type| header_type.variable_bits.clone());
        let length = match (variable, has_field) {
            (true, true) => {
                let length = params.item(1)?;
                Some(self.expressions().data(&length)?)
            }
            (true, false) => return Err(node.error("length given for a header of fixed length")),
            (false, true) if type_length.is_none() => {
                return Err(node.error("length is missing for a header of variable length"));
            }
            // The length expression of the header type is resolved at extraction.
            (false, _) => None,
        };
        Ok(ParserOp::Extract(extract, length))
    }

    fn set(&self, to: &Node<'_>, from: &Node<'_>) -> LoadResult<ParserOp> {
        if to.str_at("type")? != "field" {
            return Err(to.error("is not a field"));
        }
        let target = self.scope.field(&to.field("value")?)?;
        let value = from.field("value")?;
        if from.str_at("type")? == "lookahead" {
            let (offset, bits) = lookahead(&value)?;
            return Ok(ParserOp::SetLookahead(target, offset, bits));
        }
        let data = self.expressions().data(from)?;
        let variable = |field: FieldRef| {
            let header_type = self.header_type(field.header)?;
            header_type
                .fields
                .get(field.field as usize)
                .map(|field| field.variable)
        };
        match data {
            Data::Field(source) if variable(target) == Some(true) => Ok(ParserOp::SetVl(target, source)),
            _ if variable(target) == Some(true) => {
                Err(to.error("field of variable length requires a source of variable length"))
            }
            data => Ok(ParserOp::Set(target, data)),
        }
    }
}

fn lookahead(value: &Node<'_>) -> LoadResult<(u32, u32)> {
    let (offset, bits) = (value.item(0)?.u32()?, value.item(1)?.u32()?);
    if bits == 0 || bits > BITS_MAX || offset > BITS_MAX {
        return Err(value.error(format_args!(
            "lookahead of {bits} bits at offset {offset} is out of range: expected 1 to {BITS_MAX} bits"
        )));
    }
    Ok((offset, bits))
}

fn masked(mut value: Vec<u8>, mask: Option<&[u8]>) -> Vec<u8> {
    if let Some(mask) = mask {
        for (byte, mask) in value.iter_mut().zip(mask) {
            *byte &= mask;
        }
    }
    value
}

/// Checks that all numbers are unique; returns a duplicate as the error.
pub fn check_unique(numbers: impl Iterator<Item = u32>) -> Result<(), u32> {
    let mut seen = HashSet::new();
    for number in numbers {
        if !seen.insert(number) {
            return Err(number);
        }
    }
    Ok(())
}
