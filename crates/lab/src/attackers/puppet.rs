//! An honest device whose every message passes through the attacker's hands.

use linewarden_protocol::device::{Device, Ignored, Output, READING_INTERVAL_MS, READINGS_AT_ONCE};
use linewarden_protocol::frame::ip_bytes;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::wire::{self, MESSAGE_BYTES, Message};
use rand::Rng as _;
use rand_chacha::ChaCha20Rng;

use super::AttackError;
use super::station::{Station, gateway};
use crate::address::{DeviceAddress, Family};
use crate::clock::boot_ms;
use crate::fleet::{DEVICE_PORT, Member, SimulatedDevice};

/// How far the device's clock is put ahead for each handshake, ms: the readings of the PUF that the handshakes before have
/// used up are there again.
const READINGS_BACK_MS: u64 = READINGS_AT_ONCE * READING_INTERVAL_MS;

/// A device with its real PUF and role; nothing reaches it or leaves it unless the attack lets it.
#[derive(Debug)]
pub struct Puppet {
    device: Device,
    member: Member,
    address: DeviceAddress,
    /// Its clock less that of the machine.
    ahead_ms: u64,
}

impl Puppet {
    /// Takes over an enrolled device, at the address of its index.
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
            ahead_ms: 0,
        }
    }

    /// Who it is.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.member.config.device
    }

    fn now_ms(&self) -> u64 {
        boot_ms() + self.ahead_ms
    }

    pub(super) fn endpoint(&self, port: u16) -> Endpoint {
        self.address.endpoint(Family::V4, port)
    }

    /// With its IPv6 address.
    pub(super) fn endpoint6(&self) -> Endpoint {
        self.address.endpoint(Family::V6, DEVICE_PORT)
    }

    pub(super) fn lap_endpoint(&self) -> Endpoint {
        self.endpoint(DEVICE_PORT)
    }

    /// Begins a handshake anew; the REQUEST that the device would send.
    pub(super) fn start(&mut self, rng: &mut ChaCha20Rng) -> Result<[u8; MESSAGE_BYTES], AttackError> {
        self.device.abandon();
        self.ahead_ms += READINGS_BACK_MS;
        let mut nonce = [0u8; 16];
        rng.fill_bytes(&mut nonce);
        let now_ms = self.now_ms();
        match self.device.start(nonce, now_ms) {
            Ok(Output::Transmit(request)) => Ok(request),
            _ => Err(AttackError::Control("the device sends no REQUEST")),
        }
    }

    /// Begins a handshake anew and gets the gateway's CHALLENGE; the device has not seen it yet.
    pub(super) fn get_challenge(
        &mut self,
        station: &mut Station,
        rng: &mut ChaCha20Rng,
    ) -> Result<[u8; MESSAGE_BYTES], AttackError> {
        let request = self.start(rng)?;
        let nonce = match wire::parse(&request) {
            Ok(Message::Request(request)) => request.nonce,
            _ => return Err(AttackError::Control("the device's REQUEST is malformed")),
        };
        self.exchange(
            station,
            &request,
            |message| matches!(message, Message::Challenge(c) if nonce.starts_with(&c.nonce_echo)),
        )
    }

    /// Gives the device a message; what it sends because of it, or why it ignored it.
    pub(super) fn receive(&mut self, payload: &[u8]) -> Result<Reaction, Ignored> {
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
                    // A repetition of the REQUEST is no reaction to the message.
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

    /// Gives the device a good CHALLENGE and takes its RESPONSE, which goes nowhere yet.
    pub(super) fn answer(
        &mut self,
        challenge: &[u8; MESSAGE_BYTES],
    ) -> Result<[u8; MESSAGE_BYTES], AttackError> {
        let reaction = self
            .receive(challenge)
            .map_err(|_| AttackError::Control("the device ignores a good CHALLENGE"))?;
        reaction.response.ok_or(AttackError::Control(
            "the device does not answer a good CHALLENGE",
        ))
    }

    /// A good RESPONSE for which the gateway waits, withheld.
    pub(super) fn withheld_response(
        &mut self,
        station: &mut Station,
        rng: &mut ChaCha20Rng,
    ) -> Result<[u8; MESSAGE_BYTES], AttackError> {
        let challenge = self.get_challenge(station, rng)?;
        self.answer(&challenge)
    }

    /// Delivers the RESPONSE from the device's own address and returns the gateway's ACK, which the device has not
    /// seen yet.
    pub(super) fn deliver(
        &mut self,
        station: &mut Station,
        response: &[u8; MESSAGE_BYTES],
    ) -> Result<[u8; MESSAGE_BYTES], AttackError> {
        self.exchange(station, response, |message| matches!(message, Message::Ack(_)))
    }

    /// A whole honest handshake.
    pub(super) fn authenticate(
        &mut self,
        station: &mut Station,
        rng: &mut ChaCha20Rng,
    ) -> Result<Exchanged, AttackError> {
        let challenge = self.get_challenge(station, rng)?;
        let response = self.answer(&challenge)?;
        let ack = self.deliver(station, &response)?;
        match self.receive(&ack) {
            Ok(reaction) if reaction.authenticated => Ok(Exchanged { challenge, ack }),
            _ => Err(AttackError::Control("the device refuses a good ACK")),
        }
    }

    /// Sends a message from the device's address until the wanted answer comes.
    fn exchange(
        &self,
        station: &mut Station,
        message: &[u8; MESSAGE_BYTES],
        is_answer: impl Fn(&Message<'_>) -> bool,
    ) -> Result<[u8; MESSAGE_BYTES], AttackError> {
        let me = self.lap_endpoint();
        let mut answer = None;
        station.ask(&me, &gateway(Family::V4), message, |heard| {
            let mine = heard.to == me && wire::parse(heard.payload).is_ok_and(|m| is_answer(&m));
            if mine {
                answer = heard.payload.try_into().ok();
            }
            mine
        })?;
        answer.ok_or(AttackError::Silent(self.id()))
    }
}

/// What a device did because of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Reaction {
    /// It sent this RESPONSE.
    pub(super) response: Option<[u8; MESSAGE_BYTES]>,
    /// It believes to have a session.
    pub(super) authenticated: bool,
}

impl Reaction {
    /// The message made the device do something.
    pub(super) fn is_any(&self) -> bool {
        *self != Self::default()
    }
}

/// The gateway's messages of an honest handshake.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchanged {
    pub(super) challenge: [u8; MESSAGE_BYTES],
    pub(super) ack: [u8; MESSAGE_BYTES],
}
