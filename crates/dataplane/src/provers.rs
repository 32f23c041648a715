//! Provers, their keys, rounds and verdicts (LAP/1 3.2), independent of where a data plane stores them.

use linewarden_protocol::gateway::{OpenRound, ProofRecord, ProverKeys};
use linewarden_protocol::ids::{DeviceId, Period, RoundNumber};

use crate::store::provers::{ProverError, Provers};

/// Provers, keys and rounds, which the gateway writes, and verdicts on PROOFs, which the gateway reads.
pub trait ProverSet {
    /// Installs the keys of a prover for a period. Keys of one even and one odd period can be installed at a time: the
    /// first key of a period removes all keys of the former period with the same parity. A PROOF that arrives while the
    /// key is being replaced is dropped.
    ///
    /// # Errors
    /// See [`ProverError`].
    fn install(&mut self, device: DeviceId, period: Period, keys: &ProverKeys) -> Result<(), ProverError>;
    /// Removes a prover. Returns `false` if the prover was not installed.
    fn wipe(&mut self, device: DeviceId) -> bool;
    /// Applies all earlier calls of `install` and `wipe` that are not yet effective. Opening a round does the same.
    ///
    /// # Errors
    /// `SwitchFailed`.
    fn commit(&mut self) -> Result<(), ProverError>;
    /// Opens a round, which replaces the open round whose number has the same parity.
    ///
    /// # Errors
    /// `RoundNotAbove`, `PeriodUnknown`, `SwitchFailed`.
    fn open_round(&mut self, open: &OpenRound) -> Result<(), ProverError>;
    /// The verdicts on these provers in `round`, in the order of `devices`. `round` must be the newest round with an even
    /// number or the newest round with an odd number. `None`: no proof received, prover not installed, or other round.
    ///
    /// # Errors
    /// `SwitchFailed`: the verdicts are unknown.
    fn round_results_of(
        &self,
        devices: &[DeviceId],
        round: RoundNumber,
    ) -> Result<Vec<Option<ProofRecord>>, ProverError>;
    /// Recommended interval between two queries of the verdicts, ns per queried prover. Queries at this interval take only
    /// a small part of the time.
    fn poll_spacing_ns(&self) -> u64;
    /// The verdicts on all installed provers in `round`, in no particular order. For a round that
    /// [`ProverSet::round_results_of`] does not support, the result is empty.
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
        Ok(devices
            .iter()
            .map(|device| self.proof_record(*device, round))
            .collect())
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
