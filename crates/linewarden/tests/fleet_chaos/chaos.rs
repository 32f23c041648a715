//! What is done to the fleet, and what must come of it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use linewarden_protocol::ids::DeviceId;
use linewarden_registry::Note;
use rand::RngExt as _;

use crate::events;
use crate::field::{Field, Place};
use crate::ledger::{Leases, Life, Range, compare_records};
use crate::network::{Network, in_field};
use crate::site::{GATEWAYS, SPARE, Site, number_of};
use crate::support::PATIENCE;

/// Devices, of which some come only while something is broken.
const DEVICES: u8 = 40;
/// Those that are there from the beginning.
const FIRST: u8 = 16;

/// Something that goes wrong.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// `kill -9` of a gateway.
    Gateway(usize),
    /// Of a controller.
    Controller(usize),
    /// Of the database.
    Database,
    /// Of the server of events.
    Events,
    /// Each gateway loses one controller.
    Parted,
    /// A controller loses the database, and answers on.
    Headless(usize),
    /// A gateway loses all controllers for longer than its lease; meanwhile a device is revoked.
    CutOff(usize),
    /// A gateway loses all controllers, and another process takes its place; then both are there.
    Twin(usize),
}

impl Fault {
    /// Everything once.
    pub fn all() -> Vec<Self> {
        let mut all = vec![
            Self::Database,
            Self::Events,
            Self::Parted,
            Self::Headless(0),
            Self::CutOff(2),
            Self::Twin(1),
        ];
        all.extend((0..GATEWAYS).map(Self::Gateway));
        all.extend((0..2).map(Self::Controller));
        all
    }
}

pub struct Chaos {
    seed: u64,
    pub site: Site,
    pub field: Field,
    longest: Duration,
}

impl Drop for Chaos {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("LINEWARDEN_CHAOS_SEED={} repeats the schedule", self.seed);
            self.site.listen();
            for at in 0..=GATEWAYS {
                eprintln!("place {at}: {}", self.site.status(at));
            }
            self.site.print_logs();
        }
    }
}

impl Chaos {
    /// Everything is started, and the first devices are at every gateway.
    ///
    /// # Errors
    /// What this machine lacks.
    pub fn new(seed: u64) -> Result<Self, String> {
        let network = Network::new(DEVICES).ok_or("no root, or no unshare and ip")?;
        let place = |at: usize| Place {
            address: in_field(network.gateways[at].host),
            life: Life {
                gateway: number_of(at),
                number: 0,
            },
        };
        let places = (0..=SPARE).map(place).collect();
        let field = Field::new(&network.field, DEVICES, places, seed);
        let site = Site::new(network).map_err(|missing| missing.to_string())?;
        let mut chaos = Self {
            seed,
            site,
            field,
            longest: Duration::ZERO,
        };
        let records: Vec<_> = chaos
            .field
            .stations
            .iter()
            .map(|station| station.device.record())
            .collect();
        let enrolled = chaos
            .site
            .registry
            .enrol_chunk(records, linewarden_registry::OnConflict::Refuse);
        chaos.site.runtime.block_on(enrolled).unwrap();
        (0..2).for_each(|which| chaos.site.start_controller(which));
        (0..GATEWAYS).for_each(|of| chaos.start_gateway(of, of));
        (0..FIRST).for_each(|_| chaos.field.welcome());
        chaos.everybody_at(&[0, 1, 2]);
        Ok(chaos)
    }

    fn start_gateway(&mut self, of: usize, at: usize) {
        self.field.catch_up();
        self.field.places[at].life = self.site.start_gateway(of, at);
        self.field.able[at] = true;
    }

    fn kill_gateway(&mut self, at: usize) {
        self.field.able[at] = false;
        self.site.kill_gateway(at);
        // Until its next life is told of, all that comes is of this one.
        self.field.catch_up();
    }

    /// Devices go on until it is so.
    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            assert!(
                began.elapsed() < PATIENCE,
                "not within {PATIENCE:?}: {what}; missing: {:?}",
                self.field.missing(&[0, 1, 2])
            );
            self.field.turn();
            self.site.listen();
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    /// Devices go on for so long.
    fn a_while(&mut self, ms: std::ops::Range<u64>) {
        let length = Duration::from_millis(self.field.rng.random_range(ms));
        let began = Instant::now();
        self.until("a while", |_| began.elapsed() >= length);
    }

    /// Whoever may authenticates at each of these from now on.
    fn everybody_at(&mut self, places: &[usize]) {
        self.field.granted.clear();
        let began = Instant::now();
        self.until("everybody authenticates at every gateway that can", |chaos| {
            chaos.field.missing(places).is_empty()
        });
        self.longest = self.longest.max(began.elapsed());
    }

    /// Two devices that nobody has seen yet come while something is broken.
    fn newcomers_and_everybody_at(&mut self, places: &[usize]) {
        (0..2).for_each(|_| self.field.welcome());
        self.everybody_at(places);
    }

    /// Something goes wrong and is mended; the registry is looked at before and after.
    pub fn suffer(&mut self, fault: Fault) {
        println!("{fault:?}, {} sessions so far", self.sessions());
        let began = Instant::now();
        self.a_while(100..600);
        match fault {
            Fault::Gateway(of) => self.without_gateway(of),
            Fault::Controller(which) => self.without_controller(which),
            Fault::Database => self.without_database(),
            Fault::Events => self.without_events(),
            Fault::Parted => self.parted(),
            Fault::Headless(which) => self.headless(which),
            Fault::CutOff(of) => self.cut_off(of),
            Fault::Twin(of) => self.twin(of),
        }
        self.drill();
        self.field.replay();
        self.everybody_at(&[0, 1, 2]);
        self.look();
        println!("{fault:?} took {:?}", began.elapsed());
    }

    fn sessions(&self) -> usize {
        self.field.ledger.rows() + self.field.ledger.sessions()
    }

    /// What is leased fits what was accepted.
    fn look(&mut self) -> Leases {
        self.field.catch_up();
        let leases = Leases::read(&self.site.postgres);
        self.field.ledger.compare(&leases);
        leases
    }

    fn others(of: usize) -> Vec<usize> {
        (0..GATEWAYS).filter(|other| *other != of).collect()
    }

    fn without_gateway(&mut self, of: usize) {
        self.kill_gateway(of);
        self.newcomers_and_everybody_at(&Self::others(of));
        self.start_gateway(of, of);
        self.field.replay();
        // In the middle of what it takes up again.
        self.a_while(0..400);
        self.kill_gateway(of);
        self.start_gateway(of, of);
    }

    fn without_controller(&mut self, which: usize) {
        self.site.kill_controller(which);
        self.newcomers_and_everybody_at(&[0, 1, 2]);
        self.site.start_controller(which);
    }

    /// Each gateway goes on with what it may spend.
    fn without_database(&mut self) {
        self.field.able.fill(false);
        self.site.postgres.kill().unwrap();
        self.field.catch_up();
        self.field.granted.clear();
        self.until("every gateway lets somebody in", |chaos| {
            (0..GATEWAYS).all(|at| chaos.field.granted.keys().any(|(_, place)| *place == at))
        });
        self.a_while(500..2_000);
        let inside = self.site.network.servers.namespace.inside();
        inside.run(|| self.site.postgres.resume().unwrap()).unwrap();
        self.field.able[..GATEWAYS].fill(true);
    }

    fn without_events(&mut self) {
        self.site.nats.kill().unwrap();
        self.newcomers_and_everybody_at(&[0, 1, 2]);
        self.drill();
        let inside = self.site.network.servers.namespace.inside();
        inside.run(|| self.site.nats.resume().unwrap()).unwrap();
    }

    /// Something happens that is told.
    fn drill(&mut self) {
        let note = Note {
            kind: "drill".to_owned(),
            ..Note::default()
        };
        let noted = self.site.registry.note(std::slice::from_ref(&note), 7);
        self.site.runtime.block_on(noted).unwrap();
    }

    /// Each gateway loses another controller, at once; nobody is told.
    fn parted(&mut self) {
        let first = self.field.rng.random_range(0..2);
        let pairs = || (0..GATEWAYS).map(move |of| (of, (of + first) % 2));
        for (of, which) in pairs() {
            let network = &self.site.network;
            network.part(&network.gateways[of], &network.controllers[which]);
        }
        self.newcomers_and_everybody_at(&[0, 1, 2]);
        for (of, which) in pairs() {
            let network = &self.site.network;
            network.join(&network.gateways[of], &network.controllers[which]);
        }
    }

    fn headless(&mut self, which: usize) {
        let network = &self.site.network;
        network.part(&network.controllers[which], &network.servers);
        self.newcomers_and_everybody_at(&[0, 1, 2]);
        let network = &self.site.network;
        network.join(&network.controllers[which], &network.servers);
    }

    /// Nobody is in the middle of anything there, and the gateway waits for nothing.
    fn quiet(&mut self, at: usize) -> Leases {
        self.field.shunned = Some(at);
        self.until("nobody is in the middle of anything", |chaos| {
            chaos.field.is_quiet_at(at)
        });
        let (mut before, mut calm) = (None, 0);
        loop {
            let said = self.site.said(at);
            self.site.ask(at);
            self.until("a word of the gateway", |chaos| chaos.site.said(at) > said);
            let leases = self.look();
            let held = leases.at(number_of(at));
            let is_calm = self.site.status(at)["rows_waited_for"] == 0;
            calm = if is_calm && before.as_ref() == Some(&held) {
                calm + 1
            } else {
                0
            };
            before = Some(held);
            // A word may have been on its way before it was asked for.
            if calm >= 3 {
                return leases;
            }
        }
    }

    /// Without controllers a gateway goes on with what it may spend until its lease ends; then it is silent, and knows
    /// before it speaks again who was revoked.
    fn cut_off(&mut self, of: usize) {
        let (number, life) = (number_of(of), self.field.places[of].life);
        let leases = self.quiet(of);
        self.site.network.plug(&self.site.network.gateways[of], false);
        self.field.able[of] = false;
        self.field.shunned = None;
        let held = leases.at(number);
        let highest = |device: &DeviceId| Some((*device, self.field.ledger.highest(*device, life)?));
        let before: HashMap<DeviceId, u32> = held.keys().filter_map(highest).collect();
        let lost = self.revoke_one(&leases, number);
        for other in Self::others(of) {
            self.until("the revocation is known", |chaos| {
                chaos.site.status(other)["revoked"] == 1
            });
            self.field.catch_up();
            self.field.ledger.forbid(lost, Some(number_of(other)));
        }
        self.field.focus = Some(of);
        let short = |chaos: &Self, goal: &dyn Fn(&Range, Option<u32>) -> u32| {
            let highest = |device| chaos.field.ledger.highest(device, life);
            let held = held.iter().filter(|(_, range)| range.first < range.end);
            let is_short = |(device, range): &(&DeviceId, &Range)| {
                let reached = highest(**device).map_or(0, |highest| highest + 1);
                reached < goal(range, before.get(*device).copied())
            };
            held.filter(is_short).count()
        };
        // Its mark was moved when it might spend no more than two.
        let some = |range: &Range, before: Option<u32>| range.mark.min(before.map_or(1, |before| before + 3));
        self.until("rows are granted by who is cut off", |chaos| {
            short(chaos, &some) == 0
        });
        self.field.focus = None;
        self.until("the lease of the link ends", |chaos| {
            chaos.site.status(of)["lapsed"] == true
        });
        let below = short(self, &|range, _| range.mark);
        println!(
            "cut off with {} devices: {below} have not spent all up to their marks",
            held.len()
        );
        // From here on nothing is answered any more.
        self.field.catch_up();
        self.field.ledger.silence(Some(number));
        let stopped = |chaos: &Self| {
            chaos.site.status(of)["counters"]["drop_stopped"]
                .as_u64()
                .unwrap_or(0)
        };
        let before = stopped(self);
        self.until("it is still asked", |chaos| stopped(chaos) > before);
        self.everybody_at(&Self::others(of));
        self.field.catch_up();
        self.field.ledger.silence(None);
        self.field.ledger.forbid(lost, None);
        self.site.network.plug(&self.site.network.gateways[of], true);
        self.until("the gateway is back", |chaos| {
            chaos.site.status(of)["lapsed"] == false
        });
        self.field.able[of] = true;
    }

    /// Revokes a device that has rows at that gateway.
    fn revoke_one(&mut self, leases: &Leases, number: u32) -> DeviceId {
        let held = leases.at(number);
        let candidates = self.field.stations.iter_mut();
        let station = candidates
            .filter(|station| station.is_here && !station.is_out)
            .find(|station| {
                held.get(&station.device.id)
                    .is_some_and(|range| range.first < range.end)
            })
            .unwrap();
        let lost = station.device.id;
        station.is_out = true;
        let registry = self.site.registry.clone();
        let revoked = registry.revoke(lost, "lost", 1);
        self.site.runtime.block_on(revoked).unwrap();
        lost
    }

    /// Two processes are one gateway: the older one goes on with what it may spend, the newer one begins behind that.
    fn twin(&mut self, of: usize) {
        self.site.network.plug(&self.site.network.gateways[of], false);
        self.field.able[of] = false;
        self.start_gateway(of, SPARE);
        let mut places = Self::others(of);
        places.push(SPARE);
        self.newcomers_and_everybody_at(&places);
        self.field.replay();
        self.site.network.plug(&self.site.network.gateways[of], true);
        self.until("the older one hears that it was replaced", |chaos| {
            chaos.site.status(of)["replaced"] == true || chaos.site.has_ended(of)
        });
        assert_eq!(self.site.ended(of), 1, "it ends, and says why");
        self.everybody_at(&places);
        self.kill_gateway(SPARE);
        self.start_gateway(of, of);
    }

    /// What everything has written down fits together.
    pub fn finish(mut self) {
        self.everybody_at(&[0, 1, 2]);
        self.look();
        for at in 0..GATEWAYS {
            self.kill_gateway(at);
        }
        self.look();
        let problems = self.site.runtime.block_on(self.site.registry.check()).unwrap();
        assert!(problems.is_empty(), "{problems:?}");
        self.drill();
        let journal = self.site.runtime.block_on(events::journal(&self.site.registry));
        let inside = self.site.network.servers.namespace.inside();
        let events = events::compare(inside, self.site.nats.address(), &journal);
        let recorded = compare_records(&self.site.records());
        let Field {
            attempts,
            given_up,
            asked_ms,
            ..
        } = self.field;
        let (rows, sessions) = (self.field.ledger.rows(), self.field.ledger.sessions());
        println!(
            "{attempts} handshakes begun, {given_up} given up; {rows} rows accepted, {recorded} of them recorded as new sessions; \
             {sessions} sessions in key mode; {events} events published; {:?} at most until everybody had authenticated everywhere; \
             asked a gateway that was able to let them in for {asked_ms:?} ms at most: who had been there, who had not",
            self.longest
        );
        assert!(recorded > usize::from(FIRST), "hardly anything is recorded");
    }
}
