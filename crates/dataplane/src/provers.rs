//! Provers, their keys and rounds, and who is ok (LAP/1 3.2), wherever a data plane holds them.

use linewarden_protocol::gateway::{OpenRound, Proved, ProverKeys};
use linewarden_protocol::ids::{DeviceId, Period, RoundNumber};

use crate::store::provers::{ProverError, Provers};

/// What a gateway writes and reads to have PROOFs judged.
pub trait ProverSet {
    /// Installs what a prover may prove in a period. The first key of a period takes the place of all provers' keys of the
    /// period before the last. While it is being replaced a key proves nothing.
    ///
    /// # Errors
    /// See [`ProverError`].
    fn install(&mut self, device: DeviceId, period: Period, keys: &ProverKeys) -> Result<(), ProverError>;
    /// Forgets a prover; `false`: it was not here.
    fn wipe(&mut self, device: DeviceId) -> bool;
    /// What was installed and wiped is in force from here on at the latest, and when a round begins.
    ///
    /// # Errors
    /// `Switch`.
    fn commit(&mut self) -> Result<(), ProverError>;
    /// Begins a round, in the place of the one before the last.
    ///
    /// # Errors
    /// `RoundNotAbove`, `PeriodUnknown`, `Switch`.
    fn open_round(&mut self, open: &OpenRound) -> Result<(), ProverError>;
    /// The verdicts on these provers, in their order, in the newest round with an even number or the newest with an odd one; `None`:
    /// silent, or not here.
    ///
    /// # Errors
    /// `Switch`: nobody knows who is silent.
    fn proved_of(&self, devices: &[DeviceId], round: RoundNumber)
    -> Result<Vec<Option<Proved>>, ProverError>;
    /// How far looks at verdicts should be apart, ns for each prover that is looked at, so that little time goes into looking.
    fn look_spacing_ns(&self) -> u64;
    /// Verdicts on all that are here, in no order. Of any other round there are none.
    ///
    /// # Errors
    /// `Switch`.
    fn verdicts(&self, round: RoundNumber) -> Result<Vec<(DeviceId, Option<Proved>)>, ProverError>;
    /// Closes all rounds, forgets who was ok, and lets numbers begin anew: for tests. In operation a number never comes again.
    fn forget_rounds(&mut self);
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
    fn proved_of(
        &self,
        devices: &[DeviceId],
        round: RoundNumber,
    ) -> Result<Vec<Option<Proved>>, ProverError> {
        Ok(devices.iter().map(|device| self.proved(*device, round)).collect())
    }
    fn look_spacing_ns(&self) -> u64 {
        100
    }
    fn verdicts(&self, round: RoundNumber) -> Result<Vec<(DeviceId, Option<Proved>)>, ProverError> {
        Ok(Self::verdicts(self, round).collect())
    }
    fn forget_rounds(&mut self) {
        Self::forget_rounds(self);
    }
}
