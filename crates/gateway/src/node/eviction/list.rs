//! Queues of devices in one slab.

use linewarden_protocol::ids::DeviceId;

/// The index that means "no entry".
pub(super) const NONE: u32 = u32::MAX;

/// A device in a queue; 24 B.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) device: DeviceId,
    /// The neighbor towards the head.
    pub(super) newer: u32,
    /// The neighbor towards the tail.
    pub(super) older: u32,
    /// The device's count of authentications at the last scan.
    pub(super) last_count: u32,
    /// State of the device in its policy.
    pub(super) policy_state: u8,
}

const _: () = assert!(size_of::<Entry>() == 24);

/// The entries of all queues; free entries are reused.
#[derive(Debug, Default)]
pub(super) struct Slab {
    entries: Vec<Entry>,
    free_indexes: Vec<u32>,
}

impl Slab {
    /// Adds an entry that is in no queue yet; returns its index.
    pub(super) fn add(&mut self, device: DeviceId, last_count: u32, policy_state: u8) -> u32 {
        let entry = Entry {
            device,
            newer: NONE,
            older: NONE,
            last_count,
            policy_state,
        };
        if let Some(index) = self.free_indexes.pop()
            && let Some(free_entry) = self.entries.get_mut(index as usize)
        {
            *free_entry = entry;
            return index;
        }
        self.entries.push(entry);
        u32::try_from(self.entries.len() - 1).unwrap_or(NONE)
    }

    /// Frees an entry that is in no queue.
    pub(super) fn remove(&mut self, index: u32) {
        self.free_indexes.push(index);
    }

    pub(super) fn get(&self, index: u32) -> Option<&Entry> {
        self.entries.get(index as usize)
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Entry> {
        self.entries.get_mut(index as usize)
    }

    /// Number of entries in queues.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free_indexes.len()
    }
}

/// A queue: entries are added at the head, and removed at any position.
#[derive(Debug)]
pub(super) struct List {
    head: u32,
    tail: u32,
    len: usize,
}

impl Default for List {
    fn default() -> Self {
        Self {
            head: NONE,
            tail: NONE,
            len: 0,
        }
    }
}

impl List {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn tail(&self) -> u32 {
        self.tail
    }

    pub(super) fn push(&mut self, slab: &mut Slab, index: u32) {
        if let Some(entry) = slab.get_mut(index) {
            (entry.newer, entry.older) = (NONE, self.head);
        }
        match slab.get_mut(self.head) {
            Some(head) => head.newer = index,
            None => self.tail = index,
        }
        self.head = index;
        self.len += 1;
    }

    /// Removes an entry from this queue.
    pub(super) fn unlink(&mut self, slab: &mut Slab, index: u32) {
        let Some(&Entry { newer, older, .. }) = slab.get(index) else {
            return;
        };
        match slab.get_mut(newer) {
            Some(entry) => entry.older = older,
            None => self.head = older,
        }
        match slab.get_mut(older) {
            Some(entry) => entry.newer = newer,
            None => self.tail = newer,
        }
        self.len -= 1;
    }
}
