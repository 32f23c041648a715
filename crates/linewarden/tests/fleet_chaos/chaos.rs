//! Faults in the fleet, and the checks after each fault.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use linewarden_protocol::ids::DeviceId;
use linewarden_registry::NewEvent;
use rand::RngExt as _;

use crate::events;
use crate::field::{Field, Place};
use crate::ledger::{GatewayProcess, Leases, Range, compare_records};
use crate::network::{Network, in_field};
use crate::site::{GATEWAYS, SPARE, Site, number_of};
use crate::support::TEST_TIMEOUT;

/// Number of devices; some of them start only during a fault.
const DEVICES: u8 = 40;
/// Number of devices that are active from the start.
const FIRST: u8 = 16;

/// A fault.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// `kill -9` of a gateway.
    Gateway(usize),
    /// `kill -9` of a controller.
    Controller(usize),
    /// `kill -9` of the database.
    Database,
    /// `kill -9` of the event server.
    Events,
    /// Each gateway loses one controller.
    ControllersPartitioned,
    /// A controller loses the database, and continues to respond.
    ControllerWithoutDatabase(usize),
    /// A gateway loses all controllers for longer than its offline limit; a device is revoked in that time.
    GatewayWithoutControllers(usize),
    /// A gateway loses all controllers, and another process replaces it; then both run.
    SecondProcess(usize),
}

impl Fault {
    /// A list with each fault once.
    pub fn all() -> Vec<Self> {
        let mut all = vec![
            Self::Database,
            Self::Events,
            Self::ControllersPartitioned,
            Self::ControllerWithoutDatabase(0),
            Self::GatewayWithoutControllers(2),
            Self::SecondProcess(1),
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
            self.site.read_output();
            for at in 0..=GATEWAYS {
                eprintln!("place {at}: {}", self.site.status(at));
            }
            self.site.print_logs();
        }
    }
}

impl Chaos {
    /// Starts all processes and waits until the first devices have authenticated at every gateway.
    ///
    /// # Errors
    /// The missing requirement of this machine.
    pub fn new(seed: u64) -> Result<Self, String> {
        let network = Network::new(DEVICES).ok_or("no root, or no unshare and ip")?;
        let place = |at: usize| Place {
            address: in_field(network.gateways[at].host),
            process: GatewayProcess {
                gateway: number_of(at),
                number: 0,
            },
        };
        let places = (0..=SPARE).map(place).collect();
        let field = Field::new(&network.field, DEVICES, places, seed);
        let site = Site::new(network).map_err(|missing_requirement| missing_requirement.to_string())?;
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
            .enroll_chunk(records, linewarden_registry::OnConflict::Refuse);
        chaos.site.runtime.block_on(enrolled).unwrap();
        (0..2).for_each(|index| chaos.site.start_controller(index));
        (0..GATEWAYS).for_each(|number| chaos.start_gateway(number, number));
        (0..FIRST).for_each(|_| chaos.field.add_station());
        chaos.wait_for_all_at(&[0, 1, 2]);
        Ok(chaos)
    }

    fn start_gateway(&mut self, gateway: usize, at: usize) {
        self.field.receive_pending();
        self.field.places[at].process = self.site.start_gateway(gateway, at);
        self.field.is_available[at] = true;
    }

    fn kill_gateway(&mut self, at: usize) {
        self.field.is_available[at] = false;
        self.site.kill_gateway(at);
        // Until the next process reports its start, all messages belong to this process.
        self.field.receive_pending();
    }

    /// Runs the devices until the condition holds.
    fn run_until(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(
                start.elapsed() < TEST_TIMEOUT,
                "not within {TEST_TIMEOUT:?}: {what}; missing: {:?}",
                self.field.missing(&[0, 1, 2])
            );
            self.field.poll();
            self.site.read_output();
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    /// Runs the devices for a random time of this range, ms.
    fn run_for(&mut self, ms: std::ops::Range<u64>) {
        let length = Duration::from_millis(self.field.rng.random_range(ms));
        let start = Instant::now();
        self.run_until("a while", |_| start.elapsed() >= length);
    }

    /// Waits until all permitted devices have authenticated at each of these places.
    fn wait_for_all_at(&mut self, places: &[usize]) {
        self.field.granted.clear();
        let start = Instant::now();
        self.run_until("all devices authenticate at every available gateway", |chaos| {
            chaos.field.missing(places).is_empty()
        });
        self.longest = self.longest.max(start.elapsed());
    }

    /// Activates two new devices during a failure, and waits until all permitted devices have authenticated at each of these
    /// places.
    fn wait_for_new_and_all_at(&mut self, places: &[usize]) {
        (0..2).for_each(|_| self.field.add_station());
        self.wait_for_all_at(places);
    }

    /// Injects a fault and repairs it; checks the registry before and after.
    pub fn inject(&mut self, fault: Fault) {
        println!("{fault:?}, {} sessions so far", self.sessions());
        let start = Instant::now();
        self.run_for(100..600);
        match fault {
            Fault::Gateway(gateway) => self.without_gateway(gateway),
            Fault::Controller(index) => self.without_controller(index),
            Fault::Database => self.without_database(),
            Fault::Events => self.without_events(),
            Fault::ControllersPartitioned => self.partition_controllers(),
            Fault::ControllerWithoutDatabase(index) => self.controller_without_database(index),
            Fault::GatewayWithoutControllers(gateway) => self.gateway_without_controllers(gateway),
            Fault::SecondProcess(gateway) => self.second_process(gateway),
        }
        self.publish_event();
        self.field.replay();
        self.wait_for_all_at(&[0, 1, 2]);
        self.check_leases();
        println!("{fault:?} took {:?}", start.elapsed());
    }

    fn sessions(&self) -> usize {
        self.field.ledger.rows() + self.field.ledger.sessions()
    }

    /// Checks the leases against the accepted rows.
    fn check_leases(&mut self) -> Leases {
        self.field.receive_pending();
        let leases = Leases::read(&self.site.postgres);
        self.field.ledger.compare(&leases);
        leases
    }

    fn other_gateways(gateway: usize) -> Vec<usize> {
        (0..GATEWAYS).filter(|other| *other != gateway).collect()
    }

    fn without_gateway(&mut self, gateway: usize) {
        self.kill_gateway(gateway);
        self.wait_for_new_and_all_at(&Self::other_gateways(gateway));
        self.start_gateway(gateway, gateway);
        self.field.replay();
        // The next kill comes during the recovery after the restart.
        self.run_for(0..400);
        self.kill_gateway(gateway);
        self.start_gateway(gateway, gateway);
    }

    fn without_controller(&mut self, index: usize) {
        self.site.kill_controller(index);
        self.wait_for_new_and_all_at(&[0, 1, 2]);
        self.site.start_controller(index);
    }

    /// The database ends; each gateway continues with the rows that it has leased.
    fn without_database(&mut self) {
        self.field.is_available.fill(false);
        self.site.postgres.kill().unwrap();
        self.field.receive_pending();
        self.field.granted.clear();
        self.run_until("every gateway accepts a device", |chaos| {
            (0..GATEWAYS).all(|at| chaos.field.granted.keys().any(|(_, place)| *place == at))
        });
        self.run_for(500..2_000);
        let inside = self.site.network.servers.namespace.inside();
        inside.run(|| self.site.postgres.restart().unwrap()).unwrap();
        self.field.is_available[..GATEWAYS].fill(true);
    }

    fn without_events(&mut self) {
        self.site.nats.kill().unwrap();
        self.wait_for_new_and_all_at(&[0, 1, 2]);
        self.publish_event();
        let inside = self.site.network.servers.namespace.inside();
        inside.run(|| self.site.nats.restart().unwrap()).unwrap();
    }

    /// Causes an event that must be published.
    fn publish_event(&mut self) {
        let event = NewEvent {
            kind: "drill".to_owned(),
            ..NewEvent::default()
        };
        let result = self.site.registry.record_events(std::slice::from_ref(&event), 7);
        self.site.runtime.block_on(result).unwrap();
    }

    /// Each gateway loses one of the controllers at the same time, without a connection error.
    fn partition_controllers(&mut self) {
        let first = self.field.rng.random_range(0..2);
        let pairs = || (0..GATEWAYS).map(move |gateway| (gateway, (gateway + first) % 2));
        for (gateway, index) in pairs() {
            let network = &self.site.network;
            network.disconnect(&network.gateways[gateway], &network.controllers[index]);
        }
        self.wait_for_new_and_all_at(&[0, 1, 2]);
        for (gateway, index) in pairs() {
            let network = &self.site.network;
            network.connect(&network.gateways[gateway], &network.controllers[index]);
        }
    }

    fn controller_without_database(&mut self, index: usize) {
        let network = &self.site.network;
        network.disconnect(&network.controllers[index], &network.servers);
        self.wait_for_new_and_all_at(&[0, 1, 2]);
        let network = &self.site.network;
        network.connect(&network.controllers[index], &network.servers);
    }

    /// Waits until no handshake is in progress at the gateway, and the gateway has no pending request; returns the leases.
    fn quiesce(&mut self, at: usize) -> Leases {
        self.field.excluded_place = Some(at);
        self.run_until("no handshake is in progress", |chaos| chaos.field.is_idle_at(at));
        let (mut previous_ranges, mut calm_reports) = (None, 0);
        loop {
            let reports = self.site.status_reports(at);
            self.site.request_status(at);
            self.run_until("a status report of the gateway", |chaos| {
                chaos.site.status_reports(at) > reports
            });
            let leases = self.check_leases();
            let leased_ranges = leases.at(number_of(at));
            let is_calm = self.site.status(at)["waiting_for_rows"] == 0;
            calm_reports = if is_calm && previous_ranges.as_ref() == Some(&leased_ranges) {
                calm_reports + 1
            } else {
                0
            };
            previous_ranges = Some(leased_ranges);
            // A report may have been in transit before the request.
            if calm_reports >= 3 {
                return leases;
            }
        }
    }

    /// Without controllers a gateway continues with its rows until its offline limit is reached; then it sends no replies. Before it
    /// replies again, it knows the revoked devices.
    fn gateway_without_controllers(&mut self, gateway: usize) {
        let (number, process) = (number_of(gateway), self.field.places[gateway].process);
        let leases = self.quiesce(gateway);
        self.site
            .network
            .set_link(&self.site.network.gateways[gateway], false);
        self.field.is_available[gateway] = false;
        self.field.excluded_place = None;
        let leased_ranges = leases.at(number);
        let highest = |device: &DeviceId| Some((*device, self.field.ledger.highest(*device, process)?));
        let before: HashMap<DeviceId, u32> = leased_ranges.keys().filter_map(highest).collect();
        let revoked_device = self.revoke_device(&leases, number);
        for other in Self::other_gateways(gateway) {
            self.run_until("the revocation is known", |chaos| {
                chaos.site.status(other)["revoked"] == 1
            });
            self.field.receive_pending();
            self.field.ledger.forbid(revoked_device, Some(number_of(other)));
        }
        self.field.only_place = Some(gateway);
        let count_below = |chaos: &Self, goal: &dyn Fn(&Range, Option<u32>) -> u32| {
            let highest = |device| chaos.field.ledger.highest(device, process);
            let leased_ranges = leased_ranges.iter().filter(|(_, range)| range.first < range.end);
            let is_short = |(device, range): &(&DeviceId, &Range)| {
                let reached = highest(**device).map_or(0, |highest| highest + 1);
                reached < goal(range, before.get(*device).copied())
            };
            leased_ranges.filter(is_short).count()
        };
        // The mark was moved when at most two rows were left below it.
        let some_rows =
            |range: &Range, before: Option<u32>| range.mark.min(before.map_or(1, |before| before + 3));
        self.run_until("the disconnected gateway accepts rows", |chaos| {
            count_below(chaos, &some_rows) == 0
        });
        self.field.only_place = None;
        self.run_until("the offline limit is reached", |chaos| {
            chaos.site.status(gateway)["offline_limit_reached"] == true
        });
        let devices_below_mark = count_below(self, &|range, _| range.mark);
        println!(
            "disconnected gateway with {} devices: {devices_below_mark} of them have unused rows below the mark",
            leased_ranges.len()
        );
        // From here on the gateway sends no replies.
        self.field.receive_pending();
        self.field.ledger.expect_silence(Some(number));
        let stopped = |chaos: &Self| {
            chaos.site.status(gateway)["counters"]["drop_stopped"]
                .as_u64()
                .unwrap_or(0)
        };
        let before = stopped(self);
        self.run_until("devices still send requests", |chaos| stopped(chaos) > before);
        self.wait_for_all_at(&Self::other_gateways(gateway));
        self.field.receive_pending();
        self.field.ledger.expect_silence(None);
        self.field.ledger.forbid(revoked_device, None);
        self.site
            .network
            .set_link(&self.site.network.gateways[gateway], true);
        self.run_until("the gateway is back", |chaos| {
            chaos.site.status(gateway)["offline_limit_reached"] == false
        });
        self.field.is_available[gateway] = true;
    }

    /// Revokes a device that has rows at the gateway with this number.
    fn revoke_device(&mut self, leases: &Leases, number: u32) -> DeviceId {
        let leased_ranges = leases.at(number);
        let candidates = self.field.stations.iter_mut();
        let station = candidates
            .filter(|station| station.is_active && !station.is_denied)
            .find(|station| {
                leased_ranges
                    .get(&station.device.id)
                    .is_some_and(|range| range.first < range.end)
            })
            .unwrap();
        let revoked_device = station.device.id;
        station.is_denied = true;
        let registry = self.site.registry.clone();
        let revoked = registry.revoke(revoked_device, "lost", 1);
        self.site.runtime.block_on(revoked).unwrap();
        revoked_device
    }

    /// Two processes run as one gateway: the older one continues with its rows, the newer one starts after them.
    fn second_process(&mut self, gateway: usize) {
        self.site
            .network
            .set_link(&self.site.network.gateways[gateway], false);
        self.field.is_available[gateway] = false;
        self.start_gateway(gateway, SPARE);
        let mut places = Self::other_gateways(gateway);
        places.push(SPARE);
        self.wait_for_new_and_all_at(&places);
        self.field.replay();
        self.site
            .network
            .set_link(&self.site.network.gateways[gateway], true);
        self.run_until("the older process learns of its replacement", |chaos| {
            chaos.site.status(gateway)["replaced"] == true || chaos.site.has_ended(gateway)
        });
        assert_eq!(self.site.ended(gateway), 1, "the gateway ends with a failure");
        self.wait_for_all_at(&places);
        self.kill_gateway(SPARE);
        self.start_gateway(gateway, gateway);
    }

    /// Checks that all records are consistent.
    pub fn finish(mut self) {
        self.wait_for_all_at(&[0, 1, 2]);
        self.check_leases();
        for at in 0..GATEWAYS {
            self.kill_gateway(at);
        }
        self.check_leases();
        let problems = self.site.runtime.block_on(self.site.registry.check()).unwrap();
        assert!(problems.is_empty(), "{problems:?}");
        self.publish_event();
        let entries = self.site.runtime.block_on(events::read_all(&self.site.registry));
        let inside = self.site.network.servers.namespace.inside();
        let events = events::compare(inside, self.site.nats.address(), &entries);
        let recorded = compare_records(&self.site.records());
        let Field {
            attempts,
            timed_out,
            longest_wait_ms,
            ..
        } = self.field;
        let (rows, sessions) = (self.field.ledger.rows(), self.field.ledger.sessions());
        println!(
            "{attempts} handshakes begun, {timed_out} timed out; {rows} rows accepted, {recorded} of them recorded as new sessions; \
             {sessions} sessions in key mode; {events} events published; {:?} at most until all devices had authenticated at all gateways; \
             {longest_wait_ms:?} ms at most until an available gateway accepted a device: known devices, new devices",
            self.longest
        );
        assert!(recorded > usize::from(FIRST), "too few sessions are recorded");
    }
}
