//! Between P4Runtime's messages and checked values: everything that P4Info alone can judge.
//!
//! Both ends use it. A server decodes updates and questions, which come from anybody, and encodes what was
//! read; a client encodes updates and questions, and decodes what was read. What is encoded is canonical:
//! shortest byte strings, keys in P4Info's order, fields that take any value left out.
#![allow(
    deprecated,
    reason = "fields that P4Runtime 1.4 deprecated are taken, and given back where they were used"
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

/// Translates what one program's P4Info names.
#[derive(Clone, Copy, Debug)]
pub struct Translator<'a> {
    info: &'a P4Info,
}

impl<'a> Translator<'a> {
    /// For this program.
    pub fn new(info: &'a P4Info) -> Self {
        Self { info }
    }

    /// An update of a write request.
    pub fn decode_update(&self, update: &v1::Update) -> Result<Update, EntityError> {
        let kind = match Kind::try_from(update.r#type) {
            Ok(Kind::Unspecified) | Err(_) => {
                return Err(EntityError::invalid(format!(
                    "update type {} is none of INSERT, MODIFY, DELETE",
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
                    "it is neither a multicast group nor a clone session",
                )),
            },
            Message::ExternEntry(_) => Err(no_externs()),
        }
    }

    /// An update as a message.
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

    /// Something that was read, as a message.
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

    /// Something that a server has answered.
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
                    "it is neither a multicast group nor a clone session",
                )),
            },
            Message::ExternEntry(_) => Err(no_externs()),
        }
    }
}

fn entity_of(entity: Option<&v1::Entity>) -> Result<&Message, EntityError> {
    entity.and_then(|entity| entity.entity.as_ref()).ok_or_else(|| {
        EntityError::invalid("no entity is given, or one of a kind that P4Runtime 1.5 has not")
    })
}

fn modify_only(kind: Kind, what: &str) -> Result<(), EntityError> {
    match kind {
        Kind::Modify => Ok(()),
        _ => Err(EntityError::invalid(format!(
            "{what} is there as long as its program: it can only be modified"
        ))),
    }
}

fn no_externs() -> EntityError {
    EntityError::unimplemented("v1model has no extern of its own that P4Runtime could name")
}

/// A number that a message carries signed and that cannot be negative.
fn unsigned(value: i64, what: &str) -> Result<u64, EntityError> {
    u64::try_from(value)
        .map_err(|_| EntityError::invalid(format!("{what} is {value}; it cannot be negative")))
}

/// The same of 32 bits.
fn unsigned32(value: i32, what: &str) -> Result<u32, EntityError> {
    u32::try_from(value)
        .map_err(|_| EntityError::invalid(format!("{what} is {value}; it cannot be negative")))
}

/// A number for a field that is signed; what does not fit stays at the highest that does.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// An id that a client has chosen, and that is not zero, which means "all" when reading.
fn chosen<I: From<u32>>(id: u32, what: &str) -> Result<I, EntityError> {
    if id == 0 {
        Err(EntityError::invalid(format!("{what} cannot be 0")))
    } else {
        Ok(id.into())
    }
}

fn unknown(kind: &str, id: u32) -> EntityError {
    EntityError::invalid(format!("the program has no {kind} with id {id}"))
}
