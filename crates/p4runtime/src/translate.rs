//! Translation between P4Runtime messages and checked values: all checks that need only the P4Info.
//!
//! Server and client use this module. A server decodes updates and read requests, which are untrusted, and
//! encodes read entities. A client encodes updates and read requests and decodes read entities. Encodings are
//! canonical: shortest byte strings, keys in the order of the P4Info, don't-care fields omitted.
#![allow(
    deprecated,
    reason = "fields that P4Runtime 1.4 deprecated are accepted, and used in responses if the client used them"
)]

mod action;
mod cells;
mod key;
mod packet;
mod profile;
mod read;
mod replication;
mod sets;
mod table;

pub use packet::PackError;
pub use read::{EntryFilter, Read};

use crate::entity::{Change, Entity, Update};
use crate::error::EntityError;
use crate::p4info::P4Info;
use crate::proto::v1;
use v1::entity::Entity as Message;
use v1::packet_replication_engine_entry::Type as Replication;
use v1::update::Type as Kind;

/// Translator for the P4Info of one program.
#[derive(Clone, Copy, Debug)]
pub struct Translator<'a> {
    info: &'a P4Info,
}

impl<'a> Translator<'a> {
    /// Creates a translator for this program.
    pub fn new(info: &'a P4Info) -> Self {
        Self { info }
    }

    /// Decodes an update of a write request.
    pub fn decode_update(&self, update: &v1::Update) -> Result<Update, EntityError> {
        let kind = match Kind::try_from(update.r#type) {
            Ok(Kind::Unspecified) | Err(_) => {
                return Err(EntityError::invalid(format!(
                    "unknown update type {}: expected INSERT, MODIFY or DELETE",
                    update.r#type
                )));
            }
            Ok(kind) => kind,
        };
        match entity_of(update.entity.as_ref())? {
            Message::TableEntry(entry) => self.decode_table_update(kind, entry),
            Message::ActionProfileMember(member) => {
                self.decode_member_update(kind, member).map(Update::Member)
            }
            Message::ActionProfileGroup(group) => self.decode_group_update(kind, group).map(Update::Group),
            Message::CounterEntry(counter) => {
                modify_only(kind, "a counter")?;
                self.decode_counter_update(counter)
            }
            Message::DirectCounterEntry(counter) => {
                modify_only(kind, "a direct counter")?;
                self.decode_direct_counter_update(counter)
            }
            Message::MeterEntry(meter) => {
                modify_only(kind, "a meter")?;
                self.decode_meter_update(meter)
            }
            Message::DirectMeterEntry(meter) => {
                modify_only(kind, "a direct meter")?;
                self.decode_direct_meter_update(meter)
            }
            Message::RegisterEntry(register) => {
                modify_only(kind, "a register")?;
                self.decode_register_update(register)
            }
            Message::ValueSetEntry(set) => {
                modify_only(kind, "a value set")?;
                self.decode_value_set(set)
                    .map(|(id, members)| Update::ValueSet { id, members })
            }
            Message::DigestEntry(digest) => self.decode_digest_update(kind, digest).map(Update::Digest),
            Message::PacketReplicationEngineEntry(entry) => match &entry.r#type {
                Some(Replication::MulticastGroupEntry(group)) => self
                    .decode_multicast_update(kind, group)
                    .map(Update::MulticastGroup),
                Some(Replication::CloneSessionEntry(session)) => {
                    self.decode_clone_update(kind, session).map(Update::CloneSession)
                }
                None => Err(EntityError::invalid(
                    "packet replication entry is neither a multicast group nor a clone session",
                )),
            },
            Message::ExternEntry(_) => Err(no_externs()),
        }
    }

    /// Encodes an update.
    pub fn encode_update(&self, update: &Update) -> v1::Update {
        let (kind, message) = match update {
            Update::TableEntry(change) => match &**change {
                Change::Insert(entry) => (Kind::Insert, Message::TableEntry(self.encode_entry(entry))),
                Change::Modify(entry) => (Kind::Modify, Message::TableEntry(self.encode_entry(entry))),
                Change::Delete(key) => (Kind::Delete, Message::TableEntry(self.encode_key(key))),
            },
            Update::DefaultEntry(entry) => (Kind::Modify, Message::TableEntry(self.encode_default(entry))),
            Update::Member(change) => {
                let (kind, member) = self.encode_member_update(change);
                (kind, Message::ActionProfileMember(member))
            }
            Update::Group(change) => {
                let (kind, group) = self.encode_group_update(change);
                (kind, Message::ActionProfileGroup(group))
            }
            Update::Counter { id, index, data } => (Kind::Modify, cells::counter_message(*id, *index, *data)),
            Update::DirectCounter { entry, data } => {
                (Kind::Modify, self.direct_counter_message(entry, *data))
            }
            Update::Meter {
                id,
                index,
                config,
                reset_counters,
            } => (
                Kind::Modify,
                cells::meter_message(*id, *index, *config, reset_counters.then(Default::default)),
            ),
            Update::DirectMeter {
                entry,
                config,
                reset_counters,
            } => (
                Kind::Modify,
                self.direct_meter_message(entry, *config, reset_counters.then(Default::default)),
            ),
            Update::Register { id, index, data } => (Kind::Modify, self.register_message(*id, *index, data)),
            Update::MulticastGroup(change) => {
                let (kind, group) = replication::encode_multicast_update(change);
                (
                    kind,
                    replication::message(Replication::MulticastGroupEntry(group)),
                )
            }
            Update::CloneSession(change) => {
                let (kind, session) = replication::encode_clone_update(change);
                (
                    kind,
                    replication::message(Replication::CloneSessionEntry(session)),
                )
            }
            Update::ValueSet { id, members } => (Kind::Modify, self.value_set_message(*id, members)),
            Update::Digest(change) => sets::encode_digest_update(change),
        };
        v1::Update {
            r#type: kind.into(),
            entity: Some(v1::Entity {
                entity: Some(message),
            }),
        }
    }

    /// Encodes an entity for a read response.
    pub fn encode_entity(&self, entity: &Entity) -> v1::Entity {
        let message = match entity {
            Entity::TableEntry(entry) => Message::TableEntry(self.encode_entry(entry)),
            Entity::DefaultEntry(entry) => Message::TableEntry(self.encode_default(entry)),
            Entity::Member(member) => Message::ActionProfileMember(self.encode_member(member)),
            Entity::Group(group) => Message::ActionProfileGroup(self.encode_group(group)),
            Entity::Counter { id, index, data } => cells::counter_message(*id, Some(*index), Some(*data)),
            Entity::DirectCounter { entry, data } => self.direct_counter_message(entry, Some(*data)),
            Entity::Meter {
                id,
                index,
                config,
                counters,
            } => cells::meter_message(*id, Some(*index), *config, *counters),
            Entity::DirectMeter {
                entry,
                config,
                counters,
            } => self.direct_meter_message(entry, *config, *counters),
            Entity::Register { id, index, data } => self.register_message(*id, Some(*index), data),
            Entity::MulticastGroup(group) => replication::message(Replication::MulticastGroupEntry(
                replication::encode_multicast(group),
            )),
            Entity::CloneSession(session) => {
                replication::message(Replication::CloneSessionEntry(replication::encode_clone(session)))
            }
            Entity::ValueSet { id, members } => self.value_set_message(*id, members),
            Entity::Digest(digest) => sets::digest_message(digest.id, Some(digest.config)),
        };
        v1::Entity {
            entity: Some(message),
        }
    }

    /// Decodes an entity of a read response.
    pub fn decode_entity(&self, entity: &v1::Entity) -> Result<Entity, EntityError> {
        match entity_of(Some(entity))? {
            Message::TableEntry(entry) => self.decode_read_entry(entry),
            Message::ActionProfileMember(member) => self.decode_member(member).map(Entity::Member),
            Message::ActionProfileGroup(group) => self.decode_group(group).map(Entity::Group),
            Message::CounterEntry(counter) => self.decode_counter(counter),
            Message::DirectCounterEntry(counter) => self.decode_direct_counter(counter),
            Message::MeterEntry(meter) => self.decode_meter(meter),
            Message::DirectMeterEntry(meter) => self.decode_direct_meter(meter),
            Message::RegisterEntry(register) => self.decode_register(register),
            Message::ValueSetEntry(set) => self
                .decode_value_set(set)
                .map(|(id, members)| Entity::ValueSet { id, members }),
            Message::DigestEntry(digest) => self.decode_digest(digest).map(Entity::Digest),
            Message::PacketReplicationEngineEntry(entry) => match &entry.r#type {
                Some(Replication::MulticastGroupEntry(group)) => {
                    replication::decode_multicast(group).map(Entity::MulticastGroup)
                }
                Some(Replication::CloneSessionEntry(session)) => {
                    replication::decode_clone(session).map(Entity::CloneSession)
                }
                None => Err(EntityError::invalid(
                    "packet replication entry is neither a multicast group nor a clone session",
                )),
            },
            Message::ExternEntry(_) => Err(no_externs()),
        }
    }
}

fn entity_of(entity: Option<&v1::Entity>) -> Result<&Message, EntityError> {
    entity.and_then(|entity| entity.entity.as_ref()).ok_or_else(|| {
        EntityError::invalid("entity is missing or of a kind that P4Runtime 1.5 does not define")
    })
}

fn modify_only(kind: Kind, entity: &str) -> Result<(), EntityError> {
    match kind {
        Kind::Modify => Ok(()),
        _ => Err(EntityError::invalid(format!(
            "{entity} can only be modified: it exists as long as its program"
        ))),
    }
}

fn no_externs() -> EntityError {
    EntityError::unimplemented("extern entries are not supported: v1model defines no P4Runtime extern")
}

/// Converts a signed number of a message that must not be negative.
fn unsigned(value: i64, field: &str) -> Result<u64, EntityError> {
    u64::try_from(value)
        .map_err(|_| EntityError::invalid(format!("{field} is {value}: it must not be negative")))
}

/// Like [`unsigned`], for 32 bits.
fn unsigned32(value: i32, field: &str) -> Result<u32, EntityError> {
    u32::try_from(value)
        .map_err(|_| EntityError::invalid(format!("{field} is {value}: it must not be negative")))
}

/// Converts a number for a signed field; saturates at the maximum.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Converts an id that the client chooses. Zero is invalid: it means "all" in reads.
fn nonzero_id<I: From<u32>>(id: u32, field: &str) -> Result<I, EntityError> {
    if id == 0 {
        Err(EntityError::invalid(format!("{field} must not be 0")))
    } else {
        Ok(id.into())
    }
}

fn unknown_id(kind: &str, id: u32) -> EntityError {
    EntityError::invalid(format!("unknown {kind}: the program has none with id {id}"))
}
