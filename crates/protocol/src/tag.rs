//! The tags of LAP/1 messages (table in LAP/1 1.2), each as the list of its words.

use subtle::ConstantTimeEq as _;
use zerocopy::IntoBytes as _;

use crate::ids::{DeviceId, GatewayId, RowIndex};
use crate::keys::{AuthKey, SessionKey, halves};
use crate::prf::{f, f_padded, idx_gateway};
use crate::wire::{Ack, AttestRequest, Challenge, Data, Response};

/// Proof that a tag was computed and compared equal; created only in this module.
#[derive(Debug)]
pub struct TagVerified(());

/// Compares two tags in constant time.
#[must_use]
pub fn verify(expected: &[u8; 16], got: &[u8; 16]) -> Option<TagVerified> {
    bool::from(expected.ct_eq(got)).then_some(TagVerified(()))
}

/// The claimed origin of a RESPONSE: the source MAC address and two zero bytes if BOUND, else zero.
#[must_use]
pub fn location(bound_mac: Option<[u8; 6]>) -> [u8; 8] {
    let mut word = [0u8; 8];
    word[..6].copy_from_slice(&bound_mac.unwrap_or_default());
    word
}

/// CHALLENGE.tag = F(auth_key, H0, ID, N0, N1, IG, challenge, fresh).
#[must_use]
pub fn challenge(key: &AuthKey, message: &Challenge, nonce: &[u8; 16]) -> [u8; 16] {
    let [n0, n1] = halves(nonce);
    let ig = idx_gateway(RowIndex(message.idx.get()), GatewayId(message.gateway_id.get()));
    let id = id_word(message.header.device());
    f(
        key.as_bytes(),
        &[
            message.header.h0(),
            id,
            n0,
            n1,
            ig,
            message.challenge,
            message.fresh,
        ],
    )
}

/// RESPONSE.tag = F(auth_key, H0, ID, N0, N1, IG, fresh, loc).
#[must_use]
pub fn response(key: &AuthKey, message: &Response, loc: &[u8; 8]) -> [u8; 16] {
    let [n0, n1] = halves(&message.nonce);
    let ig = idx_gateway(RowIndex(message.idx.get()), GatewayId(message.gateway_id.get()));
    let id = id_word(message.header.device());
    f(
        key.as_bytes(),
        &[message.header.h0(), id, n0, n1, ig, message.fresh, *loc],
    )
}

/// ACK.tag = F(session_key, H0, idx ‖ session_lifetime_s, session_id, seen_ip).
#[must_use]
pub fn ack(key: &SessionKey, message: &Ack) -> [u8; 16] {
    let [ip0, ip1] = halves(&message.seen_ip);
    let mut idx_lifetime = [0u8; 8];
    idx_lifetime[..4].copy_from_slice(message.idx.as_bytes());
    idx_lifetime[4..].copy_from_slice(message.session_lifetime_s.as_bytes());
    f(
        key.as_bytes(),
        &[message.header.h0(), idx_lifetime, message.session_id, ip0, ip1],
    )
}

/// DATA.tag = F(session_key, H0, seq, port ‖ sport ‖ 0, peer, payload padded).
///
/// `peer` is the destination address upwards and the source address downwards; `source_port` is 0 upwards.
#[must_use]
pub fn data(key: &SessionKey, message: &Data, source_port: u16, peer: &[u8; 16], payload: &[u8]) -> [u8; 16] {
    let [peer0, peer1] = halves(peer);
    let mut seq = [0u8; 8];
    seq.copy_from_slice(message.seq.as_bytes());
    let mut ports = [0u8; 8];
    ports[..2].copy_from_slice(message.port.as_bytes());
    ports[2..4].copy_from_slice(&source_port.to_be_bytes());
    f_padded(
        key.as_bytes(),
        &[message.header.h0(), seq, ports, peer0, peer1],
        payload,
    )
}

/// ATTEST_REQUEST.tag = F(session_key or request key, H0, ID, gateway_id ‖ round, nonce, period, salt).
#[must_use]
pub fn attest_request(key: &[u8; 16], message: &AttestRequest) -> [u8; 16] {
    let mut gateway_round = [0u8; 8];
    gateway_round[..4].copy_from_slice(message.gateway_id.as_bytes());
    gateway_round[4..].copy_from_slice(message.round.as_bytes());
    let words = [
        message.header.h0(),
        id_word(message.header.device()),
        gateway_round,
        message.nonce,
        message.period.to_bytes(),
        message.salt,
    ];
    f(key, &words)
}

fn id_word(device: DeviceId) -> [u8; 8] {
    device.0.to_be_bytes()
}
