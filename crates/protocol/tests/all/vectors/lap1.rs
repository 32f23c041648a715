//! Test vectors of LAP/1 in docs/vectors/lap1.json: made by the crate, recomputed by independent code.

use super::files::{array_of, compare_or_write, hex_of, number_of};
use super::reference::{hkdf16, siphash_2_4_128};
use linewarden_protocol::data::{self, Channel, Direction, Route, Sequence};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, SessionId, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey, SessionKey};
use linewarden_protocol::wire::{self, FLAG_BOUND, Message, message_type, nak_reason};
use linewarden_protocol::{prf, tag};
use serde_json::{Value, json};
use zerocopy::IntoBytes as _;

const SUITE: Suite = Suite::SipHash128;
const DEVICE: DeviceId = DeviceId(0x0102_0304_0506_0708);
const GATEWAY: GatewayId = GatewayId(0x0a0b_0c0d);
const IDX: RowIndex = RowIndex(0x1122_3344);
const MAC: [u8; 6] = [0x02, 0x11, 0x22, 0x33, 0x44, 0x55];
const SESSION_LIFETIME_S: u32 = 3_600;
const IPV4: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 17];
const IPV6: [u8; 16] = [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x17];

fn counting<const N: usize>(from: u8) -> [u8; N] {
    std::array::from_fn(|i| from.wrapping_add(i as u8))
}

fn auth_key(mode: Mode) -> AuthKey {
    AuthKey::derive(&row_key(mode), SUITE, mode, IDX, GATEWAY)
}

fn row_key(mode: Mode) -> RowKey {
    let (r, digest) = (counting::<32>(0x40), counting::<32>(0x80));
    match mode {
        Mode::Pool => RowKey::for_row(&r, &digest, SUITE, DEVICE, IDX),
        Mode::Key => RowKey::for_device(&r, &digest, SUITE, DEVICE),
    }
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Pool => "pool",
        Mode::Key => "key",
    }
}

/// The complete lap1.json, from the crate.
fn make() -> Value {
    let mut handshakes = Vec::new();
    for mode in [Mode::Pool, Mode::Key] {
        for (bound_mac, seen_ip) in [(Some(MAC), IPV4), (None, IPV4), (Some(MAC), IPV6), (None, IPV6)] {
            handshakes.push(make_handshake(mode, bound_mac, seen_ip));
        }
    }
    let data: Vec<Value> = [0usize, 1, 7, 8, 9, 100]
        .iter()
        .flat_map(|size| {
            [
                make_data(*size, message_type::DATA_UP),
                make_data(*size, message_type::DATA_DOWN),
            ]
        })
        .collect();
    json!({
        "about": "LAP/1, suite 1. Integers are numbers, byte strings are hex in wire order. Written and checked by crates/protocol/tests/all/vectors.",
        "device_id": DEVICE.to_string(),
        "gateway_id": GATEWAY.0,
        "siphash": ([0, 1, 2, 3, 5, 7].map(make_siphash)),
        "keys": ([Mode::Pool, Mode::Key].map(make_keys)),
        "handshakes": handshakes,
        "nak": ([nak_reason::NO_ROWS, nak_reason::STOPPING].map(make_nak)),
        "data": data,
    })
}

fn make_siphash(words: usize) -> Value {
    let key: [u8; 16] = counting(0);
    let input: Vec<[u8; 8]> = (0..words).map(|word| counting((word * 8) as u8)).collect();
    json!({
        "key": hex::encode(key),
        "words": input.iter().map(hex::encode).collect::<Vec<_>>(),
        "output": hex::encode(prf::f(&key, &input)),
    })
}

fn make_keys(mode: Mode) -> Value {
    json!({
        "mode": mode_name(mode),
        "r": hex::encode(counting::<32>(0x40)),
        "helper_digest": hex::encode(counting::<32>(0x80)),
        "idx": IDX.0,
        "row_key": hex::encode(row_key(mode).as_bytes()),
        "auth_key": hex::encode(auth_key(mode).as_bytes()),
    })
}

fn make_handshake(mode: Mode, bound_mac: Option<[u8; 6]>, seen_ip: [u8; 16]) -> Value {
    let header = |kind, flags| wire::Header::new(kind, SUITE, flags, DEVICE);
    let key = auth_key(mode);
    let request = wire::Request {
        header: header(message_type::REQUEST, 0),
        nonce: counting(0xa0),
        reserved: [0; 32],
    };
    let mut challenge = wire::Challenge {
        header: header(message_type::CHALLENGE, 0),
        idx: IDX.0.into(),
        gateway_id: GATEWAY.0.into(),
        challenge: if mode == Mode::Pool {
            counting(0xc0)
        } else {
            [0; 8]
        },
        fresh: counting(0xf0),
        nonce_echo: request.nonce[..8].try_into().unwrap(),
        tag: [0; 16],
    };
    challenge.tag = tag::challenge(&key, &challenge, &request.nonce);
    let flags = if bound_mac.is_some() { FLAG_BOUND } else { 0 };
    let mut response = wire::Response {
        header: header(message_type::RESPONSE, flags),
        nonce: request.nonce,
        idx: IDX.0.into(),
        gateway_id: GATEWAY.0.into(),
        fresh: challenge.fresh,
        tag: [0; 16],
    };
    response.tag = tag::response(&key, &response, &tag::location(bound_mac));
    let session_key = SessionKey::derive(&key, SUITE, &response.tag);
    let mut ack = wire::Ack {
        header: header(message_type::ACK, 0),
        idx: IDX.0.into(),
        session_lifetime_s: SESSION_LIFETIME_S.into(),
        session_id: response.tag[..8].try_into().unwrap(),
        tag: [0; 16],
        seen_ip,
    };
    ack.tag = tag::ack(&session_key, &ack);
    json!({
        "mode": mode_name(mode),
        "source_mac": bound_mac.map(hex::encode),
        "auth_key": hex::encode(key.as_bytes()),
        "request": hex::encode(request.as_bytes()),
        "challenge": hex::encode(challenge.as_bytes()),
        "response": hex::encode(response.as_bytes()),
        "session_key": hex::encode(session_key.as_bytes()),
        "ack": hex::encode(ack.as_bytes()),
    })
}

fn make_nak(reason: u8) -> Value {
    let nak = wire::Nak {
        header: wire::Header::new(message_type::NAK, SUITE, 0, DEVICE),
        idx: IDX.0.into(),
        reason,
        reserved: [0; 43],
    };
    json!({ "reason": reason, "message": hex::encode(nak.as_bytes()) })
}

fn make_data(payload_bytes: usize, kind: u8) -> Value {
    let payload: Vec<u8> = (0..payload_bytes).map(|i| (i * 7 + 3) as u8).collect();
    let key = SessionKey::from_bytes(counting(0x55));
    let channel = Channel {
        suite: SUITE,
        device: DEVICE,
        session: SessionId::from_wire(counting(0x60)).unwrap(),
        addr: counting(0x30),
        key: &key,
    };
    let (source_port, peer) = match kind {
        message_type::DATA_UP => (0, IPV4),
        _ => (40_000, IPV6),
    };
    let (direction, route) = match kind {
        message_type::DATA_UP => (
            Direction::Up,
            Route {
                source: channel.addr,
                destination: peer,
            },
        ),
        _ => (
            Direction::Down { source_port },
            Route {
                source: peer,
                destination: channel.addr,
            },
        ),
    };
    let seq = Sequence::from_wire(payload_bytes as u64 + 1).unwrap();
    let mut message = vec![0; wire::DATA_HEADER_BYTES + payload_bytes];
    data::seal(&channel, direction, seq, 8_080, &route, &payload, &mut message).unwrap();
    json!({
        "payload_bytes": payload_bytes,
        "session_key": hex::encode(key.as_bytes()),
        "source_port": source_port,
        "peer": hex::encode(peer),
        "message": hex::encode(message),
    })
}

#[test]
fn the_file_matches_the_crate_and_independent_code() {
    let file = compare_or_write("lap1.json", &make());
    let list = |name: &str| file[name].as_array().unwrap().clone();
    list("siphash").iter().for_each(check_siphash);
    let device_id: [u8; 8] = array_of(&file, "device_id");
    let gateway_id = (number_of(&file, "gateway_id") as u32).to_be_bytes();
    for keys in list("keys") {
        check_keys(&keys, &device_id, &gateway_id);
    }
    list("handshakes").iter().for_each(check_handshake);
    list("nak").iter().for_each(check_nak);
    list("data").iter().for_each(check_data);
}

/// From here on the only code of the crate is `wire::parse`, to check that `wire::parse` accepts every vector.
fn check_siphash(vector: &Value) {
    let words: Vec<u8> = vector["words"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|word| hex::decode(word.as_str().unwrap()).unwrap())
        .collect();
    assert_eq!(
        siphash_2_4_128(&array_of(vector, "key"), &words),
        array_of(vector, "output")
    );
}

fn check_keys(vector: &Value, device_id: &[u8], gateway_id: &[u8]) {
    let idx = (number_of(vector, "idx") as u32).to_be_bytes();
    let is_pool_mode = vector["mode"] == "pool";
    let mut info = if is_pool_mode {
        b"lap1 row".to_vec()
    } else {
        b"lap1 device".to_vec()
    };
    info.push(1);
    info.extend_from_slice(device_id);
    if is_pool_mode {
        info.extend_from_slice(&idx);
    }
    let row_key = hkdf16(&hex_of(vector, "r"), &hex_of(vector, "helper_digest"), &info);
    assert_eq!(row_key, array_of(vector, "row_key"));
    let mut words = vec![0, 0, 1, 1, 1, 0, 0, 0];
    words.extend_from_slice(if is_pool_mode { &idx } else { &[0; 4] });
    words.extend_from_slice(gateway_id);
    assert_eq!(siphash_2_4_128(&row_key, &words), array_of(vector, "auth_key"));
}

fn check_handshake(vector: &Value) {
    let auth_key = array_of(vector, "auth_key");
    let [request, challenge, response, ack] =
        ["request", "challenge", "response", "ack"].map(|name| hex_of(vector, name));
    for (message, kind) in [(&request, 1), (&challenge, 2), (&response, 3), (&ack, 4)] {
        assert_eq!(message.len(), 64);
        let flags = u8::from(kind == 3 && !vector["source_mac"].is_null());
        assert_eq!(message[..8], [0x4c, 0x57, 1, kind, 1, flags, 0, 64]);
        assert!(wire::parse(message).is_ok());
    }
    let nonce = &request[16..32];
    assert!(request[32..].iter().all(|byte| *byte == 0));

    // Input of the CHALLENGE's tag: H0, ID, N0, N1, IG, challenge, fresh.
    assert_eq!(challenge[40..48], nonce[..8]);
    let words = [&challenge[..16], nonce, &challenge[16..40]].concat();
    assert_eq!(siphash_2_4_128(&auth_key, &words), challenge[48..]);

    // Input of the RESPONSE's tag: H0, ID, N0, N1, IG, fresh, loc.
    assert_eq!(response[16..32], *nonce);
    assert_eq!(response[32..40], challenge[16..24], "the same row and gateway");
    assert_eq!(response[40..48], challenge[32..40], "the same fresh");
    let mut loc = match &vector["source_mac"] {
        Value::Null => vec![0; 6],
        _ => hex_of(vector, "source_mac"),
    };
    loc.extend([0; 2]);
    let words = [&response[..48], &loc].concat();
    let tag = siphash_2_4_128(&auth_key, &words);
    assert_eq!(tag, response[48..]);

    // Input of the session key: L(2), RESPONSE.tag.
    let session_key = siphash_2_4_128(&auth_key, &[&[0, 0, 1, 2, 1, 0, 0, 0], &tag[..]].concat());
    assert_eq!(session_key, array_of(vector, "session_key"));

    // Input of the ACK's tag: H0, idx‖session_lifetime_s, session_id, seen_ip.
    assert_eq!(ack[16..20], challenge[16..20]);
    assert_eq!(ack[24..32], tag[..8]);
    let words = [&ack[..8], &ack[16..32], &ack[48..64]].concat();
    assert_eq!(siphash_2_4_128(&session_key, &words), ack[32..48]);
}

fn check_nak(vector: &Value) {
    let message = hex_of(vector, "message");
    assert_eq!(message[..8], [0x4c, 0x57, 1, 5, 1, 0, 0, 64]);
    assert_eq!(u64::from(message[20]), number_of(vector, "reason"));
    assert!(message[21..].iter().all(|byte| *byte == 0) && message.len() == 64);
    assert!(matches!(wire::parse(&message), Ok(Message::Nak(_))));
}

/// Input of a DATA message's tag: H0, seq, port‖sport‖0, peer, payload padded with zeros to a multiple of 8 bytes.
fn check_data(vector: &Value) {
    let message = hex_of(vector, "message");
    assert!(wire::parse(&message).is_ok());
    let payload = &message[56..];
    assert_eq!(payload.len() as u64, number_of(vector, "payload_bytes"));
    let source_port = (number_of(vector, "source_port") as u16).to_be_bytes();
    let mut words = [&message[..8], &message[24..34], &source_port, &[0; 4]].concat();
    words.extend_from_slice(&hex_of(vector, "peer"));
    words.extend_from_slice(payload);
    words.resize(words.len().next_multiple_of(8), 0);
    let tag = siphash_2_4_128(&array_of(vector, "session_key"), &words);
    assert_eq!(tag, message[40..56]);
}
