//! Table: finds an entry by its handle, or by its key in a search structure.

use super::entry::{ActionId, Entry, EntryHandle, EntryState, Target};
use super::exact::{ExactBytes, ExactWords};
use super::hash::HashSeed;
use super::index::{EntriesByIndex, SearchStructure};
use super::key::{KeySpec, MatchKey, MatchType};
use super::publish::Replicated;
use super::trie::PrefixTrie;
use super::tuples::TupleSpace;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// Kind of the targets of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// Actions (`simple` in the JSON).
    Action,
    /// Members of an action profile (`indirect`).
    Member,
    /// Members or groups of an action selector (`indirect_ws`).
    MemberOrGroup,
}

/// Mutability of a table's default action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultPolicy {
    /// Action and arguments can change.
    Free,
    /// Only the arguments can change.
    ConstantAction(ActionId),
    /// Nothing can change.
    Constant,
}

/// Specification of a table in the program.
#[derive(Clone, Debug)]
pub struct TableSpec {
    /// Name, for messages.
    pub name: String,
    /// Key specification. A table without key fields has no entries and always runs the default action.
    pub key: KeySpec,
    /// Capacity in entries.
    pub size: u32,
    /// Kind of the targets.
    pub targets: TargetKind,
    /// Whether entries have a state for counters, meters or timeouts.
    pub stateful: bool,
    /// Initial default action.
    pub initial_default: Option<Target>,
    /// Mutability of the default action.
    pub default_policy: DefaultPolicy,
}

/// Reason to reject an operation on a table, caused by the client.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TableError {
    /// An entry with the same match key exists.
    #[error("entry with this key exists in table {table}: modify or delete the entry")]
    AlreadyExists {
        /// Table.
        table: String,
        /// Existing entry.
        existing: EntryHandle,
    },
    /// The table is full.
    #[error("table {table} is full with {size} entries: delete entries first")]
    Full {
        /// Table.
        table: String,
        /// Capacity in entries.
        size: u32,
    },
    /// The entry does not exist.
    #[error("entry not found in table {table}: it may have been deleted")]
    NotFound {
        /// Table.
        table: String,
    },
    /// The element is constant in the program.
    #[error("cannot change {element} of table {table}: it is constant in the program")]
    Immutable {
        /// Table.
        table: String,
        /// Constant element.
        element: &'static str,
    },
    /// The table has no key.
    #[error("table {table} has no key and no entries: set its default action instead")]
    NoKey {
        /// Table.
        table: String,
    },
    /// The target has the wrong kind.
    #[error("wrong target of an entry of table {table}: expected {expected:?}")]
    WrongTarget {
        /// Table.
        table: String,
        /// Kind of the targets.
        expected: TargetKind,
    },
}

/// New entry without a handle.
#[derive(Clone, Debug)]
pub struct NewEntry {
    /// Match key, created by the key specification of the same table.
    pub key: MatchKey,
    /// Target.
    pub target: Target,
    /// State, in tables with state; [`Table::insert`] creates an empty state for `None`.
    pub state: Option<Arc<EntryState>>,
    /// Whether the program defines the entry, so it cannot be changed.
    pub constant: bool,
}

/// Operation on a table.
#[derive(Clone, Debug)]
pub enum TableOp {
    /// Adds an entry.
    Insert(NewEntry),
    /// Sets the target of an entry; its state stays.
    Modify(EntryHandle, Target),
    /// Deletes an entry.
    Delete(EntryHandle),
    /// Sets the default action; `None` restores the initial default action.
    SetDefault(Option<Target>),
    /// Makes all entries immutable, as BMv2 does for tables with constant entries.
    Seal,
}

/// Applied change, for the log and for evidence. A change can be undone, and repeated on a copy.
#[derive(Clone, Debug)]
pub enum TableChange {
    /// The entry was added.
    Inserted(Arc<Entry>),
    /// The first entry was replaced by the second with the same handle.
    Modified(Arc<Entry>, Arc<Entry>),
    /// The entry was deleted.
    Deleted(Arc<Entry>),
    /// The default action changed from the first to the second.
    Default(Option<Target>, Option<Target>),
    /// The table was sealed; `false` if the table had been sealed before.
    Sealed(bool),
}

/// Table of a P4 program.
pub struct Table {
    spec: Arc<TableSpec>,
    entries: EntriesByIndex,
    /// Generation of each index that was ever used: the number of its previous entries.
    generations: Vec<u32>,
    /// Free indices that were used before.
    free_indices: BTreeSet<u32>,
    len: u32,
    search: Box<dyn SearchStructure>,
    default: Option<Target>,
    sealed: bool,
}

impl Table {
    /// Creates an empty table with the initial default action.
    #[must_use]
    pub fn new(spec: Arc<TableSpec>, seed: &HashSeed) -> Self {
        Self {
            entries: Vec::new(),
            generations: Vec::new(),
            free_indices: BTreeSet::new(),
            len: 0,
            search: search_structure(&spec.key, seed),
            default: spec.initial_default.clone(),
            sealed: false,
            spec,
        }
    }

    /// Specification.
    #[must_use]
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// Best matching entry for a packet's key: the concatenated fields, each big-endian in whole bytes, as [`KeySpec`]
    /// defines. A key with a different length matches no entry.
    #[inline]
    #[must_use]
    pub fn lookup(&self, key: &[u8]) -> Option<&Entry> {
        if key.len() != self.spec.key.bytes() {
            return None;
        }
        self.search.lookup(key, &self.entries).map(|entry| &**entry)
    }

    /// Default action.
    #[must_use]
    pub fn default_target(&self) -> Option<&Target> {
        self.default.as_ref()
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether the table has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Entries in the order of their indices.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.iter().flatten()
    }

    /// Entry with exactly this match key, including the priority if the table has priorities.
    #[must_use]
    pub fn find(&self, key: &MatchKey) -> Option<&Arc<Entry>> {
        let index = self.search.find_key(key)?;
        self.entries.get(index as usize)?.as_ref()
    }

    /// Entry with this handle.
    ///
    /// # Errors
    /// [`TableError::NotFound`], also if the index is now in use by another entry.
    pub fn get(&self, handle: EntryHandle) -> Result<&Arc<Entry>, TableError> {
        let entry = self.entries.get(handle.index as usize).and_then(Option::as_ref);
        entry
            .filter(|entry| entry.handle == handle)
            .ok_or_else(|| TableError::NotFound {
                table: self.spec.name.clone(),
            })
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// [`TableError::AlreadyExists`], [`TableError::Full`], or the table does not allow the entry.
    pub fn insert(&mut self, new_entry: NewEntry) -> Result<Arc<Entry>, TableError> {
        let table = || self.spec.name.clone();
        self.check_entries_mutable()?;
        if self.spec.key.fields().is_empty() {
            return Err(TableError::NoKey { table: table() });
        }
        self.check_target(&new_entry.target)?;
        if let Some(existing) = self.find(&new_entry.key) {
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
        let index = self
            .free_indices
            .first()
            .copied()
            .unwrap_or(self.entries.len() as u32);
        let generation = self.generations.get(index as usize).copied().unwrap_or(0);
        let entry = Arc::new(Entry {
            handle: EntryHandle { index, generation },
            target: new_entry.target,
            key: new_entry.key,
            state: new_entry.state.or_else(|| self.spec.stateful.then(Arc::default)),
            constant: new_entry.constant,
        });
        self.add_entry(&entry);
        Ok(entry)
    }

    /// Sets the target of an entry; returns the old and the new entry.
    ///
    /// # Errors
    /// The entry does not exist or is constant, or the table does not allow the target.
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
        self.replace(&after);
        Ok((before, after))
    }

    /// Deletes and returns an entry.
    ///
    /// # Errors
    /// The entry does not exist or is constant.
    pub fn delete(&mut self, handle: EntryHandle) -> Result<Arc<Entry>, TableError> {
        let entry = self.get(handle)?.clone();
        self.check_mutable(&entry)?;
        self.remove_entry(&entry, handle.generation.wrapping_add(1));
        Ok(entry)
    }

    /// Sets the default action, or restores the initial default action for `None`; returns the old and the new action.
    ///
    /// # Errors
    /// The default action or its arguments are constant.
    pub fn set_default(
        &mut self,
        target: Option<Target>,
    ) -> Result<(Option<Target>, Option<Target>), TableError> {
        let immutable = |element| {
            Err(TableError::Immutable {
                table: self.spec.name.clone(),
                element,
            })
        };
        if let Some(target) = &target {
            match (self.spec.default_policy, target) {
                (DefaultPolicy::Constant, _) => return immutable("default action"),
                (DefaultPolicy::ConstantAction(action), Target::Action(call)) if call.action != action => {
                    return immutable("the choice of the default action");
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
                element: "set of entries",
            });
        }
        Ok(())
    }

    fn check_mutable(&self, entry: &Entry) -> Result<(), TableError> {
        self.check_entries_mutable()?;
        if entry.constant {
            return Err(TableError::Immutable {
                table: self.spec.name.clone(),
                element: "entry",
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

    /// Stores an entry at the free index of its handle.
    fn add_entry(&mut self, entry: &Arc<Entry>) {
        let index = entry.handle.index;
        let needed_len = index as usize + 1;
        if self.entries.len() < needed_len {
            // Indices are allocated without gaps. A gap can only contain indices of entries whose insertion was undone, so
            // these indices are free.
            self.free_indices.extend(self.entries.len() as u32..index);
            self.entries.resize(needed_len, None);
            self.generations.resize(needed_len, 0);
        }
        self.free_indices.remove(&index);
        self.set_entry(index, Some(entry.clone()), entry.handle.generation);
        self.len += 1;
        self.search.add_entry(entry);
    }

    fn remove_entry(&mut self, entry: &Arc<Entry>, next_generation: u32) {
        let index = entry.handle.index;
        self.search.remove_entry(entry);
        self.set_entry(index, None, next_generation);
        self.free_indices.insert(index);
        self.len -= 1;
    }

    fn replace(&mut self, entry: &Arc<Entry>) {
        self.search.replace(entry);
        self.set_entry(entry.handle.index, Some(entry.clone()), entry.handle.generation);
    }

    fn set_entry(&mut self, index: u32, entry: Option<Arc<Entry>>, generation: u32) {
        if let (Some(stored_entry), Some(stored_generation)) = (
            self.entries.get_mut(index as usize),
            self.generations.get_mut(index as usize),
        ) {
            *stored_entry = entry;
            *stored_generation = generation;
        }
    }
}

impl Replicated for Table {
    type Op = TableOp;
    type Change = TableChange;
    type Error = TableError;

    fn apply(&mut self, op: TableOp) -> Result<TableChange, TableError> {
        Ok(match op {
            TableOp::Insert(new_entry) => TableChange::Inserted(self.insert(new_entry)?),
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
            TableChange::Inserted(entry) => self.add_entry(entry),
            TableChange::Modified(_, after) => self.replace(after),
            TableChange::Deleted(entry) => self.remove_entry(entry, entry.handle.generation.wrapping_add(1)),
            TableChange::Default(_, after) => self.default.clone_from(after),
            TableChange::Sealed(_) => self.sealed = true,
        }
    }

    fn undo(&mut self, change: &TableChange) {
        match change {
            TableChange::Inserted(entry) => self.remove_entry(entry, entry.handle.generation),
            TableChange::Modified(before, _) => self.replace(before),
            TableChange::Deleted(entry) => self.add_entry(entry),
            TableChange::Default(before, _) => self.default.clone_from(before),
            TableChange::Sealed(newly) => self.sealed = !newly,
        }
    }
}

impl Clone for Table {
    fn clone(&self) -> Self {
        Self {
            spec: self.spec.clone(),
            entries: self.entries.clone(),
            generations: self.generations.clone(),
            free_indices: self.free_indices.clone(),
            len: self.len,
            search: self.search.boxed_clone(),
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

/// Creates the structure that suits a key.
fn search_structure(spec: &KeySpec, seed: &HashSeed) -> Box<dyn SearchStructure> {
    let seed = seed.clone();
    match (spec.match_type(), spec.bytes()) {
        (MatchType::Exact, ..=8) => Box::new(ExactWords::<1>::new(seed)),
        (MatchType::Exact, ..=16) => Box::new(ExactWords::<2>::new(seed)),
        (MatchType::Exact, _) => Box::new(ExactBytes::new(seed)),
        (MatchType::Lpm, ..=8) => Box::new(PrefixTrie::<1>::new(spec)),
        (MatchType::Lpm, ..=16) => Box::new(PrefixTrie::<2>::new(spec)),
        (MatchType::Lpm, ..=32) => Box::new(PrefixTrie::<4>::new(spec)),
        (MatchType::Lpm, _) => Box::new(PrefixTrie::<32>::new(spec)),
        (MatchType::Ternary | MatchType::Range, ..=8) => Box::new(TupleSpace::<1>::new(seed)),
        (MatchType::Ternary | MatchType::Range, ..=16) => Box::new(TupleSpace::<2>::new(seed)),
        (MatchType::Ternary | MatchType::Range, ..=32) => Box::new(TupleSpace::<4>::new(seed)),
        (MatchType::Ternary | MatchType::Range, ..=64) => Box::new(TupleSpace::<8>::new(seed)),
        (MatchType::Ternary | MatchType::Range, _) => Box::new(TupleSpace::<32>::new(seed)),
    }
}
