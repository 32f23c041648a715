//! A device's prover: the protocol's own, with its key in software.

use linewarden_protocol::attest::prover::{Answer, AskedBy, Prover};
use linewarden_protocol::attest::{AttestationKey, ConfigurationHash, PeriodKey, PeriodStart, Round};
use linewarden_protocol::device::Session;
use linewarden_protocol::ids::{DeviceId, Period};
use linewarden_protocol::wire::{self, Message, PROOF_BYTES};

/// A proof that a device has made of what it had measured.
pub struct Made {
    pub round: Round,
    pub h: ConfigurationHash,
    pub message: [u8; PROOF_BYTES],
}

pub struct Attester {
    id: DeviceId,
    key: AttestationKey,
    /// What the device runs now; it is measured once a period.
    pub runs: ConfigurationHash,
    prover: Prover,
    measured: Vec<(PeriodStart, ConfigurationHash, PeriodKey)>,
}

impl Attester {
    pub fn new(id: DeviceId, runs: ConfigurationHash) -> Self {
        Self {
            id,
            key: Self::key(id),
            runs,
            prover: Prover::new(id, Period(0)),
            measured: Vec::new(),
        }
    }

    /// What it shares with the controller.
    pub fn key(id: DeviceId) -> AttestationKey {
        let mut key = [0xa7; 32];
        key[..8].copy_from_slice(&id.0.to_be_bytes());
        AttestationKey::from_bytes(key)
    }

    /// The device is started again, with what it runs now.
    pub fn boot(&mut self) {
        self.prover = Prover::new(self.id, self.prover.period());
        self.measured.clear();
    }

    /// A datagram at the port of requests: under the session's key, or else under the request key.
    pub fn receive(&mut self, payload: &[u8], session: Option<&Session>) -> Option<Made> {
        let Ok(Message::AttestRequest(request)) = wire::parse(payload) else {
            return None;
        };
        let round = Round::from(request);
        let in_session = session
            .filter(|session| session.gateway == round.gateway)
            .and_then(|session| {
                let screened = self.prover.screen(payload, true).ok()?;
                screened.verify(Some(AskedBy::Session(session.key()))).ok()
            });
        let asked = match in_session {
            Some(asked) => asked,
            None => {
                let screened = self.prover.screen(payload, false).ok()?;
                let (gateway, period) = screened.asks();
                let key = self.key.for_requests(self.id, gateway, period);
                screened.verify(Some(AskedBy::Request(&key))).ok()?
            }
        };
        let answer = match self.prover.answer(asked) {
            Answer::Period(start, asked) => {
                self.measure(start);
                let (_, _, key) = self.measured.iter().find(|(at, ..)| *at == start)?;
                self.prover.begin(&asked, key);
                self.prover.answer(asked)
            }
            proof @ Answer::Proof(_) => proof,
        };
        let (_, h, _) = self.measured.iter().find(|(at, ..)| *at == round.start)?;
        Some(Made {
            round,
            h: *h,
            message: answer.bytes()?.try_into().unwrap(),
        })
    }

    fn measure(&mut self, start: PeriodStart) {
        if self.measured.iter().any(|(at, ..)| *at == start) {
            return;
        }
        let key = self.key.for_period(self.id, &start, &self.runs);
        self.measured.push((start, self.runs, key));
    }
}
