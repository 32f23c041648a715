//! Answering questions about what is there.

use linewarden_p4runtime::entity::{
    CounterData, DefaultEntry, DirectResources, Entity, EntryAction, EntryKey, FieldMatch, Group, Member,
    Query, TableEntry, Want,
};
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::ids as named;
use linewarden_p4runtime::p4info;

use super::actions;
use super::binding::{Binding, TableBinding};
use super::book::{Book, Note};
use super::cells::rates;
use super::values::{bits, split};
use super::writing::{Running, Written, bound};
use crate::externs::Externs;
use crate::forwarding::Forwarding;
use crate::program::Program;
use crate::tables::{DefaultPolicy, Entry, KeySpec, Target};

/// A state of a program that is read.
pub(super) struct Reading<'a> {
    pub(super) binding: &'a Binding,
    pub(super) book: &'a Book,
    pub(super) program: &'a Program,
    pub(super) externs: &'a Externs,
    pub(super) forwarding: &'a Forwarding,
    pub(super) now_ms: u64,
}

/// A table as P4Info and as the program have it.
struct Named<'a> {
    info: &'a p4info::Table,
    binding: &'a TableBinding,
    spec: &'a KeySpec,
}

impl Running {
    /// Reads what is there now.
    pub(super) fn reading<T>(&self, now_ms: u64, read: impl FnOnce(&Reading<'_>) -> T) -> T {
        let forwarding = self.switch.forwarding();
        read(&Reading {
            binding: &self.binding,
            book: &self.book,
            program: &self.switch.executable().program,
            externs: self.switch.externs(),
            forwarding: &forwarding,
            now_ms,
        })
    }
}

impl<'a> Reading<'a> {
    pub(super) fn answer(&self, query: &Query, found: &mut dyn FnMut(Entity)) -> Written {
        match query {
            Query::Entries { table, key, want } => self.entries(*table, key.as_ref(), want, found),
            Query::DefaultEntry { table, .. } => self.default_entry(*table, found),
            Query::Members { profile, member } => self.members(*profile, *member, found),
            Query::Groups { profile, group } => self.groups(*profile, *group, found),
            Query::Counters { id, index } => self.counters(*id, *index, found),
            Query::Meters { id, index, counters } => self.meters(*id, *index, *counters, found),
            Query::Registers { id, index } => self.registers(*id, *index, found),
            Query::MulticastGroups(id) => {
                let groups = self.book.multicast.iter();
                let groups = groups.filter(|(known, _)| id.is_none_or(|id| id == **known));
                groups.for_each(|(_, group)| found(Entity::MulticastGroup(group.clone())));
                Ok(())
            }
            Query::CloneSessions(id) => {
                let sessions = self.book.clones.iter();
                let sessions = sessions.filter(|(known, _)| id.is_none_or(|id| id == **known));
                sessions.for_each(|(_, session)| found(Entity::CloneSession(session.clone())));
                Ok(())
            }
            Query::ValueSet(id) => self.value_set(*id, found),
            Query::Digest(id) => {
                let digest = self.book.digests.get(id);
                digest
                    .into_iter()
                    .for_each(|digest| found(Entity::Digest(*digest)));
                Ok(())
            }
        }
    }

    fn table(&self, id: named::TableId) -> Result<Named<'a>, EntityError> {
        let binding = bound(self.binding.tables.get(&id))?;
        let table = bound(self.forwarding.tables().table(binding.id))?;
        Ok(Named {
            info: bound(self.binding.info.tables().get(id))?,
            binding,
            spec: &table.spec().key,
        })
    }

    fn entries(
        &self,
        id: named::TableId,
        key: Option<&EntryKey>,
        want: &Want,
        found: &mut dyn FnMut(Entity),
    ) -> Written {
        let named = self.table(id)?;
        if want.meter_counters && named.binding.meter.is_some() {
            return Err(EntityError::unimplemented(
                "meters do not count what they mark here: leave meter_counter_data out",
            ));
        }
        let table = bound(self.forwarding.tables().table(named.binding.id))?;
        let mut tell = |entry: &Entry| {
            if let Some(entry) = self.entry(&named, entry, want) {
                found(Entity::TableEntry(Box::new(entry)));
            }
        };
        match key {
            Some(key) => {
                let key = named.binding.key(named.spec, key)?;
                table.find(&key).into_iter().for_each(|entry| tell(entry));
            }
            None => table.iter().for_each(|entry| tell(entry)),
        }
        Ok(())
    }

    /// An entry as the controller knows it.
    fn entry(&self, named: &Named<'_>, entry: &Entry, want: &Want) -> Option<TableEntry> {
        let id = (named.binding.id, entry.handle());
        let note = self.book.notes.get(&id).cloned().unwrap_or_default();
        let state = entry.state();
        let counter = state.filter(|_| want.counter && named.info.counter.is_some());
        let counter = counter.map(|state| {
            let (packets, bytes) = state.counts();
            CounterData { bytes, packets }
        });
        let meter = state.filter(|_| want.meter && named.info.meter.is_some());
        let idle_ms = state.map(|state| self.now_ms.saturating_sub(state.last_hit_ms()));
        Some(TableEntry {
            key: named.binding.named_key(named.info, named.spec, entry.key()),
            action: Some(self.action(named.binding, entry.target())?),
            controller_metadata: note.controller_metadata,
            metadata: note.metadata,
            idle_timeout_ns: self.book.timeouts.get(&id).copied().unwrap_or(0),
            resources: DirectResources {
                counter,
                meter: meter.and_then(|state| state.meter(|meter| rates(meter))),
                meter_counters: None,
            },
            since_hit_ns: idle_ms
                .filter(|_| want.since_hit && named.info.idle_timeout)
                .map(|idle_ms| idle_ms.saturating_mul(1_000_000)),
            is_const: entry.is_constant(),
        })
    }

    fn action(&self, binding: &TableBinding, target: &Target) -> Option<EntryAction> {
        match target {
            Target::Action(call) => actions::named(self.program, self.binding, call).map(EntryAction::Action),
            Target::Member(member) => {
                let id = self.book.member_ids.get(&(binding.profile?, *member))?;
                Some(EntryAction::Member(*id))
            }
            Target::Group(group) => {
                let key = (binding.profile?, *group);
                let shot = self.book.shots.get(&key);
                shot.map(|shot| EntryAction::OneShot(shot.set.clone()))
                    .or_else(|| self.book.group_ids.get(&key).copied().map(EntryAction::Group))
            }
        }
    }

    fn default_entry(&self, id: named::TableId, found: &mut dyn FnMut(Entity)) -> Written {
        let named = self.table(id)?;
        let table = bound(self.forwarding.tables().table(named.binding.id))?;
        let action = match table.default_target() {
            Some(Target::Action(call)) => actions::named(self.program, self.binding, call),
            _ => None,
        };
        let Note {
            controller_metadata,
            metadata,
        } = self
            .book
            .defaults
            .get(&named.binding.id)
            .cloned()
            .unwrap_or_default();
        found(Entity::DefaultEntry(Box::new(DefaultEntry {
            table: id,
            action,
            controller_metadata,
            metadata,
            resources: DirectResources::default(),
            is_const: named.info.const_default.is_some()
                || table.spec().default_policy == DefaultPolicy::Constant,
        })));
        Ok(())
    }

    fn members(
        &self,
        profile: named::ProfileId,
        member: Option<named::MemberId>,
        found: &mut dyn FnMut(Entity),
    ) -> Written {
        let binding = bound(self.binding.profiles.get(&profile))?;
        let held = bound(self.forwarding.tables().profile(binding.id))?;
        for ((of, id), handle) in self.book.members.iter() {
            if *of != binding.id || member.is_some_and(|member| member != *id) {
                continue;
            }
            let call = held.member(*handle);
            if let Some(action) = call.and_then(|call| actions::named(self.program, self.binding, call)) {
                found(Entity::Member(Member {
                    profile,
                    id: *id,
                    action,
                }));
            }
        }
        Ok(())
    }

    fn groups(
        &self,
        profile: named::ProfileId,
        group: Option<named::GroupId>,
        found: &mut dyn FnMut(Entity),
    ) -> Written {
        let binding = bound(self.binding.profiles.get(&profile))?;
        for ((of, id), (_, written)) in self.book.groups.iter() {
            if *of == binding.id && group.is_none_or(|group| group == *id) {
                found(Entity::Group(Group::clone(written)));
            }
        }
        Ok(())
    }

    fn value_set(&self, id: named::ValueSetId, found: &mut dyn FnMut(Entity)) -> Written {
        let binding = bound(self.binding.value_sets.get(&id))?;
        let held = bound(self.forwarding.value_set(binding.id))?;
        let member = |bytes: &Vec<u8>| {
            let numbers = split(bytes, &binding.widths);
            let fields = binding.widths.iter().zip(&numbers);
            fields
                .map(|(width, number)| FieldMatch::Exact(bits(*width, number)))
                .collect()
        };
        found(Entity::ValueSet {
            id,
            members: held.iter().map(member).collect(),
        });
        Ok(())
    }

    /// An entry that has not been hit for its time to live, as a notification names it.
    pub(super) fn idle_entry(&self, id: super::book::EntryId) -> Option<TableEntry> {
        let (table, handle) = id;
        let bound = self.binding.tables.iter().find(|(_, known)| known.id == table);
        let named = self.table(*bound?.0).ok()?;
        let entry = self.forwarding.tables().table(table)?.get(handle).ok()?;
        self.entry(&named, entry, &Want::default())
    }
}
