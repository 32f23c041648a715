//! Who has how many jobs waiting: each source's share, and who holds most on a level.

use std::collections::HashMap;

use super::super::hashing::SourceHash;
use super::super::job::{PerPriority, Priority, Source};
use super::Node;
use super::arena::{Arena, Links, List};

/// Sources that have jobs waiting, ranked on each level by how many. All operations are O(1): a count changes
/// by one, so a source moves to the neighbouring rank.
pub(super) struct Holders {
    numbers: HashMap<Source, u32, SourceHash>,
    holders: Arena<Holder>,
    ranks: PerPriority<Ranks>,
}

struct Holder {
    source: Source,
    total: usize,
    on: PerPriority<Held>,
}

/// What a source has on one level: its jobs by arrival, and its place among the sources that have as many.
#[derive(Default)]
struct Held {
    jobs: List,
    rank: Links,
}

/// `equals[n]` are the sources that have n jobs on the level, the one that came to n last at the end.
#[derive(Default)]
struct Ranks {
    equals: Vec<List>,
    top: usize,
}

impl Holders {
    pub(super) fn new() -> Self {
        Self {
            numbers: HashMap::default(),
            holders: Arena::new(),
            ranks: PerPriority::default(),
        }
    }

    /// Jobs that a source has waiting.
    pub(super) fn total(&self, source: Source) -> usize {
        let holder = self
            .numbers
            .get(&source)
            .and_then(|&number| self.holders.get(number));
        holder.map_or(0, |holder| holder.total)
    }

    /// Notes the new job `id` of a source; returns the source's number, to be kept with the job.
    pub(super) fn add<J>(
        &mut self,
        nodes: &mut Arena<Node<J>>,
        id: u32,
        source: Source,
        level: Priority,
    ) -> u32 {
        let holders = &mut self.holders;
        let number = *self.numbers.entry(source).or_insert_with(|| {
            holders.add(Holder {
                source,
                total: 0,
                on: PerPriority::default(),
            })
        });
        if let Some(holder) = self.holders.get_mut(number) {
            holder.total += 1;
            let jobs = &mut holder.on.of_mut(level).jobs;
            let before = jobs.len();
            jobs.push_back(nodes, id, |node| &mut node.held);
            self.move_rank(number, level, before, before + 1);
        }
        number
    }

    /// Forgets the job `id` of the source with this number.
    pub(super) fn remove<J>(&mut self, nodes: &mut Arena<Node<J>>, id: u32, number: u32, level: Priority) {
        let Some(holder) = self.holders.get_mut(number) else {
            return;
        };
        holder.total -= 1;
        let (source, total) = (holder.source, holder.total);
        let jobs = &mut holder.on.of_mut(level).jobs;
        let before = jobs.len();
        jobs.remove(nodes, id, |node| &mut node.held);
        self.move_rank(number, level, before, before - 1);
        if total == 0 {
            self.numbers.remove(&source);
            self.holders.remove(number);
        }
    }

    /// The newest job of the source that holds most on a level; among equals, of the one that came to its
    /// count last.
    pub(super) fn newest_of_most(&self, level: Priority) -> Option<u32> {
        let ranks = self.ranks.of(level);
        let holder = self.holders.get(ranks.equals.get(ranks.top)?.last()?)?;
        holder.on.of(level).jobs.last()
    }

    fn move_rank(&mut self, number: u32, level: Priority, from: usize, to: usize) {
        let ranks = self.ranks.of_mut(level);
        if from > 0
            && let Some(equals) = ranks.equals.get_mut(from)
        {
            equals.remove(&mut self.holders, number, |holder| {
                &mut holder.on.of_mut(level).rank
            });
        }
        if to > 0 {
            if ranks.equals.len() <= to {
                ranks.equals.resize(to + 1, List::default());
            }
            if let Some(equals) = ranks.equals.get_mut(to) {
                equals.push_back(&mut self.holders, number, |holder| {
                    &mut holder.on.of_mut(level).rank
                });
            }
        }
        ranks.top = ranks.top.max(to);
        while ranks.top > 0 && ranks.equals.get(ranks.top).is_none_or(List::is_empty) {
            ranks.top -= 1;
        }
    }
}
