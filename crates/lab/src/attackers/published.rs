//! The published attacks on the earlier XDP verifier, translated to LAP/1.
//!
//! That verifier kept one expected hash per device, computed with a 32-bit CRC, zero at first and never cleared. Any
//! REQ overwrote the hash. The verifier reflected requests for unknown devices, dropped every UDP packet shorter than
//! its header on any port, and processed every packet that begins with byte 0 or 2 as its own.

use std::time::{Duration, Instant};

use linewarden_protocol::ids::{DeviceId, Suite};
use linewarden_protocol::wire::{self, FLAG_BOUND, MESSAGE_BYTES, Message, message_type};
use rand::Rng as _;
use zerocopy::byteorder::big_endian::U32;

use super::attacker_link::{attacker_endpoint, bytes, datagram, gateway_endpoint, request};
use super::flood::current_challenges;
use super::gate::service;
use super::gateway_lines::LineSnapshot;
use super::{AttackContext, AttackCounts, AttackError};
use crate::address::Family;
use crate::fleet::DEVICE_PORT;

/// Timeout for echoes of legitimate datagrams before missing ones are sent again.
const ECHO_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest time that a RESPONSE is withheld. The gateway accepts its freshness value for at least 8 s (LAP/1 1.4.1); the
/// difference covers delivery on a busy machine.
const WITHHOLD_MAX: Duration = Duration::from_secs(3);

/// A RESPONSE with a given tag; all other fields as the gateway expects them.
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

/// Sends RESPONSEs with a zero tag in the names of up to 32 devices, as after a cold start. The attacker first requests
/// the devices' CHALLENGEs. The RESPONSEs have a valid or a zero `fresh` and are for the current row or the previous
/// row.
///
/// # Errors
/// See [`AttackError`].
pub fn zero_tag(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let devices: Vec<_> = context.protected_devices().collect();
    let before = LineSnapshot::of(context.lines, devices.iter().copied());
    let challenges = current_challenges(context, &devices)?;
    let mut counts = AttackCounts::default();
    for challenge in &challenges {
        for flags in [0, FLAG_BOUND] {
            for (fresh, rows_back) in [
                (challenge.fresh, 0),
                (challenge.fresh, 1),
                ([0; 8], 0),
                ([0; 8], 1),
            ] {
                let mut zero = response(challenge, flags, [0; 16], [0; 16]);
                zero.fresh = fresh;
                zero.idx = U32::new(challenge.idx.get().wrapping_sub(rows_back));
                let from = attacker_endpoint(counts.attempts as u32, DEVICE_PORT);
                context
                    .link
                    .send(&from, &gateway_endpoint(Family::V4), &bytes(&zero))?;
                counts.attempts += 1;
            }
        }
    }
    context.link.wait_processed(|_| {})?;
    counts.count_line_changes(&before, context.lines);
    Ok(counts)
}

/// Replays one valid RESPONSE 500 times from its own address and 500 times from other addresses.
///
/// # Errors
/// See [`AttackError`].
pub fn replayed_response(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let frame = context
        .victims
        .iter()
        .find_map(|device| context.captured_handshakes.get(device)?.response.clone())
        .ok_or(AttackError::MissingInput("a captured RESPONSE of a victim"))?;
    let received = datagram(&frame).ok_or(AttackError::MissingInput("a captured RESPONSE of a victim"))?;
    let before = LineSnapshot::of(context.lines, context.protected_devices());
    let mut counts = AttackCounts::default();
    for number in 0..500 {
        context.link.send_frame(&frame)?;
        let other_endpoint = attacker_endpoint(number, DEVICE_PORT);
        context
            .link
            .send(&other_endpoint, &gateway_endpoint(Family::V4), received.payload)?;
        counts.attempts += 2;
        if number % 64 == 63 {
            context.link.wait_processed(|_| {})?;
        }
    }
    context.link.wait_processed(|_| {})?;
    counts.count_line_changes(&before, context.lines);
    Ok(counts)
}

/// A CRC is affine: the xor of three responses is the response to the xor of three challenges. Here the attacker combines tags of
/// captured RESPONSEs with each other and with the difference of the messages.
///
/// # Errors
/// See [`AttackError`].
pub fn affine_tags(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let captured: Vec<(wire::Response, [u8; 16])> = context
        .captured_handshakes
        .values()
        .filter_map(
            |handshake| match wire::parse(datagram(handshake.response.as_deref()?)?.payload) {
                Ok(Message::Response(response)) => Some((*response, response.tag)),
                _ => None,
            },
        )
        .collect();
    if captured.len() < 2 {
        return Err(AttackError::MissingInput("two captured RESPONSEs"));
    }
    let devices: Vec<_> = context.protected_devices().collect();
    let before = LineSnapshot::of(context.lines, devices.iter().copied());
    let challenges = current_challenges(context, &devices)?;
    let mut counts = AttackCounts::default();
    for challenge in &challenges {
        for number in 0..16usize {
            let pick = |offset: usize| captured.get((number + offset) % captured.len());
            let (Some((a, tag_a)), Some((b, tag_b)), Some((c, tag_c))) = (pick(0), pick(1), pick(2)) else {
                continue;
            };
            let nonce = xor(xor(a.nonce, b.nonce), c.nonce);
            let combined = xor(xor(*tag_a, *tag_b), *tag_c);
            // Treats the tag as a checksum over the difference of the messages.
            let delta = xor(nonce, a.nonce);
            for tag in [combined, xor(*tag_a, *tag_b), xor(*tag_a, delta), *tag_a] {
                let forged = response(challenge, FLAG_BOUND, nonce, tag);
                let from = attacker_endpoint(counts.attempts as u32, DEVICE_PORT);
                context
                    .link
                    .send(&from, &gateway_endpoint(Family::V4), &bytes(&forged))?;
                counts.attempts += 1;
            }
        }
        context.link.wait_processed(|_| {})?;
    }
    counts.count_line_changes(&before, context.lines);
    Ok(counts)
}

fn xor(a: [u8; 16], b: [u8; 16]) -> [u8; 16] {
    (u128::from_ne_bytes(a) ^ u128::from_ne_bytes(b)).to_ne_bytes()
}

/// Guesses tags that vary in only 32 bits, as if the tag were as short as the earlier verifier's. The gateway does not
/// lock the guesser out: 128-bit tags make a lockout unnecessary.
///
/// # Errors
/// See [`AttackError`].
pub fn guessed_tags(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let devices: Vec<_> = context.absent_devices.iter().copied().take(1).collect();
    let before = LineSnapshot::of(context.lines, devices.iter().copied());
    let challenges = current_challenges(context, &devices)?;
    let challenge = challenges
        .first()
        .ok_or(AttackError::MissingInput("an absent device"))?;
    let mut counts = AttackCounts::default();
    for guess in 0..context.messages_per_attack {
        let mut tag = [0u8; 16];
        tag[..4].copy_from_slice(&guess.wrapping_mul(0x9e37_79b9).to_be_bytes());
        let forged = response(challenge, FLAG_BOUND, [1; 16], tag);
        let from = attacker_endpoint(7, DEVICE_PORT);
        context
            .link
            .send(&from, &gateway_endpoint(Family::V4), &bytes(&forged))?;
        counts.attempts += 1;
        if guess % 512 == 511 {
            context.link.wait_processed(|_| {})?;
        }
    }
    context.link.wait_processed(|_| {})?;
    counts.count_line_changes(&before, context.lines);
    Ok(counts)
}

/// Sends REQUESTs in the name of a device that waits for its ACK, from its own and from other addresses, while its
/// RESPONSE is withheld. The gateway must still accept the RESPONSE.
///
/// # Errors
/// See [`AttackError`].
pub fn overwriting_request(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let mut victim = context.take_controlled_device()?;
    let response = victim.withheld_response(&mut context.link, &mut context.rng)?;
    let withheld_since = Instant::now();
    let mut counts = AttackCounts::default();
    for number in 0..context.messages_per_attack.min(1_000) {
        if withheld_since.elapsed() > WITHHOLD_MAX {
            break;
        }
        let mut nonce = [0u8; 16];
        context.rng.fill_bytes(&mut nonce);
        let message = request(victim.id(), nonce);
        for from in [victim.lap_endpoint(), attacker_endpoint(number, DEVICE_PORT)] {
            context
                .link
                .send(&from, &gateway_endpoint(Family::V4), &message)?;
            counts.attempts += 1;
        }
        if number % 128 == 127 {
            context.link.wait_processed(|_| {})?;
        }
    }
    context.link.wait_processed(|_| {})?;
    let accepted = match victim.deliver(&mut context.link, &response) {
        Ok(ack) => victim.receive(&ack).is_ok_and(|reaction| reaction.authenticated),
        Err(AttackError::NoChallenge(_)) => false,
        Err(error) => return Err(error),
    };
    counts.successes = u64::from(!accepted);
    Ok(counts)
}

/// Sends REQUESTs and RESPONSEs with unknown device ids. Every reply is a reflection.
///
/// # Errors
/// See [`AttackError`].
pub fn unknown_id(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let source = attacker_endpoint(11, 50_002);
    let mut counts = AttackCounts::default();
    let mut reflected = 0;
    for number in 0..context.messages_per_attack.min(1_000) {
        // 0 names no device; the others are random.
        let device = DeviceId(if number == 0 { 0 } else { context.rng.next_u64() });
        let mut message = request(device, [number as u8; 16]);
        if number % 2 == 1 {
            message[3] = message_type::RESPONSE;
            context.rng.fill_bytes(message.get_mut(16..).unwrap_or_default());
        }
        context
            .link
            .send(&source, &gateway_endpoint(Family::V4), &message)?;
        counts.attempts += 1;
        if number % 128 == 127 {
            context
                .link
                .wait_processed(|received| reflected += u64::from(received.to == source))?;
        }
    }
    context
        .link
        .wait_processed(|received| reflected += u64::from(received.to == source))?;
    counts.successes = reflected;
    Ok(counts)
}

/// Sends legitimate datagrams of 0 to 64 bytes from an authenticated device to the service. Each datagram without an
/// echo counts as lost.
///
/// # Errors
/// See [`AttackError`].
pub fn short_datagrams(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let payloads = (0..=MESSAGE_BYTES).map(|bytes| vec![0xa5; bytes]).collect();
    legitimate_datagrams(context, payloads)
}

/// Sends legitimate datagrams that begin with one of six byte values, among them 0 and 2, in the message sizes of the
/// earlier verifier and of LAP/1; and sends a whole LAP/1 REQUEST. Each datagram without an echo counts as lost.
///
/// # Errors
/// See [`AttackError`].
pub fn leading_bytes(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
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
    let device = context.absent_devices.first().copied().unwrap_or(DeviceId(1));
    payloads.push(request(device, [9; 16]).to_vec());
    legitimate_datagrams(context, payloads)
}

/// Sends each payload from an authenticated device to the service and counts payloads without an echo.
fn legitimate_datagrams(
    context: &mut AttackContext<'_>,
    payloads: Vec<Vec<u8>>,
) -> Result<AttackCounts, AttackError> {
    let mut device = context.take_controlled_device()?;
    let to = service(context, None)?;
    device.authenticate(&mut context.link, &mut context.rng)?;
    let source = device.endpoint(50_003);
    let mut counts = AttackCounts {
        attempts: payloads.len() as u64,
        ..AttackCounts::default()
    };
    let mut missing = payloads;
    // The second and third pass resend only datagrams without an echo: a full queue may have dropped them.
    for _ in 0..3 {
        for payload in &missing {
            context.link.send(&source, &to, payload)?;
        }
        context.link.flush()?;
        let send_time = Instant::now();
        while !missing.is_empty() && send_time.elapsed() < ECHO_TIMEOUT {
            context.link.receive(&mut |received| {
                if received.to == source {
                    missing.retain(|payload| payload != received.payload);
                }
                false
            })?;
            context.link.wait(Duration::from_millis(10))?;
        }
    }
    counts.successes = missing.len() as u64;
    Ok(counts)
}
