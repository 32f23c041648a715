//! A gateway that the test controls step by step, and an agent in a separate thread.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linewarden_agent::attest::{KeySource, MeasurementScope};
use linewarden_agent::source::{FleetSeed, SimulatedPuf};
use linewarden_agent::{Agent, AgentEvent, AgentOptions, AttestOptions, Credential, Keyring};
use linewarden_measurement::files::FilePath;
use linewarden_protocol::attest::{AttestationKey, ConfigurationHash, PeriodStart, Round};
use linewarden_protocol::device::{DeviceConfig, GatewayPolicy};
use linewarden_protocol::frame::Meta;
use linewarden_protocol::gateway::{
    DeviceInstall, FreshValue, Gateway, GatewayConfig, OpenRound, ProverKeys, Row,
};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, Period, RoundNumber, RowIndex, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey, SessionKey};
use linewarden_protocol::sources::DeviceSources;
use linewarden_protocol::ticket::{
    self, ChunkAck, Direction, EvidenceChunk, MESSAGE_BYTES_MAX, PlaintextBuffer, SealedTicket, TicketRoot,
};
use linewarden_protocol::time::{Monotonic, Now};
use linewarden_protocol::verdict::{Disposition, Verdict};
use linewarden_protocol::wire::{self, Message};
use linewarden_puf::extractor::{KeyEnrollment, enroll_puf};
use linewarden_puf::health::HealthTest;
use linewarden_tpm::{AttestationSecret, SoftwareKey};
use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;
use rustix::event::{EventfdFlags, eventfd};
use tempfile::TempDir;
use zerocopy::IntoBytes as _;

pub const GATEWAY: GatewayId = GatewayId(9);
pub const DEVICE: DeviceId = DeviceId(0x00d1);
const SUITE: Suite = Suite::SipHash128;
/// Exceeds the duration of each step, even on a busy machine.
pub const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// The device's attestation key.
pub const K: [u8; 32] = [0x42; 32];

pub fn period_start(period: u64) -> PeriodStart {
    PeriodStart {
        period: Period(period),
        salt: [period as u8 ^ 0x5a; 8],
    }
}

pub fn round(period: u64, number: u32) -> Round {
    Round {
        gateway: GATEWAY,
        number: RoundNumber(number),
        nonce: [number as u8 | 0x80; 8],
        start: period_start(period),
    }
}

fn simulated_puf() -> SimulatedPuf {
    toml::from_str("model = \"sram\"\nseed_file = \"unused\"").unwrap()
}

/// Enrolls the device; returns the helper data and the row key.
fn enroll() -> (Credential, RowKey) {
    let mut chip = simulated_puf()
        .build(&FleetSeed::from_bytes([1; 32]), DEVICE, 1)
        .unwrap();
    let mut rng = ChaCha20Rng::seed_from_u64(3);
    let enrolled = enroll_puf(&mut chip, 32_768, 5, &KeyEnrollment::default(), &mut rng).unwrap();
    let key = RowKey::for_device(enrolled.secret.expose(), &enrolled.helper.digest(), SUITE, DEVICE);
    (Credential::Key(enrolled.helper), key)
}

/// A UDP port that was recently free.
fn free_port() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().port()
}

/// Files to be measured, and paths of the agent's state files.
pub struct DeviceDirectory(TempDir);

impl DeviceDirectory {
    pub fn new() -> Self {
        let directory = Self(TempDir::new().unwrap());
        directory.write("sensord", "first");
        directory
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub fn file(&self, name: &str) -> FilePath {
        FilePath::new(self.path(name).to_str().unwrap()).unwrap()
    }

    /// Options of a device that measures one file. The device has its key in software and was enrolled in period 4.
    pub fn options(&self) -> AttestOptions {
        AttestOptions {
            scope: MeasurementScope {
                files: vec![self.file("sensord")],
                tpm: None,
            },
            key: KeySource::Software(SoftwareKey::new(AttestationSecret::new(K))),
            key_file: None,
            port: free_port(),
            send_log: false,
            quote_every: 0,
            state: self.path("attest.state"),
            enrolled_period: Period(4),
        }
    }
}

pub fn h(options: &AttestOptions) -> ConfigurationHash {
    ConfigurationHash(options.scope.measure().unwrap().configuration.hash().0)
}

/// The agent in its own thread. Dropping this value stops the agent.
pub struct RunningAgent {
    stop: Arc<OwnedFd>,
    receiver: Receiver<AgentEvent>,
    pub events: Vec<AgentEvent>,
    thread: Option<JoinHandle<()>>,
}

impl RunningAgent {
    pub fn start(site: &Site, attest: AttestOptions) -> Self {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let (sender, receiver) = channel();
        let chip = simulated_puf()
            .build(&FleetSeed::from_bytes([1; 32]), DEVICE, 7)
            .unwrap();
        let options = AgentOptions {
            tunnels: Vec::new(),
            device: DeviceConfig {
                device: DEVICE,
                suite: SUITE,
                mode: Mode::Key,
                gateways: GatewayPolicy::ANY,
                bound_mac: None,
            },
            keyring: Keyring::fixed(site.credential.clone()),
            renewal: None,
            ticket_port: site.ticket_socket.local_addr().unwrap().port(),
            peers: Vec::new(),
            peer_port: 1,
            attest: Some(attest),
            health: HealthTest::default(),
            gateway: site.address(),
            once: false,
            session_timeout: None,
        };
        let thread_stop = Arc::clone(&stop);
        let run = move || {
            Agent::new(options, chip)
                .run(thread_stop.as_fd(), &mut |report| forward_event(&sender, report))
                .unwrap();
        };
        Self {
            stop,
            receiver,
            events: Vec::new(),
            thread: Some(std::thread::spawn(run)),
        }
    }

    /// Whether an event that satisfies the predicate has been reported.
    pub fn has(&mut self, predicate: impl Fn(&AgentEvent) -> bool) -> bool {
        self.events.extend(self.receiver.try_iter());
        self.events.iter().any(predicate)
    }

    /// Stops the agent; returns all reported events.
    pub fn end(mut self) -> Vec<AgentEvent> {
        self.stop();
        self.events.extend(self.receiver.try_iter());
        std::mem::take(&mut self.events)
    }

    fn stop(&mut self) {
        if let Some(thread) = self.thread.take() {
            rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).unwrap();
            let join_result = thread.join();
            assert!(
                join_result.is_ok() || std::thread::panicking(),
                "the agent panicked"
            );
        }
    }
}

fn forward_event(sender: &Sender<AgentEvent>, report: &AgentEvent) {
    let _ = sender.send(report.clone());
}

impl Drop for RunningAgent {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Number of requests that the agent has rejected for this reason, according to the agent's latest report.
pub fn rejection_count(reports: &[AgentEvent], reason: &str) -> u64 {
    let rejections = reports.iter().rev().find_map(|report| match report {
        AgentEvent::AttestationRequestsRejected { requests } => Some(requests),
        _ => None,
    });
    rejections
        .and_then(|requests| requests.get(reason).copied())
        .unwrap_or(0)
}

/// Key under which a request has its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagKey {
    Session,
    Request,
    Wrong,
}

/// The reference gateway with its LAP socket, and the controller's socket for tickets.
pub struct Site {
    gateway: Gateway,
    lap_socket: UdpSocket,
    ticket_socket: UdpSocket,
    started_at: Instant,
    credential: Credential,
    row_key: RowKey,
    /// The attestation key of which the gateway has the derived keys.
    pub k: AttestationKey,
    current_round: Option<Round>,
    session_key: Option<SessionKey>,
    /// Number of sessions that were opened.
    pub sessions: usize,
    /// Received PROOFs in order of arrival, each with its verdict.
    pub proofs: Vec<(Verdict, Vec<u8>)>,
    /// Received bytes of the current document.
    partial_document: Vec<u8>,
    /// Complete documents.
    pub documents: Vec<Vec<u8>>,
    /// Number of received chunks, with repetitions.
    pub chunk_count: usize,
}

impl Site {
    /// Creates a gateway that knows the device and has this session lifetime. With `None`, the gateway does not know
    /// the device, so that no session can open.
    pub fn new(lifetime_s: Option<u32>) -> Self {
        let socket = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
            socket
        };
        let (lap_socket, ticket_socket) = (socket(), socket());
        let address = lap_socket.local_addr().unwrap();
        let mut gateway = Gateway::new(GatewayConfig {
            provers_max: 4,
            session_lifetime_s: lifetime_s.unwrap_or(3_600),
            lap_port: address.port(),
            sources: Some(DeviceSources::new(
                &["127.0.0.0/8".parse().unwrap()],
                &[address.ip()],
                &[],
            )),
            ..GatewayConfig::new(GATEWAY, &[address.ip()])
        });
        let (credential, row_key) = enroll();
        if lifetime_s.is_some() {
            let auth_key = AuthKey::derive(&row_key, SUITE, Mode::Key, RowIndex(0), GATEWAY);
            let install = DeviceInstall {
                device: DEVICE,
                mode: Mode::Key,
                next_idx: RowIndex(0),
                mark: None,
                rows: vec![Row {
                    challenge: [0; 8],
                    auth_key,
                }],
            };
            gateway.install(install).unwrap();
        }
        let fresh = |byte| FreshValue::from_wire([byte; 8]).unwrap();
        gateway.replace_fresh_values(fresh(1), fresh(2), Now::default());
        Self {
            gateway,
            lap_socket,
            ticket_socket,
            started_at: Instant::now(),
            credential,
            row_key,
            k: AttestationKey::from_bytes(K),
            current_round: None,
            session_key: None,
            sessions: 0,
            proofs: Vec::new(),
            partial_document: Vec::new(),
            documents: Vec::new(),
            chunk_count: 0,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.lap_socket.local_addr().unwrap()
    }

    /// Sets the expected configuration of a period.
    pub fn expect(&mut self, start: PeriodStart, h: ConfigurationHash) {
        let current = self.k.for_period(DEVICE, &start, &h).for_gateway(GATEWAY);
        let keys = ProverKeys {
            current,
            alternate: None,
        };
        self.gateway.install_prover(DEVICE, start.period, keys).unwrap();
    }

    /// Opens a round without a deadline. Does nothing if this round is already open.
    pub fn open(&mut self, round: Round) {
        if self.current_round == Some(round) {
            return;
        }
        self.current_round = Some(round);
        let open = OpenRound {
            round,
            started: self.now().monotonic(),
            deadline: Monotonic(u64::MAX),
        };
        self.gateway.open_round(open).unwrap();
    }

    pub fn is_proved(&self, number: u32) -> bool {
        self.gateway.proof_record(DEVICE, RoundNumber(number)).is_some()
    }

    /// Sends a request to the device's attestation port.
    pub fn send_request(&self, round: &Round, tag: TagKey, port: u16) {
        let request_key = self.k.for_requests(DEVICE, GATEWAY, round.start.period);
        let message = match tag {
            TagKey::Session => round.request(DEVICE, self.session_key.as_ref().unwrap()),
            TagKey::Request => round.request_without_session(DEVICE, &request_key),
            TagKey::Wrong => round.request(DEVICE, &SessionKey::from_bytes([9; 16])),
        };
        let device = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        self.lap_socket.send_to(message.as_bytes(), device).unwrap();
    }

    /// Opens the round, sends a request every 500 ms until a PROOF arrives, and returns the verdict on the PROOF. One
    /// request is not enough, because a request that arrives before the device listens is lost.
    pub fn verdict(&mut self, agent: &mut RunningAgent, round: Round, tag: TagKey, port: u16) -> Verdict {
        self.open(round);
        let proof_count = self.proofs.len();
        let mut requested_at = Instant::now();
        self.send_request(&round, tag, port);
        self.serve(agent, |site, _| {
            if requested_at.elapsed() > Duration::from_millis(500) {
                requested_at = Instant::now();
                site.send_request(&round, tag, port);
            }
            site.proofs.len() > proof_count
        });
        self.proofs[proof_count].0
    }

    fn now(&self) -> Now {
        let ms = self.started_at.elapsed().as_millis() as u64;
        Now {
            monotonic_ms: ms,
            boot_ms: ms,
        }
    }

    /// Handles messages until `is_done` returns true.
    #[track_caller]
    pub fn serve(
        &mut self,
        agent: &mut RunningAgent,
        mut is_done: impl FnMut(&mut Self, &mut RunningAgent) -> bool,
    ) {
        let deadline = Instant::now() + STEP_TIMEOUT;
        while !is_done(self, agent) {
            assert!(
                Instant::now() < deadline,
                "timeout: {:?}, {:?}",
                agent.events,
                self.proofs
            );
            self.serve_lap();
            self.serve_tickets();
        }
    }

    fn serve_lap(&mut self) {
        let mut buffer = [0u8; 2048];
        let Ok((length, from)) = self.lap_socket.recv_from(&mut buffer) else {
            return;
        };
        let IpAddr::V4(ip) = from.ip() else {
            panic!("{from}")
        };
        let now = self.now();
        // A test may wait for a TPM; without new freshness values the fast path would stop in the meantime.
        let fresh = |byte| FreshValue::from_wire([byte; 8]).unwrap();
        self.gateway.replace_fresh_values(fresh(1), fresh(2), now);
        let meta = Meta {
            ingress: 1,
            vlans: [0; 2],
            src_mac: [0; 6],
            dst_mac: [0; 6],
            src_ip: ip.to_ipv6_mapped().octets(),
            dst_ip: Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets(),
            src_port: from.port(),
            dst_port: self.address().port(),
        };
        let message = buffer[..length].to_vec();
        let payload = &mut buffer[..length];
        let verdict = self.gateway.handle_payload(now, &meta, payload);
        match wire::parse(&message) {
            Ok(Message::Proof(_)) => self.proofs.push((verdict, message.clone())),
            Ok(Message::Response(response)) if verdict == Verdict::ReplyAck => {
                let auth = AuthKey::derive(&self.row_key, SUITE, Mode::Key, RowIndex(0), GATEWAY);
                self.session_key = Some(SessionKey::derive(&auth, SUITE, &response.tag));
                self.sessions += 1;
            }
            _ => {}
        }
        if verdict.disposition() == Disposition::Reply {
            self.lap_socket.send_to(payload, from).unwrap();
        }
    }

    /// Receives evidence and acknowledges chunks, as a controller does.
    fn serve_tickets(&mut self) {
        let mut buffer = [0u8; 2048];
        let Ok((length, from)) = self.ticket_socket.recv_from(&mut buffer) else {
            return;
        };
        // The agent sends copies alternately plain and inside DATA; the test ignores the copies inside DATA.
        let Ok(sealed) = SealedTicket::parse(&buffer[..length]) else {
            return;
        };
        let head = *sealed.header();
        assert_eq!((head.direction, head.number), (Direction::Up, 0));
        let root = TicketRoot::derive(&self.row_key, &head.session);
        let mut plaintext = PlaintextBuffer::default();
        let body = sealed.open(&root, &mut plaintext).unwrap();
        let ack = self.store_chunk(&EvidenceChunk::parse(body).unwrap());
        let mut out = [0; MESSAGE_BYTES_MAX];
        let length = ticket::seal_response(&root, &head, [7; 24], &ack.to_wire(), &mut out).unwrap();
        self.ticket_socket.send_to(&out[..length], from).unwrap();
    }

    fn store_chunk(&mut self, chunk: &EvidenceChunk<'_>) -> ChunkAck {
        self.chunk_count += 1;
        let offset = chunk.offset() as usize;
        if offset == 0 {
            self.partial_document.clear();
        }
        // A repeated chunk receives the same acknowledgment as the first copy.
        if offset <= self.partial_document.len() {
            self.partial_document.truncate(offset);
            self.partial_document.extend(chunk.bytes());
        }
        let received = self.partial_document.len() as u32;
        if received == chunk.total() {
            assert_eq!(
                ticket::ReportId::of_document(&self.partial_document),
                chunk.report()
            );
            if self.documents.last() != Some(&self.partial_document) {
                self.documents.push(self.partial_document.clone());
            }
        }
        ChunkAck {
            outcome: ticket::Outcome::Done,
            received,
        }
    }
}

/// Reads the agent's state file.
pub fn state(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}
