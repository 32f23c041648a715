//! Interface of the search structures of a table.

use super::entry::Entry;
use super::key::MatchKey;
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
