//! Evidence in the packets that pass the gate of `xdp`, byte for byte against what `linewarden_evidence` makes of the same packet, and
//! judged by its appraiser. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod support;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use linewarden_dataplane::xdp::{TestRun, Xdp};
use linewarden_dataplane::{DataPlane, Row, STAMP_LIFE_NS, Stamp, StampCounts};
use linewarden_evidence::inband::{
    Appraiser, Carried, Content, Counter, Form, MasterKey, Refused, Stamper, Template, read_option,
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

use support::device::{self, Dev, Held, Response, STRANGER, gateway_end, sealed_frame, service_end};
use support::netns::{ip, leave_namespace};
use support::shape::Shape;
use support::world::{load_xdp, real_now};

const FRESH: [u8; 8] = [9; 8];
/// `XDP_DROP`, `XDP_PASS`, `XDP_TX`.
const DROP: u32 = 1;
const PASS: u32 = 2;
const SENT_BACK: u32 = 3;
/// What the option makes a packet longer.
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

fn stamp(form: Form, sequence: u64) -> Stamp {
    let snapshot = snapshot(sequence);
    Stamp {
        template: Template::new(&key(&snapshot), form, &snapshot),
        until_ns: now_ns() + STAMP_LIFE_NS,
    }
}

/// Device 1 has a session without a tag, 2 behind one, 3 behind two.
fn device(tags: usize) -> Dev {
    Dev(1 + tags as u16)
}

fn tagged(builder: FrameBuilder, tags: usize) -> FrameBuilder {
    let types = [0x88a8, 0x8100];
    (0..tags).fold(builder, |builder, tag| {
        builder.tag(types[2 - tags + tag], 7 + tag as u16)
    })
}

/// A frame of that device's to a service.
fn frame(tags: usize) -> FrameBuilder {
    tagged(FrameBuilder::new(device(tags).end(true), service_end(true)), tags)
}

fn load(shape: Shape) -> Option<(Xdp, Vec<Held>)> {
    let mut xdp = load_xdp(&shape.config())?;
    xdp.set_fresh(FRESH, now_ns());
    let held = (0..3).map(|tags| open(&mut xdp, tags)).collect();
    Some((xdp, held))
}

fn open(xdp: &mut Xdp, tags: usize) -> Held {
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
    assert_eq!(xdp.test_run(&frame).unwrap().action, SENT_BACK);
    Held::of(device, Mode::Key, &response)
}

fn open_gate(form: Form) -> Shape {
    Shape {
        in_packets: Some(form),
        ..Shape::OPEN
    }
}

fn counts(xdp: &Xdp) -> StampCounts {
    xdp.stamped().unwrap().unwrap()
}

fn carried(frame: &[u8]) -> Carried {
    read_option(frame).unwrap().expect("it carries evidence")
}

fn counter(frame: &[u8]) -> Counter {
    match carried(frame).content {
        Content::Default(content) => content.counter,
        Content::Classic { .. } => Counter(0),
    }
}

/// What the evidence crate makes of the packet.
fn expected(frame: &[u8], form: Form, counter: Counter) -> Vec<u8> {
    let snapshot = snapshot(1);
    let mut front = Vec::new();
    let mut stamper = Stamper::new(key(&snapshot), form, &snapshot);
    let taken = stamper.stamp(frame, counter, None, &mut front).unwrap();
    [&front, &frame[taken..]].concat()
}

/// Packets of all kinds that the gate lets pass: TCP, UDP, ICMPv6, ESP, SCTP and others, tagged or not, with padding or without.
fn packet(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let tags = rng.random_range(0..3);
    let mut target = service_end(true);
    target.ip = std::net::Ipv6Addr::from(0xfd77_u128 << 112 | rng.random::<u128>() >> 16).into();
    // What is for a DHCP client never passes.
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
            let others = [1, 6, 6, 50, 132, 4, 47, 59, 89, 255];
            builder.ip(others[rng.random_range(0..others.len())], &body)
        }
    }
}

#[test]
fn packets_are_stamped_byte_for_byte_as_the_evidence_crate_does() {
    let seed = support::number("LINEWARDEN_SEED", 1);
    println!("LINEWARDEN_SEED={seed}");
    for form in [Form::Default, Form::Classic] {
        let Some((xdp, _)) = load(open_gate(form)) else {
            return;
        };
        xdp.stamp(Some(&stamp(form, 1)));
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut appraiser, mut last) = (Appraiser::new(master()), None);
        for number in 1..=2000 {
            let before = packet(&mut rng);
            let run = xdp.test_run(&before).unwrap();
            assert_eq!(run.action, PASS, "{}", hex::encode(&before));
            let shown = counter(&run.frame);
            assert_eq!(
                hex::encode(&run.frame),
                hex::encode(expected(&before, form, shown))
            );
            let judged = appraiser.appraise(&carried(&run.frame), &snapshot(1).digests);
            match form {
                Form::Classic => assert_eq!(judged, Err(Refused::Classic)),
                Form::Default => {
                    let judged = judged.unwrap();
                    assert_eq!(
                        (judged.counter(), *judged.snapshot()),
                        (Counter(number), snapshot(1))
                    );
                }
            }
            last = Some(run.frame);
        }
        assert_eq!(counts(&xdp).stamped, 2000);
        if let (Some(frame), Form::Default) = (last, form) {
            refusals(&mut appraiser, &frame);
        }
    }
}

/// The same again, what is changed on the way, and what shows another state.
fn refusals(appraiser: &mut Appraiser, frame: &[u8]) {
    let known = snapshot(1).digests;
    assert!(matches!(
        appraiser.appraise(&carried(frame), &known),
        Err(Refused::Replayed(_))
    ));
    let at = frame.windows(2).position(|type_| type_ == [0x86, 0xdd]).unwrap() + 2;
    // A byte of the destination, of the source, of the counter.
    for place in [39, 20, 40 + 87] {
        let mut bent = frame.to_vec();
        bent[at + place] ^= 1;
        let judged = Appraiser::new(master()).appraise(&carried(&bent), &known);
        assert_eq!(judged, Err(Refused::Tag), "byte {place}");
    }
    let judged = Appraiser::new(master()).appraise(&carried(frame), &snapshot(2).digests);
    assert!(matches!(judged, Err(Refused::Differs { .. })));
    let judged = Appraiser::new(MasterKey::new([1; 16])).appraise(&carried(frame), &known);
    assert_eq!(judged, Err(Refused::Tag));
}

/// The verdict, and what becomes of the frame.
#[track_caller]
fn run(xdp: &Xdp, frame: &[u8]) -> (Verdict, TestRun) {
    let before = xdp.counters().unwrap();
    let run = xdp.test_run(frame).unwrap();
    let after = xdp.counters().unwrap();
    let counted: Vec<_> = after.since(&before).nonzero().collect();
    let [(verdict, 1)] = counted[..] else {
        panic!("one verdict each: {counted:?}");
    };
    (verdict, run)
}

type Case = (&'static str, Vec<u8>, Verdict);

/// With a hop-by-hop header that has evidence, made with nobody's key or somebody's.
fn with_option(builder: FrameBuilder) -> Vec<u8> {
    expected(&builder.udp(b"reading"), Form::Default, Counter(99))
}

fn others() -> Vec<Case> {
    let v4 = FrameBuilder::new(device(0).end(false), service_end(false));
    let stranger = FrameBuilder::new(STRANGER.end(true), service_end(true));
    let own = Endpoint {
        port: 80,
        ..gateway_end(true)
    };
    let own_discovery = FrameBuilder::new(device(0).end(true), own).ip_fields(0, 0, 255);
    let icmp = |kind| own_discovery.icmpv6(kind, &[0; 20]);
    let near = Endpoint {
        ip: [0xfe80, 0, 0, 0, 0, 0, 0, 1].into(),
        ..device(0).end(true)
    };
    let reports = Endpoint {
        ip: [0xff02, 0, 0, 0, 0, 0, 0, 0x16].into(),
        ..service_end(true)
    };
    let report = FrameBuilder::new(near, reports)
        .ip_fields(0, 0, 1)
        .ip(0, &[&[58, 0, 5, 2, 0, 0, 1, 0, 143][..], &[0; 7]].concat());
    vec![
        ("IPv4", v4.udp(b"reading"), Verdict::PassSession),
        ("ARP", v4.arp_request(), Verdict::PassAlways),
        (
            "of another type",
            v4.ethernet(0x88cc, &[0; 46]),
            Verdict::PassSession,
        ),
        ("three tags", tagged(frame(1), 2).udp(b"x"), Verdict::DropGateTag),
        ("neighbor discovery", icmp(135), Verdict::PassAlways),
        ("a report of groups", report, Verdict::PassSession),
        (
            "to the gateway itself",
            FrameBuilder::new(device(0).end(true), own).udp(b"x"),
            Verdict::PassSession,
        ),
        ("of somebody else", stranger.udp(b"x"), Verdict::DropGate),
        (
            "evidence of its own",
            with_option(frame(0)),
            Verdict::DropGateExtension,
        ),
        (
            "evidence of its own, of somebody else",
            with_option(stranger),
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

/// The frame with tags of these types, the outer first.
fn behind(types: &[u16], frame: &[u8]) -> Vec<u8> {
    let (addresses, rest) = frame.split_at(12);
    let tags = types.iter().flat_map(|tag| [tag.to_be_bytes(), [0, 1]].concat());
    addresses
        .iter()
        .copied()
        .chain(tags)
        .chain(rest.iter().copied())
        .collect()
}

/// What only a gate that stamps looks for.
fn clones() -> Vec<(&'static str, Vec<u8>)> {
    let clone = |builder: FrameBuilder| builder.ethernet(0x5241, &[0; 152]);
    vec![
        ("a clone", clone(frame(0))),
        ("a clone behind a tag", clone(frame(1))),
    ]
}

/// Evidence where the evidence crate finds it: behind tags that no gate parses.
fn hidden() -> Vec<(&'static str, Vec<u8>)> {
    let clone = |builder: FrameBuilder| builder.ethernet(0x5241, &[0; 152]);
    vec![
        ("a clone behind an old tag", clone(frame(0).tag(0x9100, 1))),
        (
            "a clone behind a made-up tag",
            behind(&[0x9200], &clone(frame(0))),
        ),
        (
            "evidence behind another",
            behind(&[0x9300], &with_option(frame(0))),
        ),
        (
            "evidence behind three tags",
            behind(&[0x9100, 0x8100, 0x8100], &with_option(frame(0))),
        ),
        ("evidence behind an old tag", with_option(frame(0).tag(0x9100, 1))),
        (
            "a routing header behind an old tag",
            frame(0).tag(0x9100, 1).extension(43).udp(b"x"),
        ),
    ]
}

#[test]
fn whatever_else_there_is_carries_nothing_and_nobody_brings_evidence() {
    let Some((xdp, _)) = load(open_gate(Form::Default)) else {
        return;
    };
    let (off, _) = load(Shape::OPEN).unwrap();
    assert_eq!(off.stamped().unwrap(), None);
    xdp.stamp(Some(&stamp(Form::Default, 1)));
    for (name, frame, verdict) in others() {
        for plane in [&xdp, &off] {
            let (got, run) = run(plane, &frame);
            assert_eq!(got, verdict, "{name}");
            assert_eq!(run.action == PASS, (verdict as u8) < 16, "{name}");
            assert_eq!(run.frame, frame, "{name}: not a byte of it");
        }
    }
    assert_eq!((counts(&xdp).stamped, counts(&xdp).not_ipv6), (0, 2));
    // The report, whose own header is its last.
    assert_eq!(counts(&xdp).unfit, 1);
    for (name, frame) in clones() {
        let (verdict, stamped) = run(&xdp, &frame);
        assert_eq!(
            (verdict, stamped.action),
            (Verdict::DropGateExtension, DROP),
            "{name}"
        );
        assert_eq!(run(&off, &frame).0, Verdict::PassSession, "{name}");
    }
    for (name, frame) in hidden() {
        for plane in [&xdp, &off] {
            let (verdict, stamped) = run(plane, &frame);
            assert_eq!((verdict, stamped.action), (Verdict::DropGateTag, DROP), "{name}");
        }
    }
}

#[test]
fn a_state_that_nobody_confirms_is_carried_no_longer() {
    let Some((xdp, _)) = load(open_gate(Form::Default)) else {
        return;
    };
    let plain = frame(0).udp(b"reading");
    let passes_as_it_is = |xdp: &Xdp| {
        let (verdict, run) = run(xdp, &plain);
        assert_eq!(verdict, Verdict::PassSession);
        run.frame == plain
    };
    assert!(passes_as_it_is(&xdp), "nothing was measured yet");
    let mut shown = stamp(Form::Default, 1);
    xdp.stamp(Some(&shown));
    assert!(!passes_as_it_is(&xdp));
    shown.until_ns = now_ns() - 20_000_000;
    xdp.stamp(Some(&shown));
    assert!(passes_as_it_is(&xdp), "its time is over");
    xdp.stamp(Some(&stamp(Form::Default, 1)));
    assert!(!passes_as_it_is(&xdp), "it was confirmed");
    xdp.stamp(None);
    assert!(passes_as_it_is(&xdp), "it was taken back");
    xdp.stamp(Some(&stamp(Form::Default, 2)));
    let run = run(&xdp, &plain).1;
    // The numbers go on, for the key is the same.
    assert_eq!(counter(&run.frame), Counter(3));
    let judged = Appraiser::new(master()).appraise(&carried(&run.frame), &snapshot(2).digests);
    assert_eq!(*judged.unwrap().snapshot(), snapshot(2));
    assert_eq!((counts(&xdp).stamped, counts(&xdp).stale), (3, 3));
}

#[test]
fn what_was_sealed_is_opened_and_then_stamped() {
    let shape = Shape {
        in_packets: Some(Form::Default),
        ..Shape::SEALED
    };
    let Some((xdp, held)) = load(shape) else {
        return;
    };
    xdp.stamp(Some(&stamp(Form::Default, 1)));
    for bytes in 0..600_u32 {
        let tags = bytes as usize % 3;
        let payload: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
        let to = service_end(true);
        let sealed = held[tags].seal(1 + bytes / 3, &to, &payload);
        let (verdict, stamped) = run(&xdp, &tagged(sealed_frame(device(tags), &to), tags).udp(&sealed));
        assert_eq!(verdict, Verdict::PassData);
        let opened = frame(tags).udp(&payload);
        let number = Counter(u64::from(bytes) + 1);
        assert_eq!(
            hex::encode(&stamped.frame),
            hex::encode(expected(&opened, Form::Default, number))
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

/// Sets the MTU of the interface by which test runs come in.
fn set_mtu(mtu: usize) {
    ip(&format!("link set lo mtu {mtu}"));
}

/// An ICMPv6 message to the sender of a packet, and nothing else.
fn told(sent: &[u8], answer: &[u8], tags: usize) -> u32 {
    let at = 14 + 4 * tags;
    assert_eq!(answer.len(), at + 1280);
    let own = gateway_end(true).mac;
    assert_eq!((&answer[..6], &answer[6..12]), (&sent[6..12], &own[..]));
    assert_eq!(answer[12..at], sent[12..at], "the tags");
    let header = [0x60, 0, 0, 0, 4, 0xd8, 58, 64];
    assert_eq!(answer[at..at + 8], header);
    let (source, target) = (&answer[at + 8..at + 24], &answer[at + 24..at + 40]);
    let std::net::IpAddr::V6(gateway) = gateway_end(true).ip else {
        unreachable!("asked for");
    };
    assert_eq!(source, gateway.octets());
    assert_eq!(target, &sent[at + 8..at + 24]);
    let message = &answer[at + 40..];
    assert_eq!((message[0], message[1]), (2, 0));
    // RFC 1071, with the pseudo header of RFC 8200 8.1.
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
    assert_eq!(message[8..], sent[at..at + 1232], "as much as fits");
    u32::from_be_bytes(message[4..8].try_into().unwrap())
}

#[test]
fn who_sends_too_much_is_told_the_size() {
    if !leave_namespace() {
        return;
    }
    let Some((xdp, _)) = load(open_gate(Form::Default)) else {
        return;
    };
    xdp.stamp(Some(&stamp(Form::Default, 1)));
    let ip_bytes = |bytes: usize, tags: usize| frame(tags).ip(6, &vec![1; bytes - 40]);
    for tags in 0..3 {
        for mtu in [1384, 1500, 2000] {
            set_mtu(mtu);
            for bytes in [1176, 1177, 1280, mtu - GROWTH] {
                let (verdict, stamped) = run(&xdp, &ip_bytes(bytes, tags));
                assert_eq!((verdict, stamped.action), (Verdict::PassSession, PASS), "{bytes}");
                assert_eq!(stamped.frame.len(), 14 + 4 * tags + bytes + GROWTH);
            }
            for bytes in [mtu - GROWTH + 1, mtu] {
                let sent = ip_bytes(bytes, tags);
                let (verdict, answer) = run(&xdp, &sent);
                assert_eq!(
                    (verdict, answer.action),
                    (Verdict::DropTooBig, SENT_BACK),
                    "{bytes}"
                );
                assert_eq!(told(&sent, &answer.frame, tags) as usize, mtu - GROWTH);
                // In no other station's name.
                let to_another = [&[2, 0, 0, 0, 0x77, 1], &sent[6..]].concat();
                let (_, answer) = run(&xdp, &to_another);
                assert_eq!(told(&to_another, &answer.frame, tags) as usize, mtu - GROWTH);
            }
        }
    }
    // A sender takes no smaller size than this less the option; a group has no one sender to tell.
    set_mtu(1383);
    let sent = ip_bytes(1280, 0);
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
    set_mtu(1500);
    let mut group = ip_bytes(1500, 0);
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
fn on_several_cpus_no_number_comes_twice_and_no_state_is_torn() {
    const PACKETS: usize = 3000;
    let Some((xdp, _)) = load(open_gate(Form::Default)) else {
        return;
    };
    let cpus = support::cpus();
    let threads = cpus.len().clamp(2, 4);
    let plain = frame(0).udp(b"reading");
    xdp.stamp(Some(&stamp(Form::Default, 0)));
    let frames = Mutex::new(Vec::new());
    let (running, done) = (AtomicBool::new(true), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let states: Vec<Stamp> = (0..16).map(|number| stamp(Form::Default, number)).collect();
            for state in states.iter().cycle() {
                xdp.stamp(Some(state));
                if !running.load(Ordering::Acquire) {
                    break;
                }
            }
        });
        for thread in 0..threads {
            let (xdp, cpus, plain, frames) = (&xdp, &cpus, &plain, &frames);
            let (running, done) = (&running, &done);
            scope.spawn(move || {
                support::pin_to(cpus[thread % cpus.len()]);
                let run = || xdp.test_run(plain).unwrap().frame;
                let mine: Vec<_> = (0..PACKETS).map(|_| run()).collect();
                frames.lock().unwrap().extend(mine);
                if done.fetch_add(1, Ordering::AcqRel) + 1 == threads {
                    running.store(false, Ordering::Release);
                }
            });
        }
    });
    let frames = frames.into_inner().unwrap();
    let (mut numbers, mut stale) = (BTreeSet::new(), 0);
    for frame in frames {
        if frame == plain {
            // The state was replaced twice while it was read.
            stale += 1;
            continue;
        }
        let Content::Default(content) = carried(&frame).content else {
            panic!("default content");
        };
        let state = snapshot(content.sequence.0);
        let judged = Appraiser::new(master()).appraise(&carried(&frame), &state.digests);
        assert_eq!(*judged.unwrap().snapshot(), state);
        assert!(
            numbers.insert(content.counter),
            "{:?} came twice",
            content.counter
        );
    }
    assert_eq!(numbers.last().map(|last| last.0 as usize), Some(numbers.len()));
    assert!(numbers.len() > threads * PACKETS / 2, "{stale} without");
}
