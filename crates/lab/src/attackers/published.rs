//! The published attacks on the earlier XDP verifier, translated to LAP/1.
//!
//! That verifier kept one expected hash per device, zero at first and never cleared, made with a CRC of 32 bits;
//! overwrote it at anybody's request; reflected requests for unknown devices; dropped every UDP packet shorter than its
//! header, on any port; and took every one that begins with 0 or 2 for its own.

use std::time::{Duration, Instant};

use linewarden_protocol::ids::{DeviceId, Suite};
use linewarden_protocol::wire::{self, FLAG_BOUND, MESSAGE_BYTES, Message, message_type};
use rand::Rng as _;
use zerocopy::byteorder::big_endian::U32;

use super::flood::current_challenges;
use super::gate::service;
use super::station::{bytes, datagram, gateway, own, request};
use super::truth::Snapshot;
use super::{Arena, AttackError, Tally};
use crate::address::Family;
use crate::fleet::DEVICE_PORT;

/// How long echoes of honest datagrams are waited for before those that are missing are sent again.
const ECHO_PATIENCE: Duration = Duration::from_secs(1);

/// For how long a RESPONSE is kept from the gateway: its freshness value is accepted for 8 s more at least (LAP/1 1.4.1), and on a busy
/// machine its own way takes long, too.
const WITHHELD: Duration = Duration::from_secs(3);

/// A RESPONSE of a quiet device with a given tag; everything else as the gateway wants it.
fn response(challenge: &wire::Challenge, flags: u8, nonce: [u8; 16], tag: [u8; 16]) -> wire::Response {
    wire::Response {
        header: wire::Header::new(
            message_type::RESPONSE,
            Suite::SipHash128,
            flags,
            challenge.header.device(),
        ),
        nonce,
        idx: challenge.idx,
        gateway_id: challenge.gateway_id,
        fresh: challenge.fresh,
        tag,
    }
}

/// Cold start: zero as the answer of a device that was never asked, and of one that was; with a right and a zero
/// `fresh`, for the current row and the one before.
///
/// # Errors
/// See [`AttackError`].
pub fn zero_tag(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let names: Vec<_> = arena.quiet_devices().collect();
    let before = Snapshot::of(arena.truth, names.iter().copied());
    let challenges = current_challenges(arena, &names)?;
    let mut tally = Tally::default();
    for challenge in &challenges {
        for flags in [0, FLAG_BOUND] {
            for (fresh, back) in [
                (challenge.fresh, 0),
                (challenge.fresh, 1),
                ([0; 8], 0),
                ([0; 8], 1),
            ] {
                let mut zero = response(challenge, flags, [0; 16], [0; 16]);
                zero.fresh = fresh;
                zero.idx = U32::new(challenge.idx.get().wrapping_sub(back));
                let from = own(tally.attempts as u32, DEVICE_PORT);
                arena.station.send(&from, &gateway(Family::V4), &bytes(&zero))?;
                tally.attempts += 1;
            }
        }
    }
    arena.station.settle(|_| {})?;
    tally.judge(&before, arena.truth);
    Ok(tally)
}

/// One good RESPONSE 1,000 times, from where it came and from elsewhere.
///
/// # Errors
/// See [`AttackError`].
pub fn replayed_response(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let frame = arena
        .victims
        .iter()
        .find_map(|device| arena.captured.get(device)?.response.clone())
        .ok_or(AttackError::Lacking("a captured RESPONSE of a victim"))?;
    let heard = datagram(&frame).ok_or(AttackError::Lacking("a captured RESPONSE of a victim"))?;
    let before = Snapshot::of(arena.truth, arena.quiet_devices());
    let mut tally = Tally::default();
    for number in 0..500 {
        arena.station.send_frame(&frame)?;
        let elsewhere = own(number, DEVICE_PORT);
        arena
            .station
            .send(&elsewhere, &gateway(Family::V4), heard.payload)?;
        tally.attempts += 2;
        if number % 64 == 63 {
            arena.station.settle(|_| {})?;
        }
    }
    arena.station.settle(|_| {})?;
    tally.judge(&before, arena.truth);
    Ok(tally)
}

/// A CRC is affine: the xor of three answers answers the xor of three questions. Here: tags of captured RESPONSEs combined
/// with each other and with what differs between the messages.
///
/// # Errors
/// See [`AttackError`].
pub fn affine_tags(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let known: Vec<(wire::Response, [u8; 16])> = arena
        .captured
        .values()
        .filter_map(
            |conversation| match wire::parse(datagram(conversation.response.as_deref()?)?.payload) {
                Ok(Message::Response(response)) => Some((*response, response.tag)),
                _ => None,
            },
        )
        .collect();
    if known.len() < 2 {
        return Err(AttackError::Lacking("two captured RESPONSEs"));
    }
    let names: Vec<_> = arena.quiet_devices().collect();
    let before = Snapshot::of(arena.truth, names.iter().copied());
    let challenges = current_challenges(arena, &names)?;
    let mut tally = Tally::default();
    for challenge in &challenges {
        for number in 0..16usize {
            let pick = |at: usize| known.get((number + at) % known.len());
            let (Some((a, tag_a)), Some((b, tag_b)), Some((c, tag_c))) = (pick(0), pick(1), pick(2)) else {
                continue;
            };
            let nonce = xor(xor(a.nonce, b.nonce), c.nonce);
            let combined = xor(xor(*tag_a, *tag_b), *tag_c);
            // As if the tag were a checksum over what differs, of which both halves may be known.
            let delta = xor(nonce, a.nonce);
            for tag in [combined, xor(*tag_a, *tag_b), xor(*tag_a, delta), *tag_a] {
                let forged = response(challenge, FLAG_BOUND, nonce, tag);
                let from = own(tally.attempts as u32, DEVICE_PORT);
                arena.station.send(&from, &gateway(Family::V4), &bytes(&forged))?;
                tally.attempts += 1;
            }
        }
        arena.station.settle(|_| {})?;
    }
    tally.judge(&before, arena.truth);
    Ok(tally)
}

fn xor(a: [u8; 16], b: [u8; 16]) -> [u8; 16] {
    (u128::from_ne_bytes(a) ^ u128::from_ne_bytes(b)).to_ne_bytes()
}

/// Guesses of which only 32 bits vary, as if the tag were as short as the earlier verifier's; nothing locks the guesser
/// out, and nothing needs to.
///
/// # Errors
/// See [`AttackError`].
pub fn guessed_tags(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let names: Vec<_> = arena.absent.iter().copied().take(1).collect();
    let before = Snapshot::of(arena.truth, names.iter().copied());
    let challenges = current_challenges(arena, &names)?;
    let challenge = challenges
        .first()
        .ok_or(AttackError::Lacking("an absent device"))?;
    let mut tally = Tally::default();
    for guess in 0..arena.effort {
        let mut tag = [0u8; 16];
        tag[..4].copy_from_slice(&guess.wrapping_mul(0x9e37_79b9).to_be_bytes());
        let forged = response(challenge, FLAG_BOUND, [1; 16], tag);
        let from = own(7, DEVICE_PORT);
        arena.station.send(&from, &gateway(Family::V4), &bytes(&forged))?;
        tally.attempts += 1;
        if guess % 512 == 511 {
            arena.station.settle(|_| {})?;
        }
    }
    arena.station.settle(|_| {})?;
    tally.judge(&before, arena.truth);
    Ok(tally)
}

/// REQUESTs in the name of a device that waits for its ACK, from its own address and from others, as many as its RESPONSE can wait for. It
/// must be accepted all the same.
///
/// # Errors
/// See [`AttackError`].
pub fn overwriting_request(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let mut victim = arena.take_puppet()?;
    let response = victim.withheld_response(&mut arena.station, &mut arena.rng)?;
    let withheld = Instant::now();
    let mut tally = Tally::default();
    for number in 0..arena.effort.min(1_000) {
        if withheld.elapsed() > WITHHELD {
            break;
        }
        let mut nonce = [0u8; 16];
        arena.rng.fill_bytes(&mut nonce);
        let message = request(victim.id(), nonce);
        for from in [victim.lap_endpoint(), own(number, DEVICE_PORT)] {
            arena.station.send(&from, &gateway(Family::V4), &message)?;
            tally.attempts += 1;
        }
        if number % 128 == 127 {
            arena.station.settle(|_| {})?;
        }
    }
    arena.station.settle(|_| {})?;
    let accepted = match victim.deliver(&mut arena.station, &response) {
        Ok(ack) => victim.receive(&ack).is_ok_and(|reaction| reaction.authenticated),
        Err(AttackError::Silent(_)) => false,
        Err(error) => return Err(error),
    };
    tally.successes = u64::from(!accepted);
    Ok(tally)
}

/// REQUESTs and RESPONSEs in names that do not exist. Whatever comes back is a reflection.
///
/// # Errors
/// See [`AttackError`].
pub fn unknown_id(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let me = own(11, 50_002);
    let mut tally = Tally::default();
    let mut reflected = 0;
    for number in 0..arena.effort.min(1_000) {
        // 0 names no device; the others are random.
        let device = DeviceId(if number == 0 { 0 } else { arena.rng.next_u64() });
        let mut message = request(device, [number as u8; 16]);
        if number % 2 == 1 {
            message[3] = message_type::RESPONSE;
            arena.rng.fill_bytes(message.get_mut(16..).unwrap_or_default());
        }
        arena.station.send(&me, &gateway(Family::V4), &message)?;
        tally.attempts += 1;
        if number % 128 == 127 {
            arena
                .station
                .settle(|heard| reflected += u64::from(heard.to == me))?;
        }
    }
    arena
        .station
        .settle(|heard| reflected += u64::from(heard.to == me))?;
    tally.successes = reflected;
    Ok(tally)
}

/// Honest datagrams of 0 to 64 bytes of an authenticated device to the service. Each one that gets no echo counts as
/// lost.
///
/// # Errors
/// See [`AttackError`].
pub fn short_datagrams(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let payloads = (0..=MESSAGE_BYTES).map(|bytes| vec![0xa5; bytes]).collect();
    honest_datagrams(arena, payloads)
}

/// Honest datagrams that begin with each byte value, of the earlier verifier's message sizes and of LAP/1's, among them
/// whole LAP/1 headers.
///
/// # Errors
/// See [`AttackError`].
pub fn leading_bytes(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let mut payloads = Vec::new();
    for first in [0u8, 1, 2, 3, 0x4c, 0xff] {
        for bytes in [1, 29, 33, 41, 57, 64, 200] {
            let mut payload = vec![first; bytes];
            if let Some(last) = payload.last_mut() {
                *last = bytes as u8 ^ first;
            }
            payloads.push(payload);
        }
    }
    let device = arena.absent.first().copied().unwrap_or(DeviceId(1));
    payloads.push(request(device, [9; 16]).to_vec());
    honest_datagrams(arena, payloads)
}

/// Sends each payload from an authenticated device to the service and counts those of which no echo comes.
fn honest_datagrams(arena: &mut Arena<'_>, payloads: Vec<Vec<u8>>) -> Result<Tally, AttackError> {
    let mut device = arena.take_puppet()?;
    let to = service(arena, None)?;
    device.authenticate(&mut arena.station, &mut arena.rng)?;
    let me = device.endpoint(50_003);
    let mut tally = Tally {
        attempts: payloads.len() as u64,
        ..Tally::default()
    };
    let mut missing = payloads;
    // The second and third time only for what a full queue may have lost.
    for _ in 0..3 {
        for payload in &missing {
            arena.station.send(&me, &to, payload)?;
        }
        arena.station.flush()?;
        let sent = Instant::now();
        while !missing.is_empty() && sent.elapsed() < ECHO_PATIENCE {
            arena.station.listen(&mut |heard| {
                if heard.to == me {
                    missing.retain(|payload| payload != heard.payload);
                }
                false
            })?;
            arena.station.wait(Duration::from_millis(10))?;
        }
    }
    tally.successes = missing.len() as u64;
    Ok(tally)
}
