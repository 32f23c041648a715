//! Writes of multicast groups, clone sessions, value sets and digests.

use std::collections::BTreeSet;
use std::sync::Arc;

use linewarden_p4runtime::entity::{
    Change, CloneSession as P4rtSession, Digest, FieldMatch, MulticastGroup, Replica as P4rtReplica,
};
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::ids as p4rt_ids;
use num_bigint::BigUint;

use super::controller_state::UndoMap;
use super::values::{join, number};
use super::write::{BatchWriter, UpdateResult, require_bound};
use crate::forwarding::{CloneSession, ForwardingOp, Replica};
use crate::ports::PORT_IDS;

/// Highest id of groups and sessions: programs use 16 bits.
const ID_MAX: u32 = u16::MAX as u32;
/// Offset between the id of a clone session and the id of the internal multicast group with the replicas of the session.
/// The program cannot select an internal group, because its id has more than 16 bits.
const CLONE_GROUP_OFFSET: u32 = ID_MAX + 1;

fn check_id(id: u32, object: &str) -> UpdateResult {
    if id <= ID_MAX {
        return Ok(());
    }
    Err(EntityError::invalid(format!(
        "{object} id {id} is out of range: the maximum is {ID_MAX} (16 bits in v1model)"
    )))
}

fn to_replicas(replicas: &[P4rtReplica]) -> Result<Vec<Replica>, EntityError> {
    let to_replica = |replica: &P4rtReplica| {
        if !replica.backups.is_empty() {
            return Err(EntityError::unimplemented(
                "backup replicas are not supported: omit backup_replicas",
            ));
        }
        let port = replica.port.number;
        if port as usize >= PORT_IDS {
            return Err(EntityError::invalid(format!(
                "port {port} is out of range: v1model ports have 9 bits"
            )));
        }
        let rid = u16::try_from(replica.instance).map_err(|_| {
            EntityError::invalid(format!(
                "instance {} is out of range: egress_rid has 16 bits in v1model",
                replica.instance
            ))
        })?;
        Ok(Replica { rid, port })
    };
    let mut converted = replicas.iter().map(to_replica).collect::<Result<Vec<_>, _>>()?;
    // P4Runtime defines no order of replicas, and evidence measures no order. Sorted replicas leave in an order that does
    // not depend on the message.
    converted.sort_unstable();
    Ok(converted)
}

/// Checks that an entity to insert does not exist, and that an entity to modify or delete exists.
fn check_presence<K: Ord + Clone, V>(
    map: &UndoMap<K, V>,
    key: &K,
    is_insert: bool,
    object: &str,
) -> UpdateResult {
    match (map.get(key), is_insert) {
        (Some(_), true) => Err(EntityError::already_exists(format!("{object} exists"))),
        (None, false) => Err(EntityError::not_found(format!("{object} not found"))),
        _ => Ok(()),
    }
}

impl BatchWriter<'_, '_> {
    pub(super) fn multicast_group(
        &mut self,
        change: &Change<MulticastGroup, p4rt_ids::MulticastGroupId>,
    ) -> UpdateResult {
        let (id, group) = match change {
            Change::Insert(group) | Change::Modify(group) => (group.id, Some(group)),
            Change::Delete(id) => (*id, None),
        };
        let object = format!("multicast group {id}");
        check_presence(
            &self.controller_state.multicast_groups,
            &id,
            matches!(change, Change::Insert(_)),
            &object,
        )?;
        check_id(id.0, "multicast group")?;
        let replicas = group.map(|group| to_replicas(&group.replicas)).transpose()?;
        self.apply_op(ForwardingOp::Group(id.0, replicas.map(Arc::from)))?;
        self.controller_state.multicast_groups.set(id, group.cloned());
        Ok(())
    }

    /// Sets or deletes a clone session. A single replica with instance 0 needs no group. The class of service is ignored:
    /// the switch has no queues for classes.
    pub(super) fn clone_session(
        &mut self,
        change: &Change<P4rtSession, p4rt_ids::CloneSessionId>,
    ) -> UpdateResult {
        let (id, session) = match change {
            Change::Insert(session) | Change::Modify(session) => (session.id, Some(session)),
            Change::Delete(id) => (*id, None),
        };
        let object = format!("clone session {id}");
        check_presence(
            &self.controller_state.clone_sessions,
            &id,
            matches!(change, Change::Insert(_)),
            &object,
        )?;
        check_id(id.0, "clone session")?;
        let replicas = session
            .map(|session| to_replicas(&session.replicas))
            .transpose()?
            .unwrap_or_default();
        let group_id = CLONE_GROUP_OFFSET + id.0;
        let (port, group) = match replicas.as_slice() {
            [] => (None, None),
            [Replica { rid: 0, port }] => (Some(*port), None),
            _ => (None, Some(group_id)),
        };
        let had_group = self.batch.state().group(group_id).is_some();
        if group.is_some() || had_group {
            let group_replicas = group.map(|_| Arc::from(replicas));
            self.apply_op(ForwardingOp::Group(group_id, group_replicas))?;
        }
        let forwarding_session = session.map(|session| CloneSession {
            port,
            group,
            bytes_max: session.packet_length_bytes,
        });
        self.apply_op(ForwardingOp::CloneSession(id.0, forwarding_session))?;
        self.controller_state.clone_sessions.set(id, session.cloned());
        Ok(())
    }

    pub(super) fn value_set(
        &mut self,
        id: p4rt_ids::ValueSetId,
        members: &[Vec<FieldMatch>],
    ) -> UpdateResult {
        let bound_set = require_bound(self.binding.value_sets.get(&id))?;
        let size = self.binding.info.value_sets().get(id).map_or(0, |set| set.size);
        if members.len() as u64 > size {
            return Err(EntityError::exhausted(format!(
                "too many members: {} given, capacity of the value set is {size}",
                members.len()
            )));
        }
        let mut encodings = BTreeSet::new();
        for member in members {
            let exact = |field: &FieldMatch| match field {
                FieldMatch::Exact(value) => Ok(number(value)),
                _ => Err(EntityError::unimplemented(
                    "value sets support exact matches only",
                )),
            };
            let numbers: Vec<BigUint> = member.iter().map(exact).collect::<Result<_, _>>()?;
            encodings.insert(join(bound_set.widths.iter().copied().zip(&numbers)));
        }
        self.apply_op(ForwardingOp::ValueSet(bound_set.id, Arc::new(encodings)))?;
        Ok(())
    }

    /// Sets or deletes the configuration of a digest. Programs always emit digests; the server applies the configuration.
    pub(super) fn digest(&mut self, change: &Change<Digest, p4rt_ids::DigestId>) -> UpdateResult {
        let (id, digest) = match change {
            Change::Insert(digest) | Change::Modify(digest) => (digest.id, Some(digest)),
            Change::Delete(id) => (*id, None),
        };
        let object = format!("digest {id}");
        check_presence(
            &self.controller_state.digest_configs,
            &id,
            matches!(change, Change::Insert(_)),
            &object,
        )?;
        self.controller_state.digest_configs.set(id, digest.copied());
        Ok(())
    }
}
