//! A simulated device on a UDP socket with its own loopback address.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use linewarden_protocol::device::{Device, Output, Session};
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::wire::{self, MESSAGE_BYTES, Message, message_type};
use rand::Rng as _;
use rand_chacha::ChaCha20Rng;

use crate::clock::boot_ms;
use crate::fleet::Member;

/// Longest wait for a datagram before the device's timers are polled.
const READ_TIMEOUT: Duration = Duration::from_millis(10);
/// Devices' addresses: 127.64.0.0 and up.
const FIRST_ADDRESS: u32 = u32::from_be_bytes([127, 64, 0, 0]);

/// A device: its state machine, its PUF and its address. The socket of the device is open only during a handshake, so
/// that the limit on open files does not limit the fleet.
pub(super) struct LoopbackDevice {
    device: Device,
    member: Member,
    address: Ipv4Addr,
    /// The latest RESPONSE, as an on-path attacker could capture it.
    pub(super) response: Option<[u8; MESSAGE_BYTES]>,
}

/// Durations of a handshake, ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandshakeTime {
    /// Time of the two round trips.
    pub(super) network: u64,
    /// Time from the first REQUEST to the session, including the PUF.
    pub(super) total: u64,
}

/// How a handshake ended.
#[derive(Debug)]
pub(super) enum HandshakeResult {
    /// The device has a session.
    Session(HandshakeTime),
    /// The handshake stopped before the RESPONSE, which was not sent.
    ResponseWithheld([u8; MESSAGE_BYTES]),
    /// The time limit passed without a session.
    TimedOut,
}

impl LoopbackDevice {
    pub(super) fn new(member: Member, index: u32) -> Self {
        Self {
            device: Device::new(member.config.clone()),
            member,
            address: Ipv4Addr::from_bits(FIRST_ADDRESS + index),
            response: None,
        }
    }

    pub(super) fn id(&self) -> DeviceId {
        self.member.config.device
    }

    pub(super) fn session(&self) -> Option<&Session> {
        self.device.session()
    }

    /// Discards the device's handshake and session.
    pub(super) fn power_cycle(&mut self) {
        self.device = Device::new(self.member.config.clone());
    }

    pub(super) fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// A socket on the device's address.
    pub(super) fn bind(&self) -> io::Result<UdpSocket> {
        UdpSocket::bind((self.address, 0))
    }

    /// A socket that is connected to the gateway.
    pub(super) fn connect(&self, gateway: SocketAddr) -> io::Result<UdpSocket> {
        let socket = self.bind()?;
        socket.connect(gateway)?;
        socket.set_read_timeout(Some(READ_TIMEOUT))?;
        Ok(socket)
    }

    /// Runs a handshake for at most `limit`. With `withhold_response`, the handshake stops before the RESPONSE is sent.
    pub(super) fn authenticate(
        &mut self,
        socket: &UdpSocket,
        rng: &mut ChaCha20Rng,
        limit: Duration,
        withhold_response: bool,
    ) -> io::Result<HandshakeResult> {
        self.device.abandon();
        let output = self.start(rng);
        self.run(socket, rng, output, limit, withhold_response)
    }

    /// Sends a withheld RESPONSE and continues the handshake.
    pub(super) fn deliver(
        &mut self,
        socket: &UdpSocket,
        rng: &mut ChaCha20Rng,
        response: [u8; MESSAGE_BYTES],
        limit: Duration,
    ) -> io::Result<HandshakeResult> {
        self.run(socket, rng, Output::Transmit(response), limit, false)
    }

    fn start(&mut self, rng: &mut ChaCha20Rng) -> Output {
        let mut nonce = [0u8; 16];
        rng.fill_bytes(&mut nonce);
        self.device.start(nonce, boot_ms()).unwrap_or(Output::None)
    }

    /// Applies the outputs of the state machine until the device has a session or `limit` has passed.
    fn run(
        &mut self,
        socket: &UdpSocket,
        rng: &mut ChaCha20Rng,
        mut output: Output,
        limit: Duration,
        withhold_response: bool,
    ) -> io::Result<HandshakeResult> {
        let started = Instant::now();
        let mut clock = RoundTripClock::default();
        let mut buffer = [0u8; 2 * MESSAGE_BYTES];
        while started.elapsed() < limit {
            output = match output {
                Output::Transmit(message) => {
                    let is_response = message.get(3) == Some(&message_type::RESPONSE);
                    if is_response {
                        self.response = Some(message);
                        if withhold_response {
                            return Ok(HandshakeResult::ResponseWithheld(message));
                        }
                    }
                    clock.record_sent(is_response);
                    socket.send(&message)?;
                    self.device.poll(boot_ms())
                }
                Output::EvaluatePuf(query) => {
                    let key = self.member.row_key(&query);
                    self.device.puf_result(key, boot_ms())
                }
                Output::Authenticated(_) => {
                    return Ok(HandshakeResult::Session(HandshakeTime {
                        network: nanoseconds(clock.network),
                        total: nanoseconds(started.elapsed()),
                    }));
                }
                Output::NeedNonce => self.start(rng),
                Output::Failed { .. } | Output::Postponed { .. } | Output::SessionExpired => {
                    self.device.poll(boot_ms())
                }
                Output::None => match socket.recv(&mut buffer) {
                    Ok(length) => {
                        clock.record_received();
                        let local_ip = self.address.to_ipv6_mapped().octets();
                        let payload = buffer.get(..length).unwrap_or_default();
                        self.device
                            .handle(payload, &local_ip, boot_ms())
                            .unwrap_or(Output::None)
                    }
                    Err(error) if is_transient(&error) => self.device.poll(boot_ms()),
                    Err(error) => return Err(error),
                },
            };
        }
        Ok(HandshakeResult::TimedOut)
    }
}

/// Measures the two round trips: from the first copy of a message to the first reply.
#[derive(Default)]
struct RoundTripClock {
    waiting_since: Option<Instant>,
    /// Whether the current round trip began with a RESPONSE.
    is_response: bool,
    network: Duration,
}

impl RoundTripClock {
    fn record_sent(&mut self, is_response: bool) {
        if self.waiting_since.is_none() || is_response != self.is_response {
            self.waiting_since = Some(Instant::now());
            self.is_response = is_response;
        }
    }

    fn record_received(&mut self) {
        if let Some(since) = self.waiting_since.take() {
            self.network += since.elapsed();
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Whether the receive timed out or was interrupted, or no socket is open at the peer.
pub(super) fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, Interrupted, TimedOut, WouldBlock};
    matches!(
        error.kind(),
        WouldBlock | TimedOut | Interrupted | ConnectionRefused
    )
}

/// The CHALLENGE in a payload, if it echoes that nonce.
pub(super) fn challenge_for(payload: &[u8], nonce: &[u8; 16]) -> Option<wire::Challenge> {
    match wire::parse(payload) {
        Ok(Message::Challenge(challenge)) if nonce.starts_with(&challenge.nonce_echo) => Some(*challenge),
        _ => None,
    }
}
