//! `attest/2` at the gateway (LAP/1 3.2): keys installed before a period, rounds, and one proof record per prover
//! and round.

use subtle::ConstantTimeEq as _;

use super::Gateway;
use super::provision::ProvisionError;
use crate::attest::{ProofKey, Round};
use crate::ids::{DeviceId, Period, RoundNumber};
use crate::time::{Monotonic, Now};
use crate::verdict::Verdict;
use crate::wire::Proof;

/// Which valid configuration was proven.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Configuration {
    /// The current configuration.
    Current,
    /// The configuration that is being rolled out, which is valid in addition to the current configuration until the
    /// roll-out ends.
    Alternate,
}

/// The keys of the configurations that a prover may prove in a period.
#[derive(Clone, Debug)]
pub struct ProverKeys {
    /// The key of the current configuration.
    pub current: ProofKey,
    /// The key of the configuration being rolled out.
    pub alternate: Option<ProofKey>,
}

/// A round with its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenRound {
    /// The values that all requests of the round contain.
    pub round: Round,
    /// The start of the round.
    pub started: Monotonic,
    /// Proofs after this moment are late.
    pub deadline: Monotonic,
}

/// The proof of a prover in a round. Without a valid proof there is no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProofRecord {
    /// The proven configuration.
    pub configuration: Configuration,
    /// Time from the start of the round to the proof, ms.
    pub elapsed_ms: u32,
}

/// One value for even numbers of rounds or periods and one for odd numbers, so that the next round or period can be
/// prepared before the current round or period ends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ByParity<T> {
    even: T,
    odd: T,
}

impl<T> ByParity<T> {
    fn of(&self, number: u64) -> &T {
        if number & 1 == 0 { &self.even } else { &self.odd }
    }

    fn of_mut(&mut self, number: u64) -> &mut T {
        if number & 1 == 0 {
            &mut self.even
        } else {
            &mut self.odd
        }
    }
}

/// The state of a prover.
#[derive(Debug, Default)]
pub(super) struct ProverState {
    /// Keys by period.
    keys: ByParity<Option<ProverKeys>>,
    /// Proofs by round.
    proofs: ByParity<Option<(RoundNumber, ProofRecord)>>,
}

impl Gateway {
    /// Installs the keys of a prover for a period. The first key of a period removes all keys of the earlier period
    /// with the same parity.
    ///
    /// # Errors
    /// Device 0; more provers than configured; a key whose first 8 bytes are zero, which mean "no key" in shared
    /// memory.
    pub fn install_prover(
        &mut self,
        device: DeviceId,
        period: Period,
        keys: ProverKeys,
    ) -> Result<(), ProvisionError> {
        if device.0 == 0 {
            return Err(ProvisionError::DeviceZero);
        }
        let is_full = self.provers.len() >= self.config.provers_max;
        if is_full && !self.provers.contains_key(&device) {
            return Err(ProvisionError::ProversFull(device));
        }
        let is_unusable = |key: &ProofKey| key.as_bytes().starts_with(&[0; 8]);
        if is_unusable(&keys.current) || keys.alternate.as_ref().is_some_and(is_unusable) {
            return Err(ProvisionError::UnusableProofKey(device));
        }
        if self.periods.of_mut(period.0).replace(period) != Some(period) {
            let provers = self.provers.values_mut();
            provers.for_each(|prover| *prover.keys.of_mut(period.0) = None);
        }
        *self.provers.entry(device).or_default().keys.of_mut(period.0) = Some(keys);
        Ok(())
    }

    /// Removes a prover; `false` if it is not installed.
    pub fn remove_prover(&mut self, device: DeviceId) -> bool {
        self.provers.remove(&device).is_some()
    }

    /// Opens a round, and closes the earlier round with the same parity.
    ///
    /// # Errors
    /// The number is not above the number of the last opened round, or no key of the period is installed.
    pub fn open_round(&mut self, round: OpenRound) -> Result<(), ProvisionError> {
        let (number, period) = (round.round.number, round.round.start.period);
        if number <= self.last_round {
            return Err(ProvisionError::RoundNotAbove(number, self.last_round));
        }
        if *self.periods.of(period.0) != Some(period) {
            return Err(ProvisionError::PeriodUnknown(period));
        }
        *self.rounds.of_mut(number.0.into()) = Some(round);
        self.last_round = number;
        Ok(())
    }

    /// Closes all rounds and resets the numbers: for tests. In operation numbers never repeat.
    pub fn reset_rounds(&mut self) {
        self.rounds = ByParity::default();
        self.last_round = RoundNumber(0);
    }

    /// The proof of a prover in the newest even or the newest odd round; `None` without a proof. Records of other
    /// rounds are not kept.
    #[must_use]
    pub fn proof_record(&self, device: DeviceId, round: RoundNumber) -> Option<ProofRecord> {
        let newest = self.rounds.of(round.0.into()).as_ref()?.round.number;
        let prover = self.provers.get(&device).filter(|_| newest == round)?;
        let (number, record) = (*prover.proofs.of(round.0.into()))?;
        (number == round).then_some(record)
    }

    /// Handles a PROOF, with the order of checks of LAP/1 3.2.1.
    pub(super) fn handle_proof(&mut self, now: Now, message: &Proof) -> Verdict {
        if self.config.provers_max == 0 {
            return Verdict::DropUnsupportedType;
        }
        if message.gateway_id.get() != self.config.gateway_id.0 {
            return Verdict::DropGateway;
        }
        let is_requested = |open: &&OpenRound| {
            open.round.number.0 == message.round.get() && open.round.nonce == message.nonce
        };
        let open = self.rounds.of(message.round.get().into());
        let Some(open) = open.as_ref().filter(is_requested) else {
            return Verdict::DropRound;
        };
        if now.monotonic() > open.deadline {
            return Verdict::DropLate;
        }
        let round = &open.round;
        let Some(prover) = self.provers.get_mut(&message.header.device()) else {
            return Verdict::DropUnknownProver;
        };
        let record = prover.proofs.of_mut(round.number.0.into());
        if record.is_some_and(|(number, _)| number == round.number) {
            return Verdict::DropProved;
        }
        let Some(keys) = prover.keys.of(round.start.period.0) else {
            return Verdict::DropNoKey;
        };
        let Some(configuration) = keys.matching_configuration(round, &message.proof) else {
            return Verdict::DropProof;
        };
        let elapsed_ms = now.monotonic().since_ms(open.started);
        let elapsed_ms = u32::try_from(elapsed_ms).unwrap_or(u32::MAX);
        *record = Some((
            round.number,
            ProofRecord {
                configuration,
                elapsed_ms,
            },
        ));
        Verdict::ProofOk
    }
}

impl ProverKeys {
    /// The configuration whose key made this proof.
    fn matching_configuration(&self, round: &Round, proof: &[u8; 64]) -> Option<Configuration> {
        let matches = |key: &ProofKey| bool::from(key.prove(round).ct_eq(proof));
        if matches(&self.current) {
            return Some(Configuration::Current);
        }
        let alternate = self.alternate.as_ref()?;
        matches(alternate).then_some(Configuration::Alternate)
    }
}
