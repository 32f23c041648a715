//! `round.*`: a complete round of many provers with the real gateway: registry, node, data plane and network.
//!
//! ```text
//!  registry ──── keys ───► node ── ATTEST_REQUESTs ──► network ──► provers on a few sockets
//!      ▲                   │ ▲                                        │ computed in parallel
//!      └── round record ───┘ └── verdicts ── data plane ◄── PROOFs ───┘
//! ```
//! The time of a round is taken from its record: from the node's decision to open the round until the data plane accepts the last
//! PROOF. This includes listing the provers, tagging and sending all requests, repeating lost requests, and verifying all PROOFs;
//! it also includes the provers' work, which uses the same CPUs at the same time. A round counts only if every prover
//! sent a valid PROOF. The keys of the period exist beforehand on both sides, as in production.

mod simulation;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linewarden_controller::{Controller, InProcess, Policy};
use linewarden_dataplane::host::{Host, HostOptions};
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{Config, Counters, DataPlane, Gate};
use linewarden_gateway::{Gateway, Settings};
use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::files::{ContentHash, FileEntry, FilePath, Mode as FileMode};
use linewarden_measurement::pcr::PcrValues;
use linewarden_protocol::attest::ConfigurationHash;
use linewarden_protocol::ids::{Period, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::ATTEST_PORT;
use linewarden_registry::{
    BulkOptions, Credentials, DeviceRecord, MasterKey, NewGroup, NewProver, Protection, ProverLocation,
    Registry, RoundRecord,
};
use linewarden_types::{GroupName, GroupPolicy};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use self::simulation::{Datagrams, Frames, SimulatedProvers, attestation_key};
use super::Size;
use crate::address::{self, DeviceAddress};
use crate::bench::keys::{self, GATEWAY_ID};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row, io};
use crate::capability::{self, FOR_LOAD_GENERATOR};
use crate::fleet::device_id;
use crate::topology::{Lab, Topology};

/// Target for a round of 10^5 provers, s.
const TARGET_S: f64 = 1.0;
/// Sockets that the provers share, each with a thread and an address.
const SOCKETS: u32 = 2;
/// Maximum number of rounds; the fastest round is the result.
const ROUNDS_MAX: u32 = 10;
/// Timeout for loading the provers and for a round.
const ROUND_TIMEOUT: Duration = Duration::from_secs(300);
/// Interval between two progress updates.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Provers that one database transaction enrolls; progress is reported before each transaction.
const ENROLLMENT_CHUNK: u32 = 500;

/// The network between gateway and provers.
enum Environment {
    /// `xdp` on one end of a veth, the provers on the other.
    Link(Box<Lab>),
    /// `host` and sockets on loopback, without the capabilities for a lab.
    Loopback(Vec<UdpSocket>),
}

/// Adds the rows of this part.
///
/// # Errors
/// The registry or the network failed, or no round was complete.
pub fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let environment = Environment::choose()?;
    let registry = ProverRegistry::create(size.round_provers, &environment, progress)?;
    let stop = AtomicBool::new(false);
    let measured = std::thread::scope(|scope| {
        let provers = environment.provers(size.round_provers, registry.h)?;
        let threads: Vec<_> = provers
            .into_iter()
            .map(|provers| scope.spawn(|| provers.run(&stop)))
            .collect();
        let measured = measure(size, &environment, &registry, progress);
        stop.store(true, Ordering::Relaxed);
        let mut sent = 0;
        for thread in threads {
            let result = thread.join();
            let panicked = |_| BenchError::InvalidMeasurement("a prover thread panicked".to_owned());
            sent += result.map_err(panicked)??;
        }
        Ok::<_, BenchError>((measured?, sent))
    });
    let (measured, sent) = measured?;
    let suffix = match environment {
        Environment::Link(_) => "",
        Environment::Loopback(_) => ".host",
    };
    let best = &measured.best;
    let name = |row: &str| format!("round.{row}{suffix}");
    let is_full_size = size.round_provers == Size::FULL.round_provers;
    let target = (is_full_size && suffix.is_empty()).then_some(TARGET_S);
    let seconds = f64::from(best.record.last_proof_ms) / 1e3;
    let arrived = measured.counters.get(Verdict::ProofOk) + measured.counters.get(Verdict::DropProved);
    let lost = sent.saturating_sub(arrived) as f64;
    rows.extend([
        Row::lower(name("seconds"), seconds, "s", target),
        Row::fact(name("seconds_slowest"), measured.slowest_s, "s"),
        Row::fact(name("provers"), best.record.requested.into(), "provers"),
        Row::fact(name("requests"), best.requests as f64, "requests"),
        Row::fact(name("complete"), measured.complete.into(), "rounds"),
        Row::fact(
            name("proofs_lost"),
            lost / f64::from(measured.rounds),
            "per round",
        ),
    ]);
    Ok(())
}

/// A completed round.
struct Round {
    record: RoundRecord,
    /// Requests sent in the round, with repetitions.
    requests: u64,
}

/// The result of all rounds.
struct RoundsResult {
    /// The fastest complete round.
    best: Round,
    /// Number of complete rounds.
    complete: u32,
    /// Time of the slowest complete round.
    slowest_s: f64,
    /// Number of all rounds, including the first round, in which both sides derive their keys.
    rounds: u32,
    /// Verdicts of all rounds.
    counters: Counters,
}

fn measure(
    size: &Size,
    environment: &Environment,
    registry: &ProverRegistry,
    progress: Progress<'_>,
) -> Result<RoundsResult, BenchError> {
    let gateway = environment.gateway(size.round_provers, registry)?;
    let started = Instant::now();
    while !gateway.wait_until(POLL_INTERVAL, |status| status.attest.rounds > 0) {
        let provers = gateway.status().attest.provers;
        progress(
            "complete round: loading provers",
            Some((provers, size.round_provers.into())),
        );
        if started.elapsed() > ROUND_TIMEOUT {
            return Err(invalid_measurement(format!(
                "no round began within {ROUND_TIMEOUT:?}: {:?}",
                gateway.status()
            )));
        }
    }
    let runs = size.runs.min(ROUNDS_MAX);
    let mut complete: Vec<Round> = Vec::new();
    let mut last_record = None;
    for run in 0..runs {
        progress("complete round of all provers", Some((run.into(), runs.into())));
        let round = one_round(&gateway, registry)?;
        let (requested, missed) = (round.record.requested, round.record.missed);
        last_record = Some(round.record.clone());
        if requested == size.round_provers && missed == 0 {
            complete.push(round);
        }
    }
    let counters = gateway.counters().map_err(invalid_measurement)?;
    let count = complete.len() as u32;
    let slowest_ms = complete.iter().map(|round| round.record.last_proof_ms).max();
    let best = complete
        .into_iter()
        .min_by_key(|round| round.record.last_proof_ms);
    let no_complete_round =
        || invalid_measurement(format!("no round was complete; the last round: {last_record:?}"));
    gateway.stop().map_err(invalid_measurement)?;
    Ok(RoundsResult {
        best: best.ok_or_else(no_complete_round)?,
        complete: count,
        slowest_s: f64::from(slowest_ms.unwrap_or(0)) / 1e3,
        rounds: runs + 1,
        counters,
    })
}

/// Requests a round and waits for its record.
fn one_round(gateway: &Gateway, registry: &ProverRegistry) -> Result<Round, BenchError> {
    let before = gateway.status().attest;
    registry.block_on(registry.registry.request_round(&registry.group))?;
    if !gateway.wait_until(ROUND_TIMEOUT, |status| status.attest.rounds > before.rounds) {
        return Err(invalid_measurement(format!(
            "the round did not end within {ROUND_TIMEOUT:?}"
        )));
    }
    let newest = registry.block_on(registry.registry.rounds(Some(GATEWAY_ID), 1))?;
    let record = newest.into_iter().next();
    Ok(Round {
        record: record.ok_or_else(|| invalid_measurement("the round has no record"))?,
        requests: gateway.status().attest.requests.saturating_sub(before.requests),
    })
}

fn invalid_measurement(error: impl ToString) -> BenchError {
    BenchError::InvalidMeasurement(error.to_string())
}

/// A registry in which all provers are enrolled.
struct ProverRegistry {
    registry: Registry,
    runtime: Runtime,
    group: GroupName,
    /// The configuration that all provers report.
    h: ConfigurationHash,
    // Dropped last.
    _directory: TempDir,
}

impl ProverRegistry {
    fn create(provers: u32, environment: &Environment, progress: Progress<'_>) -> Result<Self, BenchError> {
        let directory = tempfile::tempdir().map_err(io("create a temporary directory"))?;
        // A thread that also runs between calls, because background tasks return connections to the pool.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(io("start the async runtime"))?;
        let key = MasterKey::from_bytes([0x42; 32]);
        let path = directory.path().join("fleet.registry");
        let registry = runtime.block_on(Registry::create(&path, &key))?;
        let devices = (0..provers).map(device);
        let report_progress = |done: linewarden_registry::Progress| {
            progress("enrolling devices", Some((done.done, provers.into())));
        };
        runtime.block_on(registry.enroll_bulk(devices, BulkOptions::default(), report_progress))?;
        let configuration = configuration()?;
        let group = GroupName::new("bench").map_err(invalid_measurement)?;
        let new_group = NewGroup {
            name: group.clone(),
            policy: policy(),
            reference: Some(configuration.encode()),
            roll_out: None,
        };
        runtime.block_on(registry.set_group(&new_group, 1))?;
        for first in (0..provers).step_by(ENROLLMENT_CHUNK as usize) {
            progress("enrolling provers", Some((first.into(), provers.into())));
            let chunk = (first..provers.min(first.saturating_add(ENROLLMENT_CHUNK)))
                .map(|index| Ok(prover(index, &group, environment.address(index)?)))
                .collect::<Result<Vec<_>, BenchError>>()?;
            runtime.block_on(registry.enroll_provers(chunk, 1))?;
        }
        Ok(Self {
            registry,
            runtime,
            group,
            h: ConfigurationHash(configuration.hash().0),
            _directory: directory,
        })
    }

    fn block_on<T>(
        &self,
        work: impl Future<Output = Result<T, linewarden_registry::RegistryError>>,
    ) -> Result<T, BenchError> {
        Ok(self.runtime.block_on(work)?)
    }
}

/// Rounds take place only on request.
fn policy() -> GroupPolicy {
    GroupPolicy {
        every_s: 86_400,
        jitter_s: 0,
        proof_timeout_ms: 2_000,
        ..GroupPolicy::default()
    }
}

fn configuration() -> Result<Configuration, BenchError> {
    let mode = FileMode::new(0o755).ok_or_else(|| invalid_measurement("0755 is not a valid file mode"))?;
    let program = FileEntry::File {
        mode,
        content: ContentHash([0x5c; 32]),
    };
    let path = FilePath::new("/usr/bin/sensord").map_err(invalid_measurement)?;
    Configuration::new(
        PcrValues::new(HashAlgorithm::Sha256),
        [(path, program)].into_iter().collect(),
    )
    .map_err(invalid_measurement)
}

fn device(index: u32) -> DeviceRecord {
    let mut key = *b"....key of bench";
    key[..4].copy_from_slice(&index.to_be_bytes());
    DeviceRecord {
        device: device_id(index),
        name: String::new(),
        suite: Suite::SipHash128,
        enrolled_at_s: 0,
        puf_profile: "seeded generator".to_owned(),
        credentials: Credentials::Key(RowKey::from_bytes(key)),
    }
}

fn prover(index: u32, group: &GroupName, location: SocketAddr) -> NewProver {
    NewProver {
        device: device_id(index),
        group: group.clone(),
        key: attestation_key(index),
        protection: Protection::Software,
        binding: None,
        overlay: None,
        location: Some(ProverLocation {
            gateway: GATEWAY_ID,
            address: location.ip(),
        }),
        port: location.port(),
        enrolled_period: Period(0),
    }
}

impl Environment {
    fn choose() -> Result<Self, BenchError> {
        if capability::require(FOR_LOAD_GENERATOR).is_ok() {
            return Ok(Self::Link(Box::new(Lab::build(&Topology {
                ipv6: false,
                device_host: false,
                permanent_neighbors: SOCKETS,
                devices_end_accepts_xdp: false,
                ..Topology::default()
            })?)));
        }
        let sockets = (0..SOCKETS).map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)));
        Ok(Self::Loopback(
            sockets
                .collect::<Result<_, _>>()
                .map_err(io("open the provers' sockets"))?,
        ))
    }

    /// Address to which a prover's requests are sent.
    fn address(&self, index: u32) -> Result<SocketAddr, BenchError> {
        let socket = index % SOCKETS;
        match self {
            Self::Link(_) => {
                let ip = DeviceAddress::new(socket).v4();
                Ok(SocketAddr::new(IpAddr::V4(ip), ATTEST_PORT))
            }
            Self::Loopback(sockets) => sockets
                .get(socket as usize)
                .ok_or_else(|| invalid_measurement("too few sockets"))?
                .local_addr()
                .map_err(io("open the provers' sockets")),
        }
    }

    /// All provers, grouped by socket.
    fn provers(&self, provers: u32, h: ConfigurationHash) -> Result<Vec<SimulatedProvers>, BenchError> {
        let devices = |socket: u32| (socket..provers).step_by(SOCKETS as usize);
        match self {
            Self::Link(lab) => (0..SOCKETS)
                .map(|socket| {
                    let frames = Frames::open(lab, SOCKETS)?;
                    Ok(SimulatedProvers::new(frames, devices(socket), h))
                })
                .collect(),
            Self::Loopback(sockets) => sockets
                .iter()
                .zip(0..)
                .map(|(socket, number)| {
                    let datagrams = Datagrams::open(socket).map_err(io("open the provers' sockets"))?;
                    Ok(SimulatedProvers::new(datagrams, devices(number), h))
                })
                .collect(),
        }
    }

    fn gateway(&self, provers: u32, registry: &ProverRegistry) -> Result<Gateway, BenchError> {
        let config = Config {
            provers,
            gate: Gate::Off,
            low_rows: 0,
            low_credit: 2,
            ..keys::config(provers, 1)
        };
        match self {
            Self::Link(lab) => {
                let index = lab.gateway_devices_end.index;
                lab.gateway.run(|| {
                    let mut data_plane = Xdp::load(&config)?;
                    data_plane.attach(index)?;
                    start(Box::new(data_plane), &config, registry)
                })?
            }
            Self::Loopback(_) => {
                let probe = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|probe| probe.local_addr());
                let config = Config {
                    lap_port: probe.map_err(io("find a free UDP port"))?.port(),
                    local: vec![Ipv4Addr::LOCALHOST.into()],
                    device_prefixes: address::loopback_prefixes(),
                    ..config
                };
                let data_plane = Host::start(&config, &HostOptions::default())?;
                start(Box::new(data_plane), &config, registry)
            }
        }
    }
}

fn start(
    data_plane: Box<dyn DataPlane>,
    config: &Config,
    registry: &ProverRegistry,
) -> Result<Gateway, BenchError> {
    let settings = Settings::for_data_plane(config);
    let policy = Policy {
        lease_rows: config.geometry.ring.saturating_add(1),
        mark_block: settings.mark_block,
    };
    let controller = Arc::new(InProcess::link(
        Controller::new(registry.registry.clone(), policy),
        GATEWAY_ID,
    ));
    Gateway::start(data_plane, controller, settings).map_err(invalid_measurement)
}
