//! Writes of table entries and default entries.

use std::sync::Arc;

use linewarden_p4runtime::entity::{
    ActionSet, Change, CounterData, DefaultEntry, DirectResources, EntryAction, EntryKey, EntryRef,
    MeterConfig, SelectionMode, TableEntry,
};
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::ids as p4rt_ids;

use super::actions;
use super::binding::TableBinding;
use super::controller_state::{EntryMetadata, OneShot};
use super::write::{BatchWriter, CellWrite, UpdateResult, require_bound};
use crate::forwarding::{ForwardingChange, ForwardingOp};
use crate::meter::Meter;
use crate::program::ids::{ProfileId, TableId};
use crate::tables::{
    Entry, EntryHandle, EntryState, GroupHandle, KeySpec, MemberHandle, NewEntry, ProfileChange, ProfileOp,
    TableChange, TableOp, TableSetChange, TableSetOp, Target, WeightedMember,
};

/// Converts an idle timeout to whole milliseconds, rounded up.
fn milliseconds(timeout_ns: u64) -> u64 {
    timeout_ns.div_ceil(1_000_000)
}

fn meter_counters_unsupported() -> EntityError {
    EntityError::unimplemented("meter counters are not supported: omit meter_counter_data")
}

fn watch_port_unsupported() -> EntityError {
    EntityError::unimplemented("port watching is not supported: omit watch_port")
}

/// Rejects a watched port.
pub(super) fn reject_watch_port<T>(watch: Option<T>) -> UpdateResult {
    watch.map_or(Ok(()), |_| Err(watch_port_unsupported()))
}

fn packets_and_bytes(counts: CounterData) -> (u64, u64) {
    (counts.packets, counts.bytes)
}

impl<'a> BatchWriter<'a, '_> {
    pub(super) fn entry(&mut self, change: &Change<TableEntry, EntryKey>) -> UpdateResult {
        match change {
            Change::Insert(entry) => self.insert(entry),
            Change::Modify(entry) => self.modify(entry),
            Change::Delete(key) => self.delete(key),
        }
    }

    fn table(&self, id: p4rt_ids::TableId) -> Result<&'a TableBinding, EntityError> {
        require_bound(self.binding.tables.get(&id))
    }

    fn spec(&self, id: TableId) -> Result<&KeySpec, EntityError> {
        let table = self.batch.state().tables().table(id);
        require_bound(table.map(|table| &table.spec().key))
    }

    fn apply_table_op(&mut self, op: TableSetOp) -> Result<TableSetChange, EntityError> {
        match self.apply_op(ForwardingOp::Tables(op))? {
            ForwardingChange::Tables(change) => Ok(change),
            _ => Err(EntityError::invalid(
                "internal error: the operation did not change a table",
            )),
        }
    }

    pub(super) fn apply_profile_op(
        &mut self,
        id: ProfileId,
        op: ProfileOp,
    ) -> Result<ProfileChange, EntityError> {
        match self.apply_table_op(TableSetOp::Profile(id, op))? {
            TableSetChange::Profile(_, change) => Ok(change),
            TableSetChange::Table(..) => Err(EntityError::invalid(
                "internal error: the operation did not change an action profile",
            )),
        }
    }

    /// Finds the entry with this key.
    fn find(&self, binding: &TableBinding, key: &EntryKey) -> Result<Arc<Entry>, EntityError> {
        let table = require_bound(self.batch.state().tables().table(binding.id))?;
        let key = binding.key(&table.spec().key, key)?;
        table.find(&key).cloned().ok_or_else(|| {
            EntityError::not_found(format!("entry not found in table \"{}\"", table.spec().name))
        })
    }

    fn insert(&mut self, entry: &TableEntry) -> UpdateResult {
        let binding = self.table(entry.key.table)?;
        let key = binding.key(self.spec(binding.id)?, &entry.key)?;
        let action = entry.action.as_ref();
        let action = action.ok_or_else(|| EntityError::invalid("new entry requires an action"))?;
        let table = require_bound(self.batch.state().tables().table(binding.id))?;
        // Check the entry before creating objects for it.
        if table.find(&key).is_some() {
            return Err(EntityError::already_exists(format!(
                "entry with this key exists in table \"{}\"",
                table.spec().name
            )));
        }
        let state = table.spec().stateful.then(EntryState::default).map(Arc::new);
        if let Some(state) = &state {
            self.initialize_state(binding, state, entry)?;
        }
        let (target, one_shot) = self.target(binding, action)?;
        let new_entry = NewEntry {
            key,
            target,
            state,
            constant: false,
        };
        let change = self.apply_table_op(TableSetOp::Table(binding.id, TableOp::Insert(new_entry)))?;
        let TableSetChange::Table(_, TableChange::Inserted(installed_entry)) = change else {
            return Err(EntityError::invalid("internal error: the entry was not inserted"));
        };
        self.store_metadata(binding, &installed_entry, entry, one_shot)
    }

    /// Sets the initial state of an entry.
    fn initialize_state(
        &self,
        binding: &TableBinding,
        state: &EntryState,
        entry: &TableEntry,
    ) -> UpdateResult {
        if entry.resources.meter_counters.is_some() {
            return Err(meter_counters_unsupported());
        }
        if let Some(config) = &entry.resources.meter {
            let meter = self.configured_meter(require_bound(binding.meter)?, Some(config))?;
            state.meter(|cell| *cell = meter);
        }
        if let Some(counts) = entry.resources.counter {
            state.set_counts(counts.packets, counts.bytes);
        }
        state.set_timeout(self.now_ms, milliseconds(entry.idle_timeout_ns));
        Ok(())
    }

    /// Stores the controller's metadata of an entry.
    fn store_metadata(
        &mut self,
        binding: &TableBinding,
        installed_entry: &Entry,
        entry: &TableEntry,
        one_shot: Option<(GroupHandle, OneShot)>,
    ) -> UpdateResult {
        let id = (binding.id, installed_entry.handle());
        self.controller_state.entry_metadata.set(
            id,
            EntryMetadata::from_parts(entry.controller_metadata, &entry.metadata),
        );
        let timeout = Some(entry.idle_timeout_ns).filter(|timeout| *timeout > 0);
        self.controller_state.idle_timeouts_ns.set(id, timeout);
        if let Some((group, one_shot)) = one_shot {
            self.controller_state
                .one_shots
                .set((require_bound(binding.profile)?, group), Some(one_shot));
        }
        Ok(())
    }

    fn modify(&mut self, entry: &TableEntry) -> UpdateResult {
        let binding = self.table(entry.key.table)?;
        let old_entry = self.find(binding, &entry.key)?;
        if let Some(action) = &entry.action {
            let (target, one_shot) = self.target(binding, action)?;
            let op = TableOp::Modify(old_entry.handle(), target);
            self.apply_table_op(TableSetOp::Table(binding.id, op))?;
            self.store_metadata(binding, &old_entry, entry, one_shot)?;
            self.delete_one_shot(binding, &old_entry)?;
        } else if !old_entry.is_constant() {
            self.store_metadata(binding, &old_entry, entry, None)?;
        }
        let Some(state) = old_entry.shared_state() else {
            return Ok(());
        };
        let entry_id = (binding.id, old_entry.handle());
        let timeout_ms = milliseconds(entry.idle_timeout_ns);
        if timeout_ms != state.timeout_ms() {
            let times = (self.now_ms, timeout_ms);
            self.cell_writes
                .push(CellWrite::EntryTimeout(entry_id, Arc::clone(state), times));
        }
        self.modify_resources(binding, &old_entry, state, &entry.resources)
    }

    /// Changes the counter and the meter of an entry. Without counter data the counts stay; without a meter configuration
    /// the meter becomes always green.
    fn modify_resources(
        &mut self,
        binding: &TableBinding,
        old_entry: &Entry,
        state: &Arc<EntryState>,
        resources: &DirectResources,
    ) -> UpdateResult {
        if resources.meter_counters.is_some() {
            return Err(meter_counters_unsupported());
        }
        if let Some(counts) = resources.counter {
            self.cell_writes.push(CellWrite::EntryCounts(
                Arc::clone(state),
                packets_and_bytes(counts),
            ));
        }
        let is_metered = state.meter(|meter| meter.rates().next().is_some());
        if let Some(meter) = binding.meter
            && (is_metered || resources.meter.is_some())
        {
            let meter = self.configured_meter(meter, resources.meter.as_ref())?;
            let entry_id = (binding.id, old_entry.handle());
            self.cell_writes
                .push(CellWrite::EntryMeter(entry_id, Arc::clone(state), meter));
        }
        Ok(())
    }

    fn delete(&mut self, key: &EntryKey) -> UpdateResult {
        let binding = self.table(key.table)?;
        let old_entry = self.find(binding, key)?;
        let op = TableOp::Delete(old_entry.handle());
        self.apply_table_op(TableSetOp::Table(binding.id, op))?;
        let id = (binding.id, old_entry.handle());
        self.controller_state.entry_metadata.set(id, None);
        self.controller_state.idle_timeouts_ns.set(id, None);
        self.delete_one_shot(binding, &old_entry)
    }

    /// Returns the target of an entry. For a one-shot entry the target is a new group, which is also returned.
    fn target(
        &mut self,
        binding: &TableBinding,
        action: &EntryAction,
    ) -> Result<(Target, Option<(GroupHandle, OneShot)>), EntityError> {
        let profile = binding.profile;
        match action {
            EntryAction::Action(action) => {
                let call = actions::to_action_call(self.program, &binding.actions, action)?;
                Ok((Target::Action(call), None))
            }
            EntryAction::Member(id) => {
                let member = self.member_handle(self.require_no_one_shots(require_bound(profile)?)?, *id)?;
                Ok((Target::Member(member), None))
            }
            EntryAction::Group(id) => {
                let group = self.group_handle(self.require_no_one_shots(require_bound(profile)?)?, *id)?;
                Ok((Target::Group(group), None))
            }
            EntryAction::OneShot(set) => {
                let (group, one_shot) = self.create_one_shot(binding, require_bound(profile)?, set)?;
                Ok((Target::Group(group), Some((group, one_shot))))
            }
        }
    }

    /// Returns the selector if no one-shot entry uses the selector: P4Runtime does not permit one-shot entries together
    /// with members and groups (9.2.3).
    pub(super) fn require_no_one_shots(&self, profile: ProfileId) -> Result<ProfileId, EntityError> {
        if self.controller_state.has_one_shots(profile) {
            return Err(EntityError::invalid(
                "selector has one-shot entries: members and groups are not allowed",
            ));
        }
        Ok(profile)
    }

    fn create_one_shot(
        &mut self,
        binding: &TableBinding,
        profile: ProfileId,
        set: &ActionSet,
    ) -> Result<(GroupHandle, OneShot), EntityError> {
        if self.controller_state.has_members(profile) {
            return Err(EntityError::invalid(
                "selector has members: one-shot entries are not allowed",
            ));
        }
        if set.group_action.is_some() {
            return Err(EntityError::unimplemented(
                "group_action is not supported by v1model selectors",
            ));
        }
        if set.mode == SelectionMode::Random {
            return Err(EntityError::unimplemented(
                "selection mode is not supported: v1model selectors select by hash",
            ));
        }
        let mut weighted: Vec<WeightedMember> = Vec::with_capacity(set.actions.len());
        for action in &set.actions {
            reject_watch_port(action.watch_port)?;
            let call = actions::to_action_call(self.program, &binding.actions, &action.action)?;
            match self.apply_profile_op(profile, ProfileOp::AddMember(call))? {
                ProfileChange::Member { member, .. } => weighted.push((member, action.weight.max(1))),
                ProfileChange::Group { .. } => {
                    return Err(EntityError::invalid("internal error: no member was created"));
                }
            }
        }
        let members: Vec<MemberHandle> = weighted.iter().map(|(member, _)| *member).collect();
        match self.apply_profile_op(profile, ProfileOp::AddGroup(weighted))? {
            ProfileChange::Group { group, .. } => Ok((
                group,
                OneShot {
                    action_set: set.clone(),
                    members,
                },
            )),
            ProfileChange::Member { .. } => Err(EntityError::invalid("internal error: no group was created")),
        }
    }

    /// Deletes the group of a one-shot entry that no longer uses the group.
    fn delete_one_shot(&mut self, binding: &TableBinding, old_entry: &Entry) -> UpdateResult {
        let (Some(profile), Target::Group(group)) = (binding.profile, old_entry.target()) else {
            return Ok(());
        };
        let Some(one_shot) = self.controller_state.one_shots.get(&(profile, *group)).cloned() else {
            return Ok(());
        };
        self.apply_profile_op(profile, ProfileOp::DeleteGroup(*group))?;
        for member in one_shot.members {
            self.apply_profile_op(profile, ProfileOp::DeleteMember(member))?;
        }
        self.controller_state.one_shots.set((profile, *group), None);
        Ok(())
    }

    pub(super) fn default_entry(&mut self, entry: &DefaultEntry) -> UpdateResult {
        let binding = self.table(entry.table)?;
        if entry.resources != DirectResources::default() {
            return Err(default_resources_unsupported());
        }
        let target = match &entry.action {
            Some(action) => Some(Target::Action(actions::to_action_call(
                self.program,
                &binding.actions,
                action,
            )?)),
            None => None,
        };
        self.apply_table_op(TableSetOp::Table(binding.id, TableOp::SetDefault(target)))?;
        self.controller_state.default_entry_metadata.set(
            binding.id,
            EntryMetadata::from_parts(entry.controller_metadata, &entry.metadata)
                .filter(|_| entry.action.is_some()),
        );
        Ok(())
    }

    pub(super) fn direct_counter(&mut self, entry: &EntryRef, counts: Option<CounterData>) -> UpdateResult {
        let (_, _, state) = self.entry_state(entry)?;
        if let Some(counts) = counts {
            self.cell_writes
                .push(CellWrite::EntryCounts(state, packets_and_bytes(counts)));
        }
        Ok(())
    }

    pub(super) fn direct_meter(
        &mut self,
        entry: &EntryRef,
        config: Option<MeterConfig>,
        reset_counters: bool,
    ) -> UpdateResult {
        if reset_counters {
            return Err(meter_counters_unsupported());
        }
        let (binding, handle, state) = self.entry_state(entry)?;
        let meter = self.configured_meter(require_bound(binding.meter)?, config.as_ref())?;
        self.cell_writes
            .push(CellWrite::EntryMeter((binding.id, handle), state, meter));
        Ok(())
    }

    fn entry_state(
        &self,
        entry: &EntryRef,
    ) -> Result<(&'a TableBinding, EntryHandle, Arc<EntryState>), EntityError> {
        let EntryRef::Entry(key) = entry else {
            return Err(default_resources_unsupported());
        };
        let binding = self.table(key.table)?;
        let table_entry = self.find(binding, key)?;
        Ok((
            binding,
            table_entry.handle(),
            require_bound(table_entry.shared_state().cloned())?,
        ))
    }

    /// Creates a meter with these rates and full buckets. A meter without a configuration is always green.
    pub(super) fn configured_meter(
        &self,
        id: crate::program::ids::MeterId,
        config: Option<&MeterConfig>,
    ) -> Result<Meter, EntityError> {
        let rates = self.program.meters.get(id.index()).map_or(0, |array| array.rates);
        let mut meter = Meter::new();
        if let Some(config) = config {
            super::meter_rates::set_rates(&mut meter, rates, config)?;
        }
        Ok(meter)
    }
}

fn default_resources_unsupported() -> EntityError {
    EntityError::unimplemented("direct counter and meter of a default entry are not supported")
}
