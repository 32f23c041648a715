//! The network between devices and processes: it loses, repeats and holds back, and somebody listens.

use std::cmp::Reverse;

use linewarden_protocol::frame::Meta;
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::wire::ATTEST_PORT;
use rand::RngExt as _;

use super::World;

/// Something on the network.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Packet {
    ToGateway {
        process: u64,
        from: Origin,
        payload: Box<[u8]>,
    },
    ToStation {
        station: usize,
        port: u16,
        payload: Box<[u8; 64]>,
    },
}

/// Sender's address and port.
pub(super) type Origin = ([u8; 16], u16);

impl World {
    pub(super) fn transmit(&mut self, station: usize, sent: Vec<[u8; 64]>) {
        let gateway = self.stations[station].gateway;
        for payload in sent {
            if let Some(process) = self.address(gateway) {
                self.recorded.push((process, payload));
                self.hand_in(station, process, Box::new(payload));
            }
        }
    }

    /// One of the processes that say they are the gateway: with two, the network decides which.
    fn address(&mut self, gateway: usize) -> Option<u64> {
        let candidates: Vec<u64> = self
            .processes
            .iter()
            .filter(|process| process.gateway == gateway)
            .map(|process| process.number)
            .collect();
        (!candidates.is_empty()).then(|| candidates[self.rng.random_range(0..candidates.len())])
    }

    fn hand_in(&mut self, station: usize, process: u64, payload: Box<[u8]>) {
        let meta = self.stations[station].meta();
        self.send(Packet::ToGateway {
            process,
            from: (meta.src_ip, meta.src_port),
            payload,
        });
    }

    /// A device is asked what it runs.
    fn question(&mut self, station: usize, payload: &[u8; 64]) {
        let Some(made) = self.stations[station].prove(payload) else {
            return;
        };
        let device = self.stations[station].id;
        let (gateway, message) = (made.round.gateway.0 as usize - 1, made.message);
        self.fleet.book.made(device, made);
        if let Some(process) = self.address(gateway) {
            self.fleet.proofs.push(message);
            self.hand_in(station, process, Box::new(message));
        }
    }

    /// Lost, late, or twice, while there are misfortunes.
    pub(super) fn send(&mut self, packet: Packet) {
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
            Packet::ToStation {
                station,
                port,
                payload,
            } => Packet::ToStation {
                station: *station,
                port: *port,
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

    pub(super) fn deliver(&mut self) {
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
                    let payload = self.look_at_proof(process, payload);
                    let forged = self.forge_statement(&payload);
                    if let Some(process) = self.processes.iter().find(|other| other.number == process) {
                        process.plane.set_clock(process.clock, self.now_ms, self.without);
                        let mut plane = process.plane.0.lock().unwrap();
                        if let Some(forged) = forged {
                            plane.receive(meta, &forged);
                        }
                        plane.receive(meta, &payload);
                    }
                }
                Packet::ToStation {
                    station,
                    port: ATTEST_PORT,
                    payload,
                } => self.question(station, &payload),
                Packet::ToStation { station, payload, .. } => {
                    self.forge_challenges(station, &payload);
                    let sent = self.stations[station].handle(&payload, self.now_ms);
                    self.transmit(station, sent);
                }
            }
        }
    }

    /// Something recorded comes again: to any process, from the sender's own address or the attacker's.
    pub(super) fn attack(&mut self) {
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
        // His own, or one that no device has: another network's, or the gateway's.
        let own = match self.tally.replays % 4 {
            0 => [8, 8, 8, 8],
            1 => [192, 0, 2, 1],
            _ => [10, 6, 6, 6],
        };
        from.0[10..12].fill(0xff);
        from.0[12..].copy_from_slice(&own);
        if self.rng.random_ratio(1, 2) {
            let station = self.rng.random_range(0..self.stations.len());
            from = (self.stations[station].address(), 40_000);
        }
        if self.attests {
            // Whose RESPONSE somebody holds back and sends from elsewhere is asked there: he keeps it from answering, and no judge
            // could tell that from the device's own silence.
            let id = DeviceId(u64::from_be_bytes(payload[8..16].try_into().unwrap()));
            let sender = self.stations.iter().find(|station| station.id == id);
            from = (sender.unwrap().address(), 40_000);
        }
        self.send(Packet::ToGateway {
            process,
            from,
            payload: Box::new(payload),
        });
    }
}
