//! Repeated `kill -9` of a running gateway, of its controller, or of both, while devices authenticate at this gateway.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use linewarden_protocol::ids::{DeviceId, Mode};
use linewarden_protocol::wire::{self, Message};
use linewarden_registry::{MasterKey, Registry};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::support::device::StatelessDevice;
use crate::support::{KilledOnDrop, TEST_TIMEOUT, command, free_udp_port, write_controller_config};

const KILLS: u32 = 40;
const ROWS: u32 = 800;
/// Default value of the setting `mark_block`.
const MARK_BLOCK: u32 = 4;
/// Maximum number of rows that a device with several handshakes at one gateway process loses when the process is killed. The
/// mark is at most 14 rows ahead, because handshakes move the mark. One more row can be used without an ACK.
const BUSY_LOSS: u32 = 14 + 1;

/// A device with its own socket, and a record of the rows and sessions that the gateway accepted.
struct Station {
    device: StatelessDevice,
    address: Ipv4Addr,
    socket: UdpSocket,
    /// For each accepted row (pool mode) or session (key mode): the number of the gateway process with the acceptance, and the
    /// ID of the session.
    acceptances: HashMap<(u32, [u8; 8]), (u32, [u8; 8])>,
    /// Handshakes with the running gateway process.
    handshakes: u32,
}

impl Station {
    fn new(number: u8, mode: Mode, port: u16) -> Self {
        let address = Ipv4Addr::new(127, 0, 0, 100 + number);
        let socket = UdpSocket::bind((address, 0)).unwrap();
        socket.connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self {
            device: StatelessDevice::new(DeviceId(0xd0 + u64::from(number)), mode, ROWS),
            address,
            socket,
            acceptances: HashMap::new(),
            handshakes: 0,
        }
    }

    fn begin(&mut self, nonce: [u8; 16], now_ms: u64) {
        self.handshakes += 1;
        self.device
            .begin(nonce, now_ms, |message| send(&self.socket, message));
    }

    /// Processes received messages and due timers. `process` is the number of the running gateway process.
    fn poll(&mut self, process: u32, now_ms: u64) {
        let mut payload = [0u8; 128];
        loop {
            let length = match self.socket.recv(&mut payload) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // No process listens: the gateway is dead.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
                Err(error) => panic!("{error}"),
            };
            let payload = &payload[..length];
            self.record_ack(payload, process);
            let local = self.address.to_ipv6_mapped().octets();
            let send_reply = |message: &[u8; 64]| send(&self.socket, message);
            self.device.receive(payload, &local, now_ms, send_reply);
        }
        self.device.poll(now_ms, |message| send(&self.socket, message));
    }

    /// Records an ACK, which proves that a row is used. Asserts that no other gateway process has sent an ACK for this row,
    /// and that the row has opened no other session.
    fn record_ack(&mut self, payload: &[u8], process: u32) {
        let Ok(Message::Ack(ack)) = wire::parse(payload) else {
            return;
        };
        // In pool mode, a row is accepted once. In key mode, a RESPONSE is accepted once; the session ID identifies the RESPONSE.
        let (idx, session) = match self.device.mode {
            Mode::Pool => (ack.idx.get(), [0; 8]),
            Mode::Key => (0, ack.session_id),
        };
        let acceptance = (process, ack.session_id);
        let first_acceptance = *self.acceptances.entry((idx, session)).or_insert(acceptance);
        assert_eq!(
            first_acceptance, acceptance,
            "row {idx} of device {} was accepted twice: (gateway process, session)",
            self.device.id
        );
    }
}

fn send(socket: &UdpSocket, message: &[u8; 64]) {
    // A lost message is sent again.
    let _ = socket.send(message);
}

/// Which processes are killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Killed {
    Gateway,
    Controller,
    Both,
}

impl Killed {
    fn has_gateway(self) -> bool {
        self != Self::Controller
    }

    fn has_controller(self) -> bool {
        self != Self::Gateway
    }
}

/// Starts a process, and does not wait until the process serves.
fn start(directory: &Path, command_line: &str) -> KilledOnDrop {
    let child = command(directory, command_line)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    KilledOnDrop(child.unwrap())
}

fn serve(directory: &Path) -> KilledOnDrop {
    start(
        directory,
        "linewarden-gateway run --config gateway.toml --output json",
    )
}

fn start_controller(directory: &Path) -> KilledOnDrop {
    start(
        directory,
        "linewarden-controller run --config controller.toml --output json",
    )
}

#[test]
fn a_gateway_that_is_killed_at_any_moment_accepts_no_row_twice_and_empties_no_pool() {
    scenario(Killed::Gateway);
}

#[test]
fn a_gateway_whose_controller_is_killed_at_any_moment_accepts_no_row_twice_and_loses_no_row() {
    scenario(Killed::Controller);
}

#[test]
fn a_gateway_that_is_killed_with_its_controller_accepts_no_row_twice_and_empties_no_pool() {
    scenario(Killed::Both);
}

fn scenario(killed: Killed) {
    let seed: u64 = std::env::var("LINEWARDEN_KILL_SEED").map_or_else(
        |_| getrandom::u64().unwrap(),
        |text| text.parse().expect("LINEWARDEN_KILL_SEED is a number"),
    );
    println!("LINEWARDEN_KILL_SEED={seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let directory = tempfile::tempdir().unwrap();
    let port = free_udp_port();
    std::fs::write(
        directory.path().join("gateway.toml"),
        format!(
            "[gateway]\nid = 5\ndataplane = \"host\"\ninterfaces = [\"lo\"]\naddresses = [\"127.0.0.1\"]\n\
             port = {port}\nslots = 100\nthreads = 1\nmark_block = {MARK_BLOCK}\n\
             [controller]\nsocket = \"controller.sock\"\n"
        ),
    )
    .unwrap();
    write_controller_config(directory.path());
    let modes = [Mode::Pool; 6].into_iter().chain([Mode::Key; 2]);
    let mut stations: Vec<Station> = (1..)
        .zip(modes)
        .map(|(number, mode)| Station::new(number, mode, port))
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let key = MasterKey::generate_file(directory.path().join("master.key")).unwrap();
    let path = directory.path().join("fleet.registry");
    runtime.block_on(async {
        let registry = Registry::create(&path, &key).await.unwrap();
        for station in &stations {
            registry.enroll(station.device.record()).await.unwrap();
        }
        registry.close().await;
    });

    let mut lost_max = 0;
    let test_start = Instant::now();
    let now_ms = || u64::try_from(test_start.elapsed().as_millis()).unwrap();
    let mut controller = None;
    let mut gateway = None;
    let mut process = 0;
    for pass in 0..=KILLS {
        // Processes that start together start in either order.
        if rng.random() {
            controller.get_or_insert_with(|| start_controller(directory.path()));
        }
        gateway.get_or_insert_with(|| serve(directory.path()));
        controller.get_or_insert_with(|| start_controller(directory.path()));
        let started = Instant::now();
        for station in &mut stations {
            // In most cases the device starts a new handshake. Otherwise the device continues to repeat its unanswered message.
            station.device.is_idle |= pass == KILLS || rng.random_ratio(3, 4);
            station.handshakes = u32::from(!station.device.is_idle);
            // An eavesdropper replays messages that earlier processes received.
            for message in station.device.sent.iter().rev().take(3) {
                let _ = station.socket.send(message);
            }
        }
        let is_last = pass == KILLS;
        let handshakes = if rng.random_ratio(1, 4) { 4 } else { 1 };
        if !is_last && killed.has_gateway() {
            lost_max += if handshakes == 1 { MARK_BLOCK } else { BUSY_LOSS };
        }
        let sessions_before: Vec<u32> = stations.iter().map(|station| station.device.sessions).collect();
        // The kill can come before the gateway listens, or long after every device has authenticated.
        let runtime_ms = rng.random_range(0..700);
        loop {
            for station in &mut stations {
                station.poll(process, now_ms());
                if station.device.is_idle && (is_last || station.handshakes < handshakes) {
                    station.begin(rng.random(), now_ms());
                }
            }
            std::thread::sleep(Duration::from_micros(500));
            let all_authenticated = || {
                stations
                    .iter()
                    .zip(&sessions_before)
                    .all(|(station, before)| station.device.sessions > *before)
            };
            match is_last {
                false if started.elapsed() > Duration::from_millis(runtime_ms) => break,
                true if all_authenticated() => break,
                true => assert!(started.elapsed() < TEST_TIMEOUT, "a device cannot authenticate"),
                false => {}
            }
        }
        // SIGKILL, in either order.
        if killed.has_controller() && rng.random() {
            controller = None;
            // The gateway continues without its controller for a short time.
            let pause_end = Instant::now() + Duration::from_millis(rng.random_range(0..50));
            while Instant::now() < pause_end {
                stations
                    .iter_mut()
                    .for_each(|station| station.poll(process, now_ms()));
                std::thread::sleep(Duration::from_micros(500));
            }
        }
        if killed.has_gateway() || is_last {
            gateway = None;
            // The loopback interface has already delivered the messages of the killed process.
            stations
                .iter_mut()
                .for_each(|station| station.poll(process, now_ms()));
            process += 1;
        }
        if killed.has_controller() || is_last {
            controller = None;
        }
    }

    let mut accepted_rows = 0;
    for station in stations
        .iter()
        .filter(|station| station.device.mode == Mode::Pool)
    {
        let rows: Vec<u32> = station.acceptances.keys().map(|(idx, _)| *idx).collect();
        let used_count = rows.iter().max().unwrap() + 1;
        let lost = used_count - u32::try_from(rows.len()).unwrap();
        assert!(
            lost <= lost_max,
            "device {} lost {lost} rows; at most {lost_max} are permitted",
            station.device.id
        );
        println!(
            "device {}: {} rows accepted, {lost} rows lost, at most {lost_max} permitted",
            station.device.id,
            rows.len()
        );
        accepted_rows += rows.len();
    }
    assert!(
        accepted_rows > stations.len(),
        "too few handshakes were accepted: {accepted_rows}"
    );
    let registry = runtime.block_on(Registry::open(&path, &key)).unwrap();
    for station in &stations {
        let rows_left = runtime
            .block_on(registry.get(station.device.id))
            .unwrap()
            .rows_left();
        assert!(
            rows_left.is_none_or(|rows_left| rows_left > ROWS / 4),
            "device {}: {rows_left:?}",
            station.device.id
        );
    }
}
