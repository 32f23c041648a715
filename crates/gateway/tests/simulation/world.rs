//! Everything together.

mod attestation;
mod book;
mod clock;
mod controller;
mod fleet;
mod forger;
mod judge;
mod misfortune;
mod network;
mod office;
mod process;
mod restore;
mod roaming;
mod tally;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use linewarden_controller::Policy;
use linewarden_protocol::ids::{DeviceId, Mode};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tokio::runtime::Runtime;

pub use self::clock::HostClock;
use self::fleet::Fleet;
use self::network::Packet;
use self::office::Office;
use self::process::Process;
use self::roaming::Whereabouts;
pub use self::tally::{FleetTally, Tally};
use crate::ledger::Ledger;
use crate::station::Station;

const STEP_MS: u64 = 10;
const GATEWAYS: usize = 2;
const SLOTS: u32 = 3;
const RING: u32 = 6;
const LEASE_S: u32 = 4;
const MARK_BLOCK: u32 = 4;
const POLICY: Policy = Policy {
    lease_rows: RING + 1,
    mark_block: MARK_BLOCK,
};
/// What a loss of memory may cost a device: its credit, and a handshake whose row was spent and whose ACK never came.
const LOSS_MAX: u32 = 15;

/// What a run may do without, to see that it is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// An old process is refused.
    Fence,
    /// Only rows below the mark are spent.
    Mark,
    /// What leaves the data plane is wiped.
    Wiping,
    /// A device that has left is not asked for before its rows are back.
    Settling,
    /// Memory is taken up only by the next process of the gateway.
    Owner,
    /// What the controller has said is on the disk.
    Sync,
    /// Leases count on the clock that goes on through suspend.
    BootClock,
    /// Sessions that are opened are reported.
    Report,
    /// A device remembers what it has answered through its restarts.
    Memory,
    /// A device states what it has answered.
    Statement,
    /// A session is as old as its report says.
    Age,
    /// A wrong proof proves nothing.
    Proof,
    /// A wrong proof counts for nothing.
    Silence,
    /// Only what the group may run is proven.
    Reference,
    /// The controller decides about each round.
    Decision,
    /// Who proves itself in quarantine is let in.
    Readmission,
    /// A round is as old as it is.
    Ended,
}

pub struct World {
    rng: ChaCha8Rng,
    /// Of who forges CHALLENGEs.
    forgers_rng: ChaCha8Rng,
    without: Option<Rule>,
    runtime: Runtime,
    office: Office,
    now_ms: u64,
    /// The time of day on the controller's host less the simulation's time.
    wall_ahead_s: i64,
    processes: Vec<Process>,
    processes_started: u64,
    stations: Vec<Station>,
    network: BinaryHeap<Reverse<(u64, u64, Packet)>>,
    packets: u64,
    /// What an eavesdropper on the path has recorded.
    recorded: Vec<(u64, [u8; 64])>,
    ledger: Ledger,
    whereabouts: Whereabouts,
    /// Losses of memory that a device's rows were in.
    losses: u32,
    /// By device: rows that were held when its lease went on elsewhere, or given by an answer that nobody heard. What of them is
    /// not used when the device leaves, or the process ends, stays spent.
    left_behind: BTreeMap<DeviceId, u32>,
    calm: bool,
    /// Who has no session begins anew by itself, as agents do.
    keeps_sessions: bool,
    tally: Tally,
    /// Whether the devices are to prove what they run.
    attests: bool,
    fleet: Fleet,
    tally_of_fleet: FleetTally,
}

impl World {
    pub fn new(seed: u64, without: Option<Rule>) -> Self {
        Self::make(seed, without, false)
    }

    /// Devices are also to prove what they run.
    pub fn with_provers(seed: u64, without: Option<Rule>) -> Self {
        Self::make(seed, without, true)
    }

    fn make(seed: u64, without: Option<Rule>, attests: bool) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let office = Office::new(&runtime, seed, without);
        let stations: Vec<Station> = (1..=rng.random_range(3..=6))
            .map(|number| {
                let mode = if rng.random_ratio(3, 4) {
                    Mode::Pool
                } else {
                    Mode::Key
                };
                Station::new(number, mode, rng.random_range(20..90), Fleet::first(), without)
            })
            .collect();
        for station in &stations {
            runtime
                .block_on(office.registry().enrol(station.record()))
                .unwrap();
        }
        let mut others = ChaCha8Rng::seed_from_u64(!seed);
        let fleet = Fleet::new(&mut others);
        if attests {
            runtime.block_on(fleet.enrol(office.registry(), &stations, &mut others));
        }
        let mut world = Self {
            rng,
            forgers_rng: ChaCha8Rng::seed_from_u64(seed.rotate_left(32)),
            without,
            office,
            runtime,
            now_ms: 1_000,
            wall_ahead_s: 1_790_000_000,
            processes: Vec::new(),
            processes_started: 0,
            stations,
            network: BinaryHeap::new(),
            packets: 0,
            recorded: Vec::new(),
            ledger: Ledger::default(),
            whereabouts: Whereabouts::default(),
            losses: 0,
            left_behind: BTreeMap::new(),
            calm: false,
            keeps_sessions: false,
            tally: Tally {
                runs: 1,
                ..Tally::default()
            },
            attests,
            fleet,
            tally_of_fleet: FleetTally {
                runs: 1,
                ..FleetTally::default()
            },
        };
        (0..GATEWAYS).for_each(|gateway| world.start(gateway));
        world
    }

    /// A storm of misfortunes, then calm, in which everything must come right.
    pub fn play(mut self) -> Result<(Tally, FleetTally), String> {
        for _ in 0..self.rng.random_range(500..1000) {
            self.misfortune()?;
            if self.attests {
                self.change_something();
            }
            self.step()?;
        }
        self.calm()?;
        self.steps(800)?;
        if self.attests {
            self.expect_true_verdicts()?;
            self.keeps_sessions = false;
            // Until the longest lease is over.
            self.steps(2 * LEASE_S * 1000 / STEP_MS as u32 + 100)?;
        }
        for station in 0..self.stations.len() {
            for gateway in 0..GATEWAYS {
                self.expect_service(station, gateway)?;
            }
        }
        self.expect_one_session_each()?;
        if self.attests {
            self.expect_old_verdicts_to_be_old()?;
        }
        self.expect_little_loss()?;
        for process in &self.processes {
            self.tally.evicted += process.node.status().evicted;
            self.tally.admitted += process.node.status().admitted;
            self.tally.given_back += process.node.status().rows_given_back;
        }
        Ok((self.tally, self.tally_of_fleet))
    }

    /// No more misfortunes; those that must be mended by somebody are.
    fn calm(&mut self) -> Result<(), String> {
        self.calm = true;
        self.repair()?;
        if self.attests {
            self.mend_all();
            self.keeps_sessions = true;
        }
        // What went on although it was replaced ends now, if somebody lives in its place.
        self.processes.retain(|process| !process.zombie);
        for gateway in 0..GATEWAYS {
            if !self.processes.iter().any(|process| process.gateway == gateway) {
                self.start(gateway);
            }
        }
        self.steps(100)?;
        // Its predecessor may have registered after it, and so have replaced it.
        while let Some(at) = self
            .processes
            .iter()
            .position(|process| process.node.status().replaced)
        {
            self.losses += 1;
            let gateway = self.bury(at).gateway;
            self.start(gateway);
        }
        Ok(())
    }

    fn steps(&mut self, count: u32) -> Result<(), String> {
        (0..count).try_for_each(|_| self.step())
    }

    fn step(&mut self) -> Result<(), String> {
        self.now_ms += STEP_MS;
        self.attend()?;
        if self.attests {
            self.administer();
            if self.rng.random_ratio(1, 4) {
                self.forge();
            }
        }
        self.deliver();
        for station in 0..self.stations.len() {
            let sent = self.stations[station].poll(self.now_ms);
            self.transmit(station, sent);
            if !self.calm && self.rng.random_ratio(1, 60) {
                self.begin(station, None);
            }
            if self.keeps_sessions
                && self.now_ms.is_multiple_of(1_000)
                && !self.stations[station].has_session()
            {
                let gateway = self.stations[station].gateway;
                self.begin(station, Some(gateway));
            }
        }
        if !self.calm && self.rng.random_ratio(1, 8) {
            self.attack();
        }
        for at in 0..self.processes.len() {
            self.tick(at)?;
        }
        if self.attests && self.now_ms.is_multiple_of(500) && self.office.is_well() {
            self.look_at_registry()?;
        }
        match self.ledger.problem.take() {
            Some(problem) => Err(problem),
            None => Ok(()),
        }
    }

    fn begin(&mut self, station: usize, gateway: Option<usize>) {
        let gateway = gateway.unwrap_or_else(|| self.rng.random_range(0..GATEWAYS));
        let sent = self.stations[station].begin(gateway, self.now_ms);
        self.transmit(station, sent);
    }
}
