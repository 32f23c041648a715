//! Transfer of controller state to another program (RECONCILE_AND_COMMIT).

use std::collections::BTreeSet;

use linewarden_p4runtime::data::Data;
use linewarden_p4runtime::entity::{Change, CounterData, Entity, Query, ReadOptions, Update};
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::ids::{RegisterId, TableId};
use linewarden_p4runtime::target::Atomicity;
use linewarden_p4runtime::translate::Translator;
use num_traits::Zero as _;

use super::write::ControlledProgram;

/// Writes all state of `source` into `destination`, which has only its initial entries.
///
/// # Errors
/// INVALID_ARGUMENT names the state that does not fit.
pub(super) fn carry_over(
    source: &ControlledProgram,
    destination: &mut ControlledProgram,
    now_ms: u64,
) -> Result<(), EntityError> {
    let updates = all_updates(source, now_ms)?;
    let (source_translator, destination_translator) = (
        Translator::new(&source.binding.info),
        Translator::new(&destination.binding.info),
    );
    // The state is re-encoded as messages, so the translator rejects elements that are missing or differ in the new P4Info.
    let translated = updates
        .iter()
        .map(|update| destination_translator.decode_update(&source_translator.encode_update(update)))
        .collect::<Result<Vec<_>, _>>()
        .map_err(reconcile_error)?;
    let results = destination.write(&translated, Atomicity::RollbackOnError, now_ms)?;
    results
        .into_iter()
        .collect::<Result<Vec<()>, _>>()
        .map(|_| ())
        .map_err(reconcile_error)
}

fn reconcile_error(error: EntityError) -> EntityError {
    EntityError::invalid(format!(
        "existing state does not fit the new program: {}",
        error.message
    ))
}

/// Returns all state as updates. Members precede groups, and groups precede table entries.
fn all_updates(source: &ControlledProgram, now_ms: u64) -> Result<Vec<Update>, EntityError> {
    let info = &source.binding.info;
    let mut queries = Vec::new();
    let profiles = || info.profiles().iter().map(|profile| profile.id);
    queries.extend(profiles().map(|profile| Query::Members {
        profile,
        member: None,
    }));
    let selectors = info.profiles().iter().filter(|profile| profile.with_selector);
    queries.extend(selectors.map(|profile| Query::Groups {
        profile: profile.id,
        group: None,
    }));
    queries.push(Query::MulticastGroups(None));
    queries.push(Query::CloneSessions(None));
    queries.extend(info.value_sets().iter().map(|set| Query::ValueSet(set.id)));
    queries.extend(info.digests().iter().map(|digest| Query::Digest(digest.id)));
    let index = None;
    queries.extend(info.registers().iter().map(|register| Query::Registers {
        id: register.id,
        index,
    }));
    queries.extend(info.counters().iter().map(|counter| Query::Counters {
        id: counter.id,
        index,
    }));
    let counters = false;
    queries.extend(info.meters().iter().map(|meter| Query::Meters {
        id: meter.id,
        index,
        counters,
    }));
    let options = ReadOptions {
        counter: true,
        meter: true,
        ..ReadOptions::default()
    };
    queries.extend(info.tables().iter().map(|table| Query::Entries {
        table: table.id,
        key: None,
        options,
    }));
    queries.extend(info.tables().iter().map(|table| Query::DefaultEntry {
        table: table.id,
        options,
    }));
    let changed_defaults = changed_default_actions(source);
    let mut updates = Vec::new();
    source.with_reader(now_ms, |reader| {
        queries.iter().try_for_each(|query| {
            reader.query(query, &mut |entity| {
                updates.extend(entity_update(source, &changed_defaults, entity))
            })
        })
    })?;
    Ok(updates)
}

/// Returns the tables whose default entry differs from the initial default entry.
fn changed_default_actions(source: &ControlledProgram) -> BTreeSet<TableId> {
    let forwarding = source.switch.forwarding();
    let is_changed = |id: &crate::tables::TableId| {
        let table = forwarding.tables().table(*id);
        let differs =
            table.is_some_and(|table| table.default_target() != table.spec().initial_default.as_ref());
        differs || source.controller_state.default_entry_metadata.get(id).is_some()
    };
    let tables = source.binding.tables.iter();
    tables
        .filter(|(_, binding)| is_changed(&binding.id))
        .map(|(id, _)| *id)
        .collect()
}

/// Update that creates the entity; `None` for initial state.
fn entity_update(
    source: &ControlledProgram,
    changed_defaults: &BTreeSet<TableId>,
    entity: Entity,
) -> Option<Update> {
    let is_zero = |id: &RegisterId, data: &Data| {
        let layout = source.binding.registers.get(id).map(|(_, layout)| layout);
        layout.is_some_and(|layout| layout.to_number(data).is_ok_and(|number| number.is_zero()))
    };
    match entity {
        // Constant entries belong to the program, so they are not transferred.
        Entity::TableEntry(entry) if entry.is_const => None,
        Entity::TableEntry(entry) => Some(Update::TableEntry(Box::new(Change::Insert(*entry)))),
        Entity::DefaultEntry(entry) if !changed_defaults.contains(&entry.table) => None,
        Entity::DefaultEntry(entry) => Some(Update::DefaultEntry(entry)),
        Entity::Member(member) => Some(Update::Member(Change::Insert(member))),
        Entity::Group(group) => Some(Update::Group(Change::Insert(group))),
        Entity::Counter { data, .. } if data == CounterData::default() => None,
        Entity::Counter { id, index, data } => Some(Update::Counter {
            id,
            index: Some(index),
            data: Some(data),
        }),
        Entity::Meter { config: None, .. } => None,
        Entity::Meter {
            id, index, config, ..
        } => Some(Update::Meter {
            id,
            index: Some(index),
            config,
            reset_counters: false,
        }),
        Entity::Register { id, data, .. } if is_zero(&id, &data) => None,
        Entity::Register { id, index, data } => Some(Update::Register {
            id,
            index: Some(index),
            data,
        }),
        Entity::MulticastGroup(group) => Some(Update::MulticastGroup(Change::Insert(group))),
        Entity::CloneSession(session) => Some(Update::CloneSession(Change::Insert(session))),
        Entity::ValueSet { members, .. } if members.is_empty() => None,
        Entity::ValueSet { id, members } => Some(Update::ValueSet { id, members }),
        Entity::Digest(digest) => Some(Update::Digest(Change::Insert(digest))),
        // Direct counters and meters are part of their table entries.
        Entity::DirectCounter { .. } | Entity::DirectMeter { .. } => None,
    }
}
