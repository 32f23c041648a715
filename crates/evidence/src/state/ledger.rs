//! What the control plane has set, with the set hashes over it.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::fmt;

use super::ObjectDigest;
use crate::encoding::{Encoded, Entry, Object};
use crate::lthash::{DigestKind, LtHash};

/// What putting an entry has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// There was none with its identity.
    Added,
    /// It took the place of another one.
    Replaced,
    /// It was there.
    Same,
}

/// An entry whose place in memory is not as it was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryDrift {
    /// As it was measured; nothing if it was not.
    pub measured: Option<Entry>,
    /// As it lies in memory; nothing if it does not.
    pub found: Option<Entry>,
}

/// Identity → content. An identity is there once, so no element is ever in a sum twice.
type Entries = BTreeMap<Box<[u8]>, Box<[u8]>>;

#[derive(Clone, Debug, Default)]
struct Set {
    entries: Entries,
    hash: Box<LtHash>,
}

/// All objects that are no register arrays.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    sets: BTreeMap<Object, Set>,
    sum: Box<LtHash>,
}

impl Ledger {
    pub const fn sum(&self) -> &LtHash {
        &self.sum
    }

    pub fn put(&mut self, object: Object, encoded: Encoded) -> Put {
        let set = self.sets.entry(object).or_default();
        let Encoded { identity, content } = encoded;
        match set.entries.entry(identity) {
            btree_map::Entry::Occupied(there) if *there.get() == content => Put::Same,
            btree_map::Entry::Occupied(mut there) => {
                let old = [&**there.key(), &**there.get()].concat();
                let new = [&**there.key(), &*content].concat();
                there.insert(content);
                LtHash::exchange(&mut [&mut set.hash, &mut self.sum], Some(&old), Some(&new));
                Put::Replaced
            }
            btree_map::Entry::Vacant(place) => {
                let new = [&**place.key(), &*content].concat();
                place.insert(content);
                LtHash::exchange(&mut [&mut set.hash, &mut self.sum], None, Some(&new));
                Put::Added
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

    /// The objects whose hash is not that of their entries.
    pub fn damaged(&self) -> impl Iterator<Item = Object> + '_ {
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

    /// Whether the sum is that of the objects' hashes.
    pub fn is_summed(&self) -> bool {
        let mut sum = LtHash::EMPTY;
        self.sets.values().for_each(|set| sum.add_all(&set.hash));
        sum == *self.sum
    }

    /// What lies in memory otherwise than it was measured. An entry that lies there twice is told with its second place.
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
        for found in found {
            let Encoded { identity, content } = found.encode_parts();
            let measured = missing.remove(&*identity);
            if measured != Some(&*content) {
                drifts.push(EntryDrift {
                    measured: measured.and_then(|content| decoded(&identity, content)),
                    found: Some(found),
                });
            }
        }
        drifts.extend(missing.into_iter().map(|(identity, content)| EntryDrift {
            measured: decoded(identity, content),
            found: None,
        }));
        drifts
    }
}

/// An entry of the ledger's, which the encoder wrote.
fn decoded(identity: &[u8], content: &[u8]) -> Option<Entry> {
    Entry::decode(&[identity, content].concat()).ok()
}

impl fmt::Display for EntryDrift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.measured, &self.found) {
            (Some(measured), Some(found)) => write!(
                f,
                "{}, {}: measured as {}, in memory {}",
                found.object(),
                found.which(),
                measured.what(),
                found.what()
            ),
            (None, Some(found)) => write!(
                f,
                "{}, {}: in memory {}, not measured",
                found.object(),
                found.which(),
                found.what()
            ),
            (Some(measured), None) => write!(
                f,
                "{}, {}: measured as {}, not in memory",
                measured.object(),
                measured.which(),
                measured.what()
            ),
            // No comparison gives it.
            (None, None) => f.write_str("nothing"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::{PortSetting, ValueSetMember};
    use crate::lthash::Expansion;

    /// A bit of the hashes' own memory that has turned.
    #[test]
    fn a_hash_that_is_not_of_its_entries_is_told() {
        let mut ledger = Ledger::default();
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
            ledger.put(entry.object(), entry.encode_parts());
        }
        assert_eq!(ledger.damaged().count(), 0);
        assert!(ledger.is_summed());
        let stray = Expansion::of(b"stray");
        ledger.sum.add(&stray);
        assert_eq!(ledger.damaged().count(), 0);
        assert!(!ledger.is_summed());
        ledger.sets.get_mut(&member.object()).unwrap().hash.add(&stray);
        assert!(ledger.damaged().eq([member.object()]));
        assert!(ledger.is_summed());
    }
}
