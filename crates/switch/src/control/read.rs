//! Reads of the state of a program.

use linewarden_p4runtime::entity::{
    CounterData, DefaultEntry, DirectResources, Entity, EntryAction, EntryKey, FieldMatch, Group, Member,
    Query, ReadOptions, TableEntry,
};
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::ids as p4rt_ids;
use linewarden_p4runtime::p4info;

use super::actions;
use super::binding::{Binding, TableBinding};
use super::controller_state::{ControllerState, EntryMetadata};
use super::meter_rates::rates;
use super::values::{bits, split};
use super::write::{ControlledProgram, UpdateResult, require_bound};
use crate::externs::Externs;
use crate::forwarding::Forwarding;
use crate::program::Program;
use crate::tables::{DefaultPolicy, Entry, KeySpec, Target};

/// Reader of one program's state.
pub(super) struct StateReader<'a> {
    pub(super) binding: &'a Binding,
    pub(super) controller_state: &'a ControllerState,
    pub(super) program: &'a Program,
    pub(super) externs: &'a Externs,
    pub(super) forwarding: &'a Forwarding,
    pub(super) now_ms: u64,
}

/// Table with its P4Info and program definitions.
struct BoundTable<'a> {
    info: &'a p4info::Table,
    binding: &'a TableBinding,
    spec: &'a KeySpec,
}

impl ControlledProgram {
    /// Reads the current state.
    pub(super) fn with_reader<T>(&self, now_ms: u64, read: impl FnOnce(&StateReader<'_>) -> T) -> T {
        let forwarding = self.switch.forwarding();
        read(&StateReader {
            binding: &self.binding,
            controller_state: &self.controller_state,
            program: &self.switch.executable().program,
            externs: self.switch.externs(),
            forwarding: &forwarding,
            now_ms,
        })
    }
}

impl<'a> StateReader<'a> {
    pub(super) fn query(&self, query: &Query, emit: &mut dyn FnMut(Entity)) -> UpdateResult {
        match query {
            Query::Entries { table, key, options } => self.entries(*table, key.as_ref(), options, emit),
            Query::DefaultEntry { table, .. } => self.default_entry(*table, emit),
            Query::Members { profile, member } => self.members(*profile, *member, emit),
            Query::Groups { profile, group } => self.groups(*profile, *group, emit),
            Query::Counters { id, index } => self.counters(*id, *index, emit),
            Query::Meters { id, index, counters } => self.meters(*id, *index, *counters, emit),
            Query::Registers { id, index } => self.registers(*id, *index, emit),
            Query::MulticastGroups(id) => {
                let groups = self.controller_state.multicast_groups.iter();
                let groups = groups.filter(|(key, _)| id.is_none_or(|id| id == **key));
                groups.for_each(|(_, group)| emit(Entity::MulticastGroup(group.clone())));
                Ok(())
            }
            Query::CloneSessions(id) => {
                let sessions = self.controller_state.clone_sessions.iter();
                let sessions = sessions.filter(|(key, _)| id.is_none_or(|id| id == **key));
                sessions.for_each(|(_, session)| emit(Entity::CloneSession(session.clone())));
                Ok(())
            }
            Query::ValueSet(id) => self.value_set(*id, emit),
            Query::Digest(id) => {
                let digest = self.controller_state.digest_configs.get(id);
                digest
                    .into_iter()
                    .for_each(|digest| emit(Entity::Digest(*digest)));
                Ok(())
            }
        }
    }

    fn table(&self, id: p4rt_ids::TableId) -> Result<BoundTable<'a>, EntityError> {
        let binding = require_bound(self.binding.tables.get(&id))?;
        let table = require_bound(self.forwarding.tables().table(binding.id))?;
        Ok(BoundTable {
            info: require_bound(self.binding.info.tables().get(id))?,
            binding,
            spec: &table.spec().key,
        })
    }

    fn entries(
        &self,
        id: p4rt_ids::TableId,
        key: Option<&EntryKey>,
        options: &ReadOptions,
        emit: &mut dyn FnMut(Entity),
    ) -> UpdateResult {
        let bound_table = self.table(id)?;
        if options.meter_counters && bound_table.binding.meter.is_some() {
            return Err(EntityError::unimplemented(
                "meter counters are not supported: omit meter_counter_data",
            ));
        }
        let table = require_bound(self.forwarding.tables().table(bound_table.binding.id))?;
        let mut push = |entry: &Entry| {
            if let Some(entry) = self.entry(&bound_table, entry, options) {
                emit(Entity::TableEntry(Box::new(entry)));
            }
        };
        match key {
            Some(key) => {
                let key = bound_table.binding.key(bound_table.spec, key)?;
                table.find(&key).into_iter().for_each(|entry| push(entry));
            }
            None => table.iter().for_each(|entry| push(entry)),
        }
        Ok(())
    }

    /// Converts an entry to a P4Runtime entry.
    fn entry(
        &self,
        bound_table: &BoundTable<'_>,
        entry: &Entry,
        options: &ReadOptions,
    ) -> Option<TableEntry> {
        let id = (bound_table.binding.id, entry.handle());
        let entry_metadata = self
            .controller_state
            .entry_metadata
            .get(&id)
            .cloned()
            .unwrap_or_default();
        let state = entry.state();
        let counter = state.filter(|_| options.counter && bound_table.info.counter.is_some());
        let counter = counter.map(|state| {
            let (packets, bytes) = state.counts();
            CounterData { bytes, packets }
        });
        let meter = state.filter(|_| options.meter && bound_table.info.meter.is_some());
        let idle_ms = state.map(|state| self.now_ms.saturating_sub(state.last_hit_ms()));
        Some(TableEntry {
            key: bound_table
                .binding
                .to_p4runtime_key(bound_table.info, bound_table.spec, entry.key()),
            action: Some(self.action(bound_table.binding, entry.target())?),
            controller_metadata: entry_metadata.controller_metadata,
            metadata: entry_metadata.metadata,
            idle_timeout_ns: self
                .controller_state
                .idle_timeouts_ns
                .get(&id)
                .copied()
                .unwrap_or(0),
            resources: DirectResources {
                counter,
                meter: meter.and_then(|state| state.meter(|meter| rates(meter))),
                meter_counters: None,
            },
            since_hit_ns: idle_ms
                .filter(|_| options.since_hit && bound_table.info.idle_timeout)
                .map(|idle_ms| idle_ms.saturating_mul(1_000_000)),
            is_const: entry.is_constant(),
        })
    }

    fn action(&self, binding: &TableBinding, target: &Target) -> Option<EntryAction> {
        match target {
            Target::Action(call) => {
                actions::to_p4runtime_action(self.program, self.binding, call).map(EntryAction::Action)
            }
            Target::Member(member) => {
                let id = self
                    .controller_state
                    .member_ids
                    .get(&(binding.profile?, *member))?;
                Some(EntryAction::Member(*id))
            }
            Target::Group(group) => {
                let key = (binding.profile?, *group);
                let one_shot = self.controller_state.one_shots.get(&key);
                one_shot
                    .map(|one_shot| EntryAction::OneShot(one_shot.action_set.clone()))
                    .or_else(|| {
                        self.controller_state
                            .group_ids
                            .get(&key)
                            .copied()
                            .map(EntryAction::Group)
                    })
            }
        }
    }

    fn default_entry(&self, id: p4rt_ids::TableId, emit: &mut dyn FnMut(Entity)) -> UpdateResult {
        let bound_table = self.table(id)?;
        let table = require_bound(self.forwarding.tables().table(bound_table.binding.id))?;
        let action = match table.default_target() {
            Some(Target::Action(call)) => actions::to_p4runtime_action(self.program, self.binding, call),
            _ => None,
        };
        let EntryMetadata {
            controller_metadata,
            metadata,
        } = self
            .controller_state
            .default_entry_metadata
            .get(&bound_table.binding.id)
            .cloned()
            .unwrap_or_default();
        emit(Entity::DefaultEntry(Box::new(DefaultEntry {
            table: id,
            action,
            controller_metadata,
            metadata,
            resources: DirectResources::default(),
            is_const: bound_table.info.const_default.is_some()
                || table.spec().default_policy == DefaultPolicy::Constant,
        })));
        Ok(())
    }

    fn members(
        &self,
        profile: p4rt_ids::ProfileId,
        member: Option<p4rt_ids::MemberId>,
        emit: &mut dyn FnMut(Entity),
    ) -> UpdateResult {
        let binding = require_bound(self.binding.profiles.get(&profile))?;
        let action_profile = require_bound(self.forwarding.tables().profile(binding.id))?;
        for ((profile_id, id), handle) in self.controller_state.members.iter() {
            if *profile_id != binding.id || member.is_some_and(|member| member != *id) {
                continue;
            }
            let call = action_profile.member(*handle);
            if let Some(action) =
                call.and_then(|call| actions::to_p4runtime_action(self.program, self.binding, call))
            {
                emit(Entity::Member(Member {
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
        profile: p4rt_ids::ProfileId,
        group: Option<p4rt_ids::GroupId>,
        emit: &mut dyn FnMut(Entity),
    ) -> UpdateResult {
        let binding = require_bound(self.binding.profiles.get(&profile))?;
        for ((profile_id, id), (_, stored_group)) in self.controller_state.groups.iter() {
            if *profile_id == binding.id && group.is_none_or(|group| group == *id) {
                emit(Entity::Group(Group::clone(stored_group)));
            }
        }
        Ok(())
    }

    fn value_set(&self, id: p4rt_ids::ValueSetId, emit: &mut dyn FnMut(Entity)) -> UpdateResult {
        let binding = require_bound(self.binding.value_sets.get(&id))?;
        let members = require_bound(self.forwarding.value_set(binding.id))?;
        let member = |bytes: &Vec<u8>| {
            let numbers = split(bytes, &binding.widths);
            let fields = binding.widths.iter().zip(&numbers);
            fields
                .map(|(width, number)| FieldMatch::Exact(bits(*width, number)))
                .collect()
        };
        emit(Entity::ValueSet {
            id,
            members: members.iter().map(member).collect(),
        });
        Ok(())
    }

    /// Converts an idle entry for a notification.
    pub(super) fn idle_entry(&self, id: super::controller_state::EntryId) -> Option<TableEntry> {
        let (table, handle) = id;
        let mut bindings = self.binding.tables.iter();
        let (table_id, _) = bindings.find(|(_, binding)| binding.id == table)?;
        let bound_table = self.table(*table_id).ok()?;
        let entry = self.forwarding.tables().table(table)?.get(handle).ok()?;
        self.entry(&bound_table, entry, &ReadOptions::default())
    }
}
