//! All simulated components together.

mod attacker;
mod attestation;
mod clock;
mod controller;
mod controller_host;
mod faults;
mod fleet;
mod invariants;
mod late_requests;
mod network;
mod process;
mod restore;
mod rounds;
mod session_locations;
mod tally;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use linewarden_controller::Policy;
use linewarden_protocol::ids::{DeviceId, Mode};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tokio::runtime::Runtime;

pub use self::clock::HostClock;
use self::controller_host::ControllerHost;
use self::fleet::Fleet;
use self::late_requests::LateRequest;
use self::network::Packet;
use self::process::Process;
use self::session_locations::SessionLocations;
pub use self::tally::{FleetTally, Tally};
use crate::ledger::Ledger;
use crate::simulated_device::SimulatedDevice;

const STEP_MS: u64 = 10;
const GATEWAYS: usize = 2;
const SLOTS: u32 = 3;
const RING: u32 = 6;
const SESSION_LIFETIME_S: u32 = 4;
const MARK_BLOCK: u32 = 4;
const POLICY: Policy = Policy {
    lease_rows: RING + 1,
    mark_block: MARK_BLOCK,
};
/// Maximum number of rows that a device loses when a gateway loses its memory: 14 rows of credit, and one row of a
/// handshake with a lost ACK.
const LOSS_MAX: u32 = 15;

/// A safety mechanism that a run can remove, to check that the removal is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// Requests of an old process are rejected.
    FencingToken,
    /// A request that its process has abandoned changes nothing after a later request.
    AbandonedCount,
    /// Only rows below the mark are spent.
    Mark,
    /// Devices that leave the data plane are wiped.
    Wiping,
    /// After a device has left a data plane, the device is admitted only when its unused rows are reported.
    UnusedRows,
    /// Only the next process of the gateway adopts memory.
    Owner,
    /// Confirmed writes are on the disk.
    Sync,
    /// Session lifetimes count on the clock that includes suspends.
    BootClock,
    /// Opened sessions are reported.
    Report,
    /// A device remembers its used rows across restarts.
    Memory,
    /// A device states the rows that it has used.
    Statement,
    /// A session report contains the true age.
    Age,
    /// A wrong proof is not accepted.
    Proof,
    /// A wrong proof is not a missed proof.
    MissedProof,
    /// Only allowed configurations are accepted.
    Reference,
    /// The controller appraises each round.
    Decision,
    /// A quarantined device that proves itself is released.
    Release,
    /// The controller appraises a round with the round's true age.
    RoundAge,
}

pub struct Simulation {
    rng: ChaCha8Rng,
    /// Random numbers for forged CHALLENGEs and row statements.
    attacker_rng: ChaCha8Rng,
    /// Random numbers for the delays of retries.
    retry_rng: ChaCha8Rng,
    /// Random numbers for late requests.
    late_rng: ChaCha8Rng,
    /// Requests that their processes have abandoned, and that a controller will process.
    late_requests: Vec<LateRequest>,
    without: Option<Mechanism>,
    runtime: Runtime,
    controller_host: ControllerHost,
    now_ms: u64,
    /// The wall clock of the controller's host minus the simulation time.
    wall_ahead_s: i64,
    processes: Vec<Process>,
    processes_started: u64,
    devices: Vec<SimulatedDevice>,
    /// Messages in flight: delivery time in ms, sequence number, message.
    network: BinaryHeap<Reverse<(u64, u64, Packet)>>,
    /// The newest sequence number in `network`.
    packets: u64,
    /// Messages that an eavesdropper has recorded, with the number of the process that received each message.
    recorded: Vec<(u64, [u8; 64])>,
    ledger: Ledger,
    session_locations: SessionLocations,
    /// Number of times that a gateway has lost its memory, or a report of unused rows was lost.
    losses: u32,
    /// By device: maximum number of rows that no process has spent and no process can spend any more. Examples are
    /// rows in a lost response, and rows at a gateway when the device's lease moves to another gateway.
    stranded_rows: BTreeMap<DeviceId, u32>,
    is_calm: bool,
    /// If true, a device without a session authenticates again, as agents do.
    keeps_sessions: bool,
    tally: Tally,
    /// Whether the devices are provers.
    attests: bool,
    fleet: Fleet,
    fleet_tally: FleetTally,
}

impl Simulation {
    pub fn new(seed: u64, without: Option<Mechanism>) -> Self {
        Self::make(seed, without, false)
    }

    /// Creates a simulation whose devices are provers.
    pub fn with_provers(seed: u64, without: Option<Mechanism>) -> Self {
        Self::make(seed, without, true)
    }

    fn make(seed: u64, without: Option<Mechanism>, attests: bool) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let controller_host = ControllerHost::new(&runtime, seed, without);
        let devices: Vec<SimulatedDevice> = (1..=rng.random_range(3..=6))
            .map(|number| {
                let mode = if rng.random_ratio(3, 4) {
                    Mode::Pool
                } else {
                    Mode::Key
                };
                SimulatedDevice::new(
                    number,
                    mode,
                    rng.random_range(20..90),
                    Fleet::initial_configuration(),
                    without,
                )
            })
            .collect();
        for simulated in &devices {
            runtime
                .block_on(controller_host.registry().enroll(simulated.record()))
                .unwrap();
        }
        let mut fleet_rng = ChaCha8Rng::seed_from_u64(!seed);
        let fleet = Fleet::new(&mut fleet_rng);
        if attests {
            runtime.block_on(fleet.enroll(controller_host.registry(), &devices, &mut fleet_rng));
        }
        let mut simulation = Self {
            rng,
            attacker_rng: ChaCha8Rng::seed_from_u64(seed.rotate_left(32)),
            retry_rng: ChaCha8Rng::seed_from_u64(!seed.rotate_left(32)),
            late_rng: ChaCha8Rng::seed_from_u64(seed.rotate_left(16)),
            late_requests: Vec::new(),
            without,
            controller_host,
            runtime,
            now_ms: 1_000,
            wall_ahead_s: 1_790_000_000,
            processes: Vec::new(),
            processes_started: 0,
            devices,
            network: BinaryHeap::new(),
            packets: 0,
            recorded: Vec::new(),
            ledger: Ledger::default(),
            session_locations: SessionLocations::default(),
            losses: 0,
            stranded_rows: BTreeMap::new(),
            is_calm: false,
            keeps_sessions: false,
            tally: Tally {
                runs: 1,
                ..Tally::default()
            },
            attests,
            fleet,
            fleet_tally: FleetTally {
                runs: 1,
                ..FleetTally::default()
            },
        };
        (0..GATEWAYS).for_each(|gateway| simulation.start(gateway));
        simulation
    }

    /// Runs a phase with faults, then a phase without faults, in which every invariant must hold.
    pub fn run(mut self) -> Result<(Tally, FleetTally), String> {
        for _ in 0..self.rng.random_range(500..1000) {
            self.inject_fault()?;
            if self.attests {
                self.change_device();
            }
            self.step()?;
        }
        self.end_faults()?;
        self.steps(800)?;
        if self.attests {
            self.expect_true_states()?;
            self.keeps_sessions = false;
            // Wait until the longest session has expired.
            self.steps(2 * SESSION_LIFETIME_S * 1000 / STEP_MS as u32 + 100)?;
        }
        for device_index in 0..self.devices.len() {
            for gateway in 0..GATEWAYS {
                self.expect_service(device_index, gateway)?;
            }
        }
        self.expect_one_session_each()?;
        if self.attests {
            self.expect_outcomes_to_expire()?;
        }
        self.expect_little_loss()?;
        for process in &self.processes {
            self.tally.evicted += process.node.status().evicted;
            self.tally.admitted += process.node.status().admitted;
            self.tally.rows_returned += process.node.status().rows_returned;
        }
        Ok((self.tally, self.fleet_tally))
    }

    /// Ends the faults, and repairs what does not recover by itself.
    fn end_faults(&mut self) -> Result<(), String> {
        self.is_calm = true;
        self.repair()?;
        if self.attests {
            self.remediate_all();
            self.keeps_sessions = true;
        }
        // All replaced processes end. A gateway without another process gets a new process.
        self.processes.retain(|process| !process.is_replaced);
        for gateway in 0..GATEWAYS {
            if !self.processes.iter().any(|process| process.gateway == gateway) {
                self.start(gateway);
            }
        }
        self.steps(100)?;
        // An earlier process may have registered after the remaining process, and so have replaced this process.
        while let Some(process_index) = self
            .processes
            .iter()
            .position(|process| process.node.status().replaced)
        {
            self.losses += 1;
            let gateway = self.remove_process(process_index).gateway;
            self.start(gateway);
        }
        Ok(())
    }

    fn steps(&mut self, count: u32) -> Result<(), String> {
        (0..count).try_for_each(|_| self.step())
    }

    fn step(&mut self) -> Result<(), String> {
        self.now_ms += STEP_MS;
        self.step_controller()?;
        self.serve_late_requests();
        if self.attests {
            self.administer();
            if self.rng.random_ratio(1, 4) {
                self.forge();
            }
        }
        self.deliver();
        for device_index in 0..self.devices.len() {
            let sent = self.devices[device_index].poll(self.now_ms);
            self.transmit(device_index, sent);
            if !self.is_calm && self.rng.random_ratio(1, 60) {
                self.begin(device_index, None);
            }
            if self.keeps_sessions
                && self.now_ms.is_multiple_of(1_000)
                && !self.devices[device_index].has_session()
            {
                let gateway = self.devices[device_index].gateway;
                self.begin(device_index, Some(gateway));
            }
        }
        if !self.is_calm && self.rng.random_ratio(1, 8) {
            self.attack();
        }
        for process_index in 0..self.processes.len() {
            self.tick(process_index)?;
        }
        if self.attests && self.now_ms.is_multiple_of(500) && self.controller_host.is_healthy() {
            self.check_registry_states()?;
        }
        match self.ledger.problem.take() {
            Some(problem) => Err(problem),
            None => Ok(()),
        }
    }

    fn begin(&mut self, device_index: usize, gateway: Option<usize>) {
        let gateway = gateway.unwrap_or_else(|| self.rng.random_range(0..GATEWAYS));
        let sent = self.devices[device_index].begin(gateway, self.now_ms);
        self.transmit(device_index, sent);
    }
}
