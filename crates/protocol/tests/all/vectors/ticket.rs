//! Test vectors of tickets (LAP/1 1.7) in docs/vectors/ticket.json. The crate makes the vectors, and opens the messages in
//! the file. The device in Python (interop) recomputes the vectors with code of its own.

use super::files::{array_of, compare_or_write, hex_of};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::{RowKey, SessionKey};
use linewarden_protocol::ticket::{
    self, BODY_BYTES_MAX, ChunkAck, Direction, EnrollmentState, EvidenceChunk, Kind, MESSAGE_BYTES_MAX,
    NewRow, Outcome, PlaintextBuffer, RelayAuth, ReportId, SealedTicket, TicketHeader, TicketRoot,
    TicketSession,
};
use serde_json::{Value, json};

const ROW_KEY: [u8; 16] = *b"the row's key 16";
const SESSION_KEY: [u8; 16] = *b"the session's 16";
const SERIAL: u64 = 0x0405_0607;

fn counting<const N: usize>(from: u8) -> [u8; N] {
    std::array::from_fn(|i| from.wrapping_add(i as u8))
}

fn session() -> TicketSession {
    TicketSession {
        suite: Suite::SipHash128,
        device: DeviceId(0x0102_0304_0506_0708),
        gateway: GatewayId(0x0a0b_0c0d),
        idx: RowIndex(0x1122_3344),
        response_tag: counting(0x31),
    }
}

fn make_message(kind: Kind, direction: Direction, body: &[u8]) -> Value {
    let root = TicketRoot::derive(&RowKey::from_bytes(ROW_KEY), &session());
    let header = TicketHeader {
        kind,
        direction,
        session: session(),
        number: 0x0203,
        nonce: counting(0x90),
    };
    let mut out = [0; MESSAGE_BYTES_MAX];
    let key = SessionKey::from_bytes(SESSION_KEY);
    let relay_auth = RelayAuth {
        key: &key,
        serial: SERIAL,
    };
    let length = match direction {
        Direction::Up => ticket::seal_request(&root, &header, &relay_auth, counting(0xc0), body, &mut out),
        Direction::Down => ticket::seal_response(&root, &header, counting(0xc0), body, &mut out),
    }
    .unwrap();
    json!({
        "kind": kind as u8,
        "direction": direction as u8,
        "body": hex::encode(body),
        "message": hex::encode(&out[..length]),
    })
}

fn make() -> Value {
    let mut buffer = [0; BODY_BYTES_MAX];
    let rows: Vec<NewRow> = [1u8, 2]
        .map(|n| NewRow {
            challenge: counting(16 * n),
            row_key: RowKey::from_bytes(counting(n)),
        })
        .to_vec();
    let rows = ticket::write_rows(7, RowIndex(100), &rows, &mut buffer)
        .unwrap()
        .to_vec();
    let key = ticket::write_key(7, &RowKey::from_bytes(counting(9)), &mut buffer)
        .unwrap()
        .to_vec();
    let state = EnrollmentState {
        outcome: Outcome::Done,
        mode: Mode::Pool,
        epoch: 7,
        rows_end: RowIndex(102),
        rows_left: 12,
        number: 0x0203,
    };
    let chunk = EvidenceChunk::new(ReportId(counting(0x60)), 4_096, 1_024, b"evidence")
        .and_then(|chunk| chunk.write(&mut buffer).map(<[u8]>::to_vec))
        .unwrap();
    let chunk_ack = ChunkAck {
        outcome: Outcome::Done,
        received: 1_032,
    };
    json!({
        "about": "Tickets of LAP/1 1.7, suite 1. Byte strings are hex in wire order. Written and checked by crates/protocol/tests/all/vectors, recomputed by interop.",
        "row_key": hex::encode(ROW_KEY),
        "session_key": hex::encode(SESSION_KEY),
        "serial": SERIAL,
        "root": hex::encode(TicketRoot::derive(&RowKey::from_bytes(ROW_KEY), &session()).as_bytes()),
        "messages": [
            make_message(Kind::Status, Direction::Up, b""),
            make_message(Kind::Rows, Direction::Up, &rows),
            make_message(Kind::Key, Direction::Up, &key),
            make_message(Kind::Rows, Direction::Down, &state.to_wire()),
            make_message(Kind::Evidence, Direction::Up, &chunk),
            make_message(Kind::Evidence, Direction::Down, &chunk_ack.to_wire()),
        ],
    })
}

#[test]
fn the_file_matches_the_crate_and_its_messages_open() {
    let file = compare_or_write("ticket.json", &make());
    let row_key = RowKey::from_bytes(array_of(&file, "row_key"));
    for vector in file["messages"].as_array().unwrap() {
        let message = hex_of(vector, "message");
        let sealed = SealedTicket::parse(&message).unwrap();
        let root = TicketRoot::derive(&row_key, &sealed.header().session);
        assert_eq!(hex_of(&file, "root"), root.as_bytes());
        let mut buffer = PlaintextBuffer::default();
        assert_eq!(sealed.open(&root, &mut buffer).unwrap(), hex_of(vector, "body"));
        let serial = sealed.verified_serial(&SessionKey::from_bytes(array_of(&file, "session_key")));
        let is_request = sealed.header().direction == Direction::Up;
        assert_eq!(serial, is_request.then(|| file["serial"].as_u64().unwrap()));
    }
}
