//! Writing entries of tables, and default entries.

use std::sync::Arc;

use linewarden_p4runtime::entity::{
    ActionSet, Change, CounterData, DefaultEntry, DirectResources, EntryAction, EntryKey, EntryRef,
    MeterConfig, SelectionMode, TableEntry,
};
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::ids as named;

use super::actions;
use super::binding::TableBinding;
use super::book::{Note, Shot};
use super::writing::{Effect, Writing, Written, bound};
use crate::forwarding::{ForwardingChange, ForwardingOp};
use crate::meter::Meter;
use crate::program::ids::{ProfileId, TableId};
use crate::tables::{
    Entry, EntryState, GroupHandle, KeySpec, MemberHandle, NewEntry, ProfileChange, ProfileOp, TableChange,
    TableOp, TableSetChange, TableSetOp, Target, WeightedMember,
};

/// A time to live as the switch counts it: whole milliseconds, never less than was asked for.
fn milliseconds(timeout_ns: u64) -> u64 {
    timeout_ns.div_ceil(1_000_000)
}

fn no_marks() -> EntityError {
    EntityError::unimplemented("meters do not count what they mark here: leave meter_counter_data out")
}

fn no_watching() -> EntityError {
    EntityError::unimplemented("ports are not watched here: leave watch_port out")
}

/// Refuses to watch a port.
pub(super) fn unwatched<T>(watch: Option<T>) -> Written {
    watch.map_or(Ok(()), |_| Err(no_watching()))
}

fn data(counts: CounterData) -> (u64, u64) {
    (counts.packets, counts.bytes)
}

impl<'a> Writing<'a, '_> {
    pub(super) fn entry(&mut self, change: &Change<TableEntry, EntryKey>) -> Written {
        match change {
            Change::Insert(entry) => self.insert(entry),
            Change::Modify(entry) => self.modify(entry),
            Change::Delete(key) => self.delete(key),
        }
    }

    fn table(&self, id: named::TableId) -> Result<&'a TableBinding, EntityError> {
        bound(self.binding.tables.get(&id))
    }

    fn spec(&self, id: TableId) -> Result<&KeySpec, EntityError> {
        let table = self.batch.state().tables().table(id);
        bound(table.map(|table| &table.spec().key))
    }

    fn tables(&mut self, op: TableSetOp) -> Result<TableSetChange, EntityError> {
        match self.change(ForwardingOp::Tables(op))? {
            ForwardingChange::Tables(change) => Ok(change),
            _ => Err(EntityError::invalid("the change was none of a table")),
        }
    }

    pub(super) fn profile_change(
        &mut self,
        id: ProfileId,
        op: ProfileOp,
    ) -> Result<ProfileChange, EntityError> {
        match self.tables(TableSetOp::Profile(id, op))? {
            TableSetChange::Profile(_, change) => Ok(change),
            TableSetChange::Table(..) => Err(EntityError::invalid("the change was none of a profile")),
        }
    }

    /// The entry with this key.
    fn find(&self, binding: &TableBinding, key: &EntryKey) -> Result<Arc<Entry>, EntityError> {
        let table = bound(self.batch.state().tables().table(binding.id))?;
        let key = binding.key(&table.spec().key, key)?;
        table.find(&key).cloned().ok_or_else(|| {
            EntityError::not_found(format!("table \"{}\" has no such entry", table.spec().name))
        })
    }

    fn insert(&mut self, entry: &TableEntry) -> Written {
        let binding = self.table(entry.key.table)?;
        let key = binding.key(self.spec(binding.id)?, &entry.key)?;
        let action = entry.action.as_ref();
        let action = action.ok_or_else(|| EntityError::invalid("a new entry needs an action"))?;
        let table = bound(self.batch.state().tables().table(binding.id))?;
        // What the entry would be refused for is said before anything is made for it.
        if table.find(&key).is_some() {
            return Err(EntityError::already_exists(format!(
                "table \"{}\" has an entry with this key already",
                table.spec().name
            )));
        }
        let state = table.spec().stateful.then(EntryState::default).map(Arc::new);
        if let Some(state) = &state {
            self.fill(binding, state, entry)?;
        }
        let (target, shot) = self.target(binding, action)?;
        let new = NewEntry {
            key,
            target,
            state,
            constant: false,
        };
        let change = self.tables(TableSetOp::Table(binding.id, TableOp::Insert(new)))?;
        let TableSetChange::Table(_, TableChange::Inserted(made)) = change else {
            return Err(EntityError::invalid("the entry was not inserted"));
        };
        self.note(binding, &made, entry, shot)
    }

    /// What an entry begins with.
    fn fill(&self, binding: &TableBinding, state: &EntryState, entry: &TableEntry) -> Written {
        if entry.resources.meter_counters.is_some() {
            return Err(no_marks());
        }
        if let Some(config) = &entry.resources.meter {
            let meter = self.configured(bound(binding.meter)?, Some(config))?;
            state.meter(|cell| *cell = meter);
        }
        if let Some(counts) = entry.resources.counter {
            state.set_counts(counts.packets, counts.bytes);
        }
        state.set_timeout(self.now_ms, milliseconds(entry.idle_timeout_ns));
        Ok(())
    }

    /// Keeps what only the controller knows of an entry.
    fn note(
        &mut self,
        binding: &TableBinding,
        made: &Entry,
        entry: &TableEntry,
        shot: Option<(GroupHandle, Shot)>,
    ) -> Written {
        let id = (binding.id, made.handle());
        self.book
            .notes
            .set(id, Note::of(entry.controller_metadata, &entry.metadata));
        let timeout = Some(entry.idle_timeout_ns).filter(|timeout| *timeout > 0);
        self.book.timeouts.set(id, timeout);
        if let Some((group, shot)) = shot {
            self.book.shots.set((bound(binding.profile)?, group), Some(shot));
        }
        Ok(())
    }

    fn modify(&mut self, entry: &TableEntry) -> Written {
        let binding = self.table(entry.key.table)?;
        let before = self.find(binding, &entry.key)?;
        if let Some(action) = &entry.action {
            let (target, shot) = self.target(binding, action)?;
            let op = TableOp::Modify(before.handle(), target);
            self.tables(TableSetOp::Table(binding.id, op))?;
            self.note(binding, &before, entry, shot)?;
            self.forget_shot(binding, &before)?;
        } else if !before.is_constant() {
            self.note(binding, &before, entry, None)?;
        }
        let Some(state) = before.shared_state() else {
            return Ok(());
        };
        let timeout_ms = milliseconds(entry.idle_timeout_ns);
        if timeout_ms != state.timeout_ms() {
            let times = (self.now_ms, timeout_ms);
            self.effects.push(Effect::EntryTimeout(Arc::clone(state), times));
        }
        self.modify_resources(binding, state, &entry.resources)
    }

    /// Counts stay where none are given; a meter without a configuration becomes always green.
    fn modify_resources(
        &mut self,
        binding: &TableBinding,
        state: &Arc<EntryState>,
        resources: &DirectResources,
    ) -> Written {
        if resources.meter_counters.is_some() {
            return Err(no_marks());
        }
        if let Some(counts) = resources.counter {
            self.effects
                .push(Effect::EntryCounts(Arc::clone(state), data(counts)));
        }
        let is_metered = state.meter(|meter| meter.rates().next().is_some());
        if let Some(meter) = binding.meter
            && (is_metered || resources.meter.is_some())
        {
            let meter = self.configured(meter, resources.meter.as_ref())?;
            self.effects.push(Effect::EntryMeter(Arc::clone(state), meter));
        }
        Ok(())
    }

    fn delete(&mut self, key: &EntryKey) -> Written {
        let binding = self.table(key.table)?;
        let before = self.find(binding, key)?;
        let op = TableOp::Delete(before.handle());
        self.tables(TableSetOp::Table(binding.id, op))?;
        let id = (binding.id, before.handle());
        self.book.notes.set(id, None);
        self.book.timeouts.set(id, None);
        self.forget_shot(binding, &before)
    }

    /// Where an entry leads to; of a one-shot entry the group that is made for it.
    fn target(
        &mut self,
        binding: &TableBinding,
        action: &EntryAction,
    ) -> Result<(Target, Option<(GroupHandle, Shot)>), EntityError> {
        let profile = binding.profile;
        match action {
            EntryAction::Action(action) => {
                let call = actions::call(self.program, &binding.actions, action)?;
                Ok((Target::Action(call), None))
            }
            EntryAction::Member(id) => {
                let member = self.member_handle(self.without_shots(bound(profile)?)?, *id)?;
                Ok((Target::Member(member), None))
            }
            EntryAction::Group(id) => {
                let group = self.group_handle(self.without_shots(bound(profile)?)?, *id)?;
                Ok((Target::Group(group), None))
            }
            EntryAction::OneShot(set) => {
                let (group, shot) = self.shoot(binding, bound(profile)?, set)?;
                Ok((Target::Group(group), Some((group, shot))))
            }
        }
    }

    /// The selector, if no one-shot entry uses it: both ways at once are not allowed (9.2.3).
    pub(super) fn without_shots(&self, profile: ProfileId) -> Result<ProfileId, EntityError> {
        if self.book.has_shots(profile) {
            return Err(EntityError::invalid(
                "the selector has one-shot entries, so it can have no members and groups",
            ));
        }
        Ok(profile)
    }

    fn shoot(
        &mut self,
        binding: &TableBinding,
        profile: ProfileId,
        set: &ActionSet,
    ) -> Result<(GroupHandle, Shot), EntityError> {
        if self.book.has_members(profile) {
            return Err(EntityError::invalid(
                "the selector has members, so it can have no one-shot entries",
            ));
        }
        if set.group_action.is_some() {
            return Err(EntityError::unimplemented(
                "v1model's selectors run no group_action",
            ));
        }
        if set.mode == SelectionMode::Random {
            return Err(EntityError::unimplemented("v1model's selectors select by hash"));
        }
        let mut weighted: Vec<WeightedMember> = Vec::with_capacity(set.actions.len());
        for action in &set.actions {
            unwatched(action.watch)?;
            let call = actions::call(self.program, &binding.actions, &action.action)?;
            match self.profile_change(profile, ProfileOp::AddMember(call))? {
                ProfileChange::Member { member, .. } => weighted.push((member, action.weight.max(1))),
                ProfileChange::Group { .. } => return Err(EntityError::invalid("no member was made")),
            }
        }
        let members: Vec<MemberHandle> = weighted.iter().map(|(member, _)| *member).collect();
        match self.profile_change(profile, ProfileOp::AddGroup(weighted))? {
            ProfileChange::Group { group, .. } => Ok((
                group,
                Shot {
                    set: set.clone(),
                    members,
                },
            )),
            ProfileChange::Member { .. } => Err(EntityError::invalid("no group was made")),
        }
    }

    /// Removes the group that was made for an entry which no longer leads there.
    fn forget_shot(&mut self, binding: &TableBinding, before: &Entry) -> Written {
        let (Some(profile), Target::Group(group)) = (binding.profile, before.target()) else {
            return Ok(());
        };
        let Some(shot) = self.book.shots.get(&(profile, *group)).cloned() else {
            return Ok(());
        };
        self.profile_change(profile, ProfileOp::DeleteGroup(*group))?;
        for member in shot.members {
            self.profile_change(profile, ProfileOp::DeleteMember(member))?;
        }
        self.book.shots.set((profile, *group), None);
        Ok(())
    }

    pub(super) fn default_entry(&mut self, entry: &DefaultEntry) -> Written {
        let binding = self.table(entry.table)?;
        if entry.resources != DirectResources::default() {
            return Err(no_default_resources());
        }
        let target = match &entry.action {
            Some(action) => Some(Target::Action(actions::call(
                self.program,
                &binding.actions,
                action,
            )?)),
            None => None,
        };
        self.tables(TableSetOp::Table(binding.id, TableOp::SetDefault(target)))?;
        self.book.defaults.set(
            binding.id,
            Note::of(entry.controller_metadata, &entry.metadata).filter(|_| entry.action.is_some()),
        );
        Ok(())
    }

    pub(super) fn direct_counter(&mut self, entry: &EntryRef, counts: Option<CounterData>) -> Written {
        let (_, state) = self.entry_state(entry)?;
        if let Some(counts) = counts {
            self.effects.push(Effect::EntryCounts(state, data(counts)));
        }
        Ok(())
    }

    pub(super) fn direct_meter(
        &mut self,
        entry: &EntryRef,
        config: Option<MeterConfig>,
        reset_counters: bool,
    ) -> Written {
        if reset_counters {
            return Err(no_marks());
        }
        let (binding, state) = self.entry_state(entry)?;
        let meter = self.configured(bound(binding.meter)?, config.as_ref())?;
        self.effects.push(Effect::EntryMeter(state, meter));
        Ok(())
    }

    fn entry_state(&self, entry: &EntryRef) -> Result<(&'a TableBinding, Arc<EntryState>), EntityError> {
        let EntryRef::Entry(key) = entry else {
            return Err(no_default_resources());
        };
        let binding = self.table(key.table)?;
        let found = self.find(binding, key)?;
        Ok((binding, bound(found.shared_state().cloned())?))
    }

    /// A meter with these rates and full buckets; without any, always green.
    pub(super) fn configured(
        &self,
        id: crate::program::ids::MeterId,
        config: Option<&MeterConfig>,
    ) -> Result<Meter, EntityError> {
        let rates = self.program.meters.get(id.index()).map_or(0, |array| array.rates);
        let mut meter = Meter::new();
        if let Some(config) = config {
            super::cells::set_rates(&mut meter, rates, config)?;
        }
        Ok(meter)
    }
}

fn no_default_resources() -> EntityError {
    EntityError::unimplemented("packets that no entry matches are neither counted nor metered by a table")
}
