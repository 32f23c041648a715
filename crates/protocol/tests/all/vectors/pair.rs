//! Test vectors of pairs (LAP/1 1.7.5) in docs/vectors/pair.json: made by the crate. The device in Python (interop)
//! recomputes them with code of its own.

use super::files::compare_or_write;
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::pair::{Pairing, Role, Side};
use serde_json::{Value, json};

fn counting<const N: usize>(from: u8) -> [u8; N] {
    std::array::from_fn(|i| from.wrapping_add(i as u8))
}

fn side(role: Role) -> Side {
    let devices = (DeviceId(0x0102_0304_0506_0708), DeviceId(0x1112_1314_1516_1718));
    let (own, peer) = match role {
        Role::Initiator => devices,
        Role::Responder => (devices.1, devices.0),
    };
    Side {
        pairing: Pairing {
            id: counting(0x20),
            key: counting(0x40),
        },
        role,
        own,
        peer,
    }
}

fn make() -> Value {
    let (initiator, responder) = (side(Role::Initiator), side(Role::Responder));
    let nonce_i = counting(0x80);
    let hello = initiator.hello(&nonce_i);
    let (welcome, mut responder_session) = responder.welcome(&hello, &counting(0xa0)).unwrap();
    let mut initiator_session = initiator.accept_welcome(&nonce_i, &welcome).unwrap();
    let mut out = [0; 200];
    let mut data = Vec::new();
    for (role, session) in [(1, &mut initiator_session), (2, &mut responder_session)] {
        for payload in [&b""[..], b"a payload of some length"] {
            let length = session.seal(payload, &mut out).unwrap();
            data.push(json!({
                "role": role,
                "payload": hex::encode(payload),
                "message": hex::encode(&out[..length]),
            }));
        }
    }
    json!({
        "about": "Pairs of LAP/1 1.7.5. Byte strings are hex in wire order. Written and checked by crates/protocol/tests/all/vectors, recomputed by interop.",
        "initiator": initiator.own.to_string(),
        "responder": initiator.peer.to_string(),
        "pair_id": hex::encode(initiator.pairing.id),
        "key": hex::encode(initiator.pairing.key),
        "hello": hex::encode(hello),
        "welcome": hex::encode(welcome),
        "data": data,
    })
}

#[test]
fn the_file_matches_the_crate() {
    compare_or_write("pair.json", &make());
}
