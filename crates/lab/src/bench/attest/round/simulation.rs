//! Simulated provers, many on one socket: the PROOFs for requests that arrive together are computed in parallel.

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

/// Requests that are handled together: the PROOFs of two sockets fit into a veth's queue of 256 frames.
const BATCH: usize = 64;
/// Interval at which a thread checks whether to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The key with which a prover is enrolled.
pub(super) fn attestation_key(index: u32) -> AttestationKey {
    let mut key = [0x6b; 32];
    key[..4].copy_from_slice(&index.to_be_bytes());
    AttestationKey::from_bytes(key)
}

/// A request that has no PROOF yet, and where to send the PROOF.
pub(super) struct PendingRequest {
    device: DeviceId,
    round: Round,
    reply_path: ReplyPath,
}

pub(super) enum ReplyPath {
    /// The prover's endpoint, then the gateway's.
    Frame(Endpoint, Endpoint),
    Datagram(SocketAddr),
}

impl PendingRequest {
    fn read(message: &[u8], reply_path: ReplyPath) -> Option<Self> {
        match wire::parse(message) {
            Ok(Message::AttestRequest(request)) => Some(Self {
                device: request.header.device(),
                round: Round::from(request),
                reply_path,
            }),
            _ => None,
        }
    }
}

/// A socket that receives requests and sends PROOFs.
pub(super) trait Socket: Send {
    /// Waits briefly for requests and appends at most [`BATCH`] to `requests`.
    fn receive(&mut self, requests: &mut Vec<PendingRequest>) -> Result<(), BenchError>;

    /// Sends PROOFs; returns the number of sent PROOFs.
    fn send(&mut self, proofs: &[(Proof, &ReplyPath)]) -> Result<u64, BenchError>;
}

/// Frames on the devices' end of a link.
pub(super) struct Frames {
    socket: PacketSocket,
    batch: TxBatch,
}

impl Frames {
    /// Opens the next of `sockets` sockets, among which frames are distributed by destination MAC address.
    pub(super) fn open(lab: &Lab, sockets: u32) -> Result<Self, BenchError> {
        let options = Options {
            rx_frames: 65_536,
            fanout: (sockets > 1).then_some(Fanout { group: 9, sockets }),
            ..Options::default()
        };
        Ok(Self {
            socket: PacketSocket::open(&lab.devices, &lab.devices_end, &options).map_err(socket_error)?,
            batch: TxBatch::new(BATCH),
        })
    }
}

fn socket_error(error: PacketSocketError) -> BenchError {
    BenchError::InvalidMeasurement(error.to_string())
}

impl Socket for Frames {
    fn receive(&mut self, requests: &mut Vec<PendingRequest>) -> Result<(), BenchError> {
        self.socket.wait(POLL_INTERVAL).map_err(socket_error)?;
        self.socket
            .receive(BATCH, |received| requests.extend(parse_request(received.frame)));
        Ok(())
    }

    fn send(&mut self, proofs: &[(Proof, &ReplyPath)]) -> Result<u64, BenchError> {
        for (proof, reply_path) in proofs {
            if let ReplyPath::Frame(from, to) = reply_path {
                self.batch
                    .push_with(|out| write::udp(out, from, to, [0; 2], proof.as_bytes()));
            }
        }
        let sent = self.socket.send(&mut self.batch).map_err(socket_error)?;
        Ok(sent as u64)
    }
}

fn parse_request(bytes: &[u8]) -> Option<PendingRequest> {
    let parsed = frame::parse(bytes).ok()?;
    let (ip, udp) = parsed.datagram()?;
    if (udp.src_port, udp.dst_port) != (LAP_PORT, ATTEST_PORT) {
        return None;
    }
    let endpoint = |mac, ip, port| Endpoint { mac, ip, port };
    let reply_path = ReplyPath::Frame(
        endpoint(parsed.dst_mac, ip.dst, udp.dst_port),
        endpoint(parsed.src_mac, ip.src, udp.src_port),
    );
    PendingRequest::read(bytes.get(udp.payload())?, reply_path)
}

/// Datagrams on loopback.
pub(super) struct Datagrams {
    socket: UdpSocket,
}

impl Datagrams {
    pub(super) fn open(socket: &UdpSocket) -> io::Result<Self> {
        let socket = socket.try_clone()?;
        socket.set_read_timeout(Some(POLL_INTERVAL))?;
        Ok(Self { socket })
    }
}

impl Socket for Datagrams {
    fn receive(&mut self, requests: &mut Vec<PendingRequest>) -> Result<(), BenchError> {
        let mut buffer = [0u8; 256];
        // Blocks only for the first datagram: on loopback, all sent datagrams are already queued.
        while requests.len() < BATCH {
            match self.socket.recv_from(&mut buffer) {
                Ok((length, from)) => {
                    let message = buffer.get(..length).unwrap_or_default();
                    requests.extend(PendingRequest::read(message, ReplyPath::Datagram(from)));
                }
                Err(error) if is_transient(&error) => break,
                Err(error) => return Err(io_error("use a prover's socket")(error)),
            }
            self.socket
                .set_nonblocking(true)
                .map_err(io_error("use a prover's socket"))?;
        }
        self.socket
            .set_nonblocking(false)
            .map_err(io_error("use a prover's socket"))
    }

    fn send(&mut self, proofs: &[(Proof, &ReplyPath)]) -> Result<u64, BenchError> {
        let mut sent = 0;
        for (proof, reply_path) in proofs {
            if let ReplyPath::Datagram(to) = reply_path {
                match self.socket.send_to(proof.as_bytes(), to) {
                    Ok(_) => sent += 1,
                    Err(error) if is_transient(&error) => {}
                    Err(error) => return Err(io_error("use a prover's socket")(error)),
                }
            }
        }
        Ok(sent)
    }
}

fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, Interrupted, TimedOut, WouldBlock};
    matches!(
        error.kind(),
        WouldBlock | TimedOut | Interrupted | ConnectionRefused
    )
}

/// A simulated prover.
struct Prover {
    key: AttestationKey,
    proof_key: Option<ProofKey>,
}

/// The provers that share one socket.
pub(super) struct SimulatedProvers {
    socket: Box<dyn Socket>,
    provers: HashMap<DeviceId, Prover>,
    h: ConfigurationHash,
    /// Start of the current key period.
    start: Option<PeriodStart>,
    lanes: Backend,
}

impl SimulatedProvers {
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

    /// Handles requests until `stop` is set; returns the number of PROOFs sent.
    pub(super) fn run(mut self, stop: &AtomicBool) -> Result<u64, BenchError> {
        let mut sent = 0;
        let mut requests: Vec<PendingRequest> = Vec::with_capacity(BATCH);
        while !stop.load(Ordering::Relaxed) {
            requests.clear();
            self.socket.receive(&mut requests)?;
            let mut matrices: Vec<Matrix> = Vec::with_capacity(requests.len());
            requests.retain(|request| {
                let matrix = self.matrix(request);
                let is_known = matrix.is_some();
                matrices.extend(matrix);
                is_known
            });
            let mut proofs = vec![[0; 64]; matrices.len()];
            blocks::<R14>(self.lanes, &matrices, &mut proofs);
            let replies: Vec<(Proof, &ReplyPath)> = requests
                .iter()
                .zip(proofs)
                .map(|(request, proof)| {
                    (
                        request.round.proof_message(request.device, proof),
                        &request.reply_path,
                    )
                })
                .collect();
            if !replies.is_empty() {
                sent += self.socket.send(&replies)?;
            }
        }
        Ok(sent)
    }

    /// The cipher's input for the PROOF. Derives the prover's key at the first request of a key period, as a device
    /// does.
    fn matrix(&mut self, request: &PendingRequest) -> Option<Matrix> {
        let start = request.round.start;
        if self.start != Some(start) {
            self.provers
                .values_mut()
                .for_each(|prover| prover.proof_key = None);
            self.start = Some(start);
        }
        let prover = self.provers.get_mut(&request.device)?;
        let key = prover.proof_key.get_or_insert_with(|| {
            let key = prover.key.for_period(request.device, &start, &self.h);
            key.for_gateway(request.round.gateway)
        });
        Some(key.matrix(&request.round))
    }
}
