//! Who leaves a full queue first, and whose copy is worth having.

use super::job::{Priority, Ticket};

/// A job's rank in the order of shedding, which a greater one leaves first.
///
/// ```text
/// 0       immediate jobs of known sources
/// 1       immediate jobs of strangers, which their quota bounds
/// 2 .. 8  other jobs of known sources, level 1 to 7
/// 9       other jobs of strangers: what level they claim says nothing
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Rank(u8);

impl Rank {
    /// Ranks that there are.
    const COUNT: u8 = Priority::COUNT as u8 + 2;

    /// The best.
    pub(super) const BEST: Self = Self(0);

    /// Of a job of this level.
    pub(super) const fn new(level: Priority, stranger: bool) -> Self {
        Self(match (level.is_immediate(), stranger) {
            (true, false) => 0,
            (true, true) => 1,
            (false, false) => 1 + level.number(),
            (false, true) => Self::COUNT - 1,
        })
    }

    /// Of a job.
    pub(super) const fn of(ticket: &Ticket) -> Self {
        Self::new(ticket.level, ticket.stranger)
    }

    /// All of them, whose jobs leave first first.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).rev().map(Self)
    }
}

/// Something for each rank.
#[derive(Default)]
pub(super) struct PerRank<T>([T; Rank::COUNT as usize]);

impl<T> PerRank<T> {
    /// What belongs to a rank.
    pub(super) fn of(&self, rank: Rank) -> &T {
        #[allow(clippy::indexing_slicing)] // A rank is below COUNT: there is no other way to make one.
        &self.0[usize::from(rank.0)]
    }

    /// What belongs to a rank.
    pub(super) fn of_mut(&mut self, rank: Rank) -> &mut T {
        #[allow(clippy::indexing_slicing)] // As above.
        &mut self.0[usize::from(rank.0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_in_the_stated_order() {
        let known = Priority::all().map(|level| Rank::new(level, false));
        let mut ranks: Vec<_> = known.collect();
        ranks.insert(1, Rank::new(Priority::IMMEDIATE, true));
        ranks.push(Rank::new(Priority::URGENT, true));
        assert!(ranks.is_sorted());
        assert!(ranks.iter().rev().copied().eq(Rank::all()));
        let strangers = Priority::all().skip(1).map(|level| Rank::new(level, true));
        assert!(strangers.into_iter().all(|rank| rank == ranks[9]));
    }
}
