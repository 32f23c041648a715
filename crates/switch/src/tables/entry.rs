//! Entries: what matches, what is then done, and what is counted of it.

use super::key::{MatchKey, Priority};
use crate::meter::Meter;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub use crate::program::ids::ActionId;

/// The arguments of an action behind each other, in whatever packing the executor gave them. Short ones, which nearly
/// all are, lie in the entry itself.
pub type ActionData = SmallVec<[u8; 24]>;

/// An action with its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ActionCall {
    /// Which action.
    pub action: ActionId,
    /// Its arguments.
    pub data: ActionData,
}

/// One member of an action profile. The number is the lowest that was free, as in BMv2: it decides the order in which a
/// selector counts the members of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberHandle(pub u32);

/// One group of an action selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupHandle(pub u32);

/// What a match leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// An action of the entry's own.
    Action(ActionCall),
    /// A member of the table's action profile.
    Member(MemberHandle),
    /// A group of the table's action selector: which of its members, a hash over the packet decides.
    Group(GroupHandle),
}

/// Names one entry of one table for as long as it exists: of an index that is used again, the generation differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryHandle {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl EntryHandle {
    /// The entry's place, below the table's size: the lowest that was free, as in BMv2. Direct meters and what else is
    /// kept beside the table are found by it.
    #[must_use]
    pub fn index(self) -> u32 {
        self.index
    }

    /// How many entries had this place before.
    #[must_use]
    pub fn generation(self) -> u32 {
        self.generation
    }

    /// The handle as BMv2 and its Thrift clients write it: 8 bits of generation over 24 bits of index.
    #[must_use]
    pub fn to_bmv2(self) -> u32 {
        (self.generation << 24) | (self.index & 0x00ff_ffff)
    }
}

/// What the packet path counts of an entry. One for all versions of the table, so that no count is lost when the entry
/// or the table changes.
#[derive(Debug, Default)]
pub struct EntryState {
    packets: AtomicU64,
    bytes: AtomicU64,
    last_hit_ms: AtomicU64,
    timeout_ms: AtomicU64,
    meter: Mutex<Meter>,
}

impl EntryState {
    /// Nothing counted yet; the entry is taken as hit now.
    ///
    /// `now_ms` is in milliseconds on any clock that does not go back; `timeout_ms` of 0 is no timeout.
    #[must_use]
    pub fn new(now_ms: u64, timeout_ms: u64) -> Self {
        Self {
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            last_hit_ms: AtomicU64::new(now_ms),
            timeout_ms: AtomicU64::new(timeout_ms),
            meter: Mutex::new(Meter::new()),
        }
    }

    /// Counts one packet of this length.
    #[inline]
    pub fn count(&self, packet_bytes: u64) {
        self.packets.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(packet_bytes, Ordering::Relaxed);
    }

    /// Notes a hit for the idle timeout.
    #[inline]
    pub fn touch(&self, now_ms: u64) {
        // Within one millisecond only the first hit writes: cores do not pass the cache line round.
        if self.last_hit_ms.load(Ordering::Relaxed) < now_ms {
            self.last_hit_ms.store(now_ms, Ordering::Relaxed);
        }
    }

    /// Packets and bytes counted.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (
            self.packets.load(Ordering::Relaxed),
            self.bytes.load(Ordering::Relaxed),
        )
    }

    /// Sets what was counted, as control planes may.
    pub fn set_counts(&self, packets: u64, bytes: u64) {
        self.packets.store(packets, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Does something with the entry's direct meter.
    pub fn meter<T>(&self, with: impl FnOnce(&mut Meter) -> T) -> T {
        // A thread that panicked left the meter as it was before or after one packet.
        with(&mut self.meter.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// When the entry was last hit.
    #[must_use]
    pub fn last_hit_ms(&self) -> u64 {
        self.last_hit_ms.load(Ordering::Relaxed)
    }

    /// The idle timeout; 0 is none.
    #[must_use]
    pub fn timeout_ms(&self) -> u64 {
        self.timeout_ms.load(Ordering::Relaxed)
    }

    /// Sets the idle timeout, which begins now, as in BMv2.
    pub fn set_timeout(&self, now_ms: u64, timeout_ms: u64) {
        self.timeout_ms.store(timeout_ms, Ordering::Relaxed);
        self.last_hit_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Whether the entry has a timeout and was idle for that long.
    #[must_use]
    pub fn is_idle(&self, now_ms: u64) -> bool {
        let timeout_ms = self.timeout_ms();
        timeout_ms > 0 && now_ms.saturating_sub(self.last_hit_ms()) >= timeout_ms
    }
}

/// One entry of a table. It does not change: a modified entry is a new one with the same handle and state.
#[derive(Clone, Debug)]
pub struct Entry {
    pub(super) handle: EntryHandle,
    pub(super) target: Target,
    pub(super) key: MatchKey,
    pub(super) state: Option<Arc<EntryState>>,
    pub(super) constant: bool,
}

impl Entry {
    /// Its name in this table.
    #[must_use]
    pub fn handle(&self) -> EntryHandle {
        self.handle
    }

    /// What is done on a match.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// What it matches.
    #[must_use]
    pub fn key(&self) -> &MatchKey {
        &self.key
    }

    /// Which of several matching entries wins.
    #[must_use]
    pub fn priority(&self) -> Priority {
        self.key.priority()
    }

    /// What is counted of it, in tables that count or age.
    #[must_use]
    pub fn state(&self) -> Option<&EntryState> {
        self.state.as_deref()
    }

    /// The same, to be kept beyond the snapshot.
    #[must_use]
    pub fn shared_state(&self) -> Option<&Arc<EntryState>> {
        self.state.as_ref()
    }

    /// Whether the P4 program wrote it: then nobody may change it.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.constant
    }
}
