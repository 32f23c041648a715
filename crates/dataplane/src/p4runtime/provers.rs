//! Provers and rounds on the switch: the counterpart of [`Provers`](crate::Provers) in memory.
//!
//! Keys are written in batches. Round results are read from the register `proved`, because the switch does not
//! report them.

use linewarden_p4runtime::entity::Update;
use linewarden_protocol::attest::ProofKey;
use linewarden_protocol::gateway::{OpenRound, ProofRecord, ProverKeys};
use linewarden_protocol::ids::{DeviceId, Period, RoundNumber};
use linewarden_protocol::time::Monotonic;

use super::P4Runtime;
use super::clock::ClockReading;
use super::error::SwitchError;
use super::prover_table::{LANES, PROVED_AT_BITS, Prover, RoundState, lane};
use super::switch_connection::{DEVICES_PER_READ, UPDATES_PER_WRITE};
use crate::provers::ProverSet;
use crate::store::provers::ProverError;
use crate::timestamps;

/// About ten times the duration of one register read, ns.
const POLL_SPACING_NS: u64 = 30_000;

/// Cell of a prover in the register `proved` for a round.
fn proved_cell(prover: u32, round: RoundNumber) -> u32 {
    prover * LANES + (round.0 & 1)
}

/// Key words in the format of the program (`SET_KEY` in p4/include/proof_state.p4).
fn key_words(key: &ProofKey) -> impl Iterator<Item = u128> {
    let words = key.as_bytes().as_chunks::<4>().0;
    words.iter().map(|word| u32::from_le_bytes(*word).into())
}

/// The arguments of `set_keys` in p4/include/proof_keys.p4.
fn arguments(keys: &ProverKeys) -> Vec<u128> {
    let mut arguments: Vec<u128> = key_words(&keys.current).collect();
    arguments.push(keys.alternate.is_some().into());
    match &keys.alternate {
        Some(alternate) => arguments.extend(key_words(alternate)),
        None => arguments.extend([0; 8]),
    }
    arguments
}

impl P4Runtime {
    /// Queues updates. Writes the queue to the switch if it contains a full batch.
    fn queue_updates(&mut self, updates: impl IntoIterator<Item = Update>) -> Result<(), SwitchError> {
        self.provers.pending_updates.extend(updates);
        match self.provers.pending_updates.len() < UPDATES_PER_WRITE {
            true => Ok(()),
            false => self.flush_updates(),
        }
    }

    /// Writes the pending updates of provers and keys to the switch.
    pub(super) fn flush_updates(&mut self) -> Result<(), SwitchError> {
        if self.provers.pending_updates.is_empty() {
            return Ok(());
        }
        self.check_usable()?;
        let pending = std::mem::take(&mut self.provers.pending_updates);
        pending
            .chunks(UPDATES_PER_WRITE)
            .try_for_each(|batch| self.connection.write(batch))
    }

    /// Records a failure, and converts it to the error of an operation on provers.
    fn for_provers<T>(&self, result: Result<T, SwitchError>) -> Result<T, ProverError> {
        self.record_failure(result).map_err(|error| {
            tracing::error!(%error, "P4 switch operation failed; the data plane stops");
            ProverError::SwitchFailed
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
        let program = &self.connection.program;
        let is_new = !self.provers.has(device);
        let entry = self.provers.provers.entry(device).or_insert(Prover {
            cell,
            has_keys: [false; LANES as usize],
        });
        let had_keys = entry.has_keys.get_mut(lane);
        let had_keys = had_keys.is_some_and(|has_keys| std::mem::replace(has_keys, true));
        if is_new {
            // A proof that was in the pipeline when the cell's previous prover was wiped may have set a result
            // after the wipe.
            for cell in [cell * LANES, cell * LANES + 1] {
                updates.push(program.set_cell("proved", cell, 0)?);
            }
            updates.push(program.insert(("provers", &[device.0.into()]), ("set_prover", &[cell.into()]))?);
        }
        let key: (_, &[u128]) = ("proof_keys", &[cell.into(), period.0.into()]);
        let arguments = arguments(keys);
        updates.push(match had_keys {
            true => program.modify(key, ("set_keys", &arguments))?,
            false => program.insert(key, ("set_keys", &arguments))?,
        });
        self.queue_updates(updates)
    }

    /// Assigns the lane of `period` to this period. If the lane belonged to another period, deletes the keys of that period.
    fn begin_period(&mut self, period: Period) -> Result<(), SwitchError> {
        let lane = lane(period.0);
        let Some(lane_period) = self.provers.periods.get_mut(lane) else {
            return Ok(());
        };
        let Some(previous) = lane_period.replace(period).filter(|previous| *previous != period) else {
            return Ok(());
        };
        let mut updates = Vec::new();
        for prover in self.provers.provers.values_mut() {
            let has_keys = prover.has_keys.get_mut(lane);
            if has_keys.is_some_and(std::mem::take) {
                let key = [prover.cell.into(), previous.0.into()];
                updates.push(self.connection.program.delete("proof_keys", &key)?);
            }
        }
        self.queue_updates(updates)
    }

    fn remove_prover(&mut self, device: DeviceId, prover: Prover) -> Result<(), SwitchError> {
        let program = &self.connection.program;
        let mut updates = vec![program.delete("provers", &[device.0.into()])?];
        for (period, has_keys) in self.provers.periods.iter().zip(prover.has_keys) {
            if let Some(period) = period.filter(|_| has_keys) {
                updates.push(program.delete("proof_keys", &[prover.cell.into(), period.0.into()])?);
            }
        }
        self.queue_updates(updates)
    }

    /// Writes the pending keys first and the round number last, so that the number never appears with another nonce.
    fn begin_round(&mut self, open: &OpenRound) -> Result<(), SwitchError> {
        self.check_usable()?;
        self.flush_updates()?;
        // The machine may have been suspended since the clock was read.
        self.clock = ClockReading::take(&self.connection, Some(&self.clock))?;
        let round = &open.round;
        let until_us = self.clock.switch_us(boot_us_of(open.deadline));
        let index = round.number.0 & 1;
        let cells = [
            ("round_number", 0),
            ("round_nonce", u64::from_be_bytes(round.nonce)),
            ("round_period", round.start.period.0),
            ("round_until_us", until_us.min((1 << PROVED_AT_BITS) - 1)),
            ("round_number", round.number.0.into()),
        ];
        let cell =
            |(name, value): (&'static str, u64)| self.connection.program.set_cell(name, index, value.into());
        let updates: Vec<Update> = cells.into_iter().map(cell).collect::<Result<_, _>>()?;
        self.connection.write(&updates)
    }

    fn read_proof_records(
        &self,
        cells: &[u32],
        round_state: &RoundState,
    ) -> Result<Vec<Option<ProofRecord>>, SwitchError> {
        self.check_usable()?;
        let mut proved = Vec::with_capacity(cells.len());
        for batch in cells.chunks(DEVICES_PER_READ) {
            let register_cells = batch.iter().map(|cell| proved_cell(*cell, round_state.number));
            let values = self.connection.read_column("proved", register_cells)?;
            proved.extend(
                values
                    .into_iter()
                    .map(|value| round_state.proof_record(value, &self.clock)),
            );
        }
        Ok(proved)
    }
}

/// Converts a time of the monotonic clock to the boot-time clock.
fn boot_us_of(time: Monotonic) -> u64 {
    let now = timestamps::now();
    let offset_ns = i128::from(now.boot_ns) - i128::from(now.monotonic_ns);
    u64::try_from((i128::from(time.0) * 1_000_000 + offset_ns) / 1000).unwrap_or(0)
}

impl ProverSet for P4Runtime {
    fn install(&mut self, device: DeviceId, period: Period, keys: &ProverKeys) -> Result<(), ProverError> {
        if device.0 == 0 {
            return Err(ProverError::DeviceZero);
        }
        // In shared memory, a key whose first 8 bytes are zero represents no key. Such a key is refused here too.
        let is_none = |key: &ProofKey| key.as_bytes().starts_with(&[0; 8]);
        if is_none(&keys.current) || keys.alternate.as_ref().is_some_and(is_none) {
            return Err(ProverError::ZeroKey(device));
        }
        let cell = match self.provers.provers.get(&device) {
            Some(prover) => prover.cell,
            None => self.provers.cells.take().ok_or(ProverError::NoFreeSlot(device))?,
        };
        let result = self
            .begin_period(period)
            .and_then(|()| self.install_keys((device, cell), period, keys));
        self.for_provers(result)
    }

    fn wipe(&mut self, device: DeviceId) -> bool {
        let Some(prover) = self.provers.provers.remove(&device) else {
            return false;
        };
        self.provers.locations.remove(&device);
        let result = self.remove_prover(device, prover);
        // The next call that returns a result reports the loss of the switch.
        let _ = self.for_provers(result);
        self.provers.cells.retire(prover.cell);
        true
    }

    fn commit(&mut self) -> Result<(), ProverError> {
        let result = self.flush_updates();
        self.for_provers(result)
    }

    fn open_round(&mut self, open: &OpenRound) -> Result<(), ProverError> {
        let (number, period) = (open.round.number, open.round.start.period);
        if number <= self.provers.last_round {
            return Err(ProverError::RoundNotAbove(number, self.provers.last_round));
        }
        if self.provers.periods.get(lane(period.0)) != Some(&Some(period)) {
            return Err(ProverError::PeriodUnknown(period));
        }
        let result = self.begin_round(open);
        self.for_provers(result)?;
        let started_us = boot_us_of(open.started);
        if let Some(round_state) = self.provers.rounds.get_mut(lane(number.0.into())) {
            *round_state = Some(RoundState { number, started_us });
        }
        self.provers.last_round = number;
        Ok(())
    }

    fn round_results_of(
        &self,
        devices: &[DeviceId],
        round: RoundNumber,
    ) -> Result<Vec<Option<ProofRecord>>, ProverError> {
        let mut proved = vec![None; devices.len()];
        let Some(round_state) = self.provers.round(round) else {
            return Ok(proved);
        };
        let installed = devices.iter().zip(&mut proved).filter_map(|(device, proved)| {
            let prover = self.provers.provers.get(device)?;
            Some((prover.cell, proved))
        });
        let (cells, results): (Vec<u32>, Vec<_>) = installed.unzip();
        let records = self.for_provers(self.read_proof_records(&cells, round_state))?;
        results
            .into_iter()
            .zip(records)
            .for_each(|(result, record)| *result = record);
        Ok(proved)
    }

    fn poll_spacing_ns(&self) -> u64 {
        POLL_SPACING_NS
    }

    fn verdicts(&self, round: RoundNumber) -> Result<Vec<(DeviceId, Option<ProofRecord>)>, ProverError> {
        if self.provers.round(round).is_none() {
            return Ok(Vec::new());
        }
        let devices: Vec<DeviceId> = self.provers.provers.keys().copied().collect();
        let proved = self.round_results_of(&devices, round)?;
        Ok(devices.into_iter().zip(proved).collect())
    }

    fn reset_rounds(&mut self) {
        let numbers = [0, 1].map(|lane| self.connection.program.set_cell("round_number", lane, 0));
        let provers = self.provers.provers.values();
        let cells = provers.flat_map(|prover| [prover.cell * LANES, prover.cell * LANES + 1]);
        let results = cells.map(|cell| self.connection.program.set_cell("proved", cell, 0));
        let updates: Result<Vec<Update>, _> = numbers.into_iter().chain(results).collect();
        let result = updates.and_then(|updates| self.queue_updates(updates));
        let result = result.and_then(|()| self.flush_updates());
        let _ = self.for_provers(result);
        self.provers.rounds = [None; LANES as usize];
        self.provers.last_round = RoundNumber(0);
    }
}
