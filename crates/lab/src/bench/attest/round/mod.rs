//! `round.*`: a whole round of many provers, through the real gateway: registry, node, data plane, network.
//!
//! ```text
//!  registry ── keys ──► node ── ATTEST_REQUESTs ──► network ──► provers on a few sockets
//!      ▲                 │ ▲                                       │ all lanes
//!      └── the record ───┘ └── who is ok ── data plane ◄── PROOFs ─┘
//! ```
//! A round's time counts from the node's decision to open it to the last PROOF that the data plane took for good, as the record of
//! the round has it: drawing up the list of provers, tagging and sending all requests, repeating those that were lost, all
//! PROOFs. The provers' own work runs on the same processors at the same time and is in it. A round counts only if every prover
//! has proven itself; the period's keys are there before, on both sides, as they are in the field.

mod simulation;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linewarden_controller::{Controller, Policy};
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
    BulkOptions, Credentials, DeviceRecord, GroupName, GroupPolicy, Home, MasterKey, NewGroup, NewProver,
    Protection, Registry, RoundRecord,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use self::simulation::{Datagrams, Frames, Simulated, attestation_key};
use super::Size;
use crate::address::{self, DeviceAddress};
use crate::bench::keys::{self, GATEWAY_ID};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row, io};
use crate::capability::{self, FOR_LOAD_GENERATOR};
use crate::fleet::device_id;
use crate::topology::{Lab, Topology};

/// What a round of 10^5 provers may take, s.
const BAR_S: f64 = 1.0;
/// Sockets that the provers are behind, each with a thread and an address.
const SOCKETS: u32 = 2;
/// Rounds of which the fastest counts, at most.
const ROUNDS_MAX: u32 = 10;
/// How long the gateway may take to load the provers, or to do with a round.
const PATIENCE: Duration = Duration::from_secs(300);
/// Between two looks at how far it is.
const GLANCE: Duration = Duration::from_millis(200);
/// Provers are enrolled so many at a time, and progress is told after each.
const TOLD: u32 = 500;

/// Where gateway and provers are.
enum Place {
    /// `xdp` on one end of a veth, the provers on the other.
    Link(Box<Lab>),
    /// `host` and sockets on loopback, where nothing else is allowed.
    Loopback(Vec<UdpSocket>),
}

/// Rows of the round.
///
/// # Errors
/// The registry's, the network's, or no round in which all have proven themselves.
pub fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let place = Place::choose()?;
    let records = Records::make(size.round_provers, &place, progress)?;
    let stop = AtomicBool::new(false);
    let measured = std::thread::scope(|scope| {
        let provers = place.provers(size.round_provers, records.h)?;
        let threads: Vec<_> = provers
            .into_iter()
            .map(|provers| scope.spawn(|| provers.run(&stop)))
            .collect();
        let measured = measure(size, &place, &records, progress);
        stop.store(true, Ordering::Relaxed);
        let mut sent = 0;
        for thread in threads {
            let ended = thread.join();
            let panicked = |_| BenchError::Contradiction("a prover's thread panicked".to_owned());
            sent += ended.map_err(panicked)??;
        }
        Ok::<_, BenchError>((measured?, sent))
    });
    let (measured, sent) = measured?;
    let suffix = match place {
        Place::Link(_) => "",
        Place::Loopback(_) => ".host",
    };
    let best = &measured.best;
    let name = |row: &str| format!("round.{row}{suffix}");
    let full = size.round_provers == Size::FULL.round_provers;
    let bar = (full && suffix.is_empty()).then_some(BAR_S);
    let seconds = f64::from(best.record.last_verdict_ms) / 1e3;
    let arrived = measured.counted.get(Verdict::ProofOk) + measured.counted.get(Verdict::DropProved);
    let lost = sent.saturating_sub(arrived) as f64;
    rows.extend([
        Row::lower(name("seconds"), seconds, "s", bar),
        Row::fact(name("seconds_slowest"), measured.slowest_s, "s"),
        Row::fact(name("provers"), best.record.asked.into(), "provers"),
        Row::fact(name("requests"), best.requests as f64, "requests"),
        Row::fact(name("complete"), measured.complete.into(), "rounds"),
        Row::fact(name("proofs_lost"), lost / f64::from(measured.rounds), "a round"),
    ]);
    Ok(())
}

/// A round that was complete.
struct Round {
    record: RoundRecord,
    /// Sent in it, repetitions included.
    requests: u64,
}

struct Measured {
    best: Round,
    complete: u32,
    slowest_s: f64,
    /// The one before them, in which both sides make their keys, included.
    rounds: u32,
    counted: Counters,
}

fn measure(
    size: &Size,
    place: &Place,
    records: &Records,
    progress: Progress<'_>,
) -> Result<Measured, BenchError> {
    let gateway = place.gateway(size.round_provers, records)?;
    let began = Instant::now();
    while !gateway.wait_until(GLANCE, |status| status.attest.rounds > 0) {
        let provers = gateway.status().attest.provers;
        progress(
            "a round of all provers: loading",
            Some((provers, size.round_provers.into())),
        );
        if began.elapsed() > PATIENCE {
            return Err(contradiction(format!(
                "no round within {PATIENCE:?}: {:?}",
                gateway.status()
            )));
        }
    }
    let runs = size.runs.min(ROUNDS_MAX);
    let mut complete: Vec<Round> = Vec::new();
    let mut last = None;
    for run in 0..runs {
        progress("a round of all provers", Some((run.into(), runs.into())));
        let round = one_round(&gateway, records)?;
        let (asked, silent) = (round.record.asked, round.record.silent);
        last = Some(round.record.clone());
        if asked == size.round_provers && silent == 0 {
            complete.push(round);
        }
    }
    let counted = gateway.counters().map_err(contradiction)?;
    let count = complete.len() as u32;
    let slowest_ms = complete.iter().map(|round| round.record.last_verdict_ms).max();
    let best = complete
        .into_iter()
        .min_by_key(|round| round.record.last_verdict_ms);
    let none = || contradiction(format!("no round was complete; the last one: {last:?}"));
    gateway.stop().map_err(contradiction)?;
    Ok(Measured {
        best: best.ok_or_else(none)?,
        complete: count,
        slowest_s: f64::from(slowest_ms.unwrap_or(0)) / 1e3,
        rounds: runs + 1,
        counted,
    })
}

/// Orders a round and waits for its record.
fn one_round(gateway: &Gateway, records: &Records) -> Result<Round, BenchError> {
    let before = gateway.status().attest;
    records.block(records.registry.want_round(&records.group))?;
    if !gateway.wait_until(PATIENCE, |status| status.attest.rounds > before.rounds) {
        return Err(contradiction(format!("no round within {PATIENCE:?}")));
    }
    let newest = records.block(records.registry.rounds(Some(GATEWAY_ID), 1))?;
    let record = newest.into_iter().next();
    Ok(Round {
        record: record.ok_or_else(|| contradiction("a round has left no record"))?,
        requests: gateway.status().attest.requests.saturating_sub(before.requests),
    })
}

fn contradiction(error: impl ToString) -> BenchError {
    BenchError::Contradiction(error.to_string())
}

/// The registry with all provers, made ahead.
struct Records {
    registry: Registry,
    runtime: Runtime,
    group: GroupName,
    /// What all of them run.
    h: ConfigurationHash,
    // Dropped last.
    _directory: TempDir,
}

impl Records {
    fn make(provers: u32, place: &Place, progress: Progress<'_>) -> Result<Self, BenchError> {
        let directory = tempfile::tempdir().map_err(io("making a directory"))?;
        // A thread that goes on between calls: connections go back to the pool by tasks of their own.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(io("starting a runtime"))?;
        let key = MasterKey::from_bytes([0x42; 32]);
        let path = directory.path().join("fleet.registry");
        let registry = runtime.block_on(Registry::create(&path, &key))?;
        let devices = (0..provers).map(device);
        let told = |done: linewarden_registry::Progress| {
            progress("enrolling devices", Some((done.done, provers.into())));
        };
        runtime.block_on(registry.enrol_bulk(devices, BulkOptions::default(), told))?;
        let configuration = configuration()?;
        let group = GroupName::new("bench").map_err(contradiction)?;
        let new_group = NewGroup {
            name: group.clone(),
            policy: policy(),
            reference: Some(configuration.encode()),
            roll_out: None,
        };
        runtime.block_on(registry.set_group(&new_group, 1))?;
        for first in (0..provers).step_by(TOLD as usize) {
            progress("enrolling provers", Some((first.into(), provers.into())));
            let some = (first..provers.min(first.saturating_add(TOLD)))
                .map(|index| Ok(prover(index, &group, place.address(index)?)))
                .collect::<Result<Vec<_>, BenchError>>()?;
            runtime.block_on(registry.enrol_provers(some, 1))?;
        }
        Ok(Self {
            registry,
            runtime,
            group,
            h: ConfigurationHash(configuration.hash().0),
            _directory: directory,
        })
    }

    fn block<T>(
        &self,
        work: impl Future<Output = Result<T, linewarden_registry::RegistryError>>,
    ) -> Result<T, BenchError> {
        Ok(self.runtime.block_on(work)?)
    }
}

/// Rounds come when they are ordered.
fn policy() -> GroupPolicy {
    GroupPolicy {
        every_s: 86_400,
        jitter_s: 0,
        answer_ms: 2_000,
        ..GroupPolicy::default()
    }
}

fn configuration() -> Result<Configuration, BenchError> {
    let mode = FileMode::new(0o755).ok_or_else(|| contradiction("0755 is a mode"))?;
    let program = FileEntry::File {
        mode,
        content: ContentHash([0x5c; 32]),
    };
    let path = FilePath::new("/usr/bin/sensord").map_err(contradiction)?;
    Configuration::new(
        PcrValues::new(HashAlgorithm::Sha256),
        [(path, program)].into_iter().collect(),
    )
    .map_err(contradiction)
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

fn prover(index: u32, group: &GroupName, at: SocketAddr) -> NewProver {
    NewProver {
        device: device_id(index),
        group: group.clone(),
        key: attestation_key(index),
        protection: Protection::Software,
        binding: None,
        overlay: None,
        home: Some(Home {
            gateway: GATEWAY_ID,
            address: at.ip(),
        }),
        port: at.port(),
        enrolled_period: Period(0),
    }
}

impl Place {
    fn choose() -> Result<Self, BenchError> {
        if capability::require(FOR_LOAD_GENERATOR).is_ok() {
            return Ok(Self::Link(Box::new(Lab::build(&Topology {
                ipv6: false,
                device_host: false,
                permanent_neighbours: SOCKETS,
                devices_end_accepts_xdp: false,
                ..Topology::default()
            })?)));
        }
        let sockets = (0..SOCKETS).map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)));
        Ok(Self::Loopback(
            sockets
                .collect::<Result<_, _>>()
                .map_err(io("opening the provers' sockets"))?,
        ))
    }

    /// Where a prover is asked.
    fn address(&self, index: u32) -> Result<SocketAddr, BenchError> {
        let socket = index % SOCKETS;
        match self {
            Self::Link(_) => {
                let ip = DeviceAddress::new(socket).v4();
                Ok(SocketAddr::new(IpAddr::V4(ip), ATTEST_PORT))
            }
            Self::Loopback(sockets) => sockets
                .get(socket as usize)
                .ok_or_else(|| contradiction("too few sockets"))?
                .local_addr()
                .map_err(io("the provers' sockets")),
        }
    }

    /// All provers, by sockets.
    fn provers(&self, provers: u32, h: ConfigurationHash) -> Result<Vec<Simulated>, BenchError> {
        let devices = |socket: u32| (socket..provers).step_by(SOCKETS as usize);
        match self {
            Self::Link(lab) => (0..SOCKETS)
                .map(|socket| {
                    let frames = Frames::open(lab, SOCKETS)?;
                    Ok(Simulated::new(frames, devices(socket), h))
                })
                .collect(),
            Self::Loopback(sockets) => sockets
                .iter()
                .zip(0..)
                .map(|(socket, number)| {
                    let datagrams = Datagrams::over(socket).map_err(io("the provers' sockets"))?;
                    Ok(Simulated::new(datagrams, devices(number), h))
                })
                .collect(),
        }
    }

    fn gateway(&self, provers: u32, records: &Records) -> Result<Gateway, BenchError> {
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
                    let mut plane = Xdp::load(&config)?;
                    plane.attach(index)?;
                    start(Box::new(plane), &config, records)
                })?
            }
            Self::Loopback(_) => {
                let probe = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|probe| probe.local_addr());
                let config = Config {
                    lap_port: probe.map_err(io("finding a free UDP port"))?.port(),
                    local: vec![Ipv4Addr::LOCALHOST.into()],
                    device_prefixes: address::loopback_prefixes(),
                    ..config
                };
                let plane = Host::start(&config, &HostOptions::default())?;
                start(Box::new(plane), &config, records)
            }
        }
    }
}

fn start(plane: Box<dyn DataPlane>, config: &Config, records: &Records) -> Result<Gateway, BenchError> {
    let settings = Settings::for_plane(config);
    let policy = Policy {
        lease_rows: config.geometry.ring.saturating_add(1),
        mark_block: settings.mark_block,
    };
    let controller = Controller::new(records.registry.clone(), policy);
    Gateway::start(plane, controller, GATEWAY_ID, settings).map_err(contradiction)
}
