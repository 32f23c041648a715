//! Lowering of the parser: each state becomes a code block that jumps to other states.

use super::builder::{Builder, Label, LowerError};
use super::value::Precision;
use crate::executable::op::{Alu, Op, R};
use crate::layout::FieldLayout;
use crate::program::expr::Data;
use crate::program::ids::{FieldRef, StateId};
use crate::program::parser::{Extract, KeyPart, Match, Parser, ParserOp, State};

/// Select expression that is evaluated as a tree; its targets are labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnresolvedSelect {
    /// Parts of the key.
    pub key: Vec<KeyPart>,
    /// Matches with their targets.
    pub cases: Vec<(Match, Label)>,
    /// Target if no match applies.
    pub default: Label,
}

impl Builder<'_> {
    /// Lowers the parser; returns the position of the first operation. Select expressions that are evaluated as trees are added
    /// to `selects`.
    pub fn parser(&mut self, selects: &mut Vec<UnresolvedSelect>) -> Result<u32, LowerError> {
        let start = self.current_pc()?;
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
                let label = labels.get(id.index()).copied();
                label.ok_or_else(|| LowerError::UnresolvedReference("parser state".to_owned()))
            }
        };
        let first = program.parser.init.map(StateId::index);
        let mut order: Vec<_> = states
            .iter()
            .zip(&labels)
            .zip(loop_states(&program.parser))
            .collect();
        match first {
            Some(first) => match order.get_mut(..=first) {
                Some(front) => front.rotate_right(1),
                None => {
                    return Err(LowerError::UnresolvedReference(
                        "start state of the parser".to_owned(),
                    ));
                }
            },
            None => self.emit(Op::End),
        }
        for ((state, label), is_loop) in order {
            self.context = format!("parser state {}", state.name);
            self.bind(*label)?;
            if is_loop {
                self.emit(Op::Fuel);
            }
            for op in &state.ops {
                let allocation = self.allocation();
                self.parser_operation(op)?;
                self.release(allocation);
            }
            let allocation = self.allocation();
            self.transitions(state, &target, selects)?;
            self.release(allocation);
        }
        self.bind(end)?;
        self.emit(Op::End);
        Ok(start)
    }

    fn parser_operation(&mut self, op: &ParserOp) -> Result<(), LowerError> {
        match op {
            ParserOp::Extract(Extract::Header(header), None) => {
                let layout = self.layout.header(*header);
                if layout.is_some_and(|layout| layout.union.is_none() && layout.variable.is_none()) {
                    self.emit(Op::Extract { header: header.0 });
                    return Ok(());
                }
            }
            ParserOp::Set(field, value) => {
                let statement = crate::program::action::Statement::Assign(
                    crate::program::action::LValue::Field(*field),
                    value.clone(),
                );
                return self.plain(&statement);
            }
            ParserOp::SetLookahead(field, offset, bits) if *bits <= 64 => {
                let r = self.alloc_r()?;
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
        selects: &mut Vec<UnresolvedSelect>,
    ) -> Result<(), LowerError> {
        let default = target(state.default)?;
        if state.key.is_empty() {
            self.emit(Op::Jump {
                to: Self::label_pc(default),
            });
            return Ok(());
        }
        if let Some(ops) = self.plain_cases(state, target)? {
            self.code.extend(ops);
            self.emit(Op::Jump {
                to: Self::label_pc(default),
            });
            return Ok(());
        }
        let only_values = state
            .transitions
            .iter()
            .all(|case| matches!(case.matches, Match::Value { .. }));
        let key = if only_values {
            self.narrow_key(&state.key)?
        } else {
            None
        };
        let Some(key) = key else {
            let mut cases = Vec::new();
            for case in &state.transitions {
                cases.push((case.matches.clone(), target(case.next)?));
            }
            let index = super::builder::to_index(selects.len())?;
            selects.push(UnresolvedSelect {
                key: state.key.clone(),
                cases,
                default,
            });
            self.emit(Op::Select { state: index });
            return Ok(());
        };
        for case in &state.transitions {
            let to = Self::label_pc(target(case.next)?);
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
            to: Self::label_pc(default),
        });
        Ok(())
    }

    /// Lowers each case to one operation if the key is one field of up to two bytes and no case has a mask; `None` otherwise.
    fn plain_cases(
        &self,
        state: &State,
        target: &impl Fn(Option<StateId>) -> Result<Label, LowerError>,
    ) -> Result<Option<Vec<Op>>, LowerError> {
        let [KeyPart::Field(field)] = state.key.as_slice() else {
            return Ok(None);
        };
        let mut ops = Vec::new();
        for case in &state.transitions {
            let Match::Value { value, mask: None } = &case.matches else {
                return Ok(None);
            };
            let Ok(value) = u16::try_from(number(value)) else {
                return Ok(None);
            };
            match self.branch_bytes(*field, (value, value), true, target(case.next)?) {
                Some(op) => ops.push(op),
                None => return Ok(None),
            }
        }
        Ok(Some(ops))
    }

    /// Loads the key in one register, each part padded to whole bytes; `None` if the key does not fit.
    fn narrow_key(&mut self, key: &[KeyPart]) -> Result<Option<R>, LowerError> {
        let mut widths = Vec::new();
        for part in key {
            let bits = match part {
                KeyPart::Field(field) => match self.layout.field(*field) {
                    Some(FieldLayout {
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
        let mut full_key: Option<R> = None;
        for (part, bits) in key.iter().zip(widths) {
            let r = match part {
                KeyPart::Field(field) => match self.key_field(*field, bits)? {
                    Some(r) => r,
                    None => return Ok(None),
                },
                KeyPart::Lookahead(offset, _) => {
                    let r = self.alloc_r()?;
                    // BMv2 reads beyond the packet; here the missing bits are 0.
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
            full_key = Some(match full_key {
                None => r,
                Some(previous) => {
                    let combined = self.alloc_r()?;
                    let shift = u64::from(bits.next_multiple_of(8));
                    self.emit(Op::AluConst {
                        op: Alu::Shl,
                        r: combined,
                        a: previous,
                        value: shift,
                    });
                    self.emit(Op::Alu {
                        op: Alu::Or,
                        r: combined,
                        a: combined,
                        b: r,
                    });
                    combined
                }
            });
        }
        Ok(full_key)
    }

    /// Loads a field as a key part: its bits as an unsigned number.
    fn key_field(&mut self, field: FieldRef, bits: u32) -> Result<Option<R>, LowerError> {
        let data = Data::Field(field);
        if self.range(&data).is_some_and(|range| range.is_negative()) {
            let Some(mut layout) = self.layout.field(field) else {
                return Ok(None);
            };
            layout.signed = false;
            return Ok(match self.load(layout)? {
                Some(super::value::Reg::Narrow(r)) => Some(r),
                _ => None,
            });
        }
        self.narrow(&data, Precision::Low(bits.min(64)))
    }
}

/// Returns for each state whether a back edge leads to the state. Every cycle contains at least one of these states.
fn loop_states(parser: &Parser) -> Vec<bool> {
    let successors = |state: usize| {
        let state = parser.states.get(state);
        let transitions = state.map_or(&[][..], |state| state.transitions.as_slice());
        let next = transitions.iter().map(|case| case.next);
        next.chain(state.map(|state| state.default)).flatten()
    };
    let mut loops = vec![false; parser.states.len()];
    // Whether a state has been visited, and whether it is on the path from the start state.
    let mut visited = vec![(false, false); parser.states.len()];
    let mut path: Vec<(usize, Vec<StateId>)> = Vec::new();
    let first = parser.init.map(StateId::index);
    if let Some(first) = first {
        path.push((first, successors(first).collect()));
    }
    if let Some(visit) = first.and_then(|first| visited.get_mut(first)) {
        *visit = (true, true);
    }
    while let Some((state, pending)) = path.last_mut() {
        let Some(next) = pending.pop().map(StateId::index) else {
            if let Some(visit) = visited.get_mut(*state) {
                visit.1 = false;
            }
            path.pop();
            continue;
        };
        match visited.get_mut(next) {
            Some((true, on_path)) => {
                if *on_path && let Some(is_loop) = loops.get_mut(next) {
                    *is_loop = true;
                }
            }
            Some(visit) => {
                *visit = (true, true);
                path.push((next, successors(next).collect()));
            }
            None => {}
        }
    }
    loops
}

/// Converts up to 8 big-endian bytes to a number.
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |value, byte| (value << 8) | u64::from(*byte))
}
