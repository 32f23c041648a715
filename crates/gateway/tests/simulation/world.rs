//! Everything together.

mod judge;
mod roaming;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use linewarden_controller::{Controller, Link, Policy, Reported};
use linewarden_dataplane::host::Moment;
use linewarden_dataplane::{Config, Gate, Geometry};
use linewarden_gateway::{Answer, Ask, Clock, LinkError, Node, Settings};
use linewarden_protocol::frame::Meta;
use linewarden_protocol::ids::{GatewayId, Mode};
use linewarden_protocol::verdict::Verdict;
use linewarden_registry::{MasterKey, Registry};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tokio::runtime::Runtime;

use self::roaming::Whereabouts;
use crate::ledger::Ledger;
use crate::plane::Plane;
use crate::station::Station;

const STEP_MS: u64 = 10;
const GATEWAYS: usize = 2;
const SLOTS: u32 = 3;
const RING: u32 = 6;
const LEASE_S: u32 = 4;
const MARK_BLOCK: u32 = 4;
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
    /// Sessions that are opened are reported.
    Report,
    /// A session is as old as its report says.
    Age,
}

/// What a run did.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    runs: u64,
    accepted: u64,
    kills: u64,
    stops: u64,
    zombies: u64,
    evicted: u64,
    admitted: u64,
    given_back: u64,
    replays: u64,
    link_failures: u64,
    revoked: u64,
    at_mark: u64,
    taken_up: u64,
    closed: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.accepted += other.accepted;
        self.kills += other.kills;
        self.stops += other.stops;
        self.zombies += other.zombies;
        self.evicted += other.evicted;
        self.admitted += other.admitted;
        self.given_back += other.given_back;
        self.replays += other.replays;
        self.link_failures += other.link_failures;
        self.revoked += other.revoked;
        self.at_mark += other.at_mark;
        self.taken_up += other.taken_up;
        self.closed += other.closed;
    }

    pub fn assert_everything_happened(&self) {
        let Self {
            runs,
            accepted,
            kills,
            stops,
            zombies,
            evicted,
            admitted,
            given_back,
            replays,
            link_failures,
            revoked,
            at_mark,
            taken_up,
            closed,
        } = *self;
        let least = [
            accepted,
            kills,
            stops,
            zombies,
            evicted,
            admitted,
            given_back,
            replays,
            link_failures,
        ]
        .into_iter()
        .chain([revoked, at_mark, taken_up, closed])
        .min();
        assert!(least >= Some(runs / 20), "{self:?}");
    }
}

/// One process of a gateway.
struct Process {
    gateway: usize,
    number: u64,
    node: Node,
    plane: Plane,
    link: Link,
    leases: Option<linewarden_controller::Leases>,
    /// Answers under way, and when they arrive.
    mail: Vec<(u64, Answer)>,
    /// Replaced, and alive.
    zombie: bool,
    /// Killed: its memory and packet path go on.
    headless: bool,
}

/// Something on the network.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Packet {
    ToGateway {
        process: u64,
        from: Origin,
        payload: Box<[u8; 64]>,
    },
    ToStation {
        station: usize,
        payload: Box<[u8; 64]>,
    },
}

/// Sender's address and port.
type Origin = ([u8; 16], u16);

pub struct World {
    rng: ChaCha8Rng,
    without: Option<Rule>,
    runtime: Runtime,
    registry: Registry,
    controller: Controller,
    now_ms: u64,
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
    calm: bool,
    tally: Tally,
}

fn lost<T>() -> Result<T, LinkError> {
    Err(LinkError::Failed("lost".to_owned()))
}

impl World {
    pub fn new(seed: u64, without: Option<Rule>) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let registry = runtime
            .block_on(Registry::in_memory(&MasterKey::from_bytes([1; 32])))
            .unwrap();
        let stations: Vec<Station> = (1..=rng.random_range(3..=6))
            .map(|number| {
                let mode = if rng.random_ratio(3, 4) {
                    Mode::Pool
                } else {
                    Mode::Key
                };
                Station::new(number, mode, rng.random_range(20..90))
            })
            .collect();
        for station in &stations {
            runtime.block_on(registry.enrol(station.record())).unwrap();
        }
        let policy = Policy {
            lease_rows: RING + 1,
            mark_block: MARK_BLOCK,
        };
        let mut world = Self {
            rng,
            without,
            controller: Controller::new(registry.clone(), policy),
            registry,
            runtime,
            now_ms: 1_000,
            processes: Vec::new(),
            processes_started: 0,
            stations,
            network: BinaryHeap::new(),
            packets: 0,
            recorded: Vec::new(),
            ledger: Ledger::default(),
            whereabouts: Whereabouts::default(),
            losses: 0,
            calm: false,
            tally: Tally {
                runs: 1,
                ..Tally::default()
            },
        };
        (0..GATEWAYS).for_each(|gateway| world.start(gateway));
        world
    }

    /// A storm of misfortunes, then calm, in which everything must come right.
    pub fn play(mut self) -> Result<Tally, String> {
        for _ in 0..self.rng.random_range(600..1200) {
            self.misfortune();
            self.step()?;
        }
        self.calm = true;
        for gateway in 0..GATEWAYS {
            // What went on although it was replaced ends now, if somebody lives in its place.
            self.processes.retain(|process| !process.zombie);
            if !self.processes.iter().any(|process| process.gateway == gateway) {
                self.start(gateway);
            }
        }
        self.steps(800)?;
        for station in 0..self.stations.len() {
            for gateway in 0..GATEWAYS {
                self.expect_service(station, gateway)?;
            }
        }
        self.expect_one_session_each()?;
        self.expect_little_loss()?;
        for process in &self.processes {
            self.tally.evicted += process.node.status().evicted;
            self.tally.admitted += process.node.status().admitted;
            self.tally.given_back += process.node.status().rows_given_back;
        }
        Ok(self.tally)
    }

    fn steps(&mut self, count: u32) -> Result<(), String> {
        (0..count).try_for_each(|_| self.step())
    }

    fn config(gateway: usize) -> Config {
        Config {
            gateway_id: GatewayId(gateway as u32 + 1),
            lease_s: LEASE_S,
            lap_port: 20550,
            local: vec!["192.0.2.1".parse().unwrap()],
            gate: Gate::Off,
            nak_per_s: 1000,
            alarm_per_s: 10,
            miss_per_s: 1000,
            low_rows: 2,
            low_credit: 1,
            geometry: Geometry {
                slots: SLOTS,
                ring: RING,
                hash_seed: [3, 4],
            },
            classic: None,
        }
    }

    fn moment(&self) -> Moment {
        Moment {
            monotonic_ns: self.now_ms * 1_000_000,
            boot_ns: self.now_ms * 1_000_000,
        }
    }

    /// On memory of its own.
    fn start(&mut self, gateway: usize) {
        let plane = Plane::new(&Self::config(gateway), self.moment());
        self.start_on(gateway, plane);
    }

    /// On memory that a process which was killed has left.
    fn start_on_left(&mut self, gateway: usize) {
        let headless = |process: &Process| process.gateway == gateway && process.headless;
        let Some(at) = self.processes.iter().position(headless) else {
            return self.start(gateway);
        };
        self.tally.taken_up += 1;
        let plane = self.processes[at].plane.clone();
        self.bury(at);
        plane.0.lock().unwrap().left = true;
        self.start_on(gateway, plane);
    }

    fn start_on(&mut self, gateway: usize, plane: Plane) {
        let config = Self::config(gateway);
        {
            let mut inner = plane.0.lock().unwrap();
            inner.no_marks = self.without == Some(Rule::Mark);
            inner.no_wiping = self.without == Some(Rule::Wiping);
        }
        let settings = Settings {
            mark_block: MARK_BLOCK,
            feed_poll_ms: 300,
            ..Settings::for_plane(&config)
        };
        let link = self
            .runtime
            .block_on(self.controller.connect(config.gateway_id, 0))
            .unwrap();
        if self.without == Some(Rule::Owner) {
            plane.0.lock().unwrap().host.store().set_owner(link.number() - 1);
        }
        self.processes_started += 1;
        self.processes.push(Process {
            gateway,
            number: self.processes_started,
            node: Node::new(Box::new(plane.clone()), settings).unwrap(),
            plane,
            link,
            leases: None,
            mail: Vec::new(),
            zombie: false,
            headless: false,
        });
    }

    fn misfortune(&mut self) {
        if !self.rng.random_ratio(1, 60) {
            return;
        }
        let gateway = self.rng.random_range(0..GATEWAYS);
        let alive = |process: &Process| process.gateway == gateway && !process.zombie;
        let Some(at) = self.processes.iter().position(alive) else {
            return;
        };
        match self.rng.random_range(0..10) {
            0..4 => {
                self.tally.kills += 1;
                self.losses += 1;
                match self.rng.random_range(0..4) {
                    // The host is lost, or the memory was the process's own.
                    0 | 1 => {
                        self.bury(at);
                        self.start(gateway);
                    }
                    2 => {
                        self.behead(at);
                        self.start_on_left(gateway);
                    }
                    // The next one starts elsewhere; or here, on what one before has left.
                    _ => {
                        let others: Vec<bool> =
                            self.processes.iter().map(|process| process.headless).collect();
                        self.behead(at);
                        match others.contains(&true) && self.rng.random_ratio(1, 2) {
                            true => self.start_on_left(gateway),
                            false => self.start(gateway),
                        }
                    }
                }
            }
            4..6 => {
                self.tally.stops += 1;
                self.stop(at);
                self.start(gateway);
            }
            6..9 => {
                self.tally.zombies += 1;
                self.losses += 1;
                self.processes
                    .retain(|process| !process.zombie || process.headless);
                if let Some(process) = self
                    .processes
                    .iter_mut()
                    .find(|process| process.gateway == gateway && !process.headless)
                {
                    process.zombie = true;
                }
                self.start(gateway);
                if self.without == Some(Rule::Fence) {
                    self.confuse(gateway);
                }
            }
            _ => {
                let station = self.rng.random_range(0..self.stations.len());
                if !self.stations[station].revoked && self.rng.random_ratio(1, 3) {
                    self.tally.revoked += 1;
                    self.stations[station].revoked = true;
                    let device = self.stations[station].id;
                    self.runtime
                        .block_on(self.registry.revoke(device, "lost", 1))
                        .unwrap();
                }
            }
        }
    }

    /// Without the fence an old process is served like the new one.
    fn confuse(&mut self, gateway: usize) {
        let newest = self
            .processes
            .iter()
            .filter(|process| process.gateway == gateway)
            .max_by_key(|process| process.number)
            .map(|process| process.link.clone());
        for process in &mut self.processes {
            if process.gateway == gateway {
                process.link = newest.clone().unwrap();
            }
        }
    }

    /// Its memory and packet path go on; answers to it arrive nowhere.
    fn behead(&mut self, at: usize) {
        let process = &mut self.processes[at];
        process.headless = true;
        process.zombie = true;
        process.mail.clear();
    }

    fn bury(&mut self, at: usize) {
        let process = self.processes.remove(at);
        let status = process.node.status();
        self.tally.evicted += status.evicted;
        self.tally.admitted += status.admitted;
        self.tally.given_back += status.rows_given_back;
    }

    /// In good order; whether the controller hears of it is another matter.
    fn stop(&mut self, at: usize) {
        let process = &mut self.processes[at];
        let stood = process.node.close();
        let link = process.link.clone();
        if self.rng.random_ratio(9, 10) {
            self.runtime.block_on(link.settle(&stood)).unwrap();
        } else {
            self.losses += 1;
        }
        self.bury(at);
    }

    fn step(&mut self) -> Result<(), String> {
        self.now_ms += STEP_MS;
        self.deliver();
        for station in 0..self.stations.len() {
            let sent = self.stations[station].poll(self.now_ms);
            self.transmit(station, sent);
            if !self.calm && self.rng.random_ratio(1, 60) {
                self.begin(station, None);
            }
        }
        if !self.calm && self.rng.random_ratio(1, 8) {
            self.attack();
        }
        for at in 0..self.processes.len() {
            self.tick(at)?;
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

    /// To one of the processes that say they are the gateway: with two, the network decides which.
    fn transmit(&mut self, station: usize, sent: Vec<[u8; 64]>) {
        let gateway = self.stations[station].gateway;
        let meta = self.stations[station].meta();
        for payload in sent {
            let candidates: Vec<u64> = self
                .processes
                .iter()
                .filter(|process| process.gateway == gateway)
                .map(|process| process.number)
                .collect();
            if candidates.is_empty() {
                continue;
            }
            let process = candidates[self.rng.random_range(0..candidates.len())];
            self.recorded.push((process, payload));
            let from = (meta.src_ip, meta.src_port);
            let payload = Box::new(payload);
            self.send(Packet::ToGateway {
                process,
                from,
                payload,
            });
        }
    }

    /// Lost, late, or twice, while there are misfortunes.
    fn send(&mut self, packet: Packet) {
        let copies = match self.rng.random_range(0..20) {
            _ if self.calm => 1,
            0 | 1 => 0,
            2 => 2,
            _ => 1,
        };
        let copy = |packet: &Packet| match packet {
            Packet::ToGateway {
                process,
                from,
                payload,
            } => Packet::ToGateway {
                process: *process,
                from: *from,
                payload: payload.clone(),
            },
            Packet::ToStation { station, payload } => Packet::ToStation {
                station: *station,
                payload: payload.clone(),
            },
        };
        for _ in 0..copies {
            let late = !self.calm && self.rng.random_ratio(1, 10);
            let delay_ms = if late { self.rng.random_range(0..400) } else { 1 };
            self.packets += 1;
            self.network
                .push(Reverse((self.now_ms + delay_ms, self.packets, copy(&packet))));
        }
    }

    fn deliver(&mut self) {
        while let Some(Reverse((at_ms, ..))) = self.network.peek()
            && *at_ms <= self.now_ms
        {
            let Some(Reverse((_, _, packet))) = self.network.pop() else {
                return;
            };
            match packet {
                Packet::ToGateway {
                    process,
                    from: (src_ip, src_port),
                    payload,
                } => {
                    let meta = Meta {
                        src_ip,
                        src_port,
                        ..Meta::default()
                    };
                    let moment = self.moment();
                    if let Some(process) = self.processes.iter().find(|other| other.number == process) {
                        let mut inner = process.plane.0.lock().unwrap();
                        inner.now = moment;
                        inner.receive(meta, *payload);
                    }
                }
                Packet::ToStation { station, payload } => {
                    let sent = self.stations[station].handle(&payload, self.now_ms);
                    self.transmit(station, sent);
                }
            }
        }
    }

    /// Something recorded comes again: to any process, from the sender's own address or the attacker's.
    fn attack(&mut self) {
        if self.recorded.is_empty() || self.processes.is_empty() {
            return;
        }
        self.tally.replays += 1;
        // Mostly something recent: it may still be fresh.
        let back = match self.rng.random_ratio(2, 3) {
            true => 12.min(self.recorded.len()),
            false => self.recorded.len(),
        };
        let at = self.recorded.len() - self.rng.random_range(1..=back);
        let (seen, payload) = self.recorded[at];
        let process = match self.rng.random_ratio(1, 2) {
            true => seen,
            false => self.processes[self.rng.random_range(0..self.processes.len())].number,
        };
        let mut from = ([0; 16], 666);
        from.0[10..].copy_from_slice(&[0xff, 0xff, 10, 6, 6, 6]);
        if self.rng.random_ratio(1, 2) {
            let station = self.rng.random_range(0..self.stations.len());
            from = (self.stations[station].address(), 40_000);
        }
        self.send(Packet::ToGateway {
            process,
            from,
            payload: Box::new(payload),
        });
    }

    fn tick(&mut self, at: usize) -> Result<(), String> {
        let clock = Clock {
            monotonic_ns: self.now_ms * 1_000_000,
            boot_ns: self.now_ms * 1_000_000,
        };
        let (moment, now_ms) = (self.moment(), self.now_ms);
        let process = &mut self.processes[at];
        process.plane.0.lock().unwrap().now = moment;
        if process.headless {
            self.collect(at);
            return self.look_for_keys(at);
        }
        let arrived = process.mail.extract_if(.., |(at_ms, _)| *at_ms <= now_ms);
        let arrived: Vec<Answer> = arrived.map(|(_, answer)| answer).collect();
        for answer in arrived {
            process.node.answer(answer, clock);
        }
        let rng = &mut self.rng;
        let asks = process.node.tick(clock, &mut || Some(rng.random()));
        for ask in asks {
            let answer = self.ask(at, ask);
            let late = !self.calm && self.rng.random_ratio(1, 5);
            let delay_ms = if late { self.rng.random_range(0..300) } else { 0 };
            self.processes[at].mail.push((now_ms + delay_ms, answer));
        }
        self.collect(at);
        self.look_for_keys(at)
    }

    /// What the packet path did.
    fn collect(&mut self, at: usize) {
        let process = &self.processes[at];
        let (number, gateway) = (process.number, process.gateway);
        let (accepted, replies, verdicts, closed) = {
            let mut inner = process.plane.0.lock().unwrap();
            (
                std::mem::take(&mut inner.accepted),
                std::mem::take(&mut inner.replies),
                std::mem::take(&mut inner.verdicts),
                std::mem::take(&mut inner.closed),
            )
        };
        self.tally.at_mark += verdicts
            .iter()
            .filter(|verdict| **verdict == Verdict::DropMark)
            .count() as u64;
        self.tally.closed += closed.len() as u64;
        for (device, session) in closed {
            self.whereabouts
                .closed(device, session, gateway, &mut self.ledger.problem);
        }
        for (device, idx, tag) in accepted {
            self.tally.accepted += 1;
            self.whereabouts.accepted(device, tag, gateway, self.now_ms);
            let station = self.stations.iter().find(|station| station.id == device).unwrap();
            self.ledger.accepted(device, station.mode, idx, tag, number);
        }
        for reply in replies {
            let to = reply.to.src_ip;
            if let Some(station) = self.stations.iter().position(|station| station.address() == to) {
                let payload = Box::new(reply.payload);
                self.send(Packet::ToStation { station, payload });
            }
        }
    }

    /// The controller answers, or the question or the answer is lost.
    fn ask(&mut self, at: usize, ask: Ask) -> Answer {
        let fate = if self.calm {
            9
        } else {
            self.rng.random_range(0..12)
        };
        if fate < 2 {
            self.tally.link_failures += 1;
        }
        let now_ms = self.now_ms;
        let (process, runtime) = (&mut self.processes[at], &self.runtime);
        if fate == 0 {
            return match ask {
                Ask::Enter => Answer::Entered(lost()),
                Ask::Resume => Answer::Chunk(lost()),
                Ask::Lease(_) => Answer::Rows(lost()),
                Ask::Receive { .. } => Answer::Receptions(lost()),
                Ask::Settle(_) => Answer::Settled(lost()),
                Ask::Report(_) => Answer::Reported(lost()),
                Ask::Changes { .. } => Answer::Changes {
                    result: lost(),
                    at_ns: 0,
                },
            };
        }
        let link = process.link.clone();
        macro_rules! answered {
            ($kind:path, $question:expr) => {{
                let answer = runtime.block_on($question).map_err(Into::into);
                $kind(if fate == 1 { lost() } else { answer })
            }};
        }
        match ask {
            Ask::Enter => Answer::Entered(Ok(link.number())),
            Ask::Resume => {
                // A chunk that is lost would be gone: the link brings it or fails before.
                let leases = process.leases.get_or_insert_with(|| link.held());
                Answer::Chunk(runtime.block_on(leases.next_chunk()).map_err(Into::into))
            }
            Ask::Lease(wants) => answered!(Answer::Rows, link.lease(&wants)),
            Ask::Receive { knocks, fresh } => answered!(Answer::Receptions, link.receive(&knocks, fresh)),
            Ask::Settle(settlements) => {
                if self.without == Some(Rule::Settling) {
                    return Answer::Settled(Ok(0));
                }
                answered!(Answer::Settled, link.settle(&settlements))
            }
            Ask::Report(openings) => {
                let reports = roaming::reports(&openings, now_ms, self.without);
                if self.without == Some(Rule::Report) {
                    return Answer::Reported(Ok(vec![Reported::Newest; openings.len()]));
                }
                answered!(Answer::Reported, link.report(&reports, roaming::moment(now_ms)))
            }
            Ask::Changes { since } => {
                let result = runtime.block_on(link.changes(since, roaming::moment(now_ms)));
                Answer::Changes {
                    result: if fate == 1 {
                        lost()
                    } else {
                        result.map_err(Into::into)
                    },
                    at_ns: now_ms * 1_000_000,
                }
            }
        }
    }
}
