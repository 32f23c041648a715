//! What a client asks for (13, 9.1.6): its wildcards, and what of the answers passes its filters.

use super::cells::{decode_index, index_message};
use super::{Translator, entity_of, no_externs, sets};
use crate::entity::{Entity, EntryAction, EntryKey, EntryRef, Query, TableEntry, Want};
use crate::error::EntityError;
use crate::ids::*;
use crate::p4info::Table;
use crate::proto::v1;
use v1::entity::Entity as Message;
use v1::packet_replication_engine_entry::Type as Replication;

/// Which of a table's entries are asked for; what is at its default lets all pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryFilter {
    /// Entries that lead to this action, of direct tables.
    pub action: Option<ActionId>,
    /// Entries of this priority, if it is not zero.
    pub priority: i32,
    /// Entries with this metadata, if it is not zero.
    pub controller_metadata: u64,
    /// Entries with this metadata, if it is not empty.
    pub metadata: Vec<u8>,
}

impl EntryFilter {
    fn passes(&self, entry: &TableEntry) -> bool {
        let action = self.action.is_none_or(|wanted| match &entry.action {
            Some(EntryAction::Action(action)) => action.id == wanted,
            _ => false,
        });
        action
            && (self.priority == 0 || self.priority == entry.key.priority)
            && (self.controller_metadata == 0 || self.controller_metadata == entry.controller_metadata)
            && (self.metadata.is_empty() || self.metadata == entry.metadata)
    }
}

/// One request of a read: what is absent means all.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the types of the fields say it")]
pub enum Read {
    TableEntries {
        table: Option<TableId>,
        key: Option<EntryKey>,
        filter: EntryFilter,
        want: Want,
    },
    DefaultEntries {
        table: Option<TableId>,
        want: Want,
    },
    Members {
        profile: Option<ProfileId>,
        member: Option<MemberId>,
    },
    Groups {
        profile: Option<ProfileId>,
        group: Option<GroupId>,
    },
    Counters {
        id: Option<CounterId>,
        index: Option<u64>,
    },
    DirectCounters {
        table: Option<TableId>,
        entry: Option<EntryRef>,
    },
    Meters {
        id: Option<MeterId>,
        index: Option<u64>,
        counters: bool,
    },
    DirectMeters {
        table: Option<TableId>,
        entry: Option<EntryRef>,
        counters: bool,
    },
    Registers {
        id: Option<RegisterId>,
        index: Option<u64>,
    },
    MulticastGroups(Option<MulticastGroupId>),
    CloneSessions(Option<CloneSessionId>),
    ValueSets(Option<ValueSetId>),
    Digests(Option<DigestId>),
}

fn given<I: From<u32>>(id: u32) -> Option<I> {
    (id != 0).then(|| id.into())
}

fn number<I: Into<u32>>(id: Option<I>) -> u32 {
    id.map(Into::into).unwrap_or_default()
}

impl<'a> Translator<'a> {
    /// A request of a read.
    pub fn decode_read(&self, request: &v1::Entity) -> Result<Read, EntityError> {
        match entity_of(Some(request))? {
            Message::TableEntry(entry) => self.decode_entries_read(entry),
            Message::ActionProfileMember(member) => {
                let profile = given(member.action_profile_id);
                let profile = profile
                    .map(|ProfileId(id)| self.profile(id))
                    .transpose()?
                    .map(|profile| profile.id);
                no_part_of_all(profile.is_none(), member.member_id != 0, "member_id")?;
                Ok(Read::Members {
                    profile,
                    member: given(member.member_id),
                })
            }
            Message::ActionProfileGroup(group) => {
                let profile = given(group.action_profile_id);
                let profile = profile
                    .map(|ProfileId(id)| self.selector(id))
                    .transpose()?
                    .map(|profile| profile.id);
                no_part_of_all(profile.is_none(), group.group_id != 0, "group_id")?;
                Ok(Read::Groups {
                    profile,
                    group: given(group.group_id),
                })
            }
            Message::CounterEntry(message) => {
                let counter = given(message.counter_id)
                    .map(|CounterId(id)| self.counter(id))
                    .transpose()?;
                no_part_of_all(counter.is_none(), message.index.is_some(), "index")?;
                let index = decode_index(message.index, counter.map_or(0, |counter| counter.size))?;
                Ok(Read::Counters {
                    id: counter.map(|counter| counter.id),
                    index,
                })
            }
            Message::MeterEntry(message) => {
                let meter = given(message.meter_id)
                    .map(|MeterId(id)| self.meter(id))
                    .transpose()?;
                no_part_of_all(meter.is_none(), message.index.is_some(), "index")?;
                let index = decode_index(message.index, meter.map_or(0, |meter| meter.size))?;
                Ok(Read::Meters {
                    id: meter.map(|meter| meter.id),
                    index,
                    counters: message.counter_data.is_some(),
                })
            }
            Message::RegisterEntry(message) => {
                let register = given(message.register_id)
                    .map(|RegisterId(id)| self.register(id))
                    .transpose()?;
                no_part_of_all(register.is_none(), message.index.is_some(), "index")?;
                let index = decode_index(message.index, register.map_or(0, |register| register.size))?;
                Ok(Read::Registers {
                    id: register.map(|register| register.id),
                    index,
                })
            }
            Message::DirectCounterEntry(message) => {
                let (table, entry) =
                    self.decode_direct_read(message.table_entry.as_ref(), |table| table.counter.is_some())?;
                Ok(Read::DirectCounters { table, entry })
            }
            Message::DirectMeterEntry(message) => {
                let (table, entry) =
                    self.decode_direct_read(message.table_entry.as_ref(), |table| table.meter.is_some())?;
                Ok(Read::DirectMeters {
                    table,
                    entry,
                    counters: message.counter_data.is_some(),
                })
            }
            Message::PacketReplicationEngineEntry(entry) => match &entry.r#type {
                Some(Replication::MulticastGroupEntry(group)) => {
                    Ok(Read::MulticastGroups(given(group.multicast_group_id)))
                }
                Some(Replication::CloneSessionEntry(session)) => {
                    Ok(Read::CloneSessions(given(session.session_id)))
                }
                None => Err(EntityError::invalid(
                    "ask for multicast groups or for clone sessions",
                )),
            },
            Message::ValueSetEntry(message) => {
                let set = given(message.value_set_id)
                    .map(|ValueSetId(id)| self.value_set(id))
                    .transpose()?;
                Ok(Read::ValueSets(set.map(|set| set.id)))
            }
            Message::DigestEntry(message) => {
                let digest = given(message.digest_id)
                    .map(|DigestId(id)| self.digest(id))
                    .transpose()?;
                Ok(Read::Digests(digest.map(|digest| digest.id)))
            }
            Message::ExternEntry(_) => Err(no_externs()),
        }
    }

    fn decode_entries_read(&self, entry: &v1::TableEntry) -> Result<Read, EntityError> {
        let want = Want {
            counter: entry.counter_data.is_some(),
            meter: entry.meter_config.is_some(),
            meter_counters: entry.meter_counter_data.is_some(),
            since_hit: entry.time_since_last_hit.is_some(),
        };
        let table = given(entry.table_id)
            .map(|TableId(id)| self.table(id))
            .transpose()?;
        let filter = EntryFilter {
            action: self.decode_action_filter(table, entry.action.as_ref())?,
            priority: entry.priority,
            controller_metadata: entry.controller_metadata,
            metadata: entry.metadata.clone(),
        };
        if entry.is_default_action {
            if want.since_hit
                || entry.idle_timeout_ns != 0
                || !entry.r#match.is_empty()
                || filter != EntryFilter::default()
            {
                return Err(EntityError::invalid(
                    "default entries have no key, no time of a hit, and pass no filter",
                ));
            }
            return Ok(Read::DefaultEntries {
                table: table.map(|table| table.id),
                want,
            });
        }
        let Some(table) = table else {
            if !entry.r#match.is_empty() || filter != EntryFilter::default() {
                return Err(EntityError::invalid(
                    "table_id 0 means all entries of all tables, with no filter",
                ));
            }
            return Ok(Read::TableEntries {
                table: None,
                key: None,
                filter,
                want,
            });
        };
        let at_table = |error: EntityError| error.at(format!("table \"{}\"", table.name));
        if want.since_hit && !table.idle_timeout {
            return Err(at_table(EntityError::invalid(
                "its entries have no idle timeout, so no time of a hit",
            )));
        }
        let key = match entry.r#match.is_empty() {
            true => None,
            false => Some(self.decode_key(table, entry).map_err(at_table)?),
        };
        Ok(Read::TableEntries {
            table: Some(table.id),
            key,
            filter,
            want,
        })
    }

    fn decode_action_filter(
        &self,
        table: Option<&Table>,
        action: Option<&v1::TableAction>,
    ) -> Result<Option<ActionId>, EntityError> {
        match (action.and_then(|action| action.r#type.as_ref()), table) {
            (None, _) => Ok(None),
            (Some(v1::table_action::Type::Action(action)), Some(table)) if table.profile.is_none() => {
                let id = ActionId(action.action_id);
                let none = || EntityError::invalid(format!("table \"{}\" has no action {id}", table.name));
                table.scope(id).map(|_| Some(id)).ok_or_else(none)
            }
            _ => Err(EntityError::invalid(
                "entries can be asked for by action only in a direct table",
            )),
        }
    }

    /// Of which table, and of which entry there.
    fn decode_direct_read(
        &self,
        entry: Option<&v1::TableEntry>,
        has: impl Fn(&Table) -> bool,
    ) -> Result<(Option<TableId>, Option<EntryRef>), EntityError> {
        let entry =
            entry.ok_or_else(|| EntityError::invalid("table_entry is missing, which says whose it is"))?;
        let Some(table) = given(entry.table_id)
            .map(|TableId(id)| self.table(id))
            .transpose()?
        else {
            return Ok((None, None));
        };
        if !has(table) {
            return Err(EntityError::invalid(format!(
                "table \"{}\": its entries have none",
                table.name
            )));
        }
        if entry.r#match.is_empty() && !entry.is_default_action {
            return Ok((Some(table.id), None));
        }
        let (_, entry) = self.decode_entry_ref(Some(entry))?;
        Ok((Some(table.id), Some(entry)))
    }

    /// A request as a message.
    pub fn encode_read(&self, read: &Read) -> v1::Entity {
        let message = match read {
            Read::TableEntries {
                table,
                key,
                filter,
                want,
            } => {
                let key = key.as_ref().map(|key| self.encode_key(key)).unwrap_or_default();
                let action = filter.action.map(|id| v1::TableAction {
                    r#type: Some(v1::table_action::Type::Action(v1::Action {
                        action_id: id.0,
                        params: Vec::new(),
                    })),
                });
                Message::TableEntry(v1::TableEntry {
                    table_id: number(*table),
                    action,
                    priority: if filter.priority == 0 {
                        key.priority
                    } else {
                        filter.priority
                    },
                    controller_metadata: filter.controller_metadata,
                    metadata: filter.metadata.clone(),
                    ..with_wants(*want, key)
                })
            }
            Read::DefaultEntries { table, want } => {
                let default = v1::TableEntry {
                    is_default_action: true,
                    ..Default::default()
                };
                Message::TableEntry(v1::TableEntry {
                    table_id: number(*table),
                    ..with_wants(*want, default)
                })
            }
            Read::Members { profile, member } => Message::ActionProfileMember(v1::ActionProfileMember {
                action_profile_id: number(*profile),
                member_id: number(*member),
                action: None,
            }),
            Read::Groups { profile, group } => Message::ActionProfileGroup(v1::ActionProfileGroup {
                action_profile_id: number(*profile),
                group_id: number(*group),
                ..Default::default()
            }),
            Read::Counters { id, index } => Message::CounterEntry(v1::CounterEntry {
                counter_id: number(*id),
                index: index.map(index_message),
                data: None,
            }),
            Read::DirectCounters { table, entry } => Message::DirectCounterEntry(v1::DirectCounterEntry {
                table_entry: Some(self.direct_request(*table, entry.as_ref())),
                data: None,
            }),
            Read::Meters { id, index, counters } => Message::MeterEntry(v1::MeterEntry {
                meter_id: number(*id),
                index: index.map(index_message),
                config: None,
                counter_data: counters.then(Default::default),
            }),
            Read::DirectMeters {
                table,
                entry,
                counters,
            } => Message::DirectMeterEntry(v1::DirectMeterEntry {
                table_entry: Some(self.direct_request(*table, entry.as_ref())),
                config: None,
                counter_data: counters.then(Default::default),
            }),
            Read::Registers { id, index } => Message::RegisterEntry(v1::RegisterEntry {
                register_id: number(*id),
                index: index.map(index_message),
                data: None,
            }),
            Read::MulticastGroups(id) => {
                let group = v1::MulticastGroupEntry {
                    multicast_group_id: number(*id),
                    ..Default::default()
                };
                super::replication::message(Replication::MulticastGroupEntry(group))
            }
            Read::CloneSessions(id) => {
                let session = v1::CloneSessionEntry {
                    session_id: number(*id),
                    ..Default::default()
                };
                super::replication::message(Replication::CloneSessionEntry(session))
            }
            Read::ValueSets(id) => Message::ValueSetEntry(v1::ValueSetEntry {
                value_set_id: number(*id),
                members: Vec::new(),
            }),
            Read::Digests(id) => sets::digest_message(DigestId(number(*id)), None),
        };
        v1::Entity {
            entity: Some(message),
        }
    }

    fn direct_request(&self, table: Option<TableId>, entry: Option<&EntryRef>) -> v1::TableEntry {
        match entry {
            Some(entry) => self.entry_ref_message(entry),
            None => v1::TableEntry {
                table_id: number(table),
                ..Default::default()
            },
        }
    }

    /// The questions to the target whose answers, those that [`Read::select`] lets pass, answer this request.
    pub fn queries(&self, read: &Read) -> Vec<Query> {
        match read {
            Read::TableEntries { table, key, want, .. } => {
                let query = |table: &Table| Query::Entries {
                    table: table.id,
                    key: key.clone(),
                    want: *want,
                };
                self.tables(*table, |table| !table.fields.is_empty())
                    .map(query)
                    .collect()
            }
            Read::DefaultEntries { table, want } => {
                let query = |table: &Table| Query::DefaultEntry {
                    table: table.id,
                    want: *want,
                };
                self.tables(*table, |_| true).map(query).collect()
            }
            Read::DirectCounters { table, entry } => {
                let want = Want {
                    counter: true,
                    ..Want::default()
                };
                self.direct_queries(*table, entry.as_ref(), want, |table| table.counter.is_some())
            }
            Read::DirectMeters {
                table,
                entry,
                counters,
            } => {
                let want = Want {
                    meter: true,
                    meter_counters: *counters,
                    ..Want::default()
                };
                self.direct_queries(*table, entry.as_ref(), want, |table| table.meter.is_some())
            }
            Read::Members { profile, member } => self
                .info
                .profiles()
                .iter()
                .filter(|known| profile.is_none_or(|id| id == known.id))
                .map(|known| Query::Members {
                    profile: known.id,
                    member: *member,
                })
                .collect(),
            Read::Groups { profile, group } => self
                .info
                .profiles()
                .iter()
                .filter(|known| known.with_selector && profile.is_none_or(|id| id == known.id))
                .map(|known| Query::Groups {
                    profile: known.id,
                    group: *group,
                })
                .collect(),
            Read::Counters { id, index } => {
                let ids = all(*id, self.info.counters().iter().map(|counter| counter.id));
                ids.map(|id| Query::Counters { id, index: *index }).collect()
            }
            Read::Meters { id, index, counters } => {
                let ids = all(*id, self.info.meters().iter().map(|meter| meter.id));
                ids.map(|id| Query::Meters {
                    id,
                    index: *index,
                    counters: *counters,
                })
                .collect()
            }
            Read::Registers { id, index } => {
                let ids = all(*id, self.info.registers().iter().map(|register| register.id));
                ids.map(|id| Query::Registers { id, index: *index }).collect()
            }
            Read::MulticastGroups(id) => vec![Query::MulticastGroups(*id)],
            Read::CloneSessions(id) => vec![Query::CloneSessions(*id)],
            Read::ValueSets(id) => all(*id, self.info.value_sets().iter().map(|set| set.id))
                .map(Query::ValueSet)
                .collect(),
            Read::Digests(id) => all(*id, self.info.digests().iter().map(|digest| digest.id))
                .map(Query::Digest)
                .collect(),
        }
    }

    fn tables(
        &self,
        one: Option<TableId>,
        which: impl Fn(&Table) -> bool,
    ) -> impl Iterator<Item = &'a Table> {
        self.info
            .tables()
            .iter()
            .filter(move |table| one.is_none_or(|id| id == table.id) && which(table))
    }

    fn direct_queries(
        &self,
        table: Option<TableId>,
        entry: Option<&EntryRef>,
        want: Want,
        has: impl Fn(&Table) -> bool,
    ) -> Vec<Query> {
        match entry {
            Some(EntryRef::Entry(key)) => {
                vec![Query::Entries {
                    table: key.table,
                    key: Some(key.clone()),
                    want,
                }]
            }
            Some(EntryRef::Default(table)) => vec![Query::DefaultEntry { table: *table, want }],
            None => self
                .tables(table, has)
                .map(|table| Query::Entries {
                    table: table.id,
                    key: None,
                    want,
                })
                .collect(),
        }
    }
}

impl Read {
    /// What of a target's answer belongs into this request's answer.
    pub fn select(&self, found: Entity) -> Option<Entity> {
        match (self, found) {
            (Self::TableEntries { filter, .. }, Entity::TableEntry(entry)) => {
                filter.passes(&entry).then_some(Entity::TableEntry(entry))
            }
            (Self::DirectCounters { .. }, Entity::TableEntry(entry)) => {
                let data = entry.resources.counter?;
                Some(Entity::DirectCounter {
                    entry: EntryRef::Entry(entry.key),
                    data,
                })
            }
            (Self::DirectCounters { .. }, Entity::DefaultEntry(entry)) => {
                let data = entry.resources.counter?;
                Some(Entity::DirectCounter {
                    entry: EntryRef::Default(entry.table),
                    data,
                })
            }
            (Self::DirectMeters { .. }, Entity::TableEntry(entry)) => Some(Entity::DirectMeter {
                config: entry.resources.meter,
                counters: entry.resources.meter_counters,
                entry: EntryRef::Entry(entry.key),
            }),
            (Self::DirectMeters { .. }, Entity::DefaultEntry(entry)) => Some(Entity::DirectMeter {
                config: entry.resources.meter,
                counters: entry.resources.meter_counters,
                entry: EntryRef::Default(entry.table),
            }),
            (_, found) => Some(found),
        }
    }

    /// Whether finding nothing is an error: a direct resource of one entry was asked for (9.3.1, 9.4.1).
    pub fn must_find(&self) -> bool {
        matches!(
            self,
            Self::DirectCounters { entry: Some(_), .. } | Self::DirectMeters { entry: Some(_), .. }
        )
    }
}

fn all<I: Copy + PartialEq>(one: Option<I>, known: impl Iterator<Item = I>) -> impl Iterator<Item = I> {
    known.filter(move |id| one.is_none_or(|one| one == *id))
}

fn with_wants(want: Want, entry: v1::TableEntry) -> v1::TableEntry {
    v1::TableEntry {
        counter_data: want.counter.then(Default::default),
        meter_config: want.meter.then(Default::default),
        meter_counter_data: want.meter_counters.then(Default::default),
        time_since_last_hit: want.since_hit.then(Default::default),
        ..entry
    }
}

fn no_part_of_all(all: bool, part: bool, field: &str) -> Result<(), EntityError> {
    if all && part {
        return Err(EntityError::invalid(format!("{field} is set, but not of what")));
    }
    Ok(())
}
