//! Altered, moved and repeated tickets, and the formats of their bodies.

use alloc::vec::Vec;

use proptest::prelude::*;

use crate::pair::{Pairing, Role};

use super::*;

fn ticket_session() -> TicketSession {
    TicketSession {
        suite: Suite::SipHash128,
        device: DeviceId(0x0102_0304_0506_0708),
        gateway: GatewayId(9),
        idx: RowIndex(77),
        response_tag: [0xa5; 16],
    }
}

fn root() -> TicketRoot {
    TicketRoot::derive(&RowKey::from_bytes([3; 16]), &ticket_session())
}

fn header() -> TicketHeader {
    TicketHeader {
        kind: Kind::Rows,
        direction: Direction::Up,
        session: ticket_session(),
        number: 12,
        nonce: [0x5a; 16],
    }
}

fn sealed(root: &TicketRoot, header: &TicketHeader, body: &[u8]) -> Vec<u8> {
    let mut out = [0; MESSAGE_BYTES_MAX];
    let key = SessionKey::from_bytes(SESSION_KEY);
    let relay_auth = RelayAuth { key: &key, serial: 5 };
    let sealed = match header.direction {
        Direction::Up => seal_request(root, header, &relay_auth, [8; 24], body, &mut out),
        Direction::Down => seal_response(root, header, [8; 24], body, &mut out),
    };
    out[..sealed.unwrap()].to_vec()
}

const SESSION_KEY: [u8; 16] = [0x2c; 16];

fn proven_serial(message: &[u8], key: [u8; 16]) -> Option<u64> {
    SealedTicket::parse(message)
        .ok()?
        .verified_serial(&SessionKey::from_bytes(key))
}

fn opens(root: &TicketRoot, message: &[u8]) -> Result<Vec<u8>, TicketError> {
    let mut buffer = PlaintextBuffer::default();
    Ok(SealedTicket::parse(message)?.open(root, &mut buffer)?.to_vec())
}

#[test]
fn a_ticket_opens_as_it_was_sealed_and_hides_its_body() {
    let message = sealed(&root(), &header(), b"the body");
    assert_eq!(message.len(), OVERHEAD_BYTES + 8 + RELAY_AUTH_BYTES);
    assert!(!message.windows(8).any(|window| window == b"the body"));
    assert_eq!(*SealedTicket::parse(&message).unwrap().header(), header());
    assert_eq!(opens(&root(), &message).unwrap(), b"the body");
}

#[test]
fn every_flipped_bit_and_every_other_length_is_refused() {
    let message = sealed(&root(), &header(), &[7; 48]);
    for bit in 0..message.len() * 8 {
        let mut flipped = message.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(proven_serial(&flipped, SESSION_KEY), None, "bit {bit}");
        // The bytes after the AEAD's tag are for the gateway, and are not verified by the controller.
        let is_of_controller = bit / 8 < message.len() - RELAY_AUTH_BYTES;
        assert_eq!(opens(&root(), &flipped).is_err(), is_of_controller, "bit {bit}");
    }
    for length in 0..message.len() {
        assert!(opens(&root(), &message[..length]).is_err(), "cut to {length}");
    }
    let longer = [&message[..], &[0]].concat();
    assert_eq!(opens(&root(), &longer), Err(TicketError::Malformed));
}

#[test]
fn only_the_session_key_proves_a_request_to_its_gateway() {
    let message = sealed(&root(), &header(), b"body");
    assert_eq!(proven_serial(&message, SESSION_KEY), Some(5));
    assert_eq!(proven_serial(&message, [0x2d; 16]), None);
    let response = sealed(&root(), &header().response_header(), b"body");
    assert_eq!(proven_serial(&response, SESSION_KEY), None);
}

#[test]
fn a_message_with_another_header_does_not_open() {
    let body = sealed(&root(), &header(), b"body")[HEADER_BYTES..].to_vec();
    let others = [
        header().response_header(),
        TicketHeader {
            kind: Kind::Key,
            ..header()
        },
        TicketHeader {
            number: 13,
            ..header()
        },
        TicketHeader {
            nonce: [0; 16],
            ..header()
        },
        TicketHeader {
            session: TicketSession {
                device: DeviceId(5),
                ..ticket_session()
            },
            ..header()
        },
    ];
    for other in others {
        // The format is valid, so the AEAD rejects the message.
        let mut moved = sealed(&root(), &other, b"body")[..HEADER_BYTES].to_vec();
        moved.extend(&body);
        if other.direction == Direction::Down {
            let length = moved.len() as u16;
            moved[6..8].copy_from_slice(&length.to_be_bytes());
        }
        assert_eq!(
            opens(&root(), &moved),
            Err(TicketError::NotAuthentic),
            "{other:?}"
        );
    }
}

#[test]
fn a_root_depends_on_each_of_its_inputs() {
    let key = RowKey::from_bytes([3; 16]);
    let message = sealed(&root(), &header(), b"body");
    let others = [
        TicketSession {
            device: DeviceId(5),
            ..ticket_session()
        },
        TicketSession {
            gateway: GatewayId(10),
            ..ticket_session()
        },
        TicketSession {
            idx: RowIndex(78),
            ..ticket_session()
        },
        TicketSession {
            response_tag: [0xa4; 16],
            ..ticket_session()
        },
    ];
    for other in others {
        let root = TicketRoot::derive(&key, &other);
        assert_eq!(
            opens(&root, &message),
            Err(TicketError::NotAuthentic),
            "{other:?}"
        );
    }
    let other = TicketRoot::derive(&RowKey::from_bytes([4; 16]), &ticket_session());
    assert_eq!(opens(&other, &message), Err(TicketError::NotAuthentic));
}

#[test]
fn malformed_headers_are_rejected() {
    let message = sealed(&root(), &header(), b"body");
    // Magic, version, kind, suite, direction, device 0, session 0.
    let malformed_fields: [(usize, &[u8]); 7] = [
        (0, b"LW"),
        (2, &[2]),
        (3, &[9]),
        (4, &[2]),
        (5, &[3]),
        (8, &[0; 8]),
        (24, &[0; 8]),
    ];
    for (at, bytes) in malformed_fields {
        let mut malformed = message.clone();
        malformed[at..at + bytes.len()].copy_from_slice(bytes);
        assert_eq!(
            SealedTicket::parse(&malformed).unwrap_err(),
            TicketError::Malformed,
            "at {at}"
        );
    }
}

#[test]
fn the_longest_body_fits_and_one_byte_more_does_not() {
    let mut out = [0; MESSAGE_BYTES_MAX + 1];
    let full = [1; BODY_BYTES_MAX + 1];
    let key = SessionKey::from_bytes(SESSION_KEY);
    let relay_auth = RelayAuth { key: &key, serial: 1 };
    assert_eq!(
        seal_request(&root(), &header(), &relay_auth, [0; 24], &full[1..], &mut out),
        Ok(MESSAGE_BYTES_MAX)
    );
    assert!(opens(&root(), &out[..MESSAGE_BYTES_MAX]).is_ok());
    let result = seal_request(&root(), &header(), &relay_auth, [0; 24], &full, &mut out);
    assert_eq!(result, Err(TicketError::TooLong { bytes: full.len() }));
    let mut short = [0; OVERHEAD_BYTES + RELAY_AUTH_BYTES];
    assert!(seal_request(&root(), &header(), &relay_auth, [0; 24], b"1", &mut short).is_err());
    let mut short = [0; OVERHEAD_BYTES];
    assert!(seal_response(&root(), &header(), [0; 24], b"1", &mut short).is_err());
}

fn row(n: u8) -> NewRow {
    NewRow {
        challenge: [n; 8],
        row_key: RowKey::from_bytes([n | 1; 16]),
    }
}

#[test]
fn bodies_are_decoded_as_they_were_encoded() {
    let mut buffer = [0; BODY_BYTES_MAX];
    let rows: Vec<NewRow> = (0..ROWS_PER_MESSAGE as u8).map(row).collect();
    let body = write_rows(5, RowIndex(100), &rows, &mut buffer).unwrap();
    let Ok(TicketRequest::Rows {
        epoch: 5,
        first: RowIndex(100),
        rows: read,
    }) = TicketRequest::parse(Kind::Rows, body)
    else {
        panic!("not read")
    };
    assert_eq!(read.iter().map(NewRow::from_wire).collect::<Vec<_>>(), rows);
    assert!(write_rows(5, RowIndex(1), &[], &mut buffer).is_none());
    let too_many: Vec<NewRow> = (0..=ROWS_PER_MESSAGE as u8).map(row).collect();
    assert!(write_rows(5, RowIndex(1), &too_many, &mut buffer).is_none());

    let body = write_key(6, &RowKey::from_bytes([1; 16]), &mut buffer).unwrap();
    let parsed = TicketRequest::parse(Kind::Key, body);
    assert!(matches!(parsed, Ok(TicketRequest::Key { epoch: 6, key }) if key == RowKey::from_bytes([1; 16])));
    assert!(matches!(
        TicketRequest::parse(Kind::Status, b""),
        Ok(TicketRequest::Status)
    ));
    for (kind, lengths) in [
        (Kind::Status, &[1, 24][..]),
        (Kind::Rows, &[0, 7, 8, 31, 33]),
        (Kind::Key, &[0, 19, 21]),
        (Kind::Pair, &[0, 7, 9]),
        (Kind::Evidence, &[0, 16, 23]),
    ] {
        for length in lengths {
            assert!(
                TicketRequest::parse(kind, &buffer[..*length]).is_err(),
                "{kind:?} of {length} B"
            );
        }
    }
}

#[test]
fn a_chunk_is_within_its_document() {
    let bytes = [7; CHUNK_BYTES_MAX + 1];
    let chunk =
        |total, offset, length: usize| EvidenceChunk::new(ReportId([1; 16]), total, offset, &bytes[..length]);
    assert!(chunk(1, 0, 1).is_some());
    assert!(chunk(EVIDENCE_BYTES_MAX, EVIDENCE_BYTES_MAX - 9, 9).is_some());
    assert!(chunk(EVIDENCE_BYTES_MAX, 0, CHUNK_BYTES_MAX).is_some());
    for (total, offset, length) in [
        (0, 0, 0),
        (1, 0, 0),
        (1, 1, 0),
        (1, 1, 1),
        (9, 5, 5),
        (9, u32::MAX, 9),
        (EVIDENCE_BYTES_MAX + 1, 0, 9),
        (EVIDENCE_BYTES_MAX, 0, CHUNK_BYTES_MAX + 1),
    ] {
        assert_eq!(
            chunk(total, offset, length),
            None,
            "{length} B at {offset} of {total}"
        );
    }
    let empty = alloc::format!("{}", ReportId::of_document(b""));
    assert_eq!(empty, "e3b0c44298fc1c149afbf4c8996fb924");
}

proptest! {
    #[test]
    fn a_chunk_is_decoded_as_it_was_encoded(
        id: [u8; 16],
        total in 0..=EVIDENCE_BYTES_MAX + 1,
        offset in 0..=EVIDENCE_BYTES_MAX,
        bytes in proptest::collection::vec(any::<u8>(), 0..=CHUNK_BYTES_MAX),
    ) {
        let written = [&id[..], &total.to_be_bytes(), &offset.to_be_bytes(), &bytes].concat();
        let read = EvidenceChunk::parse(&written);
        let is_within = !bytes.is_empty() && total <= EVIDENCE_BYTES_MAX && offset as usize + bytes.len() <= total as usize;
        prop_assert_eq!(read.is_ok(), is_within);
        if let Ok(chunk) = read {
            prop_assert_eq!((chunk.report(), chunk.total(), chunk.offset()), (ReportId(id), total, offset));
            prop_assert_eq!(chunk.bytes(), &bytes);
            let mut buffer = [0; BODY_BYTES_MAX];
            prop_assert_eq!(chunk.write(&mut buffer), Some(&written[..]));
            let message = sealed(&root(), &TicketHeader { kind: Kind::Evidence, ..header() }, &written);
            let body = opens(&root(), &message).unwrap();
            prop_assert!(matches!(TicketRequest::parse(Kind::Evidence, &body), Ok(TicketRequest::Evidence(opened)) if opened == chunk));
        }
    }

    #[test]
    fn a_chunk_acknowledgment_is_decoded_as_it_was_encoded(received in 0..=EVIDENCE_BYTES_MAX, outcome_index in 0usize..3) {
        let outcome = [Outcome::Done, Outcome::OutOfSequence, Outcome::Refused][outcome_index];
        let chunk_ack = ChunkAck { outcome, received };
        let wire = chunk_ack.to_wire();
        prop_assert_eq!(ChunkAck::parse(&wire), Ok(chunk_ack));
        for at in 0..5 {
            let mut malformed = wire;
            malformed[at] = 0xff;
            prop_assert!(ChunkAck::parse(&malformed).is_err());
        }
        let old = ChunkAck { outcome: Outcome::StaleNumber, received };
        prop_assert!(ChunkAck::parse(&old.to_wire()).is_err());
        prop_assert!(ChunkAck::parse(&wire[1..]).is_err());
    }

    #[test]
    fn any_input_is_parsed_or_refused(bytes: Vec<u8>, body: Vec<u8>) {
        let _ = opens(&root(), &bytes);
        let mut wire = sealed(&root(), &header(), b"");
        wire.extend(&bytes);
        let _ = opens(&root(), &wire);
        for kind in Kind::ALL {
            let _ = TicketRequest::parse(*kind, &body);
        }
        let _ = EnrollmentState::parse(&body);
        let _ = PairResponse::parse(&body);
        let _ = ChunkAck::parse(&body);
    }

    #[test]
    fn a_pair_response_is_decoded_as_it_was_encoded(id: [u8; 16], key: [u8; 32], lifetime_s: u32, peer: u64, addr: [u8; 16]) {
        let paired = PairResponse {
            peer: DeviceId(peer),
            pair: Some((Pairing { id, key }, Role::Responder)),
            lifetime_s,
            addr,
        };
        let wire = paired.to_wire();
        let read = PairResponse::parse(&wire);
        let is_valid = peer != 0 && lifetime_s != 0 && key != [0; 32];
        prop_assert_eq!(read.ok(), is_valid.then_some(paired));
        for at in 0..4 {
            let mut malformed = wire;
            malformed[at] = 9;
            prop_assert!(PairResponse::parse(&malformed).is_err());
        }
        prop_assert!(PairResponse::parse(&wire[1..]).is_err());
        let none = PairResponse { peer: DeviceId(peer | 1), pair: None, lifetime_s: 0, addr: [0; 16] };
        prop_assert_eq!(PairResponse::parse(&none.to_wire()), Ok(none));
    }

    #[test]
    fn an_enrollment_state_is_decoded_as_it_was_encoded(epoch: u32, rows_end: u32, rows_left: u32, number: u64, is_pool_mode: bool, outcome_index in 0usize..4) {
        let outcomes = [Outcome::Done, Outcome::StaleNumber, Outcome::OutOfSequence, Outcome::Refused];
        let state = EnrollmentState {
            outcome: outcomes[outcome_index],
            mode: if is_pool_mode { crate::ids::Mode::Pool } else { crate::ids::Mode::Key },
            epoch,
            rows_end: RowIndex(rows_end),
            rows_left,
            number,
        };
        let wire = state.to_wire();
        prop_assert_eq!(EnrollmentState::parse(&wire), Ok(state));
        for at in 0..4 {
            let mut malformed = wire;
            malformed[at] = 9;
            prop_assert!(EnrollmentState::parse(&malformed).is_err());
        }
        prop_assert!(EnrollmentState::parse(&wire[1..]).is_err());
    }
}
