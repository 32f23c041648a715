//! Simulated provers of a round, many behind one socket: what is asked for together is proven together, with all lanes.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use linewarden_forro::{Backend, Matrix, R14, blocks};
use linewarden_protocol::attest::{AttestationKey, ConfigurationHash, PeriodStart, ProofKey, Round};
use linewarden_protocol::frame;
use linewarden_protocol::frame::write::{self, Endpoint};
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::wire::{self, ATTEST_PORT, LAP_PORT, Message, Proof};
use zerocopy::IntoBytes as _;

use crate::bench::{BenchError, io as io_error};
use crate::fleet::device_id;
use crate::packet_socket::{Fanout, Options, PacketSocket, PacketSocketError, TxBatch};
use crate::topology::Lab;

/// Requests that are answered together: small, so that a veth's ring of 256 frames holds what two sockets send.
const BATCH: usize = 64;
/// How long a socket is waited for before a look at whether it is over.
const NAP: Duration = Duration::from_millis(20);

/// The key that a prover was enrolled with.
pub(super) fn attestation_key(index: u32) -> AttestationKey {
    let mut key = [0x6b; 32];
    key[..4].copy_from_slice(&index.to_be_bytes());
    AttestationKey::from_bytes(key)
}

/// What was asked for, and where the answer goes.
pub(super) struct Asked {
    device: DeviceId,
    round: Round,
    way: Way,
}

pub(super) enum Way {
    /// From the asked end to the asking one.
    Frame(Endpoint, Endpoint),
    Datagram(SocketAddr),
}

impl Asked {
    fn read(message: &[u8], way: Way) -> Option<Self> {
        match wire::parse(message) {
            Ok(Message::AttestRequest(request)) => Some(Self {
                device: request.header.device(),
                round: Round::from(request),
                way,
            }),
            _ => None,
        }
    }
}

/// How requests come and PROOFs go.
pub(super) trait Socket: Send {
    /// Waits a little for requests, and takes what is there, at most [`BATCH`].
    fn receive(&mut self, into: &mut Vec<Asked>) -> Result<(), BenchError>;

    /// Sends PROOFs; returns how many were taken.
    fn send(&mut self, proofs: &[(Proof, &Way)]) -> Result<u64, BenchError>;
}

/// Whole frames on the devices' end of a link.
pub(super) struct Frames {
    socket: PacketSocket,
    batch: TxBatch,
}

impl Frames {
    /// The next of `sockets` that share what comes by destination MAC address.
    pub(super) fn open(lab: &Lab, sockets: u32) -> Result<Self, BenchError> {
        let options = Options {
            rx_frames: 65_536,
            fanout: (sockets > 1).then_some(Fanout { group: 9, sockets }),
            ..Options::default()
        };
        Ok(Self {
            socket: PacketSocket::open(&lab.devices, &lab.devices_end, &options).map_err(failed)?,
            batch: TxBatch::new(BATCH),
        })
    }
}

fn failed(error: PacketSocketError) -> BenchError {
    BenchError::Contradiction(error.to_string())
}

impl Socket for Frames {
    fn receive(&mut self, into: &mut Vec<Asked>) -> Result<(), BenchError> {
        self.socket.wait(NAP).map_err(failed)?;
        self.socket
            .receive(BATCH, |received| into.extend(asked(received.frame)));
        Ok(())
    }

    fn send(&mut self, proofs: &[(Proof, &Way)]) -> Result<u64, BenchError> {
        for (proof, way) in proofs {
            if let Way::Frame(from, to) = way {
                self.batch
                    .push_with(|out| write::udp(out, from, to, [0; 2], proof.as_bytes()));
            }
        }
        let taken = self.socket.send(&mut self.batch).map_err(failed)?;
        Ok(taken as u64)
    }
}

fn asked(bytes: &[u8]) -> Option<Asked> {
    let parsed = frame::parse(bytes).ok()?;
    let (ip, udp) = parsed.datagram()?;
    if (udp.src_port, udp.dst_port) != (LAP_PORT, ATTEST_PORT) {
        return None;
    }
    let end = |mac, ip, port| Endpoint { mac, ip, port };
    let way = Way::Frame(
        end(parsed.dst_mac, ip.dst, udp.dst_port),
        end(parsed.src_mac, ip.src, udp.src_port),
    );
    Asked::read(bytes.get(udp.payload())?, way)
}

/// Datagrams on loopback.
pub(super) struct Datagrams {
    socket: UdpSocket,
}

impl Datagrams {
    pub(super) fn over(socket: &UdpSocket) -> io::Result<Self> {
        let socket = socket.try_clone()?;
        socket.set_read_timeout(Some(NAP))?;
        Ok(Self { socket })
    }
}

impl Socket for Datagrams {
    fn receive(&mut self, into: &mut Vec<Asked>) -> Result<(), BenchError> {
        let mut buffer = [0u8; 256];
        // Blocks for the first one only: a loopback has the next in its queue, or has none yet.
        while into.len() < BATCH {
            match self.socket.recv_from(&mut buffer) {
                Ok((length, from)) => {
                    let message = buffer.get(..length).unwrap_or_default();
                    into.extend(Asked::read(message, Way::Datagram(from)));
                }
                Err(error) if is_passing(&error) => break,
                Err(error) => return Err(io_error("a prover's socket")(error)),
            }
            self.socket
                .set_nonblocking(true)
                .map_err(io_error("a prover's socket"))?;
        }
        self.socket
            .set_nonblocking(false)
            .map_err(io_error("a prover's socket"))
    }

    fn send(&mut self, proofs: &[(Proof, &Way)]) -> Result<u64, BenchError> {
        let mut taken = 0;
        for (proof, way) in proofs {
            if let Way::Datagram(to) = way {
                match self.socket.send_to(proof.as_bytes(), to) {
                    Ok(_) => taken += 1,
                    Err(error) if is_passing(&error) => {}
                    Err(error) => return Err(io_error("a prover's socket")(error)),
                }
            }
        }
        Ok(taken)
    }
}

fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, Interrupted, TimedOut, WouldBlock};
    matches!(
        error.kind(),
        WouldBlock | TimedOut | Interrupted | ConnectionRefused
    )
}

/// A prover.
struct Prover {
    key: AttestationKey,
    proof_key: Option<ProofKey>,
}

/// The provers behind one socket.
pub(super) struct Simulated {
    socket: Box<dyn Socket>,
    provers: HashMap<DeviceId, Prover>,
    h: ConfigurationHash,
    start: Option<PeriodStart>,
    lanes: Backend,
}

impl Simulated {
    pub(super) fn new(
        socket: impl Socket + 'static,
        indices: impl Iterator<Item = u32>,
        h: ConfigurationHash,
    ) -> Self {
        let prover = |index| {
            let prover = Prover {
                key: attestation_key(index),
                proof_key: None,
            };
            (device_id(index), prover)
        };
        Self {
            socket: Box::new(socket),
            provers: indices.map(prover).collect(),
            h,
            start: None,
            lanes: Backend::widest(),
        }
    }

    /// Answers until it is over; how many PROOFs were sent.
    pub(super) fn run(mut self, stop: &AtomicBool) -> Result<u64, BenchError> {
        let mut sent = 0;
        let mut asked: Vec<Asked> = Vec::with_capacity(BATCH);
        while !stop.load(Ordering::Relaxed) {
            asked.clear();
            self.socket.receive(&mut asked)?;
            let mut matrices: Vec<Matrix> = Vec::with_capacity(asked.len());
            asked.retain(|asked| {
                let matrix = self.matrix(asked);
                let is_known = matrix.is_some();
                matrices.extend(matrix);
                is_known
            });
            let mut proofs = vec![[0; 64]; matrices.len()];
            blocks::<R14>(self.lanes, &matrices, &mut proofs);
            let answers: Vec<(Proof, &Way)> = asked
                .iter()
                .zip(proofs)
                .map(|(asked, proof)| (asked.round.answer(asked.device, proof), &asked.way))
                .collect();
            if !answers.is_empty() {
                sent += self.socket.send(&answers)?;
            }
        }
        Ok(sent)
    }

    /// A key is made, as a device makes it, when its period is first asked about.
    fn matrix(&mut self, asked: &Asked) -> Option<Matrix> {
        let start = asked.round.start;
        if self.start != Some(start) {
            self.provers
                .values_mut()
                .for_each(|prover| prover.proof_key = None);
            self.start = Some(start);
        }
        let prover = self.provers.get_mut(&asked.device)?;
        let key = prover.proof_key.get_or_insert_with(|| {
            let key = prover.key.for_period(asked.device, &start, &self.h);
            key.for_gateway(asked.round.gateway)
        });
        Some(key.matrix(&asked.round))
    }
}
