//! Provers in the memory that packet paths work on (LAP/1 3.2): keys ahead of their period, rounds, and who is ok.
//!
//! As with lines there is one writer of places and keys, this side; packet paths write only the words of who is ok, by
//! compare-and-swap.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use linewarden_protocol::attest::ProofKey;
use linewarden_protocol::gateway::{Configuration, OpenRound, Proved, ProverKeys};
use linewarden_protocol::ids::{DeviceId, Period, RoundNumber};

use super::geometry::power_of_two;
use super::place::{Homes, Places};
use super::{Place, Region, prefetch, table, wire_word};
use crate::layout::{AlternateKey, Bucket, KeyCells, OpenRounds, PROVER_WAYS, ProverHome, Round};

/// Set, in the word of a prover that is ok, where the configuration that is being rolled out was proven.
const ALTERNATE: u64 = 1 << 31;
/// The time that a proof took is kept in 2^20 ns, with 31 bits.
const ELAPSED_SHIFT: u32 = 20;

/// The word of a prover that is ok.
pub(crate) fn proved_word(number: u32, is_alternate: bool, elapsed_ns: u64) -> u64 {
    let elapsed = (elapsed_ns >> ELAPSED_SHIFT).min(ALTERNATE - 1);
    u64::from(number) << 32 | if is_alternate { ALTERNATE } else { 0 } | elapsed
}

/// Why a prover or a round is refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProverError {
    /// 0 is no device.
    #[error("device id 0 is reserved")]
    DeviceZero,
    /// Every slot holds a prover.
    #[error("no room for prover {0}: raise `provers`")]
    Full(DeviceId),
    /// A key whose first 8 bytes are zero stands for none (2^-64).
    #[error("prover {0}: a key begins with zero; begin the period with another salt")]
    ZeroKey(DeviceId),
    /// A round before its keys.
    #[error("no prover has a key of period {0}: install them before its first round")]
    PeriodUnknown(Period),
    /// Round numbers increase, from 1.
    #[error("round {0} is not above round {1}, the last that began: reserve numbers that were never used")]
    RoundNotAbove(RoundNumber, RoundNumber),
}

/// Sizes of the provers' memory and the key of its hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProverGeometry {
    /// Provers that fit; at least one.
    pub slots: u32,
    /// Random.
    pub hash_seed: [u64; 2],
}

impl ProverGeometry {
    /// Homes that ids are hashed to: half full at most, so that 90 % of the provers live at home (Poisson, one for two places),
    /// and in the mean 95 %.
    #[must_use]
    pub fn homes(&self) -> u32 {
        power_of_two(self.slots)
    }

    /// With those of who does not: an eighth more.
    #[must_use]
    pub fn all_homes(&self) -> u32 {
        self.homes() + (self.homes() / 8).max(4)
    }

    /// Buckets of the index of those who do not live at home: a quarter full at most.
    #[must_use]
    pub fn index_buckets(&self) -> u32 {
        power_of_two(self.slots / 8).max(16)
    }

    fn home(&self, hash: u64) -> u32 {
        hash as u32 & (self.homes() - 1)
    }

    fn index_mask(&self) -> u32 {
        self.index_buckets() - 1
    }

    fn hash(&self, device: DeviceId) -> u64 {
        table::hash(self.hash_seed, wire_word(device.0.to_be_bytes()), 0)
    }

    fn is_at_home(&self, hash: u64, place: u32) -> bool {
        place / PROVER_WAYS as u32 == self.home(hash)
    }

    fn table(&self) -> Homes {
        Homes {
            ways: PROVER_WAYS as u32,
            hashed: self.homes(),
            all: self.all_homes(),
            slots: self.slots,
        }
    }
}

/// The arrays that packet paths work on.
#[derive(Debug)]
pub struct ProverRegions {
    /// Homes of [`PROVER_WAYS`].
    pub homes: Region<ProverHome>,
    /// `slot * 2 + lane of the period`.
    pub alternates: Region<AlternateKey>,
    /// Device id to the place of a prover that is not at home.
    pub index: Region<Bucket>,
    /// One element.
    pub rounds: Region<OpenRounds>,
}

impl ProverRegions {
    /// Zeroed memory of the process's own.
    ///
    /// # Errors
    /// Those of `mmap`.
    pub fn anonymous(geometry: &ProverGeometry) -> std::io::Result<Self> {
        Ok(Self {
            homes: Region::anonymous_in_large_pages(geometry.all_homes() as usize)?,
            alternates: Region::anonymous(geometry.slots as usize * 2)?,
            index: Region::anonymous(geometry.index_buckets() as usize)?,
            rounds: Region::anonymous(1)?,
        })
    }

    /// The home, the way in it and the place of the prover whose id is `id` as loaded from the wire.
    #[inline]
    pub(crate) fn find(&self, geometry: &ProverGeometry, id: u64) -> Option<(&ProverHome, usize, u32)> {
        let hash = table::hash(geometry.hash_seed, id, 0);
        let at_home = geometry.home(hash);
        if let Some(home) = self.homes.get(at_home as usize)
            && let Some(way) = way_of(home, id)
        {
            return Some((home, way, at_home * PROVER_WAYS as u32 + way as u32));
        }
        self.find_elsewhere(geometry, id, hash)
    }

    #[cold]
    fn find_elsewhere(
        &self,
        geometry: &ProverGeometry,
        id: u64,
        hash: u64,
    ) -> Option<(&ProverHome, usize, u32)> {
        table::candidates(&self.index, geometry.index_mask(), hash)
            .filter_map(|place| self.home(place).map(|(home, way)| (home, way, place)))
            .find(|(home, way, _)| {
                home.device_id
                    .get(*way)
                    .is_some_and(|cell| cell.load(Acquire) == id)
            })
    }

    /// Has the home where the prover most likely is on its way from memory: who lives there, and the keys of one lane.
    #[inline]
    pub(crate) fn prefetch(&self, geometry: &ProverGeometry, id: u64, key_lane: u32) {
        let hash = table::hash(geometry.hash_seed, id, 0);
        if let Some(home) = self.homes.get(geometry.home(hash) as usize) {
            prefetch(&home.device_id);
            home.key.get(key_lane as usize & 1).into_iter().for_each(prefetch);
        }
    }

    pub(crate) fn home(&self, place: u32) -> Option<(&ProverHome, usize)> {
        let home = self.homes.get(place as usize / PROVER_WAYS)?;
        Some((home, place as usize % PROVER_WAYS))
    }
}

/// Provers in shared memory.
#[derive(Debug)]
pub struct Provers {
    regions: Arc<ProverRegions>,
    geometry: ProverGeometry,
    provers: HashMap<DeviceId, Place>,
    places: Places,
    /// Whose keys are in each lane.
    periods: [Option<Period>; 2],
    /// 0: none was opened.
    last_round: RoundNumber,
}

/// Without a branch for each way, which would be mispredicted.
#[inline]
fn way_of(home: &ProverHome, id: u64) -> Option<usize> {
    let [first, second] = &home.device_id;
    let is = |cell: &AtomicU64| u8::from(cell.load(Acquire) == id);
    let ways = is(first) | is(second) << 1;
    (ways != 0).then(|| ways.trailing_zeros() as usize)
}

fn lane(number: u64) -> usize {
    usize::from(number & 1 == 1)
}

impl Provers {
    /// Over zeroed regions of that geometry.
    #[must_use]
    pub fn new(regions: Arc<ProverRegions>, geometry: ProverGeometry) -> Self {
        Self {
            places: Places::new(geometry.table()),
            regions,
            geometry,
            provers: HashMap::new(),
            periods: [None; 2],
            last_round: RoundNumber(0),
        }
    }

    /// The memory.
    #[must_use]
    pub fn regions(&self) -> &Arc<ProverRegions> {
        &self.regions
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.provers.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.provers.is_empty()
    }

    /// Installs what a prover may prove in a period. The first key of a period takes the place of all provers' keys of the
    /// period before the last. While it is being replaced a key proves nothing.
    ///
    /// # Errors
    /// See [`ProverError`].
    pub fn install(
        &mut self,
        device: DeviceId,
        period: Period,
        keys: &ProverKeys,
    ) -> Result<(), ProverError> {
        if device.0 == 0 {
            return Err(ProverError::DeviceZero);
        }
        let words = |key: &ProofKey| words_of(key.as_bytes());
        let current = words(&keys.current);
        let alternate = keys.alternate.as_ref().map(words);
        if current[0] == 0 || alternate.is_some_and(|words| words[0] == 0) {
            return Err(ProverError::ZeroKey(device));
        }
        let place = match self.provers.get(&device) {
            Some(place) => *place,
            None => self.add(device)?,
        };
        let lane = lane(period.0);
        if self.periods.get(lane) != Some(&Some(period)) {
            self.begin(lane, period);
        }
        if let Some((key, other)) = self.key_cells(place, lane) {
            store_key(key, &current);
            store_key(other, &alternate.unwrap_or_default());
        }
        Ok(())
    }

    fn begin(&mut self, lane: usize, period: Period) {
        let keys = self.regions.homes.iter().filter_map(|home| home.key.get(lane));
        keys.flatten().for_each(clear);
        let others = self.regions.alternates.iter().skip(lane).step_by(2);
        others.for_each(|other| clear(&other.word));
        if let Some(held) = self.periods.get_mut(lane) {
            *held = Some(period);
        }
    }

    fn add(&mut self, device: DeviceId) -> Result<Place, ProverError> {
        let hash = self.geometry.hash(device);
        let full = ProverError::Full(device);
        let place = self.places.allocate(self.geometry.home(hash)).ok_or(full)?;
        let (mask, index) = (self.geometry.index_mask(), &self.regions.index);
        let is_found =
            self.geometry.is_at_home(hash, place.line) || table::insert(index, mask, hash, place.line);
        let Some((home, way)) = self.regions.home(place.line).filter(|_| is_found) else {
            self.places.quarantine(place);
            return Err(full);
        };
        if let (Some(slot), Some(id)) = (home.slot.get(way), home.device_id.get(way)) {
            // A proof that was on its way when the last prover here was wiped may have been marked after that.
            let proved = home.proved.get(way).into_iter().flatten();
            proved.for_each(|word| word.store(0, Relaxed));
            slot.store(place.slot, Relaxed);
            id.store(wire_word(device.0.to_be_bytes()), Release);
        }
        self.provers.insert(device, place);
        Ok(place)
    }

    /// The current and the alternate key of a prover.
    fn key_cells(&self, place: Place, lane: usize) -> Option<(&KeyCells, &KeyCells)> {
        let (home, way) = self.regions.home(place.line)?;
        let other = self.regions.alternates.get(place.slot as usize * 2 + lane)?;
        Some((home.key.get(lane)?.get(way)?, &other.word))
    }

    /// Forgets a prover; `false`: it was not here.
    pub fn wipe(&mut self, device: DeviceId) -> bool {
        let Some(place) = self.provers.remove(&device) else {
            return false;
        };
        let hash = self.geometry.hash(device);
        if !self.geometry.is_at_home(hash, place.line) {
            table::remove(&self.regions.index, self.geometry.index_mask(), hash, place.line);
        }
        if let Some((home, way)) = self.regions.home(place.line) {
            if let Some(id) = home.device_id.get(way) {
                id.store(0, Release);
            }
            let proved = home.proved.get(way).into_iter().flatten();
            proved.for_each(|word| word.store(0, Release));
        }
        let cells = [0, 1].into_iter().filter_map(|lane| self.key_cells(place, lane));
        cells.for_each(|(key, other)| {
            clear(key);
            clear(other);
        });
        self.places.quarantine(place);
        true
    }

    /// Frees the places of provers that were wiped before the last call.
    pub(crate) fn reclaim(&mut self) {
        self.places.reclaim();
    }

    /// Begins a round, in the place of the one before the last.
    ///
    /// # Errors
    /// `RoundNotAbove`, `PeriodUnknown`.
    pub fn open_round(&mut self, open: &OpenRound) -> Result<(), ProverError> {
        let (round, period) = (&open.round, open.round.start.period);
        if round.number <= self.last_round {
            return Err(ProverError::RoundNotAbove(round.number, self.last_round));
        }
        let key_lane = lane(period.0);
        if self.periods.get(key_lane) != Some(&Some(period)) {
            return Err(ProverError::PeriodUnknown(period));
        }
        let lanes = self.regions.rounds.first().map(|rounds| &rounds.lane);
        let Some(cells) = lanes.and_then(|lanes| lanes.get(lane(round.number.0.into()))) else {
            return Ok(());
        };
        // Nobody takes the old number for the new nonce.
        cells.r.store(0, Release);
        cells.nonce.store(u64::from_ne_bytes(round.nonce), Release);
        cells
            .started_ns
            .store(open.started.0.saturating_mul(1_000_000), Release);
        cells
            .until_ns
            .store(open.until.0.saturating_mul(1_000_000), Release);
        cells.number.store(round.number.0, Release);
        cells.key_lane.store(u32::from(key_lane == 1), Release);
        cells.r.store(wire_word(round.r().to_be_bytes()), Release);
        self.last_round = round.number;
        Ok(())
    }

    /// Closes all rounds, forgets who was ok, and lets numbers begin anew: for tests. In operation a number never comes again.
    pub fn forget_rounds(&mut self) {
        let words = self
            .regions
            .homes
            .iter()
            .flat_map(|home| home.proved.iter().flatten());
        words.for_each(|word| word.store(0, Release));
        let rounds = self.regions.rounds.iter().flat_map(|rounds| &rounds.lane);
        rounds.for_each(|round| round.r.store(0, Release));
        self.last_round = RoundNumber(0);
    }

    /// The verdict on a prover in the running or the previous round; `None`: silent, or not here.
    #[must_use]
    pub fn proved(&self, device: DeviceId, round: RoundNumber) -> Option<Proved> {
        let place = self.provers.get(&device)?;
        let (home, way) = self.regions.home(place.line)?;
        proved_in(home, way, round)
    }

    /// The verdicts on all provers in the running or the previous round, in no order; `None`: silent.
    pub fn verdicts(&self, round: RoundNumber) -> impl Iterator<Item = (DeviceId, Option<Proved>)> + '_ {
        let ways = |home| (0..PROVER_WAYS).map(move |way| (home, way));
        self.regions
            .homes
            .iter()
            .flat_map(ways)
            .filter_map(move |(home, way)| {
                let id = home.device_id.get(way)?.load(Acquire);
                let device = DeviceId(u64::from_be_bytes(id.to_ne_bytes()));
                (id != 0).then(|| (device, proved_in(home, way, round)))
            })
    }
}

fn proved_in(home: &ProverHome, way: usize, round: RoundNumber) -> Option<Proved> {
    let cell = home.proved.get(way)?.get(lane(round.0.into()))?;
    let word = cell.load(Acquire);
    let configuration = match word & ALTERNATE {
        0 => Configuration::Current,
        _ => Configuration::Alternate,
    };
    (word >> 32 == u64::from(round.0)).then_some(Proved {
        configuration,
        elapsed_ms: (((word & (ALTERNATE - 1)) << ELAPSED_SHIFT) / 1_000_000) as u32,
    })
}

/// As packet paths load them.
fn words_of(key: &[u8; 32]) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(key.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words
}

/// The first word, which says whether there is a key, is cleared first and written last.
fn store_key(cells: &KeyCells, words: &[u64; 4]) {
    let [first, rest @ ..] = cells;
    let [first_word, rest_words @ ..] = words;
    first.store(0, Release);
    let pairs = rest.iter().zip(rest_words);
    pairs.for_each(|(cell, word)| cell.store(*word, Release));
    first.store(*first_word, Release);
}

fn clear(cells: &KeyCells) {
    cells.iter().for_each(|cell| cell.store(0, Release));
}

impl Round {
    /// Whether it is the round `r`, as on the wire.
    pub(crate) fn is(&self, r: u64, nonce: u64) -> bool {
        self.r.load(Acquire) == r && self.nonce.load(Acquire) == nonce
    }
}
