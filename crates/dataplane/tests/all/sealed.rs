//! The sealed gate of `xdp` against the oracle: every payload length in both directions, which frames leave towards a
//! device, sequence numbers, and several CPUs with the same sequence number.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, RwLock};

use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{Admission as _, Devices as _};
use linewarden_protocol::data::{self, Direction, Route};
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::frame::{ip_bytes, parse};
use linewarden_protocol::gateway::ControlProtocol;
use linewarden_protocol::ids::{Mode, RowIndex};
use linewarden_protocol::keys::SessionKey;
use linewarden_protocol::verdict::Verdict::{self, *};
use linewarden_protocol::wire::{self, Message};

use crate::support::RunningFlag;
use crate::support::device::{A, B, DeviceSession, gateway_end, sealed_frame, service_end};
use crate::support::fixture::attest::round;
use crate::support::fixture::{TestFixture, load_xdp};
use crate::support::test_config::{DHCP_SERVER, DHCP_SERVER6, SESSION_LIFETIME_S, TestConfig};

/// The maximum payload of a sealed IPv4 packet of 1,500 bytes.
const PAYLOAD_BYTES_MAX: usize = 1416;

/// A sealed gate at which A has a session.
fn sealed_fixture(v6: bool) -> TestFixture {
    let mut fixture = TestFixture::new(TestConfig::SEALED);
    fixture.pool(A, 0, 4);
    fixture.open_bound(A, v6);
    fixture
}

fn payload(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index * 7 + bytes) as u8).collect()
}

fn from_service(v6: bool) -> FrameBuilder {
    FrameBuilder::new(service_end(v6), A.end(v6))
}

/// Opens a sealed frame like a device; returns sequence number, port field and payload.
fn open(session: &DeviceSession, frame: &[u8]) -> (u32, u16, Vec<u8>) {
    let (ip, udp) = parse(frame).unwrap().datagram().unwrap();
    let Ok(Message::DataDown(message, payload)) = wire::parse(&frame[udp.payload()]) else {
        panic!("no DATA_DOWN");
    };
    let direction = Direction::Down {
        source_port: udp.src_port,
    };
    let route = Route {
        source: ip_bytes(ip.src),
        destination: ip_bytes(ip.dst),
    };
    let channel = session.channel(ip.dst.is_ipv6());
    let opened = data::open(&channel, direction, &route, message, payload).unwrap();
    (opened.seq().0.get(), opened.port(), payload.to_vec())
}

#[test]
fn every_length_is_opened_and_sealed_like_the_oracle() {
    for v6 in [false, true] {
        let mut fixture = sealed_fixture(v6);
        let session = fixture.device_session(A);
        let tagged = |builder: FrameBuilder, tags: usize| {
            (0..tags).fold(builder, |builder, tag| builder.vlan(7 + tag as u16))
        };
        for bytes in 0..=PAYLOAD_BYTES_MAX {
            let (tags, seq, to) = (bytes % 3, bytes as u32 + 1, service_end(v6));
            let sealed = session.seal(seq, &to, &payload(bytes));
            let frame = tagged(sealed_frame(A, &to), tags).udp(&sealed);
            let (verdict, plain) = fixture.send_for_reply(&frame);
            assert_eq!(verdict, PassData, "{bytes} B up");
            let expected = tagged(FrameBuilder::new(A.end(v6), to), tags).udp(&payload(bytes));
            assert_eq!(plain, expected, "{bytes} B up");

            let plain = tagged(from_service(v6), tags);
            let (verdict, frame) = fixture.send_down(&plain.udp(&payload(bytes)));
            assert_eq!(verdict, PassSealed, "{bytes} B down");
            assert_eq!(open(&session, &frame), (seq, A.end(v6).port, payload(bytes)));
        }
    }
}

/// A description, a frame towards a device, and the expected verdict.
type DownCase = (&'static str, Vec<u8>, Verdict);

/// A frame to A's address with hop limit 255, which shows that it has passed no router.
fn on_link(from: &str) -> FrameBuilder {
    let from = Endpoint {
        ip: from.parse().unwrap(),
        ..service_end(true)
    };
    FrameBuilder::new(from, A.end(true)).ip_fields(0, 0, 255)
}

/// Frames that pass a sealed gate towards devices without a seal, and frames that resemble them.
fn unsealed_cases() -> Vec<DownCase> {
    let to = |from: &str, to: &str| {
        let end = |ip: &str| Endpoint {
            ip: ip.parse().unwrap(),
            ..service_end(true)
        };
        FrameBuilder::new(end(from), end(to)).ip_fields(0, 0, 255)
    };
    let advertisement = |options: usize| {
        let prefix = [[3, 4, 64, 0xc0].as_slice(), &[0; 28]].concat();
        [&[0; 12][..], &prefix.repeat(options)].concat()
    };
    let solicitation = |options: usize| [&[0; 20][..], &[14, 1, 0, 0, 0, 0, 0, 0].repeat(options)].concat();
    let dhcp = |from: &str, dst: &str, (src_port, dst_port)| {
        let end = |ip: &str, port| Endpoint {
            ip: ip.parse().unwrap(),
            port,
            ..service_end(true)
        };
        FrameBuilder::new(end(from, src_port), end(dst, dst_port)).udp(&[2; 300])
    };
    vec![
        (
            "a router advertisement to all",
            to("fe80::1", "ff02::1").icmpv6(134, &advertisement(3)),
            PassAlways,
        ),
        (
            "a router advertisement with sixteen options",
            to("fe80::1", "ff02::1").icmpv6(134, &advertisement(16)),
            PassAlways,
        ),
        (
            "a router advertisement with seventeen options",
            to("fe80::1", "ff02::1").icmpv6(134, &advertisement(17)),
            DropUnsealed,
        ),
        (
            "a router advertisement from a routed address",
            to("fd66::fe", "ff02::1").icmpv6(134, &advertisement(1)),
            DropUnsealed,
        ),
        (
            "a router advertisement of 15 B",
            to("fe80::1", "ff02::1").icmpv6(134, &[0; 11]),
            DropUnsealed,
        ),
        (
            "a router advertisement that passed a router",
            to("fe80::1", "ff02::1")
                .ip_fields(0, 0, 254)
                .icmpv6(134, &advertisement(1)),
            DropUnsealed,
        ),
        (
            "a neighbor solicitation from the gateway",
            to("fd66::fe", "fd66::1:7").icmpv6(135, &solicitation(1)),
            PassAlways,
        ),
        (
            "a neighbor solicitation from another network",
            to("fd77::9", "fd66::1:7").icmpv6(135, &solicitation(1)),
            DropUnsealed,
        ),
        (
            "a neighbor solicitation with nine options",
            to("fe80::1", "ff02::1:ff00:7").icmpv6(135, &solicitation(9)),
            DropUnsealed,
        ),
        (
            "DHCPv6 on the link",
            dhcp("fe80::1", "fe80::7", (547, 546)),
            PassAlways,
        ),
        (
            "DHCPv6 from the gateway",
            dhcp("fd66::fe", "fe80::7", (547, 546)),
            PassAlways,
        ),
        (
            "DHCPv6 from another network",
            dhcp("fd77::10", "fe80::7", (547, 546)),
            DropSession,
        ),
        ("DHCP", dhcp("10.77.0.8", "10.66.77.77", (67, 68)), PassAlways),
        (
            "LLDP",
            to("fe80::1", "ff02::1").ethernet(0x88cc, &[0; 46]),
            DropUnsealed,
        ),
        (
            "a membership report",
            to("fe80::1", "ff02::16").ip(0, &report()),
            DropGateExtension,
        ),
    ]
}

/// An MLD report behind a router alert.
fn report() -> Vec<u8> {
    [&[58, 0, 5, 2, 0, 0, 1, 0, 143][..], &[0; 27]].concat()
}

#[test]
fn only_exact_control_messages_pass_unsealed_towards_a_device() {
    let mut fixture = sealed_fixture(false);
    for (name, frame, verdict) in unsealed_cases() {
        assert_eq!(fixture.send_down(&frame).0, verdict, "{name}");
    }
    // Neighbor advertisements: first with two prefixes of the devices, then with a part of a /64.
    for (prefixes, from, to, verdict) in [
        (
            ["fd66::/64", "fd66:0:0:1::/64"],
            "fd66:0:0:1::9",
            "fd66::1:7",
            PassAlways,
        ),
        (
            ["fd66::/64", "fd66:0:0:1::/64"],
            "fd77::9",
            "fd66::1:7",
            DropUnsealed,
        ),
        (
            ["fd66::1:0/112", "fd99::/64"],
            "fd66::2:1",
            "fd66::1:7",
            PassAlways,
        ),
        (["fd66::1:0/112", "fd99::/64"], "fd77::9", "fd77::8", DropUnsealed),
    ] {
        fixture.move_devices(&prefixes);
        let end = |ip: &str| Endpoint {
            ip: ip.parse().unwrap(),
            ..service_end(true)
        };
        let frame = FrameBuilder::new(end(from), end(to))
            .ip_fields(0, 0, 255)
            .icmpv6(136, &[0; 20]);
        assert_eq!(
            fixture.send_down(&frame).0,
            verdict,
            "{from} to {to}, device prefixes {prefixes:?}"
        );
    }
    let mut fixture = TestFixture::new(TestConfig {
        lists: true,
        ..TestConfig::SEALED
    });
    let dhcp_reply = |from: IpAddr| {
        let v6 = from.is_ipv6();
        let (src, dst) = if v6 { (547, 546) } else { (67, 68) };
        let from = Endpoint {
            ip: from,
            port: src,
            ..service_end(v6)
        };
        FrameBuilder::new(
            from,
            Endpoint {
                port: dst,
                ..B.end(v6)
            },
        )
        .udp(&[2; 300])
    };
    for (from, verdict) in [
        (DHCP_SERVER, PassAlways),
        (DHCP_SERVER6, PassAlways),
        (gateway_end(false).ip, PassAlways),
        ([10, 77, 0, 8].into(), DropSession),
    ] {
        assert_eq!(fixture.send_down(&dhcp_reply(from)).0, verdict, "{from}");
    }
    for protocol in ControlProtocol::ALL {
        for (mac, ether_type) in protocol.addresses() {
            let to = Endpoint {
                mac: *mac,
                ..A.end(false)
            };
            let builder = FrameBuilder::new(service_end(false), to);
            let frame = builder.ethernet(if *ether_type == 0 { 46 } else { *ether_type }, &[0; 46]);
            assert_eq!(fixture.send_down(&frame).0, PassAlways, "{}", protocol.name());
        }
    }
}

fn sealed_or_dropped_cases(v6: bool) -> Vec<DownCase> {
    let reply = || from_service(v6);
    let ports = |from: u16, to: u16| {
        let (mut source, mut target) = (service_end(v6), A.end(v6));
        (source.port, target.port) = (from, to);
        FrameBuilder::new(source, target).udp(&[1; 30])
    };
    // `offset` is that of an IPv4 frame.
    let changed = |offset: usize, bits: u8| {
        let mut frame = reply().udp(b"reading");
        frame[offset + if v6 { 20 } else { 0 }] ^= bits;
        frame
    };
    let attest_request = |from: Endpoint, offset: usize, bits: u8| {
        let mut request =
            zerocopy::IntoBytes::as_bytes(&round(4, 1).request(B.id(), &SessionKey::from_bytes([7; 16])))
                .to_vec();
        request[offset] ^= bits;
        FrameBuilder::new(from, B.end(v6)).udp(&request)
    };
    let other_endpoint = Endpoint {
        port: 20_551,
        ..gateway_end(v6)
    };
    let (server_port, client_port) = if v6 { (547, 546) } else { (67, 68) };
    let mut cases = vec![
        ("a datagram", reply().udp(b"reading"), PassSealed),
        ("padded", reply().padding(&[0xaa; 20]).udp(b"reading"), PassSealed),
        (
            "header fields",
            reply().ip_fields(0xff, 7, 1).udp(b"x"),
            PassSealed,
        ),
        ("a wrong UDP checksum", changed(40, 0x10), PassSealed),
        (
            "a DHCP server",
            ports(server_port, client_port),
            // A DHCPv6 server behind the gateway would have to be listed.
            if v6 { PassSealed } else { PassAlways },
        ),
        ("a DHCP client", ports(client_port, server_port), PassSealed),
        (
            "from the LAP port to the LAP port",
            ports(20_550, 20_550),
            PassSealed,
        ),
        (
            "to a device without a session",
            FrameBuilder::new(service_end(v6), B.end(v6)).udp(b"x"),
            DropSession,
        ),
        (
            "an ATTEST_REQUEST from the gateway",
            attest_request(gateway_end(v6), 63, 0),
            PassAlways,
        ),
        (
            "an ATTEST_REQUEST with another type",
            attest_request(gateway_end(v6), 3, 1),
            DropSession,
        ),
        (
            "an ATTEST_REQUEST with another length",
            attest_request(gateway_end(v6), 7, 1),
            DropSession,
        ),
        (
            "an ATTEST_REQUEST from a service",
            attest_request(service_end(v6), 63, 0),
            DropSession,
        ),
        (
            "an ATTEST_REQUEST from another port of the gateway",
            attest_request(other_endpoint, 63, 0),
            DropSession,
        ),
        ("TCP", reply().ip(6, &[0x50; 20]), DropUnsealed),
        ("ICMP", reply().ip(1, &[3, 4, 0, 0]), DropUnsealed),
        ("ARP", reply().arp_request(), PassAlways),
        (
            "neither IP nor ARP",
            reply().ethernet(0x88cc, &[0; 40]),
            DropUnsealed,
        ),
        (
            "three tags",
            reply().vlan(1).vlan(2).vlan(3).udp(b"x"),
            DropUnsealed,
        ),
        (
            "a fragment",
            reply().fragment(0, true).udp(b"x"),
            DropGateFragment,
        ),
        (
            "truncated",
            {
                let mut frame = reply().udp(b"x");
                frame.pop();
                frame
            },
            DropTruncated,
        ),
        ("a UDP length that is too short", changed(39, 8), DropTruncated),
        (
            "further bytes in the packet, behind the datagram",
            {
                let mut frame = reply().udp(b"reading");
                let length_at = if v6 { 18 } else { 16 };
                let length = u16::from_be_bytes([frame[length_at], frame[length_at + 1]]) + 4;
                frame[length_at..length_at + 2].copy_from_slice(&length.to_be_bytes());
                frame.extend_from_slice(b"more");
                frame
            },
            DropLength,
        ),
        (
            "IPv4 options or an IPv6 extension header",
            if v6 {
                reply().extension(60).udp(b"x")
            } else {
                reply().options(&[1; 4]).udp(b"x")
            },
            DropGateExtension,
        ),
    ];
    if v6 {
        cases.extend((130..140).map(|kind| {
            let passes = (133..=136).contains(&kind);
            let verdict = if passes { PassAlways } else { DropUnsealed };
            let body = match kind {
                133 => 4,
                134 => 12,
                _ => 20,
            };
            (
                "ICMPv6",
                on_link("fe80::1").icmpv6(kind, &[0; 20][..body]),
                verdict,
            )
        }));
        cases.extend((130..140).map(|kind| {
            (
                "ICMPv6, from another network",
                reply().icmpv6(kind, &[0; 20]),
                DropUnsealed,
            )
        }));
    } else {
        let mut without_checksum = reply().udp(b"reading");
        without_checksum[40..42].fill(0);
        cases.push(("no UDP checksum", without_checksum, PassSealed));
        cases.push(("a wrong IPv4 checksum", changed(24, 1), PassSealed));
    }
    cases
}

#[test]
fn frames_towards_a_device_are_sealed_or_dropped() {
    for v6 in [false, true] {
        let mut fixture = sealed_fixture(v6);
        for (name, frame, verdict) in sealed_or_dropped_cases(v6) {
            assert_eq!(fixture.send_down(&frame).0, verdict, "{name}, IPv6 {v6}");
        }
    }
}

/// An operation that ends or moves a session, and the verdict for a frame to the device afterwards.
type EndCase = (fn(&mut TestFixture), Verdict);

#[test]
fn nothing_is_sent_to_a_session_that_is_not_live() {
    let ends: [EndCase; 5] = [
        (|fixture| fixture.revoke(A), DropSession),
        (
            |fixture| fixture.advance(SESSION_LIFETIME_S + 1),
            DropSessionExpired,
        ),
        (|fixture| fixture.wipe(A), DropSession),
        (
            |fixture| {
                let frame = A.frame(false).udp(&fixture.response(A).bound(A.mac()).bytes(A));
                fixture.interrupted_win(A, &frame);
            },
            DropSession,
        ),
        // The session moves to IPv6; the frame goes to its old address.
        (|fixture| fixture.open_bound(A, true), DropSession),
    ];
    for (end_session, verdict) in ends {
        let mut fixture = sealed_fixture(false);
        assert_eq!(fixture.send_down(&from_service(false).udp(b"x")).0, PassSealed);
        end_session(&mut fixture);
        assert_eq!(fixture.send_down(&from_service(false).udp(b"x")).0, verdict);
    }
}

#[test]
fn sequence_numbers_towards_a_device_restart_with_a_new_session() {
    let mut fixture = sealed_fixture(false);
    let frame = from_service(false).udp(b"x");
    fixture.set_down(A, u64::from(u32::MAX) - 1);
    assert_eq!(fixture.send_down(&frame).0, PassSealed);
    for _ in 0..3 {
        assert_eq!(fixture.send_down(&frame).0, DropExhausted);
    }
    fixture.open_bound(A, false);
    let (verdict, sealed) = fixture.send_down(&frame);
    assert_eq!(verdict, PassSealed);
    assert_eq!(open(&fixture.device_session(A), &sealed).0, 1);
}

/// A separate `xdp` data plane with a session of A in key mode.
fn xdp_with_session() -> (Xdp, DeviceSession) {
    let mut xdp = load_xdp(&TestConfig::SEALED.config());
    let row = linewarden_dataplane::Row {
        challenge: A.challenge(Mode::Key, RowIndex(0)),
        auth_key: A.auth_key(Mode::Key, RowIndex(0)),
    };
    xdp.install(A.id(), Mode::Key, RowIndex(0), &[row], None).unwrap();
    refresh(&mut xdp);
    let session = open_session(&xdp, 0);
    (xdp, session)
}

/// Sets the fresh value again, so that it does not expire.
fn refresh(xdp: &mut Xdp) {
    xdp.set_fresh(
        FRESH,
        crate::support::fixture::real_now().monotonic_ms * 1_000_000,
    );
}

const FRESH: [u8; 8] = [9; 8];

/// The session that A opens with its RESPONSE `idx`.
fn open_session(xdp: &Xdp, idx: u32) -> DeviceSession {
    let response = A.response(&crate::support::device::Response {
        mode: Mode::Key,
        idx,
        gateway: crate::support::device::GATEWAY,
        fresh: FRESH,
        bound: Some(A.mac()),
        nonce: [1; 16],
    });
    let frame = A.frame(false).udp(zerocopy::IntoBytes::as_bytes(&response));
    assert_eq!(xdp.test_run(&frame).unwrap().action, 3);
    DeviceSession::of(A, Mode::Key, &response)
}

/// Several threads send frames with the same sequence numbers, and send frames to the same device. Each number is
/// accepted exactly one time, and used exactly one time towards the device.
#[test]
fn several_cpus_accept_and_use_no_sequence_number_twice() {
    const THREADS: u32 = 4;
    const NUMBERS: u32 = 400;
    let (xdp, session) = xdp_with_session();
    let to = Endpoint {
        port: 7,
        ..service_end(false)
    };
    let passed: Vec<AtomicU64> = (0..=NUMBERS).map(|_| AtomicU64::new(0)).collect();
    let used: Vec<AtomicU64> = (0..=NUMBERS * THREADS).map(|_| AtomicU64::new(0)).collect();
    let barrier = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for seq in 1..=NUMBERS {
                    let frame = sealed_frame(A, &to).udp(&session.seal(seq, &to, b"x"));
                    barrier.wait();
                    if xdp.test_run(&frame).unwrap().action == 2 {
                        passed[seq as usize].fetch_add(1, Ordering::Relaxed);
                    }
                    let run = xdp.test_seal(&from_service(false).udp(b"y"), 1).unwrap();
                    let (number, ..) = open(&session, &run.frame);
                    used[number as usize].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let are_all_one = |counts: &[AtomicU64]| {
        counts
            .iter()
            .skip(1)
            .all(|count| count.load(Ordering::Relaxed) == 1)
    };
    assert!(
        are_all_one(&passed),
        "several packets with one number have passed, or none has"
    );
    assert!(are_all_one(&used), "a number was used several times or never");
}

/// The session is renewed while other threads send frames in both directions, and its generation wraps around. Each
/// sealed message opens under the key of the session that it names; no sequence number occurs twice in a session.
#[test]
fn renewals_during_traffic_use_no_sequence_number_twice_under_one_key() {
    const RENEWALS: u32 = 2_000;
    let (xdp, first_session) = xdp_with_session();
    let xdp = RwLock::new(xdp);
    let sessions = Mutex::new(vec![first_session]);
    let (sealed, passed) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let (is_running, packets) = (AtomicBool::new(true), AtomicU64::new(0));
    let to = service_end(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _running_flag = RunningFlag(&is_running);
            for idx in 1..=RENEWALS {
                // On a busy machine, the fresh value would otherwise expire before the last renewal.
                if idx % 100 == 0 {
                    refresh(&mut xdp.write().unwrap());
                }
                // Waits until a few packets were sent in each session.
                while is_running.load(Ordering::Acquire)
                    && packets.load(Ordering::Acquire) < 3 * u64::from(idx)
                {
                    std::thread::yield_now();
                }
                let session = open_session(&xdp.read().unwrap(), idx);
                sessions.lock().unwrap().push(session);
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let _running_flag = RunningFlag(&is_running);
                let mut seq = 0;
                while is_running.load(Ordering::Acquire) {
                    let xdp = xdp.read().unwrap();
                    let run = xdp.test_seal(&from_service(false).udp(b"y"), 1).unwrap();
                    if run.action == u32::MAX {
                        sealed.lock().unwrap().push(run.frame);
                    }
                    packets.fetch_add(1, Ordering::AcqRel);
                    let session = sessions.lock().unwrap().last().unwrap().clone();
                    seq = seq % 40 + 1;
                    let frame = sealed_frame(A, &to).udp(&session.seal(seq, &to, b"x"));
                    if xdp.test_run(&frame).unwrap().action == 2 {
                        passed.lock().unwrap().push((session.id.to_wire(), seq));
                    }
                }
            });
        }
    });
    let sessions = sessions.into_inner().unwrap();
    let by_id: BTreeMap<_, _> = sessions
        .iter()
        .map(|session| (session.id.to_wire(), session))
        .collect();
    let sealed = sealed.into_inner().unwrap();
    let numbers: BTreeSet<_> = sealed
        .iter()
        .map(|frame| {
            let id: [u8; 8] = frame[42 + 16..42 + 24].try_into().unwrap();
            (id, open(by_id[&id], frame).0)
        })
        .collect();
    assert_eq!(
        numbers.len(),
        sealed.len(),
        "sequence numbers of {RENEWALS} sessions"
    );
    let passed = passed.into_inner().unwrap();
    let distinct: BTreeSet<_> = passed.iter().collect();
    assert_eq!(distinct.len(), passed.len());
    println!("{} sealed, {} opened", sealed.len(), passed.len());
}
