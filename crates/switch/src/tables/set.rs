//! All tables and action profiles of a program as one state with consistent references.

use super::entry::{ActionCall, Entry, Target};
use super::hash::HashSeed;
use super::profile::{ActionProfile, ProfileChange, ProfileError, ProfileOp, ProfileSpec};
use super::publish::Replicated;
use super::table::{Table, TableChange, TableError, TableOp, TableSpec};
use std::sync::Arc;
use thiserror::Error;

pub use crate::program::ids::{ProfileId, TableId};

/// Reason to reject an operation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TableSetError {
    /// Error of a table.
    #[error(transparent)]
    Table(#[from] TableError),
    /// Error of an action profile.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The table does not exist.
    #[error("unknown table {0:?}: not found in the program")]
    NoTable(TableId),
    /// The action profile does not exist.
    #[error("unknown action profile {0:?}: not found in the program")]
    NoProfile(ProfileId),
    /// The target group is empty, which BMv2 does not allow.
    #[error("target group of an entry of table {table} is empty: add members first")]
    EmptyGroup {
        /// Table.
        table: String,
    },
}

/// Operation on a table or action profile.
#[derive(Clone, Debug)]
pub enum TableSetOp {
    /// Table.
    Table(TableId, TableOp),
    /// Action profile.
    Profile(ProfileId, ProfileOp),
}

/// Applied change.
#[derive(Clone, Debug)]
pub enum TableSetChange {
    /// Table.
    Table(TableId, TableChange),
    /// Action profile.
    Profile(ProfileId, ProfileChange),
}

#[derive(Clone, Debug)]
struct TableWithProfile {
    table: Table,
    profile: Option<ProfileId>,
}

/// Tables and action profiles of a program.
#[derive(Clone, Debug, Default)]
pub struct TableSet {
    tables: Vec<TableWithProfile>,
    profiles: Vec<ActionProfile>,
}

impl TableSet {
    /// Creates an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an action profile.
    pub fn add_profile(&mut self, spec: Arc<ProfileSpec>) -> ProfileId {
        self.profiles.push(ActionProfile::new(spec));
        ProfileId(self.profiles.len() as u32 - 1)
    }

    /// Adds a table, with its action profile if entries refer to members or groups.
    pub fn add_table(
        &mut self,
        spec: Arc<TableSpec>,
        profile: Option<ProfileId>,
        seed: &HashSeed,
    ) -> TableId {
        self.tables.push(TableWithProfile {
            table: Table::new(spec, seed),
            profile,
        });
        TableId(self.tables.len() as u32 - 1)
    }

    /// Table by id.
    #[inline]
    #[must_use]
    pub fn table(&self, id: TableId) -> Option<&Table> {
        self.tables.get(id.0 as usize).map(|table| &table.table)
    }

    /// Action profile by id.
    #[inline]
    #[must_use]
    pub fn profile(&self, id: ProfileId) -> Option<&ActionProfile> {
        self.profiles.get(id.0 as usize)
    }

    /// Action profile of a table.
    #[must_use]
    pub fn profile_of(&self, id: TableId) -> Option<ProfileId> {
        self.tables.get(id.0 as usize)?.profile
    }

    /// All tables, ordered by id.
    pub fn tables(&self) -> impl Iterator<Item = (TableId, &Table)> {
        self.tables
            .iter()
            .zip(0..)
            .map(|(table, id)| (TableId(id), &table.table))
    }

    /// Resolves a target of a table to an action. `hash` returns the selector's hash over the packet and is called only for
    /// groups. The result is `None` for an empty group: then no action runs, as in BMv2.
    #[inline]
    pub fn resolve<'a>(
        &'a self,
        table: TableId,
        target: &'a Target,
        hash: impl FnOnce() -> u32,
    ) -> Option<&'a ActionCall> {
        if let Target::Action(call) = target {
            return Some(call);
        }
        let profile = self.profile(self.profile_of(table)?)?;
        match target {
            Target::Action(call) => Some(call),
            Target::Member(member) => profile.member(*member),
            Target::Group(group) => profile.member(profile.group(*group)?.choose(hash())?),
        }
    }

    /// Checks that entries of a table may use a target.
    fn check_target(&self, table: &TableWithProfile, target: &Target) -> Result<(), TableSetError> {
        let Some(profile) = table.profile.and_then(|id| self.profile(id)) else {
            return Ok(());
        };
        let name = || profile.spec().name.clone();
        match target {
            Target::Action(_) => Ok(()),
            Target::Member(member) => match profile.member(*member) {
                Some(_) => Ok(()),
                None => Err(ProfileError::NoMember {
                    profile: name(),
                    member: *member,
                }
                .into()),
            },
            Target::Group(group) => match profile.group(*group) {
                None => Err(ProfileError::NoGroup {
                    profile: name(),
                    group: *group,
                }
                .into()),
                Some(group) if group.members().is_empty() => Err(TableSetError::EmptyGroup {
                    table: table.table.spec().name.clone(),
                }),
                Some(_) => Ok(()),
            },
        }
    }

    /// Updates the reference counts after a change of a table, or, if not `forward`, after the undo of the change.
    fn update_references(&mut self, id: TableId, change: &TableChange, forward: bool) {
        let profile = self
            .profile_of(id)
            .and_then(|id| self.profiles.get_mut(id.0 as usize));
        let Some(profile) = profile else { return };
        let target_of = |entry: &'_ Arc<Entry>| Some(entry.target().clone());
        let (before, after) = match change {
            TableChange::Inserted(entry) => (None, target_of(entry)),
            TableChange::Modified(before, after) => (target_of(before), target_of(after)),
            TableChange::Deleted(entry) => (target_of(entry), None),
            TableChange::Default(before, after) => (before.clone(), after.clone()),
            TableChange::Sealed(_) => (None, None),
        };
        before
            .iter()
            .for_each(|target| profile.update_references(target, !forward));
        after
            .iter()
            .for_each(|target| profile.update_references(target, forward));
    }
}

impl Replicated for TableSet {
    type Op = TableSetOp;
    type Change = TableSetChange;
    type Error = TableSetError;

    fn apply(&mut self, op: TableSetOp) -> Result<TableSetChange, TableSetError> {
        match op {
            TableSetOp::Table(id, op) => {
                let table = self.tables.get(id.0 as usize).ok_or(TableSetError::NoTable(id))?;
                match &op {
                    TableOp::Insert(new_entry) => self.check_target(table, &new_entry.target)?,
                    TableOp::Modify(_, target) | TableOp::SetDefault(Some(target)) => {
                        self.check_target(table, target)?;
                    }
                    TableOp::Delete(_) | TableOp::SetDefault(None) | TableOp::Seal => {}
                }
                let table = self
                    .tables
                    .get_mut(id.0 as usize)
                    .ok_or(TableSetError::NoTable(id))?;
                let change = table.table.apply(op)?;
                self.update_references(id, &change, true);
                Ok(TableSetChange::Table(id, change))
            }
            TableSetOp::Profile(id, op) => {
                let profile = self
                    .profiles
                    .get_mut(id.0 as usize)
                    .ok_or(TableSetError::NoProfile(id))?;
                Ok(TableSetChange::Profile(id, profile.apply(op)?))
            }
        }
    }

    fn redo(&mut self, change: &TableSetChange) {
        match change {
            TableSetChange::Table(id, change) => {
                if let Some(table) = self.tables.get_mut(id.0 as usize) {
                    table.table.redo(change);
                }
                self.update_references(*id, change, true);
            }
            TableSetChange::Profile(id, change) => {
                if let Some(profile) = self.profiles.get_mut(id.0 as usize) {
                    profile.redo(change);
                }
            }
        }
    }

    fn undo(&mut self, change: &TableSetChange) {
        match change {
            TableSetChange::Table(id, change) => {
                if let Some(table) = self.tables.get_mut(id.0 as usize) {
                    table.table.undo(change);
                }
                self.update_references(*id, change, false);
            }
            TableSetChange::Profile(id, change) => {
                if let Some(profile) = self.profiles.get_mut(id.0 as usize) {
                    profile.undo(change);
                }
            }
        }
    }
}
