//! Value sets and digests (9.5.3, 9.7).

use super::key::{decode_fields, encode_fields};
use super::{Translator, signed, unknown_id, unsigned, unsigned32};
use crate::entity::{Change, Digest, DigestConfig, FieldMatch};
use crate::error::EntityError;
use crate::ids::{DigestId, ValueSetId};
use crate::p4info::{self, ValueSet};
use crate::proto::v1;
use v1::entity::Entity as Message;
use v1::update::Type as Kind;

impl<'a> Translator<'a> {
    pub(super) fn value_set(&self, id: u32) -> Result<&'a ValueSet, EntityError> {
        self.info
            .value_sets()
            .get(ValueSetId(id))
            .ok_or_else(|| unknown_id("value set", id))
    }

    pub(super) fn digest(&self, id: u32) -> Result<&'a p4info::Digest, EntityError> {
        self.info
            .digests()
            .get(DigestId(id))
            .ok_or_else(|| unknown_id("digest", id))
    }

    /// Decodes a value set with all members.
    pub(super) fn decode_value_set(
        &self,
        message: &v1::ValueSetEntry,
    ) -> Result<(ValueSetId, Vec<Vec<FieldMatch>>), EntityError> {
        let set = self.value_set(message.value_set_id)?;
        let at_set = |error: EntityError| error.at(format!("value set \"{}\"", set.name));
        let member_count = message.members.len();
        if member_count as u64 > set.size {
            return Err(at_set(EntityError::exhausted(format!(
                "too many members: {member_count} given, capacity is {}",
                set.size
            ))));
        }
        let decode = |(index, member): (usize, &v1::ValueSetMember)| {
            decode_fields(&set.fields, &member.r#match)
                .map_err(|error| at_set(error.at(format!("member {index}"))))
        };
        let members = message
            .members
            .iter()
            .enumerate()
            .map(decode)
            .collect::<Result<Vec<_>, _>>()?;
        for (index, member) in members.iter().enumerate() {
            if members.iter().take(index).any(|earlier| earlier == member) {
                return Err(at_set(EntityError::already_exists(format!(
                    "member {index} is a duplicate"
                ))));
            }
        }
        Ok((set.id, members))
    }

    pub(super) fn value_set_message(&self, id: ValueSetId, members: &[Vec<FieldMatch>]) -> Message {
        let fields = self
            .info
            .value_sets()
            .get(id)
            .map(|set| set.fields.as_slice())
            .unwrap_or_default();
        let member = |member: &Vec<FieldMatch>| v1::ValueSetMember {
            r#match: encode_fields(fields, member),
        };
        Message::ValueSetEntry(v1::ValueSetEntry {
            value_set_id: id.0,
            members: members.iter().map(member).collect(),
        })
    }

    pub(super) fn decode_digest_update(
        &self,
        kind: Kind,
        message: &v1::DigestEntry,
    ) -> Result<Change<Digest, DigestId>, EntityError> {
        match kind {
            Kind::Delete => self
                .digest(message.digest_id)
                .map(|digest| Change::Delete(digest.id)),
            Kind::Insert => self.decode_digest(message).map(Change::Insert),
            _ => self.decode_digest(message).map(Change::Modify),
        }
    }

    pub(super) fn decode_digest(&self, message: &v1::DigestEntry) -> Result<Digest, EntityError> {
        let digest = self.digest(message.digest_id)?;
        let decode = || {
            let config = message
                .config
                .as_ref()
                .ok_or_else(|| EntityError::invalid("config is missing"))?;
            Ok(DigestConfig {
                max_timeout_ns: unsigned(config.max_timeout_ns, "max_timeout_ns")?,
                max_list_size: unsigned32(config.max_list_size, "max_list_size")?,
                ack_timeout_ns: unsigned(config.ack_timeout_ns, "ack_timeout_ns")?,
            })
        };
        let config =
            decode().map_err(|error: EntityError| error.at(format!("digest \"{}\"", digest.name)))?;
        Ok(Digest {
            id: digest.id,
            config,
        })
    }
}

pub(super) fn digest_message(id: DigestId, config: Option<DigestConfig>) -> Message {
    let config = config.map(|config| v1::digest_entry::Config {
        max_timeout_ns: signed(config.max_timeout_ns),
        max_list_size: i32::try_from(config.max_list_size).unwrap_or(i32::MAX),
        ack_timeout_ns: signed(config.ack_timeout_ns),
    });
    Message::DigestEntry(v1::DigestEntry {
        digest_id: id.0,
        config,
    })
}

pub(super) fn encode_digest_update(change: &Change<Digest, DigestId>) -> (Kind, Message) {
    match change {
        Change::Insert(digest) => (Kind::Insert, digest_message(digest.id, Some(digest.config))),
        Change::Modify(digest) => (Kind::Modify, digest_message(digest.id, Some(digest.config))),
        Change::Delete(id) => (Kind::Delete, digest_message(*id, None)),
    }
}
