//! Frames from devices at the sealed gate: which sealed frames are opened and forwarded, and which frames are dropped
//! (LAP/1 1.4.7, 1.4.9).

use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::verdict::Verdict::{self, *};
use linewarden_protocol::wire::LAP_PORT;

use super::{Group, Record, group, record};
use crate::support::device::{A, B, gateway_end, sealed_frame, service_end};
use crate::support::fixture::TestFixture;
use crate::support::test_config::{SESSION_LIFETIME_S, TestConfig};

fn with_session(w: &mut TestFixture) {
    w.pool(A, 0, 4);
    w.open_bound(A, false);
}

fn with_session6(w: &mut TestFixture) {
    w.pool(A, 0, 4);
    w.open_bound(A, true);
}

/// A sealed frame from A to the service, after `change` has modified its headers.
fn sealed(
    w: &TestFixture,
    v6: bool,
    seq: u32,
    payload: &[u8],
    change: impl Fn(FrameBuilder) -> FrameBuilder,
) -> Vec<u8> {
    let to = service_end(v6);
    change(sealed_frame(A, &to)).udp(&w.device_session(A).seal(seq, &to, payload))
}

/// A valid sealed frame from A with this sequence number.
fn valid_sealed(w: &TestFixture, seq: u32) -> Vec<u8> {
    sealed(w, false, seq, b"a measurement", |builder| builder)
}

/// A frame of A in which the sealed message is changed at `offset`.
fn modified(offset: usize, bytes: &'static [u8]) -> impl Fn(&TestFixture) -> Vec<u8> {
    move |w| {
        let to = service_end(false);
        let mut message = w.device_session(A).seal(1, &to, b"a measurement");
        message[offset..offset + bytes.len()].copy_from_slice(bytes);
        sealed_frame(A, &to).udp(&message)
    }
}

/// Valid frames of a live session, with every kind of header.
fn valid() -> Vec<Record> {
    let mut records = Vec::new();
    for v6 in [false, true] {
        let setup = if v6 { with_session6 } else { with_session };
        for tags in 0..=2 {
            for bytes in [0usize, 1, 7, 8, 9, 63, 64, 65, 1400, 1416] {
                let name = format!("{bytes} B, {tags} tags, IPv6 {v6}");
                let payload: Vec<u8> = (0..bytes).map(|index| index as u8).collect();
                let packet = move |w: &TestFixture| {
                    sealed(w, v6, 1, &payload, |builder| {
                        (0..tags).fold(builder, |builder, tag| builder.vlan(7 + tag))
                    })
                };
                records.push(record(name, setup, packet, PassData));
            }
        }
        let padded = move |w: &TestFixture| sealed(w, v6, 1, b"x", |builder| builder.padding(&[0xaa; 9]));
        records.push(record(
            format!("bytes after the packet, IPv6 {v6}"),
            setup,
            padded,
            PassData,
        ));
        let fields = move |w: &TestFixture| sealed(w, v6, 1, b"x", |builder| builder.ip_fields(0xff, 7, 1));
        records.push(record(
            format!("header fields, IPv6 {v6}"),
            setup,
            fields,
            PassData,
        ));
        let wrong_sum = move |w: &TestFixture| {
            let mut frame = sealed(w, v6, 1, b"x", |builder| builder);
            frame[if v6 { 60 } else { 40 }] ^= 0x55;
            frame
        };
        records.push(record(
            format!("a wrong UDP checksum, IPv6 {v6}"),
            setup,
            wrong_sum,
            PassData,
        ));
        let no_sum = move |w: &TestFixture| {
            let mut frame = sealed(w, v6, 1, b"x", |builder| builder);
            let offset = if v6 { 60 } else { 40 };
            frame[offset..offset + 2].fill(0);
            frame
        };
        records.push(record(
            format!("no UDP checksum, IPv6 {v6}"),
            setup,
            no_sum,
            PassData,
        ));
        let to_gateway = move |w: &TestFixture| {
            let mut to = gateway_end(v6);
            to.port = 53;
            sealed_frame(A, &to).udp(&w.device_session(A).seal(1, &to, b"x"))
        };
        records.push(record(
            format!("to the gateway itself, IPv6 {v6}"),
            setup,
            to_gateway,
            PassData,
        ));
    }
    let wrong_ip_sum = |w: &TestFixture| {
        let mut frame = valid_sealed(w, 1);
        frame[24] ^= 1;
        frame
    };
    records.push(record(
        "a wrong IPv4 checksum",
        with_session,
        wrong_ip_sum,
        PassData,
    ));
    records.push(record(
        "another UDP source port and MAC address",
        with_session,
        |w| {
            let to = service_end(false);
            let from = Endpoint {
                mac: B.mac(),
                port: 9,
                ..A.end(false)
            };
            let outer = Endpoint { port: LAP_PORT, ..to };
            FrameBuilder::new(from, outer).udp(&w.device_session(A).seal(1, &to, b"x"))
        },
        PassData,
    ));
    records
}

fn sequence_numbers() -> Vec<Record> {
    let after_numbers = |numbers: &'static [u32]| {
        move |w: &mut TestFixture| {
            with_session(w);
            for seq in numbers {
                let frame = valid_sealed(w, *seq);
                assert_eq!(w.send(&frame), PassData, "{seq}");
            }
        }
    };
    let numbered = |seq: u32| move |w: &TestFixture| valid_sealed(w, seq);
    // With the sequence number on the wire replaced after sealing.
    let with_wire_number = |seq: u64| {
        move |w: &TestFixture| {
            let to = service_end(false);
            let mut message = w.device_session(A).seal(5, &to, b"x");
            message[24..32].copy_from_slice(&seq.to_be_bytes());
            sealed_frame(A, &to).udp(&message)
        }
    };
    let mut records = vec![
        record("number 0", with_session, with_wire_number(0), DropSequence),
        record(
            "number 2^32",
            with_session,
            with_wire_number(1 << 32),
            DropSequence,
        ),
        record(
            "a number with high half of all ones",
            with_session,
            with_wire_number(0xffff_ffff_0000_0005),
            DropSequence,
        ),
        record("number 2^32 - 1", with_session, numbered(u32::MAX), PassData),
        record(
            "number 1, repeated",
            after_numbers(&[1]),
            numbered(1),
            DropSequence,
        ),
        record(
            "number 2^32 - 1, repeated",
            after_numbers(&[u32::MAX]),
            numbered(u32::MAX),
            DropSequence,
        ),
        record(
            "a number that was skipped",
            after_numbers(&[1, 3]),
            numbered(2),
            PassData,
        ),
        record(
            "a number that was skipped and then used",
            after_numbers(&[1, 3, 2]),
            numbered(2),
            DropSequence,
        ),
        record(
            "far ahead",
            after_numbers(&[1, 2, 3]),
            numbered(1_000_000),
            PassData,
        ),
        record(
            "23 behind number 2^32 - 1",
            after_numbers(&[u32::MAX]),
            numbered(u32::MAX - 23),
            PassData,
        ),
        record(
            "24 behind number 2^32 - 1",
            after_numbers(&[u32::MAX]),
            numbered(u32::MAX - 24),
            DropSequence,
        ),
        record(
            "an old number, within the window",
            after_numbers(&[24]),
            numbered(1),
            PassData,
        ),
        record(
            "an old number, outside the window",
            after_numbers(&[25]),
            numbered(1),
            DropSequence,
        ),
    ];
    for (back, verdict) in [
        (1, PassData),
        (22, PassData),
        (23, PassData),
        (24, DropSequence),
        (25, DropSequence),
    ] {
        let name = format!("{back} behind the highest number");
        records.push(record(
            name,
            after_numbers(&[1000]),
            numbered(1000 - back),
            verdict,
        ));
    }
    for ahead in [1, 22, 23, 24, 25] {
        let setup = move |w: &mut TestFixture| {
            after_numbers(&[1000, 999, 990])(w);
            let frame = valid_sealed(w, 1000 + ahead);
            assert_eq!(w.send(&frame), PassData);
        };
        // The record's number 998 is then `ahead` + 2 behind the highest number.
        let verdict = if ahead + 2 > 23 { DropSequence } else { PassData };
        records.push(record(
            format!("a skipped number, after the highest number has risen by {ahead}"),
            setup,
            numbered(998),
            verdict,
        ));
    }
    records
}

fn refused() -> Vec<Record> {
    let to_port = |port: u16| {
        move |w: &TestFixture| {
            let to = Endpoint {
                port,
                ..service_end(false)
            };
            sealed_frame(A, &to).udp(&w.device_session(A).seal(1, &to, b"x"))
        }
    };
    vec![
        record("a modified tag", with_session, modified(55, &[0xa5]), DropTag),
        record("a modified payload", with_session, modified(60, &[0xff]), DropTag),
        record("another port", with_session, modified(32, &[1]), DropTag),
        record("another number", with_session, modified(31, &[9]), DropTag),
        record(
            "another session",
            with_session,
            modified(16, &[0xff; 8]),
            DropSession,
        ),
        record("session 0", with_session, modified(16, &[0; 8]), DropSession),
        record(
            "session 0 without a session",
            |w| {
                w.pool(A, 0, 2);
                w.pool(B, 0, 2);
                w.open_bound(B, false);
            },
            |w| {
                let to = service_end(false);
                let mut message = w.device_session(B).seal(1, &to, b"x");
                message[8..16].copy_from_slice(&A.id().0.to_be_bytes());
                message[16..24].fill(0);
                sealed_frame(A, &to).udp(&message)
            },
            DropSession,
        ),
        record(
            "another device",
            with_session,
            modified(8, &[9; 8]),
            DropUnknownDevice,
        ),
        record("device 0", with_session, modified(8, &[0; 8]), DropDeviceZero),
        record("another suite", with_session, modified(4, &[2]), DropSuite),
        record("a flag", with_session, modified(5, &[1]), DropFlags),
        record("a reserved byte", with_session, modified(39, &[1]), DropReserved),
        record("another version", with_session, modified(2, &[2]), DropGatePort),
        record("another magic", with_session, modified(0, &[0]), DropGatePort),
        record(
            "the type DATA_DOWN",
            with_session,
            modified(3, &[7]),
            DropGatePort,
        ),
        record("the length field", with_session, modified(7, &[0]), DropLength),
        record("to the LAP port", with_session, to_port(LAP_PORT), DropGatePort),
        record("to port 0", with_session, to_port(0), DropGatePort),
        record(
            "to the port of DHCP clients",
            with_session,
            to_port(68),
            DropGateRole,
        ),
        record(
            "to the port of DHCPv6 clients over IPv4",
            with_session,
            to_port(546),
            PassData,
        ),
        record(
            "to the port of DHCPv6 clients",
            with_session6,
            |w| {
                let to = Endpoint {
                    port: 546,
                    ..service_end(true)
                };
                sealed_frame(A, &to).udp(&w.device_session(A).seal(1, &to, b"x"))
            },
            DropGateRole,
        ),
        record(
            "another destination",
            with_session,
            |w| {
                let to = service_end(false);
                let other_endpoint = Endpoint {
                    ip: B.end(false).ip,
                    ..to
                };
                sealed_frame(A, &other_endpoint).udp(&w.device_session(A).seal(1, &to, b"x"))
            },
            DropTag,
        ),
        record(
            "another source address",
            with_session,
            |w| {
                let to = service_end(false);
                sealed_frame(B, &to).udp(&w.device_session(A).seal(1, &to, b"x"))
            },
            DropSource,
        ),
        record(
            "the other IP version",
            with_session,
            |w| sealed(w, true, 1, b"x", |builder| builder),
            DropSource,
        ),
        record(
            "IPv4-mapped addresses in an IPv6 packet",
            with_session,
            |w| {
                let map = |end: Endpoint| match end.ip {
                    std::net::IpAddr::V4(ip) => Endpoint {
                        ip: ip.to_ipv6_mapped().into(),
                        ..end
                    },
                    std::net::IpAddr::V6(_) => end,
                };
                let to = service_end(false);
                let outer = Endpoint { port: LAP_PORT, ..to };
                FrameBuilder::new(map(A.end(false)), map(outer)).udp(&w.device_session(A).seal(1, &to, b"x"))
            },
            DropUnanswerable,
        ),
        record(
            "to a group MAC address",
            with_session,
            |w| {
                let mut frame = valid_sealed(w, 1);
                frame[0] |= 1;
                frame
            },
            DropUnanswerable,
        ),
        record(
            "further bytes in the packet, behind the datagram",
            with_session,
            |w| {
                let mut frame = valid_sealed(w, 1);
                let total = u16::from_be_bytes([frame[16], frame[17]]) + 4;
                frame[16..18].copy_from_slice(&total.to_be_bytes());
                frame.extend_from_slice(b"more");
                frame
            },
            DropLength,
        ),
        record(
            "one zero byte more, which the zero padding under the tag would hide",
            with_session,
            |w| {
                let to = service_end(false);
                let mut message = w.device_session(A).seal(1, &to, b"x");
                message.push(0);
                sealed_frame(A, &to).udp(&message)
            },
            DropLength,
        ),
        record(
            "one zero byte more, with a matching length field",
            with_session,
            |w| {
                let to = service_end(false);
                let mut message = w.device_session(A).seal(1, &to, b"x");
                message.push(0);
                message[7] += 1;
                sealed_frame(A, &to).udp(&message)
            },
            DropTag,
        ),
        record(
            "a UDP length beyond the packet",
            with_session,
            |w| {
                let mut frame = valid_sealed(w, 1);
                frame[39] += 1;
                frame
            },
            DropTruncated,
        ),
    ]
}

/// Sealed frames after the session has ended or changed.
fn ended_sessions() -> Vec<Record> {
    let first_sealed: fn(&TestFixture) -> Vec<u8> = |w| valid_sealed(w, 1);
    vec![
        record(
            "revoked",
            |w| {
                with_session(w);
                w.revoke(A);
            },
            first_sealed,
            DropRevoked,
        ),
        record(
            "the session has expired",
            |w| {
                with_session(w);
                w.advance(SESSION_LIFETIME_S + 1);
            },
            first_sealed,
            DropSessionExpired,
        ),
        record(
            "the session is being replaced",
            |w| {
                with_session(w);
                let frame = A.frame(false).udp(&w.response(A).bound(A.mac()).bytes(A));
                w.interrupted_win(A, &frame);
            },
            first_sealed,
            DropBusy,
        ),
        record(
            "the key of the previous session",
            |w| {
                with_session(w);
                w.open_bound(A, false);
            },
            |w| {
                let response = A.response(&w.response(A).bound(A.mac()).idx(0));
                let previous = crate::support::device::DeviceSession::of(A, w.mode(A), &response);
                let to = service_end(false);
                sealed_frame(A, &to).udp(&previous.seal(1, &to, b"x"))
            },
            DropSession,
        ),
        record(
            "number 1 in the next session",
            |w| {
                with_session(w);
                let frame = valid_sealed(w, 1);
                assert_eq!(w.send(&frame), PassData);
                w.open_bound(A, false);
            },
            first_sealed,
            PassData,
        ),
        record(
            "the old address after the session has moved",
            |w| {
                with_session(w);
                w.open_bound(A, true);
            },
            first_sealed,
            DropSource,
        ),
        record(
            "long after the fresh value expired",
            |w| {
                with_session(w);
                w.advance(60);
            },
            first_sealed,
            PassData,
        ),
    ]
}

/// Frames without a seal, and truncated sealed frames.
fn unsealed() -> Vec<Record> {
    let through = |v6: bool| FrameBuilder::new(A.end(v6), service_end(v6));
    let frames: Vec<(&str, Vec<u8>, Verdict)> = vec![
        ("a datagram", through(false).udp(b"x"), DropGate),
        ("TCP", through(false).ip(6, &[0x50; 20]), DropGate),
        ("ICMP", through(false).ip(1, &[8, 0, 0, 0]), DropGate),
        (
            "neither IP nor ARP",
            through(false).ethernet(0x88cc, &[0; 40]),
            DropGateType,
        ),
        ("ARP", through(false).arp_request(), PassAlways),
        ("a priority tag", through(false).vlan(0).udp(b"x"), DropGate),
        (
            "a tag that is not parsed",
            through(false).tag(0x9100, 7).udp(b"x"),
            DropGateVlan,
        ),
        (
            "a fragment",
            through(false).fragment(0, true).udp(b"x"),
            DropGateFragment,
        ),
        (
            "IPv4 options",
            through(false).options(&[1; 4]).udp(b"x"),
            DropGateExtension,
        ),
        (
            "an extension header",
            through(true).extension(60).udp(b"x"),
            DropGateExtension,
        ),
        (
            "truncated",
            through(false).udp(b"x")[..40].to_vec(),
            DropTruncated,
        ),
        (
            "an empty datagram to the LAP port",
            sealed_frame(A, &service_end(false)).udp(b""),
            DropGatePort,
        ),
        (
            "15 B to the LAP port",
            sealed_frame(A, &service_end(false)).udp(&[0x4c; 15]),
            DropGatePort,
        ),
        (
            "a message of another protocol to the LAP port",
            sealed_frame(A, &service_end(false)).udp(&[0; 64]),
            DropGatePort,
        ),
    ];
    let mut records: Vec<Record> = frames
        .into_iter()
        .map(|(name, frame, verdict)| {
            record(
                format!("unsealed: {name}"),
                with_session,
                move |_| frame.clone(),
                verdict,
            )
        })
        .collect();
    records.push(record(
        "a REQUEST to a host behind the gateway",
        with_session,
        |w| sealed_frame(A, &service_end(false)).udp(&w.request(A)),
        DropGatePort,
    ));
    records.push(record(
        "a REQUEST to the gateway",
        |w| w.pool(A, 0, 2),
        |w| A.frame(false).udp(&w.request(A)),
        ReplyChallenge,
    ));
    records.push(record(
        "DATA of a device without a session to the gateway",
        |w| w.pool(A, 0, 2),
        |_| {
            let mut message = vec![0u8; 56];
            message[..8].copy_from_slice(&[0x4c, 0x57, 1, 6, 1, 0, 0, 56]);
            message[8..16].copy_from_slice(&A.id().0.to_be_bytes());
            message[33] = 7;
            A.frame(false).udp(&message)
        },
        DropSession,
    ));
    // A sealed frame, truncated at every byte.
    records.extend((14..140).map(|length| {
        let packet = move |w: &TestFixture| {
            let mut frame = sealed(w, true, 1, &[5; 22], |builder| builder);
            assert_eq!(frame.len(), 140);
            frame.truncate(length);
            frame
        };
        record(
            format!("truncated after {length} B"),
            with_session6,
            packet,
            DropTruncated,
        )
    }));
    records
}

pub fn groups() -> Vec<Group> {
    let records = [
        valid(),
        sequence_numbers(),
        refused(),
        ended_sessions(),
        unsealed(),
    ];
    vec![group(TestConfig::SEALED, records.into_iter().flatten().collect())]
}
