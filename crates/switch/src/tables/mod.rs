//! Match-action tables: what matches which key, and which action is then run.
//!
//! A [`TableSet`] holds the tables and action profiles of a program; a [`Publisher`] shows it to the packet path as
//! snapshots that do not change, while a writer prepares the next. The packet path writes a table's key as one byte
//! string ([`KeySpec`]), looks it up ([`Table::lookup`]) and resolves the target that the entry, or else the table's
//! default, has ([`TableSet::resolve`]).
//!
//! Semantics are simple_switch's, but for one fault that [`KeySpec`]'s module names.
#![forbid(unsafe_code)]

mod entry;
mod exact;
mod hash;
mod index;
mod key;
mod profile;
mod publish;
mod set;
mod table;
mod trie;
mod tuples;
mod words;

pub use entry::{
    ActionCall, ActionData, ActionId, Entry, EntryHandle, EntryState, GroupHandle, MemberHandle, Target,
};
pub use hash::HashSeed;
pub use key::{
    FIELD_MAX_BITS, FieldMatch, KeyError, KeyField, KeySpec, MatchKey, MatchKind, MatchType, Priority,
    SpecError, WILD_KEY_MAX_BYTES,
};
pub use profile::{
    ActionProfile, Group, ProfileChange, ProfileError, ProfileOp, ProfileSpec, WeightedMember,
};
pub use publish::{Batch, BatchError, Current, Publisher, Reader, Replicated, Snapshot};
pub use set::{ProfileId, TableId, TableSet, TableSetChange, TableSetError, TableSetOp};
pub use table::{DefaultPolicy, NewEntry, Table, TableChange, TableError, TableOp, TableSpec, TargetKind};
