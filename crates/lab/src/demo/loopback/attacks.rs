//! Attacks that need only UDP sockets. The gateway's lines decide whether an attack succeeded.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use linewarden_dataplane::LineStatus;
use linewarden_protocol::device::PufQuery;
use linewarden_protocol::ids::{DeviceId, RowIndex, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey};
use linewarden_protocol::nonce::RowStatement;
use linewarden_protocol::tag;
use linewarden_protocol::wire::{self, MESSAGE_BYTES, message_type};
use rand::Rng as _;
use rand_chacha::ChaCha20Rng;

use super::device::{HandshakeResult, LoopbackDevice, challenge_for, is_transient};
use crate::demo::DemoError;
use crate::demo::gateway::{DemoGateway, GATEWAY_ID};
use crate::demo::report::AttackOutcome;
use crate::fleet::Member;

/// Number of addresses that attackers send from: 127.200.0.1 and up.
const ADDRESS_COUNT: u8 = 16;
/// Messages after which the attacker waits until the gateway has processed them. The receive buffer of the gateway's
/// socket has space for more messages.
const BATCH_MESSAGES: u32 = 256;
/// Timeout for a reply of the gateway.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

type MessageBytes = [u8; MESSAGE_BYTES];

/// The attackers' sockets and inputs.
pub(super) struct LoopbackAttacks<'a> {
    demo_gateway: &'a DemoGateway,
    sockets: Vec<UdpSocket>,
    next_socket: usize,
    gateway: SocketAddr,
    /// The device whose CHALLENGE shows that the gateway has processed all earlier messages.
    probe: DeviceId,
    rng: ChaCha20Rng,
    messages_per_attack: u32,
    /// Devices whose lines must not change.
    pub(super) protected_devices: Vec<DeviceId>,
    /// Captured RESPONSEs of devices that have a session.
    pub(super) overheard_responses: Vec<MessageBytes>,
}

/// Why the result of an attack is inconclusive.
type AttackFailure = String;

impl<'a> LoopbackAttacks<'a> {
    pub(super) fn new(
        demo_gateway: &'a DemoGateway,
        gateway: SocketAddr,
        probe: DeviceId,
        messages_per_attack: u32,
        rng: ChaCha20Rng,
    ) -> Result<Self, DemoError> {
        let open = |host| {
            let socket = UdpSocket::bind((Ipv4Addr::new(127, 200, 0, host), 0))?;
            socket.connect(gateway)?;
            socket.set_read_timeout(Some(Duration::from_millis(20)))?;
            Ok(socket)
        };
        Ok(Self {
            demo_gateway,
            sockets: (1..=ADDRESS_COUNT)
                .map(open)
                .collect::<Result<_, _>>()
                .map_err(DemoError::system("opening the attackers' sockets"))?,
            next_socket: 0,
            gateway,
            probe,
            rng,
            messages_per_attack,
            protected_devices: Vec::new(),
            overheard_responses: Vec::new(),
        })
    }

    /// Runs all attacks and reports each outcome to `report` until `report` returns false.
    pub(super) fn run(
        mut self,
        mut clones: Vec<Member>,
        mut device: LoopbackDevice,
        report: &dyn Fn(AttackOutcome) -> bool,
    ) {
        type Attack<'b> = Box<dyn FnOnce(&mut LoopbackAttacks<'_>) -> Result<u64, AttackFailure> + 'b>;
        let attacks: [(&'static str, Attack<'_>); 5] = [
            (
                CLONE,
                Box::new(|attacks| attacks.clone_with_other_chip(&mut clones)),
            ),
            (REPLAY, Box::new(|attacks| attacks.replay_responses())),
            (REQUESTS, Box::new(|attacks| attacks.flood_requests())),
            (RESPONSES, Box::new(|attacks| attacks.flood_responses())),
            (FLIPS, Box::new(|attacks| attacks.flip_bits(&mut device))),
        ];
        for (name, attack) in attacks {
            let outcome = self.run_checked(name, attack);
            if !report(outcome) {
                return;
            }
        }
    }

    /// Runs an attack and counts the lines that it changed.
    fn run_checked(
        &mut self,
        name: &'static str,
        attack: impl FnOnce(&mut Self) -> Result<u64, AttackFailure>,
    ) -> AttackOutcome {
        let mut outcome = AttackOutcome {
            name,
            ..AttackOutcome::default()
        };
        let checked = self.lines().and_then(|before| {
            let attempts = attack(self)?;
            self.wait_processed()?;
            let after = self.lines()?;
            let lines = self.protected_devices.iter().zip(before.iter().zip(&after));
            let changed = lines.filter(|(_, (before, after))| before != after);
            let changes = changed.map(|(device, (before, after))| {
                format!("device {device}: before {before:?}; after {after:?}")
            });
            Ok((attempts, changes.collect::<Vec<_>>()))
        });
        match checked {
            Ok((attempts, changes)) => {
                outcome.attempts = attempts;
                outcome.successes = changes.len() as u64;
                outcome.line_change = changes.into_iter().next();
            }
            Err(reason) => outcome.inconclusive = Some(reason),
        }
        outcome
    }

    fn lines(&self) -> Result<Vec<Option<LineStatus>>, AttackFailure> {
        self.demo_gateway
            .lines(self.protected_devices.clone())
            .map_err(|error| error.to_string())
    }

    /// Each clone requests a CHALLENGE and responds with the key of its own chip, or with a guess.
    fn clone_with_other_chip(&mut self, clones: &mut [Member]) -> Result<u64, AttackFailure> {
        for clone in clones.iter_mut() {
            let config = clone.config.clone();
            let mut nonce = [0u8; 16];
            self.rng.fill_bytes(&mut nonce);
            let challenge = self.request_challenge(config.device, nonce)?;
            let query = PufQuery {
                mode: config.mode,
                idx: RowIndex(challenge.idx.get()),
                challenge: challenge.challenge,
            };
            let row_key = clone.row_key(&query).unwrap_or_else(|_| {
                let mut guess = [0u8; 16];
                self.rng.fill_bytes(&mut guess);
                RowKey::from_bytes(guess)
            });
            let key = AuthKey::derive(&row_key, config.suite, config.mode, query.idx, GATEWAY_ID);
            let mut response = response(&challenge, nonce);
            response.tag = tag::response(&key, &response, &tag::location(None));
            self.send(&bytes(&response))?;
        }
        Ok(clones.len() as u64)
    }

    /// Sends every captured RESPONSE three times from every address.
    fn replay_responses(&mut self) -> Result<u64, AttackFailure> {
        let captured = std::mem::take(&mut self.overheard_responses);
        let mut attempts = 0;
        for response in &captured {
            for _ in 0..3 * ADDRESS_COUNT {
                self.send(response)?;
                attempts += 1;
            }
            self.wait_processed()?;
        }
        Ok(attempts)
    }

    /// Sends REQUESTs for known and unknown devices, alternately.
    fn flood_requests(&mut self) -> Result<u64, AttackFailure> {
        let devices = self.protected_devices.clone();
        self.flood(|attacks, number| {
            let mut nonce = [0u8; 16];
            attacks.rng.fill_bytes(&mut nonce);
            let known_device = devices.get(number as usize / 2 % devices.len().max(1));
            let device = match known_device {
                Some(device) if number.is_multiple_of(2) => *device,
                _ => DeviceId(attacks.rng.next_u64().max(1)),
            };
            request(device, nonce)
        })
    }

    /// Sends RESPONSEs for the current rows with an accepted `fresh` and random tags.
    fn flood_responses(&mut self) -> Result<u64, AttackFailure> {
        let devices = self.protected_devices.clone();
        let mut challenges = Vec::with_capacity(devices.len());
        for device in devices {
            let mut nonce = [0u8; 16];
            self.rng.fill_bytes(&mut nonce);
            challenges.push(self.request_challenge(device, nonce)?);
        }
        self.flood(|attacks, number| {
            let Some(challenge) = challenges.get(number as usize % challenges.len().max(1)) else {
                return [0; MESSAGE_BYTES];
            };
            let mut nonce = [0u8; 16];
            attacks.rng.fill_bytes(&mut nonce);
            let mut response = response(challenge, nonce);
            attacks.rng.fill_bytes(&mut response.tag);
            bytes(&response)
        })
    }

    fn flood(
        &mut self,
        mut message: impl FnMut(&mut Self, u32) -> MessageBytes,
    ) -> Result<u64, AttackFailure> {
        for number in 0..self.messages_per_attack {
            let message = message(self, number);
            self.send(&message)?;
            if number % BATCH_MESSAGES == BATCH_MESSAGES - 1 {
                self.wait_processed()?;
            }
        }
        Ok(self.messages_per_attack.into())
    }

    /// Sends copies of a valid RESPONSE from the device's own address, each with one flipped bit, and then the valid
    /// RESPONSE, which the gateway must accept. The outcome is inconclusive if the gateway does not accept the valid
    /// RESPONSE, or if a copy changed a line; the error states the reason.
    fn flip_bits(&mut self, device: &mut LoopbackDevice) -> Result<u64, AttackFailure> {
        let text = |error: std::io::Error| error.to_string();
        let socket = device.connect(self.gateway).map_err(text)?;
        let withheld = device.authenticate(&socket, &mut self.rng, REPLY_TIMEOUT, true);
        let HandshakeResult::ResponseWithheld(valid) = withheld.map_err(text)? else {
            return Err("the device receives no CHALLENGE".to_owned());
        };
        let count_before = self.protected_devices.len();
        self.protected_devices.push(device.id());
        let before = self.lines()?;
        let mut attempts = 0;
        for bit in 0..MESSAGE_BYTES * 8 {
            let mut flipped = valid;
            if let Some(byte) = flipped.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
            socket.send(&flipped).map_err(text)?;
            attempts += 1;
        }
        self.wait_processed()?;
        let unchanged = before == self.lines()?;
        self.protected_devices.truncate(count_before);
        let delivered = device.deliver(&socket, &mut self.rng, valid, REPLY_TIMEOUT);
        match (unchanged, delivered.map_err(text)?) {
            (true, HandshakeResult::Session(_)) => Ok(attempts),
            (false, _) => Err("a RESPONSE with a flipped bit spent the device's row".to_owned()),
            (true, _) => {
                Err("the gateway rejects the valid RESPONSE after copies with a flipped bit".to_owned())
            }
        }
    }

    /// Sends a message from the next address.
    fn send(&mut self, message: &MessageBytes) -> Result<(), AttackFailure> {
        self.next_socket = (self.next_socket + 1) % self.sockets.len().max(1);
        let Some(socket) = self.sockets.get(self.next_socket) else {
            return Err("no socket".to_owned());
        };
        match socket.send(message) {
            Err(error) if !is_transient(&error) => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    /// Sends a REQUEST and waits for the reply. The gateway has one queue and one thread, so the reply shows that the
    /// thread has processed all earlier messages.
    fn wait_processed(&mut self) -> Result<(), AttackFailure> {
        let mut nonce = [0u8; 16];
        self.rng.fill_bytes(&mut nonce);
        self.request_challenge(self.probe, nonce).map(|_| ())
    }

    /// Requests a CHALLENGE, as any station may.
    fn request_challenge(
        &mut self,
        device: DeviceId,
        nonce: [u8; 16],
    ) -> Result<wire::Challenge, AttackFailure> {
        let Some(socket) = self.sockets.first() else {
            return Err("no socket".to_owned());
        };
        let started = Instant::now();
        let mut buffer = [0u8; 2 * MESSAGE_BYTES];
        while started.elapsed() < REPLY_TIMEOUT {
            let sent = socket.send(&request(device, nonce));
            sent.map(|_| ()).or_else(|error| {
                if is_transient(&error) {
                    Ok(())
                } else {
                    Err(error.to_string())
                }
            })?;
            while let Ok(length) = socket.recv(&mut buffer) {
                if let Some(challenge) = challenge_for(buffer.get(..length).unwrap_or_default(), &nonce) {
                    return Ok(challenge);
                }
            }
        }
        Err(format!(
            "no CHALLENGE from the gateway for device {device} within {} s",
            REPLY_TIMEOUT.as_secs()
        ))
    }
}

/// Names as in [`crate::attackers::ATTACKS`]: the same attacks over UDP sockets.
pub(super) const CLONE: &str = "cloned device with a different PUF";
const REPLAY: &str = "replay of captured messages to the gateway";
const REQUESTS: &str = "flood of spoofed REQUEST messages";
const RESPONSES: &str = "flood of spoofed RESPONSE messages";
const FLIPS: &str = "bit flips in messages to the gateway";

/// Names of all attacks that run on loopback.
pub(super) const ATTACK_NAMES: [&str; 5] = [CLONE, REPLAY, REQUESTS, RESPONSES, FLIPS];

fn request(device: DeviceId, nonce: [u8; 16]) -> MessageBytes {
    bytes(&wire::Request {
        header: wire::Header::new(message_type::REQUEST, Suite::SipHash128, 0, device),
        // The nonce contains the row statement; random bytes would state rows beyond the pool.
        nonce: RowStatement::default().write_into(nonce),
        reserved: [0; 32],
    })
}

/// A RESPONSE to that CHALLENGE, without a tag.
fn response(challenge: &wire::Challenge, nonce: [u8; 16]) -> wire::Response {
    wire::Response {
        header: wire::Header::new(
            message_type::RESPONSE,
            Suite::SipHash128,
            0,
            challenge.header.device(),
        ),
        nonce,
        idx: challenge.idx,
        gateway_id: challenge.gateway_id,
        fresh: challenge.fresh,
        tag: [0; 16],
    }
}

fn bytes(message: &(impl zerocopy::IntoBytes + zerocopy::Immutable)) -> MessageBytes {
    let mut out = [0; MESSAGE_BYTES];
    for (to, from) in out.iter_mut().zip(message.as_bytes()) {
        *to = *from;
    }
    out
}
