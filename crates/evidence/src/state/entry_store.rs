//! The entries set by the control plane, with set hashes over them.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::fmt;

use crate::encoding::{Encoded, Entry, Object};
use crate::lthash::{Digest, DigestKind, LtHash};

/// The digest of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectDigest {
    /// The object.
    pub object: Object,
    /// The digest of the object's entries, or of its nonzero cells.
    pub digest: Digest,
    /// Number of these entries or cells.
    pub entries: u64,
    /// Whether the object is a register array excluded from the registers' digest.
    pub is_volatile: bool,
}

/// The result of putting an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// There was no entry with this identity.
    Added,
    /// The entry replaced another entry with this identity.
    Replaced,
    /// The entry was present already.
    Unchanged,
}

/// An entry whose memory differs from the measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryDrift {
    /// The measured entry; `None` if the entry was not measured.
    pub measured: Option<Entry>,
    /// The entry in memory; `None` if the entry is missing there.
    pub in_memory: Option<Entry>,
}

/// Identity → content. Each identity occurs once, so no element is in a sum twice.
type Entries = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// The entries of one object, with their set hash.
#[derive(Clone, Debug, Default)]
struct Set {
    entries: Entries,
    hash: Box<LtHash>,
}

/// All objects except register arrays.
#[derive(Clone, Debug, Default)]
pub(super) struct EntryStore {
    sets: BTreeMap<Object, Set>,
    /// The set hash over the entries of all objects.
    sum: Box<LtHash>,
}

impl EntryStore {
    pub const fn sum(&self) -> &LtHash {
        &self.sum
    }

    pub fn put(&mut self, object: Object, encoded: Encoded) -> PutOutcome {
        let set = self.sets.entry(object).or_default();
        let Encoded { identity, content } = encoded;
        match set.entries.entry(identity) {
            btree_map::Entry::Occupied(occupied) if *occupied.get() == content => PutOutcome::Unchanged,
            btree_map::Entry::Occupied(mut occupied) => {
                let old = [&**occupied.key(), &**occupied.get()].concat();
                let new = [&**occupied.key(), &*content].concat();
                occupied.insert(content);
                LtHash::exchange(&mut [&mut set.hash, &mut self.sum], Some(&old), Some(&new));
                PutOutcome::Replaced
            }
            btree_map::Entry::Vacant(vacant) => {
                let new = [&**vacant.key(), &*content].concat();
                vacant.insert(content);
                LtHash::exchange(&mut [&mut set.hash, &mut self.sum], None, Some(&new));
                PutOutcome::Added
            }
        }
    }

    pub fn remove(&mut self, object: &Object, identity: &[u8]) -> bool {
        let Some(set) = self.sets.get_mut(object) else {
            return false;
        };
        let Some((identity, content)) = set.entries.remove_entry(identity) else {
            return false;
        };
        let old = [identity, content].concat();
        LtHash::exchange(&mut [&mut set.hash, &mut self.sum], Some(&old), None);
        if set.entries.is_empty() {
            self.sets.remove(object);
        }
        true
    }

    pub fn clear(&mut self, object: &Object) -> usize {
        let Some(set) = self.sets.remove(object) else {
            return 0;
        };
        self.sum.remove_all(&set.hash);
        set.entries.len()
    }

    pub fn objects(&self) -> impl Iterator<Item = ObjectDigest> + '_ {
        self.sets.iter().map(|(object, set)| ObjectDigest {
            object: object.clone(),
            digest: set.hash.digest(DigestKind::Object),
            entries: set.entries.len().try_into().unwrap_or(u64::MAX),
            is_volatile: false,
        })
    }

    pub fn entries_of(&self, is_listed: impl Fn(&Object) -> bool) -> impl Iterator<Item = Encoded> {
        let sets = self.sets.iter().filter(move |(object, _)| is_listed(object));
        let entries = sets.flat_map(|(_, set)| &set.entries);
        entries.map(|(identity, content)| Encoded {
            identity: identity.clone(),
            content: content.clone(),
        })
    }

    /// The objects whose hash does not match their entries.
    pub fn damaged_objects(&self) -> impl Iterator<Item = Object> + '_ {
        let recomputed = |set: &Set| {
            let mut hash = LtHash::EMPTY;
            for (identity, content) in &set.entries {
                let entry = [&**identity, &**content].concat();
                LtHash::exchange(&mut [&mut hash], None, Some(&entry));
            }
            hash
        };
        let damaged = self
            .sets
            .iter()
            .filter(move |(_, set)| recomputed(set) != *set.hash);
        damaged.map(|(object, _)| object.clone())
    }

    /// Whether the sum matches the objects' hashes.
    pub fn is_sum_valid(&self) -> bool {
        let mut sum = LtHash::EMPTY;
        self.sets.values().for_each(|set| sum.add_all(&set.hash));
        sum == *self.sum
    }

    /// Differences between memory and measurement. An entry that occurs twice in memory is reported at
    /// its second occurrence, as not measured.
    pub fn compare(&self, object: &Object, found: impl IntoIterator<Item = Entry>) -> Vec<EntryDrift> {
        let mut missing: BTreeMap<&[u8], &[u8]> = match self.sets.get(object) {
            Some(set) => set
                .entries
                .iter()
                .map(|(id, content)| (&**id, &**content))
                .collect(),
            None => BTreeMap::new(),
        };
        let mut drifts = Vec::new();
        for entry in found {
            let Encoded { identity, content } = entry.encode_parts();
            let measured = missing.remove(&*identity);
            if measured != Some(&*content) {
                drifts.push(EntryDrift {
                    measured: measured.and_then(|content| decode_entry(&identity, content)),
                    in_memory: Some(entry),
                });
            }
        }
        drifts.extend(missing.into_iter().map(|(identity, content)| EntryDrift {
            measured: decode_entry(identity, content),
            in_memory: None,
        }));
        drifts
    }
}

/// Decodes an entry of the store, written by the encoder.
fn decode_entry(identity: &[u8], content: &[u8]) -> Option<Entry> {
    Entry::decode(&[identity, content].concat()).ok()
}

impl fmt::Display for EntryDrift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.measured, &self.in_memory) {
            (Some(measured), Some(in_memory)) => write!(
                f,
                "{}, {}: measured as {}, in memory {}",
                in_memory.object(),
                in_memory.entry_name(),
                measured.content_text(),
                in_memory.content_text()
            ),
            (None, Some(in_memory)) => write!(
                f,
                "{}, {}: in memory {}, not measured",
                in_memory.object(),
                in_memory.entry_name(),
                in_memory.content_text()
            ),
            (Some(measured), None) => write!(
                f,
                "{}, {}: measured as {}, not in memory",
                measured.object(),
                measured.entry_name(),
                measured.content_text()
            ),
            // Comparisons never produce this case.
            (None, None) => f.write_str("nothing"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::{PortSetting, ValueSetMember};
    use crate::lthash::Expansion;

    /// A flipped bit in the memory of the hashes.
    #[test]
    fn a_hash_that_does_not_match_its_entries_is_reported() {
        let mut store = EntryStore::default();
        let setting = |port| {
            Entry::from(PortSetting {
                port,
                queue: None,
                name: "up".to_owned(),
                value: 1,
            })
        };
        let member = Entry::from(ValueSetMember {
            set: "types".to_owned(),
            key: Vec::new(),
        });
        for entry in [setting(1), setting(2), member.clone()] {
            store.put(entry.object(), entry.encode_parts());
        }
        assert_eq!(store.damaged_objects().count(), 0);
        assert!(store.is_sum_valid());
        let stray = Expansion::of(b"stray");
        store.sum.add(&stray);
        assert_eq!(store.damaged_objects().count(), 0);
        assert!(!store.is_sum_valid());
        store.sets.get_mut(&member.object()).unwrap().hash.add(&stray);
        assert!(store.damaged_objects().eq([member.object()]));
        assert!(store.is_sum_valid());
    }
}
