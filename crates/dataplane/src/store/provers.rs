//! Provers in the memory that packet paths work on (LAP/1 3.2): keys ahead of their period, rounds, and who is ok.
//!
//! As with lines there is one writer of places and keys, this side; packet paths write only the words of who is ok, by
//! compare-and-swap.
//!
//! Such a word names its round by 16 bits of the number. They begin anew after 2^17 rounds, and words are cleared long before that
//! (`SWEEP_SHIFT`): none is ever taken for a verdict of another round.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use linewarden_protocol::attest::ProofKey;
use linewarden_protocol::gateway::{Configuration, OpenRound, Proved, ProverKeys};
use linewarden_protocol::ids::{DeviceId, Period, RoundNumber};
use linewarden_protocol::time::Monotonic;

use super::geometry::power_of_two;
use super::place::{Homes, Places};
use super::{Place, Region, prefetch, table, wire_word};
use crate::layout::{
    ALTERNATE, AlternateKey, Bucket, ELAPSED_MAX, KeyCells, MARK_SHIFT, OpenRounds, PROVED, ProverLine, Round,
};

/// Places of a home, which lie beside each other: whoever finds the first one taken is in the second.
const PROVER_WAYS: u32 = 2;
/// The least unit of the time that a proof took: 2^20 ns, 1.05 ms.
const ELAPSED_SHIFT: u32 = 20;
/// The words of a lane are cleared as often as its numbers have passed 2^this. Marks differ while numbers are less than 2^17
/// apart, and of two the later one is known while they are less than 2^16 apart; so even what a packet path that slept through a
/// clearing writes after it is gone in time.
const SWEEP_SHIFT: u32 = 14;

/// What verdicts say in the place of a round's number.
pub(crate) fn mark_of(number: RoundNumber) -> u32 {
    number.0 >> 1 & 0xffff
}

/// The unit, as a shift, in which a round of so many ns fits.
fn elapsed_shift(round_ns: u64) -> u32 {
    let needed = (u64::BITS - round_ns.leading_zeros()).saturating_sub(ELAPSED_MAX.count_ones());
    needed.max(ELAPSED_SHIFT)
}

/// The word of a prover that is ok.
pub(crate) fn proved_word(mark: u32, is_alternate: bool, elapsed: u64) -> u32 {
    let elapsed = u32::try_from(elapsed).map_or(ELAPSED_MAX, |elapsed| elapsed.min(ELAPSED_MAX));
    mark << MARK_SHIFT | PROVED | if is_alternate { ALTERNATE } else { 0 } | elapsed
}

/// Whether a prover is ok by that word in the round of that mark, or in a later one of its lane.
#[inline]
pub(crate) fn is_proved(word: u32, mark: u32) -> bool {
    word & PROVED != 0 && ((word >> MARK_SHIFT) as u16).wrapping_sub(mark as u16) < 0x8000
}

/// As little-endian words; `None`: there is none. Looked at in the copy, since it may be taken away meanwhile: what a key of zeros
/// makes, anybody can make.
#[inline]
pub(crate) fn key_words(cells: &KeyCells) -> Option<[u64; 4]> {
    let key = cells.each_ref().map(|cell| cell.load(Acquire).to_le());
    let [first, ..] = key;
    (first != 0).then_some(key)
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
    /// The P4 switch did not do what it was to, or is lost: [`DataPlane::failure`](crate::DataPlane::failure) says why.
    #[error("the P4 switch is lost")]
    Switch,
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
    /// Places that ids are hashed to, in a lane of periods: half full at most, so that 90 % of the provers live there or
    /// beside it (Poisson, two for two places).
    #[must_use]
    pub fn places(&self) -> u32 {
        self.slots.saturating_mul(PROVER_WAYS)
    }

    /// With those of who does not: an eighth more.
    #[must_use]
    pub fn all_places(&self) -> u32 {
        let spare_homes = (self.slots / 8).max(4);
        self.places().saturating_add(spare_homes * PROVER_WAYS)
    }

    /// Lines: a lane for even periods and then one for odd ones.
    #[must_use]
    pub fn lines(&self) -> u32 {
        self.all_places().saturating_mul(2)
    }

    /// Buckets of the index of those who do not live at home: a quarter full at most.
    #[must_use]
    pub fn index_buckets(&self) -> u32 {
        power_of_two(self.slots / 8).max(16)
    }

    /// The place that a hash means, by its lower half.
    #[inline]
    fn place(&self, hash: u64) -> u32 {
        ((u64::from(hash as u32) * u64::from(self.places())) >> 32) as u32
    }

    /// The place of a prover, by its id as loaded from the wire, unless somebody else has that.
    #[inline]
    pub(crate) fn likely_place(&self, id: u64) -> u32 {
        self.place(table::hash(self.hash_seed, id, 0))
    }

    /// Where the line at a place is in a lane of periods.
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

    fn table(&self) -> Homes {
        Homes {
            ways: PROVER_WAYS,
            hashed: self.places() / PROVER_WAYS,
            all: self.all_places() / PROVER_WAYS,
            slots: self.slots,
        }
    }
}

/// The arrays that packet paths work on.
#[derive(Debug)]
pub struct ProverRegions {
    /// `lane of the period * all places + place`.
    pub lines: Region<ProverLine>,
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
            lines: Region::anonymous_in_large_pages(geometry.lines() as usize)?,
            alternates: Region::anonymous(geometry.slots as usize * 2)?,
            index: Region::anonymous(geometry.index_buckets() as usize)?,
            rounds: Region::anonymous(1)?,
        })
    }

    /// The line of the prover whose id is `id` as loaded from the wire, in a lane of periods, and its place; most likely it is
    /// `likely`, what [`ProverGeometry::likely_place`] says.
    #[inline]
    pub(crate) fn find(
        &self,
        geometry: &ProverGeometry,
        id: u64,
        likely: u32,
        key_lane: u32,
    ) -> Option<(&ProverLine, u32)> {
        let is_here = |place| {
            let line = self.line(geometry, place, key_lane)?;
            (line.device_id.load(Acquire) == id).then_some((line, place))
        };
        is_here(likely)
            .or_else(|| is_here(likely ^ 1))
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

    /// Has the line at a place on its way from memory.
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
    /// Whose keys are in each lane.
    periods: [Option<Period>; 2],
    /// The newest round of each lane.
    opened: [Option<Opened>; 2],
    /// Up to where the numbers of a lane have come, in steps of 2^[`SWEEP_SHIFT`].
    swept: [u32; 2],
    /// 0: none was opened.
    last_round: RoundNumber,
}

/// What is needed to read a round's verdicts.
#[derive(Clone, Copy, Debug)]
struct Opened {
    number: RoundNumber,
    key_lane: u32,
    elapsed_shift: u32,
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
            opened: [None; 2],
            swept: [0; 2],
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
        self.lines_of(lane).for_each(|line| clear(&line.key));
        let others = self.regions.alternates.iter().skip(lane).step_by(2);
        others.for_each(|other| clear(&other.word));
        if let Some(held) = self.periods.get_mut(lane) {
            *held = Some(period);
        }
    }

    /// All of a lane of periods.
    fn lines_of(&self, key_lane: usize) -> impl Iterator<Item = &ProverLine> {
        let of_a_lane = self.geometry.all_places() as usize;
        self.regions
            .lines
            .iter()
            .skip(key_lane * of_a_lane)
            .take(of_a_lane)
    }

    /// In both lanes of periods.
    fn lines_at(&self, place: u32) -> impl Iterator<Item = &ProverLine> {
        let lanes = [0, 1].into_iter();
        lanes.filter_map(move |lane| self.regions.line(&self.geometry, place, lane))
    }

    fn add(&mut self, device: DeviceId) -> Result<Place, ProverError> {
        let hash = self.geometry.hash(device);
        let full = ProverError::Full(device);
        let place = self.places.allocate(self.geometry.place(hash)).ok_or(full)?;
        let (mask, index) = (self.geometry.index_mask(), &self.regions.index);
        let is_found =
            self.geometry.is_at_home(hash, place.line) || table::insert(index, mask, hash, place.line);
        if !is_found {
            self.places.quarantine(place);
            return Err(full);
        }
        for line in self.lines_at(place.line) {
            // A proof that was on its way when the last prover here was wiped may have been marked after that.
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
        let other = self.regions.alternates.get(place.slot as usize * 2 + lane)?;
        Some((&line.key, &other.word))
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
        for line in self.lines_at(place.line) {
            line.device_id.store(0, Release);
            line.proved.iter().for_each(|word| word.store(0, Release));
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
        let round_lane = lane(round.number.0.into());
        let (Some(cells), Some(opened), Some(swept)) = (
            self.regions
                .rounds
                .first()
                .and_then(|rounds| rounds.lane.get(round_lane)),
            self.opened.get_mut(round_lane),
            self.swept.get_mut(round_lane),
        ) else {
            return Ok(());
        };
        // Nobody takes the old number for the new nonce.
        cells.r.store(0, Release);
        if std::mem::replace(swept, round.number.0 >> SWEEP_SHIFT) != round.number.0 >> SWEEP_SHIFT {
            let words = self
                .regions
                .lines
                .iter()
                .filter_map(|line| line.proved.get(round_lane));
            words.for_each(|word| word.store(0, Release));
        }
        let ns = |time: Monotonic| time.0.saturating_mul(1_000_000);
        let (started_ns, until_ns) = (ns(open.started), ns(open.until));
        let elapsed_shift = elapsed_shift(until_ns.saturating_sub(started_ns));
        let key_lane = u32::from(key_lane == 1);
        cells.nonce.store(u64::from_ne_bytes(round.nonce), Release);
        cells.started_ns.store(started_ns, Release);
        cells.until_ns.store(until_ns, Release);
        cells.number.store(round.number.0, Release);
        cells.key_lane.store(key_lane, Release);
        cells.elapsed_shift.store(elapsed_shift, Release);
        cells.r.store(wire_word(round.r().to_be_bytes()), Release);
        *opened = Some(Opened {
            number: round.number,
            key_lane,
            elapsed_shift,
        });
        self.last_round = round.number;
        Ok(())
    }

    /// Closes all rounds, forgets who was ok, and lets numbers begin anew: for tests. In operation a number never comes again.
    pub fn forget_rounds(&mut self) {
        let words = self.regions.lines.iter().flat_map(|line| &line.proved);
        words.for_each(|word| word.store(0, Release));
        let rounds = self.regions.rounds.iter().flat_map(|rounds| &rounds.lane);
        rounds.for_each(|round| round.r.store(0, Release));
        self.opened = [None; 2];
        self.last_round = RoundNumber(0);
    }

    /// A round whose verdicts are known: the newest of its lane.
    fn opened(&self, round: RoundNumber) -> Option<&Opened> {
        let newest = self.opened.get(lane(round.0.into()))?.as_ref();
        newest.filter(|newest| newest.number == round)
    }

    /// The verdict on a prover in the newest round with an even number or the newest with an odd one; `None`: silent, or not here.
    #[must_use]
    pub fn proved(&self, device: DeviceId, round: RoundNumber) -> Option<Proved> {
        let (opened, place) = (self.opened(round)?, self.provers.get(&device)?);
        let line = self.regions.line(&self.geometry, place.line, opened.key_lane)?;
        opened.proved(line)
    }

    /// The verdicts on all provers in such a round, in no order; `None`: silent. Of any other round there are none.
    pub fn verdicts(&self, round: RoundNumber) -> impl Iterator<Item = (DeviceId, Option<Proved>)> + '_ {
        let opened = self.opened(round).copied();
        let lines = opened.map(|opened| self.lines_of(opened.key_lane as usize));
        lines.into_iter().flatten().filter_map(move |line| {
            let id = line.device_id.load(Acquire);
            let device = DeviceId(u64::from_be_bytes(id.to_ne_bytes()));
            (id != 0).then(|| (device, opened.and_then(|opened| opened.proved(line))))
        })
    }
}

impl Opened {
    fn proved(&self, line: &ProverLine) -> Option<Proved> {
        let word = line.proved.get(lane(self.number.0.into()))?.load(Acquire);
        let is_of_this_round = word & PROVED != 0 && word >> MARK_SHIFT == mark_of(self.number);
        is_of_this_round.then_some(Proved {
            configuration: match word & ALTERNATE {
                0 => Configuration::Current,
                _ => Configuration::Alternate,
            },
            elapsed_ms: ((u64::from(word & ELAPSED_MAX) << self.elapsed_shift) / 1_000_000) as u32,
        })
    }
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
