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
    live: Option<State>,
    saved: Option<State>,
}

/// Blocks writes, to test concurrent operations.
pub struct WriteGate {
    closed: Mutex<bool>,
    waiting: tokio::sync::Semaphore,
    opened: Condvar,
}

impl WriteGate {
    fn new() -> Self {
        Self {
            closed: Mutex::new(false),
            waiting: tokio::sync::Semaphore::new(0),
            opened: Condvar::new(),
        }
    }

    /// Closes the gate until the returned guard is dropped, also if the test fails.
    pub fn close(&self) -> ClosedGate<'_> {
        *self.closed.lock().unwrap() = true;
        ClosedGate(self)
    }

    /// Waits until a write has reached the gate.
    pub async fn reached(&self) {
        self.waiting.acquire().await.unwrap().forget();
    }

    fn pass(&self) {
        let mut closed = self.closed.lock().unwrap();
        if *closed {
            self.waiting.add_permits(1);
        }
        while *closed {
            closed = self.opened.wait(closed).unwrap();
        }
    }
}

/// Guard of a closed gate.
pub struct ClosedGate<'a>(&'a WriteGate);

impl Drop for ClosedGate<'_> {
    fn drop(&mut self) {
        *self.0.closed.lock().unwrap() = false;
        self.0.opened.notify_all();
    }
}

pub struct Memory {
    states: Mutex<States>,
    initial: v1::WriteRequest,
    pub events: EventSender,
    pub gate: WriteGate,
}

impl Memory {
    /// Creates the state with the initial entries of the program from p4c.
    pub fn new(initial: &str) -> (Arc<Self>, EventReceiver) {
        let (sender, receiver) = events(64);
        let memory = Self {
            states: Mutex::default(),
            initial: super::text("p4.v1.WriteRequest", initial),
            events: sender,
            gate: WriteGate::new(),
        };
        (Arc::new(memory), receiver)
    }

    /// Runs a program without a controller.
    pub fn run(&self, pipeline: &Pipeline) {
        self.states().live = Some(self.state(pipeline));
    }

    /// Whether a program runs.
    pub fn has_program(&self) -> bool {
        self.states().live.is_some()
    }

    pub fn send_event(&self, event: Event) {
        assert!(self.events.send(event));
    }

    fn states(&self) -> MutexGuard<'_, States> {
        self.states.lock().unwrap()
    }

    fn state(&self, pipeline: &Pipeline) -> State {
        let info = pipeline.info.clone();
        let zero = |of: &Type| match of {
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
                .map(|of| (of.id, vec![CounterData::default(); of.size as usize]))
                .collect(),
            meters: info
                .meters()
                .iter()
                .map(|of| (of.id, vec![None; of.size as usize]))
                .collect(),
            registers: info
                .registers()
                .iter()
                .map(|of| (of.id, vec![zero(&of.data); of.size as usize]))
                .collect(),
            multicast: BTreeMap::new(),
            clones: BTreeMap::new(),
            value_sets: info.value_sets().iter().map(|of| (of.id, Vec::new())).collect(),
            digests: BTreeMap::new(),
            info,
        };
        let info = state.info.clone();
        for update in &self.initial.updates {
            let entity = Translator::new(&info)
                .decode_entity(update.entity.as_ref().unwrap())
                .unwrap();
            let Entity::TableEntry(entry) = entity else {
                panic!("no entry: {update:?}")
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
        self.states().saved = Some(self.state(pipeline));
        Ok(())
    }

    fn commit(&self) -> Result<(), EntityError> {
        let mut states = self.states();
        states.live = states.saved.take();
        Ok(())
    }

    fn reconcile(&self, pipeline: &Pipeline) -> Result<(), EntityError> {
        self.verify(pipeline)?;
        let mut states = self.states();
        match &mut states.live {
            Some(live) if live.info.message() == pipeline.info.message() => live.info = pipeline.info.clone(),
            Some(_) => return Err(EntityError::invalid("the program's P4Info is another one")),
            none => *none = Some(self.state(pipeline)),
        }
        Ok(())
    }

    fn write(&self, updates: &[Update], atomicity: Atomicity) -> Result<Vec<UpdateResult>, EntityError> {
        self.gate.pass();
        let mut states = self.states();
        let States { live, saved } = &mut *states;
        let state = saved
            .as_mut()
            .or(live.as_mut())
            .ok_or_else(|| EntityError::precondition("no program"))?;
        let before = state.clone();
        let results: Vec<_> = updates.iter().map(|update| state.update(update)).collect();
        if atomicity != Atomicity::ContinueOnError && results.iter().any(Result::is_err) {
            *state = before;
        }
        Ok(results)
    }

    fn read(&self, query: &Query, found: &mut dyn FnMut(Entity)) -> Result<(), EntityError> {
        let states = self.states();
        let state = states.saved.as_ref().or(states.live.as_ref());
        state
            .ok_or_else(|| EntityError::precondition("no program"))?
            .read(query, found)
    }

    /// Returns the packet as a packet-in from the port it was sent to; two payloads trigger other events.
    fn packet_out(&self, metadata: Vec<Bits>, payload: Vec<u8>) -> Result<(), EntityError> {
        match payload.as_slice() {
            b"learn" => self.send_event(self.learned()),
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
    fn learned(&self) -> Event {
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
        let entries = states.live.iter().flat_map(|state| state.entries.values());
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
            Update::Counter { id, index, data } => each(self.counters.get_mut(id).unwrap(), *index, |cell| {
                *cell = data.unwrap_or(*cell)
            }),
            Update::Meter {
                reset_counters: true, ..
            } => Err(EntityError::unimplemented("no counters of marks")),
            Update::Meter {
                id, index, config, ..
            } => each(self.meters.get_mut(id).unwrap(), *index, |cell| *cell = *config),
            Update::Register { id, index, data } => {
                each(self.registers.get_mut(id).unwrap(), *index, |cell| {
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
        let there = self.entries.get(key);
        let constant = there.is_some_and(|there| there.is_const);
        if constant && !matches!(change, Change::Modify(TableEntry { action: None, .. })) {
            return Err(EntityError::denied("the entry is constant"));
        }
        if let Change::Modify(entry) = change
            && let Some(there) = there
        {
            let mut entry = entry.clone();
            entry.action = entry.action.or_else(|| there.action.clone());
            entry.resources.counter = entry.resources.counter.or(there.resources.counter);
            entry.is_const = constant;
            return apply(&mut self.entries, &Change::Modify(entry), |entry| {
                entry.key.clone()
            });
        }
        let size = self.info.tables().get(key.table).unwrap().size;
        let of_table = self
            .entries
            .keys()
            .filter(|other| other.table == key.table)
            .count();
        if matches!(change, Change::Insert(_)) && there.is_none() && of_table as u64 >= size {
            return Err(EntityError::exhausted(format!("the table has {size} entries")));
        }
        apply(&mut self.entries, change, |entry| entry.key.clone())
    }

    /// Checks that members and groups exist, and that a profile does not mix them with one-shot entries.
    fn check_action(&self, table: TableId, action: Option<&EntryAction>) -> UpdateResult {
        let Some(profile) = self.info.tables().get(table).unwrap().profile else {
            return Ok(());
        };
        let one_shots = self.entries.values().any(|entry| {
            self.info.tables().get(entry.key.table).unwrap().profile == Some(profile)
                && matches!(entry.action, Some(EntryAction::OneShot(_)))
        });
        let others = self.members.keys().any(|(of, _)| *of == profile);
        match action {
            Some(EntryAction::OneShot(_)) if others => Err(EntityError::invalid("selector has members")),
            Some(EntryAction::Member(_) | EntryAction::Group(_)) if one_shots => {
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
                |action| matches!(action, EntryAction::Member(of) if of == id),
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
                let known = |member: &GroupMember| self.members.contains_key(&(group.profile, member.id));
                if let Some(unknown) = group.members.iter().find(|member| !known(member)) {
                    return Err(EntityError::not_found(format!("no member {}", unknown.id)));
                }
                let before = self.groups.get(&(group.profile, group.id));
                if before.is_some_and(|before| before.max_size != group.max_size)
                    && matches!(change, Change::Modify(_))
                {
                    return Err(EntityError::invalid("max_size cannot be modified"));
                }
            }
            Change::Delete((profile, id)) => {
                if self.uses(
                    *profile,
                    |action| matches!(action, EntryAction::Group(of) if of == id),
                ) {
                    return Err(EntityError::precondition("the group is in use"));
                }
            }
        }
        apply(&mut self.groups, change, |group| (group.profile, group.id))
    }

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

    fn read(&self, query: &Query, found: &mut dyn FnMut(Entity)) -> UpdateResult {
        match query {
            Query::Entries { table, key, options } => {
                let selected = |entry: &&TableEntry| {
                    entry.key.table == *table && key.as_ref().is_none_or(|key| *key == entry.key)
                };
                for entry in self.entries.values().filter(selected) {
                    let resources = self.selected_resources(*table, &entry.resources, options);
                    let since_hit_ns = options.since_hit.then_some(5);
                    found(Entity::TableEntry(Box::new(TableEntry {
                        resources,
                        since_hit_ns,
                        ..entry.clone()
                    })));
                }
            }
            Query::DefaultEntry { table, options } => {
                let entry = &self.defaults[table];
                let resources = self.selected_resources(*table, &entry.resources, options);
                found(Entity::DefaultEntry(Box::new(DefaultEntry {
                    resources,
                    ..entry.clone()
                })));
            }
            Query::Members { profile, member } => {
                let selected = |(of, id): &(ProfileId, MemberId)| {
                    of == profile && member.is_none_or(|member| member == *id)
                };
                let members = self.members.iter().filter(|(key, _)| selected(key));
                members.for_each(|(_, member)| found(Entity::Member(member.clone())));
            }
            Query::Groups { profile, group } => {
                let selected =
                    |(of, id): &(ProfileId, GroupId)| of == profile && group.is_none_or(|group| group == *id);
                let groups = self.groups.iter().filter(|(key, _)| selected(key));
                groups.for_each(|(_, group)| found(Entity::Group(group.clone())));
            }
            Query::Counters { id, index } => {
                cells(&self.counters[id], *index, |index, data| {
                    found(Entity::Counter {
                        id: *id,
                        index,
                        data: *data,
                    })
                });
            }
            Query::Meters { counters: true, .. } => {
                return Err(EntityError::unimplemented("no counters of marks"));
            }
            Query::Meters { id, index, .. } => cells(&self.meters[id], *index, |index, config| {
                found(Entity::Meter {
                    id: *id,
                    index,
                    config: *config,
                    counters: None,
                });
            }),
            Query::Registers { id, index } => cells(&self.registers[id], *index, |index, data| {
                found(Entity::Register {
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
                groups.for_each(|group| found(Entity::MulticastGroup(group.clone())));
            }
            Query::CloneSessions(id) => {
                let sessions = self
                    .clones
                    .values()
                    .filter(|session| id.is_none_or(|id| id == session.id));
                sessions.for_each(|session| found(Entity::CloneSession(session.clone())));
            }
            Query::ValueSet(id) => found(Entity::ValueSet {
                id: *id,
                members: self.value_sets[id].clone(),
            }),
            Query::Digest(id) => self
                .digests
                .get(id)
                .into_iter()
                .for_each(|digest| found(Entity::Digest(*digest))),
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
    all: &mut BTreeMap<K, E>,
    change: &Change<E, K>,
    key: impl Fn(&E) -> K,
) -> UpdateResult {
    match change {
        Change::Insert(entity) if all.contains_key(&key(entity)) => {
            Err(EntityError::already_exists("it is there already"))
        }
        Change::Modify(entity) if !all.contains_key(&key(entity)) => {
            Err(EntityError::not_found("it is not there"))
        }
        Change::Insert(entity) | Change::Modify(entity) => {
            all.insert(key(entity), entity.clone());
            Ok(())
        }
        Change::Delete(key) => all
            .remove(key)
            .map(|_| ())
            .ok_or_else(|| EntityError::not_found("it is not there")),
    }
}

fn each<T>(cells: &mut [T], index: Option<u64>, mut set: impl FnMut(&mut T)) -> UpdateResult {
    match index {
        Some(index) => set(&mut cells[index as usize]),
        None => cells.iter_mut().for_each(set),
    }
    Ok(())
}

fn cells<T>(cells: &[T], index: Option<u64>, mut found: impl FnMut(u64, &T)) {
    for (place, cell) in cells.iter().enumerate() {
        if index.is_none_or(|index| index == place as u64) {
            found(place as u64, cell);
        }
    }
}
