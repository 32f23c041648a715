//! An attacker on the network: sees, drops, delays, repeats, reorders, alters and forges messages, sends from any
//! address, and impersonates gateways. The attacker has no PUF and no rows of a gateway.

use std::net::IpAddr;

use linewarden_protocol::frame;
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::keys::{AuthKey, halves};
use linewarden_protocol::tag;
use linewarden_protocol::wire::{self, FLAG_BOUND, LAP_PORT, Message, message_type};
use zerocopy::IntoBytes as _;

use super::enrollment::{Enrollment, SUITE};
use super::node::Node;
use super::random::Random;

const RECORDS_MAX: usize = 160;

/// The attacker's action on a message.
pub enum FrameAction {
    Pass,
    Drop,
    /// Delivered with this delay, ms.
    Delay(u64),
    /// Delivered, and again with this delay, ms.
    Duplicate(u64),
    /// Delivered with this bit flipped.
    Alter(usize),
    /// Replaced by this frame.
    Replace(Vec<u8>),
}

pub struct Attacker {
    pub endpoint: Endpoint,
    /// Frames seen, in both directions, as they were sent.
    recorded: Vec<Vec<u8>>,
}

impl Attacker {
    pub fn new() -> Self {
        Self {
            endpoint: Endpoint {
                mac: [2, 0, 0, 0, 0xEE, 1],
                ip: IpAddr::from([10, 66, 77, 77]),
                port: 6_666,
            },
            recorded: Vec::new(),
        }
    }

    /// Records a message and decides on it.
    pub fn intercept(
        &mut self,
        bytes: &[u8],
        interference_percent: u32,
        enrollments: &[Enrollment],
        random: &mut Random,
    ) -> FrameAction {
        if self.recorded.len() < RECORDS_MAX {
            self.recorded.push(bytes.to_vec());
        } else {
            let index = random.below(RECORDS_MAX);
            self.recorded[index] = bytes.to_vec();
        }
        if !random.chance(interference_percent) {
            return FrameAction::Pass;
        }
        match random.below(5) {
            0 => FrameAction::Drop,
            1 => FrameAction::Delay(random.between(1, 50_000)),
            2 => FrameAction::Duplicate(random.between(0, 90_000)),
            3 => relay(bytes, enrollments, random).map_or(FrameAction::Pass, FrameAction::Replace),
            _ => FrameAction::Alter(random.below(bytes.len() * 8)),
        }
    }

    /// Returns a recorded frame: unchanged, with another sender, or altered.
    pub fn inject(
        &self,
        enrollments: &[Enrollment],
        gateways: &[Node],
        random: &mut Random,
    ) -> Option<Vec<u8>> {
        if random.chance(10) {
            return self.send_forged(enrollments, gateways, random);
        }
        let bytes = random.pick(&self.recorded)?.clone();
        let parsed = frame::parse(&bytes).ok()?;
        let (ip, udp) = parsed.datagram()?;
        let payload = bytes.get(udp.payload())?.to_vec();
        let mut from = Endpoint {
            mac: parsed.src_mac,
            ip: ip.src,
            port: udp.src_port,
        };
        let mut to = Endpoint {
            mac: parsed.dst_mac,
            ip: ip.dst,
            port: udp.dst_port,
        };
        let mut vlan = None;
        match random.below(9) {
            0 => from.mac = self.endpoint.mac,
            1 => from = self.endpoint_of_family(ip.src),
            2 => from.port ^= 1,
            3 => vlan = Some(7),
            // The same message from another host's address.
            4 => {
                let other = random.pick(enrollments)?.endpoint;
                if other.ip.is_ipv4() == ip.src.is_ipv4() {
                    from = if random.chance(50) {
                        Endpoint { ip: other.ip, ..from }
                    } else {
                        other
                    };
                }
            }
            // The same message to the other gateway.
            5 if udp.dst_port == LAP_PORT => {
                let gateway = random.pick(gateways)?;
                to.mac = gateway.mac;
                to.ip = if ip.dst.is_ipv4() {
                    gateway.ipv4
                } else {
                    gateway.ipv6
                };
            }
            _ => {}
        }
        let payload = if random.chance(35) {
            forge(&payload, random)
        } else {
            payload
        };
        // Replies to recorded messages: CHALLENGEs and ACKs go back to the origin of REQUEST and RESPONSE.
        let is_reply = payload.get(3).is_some_and(|kind| matches!(*kind, 2 | 4 | 5));
        if is_reply && to.port == LAP_PORT {
            std::mem::swap(&mut from, &mut to);
        }
        let builder = FrameBuilder::new(from, to);
        let builder = if let Some(vid) = vlan {
            builder.vlan(vid)
        } else {
            builder
        };
        Some(builder.udp(&payload))
    }

    /// Returns a message that is made without any recorded message, as an attacker off the path can send.
    pub fn send_forged(
        &self,
        enrollments: &[Enrollment],
        gateways: &[Node],
        random: &mut Random,
    ) -> Option<Vec<u8>> {
        let victim = *random.pick(enrollments)?;
        let gateway = random.pick(gateways)?;
        let gateway_endpoint = Endpoint {
            mac: gateway.mac,
            ip: if victim.endpoint.ip.is_ipv4() {
                gateway.ipv4
            } else {
                gateway.ipv6
            },
            port: LAP_PORT,
        };
        let device = if random.chance(15) {
            DeviceId(1 + random.below(9) as u64)
        } else {
            victim.device
        };
        let from = match random.below(3) {
            0 => self.endpoint_of_family(victim.endpoint.ip),
            _ => victim.endpoint,
        };
        let kind = *random.pick(&[1, 1, 2, 3, 3, 4, 5, 6])?;
        let payload = forged_payload(kind, device, gateway, random);
        let builder = match kind {
            2 | 4 | 5 if random.chance(85) => FrameBuilder::new(gateway_endpoint, victim.endpoint),
            _ => FrameBuilder::new(from, gateway_endpoint),
        };
        Some(builder.udp(&payload))
    }

    fn endpoint_of_family(&self, ip: IpAddr) -> Endpoint {
        if ip.is_ipv4() {
            return self.endpoint;
        }
        Endpoint {
            ip: IpAddr::from([0xfd66, 0, 0, 0, 0, 0, 0xee, 0xee]),
            ..self.endpoint
        }
    }
}

/// Relays a message to a gateway from another device's address, or relays the gateway's reply back to the sender.
fn relay(bytes: &[u8], enrollments: &[Enrollment], random: &mut Random) -> Option<Vec<u8>> {
    let parsed = frame::parse(bytes).ok()?;
    let (ip, udp) = parsed.datagram()?;
    let payload = bytes.get(udp.payload())?;
    let mut from = Endpoint {
        mac: parsed.src_mac,
        ip: ip.src,
        port: udp.src_port,
    };
    let mut to = Endpoint {
        mac: parsed.dst_mac,
        ip: ip.dst,
        port: udp.dst_port,
    };
    let replacement = if udp.dst_port == LAP_PORT {
        random.pick(enrollments)?.endpoint.ip
    } else {
        enrollments
            .iter()
            .find(|enrollment| enrollment.endpoint.mac == to.mac)?
            .endpoint
            .ip
    };
    let ip_to_replace = if udp.dst_port == LAP_PORT {
        &mut from.ip
    } else {
        &mut to.ip
    };
    if replacement.is_ipv4() == ip_to_replace.is_ipv4() {
        *ip_to_replace = replacement;
    }
    Some(FrameBuilder::new(from, to).udp(payload))
}

/// Turns a message into another message that is plausible at the same receiver.
fn forge(payload: &[u8], random: &mut Random) -> Vec<u8> {
    let key = AuthKey::from_bytes(if random.chance(50) {
        [0; 16]
    } else {
        random.bytes()
    });
    match wire::parse(payload) {
        // A fake gateway: the correct echo, any row, a wrong key.
        Ok(Message::Request(request)) => {
            let mut challenge = wire::Challenge {
                header: wire::Header::new(message_type::CHALLENGE, SUITE, 0, request.header.device()),
                idx: (random.below(6) as u32).into(),
                gateway_id: (1 + random.below(3) as u32).into(),
                challenge: if random.chance(50) { [0; 8] } else { random.bytes() },
                fresh: random.bytes(),
                nonce_echo: halves(&request.nonce)[0],
                tag: [0; 16],
            };
            challenge.tag = tag::challenge(&key, &challenge, &request.nonce);
            challenge.as_bytes().to_vec()
        }
        Ok(Message::Challenge(challenge)) => {
            let mut challenge = *challenge;
            match random.below(4) {
                0 => challenge.idx = (challenge.idx.get().wrapping_add(1)).into(),
                1 => challenge.gateway_id = (3 - challenge.gateway_id.get().min(2)).into(),
                2 => challenge.fresh = random.bytes(),
                _ => challenge.challenge = random.bytes(),
            }
            challenge.as_bytes().to_vec()
        }
        Ok(Message::Response(response)) => {
            let mut response = *response;
            match random.below(6) {
                // An ACK for the RESPONSE, under a wrong key.
                0 => return forged_ack(&response, random),
                1 => response.idx = response.idx.get().wrapping_add(1).into(),
                2 => response.gateway_id = (3 - response.gateway_id.get().min(2)).into(),
                3 => response.header.flags ^= FLAG_BOUND,
                4 => response.tag = random.bytes(),
                _ => response.tag = tag::response(&key, &response, &tag::location(None)),
            }
            response.as_bytes().to_vec()
        }
        Ok(Message::Ack(ack)) => {
            let mut ack = *ack;
            match random.below(3) {
                0 => ack.session_lifetime_s = u32::MAX.into(),
                1 => ack.seen_ip = random.bytes(),
                _ => ack.idx = ack.idx.get().wrapping_add(1).into(),
            }
            ack.as_bytes().to_vec()
        }
        _ => payload.to_vec(),
    }
}

fn forged_ack(response: &wire::Response, random: &mut Random) -> Vec<u8> {
    let ack = wire::Ack {
        header: wire::Header::new(message_type::ACK, SUITE, 0, response.header.device()),
        idx: response.idx,
        session_lifetime_s: 3_600.into(),
        session_id: halves(&response.tag)[0],
        tag: random.bytes(),
        seen_ip: random.bytes(),
    };
    ack.as_bytes().to_vec()
}

fn forged_payload(kind: u8, device: DeviceId, gateway: &Node, random: &mut Random) -> Vec<u8> {
    let mut payload: [u8; 64] = random.bytes();
    payload[..16].copy_from_slice(wire::Header::new(kind, SUITE, 0, device).as_bytes());
    match kind {
        message_type::REQUEST => payload[32..].fill(0),
        message_type::NAK => payload[21..].fill(0),
        message_type::DATA_UP => payload[34..40].fill(0),
        message_type::CHALLENGE => payload[20..24].copy_from_slice(&gateway.id.0.to_be_bytes()),
        message_type::RESPONSE => {
            payload[32..36].copy_from_slice(&(random.below(6) as u32).to_be_bytes());
            payload[36..40].copy_from_slice(&gateway.id.0.to_be_bytes());
        }
        _ => {}
    }
    payload.to_vec()
}
