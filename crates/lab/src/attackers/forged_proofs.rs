//! Forged PROOFs in other devices' names (LAP/1 3.2). Any station can send such messages, so a wrong PROOF has no
//! effect: the PROOF does not lead to a quarantine and does not count as proof of a configuration.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use linewarden_protocol::attest::Round;
use linewarden_protocol::frame::write::{self, Endpoint};
use linewarden_protocol::ids::{DeviceId, RoundNumber};
use linewarden_protocol::wire::{self, ATTEST_PORT, AttestRequest, LAP_PORT, Message, Proof};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha20Rng;
use zerocopy::IntoBytes as _;

use super::AttackError;
use super::attacker_link::datagram;
use crate::packet_socket::{Options, PacketSocket, PacketSocketError, TxBatch};
use crate::topology::Lab;

/// The attack's name in tables.
pub const FORGED_PROOFS: &str = "forged PROOF messages in other devices' names";
/// Longest wait for a frame between two checks of the stop flag.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Random PROOFs for each overheard request.
const RANDOM_PROOFS: usize = 12;
/// Maximum number of devices whose latest PROOF is stored.
const STORED_PROOFS_MAX: usize = 4_096;

/// Overheard requests and sent PROOFs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ForgedProofCounts {
    /// ATTEST_REQUESTs overheard.
    pub requests_overheard: u64,
    /// Forged PROOFs sent; the gateway may accept none.
    pub proofs_sent: u64,
}

/// Makes forged PROOFs from overheard messages.
#[derive(Debug)]
pub(crate) struct ProofForger {
    rng: ChaCha20Rng,
    /// The latest valid PROOF of each device.
    latest_proofs: HashMap<DeviceId, Proof>,
    /// Device of the previous request.
    previous_device: Option<DeviceId>,
    pub(crate) counts: ForgedProofCounts,
}

impl ProofForger {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: ChaCha20Rng::seed_from_u64(seed),
            latest_proofs: HashMap::new(),
            previous_device: None,
            counts: ForgedProofCounts::default(),
        }
    }

    /// Stores a valid PROOF that is sent to the gateway.
    pub(crate) fn overhear(&mut self, proof: &Proof) {
        let device = proof.header.device();
        if self.latest_proofs.len() < STORED_PROOFS_MAX || self.latest_proofs.contains_key(&device) {
            self.latest_proofs.insert(device, *proof);
        }
    }

    /// The forged PROOFs for a request: random PROOFs with the right round and nonce, in the name of the requested
    /// device and of another device; a PROOF of the next round; the device's latest valid PROOF of an earlier round,
    /// unchanged and with the new round.
    pub(crate) fn forge(&mut self, request: &AttestRequest) -> Vec<Proof> {
        let (round, device) = (Round::from(request), request.header.device());
        let next = Round {
            number: RoundNumber(round.number.0.wrapping_add(1)),
            ..round
        };
        let mut proofs = Vec::with_capacity(RANDOM_PROOFS + 4);
        for _ in 0..RANDOM_PROOFS {
            proofs.push(round.proof_message(device, self.random_proof()));
        }
        proofs.push(next.proof_message(device, self.random_proof()));
        if let Some(neighbor) = self.previous_device.replace(device) {
            proofs.push(round.proof_message(neighbor, self.random_proof()));
        }
        // A PROOF of the current round is still valid, so it is not replayed.
        let previous_proof = self.latest_proofs.get(&device);
        if let Some(previous_proof) =
            previous_proof.filter(|previous_proof| previous_proof.round.get() < round.number.0)
        {
            proofs.extend([*previous_proof, round.proof_message(device, previous_proof.proof)]);
        }
        self.counts.requests_overheard += 1;
        self.counts.proofs_sent += proofs.len() as u64;
        proofs
    }

    fn random_proof(&mut self) -> [u8; 64] {
        let mut proof = [0; 64];
        self.rng.fill_bytes(&mut proof);
        proof
    }
}

/// The attacker on the devices' end of the link; stops when dropped. The attacker overhears only senders that do not
/// bypass the queueing discipline, and sends from the addresses to which the requests were sent.
#[derive(Debug)]
pub struct ForgedProofAttack {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<ForgedProofCounts, PacketSocketError>>>,
}

impl ForgedProofAttack {
    /// Starts the attack.
    ///
    /// # Errors
    /// The kernel refuses the packet socket.
    pub fn start(lab: &Lab, seed: u64) -> Result<Self, PacketSocketError> {
        let options = Options {
            rx_frames: 16_384,
            receive_outgoing: true,
            ..Options::default()
        };
        let socket = PacketSocket::open(&lab.devices, &lab.devices_end, &options)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || send_forged_proofs(socket, ProofForger::new(seed), &stopped));
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Stops the attack and returns the counts.
    ///
    /// # Errors
    /// The socket failed.
    pub fn finish(mut self) -> Result<ForgedProofCounts, AttackError> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(proofs)) => Ok(proofs?),
            _ => Err(AttackError::ControlFailed(
                "the thread that sends forged PROOFs panicked",
            )),
        }
    }
}

impl Drop for ForgedProofAttack {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn send_forged_proofs(
    mut socket: PacketSocket,
    mut forger: ProofForger,
    stop: &AtomicBool,
) -> Result<ForgedProofCounts, PacketSocketError> {
    let mut batch = TxBatch::new(64);
    let mut requests: Vec<(Endpoint, Endpoint, AttestRequest)> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        // One frame at a time, so that the device can respond before the next frame is read.
        socket.receive(1, |received| {
            let Some(received) = datagram(received.frame) else {
                return;
            };
            match (
                received.from.port,
                received.to.port,
                wire::parse(received.payload),
            ) {
                (LAP_PORT, ATTEST_PORT, Ok(Message::AttestRequest(request))) => {
                    requests.push((received.to, received.from, *request));
                }
                (ATTEST_PORT, LAP_PORT, Ok(Message::Proof(proof))) => forger.overhear(proof),
                _ => {}
            }
        });
        let Some((device, gateway, request)) = requests.pop() else {
            socket.wait(POLL_INTERVAL)?;
            continue;
        };
        for proof in forger.forge(&request) {
            batch.push_with(|buffer| write::udp(buffer, &device, &gateway, [0; 2], proof.as_bytes()));
        }
        socket.send(&mut batch)?;
    }
    Ok(forger.counts)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use linewarden_protocol::attest::{PeriodStart, ProofKey, RequestKey};
    use linewarden_protocol::ids::{GatewayId, Period};

    use super::*;

    #[test]
    fn forged_proofs_never_equal_the_requested_proof() {
        let (device, other) = (DeviceId(1), DeviceId(2));
        let key = ProofKey::from_bytes([3; 32]);
        let round = |number| Round {
            gateway: GatewayId(1),
            number: RoundNumber(number),
            nonce: [number as u8; 8],
            start: PeriodStart {
                period: Period(1),
                salt: [0; 8],
            },
        };
        let mut forger = ProofForger::new(1);
        let request_key = RequestKey::from_bytes([4; 16]);
        forger.forge(&round(7).request_without_session(other, &request_key));
        forger.overhear(&round(7).proof_message(device, key.prove(&round(7))));
        let proofs = forger.forge(&round(8).request_without_session(device, &request_key));
        let names: HashSet<_> = proofs.iter().map(|proof| proof.header.device()).collect();
        assert_eq!(names, HashSet::from([device, other]));
        let of_round = |proof: &&Proof| proof.round.get() == 8 && proof.nonce == [8; 8];
        assert_eq!(proofs.iter().filter(of_round).count(), RANDOM_PROOFS + 2);
        assert!(proofs.iter().all(|proof| proof.proof != key.prove(&round(8))));
        // A PROOF of the current round is not replayed.
        forger.overhear(&round(8).proof_message(device, key.prove(&round(8))));
        let replayed = forger.forge(&round(8).request_without_session(device, &request_key));
        assert!(replayed.iter().all(|proof| proof.proof != key.prove(&round(8))));
    }
}
