//! Datagrams to the LAP port that are not a device's message, and the order of the checks in `wire::parse`.

use linewarden_protocol::verdict::Verdict::{self, *};
use linewarden_protocol::wire::message_type::{
    ACK, ATTEST_REQUEST, CHALLENGE, DATA_DOWN, DATA_UP, NAK, PROOF, REQUEST, RESPONSE,
};

use super::{Group, Record, group, record};
use crate::support::device::A;
use crate::support::test_config::TestConfig;

/// A REQUEST with one byte changed. The device is installed, so the changed byte decides the verdict.
fn request_with(description: &str, offset: usize, value: u8, verdict: Verdict) -> Record {
    record(
        description,
        |w| w.pool(A, 0, 3),
        move |w| {
            let mut message = w.request(A);
            message[offset] = value;
            A.frame(false).udp(&message)
        },
        verdict,
    )
}

/// A message of the given type and length: a header with length field `length_field`, and zeros.
fn message(kind: u8, length: usize, length_field: u16) -> Vec<u8> {
    let mut bytes = vec![0u8; length.max(16)];
    bytes[..8].copy_from_slice(&[0x4c, 0x57, 1, kind, 1, 0, 0, 0]);
    bytes[6..8].copy_from_slice(&length_field.to_be_bytes());
    bytes[8..16].copy_from_slice(&A.id().0.to_be_bytes());
    bytes.truncate(length);
    bytes
}

fn of_type(description: &str, kind: u8, length: usize, verdict: Verdict) -> Record {
    record(
        format!("{description}, {length} B"),
        |w| w.pool(A, 0, 3),
        move |_| A.frame(false).udp(&message(kind, length, length as u16)),
        verdict,
    )
}

fn lengths() -> Vec<Record> {
    let mut records: Vec<Record> = (0..64)
        .map(|length| {
            record(
                format!("a REQUEST truncated after {length} B"),
                |w| w.pool(A, 0, 3),
                move |w| A.frame(length % 2 == 0).udp(&w.request(A)[..length]),
                DropLength,
            )
        })
        .collect();
    for length in [65, 66, 127, 128, 129, 200, 1400, 2900] {
        records.push(of_type(
            "a REQUEST with further bytes",
            REQUEST,
            length,
            DropLength,
        ));
        records.push(of_type(
            "a RESPONSE with further bytes",
            RESPONSE,
            length,
            DropLength,
        ));
    }
    for length_field in [0, 56, 63, 65, 0x4000, 0xffff] {
        records.push(record(
            format!("a REQUEST with length field {length_field}"),
            |_| {},
            move |_| A.frame(false).udp(&message(REQUEST, 64, length_field)),
            DropLength,
        ));
        records.push(record(
            format!("DATA_UP of 129 B with length field {length_field}"),
            |_| {},
            move |_| A.frame(true).udp(&message(DATA_UP, 129, length_field)),
            DropLength,
        ));
    }
    records
}

fn types() -> Vec<Record> {
    let mut records = vec![
        of_type("CHALLENGE", CHALLENGE, 64, DropDirection),
        of_type("ACK", ACK, 64, DropDirection),
        of_type("NAK", NAK, 64, DropDirection),
        of_type("ATTEST_REQUEST", ATTEST_REQUEST, 64, DropDirection),
        of_type("ATTEST_REQUEST too long", ATTEST_REQUEST, 65, DropLength),
        of_type("PROOF without attestation", PROOF, 96, DropUnsupportedType),
        of_type("PROOF truncated", PROOF, 20, DropLength),
        of_type("PROOF as long as other messages", PROOF, 64, DropLength),
        of_type("PROOF too long", PROOF, 97, DropLength),
        of_type("CHALLENGE too long", CHALLENGE, 65, DropLength),
        of_type("DATA_UP truncated", DATA_UP, 55, DropLength),
    ];
    for length in [56, 57, 64, 127, 128, 129, 1456, 2900] {
        records.push(of_type(
            "DATA_UP while the gate is not sealed",
            DATA_UP,
            length,
            DropGateNotSealed,
        ));
        records.push(of_type("DATA_DOWN", DATA_DOWN, length, DropDirection));
    }
    for kind in [0, 8, 15, 18, 0x80, 0xff] {
        records.push(of_type(&format!("unknown type {kind}"), kind, 64, DropType));
    }
    records
}

fn reserved() -> Vec<Record> {
    let mut records = Vec::new();
    for offset in 32..64 {
        let description = format!("REQUEST, reserved byte {offset} is not zero");
        records.push(request_with(&description, offset, 0x80, DropReserved));
    }
    let body = |kind: u8, offset: usize, verdict: Verdict| {
        record(
            format!("type {kind}, byte {offset} is not zero"),
            |_| {},
            move |_| {
                let mut bytes = message(kind, 64, 64);
                bytes[offset] = 1;
                A.frame(false).udp(&bytes)
            },
            verdict,
        )
    };
    records.extend((21..64).map(|offset| body(NAK, offset, DropReserved)));
    records.extend((16..21).map(|offset| body(NAK, offset, DropDirection)));
    records.extend((34..40).map(|offset| body(DATA_UP, offset, DropReserved)));
    records.extend((34..40).map(|offset| body(DATA_DOWN, offset, DropReserved)));
    records.push(body(DATA_UP, 33, DropGateNotSealed));
    records.push(body(DATA_UP, 40, DropGateNotSealed));
    records
}

fn header() -> Vec<Record> {
    let mut records = vec![
        request_with("magic, first byte", 0, 0x4d, DropMagic),
        request_with("magic, second byte", 1, 0, DropMagic),
        request_with("version 0", 2, 0, DropVersion),
        request_with("version 2", 2, 2, DropVersion),
        request_with("suite 0", 4, 0, DropSuite),
        request_with("suite 2 is not served", 4, 2, DropSuite),
        record(
            "device 0",
            |_| {},
            |w| {
                let mut bytes = w.request(A);
                bytes[8..16].fill(0);
                A.frame(false).udp(&bytes)
            },
            DropDeviceZero,
        ),
        record(
            "a RESPONSE of device 0",
            |_| {},
            |w| {
                let mut bytes = w.response(A).bytes(A);
                bytes[8..16].fill(0);
                A.frame(false).udp(&bytes)
            },
            DropDeviceZero,
        ),
        record(
            "everything wrong: the magic is checked first",
            |_| {},
            |_| A.frame(false).udp(&[0xff; 64]),
            DropMagic,
        ),
    ];
    for bit in 0..8 {
        let flag = 1u8 << bit;
        let description = format!("a REQUEST with flag {flag:#04x}");
        records.push(request_with(&description, 5, flag, DropFlags));
        if flag != 1 {
            records.push(record(
                format!("a RESPONSE with flag {flag:#04x}"),
                |w| w.pool(A, 0, 3),
                move |w| {
                    let mut bytes = w.response(A).bytes(A);
                    bytes[5] |= flag;
                    A.frame(false).udp(&bytes)
                },
                DropFlags,
            ));
        }
    }
    records
}

pub fn groups() -> Vec<Group> {
    let records = [header(), lengths(), types(), reserved()];
    vec![group(TestConfig::OFF, records.into_iter().flatten().collect())]
}
