//! A device's prover: the prover of the protocol crate with a key in software.

use linewarden_protocol::attest::prover::{ProofOutcome, Prover, RequestTagKey};
use linewarden_protocol::attest::{AttestationKey, ConfigurationHash, PeriodKey, PeriodStart, Round};
use linewarden_protocol::device::Session;
use linewarden_protocol::ids::{DeviceId, Period};
use linewarden_protocol::wire::{self, Message, PROOF_BYTES};

/// A proof, and the configuration that it proves.
pub struct RecordedProof {
    pub round: Round,
    pub h: ConfigurationHash,
    pub message: [u8; PROOF_BYTES],
}

pub struct SimulatedProver {
    id: DeviceId,
    key: AttestationKey,
    /// The current configuration of the device; the prover measures it once in a period.
    pub configuration: ConfigurationHash,
    prover: Prover,
    measurements: Vec<(PeriodStart, ConfigurationHash, PeriodKey)>,
}

impl SimulatedProver {
    pub fn new(id: DeviceId, configuration: ConfigurationHash) -> Self {
        Self {
            id,
            key: Self::key(id),
            configuration,
            prover: Prover::new(id, Period(0)),
            measurements: Vec::new(),
        }
    }

    /// The attestation key, which is also in the registry.
    pub fn key(id: DeviceId) -> AttestationKey {
        let mut key = [0xa7; 32];
        key[..8].copy_from_slice(&id.0.to_be_bytes());
        AttestationKey::from_bytes(key)
    }

    /// Restarts the device with its current configuration.
    pub fn boot(&mut self) {
        self.prover = Prover::new(self.id, self.prover.period());
        self.measurements.clear();
    }

    /// Handles a datagram at the attestation port. Returns a proof if the datagram is a new challenge that verifies under
    /// the session key or the request key.
    pub fn receive(&mut self, payload: &[u8], session: Option<&Session>) -> Option<RecordedProof> {
        let Ok(Message::AttestRequest(request)) = wire::parse(payload) else {
            return None;
        };
        let round = Round::from(request);
        let in_session = session
            .filter(|session| session.gateway == round.gateway)
            .and_then(|session| {
                let screened = self.prover.screen(payload, true).ok()?;
                screened.verify(Some(RequestTagKey::Session(session.key()))).ok()
            });
        let target = match in_session {
            Some(target) => target,
            None => {
                let screened = self.prover.screen(payload, false).ok()?;
                let (gateway, period) = screened.gateway_and_period();
                let key = self.key.for_requests(self.id, gateway, period);
                screened.verify(Some(RequestTagKey::Request(&key))).ok()?
            }
        };
        let response = match self.prover.respond(target) {
            ProofOutcome::MeasurementNeeded(start, target) => {
                self.measure(start);
                let (_, _, key) = self
                    .measurements
                    .iter()
                    .find(|(measured_start, ..)| *measured_start == start)?;
                self.prover.begin_period(&target, key);
                self.prover.respond(target)
            }
            proof @ ProofOutcome::Proof(_) => proof,
        };
        let (_, h, _) = self
            .measurements
            .iter()
            .find(|(measured_start, ..)| *measured_start == round.start)?;
        Some(RecordedProof {
            round,
            h: *h,
            message: response.bytes()?.try_into().unwrap(),
        })
    }

    fn measure(&mut self, start: PeriodStart) {
        if self
            .measurements
            .iter()
            .any(|(measured_start, ..)| *measured_start == start)
        {
            return;
        }
        let key = self.key.for_period(self.id, &start, &self.configuration);
        self.measurements.push((start, self.configuration, key));
    }
}
