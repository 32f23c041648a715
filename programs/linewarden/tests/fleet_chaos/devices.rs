//! Devices that authenticate repeatedly, each time at a random gateway.

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Instant;

use linewarden_protocol::ids::{DeviceId, Mode};
use linewarden_protocol::wire::LAP_PORT;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::ledger::{GatewayProcess, Ledger};
use crate::network;
use crate::support::Namespace;
use crate::support::device::StatelessDevice;

/// Rows of each device in pool mode: far more than the device can use.
const ROWS: u32 = 1_500;
/// Time without a reply after which a device tries another place, ms.
const RETRY_AFTER_MS: std::ops::Range<u64> = 300..1_200;
/// Pause between two handshakes, ms.
const PAUSE_MS: std::ops::Range<u64> = 60..240;
/// Longest time in which an available gateway must accept a device, ms: includes the switch to another controller or process.
const REFUSED_MS_MAX: u64 = 20_000;
/// Maximum number of handshakes of all devices together.
const ATTEMPTS_MAX: u64 = 60_000;

/// An address at which a gateway replies.
#[derive(Clone, Copy)]
pub struct Place {
    pub address: Ipv4Addr,
    /// The process that replies at this address, or the last process that replied there.
    pub process: GatewayProcess,
}

/// A device with its own socket.
pub struct Station {
    pub device: StatelessDevice,
    address: Ipv4Addr,
    socket: UdpSocket,
    /// The place that the device tries.
    target: usize,
    /// Time, in ms, after which the device abandons the current handshake.
    handshake_deadline_ms: u64,
    /// Time, in ms, of the next handshake's start.
    next_handshake_ms: u64,
    /// An available place that has not yet accepted the device, and the time of the first attempt there, ms.
    pending_attempt: Option<(usize, u64)>,
    /// Whether the device has begun to authenticate.
    pub is_active: bool,
    /// Whether the device is quarantined or revoked: it continues to try, without success.
    pub is_denied: bool,
}

pub struct DeviceFleet {
    pub stations: Vec<Station>,
    pub places: Vec<Place>,
    /// Number of successful handshakes by station and place, since this map was cleared.
    pub accepted_handshakes: HashMap<(usize, usize), u32>,
    /// Place at which no station starts a handshake.
    pub excluded_place: Option<usize>,
    /// The only place at which stations start handshakes.
    pub only_place: Option<usize>,
    /// By place: whether the gateway there reaches a controller that reaches the database, so that it must accept all devices.
    pub is_available: Vec<bool>,
    /// Longest duration of an authentication at an available gateway, ms: of known devices, and of new ones.
    pub longest_wait_ms: [u64; 2],
    /// Stations that a gateway process has accepted before.
    known_stations: HashSet<(usize, GatewayProcess)>,
    pub ledger: Ledger,
    pub rng: ChaCha8Rng,
    pub attempts: u64,
    pub timed_out: u64,
    started_at: Instant,
}

impl DeviceFleet {
    /// Every fourth device is in key mode. No device is active yet.
    pub fn new(namespace: &Namespace, devices: u8, places: Vec<Place>, seed: u64) -> Self {
        let station = |number: u8| {
            let address = network::device(number);
            let socket = namespace.socket(SocketAddr::from((address, 40_000)));
            socket.set_nonblocking(true).unwrap();
            let mode = if number % 4 == 3 { Mode::Key } else { Mode::Pool };
            Station {
                device: StatelessDevice::new(DeviceId(0xd00 + u64::from(number)), mode, ROWS),
                address,
                socket,
                target: 0,
                handshake_deadline_ms: 0,
                next_handshake_ms: 0,
                pending_attempt: None,
                is_active: false,
                is_denied: false,
            }
        };
        Self {
            stations: (0..devices).map(station).collect(),
            is_available: vec![false; places.len()],
            longest_wait_ms: [0; 2],
            known_stations: HashSet::new(),
            places,
            accepted_handshakes: HashMap::new(),
            excluded_place: None,
            only_place: None,
            ledger: Ledger::default(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            attempts: 0,
            timed_out: 0,
            started_at: Instant::now(),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started_at.elapsed().as_millis()).unwrap()
    }

    /// Activates one more device.
    pub fn add_station(&mut self) {
        let inactive_station = self.stations.iter_mut().find(|station| !station.is_active);
        inactive_station
            .expect("all devices are active already")
            .is_active = true;
    }

    /// Processes received messages and due timers.
    pub fn poll(&mut self) {
        let now_ms = self.now_ms();
        for number in 0..self.stations.len() {
            if !self.stations[number].is_active {
                continue;
            }
            self.receive_from(number, now_ms);
            let station = &mut self.stations[number];
            let gateway_address = SocketAddr::from((self.places[station.target].address, LAP_PORT));
            let socket = &station.socket;
            station
                .device
                .poll(now_ms, |message| drop(socket.send_to(message, gateway_address)));
            if !station.device.is_idle && station.handshake_deadline_ms <= now_ms {
                station.device.is_idle = true;
                self.timed_out += 1;
            }
            self.check_refusals(number, now_ms);
            let station = &self.stations[number];
            let is_due = station.device.is_idle && station.next_handshake_ms <= now_ms;
            if is_due && self.attempts < ATTEMPTS_MAX {
                self.begin(number, now_ms);
            }
        }
    }

    fn receive_from(&mut self, number: usize, now_ms: u64) {
        let station = &mut self.stations[number];
        let mut payload = [0; 128];
        loop {
            let (length, from) = match station.socket.recv_from(&mut payload) {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // No process listens at the gateway's address now.
                Err(_) => continue,
            };
            let payload = &payload[..length];
            let Some(place_index) = self.places.iter().position(|place| from.ip() == place.address) else {
                panic!("unexpected datagram from {from}");
            };
            let device = &mut station.device;
            self.ledger
                .record_message(device.id, device.mode, payload, self.places[place_index].process);
            if place_index != station.target {
                continue;
            }
            let before = device.sessions;
            let (socket, local) = (&station.socket, station.address.to_ipv6_mapped().octets());
            device.receive(payload, &local, now_ms, |message| {
                drop(socket.send_to(message, from))
            });
            if device.sessions > before {
                *self.accepted_handshakes.entry((number, place_index)).or_default() += 1;
                station.next_handshake_ms = now_ms + self.rng.random_range(PAUSE_MS);
                let is_new = self
                    .known_stations
                    .insert((number, self.places[place_index].process));
                if let Some((_, since_ms)) = station.pending_attempt.take() {
                    let longest = &mut self.longest_wait_ms[usize::from(is_new)];
                    *longest = (now_ms - since_ms).max(*longest);
                }
            }
        }
    }

    /// Asserts that no available gateway rejects a permitted device for `REFUSED_MS_MAX`.
    fn check_refusals(&mut self, number: usize, now_ms: u64) {
        let must_accept = |place| {
            self.is_available[place] && self.excluded_place != Some(place) && self.only_place.is_none()
        };
        let station = &mut self.stations[number];
        station.pending_attempt = station
            .pending_attempt
            .filter(|(place, _)| must_accept(*place) && !station.is_denied);
        if let Some((place, since_ms)) = station.pending_attempt {
            let waited_ms = now_ms - since_ms;
            assert!(
                waited_ms < REFUSED_MS_MAX,
                "{} has had no session at place {place} for {waited_ms} ms",
                station.device.id
            );
        }
    }

    fn begin(&mut self, number: usize, now_ms: u64) {
        let random_place = self.rng.random_range(0..self.places.len());
        let pending_attempt = self.stations[number].pending_attempt;
        let target = self
            .only_place
            .or(pending_attempt.map(|(place, _)| place))
            .unwrap_or(random_place);
        if self.excluded_place == Some(target) {
            return;
        }
        self.stations[number].pending_attempt =
            pending_attempt.or(self.is_available[target].then_some((target, now_ms)));
        self.attempts += 1;
        let nonce = self.rng.random();
        let handshake_deadline_ms = now_ms + self.rng.random_range(RETRY_AFTER_MS);
        let station = &mut self.stations[number];
        station.target = target;
        station.handshake_deadline_ms = handshake_deadline_ms;
        station.next_handshake_ms = now_ms;
        let gateway_address = SocketAddr::from((self.places[target].address, LAP_PORT));
        let socket = &station.socket;
        station.device.begin(nonce, now_ms, |message| {
            drop(socket.send_to(message, gateway_address))
        });
    }

    /// Reads the messages that have arrived until now.
    pub fn receive_pending(&mut self) {
        let now_ms = self.now_ms();
        (0..self.stations.len()).for_each(|number| self.receive_from(number, now_ms));
    }

    /// Whether no handshake is in progress at this place.
    pub fn is_idle_at(&self, place: usize) -> bool {
        let stations = self.stations.iter();
        !stations
            .into_iter()
            .any(|station| !station.device.is_idle && station.target == place)
    }

    /// An eavesdropper replays some of the devices' messages at all places.
    pub fn replay(&mut self) {
        for station in self.stations.iter().filter(|station| station.is_active) {
            let sent = &station.device.sent;
            for place in &self.places {
                for message in sent.iter().rev().take(3) {
                    drop(station.socket.send_to(message, (place.address, LAP_PORT)));
                }
                if !sent.is_empty() {
                    let message = &sent[self.rng.random_range(0..sent.len())];
                    drop(station.socket.send_to(message, (place.address, LAP_PORT)));
                }
            }
        }
    }

    /// Pairs of a permitted device and one of these places at which the device has not authenticated.
    pub fn missing(&self, places: &[usize]) -> Vec<(DeviceId, usize)> {
        let stations = self.stations.iter().enumerate();
        stations
            .filter(|(_, station)| station.is_active && !station.is_denied)
            .flat_map(|(number, station)| {
                places
                    .iter()
                    .map(move |place| (number, station.device.id, *place))
            })
            .filter(|(number, _, place)| !self.accepted_handshakes.contains_key(&(*number, *place)))
            .map(|(_, device, place)| (device, place))
            .collect()
    }
}
