//! Lowering of a [`Program`] to its executable form.
//!
//! All static decisions are made here: the locations of fields, the width (64 or 128 bits) in which each expression is
//! evaluated, how keys and checksum inputs are gathered, and the registers that an action locks. The result is
//! deterministic: the same program yields the same executable form. The digest of this form is part of the evidence.

mod access;
mod builder;
mod checksum;
mod condition;
mod parser;
mod pipeline;
mod plan;
mod range;
mod standard_metadata;
mod statement;
mod value;
mod walk;

pub use self::builder::LowerError;

use self::builder::{Builder, LoweredCode};
use self::parser::UnresolvedSelect;
use crate::executable::op::{Op, Pc};
use crate::executable::{Executable, ParserSelect, StandardMetadata, TableSuccessors};
use crate::layout::Layout;
use crate::program::Program;
use crate::program::ids::HeaderId;

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
