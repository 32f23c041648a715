//! Who has how many jobs waiting: each source's share, and who holds most of a rank.

use std::collections::HashMap;

use super::super::hashing::SourceHash;
use super::super::job::Source;
use super::super::rank::{PerRank, Rank};
use super::Node;
use super::arena::{Arena, Links, List};

/// Sources that have jobs waiting, in the order of how many for each rank. All operations are O(1): a count
/// changes by one, so a source moves to the neighbouring place.
pub(super) struct Holders {
    numbers: HashMap<Source, u32, SourceHash>,
    holders: Arena<Holder>,
    orders: PerRank<Order>,
}

struct Holder {
    source: Source,
    total: usize,
    of: PerRank<Held>,
}

/// What a source has of one rank: its jobs by arrival, and its place among the sources that have as many.
#[derive(Default)]
struct Held {
    jobs: List,
    place: Links,
}

/// `equals[n]` are the sources that have n jobs of the rank, the one that came to n last at the end.
#[derive(Default)]
struct Order {
    equals: Vec<List>,
    top: usize,
}

impl Holders {
    pub(super) fn new() -> Self {
        Self {
            numbers: HashMap::default(),
            holders: Arena::new(),
            orders: PerRank::default(),
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
    pub(super) fn add<J>(&mut self, nodes: &mut Arena<Node<J>>, id: u32, source: Source, rank: Rank) -> u32 {
        let holders = &mut self.holders;
        let number = *self.numbers.entry(source).or_insert_with(|| {
            holders.add(Holder {
                source,
                total: 0,
                of: PerRank::default(),
            })
        });
        if let Some(holder) = self.holders.get_mut(number) {
            holder.total += 1;
            let jobs = &mut holder.of.of_mut(rank).jobs;
            let before = jobs.len();
            jobs.push_back(nodes, id, |node| &mut node.held);
            self.move_place(number, rank, before, before + 1);
        }
        number
    }

    /// Forgets the job `id` of the source with this number.
    pub(super) fn remove<J>(&mut self, nodes: &mut Arena<Node<J>>, id: u32, number: u32, rank: Rank) {
        let Some(holder) = self.holders.get_mut(number) else {
            return;
        };
        holder.total -= 1;
        let (source, total) = (holder.source, holder.total);
        let jobs = &mut holder.of.of_mut(rank).jobs;
        let before = jobs.len();
        jobs.remove(nodes, id, |node| &mut node.held);
        self.move_place(number, rank, before, before - 1);
        if total == 0 {
            self.numbers.remove(&source);
            self.holders.remove(number);
        }
    }

    /// The newest job of the source that holds most of a rank; among equals, of the one that came to its
    /// count last.
    pub(super) fn newest_of_most(&self, rank: Rank) -> Option<u32> {
        let order = self.orders.of(rank);
        let holder = self.holders.get(order.equals.get(order.top)?.last()?)?;
        holder.of.of(rank).jobs.last()
    }

    fn move_place(&mut self, number: u32, rank: Rank, from: usize, to: usize) {
        let order = self.orders.of_mut(rank);
        if from > 0
            && let Some(equals) = order.equals.get_mut(from)
        {
            equals.remove(&mut self.holders, number, |holder| {
                &mut holder.of.of_mut(rank).place
            });
        }
        if to > 0 {
            if order.equals.len() <= to {
                order.equals.resize(to + 1, List::default());
            }
            if let Some(equals) = order.equals.get_mut(to) {
                equals.push_back(&mut self.holders, number, |holder| {
                    &mut holder.of.of_mut(rank).place
                });
            }
        }
        order.top = order.top.max(to);
        while order.top > 0 && order.equals.get(order.top).is_none_or(List::is_empty) {
            order.top -= 1;
        }
    }
}
