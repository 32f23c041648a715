//! Tunnels of the agent, with real sockets, through the reference gateway with a sealed gate. The gateway replies at
//! 127.0.0.1. A service behind the gateway has the address 127.0.0.2. The gate verifies and unseals the datagrams to the
//! LAP port of this address.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linewarden_agent::source::{FleetSeed, SimulatedPuf};
use linewarden_agent::{
    Agent, AgentEvent, AgentOptions, Credential, Keyring, RunOutcome, Tunnel, TunnelCounts,
};
use linewarden_protocol::device::{DeviceConfig, GatewayPolicy};
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::parse;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::gateway::{DeviceInstall, FreshValue, Gate, Gateway, GatewayConfig, Row};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey};
use linewarden_protocol::sources::DeviceSources;
use linewarden_protocol::time::Now;
use linewarden_protocol::verdict::{Disposition, Verdict};
use linewarden_puf::Puf;
use linewarden_puf::extractor::{Enrolled, HelperData, KeyEnrollment, enroll_puf};
use linewarden_puf::health::HealthTest;
use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::sockopt::socket_recv_buffer_size;

const GATEWAY: GatewayId = GatewayId(9);
const DEVICE: DeviceId = DeviceId(0x00d1);
const SUITE: Suite = Suite::SipHash128;
const SERVICE: [u8; 4] = [127, 0, 0, 2];

fn socket(address: ([u8; 4], u16)) -> UdpSocket {
    let socket = UdpSocket::bind(SocketAddr::from(address)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    socket
}

fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint {
        mac: [2, 0, 0, 0, 0, 1],
        ip: address.ip(),
        port: address.port(),
    }
}

/// Gateway, gate and an echo service. The service returns each datagram twice; the second copy is a replay.
struct Site {
    gateway: Gateway,
    /// LAP socket of the gateway.
    lap_socket: UdpSocket,
    /// Socket with the service's address and the LAP port. The gate unseals the datagrams that arrive here.
    gate_socket: UdpSocket,
    /// Socket of the service.
    echo_socket: UdpSocket,
    started_at: Instant,
}

impl Site {
    fn new(key: &RowKey) -> Self {
        let lap_socket = socket(([127, 0, 0, 1], 0));
        let address = lap_socket.local_addr().unwrap();
        let mut gateway = Gateway::new(GatewayConfig {
            gate: Gate::Sealed,
            lap_port: address.port(),
            sources: Some(DeviceSources::new(
                &["127.0.0.0/8".parse().unwrap()],
                &[address.ip()],
                &[],
            )),
            own_macs: None,
            ..GatewayConfig::new(GATEWAY, &[address.ip()])
        });
        let row = Row {
            challenge: [0; 8],
            auth_key: AuthKey::derive(key, SUITE, Mode::Key, RowIndex(0), GATEWAY),
        };
        let install = DeviceInstall {
            device: DEVICE,
            mode: Mode::Key,
            next_idx: RowIndex(0),
            mark: None,
            rows: vec![row],
        };
        gateway.install(install).unwrap();
        let fresh = |byte| FreshValue::from_wire([byte; 8]).unwrap();
        gateway.replace_fresh_values(fresh(1), fresh(2), Now::default());
        Self {
            gateway,
            gate_socket: socket((SERVICE, address.port())),
            echo_socket: socket((SERVICE, 0)),
            lap_socket,
            started_at: Instant::now(),
        }
    }

    fn now(&self) -> Now {
        let ms = self.started_at.elapsed().as_millis() as u64;
        Now {
            monotonic_ms: ms,
            boot_ms: ms,
        }
    }

    /// Passes a datagram to the gateway. Returns the verdict, the payload that the gateway sends or forwards, and the
    /// destination port of that payload.
    fn handle_frame(&mut self, from: SocketAddr, to: SocketAddr, payload: &[u8]) -> (Verdict, Vec<u8>, u16) {
        let mut frame = FrameBuilder::new(endpoint(from), endpoint(to)).udp(payload);
        let handled = self.gateway.handle(self.now(), 1, &mut frame);
        let frame = &frame[handled.frame];
        let (_, udp) = parse(frame).unwrap().datagram().unwrap();
        (handled.verdict, frame[udp.payload()].to_vec(), udp.dst_port)
    }

    fn serve(mut self, stop: &AtomicBool) {
        let mut buffer = [0u8; 4096];
        let (lap_address, gate_address, echo_address) = (
            self.lap_socket.local_addr().unwrap(),
            self.gate_socket.local_addr().unwrap(),
            self.echo_socket.local_addr().unwrap(),
        );
        while !stop.load(Ordering::Acquire) {
            if let Ok((bytes, from)) = self.lap_socket.recv_from(&mut buffer) {
                let (verdict, reply, _) = self.handle_frame(from, lap_address, &buffer[..bytes]);
                assert_eq!(verdict.disposition(), Disposition::Reply, "{verdict}");
                self.lap_socket.send_to(&reply, from).unwrap();
            }
            if let Ok((bytes, from)) = self.gate_socket.recv_from(&mut buffer) {
                let (verdict, payload, port) = self.handle_frame(from, gate_address, &buffer[..bytes]);
                assert_eq!((verdict, port), (Verdict::PassData, echo_address.port()));
                let mut frame = FrameBuilder::new(endpoint(echo_address), endpoint(from)).udp(&payload);
                let verdict = self.gateway.seal_frame(self.now(), 65_535, false, &mut frame);
                assert_eq!(verdict, Verdict::PassSealed);
                let (_, udp) = parse(&frame).unwrap().datagram().unwrap();
                for _ in 0..2 {
                    self.echo_socket.send_to(&frame[udp.payload()], from).unwrap();
                }
            }
        }
    }
}

/// Simulates two local programs. Each program sends each of its payloads repeatedly until the payload comes back. Returns
/// the number of sent datagrams.
fn run_programs(listen: SocketAddr) -> u64 {
    let programs = [socket(([127, 0, 0, 1], 0)), socket(([127, 0, 0, 1], 0))];
    let mut count = 0;
    let mut buffer = [0; 4096];
    for bytes in [0usize, 1, 8, 100, 1416] {
        for (program, fill) in programs.iter().zip([0x11, 0x22]) {
            let payload = vec![fill; bytes];
            let deadline = Instant::now() + Duration::from_secs(20);
            let reply = loop {
                assert!(Instant::now() < deadline, "no reply to {bytes} B");
                program.send_to(&payload, listen).unwrap();
                count += 1;
                if let Some(reply) = (0..50).find_map(|_| program.recv_from(&mut buffer).ok()) {
                    break reply;
                }
            };
            assert_eq!((&buffer[..reply.0], reply.1), (&payload[..], listen));
        }
    }
    count
}

fn chip() -> Box<dyn Puf> {
    let puf: SimulatedPuf = toml::from_str("model = \"sram\"\nseed_file = \"unused\"").unwrap();
    puf.build(&FleetSeed::from_bytes([1; 32]), DEVICE, 1).unwrap()
}

fn enroll() -> Enrolled {
    let mut rng = ChaCha20Rng::seed_from_u64(3);
    enroll_puf(&mut chip(), 32_768, 5, &KeyEnrollment::default(), &mut rng).unwrap()
}

fn options(
    helper: HelperData,
    tunnel: Tunnel,
    gateway: SocketAddr,
    session_timeout: Duration,
) -> AgentOptions {
    AgentOptions {
        tunnels: vec![tunnel],
        device: DeviceConfig {
            device: DEVICE,
            suite: SUITE,
            mode: Mode::Key,
            gateways: GatewayPolicy::ANY,
            bound_mac: None,
        },
        keyring: Keyring::fixed(Credential::Key(helper)),
        renewal: None,
        ticket_port: 1,
        peers: Vec::new(),
        attest: None,
        peer_port: 1,
        health: HealthTest::default(),
        gateway,
        once: false,
        session_timeout: Some(session_timeout),
    }
}

#[test]
fn local_programs_communicate_through_a_tunnel_and_receive_no_replays() {
    let enrolled = enroll();
    let key = RowKey::for_device(enrolled.secret.expose(), &enrolled.helper.digest(), SUITE, DEVICE);
    let site = Site::new(&key);
    let (gateway, service) = (
        site.lap_socket.local_addr().unwrap(),
        site.echo_socket.local_addr().unwrap(),
    );
    let stop_gateway = Arc::new(AtomicBool::new(false));
    let thread_stop = Arc::clone(&stop_gateway);
    let gateway_thread: JoinHandle<()> = std::thread::spawn(move || site.serve(&thread_stop));

    // A port that is free now.
    let listen = socket(([127, 0, 0, 1], 0)).local_addr().unwrap();
    let options = options(
        enrolled.helper,
        Tunnel { listen, service },
        gateway,
        Duration::from_secs(20),
    );
    let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    let mut reports = Vec::new();
    let mut program_thread = None;
    let outcome = Agent::new(options, chip())
        .run(stop.as_fd(), &mut |report| {
            if matches!(report, AgentEvent::Authenticated { .. }) && program_thread.is_none() {
                let stop = Arc::clone(&stop);
                program_thread = Some(std::thread::spawn(move || {
                    let count = std::panic::catch_unwind(|| run_programs(listen));
                    rustix::io::write(&*stop, &1u64.to_ne_bytes()).unwrap();
                    count.unwrap()
                }));
            }
            reports.push(report.clone());
        })
        .unwrap();
    let sent_datagrams = program_thread.unwrap().join().unwrap();
    stop_gateway.store(true, Ordering::Release);
    gateway_thread.join().unwrap();
    assert_eq!(outcome, RunOutcome::Stopped);
    let counts = reports.iter().find_map(|report| match report {
        AgentEvent::TunnelStatistics(counts) => Some(*counts),
        _ => None,
    });
    let counts: TunnelCounts = counts.unwrap();
    assert_eq!(counts.up, sent_datagrams, "{counts:?}");
    // The replay of the last reply may arrive after the agent has stopped.
    assert!(
        counts.down >= 10 && counts.dropped_unopened + 1 >= counts.down,
        "{counts:?}"
    );
    assert_eq!(reports.last(), Some(&AgentEvent::Stopped));
}

/// Before a session opens, a program sends more datagrams than fit into the receive buffer of the tunnel's socket. The agent
/// counts each lost datagram.
#[test]
fn datagrams_that_the_kernel_drops_are_counted() {
    // A datagram takes more than 256 B of a receive buffer.
    let datagram_count = socket_recv_buffer_size(socket(([127, 0, 0, 1], 0))).unwrap() as u64 / 256;
    // The test never reads from this socket.
    let gateway = socket(([127, 0, 0, 1], 0));
    let tunnel = Tunnel {
        listen: socket(([127, 0, 0, 1], 0)).local_addr().unwrap(),
        service: SocketAddr::from((SERVICE, 1)),
    };
    let address = gateway.local_addr().unwrap();
    let options = options(enroll().helper, tunnel, address, Duration::from_secs(1));
    let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let (mut losses, mut tunnel_counts) = (None, None);
    let outcome = Agent::new(options, chip())
        .run(stop.as_fd(), &mut |report| match report {
            AgentEvent::LinkOpened { .. } => {
                let program = UdpSocket::bind("127.0.0.1:0").unwrap();
                for _ in 0..datagram_count {
                    program.send_to(&[0; 64], tunnel.listen).unwrap();
                }
            }
            AgentEvent::DatagramsLost { datagrams } => losses = Some(datagrams.clone()),
            AgentEvent::TunnelStatistics(counts) => tunnel_counts = Some(*counts),
            _ => {}
        })
        .unwrap();
    assert_eq!(outcome, RunOutcome::TimedOut);
    let (losses, tunnel_counts) = (losses.unwrap(), tunnel_counts.unwrap());
    assert_eq!(
        (losses["tunnel_kernel"], losses["tunnel_no_session"]),
        (tunnel_counts.kernel_drops, tunnel_counts.dropped_no_session)
    );
    assert!(
        tunnel_counts.kernel_drops > 0 && tunnel_counts.dropped_no_session > 0,
        "{tunnel_counts:?}"
    );
    assert_eq!(
        tunnel_counts.kernel_drops + tunnel_counts.dropped_no_session,
        datagram_count,
        "{tunnel_counts:?}"
    );
}
