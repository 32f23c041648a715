//! `attest/2` at the gateway (LAP/1 3.2): keys ahead of a period, rounds, and one verdict per prover and round.

use subtle::ConstantTimeEq as _;

use super::Gateway;
use super::provision::ProvisionError;
use crate::attest::{ProofKey, Round};
use crate::ids::{DeviceId, Period, RoundNumber};
use crate::time::{Monotonic, Now};
use crate::verdict::Verdict;
use crate::wire::Proof;

/// Which of the configurations that are valid was proven.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Configuration {
    /// The one that stands.
    Current,
    /// The one that is being rolled out, valid beside it for a while.
    Alternate,
}

/// What a prover may prove in a period.
#[derive(Clone, Debug)]
pub struct ProverKeys {
    /// Under the current configuration.
    pub current: ProofKey,
    /// Under the one that is being rolled out.
    pub alternate: Option<ProofKey>,
}

/// A round with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenRound {
    /// What is asked.
    pub round: Round,
    /// When it began.
    pub started: Monotonic,
    /// After this moment its proofs are too late.
    pub until: Monotonic,
}

/// The verdict on a prover that is ok in a round; silence has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proved {
    /// What it runs.
    pub configuration: Configuration,
    /// From the round's beginning to its proof, ms.
    pub elapsed_ms: u32,
}

/// Of rounds, or periods, with even numbers and with odd ones: so that the next is there before the last one ends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lanes<T> {
    even: T,
    odd: T,
}

impl<T> Lanes<T> {
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

/// A prover.
#[derive(Debug, Default)]
pub(super) struct Prover {
    /// By period.
    keys: Lanes<Option<ProverKeys>>,
    /// By round.
    proved: Lanes<Option<(RoundNumber, Proved)>>,
}

impl Gateway {
    /// Installs what a prover may prove in a period. The first key of a period takes the place of all provers' keys of the
    /// period before the last.
    ///
    /// # Errors
    /// Device 0; more provers than fit; a key whose first 8 bytes are zero, which stand for no key in shared memory.
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

    /// Forgets a prover; `false`: it was not here.
    pub fn wipe_prover(&mut self, device: DeviceId) -> bool {
        self.provers.remove(&device).is_some()
    }

    /// Begins a round, in the place of the one before the last.
    ///
    /// # Errors
    /// Its number is not above that of the last one that began; no key of its period was ever installed, or they are gone.
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

    /// Closes all rounds, and lets numbers begin anew: for tests. In operation a number never comes again.
    pub fn forget_rounds(&mut self) {
        self.rounds = Lanes::default();
        self.last_round = RoundNumber(0);
    }

    /// The verdict on a prover in the newest round with an even number or the newest with an odd one; `None`: silent. Of other
    /// rounds nothing is kept.
    #[must_use]
    pub fn proved(&self, device: DeviceId, round: RoundNumber) -> Option<Proved> {
        let newest = self.rounds.of(round.0.into()).as_ref()?.round.number;
        let prover = self.provers.get(&device).filter(|_| newest == round)?;
        let (number, proved) = (*prover.proved.of(round.0.into()))?;
        (number == round).then_some(proved)
    }

    /// A PROOF, in the order of checks of LAP/1 3.2.1.
    pub(super) fn proof(&mut self, now: Now, message: &Proof) -> Verdict {
        if self.config.provers_max == 0 {
            return Verdict::DropUnsupportedType;
        }
        if message.gateway_id.get() != self.config.gateway_id.0 {
            return Verdict::DropGateway;
        }
        let is_asked = |open: &&OpenRound| {
            open.round.number.0 == message.round.get() && open.round.nonce == message.nonce
        };
        let open = self.rounds.of(message.round.get().into());
        let Some(open) = open.as_ref().filter(is_asked) else {
            return Verdict::DropRound;
        };
        if now.monotonic() > open.until {
            return Verdict::DropLate;
        }
        let round = &open.round;
        let Some(prover) = self.provers.get_mut(&message.header.device()) else {
            return Verdict::DropUnknownProver;
        };
        let proved = prover.proved.of_mut(round.number.0.into());
        if proved.is_some_and(|(number, _)| number == round.number) {
            return Verdict::DropProved;
        }
        let Some(keys) = prover.keys.of(round.start.period.0) else {
            return Verdict::DropNoKey;
        };
        let Some(configuration) = keys.configuration(round, &message.proof) else {
            return Verdict::DropProof;
        };
        let elapsed_ms = now.monotonic().since_ms(open.started);
        let elapsed_ms = u32::try_from(elapsed_ms).unwrap_or(u32::MAX);
        *proved = Some((
            round.number,
            Proved {
                configuration,
                elapsed_ms,
            },
        ));
        Verdict::ProofOk
    }
}

impl ProverKeys {
    /// Which of them has made that proof.
    fn configuration(&self, round: &Round, proof: &[u8; 64]) -> Option<Configuration> {
        let made = |key: &ProofKey| bool::from(key.prove(round).ct_eq(proof));
        if made(&self.current) {
            return Some(Configuration::Current);
        }
        let alternate = self.alternate.as_ref()?;
        made(alternate).then_some(Configuration::Alternate)
    }
}
