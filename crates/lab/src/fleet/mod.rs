//! A simulated fleet: any number of devices, each with its own addresses, noisy PUF and LAP/1 device role, over a
//! few packet sockets.
//!
//! Every device runs the production device role [`linewarden_protocol::device::Device`], reads a [`linewarden_puf::Puf`] for
//! every CHALLENGE, and sends complete Ethernet frames from its own MAC and IP address ([`crate::address`]). The devices have
//! no operating system, so the fleet also replies to ARP and neighbor solicitations for their addresses.
//!
//! Devices are distributed over worker threads by index. Each worker has its own socket and a window of concurrent
//! handshakes. A worker processes one step at a time, and PUF readings take longer than all other steps. The latency is
//! therefore reported in parts ([`Report`]): network time by the kernel's receive timestamps, without the fleet's own
//! queue, and PUF time.

mod attester;
mod enroll;
mod exchange;
mod member;
mod neighbor;
mod report;
mod timers;
mod worker;
mod worker_devices;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use linewarden_protocol::device::Session;
use linewarden_protocol::frame::write::Endpoint;

pub use attester::{Attester, MeasureError, NoProof, measure};
pub use enroll::{EnrollError, EnrolledKey, FleetSpec, PufKind, SimulatedDevice, device_id, enroll_fleet};
pub use exchange::{Exchange, ExchangeReport};
pub use member::Member;
pub(crate) use neighbor::reply as neighbor_reply;
pub use report::{Outcome, Report};
use worker::{Goal, Worker};

use crate::address::{DeviceAddress, Family};
use crate::packet_socket::{Fanout, Options, PacketSocket, PacketSocketError};
use crate::topology::Lab;

/// UDP port that devices authenticate from.
pub const DEVICE_PORT: u16 = 40_000;
/// UDP port that devices exchange data from.
pub const DATA_PORT: u16 = 40_001;

/// Why a fleet could not be created or run.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// A packet socket failed.
    #[error(transparent)]
    Socket(#[from] PacketSocketError),
    /// A worker thread panicked.
    #[error("a worker thread of the fleet panicked")]
    Panicked,
    /// The number of workers is out of range.
    #[error("invalid number of fleet workers {0}: use 1 to 64")]
    Workers(usize),
}

/// Options of a fleet.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// Worker threads, each with its own socket.
    pub workers: usize,
    /// Index of the first device.
    pub first_index: u32,
    /// IP version of device `i`: `families[i % families.len()]`; IPv4 if the list is empty.
    pub families: Vec<Family>,
    /// The gateway's LAP/1 endpoint as the devices see it.
    pub gateway: fn(Family) -> Endpoint,
    /// Bypasses the queueing discipline: faster, but captures do not see the frames ([`Options::bypass_qdisc`]).
    pub bypass_qdisc: bool,
    /// Seed of the CSPRNG for nonces; each worker mixes its number into the seed.
    pub nonce_seed: [u8; 32],
    /// Number of the sockets' fanout group, unique among the fleets on one lab; used with several workers.
    pub fanout_group: u16,
}

impl FleetOptions {
    /// One worker, devices from index 0 over IPv4, towards [`crate::address::GATEWAY`], visible to captures.
    #[must_use]
    pub fn new(nonce_seed: [u8; 32]) -> Self {
        Self {
            workers: 1,
            first_index: 0,
            families: vec![Family::V4],
            gateway: |family| crate::address::GATEWAY.endpoint(family, linewarden_protocol::wire::LAP_PORT),
            bypass_qdisc: false,
            nonce_seed,
            fanout_group: 1,
        }
    }
}

/// Options of one run of a fleet.
pub struct RunOptions<'a> {
    /// Concurrent handshakes of each worker. 1 measures latency without a queue; up to 100 saturates a verifier and stays
    /// within a veth's ring of 256 frames.
    pub window: usize,
    /// Time limit of the run; devices that are not done count as unfinished.
    pub timeout: Duration,
    /// Ends the run early when set.
    pub stop: &'a AtomicBool,
    /// Called every 100 ms and at the end, from the calling thread.
    pub progress: &'a mut dyn FnMut(Progress),
}

/// Progress of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Devices with a session.
    pub authenticated: u64,
    /// Failed handshakes; their devices retry.
    pub failed: u64,
    /// All devices.
    pub devices: u64,
    /// Sum, over the devices with a session, of their time on the network and in the gateway
    /// ([`Report::network_ns`]).
    pub network_ns: u64,
}

/// Counters that the workers share with the thread that reports progress.
#[derive(Debug, Default)]
struct SharedCounters {
    /// Number of workers with devices that are not done.
    busy_workers: AtomicUsize,
    authenticated: AtomicU64,
    failed: AtomicU64,
    network_ns: AtomicU64,
}

/// A fleet of simulated devices.
#[derive(Debug)]
pub struct Fleet {
    workers: Vec<Worker>,
    first_index: u32,
    devices: u64,
}

impl Fleet {
    /// Opens the sockets on the devices' end of the lab and assigns the members, in order, to the indices from
    /// [`FleetOptions::first_index`] on.
    ///
    /// # Errors
    /// A capability is missing, or the kernel refuses a socket.
    pub fn new(lab: &Lab, members: Vec<Member>, options: &FleetOptions) -> Result<Self, FleetError> {
        if options.workers == 0 || options.workers > 64 {
            return Err(FleetError::Workers(options.workers));
        }
        let devices = members.len() as u64;
        let sockets = options.workers as u32;
        let fanout = (sockets > 1).then_some(Fanout {
            group: options.fanout_group,
            sockets,
        });
        let socket_options = Options {
            rx_frames: 8192,
            bypass_qdisc: options.bypass_qdisc,
            fanout,
            ..Options::default()
        };
        let end_index = options.first_index.saturating_add(members.len() as u32);
        let mut workers = Vec::with_capacity(options.workers);
        for number in 0..sockets {
            let socket = PacketSocket::open(&lab.devices, &lab.devices_end, &socket_options)?;
            workers.push(Worker::new(socket, options, number, end_index));
        }
        for (index, member) in (options.first_index..).zip(members) {
            // The fanout program distributes frames by the same rule.
            if let Some(worker) = workers.get_mut((index % sockets) as usize) {
                worker.add(index, member, family(options, index));
            }
        }
        Ok(Self {
            workers,
            first_index: options.first_index,
            devices,
        })
    }

    /// Authenticates every device without a session and reports on this run.
    ///
    /// Devices follow the protocol's rules for retransmission, failure and retry (LAP/1 1.5).
    ///
    /// # Errors
    /// A socket failed.
    pub fn authenticate(&mut self, run: &mut RunOptions<'_>) -> Result<Report, FleetError> {
        self.handshakes(run, false)
    }

    /// [`Self::authenticate`] with a single handshake per device: a device stops after 8 REQUESTs without a CHALLENGE.
    ///
    /// # Errors
    /// A socket failed.
    pub fn authenticate_once(&mut self, run: &mut RunOptions<'_>) -> Result<Report, FleetError> {
        self.handshakes(run, true)
    }

    fn handshakes(&mut self, run: &mut RunOptions<'_>, single_attempt: bool) -> Result<Report, FleetError> {
        let goal = Goal::Authenticate {
            window: run.window,
            single_attempt,
        };
        let reports = self.run_workers(run, |worker, stop, deadline, shared| {
            worker.run(&goal, stop, deadline, shared)?;
            Ok(worker.take_report())
        })?;
        Ok(reports.into_iter().fold(Report::default(), Report::merge))
    }

    /// Power-cycles all devices: their state of handshakes and sessions is lost, their stored credentials and PUFs
    /// remain.
    pub fn power_cycle(&mut self) {
        for worker in &mut self.workers {
            worker.power_cycle();
        }
    }

    /// Power-cycles one device, as [`power_cycle`](Self::power_cycle) does for all.
    pub fn power_cycle_device(&mut self, index: u32) {
        if let Some(worker) = self.worker_of_mut(index) {
            worker.power_cycle_device(index);
        }
    }

    /// Adds a prover to a device of this fleet: from now on the device responds to ATTEST_REQUESTs at
    /// [`ATTEST_PORT`](linewarden_protocol::wire::ATTEST_PORT) in every run.
    pub fn set_attester(&mut self, index: u32, attester: Attester) {
        if let Some(worker) = self.worker_of_mut(index) {
            worker.set_attester(index, attester);
        }
    }

    /// Lets the devices respond to attestation requests until the run is stopped or its time limit has passed.
    ///
    /// # Errors
    /// A socket failed.
    pub fn run_attestation(&mut self, run: &mut RunOptions<'_>) -> Result<Report, FleetError> {
        let reports = self.run_workers(run, |worker, stop, deadline, shared| {
            worker.run(&Goal::Attest, stop, deadline, shared)?;
            Ok(worker.take_report())
        })?;
        Ok(reports.into_iter().fold(Report::default(), Report::merge))
    }

    /// Sends one datagram from each device to a service and waits for its echo.
    ///
    /// # Errors
    /// A socket failed.
    pub fn exchange(
        &mut self,
        exchange: &Exchange,
        run: &mut RunOptions<'_>,
    ) -> Result<ExchangeReport, FleetError> {
        let goal = Goal::Exchange {
            exchange: *exchange,
            window: run.window,
        };
        let reports = self.run_workers(run, |worker, stop, deadline, shared| {
            worker.begin_exchange();
            worker.run(&goal, stop, deadline, shared)?;
            Ok(worker.take_exchange_report())
        })?;
        Ok(reports
            .into_iter()
            .fold(ExchangeReport::default(), ExchangeReport::merge))
    }

    /// Outcome of a device in the last [`authenticate`](Self::authenticate); `None` if the device is not in
    /// this fleet.
    #[must_use]
    pub fn outcome(&self, index: u32) -> Option<Outcome> {
        self.worker_of(index)?.outcome(index)
    }

    /// The session of a device, from the device's own state.
    #[must_use]
    pub fn session(&self, index: u32) -> Option<&Session> {
        self.worker_of(index)?.session(index)
    }

    /// Whether a device received the echo of its latest datagram.
    #[must_use]
    pub fn received_echo(&self, index: u32) -> bool {
        self.worker_of(index)
            .is_some_and(|worker| worker.received_echo(index))
    }

    /// The indices of the devices in the fleet.
    pub fn indices(&self) -> impl Iterator<Item = u32> + use<> {
        let first = self.first_index;
        (0..self.devices as u32).map(move |offset| first + offset)
    }

    fn worker_of(&self, index: u32) -> Option<&Worker> {
        self.workers.get(index as usize % self.workers.len().max(1))
    }

    fn worker_of_mut(&mut self, index: u32) -> Option<&mut Worker> {
        let workers = self.workers.len().max(1);
        self.workers.get_mut(index as usize % workers)
    }

    /// Runs `work` on every worker in a separate thread and calls `progress` until all workers have ended.
    fn run_workers<R: Send>(
        &mut self,
        run: &mut RunOptions<'_>,
        work: impl Fn(&mut Worker, &AtomicBool, Instant, &SharedCounters) -> Result<R, PacketSocketError> + Sync,
    ) -> Result<Vec<R>, FleetError> {
        let deadline = Instant::now() + run.timeout;
        let shared = SharedCounters {
            busy_workers: AtomicUsize::new(self.workers.len()),
            ..SharedCounters::default()
        };
        let devices = self.devices;
        let stop = run.stop;
        let (done_sender, done_receiver) = mpsc::sync_channel::<()>(0);
        std::thread::scope(|scope| {
            let mut threads = Vec::with_capacity(self.workers.len());
            for worker in &mut self.workers {
                let (work, shared, done_sender) = (&work, &shared, done_sender.clone());
                threads.push(scope.spawn(move || {
                    let result = work(worker, stop, deadline, shared);
                    drop(done_sender);
                    result
                }));
            }
            drop(done_sender);
            let mut report_progress = || {
                (run.progress)(Progress {
                    authenticated: shared.authenticated.load(Ordering::Relaxed),
                    failed: shared.failed.load(Ordering::Relaxed),
                    devices,
                    network_ns: shared.network_ns.load(Ordering::Relaxed),
                });
            };
            // Every worker holds a sender; the channel closes when all workers have ended.
            while let Err(RecvTimeoutError::Timeout) = done_receiver.recv_timeout(Duration::from_millis(100))
            {
                report_progress();
            }
            report_progress();
            threads
                .into_iter()
                .map(|thread| match thread.join() {
                    Ok(result) => result.map_err(FleetError::from),
                    Err(_) => Err(FleetError::Panicked),
                })
                .collect()
        })
    }
}

/// The IP version of a device.
fn family(options: &FleetOptions, index: u32) -> Family {
    let position = index as usize % options.families.len().max(1);
    options.families.get(position).copied().unwrap_or(Family::V4)
}

/// The address of a device in one IP version.
fn ip_of(address: DeviceAddress, family: Family) -> IpAddr {
    address.endpoint(family, 0).ip
}
