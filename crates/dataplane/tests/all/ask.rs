//! Attestation requests to devices, and the PROOFs that the devices send back. Requests are authenticated with the
//! session key or without a session. They come from the gateway's own address and the LAP port, and pass every gate.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use linewarden_dataplane::host::{Host, HostOptions, Timestamps};
use linewarden_dataplane::{Attestation as _, Config, DataPlane, Devices as _, Gate};
use linewarden_protocol::attest::{RequestKey, Round};
use linewarden_protocol::frame::{Meta, ip_bytes};
use linewarden_protocol::gateway::{OpenRound, ProverKeys};
use linewarden_protocol::ids::{Mode, Period};
use linewarden_protocol::time::Monotonic;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{AttestRequest, LAP_PORT, MESSAGE_BYTES, PROOF_BYTES};
use zerocopy::IntoBytes as _;

use crate::support::device::{A, B, DeviceSession, GATEWAY, Response, TestDevice, gateway_end};
use crate::support::fixture::attest::{key, proof, round};
use crate::support::fixture::{install_key, load_xdp, real_now};
use crate::support::netns::{index_of, ip, leave_namespace};
use crate::support::test_config::{SESSION_LIFETIME_S, TestConfig};
use crate::support::{RunningFlag, cpus, pin_to};

/// The port at which devices receive requests.
const DEVICE_PORT: u16 = 20_554;
/// Maximum time to wait for an expected event; a loaded machine can be slow.
const TIMEOUT: Duration = Duration::from_secs(20);
const FRESH: [u8; 8] = [9; 8];

fn boot_s() -> u32 {
    (real_now().boot_ms / 1000) as u32
}

/// Waits until `is_true` returns true; panics with the message `failure` after the timeout.
fn wait_until(failure: &str, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < TIMEOUT, "{failure}");
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

fn install_prover(data_plane: &mut dyn DataPlane, device: TestDevice) {
    let keys = ProverKeys {
        current: key(device, GATEWAY, 4, 1),
        alternate: None,
    };
    let provers = data_plane.provers().unwrap();
    provers.install(device.id(), Period(4), &keys).unwrap();
}

/// Opens round `number` in period 4; returns the round.
fn begin_round(data_plane: &mut dyn DataPlane, number: u32) -> Round {
    let (round, now_ms) = (round(4, number), real_now().monotonic_ms);
    let open = OpenRound {
        round,
        started: Monotonic(now_ms),
        deadline: Monotonic(now_ms + (1 << 30)),
    };
    data_plane.provers().unwrap().open_round(&open).unwrap();
    round
}

/// A device that receives requests at a socket.
struct ListeningDevice {
    device: TestDevice,
    socket: UdpSocket,
    /// The address from which requests must come.
    gateway: SocketAddr,
}

impl ListeningDevice {
    fn new(device: TestDevice, address: IpAddr, gateway: SocketAddr) -> Self {
        let socket = UdpSocket::bind((address, DEVICE_PORT)).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self {
            device,
            socket,
            gateway,
        }
    }

    fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    /// Receives a request, which must equal `request`, and replies with the valid PROOF.
    fn answer_request(&self, request: &AttestRequest) {
        let mut buffer = [0; MESSAGE_BYTES + 1];
        let (bytes, from) = self.socket.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..bytes], request.as_bytes());
        assert_eq!(from, self.gateway);
        let proof = proof(self.device, &Round::from(request), 1);
        self.socket.send_to(&proof, from).unwrap();
    }
}

/// Runs round `number`: sends requests to A, which has `session`, and to the other devices, which have no session. All
/// devices must be ok afterwards.
fn run_round(
    data_plane: &mut dyn DataPlane,
    number: u32,
    session: &DeviceSession,
    devices: &[ListeningDevice],
) {
    devices
        .iter()
        .for_each(|listener| install_prover(data_plane, listener.device));
    let round = begin_round(data_plane, number);
    let request_for = |listener: &ListeningDevice| {
        let id = listener.device.id();
        let sessionless_request =
            round.request_without_session(id, &RequestKey::from_hmac(&[listener.device.0 as u8; 32]));
        match data_plane.session_request(id, &round, boot_s()) {
            Some((ip, request)) => {
                assert_eq!((listener.device, ip), (A, listener.address().ip()));
                assert_eq!(request.as_bytes(), round.request(id, &session.key).as_bytes());
                (listener.address(), request)
            }
            None => {
                assert_ne!(listener.device, A);
                (listener.address(), sessionless_request)
            }
        }
    };
    let requests: Vec<_> = devices.iter().map(request_for).collect();
    let before = data_plane.counters().unwrap();
    assert_eq!(
        data_plane.send_attest_requests(&requests).unwrap(),
        requests.len()
    );
    for (listener, (_, request)) in devices.iter().zip(&requests) {
        listener.answer_request(request);
    }
    let count = devices.len() as u64;
    wait_until("not every PROOF was accepted", || {
        let counters = data_plane.counters().unwrap();
        counters.since(&before).get(Verdict::ProofOk) == count
    });
    let provers = data_plane.provers().unwrap();
    for listener in devices {
        let proved = provers.round_results_of(&[listener.device.id()], round.number);
        assert!(proved.unwrap().iter().all(Option::is_some));
    }
}

/// Configures the devices' end of a link in a new network namespace of the calling thread, whose id it sends through
/// `thread_id_sender`. Waits until `link_created` receives a message. Returns the listening devices.
fn listen_across_a_link(
    thread_id_sender: &mpsc::Sender<libc::pid_t>,
    link_created: &mpsc::Receiver<()>,
) -> Option<Vec<ListeningDevice>> {
    leave_namespace();
    // SAFETY: gettid takes no pointer.
    thread_id_sender.send(unsafe { libc::gettid() }).unwrap();
    link_created.recv().ok()?;
    for address in ["10.66.128.1/16", "10.66.128.2/16", "10.67.0.1/24"] {
        ip(&format!("address add {address} dev there"));
    }
    for address in ["fd66::1:1/64", "fd66::1:2/64"] {
        ip(&format!("address add {address} dev there nodad"));
    }
    ip("link set there up");
    let gateway = |v6| SocketAddr::new(gateway_end(v6).ip, LAP_PORT);
    Some(vec![
        ListeningDevice::new(A, A.end(false).ip, gateway(false)),
        ListeningDevice::new(B, B.end(false).ip, gateway(false)),
        ListeningDevice::new(
            TestDevice(3),
            Ipv4Addr::new(10, 67, 0, 1).into(),
            (SECOND_GATEWAY_IP, LAP_PORT).into(),
        ),
        ListeningDevice::new(TestDevice(4), B.end(true).ip, gateway(true)),
    ])
}

/// The gateway's second IPv4 address.
const SECOND_GATEWAY_IP: Ipv4Addr = Ipv4Addr::new(10, 67, 0, 254);

/// Unread bytes and dropped datagrams of the UDP sockets on the LAP port in the calling thread's network namespace.
fn unread_and_dropped() -> Vec<(u64, u64)> {
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

fn xdp_requests_over_a_link(gate: Gate) {
    leave_namespace();
    let (thread_id_sender, thread_id_receiver) = mpsc::channel();
    let (link_created_sender, link_created) = mpsc::channel();
    let device_side = thread::spawn(move || listen_across_a_link(&thread_id_sender, &link_created));
    let thread_id = thread_id_receiver.recv().unwrap();
    ip("link set lo up");
    ip("link add here type veth peer name there");
    let mac = gateway_end(false).mac.map(|byte| format!("{byte:02x}")).join(":");
    ip(&format!("link set here address {mac}"));
    ip(&format!("link set there netns {thread_id}"));
    let test_config = TestConfig {
        gate,
        provers: 16,
        ..TestConfig::OFF
    };
    let mut config = test_config.config();
    config.local.push(SECOND_GATEWAY_IP.into());
    // The data plane creates its sockets before the addresses are configured.
    let mut xdp = load_xdp(&config);
    for address in ["10.66.0.254/16", "10.67.0.254/24"] {
        ip(&format!("address add {address} dev here"));
    }
    ip("address add fd66::fe/64 dev here nodad");
    ip("link set here up");
    link_created_sender.send(()).unwrap();
    let devices = device_side.join().unwrap().unwrap();
    xdp.attach(index_of("here")).unwrap();
    install_key(&mut xdp, A, FRESH);
    let bound = A.response(&response(0).bound(A.mac()));
    let frame = A.frame(false).udp(bound.as_bytes());
    assert_eq!(xdp.test_run(&frame).unwrap().action, 3);
    let session = DeviceSession::of(A, Mode::Key, &bound);
    for number in 1..=3 {
        run_round(&mut xdp, number, &session, &devices);
    }

    // Datagrams that arrive at the request sockets through another interface are dropped, and occupy no memory.
    let sender = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    for _ in 0..200 {
        sender
            .send_to(&[0; 1000], (gateway_end(false).ip, LAP_PORT))
            .unwrap();
    }
    wait_until("not all datagrams were dropped", || {
        unread_and_dropped()
            .iter()
            .map(|(_, dropped)| dropped)
            .sum::<u64>()
            == 200
    });
    assert!(unread_and_dropped().iter().all(|(unread, _)| *unread == 0));

    // A request without a route is reported, and the remaining requests can still be sent.
    let round = begin_round(&mut xdp, 4);
    let request = |listener: &ListeningDevice| {
        let id = listener.device.id();
        (
            listener.address(),
            round.request_without_session(id, &RequestKey::from_hmac(&[7; 32])),
        )
    };
    let unreachable = (
        SocketAddr::from(([192, 0, 2, 1], DEVICE_PORT)),
        request(&devices[1]).1,
    );
    let requests = [
        unreachable,
        request(&devices[1]),
        unreachable,
        request(&devices[2]),
    ];
    for first in [0, 2] {
        let error = xdp.send_attest_requests(&requests[first..]).unwrap_err();
        assert!(format!("{error}").contains("192.0.2.1:20554"), "{error}");
        assert_eq!(xdp.send_attest_requests(&requests[first + 1..]).unwrap(), 1);
    }
    devices[1].answer_request(&requests[1].1);
    devices[2].answer_request(&requests[3].1);
}

#[test]
fn xdp_sends_requests_without_a_gate() {
    xdp_requests_over_a_link(Gate::Off);
}

#[test]
fn xdp_sends_requests_past_a_bound_gate() {
    xdp_requests_over_a_link(Gate::Bound);
}

#[test]
fn xdp_sends_requests_past_a_sealed_gate() {
    xdp_requests_over_a_link(Gate::Sealed);
}

/// A configuration of `host` at loopback addresses that only one test uses, because tests run at the same time.
fn host_config(addresses: &[IpAddr]) -> Config {
    Config {
        local: addresses.to_vec(),
        device_prefixes: vec!["127.0.0.0/8".parse().unwrap()],
        ..TestConfig::ATTESTING.config()
    }
}

/// Opens a session of A from the given address with its RESPONSE `idx`.
fn open_session(host: &mut Host, from: IpAddr, idx: u32) -> DeviceSession {
    let (engine, mut thread) = (host.engine(), host.thread_state());
    let response = A.response(&response(idx));
    let meta = Meta {
        src_ip: ip_bytes(from),
        src_port: 40_001,
        ..Meta::default()
    };
    let mut payload: [u8; MESSAGE_BYTES] = response.as_bytes().try_into().unwrap();
    let verdict = engine.process(&mut thread, Timestamps::from(real_now()), &meta, &mut payload);
    assert_eq!(verdict, Verdict::ReplyAck);
    DeviceSession::of(A, Mode::Key, &response)
}

#[test]
fn host_sends_requests_over_loopback() {
    let loopback = |last: u8| IpAddr::from([127, 31, 0, last]);
    let gateway = |ip| SocketAddr::new(ip, LAP_PORT);
    let mut host = Host::new(&host_config(&[loopback(1)])).unwrap();
    install_key(&mut host, A, FRESH);
    let request = (gateway(loopback(9)), begin_and_request(&mut host));
    assert_eq!(
        host.send_attest_requests(&[request]).unwrap(),
        0,
        "a request was sent before `host` listens"
    );
    let options = HostOptions {
        threads: 2,
        ..HostOptions::default()
    };
    host.listen(&host_config(&[loopback(1)]), &options).unwrap();
    let session = open_session(&mut host, loopback(11), 0);
    let devices = [
        ListeningDevice::new(A, loopback(11), gateway(loopback(1))),
        ListeningDevice::new(B, loopback(12), gateway(loopback(1))),
    ];
    for number in 2..=4 {
        run_round(&mut host, number, &session, &devices);
    }
    // All requests arrive although one system call cannot send so many.
    let round = begin_round(&mut host, 5);
    let request = |number: u16| {
        round.request_without_session(TestDevice(number).id(), &RequestKey::from_hmac(&[7; 32]))
    };
    let requests: Vec<_> = (0..200)
        .map(|number| (devices[1].address(), request(number)))
        .collect();
    let mut sent = 0;
    let mut buffer = [0; PROOF_BYTES];
    let mut received = 0;
    while received < requests.len() {
        sent += host.send_attest_requests(&requests[sent..]).unwrap();
        assert_eq!(devices[1].socket.recv(&mut buffer).unwrap(), MESSAGE_BYTES);
        assert_eq!(&buffer[..MESSAGE_BYTES], requests[received].1.as_bytes());
        received += 1;
    }
    assert_eq!(sent, requests.len());
    host.stop();
    assert_eq!(
        host.send_attest_requests(&requests).unwrap(),
        0,
        "a request was sent after `host` has stopped"
    );
}

/// Opens a round; returns a request to B in that round.
fn begin_and_request(host: &mut Host) -> AttestRequest {
    install_prover(host, B);
    let round = begin_round(host, 1);
    round.request_without_session(B.id(), &RequestKey::from_hmac(&[7; 32]))
}

#[test]
fn a_session_request_requires_a_live_session() {
    let from = IpAddr::from([10, 66, 128, 1]);
    let mut host = Host::new(&TestConfig::ATTESTING.config()).unwrap();
    let requested = round(4, 1);
    assert!(
        host.session_request(A.id(), &requested, boot_s()).is_none(),
        "the device is not installed"
    );
    install_key(&mut host, A, FRESH);
    assert!(
        host.session_request(A.id(), &requested, boot_s()).is_none(),
        "no session"
    );
    let before_s = boot_s();
    let session = open_session(&mut host, from, 0);
    let (ip, request) = host.session_request(A.id(), &requested, before_s).unwrap();
    assert_eq!(ip, from);
    assert_eq!(
        request.as_bytes(),
        requested.request(A.id(), &session.key).as_bytes()
    );
    let until_s = host.session(A.id()).unwrap().session_until_s;
    assert!((before_s + SESSION_LIFETIME_S..=boot_s() + SESSION_LIFETIME_S).contains(&until_s));
    assert!(host.session_request(A.id(), &requested, until_s - 1).is_some());
    assert!(
        host.session_request(A.id(), &requested, until_s).is_none(),
        "the session has expired"
    );
    let id = host.session(A.id()).unwrap().id;
    host.close_session(A.id(), id).unwrap();
    assert!(
        host.session_request(A.id(), &requested, boot_s()).is_none(),
        "the session is closed"
    );
    open_session(&mut host, from, 1);
    assert!(host.session_request(A.id(), &requested, boot_s()).is_some());
    host.revoke(A.id()).unwrap();
    assert!(
        host.session_request(A.id(), &requested, boot_s()).is_none(),
        "the device is revoked"
    );
}

/// The device renews its session from changing addresses. A request must not mix the halves of two session keys, or combine
/// the key of one session with the address of another session.
#[test]
fn a_request_belongs_to_one_session_during_renewals() {
    const RENEWALS: u32 = 2_000;
    let from = |idx: u32| match idx % 2 {
        0 => A.end(false).ip,
        _ => A.end(true).ip,
    };
    let mut host = Host::new(&TestConfig::ATTESTING.config()).unwrap();
    install_key(&mut host, A, FRESH);
    let requested = round(4, 1);
    let (engine, mut thread) = (host.engine(), host.thread_state());
    // All renewals use the same time: on a busy machine, the fresh value would otherwise expire during the test.
    let (now, now_s) = (Timestamps::from(real_now()), boot_s());
    let (is_running, reads, mut requests) = (AtomicBool::new(true), AtomicU32::new(0), Vec::new());
    let mut tags = BTreeMap::new();
    // The threads run on different CPUs if there are two. On one CPU, threads that yield to each other possibly never
    // run in the required order.
    let cpus = cpus();
    thread::scope(|scope| {
        scope.spawn(|| {
            let _running_flag = RunningFlag(&is_running);
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
                let session = DeviceSession::of(A, Mode::Key, &response);
                tags.insert(requested.request(A.id(), &session.key).tag, from(idx));
                // Waits for two further reads. The second one has begun after this renewal, so every session is read at
                // least one time.
                let reads_before = reads.load(Ordering::Acquire);
                while is_running.load(Ordering::Acquire) && reads.load(Ordering::Acquire) < reads_before + 2 {
                    thread::yield_now();
                }
            }
        });
        let _running_flag = RunningFlag(&is_running);
        pin_to(cpus[cpus.len() - 1]);
        while is_running.load(Ordering::Acquire) {
            requests.extend(host.session_request(A.id(), &requested, now_s));
            reads.fetch_add(1, Ordering::AcqRel);
            // If both threads share a CPU, the other thread would otherwise wait for a time slice at each renewal.
            thread::yield_now();
        }
    });
    for (ip, request) in &requests {
        assert_eq!(tags.get(&request.tag), Some(ip));
    }
    let tags: BTreeSet<_> = requests.iter().map(|(_, request)| request.tag).collect();
    println!("{} requests of {} sessions", requests.len(), tags.len());
    assert_eq!(tags.len(), RENEWALS as usize);
}
