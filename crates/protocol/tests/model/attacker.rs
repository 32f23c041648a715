//! Somebody on the network: sees, drops, delays, repeats, reorders, alters and invents messages, sends from any
//! address, and plays gateway. What he does not have is a PUF or a gateway's rows.

use std::net::IpAddr;

use linewarden_protocol::frame;
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::keys::{AuthKey, halves};
use linewarden_protocol::tag;
use linewarden_protocol::wire::{self, FLAG_BOUND, LAP_PORT, Message, message_type};
use zerocopy::IntoBytes as _;

use super::dice::Dice;
use super::enrolment::{Enrolment, SUITE};
use super::node::Node;

const RECORDS: usize = 160;

/// What becomes of a message that the attacker sees.
pub enum Fate {
    Pass,
    Drop,
    /// Arrives so much later, ms.
    Delay(u64),
    /// Arrives, and again so much later, ms.
    Twice(u64),
    /// Arrives with one bit turned.
    Alter(usize),
    /// These arrive in its place.
    Replace(Vec<u8>),
}

pub struct Attacker {
    pub endpoint: Endpoint,
    /// Frames seen, in both directions, as they were sent.
    seen: Vec<Vec<u8>>,
}

impl Attacker {
    pub fn new() -> Self {
        Self {
            endpoint: Endpoint {
                mac: [2, 0, 0, 0, 0xEE, 1],
                ip: IpAddr::from([10, 66, 77, 77]),
                port: 6_666,
            },
            seen: Vec::new(),
        }
    }

    /// Sees a message and decides on it.
    pub fn meet(&mut self, bytes: &[u8], hostility: u32, enrolments: &[Enrolment], dice: &mut Dice) -> Fate {
        if self.seen.len() < RECORDS {
            self.seen.push(bytes.to_vec());
        } else {
            let place = dice.below(RECORDS);
            self.seen[place] = bytes.to_vec();
        }
        if !dice.chance(hostility) {
            return Fate::Pass;
        }
        match dice.below(5) {
            0 => Fate::Drop,
            1 => Fate::Delay(dice.between(1, 50_000)),
            2 => Fate::Twice(dice.between(0, 90_000)),
            3 => relay(bytes, enrolments, dice).map_or(Fate::Pass, Fate::Replace),
            _ => Fate::Alter(dice.below(bytes.len() * 8)),
        }
    }

    /// A frame out of what was seen: as it was, from elsewhere, or turned into something else.
    pub fn inject(&self, enrolments: &[Enrolment], gateways: &[Node], dice: &mut Dice) -> Option<Vec<u8>> {
        if dice.chance(10) {
            return self.invent(enrolments, gateways, dice);
        }
        let bytes = dice.pick(&self.seen)?.clone();
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
        match dice.below(9) {
            0 => from.mac = self.endpoint.mac,
            1 => from = self.endpoint_of_family(ip.src),
            2 => from.port ^= 1,
            3 => vlan = Some(7),
            // The same message from a place that is somebody else's.
            4 => {
                let other = dice.pick(enrolments)?.endpoint;
                if other.ip.is_ipv4() == ip.src.is_ipv4() {
                    from = if dice.chance(50) {
                        Endpoint { ip: other.ip, ..from }
                    } else {
                        other
                    };
                }
            }
            // The same message to the other gateway.
            5 if udp.dst_port == LAP_PORT => {
                let gateway = dice.pick(gateways)?;
                to.mac = gateway.mac;
                to.ip = if ip.dst.is_ipv4() {
                    gateway.ipv4
                } else {
                    gateway.ipv6
                };
            }
            _ => {}
        }
        let payload = if dice.chance(35) {
            forge(&payload, dice)
        } else {
            payload
        };
        // Answers to what was asked: CHALLENGEs and ACKs go back to where REQUEST and RESPONSE came from.
        let is_answer = payload.get(3).is_some_and(|kind| matches!(*kind, 2 | 4 | 5));
        if is_answer && to.port == LAP_PORT {
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

    /// A message made without having seen any: what somebody off the path can send.
    pub fn invent(&self, enrolments: &[Enrolment], gateways: &[Node], dice: &mut Dice) -> Option<Vec<u8>> {
        let victim = *dice.pick(enrolments)?;
        let gateway = dice.pick(gateways)?;
        let there = Endpoint {
            mac: gateway.mac,
            ip: if victim.endpoint.ip.is_ipv4() {
                gateway.ipv4
            } else {
                gateway.ipv6
            },
            port: LAP_PORT,
        };
        let device = if dice.chance(15) {
            DeviceId(1 + dice.below(9) as u64)
        } else {
            victim.device
        };
        let from = match dice.below(3) {
            0 => self.endpoint_of_family(victim.endpoint.ip),
            _ => victim.endpoint,
        };
        let kind = *dice.pick(&[1, 1, 2, 3, 3, 4, 5, 6])?;
        let payload = invented(kind, device, gateway, dice);
        let builder = match kind {
            2 | 4 | 5 if dice.chance(85) => FrameBuilder::new(there, victim.endpoint),
            _ => FrameBuilder::new(from, there),
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

/// Carries a message to a gateway over from another device's address, or, to hide that, an answer back to the own.
fn relay(bytes: &[u8], enrolments: &[Enrolment], dice: &mut Dice) -> Option<Vec<u8>> {
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
    let other = if udp.dst_port == LAP_PORT {
        dice.pick(enrolments)?.endpoint.ip
    } else {
        enrolments
            .iter()
            .find(|one| one.endpoint.mac == to.mac)?
            .endpoint
            .ip
    };
    let moved = if udp.dst_port == LAP_PORT {
        &mut from.ip
    } else {
        &mut to.ip
    };
    if other.is_ipv4() == moved.is_ipv4() {
        *moved = other;
    }
    Some(FrameBuilder::new(from, to).udp(payload))
}

/// Turns a message into another that fits where it was seen.
fn forge(payload: &[u8], dice: &mut Dice) -> Vec<u8> {
    let key = AuthKey::from_bytes(if dice.chance(50) { [0; 16] } else { dice.bytes() });
    match wire::parse(payload) {
        // A fake gateway: the right echo, any row, a key that is not the row's.
        Ok(Message::Request(request)) => {
            let mut challenge = wire::Challenge {
                header: wire::Header::new(message_type::CHALLENGE, SUITE, 0, request.header.device()),
                idx: (dice.below(6) as u32).into(),
                gateway_id: (1 + dice.below(3) as u32).into(),
                challenge: if dice.chance(50) { [0; 8] } else { dice.bytes() },
                fresh: dice.bytes(),
                nonce_echo: halves(&request.nonce)[0],
                tag: [0; 16],
            };
            challenge.tag = tag::challenge(&key, &challenge, &request.nonce);
            challenge.as_bytes().to_vec()
        }
        Ok(Message::Challenge(challenge)) => {
            let mut challenge = *challenge;
            match dice.below(4) {
                0 => challenge.idx = (challenge.idx.get().wrapping_add(1)).into(),
                1 => challenge.gateway_id = (3 - challenge.gateway_id.get().min(2)).into(),
                2 => challenge.fresh = dice.bytes(),
                _ => challenge.challenge = dice.bytes(),
            }
            challenge.as_bytes().to_vec()
        }
        Ok(Message::Response(response)) => {
            let mut response = *response;
            match dice.below(6) {
                // An ACK for it, under a key that is not the session's.
                0 => return forged_ack(&response, dice),
                1 => response.idx = response.idx.get().wrapping_add(1).into(),
                2 => response.gateway_id = (3 - response.gateway_id.get().min(2)).into(),
                3 => response.header.flags ^= FLAG_BOUND,
                4 => response.tag = dice.bytes(),
                _ => response.tag = tag::response(&key, &response, &tag::loc(None)),
            }
            response.as_bytes().to_vec()
        }
        Ok(Message::Ack(ack)) => {
            let mut ack = *ack;
            match dice.below(3) {
                0 => ack.lease_s = u32::MAX.into(),
                1 => ack.seen_ip = dice.bytes(),
                _ => ack.idx = ack.idx.get().wrapping_add(1).into(),
            }
            ack.as_bytes().to_vec()
        }
        _ => payload.to_vec(),
    }
}

fn forged_ack(response: &wire::Response, dice: &mut Dice) -> Vec<u8> {
    let ack = wire::Ack {
        header: wire::Header::new(message_type::ACK, SUITE, 0, response.header.device()),
        idx: response.idx,
        lease_s: 3_600.into(),
        session_id: halves(&response.tag)[0],
        tag: dice.bytes(),
        seen_ip: dice.bytes(),
    };
    ack.as_bytes().to_vec()
}

fn invented(kind: u8, device: DeviceId, gateway: &Node, dice: &mut Dice) -> Vec<u8> {
    let mut payload: [u8; 64] = dice.bytes();
    payload[..16].copy_from_slice(wire::Header::new(kind, SUITE, 0, device).as_bytes());
    match kind {
        message_type::REQUEST => payload[32..].fill(0),
        message_type::NAK => payload[21..].fill(0),
        message_type::DATA_UP => payload[34..40].fill(0),
        message_type::CHALLENGE => payload[20..24].copy_from_slice(&gateway.id.0.to_be_bytes()),
        message_type::RESPONSE => {
            payload[32..36].copy_from_slice(&(dice.below(6) as u32).to_be_bytes());
            payload[36..40].copy_from_slice(&gateway.id.0.to_be_bytes());
        }
        _ => {}
    }
    payload.to_vec()
}
