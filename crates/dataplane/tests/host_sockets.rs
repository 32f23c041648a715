//! `host` with real sockets and threads. Its peers are real implementations of the device role.
//!
//! A program of its own: child processes that other tests start would have copies of sockets whose ports are bound again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[macro_use(test)]
extern crate linewarden_harness;

#[path = "all/support/netns.rs"]
#[allow(dead_code, reason = "the other program uses all items")]
mod netns;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use linewarden_dataplane::classic::host::ClassicHost;
use linewarden_dataplane::classic::{Classic, ClassicProfile};
use linewarden_dataplane::host::{Host, HostOptions};
use linewarden_dataplane::store::Row;
use linewarden_dataplane::{
    Admission as _, Config, ConfigError, DataPlane, DataPlaneError, Devices as _, Event, EventKind, Gate,
    Geometry, Telemetry as _,
};
use linewarden_harness::skip_part;
use linewarden_protocol::classic::{Message, ResponseBits, device as classic_device, message_type};
use linewarden_protocol::device::{Device, DeviceConfig, GatewayPolicy, Output, Phase};
use linewarden_protocol::frame::ip_bytes;
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey};
use linewarden_protocol::prf;
use linewarden_protocol::verdict::Verdict;

use netns::{ip, leave_namespace};

const GATEWAY: GatewayId = GatewayId(5);
/// Maximum time to wait for an expected datagram; a loaded machine can be slow.
const TIMEOUT: Duration = Duration::from_secs(20);

fn now_ms(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a timespec.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    (time.tv_sec * 1000 + time.tv_nsec / 1_000_000).cast_unsigned()
}

fn config(local: &[IpAddr], port: u16) -> Config {
    Config {
        gateway_id: GATEWAY,
        session_lifetime_s: 600,
        lap_port: port,
        local: local.to_vec(),
        device_prefixes: ["127.0.0.0/8", "::1/128"]
            .map(|text| text.parse().unwrap())
            .to_vec(),
        follows_interfaces: false,
        other_addresses: Vec::new(),
        fragments: false,
        gate: Gate::Off,
        nak_per_s: 10,
        alarm_per_s: 10,
        miss_per_s: 0,
        low_rows: 1,
        low_credit: 0,
        geometry: Geometry {
            slots: 64,
            ring: 4,
            hash_seed: [1, 2],
        },
        provers: 0,
        inband_evidence: false,
        always_pass: Vec::new(),
        dhcp_servers: Vec::new(),
    }
}

fn options(threads: usize) -> HostOptions {
    HostOptions {
        threads,
        ..HostOptions::default()
    }
}

/// A loopback address that only the test with this number uses, because tests run at the same time.
fn own_loopback(test: u8) -> IpAddr {
    Ipv4Addr::new(127, 20, test, 1).into()
}

/// A port that no socket uses at an address.
fn free_port(ip: IpAddr) -> u16 {
    UdpSocket::bind((ip, 0)).unwrap().local_addr().unwrap().port()
}

/// A running `host` with a fresh value.
fn start_host(config: &Config, threads: usize) -> Host {
    let mut host = Host::start(config, &options(threads)).unwrap();
    host.set_fresh([7; 8], now_ms(libc::CLOCK_MONOTONIC) * 1_000_000);
    host
}

/// A device and its socket.
struct Peer {
    id: DeviceId,
    mode: Mode,
    socket: UdpSocket,
}

impl Peer {
    fn connect(number: u64, mode: Mode, from: IpAddr, to: SocketAddr) -> Self {
        let socket = UdpSocket::bind((from, 0)).unwrap();
        // A connected socket receives replies only from the address to which it sends requests.
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        Self {
            id: DeviceId(0xabc0_0000_0000_0000 + number),
            mode,
            socket,
        }
    }

    /// The PUF's response for a row.
    fn row_key(&self, idx: RowIndex) -> RowKey {
        let idx = if self.mode == Mode::Key { 0 } else { idx.0 };
        RowKey::from_bytes(prf::f(
            b"the device's PUF",
            &[self.id.0.to_be_bytes(), u64::from(idx).to_be_bytes()],
        ))
    }

    fn install(&self, host: &mut Host) {
        let count = if self.mode == Mode::Key { 1 } else { 3 };
        let row = |idx| Row {
            challenge: [0; 8],
            auth_key: AuthKey::derive(
                &self.row_key(RowIndex(idx)),
                Suite::SipHash128,
                self.mode,
                RowIndex(idx),
                GATEWAY,
            ),
        };
        let rows: Vec<Row> = (0..count).map(row).collect();
        host.install(self.id, self.mode, RowIndex(0), &rows, None)
            .unwrap();
    }

    /// Runs one complete handshake; returns whether the device is authenticated.
    fn authenticate(&self, bound_mac: Option<[u8; 6]>) -> bool {
        let mut device = Device::new(DeviceConfig {
            device: self.id,
            suite: Suite::SipHash128,
            mode: self.mode,
            gateways: GatewayPolicy::ANY,
            bound_mac,
        });
        let local_ip = ip_bytes(self.socket.local_addr().unwrap().ip());
        let clock = || now_ms(libc::CLOCK_BOOTTIME);
        let began = clock();
        let mut nonce = [1; 16];
        nonce[..8].copy_from_slice(&(began ^ self.id.0).to_be_bytes());
        let mut output = device.start(nonce, began).unwrap();
        let mut buffer = [0; 256];
        while clock() - began < TIMEOUT.as_millis() as u64 {
            output = match output {
                Output::Transmit(message) => {
                    self.socket.send(&message).unwrap();
                    device.poll(clock())
                }
                Output::EvaluatePuf(query) => device.puf_result(Ok(self.row_key(query.idx)), clock()),
                Output::Authenticated(_) => return device.phase() == Phase::Authenticated,
                Output::Failed { .. } => return false,
                _ => match self.socket.recv(&mut buffer) {
                    Ok(length) => device
                        .handle(&buffer[..length], &local_ip, clock())
                        .unwrap_or(Output::None),
                    Err(_) => device.poll(clock()),
                },
            };
        }
        false
    }
}

/// The number of session events that `host` has reported since the previous call.
fn sessions(host: &mut Host) -> usize {
    let mut sessions = 0;
    let mut count = |event: Event| sessions += usize::from(matches!(event.kind, EventKind::Session(_)));
    host.drain_events(&mut count).unwrap();
    sessions
}

/// The loopback addresses of IPv4 and, if the machine has it, of IPv6.
fn loopbacks() -> Vec<IpAddr> {
    let v6 = IpAddr::from(Ipv6Addr::LOCALHOST);
    let mut addresses = vec![IpAddr::from(Ipv4Addr::LOCALHOST)];
    match UdpSocket::bind((v6, 0)) {
        Ok(_) => addresses.push(v6),
        Err(error) => skip_part!("IPv6 over the loopback interface: {error}"),
    }
    addresses
}

/// A lock for tests that bind a port again after closing it, and for tests that start programs. Between fork and exec,
/// a child process has copies of all sockets, so their ports are still in use.
static NO_FORK_DURING_REBIND: Mutex<()> = Mutex::new(());

#[test]
fn devices_authenticate_over_loopback() {
    let addresses = loopbacks();
    let port = free_port(addresses[0]);
    let mut host = start_host(&config(&addresses, port), 2);
    let mut peers = Vec::new();
    for (number, ip) in (1u64..).zip(addresses.iter().cycle().take(20)) {
        let mode = if number % 4 < 2 { Mode::Pool } else { Mode::Key };
        // Each peer has its own address, because a session owns the address of its device.
        let from = match ip {
            IpAddr::V4(_) => Ipv4Addr::new(127, 1, 0, number as u8).into(),
            IpAddr::V6(_) => *ip,
        };
        if ip.is_ipv4() || number == 2 {
            let peer = Peer::connect(number, mode, from, (*ip, port).into());
            peer.install(&mut host);
            peers.push(peer);
        }
    }
    for peer in &peers {
        assert!(peer.authenticate(None), "{:?}", host.counters().unwrap());
    }
    let counters = host.counters().unwrap();
    assert_eq!(counters.get(Verdict::ReplyAck), peers.len() as u64);
    assert_eq!(sessions(&mut host), peers.len());
    assert_eq!(host.failure(), None);
    for peer in &peers {
        let status = host.status(peer.id).unwrap();
        assert!(status.has_session);
        assert_eq!(status.commit.idx(), RowIndex(1));
    }
}

#[test]
fn other_datagrams_are_dropped_without_a_reply() {
    let ip = own_loopback(1);
    let port = free_port(ip);
    let mut host = start_host(&config(&[ip], port), 1);
    let peer = Peer::connect(1, Mode::Pool, ip, (ip, port).into());
    let unknown = Peer::connect(2, Mode::Pool, ip, (ip, port).into());
    peer.install(&mut host);
    unknown.socket.send(b"").unwrap();
    unknown.socket.send(&[0xff; 64]).unwrap();
    unknown.socket.send(&vec![0x4c; 9000]).unwrap();
    let mut data = vec![0; 1400];
    data[..8].copy_from_slice(&[0x4c, 0x57, 1, 6, 1, 0, 5, 120]);
    data[15] = 1;
    unknown.socket.send(&data).unwrap();
    // The socket keeps the order of datagrams: when `peer` gets its replies, all earlier datagrams were checked.
    assert!(peer.authenticate(None));
    let counters = host.counters().unwrap();
    assert_eq!(counters.get(Verdict::DropLength), 1);
    assert_eq!(counters.get(Verdict::DropMagic), 2);
    assert_eq!(counters.get(Verdict::DropGateNotSealed), 1);
    unknown.socket.set_nonblocking(true).unwrap();
    assert!(unknown.socket.recv(&mut [0; 9]).is_err());
}

#[test]
fn a_wildcard_socket_replies_from_the_requested_address() {
    let wildcard = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    let port = free_port(wildcard);
    let mut host = start_host(&config(&[wildcard], port), 2);
    for number in 1..=3u8 {
        let to = Ipv4Addr::new(127, 9, 9, number);
        let from = Ipv4Addr::new(127, 9, 8, number).into();
        let peer = Peer::connect(number.into(), Mode::Pool, from, (to, port).into());
        peer.install(&mut host);
        assert!(peer.authenticate(None), "requested from {to}");
    }
}

#[test]
fn the_classic_profile_is_served_on_its_port() {
    let ip = own_loopback(2);
    let port = free_port(ip);
    let response = |row: u8| vec![row; 16];
    let classic = Classic {
        profile: ClassicProfile::Iot,
        port,
        response_bytes: 16,
        crps: vec![(0..4).map(|row| (u32::from(row), response(row))).collect()],
        seed: 3,
    };
    let host = ClassicHost::start(&[ip], &classic, &options(1)).unwrap();
    let socket = UdpSocket::bind((ip, 0)).unwrap();
    socket.connect((ip, port)).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let bits = ResponseBits::B128;
    let exchange = |message: &Message| {
        let mut bytes = vec![0; bits.message_bytes()];
        message.write(bits, &mut bytes).unwrap();
        socket.send(&bytes).unwrap();
        let length = socket.recv(&mut bytes).unwrap();
        Message::parse(bits, &bytes[..length]).unwrap()
    };
    let challenge = exchange(&classic_device::request(1));
    assert_eq!((challenge.kind, challenge.challenge1), (message_type::CH, 0));
    let response = classic_device::respond(&challenge, bits, &[0; 32], None).unwrap();
    let ack = exchange(&response);
    assert!(classic_device::is_accepted(&ack, &response));
    assert_eq!(host.counters().get(Verdict::ReplyClassicAck), 1);
}

#[test]
fn unsupported_settings_are_refused() {
    let _lock = NO_FORK_DURING_REBIND
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let ip = own_loopback(3);
    let port = free_port(ip);
    let with_gate = Config {
        gate: Gate::Bound,
        ..config(&[ip], port)
    };
    match Host::start(&with_gate, &options(1)) {
        Err(DataPlaneError::Config(ConfigError::Unsupported { feature: "gate", .. })) => {}
        result => panic!("{result:?}"),
    }
    let first_host = start_host(&config(&[ip], port), 2);
    let error = Host::start(&config(&[ip], port), &options(1)).unwrap_err();
    let text = format!("{error}");
    assert!(text.contains(&format!("{ip}:{port}")), "{text}");
    assert!(text.contains("second gateway"), "{text}");
    drop(first_host);
    start_host(&config(&[ip], port), 1);
    let other_address = Host::start(&config(&[Ipv4Addr::new(192, 0, 2, 1).into()], port), &options(1));
    assert!(format!("{}", other_address.unwrap_err()).contains("configure the address on an interface"));
}

#[test]
fn the_data_plane_stops_and_starts_again() {
    let _lock = NO_FORK_DURING_REBIND
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let ip = own_loopback(4);
    let config = config(&[ip], free_port(ip));
    let mut host = start_host(&config, 3);
    let peer = Peer::connect(1, Mode::Pool, ip, (ip, config.lap_port).into());
    peer.install(&mut host);
    host.stop();
    assert_eq!(host.failure(), None);
    host.listen(&config, &options(2)).unwrap();
    assert!(peer.authenticate(None), "the device is no longer installed");
}

/// The MAC address of a BOUND session comes from the kernel's neighbor table, also after the device has changed its
/// MAC address.
#[test]
fn a_bound_session_takes_the_mac_address_from_the_neighbor_table() {
    let _lock = NO_FORK_DURING_REBIND
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let gateway_ip = Ipv4Addr::new(10, 9, 0, 254);
    let port = 20_550;
    let (thread_id_sender, thread_id_receiver) = mpsc::channel();
    let (link_created_sender, link_created) = mpsc::channel();
    leave_namespace();
    let device_side = thread::spawn(move || {
        leave_namespace();
        // SAFETY: gettid takes no pointer.
        thread_id_sender.send(unsafe { libc::gettid() }).unwrap();
        link_created.recv().unwrap();
        ip("link set lw-device address 02:00:00:00:00:01");
        ip("address add 10.9.0.1/24 dev lw-device");
        ip("link set lw-device up");
        let peer = Peer::connect(
            1,
            Mode::Key,
            Ipv4Addr::new(10, 9, 0, 1).into(),
            (gateway_ip, port).into(),
        );
        let is_first_accepted = peer.authenticate(Some([2, 0, 0, 0, 0, 1]));
        ip("link set lw-device address 02:00:00:00:00:02");
        let is_second_accepted = peer.authenticate(Some([2, 0, 0, 0, 0, 2]));
        (is_first_accepted, is_second_accepted)
    });
    let gateway_side = thread::spawn(move || {
        let thread_id = thread_id_receiver.recv().unwrap();
        leave_namespace();
        ip("link add lw-gateway type veth peer name lw-device");
        ip(&format!("link set lw-device netns {thread_id}"));
        ip("address add 10.9.0.254/24 dev lw-gateway");
        ip("link set lw-gateway up");
        let config = Config {
            device_prefixes: vec!["10.9.0.0/24".parse().unwrap()],
            ..config(&[gateway_ip.into()], port)
        };
        let mut host = start_host(&config, 1);
        let peer = Peer::connect(
            1,
            Mode::Key,
            Ipv4Addr::UNSPECIFIED.into(),
            (gateway_ip, port).into(),
        );
        peer.install(&mut host);
        link_created_sender.send(()).unwrap();
        (host, peer.id)
    });
    let (host, id) = gateway_side.join().unwrap();
    let (is_first_accepted, is_second_accepted) = device_side.join().unwrap();
    let counters = host.counters().unwrap();
    assert!(is_first_accepted, "{:?}", counters.nonzero().collect::<Vec<_>>());
    assert!(is_second_accepted, "{:?}", counters.nonzero().collect::<Vec<_>>());
    assert_eq!(counters.get(Verdict::ReplyAck), 2);
    let (line, place) = host.store().line(id).unwrap();
    assert_ne!(line.session_id.load(std::sync::atomic::Ordering::Acquire), 0);
    let session = &host.store().regions().sessions[place.slot as usize];
    let mac = session
        .mac
        .each_ref()
        .map(|part| part.load(std::sync::atomic::Ordering::Acquire));
    assert_eq!(mac.map(u16::to_ne_bytes).concat(), [2, 0, 0, 0, 0, 2]);
}

/// Datagrams that do not fit into the receive buffer have no verdict. Each datagram is counted either by its verdict or
/// as dropped by the kernel.
#[test]
fn packets_that_the_kernel_drops_are_counted() {
    let local = own_loopback(99);
    let config = config(&[local], free_port(local));
    let small_buffer = HostOptions {
        receive_buffer_bytes: 2_304,
        ..options(1)
    };
    let mut host = Host::start(&config, &small_buffer).unwrap();
    let socket = UdpSocket::bind((local, 0)).unwrap();
    let verdicts_and_drops = |host: &Host| {
        let counters = host.counters().unwrap();
        (counters.by_verdict.iter().sum::<u64>(), counters.kernel_drops)
    };
    let start = std::time::Instant::now();
    let mut sent = 0;
    while verdicts_and_drops(&host).1 == 0 {
        assert!(start.elapsed() < TIMEOUT, "{sent} datagrams sent, none dropped");
        for _ in 0..1_000 {
            socket.send_to(&[0; 64], (local, config.lap_port)).unwrap();
            sent += 1;
        }
    }
    while verdicts_and_drops(&host).0 + verdicts_and_drops(&host).1 < sent {
        assert!(
            start.elapsed() < TIMEOUT,
            "{:?} of {sent}",
            verdicts_and_drops(&host)
        );
        thread::yield_now();
    }
    let (processed, dropped) = verdicts_and_drops(&host);
    assert_eq!(processed + dropped, sent);
    host.stop();
    assert_eq!(
        verdicts_and_drops(&host),
        (processed, dropped),
        "the counts have changed when the sockets were closed"
    );
}

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
