//! What tests of whole programs share: the state that a program starts with.
#![allow(dead_code)] // Not every test uses all of it.

use std::sync::Arc;

use linewarden_switch::calculations::{Algorithm, Calculation};
use linewarden_switch::forwarding::{Forwarding, ForwardingOp};
use linewarden_switch::lower::lay_args;
use linewarden_switch::program::Program;
use linewarden_switch::program::ids::ActionId;
use linewarden_switch::program::pipeline::{EntryMatch, MatchKind, Table, TableKind};
use linewarden_switch::tables::{
    self, ActionCall, DefaultPolicy, FieldMatch, HashSeed, KeyField, KeySpec, MatchType, NewEntry, Priority,
    ProfileId, ProfileSpec, Replicated, TableOp, TableSet, TableSetOp, TableSpec, Target, TargetKind,
};
use num_bigint::BigUint;

/// An action with its arguments as an entry holds them.
pub fn call(program: &Program, action: ActionId, args: &[BigUint]) -> ActionCall {
    let action = &program.actions[action.index()];
    assert_eq!(args.len(), action.params.len(), "arguments of {}", action.name);
    let (places, bytes) = lay_args(action.params.iter().map(|param| param.bits));
    let mut data = vec![0; bytes as usize];
    for ((at, len), value) in places.into_iter().zip(args) {
        let end = (at + len) as usize;
        let digits = value.to_bytes_be();
        data[end - digits.len()..end].copy_from_slice(&digits);
    }
    ActionCall {
        action: tables::ActionId(action.json_id),
        data: data.into(),
    }
}

fn kind(kind: MatchKind) -> tables::MatchKind {
    match kind {
        MatchKind::Exact => tables::MatchKind::Exact,
        MatchKind::Lpm => tables::MatchKind::Lpm,
        MatchKind::Ternary => tables::MatchKind::Ternary,
        MatchKind::Range => tables::MatchKind::Range,
        MatchKind::Valid => tables::MatchKind::Valid,
    }
}

fn spec(program: &Program, table: &Table) -> TableSpec {
    let fields = table.key.iter().map(|field| KeyField {
        static_mask: field.mask.clone().map(Into::into),
        ..KeyField::new(&field.name, kind(field.kind), field.bits)
    });
    let match_type = match table.match_kind {
        MatchKind::Lpm => MatchType::Lpm,
        MatchKind::Ternary => MatchType::Ternary,
        MatchKind::Range => MatchType::Range,
        MatchKind::Exact | MatchKind::Valid => MatchType::Exact,
    };
    let default = table.default.as_ref();
    TableSpec {
        name: table.name.clone(),
        key: KeySpec::with_type(fields.collect(), match_type).unwrap(),
        size: table.size,
        targets: match table.kind {
            TableKind::Simple => TargetKind::Action,
            TableKind::Indirect(_) => TargetKind::Member,
            TableKind::Selector(_) => TargetKind::MemberOrGroup,
        },
        stateful: table.with_counters || table.with_timeout,
        initial_default: default.map(|default| Target::Action(call(program, default.action, &default.args))),
        default_policy: match (table.default_entry_const, table.default_action_const, default) {
            (true, _, _) => DefaultPolicy::Constant,
            (false, true, Some(default)) => DefaultPolicy::ConstantAction(tables::ActionId(
                program.actions[default.action.index()].json_id,
            )),
            _ => DefaultPolicy::Free,
        },
    }
}

fn entry_match(wanted: &EntryMatch) -> FieldMatch {
    match wanted.clone() {
        EntryMatch::Exact(value) => FieldMatch::Exact(value),
        EntryMatch::Lpm(value, prefix_bits) => FieldMatch::Lpm { value, prefix_bits },
        EntryMatch::Ternary(value, mask) => FieldMatch::Ternary { value, mask },
        EntryMatch::Range(low, high) => FieldMatch::Range { low, high },
        EntryMatch::Valid(valid) => FieldMatch::Valid(valid),
    }
}

/// The calculations of a program.
pub fn calculations(program: &Program) -> Vec<Calculation> {
    let of = |name: &str| Calculation::new(Algorithm::from_name(name).unwrap());
    program
        .calculations
        .iter()
        .map(|calculation| of(&calculation.algorithm))
        .collect()
}

/// Adds an entry whose matches may have bits set that do not matter.
pub fn insert(
    forwarding: &mut Forwarding,
    table: u32,
    matches: Vec<FieldMatch>,
    priority: i32,
    target: Target,
    constant: bool,
) -> Result<(), String> {
    let id = tables::TableId(table);
    let spec = &forwarding.tables().table(id).unwrap().spec().key;
    let matches: Vec<_> = matches
        .into_iter()
        .zip(spec.fields())
        .map(|(wanted, field)| wanted.canonical(field))
        .collect();
    let key = spec
        .key(&matches, Priority(priority))
        .map_err(|error| error.to_string())?;
    let new = NewEntry {
        key,
        target,
        state: None,
        constant,
    };
    let op = ForwardingOp::Tables(TableSetOp::Table(id, TableOp::Insert(new)));
    forwarding.apply(op).map(drop).map_err(|error| error.to_string())
}

/// The state that a program starts with: its tables with their constant entries.
pub fn forwarding(program: &Program) -> Forwarding {
    let seed = HashSeed::new([1, 2, 3, 4]);
    let mut set = TableSet::new();
    for profile in &program.profiles {
        set.add_profile(Arc::new(ProfileSpec {
            name: profile.name.clone(),
            selector: profile.selector.is_some(),
            members_max: (profile.size > 0).then_some(profile.size),
            group_places_max: None,
        }));
    }
    for table in &program.tables {
        let profile = match table.kind {
            TableKind::Simple => None,
            TableKind::Indirect(profile) | TableKind::Selector(profile) => Some(ProfileId(profile.0)),
        };
        set.add_table(Arc::new(spec(program, table)), profile, &seed);
    }
    let mut forwarding = Forwarding::new(set, program.value_sets.len());
    for (id, table) in (0..).zip(&program.tables) {
        let Some(entries) = &table.entries else { continue };
        for entry in entries {
            let target = Target::Action(call(program, entry.action.action, &entry.action.args));
            let matches = entry.key.iter().map(entry_match).collect();
            let priority = i32::try_from(entry.priority).unwrap();
            insert(&mut forwarding, id, matches, priority, target, true).unwrap();
        }
        let seal = TableSetOp::Table(tables::TableId(id), TableOp::Seal);
        forwarding.apply(ForwardingOp::Tables(seal)).unwrap();
    }
    forwarding
}
