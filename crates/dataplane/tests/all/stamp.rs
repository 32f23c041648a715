//! Evidence in the packets that pass the gate of `xdp`. `linewarden_evidence` must create the same bytes for the same
//! packet, and its appraiser must accept the evidence. Needs root.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use linewarden_dataplane::xdp::{TestRun, Xdp};
use linewarden_dataplane::{
    Admission as _, Devices as _, Evidence as _, Row, STAMP_LIFETIME_NS, Stamp, StampCounts, Telemetry as _,
};
use linewarden_evidence::inband::{
    Appraiser, CarriedEvidence, Counter, MasterKey, PacketEvidenceError, Stamper, Template, read_option,
};
use linewarden_evidence::state::{Digests, Snapshot};
use linewarden_evidence::{BootCount, Digest, Sequence, SwitchId};
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::ids::{Mode, RowIndex};
use linewarden_protocol::verdict::Verdict;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use zerocopy::IntoBytes as _;

use crate::support::device::{
    self, DeviceSession, Response, TestDevice, UNKNOWN, gateway_end, sealed_frame, service_end,
};
use crate::support::fixture::{load_xdp, real_now};
use crate::support::netns::{ip, leave_namespace};
use crate::support::test_config::TestConfig;

const FRESH: [u8; 8] = [9; 8];
/// `XDP_DROP`, `XDP_PASS`, `XDP_TX`.
const DROP: u32 = 1;
const PASS: u32 = 2;
const TX: u32 = 3;
/// How many bytes the evidence adds to a packet.
const GROWTH: usize = 104;

fn snapshot(sequence: u64) -> Snapshot {
    let digest = |n: u64| Digest([(n * 16 + sequence % 16) as u8; 32]);
    Snapshot {
        switch: SwitchId(0x0102_0304),
        boot_count: BootCount(6),
        sequence: Sequence(sequence),
        digests: Digests {
            program: digest(1),
            tables: digest(2),
            registers: digest(3),
        },
    }
}

fn master() -> MasterKey {
    MasterKey::new([0x5a; 16])
}

fn key(snapshot: &Snapshot) -> linewarden_evidence::inband::EvidenceKey {
    master().key(snapshot.switch, snapshot.boot_count)
}

fn now_ns() -> u64 {
    real_now().monotonic_ms * 1_000_000
}

fn stamp(sequence: u64) -> Stamp {
    let snapshot = snapshot(sequence);
    Stamp {
        template: Template::new(&key(&snapshot), &snapshot),
        until_ns: now_ns() + STAMP_LIFETIME_NS,
    }
}

/// Device 1 has a session without a VLAN tag, device 2 behind one tag, device 3 behind two.
fn device(tags: usize) -> TestDevice {
    TestDevice(1 + tags as u16)
}

fn tagged(builder: FrameBuilder, tags: usize) -> FrameBuilder {
    let types = [0x88a8, 0x8100];
    (0..tags).fold(builder, |builder, tag| {
        builder.tag(types[2 - tags + tag], 7 + tag as u16)
    })
}

/// A frame from the device with this number of tags to a service.
fn frame(tags: usize) -> FrameBuilder {
    tagged(FrameBuilder::new(device(tags).end(true), service_end(true)), tags)
}

fn load(test_config: TestConfig) -> (Xdp, Vec<DeviceSession>) {
    let mut xdp = load_xdp(&test_config.config());
    xdp.set_fresh(FRESH, now_ns());
    let sessions = (0..3).map(|tags| open(&mut xdp, tags)).collect();
    (xdp, sessions)
}

fn open(xdp: &mut Xdp, tags: usize) -> DeviceSession {
    let device = device(tags);
    let row = Row {
        challenge: device.challenge(Mode::Key, RowIndex(0)),
        auth_key: device.auth_key(Mode::Key, RowIndex(0)),
    };
    xdp.install(device.id(), Mode::Key, RowIndex(0), &[row], None)
        .unwrap();
    let response = device.response(&Response {
        mode: Mode::Key,
        idx: 0,
        gateway: device::GATEWAY,
        fresh: FRESH,
        bound: Some(device.mac()),
        nonce: [1; 16],
    });
    let frame = tagged(device.frame(true), tags).udp(response.as_bytes());
    assert_eq!(xdp.test_run(&frame).unwrap().action, TX);
    DeviceSession::of(device, Mode::Key, &response)
}

fn bound_gate() -> TestConfig {
    TestConfig {
        inband_evidence: true,
        ..TestConfig::BOUND
    }
}

fn counts(xdp: &Xdp) -> StampCounts {
    xdp.stamp_counts().unwrap().unwrap()
}

fn carried(frame: &[u8]) -> CarriedEvidence {
    read_option(frame).unwrap().expect("the frame contains evidence")
}

fn counter(frame: &[u8]) -> Counter {
    carried(frame).content.counter
}

/// The frame after the evidence crate has added evidence to it.
fn expected(frame: &[u8], counter: Counter) -> Vec<u8> {
    let snapshot = snapshot(1);
    let mut front = Vec::new();
    let mut stamper = Stamper::new(key(&snapshot), &snapshot);
    let consumed = stamper.stamp(frame, counter, &mut front).unwrap();
    [&front, &frame[consumed..]].concat()
}

/// A random packet that the gate passes: TCP, UDP, ICMPv6, ESP, SCTP or others, with or without tags and padding.
fn packet(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let tags = rng.random_range(0..3);
    let mut target = service_end(true);
    target.ip = std::net::Ipv6Addr::from(0xfd77_u128 << 112 | rng.random::<u128>() >> 16).into();
    // Packets for a DHCP client never pass.
    target.port = match rng.random_range(1..1000) {
        546 => 1000,
        port => port,
    };
    let mut builder = tagged(FrameBuilder::new(device(tags).end(true), target), tags).ip_fields(
        rng.random(),
        0,
        rng.random(),
    );
    let bytes = match rng.random_range(0..4) {
        0 => rng.random_range(0..9),
        _ => rng.random_range(0..1100),
    };
    let mut body = vec![0; bytes];
    rng.fill(&mut body[..]);
    if rng.random_range(0..4) == 0 {
        let bytes = if body.is_empty() { 6 } else { 40 };
        builder = builder.padding(&vec![0xaa; bytes]);
    }
    match rng.random_range(0..6) {
        0 | 1 => builder.udp(&body),
        2 => builder.icmpv6(128 + rng.random_range(0..2), &body),
        _ => {
            let protocols = [1, 6, 6, 50, 132, 4, 47, 59, 89, 255];
            builder.ip(protocols[rng.random_range(0..protocols.len())], &body)
        }
    }
}

#[test]
fn packets_get_the_same_evidence_as_from_the_evidence_crate() {
    let seed = crate::support::number("LINEWARDEN_SEED", 1);
    println!("LINEWARDEN_SEED={seed}");
    let (xdp, _) = load(bound_gate());
    xdp.set_stamp(Some(&stamp(1)));
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut appraiser, mut last_frame) = (Appraiser::new(master()), Vec::new());
    for number in 1..=2000 {
        let before = packet(&mut rng);
        let run = xdp.test_run(&before).unwrap();
        assert_eq!(run.action, PASS, "{}", hex::encode(&before));
        let evidence_counter = counter(&run.frame);
        assert_eq!(
            hex::encode(&run.frame),
            hex::encode(expected(&before, evidence_counter))
        );
        let appraisal = appraiser.appraise(&carried(&run.frame), &snapshot(1).digests);
        let appraisal = appraisal.unwrap();
        assert_eq!(
            (appraisal.counter(), *appraisal.snapshot()),
            (Counter(number), snapshot(1))
        );
        last_frame = run.frame;
    }
    assert_eq!(counts(&xdp).stamped, 2000);
    assert_refusals(&mut appraiser, &last_frame);
}

/// Checks that the appraiser refuses a repeated packet, altered packets, and packets that attest another state.
fn assert_refusals(appraiser: &mut Appraiser, frame: &[u8]) {
    let known = snapshot(1).digests;
    assert!(matches!(
        appraiser.appraise(&carried(frame), &known),
        Err(PacketEvidenceError::Replayed(_))
    ));
    let ip_start = frame.windows(2).position(|type_| type_ == [0x86, 0xdd]).unwrap() + 2;
    // A byte of the destination address, of the source address, and of the counter.
    for offset in [39, 20, 40 + 87] {
        let mut altered = frame.to_vec();
        altered[ip_start + offset] ^= 1;
        let appraisal = Appraiser::new(master()).appraise(&carried(&altered), &known);
        assert_eq!(appraisal, Err(PacketEvidenceError::InvalidTag), "byte {offset}");
    }
    let appraisal = Appraiser::new(master()).appraise(&carried(frame), &snapshot(2).digests);
    assert!(matches!(
        appraisal,
        Err(PacketEvidenceError::DigestMismatch { .. })
    ));
    let appraisal = Appraiser::new(MasterKey::new([1; 16])).appraise(&carried(frame), &known);
    assert_eq!(appraisal, Err(PacketEvidenceError::InvalidTag));
}

/// Runs the program on a frame; returns the verdict and the resulting frame.
#[track_caller]
fn run(xdp: &Xdp, frame: &[u8]) -> (Verdict, TestRun) {
    let before = xdp.counters().unwrap();
    let run = xdp.test_run(frame).unwrap();
    let after = xdp.counters().unwrap();
    let counted: Vec<_> = after.since(&before).nonzero().collect();
    let [(verdict, 1)] = counted[..] else {
        panic!("the frame has not exactly one verdict: {counted:?}");
    };
    (verdict, run)
}

/// A description, a frame, and the expected verdict.
type Case = (&'static str, Vec<u8>, Verdict);

/// A packet whose hop-by-hop header contains evidence.
fn with_option(builder: FrameBuilder) -> Vec<u8> {
    expected(&builder.udp(b"reading"), Counter(99))
}

/// Frames to which no evidence is added.
fn other_frames() -> Vec<Case> {
    let v4 = FrameBuilder::new(device(0).end(false), service_end(false));
    let unknown = FrameBuilder::new(UNKNOWN.end(true), service_end(true));
    let gateway = Endpoint {
        port: 80,
        ..gateway_end(true)
    };
    let discovery = FrameBuilder::new(device(0).end(true), gateway).ip_fields(0, 0, 255);
    let icmp = |kind| discovery.icmpv6(kind, &[0; 20]);
    let link_local = Endpoint {
        ip: [0xfe80, 0, 0, 0, 0, 0, 0, 1].into(),
        ..device(0).end(true)
    };
    let report_group = Endpoint {
        ip: [0xff02, 0, 0, 0, 0, 0, 0, 0x16].into(),
        ..service_end(true)
    };
    let report = FrameBuilder::new(link_local, report_group)
        .ip_fields(0, 0, 1)
        .ip(0, &[&[58, 0, 5, 2, 0, 0, 1, 0, 143][..], &[0; 7]].concat());
    vec![
        ("IPv4", v4.udp(b"reading"), Verdict::PassSession),
        ("ARP", v4.arp_request(), Verdict::PassAlways),
        (
            "of another Ethernet type",
            v4.ethernet(0x88cc, &[0; 46]),
            Verdict::PassSession,
        ),
        ("three tags", tagged(frame(1), 2).udp(b"x"), Verdict::DropGateVlan),
        ("neighbor discovery", icmp(135), Verdict::PassAlways),
        ("a membership report", report, Verdict::PassSession),
        (
            "to the gateway itself",
            FrameBuilder::new(device(0).end(true), gateway).udp(b"x"),
            Verdict::PassSession,
        ),
        ("from another host", unknown.udp(b"x"), Verdict::DropGate),
        (
            "evidence from the device",
            with_option(frame(0)),
            Verdict::DropGateExtension,
        ),
        (
            "evidence from another host",
            with_option(unknown),
            Verdict::DropGateExtension,
        ),
        (
            "another extension",
            frame(0).extension(60).udp(b"x"),
            Verdict::DropGateExtension,
        ),
        (
            "a fragment",
            frame(0).fragment(0, true).udp(b"x"),
            Verdict::DropGateFragment,
        ),
    ]
}

/// The frame with tags of these types added; the first type is the outermost.
fn with_tags(types: &[u16], frame: &[u8]) -> Vec<u8> {
    let (addresses, rest) = frame.split_at(12);
    let tags = types.iter().flat_map(|tag| [tag.to_be_bytes(), [0, 1]].concat());
    addresses
        .iter()
        .copied()
        .chain(tags)
        .chain(rest.iter().copied())
        .collect()
}

/// Clones that carry evidence, which only a gate with evidence in packets drops.
fn clones() -> Vec<(&'static str, Vec<u8>)> {
    let clone = |builder: FrameBuilder| builder.ethernet(0x5241, &[0; 152]);
    vec![
        ("a clone", clone(frame(0))),
        ("a clone behind a tag", clone(frame(1))),
    ]
}

/// Evidence behind tags that no gate parses, where the evidence crate would still find it.
fn hidden_evidence() -> Vec<(&'static str, Vec<u8>)> {
    let clone = |builder: FrameBuilder| builder.ethernet(0x5241, &[0; 152]);
    vec![
        (
            "a clone behind a tag of type 0x9100",
            clone(frame(0).tag(0x9100, 1)),
        ),
        (
            "a clone behind a tag of type 0x9200",
            with_tags(&[0x9200], &clone(frame(0))),
        ),
        (
            "evidence behind a tag of type 0x9300",
            with_tags(&[0x9300], &with_option(frame(0))),
        ),
        (
            "evidence behind three tags",
            with_tags(&[0x9100, 0x8100, 0x8100], &with_option(frame(0))),
        ),
        (
            "evidence behind a tag of type 0x9100",
            with_option(frame(0).tag(0x9100, 1)),
        ),
        (
            "a routing header behind a tag of type 0x9100",
            frame(0).tag(0x9100, 1).extension(43).udp(b"x"),
        ),
    ]
}

#[test]
fn other_frames_get_no_evidence_and_received_evidence_is_dropped() {
    let (xdp, _) = load(bound_gate());
    let (without_evidence, _) = load(TestConfig::BOUND);
    assert_eq!(without_evidence.stamp_counts().unwrap(), None);
    xdp.set_stamp(Some(&stamp(1)));
    for (name, frame, verdict) in other_frames() {
        for data_plane in [&xdp, &without_evidence] {
            let (got, run) = run(data_plane, &frame);
            assert_eq!(got, verdict, "{name}");
            assert_eq!(run.action == PASS, (verdict as u8) < 16, "{name}");
            assert_eq!(run.frame, frame, "{name}: the frame was changed");
        }
    }
    assert_eq!((counts(&xdp).stamped, counts(&xdp).not_ipv6), (0, 2));
    // The membership report gets no evidence, because it already has a hop-by-hop header.
    assert_eq!(counts(&xdp).unfit, 1);
    for (name, frame) in clones() {
        let (verdict, stamped) = run(&xdp, &frame);
        assert_eq!(
            (verdict, stamped.action),
            (Verdict::DropGateExtension, DROP),
            "{name}"
        );
        assert_eq!(run(&without_evidence, &frame).0, Verdict::PassSession, "{name}");
    }
    for (name, frame) in hidden_evidence() {
        for data_plane in [&xdp, &without_evidence] {
            let (verdict, stamped) = run(data_plane, &frame);
            assert_eq!((verdict, stamped.action), (Verdict::DropGateVlan, DROP), "{name}");
        }
    }
}

#[test]
fn a_state_that_is_not_confirmed_expires() {
    let (xdp, _) = load(bound_gate());
    let plain = frame(0).udp(b"reading");
    let passes_unchanged = |xdp: &Xdp| {
        let (verdict, run) = run(xdp, &plain);
        assert_eq!(verdict, Verdict::PassSession);
        run.frame == plain
    };
    assert!(passes_unchanged(&xdp), "no state was confirmed yet");
    let mut expiring_stamp = stamp(1);
    xdp.set_stamp(Some(&expiring_stamp));
    assert!(!passes_unchanged(&xdp));
    expiring_stamp.until_ns = now_ns() - 20_000_000;
    xdp.set_stamp(Some(&expiring_stamp));
    assert!(passes_unchanged(&xdp), "the state has expired");
    xdp.set_stamp(Some(&stamp(1)));
    assert!(!passes_unchanged(&xdp), "the state was confirmed");
    xdp.set_stamp(None);
    assert!(passes_unchanged(&xdp), "the state was withdrawn");
    xdp.set_stamp(Some(&stamp(2)));
    let run = run(&xdp, &plain).1;
    // The counter in the packets continues, because the key is the same.
    assert_eq!(counter(&run.frame), Counter(3));
    let appraisal = Appraiser::new(master()).appraise(&carried(&run.frame), &snapshot(2).digests);
    assert_eq!(*appraisal.unwrap().snapshot(), snapshot(2));
    assert_eq!((counts(&xdp).stamped, counts(&xdp).stale), (3, 3));
}

#[test]
fn opened_packets_get_evidence() {
    let test_config = TestConfig {
        inband_evidence: true,
        ..TestConfig::SEALED
    };
    let (xdp, sessions) = load(test_config);
    xdp.set_stamp(Some(&stamp(1)));
    for bytes in 0..600_u32 {
        let tags = bytes as usize % 3;
        let payload: Vec<u8> = (0..bytes).map(|index| index as u8).collect();
        let to = service_end(true);
        let sealed = sessions[tags].seal(1 + bytes / 3, &to, &payload);
        let (verdict, stamped) = run(&xdp, &tagged(sealed_frame(device(tags), &to), tags).udp(&sealed));
        assert_eq!(verdict, Verdict::PassData);
        let opened = frame(tags).udp(&payload);
        let number = Counter(u64::from(bytes) + 1);
        assert_eq!(
            hex::encode(&stamped.frame),
            hex::encode(expected(&opened, number))
        );
    }
    let unsealed = frame(0).udp(b"reading");
    assert_eq!(
        run(&xdp, &unsealed),
        (
            Verdict::DropGate,
            TestRun {
                action: DROP,
                frame: unsealed
            }
        )
    );
}

/// Sets the MTU of the ingress interface of test runs.
fn set_mtu(mtu: usize) {
    ip(&format!("link set lo mtu {mtu}"));
}

/// Checks that the reply is an ICMPv6 message to the sender of a packet; returns the MTU that it reports.
fn reported_mtu(sent: &[u8], reply: &[u8], tags: usize) -> u32 {
    let ip_at = 14 + 4 * tags;
    assert_eq!(reply.len(), ip_at + 1280);
    let own = gateway_end(true).mac;
    assert_eq!((&reply[..6], &reply[6..12]), (&sent[6..12], &own[..]));
    assert_eq!(reply[12..ip_at], sent[12..ip_at], "the tags");
    let header = [0x60, 0, 0, 0, 4, 0xd8, 58, 64];
    assert_eq!(reply[ip_at..ip_at + 8], header);
    let (source, target) = (&reply[ip_at + 8..ip_at + 24], &reply[ip_at + 24..ip_at + 40]);
    let std::net::IpAddr::V6(gateway) = gateway_end(true).ip else {
        unreachable!("an IPv6 address");
    };
    assert_eq!(source, gateway.octets());
    assert_eq!(target, &sent[ip_at + 8..ip_at + 24]);
    let message = &reply[ip_at + 40..];
    assert_eq!((message[0], message[1]), (2, 0));
    // The checksum of RFC 1071, with the pseudo header of RFC 8200 8.1.
    let pseudo = [
        source,
        target,
        &(message.len() as u32).to_be_bytes(),
        &[0, 0, 0, 58],
    ]
    .concat();
    let words = pseudo.chunks(2).chain(message.chunks(2));
    let sum: u32 = words
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]))
        .sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    assert_eq!(
        message[8..],
        sent[ip_at..ip_at + 1232],
        "the largest possible part of the packet"
    );
    u32::from_be_bytes(message[4..8].try_into().unwrap())
}

#[test]
fn senders_of_too_large_packets_receive_the_reduced_mtu() {
    leave_namespace();
    let (xdp, _) = load(bound_gate());
    xdp.set_stamp(Some(&stamp(1)));
    let packet_of = |bytes: usize, tags: usize| frame(tags).ip(6, &vec![1; bytes - 40]);
    for tags in 0..3 {
        for mtu in [1384, 1500, 2000] {
            set_mtu(mtu);
            for bytes in [1176, 1177, 1280, mtu - GROWTH] {
                let (verdict, stamped) = run(&xdp, &packet_of(bytes, tags));
                assert_eq!((verdict, stamped.action), (Verdict::PassSession, PASS), "{bytes}");
                assert_eq!(stamped.frame.len(), 14 + 4 * tags + bytes + GROWTH);
            }
            for bytes in [mtu - GROWTH + 1, mtu] {
                let sent = packet_of(bytes, tags);
                let (verdict, reply) = run(&xdp, &sent);
                assert_eq!((verdict, reply.action), (Verdict::DropTooBig, TX), "{bytes}");
                assert_eq!(reported_mtu(&sent, &reply.frame, tags) as usize, mtu - GROWTH);
                // Even if the packet was for another station's MAC address, the reply comes from the gateway's address.
                let to_another = [&[2, 0, 0, 0, 0x77, 1], &sent[6..]].concat();
                let (_, reply) = run(&xdp, &to_another);
                assert_eq!(
                    reported_mtu(&to_another, &reply.frame, tags) as usize,
                    mtu - GROWTH
                );
            }
        }
    }
    // Senders ignore a reported MTU below 1280, which would be the case here: the packet passes without evidence.
    set_mtu(1383);
    let sent = packet_of(1280, 0);
    assert_eq!(
        run(&xdp, &sent),
        (
            Verdict::PassSession,
            TestRun {
                action: PASS,
                frame: sent
            }
        )
    );
    // The gateway does not reply to a packet for a group.
    set_mtu(1500);
    let mut group = packet_of(1500, 0);
    group[0] = 0x33;
    assert_eq!(
        run(&xdp, &group),
        (
            Verdict::PassSession,
            TestRun {
                action: PASS,
                frame: group
            }
        )
    );
    assert_eq!(counts(&xdp).unfit, 2);
}

#[test]
fn several_cpus_use_no_counter_twice_and_read_consistent_states() {
    const PACKETS: usize = 3000;
    let (xdp, _) = load(bound_gate());
    let cpus = crate::support::cpus();
    let threads = cpus.len().clamp(2, 4);
    let plain = frame(0).udp(b"reading");
    xdp.set_stamp(Some(&stamp(0)));
    let frames = Mutex::new(Vec::new());
    let (is_running, finished_threads) = (AtomicBool::new(true), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let states: Vec<Stamp> = (0..16).map(stamp).collect();
            for state in states.iter().cycle() {
                xdp.set_stamp(Some(state));
                if !is_running.load(Ordering::Acquire) {
                    break;
                }
            }
        });
        for thread in 0..threads {
            let (xdp, cpus, plain, frames) = (&xdp, &cpus, &plain, &frames);
            let (is_running, finished_threads) = (&is_running, &finished_threads);
            scope.spawn(move || {
                crate::support::pin_to(cpus[thread % cpus.len()]);
                let run = || xdp.test_run(plain).unwrap().frame;
                let thread_frames: Vec<_> = (0..PACKETS).map(|_| run()).collect();
                frames.lock().unwrap().extend(thread_frames);
                if finished_threads.fetch_add(1, Ordering::AcqRel) + 1 == threads {
                    is_running.store(false, Ordering::Release);
                }
            });
        }
    });
    let frames = frames.into_inner().unwrap();
    let (mut counters, mut unstamped) = (BTreeSet::new(), 0);
    for frame in frames {
        if frame == plain {
            // The state was replaced twice while the program was reading it.
            unstamped += 1;
            continue;
        }
        let content = carried(&frame).content;
        let state = snapshot(content.sequence.0);
        let appraisal = Appraiser::new(master()).appraise(&carried(&frame), &state.digests);
        assert_eq!(*appraisal.unwrap().snapshot(), state);
        assert!(
            counters.insert(content.counter),
            "{:?} occurred twice",
            content.counter
        );
    }
    assert_eq!(counters.last().map(|last| last.0 as usize), Some(counters.len()));
    assert!(
        counters.len() > threads * PACKETS / 2,
        "{unstamped} without evidence"
    );
}
