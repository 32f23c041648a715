//! A device of the simulation: the real device machine, a PUF with delays and failures, and addresses.

use linewarden_protocol::device::{
    Device, DeviceConfig, GatewayPolicy, IgnoredReason, Output, PufFailed, PufQuery,
};
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::frame::{self, ip_bytes};
use linewarden_protocol::ids::GatewayId;
use linewarden_protocol::keys::halves;
use linewarden_protocol::wire::{self, LAP_PORT, Message};
use std::net::IpAddr;

use super::enrollment::{Enrollment, SUITE};
use super::invariants::Invariants;
use super::node::Node;
use super::random::Random;

pub struct SimulatedDevice {
    pub enrollment: Enrollment,
    pub machine: Device,
    /// Index of the gateway to which the device sends.
    pub gateway: usize,
    /// The current address, one of two.
    pub ip: IpAddr,
    boot_ahead_ms: u64,
    /// The PUF reading in progress and its number. The number distinguishes this reading from abandoned readings, whose
    /// results are ignored.
    pub reading: Option<(u64, PufQuery)>,
    readings: u64,
    pub sessions_opened: usize,
    pub last_opened_ms: u64,
    pub revoked: bool,
}

/// An action that the device requests from the simulation.
pub enum DeviceAction {
    Send(Vec<u8>),
    ReadPuf(u64),
}

impl SimulatedDevice {
    pub fn new(enrollment: Enrollment, gateway: usize, boot_ahead_ms: u64) -> Self {
        Self {
            machine: Device::new(DeviceConfig {
                device: enrollment.device,
                suite: SUITE,
                mode: enrollment.mode,
                gateways: GatewayPolicy::ANY,
                bound_mac: enrollment.bound_mac(),
            }),
            enrollment,
            gateway,
            ip: enrollment.endpoint.ip,
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
            ..self.enrollment.endpoint
        }
    }

    pub fn clock_ms(&self, true_ms: u64) -> u64 {
        true_ms + self.boot_ahead_ms
    }

    /// Returns when the machine must be polled, in simulation time.
    pub fn wake_ms(&self) -> Option<u64> {
        Some(self.machine.next_deadline()?.saturating_sub(self.boot_ahead_ms))
    }

    /// Abandons handshake and session, for instance after moving to another network.
    pub fn abandon(&mut self) {
        self.machine.abandon();
        self.reading = None;
    }

    /// Starts a handshake if none is in progress.
    pub fn start(
        &mut self,
        true_ms: u64,
        random: &mut Random,
        gateways: &[Node],
        invariants: &mut Invariants,
    ) -> Vec<DeviceAction> {
        let now_ms = self.clock_ms(true_ms);
        match self.machine.start(random.bytes(), now_ms) {
            Ok(output) => self.run_outputs(output, true_ms, random, gateways, invariants),
            Err(_) => Vec::new(),
        }
    }

    pub fn receive(
        &mut self,
        bytes: &[u8],
        true_ms: u64,
        random: &mut Random,
        gateways: &[Node],
        invariants: &mut Invariants,
    ) -> Vec<DeviceAction> {
        let Some((payload, dst)) = self.payload(bytes) else {
            return Vec::new();
        };
        let now_ms = self.clock_ms(true_ms);
        match self.machine.handle(&payload, &dst, now_ms) {
            Ok(output) => self.run_outputs(output, true_ms, random, gateways, invariants),
            Err(IgnoredReason::Malformed(_)) | Err(_) => Vec::new(),
        }
    }

    /// Returns the payload of a datagram to this device's address and port.
    fn payload(&self, bytes: &[u8]) -> Option<(Vec<u8>, [u8; 16])> {
        let parsed = frame::parse(bytes).ok()?;
        let (ip, udp) = parsed.datagram()?;
        let endpoint = self.endpoint();
        let is_for_device =
            parsed.dst_mac == endpoint.mac && ip.dst == endpoint.ip && udp.dst_port == endpoint.port;
        is_for_device.then_some(())?;
        Some((bytes.get(udp.payload())?.to_vec(), ip_bytes(endpoint.ip)))
    }

    /// Ends a PUF reading, which sometimes fails. Ignores an abandoned reading.
    pub fn complete_reading(
        &mut self,
        reading: u64,
        true_ms: u64,
        random: &mut Random,
        gateways: &[Node],
        invariants: &mut Invariants,
    ) -> Vec<DeviceAction> {
        let Some((_, query)) = self.reading.filter(|(number, _)| *number == reading) else {
            return Vec::new();
        };
        self.reading = None;
        let result = if random.chance(3) {
            Err(PufFailed)
        } else {
            Ok(self.enrollment.row_key(query.idx))
        };
        let output = self.machine.puf_result(result, self.clock_ms(true_ms));
        self.run_outputs(output, true_ms, random, gateways, invariants)
    }

    pub fn poll(
        &mut self,
        true_ms: u64,
        random: &mut Random,
        gateways: &[Node],
        invariants: &mut Invariants,
    ) -> Vec<DeviceAction> {
        self.run_outputs(Output::None, true_ms, random, gateways, invariants)
    }

    /// Executes the outputs of the machine until there are none.
    fn run_outputs(
        &mut self,
        first: Output,
        true_ms: u64,
        random: &mut Random,
        gateways: &[Node],
        invariants: &mut Invariants,
    ) -> Vec<DeviceAction> {
        let now_ms = self.clock_ms(true_ms);
        let mut actions = Vec::new();
        let mut output = first;
        loop {
            match output {
                Output::Transmit(message) => {
                    self.note_response(&message, true_ms, gateways, invariants);
                    actions.push(DeviceAction::Send(
                        self.frame_to(&gateways[self.gateway], &message),
                    ));
                }
                Output::EvaluatePuf(query) => {
                    self.readings += 1;
                    self.reading = Some((self.readings, query));
                    actions.push(DeviceAction::ReadPuf(self.readings));
                }
                Output::NeedNonce => {
                    if let Ok(next) = self.machine.start(random.bytes(), now_ms) {
                        output = next;
                        continue;
                    }
                }
                Output::Authenticated(_) => {
                    self.sessions_opened += 1;
                    self.last_opened_ms = true_ms;
                    self.check_session(invariants);
                }
                _ => {}
            }
            output = self.machine.poll(now_ms);
            if output == Output::None {
                return actions;
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

    /// Checks that a device responds only to a real gateway, and records the RESPONSE.
    fn note_response(
        &self,
        message: &[u8; 64],
        true_ms: u64,
        gateways: &[Node],
        invariants: &mut Invariants,
    ) {
        let Ok(Message::Response(response)) = wire::parse(message) else {
            return;
        };
        let gateway_id = GatewayId(response.gateway_id.get());
        if gateways.iter().all(|gateway| gateway.id != gateway_id) {
            invariants.violate(format!(
                "device {} responded to a fake gateway",
                self.enrollment.device
            ));
        }
        invariants.record_response(&self.enrollment, response, true_ms);
    }

    /// Checks that a gateway has opened the session of the device, with the same key.
    fn check_session(&self, invariants: &mut Invariants) {
        let Some(session) = self.machine.session() else {
            return invariants.violate("a device reports authentication without a session".into());
        };
        let is_genuine = invariants
            .accepted
            .get(&session.id.to_wire())
            .is_some_and(|accepted| {
                accepted.device == self.enrollment.device
                    && accepted.gateway == session.gateway
                    && accepted.idx == session.idx
                    && accepted.session_key == *session.key()
                    && accepted.origin.src_ip == ip_bytes(self.ip)
                    && halves(&accepted.tag)[0] == session.id.to_wire()
            });
        if !is_genuine {
            invariants.violate(format!(
                "device {} accepted a forged session",
                self.enrollment.device
            ));
        }
    }
}
