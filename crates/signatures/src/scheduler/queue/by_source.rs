//! Waiting jobs by source: the share of each source, and the source with the most jobs of a rank.

use std::collections::HashMap;

use super::super::hashing::SourceHash;
use super::super::job::Source;
use super::super::rank::{PerRank, Rank};
use super::arena::{Arena, Links, List};
use super::node::Node;

/// Sources with waiting jobs, ordered by the number of jobs for each rank. All operations are O(1): a count
/// changes by one, so a source moves to the neighboring list.
pub(super) struct JobsBySource {
    numbers: HashMap<Source, u32, SourceHash>,
    entries: Arena<SourceEntry>,
    orders: PerRank<CountOrder>,
}

struct SourceEntry {
    source: Source,
    total: usize,
    by_rank: PerRank<SourceJobs>,
}

/// A source's jobs of one rank by arrival, and its position among the sources with as many such jobs.
#[derive(Default)]
struct SourceJobs {
    jobs: List,
    position: Links,
}

/// `by_count[n]` lists the sources with n jobs of the rank, in the order of the latest change of the count. `top` is
/// the greatest n of any source.
#[derive(Default)]
struct CountOrder {
    by_count: Vec<List>,
    top: usize,
}

impl JobsBySource {
    pub(super) fn new() -> Self {
        Self {
            numbers: HashMap::default(),
            entries: Arena::new(),
            orders: PerRank::default(),
        }
    }

    /// Waiting jobs of a source.
    pub(super) fn total(&self, source: Source) -> usize {
        let entry = self
            .numbers
            .get(&source)
            .and_then(|&number| self.entries.get(number));
        entry.map_or(0, |entry| entry.total)
    }

    /// Adds the job `id` of a source; returns the number of the source, to be kept with the job.
    pub(super) fn add<J>(&mut self, nodes: &mut Arena<Node<J>>, id: u32, source: Source, rank: Rank) -> u32 {
        let entries = &mut self.entries;
        let number = *self.numbers.entry(source).or_insert_with(|| {
            entries.add(SourceEntry {
                source,
                total: 0,
                by_rank: PerRank::default(),
            })
        });
        if let Some(entry) = self.entries.get_mut(number) {
            entry.total += 1;
            let jobs = &mut entry.by_rank.of_mut(rank).jobs;
            let count = jobs.len();
            jobs.push_back(nodes, id, |node| &mut node.source_link);
            self.move_source(number, rank, count, count + 1);
        }
        number
    }

    /// Removes the job `id` of the source with this number.
    pub(super) fn remove<J>(&mut self, nodes: &mut Arena<Node<J>>, id: u32, number: u32, rank: Rank) {
        let Some(entry) = self.entries.get_mut(number) else {
            return;
        };
        entry.total -= 1;
        let (source, total) = (entry.source, entry.total);
        let jobs = &mut entry.by_rank.of_mut(rank).jobs;
        let count = jobs.len();
        jobs.remove(nodes, id, |node| &mut node.source_link);
        self.move_source(number, rank, count, count - 1);
        if total == 0 {
            self.numbers.remove(&source);
            self.entries.remove(number);
        }
    }

    /// The newest job of the source with the most jobs of a rank; among sources with equally many jobs, of the source
    /// whose count changed most recently.
    pub(super) fn newest_job_of_largest_source(&self, rank: Rank) -> Option<u32> {
        let order = self.orders.of(rank);
        let entry = self.entries.get(order.by_count.get(order.top)?.last()?)?;
        entry.by_rank.of(rank).jobs.last()
    }

    fn move_source(&mut self, number: u32, rank: Rank, old_count: usize, new_count: usize) {
        let order = self.orders.of_mut(rank);
        if old_count > 0
            && let Some(sources) = order.by_count.get_mut(old_count)
        {
            sources.remove(&mut self.entries, number, |entry| {
                &mut entry.by_rank.of_mut(rank).position
            });
        }
        if new_count > 0 {
            if order.by_count.len() <= new_count {
                order.by_count.resize(new_count + 1, List::default());
            }
            if let Some(sources) = order.by_count.get_mut(new_count) {
                sources.push_back(&mut self.entries, number, |entry| {
                    &mut entry.by_rank.of_mut(rank).position
                });
            }
        }
        order.top = order.top.max(new_count);
        while order.top > 0 && order.by_count.get(order.top).is_none_or(List::is_empty) {
            order.top -= 1;
        }
    }
}
