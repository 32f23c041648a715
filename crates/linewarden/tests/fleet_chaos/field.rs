//! Devices that authenticate at gateways, one after the other, at random.

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
    /// The process that replies there, or replied last.
    pub process: GatewayProcess,
}

/// A device with its own socket.
pub struct Station {
    pub device: StatelessDevice,
    address: Ipv4Addr,
    socket: UdpSocket,
    /// The place that the device tries.
    target: usize,
    deadline_ms: u64,
    begins_ms: u64,
    /// An available place that has not yet accepted the device, and the time of the first attempt there, ms.
    pending_attempt: Option<(usize, u64)>,
    /// Whether the device has begun to authenticate.
    pub is_active: bool,
    /// Whether the device is quarantined or revoked: it continues to try, without success.
    pub is_denied: bool,
}

pub struct Field {
    pub stations: Vec<Station>,
    pub places: Vec<Place>,
    /// Successful handshakes by station and place since the last query.
    pub granted: HashMap<(usize, usize), u32>,
    /// Place at which no station starts a handshake.
    pub excluded_place: Option<usize>,
    /// The only place at which stations start handshakes.
    pub only_place: Option<usize>,
    /// By place: whether the gateway there reaches a controller that reaches the database, so that it must accept all devices.
    pub is_available: Vec<bool>,
    /// Longest duration of an authentication at an available gateway, ms: of known devices, and of new ones.
    pub longest_wait_ms: [u64; 2],
    /// Stations that the gateway at a place has accepted.
    known: HashSet<(usize, GatewayProcess)>,
    pub ledger: Ledger,
    pub rng: ChaCha8Rng,
    pub attempts: u64,
    pub timed_out: u64,
    began: Instant,
}

impl Field {
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
                deadline_ms: 0,
                begins_ms: 0,
                pending_attempt: None,
                is_active: false,
                is_denied: false,
            }
        };
        Self {
            stations: (0..devices).map(station).collect(),
            is_available: vec![false; places.len()],
            longest_wait_ms: [0; 2],
            known: HashSet::new(),
            places,
            granted: HashMap::new(),
            excluded_place: None,
            only_place: None,
            ledger: Ledger::default(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            attempts: 0,
            timed_out: 0,
            began: Instant::now(),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap()
    }

    /// Activates one more device.
    pub fn add_station(&mut self) {
        let newcomer = self.stations.iter_mut().find(|station| !station.is_active);
        newcomer.expect("the field has no further device").is_active = true;
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
            if !station.device.is_idle && station.deadline_ms <= now_ms {
                station.device.is_idle = true;
                self.timed_out += 1;
            }
            self.check_refusals(number, now_ms);
            let station = &self.stations[number];
            let is_due = station.device.is_idle && station.begins_ms <= now_ms;
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
                // No process listens there now.
                Err(_) => continue,
            };
            let payload = &payload[..length];
            let Some(at) = self.places.iter().position(|place| from.ip() == place.address) else {
                panic!("unexpected datagram from {from}");
            };
            let device = &mut station.device;
            self.ledger
                .note(device.id, device.mode, payload, self.places[at].process);
            if at != station.target {
                continue;
            }
            let before = device.sessions;
            let (socket, local) = (&station.socket, station.address.to_ipv6_mapped().octets());
            device.receive(payload, &local, now_ms, |message| {
                drop(socket.send_to(message, from))
            });
            if device.sessions > before {
                *self.granted.entry((number, at)).or_default() += 1;
                station.begins_ms = now_ms + self.rng.random_range(PAUSE_MS);
                let is_new = self.known.insert((number, self.places[at].process));
                if let Some((_, since_ms)) = station.pending_attempt.take() {
                    let longest = &mut self.longest_wait_ms[usize::from(is_new)];
                    *longest = (now_ms - since_ms).max(*longest);
                }
            }
        }
    }

    /// No permitted device is rejected by an available gateway.
    fn check_refusals(&mut self, number: usize, now_ms: u64) {
        let is_meant = |place| {
            self.is_available[place] && self.excluded_place != Some(place) && self.only_place.is_none()
        };
        let station = &mut self.stations[number];
        station.pending_attempt = station
            .pending_attempt
            .filter(|(place, _)| is_meant(*place) && !station.is_denied);
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
        let anywhere = self.rng.random_range(0..self.places.len());
        let pending_attempt = self.stations[number].pending_attempt;
        let target = self
            .only_place
            .or(pending_attempt.map(|(place, _)| place))
            .unwrap_or(anywhere);
        if self.excluded_place == Some(target) {
            return;
        }
        self.stations[number].pending_attempt =
            pending_attempt.or(self.is_available[target].then_some((target, now_ms)));
        self.attempts += 1;
        let nonce = self.rng.random();
        let deadline_ms = now_ms + self.rng.random_range(RETRY_AFTER_MS);
        let station = &mut self.stations[number];
        station.target = target;
        station.deadline_ms = deadline_ms;
        station.begins_ms = now_ms;
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

    /// Permitted devices that have not authenticated at one of these places.
    pub fn missing(&self, places: &[usize]) -> Vec<(DeviceId, usize)> {
        let stations = self.stations.iter().enumerate();
        stations
            .filter(|(_, station)| station.is_active && !station.is_denied)
            .flat_map(|(number, station)| {
                places
                    .iter()
                    .map(move |place| (number, station.device.id, *place))
            })
            .filter(|(number, _, place)| !self.granted.contains_key(&(*number, *place)))
            .map(|(_, device, place)| (device, place))
            .collect()
    }
}
