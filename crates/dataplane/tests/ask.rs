//! Asking devices: under the session's key or without a session, from the gateway's own address and LAP's port, past an open
//! and a sealed gate; and the PROOFs that they send back to there.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use linewarden_dataplane::host::{Host, HostOptions, Moment};
use linewarden_dataplane::{Config, DataPlane, Gate};
use linewarden_protocol::attest::{RequestKey, Round};
use linewarden_protocol::frame::{Meta, ip_bytes};
use linewarden_protocol::gateway::{OpenRound, ProverKeys};
use linewarden_protocol::ids::{Mode, Period};
use linewarden_protocol::time::Monotonic;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{AttestRequest, LAP_PORT, MESSAGE_BYTES, PROOF_BYTES};
use zerocopy::IntoBytes as _;

use support::device::{A, B, Dev, GATEWAY, Held, Response, gateway_end};
use support::netns::{index_of, ip, leave_namespace};
use support::shape::{LEASE_S, Shape};
use support::world::attest::{key, proof, round};
use support::world::{install_key, load_xdp, real_now};
use support::{While, cpus, pin_to};

/// Where devices wait to be asked.
const ASKED_PORT: u16 = 20_554;
/// What is waited for something that will happen; on a loaded machine it may take long.
const PATIENCE: Duration = Duration::from_secs(20);
const FRESH: [u8; 8] = [9; 8];

fn boot_s() -> u32 {
    (real_now().boot_ms / 1000) as u32
}

/// Waits until it is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::yield_now();
    }
}

fn response(idx: u32) -> Response {
    Response {
        mode: Mode::Key,
        idx,
        gateway: GATEWAY,
        fresh: FRESH,
        bound: None,
        nonce: [1; 16],
    }
}

fn prover(plane: &mut dyn DataPlane, device: Dev) {
    let keys = ProverKeys {
        current: key(device, GATEWAY, 4, 1),
        alternate: None,
    };
    let provers = plane.provers().unwrap();
    provers.install(device.id(), Period(4), &keys).unwrap();
}

fn begin(plane: &mut dyn DataPlane, number: u32) -> Round {
    let (round, now_ms) = (round(4, number), real_now().monotonic_ms);
    let open = OpenRound {
        round,
        started: Monotonic(now_ms),
        until: Monotonic(now_ms + (1 << 30)),
    };
    plane.provers().unwrap().open_round(&open).unwrap();
    round
}

/// A device that waits to be asked, and the address of the gateway's that it must be asked from.
struct Waiting {
    device: Dev,
    socket: UdpSocket,
    gateway: SocketAddr,
}

impl Waiting {
    fn at(device: Dev, here: IpAddr, gateway: SocketAddr) -> Self {
        let socket = UdpSocket::bind((here, ASKED_PORT)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            device,
            socket,
            gateway,
        }
    }

    fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    /// Takes what it is asked, which must be this, and answers it.
    fn answer(&self, request: &AttestRequest) {
        let mut got = [0; MESSAGE_BYTES + 1];
        let (bytes, from) = self.socket.recv_from(&mut got).unwrap();
        assert_eq!(&got[..bytes], request.as_bytes());
        assert_eq!(from, self.gateway);
        let proof = proof(self.device, &Round::from(request), 1);
        self.socket.send_to(&proof, from).unwrap();
    }
}

/// A, which has that session, and others without one are asked in a round of their own; all are ok in it.
fn a_round(plane: &mut dyn DataPlane, number: u32, held: &Held, devices: &[Waiting]) {
    devices.iter().for_each(|one| prover(plane, one.device));
    let round = begin(plane, number);
    let ask = |one: &Waiting| {
        let id = one.device.id();
        let without = round.request_without_session(id, &RequestKey::of_hmac(&[one.device.0 as u8; 32]));
        match plane.session_request(id, &round, boot_s()) {
            Some((ip, request)) => {
                assert_eq!((one.device, ip), (A, one.address().ip()));
                assert_eq!(request.as_bytes(), round.request(id, &held.key).as_bytes());
                (one.address(), request)
            }
            None => {
                assert_ne!(one.device, A);
                (one.address(), without)
            }
        }
    };
    let requests: Vec<_> = devices.iter().map(ask).collect();
    let before = plane.counters().unwrap();
    assert_eq!(plane.ask(&requests).unwrap(), requests.len());
    for (one, (_, request)) in devices.iter().zip(&requests) {
        one.answer(request);
    }
    let count = devices.len() as u64;
    until("every PROOF is judged", || {
        let counters = plane.counters().unwrap();
        counters.since(&before).get(Verdict::ProofOk) == count
    });
    let provers = plane.provers().unwrap();
    for one in devices {
        let proved = provers.proved_of(&[one.device.id()], round.number);
        assert!(proved.unwrap().iter().all(Option::is_some));
    }
}

/// The devices' side of a link, in a network namespace of its own, and what they hold of the gateway's.
fn behind_a_link(
    is_ready: &mpsc::Sender<libc::pid_t>,
    is_linked: &mpsc::Receiver<()>,
) -> Option<Vec<Waiting>> {
    if !leave_namespace() {
        return None;
    }
    // SAFETY: takes no pointer.
    is_ready.send(unsafe { libc::gettid() }).unwrap();
    is_linked.recv().ok()?;
    for address in ["10.66.128.1/16", "10.66.128.2/16", "10.67.0.1/24"] {
        ip(&format!("address add {address} dev there"));
    }
    for address in ["fd66::1:1/64", "fd66::1:2/64"] {
        ip(&format!("address add {address} dev there nodad"));
    }
    ip("link set there up");
    let gateway = |v6| SocketAddr::new(gateway_end(v6).ip, LAP_PORT);
    Some(vec![
        Waiting::at(A, A.end(false).ip, gateway(false)),
        Waiting::at(B, B.end(false).ip, gateway(false)),
        Waiting::at(
            Dev(3),
            Ipv4Addr::new(10, 67, 0, 1).into(),
            (SECOND, LAP_PORT).into(),
        ),
        Waiting::at(Dev(4), B.end(true).ip, gateway(true)),
    ])
}

/// The gateway's second IPv4 address.
const SECOND: Ipv4Addr = Ipv4Addr::new(10, 67, 0, 254);

/// What the kernel tells of the UDP sockets of LAP's port in the calling thread's network namespace: bytes that wait to be
/// read, datagrams dropped.
fn kept_and_dropped() -> Vec<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/thread-self/net/udp").unwrap();
    let port = format!(":{LAP_PORT:04X}");
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let queue = fields[4].split_once(':').unwrap().1;
        (
            u64::from_str_radix(queue, 16).unwrap(),
            fields[12].parse().unwrap(),
        )
    };
    let lines = text.lines().skip(1);
    lines
        .filter(|line| line.split_whitespace().nth(1).unwrap().ends_with(&port))
        .map(socket)
        .collect()
}

fn xdp_asks_over_a_link(gate: Gate) {
    let (ready, is_ready) = mpsc::channel();
    let (linked, is_linked) = mpsc::channel();
    let other_side = thread::spawn(move || behind_a_link(&ready, &is_linked));
    let Ok(thread_id) = is_ready.recv() else {
        return;
    };
    assert!(leave_namespace());
    ip("link set lo up");
    ip("link add here type veth peer name there");
    let mac = gateway_end(false).mac.map(|byte| format!("{byte:02x}")).join(":");
    ip(&format!("link set here address {mac}"));
    ip(&format!("link set there netns {thread_id}"));
    let shape = Shape {
        gate,
        provers: 16,
        ..Shape::OFF
    };
    let mut config = shape.config();
    config.local.push(SECOND.into());
    // Its sockets are there before its addresses are.
    let Some(mut xdp) = load_xdp(&config) else {
        return;
    };
    for address in ["10.66.0.254/16", "10.67.0.254/24"] {
        ip(&format!("address add {address} dev here"));
    }
    ip("address add fd66::fe/64 dev here nodad");
    ip("link set here up");
    linked.send(()).unwrap();
    let devices = other_side.join().unwrap().unwrap();
    xdp.attach(index_of("here")).unwrap();
    install_key(&mut xdp, A, FRESH);
    let bound = A.response(&response(0).bound(A.mac()));
    let frame = A.frame(false).udp(bound.as_bytes());
    assert_eq!(xdp.test_run(&frame).unwrap().action, 3);
    let held = Held::of(A, Mode::Key, &bound);
    for number in 1..=3 {
        a_round(&mut xdp, number, &held, &devices);
    }

    // What comes by another interface to where the requests leave is read by nobody, and takes up no memory.
    let stranger = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    for _ in 0..200 {
        stranger
            .send_to(&[0; 1000], (gateway_end(false).ip, LAP_PORT))
            .unwrap();
    }
    until("what came in is dropped", || {
        kept_and_dropped().iter().map(|(_, dropped)| dropped).sum::<u64>() == 200
    });
    assert!(kept_and_dropped().iter().all(|(kept, _)| *kept == 0));

    // What has no way is told by itself, and does not hold up what has one.
    let round = begin(&mut xdp, 4);
    let request = |one: &Waiting| {
        let id = one.device.id();
        (
            one.address(),
            round.request_without_session(id, &RequestKey::of_hmac(&[7; 32])),
        )
    };
    let nowhere = (
        SocketAddr::from(([192, 0, 2, 1], ASKED_PORT)),
        request(&devices[1]).1,
    );
    let requests = [nowhere, request(&devices[1]), nowhere, request(&devices[2])];
    for from in [0, 2] {
        let refused = xdp.ask(&requests[from..]).unwrap_err();
        assert!(format!("{refused}").contains("192.0.2.1:20554"), "{refused}");
        assert_eq!(xdp.ask(&requests[from + 1..]).unwrap(), 1);
    }
    devices[1].answer(&requests[1].1);
    devices[2].answer(&requests[3].1);
}

#[test]
fn xdp_asks_without_a_gate() {
    xdp_asks_over_a_link(Gate::Off);
}

#[test]
fn xdp_asks_past_an_open_gate() {
    xdp_asks_over_a_link(Gate::Open);
}

#[test]
fn xdp_asks_past_a_sealed_gate() {
    xdp_asks_over_a_link(Gate::Sealed);
}

/// At loopback addresses of this test alone, for tests run side by side.
fn host_at(addresses: &[IpAddr]) -> Config {
    Config {
        local: addresses.to_vec(),
        device_prefixes: vec!["127.0.0.0/8".parse().unwrap()],
        ..Shape::ATTESTING.config()
    }
}

/// A session that A opens from that address with its `idx`th RESPONSE.
fn win(host: &mut Host, from: IpAddr, idx: u32) -> Held {
    let (engine, mut thread) = (host.engine(), host.thread_state());
    let response = A.response(&response(idx));
    let meta = Meta {
        src_ip: ip_bytes(from),
        src_port: 40_001,
        ..Meta::default()
    };
    let mut payload: [u8; MESSAGE_BYTES] = response.as_bytes().try_into().unwrap();
    let verdict = engine.process(&mut thread, Moment::from(real_now()), &meta, &mut payload);
    assert_eq!(verdict, Verdict::ReplyAck);
    Held::of(A, Mode::Key, &response)
}

#[test]
fn host_asks_over_loopback() {
    let own = |last: u8| IpAddr::from([127, 31, 0, last]);
    let gateway = |ip| SocketAddr::new(ip, LAP_PORT);
    let mut host = Host::new(&host_at(&[own(1)])).unwrap();
    install_key(&mut host, A, FRESH);
    let nobody = (gateway(own(9)), begin_and_request(&mut host));
    assert_eq!(
        host.ask(&[nobody]).unwrap(),
        0,
        "before it listens it asks nobody"
    );
    let options = HostOptions {
        threads: 2,
        ..HostOptions::default()
    };
    host.listen(&host_at(&[own(1)]), &options).unwrap();
    let held = win(&mut host, own(11), 0);
    let devices = [
        Waiting::at(A, own(11), gateway(own(1))),
        Waiting::at(B, own(12), gateway(own(1))),
    ];
    for number in 2..=4 {
        a_round(&mut host, number, &held, &devices);
    }
    // More than one call to the kernel takes; each of them arrives.
    let round = begin(&mut host, 5);
    let request =
        |number: u16| round.request_without_session(Dev(number).id(), &RequestKey::of_hmac(&[7; 32]));
    let all: Vec<_> = (0..200)
        .map(|number| (devices[1].address(), request(number)))
        .collect();
    let mut done = 0;
    let mut got = [0; PROOF_BYTES];
    let mut received = 0;
    while received < all.len() {
        done += host.ask(&all[done..]).unwrap();
        assert_eq!(devices[1].socket.recv(&mut got).unwrap(), MESSAGE_BYTES);
        assert_eq!(&got[..MESSAGE_BYTES], all[received].1.as_bytes());
        received += 1;
    }
    assert_eq!(done, all.len());
    host.stop();
    assert_eq!(host.ask(&all).unwrap(), 0, "nor when it has stopped");
}

fn begin_and_request(host: &mut Host) -> AttestRequest {
    prover(host, B);
    let round = begin(host, 1);
    round.request_without_session(B.id(), &RequestKey::of_hmac(&[7; 32]))
}

#[test]
fn only_a_session_that_lives_has_a_request() {
    let from = IpAddr::from([10, 66, 128, 1]);
    let mut host = Host::new(&Shape::ATTESTING.config()).unwrap();
    let asked = round(4, 1);
    assert!(
        host.session_request(A.id(), &asked, boot_s()).is_none(),
        "not here"
    );
    install_key(&mut host, A, FRESH);
    assert!(
        host.session_request(A.id(), &asked, boot_s()).is_none(),
        "no session"
    );
    let before_s = boot_s();
    let held = win(&mut host, from, 0);
    let (ip, request) = host.session_request(A.id(), &asked, before_s).unwrap();
    assert_eq!(ip, from);
    assert_eq!(request.as_bytes(), asked.request(A.id(), &held.key).as_bytes());
    let until_s = host.session(A.id()).unwrap().lease_until_s;
    assert!((before_s + LEASE_S..=boot_s() + LEASE_S).contains(&until_s));
    assert!(host.session_request(A.id(), &asked, until_s - 1).is_some());
    assert!(
        host.session_request(A.id(), &asked, until_s).is_none(),
        "its lease is over"
    );
    let id = host.session(A.id()).unwrap().id;
    host.close_session(A.id(), id).unwrap();
    assert!(
        host.session_request(A.id(), &asked, boot_s()).is_none(),
        "it is closed"
    );
    win(&mut host, from, 1);
    assert!(host.session_request(A.id(), &asked, boot_s()).is_some());
    host.revoke(A.id()).unwrap();
    assert!(
        host.session_request(A.id(), &asked, boot_s()).is_none(),
        "it is revoked"
    );
}

/// While the device renews its session from changing addresses: never half of one key and half of another, and never one
/// session's key with another one's address.
#[test]
fn a_request_is_of_one_session_whoever_renews_it_meanwhile() {
    const RENEWALS: u32 = 2_000;
    let from = |idx: u32| match idx % 2 {
        0 => A.end(false).ip,
        _ => A.end(true).ip,
    };
    let mut host = Host::new(&Shape::ATTESTING.config()).unwrap();
    install_key(&mut host, A, FRESH);
    let asked = round(4, 1);
    let (engine, mut thread) = (host.engine(), host.thread_state());
    // One moment for all: on a busy machine the freshness value would grow too old meanwhile.
    let (now, now_s) = (Moment::from(real_now()), boot_s());
    let (renewing, looks, mut seen) = (AtomicBool::new(true), AtomicU32::new(0), Vec::new());
    let mut tags = BTreeMap::new();
    // Side by side where there are two: two that yield to each other may else take turns on one for ever.
    let cpus = cpus();
    thread::scope(|scope| {
        scope.spawn(|| {
            let _renewing = While(&renewing);
            pin_to(cpus[0]);
            for idx in 0..RENEWALS {
                let response = A.response(&response(idx));
                let meta = Meta {
                    src_ip: ip_bytes(from(idx)),
                    src_port: 40_001,
                    ..Meta::default()
                };
                let mut payload: [u8; MESSAGE_BYTES] = response.as_bytes().try_into().unwrap();
                let verdict = engine.process(&mut thread, now, &meta, &mut payload);
                assert_eq!(verdict, Verdict::ReplyAck);
                let held = Held::of(A, Mode::Key, &response);
                tags.insert(asked.request(A.id(), &held.key).tag, from(idx));
                // Of two that end from now on, the second has begun since: every session is seen, on a busy machine too.
                let seen = looks.load(Ordering::Acquire);
                while renewing.load(Ordering::Acquire) && looks.load(Ordering::Acquire) < seen + 2 {
                    thread::yield_now();
                }
            }
        });
        let _looking = While(&renewing);
        pin_to(cpus[cpus.len() - 1]);
        while renewing.load(Ordering::Acquire) {
            seen.extend(host.session_request(A.id(), &asked, now_s));
            looks.fetch_add(1, Ordering::AcqRel);
            // Without a processor of its own the other one would wait for a time slice at each renewal.
            thread::yield_now();
        }
    });
    for (ip, request) in &seen {
        assert_eq!(tags.get(&request.tag), Some(ip));
    }
    let tags: BTreeSet<_> = seen.iter().map(|(_, request)| request.tag).collect();
    println!("{} requests of {} sessions", seen.len(), tags.len());
    assert_eq!(tags.len(), RENEWALS as usize);
}
