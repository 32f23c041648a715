//! Devices, gateways and an attacker on one network, driven by one seed.

mod judge;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::IpAddr;
use std::rc::Rc;

use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::frame::{self, Mac};
use linewarden_protocol::ids::Mode;
use linewarden_protocol::verdict::Verdict;

use super::attacker::{Attacker, Fate};
use super::dice::Dice;
use super::enrolment::Enrolment;
use super::ledger::Ledger;
use super::node::Node;
use super::rules::Rules;
use super::station::{Station, Wish};

const ATTACK_MS: u64 = 240_000;
const FRESH_EVERY_MS: u64 = 8_000;
const UPKEEP_EVERY_MS: u64 = 300;
/// Longer than a device waits that has used up its re-authentications: ten minutes, and then some. A device that
/// holds a session which its gateway lost in a crash learns of it when the lease is renewed; that comes on top.
const QUIET_MARGIN_MS: u64 = 900_000;
const INGRESS: u32 = 3;

/// Where the attacker sits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attack {
    /// On the path, with misfortunes of every kind beside him.
    OnPath,
    /// Off the path: he can send, from any address, and sees nothing. Nothing else goes wrong.
    OffPath,
}

/// What a run did, so that a test can tell that it tried everything.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub events: usize,
    pub sessions: usize,
    pub injected: usize,
    pub verdicts: BTreeMap<Verdict, usize>,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.sessions += other.sessions;
        self.injected += other.injected;
        for (verdict, count) in &other.verdicts {
            *self.verdicts.entry(*verdict).or_default() += count;
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    ToGateway { gateway: usize, frame: Vec<u8> },
    ToDevices { frame: Vec<u8> },
    Wake { station: usize },
    PufRead { station: usize, reading: u64 },
    Attack,
    Misfortune,
    Fresh { gateway: usize },
    Upkeep { gateway: usize },
    Probe,
}

struct World {
    dice: Dice,
    attack: Attack,
    now_ms: u64,
    quiet_from_ms: u64,
    lease_ms: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    queued: u64,
    gateways: Vec<Node>,
    stations: Vec<Station>,
    enrolments: Rc<[Enrolment]>,
    attacker: Attacker,
    hostility: u32,
    ledger: Rc<RefCell<Ledger>>,
    tally: Tally,
}

/// Runs one seed.
///
/// # Errors
/// The first violation.
pub fn run(seed: u64, attack: Attack, rules: Rules) -> Result<Tally, String> {
    let mut world = World::new(seed, attack, rules);
    world.play()?;
    world.judge_the_end()?;
    Ok(world.tally)
}

impl World {
    fn new(seed: u64, attack: Attack, rules: Rules) -> Self {
        let mut dice = Dice::new(seed);
        let devices = 3 + dice.below(5) as u8;
        let enrolments: Rc<[Enrolment]> = (1..=devices)
            .map(|number| {
                let mode = if dice.chance(50) { Mode::Pool } else { Mode::Key };
                Enrolment::new(number, mode, dice.chance(70))
            })
            .collect();
        let ledger = Rc::new(RefCell::new(Ledger::new(&enrolments)));
        let lease_s = *dice.pick(&[40, 120, 600, 3_600]).unwrap_or(&600);
        let mut gateways: Vec<Node> = (1..=2)
            .map(|number| Node::new(number, lease_s, rules, &enrolments, &ledger))
            .collect();
        for gateway in &mut gateways {
            gateway.start(0, &mut dice);
        }
        let stations = enrolments
            .iter()
            .map(|enrolment| Station::new(*enrolment, dice.below(2), dice.between(0, 1 << 40)))
            .collect();
        let hostility = *dice.pick(&[5, 20, 40]).unwrap_or(&20);
        let mut world = Self {
            dice,
            attack,
            now_ms: 0,
            quiet_from_ms: ATTACK_MS,
            lease_ms: u64::from(lease_s) * 1_000,
            queue: BinaryHeap::new(),
            queued: 0,
            gateways,
            stations,
            enrolments,
            attacker: Attacker::new(),
            hostility,
            ledger,
            tally: Tally::default(),
        };
        world.set_going();
        world
    }

    fn set_going(&mut self) {
        for gateway in 0..self.gateways.len() {
            self.at(FRESH_EVERY_MS, Event::Fresh { gateway });
            self.at(UPKEEP_EVERY_MS, Event::Upkeep { gateway });
        }
        self.at(1, Event::Attack);
        self.at(5_000, Event::Misfortune);
        self.at(500, Event::Probe);
        for station in 0..self.stations.len() {
            let wishes = {
                let mut ledger = self.ledger.borrow_mut();
                self.stations[station].start(0, &mut self.dice, &self.gateways, &mut ledger)
            };
            self.grant(station, wishes);
        }
    }

    fn at(&mut self, at_ms: u64, event: Event) {
        self.queued += 1;
        self.queue.push(Reverse((at_ms, self.queued, event)));
    }

    fn after(&mut self, ms: u64, event: Event) {
        self.at(self.now_ms + ms, event);
    }

    fn is_quiet(&self) -> bool {
        self.now_ms >= self.quiet_from_ms
    }

    fn end_ms(&self) -> u64 {
        self.quiet_from_ms + self.lease_ms + QUIET_MARGIN_MS
    }

    fn play(&mut self) -> Result<(), String> {
        let end_ms = self.end_ms();
        while let Some(Reverse((at_ms, _, event))) = self.queue.pop() {
            if at_ms > end_ms {
                break;
            }
            self.now_ms = at_ms;
            self.tally.events += 1;
            self.happen(event);
            if let Some(violation) = &self.ledger.borrow().violation {
                return Err(format!("at {at_ms} ms, {:?}: {violation}", self.attack));
            }
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::ToGateway { gateway, frame } => self.reach_gateway(gateway, frame),
            Event::ToDevices { frame } => self.reach_devices(&frame),
            Event::Wake { station } => {
                if self.stations[station]
                    .wake_ms()
                    .is_some_and(|wake| wake <= self.now_ms)
                {
                    let wishes = {
                        let mut ledger = self.ledger.borrow_mut();
                        self.stations[station].poll(self.now_ms, &mut self.dice, &self.gateways, &mut ledger)
                    };
                    self.grant(station, wishes);
                }
            }
            Event::PufRead { station, reading } => {
                let wishes = {
                    let mut ledger = self.ledger.borrow_mut();
                    self.stations[station].read(
                        reading,
                        self.now_ms,
                        &mut self.dice,
                        &self.gateways,
                        &mut ledger,
                    )
                };
                self.grant(station, wishes);
            }
            Event::Attack => self.attack_now(),
            Event::Misfortune => self.misfortune(),
            Event::Fresh { gateway } => self.rotate(gateway),
            Event::Upkeep { gateway } => {
                self.gateways[gateway].provide_all();
                let ms = if self.is_quiet() {
                    4 * UPKEEP_EVERY_MS
                } else {
                    UPKEEP_EVERY_MS
                };
                self.after(ms, Event::Upkeep { gateway });
            }
            Event::Probe => self.probe(),
        }
    }

    fn rotate(&mut self, gateway: usize) {
        self.gateways[gateway].rotate_fresh(self.now_ms, &mut self.dice);
        // Now and then user space is late, and the fast path stops.
        let late = !self.is_quiet() && self.attack == Attack::OnPath && self.dice.chance(4);
        self.after(
            if late { 25_000 } else { FRESH_EVERY_MS },
            Event::Fresh { gateway },
        );
    }

    /// Sends what a station wants sent, past the attacker, and sees that it is woken.
    fn grant(&mut self, station: usize, wishes: Vec<Wish>) {
        for wish in wishes {
            match wish {
                Wish::Send(frame) => self.carry(frame),
                Wish::ReadPuf(reading) => {
                    let ms = self.dice.between(1, 40);
                    self.after(ms, Event::PufRead { station, reading });
                }
            }
        }
        if let Some(wake_ms) = self.stations[station].wake_ms() {
            self.at(wake_ms.max(self.now_ms), Event::Wake { station });
        }
    }

    /// The network, which belongs to the attacker as long as he is about and on the path.
    fn carry(&mut self, frame: Vec<u8>) {
        let ms = self.dice.between(1, 5);
        if self.is_quiet() || self.attack == Attack::OffPath {
            return self.arrive(ms, frame);
        }
        let fate = self
            .attacker
            .meet(&frame, self.hostility, &self.enrolments, &mut self.dice);
        match fate {
            Fate::Pass => self.arrive(ms, frame),
            Fate::Drop => {}
            Fate::Delay(more_ms) => self.arrive(ms + more_ms, frame),
            Fate::Twice(more_ms) => {
                self.arrive(ms, frame.clone());
                self.arrive(ms + more_ms, frame);
            }
            Fate::Replace(other) => self.arrive(ms, other),
            Fate::Alter(bit) => {
                let mut altered = frame;
                altered[bit / 8] ^= 1 << (bit % 8);
                self.arrive(ms, altered);
            }
        }
    }

    /// By destination MAC address, as a switch would.
    fn arrive(&mut self, ms: u64, frame: Vec<u8>) {
        let Some(mac) = frame.get(..6).and_then(|mac| Mac::try_from(mac).ok()) else {
            return;
        };
        match self.gateways.iter().position(|gateway| gateway.mac == mac) {
            Some(gateway) => self.after(ms, Event::ToGateway { gateway, frame }),
            None => self.after(ms, Event::ToDevices { frame }),
        }
    }

    fn reach_gateway(&mut self, gateway: usize, frame: Vec<u8>) {
        if self.now_ms < self.gateways[gateway].asleep_until_ms {
            return;
        }
        let (verdict, reply) = self.gateways[gateway].deliver(self.now_ms, INGRESS, frame);
        self.count(verdict);
        if let Some(reply) = reply {
            self.carry(reply);
        }
    }

    fn count(&mut self, verdict: Verdict) {
        *self.tally.verdicts.entry(verdict).or_default() += 1;
    }

    fn reach_devices(&mut self, bytes: &[u8]) {
        let Ok(parsed) = frame::parse(bytes) else {
            return;
        };
        let found = self
            .stations
            .iter()
            .position(|station| station.enrolment.endpoint.mac == parsed.dst_mac);
        if let Some(station) = found {
            let wishes = {
                let mut ledger = self.ledger.borrow_mut();
                self.stations[station].receive(
                    bytes,
                    self.now_ms,
                    &mut self.dice,
                    &self.gateways,
                    &mut ledger,
                )
            };
            self.grant(station, wishes);
        }
    }

    fn attack_now(&mut self) {
        if self.is_quiet() {
            return;
        }
        let made = match self.attack {
            Attack::OnPath => self
                .attacker
                .inject(&self.enrolments, &self.gateways, &mut self.dice),
            Attack::OffPath => self
                .attacker
                .invent(&self.enrolments, &self.gateways, &mut self.dice),
        };
        if let Some(frame) = made {
            self.tally.injected += 1;
            self.arrive(0, frame);
        }
        let ms = self.dice.between(1, 400);
        self.after(ms, Event::Attack);
    }

    fn misfortune(&mut self) {
        if self.is_quiet() || self.attack == Attack::OffPath {
            for gateway in &mut self.gateways {
                gateway.set_stopping(false);
            }
            if !self.is_quiet() {
                self.after(5_000, Event::Misfortune);
            }
            return;
        }
        let gateway = self.dice.below(self.gateways.len());
        let station = self.dice.below(self.stations.len());
        let node = &mut self.gateways[gateway];
        match self.dice.below(16) {
            0..3 => {
                node.start(self.now_ms, &mut self.dice);
            }
            3 => node.recover(),
            4 => {
                let for_ms = self.dice.between(100, 30_000);
                node.suspend(self.now_ms, for_ms, &mut self.dice);
            }
            5 => {
                let by_ms = self.dice.between(1_000, 7_200_000);
                node.leap(by_ms);
            }
            6 => node.set_stopping(true),
            7..9 => node.set_stopping(false),
            9 if self.dice.chance(30) => self.revoke(station),
            10..13 => self.roam(station),
            _ => {}
        }
        let ms = self.dice.between(500, 12_000);
        self.after(ms, Event::Misfortune);
    }

    fn revoke(&mut self, station: usize) {
        self.stations[station].revoked = true;
        for gateway in &mut self.gateways {
            gateway.revoke(station);
        }
    }

    /// A device moves to the other gateway, to its other address, or simply starts over.
    fn roam(&mut self, station: usize) {
        let moved = &mut self.stations[station];
        moved.abandon();
        match self.dice.below(3) {
            0 => moved.gateway = 1 - moved.gateway,
            1 => {
                moved.ip = match moved.ip {
                    IpAddr::V4(ip) => IpAddr::from([10, 66, ip.octets()[2] ^ 9, ip.octets()[3]]),
                    ip @ IpAddr::V6(_) => ip,
                };
            }
            _ => {}
        }
        let wishes = {
            let mut ledger = self.ledger.borrow_mut();
            moved.start(self.now_ms, &mut self.dice, &self.gateways, &mut ledger)
        };
        self.grant(station, wishes);
    }

    /// A packet towards the service, from a device's MAC address or the attacker's: the gate decides.
    fn probe(&mut self) {
        let gateway = self.dice.below(self.gateways.len());
        let station = self.dice.below(self.stations.len());
        let own = self.stations[station].endpoint();
        let service_ip = if own.ip.is_ipv4() {
            IpAddr::from([10, 77, 0, 1])
        } else {
            IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, 1])
        };
        let service = Endpoint {
            mac: self.gateways[gateway].mac,
            ip: service_ip,
            port: 8_080,
        };
        let stranger = self.dice.chance(30);
        let from = if stranger {
            Endpoint {
                mac: self.attacker.endpoint.mac,
                ..own
            }
        } else {
            own
        };
        let frame = FrameBuilder::new(from, service).udp(b"reading");
        let may_pass = !stranger
            && self.enrolments[station].bound
            && self.gateways[gateway].session(station, self.now_ms).is_some();
        let (verdict, _) = self.gateways[gateway].deliver(self.now_ms, INGRESS, frame);
        self.count(verdict);
        let passed = verdict == Verdict::PassSession;
        // On the path a RESPONSE may have been carried over to another VLAN, to which the session is bound then.
        let must_pass = may_pass && self.attack == Attack::OffPath;
        if (passed && !may_pass) || (must_pass && !passed) {
            let what = format!("the gate says {verdict} to a packet from {:x?}", from.mac);
            self.ledger.borrow_mut().violate(what);
        }
        self.after(if self.is_quiet() { 20_000 } else { 700 }, Event::Probe);
    }
}
