//! Lowering of a [`Program`] to its executable form, one linear list of operations.
//!
//! All static decisions are made here: the locations of fields, the width (64 or 128 bits) in which each expression is
//! evaluated, how keys and checksum inputs are gathered, and the registers that an action locks. The result is
//! deterministic: the same program yields the same executable form. The digest of this form is part of the evidence.

mod access;
pub(crate) mod builder;
mod checksum;
mod condition;
mod parser;
mod pipeline;
pub(crate) mod plan;
mod range;
pub(crate) mod standard_metadata;
mod statement;
mod value;
mod walk;

pub use self::builder::{LowerError, SideTables};
pub use self::pipeline::TableSuccessors;
pub use self::statement::{ActionCode, layout_args};

use serde::Serialize;

use self::builder::{Builder, LoweredCode};
use self::parser::UnresolvedSelect;
use self::plan::{InputStep, KeyPlan, WordRange};
use self::standard_metadata::StandardMetadata;
use crate::exec::op::{Op, Pc};
use crate::layout::Layout;
use crate::program::Program;
use crate::program::expr::Data;
use crate::program::ids::HeaderId;
use crate::program::parser::{KeyPart, Match};

/// Select expression of a parser state. The expressions of its key stay trees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParserSelect {
    /// Parts of the key.
    pub key: Vec<KeyPart>,
    /// Matches with the next operation.
    pub cases: Vec<(Match, Pc)>,
    /// Next operation if no match applies.
    pub default: Pc,
}

/// Program in executable form.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Executable {
    /// Program.
    pub program: Program,
    /// Layout of the headers.
    pub layout: Layout,
    /// Locations of the standard metadata.
    pub standard_metadata: StandardMetadata,
    /// Operations.
    pub code: Vec<Op>,
    /// Constants, expressions and other data that operations refer to by index (not match-action tables).
    pub side_tables: SideTables,
    /// Select expressions of the parser.
    pub parser_selects: Vec<ParserSelect>,
    /// Start of the parser.
    pub parser: Pc,
    /// Start of the checksum verification.
    pub verify: Pc,
    /// Start of the checksum update.
    pub update: Pc,
    /// Start of ingress.
    pub ingress: Pc,
    /// Start of egress.
    pub egress: Pc,
    /// Start of the deparser's statements.
    pub deparser: Pc,
    /// Actions.
    pub actions: Vec<ActionCode>,
    /// Successors of each table.
    pub table_successors: Vec<TableSuccessors>,
    /// Key plan of each table.
    pub keys: Vec<KeyPlan>,
    /// Input steps of each calculation.
    pub inputs: Vec<Vec<InputStep>>,
    /// Word ranges of each calculation that is an Internet checksum over whole words.
    pub sums: Vec<Option<Vec<WordRange>>>,
    /// Length expression of each header's variable-length field, if the header type defines one.
    pub lengths: Vec<Option<Data>>,
}

/// Lowers a program.
///
/// # Errors
/// Returns the reason why the program cannot run.
pub fn lower(program: Program) -> Result<Executable, LowerError> {
    let layout = Layout::of(&program).ok_or(LowerError::HeadersTooLarge)?;
    let standard = StandardMetadata::locate(&program, &layout)?;
    let keys = program
        .tables
        .iter()
        .map(|table| plan::key(&layout, table))
        .collect::<Result<Vec<_>, _>>()?;
    let inputs = program
        .calculations
        .iter()
        .map(|calculation| plan::inputs(&program, &layout, calculation))
        .collect::<Result<Vec<_>, _>>()?;
    let sums = program
        .calculations
        .iter()
        .zip(&inputs)
        .map(|(calculation, inputs)| plan::word_ranges(calculation, inputs))
        .collect();
    let lengths = (0u32..)
        .map(HeaderId)
        .take(program.headers.len())
        .map(|header| {
            let length = program.type_of(header)?.variable_bits.as_ref()?;
            Some(access::with_fields(length, header))
        })
        .collect();
    let mut builder = Builder::new(&program, &layout);
    let actions = program
        .actions
        .iter()
        .map(|action| builder.action(action))
        .collect::<Result<Vec<_>, _>>()?;
    let mut unresolved_selects = Vec::new();
    let parser = builder.parser(&mut unresolved_selects)?;
    let verify = builder.checksums(true)?;
    let update = builder.checksums(false)?;
    let mut successor_labels = Vec::new();
    let ingress = builder.pipeline(&program.ingress, &actions, &mut successor_labels)?;
    let egress = builder.pipeline(&program.egress, &actions, &mut successor_labels)?;
    builder.context = "the deparser".to_owned();
    let deparser = builder.current_pc()?;
    builder.body(&program.deparser.statements)?;
    builder.emit(Op::End);
    let LoweredCode {
        code,
        side_tables,
        labels,
    } = builder.finish()?;
    let mut table_successors = vec![TableSuccessors::default(); program.tables.len()];
    for table in &successor_labels {
        if let Some(successors) = table_successors.get_mut(table.table as usize) {
            *successors = table.resolve(&labels)?;
        }
    }
    let parser_selects = unresolved_selects
        .iter()
        .map(|select| resolve_select(select, &labels))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Executable {
        layout,
        standard_metadata: standard,
        code,
        side_tables,
        parser_selects,
        parser,
        verify,
        update,
        ingress,
        egress,
        deparser,
        actions,
        table_successors,
        keys,
        inputs,
        sums,
        lengths,
        program,
    })
}

fn resolve_select(select: &UnresolvedSelect, labels: &[Option<Pc>]) -> Result<ParserSelect, LowerError> {
    let position = |label: builder::Label| {
        let pc = label.position(labels);
        pc.ok_or_else(|| LowerError::UnresolvedReference("parser state".to_owned()))
    };
    let cases = select
        .cases
        .iter()
        .map(|(matches, label)| Ok((matches.clone(), position(*label)?)))
        .collect::<Result<Vec<_>, LowerError>>()?;
    Ok(ParserSelect {
        key: select.key.clone(),
        cases,
        default: position(select.default)?,
    })
}
