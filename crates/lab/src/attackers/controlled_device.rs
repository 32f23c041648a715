//! A legitimate device. All its messages pass through the attack, which decides which messages are delivered.

use linewarden_protocol::device::{Device, IgnoredReason, Output, READING_INTERVAL_MS, READINGS_AT_ONCE};
use linewarden_protocol::frame::ip_bytes;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::wire::{self, MESSAGE_BYTES, Message};
use rand::Rng as _;
use rand_chacha::ChaCha20Rng;

use super::AttackError;
use super::attacker_link::{AttackerLink, gateway_endpoint};
use crate::address::{DeviceAddress, Family};
use crate::clock::boot_ms;
use crate::fleet::{DEVICE_PORT, Member, SimulatedDevice};

/// How far each handshake advances the device's clock, ms: enough to refill the allowance of PUF readings.
const READINGS_REFILL_MS: u64 = READINGS_AT_ONCE * READING_INTERVAL_MS;

/// A device with its PUF and LAP/1 role; messages reach and leave it only through the attack.
#[derive(Debug)]
pub struct ControlledDevice {
    device: Device,
    member: Member,
    address: DeviceAddress,
    /// Offset of the device's clock against the machine's clock.
    clock_offset_ms: u64,
}

impl ControlledDevice {
    /// Controls an enrolled device at the address of its index.
    #[must_use]
    pub fn new(device: SimulatedDevice) -> Self {
        let address = DeviceAddress::new(device.index);
        let mut member = device.member;
        if let Some(mac) = &mut member.config.bound_mac {
            *mac = address.mac().0;
        }
        Self {
            device: Device::new(member.config.clone()),
            member,
            address,
            clock_offset_ms: 0,
        }
    }

    /// The device's id.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.member.config.device
    }

    fn now_ms(&self) -> u64 {
        boot_ms() + self.clock_offset_ms
    }

    pub(super) fn endpoint(&self, port: u16) -> Endpoint {
        self.address.endpoint(Family::V4, port)
    }

    /// The device's endpoint with its IPv6 address.
    pub(super) fn endpoint6(&self) -> Endpoint {
        self.address.endpoint(Family::V6, DEVICE_PORT)
    }

    pub(super) fn lap_endpoint(&self) -> Endpoint {
        self.endpoint(DEVICE_PORT)
    }

    /// Restarts the handshake and returns the REQUEST that the device would send.
    pub(super) fn start(&mut self, rng: &mut ChaCha20Rng) -> Result<[u8; MESSAGE_BYTES], AttackError> {
        self.device.abandon();
        self.clock_offset_ms += READINGS_REFILL_MS;
        let mut nonce = [0u8; 16];
        rng.fill_bytes(&mut nonce);
        let now_ms = self.now_ms();
        match self.device.start(nonce, now_ms) {
            Ok(Output::Transmit(request)) => Ok(request),
            _ => Err(AttackError::ControlFailed("the device sends no REQUEST")),
        }
    }

    /// Restarts the handshake and returns the gateway's CHALLENGE, which the device has not received yet.
    pub(super) fn request_challenge(
        &mut self,
        link: &mut AttackerLink,
        rng: &mut ChaCha20Rng,
    ) -> Result<[u8; MESSAGE_BYTES], AttackError> {
        let request = self.start(rng)?;
        let nonce = match wire::parse(&request) {
            Ok(Message::Request(request)) => request.nonce,
            _ => return Err(AttackError::ControlFailed("the device's REQUEST is malformed")),
        };
        self.exchange(
            link,
            &request,
            |message| matches!(message, Message::Challenge(c) if nonce.starts_with(&c.nonce_echo)),
        )
    }

    /// Hands a message to the device and returns its reaction, or why the device ignored the message.
    pub(super) fn receive(&mut self, payload: &[u8]) -> Result<Reaction, IgnoredReason> {
        let local_ip = ip_bytes(self.lap_endpoint().ip);
        let now_ms = self.now_ms();
        let mut output = self.device.handle(payload, &local_ip, now_ms)?;
        let mut reaction = Reaction::default();
        loop {
            match output {
                Output::EvaluatePuf(query) => {
                    let key = self.member.row_key(&query);
                    output = self.device.puf_result(key, now_ms);
                    continue;
                }
                Output::Transmit(message) => {
                    // A retransmitted REQUEST is not a reaction to the message.
                    if matches!(wire::parse(&message), Ok(Message::Response(_))) {
                        reaction.response.get_or_insert(message);
                    }
                }
                Output::Authenticated(_) => reaction.authenticated = true,
                Output::None => return Ok(reaction),
                _ => {}
            }
            output = self.device.poll(now_ms);
        }
    }

    /// Hands a valid CHALLENGE to the device and returns its RESPONSE, which is not sent yet.
    pub(super) fn respond(
        &mut self,
        challenge: &[u8; MESSAGE_BYTES],
    ) -> Result<[u8; MESSAGE_BYTES], AttackError> {
        let reaction = self
            .receive(challenge)
            .map_err(|_| AttackError::ControlFailed("the device ignores a valid CHALLENGE"))?;
        reaction.response.ok_or(AttackError::ControlFailed(
            "the device sends no RESPONSE to a valid CHALLENGE",
        ))
    }

    /// Returns a valid RESPONSE that the gateway expects, without sending it.
    pub(super) fn withheld_response(
        &mut self,
        link: &mut AttackerLink,
        rng: &mut ChaCha20Rng,
    ) -> Result<[u8; MESSAGE_BYTES], AttackError> {
        let challenge = self.request_challenge(link, rng)?;
        self.respond(&challenge)
    }

    /// Delivers the RESPONSE from the device's own address and returns the gateway's ACK, which the device has not
    /// received yet.
    pub(super) fn deliver(
        &mut self,
        link: &mut AttackerLink,
        response: &[u8; MESSAGE_BYTES],
    ) -> Result<[u8; MESSAGE_BYTES], AttackError> {
        self.exchange(link, response, |message| matches!(message, Message::Ack(_)))
    }

    /// Runs a complete legitimate handshake.
    pub(super) fn authenticate(
        &mut self,
        link: &mut AttackerLink,
        rng: &mut ChaCha20Rng,
    ) -> Result<HandshakeMessages, AttackError> {
        let challenge = self.request_challenge(link, rng)?;
        let response = self.respond(&challenge)?;
        let ack = self.deliver(link, &response)?;
        match self.receive(&ack) {
            Ok(reaction) if reaction.authenticated => Ok(HandshakeMessages { challenge, ack }),
            _ => Err(AttackError::ControlFailed("the device rejects a valid ACK")),
        }
    }

    /// Sends a message from the device's address until the expected reply arrives.
    fn exchange(
        &self,
        link: &mut AttackerLink,
        message: &[u8; MESSAGE_BYTES],
        is_response: impl Fn(&Message<'_>) -> bool,
    ) -> Result<[u8; MESSAGE_BYTES], AttackError> {
        let own_endpoint = self.lap_endpoint();
        let mut reply = None;
        link.exchange(
            &own_endpoint,
            &gateway_endpoint(Family::V4),
            message,
            |received| {
                let is_expected = received.to == own_endpoint
                    && wire::parse(received.payload).is_ok_and(|m| is_response(&m));
                if is_expected {
                    reply = received.payload.try_into().ok();
                }
                is_expected
            },
        )?;
        reply.ok_or(AttackError::NoChallenge(self.id()))
    }
}

/// The reaction of a device to a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Reaction {
    /// The RESPONSE that the device sent.
    pub(super) response: Option<[u8; MESSAGE_BYTES]>,
    /// The device has opened a session.
    pub(super) authenticated: bool,
}

impl Reaction {
    /// Whether the device reacted to the message.
    pub(super) fn has_effect(&self) -> bool {
        *self != Self::default()
    }
}

/// The gateway's messages of a legitimate handshake.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandshakeMessages {
    pub(super) challenge: [u8; MESSAGE_BYTES],
    pub(super) ack: [u8; MESSAGE_BYTES],
}
