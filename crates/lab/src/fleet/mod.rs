//! A simulated fleet: any number of devices, each with its own addresses, noisy PUF and LAP/1 device role, over a
//! few packet sockets.
//!
//! Every device is what a real one is: [`linewarden_protocol::device::Device`] decides, a [`linewarden_puf::Puf`] is
//! read for every CHALLENGE, and whole Ethernet frames go out from the device's own MAC and IP address
//! ([`crate::address`]). Only the operating system below is missing, so the fleet also answers ARP and neighbour
//! solicitations for its addresses.
//!
//! Devices are spread over worker threads by index; each worker has a socket of its own and a window of devices
//! that are in a handshake at once. A worker does one thing at a time, PUF readings included, and these take longer
//! than everything else. So latency is reported in parts ([`Report`]): time on the network by the kernel's receive
//! stamps, in which the fleet's own queue does not count, and PUF time.

mod attester;
mod crew;
mod enrol;
mod exchange;
mod member;
mod neighbour;
mod report;
mod timers;
mod worker;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use linewarden_protocol::device::Session;
use linewarden_protocol::frame::write::Endpoint;

pub use attester::{Attester, MeasureError, Unanswered, measure};
pub use enrol::{EnrolError, EnrolledKey, FleetSpec, PufKind, SimulatedDevice, device_id, enrol_fleet};
pub use exchange::{Exchange, ExchangeReport};
pub use member::Member;
pub(crate) use neighbour::answer as answer_neighbour;
pub use report::{Outcome, Report};
use worker::{Goal, Worker};

use crate::address::{DeviceAddress, Family};
use crate::packet_socket::{Fanout, Options, PacketSocket, PacketSocketError};
use crate::topology::Lab;

/// UDP port that devices authenticate from.
pub const DEVICE_PORT: u16 = 40_000;
/// UDP port that devices exchange data from.
pub const DATA_PORT: u16 = 40_001;

/// Why a fleet could not be made or run.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// A socket.
    #[error(transparent)]
    Socket(#[from] PacketSocketError),
    /// A worker thread ended early.
    #[error("a fleet's worker thread panicked")]
    Panicked,
    /// More than one worker, and not as many as there are.
    #[error("a fleet needs at least one worker and at most 64, not {0}")]
    Workers(usize),
}

/// How a fleet is run.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// Worker threads, each with its own socket.
    pub workers: usize,
    /// Index of the first device; the others follow.
    pub first_index: u32,
    /// IP version of device `i`: `families[i % families.len()]`; IPv4 where the list is empty.
    pub families: Vec<Family>,
    /// The gateway's port of LAP/1 and its addresses as the devices know them.
    pub gateway: fn(Family) -> Endpoint,
    /// Sends past the queueing discipline: faster, but nobody can listen in ([`Options::bypass_qdisc`]).
    pub bypass_qdisc: bool,
    /// Seeds the CSPRNG that draws nonces, with the worker's number mixed in.
    pub nonce_seed: [u8; 32],
    /// Number of the sockets' fanout group, unique among the fleets on one lab; used with several workers.
    pub fanout_group: u16,
}

impl FleetOptions {
    /// One worker, devices from index 0 over IPv4, towards [`crate::address::GATEWAY`], audible to listeners.
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

/// One run of [`Fleet::authenticate`].
pub struct Run<'a> {
    /// Devices of each worker that may be in a handshake at once. 1 measures latency without any queue; up to 100
    /// keeps a verifier busy and stays within a veth's ring of 256 frames.
    pub window: usize,
    /// The run ends at the latest then; what is not done counts as unfinished.
    pub limit: Duration,
    /// Ends the run early when set.
    pub stop: &'a AtomicBool,
    /// Called every 100 ms and at the end, from the calling thread.
    pub progress: &'a mut dyn FnMut(Progress),
}

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Devices with a session.
    pub authenticated: u64,
    /// Handshakes that failed; their devices try again.
    pub failed: u64,
    /// Devices in all.
    pub devices: u64,
    /// Sum, over the devices with a session, of their time on the network and in the gateway
    /// ([`Report::network_ns`]).
    pub network_ns: u64,
}

/// Counters that workers share with whoever watches.
#[derive(Debug, Default)]
struct Shared {
    /// Workers whose devices are not all done.
    busy_workers: AtomicUsize,
    authenticated: AtomicU64,
    failed: AtomicU64,
    network_ns: AtomicU64,
}

/// The fleet.
#[derive(Debug)]
pub struct Fleet {
    workers: Vec<Worker>,
    first_index: u32,
    devices: u64,
}

impl Fleet {
    /// Opens the sockets on the devices' end of the lab and places the members, in order, from
    /// [`FleetOptions::first_index`] on.
    ///
    /// # Errors
    /// A missing capability or what the kernel says of the sockets.
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
        let past_last = options.first_index.saturating_add(members.len() as u32);
        let mut workers = Vec::with_capacity(options.workers);
        for number in 0..sockets {
            let socket = PacketSocket::open(&lab.devices, &lab.devices_end, &socket_options)?;
            workers.push(Worker::new(socket, options, number, past_last));
        }
        for (index, member) in (options.first_index..).zip(members) {
            // The fanout program spreads frames in the same way.
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

    /// Lets every device that has no session get one, and reports on this run.
    ///
    /// Devices follow their own rules for repeating, giving up and trying again (LAP/1 1.5).
    ///
    /// # Errors
    /// A socket failed.
    pub fn authenticate(&mut self, run: &mut Run<'_>) -> Result<Report, FleetError> {
        self.handshakes(run, false)
    }

    /// [`Self::authenticate`] in which a device gives up after its first handshake: after 8 REQUESTs, if no CHALLENGE comes.
    ///
    /// # Errors
    /// A socket failed.
    pub fn authenticate_once(&mut self, run: &mut Run<'_>) -> Result<Report, FleetError> {
        self.handshakes(run, true)
    }

    fn handshakes(&mut self, run: &mut Run<'_>, once: bool) -> Result<Report, FleetError> {
        let goal = Goal::Authenticate {
            window: run.window,
            once,
        };
        let reports = self.run_workers(run, |worker, stop, until, shared| {
            worker.run(&goal, stop, until, shared)?;
            Ok(worker.take_report())
        })?;
        Ok(reports.into_iter().fold(Report::default(), Report::join))
    }

    /// Takes the devices' power away and gives it back: all that they knew of handshakes and sessions is gone, what
    /// they store and their PUFs stay.
    pub fn power_cycle(&mut self) {
        for worker in &mut self.workers {
            worker.power_cycle();
        }
    }

    /// Takes one device's power away and gives it back, as [`power_cycle`](Self::power_cycle) does with all.
    pub fn power_cycle_device(&mut self, index: u32) {
        if let Some(worker) = self.worker_of_mut(index) {
            worker.power_cycle_device(index);
        }
    }

    /// Makes a device of this fleet a prover: from now on it answers ATTEST_REQUESTs to
    /// [`ATTEST_PORT`](linewarden_protocol::wire::ATTEST_PORT), whatever the fleet runs for.
    pub fn set_attester(&mut self, index: u32, attester: Attester) {
        if let Some(worker) = self.worker_of_mut(index) {
            worker.set_attester(index, attester);
        }
    }

    /// Lets the devices live, and prove what they run, until the run is stopped or its time is over.
    ///
    /// # Errors
    /// A socket failed.
    pub fn attest(&mut self, run: &mut Run<'_>) -> Result<Report, FleetError> {
        let reports = self.run_workers(run, |worker, stop, until, shared| {
            worker.run(&Goal::Attest, stop, until, shared)?;
            Ok(worker.take_report())
        })?;
        Ok(reports.into_iter().fold(Report::default(), Report::join))
    }

    /// Sends one datagram from each device to a service and waits for its echo.
    ///
    /// # Errors
    /// A socket failed.
    pub fn exchange(&mut self, exchange: &Exchange, run: &mut Run<'_>) -> Result<ExchangeReport, FleetError> {
        let goal = Goal::Exchange {
            exchange: *exchange,
            window: run.window,
        };
        let reports = self.run_workers(run, |worker, stop, until, shared| {
            worker.begin_exchange();
            worker.run(&goal, stop, until, shared)?;
            Ok(worker.take_exchange_report())
        })?;
        Ok(reports
            .into_iter()
            .fold(ExchangeReport::default(), ExchangeReport::join))
    }

    /// How a device of this fleet fared in the last [`authenticate`](Self::authenticate); `None` if it is not here.
    #[must_use]
    pub fn outcome(&self, index: u32) -> Option<Outcome> {
        self.worker_of(index)?.outcome(index)
    }

    /// The session that a device believes to have.
    #[must_use]
    pub fn session(&self, index: u32) -> Option<&Session> {
        self.worker_of(index)?.session(index)
    }

    /// Whether a device got the echo of its last datagram.
    #[must_use]
    pub fn got_echo(&self, index: u32) -> bool {
        self.worker_of(index).is_some_and(|worker| worker.got_echo(index))
    }

    /// Devices in the fleet; their indices count up from the first.
    pub fn indices(&self) -> impl Iterator<Item = u32> + use<> {
        let first = self.first_index;
        (0..self.devices as u32).map(move |at| first + at)
    }

    fn worker_of(&self, index: u32) -> Option<&Worker> {
        self.workers.get(index as usize % self.workers.len().max(1))
    }

    fn worker_of_mut(&mut self, index: u32) -> Option<&mut Worker> {
        let workers = self.workers.len().max(1);
        self.workers.get_mut(index as usize % workers)
    }

    /// Runs `work` on every worker in a thread of its own and calls `progress` meanwhile.
    fn run_workers<R: Send>(
        &mut self,
        run: &mut Run<'_>,
        work: impl Fn(&mut Worker, &AtomicBool, Instant, &Shared) -> Result<R, PacketSocketError> + Sync,
    ) -> Result<Vec<R>, FleetError> {
        let until = Instant::now() + run.limit;
        let shared = Shared {
            busy_workers: AtomicUsize::new(self.workers.len()),
            ..Shared::default()
        };
        let devices = self.devices;
        let stop = run.stop;
        let (done, finished) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let mut threads = Vec::with_capacity(self.workers.len());
            for worker in &mut self.workers {
                let (work, shared, done) = (&work, &shared, done.clone());
                threads.push(scope.spawn(move || {
                    let result = work(worker, stop, until, shared);
                    drop(done);
                    result
                }));
            }
            drop(done);
            let mut show = || {
                (run.progress)(Progress {
                    authenticated: shared.authenticated.load(Ordering::Relaxed),
                    failed: shared.failed.load(Ordering::Relaxed),
                    devices,
                    network_ns: shared.network_ns.load(Ordering::Relaxed),
                });
            };
            // Every worker holds a sender; all gone means all done.
            while let Err(RecvTimeoutError::Timeout) = finished.recv_timeout(Duration::from_millis(100)) {
                show();
            }
            show();
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
    let at = index as usize % options.families.len().max(1);
    options.families.get(at).copied().unwrap_or(Family::V4)
}

/// The address of a device in one IP version.
fn ip_of(address: DeviceAddress, family: Family) -> IpAddr {
    address.endpoint(family, 0).ip
}
