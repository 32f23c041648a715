//! State of controllers that the tables do not store: ids that controllers choose, and values that controllers read back.
//!
//! Each map logs its previous values, so a failed batch can be rolled back.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

use linewarden_p4runtime::entity::{ActionSet, CloneSession, Digest, Group, MulticastGroup};
use linewarden_p4runtime::ids as p4rt_ids;

use crate::tables::{EntryHandle, GroupHandle, MemberHandle, ProfileId, TableId};

/// Map with an undo log of the changes since the last [`UndoMap::commit`].
#[derive(Debug)]
pub(super) struct UndoMap<K, V> {
    entries: BTreeMap<K, V>,
    log: Vec<(K, Option<V>)>,
}

impl<K, V> Default for UndoMap<K, V> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            log: Vec::new(),
        }
    }
}

impl<K: Ord + Clone, V> UndoMap<K, V> {
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter()
    }

    /// Whether the map has a key in the range.
    pub(super) fn contains_any(&self, range: impl RangeBounds<K>) -> bool {
        self.entries.range(range).next().is_some()
    }

    /// Sets the value of a key, or removes the key.
    pub(super) fn set(&mut self, key: K, value: Option<V>) {
        let previous = match value {
            Some(value) => self.entries.insert(key.clone(), value),
            None => self.entries.remove(&key),
        };
        self.log.push((key, previous));
    }

    fn checkpoint(&self) -> usize {
        self.log.len()
    }

    fn roll_back(&mut self, checkpoint: usize) {
        while self.log.len() > checkpoint
            && let Some((key, previous)) = self.log.pop()
        {
            match previous {
                Some(value) => self.entries.insert(key, value),
                None => self.entries.remove(&key),
            };
        }
    }

    fn commit(&mut self) {
        self.log.clear();
    }
}

/// Metadata of an entry from the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EntryMetadata {
    pub(super) controller_metadata: u64,
    pub(super) metadata: Vec<u8>,
}

impl EntryMetadata {
    /// Returns `None` if both values have their defaults.
    pub(super) fn from_parts(controller_metadata: u64, metadata: &[u8]) -> Option<Self> {
        (controller_metadata != 0 || !metadata.is_empty()).then(|| Self {
            controller_metadata,
            metadata: metadata.to_vec(),
        })
    }
}

/// One-shot entry: the action set as written, and the members created for its actions.
#[derive(Clone, Debug)]
pub(super) struct OneShot {
    pub(super) action_set: ActionSet,
    pub(super) members: Vec<MemberHandle>,
}

/// Identity of a table entry.
pub(super) type EntryId = (TableId, EntryHandle);

macro_rules! controller_state {
    ($($(#[$doc:meta])* $name:ident: $key:ty => $value:ty,)*) => {
        /// Controller state of one program.
        #[derive(Debug, Default)]
        pub(super) struct ControllerState {
            $($(#[$doc])* pub(super) $name: UndoMap<$key, $value>,)*
        }

        /// Point in the undo logs to roll back to.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Checkpoint {
            $($name: usize,)*
        }

        impl ControllerState {
            pub(super) fn checkpoint(&self) -> Checkpoint {
                Checkpoint { $($name: self.$name.checkpoint(),)* }
            }

            /// Undoes all changes since the checkpoint.
            pub(super) fn roll_back(&mut self, checkpoint: Checkpoint) {
                $(self.$name.roll_back(checkpoint.$name);)*
            }

            /// Makes all changes permanent.
            pub(super) fn commit(&mut self) {
                $(self.$name.commit();)*
            }
        }
    };
}

controller_state! {
    /// Metadata of entries.
    entry_metadata: EntryId => EntryMetadata,
    /// Metadata of default entries.
    default_entry_metadata: TableId => EntryMetadata,
    /// Idle timeouts of entries, ns; only entries with a timeout.
    idle_timeouts_ns: EntryId => u64,
    /// One-shot entries by the group that was created for the entry.
    one_shots: (ProfileId, GroupHandle) => OneShot,
    /// Members by controller id.
    members: (ProfileId, p4rt_ids::MemberId) => MemberHandle,
    /// Controller ids of members by handle.
    member_ids: (ProfileId, MemberHandle) => p4rt_ids::MemberId,
    /// Groups by controller id, as written.
    groups: (ProfileId, p4rt_ids::GroupId) => (GroupHandle, Group),
    /// Controller ids of groups by handle.
    group_ids: (ProfileId, GroupHandle) => p4rt_ids::GroupId,
    /// Multicast groups as written.
    multicast_groups: p4rt_ids::MulticastGroupId => MulticastGroup,
    /// Clone sessions as written.
    clone_sessions: p4rt_ids::CloneSessionId => CloneSession,
    /// Enabled digests.
    digest_configs: p4rt_ids::DigestId => Digest,
}

impl ControllerState {
    /// Whether a selector has members other than those of one-shot entries.
    pub(super) fn has_members(&self, profile: ProfileId) -> bool {
        self.members
            .contains_any((profile, p4rt_ids::MemberId(0))..=(profile, p4rt_ids::MemberId(u32::MAX)))
    }

    /// Whether one-shot entries use the selector.
    pub(super) fn has_one_shots(&self, profile: ProfileId) -> bool {
        self.one_shots
            .contains_any((profile, GroupHandle(0))..=(profile, GroupHandle(u32::MAX)))
    }
}
