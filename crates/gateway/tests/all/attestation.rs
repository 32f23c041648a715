//! Attestation by a whole gateway: rounds over real sockets, and their effects on authentication and on the registry.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use linewarden_controller::Controller;
use linewarden_controller::attest::Signer;
use linewarden_gateway::Gateway;
use linewarden_gateway::audit::{AuditLog, AuditOptions};
use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::files::{ContentHash, FileEntry, FilePath, Mode as FileMode};
use linewarden_measurement::pcr::PcrValues;
use linewarden_protocol::attest::prover::{ProofOutcome, Prover, RequestTagKey};
use linewarden_protocol::attest::{AttestationKey, ConfigurationHash, Round};
use linewarden_protocol::ids::{DeviceId, Mode, Period};
use linewarden_protocol::keys::SessionKey;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{self, Message};
use linewarden_registry::{
    AttestationState, Credentials, NewGroup, NewProver, Protection, ProverLocation, RollOut,
};
use linewarden_types::{GroupName, GroupPolicy, ReleaseMode};

use zerocopy::IntoBytes as _;

use crate::site::{GATEWAY, Site, TIMEOUT, TestDevice, record, row_key};

const HOUR_S: u64 = 3_600;

fn configuration(content: u8) -> Configuration {
    let entry = FileEntry::File {
        mode: FileMode::new(0o755).unwrap(),
        content: ContentHash([content; 32]),
    };
    let files = BTreeMap::from([(FilePath::new(b"/usr/bin/sensord").unwrap(), entry)]);
    Configuration::new(PcrValues::new(HashAlgorithm::Sha256), files).unwrap()
}

fn attestation_key(device: DeviceId) -> AttestationKey {
    let mut key = [0x6b; 32];
    key[..8].copy_from_slice(&device.0.to_be_bytes());
    AttestationKey::from_bytes(key)
}

fn group() -> GroupName {
    GroupName::new("sensors").unwrap()
}

/// Rounds start only on request; two missed proofs of three quarantine a device.
fn policy() -> GroupPolicy {
    GroupPolicy {
        every_s: HOUR_S as u32,
        jitter_s: 0,
        proof_timeout_ms: 500,
        missed_limit: 2,
        window_rounds: 3,
        ..GroupPolicy::default()
    }
}

/// State of a device, which the test changes while the device runs.
#[derive(Clone)]
struct DeviceState {
    /// The argument of [`configuration`] for the device's current configuration.
    configuration: Arc<Mutex<u8>>,
    session: Arc<Mutex<Option<SessionKey>>>,
    /// If true, the device sends no proofs.
    is_muted: Arc<AtomicBool>,
    /// Device ids in the junk that the device sends.
    victims: Arc<Mutex<Vec<DeviceId>>>,
}

/// Number of junk messages for each victim and challenge.
const JUNK_PER_VICTIM: u8 = 20;

/// A device as a prover, on its own socket and thread.
struct SimulatedProver {
    state: DeviceState,
    address: SocketAddr,
    should_stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SimulatedProver {
    fn start(device: DeviceId) -> Self {
        let address = [127, 0, 1, device.0.to_be_bytes()[7]];
        let socket = UdpSocket::bind(SocketAddr::from((address, 0))).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let state = DeviceState {
            configuration: Arc::new(Mutex::new(1)),
            session: Arc::default(),
            is_muted: Arc::default(),
            victims: Arc::default(),
        };
        let should_stop = Arc::new(AtomicBool::new(false));
        Self {
            address: socket.local_addr().unwrap(),
            thread: Some(std::thread::spawn({
                let (state, should_stop) = (state.clone(), Arc::clone(&should_stop));
                move || respond_to_requests(device, &socket, &state, &should_stop)
            })),
            state,
            should_stop,
        }
    }

    fn set_configuration(&self, content: u8) {
        *self.state.configuration.lock().unwrap() = content;
    }
}

impl Drop for SimulatedProver {
    fn drop(&mut self) {
        self.should_stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn respond_to_requests(device: DeviceId, socket: &UdpSocket, state: &DeviceState, should_stop: &AtomicBool) {
    let mut prover = Prover::new(device, Period(0));
    let mut buffer = [0u8; 2048];
    while !should_stop.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        if let Ok(Message::AttestRequest(request)) = wire::parse(&buffer[..length]) {
            let round = Round::from(request);
            for victim in state.victims.lock().unwrap().iter() {
                for junk in 0..JUNK_PER_VICTIM {
                    let proof = round.proof_message(*victim, [junk; 64]);
                    socket.send_to(proof.as_bytes(), from).unwrap();
                }
            }
        }
        if state.is_muted.load(Ordering::Relaxed) {
            continue;
        }
        let session = state.session.lock().unwrap().clone();
        let message = &buffer[..length];
        let proof = [true, false].into_iter().find_map(|in_session| {
            let screened = prover.screen(message, in_session).ok()?;
            let Ok(Message::AttestRequest(request)) = wire::parse(message) else {
                return None;
            };
            let round = Round::from(request);
            let request_key = attestation_key(device).for_requests(device, round.gateway, round.start.period);
            let tag_key = match (in_session, &session) {
                (true, Some(key)) => RequestTagKey::Session(key),
                (true, None) => return None,
                (false, _) => RequestTagKey::Request(&request_key),
            };
            let target = screened.verify(Some(tag_key)).ok()?;
            let response = match prover.respond(target) {
                ProofOutcome::MeasurementNeeded(start, target) => {
                    // The device measures itself once, when the period starts.
                    let h = configuration(*state.configuration.lock().unwrap()).hash();
                    let key = attestation_key(device).for_period(device, &start, &ConfigurationHash(h.0));
                    prover.begin_period(&target, &key);
                    prover.respond(target)
                }
                response => response,
            };
            response.bytes().map(<[u8]>::to_vec)
        });
        if let Some(proof) = proof {
            socket.send_to(&proof, from).unwrap();
        }
    }
}

/// A site whose devices are enrolled as provers.
struct ProverSite {
    site: Site,
    devices: Vec<DeviceId>,
    provers: Vec<SimulatedProver>,
}

impl ProverSite {
    fn new(count: u64, policy: GroupPolicy) -> Self {
        let devices: Vec<DeviceId> = (1..=count).map(DeviceId).collect();
        let key = |device| Credentials::Key(row_key(device, 0));
        let records = devices
            .iter()
            .map(|device| record(*device, key(*device)))
            .collect();
        let mut site = Site::new(records);
        site.config.provers = 64;
        let fleet = Self {
            provers: devices
                .iter()
                .map(|device| SimulatedProver::start(*device))
                .collect(),
            site,
            devices,
        };
        fleet.set_group(policy, 1, None);
        (0..fleet.devices.len()).for_each(|index| fleet.enroll(index, &group()));
        fleet
    }

    fn block<T>(&self, future: impl Future<Output = T>) -> T {
        self.site.runtime.block_on(future)
    }

    /// Enrolls a device as a prover of a group. A second call for a device moves the device to another group.
    fn enroll(&self, index: usize, group: &GroupName) {
        let address = self.provers[index].address;
        let prover = NewProver {
            device: self.devices[index],
            group: group.clone(),
            key: attestation_key(self.devices[index]),
            protection: Protection::Software,
            binding: None,
            overlay: None,
            location: Some(ProverLocation {
                gateway: GATEWAY,
                address: address.ip(),
            }),
            port: address.port(),
            enrolled_period: Period(0),
        };
        self.block(self.site.registry.enroll_prover(prover, 1)).unwrap();
    }

    fn set_group(&self, policy: GroupPolicy, reference: u8, roll_out: Option<RollOut>) {
        let group = NewGroup {
            name: group(),
            policy,
            reference: Some(configuration(reference).encode()),
            roll_out,
        };
        self.block(self.site.registry.set_group(&group, 1)).unwrap();
    }

    /// Requests a round and waits until it was appraised; returns the numbers of ok, late and missed provers.
    fn round(&self, gateway: &Gateway) -> (u32, u32, u32) {
        let rounds_before = gateway.status().attest.rounds;
        self.block(self.site.registry.request_round(&group())).unwrap();
        let is_appraised = gateway.wait_until(TIMEOUT, |status| status.attest.rounds > rounds_before);
        assert!(is_appraised, "{:?}", gateway.status());
        let rounds = self.block(self.site.registry.rounds(Some(GATEWAY), 1)).unwrap();
        if rounds[0].missed > 0 {
            println!("{:?}\n{:?}", rounds[0], gateway.status().attest);
            for (verdict, count) in gateway.counters().unwrap().nonzero() {
                println!("{} {count}", verdict.name());
            }
        }
        (rounds[0].ok, rounds[0].late, rounds[0].missed)
    }

    /// Starts the next period, which otherwise starts after an hour; all devices measure themselves again.
    fn next_period(&self, gateway: &Gateway) {
        let next = self.block(self.site.registry.newest_period()).unwrap().unwrap();
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        self.block(self.site.registry.start_period(next.number, now_s))
            .unwrap();
        assert!(gateway.wait_until(TIMEOUT, |status| status.attest.period == next.number.0));
    }

    fn state(&self, device: DeviceId) -> AttestationState {
        let appraisal = self.block(self.site.registry.appraisal(device)).unwrap();
        appraisal.unwrap().state
    }

    /// Opens the gateway's audit log; returns its path.
    fn audit(&self, gateway: &Gateway) -> std::path::PathBuf {
        let path = self.site.path.with_file_name("audit.jsonl");
        let options = AuditOptions {
            path: path.clone(),
            bytes_max: 1 << 20,
        };
        let log = AuditLog::open(GATEWAY, &options).unwrap();
        gateway.set_audit(Some((log, 100))).unwrap();
        path
    }

    /// Starts a gateway and waits for its first round, which is due at once.
    fn start(&self) -> Gateway {
        let gateway = self.site.start();
        assert!(gateway.wait_until(TIMEOUT, |status| status.attest.rounds == 1));
        gateway
    }
}

#[test]
fn a_fleet_proves_its_configuration() {
    let fleet = ProverSite::new(5, policy());
    let gateway = fleet.start();
    assert_eq!(fleet.round(&gateway), (5, 0, 0));
    for device in &fleet.devices {
        assert_eq!(fleet.state(*device), AttestationState::Ok);
    }
    let counters = gateway.counters().unwrap();
    assert_eq!(counters.get(Verdict::ProofOk), 10);
    assert_eq!(gateway.status().attest.provers, 5);
}

#[test]
fn a_changed_device_is_quarantined_and_released_after_its_remediation() {
    let fleet = ProverSite::new(3, policy());
    let changed_device = fleet.devices[1];
    let gateway = fleet.start();
    let mut client = TestDevice::new(changed_device, Mode::Key, fleet.site.address());
    assert!(client.authenticate(TIMEOUT).is_some());
    *fleet.provers[1].state.session.lock().unwrap() = client.session_key();
    assert_eq!(
        fleet.round(&gateway),
        (3, 0, 0),
        "in a session the challenge uses the session key"
    );

    // The allowed configuration changes for all devices; the changed device keeps the old configuration.
    fleet.set_group(policy(), 2, None);
    fleet.provers[0].set_configuration(2);
    fleet.provers[2].set_configuration(2);
    fleet.next_period(&gateway);
    assert_eq!(fleet.round(&gateway), (2, 0, 1));
    assert_eq!(fleet.state(changed_device), AttestationState::Missed);
    assert_eq!(fleet.round(&gateway), (2, 0, 1));
    assert!(gateway.wait_until(TIMEOUT, |status| status.attest.quarantined == 1));
    assert_eq!(fleet.state(changed_device), AttestationState::Quarantined);
    assert!(gateway.wait_until(TIMEOUT, |status| status.revoked == 1));
    assert_eq!(client.authenticate(Duration::from_millis(300)), None);

    // The device is still challenged, without a session, and sends a valid proof again.
    *fleet.provers[1].state.session.lock().unwrap() = None;
    fleet.provers[1].set_configuration(2);
    fleet.next_period(&gateway);
    assert_eq!(fleet.round(&gateway), (3, 0, 0));
    assert_eq!(fleet.state(changed_device), AttestationState::Ok);
    assert!(gateway.wait_until(TIMEOUT, |status| status.attest.remediated == 1));
    client.nonce += 50;
    assert!(client.authenticate(TIMEOUT).is_some());
}

/// Two missed proofs quarantine a device. Two rounds without any proof, as when a switch is down, do not count.
#[test]
fn a_group_outage_quarantines_no_device_at_first() {
    let fleet = ProverSite::new(3, policy());
    let gateway = fleet.start();
    let set_muted = |is_muted| {
        for prover in &fleet.provers {
            prover.state.is_muted.store(is_muted, Ordering::Relaxed);
        }
    };
    set_muted(true);
    for _ in 0..2 {
        assert_eq!(fleet.round(&gateway), (0, 0, 3));
        for device in &fleet.devices {
            assert_eq!(
                fleet.state(*device),
                AttestationState::Missed,
                "the device is not shown as compliant"
            );
        }
    }
    set_muted(false);
    assert_eq!(fleet.round(&gateway), (3, 0, 0));
    assert_eq!(gateway.status().attest.quarantined, 0);

    // An attacker who blocks all devices must not hide one of them forever.
    set_muted(true);
    for _ in 0..3 {
        fleet.round(&gateway);
    }
    assert_eq!(gateway.status().attest.quarantined, 0);
    fleet.round(&gateway);
    assert!(gateway.wait_until(TIMEOUT, |status| status.attest.quarantined == 3));
}

#[test]
fn with_manual_release_only_the_operator_releases_a_device() {
    let policy = GroupPolicy {
        release_mode: ReleaseMode::Manual,
        ..policy()
    };
    let fleet = ProverSite::new(1, policy);
    let device = fleet.devices[0];
    let gateway = fleet.start();
    let audit = fleet.audit(&gateway);
    assert_eq!(fleet.round(&gateway), (1, 0, 0));
    fleet.provers[0].state.is_muted.store(true, Ordering::Relaxed);
    fleet.round(&gateway);
    fleet.round(&gateway);
    assert_eq!(fleet.state(device), AttestationState::Quarantined);
    fleet.provers[0].state.is_muted.store(false, Ordering::Relaxed);
    assert_eq!(fleet.round(&gateway), (1, 0, 0));
    assert_eq!(fleet.state(device), AttestationState::Quarantined);
    let mut client = TestDevice::new(device, Mode::Key, fleet.site.address());
    assert_eq!(client.authenticate(Duration::from_millis(300)), None);
    fleet.block(fleet.site.registry.release(device)).unwrap();
    client.nonce += 50;
    assert!(client.authenticate(TIMEOUT).is_some());
    assert!(gateway.wait_until(TIMEOUT, |status| status.attest.released == 1));
    gateway.stop().unwrap();
    let audit = std::fs::read_to_string(audit).unwrap();
    let events: Vec<serde_json::Value> = audit
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of_device = events
        .iter()
        .filter(|event| event["device"] == device.to_string().as_str());
    let mut names: Vec<&str> = of_device.map(|event| event["event"].as_str().unwrap()).collect();
    let position_of = |name: &str| names.iter().position(|event| *event == name);
    assert!(position_of("quarantined") < position_of("released"), "{audit}");
    names.sort_unstable();
    let expected = ["admitted", "blocked", "quarantined", "released", "session"];
    assert_eq!(names, expected, "{audit}");
}

#[test]
fn junk_with_other_device_ids_quarantines_no_device() {
    let fleet = ProverSite::new(3, policy());
    // The sender is a prover itself, so it knows round and nonce, and it sends before any other device.
    let victims = fleet.devices[1..].to_vec();
    *fleet.provers[0].state.victims.lock().unwrap() = victims;
    let gateway = fleet.start();
    for _ in 0..4 {
        assert_eq!(fleet.round(&gateway), (3, 0, 0));
    }
    assert_eq!(gateway.status().attest.quarantined, 0);
    let counters = gateway.counters().unwrap();
    let junk = [Verdict::DropProof, Verdict::DropProved].map(|verdict| counters.get(verdict));
    assert!(
        junk.iter().sum::<u64>() >= 5 * 2 * u64::from(JUNK_PER_VICTIM),
        "{junk:?}"
    );
}

/// A gateway keeps at most two rounds open. The slow group's round occupies one of the two places during the whole test,
/// and the rounds of the other group use the second place.
#[test]
fn rounds_of_one_group_do_not_wait_for_missing_proofs_of_another() {
    let fleet = ProverSite::new(2, policy());
    let slow = NewGroup {
        name: GroupName::new("slow").unwrap(),
        policy: GroupPolicy {
            proof_timeout_ms: 60_000,
            ..policy()
        },
        reference: Some(configuration(1).encode()),
        roll_out: None,
    };
    fleet.block(fleet.site.registry.set_group(&slow, 1)).unwrap();
    fleet.enroll(1, &slow.name);
    fleet.provers[1].state.is_muted.store(true, Ordering::Relaxed);
    let gateway = fleet.start();
    for _ in 0..4 {
        assert_eq!(fleet.round(&gateway), (1, 0, 0));
    }
    let rounds = fleet
        .block(fleet.site.registry.rounds(Some(GATEWAY), 10))
        .unwrap();
    assert_eq!(rounds.len(), 5, "one at the start, and four on request");
    assert!(rounds.iter().all(|round| round.group == group()), "{rounds:?}");
    assert!(
        rounds
            .iter()
            .all(|round| round.number & 1 == rounds[0].number & 1),
        "{rounds:?}"
    );
}

#[test]
fn round_numbers_are_not_used_again_by_the_next_process() {
    let fleet = ProverSite::new(1, policy());
    let gateway = fleet.start();
    fleet.round(&gateway);
    let last = gateway.status().attest.round;
    gateway.stop().unwrap();
    let gateway = fleet.start();
    assert!(gateway.status().attest.round > last);
    assert_eq!(fleet.state(fleet.devices[0]), AttestationState::Ok);
}

#[test]
fn during_a_roll_out_both_configurations_are_allowed() {
    let fleet = ProverSite::new(2, policy());
    let gateway = fleet.start();
    let roll_out = RollOut {
        reference: configuration(2).encode(),
        until_s: u64::MAX >> 1,
    };
    fleet.set_group(policy(), 1, Some(roll_out));
    fleet.provers[1].set_configuration(2);
    fleet.next_period(&gateway);
    assert_eq!(fleet.round(&gateway), (2, 0, 0));
    let proven = |device| {
        let appraisal = fleet.block(fleet.site.registry.appraisal(device)).unwrap();
        appraisal.unwrap().configuration
    };
    use linewarden_protocol::gateway::Configuration::{Alternate, Current};
    assert_eq!(
        (proven(fleet.devices[0]), proven(fleet.devices[1])),
        (Current, Alternate)
    );
    // The roll-out ends by command: the old configuration is no longer allowed.
    fleet.set_group(policy(), 2, None);
    fleet.next_period(&gateway);
    assert_eq!(fleet.round(&gateway), (1, 0, 1));
}

#[test]
fn results_are_signed() {
    let fleet = ProverSite::new(2, policy());
    let pem = Signer::generate_pem().unwrap();
    let gateway = fleet
        .site
        .start_with(|controller: Controller| controller.with_signer(Signer::from_pem(&pem).unwrap()));
    let path = fleet.site.path.with_file_name("audit.jsonl");
    let options = linewarden_gateway::audit::AuditOptions {
        path: path.clone(),
        bytes_max: 1 << 20,
    };
    let log = linewarden_gateway::audit::AuditLog::open(GATEWAY, &options).unwrap();
    gateway.set_audit(Some((log, 100))).unwrap();
    fleet.round(&gateway);
    gateway.stop().unwrap();
    let audit = std::fs::read_to_string(path).unwrap();
    let records: Vec<serde_json::Value> = audit
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let tokens: Vec<&str> = records
        .iter()
        .filter_map(|record| record["token"].as_str())
        .collect();
    assert_eq!(
        tokens.len(),
        1,
        "one token reports the new states of both devices: {audit}"
    );
    let signer = Signer::from_pem(&pem).unwrap();
    assert!(signer.public_jwk().contains("P-256"));
    assert_eq!(tokens[0].split('.').count(), 3, "a JWT");
}

#[test]
fn a_gateway_without_attestation_reports_provers() {
    let mut fleet = ProverSite::new(2, policy());
    fleet.site.config.provers = 0;
    let [unattested_device, _] = fleet.devices[..] else {
        panic!("two devices")
    };
    let gateway = fleet.site.start();
    let path = fleet.audit(&gateway);
    let mut client = TestDevice::new(unattested_device, Mode::Key, fleet.site.address());
    assert!(
        client.authenticate(TIMEOUT).is_some(),
        "the device is served nevertheless"
    );
    let reports_count = |count| gateway.wait_until(TIMEOUT, |status| status.attest.not_attested == count);
    assert!(reports_count(1), "{:?}", gateway.status());
    fleet
        .block(fleet.site.registry.remove_prover(unattested_device))
        .unwrap();
    assert!(reports_count(0), "{:?}", gateway.status());
    gateway.stop().unwrap();
    let audit = std::fs::read_to_string(path).unwrap();
    let events: Vec<&str> = audit
        .lines()
        .filter(|line| line.contains("\"not_attested\""))
        .collect();
    assert_eq!(events.len(), 1, "recorded once: {audit}");
    assert!(
        events[0].contains(&unattested_device.to_string()),
        "{}",
        events[0]
    );
}
