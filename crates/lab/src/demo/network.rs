//! The demonstration in the lab's network of namespaces.

mod provers;
mod steps;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::ATTEST_PORT;

use self::provers::LinkProvers;
use self::steps::{STEP_TIMEOUT, count_device_datagrams, drain_service_queue, ignore_progress, short_run};
use super::attack_suite::AttackSuite;
use super::attest::{self, AttestationScenario};
use super::fleets::{ECHO_PORT, Fleets, service};
use super::gateway::{self, DemoGateway};
use super::latency::{self, LatencyMeasurement};
use super::participants::Participants;
use super::registry_store::RegistryStore;
use super::report::{AttackOutcome, OUTCOMES_MAX, Quantiles, Report, RevocationReport, ServiceReport};
use super::{DataPlaneKind, DemoError, Event, InjectedFault, Options, RunControl, Stage, line_check};
use crate::address::{DEVICES_MAX, DeviceAddress};
use crate::attackers::{
    AttackerLink, CONTROLLED_DEVICES, CapturedHandshakes, ControlledDevice, FIRST_CONTROLLED_DEVICE,
    ForgedProofAttack, HandshakeCapture,
};
use crate::capability::{self, FOR_LOAD_GENERATOR};
use crate::fleet::{Exchange, Progress, Report as FleetReport, RunOptions, device_id};
use crate::iproute;
use crate::service::EchoService;
use crate::topology::{ForwardingMode, Lab, Topology};

/// Interval between two checks for attack outcomes.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn run(options: &Options, control: &mut RunControl<'_>) -> Result<Report, DemoError> {
    let has_bpf = capability::require(FOR_LOAD_GENERATOR).is_ok();
    control.begin_stage(Stage::Building)?;
    let lab = build(options, has_bpf)?;
    control.begin_stage(Stage::Enrolling)?;
    let mut participants = Participants::enroll(options, true, control)?;
    control.begin_stage(Stage::Registering)?;
    let records = std::mem::take(&mut participants.records);
    let enrolled = records.len() as u32;
    let store = RegistryStore::create(records, control)?;

    let workers = workers();
    let mut run = NetworkRun {
        options,
        lab: &lab,
        store: &store,
        enrolled,
        fleets: Fleets::new(&lab, options, &mut participants, workers)?,
        report: Report::new(options, workers),
        revoked: 0,
    };
    let demo_gateway = run.start_gateway(options.data_plane, control)?;
    run.run_scenario(&demo_gateway, participants, control)?;
    run.measure_latency(options.data_plane, control)?;
    demo_gateway.stop()?;
    run.compare_data_planes(has_bpf, control)?;
    Ok(run.report.conclude())
}

/// Worker threads of the fleet: half of the CPUs; the remaining CPUs are for the verifier and the attackers.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, |cpus| (cpus.get() / 2).clamp(1, 8))
}

/// Builds the network with a permanent neighbor entry for every device, because the kernel's table of unresolved neighbors
/// is small and shared by all processes of the machine.
fn build(options: &Options, has_bpf: bool) -> Result<Lab, DemoError> {
    let lab = Lab::build(&Topology {
        forwarding: match options.data_plane {
            DataPlaneKind::Xdp | DataPlaneKind::Host => ForwardingMode::Router,
            DataPlaneKind::P4 => ForwardingMode::Switch,
        },
        device_host: false,
        permanent_neighbors: options.devices,
        devices_end_accepts_xdp: has_bpf,
        ..Topology::default()
    })?;
    let (netns, end) = lab.gateway_stack();
    let mut script = String::new();
    let controlled = FIRST_CONTROLLED_DEVICE..FIRST_CONTROLLED_DEVICE + CONTROLLED_DEVICES;
    // The last address is the source of the probes that show whether the gateway has processed all frames.
    for device in controlled.chain([DEVICES_MAX - 1]).map(DeviceAddress::new) {
        let (ip, mac, dev) = (device.v4(), device.mac(), &end.name);
        // Writing to a String cannot fail.
        let _ = writeln!(script, "neigh replace {ip} lladdr {mac} dev {dev} nud permanent");
    }
    iproute::batch(netns, &script)?;
    Ok(lab)
}

/// A running demonstration.
struct NetworkRun<'a> {
    options: &'a Options,
    lab: &'a Lab,
    store: &'a RegistryStore,
    /// Number of devices in the registry, including revoked devices.
    enrolled: u32,
    fleets: Fleets,
    report: Report,
    /// Devices revoked so far.
    revoked: u64,
}

impl NetworkRun<'_> {
    fn start_gateway(
        &self,
        data_plane: DataPlaneKind,
        control: &mut RunControl<'_>,
    ) -> Result<DemoGateway, DemoError> {
        control.begin_stage(Stage::Loading)?;
        let config = gateway::config(self.options, data_plane, gateway::lab_addresses(), self.enrolled)?;
        let (engine, switch) = gateway::start_data_plane(self.lab, data_plane, &config)?;
        let expected = u64::from(self.enrolled) - self.revoked;
        let store = self.store;
        let gateway = self
            .lab
            .gateway
            .run(|| gateway::start_gateway(engine, &config, store))??;
        DemoGateway::load(gateway, switch, expected, control)
    }

    fn has_gate(&self) -> bool {
        self.options.data_plane.has_gate()
    }

    /// Records the checks that the data plane of the main run does not support.
    fn record_skipped_checks(&mut self) {
        if !self.has_gate() {
            self.report.skipped_checks.extend([
                "the gate and the service behind it: the host data plane forwards no packets".to_owned(),
                "a victim's RESPONSE from another MAC address with the victim's IP address: the host data plane sees no \
                MAC addresses and opens the victim's session"
                    .to_owned(),
            ]);
        }
    }

    /// Runs all steps on the data plane of the main run except the latency measurement without attackers.
    fn run_scenario(
        &mut self,
        demo_gateway: &DemoGateway,
        participants: Participants,
        control: &mut RunControl<'_>,
    ) -> Result<(), DemoError> {
        self.record_skipped_checks();
        let echo = EchoService::start(self.lab, ECHO_PORT)?;
        let mut result = ServiceReport::default();
        if self.has_gate() {
            self.check_closed_gate(&echo, &mut result, control)?;
        }
        control.begin_stage(Stage::Authenticating)?;
        let captured = self.capture_victims(control)?;
        if self.options.fault == Some(InjectedFault::RevokeBeforeAuthentication) {
            self.revoke(demo_gateway, self.options.devices - 1)?;
        }
        let absent = participants.absent_devices.clone();
        self.authenticate_under_attack(demo_gateway, &echo, participants, captured, control)?;
        let (line_counts, authenticated) =
            line_check::check_lines(demo_gateway, self.fleets.sessions(), &absent)?;
        self.report.line_check = line_counts;
        self.report.authenticated = authenticated;
        if self.has_gate() {
            self.check_service_access(&echo, &mut result, control)?;
            self.report.service = Some(result);
        }
        self.run_attestation(demo_gateway, &echo, control)?;
        self.run_revocation(demo_gateway, &echo, control)
    }

    /// Checks that the gate forwards nothing before any device has authenticated.
    fn check_closed_gate(
        &mut self,
        echo: &EchoService,
        result: &mut ServiceReport,
        control: &mut RunControl<'_>,
    ) -> Result<(), DemoError> {
        let attempt = Exchange {
            attempts: 2,
            timeout: Duration::from_millis(50),
            ..Exchange::to(service)
        };
        let exchange = self
            .fleets
            .victims
            .exchange(&attempt, &mut short_run(control.stop, &mut ignore_progress))?;
        result.sent_before_authentication = exchange.sent;
        result.delivered_before_authentication = count_device_datagrams(echo)?;
        control.check_stop()
    }

    /// The victims authenticate while the attackers capture the link.
    fn capture_victims(&mut self, control: &mut RunControl<'_>) -> Result<CapturedHandshakes, DemoError> {
        let capture = HandshakeCapture::start(self.lab, self.options.devices as usize)?;
        let victims = &mut self.fleets.victims;
        let report = victims.authenticate(&mut RunOptions {
            timeout: self.options.timeout,
            ..short_run(control.stop, &mut ignore_progress)
        })?;
        let captured = capture.finish()?;
        control.check_stop()?;
        let complete = captured
            .values()
            .filter(|handshake| handshake.response.is_some() && handshake.ack.is_some())
            .count();
        let authenticated = report.authenticated as usize;
        if complete < authenticated {
            return Err(DemoError::IncompleteCapture {
                captured: complete,
                authenticated,
            });
        }
        Ok(captured)
    }

    /// All other devices authenticate while the attacks run.
    fn authenticate_under_attack(
        &mut self,
        demo_gateway: &DemoGateway,
        echo: &EchoService,
        participants: Participants,
        captured: CapturedHandshakes,
        control: &mut RunControl<'_>,
    ) -> Result<(), DemoError> {
        let probe = participants
            .absent_devices
            .first()
            .copied()
            .unwrap_or(DeviceId(1));
        let suite = AttackSuite {
            link: AttackerLink::new(self.lab, probe)?,
            captured_handshakes: captured,
            absent_devices: participants.absent_devices,
            victims: self.fleets.victims.indices().map(device_id).collect(),
            controlled_devices: participants
                .controlled_devices
                .into_iter()
                .map(ControlledDevice::new)
                .collect(),
            clones: participants.clones,
            service: self.has_gate().then_some((echo, ECHO_PORT)),
            data_plane_sees_macs: self.options.data_plane.has_gate(),
            messages_per_attack: self.options.messages_per_attack,
            seed: self.options.seed,
        };
        let cancel = AtomicBool::new(false);
        let stop = control.stop;
        let (sender, outcomes) = mpsc::sync_channel(OUTCOMES_MAX);
        let fleet_reports = std::thread::scope(|scope| {
            let attackers = scope.spawn(|| {
                let sender = sender;
                suite.run(demo_gateway, [stop, &cancel], &sender);
            });
            let reports = self.authenticate_remaining(&outcomes, control);
            if reports.is_err() {
                cancel.store(true, Ordering::Relaxed);
            } else {
                self.await_attackers(&outcomes, control);
            }
            // A sender that waits continues without the receiver.
            drop(outcomes);
            attackers.join().map_err(|_| DemoError::AttackThreadPanicked)?;
            reports
        })?;
        control.check_stop()?;
        let site_counters = demo_gateway.gateway.counters()?;
        self.report.record_verdicts(&site_counters);
        self.record_rates(&fleet_reports);
        Ok(())
    }

    /// Authenticates all devices except the victims, one group after the other.
    fn authenticate_remaining(
        &mut self,
        outcomes: &Receiver<AttackOutcome>,
        control: &mut RunControl<'_>,
    ) -> Result<Vec<FleetReport>, DemoError> {
        let devices = self.report.devices;
        let before = self.fleets.victims.indices().count() as u64;
        let started = Instant::now();
        let mut reports: Vec<FleetReport> = Vec::new();
        let Self {
            fleets,
            report,
            options,
            ..
        } = self;
        for fleet in [
            &mut fleets.latency_sample,
            &mut fleets.provers,
            &mut fleets.remaining,
        ] {
            let authenticated: u64 = reports.iter().map(|report| report.authenticated).sum();
            let network_ns: f64 = reports.iter().map(|report| sum_ns(&report.network_ns)).sum();
            let stop = control.stop;
            reports.push(fleet.authenticate(&mut RunOptions {
                window: options.window,
                timeout: options.timeout,
                stop,
                progress: &mut |progress: Progress| {
                    let now = authenticated + progress.authenticated;
                    control.emit(Event::Fleet {
                        authenticated: before + now,
                        devices,
                        per_s: now as f64 / started.elapsed().as_secs_f64().max(1e-3),
                        latency_us: (network_ns + progress.network_ns as f64) / now.max(1) as f64 / 1e3,
                    });
                    record_attacks(outcomes, &mut report.attacks, control);
                },
            })?);
        }
        Ok(reports)
    }

    fn await_attackers(&mut self, outcomes: &Receiver<AttackOutcome>, control: &mut RunControl<'_>) {
        control.emit(Event::Stage(Stage::Attacking));
        loop {
            match outcomes.recv_timeout(POLL_INTERVAL) {
                Ok(outcome) => record_attack(outcome, &mut self.report.attacks, control),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn record_rates(&mut self, reports: &[FleetReport]) {
        let merged = |pick: fn(&FleetReport) -> &Histogram<u64>| {
            let mut sum: Option<Histogram<u64>> = None;
            for report in reports {
                match &mut sum {
                    // All histograms have the same bounds, so no value is out of range.
                    Some(sum) => drop(sum.add(pick(report))),
                    None => sum = Some(pick(report).clone()),
                }
            }
            sum.map_or_else(Quantiles::default, |sum| Quantiles::of_ns(&sum))
        };
        self.report.latency_us = merged(|report| &report.network_ns);
        self.report.latency_with_puf_us = merged(|report| &report.latency_ns);
        let authenticated: u64 = reports.iter().map(|report| report.authenticated).sum();
        let elapsed: Duration = reports.iter().map(|report| report.elapsed).sum();
        self.report.auth_per_s = authenticated as f64 / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
    }

    /// Every device sends a datagram to the service; the service's counters must show each device.
    fn check_service_access(
        &mut self,
        echo: &EchoService,
        result: &mut ServiceReport,
        control: &mut RunControl<'_>,
    ) -> Result<(), DemoError> {
        control.begin_stage(Stage::AccessingService)?;
        let total = self.report.devices;
        let mut done = 0;
        let window = self.options.window;
        let fleets = &mut self.fleets;
        let groups = [
            &mut fleets.victims,
            &mut fleets.latency_sample,
            &mut fleets.provers,
            &mut fleets.remaining,
        ];
        for fleet in groups {
            fleet.exchange(
                &Exchange::to(service),
                &mut RunOptions {
                    window,
                    ..short_run(control.stop, &mut ignore_progress)
                },
            )?;
            done += fleet.indices().count() as u64;
            control.report_progress(done, total);
        }
        control.check_stop()?;
        drain_service_queue(echo)?;
        let traffic = echo.traffic();
        for fleet in self.fleets.all_fleets() {
            for index in fleet.indices().filter(|index| fleet.session(*index).is_some()) {
                let arrived = traffic.sources.contains_key(&self.fleets.ip(index));
                if arrived && fleet.received_echo(index) {
                    result.devices_with_echo += 1;
                } else {
                    result.devices_without_echo += 1;
                }
            }
        }
        result.unauthorized_datagrams =
            line_check::unauthorized_datagrams(&traffic, &line_check::legitimate_addresses(&self.fleets));
        Ok(())
    }

    fn revoke(&mut self, demo_gateway: &DemoGateway, index: u32) -> Result<Duration, DemoError> {
        // The gateway counts a quarantine as a revocation, too.
        let before = demo_gateway.gateway.status().revoked;
        self.store.revoke(device_id(index))?;
        self.revoked += 1;
        demo_gateway.await_revocations(before + 1)
    }

    /// Attests some devices; one of them is modified, detected, quarantined, remediated and released.
    fn run_attestation(
        &mut self,
        demo_gateway: &DemoGateway,
        echo: &EchoService,
        control: &mut RunControl<'_>,
    ) -> Result<(), DemoError> {
        control.begin_stage(Stage::Attesting)?;
        let indices = self.fleets.provers.indices();
        let addresses = indices.map(|index| (index, self.fleets.ip(index), ATTEST_PORT));
        let devices = attest::install_provers(self.store, addresses)?;
        let scenario = AttestationScenario::enroll(self.store, demo_gateway, self.options, &devices)?;
        let ips = devices
            .iter()
            .map(|device| (device.index, self.fleets.ip(device.index)));
        let ips: HashMap<u32, IpAddr> = ips.collect();
        for device in devices {
            self.fleets.provers.set_attester(device.index, device.attester);
        }
        let forgery = ForgedProofAttack::start(self.lab, self.options.seed)?;
        let mut provers = LinkProvers {
            fleet: &mut self.fleets.provers,
            ips,
            gateway: demo_gateway,
            service: self.options.data_plane.has_gate().then_some(echo),
            stop: control.stop,
        };
        let (mut result, counters) = scenario.run(&mut provers, control)?;
        let outcome = attest::record_forged_proofs(&mut result, forgery.finish()?, &counters);
        record_attack(outcome, &mut self.report.attacks, control);
        self.report.attestation = Some(result);
        Ok(())
    }

    /// Revokes the first device: its session must end and no new session may open, while the other victims can
    /// authenticate again.
    fn run_revocation(
        &mut self,
        demo_gateway: &DemoGateway,
        echo: &EchoService,
        control: &mut RunControl<'_>,
    ) -> Result<(), DemoError> {
        const REVOKED: u32 = 0;
        control.begin_stage(Stage::Revoking)?;
        drain_service_queue(echo)?;
        let count_revoked_datagrams =
            |echo: &EchoService, ip| echo.traffic().sources.get(&ip).copied().unwrap_or(0);
        let ip = self.fleets.ip(REVOKED);
        let before = count_revoked_datagrams(echo, ip);
        let line_before = demo_gateway
            .line(device_id(REVOKED))
            .map(|line| line.commit.idx());
        let propagation = self.revoke(demo_gateway, REVOKED)?;
        let mut result = RevocationReport {
            propagation_ms: propagation.as_secs_f64() * 1e3,
            ..RevocationReport::default()
        };
        if self.has_gate() {
            let attempt = Exchange {
                attempts: 3,
                timeout: Duration::from_millis(100),
                ..Exchange::to(service)
            };
            self.fleets
                .victims
                .exchange(&attempt, &mut short_run(control.stop, &mut ignore_progress))?;
            drain_service_queue(echo)?;
            result.delivered_after = count_revoked_datagrams(echo, ip) - before;
        }
        self.reauthenticate_victims(demo_gateway, control)?;
        let victims = &self.fleets.victims;
        let line_after = demo_gateway
            .line(device_id(REVOKED))
            .map(|line| line.commit.idx());
        result.authenticated_after = victims.session(REVOKED).is_some() || line_before != line_after;
        let other_victims = || victims.indices().filter(|index| *index != REVOKED);
        result.others_authenticated = other_victims()
            .filter(|index| victims.session(*index).is_some())
            .count() as u64;
        result.others_refused = other_victims().count() as u64 - result.others_authenticated;
        self.report.revocation = Some(result);
        control.check_stop()
    }

    /// Power-cycles the victims, which authenticate again. Returns when all other victims have a session and the
    /// gateway has refused the revoked device.
    fn reauthenticate_victims(
        &mut self,
        demo_gateway: &DemoGateway,
        control: &mut RunControl<'_>,
    ) -> Result<(), DemoError> {
        let refusals = || {
            demo_gateway
                .gateway
                .counters()
                .map_or(0, |counters| counters.get(Verdict::DropRevoked))
        };
        let before = refusals();
        let is_done = AtomicBool::new(false);
        let victims = &mut self.fleets.victims;
        victims.power_cycle();
        victims.authenticate(&mut RunOptions {
            window: 16,
            timeout: STEP_TIMEOUT,
            stop: &is_done,
            progress: &mut |progress| {
                let others_are_done = progress.authenticated + 1 >= progress.devices;
                if others_are_done && refusals() > before || control.check_stop().is_err() {
                    is_done.store(true, Ordering::Relaxed);
                }
            },
        })?;
        Ok(())
    }

    fn measure_latency(
        &mut self,
        data_plane: DataPlaneKind,
        control: &mut RunControl<'_>,
    ) -> Result<(), DemoError> {
        let LatencyMeasurement { pass, refused } =
            latency::measure(&mut self.fleets.latency_sample, data_plane, self.options, control)?;
        let name = data_plane.name();
        self.report.add_refused_devices(
            refused,
            &format!("devices without a session in the latency measurement of {name}"),
        );
        self.report.comparison.push(pass);
        Ok(())
    }

    /// Measures the latency of the same devices on the data plane for comparison; `xdp` needs only the devices' link.
    fn compare_data_planes(&mut self, has_bpf: bool, control: &mut RunControl<'_>) -> Result<(), DemoError> {
        let compared = self.options.data_plane.compared_with();
        if compared == DataPlaneKind::Xdp && !has_bpf {
            self.report.skipped_checks.push(
                "the latency comparison with the xdp data plane: CAP_BPF missing; run as root".to_owned(),
            );
            return Ok(());
        }
        self.lab
            .replace_switch()
            .map_err(|error| DemoError::Lab(error.into()))?;
        let demo_gateway = self.start_gateway(compared, control)?;
        latency::authenticate_first(&mut self.fleets.latency_sample, self.options, control)?;
        self.measure_latency(compared, control)?;
        demo_gateway.stop()?;
        self.report
            .comparison
            .sort_by_key(|pass| pass.dataplane != DataPlaneKind::Xdp.name());
        Ok(())
    }
}

fn sum_ns(histogram: &Histogram<u64>) -> f64 {
    histogram.mean() * histogram.len() as f64
}

fn record_attacks(
    outcomes: &Receiver<AttackOutcome>,
    attacks: &mut Vec<AttackOutcome>,
    control: &mut RunControl<'_>,
) {
    for outcome in outcomes.try_iter() {
        record_attack(outcome, attacks, control);
    }
}

fn record_attack(outcome: AttackOutcome, attacks: &mut Vec<AttackOutcome>, control: &mut RunControl<'_>) {
    control.emit(Event::Attack(outcome.clone()));
    attacks.push(outcome);
}
