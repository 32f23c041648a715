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

/// Writes all state of `from` into `to`, which has only its initial entries.
///
/// # Errors
/// INVALID_ARGUMENT names the state that does not fit.
pub(super) fn carry_over(
    from: &ControlledProgram,
    to: &mut ControlledProgram,
    now_ms: u64,
) -> Result<(), EntityError> {
    let updates = all_updates(from, now_ms)?;
    let (before, after) = (
        Translator::new(&from.binding.info),
        Translator::new(&to.binding.info),
    );
    // The state is re-encoded as messages, so the translator rejects elements that are missing or differ in the new P4Info.
    let translated = updates
        .iter()
        .map(|update| after.decode_update(&before.encode_update(update)))
        .collect::<Result<Vec<_>, _>>()
        .map_err(reconcile_error)?;
    let results = to.write(&translated, Atomicity::RollbackOnError, now_ms)?;
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

/// All state as updates: members before groups before entries.
fn all_updates(from: &ControlledProgram, now_ms: u64) -> Result<Vec<Update>, EntityError> {
    let info = &from.binding.info;
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
    queries.extend(
        info.registers()
            .iter()
            .map(|of| Query::Registers { id: of.id, index }),
    );
    queries.extend(
        info.counters()
            .iter()
            .map(|of| Query::Counters { id: of.id, index }),
    );
    let counters = false;
    queries.extend(info.meters().iter().map(|of| Query::Meters {
        id: of.id,
        index,
        counters,
    }));
    let options = ReadOptions {
        counter: true,
        meter: true,
        ..ReadOptions::default()
    };
    queries.extend(info.tables().iter().map(|of| Query::Entries {
        table: of.id,
        key: None,
        options,
    }));
    queries.extend(info.tables().iter().map(|of| Query::DefaultEntry {
        table: of.id,
        options,
    }));
    let others = changed_default_actions(from);
    let mut updates = Vec::new();
    from.with_reader(now_ms, |reading| {
        queries.iter().try_for_each(|query| {
            reading.query(query, &mut |entity| {
                updates.extend(entity_update(from, &others, entity))
            })
        })
    })?;
    Ok(updates)
}

/// Tables whose default action differs from the initial one.
fn changed_default_actions(from: &ControlledProgram) -> BTreeSet<TableId> {
    let forwarding = from.switch.forwarding();
    let changed = |id: &crate::tables::TableId| {
        let table = forwarding.tables().table(*id);
        let is_other =
            table.is_some_and(|table| table.default_target() != table.spec().initial_default.as_ref());
        is_other || from.controller_state.default_entry_metadata.get(id).is_some()
    };
    let tables = from.binding.tables.iter();
    tables
        .filter(|(_, binding)| changed(&binding.id))
        .map(|(id, _)| *id)
        .collect()
}

/// Update that creates the entity; `None` for initial state.
fn entity_update(from: &ControlledProgram, others: &BTreeSet<TableId>, entity: Entity) -> Option<Update> {
    let is_zero = |id: &RegisterId, data: &Data| {
        let shape = from.binding.registers.get(id).map(|(_, shape)| shape);
        shape.is_some_and(|shape| shape.to_number(data).is_ok_and(|number| number.is_zero()))
    };
    match entity {
        // Initial entries of the program.
        Entity::TableEntry(entry) if entry.is_const => None,
        Entity::TableEntry(entry) => Some(Update::TableEntry(Box::new(Change::Insert(*entry)))),
        Entity::DefaultEntry(entry) if !others.contains(&entry.table) => None,
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
        // These are part of their entries.
        Entity::DirectCounter { .. } | Entity::DirectMeter { .. } => None,
    }
}
