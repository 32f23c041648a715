//! Spoofed floods: any sender's address, known and unknown names.

use std::net::{IpAddr, Ipv4Addr};

use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::ids::{DeviceId, Suite};
use linewarden_protocol::wire::{self, FLAG_BOUND, Message, message_type};
use rand::Rng as _;
use rand_chacha::ChaCha20Rng;
use zerocopy::byteorder::big_endian::U32;

use super::station::{bytes, gateway, own, request};
use super::truth::Snapshot;
use super::{Arena, AttackError, Tally};
use crate::address::Family;

/// Messages of a flood for one of another attack.
const FLOOD: u32 = 20;
/// After so many messages the attacker waits until the gateway has seen them.
const WAVE: u32 = 512;

/// Spoofed REQUESTs, half of them for devices that exist. No line may change, and an honest device must still get its
/// CHALLENGE: the probe after each wave does, or the attack ends with [`AttackError::Silent`].
///
/// # Errors
/// See [`AttackError`].
pub fn requests(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let names: Vec<_> = arena.quiet_devices().collect();
    let before = Snapshot::of(arena.truth, names.iter().copied());
    let mut tally = Tally::default();
    for number in 0..arena.effort.saturating_mul(FLOOD) {
        let mut nonce = [0u8; 16];
        arena.rng.fill_bytes(&mut nonce);
        let device = name(&mut arena.rng, &names, number);
        let from = anywhere(&mut arena.rng);
        arena
            .station
            .send(&from, &gateway(Family::V4), &request(device, nonce))?;
        tally.attempts += 1;
        if number % WAVE == WAVE - 1 {
            arena.station.settle(|_| {})?;
        }
    }
    arena.station.settle(|_| {})?;
    tally.judge(&before, arena.truth);
    Ok(tally)
}

/// Spoofed RESPONSEs for the current row with an accepted `fresh`, which any CHALLENGE tells, and random tags.
///
/// # Errors
/// See [`AttackError`].
pub fn responses(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let names: Vec<_> = arena.quiet_devices().collect();
    let before = Snapshot::of(arena.truth, names.iter().copied());
    let challenges = current_challenges(arena, &names)?;
    let mut tally = Tally::default();
    for number in 0..arena.effort.saturating_mul(FLOOD) {
        let Some(challenge) = challenges.get(number as usize % challenges.len().max(1)) else {
            return Err(AttackError::Lacking("a quiet device"));
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
        arena.rng.fill_bytes(&mut response.nonce);
        arena.rng.fill_bytes(&mut response.tag);
        let from = anywhere(&mut arena.rng);
        arena
            .station
            .send(&from, &gateway(Family::V4), &bytes(&response))?;
        tally.attempts += 1;
        if number % WAVE == WAVE - 1 {
            arena.station.settle(|_| {})?;
        }
    }
    arena.station.settle(|_| {})?;
    tally.judge(&before, arena.truth);
    Ok(tally)
}

/// Asks for a CHALLENGE of up to 32 devices, as anybody may.
pub(super) fn current_challenges(
    arena: &mut Arena<'_>,
    names: &[DeviceId],
) -> Result<Vec<wire::Challenge>, AttackError> {
    let mut challenges = Vec::new();
    for device in names.iter().take(32) {
        let me = own(899, 50_001);
        let mut nonce = [0u8; 16];
        arena.rng.fill_bytes(&mut nonce);
        let mut got = None;
        arena
            .station
            .ask(&me, &gateway(Family::V4), &request(*device, nonce), |heard| {
                match wire::parse(heard.payload) {
                    Ok(Message::Challenge(challenge))
                        if heard.to == me && nonce.starts_with(&challenge.nonce_echo) =>
                    {
                        got = Some(*challenge);
                    }
                    _ => {}
                }
                got.is_some()
            })?;
        challenges.push(got.ok_or(AttackError::Silent(*device))?);
    }
    Ok(challenges)
}

/// A known name and an unknown one by turns.
fn name(rng: &mut ChaCha20Rng, known: &[DeviceId], number: u32) -> DeviceId {
    match known.get(number as usize / 2 % known.len().max(1)) {
        Some(device) if number.is_multiple_of(2) => *device,
        _ => DeviceId(rng.next_u64().max(1)),
    }
}

/// A random station: unicast MAC, an address inside the devices' network or outside, any port.
pub(crate) fn anywhere(rng: &mut ChaCha20Rng) -> Endpoint {
    let mut mac = [0u8; 6];
    rng.fill_bytes(&mut mac);
    mac[0] = 0x06; // unicast, local, and no device's
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
