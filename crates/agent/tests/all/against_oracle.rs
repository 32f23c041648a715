//! The agent, with real sockets, a real clock and a simulated PUF, against the reference gateway `protocol::gateway`
//! behind a UDP socket.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linewarden_agent::source::{FleetSeed, SimulatedPuf};
use linewarden_agent::{Agent, AgentEvent, AgentOptions, Credential, Keyring, RunOutcome};
use linewarden_protocol::device::{DeviceConfig, GatewayPolicy};
use linewarden_protocol::frame::Meta;
use linewarden_protocol::gateway::{DeviceInstall, FreshValue, Gateway, GatewayConfig, Row};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey};
use linewarden_protocol::sources::DeviceSources;
use linewarden_protocol::time::Now;
use linewarden_protocol::verdict::Disposition;
use linewarden_protocol::wire::{self, Message, message_type};
use linewarden_puf::extractor::{KeyEnrollment, PoolEnrollment, enroll_pool, enroll_puf};
use linewarden_puf::health::HealthTest;
use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;
use rustix::event::{EventfdFlags, eventfd};
use zerocopy::IntoBytes as _;

const GATEWAY: GatewayId = GatewayId(9);
const DEVICE: DeviceId = DeviceId(0x00d1);
const SUITE: Suite = Suite::SipHash128;

/// The reference gateway on its own socket, in a thread that ends when this value is dropped.
struct Oracle {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Oracle {
    fn start(session_lifetime_s: u32, mode: Mode, keys: &[([u8; 8], RowKey)]) -> Self {
        Self::start_with(session_lifetime_s, mode, keys, false)
    }

    /// Like [`Self::start`]; with `has_forger`, a forged CHALLENGE arrives before each CHALLENGE of the gateway.
    fn start_with(session_lifetime_s: u32, mode: Mode, keys: &[([u8; 8], RowKey)], has_forger: bool) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        let address = socket.local_addr().unwrap();
        let mut gateway = Gateway::new(GatewayConfig {
            session_lifetime_s,
            sources: Some(DeviceSources::new(
                &["127.0.0.0/8".parse().unwrap()],
                &[address.ip()],
                &[],
            )),
            ..GatewayConfig::new(GATEWAY, &[address.ip()])
        });
        let rows = (0..).zip(keys).map(|(idx, (challenge, key))| Row {
            challenge: *challenge,
            auth_key: AuthKey::derive(key, SUITE, mode, RowIndex(idx), GATEWAY),
        });
        gateway
            .install(DeviceInstall {
                device: DEVICE,
                mode,
                next_idx: RowIndex(0),
                rows: rows.collect(),
                mark: None,
            })
            .unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let thread_stop = Arc::clone(&stop);
        let thread = std::thread::spawn(move || serve(gateway, &socket, &thread_stop, has_forger));
        Self {
            address,
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn serve(mut gateway: Gateway, socket: &UdpSocket, stop: &AtomicBool, has_forger: bool) {
    let started_at = Instant::now();
    let fresh = |byte| FreshValue::from_wire([byte; 8]).unwrap();
    gateway.replace_fresh_values(fresh(1), fresh(2), Now::default());
    let mut buffer = [0u8; 2048];
    while !stop.load(Ordering::Acquire) {
        let Ok((length, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let ms = started_at.elapsed().as_millis() as u64;
        let now = Now {
            monotonic_ms: ms,
            boot_ms: ms,
        };
        let IpAddr::V4(ip) = from.ip() else {
            panic!("{from}")
        };
        let meta = Meta {
            ingress: 1,
            vlans: [0; 2],
            src_mac: [0; 6],
            dst_mac: [0; 6],
            src_ip: ip.to_ipv6_mapped().octets(),
            dst_ip: Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets(),
            src_port: from.port(),
            dst_port: 20550,
        };
        let payload = &mut buffer[..length];
        if has_forger && let Ok(Message::Request(request)) = wire::parse(payload) {
            let forged = wire::Challenge {
                header: wire::Header::new(message_type::CHALLENGE, SUITE, 0, DEVICE),
                idx: 7.into(),
                gateway_id: GATEWAY.0.into(),
                challenge: [0; 8],
                fresh: [1; 8],
                nonce_echo: request.nonce[..8].try_into().unwrap(),
                tag: [3; 16],
            };
            socket.send_to(forged.as_bytes(), from).unwrap();
        }
        if gateway.handle_payload(now, &meta, payload).disposition() == Disposition::Reply {
            socket.send_to(payload, from).unwrap();
        }
    }
}

fn puf(model: &str) -> SimulatedPuf {
    toml::from_str(&format!("model = \"{model}\"\nseed_file = \"unused\"")).unwrap()
}

fn enroll_strong(rows: u32) -> (Credential, Vec<([u8; 8], RowKey)>) {
    let mut chip = puf("xor-arbiter")
        .build(&FleetSeed::from_bytes([1; 32]), DEVICE, 1)
        .unwrap();
    let mut rng = ChaCha20Rng::seed_from_u64(2);
    let pool = enroll_pool(&mut chip, &PoolEnrollment::rows(rows), &mut rng).unwrap();
    let keys = pool.rows.iter().map(|row| {
        let key = RowKey::for_row(row.secret.expose(), &row.digest, SUITE, DEVICE, RowIndex(row.idx));
        (row.challenge, key)
    });
    let keys = keys.collect();
    (Credential::Pool(pool.helper), keys)
}

fn agent(credential: Credential, model: &str, seed: u8, gateway: SocketAddr) -> Agent {
    let mode = credential.mode();
    agent_with(Keyring::fixed(credential), mode, model, seed, gateway)
}

fn agent_with(keyring: Keyring, mode: Mode, model: &str, seed: u8, gateway: SocketAddr) -> Agent {
    let chip = puf(model)
        .build(&FleetSeed::from_bytes([seed; 32]), DEVICE, 7)
        .unwrap();
    let options = AgentOptions {
        tunnels: Vec::new(),
        device: DeviceConfig {
            device: DEVICE,
            suite: SUITE,
            mode,
            gateways: GatewayPolicy::pinned(&[GATEWAY]).unwrap(),
            bound_mac: None,
        },
        keyring,
        renewal: None,
        ticket_port: 1,
        peers: Vec::new(),
        attest: None,
        peer_port: 1,
        health: HealthTest::default(),
        gateway,
        once: false,
        session_timeout: Some(Duration::from_secs(60)),
    };
    Agent::new(options, chip)
}

/// Runs the agent until the reported events satisfy `is_done`; returns all events.
fn run(agent: &mut Agent, is_done: impl Fn(&[AgentEvent]) -> bool) -> (RunOutcome, Vec<AgentEvent>) {
    let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let mut reports = Vec::new();
    let outcome = agent
        .run(stop.as_fd(), &mut |report| {
            reports.push(report.clone());
            if is_done(&reports) {
                rustix::io::write(&stop, &1u64.to_ne_bytes()).unwrap();
            }
        })
        .unwrap();
    (outcome, reports)
}

fn authenticated_rows(reports: &[AgentEvent]) -> Vec<u32> {
    let row = |report: &AgentEvent| match report {
        AgentEvent::Authenticated { row: idx, .. } => Some(*idx),
        _ => None,
    };
    reports.iter().filter_map(row).collect()
}

#[test]
fn an_agent_authenticates_and_renews_before_the_session_expires() {
    let (credential, keys) = enroll_strong(4);
    let oracle = Oracle::start(1, Mode::Pool, &keys);
    let mut agent = agent(credential, "xor-arbiter", 1, oracle.address);
    let (outcome, reports) = run(&mut agent, |reports| authenticated_rows(reports).len() >= 3);
    assert_eq!(outcome, RunOutcome::Stopped);
    assert_eq!(authenticated_rows(&reports), [0, 1, 2]);
    assert!(!reports.contains(&AgentEvent::SessionExpired), "{reports:?}");
    assert_eq!(reports.last(), Some(&AgentEvent::Stopped));
    assert!(matches!(
        &reports[1],
        AgentEvent::Authenticated { gateway_id: 9, session_lifetime_s: 1, device_id: device, .. } if device == "00000000000000d1"
    ));
}

fn enroll_weak(seed: u64) -> (Credential, RowKey) {
    let mut chip = puf("sram")
        .build(&FleetSeed::from_bytes([1; 32]), DEVICE, 1)
        .unwrap();
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    let enrolled = enroll_puf(&mut chip, 32_768, 5, &KeyEnrollment::default(), &mut rng).unwrap();
    let key = RowKey::for_device(enrolled.secret.expose(), &enrolled.helper.digest(), SUITE, DEVICE);
    (Credential::Key(enrolled.helper), key)
}

#[test]
fn key_mode_works_with_a_weak_puf() {
    let (credential, key) = enroll_weak(3);
    let oracle = Oracle::start(1, Mode::Key, &[([0; 8], key)]);
    let mut agent = agent(credential, "sram", 1, oracle.address);
    let (_, reports) = run(&mut agent, |reports| authenticated_rows(reports).len() >= 2);
    assert_eq!(authenticated_rows(&reports), [0, 1]);
}

/// Suffixes of the helper data files of a device that renewed its key four times. The last renewal received no
/// response.
const HELPER_DATA_SUFFIXES: [&str; 5] = [".new", "", ".previous", ".previous.2", ".previous.3"];

/// A forged CHALLENGE arrives first. No row key verifies its tag, so the device reads the PUF with each set of helper
/// data. Then the genuine CHALLENGE arrives: a row key from one of these readouts verifies its tag.
#[test]
fn helper_data_with_a_verified_key_become_the_current_file() {
    let sets: Vec<(Credential, RowKey)> = (10..15).map(enroll_weak).collect();
    std::thread::scope(|scope| {
        for (registered_set, expected_files) in [
            (0, [None, Some(0), Some(1), Some(2), Some(3)]),
            (1, [Some(0), Some(1), Some(2), Some(3), Some(4)]),
            (2, [Some(0), Some(2), Some(1), Some(2), Some(3)]),
            (4, [Some(0), Some(4), Some(1), Some(2), Some(3)]),
        ] {
            let sets = &sets;
            scope.spawn(move || {
                let files = files_after_a_session(sets, registered_set);
                assert_eq!(
                    files, expected_files,
                    "the registry has the key of {:?}",
                    HELPER_DATA_SUFFIXES[registered_set]
                );
            });
        }
    });
}

/// Opens a session with a gateway that has the key of the set `registered_set`. Then returns, for each file, the index of the
/// set in the file; `None` if the file does not exist.
fn files_after_a_session(sets: &[(Credential, RowKey)], registered_set: usize) -> [Option<usize>; 5] {
    let directory = tempfile::tempdir().unwrap();
    let path = |suffix: &str| directory.path().join(format!("d1.helper{suffix}"));
    for (suffix, (credential, _)) in HELPER_DATA_SUFFIXES.iter().zip(sets) {
        std::fs::write(path(suffix), credential.to_bytes()).unwrap();
    }
    let key = sets[registered_set].1.clone();
    let oracle = Oracle::start_with(60, Mode::Key, &[([0; 8], key)], true);
    let keyring = Keyring::read_from(&path("")).unwrap();
    let mut agent = agent_with(keyring, Mode::Key, "sram", 1, oracle.address);
    let (outcome, reports) = run(&mut agent, |reports| !authenticated_rows(reports).is_empty());
    assert_eq!(outcome, RunOutcome::Stopped, "{reports:?}");
    let is_renewed = reports.contains(&AgentEvent::KeyRenewed);
    let is_older = reports.contains(&AgentEvent::PreviousKeyInRegistry);
    assert_eq!(
        (is_renewed, is_older),
        (registered_set == 0, registered_set > 1),
        "{reports:?}"
    );
    assert!(!path(".previous.4").exists() || registered_set > 1);
    HELPER_DATA_SUFFIXES.map(|suffix| {
        let content = std::fs::read(path(suffix)).ok()?;
        let set = sets.iter().position(|(set, _)| set.to_bytes() == content);
        Some(set.expect("one of the sets"))
    })
}

#[test]
fn another_chip_with_the_same_helper_data_cannot_authenticate() {
    let (credential, keys) = enroll_strong(2);
    let oracle = Oracle::start(60, Mode::Pool, &keys);
    let mut agent = agent(credential, "xor-arbiter", 2, oracle.address);
    let has_failed = |reports: &[AgentEvent]| {
        reports
            .iter()
            .any(|report| matches!(report, AgentEvent::AuthenticationFailed { .. }))
    };
    let (_, reports) = run(&mut agent, has_failed);
    assert_eq!(authenticated_rows(&reports), [0; 0]);
    assert!(
        reports
            .iter()
            .any(|report| matches!(report, AgentEvent::PufFailed { .. })),
        "{reports:?}"
    );
}

#[test]
fn an_exhausted_pool_is_reported_with_the_gateways_reason() {
    let (credential, keys) = enroll_strong(1);
    let oracle = Oracle::start(1, Mode::Pool, &keys);
    let mut agent = agent(credential, "xor-arbiter", 1, oracle.address);
    let has_refusal = |reports: &[AgentEvent]| {
        reports
            .iter()
            .any(|report| matches!(report, AgentEvent::RequestRefused { .. }))
    };
    let (_, reports) = run(&mut agent, has_refusal);
    let Some(AgentEvent::RequestRefused { reason, row: 1 }) = reports
        .iter()
        .rfind(|report| matches!(report, AgentEvent::RequestRefused { .. }))
    else {
        panic!("{reports:?}");
    };
    assert!(reason.contains("no rows"), "{reason}");
}

#[test]
fn without_a_gateway_the_agent_stops_at_its_timeout() {
    let (credential, _) = enroll_strong(1);
    // The socket reserves the port; the test never reads from the socket.
    let silent_peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let chip = puf("xor-arbiter")
        .build(&FleetSeed::from_bytes([1; 32]), DEVICE, 7)
        .unwrap();
    let options = AgentOptions {
        tunnels: Vec::new(),
        device: DeviceConfig {
            device: DEVICE,
            suite: SUITE,
            mode: Mode::Pool,
            gateways: GatewayPolicy::ANY,
            bound_mac: None,
        },
        keyring: Keyring::fixed(credential),
        renewal: None,
        ticket_port: 1,
        peers: Vec::new(),
        attest: None,
        peer_port: 1,
        health: HealthTest::default(),
        gateway: silent_peer.local_addr().unwrap(),
        once: true,
        session_timeout: Some(Duration::from_millis(100)),
    };
    let (outcome, reports) = run(&mut Agent::new(options, chip), |_| false);
    assert_eq!(outcome, RunOutcome::TimedOut);
    assert!(
        matches!(reports.as_slice(), [AgentEvent::LinkOpened { .. }]),
        "{reports:?}"
    );
}
