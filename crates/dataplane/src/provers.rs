//! Provers, their keys, rounds and verdicts (LAP/1 3.2), independent of where a data plane stores them.

use linewarden_protocol::gateway::{OpenRound, ProofRecord, ProverKeys};
use linewarden_protocol::ids::{DeviceId, Period, RoundNumber};

use crate::store::provers::{ProverError, Provers};

/// Provers, keys and rounds, which a gateway writes, and verdicts on PROOFs, which it reads.
pub trait ProverSet {
    /// Installs the keys of a prover for a period. The first key of a period replaces all provers' keys of the period
    /// before the last. While a key is being replaced it verifies no proof.
    ///
    /// # Errors
    /// See [`ProverError`].
    fn install(&mut self, device: DeviceId, period: Period, keys: &ProverKeys) -> Result<(), ProverError>;
    /// Removes a prover. Returns `false` if it was not installed.
    fn wipe(&mut self, device: DeviceId) -> bool;
    /// Makes installed and wiped provers effective, if they are not yet. Opening a round does the same.
    ///
    /// # Errors
    /// `SwitchFailed`.
    fn commit(&mut self) -> Result<(), ProverError>;
    /// Opens a round, which replaces the round before the last one.
    ///
    /// # Errors
    /// `RoundNotAbove`, `PeriodUnknown`, `SwitchFailed`.
    fn open_round(&mut self, open: &OpenRound) -> Result<(), ProverError>;
    /// The verdicts on these provers, in their order, in the newest round with an even number or the newest with an
    /// odd one. `None`: no proof received, or not installed.
    ///
    /// # Errors
    /// `SwitchFailed`: the verdicts are unknown.
    fn round_results_of(
        &self,
        devices: &[DeviceId],
        round: RoundNumber,
    ) -> Result<Vec<Option<ProofRecord>>, ProverError>;
    /// Recommended time between queries of the verdicts, ns per queried prover, so that queries take little time.
    fn poll_spacing_ns(&self) -> u64;
    /// The verdicts on all installed provers, in no order, in a round as for [`ProverSet::round_results_of`]. For any other
    /// round the result is empty.
    ///
    /// # Errors
    /// `SwitchFailed`.
    fn verdicts(&self, round: RoundNumber) -> Result<Vec<(DeviceId, Option<ProofRecord>)>, ProverError>;
    /// Closes all rounds, clears all verdicts, and lets round numbers restart: for tests. In operation a number is
    /// never reused.
    fn reset_rounds(&mut self);
}

impl ProverSet for Provers {
    fn install(&mut self, device: DeviceId, period: Period, keys: &ProverKeys) -> Result<(), ProverError> {
        Self::install(self, device, period, keys)
    }
    fn wipe(&mut self, device: DeviceId) -> bool {
        Self::wipe(self, device)
    }
    fn commit(&mut self) -> Result<(), ProverError> {
        Ok(())
    }
    fn open_round(&mut self, open: &OpenRound) -> Result<(), ProverError> {
        Self::open_round(self, open)
    }
    fn round_results_of(
        &self,
        devices: &[DeviceId],
        round: RoundNumber,
    ) -> Result<Vec<Option<ProofRecord>>, ProverError> {
        Ok(devices.iter().map(|device| self.proved(*device, round)).collect())
    }
    fn poll_spacing_ns(&self) -> u64 {
        100
    }
    fn verdicts(&self, round: RoundNumber) -> Result<Vec<(DeviceId, Option<ProofRecord>)>, ProverError> {
        Ok(Self::verdicts(self, round).collect())
    }
    fn reset_rounds(&mut self) {
        Self::reset_rounds(self);
    }
}
