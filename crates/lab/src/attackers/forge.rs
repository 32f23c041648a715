//! A fake gateway: forges CHALLENGEs and ACKs towards devices. He hears everything, so he knows nonces, rows and
//! session ids; he has no key.

use linewarden_protocol::frame::ip_bytes;
use linewarden_protocol::ids::{GatewayId, Suite};
use linewarden_protocol::wire::{self, Message, message_type};
use rand::Rng as _;
use zerocopy::byteorder::big_endian::U32;

use super::puppet::Puppet;
use super::station::{bytes, gateway};
use super::{Arena, AttackError, Tally};
use crate::address::Family;

/// CHALLENGEs per nonce: many more than the readings of the PUF that a device allows at once.
const CHALLENGES: u32 = 100;
/// Handshakes disturbed.
const ROUNDS: u32 = 8;

/// Forged CHALLENGEs with the right echo, row, challenge and `fresh`, and forged ACKs with the right session id. The
/// device must neither answer one nor believe one, and must still accept the good messages afterwards.
///
/// # Errors
/// See [`AttackError`].
pub fn fake_gateway(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let mut puppet = arena.take_puppet()?;
    let mut tally = Tally::default();
    let mut good = puppet.get_challenge(&mut arena.station, &mut arena.rng)?;
    for round in 0..ROUNDS {
        if round > 0 {
            good = puppet.get_challenge(&mut arena.station, &mut arena.rng)?;
        }
        for kind in 0..CHALLENGES {
            let forged = forged_challenge(arena, &good, kind)?;
            try_on(arena, &mut puppet, &forged, &mut tally)?;
        }
    }
    // Of the last round the good CHALLENGE arrives after all.
    let response = puppet.answer(&good)?;
    for kind in 0..arena.effort.min(200) {
        let forged = forged_ack(arena, &puppet, &response, kind)?;
        try_on(arena, &mut puppet, &forged, &mut tally)?;
    }
    let ack = puppet.deliver(&mut arena.station, &response)?;
    match puppet.receive(&ack) {
        Ok(reaction) if reaction.authenticated => Ok(tally),
        _ => Err(AttackError::Control(
            "the device refuses the good ACK after forged ones",
        )),
    }
}

/// Sends a forged message over the link and counts whether the device fell for it.
fn try_on(
    arena: &mut Arena<'_>,
    puppet: &mut Puppet,
    forged: &[u8; wire::MESSAGE_BYTES],
    tally: &mut Tally,
) -> Result<(), AttackError> {
    let received = arena
        .station
        .over_the_link(&gateway(Family::V4), &puppet.lap_endpoint(), forged)?;
    tally.count(puppet.receive(&received).is_ok_and(|reaction| reaction.is_any()));
    Ok(())
}

/// Of the good CHALLENGE's form, with a random tag, or for another row, or in another gateway's name.
fn forged_challenge(
    arena: &mut Arena<'_>,
    good: &[u8; wire::MESSAGE_BYTES],
    kind: u32,
) -> Result<[u8; wire::MESSAGE_BYTES], AttackError> {
    let Ok(Message::Challenge(good)) = wire::parse(good) else {
        return Err(AttackError::Control("the gateway's CHALLENGE is malformed"));
    };
    let mut forged = *good;
    match kind {
        0 => arena.rng.fill_bytes(&mut forged.tag),
        // The good tag under a changed message.
        1 => forged.gateway_id = U32::new(GatewayId(good.gateway_id.get() ^ 1).0),
        2 => forged.idx = U32::new(good.idx.get() ^ 1),
        3 => forged.challenge[0] ^= 1,
        _ => arena.rng.fill_bytes(&mut forged.fresh),
    }
    Ok(bytes(&forged))
}

fn forged_ack(
    arena: &mut Arena<'_>,
    puppet: &Puppet,
    response: &[u8; wire::MESSAGE_BYTES],
    kind: u32,
) -> Result<[u8; wire::MESSAGE_BYTES], AttackError> {
    let Ok(Message::Response(response)) = wire::parse(response) else {
        return Err(AttackError::Control("the device's RESPONSE is malformed"));
    };
    let mut session_id = [0; 8];
    session_id.copy_from_slice(&response.tag[..8]);
    let mut tag = [0u8; 16];
    match kind {
        0 => {}                  // all zero
        1 => tag = response.tag, // what went over the wire last
        _ => arena.rng.fill_bytes(&mut tag),
    }
    Ok(bytes(&wire::Ack {
        header: wire::Header::new(message_type::ACK, Suite::SipHash128, 0, response.header.device()),
        idx: response.idx,
        lease_s: U32::new(3600),
        session_id,
        tag,
        seen_ip: ip_bytes(puppet.lap_endpoint().ip),
    }))
}
