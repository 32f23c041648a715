//! Flips every bit of every message, one at a time.

use linewarden_protocol::wire::{self, MESSAGE_BYTES, Message};

use super::attacker_link::gateway_endpoint;
use super::gateway_lines::LineSnapshot;
use super::{AttackContext, AttackCounts, AttackError};
use crate::address::Family;

/// Bits of a message.
const BITS: usize = MESSAGE_BYTES * 8;
/// CHALLENGEs per nonce: few, so that the device's limit of PUF readings does not suppress a reaction.
const CHALLENGES_PER_NONCE: usize = 3;

fn flipped(message: &[u8; MESSAGE_BYTES], bit: usize) -> [u8; MESSAGE_BYTES] {
    let mut out = *message;
    if let Some(byte) = out.get_mut(bit / 8) {
        *byte ^= 1 << (bit % 8);
    }
    out
}

/// Sends all 512 one-bit variants of a REQUEST and of a withheld valid RESPONSE from the device's own address. The
/// gateway must spend no row; afterwards it must accept the unchanged RESPONSE.
///
/// # Errors
/// See [`AttackError`].
pub fn to_gateway(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let mut device = context.take_controlled_device()?;
    let response = device.withheld_response(&mut context.link, &mut context.rng)?;
    let devices: Vec<_> = context.protected_devices().chain([device.id()]).collect();
    let before = LineSnapshot::of(context.lines, devices);
    let mut counts = AttackCounts::default();
    let nonce = match wire::parse(&response) {
        Ok(Message::Response(response)) => response.nonce,
        _ => return Err(AttackError::ControlFailed("the device's RESPONSE is malformed")),
    };
    let request = super::attacker_link::request(device.id(), nonce);
    for message in [&request, &response] {
        for bit in 0..BITS {
            let from = device.lap_endpoint();
            context
                .link
                .send(&from, &gateway_endpoint(Family::V4), &flipped(message, bit))?;
            counts.attempts += 1;
        }
        context.link.wait_processed(|_| {})?;
    }
    counts.count_line_changes(&before, context.lines);
    let ack = device.deliver(&mut context.link, &response)?;
    if !device.receive(&ack).is_ok_and(|reaction| reaction.authenticated) {
        return Err(AttackError::ControlFailed(
            "the gateway rejects the valid RESPONSE after copies with a flipped bit",
        ));
    }
    Ok(counts)
}

/// Sends all 512 one-bit variants of valid CHALLENGEs and of a valid ACK to the device. The device must react to none.
///
/// # Errors
/// See [`AttackError`].
pub fn to_device(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let mut device = context.take_controlled_device()?;
    let from = gateway_endpoint(Family::V4);
    let to = device.lap_endpoint();
    let mut counts = AttackCounts::default();
    let mut original = [0; MESSAGE_BYTES];
    for bit in 0..BITS {
        if bit % CHALLENGES_PER_NONCE == 0 {
            original = device.request_challenge(&mut context.link, &mut context.rng)?;
        }
        let received = context
            .link
            .deliver_to_device(&from, &to, &flipped(&original, bit))?;
        counts.record(
            device
                .receive(&received)
                .is_ok_and(|reaction| reaction.has_effect()),
        );
    }
    let response = device.respond(&original)?;
    let ack = device.deliver(&mut context.link, &response)?;
    for bit in 0..BITS {
        let received = context.link.deliver_to_device(&from, &to, &flipped(&ack, bit))?;
        counts.record(
            device
                .receive(&received)
                .is_ok_and(|reaction| reaction.has_effect()),
        );
    }
    match device.receive(&ack) {
        Ok(reaction) if reaction.authenticated => Ok(counts),
        _ => Err(AttackError::ControlFailed(
            "the device rejects the valid ACK after copies with a flipped bit",
        )),
    }
}
