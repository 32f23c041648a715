//! A simulated fleet: gateways connected to their controller over the network only, and devices that authenticate
//! repeatedly and pass attestation.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linewarden_dataplane::Config;
use linewarden_dataplane::host::{Host, HostOptions};
use linewarden_gateway::{DataPlaneInfo, Gateway, Settings};
use linewarden_link::RemoteController;
use linewarden_protocol::attest::prover::{ProofOutcome, Prover, RequestTagKey};
use linewarden_protocol::attest::{AttestationKey, ConfigurationHash, Round};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, Period};
use linewarden_protocol::keys::SessionKey;
use linewarden_protocol::wire::{self, Message};
use linewarden_registry::{Credentials, NewGroup, NewProver, Protection, ProverLocation, Registry};
use linewarden_types::{GroupName, GroupPolicy};
use tokio::net::UdpSocket;

use crate::controller::TestController;
use crate::site::{TIMEOUT, TestDevice as Device, config, record, row_key};

/// Time after which a device without a response retries.
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_millis(400);
/// Number of threads that simulate devices.
const DEVICE_THREADS: usize = 4;

pub fn start_gateway(controller: &TestController, id: GatewayId) -> (Gateway, SocketAddr) {
    let mut config = Config {
        gateway_id: id,
        provers: 256,
        ..config()
    };
    config.geometry.slots = 256;
    let options = HostOptions {
        threads: 1,
        ..HostOptions::default()
    };
    let host = Host::start(&config, &options).unwrap();
    let settings = Settings::for_data_plane(&config);
    let data_plane_info = DataPlaneInfo {
        kind: "host".to_owned(),
        slots: config.geometry.slots.into(),
    };
    let link = Arc::new(RemoteController::from(controller.link(id, &[])));
    let gateway =
        Gateway::start_with_evidence(Box::new(host), link, settings, data_plane_info, None).unwrap();
    assert!(
        gateway.wait_until(TIMEOUT, |status| status.loaded),
        "{:?}",
        gateway.status()
    );
    (gateway, SocketAddr::new(config.local[0], config.lap_port))
}

/// A device of the fleet.
#[derive(Clone)]
pub struct DeviceSpec {
    pub device: DeviceId,
    pub name: String,
    /// LAP address of the device's gateway.
    pub gateway: SocketAddr,
    /// Gateway at which the device authenticates first.
    pub first_gateway: GatewayId,
    /// Attestation group of the device.
    pub group: &'static str,
    /// Whether the device's configuration differs from its group's reference value.
    pub is_changed: bool,
}

/// Number of accepted and of refused authentications of each device.
type AuthenticationCounts = HashMap<DeviceId, (u64, u64)>;

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    counts: Mutex<AuthenticationCounts>,
    changed: Condvar,
    keys: Mutex<HashMap<DeviceId, SessionKey>>,
    /// Devices that currently send no PROOFs.
    muted_devices: Mutex<HashSet<DeviceId>>,
    /// Interval between two authentications in the same thread.
    pause: Mutex<Duration>,
}

pub struct Fleet {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Fleet {
    /// Enrolls all devices and starts the threads that simulate them. `pause`: interval between two authentications in the
    /// same thread.
    pub fn start(controller: &TestController, specs: &[DeviceSpec], pause: Duration) -> Self {
        let shared = Arc::new(Shared {
            pause: Mutex::new(pause),
            ..Shared::default()
        });
        for spec in specs {
            enroll(controller, spec, &shared);
        }
        let threads = specs.chunks(specs.len().div_ceil(DEVICE_THREADS)).map(|chunk| {
            let (shared, thread_specs) = (Arc::clone(&shared), chunk.to_vec());
            std::thread::spawn(move || run_devices(&thread_specs, &shared))
        });
        Self {
            threads: threads.collect(),
            shared,
        }
    }

    /// Sets whether a device sends no PROOFs.
    pub fn set_muted(&self, device: DeviceId, is_muted: bool) {
        let mut muted = self.shared.muted_devices.lock().unwrap();
        match is_muted {
            true => muted.insert(device),
            false => muted.remove(&device),
        };
    }

    pub fn set_pause(&self, pause: Duration) {
        *self.shared.pause.lock().unwrap() = pause;
    }

    /// Waits until a device's numbers of accepted and of refused authentications satisfy a condition; returns both numbers.
    #[track_caller]
    pub fn wait(&self, device: DeviceId, expected: impl Fn((u64, u64)) -> bool) -> (u64, u64) {
        let device_counts = |counts: &AuthenticationCounts| counts.get(&device).copied().unwrap_or_default();
        let counts = self.shared.counts.lock().unwrap();
        let is_unsatisfied = |counts: &mut AuthenticationCounts| !expected(device_counts(counts));
        let (counts, timeout) = self
            .shared
            .changed
            .wait_timeout_while(counts, TIMEOUT, is_unsatisfied)
            .unwrap();
        assert!(!timeout.timed_out(), "{device}: {:?}", device_counts(&counts));
        device_counts(&counts)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has already printed its message.
            let _ = thread.join();
        }
    }
}

fn run_devices(specs: &[DeviceSpec], shared: &Shared) {
    let mut devices: Vec<Device> = specs
        .iter()
        .map(|spec| Device::new(spec.device, Mode::Key, spec.gateway))
        .collect();
    let mut next_at = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) {
        for device in &mut devices {
            let id = device.device.config().device;
            let is_accepted = device.authenticate(AUTHENTICATION_TIMEOUT).is_some();
            if is_accepted && let Some(key) = device.session_key() {
                shared.keys.lock().unwrap().insert(id, key);
            }
            let mut counts = shared.counts.lock().unwrap();
            let (accepted, refused) = counts.entry(id).or_default();
            match is_accepted {
                true => *accepted += 1,
                false => *refused += 1,
            }
            drop(counts);
            shared.changed.notify_all();
            if shared.stop.load(Ordering::Relaxed) {
                return;
            }
            // The sleep only limits the load; the test does not wait for a condition in this way.
            next_at = Instant::now().max(next_at + *shared.pause.lock().unwrap());
            std::thread::sleep(next_at.saturating_duration_since(Instant::now()));
        }
    }
}

/// Creates a group with this round interval.
pub fn make_group(controller: &TestController, name: &str, every_s: u32) {
    let group = NewGroup {
        name: GroupName::new(name.to_owned()).unwrap(),
        policy: GroupPolicy {
            every_s,
            jitter_s: 0,
            proof_timeout_ms: 500,
            missed_limit: 3,
            window_rounds: 4,
            ..GroupPolicy::default()
        },
        reference: Some(configuration(1).encode()),
        roll_out: None,
    };
    controller
        .runtime
        .block_on(controller.registry.set_group(&group, 1))
        .unwrap();
}

fn enroll(controller: &TestController, spec: &DeviceSpec, shared: &Arc<Shared>) {
    let device = spec.device;
    let (shared, is_changed) = (Arc::clone(shared), spec.is_changed);
    controller.runtime.block_on(async {
        let mut new = record(device, Credentials::Key(row_key(device, 0)));
        new.name.clone_from(&spec.name);
        controller.registry.enroll(new).await.unwrap();
        let address = IpAddr::from([127, 0, 1, device.0.to_be_bytes()[7]]);
        let socket = UdpSocket::bind((address, 0)).await.unwrap();
        enroll_prover(&controller.registry, spec, socket.local_addr().unwrap()).await;
        tokio::spawn(async move {
            let mut prover = Prover::new(device, Period(0));
            let mut buffer = [0; 2048];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                if shared.muted_devices.lock().unwrap().contains(&device) {
                    continue;
                }
                let session = shared.keys.lock().unwrap().get(&device).cloned();
                let message = &buffer[..length];
                if let Some(proof) = prove(&mut prover, device, is_changed, session.as_ref(), message) {
                    // Sending fails if the gateway has stopped.
                    let _ = socket.send_to(&proof, from).await;
                }
            }
        });
    });
}

async fn enroll_prover(registry: &Registry, spec: &DeviceSpec, address: SocketAddr) {
    let prover = NewProver {
        device: spec.device,
        group: GroupName::new(spec.group.to_owned()).unwrap(),
        key: attestation_key(spec.device),
        protection: Protection::Software,
        binding: None,
        overlay: None,
        location: Some(ProverLocation {
            gateway: spec.first_gateway,
            address: address.ip(),
        }),
        port: address.port(),
        enrolled_period: Period(0),
    };
    registry.enroll_prover(prover, 1).await.unwrap();
}

fn prove(
    prover: &mut Prover,
    device: DeviceId,
    is_changed: bool,
    session: Option<&SessionKey>,
    message: &[u8],
) -> Option<Vec<u8>> {
    let Ok(Message::AttestRequest(request)) = wire::parse(message) else {
        return None;
    };
    let round = Round::from(request);
    let request_key = attestation_key(device).for_requests(device, round.gateway, round.start.period);
    [true, false].into_iter().find_map(|in_session| {
        let screened = prover.screen(message, in_session).ok()?;
        let tag_key = match in_session {
            true => RequestTagKey::Session(session?),
            false => RequestTagKey::Request(&request_key),
        };
        let verified = screened.verify(Some(tag_key)).ok()?;
        let outcome = match prover.respond(verified) {
            ProofOutcome::MeasurementNeeded(start, verified) => {
                let h = configuration(if is_changed { 2 } else { 1 }).hash();
                let key = attestation_key(device).for_period(device, &start, &ConfigurationHash(h.0));
                prover.begin_period(&verified, &key);
                prover.respond(verified)
            }
            outcome => outcome,
        };
        outcome.bytes().map(<[u8]>::to_vec)
    })
}

fn configuration(content: u8) -> linewarden_measurement::configuration::Configuration {
    use linewarden_measurement::HashAlgorithm;
    use linewarden_measurement::configuration::Configuration;
    use linewarden_measurement::files::{ContentHash, FileEntry, FilePath, Mode};
    use linewarden_measurement::pcr::PcrValues;
    let entry = FileEntry::File {
        mode: Mode::new(0o755).unwrap(),
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
