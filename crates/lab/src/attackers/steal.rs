//! A thief on the path: he holds a victim's good RESPONSE back and sends it from his own address first.

use super::station::{gateway, own};
use super::truth::Snapshot;
use super::{Arena, AttackError, Tally};
use crate::address::Family;
use crate::fleet::DEVICE_PORT;

/// From his own MAC and IP address, from his own MAC with the victim's IP address, and from random ports of both. The
/// row must stay unspent, and the victim's RESPONSE must still be accepted afterwards.
///
/// The second is tried only where frames are seen ([`Arena::sees_frames`]). To a UDP socket, that datagram is the
/// victim's: whoever carries it, the session is the victim's, and the ACK goes to the victim.
///
/// # Errors
/// See [`AttackError`].
pub fn from_own_mac(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let mut victim = arena.take_puppet()?;
    let response = victim.withheld_response(&mut arena.station, &mut arena.rng)?;
    let before = Snapshot::of(arena.truth, [victim.id()]);
    let mut tally = Tally::default();
    for number in 0..arena.effort.min(200) {
        let thief = own(number, DEVICE_PORT + (number % 7) as u16);
        let disguised = linewarden_protocol::frame::write::Endpoint {
            ip: victim.lap_endpoint().ip,
            ..thief
        };
        for from in std::iter::once(thief).chain(arena.sees_frames.then_some(disguised)) {
            arena.station.send(&from, &gateway(Family::V4), &response)?;
            tally.attempts += 1;
        }
    }
    arena.station.settle(|_| {})?;
    tally.judge(&before, arena.truth);
    // The same RESPONSE was good all the time.
    let ack = victim.deliver(&mut arena.station, &response)?;
    if !victim.receive(&ack).is_ok_and(|reaction| reaction.authenticated)
        || before.changes(arena.truth).is_empty()
    {
        return Err(AttackError::Control(
            "the victim's RESPONSE is not accepted from its own address",
        ));
    }
    Ok(tally)
}
