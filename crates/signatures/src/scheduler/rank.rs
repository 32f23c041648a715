//! Ranks of jobs: the order in which a full queue sheds jobs. Ranks also decide which copies are dropped.

use super::job::{JobEntry, Priority};

/// A job's rank in the shedding order: jobs of greater ranks are shed first.
///
/// ```text
/// 0       immediate jobs of known senders
/// 1       immediate jobs of unknown senders, bounded by their quota
/// 2 .. 8  other jobs of known senders, level 1 to 7
/// 9       other jobs of unknown senders, at any claimed level
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Rank(u8);

impl Rank {
    /// Number of ranks.
    const COUNT: u8 = Priority::COUNT as u8 + 2;

    /// The rank that is shed last.
    pub(super) const BEST: Self = Self(0);

    /// The rank of a job with this level.
    pub(super) const fn new(level: Priority, is_unknown: bool) -> Self {
        Self(match (level.is_immediate(), is_unknown) {
            (true, false) => 0,
            (true, true) => 1,
            (false, false) => 1 + level.number(),
            (false, true) => Self::COUNT - 1,
        })
    }

    /// The rank of a job.
    pub(super) const fn of(entry: &JobEntry) -> Self {
        Self::new(entry.level, entry.is_unknown_sender)
    }

    /// All ranks, in shedding order.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).rev().map(Self)
    }
}

/// A value for each rank.
#[derive(Default)]
pub(super) struct PerRank<T>([T; Rank::COUNT as usize]);

impl<T> PerRank<T> {
    /// The value of a rank.
    pub(super) fn of(&self, rank: Rank) -> &T {
        #[allow(clippy::indexing_slicing)] // A rank is below COUNT by construction.
        &self.0[usize::from(rank.0)]
    }

    /// The value of a rank.
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
        let unknown = Priority::all().skip(1).map(|level| Rank::new(level, true));
        assert!(unknown.into_iter().all(|rank| rank == ranks[9]));
    }
}
