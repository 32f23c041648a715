//! Wrong PROOFs in others' names (LAP/1 3.2). Anybody can send them, so they count as silence: nobody is quarantined because of
//! them, and nobody proven.

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
use super::station::datagram;
use crate::packet_socket::{Options, PacketSocket, PacketSocketError, TxBatch};
use crate::topology::Lab;

/// The attack's name in tables.
pub const JUNK_PROOFS: &str = "junk PROOFs in others' names";
/// How long the listener waits before it looks whether it shall stop.
const NAP: Duration = Duration::from_millis(20);
/// Random PROOFs for each request that is heard.
const RANDOM: usize = 12;
/// Devices whose last PROOF is kept.
const KEPT_MAX: usize = 4_096;

/// What was heard and sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Junk {
    /// ATTEST_REQUESTs.
    pub heard: u64,
    /// PROOFs sent, none of which may count.
    pub sent: u64,
}

/// Makes junk of what it hears.
#[derive(Debug)]
pub(crate) struct Forger {
    rng: ChaCha20Rng,
    /// Last good PROOFs.
    proofs: HashMap<DeviceId, Proof>,
    /// Who was asked before.
    neighbour: Option<DeviceId>,
    pub(crate) junk: Junk,
}

impl Forger {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: ChaCha20Rng::seed_from_u64(seed),
            proofs: HashMap::new(),
            neighbour: None,
            junk: Junk::default(),
        }
    }

    /// A good PROOF on its way.
    pub(crate) fn overhear(&mut self, proof: &Proof) {
        let device = proof.header.device();
        if self.proofs.len() < KEPT_MAX || self.proofs.contains_key(&device) {
            self.proofs.insert(device, *proof);
        }
    }

    /// For a request: random PROOFs of the right round and nonce, in the asked one's name and in another's; one of the next round;
    /// the device's last good PROOF, as it was and under the new round.
    pub(crate) fn answer(&mut self, request: &AttestRequest) -> Vec<Proof> {
        let (round, device) = (Round::from(request), request.header.device());
        let next = Round {
            number: RoundNumber(round.number.0.wrapping_add(1)),
            ..round
        };
        let mut junk = Vec::with_capacity(RANDOM + 4);
        for _ in 0..RANDOM {
            junk.push(round.answer(device, self.random()));
        }
        junk.push(next.answer(device, self.random()));
        if let Some(neighbour) = self.neighbour.replace(device) {
            junk.push(round.answer(neighbour, self.random()));
        }
        // While it is the newest, it is good.
        let old = self.proofs.get(&device);
        if let Some(old) = old.filter(|old| old.round.get() < round.number.0) {
            junk.extend([*old, round.answer(device, old.proof)]);
        }
        self.junk.heard += 1;
        self.junk.sent += junk.len() as u64;
        junk
    }

    fn random(&mut self) -> [u8; 64] {
        let mut proof = [0; 64];
        self.rng.fill_bytes(&mut proof);
        proof
    }
}

/// The attacker on the devices' end of the link; stops when dropped. He hears only senders that do not bypass the queueing
/// discipline, and answers requests from the addresses that they were sent to.
#[derive(Debug)]
pub struct JunkProofs {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Junk, PacketSocketError>>>,
}

impl JunkProofs {
    /// Begins.
    ///
    /// # Errors
    /// What the kernel says of the socket.
    pub fn start(lab: &Lab, seed: u64) -> Result<Self, PacketSocketError> {
        let options = Options {
            rx_frames: 16_384,
            see_outgoing: true,
            ..Options::default()
        };
        let socket = PacketSocket::open(&lab.devices, &lab.devices_end, &options)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || send_junk(socket, Forger::new(seed), &stopped));
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Stops.
    ///
    /// # Errors
    /// The socket failed.
    pub fn finish(mut self) -> Result<Junk, AttackError> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(junk)) => Ok(junk?),
            _ => Err(AttackError::Control("the thread that sends junk panicked")),
        }
    }
}

impl Drop for JunkProofs {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn send_junk(
    mut socket: PacketSocket,
    mut forger: Forger,
    stop: &AtomicBool,
) -> Result<Junk, PacketSocketError> {
    let mut batch = TxBatch::new(64);
    let mut requests: Vec<(Endpoint, Endpoint, AttestRequest)> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        // One at a time: what is behind waits, and the device answers meanwhile.
        socket.receive(1, |received| {
            let Some(heard) = datagram(received.frame) else {
                return;
            };
            match (heard.from.port, heard.to.port, wire::parse(heard.payload)) {
                (LAP_PORT, ATTEST_PORT, Ok(Message::AttestRequest(request))) => {
                    requests.push((heard.to, heard.from, *request));
                }
                (ATTEST_PORT, LAP_PORT, Ok(Message::Proof(proof))) => forger.overhear(proof),
                _ => {}
            }
        });
        let Some((device, gateway, request)) = requests.pop() else {
            socket.wait(NAP)?;
            continue;
        };
        for proof in forger.answer(&request) {
            batch.push_with(|buffer| write::udp(buffer, &device, &gateway, [0; 2], proof.as_bytes()));
        }
        socket.send(&mut batch)?;
    }
    Ok(forger.junk)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use linewarden_protocol::attest::{PeriodStart, ProofKey, RequestKey};
    use linewarden_protocol::ids::{GatewayId, Period};

    use super::*;

    #[test]
    fn nothing_that_it_makes_is_the_proof_that_was_asked_for() {
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
        let mut forger = Forger::new(1);
        let request_key = RequestKey::from_bytes([4; 16]);
        forger.answer(&round(7).request_without_session(other, &request_key));
        forger.overhear(&round(7).answer(device, key.prove(&round(7))));
        let junk = forger.answer(&round(8).request_without_session(device, &request_key));
        let names: HashSet<_> = junk.iter().map(|proof| proof.header.device()).collect();
        assert_eq!(names, HashSet::from([device, other]));
        let of_round = |proof: &&Proof| proof.round.get() == 8 && proof.nonce == [8; 8];
        assert_eq!(junk.iter().filter(of_round).count(), RANDOM + 2);
        assert!(junk.iter().all(|proof| proof.proof != key.prove(&round(8))));
        // What is good now is nothing to replay.
        forger.overhear(&round(8).answer(device, key.prove(&round(8))));
        let again = forger.answer(&round(8).request_without_session(device, &request_key));
        assert!(again.iter().all(|proof| proof.proof != key.prove(&round(8))));
    }
}
