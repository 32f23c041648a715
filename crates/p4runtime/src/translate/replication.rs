//! Multicast groups and clone sessions (9.5).

use std::collections::BTreeSet;

use super::action::{decode_port, encode_port};
use super::{Translator, nonzero_id, unsigned32};
use crate::entity::{Change, CloneSession, MulticastGroup, Port, Replica};
use crate::error::EntityError;
use crate::ids::{CloneSessionId, MulticastGroupId};
use crate::proto::v1;
use v1::entity::Entity as Message;
use v1::packet_replication_engine_entry::Type as Replication;
use v1::replica::PortKind;
use v1::update::Type as Kind;

impl Translator<'_> {
    pub(super) fn decode_multicast_update(
        &self,
        kind: Kind,
        message: &v1::MulticastGroupEntry,
    ) -> Result<Change<MulticastGroup, MulticastGroupId>, EntityError> {
        match kind {
            Kind::Delete => nonzero_id(message.multicast_group_id, "multicast_group_id").map(Change::Delete),
            Kind::Insert => decode_multicast(message).map(Change::Insert),
            _ => decode_multicast(message).map(Change::Modify),
        }
    }

    pub(super) fn decode_clone_update(
        &self,
        kind: Kind,
        message: &v1::CloneSessionEntry,
    ) -> Result<Change<CloneSession, CloneSessionId>, EntityError> {
        match kind {
            Kind::Delete => nonzero_id(message.session_id, "session_id").map(Change::Delete),
            Kind::Insert => decode_clone(message).map(Change::Insert),
            _ => decode_clone(message).map(Change::Modify),
        }
    }
}

pub(super) fn decode_multicast(message: &v1::MulticastGroupEntry) -> Result<MulticastGroup, EntityError> {
    let id: MulticastGroupId = nonzero_id(message.multicast_group_id, "multicast_group_id")?;
    let replicas =
        decode_replicas(&message.replicas).map_err(|error| error.at(format!("multicast group {id}")))?;
    let mut pairs = BTreeSet::new();
    for replica in &replicas {
        let preferred = (replica.port.number, replica.instance);
        for (port, instance) in std::iter::once(&preferred).chain(&replica.backups) {
            if !pairs.insert((*port, *instance)) {
                return Err(EntityError::invalid(format!(
                    "multicast group {id}: duplicate replica with port {port} and instance {instance}"
                )));
            }
        }
    }
    Ok(MulticastGroup {
        id,
        replicas,
        metadata: message.metadata.clone(),
    })
}

pub(super) fn encode_multicast(group: &MulticastGroup) -> v1::MulticastGroupEntry {
    v1::MulticastGroupEntry {
        multicast_group_id: group.id.0,
        replicas: group.replicas.iter().map(encode_replica).collect(),
        metadata: group.metadata.clone(),
    }
}

pub(super) fn encode_multicast_update(
    change: &Change<MulticastGroup, MulticastGroupId>,
) -> (Kind, v1::MulticastGroupEntry) {
    match change {
        Change::Insert(group) => (Kind::Insert, encode_multicast(group)),
        Change::Modify(group) => (Kind::Modify, encode_multicast(group)),
        Change::Delete(id) => (
            Kind::Delete,
            v1::MulticastGroupEntry {
                multicast_group_id: id.0,
                ..Default::default()
            },
        ),
    }
}

pub(super) fn decode_clone(message: &v1::CloneSessionEntry) -> Result<CloneSession, EntityError> {
    let id: CloneSessionId = nonzero_id(message.session_id, "session_id")?;
    let at_session = |error: EntityError| error.at(format!("clone session {id}"));
    Ok(CloneSession {
        id,
        replicas: decode_replicas(&message.replicas).map_err(at_session)?,
        class_of_service: message.class_of_service,
        packet_length_bytes: unsigned32(message.packet_length_bytes, "packet_length_bytes")
            .map_err(at_session)?,
    })
}

pub(super) fn encode_clone(session: &CloneSession) -> v1::CloneSessionEntry {
    v1::CloneSessionEntry {
        session_id: session.id.0,
        replicas: session.replicas.iter().map(encode_replica).collect(),
        class_of_service: session.class_of_service,
        packet_length_bytes: i32::try_from(session.packet_length_bytes).unwrap_or(i32::MAX),
    }
}

pub(super) fn encode_clone_update(
    change: &Change<CloneSession, CloneSessionId>,
) -> (Kind, v1::CloneSessionEntry) {
    match change {
        Change::Insert(session) => (Kind::Insert, encode_clone(session)),
        Change::Modify(session) => (Kind::Modify, encode_clone(session)),
        Change::Delete(id) => (
            Kind::Delete,
            v1::CloneSessionEntry {
                session_id: id.0,
                ..Default::default()
            },
        ),
    }
}

pub(super) fn message(entry: Replication) -> Message {
    Message::PacketReplicationEngineEntry(v1::PacketReplicationEngineEntry { r#type: Some(entry) })
}

fn decode_replicas(replicas: &[v1::Replica]) -> Result<Vec<Replica>, EntityError> {
    replicas
        .iter()
        .enumerate()
        .map(|(index, replica)| decode_replica(replica).map_err(|error| error.at(format!("replica {index}"))))
        .collect()
}

fn decode_replica(replica: &v1::Replica) -> Result<Replica, EntityError> {
    let port = match &replica.port_kind {
        Some(PortKind::EgressPort(number)) => Port {
            number: *number,
            deprecated_field: true,
        },
        Some(PortKind::Port(string)) => Port {
            number: decode_port(string)?,
            deprecated_field: false,
        },
        None => return Err(EntityError::invalid("port is missing")),
    };
    let backups = replica
        .backup_replicas
        .iter()
        .map(|backup| Ok((decode_port(&backup.port)?, backup.instance)));
    let backups = backups.collect::<Result<Vec<_>, EntityError>>()?;
    if backups.iter().any(|(backup, _)| *backup == port.number) {
        return Err(EntityError::invalid(format!(
            "port {} is listed as its own backup",
            port.number
        )));
    }
    Ok(Replica {
        port,
        instance: replica.instance,
        backups,
    })
}

fn encode_replica(replica: &Replica) -> v1::Replica {
    let backup = |(port, instance): &(u32, u32)| v1::BackupReplica {
        port: encode_port(*port),
        instance: *instance,
    };
    v1::Replica {
        port_kind: Some(match replica.port.deprecated_field {
            true => PortKind::EgressPort(replica.port.number),
            false => PortKind::Port(encode_port(replica.port.number)),
        }),
        instance: replica.instance,
        backup_replicas: replica.backups.iter().map(backup).collect(),
    }
}
