//! In-memory switch: stores written entities, with the checks that only a target can make.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use linewarden_p4runtime::bytes::Bits;
use linewarden_p4runtime::data::Data;
use linewarden_p4runtime::entity::*;
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::ids::*;
use linewarden_p4runtime::p4info::{P4Info, Type};
use linewarden_p4runtime::proto::v1;
use linewarden_p4runtime::target::{Atomicity, Event, EventReceiver, EventSender, Pipeline, Target, events};
use linewarden_p4runtime::translate::Translator;

type UpdateResult = Result<(), EntityError>;

/// State of one program.
#[derive(Clone, Debug)]
pub struct State {
    info: Arc<P4Info>,
    entries: BTreeMap<EntryKey, TableEntry>,
    defaults: BTreeMap<TableId, DefaultEntry>,
    members: BTreeMap<(ProfileId, MemberId), Member>,
    groups: BTreeMap<(ProfileId, GroupId), Group>,
    counters: BTreeMap<CounterId, Vec<CounterData>>,
    meters: BTreeMap<MeterId, Vec<Option<MeterConfig>>>,
    registers: BTreeMap<RegisterId, Vec<Data>>,
    multicast: BTreeMap<MulticastGroupId, MulticastGroup>,
    clones: BTreeMap<CloneSessionId, CloneSession>,
    value_sets: BTreeMap<ValueSetId, Vec<Vec<FieldMatch>>>,
    digests: BTreeMap<DigestId, Digest>,
}

#[derive(Default)]
struct States {
    running: Option<State>,
    saved: Option<State>,
}

/// Blocks writes, to test concurrent operations.
pub struct WriteBlocker {
    blocked: Mutex<bool>,
    /// Has one permit for each write that was blocked.
    blocked_writes: tokio::sync::Semaphore,
    unblocked: Condvar,
}

impl WriteBlocker {
    fn new() -> Self {
        Self {
            blocked: Mutex::new(false),
            blocked_writes: tokio::sync::Semaphore::new(0),
            unblocked: Condvar::new(),
        }
    }

    /// Blocks writes until the returned guard is dropped, even if the test fails.
    pub fn block(&self) -> BlockedWrites<'_> {
        *self.blocked.lock().unwrap() = true;
        BlockedWrites(self)
    }

    /// Waits until a write is blocked.
    pub async fn wait_for_write(&self) {
        self.blocked_writes.acquire().await.unwrap().forget();
    }

    fn wait_until_unblocked(&self) {
        let mut blocked = self.blocked.lock().unwrap();
        if *blocked {
            self.blocked_writes.add_permits(1);
        }
        while *blocked {
            blocked = self.unblocked.wait(blocked).unwrap();
        }
    }
}

/// Guard: writes are blocked until the guard is dropped.
pub struct BlockedWrites<'a>(&'a WriteBlocker);

impl Drop for BlockedWrites<'_> {
    fn drop(&mut self) {
        *self.0.blocked.lock().unwrap() = false;
        self.0.unblocked.notify_all();
    }
}

pub struct Memory {
    states: Mutex<States>,
    initial_entries: v1::WriteRequest,
    pub events: EventSender,
    pub write_blocker: WriteBlocker,
}

impl Memory {
    /// Creates a switch without a program. `initial_entries` is the file of initial entries that p4c generates.
    pub fn new(initial_entries: &str) -> (Arc<Self>, EventReceiver) {
        let (sender, receiver) = events(64);
        let memory = Self {
            states: Mutex::default(),
            initial_entries: super::text("p4.v1.WriteRequest", initial_entries),
            events: sender,
            write_blocker: WriteBlocker::new(),
        };
        (Arc::new(memory), receiver)
    }

    /// Runs a program without a controller.
    pub fn run(&self, pipeline: &Pipeline) {
        self.states().running = Some(self.initial_state(pipeline));
    }

    /// Whether a program runs.
    pub fn has_program(&self) -> bool {
        self.states().running.is_some()
    }

    pub fn send_event(&self, event: Event) {
        assert!(self.events.send(event));
    }

    fn states(&self) -> MutexGuard<'_, States> {
        self.states.lock().unwrap()
    }

    fn initial_state(&self, pipeline: &Pipeline) -> State {
        let info = pipeline.info.clone();
        let zero = |ty: &Type| match ty {
            Type::Bits(width) => Data::Bits(Bits::zero(*width)),
            other => panic!("the test program has no register of {other:?}"),
        };
        let mut state = State {
            entries: BTreeMap::new(),
            defaults: info
                .tables()
                .iter()
                .map(|table| (table.id, default_of(table.id)))
                .collect(),
            members: BTreeMap::new(),
            groups: BTreeMap::new(),
            counters: info
                .counters()
                .iter()
                .map(|counter| (counter.id, vec![CounterData::default(); counter.size as usize]))
                .collect(),
            meters: info
                .meters()
                .iter()
                .map(|meter| (meter.id, vec![None; meter.size as usize]))
                .collect(),
            registers: info
                .registers()
                .iter()
                .map(|register| (register.id, vec![zero(&register.data); register.size as usize]))
                .collect(),
            multicast: BTreeMap::new(),
            clones: BTreeMap::new(),
            value_sets: info.value_sets().iter().map(|set| (set.id, Vec::new())).collect(),
            digests: BTreeMap::new(),
            info,
        };
        let info = state.info.clone();
        for update in &self.initial_entries.updates {
            let entity = Translator::new(&info)
                .decode_entity(update.entity.as_ref().unwrap())
                .unwrap();
            let Entity::TableEntry(entry) = entity else {
                panic!("not a table entry: {update:?}")
            };
            state.entries.insert(
                entry.key.clone(),
                TableEntry {
                    is_const: true,
                    ..*entry
                },
            );
        }
        state
    }
}

fn default_of(table: TableId) -> DefaultEntry {
    DefaultEntry {
        table,
        action: None,
        controller_metadata: 0,
        metadata: Vec::new(),
        resources: DirectResources::default(),
        is_const: false,
    }
}

impl Target for Memory {
    fn verify(&self, pipeline: &Pipeline) -> Result<(), EntityError> {
        if pipeline.device_config.starts_with(b"not") {
            return Err(EntityError::invalid("this is not a program"));
        }
        Ok(())
    }

    fn save(&self, pipeline: &Pipeline) -> Result<(), EntityError> {
        self.verify(pipeline)?;
        self.states().saved = Some(self.initial_state(pipeline));
        Ok(())
    }

    fn commit(&self) -> Result<(), EntityError> {
        let mut states = self.states();
        states.running = states.saved.take();
        Ok(())
    }

    fn reconcile(&self, pipeline: &Pipeline) -> Result<(), EntityError> {
        self.verify(pipeline)?;
        let mut states = self.states();
        match &mut states.running {
            Some(running) if running.info.message() == pipeline.info.message() => {
                running.info = pipeline.info.clone()
            }
            Some(_) => {
                return Err(EntityError::invalid(
                    "P4Info differs from the P4Info of the running program",
                ));
            }
            absent => *absent = Some(self.initial_state(pipeline)),
        }
        Ok(())
    }

    fn write(&self, updates: &[Update], atomicity: Atomicity) -> Result<Vec<UpdateResult>, EntityError> {
        self.write_blocker.wait_until_unblocked();
        let mut states = self.states();
        let States { running, saved } = &mut *states;
        let state = saved
            .as_mut()
            .or(running.as_mut())
            .ok_or_else(|| EntityError::precondition("no program"))?;
        let previous = state.clone();
        let results: Vec<_> = updates.iter().map(|update| state.update(update)).collect();
        if atomicity != Atomicity::ContinueOnError && results.iter().any(Result::is_err) {
            *state = previous;
        }
        Ok(results)
    }

    fn read(&self, query: &Query, emit: &mut dyn FnMut(Entity)) -> Result<(), EntityError> {
        let states = self.states();
        let state = states.saved.as_ref().or(states.running.as_ref());
        state
            .ok_or_else(|| EntityError::precondition("no program"))?
            .read(query, emit)
    }

    /// Sends the packet back as a packet-in whose ingress port is the egress port of the packet-out.
    /// The payloads `learn` and `idle` trigger a digest or an idle timeout instead.
    fn packet_out(&self, metadata: Vec<Bits>, payload: Vec<u8>) -> Result<(), EntityError> {
        match payload.as_slice() {
            b"learn" => self.send_event(self.digest_event()),
            b"idle" => self.send_event(Event::IdleTimeout(self.entries_with_timeout())),
            payload if payload.len() > 1500 => {
                return Err(EntityError::invalid(format!(
                    "packet of {} bytes is too long",
                    payload.len()
                )));
            }
            _ => self.send_event(Event::PacketIn {
                metadata: vec![metadata[0].clone(), Bits::zero(7)],
                payload,
            }),
        }
        Ok(())
    }
}

impl Memory {
    fn digest_event(&self) -> Event {
        let bits = |width, value| Data::Bits(Bits::from_u128(width, value).unwrap());
        let data = Data::Struct(vec![bits(48, 0xaa), bits(9, 3), Data::Bool(true)]);
        Event::Digest {
            id: DigestId(super::id("learned_t")),
            data,
        }
    }

    /// Entries with an idle timeout.
    fn entries_with_timeout(&self) -> Vec<TableEntry> {
        let states = self.states();
        let entries = states.running.iter().flat_map(|state| state.entries.values());
        entries
            .filter(|entry| entry.idle_timeout_ns > 0)
            .cloned()
            .collect()
    }
}

impl State {
    fn update(&mut self, update: &Update) -> UpdateResult {
        match update {
            Update::TableEntry(change) => self.update_entry(change),
            Update::DefaultEntry(entry) => {
                let default = self.defaults.get_mut(&entry.table).unwrap();
                *default = if entry.action.is_some() {
                    (**entry).clone()
                } else {
                    default_of(entry.table)
                };
                Ok(())
            }
            Update::Member(change) => self.update_member(change),
            Update::Group(change) => self.update_group(change),
            Update::Counter { id, index, data } => {
                set_cells(self.counters.get_mut(id).unwrap(), *index, |cell| {
                    *cell = data.unwrap_or(*cell)
                })
            }
            Update::Meter {
                reset_counters: true, ..
            } => Err(EntityError::unimplemented("meter counters are not supported")),
            Update::Meter {
                id, index, config, ..
            } => set_cells(self.meters.get_mut(id).unwrap(), *index, |cell| *cell = *config),
            Update::Register { id, index, data } => {
                set_cells(self.registers.get_mut(id).unwrap(), *index, |cell| {
                    *cell = data.clone()
                })
            }
            Update::DirectCounter { entry, data } => {
                let resources = self.resources(entry)?;
                resources.counter = data.or(resources.counter);
                Ok(())
            }
            Update::DirectMeter { entry, config, .. } => {
                self.resources(entry)?.meter = *config;
                Ok(())
            }
            Update::MulticastGroup(change) => apply(&mut self.multicast, change, |group| group.id),
            Update::CloneSession(change) => apply(&mut self.clones, change, |session| session.id),
            Update::ValueSet { id, members } => {
                self.value_sets.insert(*id, members.clone());
                Ok(())
            }
            Update::Digest(change) => apply(&mut self.digests, change, |digest| digest.id),
        }
    }

    fn update_entry(&mut self, change: &Change<TableEntry, EntryKey>) -> UpdateResult {
        let (key, entry) = match change {
            Change::Insert(entry) | Change::Modify(entry) => (&entry.key, Some(entry)),
            Change::Delete(key) => (key, None),
        };
        if let Some(entry) = entry {
            self.check_action(key.table, entry.action.as_ref())?;
        }
        let existing = self.entries.get(key);
        let is_const = existing.is_some_and(|existing| existing.is_const);
        if is_const && !matches!(change, Change::Modify(TableEntry { action: None, .. })) {
            return Err(EntityError::denied("the entry is constant"));
        }
        if let Change::Modify(entry) = change
            && let Some(existing) = existing
        {
            let mut entry = entry.clone();
            entry.action = entry.action.or_else(|| existing.action.clone());
            entry.resources.counter = entry.resources.counter.or(existing.resources.counter);
            entry.is_const = is_const;
            return apply(&mut self.entries, &Change::Modify(entry), |entry| {
                entry.key.clone()
            });
        }
        let size = self.info.tables().get(key.table).unwrap().size;
        let entry_count = self
            .entries
            .keys()
            .filter(|candidate| candidate.table == key.table)
            .count();
        if matches!(change, Change::Insert(_)) && existing.is_none() && entry_count as u64 >= size {
            return Err(EntityError::exhausted(format!("the table has {size} entries")));
        }
        apply(&mut self.entries, change, |entry| entry.key.clone())
    }

    /// Checks that members and groups exist, and that a profile does not mix them with one-shot entries.
    fn check_action(&self, table: TableId, action: Option<&EntryAction>) -> UpdateResult {
        let Some(profile) = self.info.tables().get(table).unwrap().profile else {
            return Ok(());
        };
        let has_one_shots = self.entries.values().any(|entry| {
            self.info.tables().get(entry.key.table).unwrap().profile == Some(profile)
                && matches!(entry.action, Some(EntryAction::OneShot(_)))
        });
        let has_members = self.members.keys().any(|(owner, _)| *owner == profile);
        match action {
            Some(EntryAction::OneShot(_)) if has_members => Err(EntityError::invalid("selector has members")),
            Some(EntryAction::Member(_) | EntryAction::Group(_)) if has_one_shots => {
                Err(EntityError::invalid("selector has one-shot entries"))
            }
            Some(EntryAction::Member(id)) if !self.members.contains_key(&(profile, *id)) => {
                Err(EntityError::not_found(format!("no member {id}")))
            }
            Some(EntryAction::Group(id)) if !self.groups.contains_key(&(profile, *id)) => {
                Err(EntityError::not_found(format!("no group {id}")))
            }
            _ => Ok(()),
        }
    }

    fn update_member(&mut self, change: &Change<Member, (ProfileId, MemberId)>) -> UpdateResult {
        if let Change::Delete((profile, id)) = change {
            let in_group = self.groups.values().any(|group| {
                group.profile == *profile && group.members.iter().any(|member| member.id == *id)
            });
            let in_entry = self.uses(
                *profile,
                |action| matches!(action, EntryAction::Member(used) if used == id),
            );
            if in_group || in_entry {
                return Err(EntityError::precondition("the member is in use"));
            }
        }
        apply(&mut self.members, change, |member| (member.profile, member.id))
    }

    fn update_group(&mut self, change: &Change<Group, (ProfileId, GroupId)>) -> UpdateResult {
        match change {
            Change::Insert(group) | Change::Modify(group) => {
                let exists = |member: &GroupMember| self.members.contains_key(&(group.profile, member.id));
                if let Some(unknown) = group.members.iter().find(|member| !exists(member)) {
                    return Err(EntityError::not_found(format!("no member {}", unknown.id)));
                }
                let previous = self.groups.get(&(group.profile, group.id));
                if previous.is_some_and(|previous| previous.max_size != group.max_size)
                    && matches!(change, Change::Modify(_))
                {
                    return Err(EntityError::invalid("max_size cannot be modified"));
                }
            }
            Change::Delete((profile, id)) => {
                if self.uses(
                    *profile,
                    |action| matches!(action, EntryAction::Group(used) if used == id),
                ) {
                    return Err(EntityError::precondition("the group is in use"));
                }
            }
        }
        apply(&mut self.groups, change, |group| (group.profile, group.id))
    }

    /// Whether an entry of a table with this profile has an action for which `is_used` returns true.
    fn uses(&self, profile: ProfileId, is_used: impl Fn(&EntryAction) -> bool) -> bool {
        self.entries.values().any(|entry| {
            self.info.tables().get(entry.key.table).unwrap().profile == Some(profile)
                && entry.action.as_ref().is_some_and(&is_used)
        })
    }

    fn resources(&mut self, entry: &EntryRef) -> Result<&mut DirectResources, EntityError> {
        let resources = match entry {
            EntryRef::Entry(key) => self.entries.get_mut(key).map(|entry| &mut entry.resources),
            EntryRef::Default(table) => self.defaults.get_mut(table).map(|entry| &mut entry.resources),
        };
        resources.ok_or_else(|| EntityError::not_found("no such entry"))
    }

    fn read(&self, query: &Query, emit: &mut dyn FnMut(Entity)) -> UpdateResult {
        match query {
            Query::Entries { table, key, options } => {
                let is_selected = |entry: &&TableEntry| {
                    entry.key.table == *table && key.as_ref().is_none_or(|key| *key == entry.key)
                };
                for entry in self.entries.values().filter(is_selected) {
                    let resources = self.selected_resources(*table, &entry.resources, options);
                    let since_hit_ns = options.since_hit.then_some(5);
                    emit(Entity::TableEntry(Box::new(TableEntry {
                        resources,
                        since_hit_ns,
                        ..entry.clone()
                    })));
                }
            }
            Query::DefaultEntry { table, options } => {
                let entry = &self.defaults[table];
                let resources = self.selected_resources(*table, &entry.resources, options);
                emit(Entity::DefaultEntry(Box::new(DefaultEntry {
                    resources,
                    ..entry.clone()
                })));
            }
            Query::Members { profile, member } => {
                let is_selected = |(owner, id): &(ProfileId, MemberId)| {
                    owner == profile && member.is_none_or(|member| member == *id)
                };
                let members = self.members.iter().filter(|(key, _)| is_selected(key));
                members.for_each(|(_, member)| emit(Entity::Member(member.clone())));
            }
            Query::Groups { profile, group } => {
                let is_selected = |(owner, id): &(ProfileId, GroupId)| {
                    owner == profile && group.is_none_or(|group| group == *id)
                };
                let groups = self.groups.iter().filter(|(key, _)| is_selected(key));
                groups.for_each(|(_, group)| emit(Entity::Group(group.clone())));
            }
            Query::Counters { id, index } => {
                visit_cells(&self.counters[id], *index, |index, data| {
                    emit(Entity::Counter {
                        id: *id,
                        index,
                        data: *data,
                    })
                });
            }
            Query::Meters { counters: true, .. } => {
                return Err(EntityError::unimplemented("meter counters are not supported"));
            }
            Query::Meters { id, index, .. } => visit_cells(&self.meters[id], *index, |index, config| {
                emit(Entity::Meter {
                    id: *id,
                    index,
                    config: *config,
                    counters: None,
                });
            }),
            Query::Registers { id, index } => visit_cells(&self.registers[id], *index, |index, data| {
                emit(Entity::Register {
                    id: *id,
                    index,
                    data: data.clone(),
                });
            }),
            Query::MulticastGroups(id) => {
                let groups = self
                    .multicast
                    .values()
                    .filter(|group| id.is_none_or(|id| id == group.id));
                groups.for_each(|group| emit(Entity::MulticastGroup(group.clone())));
            }
            Query::CloneSessions(id) => {
                let sessions = self
                    .clones
                    .values()
                    .filter(|session| id.is_none_or(|id| id == session.id));
                sessions.for_each(|session| emit(Entity::CloneSession(session.clone())));
            }
            Query::ValueSet(id) => emit(Entity::ValueSet {
                id: *id,
                members: self.value_sets[id].clone(),
            }),
            Query::Digest(id) => self
                .digests
                .get(id)
                .into_iter()
                .for_each(|digest| emit(Entity::Digest(*digest))),
        }
        Ok(())
    }

    fn selected_resources(
        &self,
        table: TableId,
        resources: &DirectResources,
        options: &ReadOptions,
    ) -> DirectResources {
        let table = self.info.tables().get(table).unwrap();
        DirectResources {
            counter: (options.counter && table.counter.is_some())
                .then(|| resources.counter.unwrap_or_default()),
            meter: resources.meter.filter(|_| options.meter),
            meter_counters: (options.meter_counters && table.meter.is_some()).then(MeterCounters::default),
        }
    }
}

fn apply<K: Ord + Clone, E: Clone>(
    entities: &mut BTreeMap<K, E>,
    change: &Change<E, K>,
    key: impl Fn(&E) -> K,
) -> UpdateResult {
    match change {
        Change::Insert(entity) if entities.contains_key(&key(entity)) => {
            Err(EntityError::already_exists("entity already exists"))
        }
        Change::Modify(entity) if !entities.contains_key(&key(entity)) => {
            Err(EntityError::not_found("entity does not exist"))
        }
        Change::Insert(entity) | Change::Modify(entity) => {
            entities.insert(key(entity), entity.clone());
            Ok(())
        }
        Change::Delete(key) => entities
            .remove(key)
            .map(|_| ())
            .ok_or_else(|| EntityError::not_found("entity does not exist")),
    }
}

fn set_cells<T>(cells: &mut [T], index: Option<u64>, mut set: impl FnMut(&mut T)) -> UpdateResult {
    match index {
        Some(index) => set(&mut cells[index as usize]),
        None => cells.iter_mut().for_each(set),
    }
    Ok(())
}

fn visit_cells<T>(cells: &[T], index: Option<u64>, mut visit: impl FnMut(u64, &T)) {
    for (position, cell) in cells.iter().enumerate() {
        if index.is_none_or(|index| index == position as u64) {
            visit(position as u64, cell);
        }
    }
}
