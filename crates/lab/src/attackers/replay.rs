//! Replays captured frames.

use super::attacker_link::{datagram, gateway_endpoint};
use super::gateway_lines::LineSnapshot;
use super::{AttackContext, AttackCounts, AttackError};
use crate::address::Family;

/// Number of times that each frame is sent.
const REPEATS: usize = 3;

/// Sends every frame of the victims' captured handshakes again, unchanged, in order and in reverse, and sends the gateway's own
/// messages to the gateway. No line may change: no new session, no extended session lifetime, no spent row.
///
/// # Errors
/// See [`AttackError`].
pub fn to_gateway(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let handshakes: Vec<_> = context
        .victims
        .iter()
        .filter_map(|device| context.captured_handshakes.get(device).cloned())
        .collect();
    if handshakes.iter().all(|c| c.response.is_none()) {
        return Err(AttackError::MissingInput("a captured handshake of a victim"));
    }
    let before = LineSnapshot::of(context.lines, context.protected_devices());
    let mut counts = AttackCounts::default();
    for handshake in &handshakes {
        let frames = [
            &handshake.request,
            &handshake.response,
            &handshake.challenge,
            &handshake.ack,
        ];
        let forth_and_back = frames.iter().chain(frames.iter().rev());
        for frame in forth_and_back.copied().flatten() {
            for _ in 0..REPEATS {
                context.link.send_frame(frame)?;
                counts.attempts += 1;
            }
        }
        let from_gateway = [&handshake.challenge, &handshake.ack];
        for received in from_gateway
            .into_iter()
            .flatten()
            .filter_map(|frame| datagram(frame))
        {
            context
                .link
                .send(&received.to, &gateway_endpoint(Family::V4), received.payload)?;
            counts.attempts += 1;
        }
        // Limits the queued frames: a full queue would drop frames of the attack.
        context.link.wait_processed(|_| {})?;
    }
    counts.count_line_changes(&before, context.lines);
    Ok(counts)
}

/// Sends the gateway's messages of one handshake to the device again during its next handshake. The device must not
/// react.
///
/// # Errors
/// See [`AttackError`].
pub fn to_device(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let mut device = context.take_controlled_device()?;
    let earlier = device.authenticate(&mut context.link, &mut context.rng)?;
    let mut counts = AttackCounts::default();
    let from = gateway_endpoint(Family::V4);

    let challenge = device.request_challenge(&mut context.link, &mut context.rng)?;
    for message in [&earlier.challenge, &earlier.ack] {
        let received = context
            .link
            .deliver_to_device(&from, &device.lap_endpoint(), message)?;
        counts.record(
            device
                .receive(&received)
                .is_ok_and(|reaction| reaction.has_effect()),
        );
    }
    let response = device.respond(&challenge)?;
    let ack = device.deliver(&mut context.link, &response)?;
    for message in [&earlier.challenge, &earlier.ack, &challenge] {
        let received = context
            .link
            .deliver_to_device(&from, &device.lap_endpoint(), message)?;
        counts.record(
            device
                .receive(&received)
                .is_ok_and(|reaction| reaction.has_effect()),
        );
    }
    match device.receive(&ack) {
        Ok(reaction) if reaction.authenticated => Ok(counts),
        _ => Err(AttackError::ControlFailed(
            "the device rejects the valid ACK after replays",
        )),
    }
}
