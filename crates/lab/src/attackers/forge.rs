//! A fake gateway that forges CHALLENGEs and ACKs towards devices. The fake gateway receives all frames, and so knows
//! nonces, rows and session ids, but no key.

use linewarden_protocol::frame::ip_bytes;
use linewarden_protocol::ids::{GatewayId, Suite};
use linewarden_protocol::wire::{self, Message, message_type};
use rand::Rng as _;
use zerocopy::byteorder::big_endian::U32;

use super::attacker_link::{bytes, gateway_endpoint};
use super::controlled_device::ControlledDevice;
use super::{AttackContext, AttackCounts, AttackError};
use crate::address::Family;

/// CHALLENGEs per nonce: many more than the PUF readings that a device allows in a burst.
const CHALLENGES: u32 = 100;
/// Number of disturbed handshakes.
const ROUNDS: u32 = 8;

/// Sends forged CHALLENGEs, each a copy of a valid CHALLENGE with one changed field, and forged ACKs with the right
/// session id. The device must react to none of them and must still accept the valid messages afterwards.
///
/// # Errors
/// See [`AttackError`].
pub fn fake_gateway(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let mut device = context.take_controlled_device()?;
    let mut counts = AttackCounts::default();
    let mut valid = device.request_challenge(&mut context.link, &mut context.rng)?;
    for round in 0..ROUNDS {
        if round > 0 {
            valid = device.request_challenge(&mut context.link, &mut context.rng)?;
        }
        for kind in 0..CHALLENGES {
            let forged = forged_challenge(context, &valid, kind)?;
            deliver_and_record(context, &mut device, &forged, &mut counts)?;
        }
    }
    // In the last round the device also receives the valid CHALLENGE.
    let response = device.respond(&valid)?;
    for kind in 0..context.messages_per_attack.min(200) {
        let forged = forged_ack(context, &device, &response, kind)?;
        deliver_and_record(context, &mut device, &forged, &mut counts)?;
    }
    let ack = device.deliver(&mut context.link, &response)?;
    match device.receive(&ack) {
        Ok(reaction) if reaction.authenticated => Ok(counts),
        _ => Err(AttackError::ControlFailed(
            "the device rejects the valid ACK after forged ones",
        )),
    }
}

/// Delivers a forged message over the link and records whether the device reacts.
fn deliver_and_record(
    context: &mut AttackContext<'_>,
    device: &mut ControlledDevice,
    forged: &[u8; wire::MESSAGE_BYTES],
    counts: &mut AttackCounts,
) -> Result<(), AttackError> {
    let received =
        context
            .link
            .deliver_to_device(&gateway_endpoint(Family::V4), &device.lap_endpoint(), forged)?;
    counts.record(
        device
            .receive(&received)
            .is_ok_and(|reaction| reaction.has_effect()),
    );
    Ok(())
}

/// A copy of the valid CHALLENGE with a random tag, or with the valid tag and another gateway id, row, challenge or
/// `fresh`.
fn forged_challenge(
    context: &mut AttackContext<'_>,
    valid: &[u8; wire::MESSAGE_BYTES],
    kind: u32,
) -> Result<[u8; wire::MESSAGE_BYTES], AttackError> {
    let Ok(Message::Challenge(valid)) = wire::parse(valid) else {
        return Err(AttackError::ControlFailed("the gateway's CHALLENGE is malformed"));
    };
    let mut forged = *valid;
    match kind {
        0 => context.rng.fill_bytes(&mut forged.tag),
        // From here on, the valid tag on a changed message.
        1 => forged.gateway_id = U32::new(GatewayId(valid.gateway_id.get() ^ 1).0),
        2 => forged.idx = U32::new(valid.idx.get() ^ 1),
        3 => forged.challenge[0] ^= 1,
        _ => context.rng.fill_bytes(&mut forged.fresh),
    }
    Ok(bytes(&forged))
}

fn forged_ack(
    context: &mut AttackContext<'_>,
    device: &ControlledDevice,
    response: &[u8; wire::MESSAGE_BYTES],
    kind: u32,
) -> Result<[u8; wire::MESSAGE_BYTES], AttackError> {
    let Ok(Message::Response(response)) = wire::parse(response) else {
        return Err(AttackError::ControlFailed("the device's RESPONSE is malformed"));
    };
    let mut session_id = [0; 8];
    session_id.copy_from_slice(&response.tag[..8]);
    let mut tag = [0u8; 16];
    match kind {
        0 => {}                  // all zero
        1 => tag = response.tag, // the tag of the previous message on the link
        _ => context.rng.fill_bytes(&mut tag),
    }
    Ok(bytes(&wire::Ack {
        header: wire::Header::new(message_type::ACK, Suite::SipHash128, 0, response.header.device()),
        idx: response.idx,
        session_lifetime_s: U32::new(3600),
        session_id,
        tag,
        seen_ip: ip_bytes(device.lap_endpoint().ip),
    }))
}
