//! Every bit of every message turned, one at a time.

use linewarden_protocol::wire::{self, MESSAGE_BYTES, Message};

use super::station::gateway;
use super::truth::Snapshot;
use super::{Arena, AttackError, Tally};
use crate::address::Family;

/// Bits of a message.
const BITS: usize = MESSAGE_BYTES * 8;
/// CHALLENGEs for one nonce, so that the device's limit of readings does not hide what it would do with the next.
const PER_NONCE: usize = 3;

fn flipped(message: &[u8; MESSAGE_BYTES], bit: usize) -> [u8; MESSAGE_BYTES] {
    let mut out = *message;
    if let Some(byte) = out.get_mut(bit / 8) {
        *byte ^= 1 << (bit % 8);
    }
    out
}

/// All 512 variants of a withheld good RESPONSE and of its REQUEST, from the device's own address. No row may be spent;
/// afterwards the RESPONSE itself must be accepted.
///
/// # Errors
/// See [`AttackError`].
pub fn to_gateway(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let mut puppet = arena.take_puppet()?;
    let response = puppet.withheld_response(&mut arena.station, &mut arena.rng)?;
    let devices: Vec<_> = arena.quiet_devices().chain([puppet.id()]).collect();
    let before = Snapshot::of(arena.truth, devices);
    let mut tally = Tally::default();
    let nonce = match wire::parse(&response) {
        Ok(Message::Response(response)) => response.nonce,
        _ => return Err(AttackError::Control("the device's RESPONSE is malformed")),
    };
    let request = super::station::request(puppet.id(), nonce);
    for message in [&request, &response] {
        for bit in 0..BITS {
            let from = puppet.lap_endpoint();
            arena
                .station
                .send(&from, &gateway(Family::V4), &flipped(message, bit))?;
            tally.attempts += 1;
        }
        arena.station.settle(|_| {})?;
    }
    tally.judge(&before, arena.truth);
    let ack = puppet.deliver(&mut arena.station, &response)?;
    if !puppet.receive(&ack).is_ok_and(|reaction| reaction.authenticated) {
        return Err(AttackError::Control(
            "the good RESPONSE is not accepted after its variants",
        ));
    }
    Ok(tally)
}

/// All 512 variants of good CHALLENGEs and of a good ACK, to the device. It must answer none and believe none.
///
/// # Errors
/// See [`AttackError`].
pub fn to_device(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let mut puppet = arena.take_puppet()?;
    let from = gateway(Family::V4);
    let to = puppet.lap_endpoint();
    let mut tally = Tally::default();
    let mut good = [0; MESSAGE_BYTES];
    for bit in 0..BITS {
        if bit % PER_NONCE == 0 {
            good = puppet.get_challenge(&mut arena.station, &mut arena.rng)?;
        }
        let received = arena.station.over_the_link(&from, &to, &flipped(&good, bit))?;
        tally.count(puppet.receive(&received).is_ok_and(|reaction| reaction.is_any()));
    }
    let response = puppet.answer(&good)?;
    let ack = puppet.deliver(&mut arena.station, &response)?;
    for bit in 0..BITS {
        let received = arena.station.over_the_link(&from, &to, &flipped(&ack, bit))?;
        tally.count(puppet.receive(&received).is_ok_and(|reaction| reaction.is_any()));
    }
    match puppet.receive(&ack) {
        Ok(reaction) if reaction.authenticated => Ok(tally),
        _ => Err(AttackError::Control(
            "the device refuses the good ACK after its variants",
        )),
    }
}
