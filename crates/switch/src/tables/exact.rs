//! Exact matching with a hash table.

use super::entry::Entry;
use super::hash::HashSeed;
use super::index::{EntriesByIndex, SearchStructure};
use super::key::MatchKey;
use super::words::Words;
use hashbrown::{HashMap, HashTable};
use std::hash::BuildHasher;
use std::sync::Arc;

/// Search structure for keys of at most `8 * N` bytes. A key is stored next to the pointer to its entry, so a lookup without a
/// match accesses no entry.
#[derive(Clone)]
pub(super) struct ExactWords<const N: usize> {
    entries: HashMap<Words<N>, Arc<Entry>, HashSeed>,
}

impl<const N: usize> ExactWords<N> {
    pub(super) fn new(seed: HashSeed) -> Self {
        Self {
            entries: HashMap::with_hasher(seed),
        }
    }
}

impl<const N: usize> SearchStructure for ExactWords<N> {
    #[inline]
    fn lookup<'a>(&'a self, key: &[u8], _: &'a EntriesByIndex) -> Option<&'a Arc<Entry>> {
        self.entries.get(&Words::load(key))
    }

    fn find_key(&self, key: &MatchKey) -> Option<u32> {
        self.entries
            .get(&Words::load(key.value()))
            .map(|entry| entry.handle.index)
    }

    fn add_entry(&mut self, entry: &Arc<Entry>) {
        self.entries.insert(Words::load(entry.key.value()), entry.clone());
    }

    fn remove_entry(&mut self, entry: &Entry) {
        self.entries.remove(&Words::load(entry.key.value()));
    }

    fn replace(&mut self, entry: &Arc<Entry>) {
        self.add_entry(entry);
    }

    fn boxed_clone(&self) -> Box<dyn SearchStructure> {
        Box::new(self.clone())
    }
}

/// Search structure for longer keys. A lookup compares the key with the keys stored in the entries.
#[derive(Clone)]
pub(super) struct ExactBytes {
    entries: HashTable<Arc<Entry>>,
    seed: HashSeed,
}

impl ExactBytes {
    pub(super) fn new(seed: HashSeed) -> Self {
        Self {
            entries: HashTable::new(),
            seed,
        }
    }

    fn find(&self, key: &[u8]) -> Option<&Arc<Entry>> {
        self.entries
            .find(self.seed.hash_one(key), |entry| entry.key.value() == key)
    }
}

impl SearchStructure for ExactBytes {
    fn lookup<'a>(&'a self, key: &[u8], _: &'a EntriesByIndex) -> Option<&'a Arc<Entry>> {
        self.find(key)
    }

    fn find_key(&self, key: &MatchKey) -> Option<u32> {
        self.find(key.value()).map(|entry| entry.handle.index)
    }

    fn add_entry(&mut self, entry: &Arc<Entry>) {
        let hash = self.seed.hash_one(entry.key.value());
        let seed = &self.seed;
        self.entries
            .insert_unique(hash, entry.clone(), |entry| seed.hash_one(entry.key.value()));
    }

    fn remove_entry(&mut self, entry: &Entry) {
        let key = entry.key.value();
        if let Ok(stored_entry) = self
            .entries
            .find_entry(self.seed.hash_one(key), |entry| entry.key.value() == key)
        {
            stored_entry.remove();
        }
    }

    fn replace(&mut self, entry: &Arc<Entry>) {
        let key = entry.key.value();
        if let Some(stored_entry) = self
            .entries
            .find_mut(self.seed.hash_one(key), |entry| entry.key.value() == key)
        {
            stored_entry.clone_from(entry);
        }
    }

    fn boxed_clone(&self) -> Box<dyn SearchStructure> {
        Box::new(self.clone())
    }
}
