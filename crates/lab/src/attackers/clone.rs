//! A clone: a device's identifier, helper data and protocol, all public, with another PUF chip.

use linewarden_protocol::device::PufQuery;
use linewarden_protocol::ids::{RowIndex, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey};
use linewarden_protocol::tag;
use linewarden_protocol::wire::{self, FLAG_BOUND, Message, message_type};
use rand::Rng as _;

use super::attacker_link::{attacker_endpoint, bytes, gateway_endpoint, request};
use super::gateway_lines::LineSnapshot;
use super::{AttackContext, AttackCounts, AttackError};
use crate::address::Family;
use crate::fleet::DEVICE_PORT;

/// Each clone requests a CHALLENGE, reads its own chip, and responds with the derived key, or with a random key if the
/// chip's readings cannot be corrected. The clone ignores that the CHALLENGE's tag does not verify.
///
/// # Errors
/// See [`AttackError`].
pub fn other_chip(context: &mut AttackContext<'_>) -> Result<AttackCounts, AttackError> {
    let mut clones = std::mem::take(&mut context.clones);
    let before = LineSnapshot::of(context.lines, clones.iter().map(|clone| clone.config.device));
    let mut counts = AttackCounts::default();
    for (number, clone) in (0..).zip(&mut clones) {
        let source = attacker_endpoint(number, DEVICE_PORT);
        let to = gateway_endpoint(Family::V4);
        let device = clone.config.device;
        let mut nonce = [0u8; 16];
        context.rng.fill_bytes(&mut nonce);
        let mut challenge = None;
        context
            .link
            .exchange(&source, &to, &request(device, nonce), |received| {
                if let (true, Ok(Message::Challenge(parsed))) =
                    (received.to == source, wire::parse(received.payload))
                {
                    challenge = Some(*parsed);
                }
                challenge.is_some()
            })?;
        let challenge = challenge.ok_or(AttackError::NoChallenge(device))?;

        let query = PufQuery {
            mode: clone.config.mode,
            idx: RowIndex(challenge.idx.get()),
            challenge: challenge.challenge,
        };
        let row_key = clone.row_key(&query).unwrap_or_else(|_| {
            let mut guess = [0u8; 16];
            context.rng.fill_bytes(&mut guess);
            RowKey::from_bytes(guess)
        });
        let key = AuthKey::derive(
            &row_key,
            Suite::SipHash128,
            query.mode,
            query.idx,
            context.gateway,
        );
        let mut response = wire::Response {
            header: wire::Header::new(message_type::RESPONSE, Suite::SipHash128, FLAG_BOUND, device),
            nonce,
            idx: challenge.idx,
            gateway_id: challenge.gateway_id,
            fresh: challenge.fresh,
            tag: [0; 16],
        };
        response.tag = tag::response(&key, &response, &tag::location(Some(source.mac)));
        context.link.send(&source, &to, &bytes(&response))?;
        counts.attempts += 1;
    }
    context.link.wait_processed(|_| {})?;
    counts.count_line_changes(&before, context.lines);
    Ok(counts)
}
