//! Provers in the memory that packet paths work on (LAP/1 3.2): keys, rounds, and verdicts. The keys of a period are
//! written before it begins.
//!
//! As with lines, only user space writes places and keys. Packet paths write only the verdict words, by
//! compare-and-swap.
//!
//! A verdict word names its round by 16 bits of the number. These bits repeat after 2^17 rounds. Words are cleared
//! long before that (`SWEEP_SHIFT`), so that no word is ever taken for the verdict of another round.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use linewarden_protocol::attest::ProofKey;
use linewarden_protocol::gateway::{Configuration, OpenRound, ProofRecord, ProverKeys};
use linewarden_protocol::ids::{DeviceId, Period, RoundNumber};
use linewarden_protocol::time::Monotonic;

use super::geometry::next_power_of_two;
use super::place::{HomeLayout, Places};
use super::{Place, Region, prefetch, table, wire_word};
use crate::layout::{
    ALTERNATE, AlternateKey, Bucket, ELAPSED_MAX, KeyCells, OpenRounds, PROVED, ProverLine, ROUND_BITS_SHIFT,
    Round,
};

/// Places per home. The places of a home are adjacent in memory; a search reads the first place and then the second
/// place.
const PROVER_WAYS: u32 = 2;
/// The smallest unit of a proof's elapsed time: 2^20 ns, 1.05 ms.
const ELAPSED_SHIFT_MIN: u32 = 20;
/// The words of a lane are cleared each time its round numbers cross a multiple of 2^`SWEEP_SHIFT`. Round bits are
/// distinct while numbers differ by less than 2^17, and ordered while they differ by less than 2^16. Even a word that a
/// delayed packet path writes after a clearing is therefore cleared in time.
const SWEEP_SHIFT: u32 = 14;

/// The bits of a round's number that verdict words contain.
pub(crate) fn round_bits(number: RoundNumber) -> u32 {
    number.0 >> 1 & 0xffff
}

/// The elapsed shift of a round: the unit of 2^shift ns is large enough for the duration `round_ns` to fit.
fn elapsed_shift(round_ns: u64) -> u32 {
    let needed = (u64::BITS - round_ns.leading_zeros()).saturating_sub(ELAPSED_MAX.count_ones());
    needed.max(ELAPSED_SHIFT_MIN)
}

/// The verdict word of a prover that is ok.
pub(crate) fn proved_word(number_bits: u32, is_alternate: bool, elapsed: u64) -> u32 {
    let elapsed = u32::try_from(elapsed).map_or(ELAPSED_MAX, |elapsed| elapsed.min(ELAPSED_MAX));
    number_bits << ROUND_BITS_SHIFT | PROVED | if is_alternate { ALTERNATE } else { 0 } | elapsed
}

/// Whether the word records the prover as ok in the round with these number bits, or in a later round of its lane.
#[inline]
pub(crate) fn is_proved(word: u32, number_bits: u32) -> bool {
    word & PROVED != 0 && ((word >> ROUND_BITS_SHIFT) as u16).wrapping_sub(number_bits as u16) < 0x8000
}

/// The key as little-endian words; `None` if no key is stored. The copy is checked, because the key may be removed
/// concurrently: anyone can compute a proof for a key of zeros.
#[inline]
pub(crate) fn key_words(cells: &KeyCells) -> Option<[u64; 4]> {
    let key = cells.each_ref().map(|cell| cell.load(Acquire).to_le());
    let [first, ..] = key;
    (first != 0).then_some(key)
}

/// A prover or a round was refused. Nothing has changed, except possibly after `SwitchFailed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProverError {
    /// Device id 0 is not a device.
    #[error("device id 0 is reserved")]
    DeviceZero,
    /// No slot, or no place for the prover, is free.
    #[error("no free slot for prover {0}; raise `provers`")]
    NoFreeSlot(DeviceId),
    /// A key whose first 8 bytes are zero represents no key (probability 2^-64).
    #[error("invalid key of prover {0}: it begins with zeros; begin the period with another salt")]
    ZeroKey(DeviceId),
    /// The keys of the round's period are not installed.
    #[error("no prover has a key of period {0}; install the keys before its first round")]
    PeriodUnknown(Period),
    /// Round numbers increase, from 1.
    #[error("round {0} is not above the last round {1}; use a number that was never used")]
    RoundNotAbove(RoundNumber, RoundNumber),
    /// The P4 switch failed or is lost; [`DataPlane::failure`](crate::DataPlane::failure) gives the reason.
    #[error("the P4 switch is lost")]
    SwitchFailed,
}

/// Sizes of the provers' memory and the seed of its hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProverGeometry {
    /// Maximum number of provers; at least one.
    pub slots: u32,
    /// Random; seeds the hash of the provers' ids.
    pub hash_seed: [u64; 2],
}

impl ProverGeometry {
    /// Number of places that ids are hashed to, in a lane of periods: at most half full, so that 90 % of the provers are at
    /// the place that their hash selects or at the place beside it (Poisson, mean one for two places).
    #[must_use]
    pub fn places(&self) -> u32 {
        self.slots.saturating_mul(PROVER_WAYS)
    }

    /// Number of all places in a lane: [`Self::places`], and an eighth more as spare places for the other provers.
    #[must_use]
    pub fn all_places(&self) -> u32 {
        let spare_homes = (self.slots / 8).max(4);
        self.places().saturating_add(spare_homes * PROVER_WAYS)
    }

    /// Number of lines: first the lines of the lane for even periods, then the lines of the lane for odd periods.
    #[must_use]
    pub fn lines(&self) -> u32 {
        self.all_places().saturating_mul(2)
    }

    /// Number of buckets in the index of provers outside their home. The index is at most a quarter full.
    #[must_use]
    pub fn index_buckets(&self) -> u32 {
        next_power_of_two(self.slots / 8).max(16)
    }

    /// The place that the lower half of a hash selects.
    #[inline]
    fn place(&self, hash: u64) -> u32 {
        ((u64::from(hash as u32) * u64::from(self.places())) >> 32) as u32
    }

    /// The place of a prover, by its id in wire order, unless another prover occupies it.
    #[inline]
    pub(crate) fn likely_place(&self, id: u64) -> u32 {
        self.place(table::hash(self.hash_seed, id, 0))
    }

    /// Index of the line at a place in a lane of periods.
    #[inline]
    fn line(&self, place: u32, key_lane: u32) -> usize {
        place as usize
            + if key_lane & 1 == 1 {
                self.all_places() as usize
            } else {
                0
            }
    }

    fn index_mask(&self) -> u32 {
        self.index_buckets() - 1
    }

    fn hash(&self, device: DeviceId) -> u64 {
        table::hash(self.hash_seed, wire_word(device.0.to_be_bytes()), 0)
    }

    fn is_at_home(&self, hash: u64, place: u32) -> bool {
        place / PROVER_WAYS == self.place(hash) / PROVER_WAYS
    }

    fn home_layout(&self) -> HomeLayout {
        HomeLayout {
            ways: PROVER_WAYS,
            hashed_homes: self.places() / PROVER_WAYS,
            all_homes: self.all_places() / PROVER_WAYS,
            slots: self.slots,
        }
    }
}

/// The arrays that packet paths work on.
#[derive(Debug)]
pub struct ProverRegions {
    /// The line at a place is at index `lane of the period * all places + place`.
    pub lines: Region<ProverLine>,
    /// The alternate key of a slot is at index `slot * 2 + lane of the period`.
    pub alternates: Region<AlternateKey>,
    /// Maps a device id to the place of a prover outside its home.
    pub index: Region<Bucket>,
    /// An array with one element.
    pub rounds: Region<OpenRounds>,
}

impl ProverRegions {
    /// Allocates zeroed private memory.
    ///
    /// # Errors
    /// Errors of `mmap`.
    pub fn anonymous(geometry: &ProverGeometry) -> std::io::Result<Self> {
        Ok(Self {
            lines: Region::anonymous_in_large_pages(geometry.lines() as usize)?,
            alternates: Region::anonymous(geometry.slots as usize * 2)?,
            index: Region::anonymous(geometry.index_buckets() as usize)?,
            rounds: Region::anonymous(1)?,
        })
    }

    /// The line of the prover with `id` in wire order, in a lane of periods, and its place. `likely_place` is the result of
    /// [`ProverGeometry::likely_place`], where the line most likely is.
    #[inline]
    pub(crate) fn find(
        &self,
        geometry: &ProverGeometry,
        id: u64,
        likely_place: u32,
        key_lane: u32,
    ) -> Option<(&ProverLine, u32)> {
        let prover_at = |place| {
            let line = self.line(geometry, place, key_lane)?;
            (line.device_id.load(Acquire) == id).then_some((line, place))
        };
        prover_at(likely_place)
            .or_else(|| prover_at(likely_place ^ 1))
            .or_else(|| self.find_elsewhere(geometry, id, key_lane))
    }

    #[cold]
    #[inline(never)]
    fn find_elsewhere(
        &self,
        geometry: &ProverGeometry,
        id: u64,
        key_lane: u32,
    ) -> Option<(&ProverLine, u32)> {
        let hash = table::hash(geometry.hash_seed, id, 0);
        table::candidates(&self.index, geometry.index_mask(), hash)
            .filter_map(|place| Some((self.line(geometry, place, key_lane)?, place)))
            .find(|(line, _)| line.device_id.load(Acquire) == id)
    }

    /// Prefetches the line at a place.
    #[inline]
    pub(crate) fn prefetch(&self, geometry: &ProverGeometry, place: u32, key_lane: u32) {
        self.line(geometry, place, key_lane)
            .into_iter()
            .for_each(prefetch);
    }

    /// All lines of a lane of periods, by place.
    #[inline]
    pub(crate) fn lines_of(&self, geometry: &ProverGeometry, key_lane: u32) -> &[ProverLine] {
        let (first, places) = (geometry.line(0, key_lane), geometry.all_places() as usize);
        self.lines.get(first..first + places).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn line(&self, geometry: &ProverGeometry, place: u32, key_lane: u32) -> Option<&ProverLine> {
        self.lines.get(geometry.line(place, key_lane))
    }
}

/// Provers in shared memory.
#[derive(Debug)]
pub struct Provers {
    regions: Arc<ProverRegions>,
    geometry: ProverGeometry,
    provers: HashMap<DeviceId, Place>,
    places: Places,
    /// The period of the keys in each lane.
    periods: [Option<Period>; 2],
    /// The newest round of each lane.
    rounds: [Option<RoundState>; 2],
    /// By lane: the round number at the most recent clearing of the words, divided by 2^[`SWEEP_SHIFT`].
    last_sweep: [u32; 2],
    /// Number of the newest round; 0: no round was opened.
    last_round: RoundNumber,
}

/// Data for reading the verdicts of a round.
#[derive(Clone, Copy, Debug)]
struct RoundState {
    number: RoundNumber,
    key_lane: u32,
    elapsed_shift: u32,
}

fn lane(number: u64) -> usize {
    usize::from(number & 1 == 1)
}

impl Provers {
    /// A table of provers over zeroed regions of that geometry.
    #[must_use]
    pub fn new(regions: Arc<ProverRegions>, geometry: ProverGeometry) -> Self {
        Self {
            places: Places::new(geometry.home_layout()),
            regions,
            geometry,
            provers: HashMap::new(),
            periods: [None; 2],
            rounds: [None; 2],
            last_sweep: [0; 2],
            last_round: RoundNumber(0),
        }
    }

    /// The memory that packet paths work on.
    #[must_use]
    pub fn regions(&self) -> &Arc<ProverRegions> {
        &self.regions
    }

    /// Number of provers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.provers.len()
    }

    /// Whether there are no provers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.provers.is_empty()
    }

    /// Installs the keys of a prover for a period. The first key of a period removes all keys of the former period in the
    /// same lane. A PROOF that arrives while the key is being replaced is dropped.
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
            self.begin_period(lane, period);
        }
        if let Some((key, alternate_cells)) = self.key_cells(place, lane) {
            store_key(key, &current);
            store_key(alternate_cells, &alternate.unwrap_or_default());
        }
        Ok(())
    }

    fn begin_period(&mut self, lane: usize, period: Period) {
        self.lines_of(lane).for_each(|line| clear(&line.key));
        let alternates = self.regions.alternates.iter().skip(lane).step_by(2);
        alternates.for_each(|alternate| clear(&alternate.word));
        if let Some(lane_period) = self.periods.get_mut(lane) {
            *lane_period = Some(period);
        }
    }

    /// All lines of a lane of periods.
    fn lines_of(&self, key_lane: usize) -> impl Iterator<Item = &ProverLine> {
        let lane_lines = self.geometry.all_places() as usize;
        self.regions
            .lines
            .iter()
            .skip(key_lane * lane_lines)
            .take(lane_lines)
    }

    /// The lines at a place in both lanes of periods.
    fn lines_at(&self, place: u32) -> impl Iterator<Item = &ProverLine> {
        let lanes = [0, 1].into_iter();
        lanes.filter_map(move |lane| self.regions.line(&self.geometry, place, lane))
    }

    fn add(&mut self, device: DeviceId) -> Result<Place, ProverError> {
        let hash = self.geometry.hash(device);
        let full = ProverError::NoFreeSlot(device);
        let place = self.places.allocate(self.geometry.place(hash)).ok_or(full)?;
        let (mask, index) = (self.geometry.index_mask(), &self.regions.index);
        let is_indexed =
            self.geometry.is_at_home(hash, place.line) || table::insert(index, mask, hash, place.line);
        if !is_indexed {
            self.places.retire(place);
            return Err(full);
        }
        for line in self.lines_at(place.line) {
            // A proof that was in flight when the place's previous prover was wiped may have set a verdict after the wipe.
            line.proved.iter().for_each(|word| word.store(0, Relaxed));
            line.slot.store(place.slot, Relaxed);
            line.device_id.store(wire_word(device.0.to_be_bytes()), Release);
        }
        self.provers.insert(device, place);
        Ok(place)
    }

    /// The current and the alternate key of a prover.
    fn key_cells(&self, place: Place, lane: usize) -> Option<(&KeyCells, &KeyCells)> {
        let line = self.regions.line(&self.geometry, place.line, lane as u32)?;
        let alternate = self.regions.alternates.get(place.slot as usize * 2 + lane)?;
        Some((&line.key, &alternate.word))
    }

    /// Removes a prover. Returns `false` if the prover was not installed.
    pub fn wipe(&mut self, device: DeviceId) -> bool {
        let Some(place) = self.provers.remove(&device) else {
            return false;
        };
        let hash = self.geometry.hash(device);
        if !self.geometry.is_at_home(hash, place.line) {
            table::remove(&self.regions.index, self.geometry.index_mask(), hash, place.line);
        }
        for line in self.lines_at(place.line) {
            line.device_id.store(0, Release);
            line.proved.iter().for_each(|word| word.store(0, Release));
        }
        let cells = [0, 1].into_iter().filter_map(|lane| self.key_cells(place, lane));
        cells.for_each(|(key, alternate)| {
            clear(key);
            clear(alternate);
        });
        self.places.retire(place);
        true
    }

    /// Frees the places of provers that were wiped before the previous call.
    pub(crate) fn reclaim(&mut self) {
        self.places.reclaim();
    }

    /// Opens a round, which replaces the open round in the same lane.
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
        let round_lane = lane(round.number.0.into());
        let (Some(cells), Some(newest_round), Some(last_sweep)) = (
            self.regions
                .rounds
                .first()
                .and_then(|rounds| rounds.lane.get(round_lane)),
            self.rounds.get_mut(round_lane),
            self.last_sweep.get_mut(round_lane),
        ) else {
            return Ok(());
        };
        // The number of the replaced round must not appear with the new nonce.
        cells.r.store(0, Release);
        if std::mem::replace(last_sweep, round.number.0 >> SWEEP_SHIFT) != round.number.0 >> SWEEP_SHIFT {
            let words = self
                .regions
                .lines
                .iter()
                .filter_map(|line| line.proved.get(round_lane));
            words.for_each(|word| word.store(0, Release));
        }
        let ns = |time: Monotonic| time.0.saturating_mul(1_000_000);
        let (started_ns, until_ns) = (ns(open.started), ns(open.deadline));
        let elapsed_shift = elapsed_shift(until_ns.saturating_sub(started_ns));
        let key_lane = u32::from(key_lane == 1);
        cells.nonce.store(u64::from_ne_bytes(round.nonce), Release);
        cells.started_ns.store(started_ns, Release);
        cells.until_ns.store(until_ns, Release);
        cells.number.store(round.number.0, Release);
        cells.key_lane.store(key_lane, Release);
        cells.elapsed_shift.store(elapsed_shift, Release);
        cells
            .r
            .store(wire_word(round.forro_counter().to_be_bytes()), Release);
        *newest_round = Some(RoundState {
            number: round.number,
            key_lane,
            elapsed_shift,
        });
        self.last_round = round.number;
        Ok(())
    }

    /// Closes all rounds, clears all verdicts, and lets round numbers restart: for tests. In operation a number is
    /// never reused.
    pub fn reset_rounds(&mut self) {
        let words = self.regions.lines.iter().flat_map(|line| &line.proved);
        words.for_each(|word| word.store(0, Release));
        let rounds = self.regions.rounds.iter().flat_map(|rounds| &rounds.lane);
        rounds.for_each(|round| round.r.store(0, Release));
        self.rounds = [None; 2];
        self.last_round = RoundNumber(0);
    }

    /// The state of a round whose verdicts are available: the newest round of its lane.
    fn round(&self, round: RoundNumber) -> Option<&RoundState> {
        let newest = self.rounds.get(lane(round.0.into()))?.as_ref();
        newest.filter(|newest| newest.number == round)
    }

    /// The verdict on a prover in `round`, which must be the newest round of its lane. `None`: no proof received, prover not
    /// installed, or another round.
    #[must_use]
    pub fn proof_record(&self, device: DeviceId, round: RoundNumber) -> Option<ProofRecord> {
        let (round_state, place) = (self.round(round)?, self.provers.get(&device)?);
        let line = self
            .regions
            .line(&self.geometry, place.line, round_state.key_lane)?;
        round_state.proof_record(line)
    }

    /// The verdicts on all provers in `round`, in no particular order. `None`: no proof received. If `round` is not the
    /// newest round of its lane, the result is empty.
    pub fn verdicts(&self, round: RoundNumber) -> impl Iterator<Item = (DeviceId, Option<ProofRecord>)> + '_ {
        let round_state = self.round(round).copied();
        let lines = round_state.map(|round_state| self.lines_of(round_state.key_lane as usize));
        lines.into_iter().flatten().filter_map(move |line| {
            let id = line.device_id.load(Acquire);
            let device = DeviceId(u64::from_be_bytes(id.to_ne_bytes()));
            (id != 0).then(|| {
                (
                    device,
                    round_state.and_then(|round_state| round_state.proof_record(line)),
                )
            })
        })
    }
}

impl RoundState {
    fn proof_record(&self, line: &ProverLine) -> Option<ProofRecord> {
        let word = line.proved.get(lane(self.number.0.into()))?.load(Acquire);
        let is_of_this_round = word & PROVED != 0 && word >> ROUND_BITS_SHIFT == round_bits(self.number);
        is_of_this_round.then_some(ProofRecord {
            configuration: match word & ALTERNATE {
                0 => Configuration::Current,
                _ => Configuration::Alternate,
            },
            elapsed_ms: ((u64::from(word & ELAPSED_MAX) << self.elapsed_shift) / 1_000_000) as u32,
        })
    }
}

/// Key words in the order in which packet paths load them.
fn words_of(key: &[u8; 32]) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(key.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words
}

/// Replaces a key. The first word indicates whether a key is present: it is cleared first and written last.
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
    /// Whether the round has these values of `r` and the nonce, both in wire order.
    pub(crate) fn matches(&self, r: u64, nonce: u64) -> bool {
        self.r.load(Acquire) == r && self.nonce.load(Acquire) == nonce
    }
}
