//! Read requests (13, 9.1.6): wildcards and filters.

use super::cells::{decode_index, index_message};
use super::{Translator, entity_of, no_externs, sets};
use crate::entity::{Entity, EntryAction, EntryKey, EntryRef, Query, ReadOptions, TableEntry};
use crate::error::EntityError;
use crate::ids::*;
use crate::p4info::Table;
use crate::proto::v1;
use v1::entity::Entity as Message;
use v1::packet_replication_engine_entry::Type as Replication;

/// Filter of table entries; a field at its default matches all entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryFilter {
    /// Action of the entries to read, in direct tables; `None` for any action.
    pub action: Option<ActionId>,
    /// Priority of the entries to read; zero for any priority.
    pub priority: i32,
    /// Controller metadata of the entries to read; zero for any controller metadata.
    pub controller_metadata: u64,
    /// Metadata of the entries to read; empty for any metadata.
    pub metadata: Vec<u8>,
}

impl EntryFilter {
    fn matches(&self, entry: &TableEntry) -> bool {
        let action_matches = self.action.is_none_or(|expected_id| match &entry.action {
            Some(EntryAction::Action(action)) => action.id == expected_id,
            _ => false,
        });
        action_matches
            && (self.priority == 0 || self.priority == entry.key.priority)
            && (self.controller_metadata == 0 || self.controller_metadata == entry.controller_metadata)
            && (self.metadata.is_empty() || self.metadata == entry.metadata)
    }
}

/// Request of a read RPC; an absent field selects all.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the field types are self-explanatory")]
pub enum Read {
    TableEntries {
        table: Option<TableId>,
        key: Option<EntryKey>,
        filter: EntryFilter,
        options: ReadOptions,
    },
    DefaultEntries {
        table: Option<TableId>,
        options: ReadOptions,
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

fn optional_id<I: From<u32>>(id: u32) -> Option<I> {
    (id != 0).then(|| id.into())
}

fn id_or_zero<I: Into<u32>>(id: Option<I>) -> u32 {
    id.map(Into::into).unwrap_or_default()
}

impl<'a> Translator<'a> {
    /// Decodes a read request.
    pub fn decode_read(&self, request: &v1::Entity) -> Result<Read, EntityError> {
        match entity_of(Some(request))? {
            Message::TableEntry(entry) => self.decode_entries_read(entry),
            Message::ActionProfileMember(member) => {
                let profile = optional_id(member.action_profile_id);
                let profile = profile
                    .map(|ProfileId(id)| self.profile(id))
                    .transpose()?
                    .map(|profile| profile.id);
                check_wildcard(profile.is_none(), member.member_id != 0, "member_id")?;
                Ok(Read::Members {
                    profile,
                    member: optional_id(member.member_id),
                })
            }
            Message::ActionProfileGroup(group) => {
                let profile = optional_id(group.action_profile_id);
                let profile = profile
                    .map(|ProfileId(id)| self.selector(id))
                    .transpose()?
                    .map(|profile| profile.id);
                check_wildcard(profile.is_none(), group.group_id != 0, "group_id")?;
                Ok(Read::Groups {
                    profile,
                    group: optional_id(group.group_id),
                })
            }
            Message::CounterEntry(message) => {
                let counter = optional_id(message.counter_id)
                    .map(|CounterId(id)| self.counter(id))
                    .transpose()?;
                check_wildcard(counter.is_none(), message.index.is_some(), "index")?;
                let index = decode_index(message.index, counter.map_or(0, |counter| counter.size))?;
                Ok(Read::Counters {
                    id: counter.map(|counter| counter.id),
                    index,
                })
            }
            Message::MeterEntry(message) => {
                let meter = optional_id(message.meter_id)
                    .map(|MeterId(id)| self.meter(id))
                    .transpose()?;
                check_wildcard(meter.is_none(), message.index.is_some(), "index")?;
                let index = decode_index(message.index, meter.map_or(0, |meter| meter.size))?;
                Ok(Read::Meters {
                    id: meter.map(|meter| meter.id),
                    index,
                    counters: message.counter_data.is_some(),
                })
            }
            Message::RegisterEntry(message) => {
                let register = optional_id(message.register_id)
                    .map(|RegisterId(id)| self.register(id))
                    .transpose()?;
                check_wildcard(register.is_none(), message.index.is_some(), "index")?;
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
                    Ok(Read::MulticastGroups(optional_id(group.multicast_group_id)))
                }
                Some(Replication::CloneSessionEntry(session)) => {
                    Ok(Read::CloneSessions(optional_id(session.session_id)))
                }
                None => Err(EntityError::invalid(
                    "packet replication entry must be a multicast group or a clone session",
                )),
            },
            Message::ValueSetEntry(message) => {
                let set = optional_id(message.value_set_id)
                    .map(|ValueSetId(id)| self.value_set(id))
                    .transpose()?;
                Ok(Read::ValueSets(set.map(|set| set.id)))
            }
            Message::DigestEntry(message) => {
                let digest = optional_id(message.digest_id)
                    .map(|DigestId(id)| self.digest(id))
                    .transpose()?;
                Ok(Read::Digests(digest.map(|digest| digest.id)))
            }
            Message::ExternEntry(_) => Err(no_externs()),
        }
    }

    fn decode_entries_read(&self, entry: &v1::TableEntry) -> Result<Read, EntityError> {
        let options = ReadOptions {
            counter: entry.counter_data.is_some(),
            meter: entry.meter_config.is_some(),
            meter_counters: entry.meter_counter_data.is_some(),
            since_hit: entry.time_since_last_hit.is_some(),
        };
        let table = optional_id(entry.table_id)
            .map(|TableId(id)| self.table(id))
            .transpose()?;
        let filter = EntryFilter {
            action: self.decode_action_filter(table, entry.action.as_ref())?,
            priority: entry.priority,
            controller_metadata: entry.controller_metadata,
            metadata: entry.metadata.clone(),
        };
        if entry.is_default_action {
            if options.since_hit
                || entry.idle_timeout_ns != 0
                || !entry.r#match.is_empty()
                || filter != EntryFilter::default()
            {
                return Err(EntityError::invalid(
                    "read of default entries allows no key, no time_since_last_hit and no filter",
                ));
            }
            return Ok(Read::DefaultEntries {
                table: table.map(|table| table.id),
                options,
            });
        }
        let Some(table) = table else {
            if !entry.r#match.is_empty() || filter != EntryFilter::default() {
                return Err(EntityError::invalid(
                    "table_id 0 selects all entries of all tables and allows no filter",
                ));
            }
            return Ok(Read::TableEntries {
                table: None,
                key: None,
                filter,
                options,
            });
        };
        let at_table = |error: EntityError| error.at(format!("table \"{}\"", table.name));
        if options.since_hit && !table.idle_timeout {
            return Err(at_table(EntityError::invalid(
                "time_since_last_hit requires a table with idle timeout",
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
            options,
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
                let missing = || EntityError::invalid(format!("table \"{}\" has no action {id}", table.name));
                table.scope(id).map(|_| Some(id)).ok_or_else(missing)
            }
            _ => Err(EntityError::invalid("filter by action requires a direct table")),
        }
    }

    /// Decodes the table and the entry of a direct resource.
    fn decode_direct_read(
        &self,
        entry: Option<&v1::TableEntry>,
        is_supported: impl Fn(&Table) -> bool,
    ) -> Result<(Option<TableId>, Option<EntryRef>), EntityError> {
        let entry = entry.ok_or_else(|| {
            EntityError::invalid("table_entry is missing: it identifies the owner of the direct resource")
        })?;
        let Some(table) = optional_id(entry.table_id)
            .map(|TableId(id)| self.table(id))
            .transpose()?
        else {
            return Ok((None, None));
        };
        if !is_supported(table) {
            return Err(EntityError::invalid(format!(
                "table \"{}\" has no such direct resource",
                table.name
            )));
        }
        if entry.r#match.is_empty() && !entry.is_default_action {
            return Ok((Some(table.id), None));
        }
        let (_, entry) = self.decode_entry_ref(Some(entry))?;
        Ok((Some(table.id), Some(entry)))
    }

    /// Encodes a read request.
    pub fn encode_read(&self, request: &Read) -> v1::Entity {
        let message = match request {
            Read::TableEntries {
                table,
                key,
                filter,
                options,
            } => {
                let key = key.as_ref().map(|key| self.encode_key(key)).unwrap_or_default();
                let action = filter.action.map(|id| v1::TableAction {
                    r#type: Some(v1::table_action::Type::Action(v1::Action {
                        action_id: id.0,
                        params: Vec::new(),
                    })),
                });
                Message::TableEntry(v1::TableEntry {
                    table_id: id_or_zero(*table),
                    action,
                    priority: if filter.priority == 0 {
                        key.priority
                    } else {
                        filter.priority
                    },
                    controller_metadata: filter.controller_metadata,
                    metadata: filter.metadata.clone(),
                    ..with_read_options(*options, key)
                })
            }
            Read::DefaultEntries { table, options } => {
                let default = v1::TableEntry {
                    is_default_action: true,
                    ..Default::default()
                };
                Message::TableEntry(v1::TableEntry {
                    table_id: id_or_zero(*table),
                    ..with_read_options(*options, default)
                })
            }
            Read::Members { profile, member } => Message::ActionProfileMember(v1::ActionProfileMember {
                action_profile_id: id_or_zero(*profile),
                member_id: id_or_zero(*member),
                action: None,
            }),
            Read::Groups { profile, group } => Message::ActionProfileGroup(v1::ActionProfileGroup {
                action_profile_id: id_or_zero(*profile),
                group_id: id_or_zero(*group),
                ..Default::default()
            }),
            Read::Counters { id, index } => Message::CounterEntry(v1::CounterEntry {
                counter_id: id_or_zero(*id),
                index: index.map(index_message),
                data: None,
            }),
            Read::DirectCounters { table, entry } => Message::DirectCounterEntry(v1::DirectCounterEntry {
                table_entry: Some(self.direct_request(*table, entry.as_ref())),
                data: None,
            }),
            Read::Meters { id, index, counters } => Message::MeterEntry(v1::MeterEntry {
                meter_id: id_or_zero(*id),
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
                register_id: id_or_zero(*id),
                index: index.map(index_message),
                data: None,
            }),
            Read::MulticastGroups(id) => {
                let group = v1::MulticastGroupEntry {
                    multicast_group_id: id_or_zero(*id),
                    ..Default::default()
                };
                super::replication::message(Replication::MulticastGroupEntry(group))
            }
            Read::CloneSessions(id) => {
                let session = v1::CloneSessionEntry {
                    session_id: id_or_zero(*id),
                    ..Default::default()
                };
                super::replication::message(Replication::CloneSessionEntry(session))
            }
            Read::ValueSets(id) => Message::ValueSetEntry(v1::ValueSetEntry {
                value_set_id: id_or_zero(*id),
                members: Vec::new(),
            }),
            Read::Digests(id) => sets::digest_message(DigestId(id_or_zero(*id)), None),
        };
        v1::Entity {
            entity: Some(message),
        }
    }

    fn direct_request(&self, table: Option<TableId>, entry: Option<&EntryRef>) -> v1::TableEntry {
        match entry {
            Some(entry) => self.entry_ref_message(entry),
            None => v1::TableEntry {
                table_id: id_or_zero(table),
                ..Default::default()
            },
        }
    }

    /// Queries to the target for this request. [`Read::select`] filters the results.
    pub fn queries(&self, request: &Read) -> Vec<Query> {
        match request {
            Read::TableEntries {
                table, key, options, ..
            } => {
                let query = |table: &Table| Query::Entries {
                    table: table.id,
                    key: key.clone(),
                    options: *options,
                };
                self.tables(*table, |table| !table.fields.is_empty())
                    .map(query)
                    .collect()
            }
            Read::DefaultEntries { table, options } => {
                let query = |table: &Table| Query::DefaultEntry {
                    table: table.id,
                    options: *options,
                };
                self.tables(*table, |_| true).map(query).collect()
            }
            Read::DirectCounters { table, entry } => {
                let options = ReadOptions {
                    counter: true,
                    ..ReadOptions::default()
                };
                self.direct_queries(*table, entry.as_ref(), options, |table| table.counter.is_some())
            }
            Read::DirectMeters {
                table,
                entry,
                counters,
            } => {
                let options = ReadOptions {
                    meter: true,
                    meter_counters: *counters,
                    ..ReadOptions::default()
                };
                self.direct_queries(*table, entry.as_ref(), options, |table| table.meter.is_some())
            }
            Read::Members { profile, member } => self
                .info
                .profiles()
                .iter()
                .filter(|candidate| profile.is_none_or(|id| id == candidate.id))
                .map(|candidate| Query::Members {
                    profile: candidate.id,
                    member: *member,
                })
                .collect(),
            Read::Groups { profile, group } => self
                .info
                .profiles()
                .iter()
                .filter(|candidate| candidate.with_selector && profile.is_none_or(|id| id == candidate.id))
                .map(|candidate| Query::Groups {
                    profile: candidate.id,
                    group: *group,
                })
                .collect(),
            Read::Counters { id, index } => {
                let ids = select_ids(*id, self.info.counters().iter().map(|counter| counter.id));
                ids.map(|id| Query::Counters { id, index: *index }).collect()
            }
            Read::Meters { id, index, counters } => {
                let ids = select_ids(*id, self.info.meters().iter().map(|meter| meter.id));
                ids.map(|id| Query::Meters {
                    id,
                    index: *index,
                    counters: *counters,
                })
                .collect()
            }
            Read::Registers { id, index } => {
                let ids = select_ids(*id, self.info.registers().iter().map(|register| register.id));
                ids.map(|id| Query::Registers { id, index: *index }).collect()
            }
            Read::MulticastGroups(id) => vec![Query::MulticastGroups(*id)],
            Read::CloneSessions(id) => vec![Query::CloneSessions(*id)],
            Read::ValueSets(id) => select_ids(*id, self.info.value_sets().iter().map(|set| set.id))
                .map(Query::ValueSet)
                .collect(),
            Read::Digests(id) => select_ids(*id, self.info.digests().iter().map(|digest| digest.id))
                .map(Query::Digest)
                .collect(),
        }
    }

    fn tables(
        &self,
        requested: Option<TableId>,
        is_selected: impl Fn(&Table) -> bool,
    ) -> impl Iterator<Item = &'a Table> {
        self.info
            .tables()
            .iter()
            .filter(move |table| requested.is_none_or(|id| id == table.id) && is_selected(table))
    }

    fn direct_queries(
        &self,
        table: Option<TableId>,
        entry: Option<&EntryRef>,
        options: ReadOptions,
        is_supported: impl Fn(&Table) -> bool,
    ) -> Vec<Query> {
        match entry {
            Some(EntryRef::Entry(key)) => {
                vec![Query::Entries {
                    table: key.table,
                    key: Some(key.clone()),
                    options,
                }]
            }
            Some(EntryRef::Default(table)) => vec![Query::DefaultEntry {
                table: *table,
                options,
            }],
            None => self
                .tables(table, is_supported)
                .map(|table| Query::Entries {
                    table: table.id,
                    key: None,
                    options,
                })
                .collect(),
        }
    }
}

impl Read {
    /// Converts a result of the target to an entity of the response; `None` if the filter excludes the entity.
    pub fn select(&self, candidate: Entity) -> Option<Entity> {
        match (self, candidate) {
            (Self::TableEntries { filter, .. }, Entity::TableEntry(entry)) => {
                filter.matches(&entry).then_some(Entity::TableEntry(entry))
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
            (_, candidate) => Some(candidate),
        }
    }

    /// Whether an empty result is an error: the request selects a direct resource of one entry (9.3.1, 9.4.1).
    pub fn must_match(&self) -> bool {
        matches!(
            self,
            Self::DirectCounters { entry: Some(_), .. } | Self::DirectMeters { entry: Some(_), .. }
        )
    }
}

fn select_ids<I: Copy + PartialEq>(
    requested: Option<I>,
    ids: impl Iterator<Item = I>,
) -> impl Iterator<Item = I> {
    ids.filter(move |id| requested.is_none_or(|requested| requested == *id))
}

fn with_read_options(options: ReadOptions, entry: v1::TableEntry) -> v1::TableEntry {
    v1::TableEntry {
        counter_data: options.counter.then(Default::default),
        meter_config: options.meter.then(Default::default),
        meter_counter_data: options.meter_counters.then(Default::default),
        time_since_last_hit: options.since_hit.then(Default::default),
        ..entry
    }
}

fn check_wildcard(is_wildcard: bool, has_part: bool, field: &str) -> Result<(), EntityError> {
    if is_wildcard && has_part {
        return Err(EntityError::invalid(format!(
            "{field} is set without the id of its parent"
        )));
    }
    Ok(())
}
