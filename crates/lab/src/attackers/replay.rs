//! A replayer: sends again what he heard.

use super::station::{datagram, gateway};
use super::truth::Snapshot;
use super::{Arena, AttackError, Tally};
use crate::address::Family;

/// How often each frame is sent again.
const TIMES: usize = 3;

/// Every frame of every captured handshake goes again onto the link, as it was, in order and in reverse, and the gateway's
/// own messages go to the gateway. No line may change: no new session, no longer lease, no row spent.
///
/// # Errors
/// See [`AttackError`].
pub fn to_gateway(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let conversations: Vec<_> = arena
        .victims
        .iter()
        .filter_map(|device| arena.captured.get(device).cloned())
        .collect();
    if conversations.iter().all(|c| c.response.is_none()) {
        return Err(AttackError::Lacking("a captured handshake of a victim"));
    }
    let before = Snapshot::of(arena.truth, arena.quiet_devices());
    let mut tally = Tally::default();
    for conversation in &conversations {
        let frames = [
            &conversation.request,
            &conversation.response,
            &conversation.challenge,
            &conversation.ack,
        ];
        let forth_and_back = frames.iter().chain(frames.iter().rev());
        for frame in forth_and_back.copied().flatten() {
            for _ in 0..TIMES {
                arena.station.send_frame(frame)?;
                tally.attempts += 1;
            }
        }
        let from_gateway = [&conversation.challenge, &conversation.ack];
        for heard in from_gateway
            .into_iter()
            .flatten()
            .filter_map(|frame| datagram(frame))
        {
            arena
                .station
                .send(&heard.to, &gateway(Family::V4), heard.payload)?;
            tally.attempts += 1;
        }
        // Not more at once than a queue holds, or the attack would lose itself.
        arena.station.settle(|_| {})?;
    }
    tally.judge(&before, arena.truth);
    Ok(tally)
}

/// The gateway's messages of one handshake are sent to the device again in its next one, and those of other devices'
/// handshakes too; nothing of it may move the device.
///
/// # Errors
/// See [`AttackError`].
pub fn to_device(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let mut puppet = arena.take_puppet()?;
    let old = puppet.authenticate(&mut arena.station, &mut arena.rng)?;
    let mut tally = Tally::default();
    let from = gateway(Family::V4);

    let challenge = puppet.get_challenge(&mut arena.station, &mut arena.rng)?;
    for message in [&old.challenge, &old.ack] {
        let received = arena
            .station
            .over_the_link(&from, &puppet.lap_endpoint(), message)?;
        tally.count(puppet.receive(&received).is_ok_and(|reaction| reaction.is_any()));
    }
    let response = puppet.answer(&challenge)?;
    let ack = puppet.deliver(&mut arena.station, &response)?;
    for message in [&old.challenge, &old.ack, &challenge] {
        let received = arena
            .station
            .over_the_link(&from, &puppet.lap_endpoint(), message)?;
        tally.count(puppet.receive(&received).is_ok_and(|reaction| reaction.is_any()));
    }
    match puppet.receive(&ack) {
        Ok(reaction) if reaction.authenticated => Ok(tally),
        _ => Err(AttackError::Control(
            "the device refuses the good ACK after replays",
        )),
    }
}
