//! Table entries: key, target and state.

use super::key::{MatchKey, Priority};
use crate::meter::Meter;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub use crate::program::ids::ActionId;

/// Concatenated arguments of an action, in the encoding of [`layout_args`](crate::executable::layout_args). Short data, the usual
/// case, is stored inside of the entry.
pub type ActionData = SmallVec<[u8; 24]>;

/// Action with its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ActionCall {
    /// Action.
    pub action: ActionId,
    /// Arguments.
    pub data: ActionData,
}

/// Handle of an action profile member. As in BMv2, a new member gets the lowest free number. The numbers determine the order
/// in which a group selects its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberHandle(pub u32);

/// Handle of an action selector group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupHandle(pub u32);

/// Target of a match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Action of the entry.
    Action(ActionCall),
    /// Member of the table's action profile.
    Member(MemberHandle),
    /// Group of the table's action selector: a hash over the packet selects the member.
    Group(GroupHandle),
}

/// Handle of a table entry. If an index is reused, the generation differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryHandle {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl EntryHandle {
    /// Index of the entry, below the table's size. As in BMv2, a new entry gets the lowest free index. State outside of
    /// the table uses this index; the direct meter of the entry is in [`EntryState`].
    #[must_use]
    pub fn index(self) -> u32 {
        self.index
    }

    /// Number of previous entries with this index.
    #[must_use]
    pub fn generation(self) -> u32 {
        self.generation
    }

    /// Handle in the format of BMv2 and its Thrift clients: 8 bits of generation above 24 bits of index.
    #[must_use]
    pub fn to_bmv2(self) -> u32 {
        (self.generation << 24) | (self.index & 0x00ff_ffff)
    }
}

/// State of an entry that the packet path updates. All versions of the table share the state, so no count is lost when the
/// entry or the table changes.
#[derive(Debug, Default)]
pub struct EntryState {
    packets: AtomicU64,
    bytes: AtomicU64,
    last_hit_ms: AtomicU64,
    timeout_ms: AtomicU64,
    meter: Mutex<Meter>,
}

impl EntryState {
    /// Creates a state with zero counts and a last hit at `now_ms`.
    ///
    /// `now_ms` is in milliseconds on a monotonic clock; a `timeout_ms` of 0 disables the timeout.
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

    /// Records a hit for the idle timeout.
    #[inline]
    pub fn record_hit(&self, now_ms: u64) {
        // Only the first hit within a millisecond writes, which avoids cache line contention between cores.
        if self.last_hit_ms.load(Ordering::Relaxed) < now_ms {
            self.last_hit_ms.store(now_ms, Ordering::Relaxed);
        }
    }

    /// Counted packets and bytes.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (
            self.packets.load(Ordering::Relaxed),
            self.bytes.load(Ordering::Relaxed),
        )
    }

    /// Sets the counts, for the control plane.
    pub fn set_counts(&self, packets: u64, bytes: u64) {
        self.packets.store(packets, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Accesses the direct meter of the entry.
    pub fn meter<T>(&self, access: impl FnOnce(&mut Meter) -> T) -> T {
        // A panic leaves the meter in the state before or after one packet.
        access(&mut self.meter.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Time of the last hit, ms.
    #[must_use]
    pub fn last_hit_ms(&self) -> u64 {
        self.last_hit_ms.load(Ordering::Relaxed)
    }

    /// Idle timeout, ms; 0 if the entry has no timeout.
    #[must_use]
    pub fn timeout_ms(&self) -> u64 {
        self.timeout_ms.load(Ordering::Relaxed)
    }

    /// Sets the idle timeout, which starts now, as in BMv2.
    pub fn set_timeout(&self, now_ms: u64, timeout_ms: u64) {
        self.timeout_ms.store(timeout_ms, Ordering::Relaxed);
        self.last_hit_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Whether the idle timeout has expired.
    #[must_use]
    pub fn is_idle(&self, now_ms: u64) -> bool {
        let timeout_ms = self.timeout_ms();
        timeout_ms > 0 && now_ms.saturating_sub(self.last_hit_ms()) >= timeout_ms
    }
}

/// Immutable table entry: a modified entry is a new object with the same handle and state.
#[derive(Clone, Debug)]
pub struct Entry {
    pub(super) handle: EntryHandle,
    pub(super) target: Target,
    pub(super) key: MatchKey,
    pub(super) state: Option<Arc<EntryState>>,
    pub(super) constant: bool,
}

impl Entry {
    /// Handle.
    #[must_use]
    pub fn handle(&self) -> EntryHandle {
        self.handle
    }

    /// Target of a match.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Match key.
    #[must_use]
    pub fn key(&self) -> &MatchKey {
        &self.key
    }

    /// Priority.
    #[must_use]
    pub fn priority(&self) -> Priority {
        self.key.priority()
    }

    /// State, in tables with counters, meters or timeouts.
    #[must_use]
    pub fn state(&self) -> Option<&EntryState> {
        self.state.as_deref()
    }

    /// State as a shared pointer that outlives the snapshot.
    #[must_use]
    pub fn shared_state(&self) -> Option<&Arc<EntryState>> {
        self.state.as_ref()
    }

    /// Whether the P4 program defines the entry, so it cannot be changed.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.constant
    }
}
