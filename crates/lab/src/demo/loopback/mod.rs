//! The demonstration without privileges: the `host` data plane on loopback, devices and attackers on UDP sockets.
//!
//! This run checks less; [`Report::skipped_checks`] lists what is missing. There is no separate network, so sessions
//! are not bound to MAC addresses, there is no gate, and attacks that need complete frames or foreign addresses are
//! skipped. All other parts are real: registry, gateway, data plane, device role and PUFs.

mod attacks;
mod attest;
mod device;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use linewarden_dataplane::host::{Host, HostOptions};
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::verdict::Verdict;
use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;

use self::attacks::{ATTACK_NAMES, LoopbackAttacks};
use self::device::{HandshakeResult, LoopbackDevice};
use super::gateway::{self, DemoGateway};
use super::participants::Participants;
use super::registry_store::RegistryStore;
use super::report::{AttackOutcome, LatencyPass, OUTCOMES_MAX, Quantiles, Report, RevocationReport};
use super::{
    DataPlaneKind, DemoError, Event, InjectedFault, Options, RunControl, Stage, VICTIMS, line_check,
};
use crate::attackers::{ATTACKS, FIRST_CONTROLLED_DEVICE};
use crate::fleet::{Report as FleetReport, device_id};

/// How long the revoked device tries to authenticate.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) fn run(options: &Options, control: &mut RunControl<'_>) -> Result<Report, DemoError> {
    let mut report = Report::new(options, 1);
    record_skipped_checks(&mut report);
    control.begin_stage(Stage::Enrolling)?;
    let mut participants = Participants::enroll(options, false, control)?;
    control.begin_stage(Stage::Registering)?;
    let records = std::mem::take(&mut participants.records);
    let enrolled = records.len() as u32;
    let store = RegistryStore::create(records, control)?;

    control.begin_stage(Stage::Loading)?;
    let mut config = gateway::config(
        options,
        DataPlaneKind::Host,
        vec![Ipv4Addr::LOCALHOST.into()],
        enrolled,
    )?;
    config.lap_port = free_port()?;
    // One thread with one queue: a reply shows that all earlier datagrams have been processed.
    let threads = HostOptions {
        threads: 1,
        ..HostOptions::default()
    };
    let data_plane = Host::start(&config, &threads)?;
    let gateway = gateway::start_gateway(Box::new(data_plane), &config, &store)?;
    let demo_gateway = DemoGateway::load(gateway, None, enrolled.into(), control)?;
    let gateway = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), config.lap_port);
    let mut run = LoopbackRun {
        options,
        store: &store,
        gateway,
        devices: loopback_devices(&mut participants),
        rng: rng()?,
        timings: FleetReport::default(),
        report,
    };
    run.run_scenario(&demo_gateway, participants, control)?;
    demo_gateway.stop()?;
    Ok(run.report.conclude())
}

fn record_skipped_checks(report: &mut Report) {
    let missing = match crate::capability::require(crate::capability::FOR_NETWORK) {
        Err(missing) => missing
            .capabilities()
            .iter()
            .map(|needed| needed.name())
            .collect(),
        Ok(()) => Vec::new(),
    };
    let missing = missing.join(", ");
    let untried: Vec<&str> = ATTACKS
        .iter()
        .map(|attack| attack.name)
        .filter(|name| !ATTACK_NAMES.contains(name))
        .collect();
    report.skipped_checks = vec![
        format!(
            "the virtual network of namespaces ({missing} missing; run as root): devices are UDP sockets on loopback"
        ),
        "the xdp data plane and the latency comparison with it".to_owned(),
        "the gate, the service behind it, and sessions bound to MAC addresses, which loopback does not have"
            .to_owned(),
        format!(
            "attacks that need complete frames, foreign sender addresses or a bound gate: {}",
            untried.join("; ")
        ),
    ];
}

/// A UDP port that is unused at this moment.
fn free_port() -> Result<u16, DemoError> {
    let probe = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    Ok(probe
        .map_err(DemoError::system("finding a free UDP port"))?
        .port())
}

fn rng() -> Result<ChaCha20Rng, DemoError> {
    let mut seed = [0u8; 32];
    getrandom::fill(&mut seed)?;
    Ok(ChaCha20Rng::from_seed(seed))
}

/// All devices in the order of their indices.
fn loopback_devices(participants: &mut Participants) -> Vec<LoopbackDevice> {
    let groups = [
        &mut participants.victims,
        &mut participants.latency_sample,
        &mut participants.provers,
        &mut participants.remaining,
    ];
    let members = groups.into_iter().flat_map(std::mem::take);
    (0..)
        .zip(members)
        .map(|(index, member)| LoopbackDevice::new(member, index))
        .collect()
}

struct LoopbackRun<'a> {
    options: &'a Options,
    store: &'a RegistryStore,
    gateway: SocketAddr,
    devices: Vec<LoopbackDevice>,
    rng: ChaCha20Rng,
    /// Handshake times of all devices except the victims.
    timings: FleetReport,
    report: Report,
}

impl LoopbackRun<'_> {
    fn run_scenario(
        &mut self,
        demo_gateway: &DemoGateway,
        mut participants: Participants,
        control: &mut RunControl<'_>,
    ) -> Result<(), DemoError> {
        control.begin_stage(Stage::Authenticating)?;
        let victims = VICTIMS as usize;
        let deadline = Instant::now() + self.options.timeout;
        for position in 0..victims {
            self.authenticate(position, deadline)?;
        }
        if self.options.fault == Some(InjectedFault::RevokeBeforeAuthentication) {
            self.store.revoke(device_id(self.options.devices - 1))?;
            demo_gateway.await_revocations(1)?;
        }
        let absent = participants.absent_devices.clone();
        self.authenticate_under_attack(demo_gateway, &mut participants, control)?;
        self.report.record_verdicts(&demo_gateway.gateway.counters()?);
        let sessions: Vec<(DeviceId, Option<u32>)> = self
            .devices
            .iter()
            .map(|prover| (prover.id(), prover.session().map(|session| session.idx.0)))
            .collect();
        let (line_counts, authenticated) = line_check::check_lines(demo_gateway, sessions, &absent)?;
        self.report.line_check = line_counts;
        self.report.authenticated = authenticated;
        self.run_attestation(demo_gateway, control)?;
        self.run_revocation(demo_gateway, control)
    }

    /// Runs one handshake on a new socket; returns `None` if the device has no session at the deadline.
    fn authenticate(
        &mut self,
        position: usize,
        deadline: Instant,
    ) -> Result<Option<device::HandshakeTime>, DemoError> {
        let limit = deadline.saturating_duration_since(Instant::now());
        let Some(prover) = self.devices.get_mut(position) else {
            return Ok(None);
        };
        let handshake = prover
            .connect(self.gateway)
            .and_then(|socket| prover.authenticate(&socket, &mut self.rng, limit, false));
        match handshake.map_err(DemoError::system("a device's socket on loopback"))? {
            HandshakeResult::Session(times) => Ok(Some(times)),
            HandshakeResult::ResponseWithheld(_) | HandshakeResult::TimedOut => Ok(None),
        }
    }

    fn authenticate_under_attack(
        &mut self,
        demo_gateway: &DemoGateway,
        participants: &mut Participants,
        control: &mut RunControl<'_>,
    ) -> Result<(), DemoError> {
        let probe = participants
            .absent_devices
            .first()
            .copied()
            .unwrap_or(DeviceId(1));
        let attacker_rng = ChaCha20Rng::seed_from_u64(self.options.seed);
        let mut attacks = LoopbackAttacks::new(
            demo_gateway,
            self.gateway,
            probe,
            self.options.messages_per_attack,
            attacker_rng,
        )?;
        let victims = self.devices.iter().take(VICTIMS as usize);
        attacks.overheard_responses = victims.clone().filter_map(|prover| prover.response).collect();
        attacks.protected_devices = victims
            .map(LoopbackDevice::id)
            .chain(participants.absent_devices.iter().copied())
            .collect();
        let clones = std::mem::take(&mut participants.clones);
        let controlled_device = participants
            .controlled_devices
            .pop()
            .map(|device| LoopbackDevice::new(device.member, FIRST_CONTROLLED_DEVICE));
        let (sender, outcomes) = mpsc::sync_channel(OUTCOMES_MAX);
        std::thread::scope(|scope| {
            let attackers = scope.spawn(move || {
                if let Some(device) = controlled_device {
                    attacks.run(clones, device, &|outcome| sender.send(outcome).is_ok());
                }
            });
            let authenticated = self.authenticate_remaining(&outcomes, control);
            if authenticated.is_ok() {
                control.emit(Event::Stage(Stage::Attacking));
                for outcome in &outcomes {
                    self.record_attack(outcome, control);
                }
            }
            drop(outcomes);
            attackers.join().map_err(|_| DemoError::AttackThreadPanicked)?;
            authenticated
        })
    }

    fn authenticate_remaining(
        &mut self,
        outcomes: &Receiver<AttackOutcome>,
        control: &mut RunControl<'_>,
    ) -> Result<(), DemoError> {
        let started = Instant::now();
        let deadline = started + self.options.timeout;
        let devices = self.devices.len();
        let mut authenticated = 0u64;
        for position in VICTIMS as usize..devices {
            if let Some(times) = self.authenticate(position, deadline)? {
                authenticated += 1;
                self.timings.network_ns.saturating_record(times.network.max(1));
                self.timings.latency_ns.saturating_record(times.total.max(1));
            }
            if position % 64 == 0 || position + 1 == devices {
                control.check_stop()?;
                control.emit(Event::Fleet {
                    authenticated: u64::from(VICTIMS) + authenticated,
                    devices: devices as u64,
                    per_s: authenticated as f64 / started.elapsed().as_secs_f64().max(1e-3),
                    latency_us: self.timings.network_ns.mean() / 1e3,
                });
                while let Ok(outcome) = outcomes.try_recv() {
                    self.record_attack(outcome, control);
                }
            }
        }
        self.report.auth_per_s =
            authenticated as f64 / started.elapsed().as_secs_f64().max(f64::MIN_POSITIVE);
        self.report.latency_us = Quantiles::of_ns(&self.timings.network_ns);
        self.report.latency_with_puf_us = Quantiles::of_ns(&self.timings.latency_ns);
        self.report.comparison = vec![LatencyPass::new(DataPlaneKind::Host, &self.timings.network_ns)];
        Ok(())
    }

    fn record_attack(&mut self, outcome: AttackOutcome, control: &mut RunControl<'_>) {
        control.emit(Event::Attack(outcome.clone()));
        self.report.attacks.push(outcome);
    }

    /// Revokes the first device; this device and the other victims try to authenticate again.
    fn run_revocation(
        &mut self,
        demo_gateway: &DemoGateway,
        control: &mut RunControl<'_>,
    ) -> Result<(), DemoError> {
        control.begin_stage(Stage::Revoking)?;
        let revoked_before = demo_gateway.gateway.status().revoked;
        let count_refused = |demo_gateway: &DemoGateway| {
            demo_gateway
                .gateway
                .counters()
                .map(|counters| counters.get(Verdict::DropRevoked))
        };
        let refused_before = count_refused(demo_gateway)?;
        let line_before = demo_gateway.line(device_id(0));
        self.store.revoke(device_id(0))?;
        let propagation = demo_gateway.await_revocations(revoked_before + 1)?;
        let line_after =
            |demo_gateway: &DemoGateway| demo_gateway.line(device_id(0)).map(|line| line.commit.idx());
        for prover in self.devices.iter_mut().take(VICTIMS as usize) {
            prover.power_cycle();
        }
        let got_session = self.authenticate(0, Instant::now() + REFUSAL_TIMEOUT)?.is_some();
        let deadline = Instant::now() + self.options.timeout;
        let mut others_authenticated = 0;
        for position in 1..VICTIMS as usize {
            others_authenticated += u64::from(self.authenticate(position, deadline)?.is_some());
        }
        if count_refused(demo_gateway)? == refused_before {
            self.report
                .add_refused_devices(1, "the gateway did not see the revoked device's attempts");
        }
        self.report.revocation = Some(RevocationReport {
            propagation_ms: propagation.as_secs_f64() * 1e3,
            delivered_after: 0,
            authenticated_after: got_session
                || line_before.map(|line| line.commit.idx()) != line_after(demo_gateway),
            others_authenticated,
            others_refused: u64::from(VICTIMS) - 1 - others_authenticated,
        });
        control.check_stop()
    }
}
