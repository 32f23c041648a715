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
    /// State of the policy.
    pub(super) policy_state: u8,
}

const _: () = assert!(size_of::<Entry>() == 24);

/// The entries of all queues; free entries are reused.
#[derive(Debug, Default)]
pub(super) struct Slab {
    entries: Vec<Entry>,
    free: Vec<u32>,
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
        if let Some(at) = self.free.pop()
            && let Some(free_entry) = self.entries.get_mut(at as usize)
        {
            *free_entry = entry;
            return at;
        }
        self.entries.push(entry);
        u32::try_from(self.entries.len() - 1).unwrap_or(NONE)
    }

    /// Frees an entry that is in no queue.
    pub(super) fn remove(&mut self, at: u32) {
        self.free.push(at);
    }

    pub(super) fn get(&self, at: u32) -> Option<&Entry> {
        self.entries.get(at as usize)
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut Entry> {
        self.entries.get_mut(at as usize)
    }

    /// Number of entries in queues.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

/// A queue: entries are added at the head, and removed at the tail or anywhere.
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

    pub(super) fn push(&mut self, slab: &mut Slab, at: u32) {
        if let Some(entry) = slab.get_mut(at) {
            (entry.newer, entry.older) = (NONE, self.head);
        }
        match slab.get_mut(self.head) {
            Some(head) => head.newer = at,
            None => self.tail = at,
        }
        self.head = at;
        self.len += 1;
    }

    /// Removes an entry from this queue.
    pub(super) fn unlink(&mut self, slab: &mut Slab, at: u32) {
        let Some(&Entry { newer, older, .. }) = slab.get(at) else {
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
