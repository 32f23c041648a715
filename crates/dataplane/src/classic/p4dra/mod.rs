//! `p4dra-classic` (LAP/1 3.1): provers in memory, rounds, verdicts, and verification of frames in memory.
//!
//! The provers come from the settings and never change. Packet paths write only the verdicts, by compare-and-swap.

mod host;
mod settings;
mod table;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use linewarden_protocol::classic::p4dra::{ProverId, Round, Template, swap_word_bytes};

pub use self::host::{P4draBatch, P4draHost};
pub use self::settings::{P4dra, P4draProver};

use self::table::{id_words, probes};
use super::layout::{P4draProverCell, P4draRounds};
use crate::store::{Region, prefetch, wire_word};

/// The arrays that packet paths work on.
#[derive(Debug)]
pub(super) struct P4draRegions {
    /// A table with open addressing. The number of places is a power of two.
    pub(super) provers: Region<P4draProverCell>,
    /// An array with one element.
    pub(super) rounds: Region<P4draRounds>,
}

/// `r` or `n` in wire order, loaded natively.
fn round_word(value: [u8; 8]) -> u64 {
    wire_word(swap_word_bytes(value))
}

impl P4draRegions {
    /// Allocates zeroed private memory.
    ///
    /// # Errors
    /// Errors of `mmap`.
    fn anonymous(places: usize) -> std::io::Result<Self> {
        Ok(Self {
            provers: Region::anonymous(places)?,
            rounds: Region::anonymous(1)?,
        })
    }

    /// The prover with that id, and its place in the table.
    #[inline]
    fn find(&self, id: &ProverId, seed: [u64; 2]) -> Option<(usize, &P4draProverCell)> {
        let [a, b] = id_words(id);
        for place in probes(id, seed, self.provers.len()) {
            let prover = self.provers.get(place)?;
            if prover.used.load(Relaxed) == 0 {
                return None;
            }
            let [stored_a, stored_b] = &prover.id;
            if stored_a.load(Relaxed) == a && stored_b.load(Relaxed) == b {
                return Some((place, prover));
            }
        }
        None
    }

    /// Prefetches the first place where the prover may be stored.
    #[inline]
    fn prefetch(&self, id: &ProverId, seed: [u64; 2]) {
        let place = probes(id, seed, self.provers.len()).next();
        if let Some(prover) = place.and_then(|place| self.provers.get(place)) {
            prefetch(prover);
        }
    }

    /// The count of that round, if it is open.
    #[inline]
    fn count(&self, round: &Round) -> Option<u64> {
        let (r, n) = (round_word(round.r), round_word(round.n));
        let lanes = &self.rounds.first()?.lane;
        lanes.iter().find_map(|cells| {
            let count = cells.count.load(Acquire);
            let is_requested = count != 0 && cells.r.load(Acquire) == r && cells.n.load(Acquire) == n;
            // If the count changed, the values may belong to another round.
            (is_requested && cells.count.load(Acquire) == count).then_some(count)
        })
    }

    fn fill(&self, p4dra: &P4dra, table: &[Option<usize>]) {
        let places = self.provers.iter().zip(table);
        for (cells, index) in places.filter_map(|(cells, index)| Some((cells, (*index)?))) {
            let Some(prover) = p4dra.provers.get(index) else {
                continue;
            };
            for (cell, word) in cells.id.iter().zip(id_words(&prover.id)) {
                cell.store(word, Relaxed);
            }
            let template = Template::new(&prover.key, &prover.id, &prover.configuration_hash);
            for (cell, word) in cells.matrix.iter().zip(template.words()) {
                cell.store(*word, Relaxed);
            }
            cells.used.store(1, Release);
        }
    }
}

/// Opens rounds in shared memory and reads the verdicts.
#[derive(Debug)]
pub struct P4draControl {
    regions: P4draRegions,
    seed: [u64; 2],
    /// Number of rounds so far.
    count: u64,
    /// The open rounds, by lane.
    open_rounds: [Option<Round>; 2],
}

impl P4draControl {
    /// Fills zeroed memory, which has one place for each element of `table`.
    pub(super) fn new(p4dra: &P4dra, seed: [u64; 2], table: &[Option<usize>], regions: P4draRegions) -> Self {
        regions.fill(p4dra, table);
        Self {
            regions,
            seed,
            count: 0,
            open_rounds: [None; 2],
        }
    }

    /// Opens a round, which replaces the open round in the same lane. Returns `false` without a change if the round is
    /// already open. `r` and `n` must be random, otherwise a prover could reuse an earlier proof.
    #[must_use]
    pub fn open_round(&mut self, round: Round) -> bool {
        if self.open_rounds.contains(&Some(round)) {
            return false;
        }
        let count = self.count + 1;
        let lane = usize::from(count & 1 == 1);
        let lanes = self.regions.rounds.first().map(|rounds| &rounds.lane);
        let (Some(cells), Some(open)) = (
            lanes.and_then(|lanes| lanes.get(lane)),
            self.open_rounds.get_mut(lane),
        ) else {
            return false;
        };
        cells.count.store(0, Release);
        cells.r.store(round_word(round.r), Release);
        cells.n.store(round_word(round.n), Release);
        cells.count.store(count, Release);
        self.count = count;
        *open = Some(round);
        true
    }

    /// Whether that prover is ok in that round, if the round is still open.
    #[must_use]
    pub fn is_proved(&self, id: &ProverId, round: &Round) -> bool {
        let (prover, count) = (self.regions.find(id, self.seed), self.regions.count(round));
        let (Some((_, prover)), Some(count)) = (prover, count) else {
            return false;
        };
        let word = prover.proved.get(usize::from(count & 1 == 1));
        word.is_some_and(|word| word.load(Acquire) == count)
    }
}
