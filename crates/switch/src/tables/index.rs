//! What every search structure offers to the table that owns it.

use super::entry::Entry;
use super::exact::{ExactBytes, ExactWords};
use super::hash::HashSeed;
use super::key::{KeySpec, MatchKey, MatchType};
use super::trie::PrefixTrie;
use super::tuples::TupleSpace;
use std::sync::Arc;

/// The entries of a table by index; `None` where none is.
pub(super) type Slots = Vec<Option<Arc<Entry>>>;

/// A search structure over entries. It trusts its table: keys have the right form and length, an entry that is linked
/// was not there before, one that is unlinked or exchanged was.
pub(super) trait Index: Send + Sync {
    /// The entry that wins for a packet's key.
    fn lookup<'a>(&'a self, key: &[u8], slots: &'a Slots) -> Option<&'a Arc<Entry>>;

    /// The index of the entry that asks for exactly this.
    fn same(&self, key: &MatchKey) -> Option<u32>;

    /// Takes an entry in.
    fn link(&mut self, entry: &Arc<Entry>);

    /// Takes an entry out.
    fn unlink(&mut self, entry: &Entry);

    /// Puts an entry in the place of one with the same key and index.
    fn exchange(&mut self, entry: &Arc<Entry>);

    /// A copy of the structure; the entries are shared.
    fn boxed_clone(&self) -> Box<dyn Index>;
}

/// The structure that fits a key.
pub(super) fn for_key(spec: &KeySpec, seed: &HashSeed) -> Box<dyn Index> {
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
