//! Parsers: states as stretches of code that jump to each other.

use super::builder::{Builder, Label, LowerError};
use super::value::Want;
use crate::exec::op::{Alu, Op, R};
use crate::layout::Place;
use crate::program::expr::Data;
use crate::program::ids::{FieldRef, StateId};
use crate::program::parser::{Extract, KeyPart, Match, ParserOp, State};

/// A choice among transitions whose key no register holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// What the key is made of.
    pub key: Vec<KeyPart>,
    /// What is matched, and where to go on.
    pub cases: Vec<(Match, Label)>,
    /// Where to go on otherwise.
    pub default: Label,
}

impl Builder<'_> {
    /// Lowers the parser; choices that are made by tree are added to `selections`.
    pub fn parser(&mut self, selections: &mut Vec<Selection>) -> Result<u32, LowerError> {
        let start = self.here()?;
        let program = self.program;
        let states = &program.parser.states;
        let labels = states
            .iter()
            .map(|_| self.label())
            .collect::<Result<Vec<_>, _>>()?;
        let end = self.label()?;
        let target = |state: Option<StateId>| match state {
            None => Ok(end),
            Some(id) => {
                let found = labels.get(id.index()).copied();
                found.ok_or_else(|| LowerError::Dangling("a parser state".to_owned()))
            }
        };
        let first = target(program.parser.init)?;
        self.emit(Op::Jump { to: Self::to(first) });
        for (state, label) in states.iter().zip(&labels) {
            self.context = format!("parser state {}", state.name);
            self.bind(*label)?;
            // A parser may loop; each state costs fuel, which is one comparison.
            self.emit(Op::Fuel);
            for op in &state.ops {
                let mark = self.mark();
                self.parser_operation(op)?;
                self.release(mark);
            }
            let mark = self.mark();
            self.transitions(state, &target, selections)?;
            self.release(mark);
        }
        self.bind(end)?;
        self.emit(Op::End);
        Ok(start)
    }

    fn parser_operation(&mut self, op: &ParserOp) -> Result<(), LowerError> {
        match op {
            ParserOp::Extract(Extract::Header(header), None) => {
                let place = self.layout.header(*header);
                if place.is_some_and(|place| place.union.is_none() && place.variable.is_none()) {
                    self.emit(Op::Extract { header: header.0 });
                    return Ok(());
                }
            }
            ParserOp::Set(field, value) => {
                let statement = crate::program::action::Statement::Assign(
                    crate::program::action::Place::Field(*field),
                    value.clone(),
                );
                return self.plain(&statement);
            }
            ParserOp::SetLookahead(field, offset, bits) if *bits <= 64 => {
                let r = self.r()?;
                self.emit(Op::Peek {
                    r,
                    offset: *offset,
                    bits: *bits as u8,
                    strict: true,
                });
                if self.store(*field, r) {
                    return Ok(());
                }
            }
            ParserOp::Shift(bytes) => {
                self.emit(Op::Skip { bytes: *bytes });
                return Ok(());
            }
            ParserOp::Statement(statement) => return self.plain(statement),
            _ => {}
        }
        let op = self.parser_op(op)?;
        self.emit(Op::ParserTree { op });
        Ok(())
    }

    fn transitions(
        &mut self,
        state: &State,
        target: &impl Fn(Option<StateId>) -> Result<Label, LowerError>,
        selections: &mut Vec<Selection>,
    ) -> Result<(), LowerError> {
        let default = target(state.default)?;
        if state.key.is_empty() {
            self.emit(Op::Jump {
                to: Self::to(default),
            });
            return Ok(());
        }
        let plain = state
            .transitions
            .iter()
            .all(|case| matches!(case.matches, Match::Value { .. }));
        let key = if plain { self.narrow_key(&state.key)? } else { None };
        let Some(key) = key else {
            let mut cases = Vec::new();
            for case in &state.transitions {
                cases.push((case.matches.clone(), target(case.next)?));
            }
            let index = super::builder::number(selections.len())?;
            selections.push(Selection {
                key: state.key.clone(),
                cases,
                default,
            });
            self.emit(Op::Select { state: index });
            return Ok(());
        };
        for case in &state.transitions {
            let to = Self::to(target(case.next)?);
            let Match::Value { value, mask } = &case.matches else {
                continue;
            };
            let value = number(value);
            match mask {
                None => self.emit(Op::BranchEq { a: key, to, value }),
                Some(mask) => {
                    let pair = self.pair(value, number(mask))?;
                    self.emit(Op::BranchMasked { a: key, to, pair });
                }
            }
        }
        self.emit(Op::Jump {
            to: Self::to(default),
        });
        Ok(())
    }

    /// The key in one register, each part padded to whole bytes; none if it does not fit.
    fn narrow_key(&mut self, key: &[KeyPart]) -> Result<Option<R>, LowerError> {
        let mut widths = Vec::new();
        for part in key {
            let bits = match part {
                KeyPart::Field(field) => match self.layout.field(*field) {
                    Some(Place {
                        variable: false,
                        bits,
                        ..
                    }) => bits,
                    _ => return Ok(None),
                },
                KeyPart::Lookahead(_, bits) => *bits,
                KeyPart::StackLast(..) | KeyPart::UnionStackLast(..) => return Ok(None),
            };
            widths.push(bits);
        }
        let total: u32 = widths.iter().map(|bits| bits.next_multiple_of(8)).sum();
        if total > 64 {
            return Ok(None);
        }
        let mut whole: Option<R> = None;
        for (part, bits) in key.iter().zip(widths) {
            let r = match part {
                KeyPart::Field(field) => match self.key_field(*field, bits)? {
                    Some(r) => r,
                    None => return Ok(None),
                },
                KeyPart::Lookahead(offset, _) => {
                    let r = self.r()?;
                    // BMv2 reads on behind the packet; here the missing bits are 0.
                    self.emit(Op::Peek {
                        r,
                        offset: *offset,
                        bits: bits as u8,
                        strict: false,
                    });
                    r
                }
                KeyPart::StackLast(..) | KeyPart::UnionStackLast(..) => return Ok(None),
            };
            whole = Some(match whole {
                None => r,
                Some(so_far) => {
                    let joined = self.r()?;
                    let shift = u64::from(bits.next_multiple_of(8));
                    self.emit(Op::AluConst {
                        op: Alu::Shl,
                        r: joined,
                        a: so_far,
                        value: shift,
                    });
                    self.emit(Op::Alu {
                        op: Alu::Or,
                        r: joined,
                        a: joined,
                        b: r,
                    });
                    joined
                }
            });
        }
        Ok(whole)
    }

    /// A field as part of a key: its bits without sign.
    fn key_field(&mut self, field: FieldRef, bits: u32) -> Result<Option<R>, LowerError> {
        let data = Data::Field(field);
        if self.range(&data).is_some_and(|range| range.is_negative()) {
            let Some(mut place) = self.layout.field(field) else {
                return Ok(None);
            };
            place.signed = false;
            return Ok(match self.load(place)? {
                Some(super::value::Reg::Narrow(r)) => Some(r),
                _ => None,
            });
        }
        self.narrow(&data, Want::Low(bits.min(64)))
    }
}

/// Up to 8 bytes as a number.
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |value, byte| (value << 8) | u64::from(*byte))
}
