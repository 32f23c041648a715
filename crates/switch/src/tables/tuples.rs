//! Ternary and range matching by tuple space search (Srinivasan, Suri, Varghese, SIGCOMM 1999): the entries with equal mask
//! form a hash table, and a lookup searches these hash tables one by one.
//!
//! The hash tables are ordered by their best entry, so a lookup ends when no remaining hash table can contain a better entry.
//! A range
//! does not contribute to the mask; ranges are checked after the hash lookup. Entries that differ only in ranges are searched
//! in the order of their rank.

use super::entry::Entry;
use super::hash::HashSeed;
use super::index::{EntriesByIndex, SearchStructure};
use super::key::MatchKey;
use super::words::Words;
use hashbrown::HashMap;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Entry with its rank; the lowest rank wins.
#[derive(Clone)]
struct Ranked {
    rank: u64,
    entry: Arc<Entry>,
}

/// Entries with equal mask and value, best rank first.
type Cell = SmallVec<[Ranked; 1]>;

/// All entries with equal mask.
#[derive(Clone)]
struct Tuple<const N: usize> {
    mask: Words<N>,
    cells: HashMap<Words<N>, Cell, HashSeed>,
    /// Ranks of all entries, to find the best entry after a removal.
    ranks: BTreeSet<u64>,
}

#[derive(Clone)]
pub(super) struct TupleSpace<const N: usize> {
    tuples: Vec<Tuple<N>>,
    /// Rank of the best entry and index of each non-empty tuple, in order.
    order: Vec<(u64, u32)>,
    by_mask: HashMap<Words<N>, u32, HashSeed>,
    /// Indices of empty tuples.
    free_tuples: Vec<u32>,
    seed: HashSeed,
}

impl<const N: usize> TupleSpace<N> {
    pub(super) fn new(seed: HashSeed) -> Self {
        Self {
            tuples: Vec::new(),
            order: Vec::new(),
            by_mask: HashMap::with_hasher(seed.clone()),
            free_tuples: Vec::new(),
            seed,
        }
    }

    fn cell(&self, key: &MatchKey) -> Option<&Cell> {
        let index = *self.by_mask.get(&mask_of(key))?;
        self.tuples
            .get(index as usize)?
            .cells
            .get(&Words::load(key.value()))
    }

    /// Index of the tuple with this mask, created on demand.
    fn tuple_index(&mut self, mask: Words<N>) -> u32 {
        if let Some(index) = self.by_mask.get(&mask) {
            return *index;
        }
        let new_tuple = Tuple {
            mask,
            cells: HashMap::with_hasher(self.seed.clone()),
            ranks: BTreeSet::new(),
        };
        let index = match self.free_tuples.pop() {
            Some(index) => index,
            None => self.tuples.len() as u32,
        };
        match self.tuples.get_mut(index as usize) {
            Some(tuple) => *tuple = new_tuple,
            None => self.tuples.push(new_tuple),
        }
        self.by_mask.insert(mask, index);
        index
    }

    /// Changes the ranks of a tuple and restores the order of the tuples.
    fn reorder(&mut self, index: u32, change: impl FnOnce(&mut Tuple<N>)) {
        let Some(tuple) = self.tuples.get_mut(index as usize) else {
            return;
        };
        let old_best = tuple.ranks.first().copied();
        change(tuple);
        let new_best = tuple.ranks.first().copied();
        if old_best == new_best {
            return;
        }
        // Ranks are unique because they contain the index of the entry.
        if let Some(Ok(position)) =
            old_best.map(|rank| self.order.binary_search_by_key(&rank, |(rank, _)| *rank))
        {
            self.order.remove(position);
        }
        if let Some(rank) = new_best {
            let position = self.order.partition_point(|(other, _)| *other < rank);
            self.order.insert(position, (rank, index));
        } else {
            let mask = tuple.mask;
            tuple.cells = HashMap::with_hasher(self.seed.clone());
            self.by_mask.remove(&mask);
            self.free_tuples.push(index);
        }
    }
}

fn mask_of<const N: usize>(key: &MatchKey) -> Words<N> {
    Words::load(key.mask().unwrap_or_default())
}

impl<const N: usize> SearchStructure for TupleSpace<N> {
    fn lookup<'a>(&'a self, key: &[u8], _: &'a EntriesByIndex) -> Option<&'a Arc<Entry>> {
        let words = Words::<N>::load(key);
        let mut best: Option<&Ranked> = None;
        for (tuple_rank, index) in &self.order {
            if best.is_some_and(|best| best.rank < *tuple_rank) {
                break;
            }
            let Some(tuple) = self.tuples.get(*index as usize) else {
                continue;
            };
            let Some(cell) = tuple.cells.get(&words.and(&tuple.mask)) else {
                continue;
            };
            let is_better = |ranked: &&Ranked| best.is_none_or(|best| ranked.rank < best.rank);
            let candidate = cell
                .iter()
                .take_while(is_better)
                .find(|ranked| ranked.entry.key.in_ranges(key));
            best = candidate.or(best);
        }
        best.map(|ranked| &ranked.entry)
    }

    fn find_key(&self, key: &MatchKey) -> Option<u32> {
        let ranked = self.cell(key)?.iter().find(|ranked| ranked.entry.key == *key)?;
        Some(ranked.entry.handle.index)
    }

    fn add_entry(&mut self, entry: &Arc<Entry>) {
        let rank = entry.key.rank(entry.handle.index);
        let index = self.tuple_index(mask_of(&entry.key));
        self.reorder(index, |tuple| {
            let cell = tuple.cells.entry(Words::load(entry.key.value())).or_default();
            let position = cell.partition_point(|other| other.rank < rank);
            cell.insert(
                position,
                Ranked {
                    rank,
                    entry: entry.clone(),
                },
            );
            tuple.ranks.insert(rank);
        });
    }

    fn remove_entry(&mut self, entry: &Entry) {
        let rank = entry.key.rank(entry.handle.index);
        let Some(index) = self.by_mask.get(&mask_of(&entry.key)).copied() else {
            return;
        };
        self.reorder(index, |tuple| {
            let value = Words::load(entry.key.value());
            if let Some(cell) = tuple.cells.get_mut(&value) {
                cell.retain(|ranked| ranked.rank != rank);
                if cell.is_empty() {
                    tuple.cells.remove(&value);
                }
            }
            tuple.ranks.remove(&rank);
        });
    }

    fn replace(&mut self, entry: &Arc<Entry>) {
        let rank = entry.key.rank(entry.handle.index);
        let Some(index) = self.by_mask.get(&mask_of(&entry.key)) else {
            return;
        };
        let Some(tuple) = self.tuples.get_mut(*index as usize) else {
            return;
        };
        let cell = tuple.cells.get_mut(&Words::load(entry.key.value()));
        if let Some(ranked) = cell.and_then(|cell| cell.iter_mut().find(|ranked| ranked.rank == rank)) {
            ranked.entry.clone_from(entry);
        }
    }

    fn boxed_clone(&self) -> Box<dyn SearchStructure> {
        Box::new(self.clone())
    }
}
