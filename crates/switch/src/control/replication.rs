//! Writing multicast groups, clone sessions, value sets and digests.

use std::collections::BTreeSet;
use std::sync::Arc;

use linewarden_p4runtime::entity::{
    Change, CloneSession, Digest, FieldMatch, MulticastGroup, Replica as NamedReplica,
};
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::ids as named;
use num_bigint::BigUint;

use super::book::Shelf;
use super::values::{join, number};
use super::writing::{Writing, Written, bound};
use crate::forwarding::{ForwardingOp, MirrorSession, Replica};
use crate::ports::PORT_IDS;

/// Programs name groups and sessions with 16 bits.
const ID_MAX: u32 = u16::MAX as u32;
/// Multicast groups that no program can name: the copies of clone sessions, by the session's number.
const CLONES: u32 = ID_MAX + 1;

fn fits(id: u32, what: &str) -> Written {
    if id <= ID_MAX {
        return Ok(());
    }
    Err(EntityError::invalid(format!(
        "{what} {id}: programs name them with 16 bits, so {ID_MAX} is the highest"
    )))
}

fn copies(replicas: &[NamedReplica]) -> Result<Vec<Replica>, EntityError> {
    let copy = |replica: &NamedReplica| {
        if !replica.backups.is_empty() {
            return Err(EntityError::unimplemented(
                "ports are not watched here: leave backup_replicas out",
            ));
        }
        let port = replica.port.number;
        if port as usize >= PORT_IDS {
            return Err(EntityError::invalid(format!(
                "port {port}: ports have 9 bits in v1model"
            )));
        }
        let rid = u16::try_from(replica.instance).map_err(|_| {
            EntityError::invalid(format!(
                "instance {}: egress_rid has 16 bits in v1model",
                replica.instance
            ))
        })?;
        Ok(Replica { rid, port })
    };
    let mut copies = replicas.iter().map(copy).collect::<Result<Vec<_>, _>>()?;
    // P4Runtime gives replicas no order, and evidence measures none: there must be none that packets see.
    copies.sort_unstable();
    Ok(copies)
}

/// Whether a change fits what is there: what is inserted is not, what is modified or deleted is.
fn check<K: Ord + Clone, V>(shelf: &Shelf<K, V>, key: &K, inserts: bool, what: &str) -> Written {
    match (shelf.get(key), inserts) {
        (Some(_), true) => Err(EntityError::already_exists(format!("{what} is there already"))),
        (None, false) => Err(EntityError::not_found(format!("there is no {what}"))),
        _ => Ok(()),
    }
}

impl Writing<'_, '_> {
    pub(super) fn multicast_group(
        &mut self,
        change: &Change<MulticastGroup, named::MulticastGroupId>,
    ) -> Written {
        let (id, group) = match change {
            Change::Insert(group) | Change::Modify(group) => (group.id, Some(group)),
            Change::Delete(id) => (*id, None),
        };
        let what = format!("multicast group {id}");
        check(
            &self.book.multicast,
            &id,
            matches!(change, Change::Insert(_)),
            &what,
        )?;
        fits(id.0, "multicast group")?;
        let replicas = group.map(|group| copies(&group.replicas)).transpose()?;
        self.change(ForwardingOp::Group(id.0, replicas.map(Arc::from)))?;
        self.book.multicast.set(id, group.cloned());
        Ok(())
    }

    /// One copy with instance 0 needs no group. There are no queues that a class of service could mean.
    pub(super) fn clone_session(&mut self, change: &Change<CloneSession, named::CloneSessionId>) -> Written {
        let (id, session) = match change {
            Change::Insert(session) | Change::Modify(session) => (session.id, Some(session)),
            Change::Delete(id) => (*id, None),
        };
        let what = format!("clone session {id}");
        check(&self.book.clones, &id, matches!(change, Change::Insert(_)), &what)?;
        fits(id.0, "clone session")?;
        let replicas = session
            .map(|session| copies(&session.replicas))
            .transpose()?
            .unwrap_or_default();
        let hidden = CLONES + id.0;
        let (port, group) = match replicas.as_slice() {
            [] => (None, None),
            [Replica { rid: 0, port }] => (Some(*port), None),
            _ => (None, Some(hidden)),
        };
        let had_group = self.batch.state().group(hidden).is_some();
        if group.is_some() || had_group {
            let copies = group.map(|_| Arc::from(replicas));
            self.change(ForwardingOp::Group(hidden, copies))?;
        }
        let mirror = session.map(|session| MirrorSession {
            port,
            group,
            bytes_max: session.packet_length_bytes,
        });
        self.change(ForwardingOp::Mirror(id.0, mirror))?;
        self.book.clones.set(id, session.cloned());
        Ok(())
    }

    pub(super) fn value_set(&mut self, id: named::ValueSetId, members: &[Vec<FieldMatch>]) -> Written {
        let bound_set = bound(self.binding.value_sets.get(&id))?;
        let size = self.binding.info.value_sets().get(id).map_or(0, |set| set.size);
        if members.len() as u64 > size {
            return Err(EntityError::exhausted(format!(
                "{} members; the value set takes {size}",
                members.len()
            )));
        }
        let mut packed = BTreeSet::new();
        for member in members {
            let exact = |field: &FieldMatch| match field {
                FieldMatch::Exact(value) => Ok(number(value)),
                _ => Err(EntityError::unimplemented(
                    "value sets are matched exactly here: their members have values only",
                )),
            };
            let numbers: Vec<BigUint> = member.iter().map(exact).collect::<Result<_, _>>()?;
            packed.insert(join(bound_set.widths.iter().copied().zip(&numbers)));
        }
        self.change(ForwardingOp::ValueSet(bound_set.id, Arc::new(packed)))?;
        Ok(())
    }

    /// Programs tell them always; whether and how they are sent on is the server's.
    pub(super) fn digest(&mut self, change: &Change<Digest, named::DigestId>) -> Written {
        let (id, digest) = match change {
            Change::Insert(digest) | Change::Modify(digest) => (digest.id, Some(digest)),
            Change::Delete(id) => (*id, None),
        };
        let what = format!("digest {id}");
        check(
            &self.book.digests,
            &id,
            matches!(change, Change::Insert(_)),
            &what,
        )?;
        self.book.digests.set(id, digest.copied());
        Ok(())
    }
}
