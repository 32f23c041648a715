//! Processes of gateways: how they begin, what they do, how they end.

use linewarden_controller::Link;
use linewarden_dataplane::{Config, Gate, Geometry};
use linewarden_gateway::{Answer, Clock, Node, Settings};
use linewarden_protocol::ids::GatewayId;
use linewarden_protocol::verdict::Verdict;
use rand::RngExt as _;

use super::network::Packet;
use super::{LEASE_S, MARK_BLOCK, RING, Rule, SLOTS, World};
use crate::plane::Plane;

/// One process of a gateway.
pub(super) struct Process {
    pub(super) gateway: usize,
    pub(super) number: u64,
    pub(super) node: Node,
    pub(super) plane: Plane,
    pub(super) link: Link,
    pub(super) leases: Option<linewarden_controller::Leases>,
    /// Answers under way, and when they arrive.
    pub(super) mail: Vec<(u64, Answer)>,
    /// Replaced, and alive.
    pub(super) zombie: bool,
    /// Killed: its memory and packet path go on.
    pub(super) headless: bool,
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

impl World {
    /// On memory of its own.
    pub(super) fn start(&mut self, gateway: usize) {
        let plane = Plane::new(&config(gateway), self.moment());
        self.start_on(gateway, plane);
    }

    /// On memory that a process which was killed has left.
    pub(super) fn start_on_left(&mut self, gateway: usize) {
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

    pub(super) fn start_on(&mut self, gateway: usize, plane: Plane) {
        let config = config(gateway);
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

    /// Its memory and packet path go on; answers to it arrive nowhere.
    pub(super) fn behead(&mut self, at: usize) {
        let process = &mut self.processes[at];
        process.headless = true;
        process.zombie = true;
        process.mail.clear();
    }

    pub(super) fn bury(&mut self, at: usize) {
        let process = self.processes.remove(at);
        let status = process.node.status();
        self.tally.evicted += status.evicted;
        self.tally.admitted += status.admitted;
        self.tally.given_back += status.rows_given_back;
    }

    /// In good order; whether the controller hears of it is another matter.
    pub(super) fn stop(&mut self, at: usize) {
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

    pub(super) fn tick(&mut self, at: usize) -> Result<(), String> {
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
    pub(super) fn collect(&mut self, at: usize) {
        let process = &self.processes[at];
        let number = process.number;
        let (accepted, replies, verdicts) = {
            let mut inner = process.plane.0.lock().unwrap();
            (
                std::mem::take(&mut inner.accepted),
                std::mem::take(&mut inner.replies),
                std::mem::take(&mut inner.verdicts),
            )
        };
        self.tally.at_mark += verdicts
            .iter()
            .filter(|verdict| **verdict == Verdict::DropMark)
            .count() as u64;
        for (device, idx, tag) in accepted {
            self.tally.accepted += 1;
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
}
