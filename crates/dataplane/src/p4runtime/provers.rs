//! Provers and rounds at the switch: what [`Provers`](crate::Provers) does in memory.
//!
//! Keys are written a batch at a time; who is ok is read from the register `proved`, for that is
//! told to nobody.

use std::collections::HashMap;

use linewarden_p4runtime::entity::Update;
use linewarden_protocol::attest::ProofKey;
use linewarden_protocol::gateway::{Configuration, OpenRound, Proved, ProverKeys};
use linewarden_protocol::ids::{DeviceId, Period, RoundNumber};
use linewarden_protocol::time::Monotonic;

use super::asking::{Seen, Whereabouts};
use super::book::Cells;
use super::clock::Reading;
use super::device::{DEVICES_AT_ONCE, UPDATES_AT_ONCE};
use super::{P4Runtime, SwitchError};
use crate::host;
use crate::provers::ProverSet;
use crate::store::provers::ProverError;

/// Of a moment in a cell of `proved`, and of what stands above it: by which key, and the round's number.
const PROVED_AT_BITS: u32 = 48;
const PROVED_ALTERNATE: u128 = 1 << PROVED_AT_BITS;
const PROVED_NUMBER_AT: u32 = PROVED_AT_BITS + 1;
/// A period's keys lie in one of two lanes, a round in another of two, by the lowest bit of its number.
const LANES: u32 = 2;
/// Some ten times what it takes to read a cell.
const LOOK_SPACING_NS: u64 = 30_000;

/// A prover that is installed.
#[derive(Clone, Copy, Debug)]
struct Prover {
    /// Of its cells in the registers.
    cell: u32,
    /// By lane of periods: whether the switch holds its keys.
    has_keys: [bool; LANES as usize],
}

/// The newest round of a lane.
#[derive(Clone, Copy, Debug)]
struct Opened {
    number: RoundNumber,
    /// When it began, on the boot-time clock: the switch's may have begun later.
    started_us: u64,
}

/// What this side knows of provers. No keys, but those that are on their way.
#[derive(Debug)]
pub(super) struct ProverBook {
    provers: HashMap<DeviceId, Prover>,
    cells: Cells,
    /// Whose keys are in each lane.
    periods: [Option<Period>; LANES as usize],
    opened: [Option<Opened>; LANES as usize],
    /// 0: none was opened.
    last_round: RoundNumber,
    /// Where provers were seen.
    seen: HashMap<DeviceId, Seen>,
    /// What the switch has not been told yet, in its order.
    untold: Vec<Update>,
}

impl ProverBook {
    pub fn new(provers: u32) -> Self {
        Self {
            provers: HashMap::new(),
            cells: Cells::new(provers),
            periods: [None; LANES as usize],
            opened: [None; LANES as usize],
            last_round: RoundNumber(0),
            seen: HashMap::new(),
            untold: Vec::new(),
        }
    }

    pub fn has(&self, device: DeviceId) -> bool {
        self.provers.contains_key(&device)
    }

    pub fn seen(&self, device: DeviceId) -> Option<&Seen> {
        self.seen.get(&device)
    }

    pub fn note_session(&mut self, device: DeviceId, place: Whereabouts) {
        self.seen.entry(device).or_default().note_session(place);
    }

    pub fn note_knock(&mut self, device: DeviceId, place: Whereabouts) {
        self.seen.entry(device).or_default().note_knock(place);
    }

    fn opened(&self, round: RoundNumber) -> Option<&Opened> {
        let newest = self.opened.get(lane(round.0.into()))?.as_ref();
        newest.filter(|newest| newest.number == round)
    }

    /// Frees the cells of provers that were wiped before the last call.
    pub fn reclaim(&mut self) {
        self.cells.reclaim();
    }
}

fn lane(number: u64) -> usize {
    usize::from(number & 1 == 1)
}

/// Its cell of `proved` in a round.
fn proved_cell(prover: u32, round: RoundNumber) -> u32 {
    prover * LANES + (round.0 & 1)
}

/// As the program has them (`SET_KEY` in p4/include/proof_state.p4).
fn words(key: &ProofKey) -> impl Iterator<Item = u128> {
    let words = key.as_bytes().as_chunks::<4>().0;
    words.iter().map(|word| u32::from_le_bytes(*word).into())
}

/// The arguments of `set_keys` in p4/include/proof_keys.p4.
fn arguments(keys: &ProverKeys) -> Vec<u128> {
    let mut arguments: Vec<u128> = words(&keys.current).collect();
    arguments.push(keys.alternate.is_some().into());
    match &keys.alternate {
        Some(alternate) => arguments.extend(words(alternate)),
        None => arguments.extend([0; 8]),
    }
    arguments
}

impl P4Runtime {
    /// Keeps updates until there are enough for a batch.
    fn tell_later(&mut self, updates: impl IntoIterator<Item = Update>) -> Result<(), SwitchError> {
        self.provers.untold.extend(updates);
        match self.provers.untold.len() < UPDATES_AT_ONCE {
            true => Ok(()),
            false => self.tell_provers(),
        }
    }

    /// Tells the switch of provers and keys.
    pub(super) fn tell_provers(&mut self) -> Result<(), SwitchError> {
        if self.provers.untold.is_empty() {
            return Ok(());
        }
        self.check()?;
        let untold = std::mem::take(&mut self.provers.untold);
        untold
            .chunks(UPDATES_AT_ONCE)
            .try_for_each(|some| self.link.write(some))
    }

    fn of_provers<T>(&self, result: Result<T, SwitchError>) -> Result<T, ProverError> {
        self.note(result).map_err(|error| {
            tracing::error!(%error, "the switch did not do what it was to");
            ProverError::Switch
        })
    }

    fn install_keys(
        &mut self,
        prover: (DeviceId, u32),
        period: Period,
        keys: &ProverKeys,
    ) -> Result<(), SwitchError> {
        let (device, cell) = prover;
        let lane = lane(period.0);
        let mut updates = Vec::new();
        let program = &self.link.program;
        let is_new = !self.provers.has(device);
        let held = self.provers.provers.entry(device).or_insert(Prover {
            cell,
            has_keys: [false; LANES as usize],
        });
        let had_keys = held.has_keys.get_mut(lane);
        let had_keys = had_keys.is_some_and(|has_keys| std::mem::replace(has_keys, true));
        if is_new {
            // A proof that was on its way when the last prover here was wiped may have been marked after that.
            for cell in [cell * LANES, cell * LANES + 1] {
                updates.push(program.cell("proved", cell, 0)?);
            }
            updates.push(program.insert(("provers", &[device.0.into()]), ("set_prover", &[cell.into()]))?);
        }
        let key: (_, &[u128]) = ("proof_keys", &[cell.into(), period.0.into()]);
        let arguments = arguments(keys);
        updates.push(match had_keys {
            true => program.modify(key, ("set_keys", &arguments))?,
            false => program.insert(key, ("set_keys", &arguments))?,
        });
        self.tell_later(updates)
    }

    /// Another period takes a lane: the keys there go.
    fn begin_period(&mut self, period: Period) -> Result<(), SwitchError> {
        let lane = lane(period.0);
        let Some(held) = self.provers.periods.get_mut(lane) else {
            return Ok(());
        };
        let Some(before) = held.replace(period).filter(|before| *before != period) else {
            return Ok(());
        };
        let mut updates = Vec::new();
        for prover in self.provers.provers.values_mut() {
            let has_keys = prover.has_keys.get_mut(lane);
            if has_keys.is_some_and(std::mem::take) {
                let key = [prover.cell.into(), before.0.into()];
                updates.push(self.link.program.delete("proof_keys", &key)?);
            }
        }
        self.tell_later(updates)
    }

    fn remove_prover(&mut self, device: DeviceId, prover: Prover) -> Result<(), SwitchError> {
        let program = &self.link.program;
        let mut updates = vec![program.delete("provers", &[device.0.into()])?];
        for (period, has_keys) in self.provers.periods.iter().zip(prover.has_keys) {
            if let Some(period) = period.filter(|_| has_keys) {
                updates.push(program.delete("proof_keys", &[prover.cell.into(), period.0.into()])?);
            }
        }
        self.tell_later(updates)
    }

    /// Keys first, the number last: nobody takes it for another nonce.
    fn begin_round(&mut self, open: &OpenRound) -> Result<(), SwitchError> {
        self.check()?;
        self.tell_provers()?;
        // The machine may have slept since it was read.
        self.clock = Reading::take(&self.link, Some(&self.clock))?;
        let round = &open.round;
        let until_us = self.clock.switch_us(boot_us_of(open.until));
        let at = round.number.0 & 1;
        let cells = [
            ("round_number", 0),
            ("round_nonce", u64::from_be_bytes(round.nonce)),
            ("round_period", round.start.period.0),
            ("round_until_us", until_us.min((1 << PROVED_AT_BITS) - 1)),
            ("round_number", round.number.0.into()),
        ];
        let cell = |(name, value): (&'static str, u64)| self.link.program.cell(name, at, value.into());
        let updates: Vec<Update> = cells.into_iter().map(cell).collect::<Result<_, _>>()?;
        self.link.write(&updates)
    }

    fn read_proved(&self, cells: &[u32], opened: &Opened) -> Result<Vec<Option<Proved>>, SwitchError> {
        self.check()?;
        let mut proved = Vec::with_capacity(cells.len());
        for some in cells.chunks(DEVICES_AT_ONCE) {
            let of_round = some.iter().map(|cell| proved_cell(*cell, opened.number));
            let read = self.link.column("proved", of_round)?;
            proved.extend(read.into_iter().map(|held| opened.proved(held, &self.clock)));
        }
        Ok(proved)
    }
}

/// A moment of the monotonic clock on the boot-time clock.
fn boot_us_of(time: Monotonic) -> u64 {
    let now = host::now();
    let apart_ns = i128::from(now.boot_ns) - i128::from(now.monotonic_ns);
    u64::try_from((i128::from(time.0) * 1_000_000 + apart_ns) / 1000).unwrap_or(0)
}

impl Opened {
    fn proved(&self, held: u128, clock: &Reading) -> Option<Proved> {
        let at_us = clock.boot_us((held & (PROVED_ALTERNATE - 1)) as u64);
        (held >> PROVED_NUMBER_AT == u128::from(self.number.0)).then(|| Proved {
            configuration: match held & PROVED_ALTERNATE {
                0 => Configuration::Current,
                _ => Configuration::Alternate,
            },
            elapsed_ms: u32::try_from(at_us.saturating_sub(self.started_us) / 1000).unwrap_or(u32::MAX),
        })
    }
}

impl ProverSet for P4Runtime {
    fn install(&mut self, device: DeviceId, period: Period, keys: &ProverKeys) -> Result<(), ProverError> {
        if device.0 == 0 {
            return Err(ProverError::DeviceZero);
        }
        // What stands for no key in shared memory is none here either.
        let is_none = |key: &ProofKey| key.as_bytes().starts_with(&[0; 8]);
        if is_none(&keys.current) || keys.alternate.as_ref().is_some_and(is_none) {
            return Err(ProverError::ZeroKey(device));
        }
        let cell = match self.provers.provers.get(&device) {
            Some(held) => held.cell,
            None => self.provers.cells.take().ok_or(ProverError::Full(device))?,
        };
        let told = self
            .begin_period(period)
            .and_then(|()| self.install_keys((device, cell), period, keys));
        self.of_provers(told)
    }

    fn wipe(&mut self, device: DeviceId) -> bool {
        let Some(prover) = self.provers.provers.remove(&device) else {
            return false;
        };
        self.provers.seen.remove(&device);
        let told = self.remove_prover(device, prover);
        // Whoever asks next is told that the switch is lost.
        let _ = self.of_provers(told);
        self.provers.cells.rest(prover.cell);
        true
    }

    fn commit(&mut self) -> Result<(), ProverError> {
        let told = self.tell_provers();
        self.of_provers(told)
    }

    fn open_round(&mut self, open: &OpenRound) -> Result<(), ProverError> {
        let (number, period) = (open.round.number, open.round.start.period);
        if number <= self.provers.last_round {
            return Err(ProverError::RoundNotAbove(number, self.provers.last_round));
        }
        if self.provers.periods.get(lane(period.0)) != Some(&Some(period)) {
            return Err(ProverError::PeriodUnknown(period));
        }
        let begun = self.begin_round(open);
        self.of_provers(begun)?;
        let started_us = boot_us_of(open.started);
        if let Some(opened) = self.provers.opened.get_mut(lane(number.0.into())) {
            *opened = Some(Opened { number, started_us });
        }
        self.provers.last_round = number;
        Ok(())
    }

    fn proved_of(
        &self,
        devices: &[DeviceId],
        round: RoundNumber,
    ) -> Result<Vec<Option<Proved>>, ProverError> {
        let mut proved = vec![None; devices.len()];
        let Some(opened) = self.provers.opened(round) else {
            return Ok(proved);
        };
        let found = devices.iter().zip(&mut proved).filter_map(|(device, proved)| {
            let held = self.provers.provers.get(device)?;
            Some((held.cell, proved))
        });
        let (cells, places): (Vec<u32>, Vec<_>) = found.unzip();
        let read = self.of_provers(self.read_proved(&cells, opened))?;
        places
            .into_iter()
            .zip(read)
            .for_each(|(place, read)| *place = read);
        Ok(proved)
    }

    fn look_spacing_ns(&self) -> u64 {
        LOOK_SPACING_NS
    }

    fn verdicts(&self, round: RoundNumber) -> Result<Vec<(DeviceId, Option<Proved>)>, ProverError> {
        if self.provers.opened(round).is_none() {
            return Ok(Vec::new());
        }
        let devices: Vec<DeviceId> = self.provers.provers.keys().copied().collect();
        let proved = self.proved_of(&devices, round)?;
        Ok(devices.into_iter().zip(proved).collect())
    }

    fn forget_rounds(&mut self) {
        let numbers = [0, 1].map(|lane| self.link.program.cell("round_number", lane, 0));
        let marks = self.provers.provers.values();
        let marks = marks.flat_map(|held| [held.cell * LANES, held.cell * LANES + 1]);
        let marks = marks.map(|cell| self.link.program.cell("proved", cell, 0));
        let updates: Result<Vec<Update>, _> = numbers.into_iter().chain(marks).collect();
        let told = updates.and_then(|updates| self.tell_later(updates));
        let told = told.and_then(|()| self.tell_provers());
        let _ = self.of_provers(told);
        self.provers.opened = [None; LANES as usize];
        self.provers.last_round = RoundNumber(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_of_one_round_and_key_and_as_old_as_the_round() {
        let opened = Opened {
            number: RoundNumber(0x8000_0001),
            started_us: 5_000,
        };
        let clock = Reading::default();
        let held = |number: u128, alternate: u128, at_us: u128| number << 49 | alternate << 48 | at_us;
        assert_eq!(opened.proved(held(0x8000_0003, 0, 9_000), &clock), None);
        assert_eq!(opened.proved(0, &clock), None);
        let proved = opened.proved(held(0x8000_0001, 1, 12_999), &clock).unwrap();
        assert_eq!(
            (proved.configuration, proved.elapsed_ms),
            (Configuration::Alternate, 7)
        );
        // The clocks were told apart by a call that took its time.
        let early = opened.proved(held(0x8000_0001, 0, 4_000), &clock).unwrap();
        assert_eq!(early.elapsed_ms, 0);
    }
}
