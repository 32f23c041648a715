//! An attacker who sends forged proofs, challenges and CHALLENGEs.

use linewarden_protocol::attest::Round;
use linewarden_protocol::ids::{DeviceId, RowIndex};
use linewarden_protocol::nonce::RowStatement;
use linewarden_protocol::wire::{self, ATTEST_PORT, Message, PROOF_BYTES, message_type};
use rand::RngExt as _;
use zerocopy::IntoBytes as _;

use super::Simulation;
use super::network::Packet;

/// One value for each forged copy of a CHALLENGE: the copy has this value XORed into a byte of its tag.
const TAG_CHANGES: std::ops::RangeInclusive<u8> = 1..=6;

impl Simulation {
    /// Sends a forged or recorded message to a gateway or device.
    pub(super) fn forge(&mut self) {
        match self.rng.random_ratio(3, 4) {
            true => self.forge_proof(),
            false => self.forge_request(),
        }
    }

    /// Before a CHALLENGE, sends more altered copies than the number of PUF readouts that a device permits. The device
    /// must respond only to the genuine CHALLENGE.
    pub(super) fn forge_challenges(&mut self, device_index: usize, challenge: &[u8; 64]) {
        if challenge[3] != message_type::CHALLENGE {
            return;
        }
        for tag_change in TAG_CHANGES {
            let mut payload = *challenge;
            let at = self.attacker_rng.random_range(48..64);
            payload[at] ^= tag_change;
            self.tally.forged_challenges += 1;
            let sent = self.devices[device_index].handle(&payload, self.now_ms);
            if sent.iter().any(|sent| sent[3] == message_type::RESPONSE) {
                let device = self.devices[device_index].id;
                let problem = format!("device {device} responded to a forged CHALLENGE");
                self.ledger.problem.get_or_insert(problem);
            }
            self.transmit(device_index, sent);
        }
    }

    /// Returns a copy of a REQUEST or RESPONSE with another row statement in the nonce, or `None`. The caller delivers the
    /// copy first, from the device's address. Such copies must not cost the device any row.
    pub(super) fn forge_statement(&mut self, payload: &[u8]) -> Option<[u8; 64]> {
        let mut forged: [u8; 64] = payload.try_into().ok()?;
        let is_handshake = matches!(forged[3], message_type::REQUEST | message_type::RESPONSE);
        if self.attests || !is_handshake || !self.attacker_rng.random_ratio(1, 4) {
            return None;
        }
        let device = DeviceId(u64::from_be_bytes(forged[8..16].try_into().ok()?));
        let end = self.devices.iter().find(|simulated| simulated.id == device)?.rows;
        let row = match self.attacker_rng.random_range(0..4) {
            0 => end,
            1 => end + self.attacker_rng.random_range(1..100),
            2 => self.attacker_rng.random_range(0..=end),
            _ => self.attacker_rng.random(),
        };
        let statement = RowStatement {
            first_unanswered_row: RowIndex(row),
            has_refused_row: self.attacker_rng.random(),
        };
        let nonce: [u8; 16] = forged[16..32].try_into().ok()?;
        forged[16..32].copy_from_slice(&statement.write_into(nonce));
        self.tally.forged_statements += 1;
        (forged != payload).then_some(forged)
    }

    /// Selects a recent or an old message; returns `None` if `recorded` is empty.
    fn pick<T: Copy>(&mut self, recorded: &[T]) -> Option<T> {
        let range = match self.rng.random_ratio(2, 3) {
            true => 12.min(recorded.len()),
            false => recorded.len(),
        };
        let last = recorded.len().checked_sub(1)?;
        recorded.get(last - self.rng.random_range(0..range)).copied()
    }

    fn forge_proof(&mut self) {
        let (requests, proofs) = (
            std::mem::take(&mut self.fleet.requests),
            std::mem::take(&mut self.fleet.proofs),
        );
        let (request, proof) = (self.pick(&requests), self.pick(&proofs));
        (self.fleet.requests, self.fleet.proofs) = (requests, proofs);
        let Some(Ok(Message::AttestRequest(request))) = request.as_ref().map(|bytes| wire::parse(bytes))
        else {
            return;
        };
        let round = Round::from(request);
        let device = self.devices[self.rng.random_range(0..self.devices.len())].id;
        let payload: [u8; PROOF_BYTES] = match (self.rng.random_range(0..4), proof) {
            // Unchanged.
            (0, Some(proof)) => proof,
            // With another device id.
            (1, Some(mut proof)) => {
                proof[8..16].copy_from_slice(&device.0.to_be_bytes());
                proof
            }
            // For another round, of any device.
            (2, Some(proof)) => {
                let block = proof[PROOF_BYTES - 64..].try_into().unwrap();
                round.proof_message(device, block).as_bytes().try_into().unwrap()
            }
            _ => {
                let mut block = [0; 64];
                self.rng.fill(&mut block);
                round.proof_message(device, block).as_bytes().try_into().unwrap()
            }
        };
        let mut from = ([0; 16], 666);
        from.0[10..].copy_from_slice(&[0xff, 0xff, 10, 6, 6, 6]);
        if self.rng.random_ratio(1, 2) {
            let device_index = self.rng.random_range(0..self.devices.len());
            from = (self.devices[device_index].address(), ATTEST_PORT);
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

    fn forge_request(&mut self) {
        let requests = std::mem::take(&mut self.fleet.requests);
        let request = self.pick(&requests);
        self.fleet.requests = requests;
        let Some(mut payload) = request else {
            return;
        };
        let device_index = self.rng.random_range(0..self.devices.len());
        match self.rng.random_range(0..3) {
            0 => {}
            1 => payload[8..16].copy_from_slice(&self.devices[device_index].id.0.to_be_bytes()),
            _ => {
                let at = self.rng.random_range(16..payload.len());
                payload[at] ^= 1 << self.rng.random_range(0..8);
            }
        }
        self.send(Packet::ToDevice {
            device_index,
            port: ATTEST_PORT,
            payload: Box::new(payload),
        });
    }
}
