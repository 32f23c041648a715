//! What the backends share of `p4dra-classic` (LAP/1 3.1): provers in memory, rounds, and who is ok.
//!
//! Provers are those of the configuration and never change. Packet paths write only who is ok, by compare-and-swap.

mod ask;

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use linewarden_protocol::classic::p4dra::{ProverId, Round, Template, sw};

pub(crate) use self::ask::P4draAsker;
use crate::config::{Config, P4dra};
use crate::layout::{P4DRA_PROBES, P4draProver, P4draRounds};
use crate::store::{Region, prefetch, table, wire_word};

/// The largest table, as a power of two.
const PLACES_MAX_LOG2: u32 = 28;

/// The arrays that packet paths work on.
#[derive(Debug)]
pub struct P4draRegions {
    /// A table with open addressing, as many places as a power of two.
    pub provers: Region<P4draProver>,
    /// One element.
    pub rounds: Region<P4draRounds>,
}

/// d as on the wire, loaded.
pub(crate) fn id_words(id: &ProverId) -> [u64; 2] {
    linewarden_protocol::keys::halves(&sw(id.0)).map(wire_word)
}

/// r or n likewise.
pub(crate) fn asked_word(value: [u8; 8]) -> u64 {
    wire_word(sw(value))
}

/// Where provers lie, by their number in the configuration: the smallest table, at most half full, in which none is farther
/// from its hash than packet paths look. `None`: there is none.
pub(crate) fn table(p4dra: &P4dra, seed: [u64; 2]) -> Option<Vec<Option<usize>>> {
    let least = (2 * p4dra.provers.len()).max(1).next_power_of_two();
    (least.trailing_zeros()..=PLACES_MAX_LOG2).find_map(|log2| {
        let mut places = vec![None; 1 << log2];
        for (number, prover) in p4dra.provers.iter().enumerate() {
            let mut tried = probes(&prover.id, seed, places.len());
            let free = tried.find(|place| places.get(*place).is_some_and(Option::is_none))?;
            if let Some(place) = places.get_mut(free) {
                *place = Some(number);
            }
        }
        Some(places)
    })
}

/// The places that a prover may lie in, first those that are looked at first.
fn probes(id: &ProverId, seed: [u64; 2], places: usize) -> impl Iterator<Item = usize> + use<> {
    let [a, b] = id_words(id);
    let first = table::hash(seed, a, b) as u32;
    (0..P4DRA_PROBES as u32).map(move |probe| first.wrapping_add(probe) as usize & (places - 1))
}

impl P4draRegions {
    /// Zeroed memory of the process's own.
    ///
    /// # Errors
    /// Those of `mmap`.
    pub(crate) fn anonymous(places: usize) -> std::io::Result<Self> {
        Ok(Self {
            provers: Region::anonymous(places)?,
            rounds: Region::anonymous(1)?,
        })
    }

    /// The prover of that id, and its place.
    #[inline]
    pub(crate) fn find(&self, id: &ProverId, seed: [u64; 2]) -> Option<(usize, &P4draProver)> {
        let [a, b] = id_words(id);
        for place in probes(id, seed, self.provers.len()) {
            let prover = self.provers.get(place)?;
            if prover.used.load(Relaxed) == 0 {
                return None;
            }
            let [held_a, held_b] = &prover.id;
            if held_a.load(Relaxed) == a && held_b.load(Relaxed) == b {
                return Some((place, prover));
            }
        }
        None
    }

    /// Has the first place where the prover may lie on its way from memory.
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
        let (r, n) = (asked_word(round.r), asked_word(round.n));
        let lanes = &self.rounds.first()?.lane;
        lanes.iter().find_map(|cells| {
            let count = cells.count.load(Acquire);
            let is_it = count != 0 && cells.r.load(Acquire) == r && cells.n.load(Acquire) == n;
            // Or the values may have been another round's.
            (is_it && cells.count.load(Acquire) == count).then_some(count)
        })
    }

    fn fill(&self, p4dra: &P4dra, table: &[Option<usize>]) {
        let taken = self.provers.iter().zip(table);
        for (cells, number) in taken.filter_map(|(cells, number)| Some((cells, (*number)?))) {
            let Some(prover) = p4dra.provers.get(number) else {
                continue;
            };
            for (cell, word) in cells.id.iter().zip(id_words(&prover.id)) {
                cell.store(word, Relaxed);
            }
            let template = Template::new(&prover.key, &prover.id, &prover.h);
            for (cell, word) in cells.matrix.iter().zip(template.words()) {
                cell.store(*word, Relaxed);
            }
            cells.used.store(1, Release);
        }
    }
}

/// Rounds in shared memory, as user space opens them.
#[derive(Debug)]
pub struct P4draControl {
    regions: Arc<P4draRegions>,
    seed: [u64; 2],
    /// In the configuration's order.
    provers: Vec<ProverId>,
    /// Rounds so far.
    count: u64,
    open: [Option<Round>; 2],
}

impl P4draControl {
    /// Fills the memory that `regions` makes for so many provers, if the profile is configured, and warns of it.
    pub(crate) fn new<E>(
        config: &Config,
        regions: impl FnOnce(usize) -> Result<P4draRegions, E>,
    ) -> Result<Option<Self>, E> {
        let Some(p4dra) = &config.p4dra else {
            return Ok(None);
        };
        let seed = config.geometry.hash_seed;
        let table = table(p4dra, seed).unwrap_or_default();
        let regions = regions(table.len())?;
        regions.fill(p4dra, &table);
        tracing::warn!(
            provers = p4dra.provers.len(),
            "p4dra-classic is on: insecure, for comparison and interoperation only"
        );
        Ok(Some(Self {
            regions: Arc::new(regions),
            seed,
            provers: p4dra.provers.iter().map(|prover| prover.id).collect(),
            count: 0,
            open: [None; 2],
        }))
    }

    /// The memory.
    #[must_use]
    pub fn regions(&self) -> &Arc<P4draRegions> {
        &self.regions
    }

    /// How many are asked.
    #[must_use]
    pub fn provers(&self) -> usize {
        self.provers.len()
    }

    /// Who is not ok in that round, in the configuration's order; everybody, if it is not open.
    pub fn silent(&self, round: &Round) -> impl Iterator<Item = &ProverId> {
        self.provers.iter().filter(|id| !self.is_proved(id, round))
    }

    /// Begins a round, in the place of the one before the last; `false`: it is open already, and nothing was changed. r and n
    /// are random, or a prover could have its proof from before.
    #[must_use]
    pub fn open_round(&mut self, round: Round) -> bool {
        if self.open.contains(&Some(round)) {
            return false;
        }
        let count = self.count + 1;
        let lane = usize::from(count & 1 == 1);
        let lanes = self.regions.rounds.first().map(|rounds| &rounds.lane);
        let (Some(cells), Some(open)) = (lanes.and_then(|lanes| lanes.get(lane)), self.open.get_mut(lane))
        else {
            return false;
        };
        cells.count.store(0, Release);
        cells.r.store(asked_word(round.r), Release);
        cells.n.store(asked_word(round.n), Release);
        cells.count.store(count, Release);
        self.count = count;
        *open = Some(round);
        true
    }

    /// Whether that prover is ok in that round, if it is open still.
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
