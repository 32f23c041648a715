//! The network between devices and processes: it loses, repeats and delays messages, and an eavesdropper records
//! them.

use std::cmp::Reverse;

use linewarden_protocol::frame::Meta;
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::wire::ATTEST_PORT;
use rand::RngExt as _;

use super::Simulation;

/// A message on the network.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Packet {
    ToGateway {
        process: u64,
        from: Origin,
        payload: Box<[u8]>,
    },
    ToDevice {
        device_index: usize,
        port: u16,
        payload: Box<[u8; 64]>,
    },
}

/// The sender's address and port.
pub(super) type Origin = ([u8; 16], u16);

impl Simulation {
    pub(super) fn transmit(&mut self, device_index: usize, sent: Vec<[u8; 64]>) {
        let gateway = self.devices[device_index].gateway;
        for payload in sent {
            if let Some(process) = self.receiving_process(gateway) {
                self.recorded.push((process, payload));
                self.send_to_gateway(device_index, process, Box::new(payload));
            }
        }
    }

    /// Returns the number of a random process that has the gateway's address.
    fn receiving_process(&mut self, gateway: usize) -> Option<u64> {
        let candidates: Vec<u64> = self
            .processes
            .iter()
            .filter(|process| process.gateway == gateway)
            .map(|process| process.number)
            .collect();
        (!candidates.is_empty()).then(|| candidates[self.rng.random_range(0..candidates.len())])
    }

    fn send_to_gateway(&mut self, device_index: usize, process: u64, payload: Box<[u8]>) {
        let meta = self.devices[device_index].meta();
        self.send(Packet::ToGateway {
            process,
            from: (meta.src_ip, meta.src_port),
            payload,
        });
    }

    /// Delivers an attestation challenge to a device, and sends the device's proof.
    fn deliver_request(&mut self, device_index: usize, payload: &[u8; 64]) {
        let Some(proof) = self.devices[device_index].prove(payload) else {
            return;
        };
        let device = self.devices[device_index].id;
        let (gateway, message) = (proof.round.gateway.0 as usize - 1, proof.message);
        self.fleet.rounds.record_proof(device, proof);
        if let Some(process) = self.receiving_process(gateway) {
            self.fleet.proofs.push(message);
            self.send_to_gateway(device_index, process, Box::new(message));
        }
    }

    /// Sends a message. While faults are enabled, the message may be lost, delayed or duplicated.
    pub(super) fn send(&mut self, packet: Packet) {
        let copies = match self.rng.random_range(0..20) {
            _ if self.is_calm => 1,
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
            Packet::ToDevice {
                device_index,
                port,
                payload,
            } => Packet::ToDevice {
                device_index: *device_index,
                port: *port,
                payload: payload.clone(),
            },
        };
        for _ in 0..copies {
            let late = !self.is_calm && self.rng.random_ratio(1, 10);
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
                    let payload = self.check_proof(process, payload);
                    let forged = self.forge_statement(&payload);
                    if let Some(process) = self.processes.iter().find(|other| other.number == process) {
                        process
                            .data_plane
                            .set_clock(process.clock, self.now_ms, self.without);
                        let mut data_plane = process.data_plane.0.lock().unwrap();
                        if let Some(forged) = forged {
                            data_plane.receive(meta, &forged);
                        }
                        data_plane.receive(meta, &payload);
                    }
                }
                Packet::ToDevice {
                    device_index,
                    port: ATTEST_PORT,
                    payload,
                } => self.deliver_request(device_index, &payload),
                Packet::ToDevice {
                    device_index,
                    payload,
                    ..
                } => {
                    self.forge_challenges(device_index, &payload);
                    let sent = self.devices[device_index].handle(&payload, self.now_ms);
                    self.transmit(device_index, sent);
                }
            }
        }
    }

    /// Replays a recorded message: to any process, from the sender's address or the attacker's.
    pub(super) fn attack(&mut self) {
        if self.recorded.is_empty() || self.processes.is_empty() {
            return;
        }
        self.tally.replays += 1;
        // Mostly a recent message, with a fresh value that may still be valid.
        let range = match self.rng.random_ratio(2, 3) {
            true => 12.min(self.recorded.len()),
            false => self.recorded.len(),
        };
        let at = self.recorded.len() - self.rng.random_range(1..=range);
        let (recorded_process, payload) = self.recorded[at];
        let process = match self.rng.random_ratio(1, 2) {
            true => recorded_process,
            false => self.processes[self.rng.random_range(0..self.processes.len())].number,
        };
        let mut from = ([0; 16], 666);
        // The attacker's address, or an address that no device has: of another network, or the gateway's.
        let attacker_ip = match self.tally.replays % 4 {
            0 => [8, 8, 8, 8],
            1 => [192, 0, 2, 1],
            _ => [10, 6, 6, 6],
        };
        from.0[10..12].fill(0xff);
        from.0[12..].copy_from_slice(&attacker_ip);
        if self.rng.random_ratio(1, 2) {
            let device_index = self.rng.random_range(0..self.devices.len());
            from = (self.devices[device_index].address(), 40_000);
        }
        if self.attests {
            // An attacker who replays a RESPONSE from another address redirects the attestation challenges of the
            // device to this address. No invariant could distinguish this attack from a device that sends no proof.
            let id = DeviceId(u64::from_be_bytes(payload[8..16].try_into().unwrap()));
            let sender = self.devices.iter().find(|simulated| simulated.id == id);
            from = (sender.unwrap().address(), 40_000);
        }
        self.send(Packet::ToGateway {
            process,
            from,
            payload: Box::new(payload),
        });
    }
}
