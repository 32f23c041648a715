//! A device in the world: the real device machine, a PUF that takes its time and sometimes fails, and addresses.

use linewarden_protocol::device::{
    Device, DeviceConfig, GatewayPolicy, Ignored, Output, PufFailed, PufQuery,
};
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::frame::{self, ip_bytes};
use linewarden_protocol::ids::GatewayId;
use linewarden_protocol::keys::halves;
use linewarden_protocol::wire::{self, LAP_PORT, Message};
use std::net::IpAddr;

use super::dice::Dice;
use super::enrolment::{Enrolment, SUITE};
use super::ledger::Ledger;
use super::node::Node;

pub struct Station {
    pub enrolment: Enrolment,
    pub machine: Device,
    /// Which gateway it talks to.
    pub gateway: usize,
    /// Its address now; two are its own.
    pub ip: IpAddr,
    boot_ahead_ms: u64,
    /// The reading under way; numbered, because one that was given up must not be reported.
    pub reading: Option<(u64, PufQuery)>,
    readings: u64,
    pub sessions_opened: usize,
    pub last_opened_ms: u64,
    pub revoked: bool,
}

/// What a station wants of the world.
pub enum Wish {
    Send(Vec<u8>),
    ReadPuf(u64),
}

impl Station {
    pub fn new(enrolment: Enrolment, gateway: usize, boot_ahead_ms: u64) -> Self {
        Self {
            machine: Device::new(DeviceConfig {
                device: enrolment.device,
                suite: SUITE,
                mode: enrolment.mode,
                gateways: GatewayPolicy::ANY,
                bound_mac: enrolment.bound_mac(),
            }),
            enrolment,
            gateway,
            ip: enrolment.endpoint.ip,
            boot_ahead_ms,
            reading: None,
            readings: 0,
            sessions_opened: 0,
            last_opened_ms: 0,
            revoked: false,
        }
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint {
            ip: self.ip,
            ..self.enrolment.endpoint
        }
    }

    pub fn clock_ms(&self, true_ms: u64) -> u64 {
        true_ms + self.boot_ahead_ms
    }

    /// When the machine wants to be polled, in the world's time.
    pub fn wake_ms(&self) -> Option<u64> {
        Some(self.machine.next_deadline()?.saturating_sub(self.boot_ahead_ms))
    }

    /// Gives up everything, for instance after moving to another network.
    pub fn abandon(&mut self) {
        self.machine.abandon();
        self.reading = None;
    }

    /// Starts a handshake if none is under way.
    pub fn start(
        &mut self,
        true_ms: u64,
        dice: &mut Dice,
        gateways: &[Node],
        ledger: &mut Ledger,
    ) -> Vec<Wish> {
        let now_ms = self.clock_ms(true_ms);
        match self.machine.start(dice.bytes(), now_ms) {
            Ok(output) => self.follow(output, true_ms, dice, gateways, ledger),
            Err(_) => Vec::new(),
        }
    }

    pub fn receive(
        &mut self,
        bytes: &[u8],
        true_ms: u64,
        dice: &mut Dice,
        gateways: &[Node],
        ledger: &mut Ledger,
    ) -> Vec<Wish> {
        let Some((payload, dst)) = self.payload(bytes) else {
            return Vec::new();
        };
        let now_ms = self.clock_ms(true_ms);
        match self.machine.handle(&payload, &dst, now_ms) {
            Ok(output) => self.follow(output, true_ms, dice, gateways, ledger),
            Err(Ignored::Malformed(_)) | Err(_) => Vec::new(),
        }
    }

    /// The payload of a datagram to this station's address and port.
    fn payload(&self, bytes: &[u8]) -> Option<(Vec<u8>, [u8; 16])> {
        let parsed = frame::parse(bytes).ok()?;
        let (ip, udp) = parsed.datagram()?;
        let own = self.endpoint();
        let for_us = parsed.dst_mac == own.mac && ip.dst == own.ip && udp.dst_port == own.port;
        for_us.then_some(())?;
        Some((bytes.get(udp.payload())?.to_vec(), ip_bytes(own.ip)))
    }

    pub fn read(
        &mut self,
        reading: u64,
        true_ms: u64,
        dice: &mut Dice,
        gateways: &[Node],
        ledger: &mut Ledger,
    ) -> Vec<Wish> {
        let Some((_, query)) = self.reading.filter(|(number, _)| *number == reading) else {
            return Vec::new();
        };
        self.reading = None;
        let result = if dice.chance(3) {
            Err(PufFailed)
        } else {
            Ok(self.enrolment.row_key(query.idx))
        };
        let output = self.machine.puf_result(result, self.clock_ms(true_ms));
        self.follow(output, true_ms, dice, gateways, ledger)
    }

    pub fn poll(
        &mut self,
        true_ms: u64,
        dice: &mut Dice,
        gateways: &[Node],
        ledger: &mut Ledger,
    ) -> Vec<Wish> {
        self.follow(Output::None, true_ms, dice, gateways, ledger)
    }

    /// Does what the machine says until it says nothing.
    fn follow(
        &mut self,
        first: Output,
        true_ms: u64,
        dice: &mut Dice,
        gateways: &[Node],
        ledger: &mut Ledger,
    ) -> Vec<Wish> {
        let now_ms = self.clock_ms(true_ms);
        let mut wishes = Vec::new();
        let mut output = first;
        loop {
            match output {
                Output::Transmit(message) => {
                    self.note_response(&message, true_ms, gateways, ledger);
                    wishes.push(Wish::Send(self.frame_to(&gateways[self.gateway], &message)));
                }
                Output::EvaluatePuf(query) => {
                    self.readings += 1;
                    self.reading = Some((self.readings, query));
                    wishes.push(Wish::ReadPuf(self.readings));
                }
                Output::NeedNonce => {
                    if let Ok(next) = self.machine.start(dice.bytes(), now_ms) {
                        output = next;
                        continue;
                    }
                }
                Output::Authenticated(_) => {
                    self.sessions_opened += 1;
                    self.last_opened_ms = true_ms;
                    self.judge_session(ledger);
                }
                _ => {}
            }
            output = self.machine.poll(now_ms);
            if output == Output::None {
                return wishes;
            }
        }
    }

    fn frame_to(&self, gateway: &Node, message: &[u8; 64]) -> Vec<u8> {
        let ip = if self.ip.is_ipv4() {
            gateway.ipv4
        } else {
            gateway.ipv6
        };
        let to = Endpoint {
            mac: gateway.mac,
            ip,
            port: LAP_PORT,
        };
        FrameBuilder::new(self.endpoint(), to).udp(message)
    }

    /// A device answers nobody but a gateway that holds its enrolment.
    fn note_response(&self, message: &[u8; 64], true_ms: u64, gateways: &[Node], ledger: &mut Ledger) {
        let Ok(Message::Response(response)) = wire::parse(message) else {
            return;
        };
        let named = GatewayId(response.gateway_id.get());
        if gateways.iter().all(|gateway| gateway.id != named) {
            ledger.violate(format!(
                "device {} answered a gateway that is none",
                self.enrolment.device
            ));
        }
        ledger.made(&self.enrolment, response, true_ms);
    }

    /// A session at a device is one that a gateway opened for it, with the same key.
    fn judge_session(&self, ledger: &mut Ledger) {
        let Some(session) = self.machine.session() else {
            return ledger.violate("a device says it is authenticated and has no session".into());
        };
        let real = ledger
            .accepted
            .get(&session.id.to_wire())
            .is_some_and(|accepted| {
                accepted.device == self.enrolment.device
                    && accepted.gateway == session.gateway
                    && accepted.idx == session.idx
                    && accepted.session_key == *session.key()
                    && accepted.from.src_ip == ip_bytes(self.ip)
                    && halves(&accepted.tag)[0] == session.id.to_wire()
            });
        if !real {
            ledger.violate(format!(
                "device {} was deceived into a session",
                self.enrolment.device
            ));
        }
    }
}
