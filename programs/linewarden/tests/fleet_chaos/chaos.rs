//! Faults in the fleet, and the checks after each fault.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use linewarden_protocol::ids::DeviceId;
use linewarden_registry::NewEvent;
use rand::RngExt as _;

use crate::devices::{DeviceFleet, Place};
use crate::events;
use crate::ledger::{GatewayProcess, Leases, Range, check_audit_records};
use crate::network::{Network, device_network_address};
use crate::site::{GATEWAYS, SPARE_PLACE, Site, gateway_id};
use crate::support::TEST_TIMEOUT;

/// Number of devices; some of them start only during a fault.
const DEVICES: u8 = 40;
/// Number of devices that are active from the start.
const INITIAL_DEVICES: u8 = 16;

/// A fault.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// `kill -9` of a gateway.
    Gateway(usize),
    /// `kill -9` of a controller.
    Controller(usize),
    /// `kill -9` of the database.
    Database,
    /// `kill -9` of nats-server, to which the controllers publish events.
    Events,
    /// Each gateway is disconnected from one controller.
    ControllersPartitioned,
    /// A controller is disconnected from the database, and continues to respond.
    ControllerWithoutDatabase(usize),
    /// A gateway is disconnected from all controllers for longer than its offline limit; a device is revoked in that time.
    GatewayWithoutControllers(usize),
    /// A gateway is disconnected from all controllers, and another process replaces it; then both processes run.
    SecondProcess(usize),
}

impl Fault {
    /// A list with each fault once.
    pub fn all() -> Vec<Self> {
        let mut faults = vec![
            Self::Database,
            Self::Events,
            Self::ControllersPartitioned,
            Self::ControllerWithoutDatabase(0),
            Self::GatewayWithoutControllers(2),
            Self::SecondProcess(1),
        ];
        faults.extend((0..GATEWAYS).map(Self::Gateway));
        faults.extend((0..2).map(Self::Controller));
        faults
    }
}

pub struct Chaos {
    seed: u64,
    pub site: Site,
    pub fleet: DeviceFleet,
    /// Longest wait until all permitted devices had authenticated at all available gateways.
    longest_wait: Duration,
}

impl Drop for Chaos {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("LINEWARDEN_CHAOS_SEED={} repeats the schedule", self.seed);
            self.site.read_output();
            for place in 0..=GATEWAYS {
                eprintln!("place {place}: {}", self.site.status(place));
            }
            self.site.print_logs();
        }
    }
}

impl Chaos {
    /// Starts all processes and waits until the first devices have authenticated at every gateway.
    ///
    /// # Errors
    /// Returns the requirement that this machine does not fulfill.
    pub fn new(seed: u64) -> Result<Self, String> {
        let network = Network::new(DEVICES).ok_or("no root, or no unshare and ip")?;
        let new_place = |place: usize| Place {
            address: device_network_address(network.gateways[place].host),
            process: GatewayProcess {
                gateway: gateway_id(place),
                number: 0,
            },
        };
        let places = (0..=SPARE_PLACE).map(new_place).collect();
        let fleet = DeviceFleet::new(&network.device_network, DEVICES, places, seed);
        let site = Site::new(network).map_err(|missing_requirement| missing_requirement.to_string())?;
        let mut chaos = Self {
            seed,
            site,
            fleet,
            longest_wait: Duration::ZERO,
        };
        let records: Vec<_> = chaos
            .fleet
            .stations
            .iter()
            .map(|station| station.device.record())
            .collect();
        let enrollment = chaos
            .site
            .registry
            .enroll_chunk(records, linewarden_registry::OnConflict::Refuse);
        chaos.site.runtime.block_on(enrollment).unwrap();
        (0..2).for_each(|index| chaos.site.start_controller(index));
        (0..GATEWAYS).for_each(|number| chaos.start_gateway(number, number));
        (0..INITIAL_DEVICES).for_each(|_| chaos.fleet.add_station());
        chaos.wait_for_all_at(&[0, 1, 2]);
        Ok(chaos)
    }

    fn start_gateway(&mut self, gateway: usize, place: usize) {
        self.fleet.receive_pending();
        self.fleet.places[place].process = self.site.start_gateway(gateway, place);
        self.fleet.is_available[place] = true;
    }

    fn kill_gateway(&mut self, place: usize) {
        self.fleet.is_available[place] = false;
        self.site.kill_gateway(place);
        // All messages that have arrived until now are from the killed process.
        self.fleet.receive_pending();
    }

    /// Runs the devices until the condition holds.
    fn run_until(&mut self, condition_name: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(
                start.elapsed() < TEST_TIMEOUT,
                "not within {TEST_TIMEOUT:?}: {condition_name}; missing: {:?}",
                self.fleet.missing(&[0, 1, 2])
            );
            self.fleet.poll();
            self.site.read_output();
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    /// Runs the devices for a random time of this range, ms.
    fn run_for(&mut self, ms: std::ops::Range<u64>) {
        let length = Duration::from_millis(self.fleet.rng.random_range(ms));
        let start = Instant::now();
        self.run_until("the end of the time", |_| start.elapsed() >= length);
    }

    /// Waits until all permitted devices have authenticated at each of these places.
    fn wait_for_all_at(&mut self, places: &[usize]) {
        self.fleet.accepted_handshakes.clear();
        let start = Instant::now();
        self.run_until("all devices authenticate at every available gateway", |chaos| {
            chaos.fleet.missing(places).is_empty()
        });
        self.longest_wait = self.longest_wait.max(start.elapsed());
    }

    /// Activates two new devices during a failure, and waits until all permitted devices have authenticated at each of these
    /// places.
    fn wait_for_new_and_all_at(&mut self, places: &[usize]) {
        (0..2).for_each(|_| self.fleet.add_station());
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
        self.fleet.replay();
        self.wait_for_all_at(&[0, 1, 2]);
        self.check_leases();
        println!("{fault:?} took {:?}", start.elapsed());
    }

    fn sessions(&self) -> usize {
        self.fleet.ledger.rows() + self.fleet.ledger.sessions()
    }

    /// Checks the leases against the accepted rows.
    fn check_leases(&mut self) -> Leases {
        self.fleet.receive_pending();
        let leases = Leases::read(&self.site.postgres);
        self.fleet.ledger.compare(&leases);
        leases
    }

    fn other_gateways(gateway: usize) -> Vec<usize> {
        (0..GATEWAYS).filter(|other| *other != gateway).collect()
    }

    fn without_gateway(&mut self, gateway: usize) {
        self.kill_gateway(gateway);
        self.wait_for_new_and_all_at(&Self::other_gateways(gateway));
        self.start_gateway(gateway, gateway);
        self.fleet.replay();
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

    /// The database is killed; each gateway continues with the rows that it has leased.
    fn without_database(&mut self) {
        self.fleet.is_available.fill(false);
        self.site.postgres.kill().unwrap();
        self.fleet.receive_pending();
        self.fleet.accepted_handshakes.clear();
        self.run_until("every gateway accepts a device", |chaos| {
            (0..GATEWAYS).all(|place| {
                chaos
                    .fleet
                    .accepted_handshakes
                    .keys()
                    .any(|(_, accepting_place)| *accepting_place == place)
            })
        });
        self.run_for(500..2_000);
        let inside = self.site.network.servers.namespace.inside();
        inside.run(|| self.site.postgres.restart().unwrap()).unwrap();
        self.fleet.is_available[..GATEWAYS].fill(true);
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

    /// At the same time, each gateway is disconnected from one of the controllers, without a connection error.
    fn partition_controllers(&mut self) {
        let first = self.fleet.rng.random_range(0..2);
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
    fn quiesce(&mut self, place: usize) -> Leases {
        self.fleet.excluded_place = Some(place);
        self.run_until("no handshake is in progress", |chaos| {
            chaos.fleet.is_idle_at(place)
        });
        let (mut previous_ranges, mut calm_reports) = (None, 0);
        loop {
            let reports = self.site.status_reports(place);
            self.site.request_status(place);
            self.run_until("a status report of the gateway", |chaos| {
                chaos.site.status_reports(place) > reports
            });
            let leases = self.check_leases();
            let leased_ranges = leases.of_gateway(gateway_id(place));
            let is_calm = self.site.status(place)["waiting_for_rows"] == 0;
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

    /// Without controllers, a gateway continues with its rows until its offline limit is reached; then the gateway sends no
    /// replies. Before the gateway replies again, it knows the revoked devices.
    fn gateway_without_controllers(&mut self, gateway: usize) {
        let (number, process) = (gateway_id(gateway), self.fleet.places[gateway].process);
        let leases = self.quiesce(gateway);
        self.site
            .network
            .set_link(&self.site.network.gateways[gateway], false);
        self.fleet.is_available[gateway] = false;
        self.fleet.excluded_place = None;
        let leased_ranges = leases.of_gateway(number);
        let highest = |device: &DeviceId| Some((*device, self.fleet.ledger.highest_row(*device, process)?));
        let highest_before: HashMap<DeviceId, u32> = leased_ranges.keys().filter_map(highest).collect();
        let revoked_device = self.revoke_device(&leases, number);
        for other in Self::other_gateways(gateway) {
            self.run_until("the revocation is known", |chaos| {
                chaos.site.status(other)["revoked"] == 1
            });
            self.fleet.receive_pending();
            self.fleet.ledger.forbid(revoked_device, Some(gateway_id(other)));
        }
        self.fleet.only_place = Some(gateway);
        let count_below = |chaos: &Self, goal: &dyn Fn(&Range, Option<u32>) -> u32| {
            let highest = |device| chaos.fleet.ledger.highest_row(device, process);
            let leased_ranges = leased_ranges.iter().filter(|(_, range)| range.first < range.end);
            let is_short = |(device, range): &(&DeviceId, &Range)| {
                let reached = highest(**device).map_or(0, |highest| highest + 1);
                reached < goal(range, highest_before.get(*device).copied())
            };
            leased_ranges.filter(is_short).count()
        };
        // The gateway requests a higher mark when at most two unused rows below the mark remain.
        let some_rows =
            |range: &Range, highest: Option<u32>| range.mark.min(highest.map_or(1, |highest| highest + 3));
        self.run_until("the disconnected gateway accepts rows", |chaos| {
            count_below(chaos, &some_rows) == 0
        });
        self.fleet.only_place = None;
        self.run_until("the offline limit is reached", |chaos| {
            chaos.site.status(gateway)["offline_limit_reached"] == true
        });
        let devices_below_mark = count_below(self, &|range, _| range.mark);
        println!(
            "disconnected gateway with {} devices: {devices_below_mark} of them have unused rows below the mark",
            leased_ranges.len()
        );
        // From here on the gateway sends no replies.
        self.fleet.receive_pending();
        self.fleet.ledger.expect_silence(Some(number));
        let dropped_requests = |chaos: &Self| {
            chaos.site.status(gateway)["counters"]["drop_stopped"]
                .as_u64()
                .unwrap_or(0)
        };
        let dropped_before = dropped_requests(self);
        self.run_until("devices still send requests", |chaos| {
            dropped_requests(chaos) > dropped_before
        });
        self.wait_for_all_at(&Self::other_gateways(gateway));
        self.fleet.receive_pending();
        self.fleet.ledger.expect_silence(None);
        self.fleet.ledger.forbid(revoked_device, None);
        self.site
            .network
            .set_link(&self.site.network.gateways[gateway], true);
        self.run_until("the gateway replies again", |chaos| {
            chaos.site.status(gateway)["offline_limit_reached"] == false
        });
        self.fleet.is_available[gateway] = true;
    }

    /// Revokes a device that has rows at the gateway with this number.
    fn revoke_device(&mut self, leases: &Leases, number: u32) -> DeviceId {
        let leased_ranges = leases.of_gateway(number);
        let candidates = self.fleet.stations.iter_mut();
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
        let revocation = registry.revoke(revoked_device, "lost", 1);
        self.site.runtime.block_on(revocation).unwrap();
        revoked_device
    }

    /// Two processes run as one gateway: the older process continues with its rows, and the newer process uses later rows.
    fn second_process(&mut self, gateway: usize) {
        self.site
            .network
            .set_link(&self.site.network.gateways[gateway], false);
        self.fleet.is_available[gateway] = false;
        self.start_gateway(gateway, SPARE_PLACE);
        let mut places = Self::other_gateways(gateway);
        places.push(SPARE_PLACE);
        self.wait_for_new_and_all_at(&places);
        self.fleet.replay();
        self.site
            .network
            .set_link(&self.site.network.gateways[gateway], true);
        self.run_until("the older process learns of its replacement", |chaos| {
            chaos.site.status(gateway)["replaced"] == true || chaos.site.has_ended(gateway)
        });
        assert_eq!(
            self.site.wait_for_exit(gateway),
            1,
            "the gateway ends with a failure"
        );
        self.wait_for_all_at(&places);
        self.kill_gateway(SPARE_PLACE);
        self.start_gateway(gateway, gateway);
    }

    /// Checks that all records are consistent.
    pub fn finish(mut self) {
        self.wait_for_all_at(&[0, 1, 2]);
        self.check_leases();
        for place in 0..GATEWAYS {
            self.kill_gateway(place);
        }
        self.check_leases();
        let problems = self.site.runtime.block_on(self.site.registry.check()).unwrap();
        assert!(problems.is_empty(), "{problems:?}");
        self.publish_event();
        let entries = self.site.runtime.block_on(events::read_all(&self.site.registry));
        let inside = self.site.network.servers.namespace.inside();
        let events = events::assert_all_published(inside, self.site.nats.address(), &entries);
        let recorded_sessions = check_audit_records(&self.site.records());
        let DeviceFleet {
            attempts,
            timed_out,
            longest_wait_ms,
            ..
        } = self.fleet;
        let (rows, sessions) = (self.fleet.ledger.rows(), self.fleet.ledger.sessions());
        println!(
            "{attempts} handshakes begun, {timed_out} timed out; {rows} rows accepted, {recorded_sessions} of them recorded as new sessions; \
             {sessions} sessions in key mode; {events} events published; {:?} at most until all devices had authenticated at all gateways; \
             {longest_wait_ms:?} ms at most until an available gateway accepted a device: known devices, new devices",
            self.longest_wait
        );
        assert!(
            recorded_sessions > usize::from(INITIAL_DEVICES),
            "too few sessions are recorded"
        );
    }
}
