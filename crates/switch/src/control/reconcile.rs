//! Taking what controllers wrote along to another program.

use std::collections::BTreeSet;

use linewarden_p4runtime::data::Data;
use linewarden_p4runtime::entity::{Change, CounterData, Entity, Query, Update, Want};
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::ids::{RegisterId, TableId};
use linewarden_p4runtime::target::Atomicity;
use linewarden_p4runtime::translate::Translator;
use num_traits::Zero as _;

use super::writing::Running;

/// Writes everything that `from` holds into `to`, which holds nothing yet but its own entries.
///
/// # Errors
/// INVALID_ARGUMENT names what does not fit.
pub(super) fn carry_over(from: &Running, to: &mut Running, now_ms: u64) -> Result<(), EntityError> {
    let updates = everything(from, now_ms)?;
    let (before, after) = (
        Translator::new(&from.binding.info),
        Translator::new(&to.binding.info),
    );
    // By way of the messages: whatever the other P4Info no longer has, or has differently, is refused there.
    let translated = updates
        .iter()
        .map(|update| after.decode_update(&before.encode_update(update)))
        .collect::<Result<Vec<_>, _>>()
        .map_err(misfit)?;
    let results = to.write(&translated, Atomicity::RollbackOnError, now_ms)?;
    results
        .into_iter()
        .collect::<Result<Vec<()>, _>>()
        .map(|_| ())
        .map_err(misfit)
}

fn misfit(error: EntityError) -> EntityError {
    EntityError::invalid(format!(
        "what was written does not fit this program: {}",
        error.message
    ))
}

/// All of it, as the updates that would make it: members before groups before entries.
fn everything(from: &Running, now_ms: u64) -> Result<Vec<Update>, EntityError> {
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
    let want = Want {
        counter: true,
        meter: true,
        ..Want::default()
    };
    queries.extend(info.tables().iter().map(|of| Query::Entries {
        table: of.id,
        key: None,
        want,
    }));
    queries.extend(
        info.tables()
            .iter()
            .map(|of| Query::DefaultEntry { table: of.id, want }),
    );
    let others = other_defaults(from);
    let mut updates = Vec::new();
    from.reading(now_ms, |reading| {
        queries.iter().try_for_each(|query| {
            reading.answer(query, &mut |entity| updates.extend(update(from, &others, entity)))
        })
    })?;
    Ok(updates)
}

/// The tables whose default action is not the program's own.
fn other_defaults(from: &Running) -> BTreeSet<TableId> {
    let forwarding = from.switch.forwarding();
    let changed = |id: &crate::tables::TableId| {
        let table = forwarding.tables().table(*id);
        let is_other =
            table.is_some_and(|table| table.default_target() != table.spec().initial_default.as_ref());
        is_other || from.book.defaults.get(id).is_some()
    };
    let tables = from.binding.tables.iter();
    tables
        .filter(|(_, binding)| changed(&binding.id))
        .map(|(id, _)| *id)
        .collect()
}

/// What would make it; nothing for what every program begins with.
fn update(from: &Running, others: &BTreeSet<TableId>, entity: Entity) -> Option<Update> {
    let is_zero = |id: &RegisterId, data: &Data| {
        let shape = from.binding.registers.get(id).map(|(_, shape)| shape);
        shape.is_some_and(|shape| shape.to_number(data).is_ok_and(|number| number.is_zero()))
    };
    match entity {
        // The program's own.
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
        // They come with their entries.
        Entity::DirectCounter { .. } | Entity::DirectMeter { .. } => None,
    }
}
