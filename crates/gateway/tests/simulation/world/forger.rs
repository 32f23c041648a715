//! Somebody who sends proofs, questions and CHALLENGEs that are not his.

use linewarden_protocol::attest::Round;
use linewarden_protocol::ids::{DeviceId, RowIndex};
use linewarden_protocol::nonce::Statement;
use linewarden_protocol::wire::{self, ATTEST_PORT, Message, PROOF_BYTES, message_type};
use rand::RngExt as _;
use zerocopy::IntoBytes as _;

use super::World;
use super::network::Packet;

/// Altered copies of each CHALLENGE, each by other bits of its tag.
const FORGED_CHALLENGES: std::ops::RangeInclusive<u8> = 1..=6;

impl World {
    /// Something forged or recorded comes to a gateway or to a device.
    pub(super) fn forge(&mut self) {
        match self.rng.random_ratio(3, 4) {
            true => self.forge_proof(),
            false => self.forge_question(),
        }
    }

    /// Ahead of a CHALLENGE come altered copies of it, more than a device may read its PUF for. The device answers none of them,
    /// and must still answer the right one.
    pub(super) fn forge_challenges(&mut self, station: usize, challenge: &[u8; 64]) {
        if challenge[3] != message_type::CHALLENGE {
            return;
        }
        for forged in FORGED_CHALLENGES {
            let mut payload = *challenge;
            let at = self.forgers_rng.random_range(48..64);
            payload[at] ^= forged;
            self.tally.forged_challenges += 1;
            let sent = self.stations[station].handle(&payload, self.now_ms);
            if sent.iter().any(|sent| sent[3] == message_type::RESPONSE) {
                let device = self.stations[station].id;
                let problem = format!("device {device} answered a forged CHALLENGE");
                self.ledger.problem.get_or_insert(problem);
            }
            self.transmit(station, sent);
        }
    }

    /// Ahead of a REQUEST or RESPONSE comes a copy with another statement in its nonce, from the device's own address. No device may
    /// lose rows by that.
    pub(super) fn forge_statement(&mut self, payload: &[u8]) -> Option<[u8; 64]> {
        let mut forged: [u8; 64] = payload.try_into().ok()?;
        let is_handshake = matches!(forged[3], message_type::REQUEST | message_type::RESPONSE);
        if self.attests || !is_handshake || !self.forgers_rng.random_ratio(1, 4) {
            return None;
        }
        let device = DeviceId(u64::from_be_bytes(forged[8..16].try_into().ok()?));
        let end = self.stations.iter().find(|station| station.id == device)?.rows;
        let row = match self.forgers_rng.random_range(0..4) {
            0 => end,
            1 => end + self.forgers_rng.random_range(1..100),
            2 => self.forgers_rng.random_range(0..=end),
            _ => self.forgers_rng.random(),
        };
        let stated = Statement {
            unanswered_from: RowIndex(row),
            has_refused: self.forgers_rng.random(),
        };
        let nonce: [u8; 16] = forged[16..32].try_into().ok()?;
        forged[16..32].copy_from_slice(&stated.within(nonce));
        self.tally.forged_statements += 1;
        (forged != payload).then_some(forged)
    }

    /// Recent or old.
    fn pick<T: Copy>(&mut self, recorded: &[T]) -> Option<T> {
        let back = match self.rng.random_ratio(2, 3) {
            true => 12.min(recorded.len()),
            false => recorded.len(),
        };
        let last = recorded.len().checked_sub(1)?;
        recorded.get(last - self.rng.random_range(0..back)).copied()
    }

    fn forge_proof(&mut self) {
        let (questions, proofs) = (
            std::mem::take(&mut self.fleet.questions),
            std::mem::take(&mut self.fleet.proofs),
        );
        let (question, proof) = (self.pick(&questions), self.pick(&proofs));
        (self.fleet.questions, self.fleet.proofs) = (questions, proofs);
        let Some(Ok(Message::AttestRequest(question))) = question.as_ref().map(|bytes| wire::parse(bytes))
        else {
            return;
        };
        let round = Round::from(question);
        let device = self.stations[self.rng.random_range(0..self.stations.len())].id;
        let payload: [u8; PROOF_BYTES] = match (self.rng.random_range(0..4), proof) {
            // As it was.
            (0, Some(proof)) => proof,
            // In another's name.
            (1, Some(mut proof)) => {
                proof[8..16].copy_from_slice(&device.0.to_be_bytes());
                proof
            }
            // Of another round, of whoever.
            (2, Some(proof)) => {
                let block = proof[PROOF_BYTES - 64..].try_into().unwrap();
                round.answer(device, block).as_bytes().try_into().unwrap()
            }
            _ => {
                let mut block = [0; 64];
                self.rng.fill(&mut block);
                round.answer(device, block).as_bytes().try_into().unwrap()
            }
        };
        let mut from = ([0; 16], 666);
        from.0[10..].copy_from_slice(&[0xff, 0xff, 10, 6, 6, 6]);
        if self.rng.random_ratio(1, 2) {
            let station = self.rng.random_range(0..self.stations.len());
            from = (self.stations[station].address(), ATTEST_PORT);
        }
        if self.processes.is_empty() {
            return;
        }
        let process = self.processes[self.rng.random_range(0..self.processes.len())].number;
        self.send(Packet::ToGateway {
            process,
            from,
            payload: Box::new(payload),
        });
    }

    fn forge_question(&mut self) {
        let questions = std::mem::take(&mut self.fleet.questions);
        let question = self.pick(&questions);
        self.fleet.questions = questions;
        let Some(mut payload) = question else {
            return;
        };
        let station = self.rng.random_range(0..self.stations.len());
        match self.rng.random_range(0..3) {
            0 => {}
            1 => payload[8..16].copy_from_slice(&self.stations[station].id.0.to_be_bytes()),
            _ => {
                let at = self.rng.random_range(16..payload.len());
                payload[at] ^= 1 << self.rng.random_range(0..8);
            }
        }
        self.send(Packet::ToStation {
            station,
            port: ATTEST_PORT,
            payload: Box::new(payload),
        });
    }
}
