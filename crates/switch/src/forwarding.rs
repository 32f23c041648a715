//! Forwarding state: tables, multicast groups, clone sessions and value sets. The control plane writes the state; packet
//! processing only reads the state.
//!
//! The state changes in batches (see [`Publisher`](crate::tables::Publisher)): a packet observes a batch completely or
//! not at all.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::program::ids::ValueSetId;
use crate::tables::{Replicated, TableSet, TableSetChange, TableSetError, TableSetOp};

/// Replica of a multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Replica {
    /// `egress_rid` of the replica.
    pub rid: u16,
    /// Egress port.
    pub port: u32,
}

/// Clone session (mirroring session of simple_switch): destination of clones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloneSession {
    /// Port that receives a clone, if any.
    pub port: Option<u32>,
    /// Multicast group whose replicas are clones, if any.
    pub group: Option<u32>,
    /// Maximum length of a clone, bytes; 0 for no truncation.
    pub bytes_max: u32,
}

/// Members of a value set: the parts of a key concatenated without padding, right-aligned in whole bytes.
pub type ValueSetMembers = BTreeSet<Vec<u8>>;

/// Operation on the forwarding state.
#[derive(Clone, Debug)]
pub enum ForwardingOp {
    /// Tables and action profiles.
    Tables(TableSetOp),
    /// Sets a multicast group; `None` removes the group.
    Group(u32, Option<Arc<[Replica]>>),
    /// Sets a clone session; `None` removes the session.
    CloneSession(u32, Option<CloneSession>),
    /// Sets the members of a value set.
    ValueSet(ValueSetId, Arc<ValueSetMembers>),
}

/// Applied change: the changed object with its old and new value.
#[derive(Clone, Debug)]
pub enum ForwardingChange {
    /// Tables and action profiles.
    Tables(TableSetChange),
    /// Multicast group.
    Group(u32, Option<Arc<[Replica]>>, Option<Arc<[Replica]>>),
    /// Clone session.
    CloneSession(u32, Option<CloneSession>, Option<CloneSession>),
    /// Value set.
    ValueSet(ValueSetId, Arc<ValueSetMembers>, Arc<ValueSetMembers>),
}

/// Reason to reject an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForwardingError {
    /// Error of tables or action profiles.
    #[error(transparent)]
    Tables(#[from] TableSetError),
    /// The value set does not exist.
    #[error("unknown value set {0:?}: not found in the program")]
    NoValueSet(ValueSetId),
}

/// Forwarding state.
#[derive(Clone, Debug, Default)]
pub struct Forwarding {
    tables: TableSet,
    groups: HashMap<u32, Arc<[Replica]>>,
    clone_sessions: HashMap<u32, CloneSession>,
    value_sets: Vec<Arc<ValueSetMembers>>,
}

impl Forwarding {
    /// Creates a state with these tables and this number of empty value sets.
    #[must_use]
    pub fn new(tables: TableSet, value_sets: usize) -> Self {
        Self {
            tables,
            groups: HashMap::new(),
            clone_sessions: HashMap::new(),
            value_sets: vec![Arc::default(); value_sets],
        }
    }

    /// Tables and action profiles.
    #[inline]
    #[must_use]
    pub fn tables(&self) -> &TableSet {
        &self.tables
    }

    /// Replicas of a multicast group; `None` if the group does not exist.
    #[must_use]
    pub fn group(&self, group: u32) -> Option<&Arc<[Replica]>> {
        self.groups.get(&group)
    }

    /// All multicast groups.
    pub fn groups(&self) -> impl Iterator<Item = (u32, &Arc<[Replica]>)> {
        self.groups.iter().map(|(id, replicas)| (*id, replicas))
    }

    /// Clone session by id.
    #[must_use]
    pub fn clone_session(&self, session: u32) -> Option<CloneSession> {
        self.clone_sessions.get(&session).copied()
    }

    /// All clone sessions.
    pub fn clone_sessions(&self) -> impl Iterator<Item = (u32, CloneSession)> {
        self.clone_sessions.iter().map(|(id, session)| (*id, *session))
    }

    /// Members of a value set.
    #[must_use]
    pub fn value_set(&self, id: ValueSetId) -> Option<&Arc<ValueSetMembers>> {
        self.value_sets.get(id.index())
    }

    fn set_group(&mut self, id: u32, replicas: Option<Arc<[Replica]>>) -> Option<Arc<[Replica]>> {
        match replicas {
            Some(replicas) => self.groups.insert(id, replicas),
            None => self.groups.remove(&id),
        }
    }

    fn set_clone_session(&mut self, id: u32, session: Option<CloneSession>) -> Option<CloneSession> {
        match session {
            Some(session) => self.clone_sessions.insert(id, session),
            None => self.clone_sessions.remove(&id),
        }
    }

    fn set_value_set(&mut self, id: ValueSetId, members: &Arc<ValueSetMembers>) {
        if let Some(value_set) = self.value_sets.get_mut(id.index()) {
            *value_set = Arc::clone(members);
        }
    }
}

impl Replicated for Forwarding {
    type Op = ForwardingOp;
    type Change = ForwardingChange;
    type Error = ForwardingError;

    fn apply(&mut self, op: ForwardingOp) -> Result<ForwardingChange, ForwardingError> {
        Ok(match op {
            ForwardingOp::Tables(op) => ForwardingChange::Tables(self.tables.apply(op)?),
            ForwardingOp::Group(id, new) => {
                let old = self.set_group(id, new.clone());
                ForwardingChange::Group(id, old, new)
            }
            ForwardingOp::CloneSession(id, new) => {
                let old = self.set_clone_session(id, new);
                ForwardingChange::CloneSession(id, old, new)
            }
            ForwardingOp::ValueSet(id, new) => {
                let old = self
                    .value_set(id)
                    .cloned()
                    .ok_or(ForwardingError::NoValueSet(id))?;
                self.set_value_set(id, &new);
                ForwardingChange::ValueSet(id, old, new)
            }
        })
    }

    fn redo(&mut self, change: &ForwardingChange) {
        match change {
            ForwardingChange::Tables(change) => self.tables.redo(change),
            ForwardingChange::Group(id, _, new) => {
                self.set_group(*id, new.clone());
            }
            ForwardingChange::CloneSession(id, _, new) => {
                self.set_clone_session(*id, *new);
            }
            ForwardingChange::ValueSet(id, _, new) => self.set_value_set(*id, new),
        }
    }

    fn undo(&mut self, change: &ForwardingChange) {
        match change {
            ForwardingChange::Tables(change) => self.tables.undo(change),
            ForwardingChange::Group(id, old, _) => {
                self.set_group(*id, old.clone());
            }
            ForwardingChange::CloneSession(id, old, _) => {
                self.set_clone_session(*id, *old);
            }
            ForwardingChange::ValueSet(id, old, _) => self.set_value_set(*id, old),
        }
    }
}
