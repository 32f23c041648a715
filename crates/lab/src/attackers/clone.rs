//! A clone: everything public of a device, its name, its helper data, the protocol, and another chip.

use linewarden_protocol::device::PufQuery;
use linewarden_protocol::ids::{RowIndex, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey};
use linewarden_protocol::tag;
use linewarden_protocol::wire::{self, FLAG_BOUND, Message, message_type};
use rand::Rng as _;

use super::station::{bytes, gateway, own, request};
use super::truth::Snapshot;
use super::{Arena, AttackError, Tally};
use crate::address::Family;
use crate::fleet::DEVICE_PORT;

/// Each clone asks for a CHALLENGE, reads its own chip, and answers with the key that comes out, or with a random one
/// where its chip's readings cannot be corrected. It does not mind that the CHALLENGE's tag does not verify.
///
/// # Errors
/// See [`AttackError`].
pub fn other_chip(arena: &mut Arena<'_>) -> Result<Tally, AttackError> {
    let mut clones = std::mem::take(&mut arena.clones);
    let before = Snapshot::of(arena.truth, clones.iter().map(|clone| clone.config.device));
    let mut tally = Tally::default();
    for (number, clone) in (0..).zip(&mut clones) {
        let me = own(number, DEVICE_PORT);
        let to = gateway(Family::V4);
        let device = clone.config.device;
        let mut nonce = [0u8; 16];
        arena.rng.fill_bytes(&mut nonce);
        let mut challenge = None;
        arena.station.ask(&me, &to, &request(device, nonce), |heard| {
            if let (true, Ok(Message::Challenge(got))) = (heard.to == me, wire::parse(heard.payload)) {
                challenge = Some(*got);
            }
            challenge.is_some()
        })?;
        let challenge = challenge.ok_or(AttackError::Silent(device))?;

        let query = PufQuery {
            mode: clone.config.mode,
            idx: RowIndex(challenge.idx.get()),
            challenge: challenge.challenge,
        };
        let row_key = clone.row_key(&query).unwrap_or_else(|_| {
            let mut guess = [0u8; 16];
            arena.rng.fill_bytes(&mut guess);
            RowKey::from_bytes(guess)
        });
        let key = AuthKey::derive(&row_key, Suite::SipHash128, query.mode, query.idx, arena.gateway);
        let mut response = wire::Response {
            header: wire::Header::new(message_type::RESPONSE, Suite::SipHash128, FLAG_BOUND, device),
            nonce,
            idx: challenge.idx,
            gateway_id: challenge.gateway_id,
            fresh: challenge.fresh,
            tag: [0; 16],
        };
        response.tag = tag::response(&key, &response, &tag::loc(Some(me.mac)));
        arena.station.send(&me, &to, &bytes(&response))?;
        tally.attempts += 1;
    }
    arena.station.settle(|_| {})?;
    tally.judge(&before, arena.truth);
    Ok(tally)
}
