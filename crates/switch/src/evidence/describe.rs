//! Encoding of active state as evidence entries.

use std::collections::BTreeMap;

use linewarden_evidence::encoding::{
    Action, ActionRef, Bits, BitsError, Calculation, CloneSession, CounterConfig, DefaultAction, Entry,
    GroupMember, KeyField, Match, MatchError, MeterCell, MeterConfig, MeterRate, MulticastGroup, PortSetting,
    ProfileGroup, ProfileMember, Replica, Replicas, TableEntry, Unit, ValueSetMember,
};

use crate::executable::layout_args;
use crate::externs::Externs;
use crate::forwarding::{self, Forwarding, ForwardingChange, ValueSetMembers};
use crate::meter;
use crate::program::ids::{MeterId, ProfileId, TableId, ValueSetId};
use crate::program::pipeline::Table;
use crate::program::{MeterUnit, Program};
use crate::settings::{ConfiguredItem, Settings};
use crate::tables::{
    ActionCall, Entry as InstalledEntry, FieldMatch, Group, GroupHandle, KeySpec, MatchKey, MemberHandle,
    ProfileChange, TableChange, TableSetChange, Target,
};

/// Port number for settings of all ports.
const ALL_PORTS: u32 = u32::MAX;
const NANOSECONDS_PER_MS: u64 = 1_000_000;

/// Error of encoding active state: the program exceeds the limits of evidence, or contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescribeError {
    /// Invalid value.
    #[error(transparent)]
    Bits(#[from] BitsError),
    /// Invalid match.
    #[error(transparent)]
    Match(#[from] MatchError),
    /// Active state refers to an element that the program does not have.
    #[error("active state refers to unknown element: {0}")]
    Unknown(String),
}

/// Change of the set of evidence entries.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Put(Entry),
    Remove(Entry),
}

/// Encoder of a program's state as evidence entries.
#[derive(Clone, Copy)]
pub(super) struct Describer<'a> {
    pub program: &'a Program,
}

fn unknown_element(kind: &str, id: impl std::fmt::Debug) -> DescribeError {
    DescribeError::Unknown(format!("{kind} {id:?}"))
}

impl<'a> Describer<'a> {
    fn table(self, id: TableId) -> Result<&'a Table, DescribeError> {
        let table = self.program.tables.get(id.index());
        table.ok_or_else(|| unknown_element("table", id))
    }

    fn profile(self, id: ProfileId) -> Result<&'a str, DescribeError> {
        let profile = self.program.profiles.get(id.index());
        profile
            .map(|profile| profile.name.as_str())
            .ok_or_else(|| unknown_element("action profile", id))
    }

    fn action(self, call: &ActionCall) -> Result<Action, DescribeError> {
        let action = self.program.actions.get(call.action.index());
        let action = action.ok_or_else(|| unknown_element("action", call.action))?;
        let widths = || action.params.iter().map(|param| param.bits);
        let (locations, _) = layout_args(widths());
        let data = widths()
            .zip(locations)
            .map(|(bits, (offset, length))| {
                let value = call.data.get(offset as usize..(offset + length) as usize);
                Bits::new(bits, value.unwrap_or_default())
            })
            .collect::<Result<_, _>>()?;
        Ok(Action {
            name: action.name.clone(),
            data,
        })
    }

    fn target(self, target: &Target) -> Result<ActionRef, DescribeError> {
        Ok(match target {
            Target::Action(call) => ActionRef::Action(self.action(call)?),
            Target::Member(member) => ActionRef::Member(member.0),
            Target::Group(group) => ActionRef::Group(group.0),
        })
    }

    /// Table entry with its current idle timeout.
    pub fn entry(self, id: TableId, spec: &KeySpec, entry: &InstalledEntry) -> Result<Entry, DescribeError> {
        let timeout_ms = entry.state().map_or(0, crate::tables::EntryState::timeout_ms);
        Ok(TableEntry {
            table: self.table(id)?.name.clone(),
            key: key(spec, entry.key())?,
            priority: entry.priority().0.cast_unsigned(),
            action: self.target(entry.target())?,
            idle_timeout_ns: timeout_ms.saturating_mul(NANOSECONDS_PER_MS),
        }
        .into())
    }

    fn default_action(self, id: TableId, target: Option<&Target>) -> Result<Entry, DescribeError> {
        let table = self.table(id)?;
        Ok(DefaultAction {
            table: table.name.clone(),
            is_const: table.default_action_const,
            action: target.map(|target| self.target(target)).transpose()?,
        }
        .into())
    }

    fn member(self, id: ProfileId, member: MemberHandle, call: &ActionCall) -> Result<Entry, DescribeError> {
        Ok(ProfileMember {
            profile: self.profile(id)?.to_owned(),
            member: member.0,
            action: self.action(call)?,
        }
        .into())
    }

    fn group(self, id: ProfileId, handle: GroupHandle, group: &Group) -> Result<Entry, DescribeError> {
        let members = group.members().iter().map(|(member, weight)| {
            let member_settings = GroupMember {
                weight: *weight,
                watch_port: Vec::new(),
            };
            (member.0, member_settings)
        });
        Ok(ProfileGroup {
            profile: self.profile(id)?.to_owned(),
            group: handle.0,
            size_max: 0,
            members: members.collect(),
        }
        .into())
    }

    fn value_set(self, id: ValueSetId, members: &ValueSetMembers) -> Result<Vec<Entry>, DescribeError> {
        let set = self.program.value_sets.get(id.index());
        let set = set.ok_or_else(|| unknown_element("value set", id))?;
        let entry = |member: &Vec<u8>| {
            let key = vec![KeyField {
                name: String::new(),
                matches: Match::exact(Bits::new(set.bits, member)?),
            }];
            let set = set.name.clone();
            Ok(ValueSetMember { set, key }.into())
        };
        members.iter().map(entry).collect()
    }

    /// Meter configuration.
    fn meter(self, id: MeterId, cell: MeterCell, rates: &[meter::Rate]) -> Result<Entry, DescribeError> {
        let array = self.program.meters.get(id.index());
        let array = array.ok_or_else(|| unknown_element("meter", id))?;
        Ok(MeterConfig {
            meter: array.name.clone(),
            cell,
            unit: match array.unit {
                MeterUnit::Packets => Unit::Packets,
                MeterUnit::Bytes => Unit::Bytes,
            },
            rates: rates
                .iter()
                .map(|rate| MeterRate {
                    rate_per_s: rate.per_s(),
                    burst: rate.burst,
                })
                .collect(),
        }
        .into())
    }

    /// Returns the step that sets the rates of a meter. Without rates the step removes the meter.
    fn meter_step(self, id: MeterId, cell: MeterCell, rates: &[meter::Rate]) -> Result<Step, DescribeError> {
        let entry = self.meter(id, cell, rates)?;
        Ok(match rates {
            [] => Step::Remove(entry),
            [..] => Step::Put(entry),
        })
    }

    /// Same as [`Self::meter_step`] for the direct meter of an entry; `None` if the table has no direct meter.
    fn direct_meter_step(
        self,
        id: TableId,
        spec: &KeySpec,
        entry: &InstalledEntry,
    ) -> Result<Option<Step>, DescribeError> {
        let (Some((meter, _)), Some(state)) = (self.table(id)?.direct_meter, entry.state()) else {
            return Ok(None);
        };
        let rates = state.meter(|meter| meter.rates().collect::<Vec<_>>());
        self.meter_step(meter, cell_of(spec, entry)?, &rates).map(Some)
    }

    /// Returns the steps for an item that is configured outside of the forwarding state.
    pub fn configuration_steps(
        self,
        item: ConfiguredItem,
        forwarding: &Forwarding,
        externs: &Externs,
    ) -> Result<Vec<Step>, DescribeError> {
        match item {
            ConfiguredItem::Meter(id, index) => {
                let rates = externs
                    .meter(id, index)
                    .map(|meter| meter.rates().collect::<Vec<_>>());
                let step = self.meter_step(id, MeterCell::Index(index), &rates.unwrap_or_default())?;
                Ok(vec![step])
            }
            ConfiguredItem::Entry(id, handle) => {
                let table = forwarding.tables().table(id);
                let table = table.ok_or_else(|| unknown_element("table", id))?;
                // The same batch may have deleted the entry.
                match table.get(handle) {
                    Ok(entry) => self.entry_steps(id, &table.spec().key, entry),
                    Err(_) => Ok(Vec::new()),
                }
            }
        }
    }

    fn entry_steps(
        self,
        id: TableId,
        spec: &KeySpec,
        entry: &InstalledEntry,
    ) -> Result<Vec<Step>, DescribeError> {
        let mut steps = vec![Step::Put(self.entry(id, spec, entry)?)];
        steps.extend(self.direct_meter_step(id, spec, entry)?);
        Ok(steps)
    }

    /// Configurations of all indirect meters.
    fn meters(self, externs: &Externs) -> Result<Vec<Entry>, DescribeError> {
        let mut entries = Vec::new();
        for id in (0u32..).map(MeterId).take(self.program.meters.len()) {
            for index in 0..externs.meter_count(id) as u64 {
                let rates = externs
                    .meter(id, index)
                    .map(|meter| meter.rates().collect::<Vec<_>>());
                if let Some(rates) = rates.filter(|rates| !rates.is_empty()) {
                    entries.push(self.meter(id, MeterCell::Index(index), &rates)?);
                }
            }
        }
        Ok(entries)
    }

    /// Entries that are constant while a program runs: counter declarations, calculations, settings.
    fn fixed_entries(self, settings: &Settings) -> Vec<Entry> {
        let counters = self.program.counters.iter().map(|counter| {
            CounterConfig {
                counter: counter.name.clone(),
                unit: Unit::Both,
                size: counter.direct.as_ref().map_or(u64::from(counter.size), |_| 0),
            }
            .into()
        });
        let calculations = self.program.calculations.iter().map(|calculation| {
            Calculation {
                name: calculation.name.clone(),
                algorithm: calculation.algorithm.clone(),
                parameters: BTreeMap::new(),
            }
            .into()
        });
        let ports = [
            ("drop_port", u64::from(settings.drop_port)),
            ("priority_queues", settings.priority_queues),
        ]
        .map(|(name, value)| {
            PortSetting {
                port: ALL_PORTS,
                queue: None,
                name: name.to_owned(),
                value,
            }
            .into()
        });
        counters.chain(calculations).chain(ports).collect()
    }

    /// All measured entries in memory, except register arrays.
    pub fn all_entries(
        self,
        forwarding: &Forwarding,
        externs: &Externs,
        settings: &Settings,
    ) -> Result<Vec<Entry>, DescribeError> {
        let mut entries = self.fixed_entries(settings);
        entries.extend(self.meters(externs)?);
        for (id, table) in forwarding.tables().tables() {
            entries.push(self.default_action(id, table.default_target())?);
            let spec = &table.spec().key;
            for entry in table.iter() {
                for step in self.entry_steps(id, spec, entry)? {
                    if let Step::Put(entry) = step {
                        entries.push(entry);
                    }
                }
            }
        }
        for id in (0u32..).map(ProfileId).take(self.program.profiles.len()) {
            let Some(profile) = forwarding.tables().profile(id) else {
                continue;
            };
            for (member, call) in profile.members() {
                entries.push(self.member(id, member, call)?);
            }
            for (handle, group) in profile.groups() {
                entries.push(self.group(id, handle, group)?);
            }
        }
        entries.extend(forwarding.groups().map(|(id, replicas)| multicast(id, replicas)));
        let sessions = forwarding.clone_sessions();
        entries.extend(sessions.map(|(id, session)| clone_session(id, session)));
        for id in (0u32..).map(ValueSetId).take(self.program.value_sets.len()) {
            if let Some(members) = forwarding.value_set(id) {
                entries.extend(self.value_set(id, members)?);
            }
        }
        Ok(entries)
    }

    /// Returns the steps for a change of the forwarding state.
    pub fn steps(
        self,
        change: &ForwardingChange,
        forwarding: &Forwarding,
    ) -> Result<Vec<Step>, DescribeError> {
        match change {
            ForwardingChange::Tables(TableSetChange::Table(id, change)) => {
                let table = forwarding.tables().table(*id);
                let table = table.ok_or_else(|| unknown_element("table", id))?;
                self.table_steps(*id, &table.spec().key, change)
            }
            ForwardingChange::Tables(TableSetChange::Profile(id, change)) => self.profile_step(*id, change),
            ForwardingChange::Group(id, old, new) => Ok(exchange(
                old.as_ref().map(|old| multicast(*id, old)),
                new.as_ref().map(|new| multicast(*id, new)),
            )),
            ForwardingChange::CloneSession(id, old, new) => Ok(exchange(
                old.map(|old| clone_session(*id, old)),
                new.map(|new| clone_session(*id, new)),
            )),
            ForwardingChange::ValueSet(id, old, new) => {
                let removed = self.value_set(*id, &(&**old - &**new))?;
                let added = self.value_set(*id, &(&**new - &**old))?;
                let removed = removed.into_iter().map(Step::Remove);
                Ok(removed.chain(added.into_iter().map(Step::Put)).collect())
            }
        }
    }

    fn table_steps(
        self,
        id: TableId,
        spec: &KeySpec,
        change: &TableChange,
    ) -> Result<Vec<Step>, DescribeError> {
        Ok(match change {
            TableChange::Inserted(entry) | TableChange::Modified(_, entry) => {
                self.entry_steps(id, spec, entry)?
            }
            // The entry may differ from its measurement, so the steps remove all measured entries with its identity.
            TableChange::Deleted(entry) => {
                let steps = self.entry_steps(id, spec, entry)?;
                let removed_entry = |step| match step {
                    Step::Put(entry) | Step::Remove(entry) => Step::Remove(entry),
                };
                steps.into_iter().map(removed_entry).collect()
            }
            TableChange::Default(_, target) => vec![Step::Put(self.default_action(id, target.as_ref())?)],
            TableChange::Sealed(_) => Vec::new(),
        })
    }

    fn profile_step(self, id: ProfileId, change: &ProfileChange) -> Result<Vec<Step>, DescribeError> {
        let (before, after) = match change {
            ProfileChange::Member {
                member,
                before,
                after,
            } => {
                let entry = |call: &std::sync::Arc<ActionCall>| self.member(id, *member, call);
                (
                    before.as_ref().map(entry).transpose()?,
                    after.as_ref().map(entry).transpose()?,
                )
            }
            ProfileChange::Group { group, before, after } => {
                let entry = |content: &std::sync::Arc<Group>| self.group(id, *group, content);
                (
                    before.as_ref().map(entry).transpose()?,
                    after.as_ref().map(entry).transpose()?,
                )
            }
        };
        Ok(exchange(before, after))
    }
}

fn cell_of(spec: &KeySpec, entry: &InstalledEntry) -> Result<MeterCell, DescribeError> {
    Ok(MeterCell::Entry {
        key: key(spec, entry.key())?,
        priority: entry.priority().0.cast_unsigned(),
    })
}

/// Returns the step that puts the new entry in place of the old entry, or removes the old entry if there is no new
/// entry.
fn exchange(before: Option<Entry>, after: Option<Entry>) -> Vec<Step> {
    after
        .map(Step::Put)
        .or(before.map(Step::Remove))
        .into_iter()
        .collect()
}

fn key(spec: &KeySpec, key: &MatchKey) -> Result<Vec<KeyField>, DescribeError> {
    let fields = spec.fields().iter().zip(spec.matches(key));
    fields
        .map(|(field, matches)| {
            let bits = |value: &[u8]| Bits::new(field.bits, value);
            let matches = match matches {
                FieldMatch::Exact(value) => Match::exact(bits(&value)?),
                FieldMatch::Lpm { value, prefix_bits } => Match::lpm(bits(&value)?, prefix_bits)?,
                FieldMatch::Ternary { value, mask } => Match::ternary(bits(&value)?, bits(&mask)?)?,
                FieldMatch::Optional(value) => Match::optional(value.map(|value| bits(&value)).transpose()?),
                FieldMatch::Range { low, high } => Match::range(bits(&low)?, bits(&high)?)?,
                FieldMatch::Valid(valid) => Match::exact(Bits::from_u64(1, u64::from(valid))?),
            };
            Ok(KeyField {
                name: field.name.clone(),
                matches,
            })
        })
        .collect()
}

fn multicast(group: u32, replicas: &[forwarding::Replica]) -> Entry {
    let mut counts = Replicas::new();
    for replica in replicas {
        let key = Replica {
            port: replica.port,
            instance: u32::from(replica.rid),
        };
        *counts.entry(key).or_default() += 1;
    }
    let replicas = counts;
    MulticastGroup { group, replicas }.into()
}

fn clone_session(id: u32, session: forwarding::CloneSession) -> Entry {
    CloneSession {
        session: id,
        port: session.port,
        multicast_group: session.group,
        replicas: Replicas::new(),
        class_of_service: 0,
        truncate_bytes: session.bytes_max,
    }
    .into()
}
