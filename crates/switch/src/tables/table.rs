//! One table: its entries by handle, and by key in the structure that fits.

use super::entry::{ActionId, Entry, EntryHandle, EntryState, Target};
use super::hash::HashSeed;
use super::index::{self, Index, Slots};
use super::key::{KeySpec, MatchKey};
use super::publish::Replicated;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// What entries of a table lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// Actions of their own (`simple` in the JSON).
    Action,
    /// Members of an action profile (`indirect`).
    Member,
    /// Members or groups of an action selector (`indirect_ws`).
    MemberOrGroup,
}

/// What may be changed of a table's default action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultPolicy {
    /// Everything.
    Free,
    /// The arguments only.
    ConstantAction(ActionId),
    /// Nothing.
    Constant,
}

/// What a table is, fixed by the program.
#[derive(Clone, Debug)]
pub struct TableSpec {
    /// Its name, for messages.
    pub name: String,
    /// Its key. Without fields the table has no entries, and always its default action.
    pub key: KeySpec,
    /// How many entries it holds at most.
    pub size: u32,
    /// What its entries lead to.
    pub targets: TargetKind,
    /// Whether entries have a state: the table counts hits, or ages.
    pub stateful: bool,
    /// The default action of the program.
    pub initial_default: Option<Target>,
    /// What may be changed of it.
    pub default_policy: DefaultPolicy,
}

/// Why a change of a table is refused. The one who asked for it is at fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TableError {
    /// An entry asks for exactly the same.
    #[error("table {table} has an entry with this key already: modify or delete that one")]
    AlreadyExists {
        /// The table.
        table: String,
        /// The entry that is there.
        existing: EntryHandle,
    },
    /// All places are taken.
    #[error("table {table} is full with {size} entries: delete some first")]
    Full {
        /// The table.
        table: String,
        /// How many it holds.
        size: u32,
    },
    /// No such entry.
    #[error("table {table} has no such entry; it may have been deleted")]
    NotFound {
        /// The table.
        table: String,
    },
    /// The program says that this is constant.
    #[error("{what} of table {table} is constant in the program and cannot be changed")]
    Immutable {
        /// The table.
        table: String,
        /// What is constant.
        what: &'static str,
    },
    /// The table has no key.
    #[error("table {table} has no key, so it can have no entries: set its default action")]
    NoKey {
        /// The table.
        table: String,
    },
    /// The table is of another kind.
    #[error("entries of table {table} lead to {expected:?}, which this one does not")]
    WrongTarget {
        /// The table.
        table: String,
        /// What its entries lead to.
        expected: TargetKind,
    },
}

/// An entry to be: all but its handle.
#[derive(Clone, Debug)]
pub struct NewEntry {
    /// What it matches; made by the key of the same table.
    pub key: MatchKey,
    /// What it leads to.
    pub target: Target,
    /// Its state, in tables that have one; [`Table::insert`] makes an empty one if there is none.
    pub state: Option<Arc<EntryState>>,
    /// Whether the program wrote it, so that it cannot be changed.
    pub constant: bool,
}

/// A change of a table.
#[derive(Clone, Debug)]
pub enum TableOp {
    /// Add an entry.
    Insert(NewEntry),
    /// Give an entry another target; its state stays.
    Modify(EntryHandle, Target),
    /// Delete an entry.
    Delete(EntryHandle),
    /// Set the default action, or with `None` the program's again.
    SetDefault(Option<Target>),
    /// Refuse all changes of entries from now on, as BMv2 does where the program lists entries.
    Seal,
}

/// A change that was made. It can be undone, and made again on a copy: what a log, and evidence, are made of.
#[derive(Clone, Debug)]
pub enum TableChange {
    /// This entry is new.
    Inserted(Arc<Entry>),
    /// The first is now the second, under the same handle.
    Modified(Arc<Entry>, Arc<Entry>),
    /// This entry is gone.
    Deleted(Arc<Entry>),
    /// The default action was the first and is now the second.
    Default(Option<Target>, Option<Target>),
    /// Entries can no longer be changed; `false` if they could not before.
    Sealed(bool),
}

/// A table of a P4 program.
pub struct Table {
    spec: Arc<TableSpec>,
    slots: Slots,
    /// Of each place that was ever used, how many entries it had before the one it has or will have.
    generations: Vec<u32>,
    /// Places that were used and are free.
    free: BTreeSet<u32>,
    len: u32,
    index: Box<dyn Index>,
    default: Option<Target>,
    sealed: bool,
}

impl Table {
    /// An empty table with the program's default action.
    #[must_use]
    pub fn new(spec: Arc<TableSpec>, seed: &HashSeed) -> Self {
        Self {
            slots: Vec::new(),
            generations: Vec::new(),
            free: BTreeSet::new(),
            len: 0,
            index: index::for_key(&spec.key, seed),
            default: spec.initial_default.clone(),
            sealed: false,
            spec,
        }
    }

    /// What the table is.
    #[must_use]
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// The entry that wins for a packet's key: the key's fields behind each other, each big-endian in whole bytes, as
    /// [`KeySpec`] has them. A key of another length matches nothing.
    #[inline]
    #[must_use]
    pub fn lookup(&self, key: &[u8]) -> Option<&Entry> {
        if key.len() != self.spec.key.bytes() {
            return None;
        }
        self.index.lookup(key, &self.slots).map(|entry| &**entry)
    }

    /// What is done when nothing matches.
    #[must_use]
    pub fn default_target(&self) -> Option<&Target> {
        self.default.as_ref()
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The entries in the order of their handles' indices.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.slots.iter().flatten()
    }

    /// The entry that asks for exactly this; of priorities too, where the table has them.
    #[must_use]
    pub fn find(&self, key: &MatchKey) -> Option<&Arc<Entry>> {
        let index = self.index.same(key)?;
        self.slots.get(index as usize)?.as_ref()
    }

    /// The entry with this handle.
    ///
    /// # Errors
    /// [`TableError::NotFound`], also if the place has another entry by now.
    pub fn get(&self, handle: EntryHandle) -> Result<&Arc<Entry>, TableError> {
        let entry = self.slots.get(handle.index as usize).and_then(Option::as_ref);
        entry
            .filter(|entry| entry.handle == handle)
            .ok_or_else(|| TableError::NotFound {
                table: self.spec.name.clone(),
            })
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// [`TableError::AlreadyExists`], [`TableError::Full`], and where the table takes no such entry.
    pub fn insert(&mut self, new: NewEntry) -> Result<Arc<Entry>, TableError> {
        let table = || self.spec.name.clone();
        self.check_entries_mutable()?;
        if self.spec.key.fields().is_empty() {
            return Err(TableError::NoKey { table: table() });
        }
        self.check_target(&new.target)?;
        if let Some(existing) = self.find(&new.key) {
            return Err(TableError::AlreadyExists {
                table: table(),
                existing: existing.handle,
            });
        }
        if self.len >= self.spec.size {
            return Err(TableError::Full {
                table: table(),
                size: self.spec.size,
            });
        }
        let index = self.free.first().copied().unwrap_or(self.slots.len() as u32);
        let generation = self.generations.get(index as usize).copied().unwrap_or(0);
        let entry = Arc::new(Entry {
            handle: EntryHandle { index, generation },
            target: new.target,
            key: new.key,
            state: new.state.or_else(|| self.spec.stateful.then(Arc::default)),
            constant: new.constant,
        });
        self.link(&entry);
        Ok(entry)
    }

    /// Gives an entry another target; returns what it was and what it is.
    ///
    /// # Errors
    /// If there is no such entry, it is constant, or it cannot lead there.
    pub fn modify(
        &mut self,
        handle: EntryHandle,
        target: Target,
    ) -> Result<(Arc<Entry>, Arc<Entry>), TableError> {
        let before = self.get(handle)?.clone();
        self.check_mutable(&before)?;
        self.check_target(&target)?;
        let after = Arc::new(Entry {
            target,
            ..(*before).clone()
        });
        self.exchange(&after);
        Ok((before, after))
    }

    /// Deletes an entry and returns it.
    ///
    /// # Errors
    /// If there is no such entry, or it is constant.
    pub fn delete(&mut self, handle: EntryHandle) -> Result<Arc<Entry>, TableError> {
        let entry = self.get(handle)?.clone();
        self.check_mutable(&entry)?;
        self.unlink(&entry, handle.generation.wrapping_add(1));
        Ok(entry)
    }

    /// Sets the default action, or with `None` the program's again; returns what it was and what it is.
    ///
    /// # Errors
    /// If the program says that it, or its action, is constant.
    pub fn set_default(
        &mut self,
        target: Option<Target>,
    ) -> Result<(Option<Target>, Option<Target>), TableError> {
        let immutable = |what| {
            Err(TableError::Immutable {
                table: self.spec.name.clone(),
                what,
            })
        };
        if let Some(target) = &target {
            match (self.spec.default_policy, target) {
                (DefaultPolicy::Constant, _) => return immutable("the default action"),
                (DefaultPolicy::ConstantAction(only), Target::Action(call)) if call.action != only => {
                    return immutable("which action is the default");
                }
                _ => self.check_target(target)?,
            }
        }
        let after = target.or_else(|| self.spec.initial_default.clone());
        let before = std::mem::replace(&mut self.default, after.clone());
        Ok((before, after))
    }

    fn check_entries_mutable(&self) -> Result<(), TableError> {
        if self.sealed {
            return Err(TableError::Immutable {
                table: self.spec.name.clone(),
                what: "the set of entries",
            });
        }
        Ok(())
    }

    fn check_mutable(&self, entry: &Entry) -> Result<(), TableError> {
        self.check_entries_mutable()?;
        if entry.constant {
            return Err(TableError::Immutable {
                table: self.spec.name.clone(),
                what: "this entry",
            });
        }
        Ok(())
    }

    fn check_target(&self, target: &Target) -> Result<(), TableError> {
        let fits = match target {
            Target::Action(_) => self.spec.targets == TargetKind::Action,
            Target::Member(_) => self.spec.targets != TargetKind::Action,
            Target::Group(_) => self.spec.targets == TargetKind::MemberOrGroup,
        };
        if !fits {
            return Err(TableError::WrongTarget {
                table: self.spec.name.clone(),
                expected: self.spec.targets,
            });
        }
        Ok(())
    }

    /// Puts an entry where its handle says, which is free.
    fn link(&mut self, entry: &Arc<Entry>) {
        let index = entry.handle.index;
        let needed = index as usize + 1;
        if self.slots.len() < needed {
            // Places are handed out without gaps; one that a rolled back change left behind is free.
            self.free.extend(self.slots.len() as u32..index);
            self.slots.resize(needed, None);
            self.generations.resize(needed, 0);
        }
        self.free.remove(&index);
        self.set_place(index, Some(entry.clone()), entry.handle.generation);
        self.len += 1;
        self.index.link(entry);
    }

    fn unlink(&mut self, entry: &Arc<Entry>, next_generation: u32) {
        let index = entry.handle.index;
        self.index.unlink(entry);
        self.set_place(index, None, next_generation);
        self.free.insert(index);
        self.len -= 1;
    }

    fn exchange(&mut self, entry: &Arc<Entry>) {
        self.index.exchange(entry);
        self.set_place(entry.handle.index, Some(entry.clone()), entry.handle.generation);
    }

    fn set_place(&mut self, index: u32, entry: Option<Arc<Entry>>, generation: u32) {
        if let (Some(slot), Some(known)) = (
            self.slots.get_mut(index as usize),
            self.generations.get_mut(index as usize),
        ) {
            *slot = entry;
            *known = generation;
        }
    }
}

impl Replicated for Table {
    type Op = TableOp;
    type Change = TableChange;
    type Error = TableError;

    fn apply(&mut self, op: TableOp) -> Result<TableChange, TableError> {
        Ok(match op {
            TableOp::Insert(new) => TableChange::Inserted(self.insert(new)?),
            TableOp::Modify(handle, target) => {
                let (before, after) = self.modify(handle, target)?;
                TableChange::Modified(before, after)
            }
            TableOp::Delete(handle) => TableChange::Deleted(self.delete(handle)?),
            TableOp::SetDefault(target) => {
                let (before, after) = self.set_default(target)?;
                TableChange::Default(before, after)
            }
            TableOp::Seal => TableChange::Sealed(!std::mem::replace(&mut self.sealed, true)),
        })
    }

    fn redo(&mut self, change: &TableChange) {
        match change {
            TableChange::Inserted(entry) => self.link(entry),
            TableChange::Modified(_, after) => self.exchange(after),
            TableChange::Deleted(entry) => self.unlink(entry, entry.handle.generation.wrapping_add(1)),
            TableChange::Default(_, after) => self.default.clone_from(after),
            TableChange::Sealed(_) => self.sealed = true,
        }
    }

    fn undo(&mut self, change: &TableChange) {
        match change {
            TableChange::Inserted(entry) => self.unlink(entry, entry.handle.generation),
            TableChange::Modified(before, _) => self.exchange(before),
            TableChange::Deleted(entry) => self.link(entry),
            TableChange::Default(before, _) => self.default.clone_from(before),
            TableChange::Sealed(newly) => self.sealed = !newly,
        }
    }
}

impl Clone for Table {
    fn clone(&self) -> Self {
        Self {
            spec: self.spec.clone(),
            slots: self.slots.clone(),
            generations: self.generations.clone(),
            free: self.free.clone(),
            len: self.len,
            index: self.index.boxed_clone(),
            default: self.default.clone(),
            sealed: self.sealed,
        }
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("name", &self.spec.name)
            .field("entries", &self.len)
            .finish_non_exhaustive()
    }
}
