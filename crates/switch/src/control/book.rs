//! What of a controller's writes the tables themselves do not keep: its own numbers, and what it only wants to read back.
//!
//! Each shelf remembers what it held before, so that a batch which fails is taken back.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

use linewarden_p4runtime::entity::{ActionSet, CloneSession, Digest, Group, MulticastGroup};
use linewarden_p4runtime::ids as named;

use crate::tables::{EntryHandle, GroupHandle, MemberHandle, ProfileId, TableId};

/// Things by key, and how to take back what was put there since the last [`Shelf::settle`].
#[derive(Debug)]
pub(super) struct Shelf<K, V> {
    items: BTreeMap<K, V>,
    log: Vec<(K, Option<V>)>,
}

impl<K, V> Default for Shelf<K, V> {
    fn default() -> Self {
        Self {
            items: BTreeMap::new(),
            log: Vec::new(),
        }
    }
}

impl<K: Ord + Clone, V> Shelf<K, V> {
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.items.get(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.items.iter()
    }

    /// Whether anything lies between these keys.
    pub(super) fn any(&self, range: impl RangeBounds<K>) -> bool {
        self.items.range(range).next().is_some()
    }

    /// Puts something in its place, or nothing.
    pub(super) fn set(&mut self, key: K, value: Option<V>) {
        let before = match value {
            Some(value) => self.items.insert(key.clone(), value),
            None => self.items.remove(&key),
        };
        self.log.push((key, before));
    }

    fn mark(&self) -> usize {
        self.log.len()
    }

    fn undo_to(&mut self, mark: usize) {
        while self.log.len() > mark
            && let Some((key, before)) = self.log.pop()
        {
            match before {
                Some(value) => self.items.insert(key, value),
                None => self.items.remove(&key),
            };
        }
    }

    fn settle(&mut self) {
        self.log.clear();
    }
}

/// A controller's own words about an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) controller_metadata: u64,
    pub(super) metadata: Vec<u8>,
}

impl Note {
    /// Nothing where there is nothing to keep.
    pub(super) fn of(controller_metadata: u64, metadata: &[u8]) -> Option<Self> {
        (controller_metadata != 0 || !metadata.is_empty()).then(|| Self {
            controller_metadata,
            metadata: metadata.to_vec(),
        })
    }
}

/// A one-shot entry: as it was written, and the members that were made of its actions.
#[derive(Clone, Debug)]
pub(super) struct Shot {
    pub(super) set: ActionSet,
    pub(super) members: Vec<MemberHandle>,
}

/// An entry of a table.
pub(super) type EntryId = (TableId, EntryHandle);

macro_rules! book {
    ($($(#[$doc:meta])* $name:ident: $key:ty => $value:ty,)*) => {
        /// All shelves of one program.
        #[derive(Debug, Default)]
        pub(super) struct Book {
            $($(#[$doc])* pub(super) $name: Shelf<$key, $value>,)*
        }

        /// A moment to which a book can go back.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Mark {
            $($name: usize,)*
        }

        impl Book {
            pub(super) fn mark(&self) -> Mark {
                Mark { $($name: self.$name.mark(),)* }
            }

            /// Takes back what was put there since.
            pub(super) fn undo_to(&mut self, mark: Mark) {
                $(self.$name.undo_to(mark.$name);)*
            }

            /// What is there is there to stay.
            pub(super) fn settle(&mut self) {
                $(self.$name.settle();)*
            }
        }
    };
}

book! {
    /// Of entries.
    notes: EntryId => Note,
    /// Of default entries.
    defaults: TableId => Note,
    /// Entries' times to live, ns; those that have one.
    timeouts: EntryId => u64,
    /// One-shot entries, by the group that was made of each.
    shots: (ProfileId, GroupHandle) => Shot,
    /// Members as the controller numbers them.
    members: (ProfileId, named::MemberId) => MemberHandle,
    /// The same the other way round.
    member_ids: (ProfileId, MemberHandle) => named::MemberId,
    /// Groups as the controller numbers and writes them.
    groups: (ProfileId, named::GroupId) => (GroupHandle, Group),
    /// The same the other way round.
    group_ids: (ProfileId, GroupHandle) => named::GroupId,
    /// Multicast groups as they were written.
    multicast: named::MulticastGroupId => MulticastGroup,
    /// Clone sessions as they were written.
    clones: named::CloneSessionId => CloneSession,
    /// Digests that are sent.
    digests: named::DigestId => Digest,
}

impl Book {
    /// Whether a selector has members of its own, beside those of one-shot entries.
    pub(super) fn has_members(&self, profile: ProfileId) -> bool {
        self.members
            .any((profile, named::MemberId(0))..=(profile, named::MemberId(u32::MAX)))
    }

    /// Whether one-shot entries select through it.
    pub(super) fn has_shots(&self, profile: ProfileId) -> bool {
        self.shots
            .any((profile, GroupHandle(0))..=(profile, GroupHandle(u32::MAX)))
    }
}
