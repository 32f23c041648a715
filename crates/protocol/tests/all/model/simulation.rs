//! Devices, gateways and an attacker on one network, driven by one seed.

mod checks;

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

use super::attacker::{Attacker, FrameAction};
use super::enrollment::Enrollment;
use super::invariants::Invariants;
use super::node::Node;
use super::random::Random;
use super::rules::Rules;
use super::simulated_device::{DeviceAction, SimulatedDevice};

const ATTACK_MS: u64 = 240_000;
const FRESH_ROTATION_MS: u64 = 8_000;
const MAINTENANCE_EVERY_MS: u64 = 300;
/// A run continues for this time and one session lifetime after the attack. A device that has used up its
/// re-authentications waits ten minutes; the rest is a margin. The session lifetime is added because a device detects
/// only at its renewal that a crash of the gateway has ended the session.
const ATTACK_MARGIN_MS: u64 = 900_000;
const INGRESS: u32 = 3;

/// The position of the attacker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attack {
    /// On the path, with failures of every kind.
    OnPath,
    /// Off the path: can send from any address, but sees no messages. There are no other failures.
    OffPath,
}

/// Statistics of a run, to check its coverage.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    pub events: usize,
    pub sessions: usize,
    pub injected: usize,
    pub verdicts: BTreeMap<Verdict, usize>,
}

impl Statistics {
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
    Wake { device_index: usize },
    PufRead { device_index: usize, reading: u64 },
    Attack,
    Failure,
    RotateFresh { gateway: usize },
    Maintenance { gateway: usize },
    Probe,
}

struct Simulation {
    random: Random,
    attack: Attack,
    now_ms: u64,
    quiet_from_ms: u64,
    lifetime_ms: u64,
    /// Scheduled events: time in ms, sequence number, event.
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// The newest sequence number in `queue`.
    queued: u64,
    gateways: Vec<Node>,
    devices: Vec<SimulatedDevice>,
    enrollments: Rc<[Enrollment]>,
    attacker: Attacker,
    /// Percentage of messages that an on-path attacker drops, delays, duplicates, relays or alters.
    interference_percent: u32,
    invariants: Rc<RefCell<Invariants>>,
    statistics: Statistics,
}

/// Runs one seed.
///
/// # Errors
/// The first violation.
pub fn run(seed: u64, attack: Attack, rules: Rules) -> Result<Statistics, String> {
    let mut simulation = Simulation::new(seed, attack, rules);
    simulation.run_event_loop()?;
    simulation.check_end_state()?;
    Ok(simulation.statistics)
}

impl Simulation {
    fn new(seed: u64, attack: Attack, rules: Rules) -> Self {
        let mut random = Random::new(seed);
        let device_count = 3 + random.below(5) as u8;
        let enrollments: Rc<[Enrollment]> = (1..=device_count)
            .map(|number| {
                let mode = if random.chance(50) { Mode::Pool } else { Mode::Key };
                Enrollment::new(number, mode, random.chance(70))
            })
            .collect();
        let invariants = Rc::new(RefCell::new(Invariants::new(&enrollments)));
        let lifetime_s = *random.pick(&[40, 120, 600, 3_600]).unwrap_or(&600);
        let mut gateways: Vec<Node> = (1..=2)
            .map(|number| Node::new(number, lifetime_s, rules, &enrollments, &invariants))
            .collect();
        for gateway in &mut gateways {
            gateway.start(0, &mut random);
        }
        let devices = enrollments
            .iter()
            .map(|enrollment| SimulatedDevice::new(*enrollment, random.below(2), random.between(0, 1 << 40)))
            .collect();
        let interference_percent = *random.pick(&[5, 20, 40]).unwrap_or(&20);
        let mut simulation = Self {
            random,
            attack,
            now_ms: 0,
            quiet_from_ms: ATTACK_MS,
            lifetime_ms: u64::from(lifetime_s) * 1_000,
            queue: BinaryHeap::new(),
            queued: 0,
            gateways,
            devices,
            enrollments,
            attacker: Attacker::new(),
            interference_percent,
            invariants,
            statistics: Statistics::default(),
        };
        simulation.schedule_start();
        simulation
    }

    fn schedule_start(&mut self) {
        for gateway in 0..self.gateways.len() {
            self.schedule_at(FRESH_ROTATION_MS, Event::RotateFresh { gateway });
            self.schedule_at(MAINTENANCE_EVERY_MS, Event::Maintenance { gateway });
        }
        self.schedule_at(1, Event::Attack);
        self.schedule_at(5_000, Event::Failure);
        self.schedule_at(500, Event::Probe);
        for device_index in 0..self.devices.len() {
            let actions = {
                let mut invariants = self.invariants.borrow_mut();
                self.devices[device_index].start(0, &mut self.random, &self.gateways, &mut invariants)
            };
            self.perform(device_index, actions);
        }
    }

    fn schedule_at(&mut self, at_ms: u64, event: Event) {
        self.queued += 1;
        self.queue.push(Reverse((at_ms, self.queued, event)));
    }

    fn schedule_after(&mut self, ms: u64, event: Event) {
        self.schedule_at(self.now_ms + ms, event);
    }

    fn has_attack_ended(&self) -> bool {
        self.now_ms >= self.quiet_from_ms
    }

    fn end_ms(&self) -> u64 {
        self.quiet_from_ms + self.lifetime_ms + ATTACK_MARGIN_MS
    }

    fn run_event_loop(&mut self) -> Result<(), String> {
        let end_ms = self.end_ms();
        while let Some(Reverse((at_ms, _, event))) = self.queue.pop() {
            if at_ms > end_ms {
                break;
            }
            self.now_ms = at_ms;
            self.statistics.events += 1;
            self.handle_event(event);
            if let Some(violation) = &self.invariants.borrow().violation {
                return Err(format!("at {at_ms} ms, {:?}: {violation}", self.attack));
            }
        }
        Ok(())
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::ToGateway { gateway, frame } => self.reach_gateway(gateway, frame),
            Event::ToDevices { frame } => self.reach_devices(&frame),
            Event::Wake { device_index } => {
                if self.devices[device_index]
                    .wake_ms()
                    .is_some_and(|wake| wake <= self.now_ms)
                {
                    let actions = {
                        let mut invariants = self.invariants.borrow_mut();
                        self.devices[device_index].poll(
                            self.now_ms,
                            &mut self.random,
                            &self.gateways,
                            &mut invariants,
                        )
                    };
                    self.perform(device_index, actions);
                }
            }
            Event::PufRead {
                device_index,
                reading,
            } => {
                let actions = {
                    let mut invariants = self.invariants.borrow_mut();
                    self.devices[device_index].complete_reading(
                        reading,
                        self.now_ms,
                        &mut self.random,
                        &self.gateways,
                        &mut invariants,
                    )
                };
                self.perform(device_index, actions);
            }
            Event::Attack => self.attack_now(),
            Event::Failure => self.inject_failure(),
            Event::RotateFresh { gateway } => self.rotate(gateway),
            Event::Maintenance { gateway } => {
                self.gateways[gateway].refill_all();
                let ms = if self.has_attack_ended() {
                    4 * MAINTENANCE_EVERY_MS
                } else {
                    MAINTENANCE_EVERY_MS
                };
                self.schedule_after(ms, Event::Maintenance { gateway });
            }
            Event::Probe => self.probe(),
        }
    }

    fn rotate(&mut self, gateway: usize) {
        self.gateways[gateway].rotate_fresh(self.now_ms, &mut self.random);
        // Sometimes user space is late, and the fast path stops.
        let is_late = !self.has_attack_ended() && self.attack == Attack::OnPath && self.random.chance(4);
        self.schedule_after(
            if is_late { 25_000 } else { FRESH_ROTATION_MS },
            Event::RotateFresh { gateway },
        );
    }

    /// Executes the device's actions: sends frames through the attacker, and schedules PUF readings. Schedules the device's
    /// next wake-up.
    fn perform(&mut self, device_index: usize, actions: Vec<DeviceAction>) {
        for action in actions {
            match action {
                DeviceAction::Send(frame) => self.carry(frame),
                DeviceAction::ReadPuf(reading) => {
                    let ms = self.random.between(1, 40);
                    self.schedule_after(
                        ms,
                        Event::PufRead {
                            device_index,
                            reading,
                        },
                    );
                }
            }
        }
        if let Some(wake_ms) = self.devices[device_index].wake_ms() {
            self.schedule_at(wake_ms.max(self.now_ms), Event::Wake { device_index });
        }
    }

    /// Sends a frame over the network, which an on-path attacker controls during the attack.
    fn carry(&mut self, frame: Vec<u8>) {
        let ms = self.random.between(1, 5);
        if self.has_attack_ended() || self.attack == Attack::OffPath {
            return self.arrive(ms, frame);
        }
        let delivery = self.attacker.intercept(
            &frame,
            self.interference_percent,
            &self.enrollments,
            &mut self.random,
        );
        match delivery {
            FrameAction::Pass => self.arrive(ms, frame),
            FrameAction::Drop => {}
            FrameAction::Delay(more_ms) => self.arrive(ms + more_ms, frame),
            FrameAction::Duplicate(more_ms) => {
                self.arrive(ms, frame.clone());
                self.arrive(ms + more_ms, frame);
            }
            FrameAction::Replace(replacement) => self.arrive(ms, replacement),
            FrameAction::Alter(bit) => {
                let mut altered = frame;
                altered[bit / 8] ^= 1 << (bit % 8);
                self.arrive(ms, altered);
            }
        }
    }

    /// Delivers a frame by its destination MAC address, as a switch does.
    fn arrive(&mut self, ms: u64, frame: Vec<u8>) {
        let Some(mac) = frame.get(..6).and_then(|mac| Mac::try_from(mac).ok()) else {
            return;
        };
        match self.gateways.iter().position(|gateway| gateway.mac == mac) {
            Some(gateway) => self.schedule_after(ms, Event::ToGateway { gateway, frame }),
            None => self.schedule_after(ms, Event::ToDevices { frame }),
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
        *self.statistics.verdicts.entry(verdict).or_default() += 1;
    }

    fn reach_devices(&mut self, bytes: &[u8]) {
        let Ok(parsed) = frame::parse(bytes) else {
            return;
        };
        let device_index = self
            .devices
            .iter()
            .position(|simulated| simulated.enrollment.endpoint.mac == parsed.dst_mac);
        if let Some(device_index) = device_index {
            let actions = {
                let mut invariants = self.invariants.borrow_mut();
                self.devices[device_index].receive(
                    bytes,
                    self.now_ms,
                    &mut self.random,
                    &self.gateways,
                    &mut invariants,
                )
            };
            self.perform(device_index, actions);
        }
    }

    fn attack_now(&mut self) {
        if self.has_attack_ended() {
            return;
        }
        let frame = match self.attack {
            Attack::OnPath => self
                .attacker
                .inject(&self.enrollments, &self.gateways, &mut self.random),
            Attack::OffPath => self
                .attacker
                .send_forged(&self.enrollments, &self.gateways, &mut self.random),
        };
        if let Some(frame) = frame {
            self.statistics.injected += 1;
            self.arrive(0, frame);
        }
        let ms = self.random.between(1, 400);
        self.schedule_after(ms, Event::Attack);
    }

    fn inject_failure(&mut self) {
        if self.has_attack_ended() || self.attack == Attack::OffPath {
            for gateway in &mut self.gateways {
                gateway.set_stopping(false);
            }
            if !self.has_attack_ended() {
                self.schedule_after(5_000, Event::Failure);
            }
            return;
        }
        let gateway = self.random.below(self.gateways.len());
        let device_index = self.random.below(self.devices.len());
        let node = &mut self.gateways[gateway];
        match self.random.below(16) {
            0..3 => {
                node.start(self.now_ms, &mut self.random);
            }
            3 => node.recover(),
            4 => {
                let for_ms = self.random.between(100, 30_000);
                node.suspend(self.now_ms, for_ms, &mut self.random);
            }
            5 => {
                let by_ms = self.random.between(1_000, 7_200_000);
                node.jump_clock(by_ms);
            }
            6 => node.set_stopping(true),
            7..9 => node.set_stopping(false),
            9 if self.random.chance(30) => self.revoke(device_index),
            10..13 => self.roam(device_index),
            _ => {}
        }
        let ms = self.random.between(500, 12_000);
        self.schedule_after(ms, Event::Failure);
    }

    fn revoke(&mut self, device_index: usize) {
        self.devices[device_index].revoked = true;
        for gateway in &mut self.gateways {
            gateway.revoke(device_index);
        }
    }

    /// A device moves to the other gateway, to its other address, or restarts.
    fn roam(&mut self, device_index: usize) {
        let device = &mut self.devices[device_index];
        device.abandon();
        match self.random.below(3) {
            0 => device.gateway = 1 - device.gateway,
            1 => {
                device.ip = match device.ip {
                    IpAddr::V4(ip) => IpAddr::from([10, 66, ip.octets()[2] ^ 9, ip.octets()[3]]),
                    ip @ IpAddr::V6(_) => ip,
                };
            }
            _ => {}
        }
        let actions = {
            let mut invariants = self.invariants.borrow_mut();
            device.start(self.now_ms, &mut self.random, &self.gateways, &mut invariants)
        };
        self.perform(device_index, actions);
    }

    /// Sends a packet to the service, from a device's or the attacker's MAC address, and checks the gate's verdict.
    fn probe(&mut self) {
        let gateway = self.random.below(self.gateways.len());
        let device_index = self.random.below(self.devices.len());
        let device_endpoint = self.devices[device_index].endpoint();
        let service_ip = if device_endpoint.ip.is_ipv4() {
            IpAddr::from([10, 77, 0, 1])
        } else {
            IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, 1])
        };
        let service = Endpoint {
            mac: self.gateways[gateway].mac,
            ip: service_ip,
            port: 8_080,
        };
        let is_attacker = self.random.chance(30);
        let from = if is_attacker {
            Endpoint {
                mac: self.attacker.endpoint.mac,
                ..device_endpoint
            }
        } else {
            device_endpoint
        };
        let frame = FrameBuilder::new(from, service).udp(b"reading");
        let may_pass = !is_attacker
            && self.enrollments[device_index].bound
            && self.gateways[gateway]
                .session(device_index, self.now_ms)
                .is_some();
        let (verdict, _) = self.gateways[gateway].deliver(self.now_ms, INGRESS, frame);
        self.count(verdict);
        let has_passed = verdict == Verdict::PassSession;
        // On the path a RESPONSE may have been moved to another VLAN, to which the session is then bound.
        let must_pass = may_pass && self.attack == Attack::OffPath;
        if (has_passed && !may_pass) || (must_pass && !has_passed) {
            let message = format!(
                "the gate's verdict is {verdict} for a packet from {:x?}",
                from.mac
            );
            self.invariants.borrow_mut().violate(message);
        }
        self.schedule_after(if self.has_attack_ended() { 20_000 } else { 700 }, Event::Probe);
    }
}
