//! All tables and action profiles of a program as one state, so that references between them hold.

use super::entry::{ActionCall, Entry, Target};
use super::hash::HashSeed;
use super::profile::{ActionProfile, ProfileChange, ProfileError, ProfileOp, ProfileSpec};
use super::publish::Replicated;
use super::table::{Table, TableChange, TableError, TableOp, TableSpec};
use std::sync::Arc;
use thiserror::Error;

pub use crate::program::ids::{ProfileId, TableId};

/// Why a change is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TableSetError {
    /// By the table.
    #[error(transparent)]
    Table(#[from] TableError),
    /// By the action profile.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// No such table.
    #[error("the program has no table {0:?}")]
    NoTable(TableId),
    /// No such action profile.
    #[error("the program has no action profile {0:?}")]
    NoProfile(ProfileId),
    /// An entry may not lead to a group without members, as in BMv2.
    #[error("the group that an entry of table {table} is to lead to is empty: add members to it first")]
    EmptyGroup {
        /// The table.
        table: String,
    },
}

/// A change of one table or action profile.
#[derive(Clone, Debug)]
pub enum TableSetOp {
    /// Of a table.
    Table(TableId, TableOp),
    /// Of an action profile.
    Profile(ProfileId, ProfileOp),
}

/// A change that was made.
#[derive(Clone, Debug)]
pub enum TableSetChange {
    /// Of a table.
    Table(TableId, TableChange),
    /// Of an action profile.
    Profile(ProfileId, ProfileChange),
}

#[derive(Clone, Debug)]
struct Member {
    table: Table,
    profile: Option<ProfileId>,
}

/// The tables and action profiles of a program.
#[derive(Clone, Debug, Default)]
pub struct TableSet {
    tables: Vec<Member>,
    profiles: Vec<ActionProfile>,
}

impl TableSet {
    /// A set without tables.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an action profile.
    pub fn add_profile(&mut self, spec: Arc<ProfileSpec>) -> ProfileId {
        self.profiles.push(ActionProfile::new(spec));
        ProfileId(self.profiles.len() as u32 - 1)
    }

    /// Adds a table; one whose entries lead to members or groups names its action profile.
    pub fn add_table(
        &mut self,
        spec: Arc<TableSpec>,
        profile: Option<ProfileId>,
        seed: &HashSeed,
    ) -> TableId {
        self.tables.push(Member {
            table: Table::new(spec, seed),
            profile,
        });
        TableId(self.tables.len() as u32 - 1)
    }

    /// A table.
    #[inline]
    #[must_use]
    pub fn table(&self, id: TableId) -> Option<&Table> {
        self.tables.get(id.0 as usize).map(|member| &member.table)
    }

    /// An action profile.
    #[inline]
    #[must_use]
    pub fn profile(&self, id: ProfileId) -> Option<&ActionProfile> {
        self.profiles.get(id.0 as usize)
    }

    /// The action profile of a table.
    #[must_use]
    pub fn profile_of(&self, id: TableId) -> Option<ProfileId> {
        self.tables.get(id.0 as usize)?.profile
    }

    /// All tables, in the order of their numbers.
    pub fn tables(&self) -> impl Iterator<Item = (TableId, &Table)> {
        self.tables
            .iter()
            .zip(0..)
            .map(|(member, id)| (TableId(id), &member.table))
    }

    /// The action that a target of a table stands for. `hash` is asked only where a group is to choose, and gives the
    /// selector's hash over the packet. `None` is an empty group: nothing is done then, as in BMv2.
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

    /// Whether a table's entries may lead there now.
    fn check_target(&self, member: &Member, target: &Target) -> Result<(), TableSetError> {
        let Some(profile) = member.profile.and_then(|id| self.profile(id)) else {
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
                    table: member.table.spec().name.clone(),
                }),
                Some(_) => Ok(()),
            },
        }
    }

    /// Moves the references that a change of a table moves, forth or back.
    fn refer(&mut self, id: TableId, change: &TableChange, forward: bool) {
        let profile = self
            .profile_of(id)
            .and_then(|id| self.profiles.get_mut(id.0 as usize));
        let Some(profile) = profile else { return };
        let of = |entry: &'_ Arc<Entry>| Some(entry.target().clone());
        let (before, after) = match change {
            TableChange::Inserted(entry) => (None, of(entry)),
            TableChange::Modified(before, after) => (of(before), of(after)),
            TableChange::Deleted(entry) => (of(entry), None),
            TableChange::Default(before, after) => (before.clone(), after.clone()),
            TableChange::Sealed(_) => (None, None),
        };
        before.iter().for_each(|target| profile.refer(target, !forward));
        after.iter().for_each(|target| profile.refer(target, forward));
    }
}

impl Replicated for TableSet {
    type Op = TableSetOp;
    type Change = TableSetChange;
    type Error = TableSetError;

    fn apply(&mut self, op: TableSetOp) -> Result<TableSetChange, TableSetError> {
        match op {
            TableSetOp::Table(id, op) => {
                let member = self.tables.get(id.0 as usize).ok_or(TableSetError::NoTable(id))?;
                match &op {
                    TableOp::Insert(new) => self.check_target(member, &new.target)?,
                    TableOp::Modify(_, target) | TableOp::SetDefault(Some(target)) => {
                        self.check_target(member, target)?;
                    }
                    TableOp::Delete(_) | TableOp::SetDefault(None) | TableOp::Seal => {}
                }
                let member = self
                    .tables
                    .get_mut(id.0 as usize)
                    .ok_or(TableSetError::NoTable(id))?;
                let change = member.table.apply(op)?;
                self.refer(id, &change, true);
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
                if let Some(member) = self.tables.get_mut(id.0 as usize) {
                    member.table.redo(change);
                }
                self.refer(*id, change, true);
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
                if let Some(member) = self.tables.get_mut(id.0 as usize) {
                    member.table.undo(change);
                }
                self.refer(*id, change, false);
            }
            TableSetChange::Profile(id, change) => {
                if let Some(profile) = self.profiles.get_mut(id.0 as usize) {
                    profile.undo(change);
                }
            }
        }
    }
}
