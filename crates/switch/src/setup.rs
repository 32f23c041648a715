//! Creation of the initial state of a program: calculations and forwarding state.

use std::sync::Arc;

use crate::calculations::{Algorithm, Calculation};
use crate::executable::layout_args;
use crate::forwarding::Forwarding;
use crate::lower::LowerError;
use crate::program::Program;
use crate::program::pipeline::{ActionEntry, EntryMatch, MatchKind, Table, TableKind};
use crate::tables::MatchKind as TableMatchKind;
use crate::tables::{
    ActionCall, DefaultPolicy, FieldMatch, HashSeed, KeyField, KeySpec, MatchType, NewEntry, Priority,
    ProfileSpec, Replicated, TableId, TableOp, TableSet, TableSetOp, TableSpec, Target, TargetKind,
};

/// Creates the calculations of a program.
///
/// # Errors
/// An algorithm is unknown.
pub fn calculations(program: &Program) -> Result<Vec<Calculation>, LowerError> {
    program
        .calculations
        .iter()
        .map(|calculation| {
            let algorithm = Algorithm::from_name(&calculation.algorithm);
            let algorithm = algorithm.ok_or_else(|| LowerError::UnknownAlgorithm {
                name: calculation.name.clone(),
                algorithm: calculation.algorithm.clone(),
            })?;
            Ok(Calculation::new(algorithm))
        })
        .collect()
}

/// Creates the tables and profiles of a program with default actions and constant entries.
///
/// # Errors
/// A table is inconsistent.
pub fn forwarding(program: &Program, seed: &HashSeed) -> Result<Forwarding, LowerError> {
    let mut set = TableSet::new();
    let mut profiles = Vec::new();
    for profile in &program.profiles {
        profiles.push(set.add_profile(Arc::new(ProfileSpec {
            name: profile.name.clone(),
            selector: profile.selector.is_some(),
            members_max: (profile.size > 0).then_some(profile.size),
            group_size_max: None,
        })));
    }
    for table in &program.tables {
        let profile = match table.kind {
            TableKind::Simple => None,
            TableKind::Indirect(id) | TableKind::Selector(id) => profiles.get(id.index()).copied(),
        };
        set.add_table(Arc::new(spec(program, table)?), profile, seed);
    }
    for (id, table) in (0u32..).map(TableId).zip(&program.tables) {
        insert_const_entries(program, &mut set, id, table)?;
    }
    Ok(Forwarding::new(set, program.value_sets.len()))
}

fn table_error(table: &Table, problem: impl std::fmt::Display) -> LowerError {
    LowerError::InvalidTable {
        name: table.name.clone(),
        problem: problem.to_string(),
    }
}

fn spec(program: &Program, table: &Table) -> Result<TableSpec, LowerError> {
    let fields = table
        .key
        .iter()
        .map(|field| {
            let kind = match field.kind {
                MatchKind::Exact => TableMatchKind::Exact,
                MatchKind::Lpm => TableMatchKind::Lpm,
                MatchKind::Ternary => TableMatchKind::Ternary,
                MatchKind::Range => TableMatchKind::Range,
                MatchKind::Valid => TableMatchKind::Valid,
            };
            let mut key_field = KeyField::new(field.name.clone(), kind, field.bits);
            key_field.static_mask = field.mask.clone().map(Vec::into_boxed_slice);
            key_field
        })
        .collect();
    let match_type = match table.match_kind {
        MatchKind::Lpm => MatchType::Lpm,
        MatchKind::Ternary => MatchType::Ternary,
        MatchKind::Range => MatchType::Range,
        MatchKind::Exact | MatchKind::Valid => MatchType::Exact,
    };
    let key = KeySpec::with_type(fields, match_type).map_err(|error| table_error(table, error))?;
    let default = table
        .default
        .as_ref()
        .map(|entry| Target::Action(action_call(program, entry)));
    let policy = match (
        &table.default,
        table.default_action_const,
        table.default_entry_const,
    ) {
        (Some(_), _, true) => DefaultPolicy::Constant,
        (Some(entry), true, false) => DefaultPolicy::ConstantAction(entry.action),
        _ => DefaultPolicy::Free,
    };
    Ok(TableSpec {
        name: table.name.clone(),
        key,
        size: table.size,
        targets: match table.kind {
            TableKind::Simple => TargetKind::Action,
            TableKind::Indirect(_) => TargetKind::Member,
            TableKind::Selector(_) => TargetKind::MemberOrGroup,
        },
        stateful: table.with_counters || table.with_timeout || table.direct_meter.is_some(),
        initial_default: default,
        default_policy: policy,
    })
}

/// Encodes an action call with its arguments, in the encoding of [`layout_args`].
#[must_use]
pub fn action_call(program: &Program, entry: &ActionEntry) -> ActionCall {
    let params = program
        .actions
        .get(entry.action.index())
        .map_or(&[][..], |action| action.params.as_slice());
    let (locations, bytes) = layout_args(params.iter().map(|param| param.bits));
    let mut data = vec![0u8; bytes as usize];
    for ((offset, length), value) in locations.iter().zip(&entry.args) {
        let digits = value.to_bytes_be();
        let end = (*offset + *length) as usize;
        for (index, digit) in (*offset as usize..end).rev().zip(digits.iter().rev()) {
            if let Some(byte) = data.get_mut(index) {
                *byte = *digit;
            }
        }
    }
    ActionCall {
        action: entry.action,
        data: data.into(),
    }
}

fn insert_const_entries(
    program: &Program,
    set: &mut TableSet,
    id: TableId,
    table: &Table,
) -> Result<(), LowerError> {
    let Some(entries) = &table.entries else {
        return Ok(());
    };
    for entry in entries {
        let spec = set.table(id).map(|table| table.spec().key.clone());
        let Some(spec) = spec else { return Ok(()) };
        let matches: Vec<FieldMatch> = entry
            .key
            .iter()
            .zip(spec.fields())
            .map(|(entry_match, field)| field_match(entry_match).canonical(field))
            .collect();
        let priority = Priority(i32::try_from(entry.priority).unwrap_or(i32::MAX));
        let priority = if spec.has_priority() {
            priority
        } else {
            Priority::default()
        };
        let key = spec
            .key(&matches, priority)
            .map_err(|error| table_error(table, error))?;
        let new_entry = NewEntry {
            key,
            target: Target::Action(action_call(program, &entry.action)),
            state: None,
            constant: true,
        };
        set.apply(TableSetOp::Table(id, TableOp::Insert(new_entry)))
            .map_err(|error| table_error(table, error))?;
    }
    set.apply(TableSetOp::Table(id, TableOp::Seal))
        .map_err(|error| table_error(table, error))?;
    Ok(())
}

fn field_match(field: &EntryMatch) -> FieldMatch {
    match field {
        EntryMatch::Exact(value) => FieldMatch::Exact(value.clone()),
        EntryMatch::Lpm(value, prefix) => FieldMatch::Lpm {
            value: value.clone(),
            prefix_bits: *prefix,
        },
        EntryMatch::Ternary(value, mask) => FieldMatch::Ternary {
            value: value.clone(),
            mask: mask.clone(),
        },
        EntryMatch::Range(low, high) => FieldMatch::Range {
            low: low.clone(),
            high: high.clone(),
        },
        EntryMatch::Valid(valid) => FieldMatch::Valid(*valid),
    }
}
