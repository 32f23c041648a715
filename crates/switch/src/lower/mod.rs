//! From a [`Program`] to its executable form: what really runs, as one linear list.
//!
//! Everything that can be decided once is decided here: where fields lie, which lane an expression is computed in,
//! how keys and checksums are gathered, which registers an action locks. The result is canonical: the same program
//! gives the same form, whose digest is the program's evidence.

mod access;
pub(crate) mod builder;
mod checksum;
mod condition;
mod parser;
mod pipeline;
pub(crate) mod plan;
mod range;
pub(crate) mod standard;
mod statement;
mod value;
mod walk;

pub use self::builder::{LowerError, Side};
pub use self::pipeline::Onward;
pub use self::statement::{ActionCode, lay_args};

use serde::Serialize;

use self::builder::{Builder, Finished};
use self::parser::Selection;
use self::plan::{InputStep, KeyPlan, Stretch};
use self::standard::Standard;
use crate::exec::op::{Op, Pc};
use crate::layout::Layout;
use crate::program::Program;
use crate::program::expr::Data;
use crate::program::ids::HeaderId;
use crate::program::parser::{KeyPart, Match};

/// A choice among parser transitions that is made by tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// What the key is made of.
    pub key: Vec<KeyPart>,
    /// What is matched, and where to go on.
    pub cases: Vec<(Match, Pc)>,
    /// Where to go on otherwise.
    pub default: Pc,
}

/// A program in executable form.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Executable {
    /// The program.
    pub program: Program,
    /// Where its headers lie.
    pub layout: Layout,
    /// Where the standard metadata lies.
    pub standard: Standard,
    /// The operations.
    pub code: Vec<Op>,
    /// What they refer to.
    pub side: Side,
    /// Choices of the parser.
    pub choices: Vec<Choice>,
    /// Where the parser begins.
    pub parser: Pc,
    /// Where checksums are verified.
    pub verify: Pc,
    /// Where checksums are updated.
    pub update: Pc,
    /// Where ingress begins.
    pub ingress: Pc,
    /// Where egress begins.
    pub egress: Pc,
    /// Where the deparser's statements begin.
    pub deparser: Pc,
    /// Actions.
    pub actions: Vec<ActionCode>,
    /// Where to go on after tables.
    pub onward: Vec<Onward>,
    /// How tables' keys are made.
    pub keys: Vec<KeyPlan>,
    /// How calculations' inputs are gathered.
    pub inputs: Vec<Vec<InputStep>>,
    /// Where calculations that are sums of whole words add up what they are made over.
    pub sums: Vec<Option<Vec<Stretch>>>,
    /// Bits of headers' fields of variable length, where the header's type says how to compute them.
    pub lengths: Vec<Option<Data>>,
}

/// Lowers a program.
///
/// # Errors
/// What keeps it from being run.
pub fn lower(program: Program) -> Result<Executable, LowerError> {
    let layout = Layout::of(&program).ok_or(LowerError::HeadersTooLarge)?;
    let standard = Standard::of(&program, &layout)?;
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
        .map(|(calculation, inputs)| plan::stretches(calculation, inputs))
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
    let mut selections = Vec::new();
    let parser = builder.parser(&mut selections)?;
    let verify = builder.checksums(true)?;
    let update = builder.checksums(false)?;
    let mut onward = Vec::new();
    let ingress = builder.pipeline(&program.ingress, &actions, &mut onward)?;
    let egress = builder.pipeline(&program.egress, &actions, &mut onward)?;
    builder.context = "the deparser".to_owned();
    let deparser = builder.here()?;
    builder.body(&program.deparser.statements)?;
    builder.emit(Op::End);
    let Finished { code, side, labels } = builder.finish()?;
    let mut by_table = vec![Onward::default(); program.tables.len()];
    for table in &onward {
        if let Some(slot) = by_table.get_mut(table.table as usize) {
            *slot = table.resolve(&labels)?;
        }
    }
    let choices = selections
        .iter()
        .map(|selection| choice(selection, &labels))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Executable {
        layout,
        standard,
        code,
        side,
        choices,
        parser,
        verify,
        update,
        ingress,
        egress,
        deparser,
        actions,
        onward: by_table,
        keys,
        inputs,
        sums,
        lengths,
        program,
    })
}

fn choice(selection: &Selection, labels: &[Option<Pc>]) -> Result<Choice, LowerError> {
    let position = |label: builder::Label| {
        let found = label.position(labels);
        found.ok_or_else(|| LowerError::Dangling("a parser state".to_owned()))
    };
    let cases = selection
        .cases
        .iter()
        .map(|(matches, label)| Ok((matches.clone(), position(*label)?)))
        .collect::<Result<Vec<_>, LowerError>>()?;
    Ok(Choice {
        key: selection.key.clone(),
        cases,
        default: position(selection.default)?,
    })
}
