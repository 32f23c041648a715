//! Somebody who sends proofs and questions that are not his.

use linewarden_protocol::attest::Round;
use linewarden_protocol::wire::{self, ATTEST_PORT, Message, PROOF_BYTES};
use rand::RngExt as _;
use zerocopy::IntoBytes as _;

use super::World;
use super::network::Packet;

impl World {
    /// Something forged or recorded comes to a gateway or to a device.
    pub(super) fn forge(&mut self) {
        match self.rng.random_ratio(3, 4) {
            true => self.forge_proof(),
            false => self.forge_question(),
        }
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
