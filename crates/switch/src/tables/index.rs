//! Interface of the search structures of a table.

use super::entry::Entry;
use super::exact::{ExactBytes, ExactWords};
use super::hash::HashSeed;
use super::key::{KeySpec, MatchKey, MatchType};
use super::trie::PrefixTrie;
use super::tuples::TupleSpace;
use std::sync::Arc;

/// Entries of a table by index; `None` for free indices.
pub(super) type EntriesByIndex = Vec<Option<Arc<Entry>>>;

/// Search structure over entries. The table guarantees the preconditions: keys have the correct form and length, an entry to
/// add is absent, an entry to remove or replace is present.
pub(super) trait SearchStructure: Send + Sync {
    /// Best matching entry for a packet's key.
    fn lookup<'a>(&'a self, key: &[u8], entries: &'a EntriesByIndex) -> Option<&'a Arc<Entry>>;

    /// Index of the entry with exactly this match key.
    fn find_key(&self, key: &MatchKey) -> Option<u32>;

    /// Adds an entry.
    fn add_entry(&mut self, entry: &Arc<Entry>);

    /// Removes an entry.
    fn remove_entry(&mut self, entry: &Entry);

    /// Replaces the entry with the same key and index.
    fn replace(&mut self, entry: &Arc<Entry>);

    /// Copies the structure; the entries are shared.
    fn boxed_clone(&self) -> Box<dyn SearchStructure>;
}

/// Creates the structure that suits a key.
pub(super) fn for_key(spec: &KeySpec, seed: &HashSeed) -> Box<dyn SearchStructure> {
    let seed = seed.clone();
    match (spec.match_type(), spec.bytes()) {
        (MatchType::Exact, ..=8) => Box::new(ExactWords::<1>::new(seed)),
        (MatchType::Exact, ..=16) => Box::new(ExactWords::<2>::new(seed)),
        (MatchType::Exact, _) => Box::new(ExactBytes::new(seed)),
        (MatchType::Lpm, ..=8) => Box::new(PrefixTrie::<1>::new(spec)),
        (MatchType::Lpm, ..=16) => Box::new(PrefixTrie::<2>::new(spec)),
        (MatchType::Lpm, ..=32) => Box::new(PrefixTrie::<4>::new(spec)),
        (MatchType::Lpm, _) => Box::new(PrefixTrie::<32>::new(spec)),
        (MatchType::Ternary | MatchType::Range, ..=8) => Box::new(TupleSpace::<1>::new(seed)),
        (MatchType::Ternary | MatchType::Range, ..=16) => Box::new(TupleSpace::<2>::new(seed)),
        (MatchType::Ternary | MatchType::Range, ..=32) => Box::new(TupleSpace::<4>::new(seed)),
        (MatchType::Ternary | MatchType::Range, ..=64) => Box::new(TupleSpace::<8>::new(seed)),
        (MatchType::Ternary | MatchType::Range, _) => Box::new(TupleSpace::<32>::new(seed)),
    }
}
