//! Waiting jobs by source: the share of each source, and the source with the most jobs of a rank.

use std::collections::HashMap;

use super::super::hashing::SourceHash;
use super::super::job::Source;
use super::super::rank::{PerRank, Rank};
use super::Node;
use super::arena::{Arena, Links, List};

/// Sources with waiting jobs, ordered by the number of jobs for each rank. All operations are O(1): a count
/// changes by one, so a source moves to the neighboring list.
pub(super) struct JobsBySource {
    numbers: HashMap<Source, u32, SourceHash>,
    holders: Arena<SourceEntry>,
    orders: PerRank<CountOrder>,
}

struct SourceEntry {
    source: Source,
    total: usize,
    by_rank: PerRank<SourceJobs>,
}

/// A source's jobs of one rank by arrival, and its position among the sources with the same number.
#[derive(Default)]
struct SourceJobs {
    jobs: List,
    place: Links,
}

/// `equals[n]` lists the sources with n jobs of the rank, the latest change last.
#[derive(Default)]
struct CountOrder {
    equals: Vec<List>,
    top: usize,
}

impl JobsBySource {
    pub(super) fn new() -> Self {
        Self {
            numbers: HashMap::default(),
            holders: Arena::new(),
            orders: PerRank::default(),
        }
    }

    /// Waiting jobs of a source.
    pub(super) fn total(&self, source: Source) -> usize {
        let holder = self
            .numbers
            .get(&source)
            .and_then(|&number| self.holders.get(number));
        holder.map_or(0, |holder| holder.total)
    }

    /// Adds the job `id` of a source; returns the number of the source, to be kept with the job.
    pub(super) fn add<J>(&mut self, nodes: &mut Arena<Node<J>>, id: u32, source: Source, rank: Rank) -> u32 {
        let holders = &mut self.holders;
        let number = *self.numbers.entry(source).or_insert_with(|| {
            holders.add(SourceEntry {
                source,
                total: 0,
                by_rank: PerRank::default(),
            })
        });
        if let Some(holder) = self.holders.get_mut(number) {
            holder.total += 1;
            let jobs = &mut holder.by_rank.of_mut(rank).jobs;
            let before = jobs.len();
            jobs.push_back(nodes, id, |node| &mut node.source_link);
            self.move_place(number, rank, before, before + 1);
        }
        number
    }

    /// Removes the job `id` of the source with this number.
    pub(super) fn remove<J>(&mut self, nodes: &mut Arena<Node<J>>, id: u32, number: u32, rank: Rank) {
        let Some(holder) = self.holders.get_mut(number) else {
            return;
        };
        holder.total -= 1;
        let (source, total) = (holder.source, holder.total);
        let jobs = &mut holder.by_rank.of_mut(rank).jobs;
        let before = jobs.len();
        jobs.remove(nodes, id, |node| &mut node.source_link);
        self.move_place(number, rank, before, before - 1);
        if total == 0 {
            self.numbers.remove(&source);
            self.holders.remove(number);
        }
    }

    /// The newest job of the source with the most jobs of a rank; among equal sources, of the one whose
    /// count changed last.
    pub(super) fn newest_of_most(&self, rank: Rank) -> Option<u32> {
        let order = self.orders.of(rank);
        let holder = self.holders.get(order.equals.get(order.top)?.last()?)?;
        holder.by_rank.of(rank).jobs.last()
    }

    fn move_place(&mut self, number: u32, rank: Rank, from: usize, to: usize) {
        let order = self.orders.of_mut(rank);
        if from > 0
            && let Some(equals) = order.equals.get_mut(from)
        {
            equals.remove(&mut self.holders, number, |holder| {
                &mut holder.by_rank.of_mut(rank).place
            });
        }
        if to > 0 {
            if order.equals.len() <= to {
                order.equals.resize(to + 1, List::default());
            }
            if let Some(equals) = order.equals.get_mut(to) {
                equals.push_back(&mut self.holders, number, |holder| {
                    &mut holder.by_rank.of_mut(rank).place
                });
            }
        }
        order.top = order.top.max(to);
        while order.top > 0 && order.equals.get(order.top).is_none_or(List::is_empty) {
            order.top -= 1;
        }
    }
}
