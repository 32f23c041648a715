//! An attacker on the path withholds a victim's valid RESPONSE and sends it from another address first.

use super::attacker_link::{attacker_endpoint, gateway_endpoint};
use super::gateway_lines::LineSnapshot;
use super::{AttackContext, AttackCounts, AttackError};
use crate::address::Family;
use crate::fleet::DEVICE_PORT;

/// Sends the RESPONSE from the attacker's MAC and IP address, and from the attacker's MAC with the victim's IP address, from
/// several ports. The row must stay unspent, and the gateway must still accept the victim's RESPONSE afterwards.
///
/// The victim's IP address is used only if the data plane sees MAC addresses ([`AttackContext::data_plane_sees_macs`]).
/// A UDP socket cannot distinguish this datagram from the victim's datagram; the victim then gets the session and the ACK.
///
/// # Errors
/// See [`AttackError`].
pub fn from_own_mac(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let mut victim = context.take_controlled_device()?;
    let response = victim.withheld_response(&mut context.link, &mut context.rng)?;
    let before = LineSnapshot::of(context.lines, [victim.id()]);
    let mut counts = AttackCounts::default();
    for number in 0..context.messages_per_attack.min(200) {
        let attacker = attacker_endpoint(number, DEVICE_PORT + (number % 7) as u16);
        let with_victim_ip = linewarden_protocol::frame::write::Endpoint {
            ip: victim.lap_endpoint().ip,
            ..attacker
        };
        for from in std::iter::once(attacker).chain(context.data_plane_sees_macs.then_some(with_victim_ip)) {
            context
                .link
                .send(&from, &gateway_endpoint(Family::V4), &response)?;
            counts.attempts += 1;
        }
    }
    context.link.wait_processed(|_| {})?;
    counts.count_line_changes(&before, context.lines);
    // The same RESPONSE must be valid from the victim's address.
    let ack = victim.deliver(&mut context.link, &response)?;
    if !victim.receive(&ack).is_ok_and(|reaction| reaction.authenticated)
        || before.changes(context.lines).is_empty()
    {
        return Err(AttackError::ControlFailed(
            "the gateway rejects the victim's RESPONSE from its own address",
        ));
    }
    Ok(counts)
}
