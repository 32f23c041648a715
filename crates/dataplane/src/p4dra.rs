//! Parts of `p4dra-classic` (LAP/1 3.1) that all backends share: provers in memory, rounds, and verdicts.
//!
//! The provers come from the configuration and never change. Packet paths write only the verdicts, by
//! compare-and-swap.

mod request_sender;
pub(crate) mod settings;
pub(crate) mod table;

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use linewarden_protocol::classic::p4dra::{ProverId, Round, Template, swap_word_bytes};

pub(crate) use self::request_sender::P4draRequestSender;
use self::settings::P4dra;
use self::table::{id_words, probes};
use crate::config::Config;
use crate::layout::{P4draProver, P4draRounds};
use crate::store::{Region, prefetch, wire_word};

/// The arrays that packet paths work on.
#[derive(Debug)]
pub struct P4draRegions {
    /// A table with open addressing. The number of places is a power of two.
    pub provers: Region<P4draProver>,
    /// An array with one element.
    pub rounds: Region<P4draRounds>,
}

/// `r` or `n` in wire order, loaded natively.
pub(crate) fn round_word(value: [u8; 8]) -> u64 {
    wire_word(swap_word_bytes(value))
}

impl P4draRegions {
    /// Allocates zeroed private memory.
    ///
    /// # Errors
    /// Errors of `mmap`.
    pub(crate) fn anonymous(places: usize) -> std::io::Result<Self> {
        Ok(Self {
            provers: Region::anonymous(places)?,
            rounds: Region::anonymous(1)?,
        })
    }

    /// The prover with that id, and its place in the table.
    #[inline]
    pub(crate) fn find(&self, id: &ProverId, seed: [u64; 2]) -> Option<(usize, &P4draProver)> {
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
    pub(crate) fn prefetch(&self, id: &ProverId, seed: [u64; 2]) {
        let place = probes(id, seed, self.provers.len()).next();
        if let Some(prover) = place.and_then(|place| self.provers.get(place)) {
            prefetch(prover);
        }
    }

    /// The count of that round, if it is open.
    #[inline]
    pub(crate) fn count(&self, round: &Round) -> Option<u64> {
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
    regions: Arc<P4draRegions>,
    seed: [u64; 2],
    /// Ids of the provers, in the order of the configuration.
    provers: Vec<ProverId>,
    /// Number of rounds so far.
    count: u64,
    /// The open rounds, by lane.
    open_rounds: [Option<Round>; 2],
}

impl P4draControl {
    /// Fills the memory that `regions` allocates for the given number of places, if the profile is configured, and logs
    /// a warning that the profile is insecure.
    pub(crate) fn new<E>(
        config: &Config,
        regions: impl FnOnce(usize) -> Result<P4draRegions, E>,
    ) -> Result<Option<Self>, E> {
        let Some(p4dra) = &config.p4dra else {
            return Ok(None);
        };
        let seed = config.geometry.hash_seed;
        let table = table::build(p4dra, seed).unwrap_or_default();
        let regions = regions(table.len())?;
        regions.fill(p4dra, &table);
        tracing::warn!(
            count = p4dra.provers.len(),
            "p4dra-classic is enabled; the protocol is insecure and only for measurement"
        );
        Ok(Some(Self {
            regions: Arc::new(regions),
            seed,
            provers: p4dra.provers.iter().map(|prover| prover.id).collect(),
            count: 0,
            open_rounds: [None; 2],
        }))
    }

    /// The memory that packet paths work on.
    #[must_use]
    pub fn regions(&self) -> &Arc<P4draRegions> {
        &self.regions
    }

    /// Number of provers.
    #[must_use]
    pub fn provers(&self) -> usize {
        self.provers.len()
    }

    /// The provers that are not ok in that round, in the order of the configuration; all of them if the round is not
    /// open.
    pub fn unproved(&self, round: &Round) -> impl Iterator<Item = &ProverId> {
        self.provers.iter().filter(|id| !self.is_proved(id, round))
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
