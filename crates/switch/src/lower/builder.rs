//! Emits operations: registers, labels, and the lists beside them.

use std::collections::HashMap;

use num_bigint::BigInt;

use serde::Serialize;

use crate::exec::op::{Index, Op, Pc, R, W};
use crate::layout::Layout;
use crate::program::Program;
use crate::program::action::Statement;
use crate::program::expr::{Bool, Data};
use crate::program::ids::RegisterId;
use crate::program::parser::ParserOp;

/// Why a program cannot be lowered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// More operations, or more of anything else, than can be numbered.
    #[error("the program is too large")]
    TooLarge,
    /// Headers and metadata need too much room.
    #[error(
        "the program's headers and metadata are larger than {} bytes",
        crate::layout::ARENA_BYTES_MAX
    )]
    HeadersTooLarge,
    /// An expression needs more registers than there are.
    #[error("an expression of {0} is too deep")]
    TooDeep(String),
    /// Tables and conditions form a circle.
    #[error("the control flow of pipeline {0} runs in a circle")]
    Circle(String),
    /// A field that every program for simple_switch must have is missing.
    #[error("the program has no field {0}: it is not compiled for v1model")]
    NoField(&'static str),
    /// An algorithm is not known.
    #[error("calculation {name}: there is no algorithm {algorithm:?}")]
    Algorithm {
        /// The calculation.
        name: String,
        /// Its algorithm.
        algorithm: String,
    },
    /// A table that the lookup structures refuse.
    #[error("table {name}: {what}")]
    Table {
        /// The table.
        name: String,
        /// Why.
        what: String,
    },
    /// Something refers to what is not there.
    #[error("{0} refers to something that is not there")]
    Dangling(String),
}

/// A place in the code that may not be known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Label(u32);

/// Lists that operations refer to by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Side {
    /// Constants of up to 128 bits.
    pub wide: Vec<u128>,
    /// Constants as bytes.
    pub bytes: Vec<Vec<u8>>,
    /// Pairs of value and mask.
    pub pairs: Vec<(u64, u64)>,
    /// Expressions that are evaluated as trees.
    pub expressions: Vec<Data>,
    /// Conditions that are evaluated as trees.
    pub conditions: Vec<Bool>,
    /// Statements that are evaluated as trees.
    pub statements: Vec<Statement>,
    /// Operations of parsers that are evaluated as trees.
    pub parser_ops: Vec<ParserOp>,
    /// Sets of register arrays that actions lock, each in order.
    pub locks: Vec<Vec<RegisterId>>,
}

/// The code when all of it is there.
pub struct Finished {
    pub code: Vec<Op>,
    pub side: Side,
    /// Where labels were bound.
    pub labels: Vec<Option<Pc>>,
}

/// The code as it grows.
pub struct Builder<'p> {
    pub program: &'p Program,
    pub layout: &'p Layout,
    pub code: Vec<Op>,
    pub side: Side,
    labels: Vec<Option<Pc>>,
    lock_sets: HashMap<Vec<RegisterId>, Index>,
    r: u16,
    w: u16,
    /// What is being lowered, for messages.
    pub context: String,
    /// Widths of the parameters of the action that is being lowered.
    pub params: Vec<u32>,
    /// Where its arguments lie among the argument bytes.
    pub args: Vec<u32>,
    /// Register arrays that it has locked.
    pub held: Vec<RegisterId>,
}

impl<'p> Builder<'p> {
    pub fn new(program: &'p Program, layout: &'p Layout) -> Self {
        Self {
            program,
            layout,
            code: Vec::new(),
            side: Side::default(),
            labels: Vec::new(),
            lock_sets: HashMap::new(),
            r: 0,
            w: 0,
            context: String::new(),
            params: Vec::new(),
            args: Vec::new(),
            held: Vec::new(),
        }
    }

    /// The position of the next operation.
    pub fn here(&self) -> Result<Pc, LowerError> {
        Pc::try_from(self.code.len()).map_err(|_| LowerError::TooLarge)
    }

    pub fn emit(&mut self, op: Op) {
        self.code.push(op);
    }

    /// A label that is bound later.
    pub fn label(&mut self) -> Result<Label, LowerError> {
        let label = Label(number(self.labels.len())?);
        self.labels.push(None);
        Ok(label)
    }

    pub fn bind(&mut self, label: Label) -> Result<(), LowerError> {
        let here = self.here()?;
        if let Some(slot) = self.labels.get_mut(label.0 as usize) {
            *slot = Some(here);
        }
        Ok(())
    }

    /// Binds a label to a place that is known already.
    pub fn bind_at(&mut self, label: Label, at: Pc) {
        if let Some(slot) = self.labels.get_mut(label.0 as usize) {
            *slot = Some(at);
        }
    }

    /// The number that stands for the label until [`Builder::finish`].
    pub fn to(label: Label) -> Pc {
        label.0
    }

    /// A register of 64 bits; given back by [`Builder::release`].
    pub fn r(&mut self) -> Result<R, LowerError> {
        let r = R::try_from(self.r).map_err(|_| LowerError::TooDeep(self.context.clone()))?;
        self.r += 1;
        Ok(r)
    }

    /// A register of 128 bits.
    pub fn w(&mut self) -> Result<W, LowerError> {
        let w = W::try_from(self.w).map_err(|_| LowerError::TooDeep(self.context.clone()))?;
        self.w += 1;
        Ok(w)
    }

    /// Which registers are taken.
    pub fn mark(&self) -> (u16, u16) {
        (self.r, self.w)
    }

    /// Gives back what was taken since the mark.
    pub fn release(&mut self, (r, w): (u16, u16)) {
        self.r = r;
        self.w = w;
    }

    pub fn wide(&mut self, value: u128) -> Result<Index, LowerError> {
        push(&mut self.side.wide, value)
    }

    pub fn bytes(&mut self, bytes: Vec<u8>) -> Result<Index, LowerError> {
        push(&mut self.side.bytes, bytes)
    }

    pub fn pair(&mut self, value: u64, mask: u64) -> Result<Index, LowerError> {
        push(&mut self.side.pairs, (value, mask))
    }

    pub fn expression(&mut self, data: &Data) -> Result<Index, LowerError> {
        push(&mut self.side.expressions, data.clone())
    }

    pub fn condition(&mut self, condition: &Bool) -> Result<Index, LowerError> {
        push(&mut self.side.conditions, condition.clone())
    }

    /// Emits a statement that is evaluated as a tree.
    pub fn tree(&mut self, statement: &Statement) -> Result<(), LowerError> {
        let statement = push(&mut self.side.statements, statement.clone())?;
        self.emit(Op::Statement { statement });
        Ok(())
    }

    pub fn parser_op(&mut self, op: &ParserOp) -> Result<Index, LowerError> {
        push(&mut self.side.parser_ops, op.clone())
    }

    pub fn lock_set(&mut self, set: &[RegisterId]) -> Result<Index, LowerError> {
        if let Some(index) = self.lock_sets.get(set) {
            return Ok(*index);
        }
        let index = push(&mut self.side.locks, set.to_vec())?;
        self.lock_sets.insert(set.to_vec(), index);
        Ok(index)
    }

    /// Puts positions in place of labels.
    pub fn finish(mut self) -> Result<Finished, LowerError> {
        for op in &mut self.code {
            for target in op.targets_mut() {
                let bound = self.labels.get(*target as usize).copied().flatten();
                *target = bound.ok_or_else(|| LowerError::Dangling(self.context.clone()))?;
            }
        }
        straighten(&mut self.code, &mut self.labels);
        Ok(Finished {
            code: self.code,
            side: self.side,
            labels: self.labels,
        })
    }
}

/// Jumps that lead to jumps, or to an end, become what is there in the end.
fn straighten(code: &mut [Op], labels: &mut [Option<Pc>]) {
    /// No program has longer chains that are worth it; some jump in a circle.
    const JUMPS_MAX: usize = 8;
    let ends: Vec<Pc> = (0..code.len() as Pc)
        .map(|start| {
            let jump = |at: &Pc| match code.get(*at as usize) {
                Some(Op::Jump { to }) => Some(*to),
                _ => None,
            };
            std::iter::successors(Some(start), jump)
                .take(JUMPS_MAX)
                .last()
                .unwrap_or(start)
        })
        .collect();
    let end_of = |at: Pc| ends.get(at as usize).copied().unwrap_or(at);
    for label in labels.iter_mut().flatten() {
        *label = end_of(*label);
    }
    let is_end: Vec<bool> = code.iter().map(|op| *op == Op::End).collect();
    for op in code {
        for target in op.targets_mut() {
            *target = end_of(*target);
        }
        if let Op::Jump { to } = op
            && is_end.get(*to as usize) == Some(&true)
        {
            *op = Op::End;
        }
    }
}

impl Label {
    /// Where it was bound.
    pub fn position(self, labels: &[Option<Pc>]) -> Option<Pc> {
        labels.get(self.0 as usize).copied().flatten()
    }
}

/// A count as a number of an operation.
pub fn number(count: usize) -> Result<u32, LowerError> {
    u32::try_from(count).map_err(|_| LowerError::TooLarge)
}

fn push<T>(list: &mut Vec<T>, item: T) -> Result<Index, LowerError> {
    let index = number(list.len())?;
    list.push(item);
    Ok(index)
}

/// The low 128 bits of a number, in two's complement.
pub fn low_bits(value: &BigInt) -> u128 {
    let digits = value.to_signed_bytes_le();
    let fill = if digits.last().is_some_and(|top| *top >= 0x80) {
        0xff
    } else {
        0
    };
    let mut bytes = [fill; 16];
    for (to, from) in bytes.iter_mut().zip(&digits) {
        *to = *from;
    }
    u128::from_le_bytes(bytes)
}
