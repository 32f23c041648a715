//! Emission of operations: registers, labels and side tables.

use std::collections::HashMap;

use crate::executable::SideTables;
use crate::executable::op::{Index, Op, Pc, R, W};
use crate::layout::Layout;
use crate::program::Program;
use crate::program::action::Statement;
use crate::program::expr::{Bool, Data};
use crate::program::ids::RegisterId;
use crate::program::parser::ParserOp;

/// Error of lowering a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// The number of operations or other items exceeds the index range.
    #[error("program is too large")]
    TooLarge,
    /// Headers and metadata exceed the maximum size.
    #[error(
        "headers and metadata of the program exceed {} bytes",
        crate::layout::ARENA_BYTES_MAX
    )]
    HeadersTooLarge,
    /// An expression needs more registers than available.
    #[error("expression in {0} is too deep")]
    TooDeep(String),
    /// Tables and conditions form a cycle.
    #[error("control flow of pipeline {0} has a cycle")]
    ControlFlowCycle(String),
    /// A required field of v1model is missing.
    #[error("field {0} is missing: compile the program for v1model")]
    MissingField(&'static str),
    /// The algorithm of a calculation is unknown.
    #[error("unknown algorithm {algorithm:?} of calculation {name}")]
    UnknownAlgorithm {
        /// Calculation.
        name: String,
        /// Algorithm.
        algorithm: String,
    },
    /// The lookup structures reject a table.
    #[error("invalid table {name}: {problem}")]
    InvalidTable {
        /// Table.
        name: String,
        /// Problem.
        problem: String,
    },
    /// A reference cannot be resolved.
    #[error("unresolved reference: {0}")]
    UnresolvedReference(String),
}

/// Label of a code position; [`Builder::bind`] sets the position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Label(u32);

/// Complete code.
pub struct LoweredCode {
    pub code: Vec<Op>,
    pub side_tables: SideTables,
    /// Positions of the labels.
    pub labels: Vec<Option<Pc>>,
}

/// Builder of the code.
pub struct Builder<'p> {
    pub program: &'p Program,
    pub layout: &'p Layout,
    pub code: Vec<Op>,
    pub side_tables: SideTables,
    labels: Vec<Option<Pc>>,
    lock_sets: HashMap<Vec<RegisterId>, Index>,
    /// Number of allocated 64-bit registers.
    r: u16,
    /// Number of allocated 128-bit registers.
    w: u16,
    /// Name of the current object, for errors.
    pub context: String,
    /// Widths of the current action's parameters, bits.
    pub params: Vec<u32>,
    /// Offsets of the current action's arguments in the argument bytes.
    pub args: Vec<u32>,
    /// Register arrays locked by the current action.
    pub locked_registers: Vec<RegisterId>,
}

impl<'p> Builder<'p> {
    pub fn new(program: &'p Program, layout: &'p Layout) -> Self {
        Self {
            program,
            layout,
            code: Vec::new(),
            side_tables: SideTables::default(),
            labels: Vec::new(),
            lock_sets: HashMap::new(),
            r: 0,
            w: 0,
            context: String::new(),
            params: Vec::new(),
            args: Vec::new(),
            locked_registers: Vec::new(),
        }
    }

    /// Position of the next operation.
    pub fn current_pc(&self) -> Result<Pc, LowerError> {
        Pc::try_from(self.code.len()).map_err(|_| LowerError::TooLarge)
    }

    pub fn emit(&mut self, op: Op) {
        self.code.push(op);
    }

    /// Creates a label to bind later.
    pub fn label(&mut self) -> Result<Label, LowerError> {
        let label = Label(to_index(self.labels.len())?);
        self.labels.push(None);
        Ok(label)
    }

    pub fn bind(&mut self, label: Label) -> Result<(), LowerError> {
        let pc = self.current_pc()?;
        if let Some(position) = self.labels.get_mut(label.0 as usize) {
            *position = Some(pc);
        }
        Ok(())
    }

    /// Binds a label to a known position.
    pub fn bind_at(&mut self, label: Label, pc: Pc) {
        if let Some(position) = self.labels.get_mut(label.0 as usize) {
            *position = Some(pc);
        }
    }

    /// Placeholder position of a label until [`Builder::finish`].
    pub fn label_pc(label: Label) -> Pc {
        label.0
    }

    /// Allocates a 64-bit register; [`Builder::release`] frees it.
    pub fn alloc_r(&mut self) -> Result<R, LowerError> {
        let r = R::try_from(self.r).map_err(|_| LowerError::TooDeep(self.context.clone()))?;
        self.r += 1;
        Ok(r)
    }

    /// Allocates a 128-bit register.
    pub fn alloc_w(&mut self) -> Result<W, LowerError> {
        let w = W::try_from(self.w).map_err(|_| LowerError::TooDeep(self.context.clone()))?;
        self.w += 1;
        Ok(w)
    }

    /// Current register allocation.
    pub fn allocation(&self) -> (u16, u16) {
        (self.r, self.w)
    }

    /// Frees the registers that were allocated after `(r, w)` was the current allocation.
    pub fn release(&mut self, (r, w): (u16, u16)) {
        self.r = r;
        self.w = w;
    }

    /// Adds a constant to the side tables; returns its index.
    pub fn wide_constant(&mut self, value: u128) -> Result<Index, LowerError> {
        push(&mut self.side_tables.wide, value)
    }

    /// Adds a constant as bytes to the side tables; returns its index.
    pub fn byte_constant(&mut self, bytes: Vec<u8>) -> Result<Index, LowerError> {
        push(&mut self.side_tables.bytes, bytes)
    }

    pub fn pair(&mut self, value: u64, mask: u64) -> Result<Index, LowerError> {
        push(&mut self.side_tables.pairs, (value, mask))
    }

    pub fn expression(&mut self, data: &Data) -> Result<Index, LowerError> {
        push(&mut self.side_tables.expressions, data.clone())
    }

    pub fn condition(&mut self, condition: &Bool) -> Result<Index, LowerError> {
        push(&mut self.side_tables.conditions, condition.clone())
    }

    /// Emits a statement to execute as a tree.
    pub fn tree(&mut self, statement: &Statement) -> Result<(), LowerError> {
        let statement = push(&mut self.side_tables.statements, statement.clone())?;
        self.emit(Op::Statement { statement });
        Ok(())
    }

    pub fn parser_op(&mut self, op: &ParserOp) -> Result<Index, LowerError> {
        push(&mut self.side_tables.parser_ops, op.clone())
    }

    pub fn lock_set(&mut self, set: &[RegisterId]) -> Result<Index, LowerError> {
        if let Some(index) = self.lock_sets.get(set) {
            return Ok(*index);
        }
        let index = push(&mut self.side_tables.locks, set.to_vec())?;
        self.lock_sets.insert(set.to_vec(), index);
        Ok(index)
    }

    /// Replaces labels by positions.
    pub fn finish(mut self) -> Result<LoweredCode, LowerError> {
        for op in &mut self.code {
            for target in op.targets_mut() {
                let position = self.labels.get(*target as usize).copied().flatten();
                *target = position.ok_or_else(|| LowerError::UnresolvedReference(self.context.clone()))?;
            }
        }
        thread_jumps(&mut self.code, &mut self.labels);
        Ok(LoweredCode {
            code: self.code,
            side_tables: self.side_tables,
            labels: self.labels,
        })
    }
}

/// Jump threading: replaces each target by the final target of its chain of jumps, and a jump to [`Op::End`] by
/// [`Op::End`].
fn thread_jumps(code: &mut [Op], labels: &mut [Option<Pc>]) {
    /// Maximum number of positions of a jump chain, including the start. The limit ends cyclic chains.
    const JUMPS_MAX: usize = 8;
    let final_targets: Vec<Pc> = (0..code.len() as Pc)
        .map(|start| {
            let jump = |pc: &Pc| match code.get(*pc as usize) {
                Some(Op::Jump { to }) => Some(*to),
                _ => None,
            };
            std::iter::successors(Some(start), jump)
                .take(JUMPS_MAX)
                .last()
                .unwrap_or(start)
        })
        .collect();
    let final_target = |pc: Pc| final_targets.get(pc as usize).copied().unwrap_or(pc);
    for label in labels.iter_mut().flatten() {
        *label = final_target(*label);
    }
    let is_end: Vec<bool> = code.iter().map(|op| *op == Op::End).collect();
    for op in code {
        for target in op.targets_mut() {
            *target = final_target(*target);
        }
        if let Op::Jump { to } = op
            && is_end.get(*to as usize) == Some(&true)
        {
            *op = Op::End;
        }
    }
}

impl Label {
    /// Position that the label is bound to.
    pub fn position(self, labels: &[Option<Pc>]) -> Option<Pc> {
        labels.get(self.0 as usize).copied().flatten()
    }
}

/// Converts a count to a 32-bit index.
pub fn to_index(count: usize) -> Result<u32, LowerError> {
    u32::try_from(count).map_err(|_| LowerError::TooLarge)
}

fn push<T>(list: &mut Vec<T>, item: T) -> Result<Index, LowerError> {
    let index = to_index(list.len())?;
    list.push(item);
    Ok(index)
}
