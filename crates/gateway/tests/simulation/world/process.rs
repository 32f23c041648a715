//! Processes of gateways: how they begin, what they do, how they end.

use linewarden_controller::attest::Verifier;
use linewarden_controller::{Leases, Link};
use linewarden_dataplane::{Config, Gate, Geometry};
use linewarden_gateway::{Answer, Ask, Node, Settings};
use linewarden_protocol::ids::GatewayId;
use linewarden_protocol::verdict::Verdict;
use rand::RngExt as _;

use super::clock::HostClock;
use super::controller::admitted;
use super::fleet::{PERIOD_S, PROVERS};
use super::network::Packet;
use super::{LEASE_S, MARK_BLOCK, RING, Rule, SLOTS, World};
use crate::plane::Plane;

/// One process of a gateway.
pub(super) struct Process {
    pub(super) gateway: usize,
    pub(super) number: u64,
    pub(super) node: Node,
    pub(super) settings: Settings,
    pub(super) plane: Plane,
    pub(super) clock: HostClock,
    /// Its registration, once it has asked the controller something.
    pub(super) link: Option<Link>,
    /// Which start of the controller that link goes to.
    pub(super) linked_to: u64,
    pub(super) leases: Option<Leases>,
    /// Likewise.
    pub(super) verifier: Option<Verifier>,
    /// When the controller made the plan of attestation that is under way, the one that is here, and the one that was here a
    /// step before: requests leave in the step after the one that opens their round.
    pub(super) planned_ms: [u64; 3],
    /// Answers under way, and when they arrive.
    pub(super) mail: Vec<(u64, Answer)>,
    /// The number in the memory that it took up; 0 for none.
    pub(super) left_by: u64,
    /// Replaced, and alive.
    pub(super) zombie: bool,
    /// Killed: its memory and packet path go on.
    pub(super) headless: bool,
}

impl Process {
    pub(super) fn id(&self) -> GatewayId {
        GatewayId(self.gateway as u32 + 1)
    }
}

pub(super) fn config(gateway: usize, attests: bool) -> Config {
    Config {
        gateway_id: GatewayId(gateway as u32 + 1),
        lease_s: LEASE_S,
        lap_port: 20550,
        local: vec!["192.0.2.1".parse().unwrap()],
        device_prefixes: vec!["10.0.0.0/8".parse().unwrap()],
        follows_interfaces: false,
        other_addresses: Vec::new(),
        fragments: false,
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
        provers: if attests { PROVERS } else { 0 },
        classic: None,
        p4dra: None,
        in_packets: None,
        always_pass: Vec::new(),
        dhcp_servers: Vec::new(),
    }
}

impl World {
    fn config(&self, gateway: usize) -> Config {
        config(gateway, self.attests)
    }

    /// On memory of its own.
    pub(super) fn start(&mut self, gateway: usize) {
        let clock = HostClock::new(self.now_ms, &mut self.rng);
        let plane = Plane::new(&self.config(gateway), clock.moment(self.now_ms));
        self.start_on(gateway, plane, clock);
    }

    /// On memory that a process which was killed has left; on its own if there is none.
    pub(super) fn start_on_left(&mut self, gateway: usize) -> Result<(), String> {
        let headless = |process: &Process| process.gateway == gateway && process.headless;
        let Some(at) = self.processes.iter().position(headless) else {
            self.start(gateway);
            return Ok(());
        };
        self.tally.taken_up += 1;
        let left = self.bury(at);
        let plane = Plane::taken_up(&left.plane, &self.config(gateway), left.clock.moment(self.now_ms));
        let before = left.plane.sessions(&self.stations);
        self.start_on(gateway, plane, left.clock);
        let after = self
            .processes
            .last()
            .map(|process| process.plane.sessions(&self.stations));
        match after == Some(before) {
            true => Ok(()),
            false => Err(format!(
                "a process of gateway {} took up memory, and sessions dropped",
                gateway + 1
            )),
        }
    }

    fn start_on(&mut self, gateway: usize, plane: Plane, clock: HostClock) {
        let left_by = {
            let mut inner = plane.0.lock().unwrap();
            inner.no_marks = self.without == Some(Rule::Mark);
            inner.no_wiping = self.without == Some(Rule::Wiping);
            inner.host.store().left().owner
        };
        let config = self.config(gateway);
        let settings = Settings {
            mark_block: MARK_BLOCK,
            feed_poll_ms: 400,
            attest_period_s: PERIOD_S,
            // At the next housekeeping, every 5 s: devices are out for longer.
            wipe_after_ms: 100,
            ..Settings::for_plane(&config)
        };
        self.processes_started += 1;
        self.processes.push(Process {
            gateway,
            number: self.processes_started,
            node: Node::new(Box::new(plane.of_node(&config)), settings).unwrap(),
            settings,
            plane,
            clock,
            link: None,
            linked_to: 0,
            leases: None,
            verifier: None,
            planned_ms: [0; 3],
            mail: Vec::new(),
            left_by,
            zombie: false,
            headless: false,
        });
    }

    /// Its memory and packet path go on; answers to it arrive nowhere.
    pub(super) fn behead(&mut self, at: usize) {
        let process = &mut self.processes[at];
        process.headless = true;
        process.zombie = true;
        process.mail.clear();
    }

    pub(super) fn bury(&mut self, at: usize) -> Process {
        let process = self.processes.remove(at);
        let status = process.node.status();
        self.tally.evicted += status.evicted;
        self.tally.admitted += status.admitted;
        self.tally.given_back += status.rows_given_back;
        process
    }

    /// In good order; whether the controller hears of it is another matter.
    pub(super) fn stop(&mut self, at: usize) {
        let (office, process) = (&mut self.office, &mut self.processes[at]);
        let stood = process.node.close();
        for settlement in &stood {
            office.release(process.id(), settlement.device);
        }
        let link = process
            .link
            .as_ref()
            .map(|link| office.controller.reconnect(link));
        let told = match link.filter(|_| office.is_open && self.rng.random_ratio(9, 10)) {
            Some(link) => self.runtime.block_on(link.settle(&stood)).is_ok(),
            None => false,
        };
        self.losses += u32::from(!told);
        let unheard = self.bury(at).mail;
        self.leave_behind(unheard.iter().flat_map(|(_, answer)| admitted(answer)));
    }

    pub(super) fn tick(&mut self, at: usize) -> Result<(), String> {
        let now_ms = self.now_ms;
        let process = &mut self.processes[at];
        let clock = process.clock.clock(now_ms);
        process.plane.set_clock(process.clock, now_ms, self.without);
        if process.headless {
            return self.collect(at);
        }
        process.planned_ms[2] = process.planned_ms[1];
        let arrived = process.mail.extract_if(.., |(at_ms, _)| *at_ms <= now_ms);
        let arrived: Vec<Answer> = arrived.map(|(_, answer)| answer).collect();
        for answer in arrived {
            if matches!(answer, Answer::Plan(Ok(Some(_)))) {
                process.planned_ms[1] = process.planned_ms[0];
            }
            process.node.answer(answer, clock);
        }
        let rng = &mut self.rng;
        let asks = process.node.tick(clock, &mut || Some(rng.random()));
        process.plane.notice();
        let tells = asks.iter().any(|ask| matches!(ask, Ask::Settle(_)));
        if tells && !self.calm && self.rng.random_ratio(1, 10) {
            return self.kill_before_it_tells(at);
        }
        for ask in asks {
            let answer = self.ask(at, ask);
            let late = !self.calm && self.rng.random_ratio(1, 5);
            let delay_ms = if late { self.rng.random_range(0..300) } else { 0 };
            self.processes[at].mail.push((now_ms + delay_ms, answer));
        }
        self.collect(at)
    }

    /// Killed with something to tell that nobody else knows; the next process goes on with its memory.
    fn kill_before_it_tells(&mut self, at: usize) -> Result<(), String> {
        self.tally.kills += 1;
        self.losses += 1;
        self.collect(at)?;
        if self.processes[at].zombie {
            return Ok(());
        }
        let gateway = self.processes[at].gateway;
        self.behead(at);
        self.start_on_left(gateway)
    }

    /// Other settings come into force, and no session notices.
    pub(super) fn reload(&mut self, at: usize) -> Result<(), String> {
        let process = &mut self.processes[at];
        let rng = &mut self.rng;
        let mut live = config(process.gateway, self.attests).live();
        live.lease_s = rng.random_range(2..=2 * LEASE_S);
        live.low_rows = rng.random_range(0..RING);
        live.low_credit = rng.random_range(0..4);
        let settings = Settings {
            mark_block: rng.random_range(live.low_credit + 1..=8),
            low_credit: live.low_credit,
            low_rows: live.low_rows,
            feed_poll_ms: rng.random_range(250..900),
            ..process.settings
        };
        self.tally.reloads += 1;
        let before = process.plane.sessions(&self.stations);
        let clock = process.clock.clock(self.now_ms);
        process
            .node
            .reconfigure(settings, &live, clock)
            .map_err(|error| format!("a reload was refused: {error}"))?;
        process.settings = settings;
        match process.plane.sessions(&self.stations) == before {
            true => Ok(()),
            false => Err(format!(
                "process {} was reloaded, and sessions dropped",
                process.number
            )),
        }
    }

    /// What the packet path did.
    fn collect(&mut self, at: usize) -> Result<(), String> {
        let process = &self.processes[at];
        let (number, gateway) = (process.number, process.gateway);
        let (accepted, replies, verdicts, closed, late) = {
            let mut inner = process.plane.0.lock().unwrap();
            (
                std::mem::take(&mut inner.accepted),
                std::mem::take(&mut inner.replies),
                std::mem::take(&mut inner.verdicts),
                std::mem::take(&mut inner.closed),
                inner.late.take(),
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
            self.tally.accepted_alone += u64::from(!self.office.is_well());
            let station = self.stations.iter().find(|station| station.id == device).unwrap();
            self.ledger.accepted(device, station.mode, idx, tag, number);
        }
        for reply in replies {
            let (to, port) = (reply.to.src_ip, reply.to.src_port);
            self.note_question(at, &reply.payload);
            if let Some(station) = self.stations.iter().position(|station| station.address() == to) {
                let payload = Box::new(reply.payload);
                self.send(Packet::ToStation {
                    station,
                    port,
                    payload,
                });
            }
        }
        match late {
            Some(problem) => Err(format!("process {number}: {problem}")),
            None => self.look_for_keys(at),
        }
    }
}
