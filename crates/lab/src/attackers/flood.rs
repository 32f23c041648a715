//! Floods with spoofed sender addresses, in the names of known and unknown devices.

use std::net::{IpAddr, Ipv4Addr};

use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::ids::{DeviceId, Suite};
use linewarden_protocol::wire::{self, FLAG_BOUND, Message, message_type};
use rand::Rng as _;
use rand_chacha::ChaCha20Rng;
use zerocopy::byteorder::big_endian::U32;

use super::attacker_link::{attacker_endpoint, bytes, gateway_endpoint, request};
use super::gateway_lines::LineSnapshot;
use super::{AttackContext, AttackCounts, AttackError};
use crate::address::Family;

/// A flood sends this many times the messages of an ordinary attack ([`AttackContext::messages_per_attack`]).
const FLOOD_FACTOR: u32 = 20;
/// Messages after which the attacker waits until the gateway has processed them.
const BATCH_MESSAGES: u32 = 512;

/// Sends spoofed REQUESTs, half of them for existing devices. No line may change. A probe after each batch checks that
/// a legitimate device still receives its CHALLENGE; if not, the attack returns [`AttackError::NoChallenge`].
///
/// # Errors
/// See [`AttackError`].
pub fn requests(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let devices: Vec<_> = context.protected_devices().collect();
    let before = LineSnapshot::of(context.lines, devices.iter().copied());
    let mut counts = AttackCounts::default();
    for number in 0..context.messages_per_attack.saturating_mul(FLOOD_FACTOR) {
        let mut nonce = [0u8; 16];
        context.rng.fill_bytes(&mut nonce);
        let device = pick_device(&mut context.rng, &devices, number);
        let from = random_endpoint(&mut context.rng);
        context
            .link
            .send(&from, &gateway_endpoint(Family::V4), &request(device, nonce))?;
        counts.attempts += 1;
        if number % BATCH_MESSAGES == BATCH_MESSAGES - 1 {
            context.link.wait_processed(|_| {})?;
        }
    }
    context.link.wait_processed(|_| {})?;
    counts.count_line_changes(&before, context.lines);
    Ok(counts)
}

/// Sends spoofed RESPONSEs with random tags and an accepted `fresh`, which every CHALLENGE contains. Every fifth RESPONSE
/// is for the previous row, the others are for the current row. No line may change.
///
/// # Errors
/// See [`AttackError`].
pub fn responses(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let devices: Vec<_> = context.protected_devices().collect();
    let before = LineSnapshot::of(context.lines, devices.iter().copied());
    let challenges = current_challenges(context, &devices)?;
    let mut counts = AttackCounts::default();
    for number in 0..context.messages_per_attack.saturating_mul(FLOOD_FACTOR) {
        let Some(challenge) = challenges.get(number as usize % challenges.len().max(1)) else {
            return Err(AttackError::MissingInput("a protected device"));
        };
        let flags = if number % 2 == 0 { FLAG_BOUND } else { 0 };
        let mut response = wire::Response {
            header: wire::Header::new(
                message_type::RESPONSE,
                Suite::SipHash128,
                flags,
                challenge.header.device(),
            ),
            nonce: [0; 16],
            idx: U32::new(challenge.idx.get().wrapping_sub(u32::from(number % 5 == 4))),
            gateway_id: challenge.gateway_id,
            fresh: challenge.fresh,
            tag: [0; 16],
        };
        context.rng.fill_bytes(&mut response.nonce);
        context.rng.fill_bytes(&mut response.tag);
        let from = random_endpoint(&mut context.rng);
        context
            .link
            .send(&from, &gateway_endpoint(Family::V4), &bytes(&response))?;
        counts.attempts += 1;
        if number % BATCH_MESSAGES == BATCH_MESSAGES - 1 {
            context.link.wait_processed(|_| {})?;
        }
    }
    context.link.wait_processed(|_| {})?;
    counts.count_line_changes(&before, context.lines);
    Ok(counts)
}

/// Requests a CHALLENGE for each of up to 32 devices, as any station may.
pub(super) fn current_challenges(
    context: &mut AttackContext<'_>,
    devices: &[DeviceId],
) -> Result<Vec<wire::Challenge>, AttackError> {
    let mut challenges = Vec::new();
    for device in devices.iter().take(32) {
        let source = attacker_endpoint(899, 50_001);
        let mut nonce = [0u8; 16];
        context.rng.fill_bytes(&mut nonce);
        let mut latest = None;
        context.link.exchange(
            &source,
            &gateway_endpoint(Family::V4),
            &request(*device, nonce),
            |received| {
                match wire::parse(received.payload) {
                    Ok(Message::Challenge(challenge))
                        if received.to == source && nonce.starts_with(&challenge.nonce_echo) =>
                    {
                        latest = Some(*challenge);
                    }
                    _ => {}
                }
                latest.is_some()
            },
        )?;
        challenges.push(latest.ok_or(AttackError::NoChallenge(*device))?);
    }
    Ok(challenges)
}

/// Returns a known and an unknown device id, alternately.
fn pick_device(rng: &mut ChaCha20Rng, known: &[DeviceId], number: u32) -> DeviceId {
    match known.get(number as usize / 2 % known.len().max(1)) {
        Some(device) if number.is_multiple_of(2) => *device,
        _ => DeviceId(rng.next_u64().max(1)),
    }
}

/// A random station: unicast MAC, an address inside the devices' network or outside, any port.
pub(crate) fn random_endpoint(rng: &mut ChaCha20Rng) -> Endpoint {
    let mut mac = [0u8; 6];
    rng.fill_bytes(&mut mac);
    mac[0] = 0x06; // unicast, locally administered, not a device's
    let random = rng.next_u64();
    let ip = if random & 1 == 0 {
        Ipv4Addr::from_bits(0x0a42_0000 | (random >> 32) as u32 & 0xffff)
    } else {
        Ipv4Addr::from_bits((random >> 32) as u32)
    };
    Endpoint {
        mac,
        ip: IpAddr::V4(ip),
        port: (random >> 16) as u16,
    }
}
