//! Match-action tables.
//!
//! A [`TableSet`] holds the tables and action profiles of a program. A [`Publisher`] provides immutable snapshots to the
//! packet path while a writer prepares the next version. The packet path writes the key of a table as a byte string
//! ([`KeySpec`]), looks the key up ([`Table::lookup`]) and resolves the target of the entry, or the table's default
//! target if no entry matches ([`TableSet::resolve`]).
//!
//! The semantics match simple_switch, except for one defect of BMv2 (see module `key`).
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
pub use publish::{Batch, BatchError, Publisher, Reader, Replicated, Snapshot, WriterSnapshot};
pub use set::{ProfileId, TableId, TableSet, TableSetChange, TableSetError, TableSetOp};
pub use table::{DefaultPolicy, NewEntry, Table, TableChange, TableError, TableOp, TableSpec, TargetKind};
