//! Devices that authenticate at gateways, one after the other, at random.

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Instant;

use linewarden_protocol::ids::{DeviceId, Mode};
use linewarden_protocol::wire::LAP_PORT;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::ledger::{Ledger, Life};
use crate::network;
use crate::support::Namespace;
use crate::support::device::Booted;

/// Of each device in pool mode: far more than it can use.
const ROWS: u32 = 1_500;
/// A device that waits for longer tries elsewhere, ms.
const GIVES_UP_MS: std::ops::Range<u64> = 300..1_200;
/// From one handshake to the next, ms.
const RESTS_MS: std::ops::Range<u64> = 60..240;
/// A device that a gateway could let in is let in within so long, ms: another controller is found, another process is there.
const REFUSED_MS_MAX: u64 = 20_000;
/// Handshakes begun at most, all devices together.
const ATTEMPTS_MAX: u64 = 60_000;

/// A place where a gateway answers.
#[derive(Clone, Copy)]
pub struct Place {
    pub address: Ipv4Addr,
    /// Who answers there, or answered last.
    pub life: Life,
}

/// A device with a socket of its own.
pub struct Station {
    pub device: Booted,
    address: Ipv4Addr,
    socket: UdpSocket,
    /// The place that it tries.
    target: usize,
    gives_up_ms: u64,
    begins_ms: u64,
    /// A place that could let it in and has not yet, and since when it asks there, ms.
    insists: Option<(usize, u64)>,
    /// It has begun to authenticate.
    pub is_here: bool,
    /// It was shut out: it goes on trying, and gets nothing.
    pub is_out: bool,
}

pub struct Field {
    pub stations: Vec<Station>,
    pub places: Vec<Place>,
    /// Handshakes by station and place that ended well since it was last asked.
    pub granted: HashMap<(usize, usize), u32>,
    /// Nobody begins anything there.
    pub shunned: Option<usize>,
    /// All go there and nowhere else.
    pub focus: Option<usize>,
    /// By place: who answers there reaches a controller that reaches the database, and must let everybody in.
    pub able: Vec<bool>,
    /// Longest that somebody asked a gateway that was able to let them in, ms: who had been there before, and who had not.
    pub asked_ms: [u64; 2],
    /// Stations that were let in by whoever is at a place.
    known: HashSet<(usize, Life)>,
    pub ledger: Ledger,
    pub rng: ChaCha8Rng,
    pub attempts: u64,
    pub given_up: u64,
    began: Instant,
}

impl Field {
    /// Every fourth device is in key mode. None is here yet.
    pub fn new(namespace: &Namespace, devices: u8, places: Vec<Place>, seed: u64) -> Self {
        let station = |number: u8| {
            let address = network::device(number);
            let socket = namespace.socket(SocketAddr::from((address, 40_000)));
            socket.set_nonblocking(true).unwrap();
            let mode = if number % 4 == 3 { Mode::Key } else { Mode::Pool };
            Station {
                device: Booted::new(DeviceId(0xd00 + u64::from(number)), mode, ROWS),
                address,
                socket,
                target: 0,
                gives_up_ms: 0,
                begins_ms: 0,
                insists: None,
                is_here: false,
                is_out: false,
            }
        };
        Self {
            stations: (0..devices).map(station).collect(),
            able: vec![false; places.len()],
            asked_ms: [0; 2],
            known: HashSet::new(),
            places,
            granted: HashMap::new(),
            shunned: None,
            focus: None,
            ledger: Ledger::default(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            attempts: 0,
            given_up: 0,
            began: Instant::now(),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap()
    }

    /// One more device is here from now on.
    pub fn welcome(&mut self) {
        let newcomer = self.stations.iter_mut().find(|station| !station.is_here);
        newcomer.expect("more devices are wanted").is_here = true;
    }

    /// Takes all that has come, and does what is due.
    pub fn turn(&mut self) {
        let now_ms = self.now_ms();
        for number in 0..self.stations.len() {
            if !self.stations[number].is_here {
                continue;
            }
            self.hear(number, now_ms);
            let station = &mut self.stations[number];
            let to = SocketAddr::from((self.places[station.target].address, LAP_PORT));
            let socket = &station.socket;
            station
                .device
                .poll(now_ms, |message| drop(socket.send_to(message, to)));
            if !station.device.is_idle && station.gives_up_ms <= now_ms {
                station.device.is_idle = true;
                self.given_up += 1;
            }
            self.insist(number, now_ms);
            let station = &self.stations[number];
            let is_due = station.device.is_idle && station.begins_ms <= now_ms;
            if is_due && self.attempts < ATTEMPTS_MAX {
                self.begin(number, now_ms);
            }
        }
    }

    fn hear(&mut self, number: usize, now_ms: u64) {
        let station = &mut self.stations[number];
        let mut payload = [0; 128];
        loop {
            let (length, from) = match station.socket.recv_from(&mut payload) {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // Nobody listens there now.
                Err(_) => continue,
            };
            let payload = &payload[..length];
            let Some(at) = self.places.iter().position(|place| from.ip() == place.address) else {
                panic!("a datagram from {from}");
            };
            let device = &mut station.device;
            self.ledger
                .note(device.id, device.mode, payload, self.places[at].life);
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
                station.begins_ms = now_ms + self.rng.random_range(RESTS_MS);
                let is_new = self.known.insert((number, self.places[at].life));
                if let Some((_, since_ms)) = station.insists.take() {
                    let longest = &mut self.asked_ms[usize::from(is_new)];
                    *longest = (now_ms - since_ms).max(*longest);
                }
            }
        }
    }

    /// Nobody who may is refused by a gateway that could let them in.
    fn insist(&mut self, number: usize, now_ms: u64) {
        let is_meant = |place| self.able[place] && self.shunned != Some(place) && self.focus.is_none();
        let station = &mut self.stations[number];
        station.insists = station
            .insists
            .filter(|(place, _)| is_meant(*place) && !station.is_out);
        if let Some((place, since_ms)) = station.insists {
            let asked_ms = now_ms - since_ms;
            assert!(
                asked_ms < REFUSED_MS_MAX,
                "{} asks at place {place} for {asked_ms} ms",
                station.device.id
            );
        }
    }

    fn begin(&mut self, number: usize, now_ms: u64) {
        let anywhere = self.rng.random_range(0..self.places.len());
        let insists = self.stations[number].insists;
        let target = self.focus.or(insists.map(|(place, _)| place)).unwrap_or(anywhere);
        if self.shunned == Some(target) {
            return;
        }
        self.stations[number].insists = insists.or(self.able[target].then_some((target, now_ms)));
        self.attempts += 1;
        let nonce = self.rng.random();
        let gives_up_ms = now_ms + self.rng.random_range(GIVES_UP_MS);
        let station = &mut self.stations[number];
        station.target = target;
        station.gives_up_ms = gives_up_ms;
        station.begins_ms = now_ms;
        let to = SocketAddr::from((self.places[target].address, LAP_PORT));
        let socket = &station.socket;
        station
            .device
            .begin(nonce, now_ms, |message| drop(socket.send_to(message, to)));
    }

    /// Takes what has come until now, whatever may come later.
    pub fn catch_up(&mut self) {
        let now_ms = self.now_ms();
        (0..self.stations.len()).for_each(|number| self.hear(number, now_ms));
    }

    /// Nobody is in the middle of anything there.
    pub fn is_quiet_at(&self, place: usize) -> bool {
        let stations = self.stations.iter();
        !stations
            .into_iter()
            .any(|station| !station.device.is_idle && station.target == place)
    }

    /// An eavesdropper sends some of what devices have sent again, everywhere.
    pub fn replay(&mut self) {
        for station in self.stations.iter().filter(|station| station.is_here) {
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

    /// Who of those that may has not authenticated at one of these places.
    pub fn missing(&self, places: &[usize]) -> Vec<(DeviceId, usize)> {
        let here = self.stations.iter().enumerate();
        here.filter(|(_, station)| station.is_here && !station.is_out)
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
