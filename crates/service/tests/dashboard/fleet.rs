//! A fleet at work: gateways that know their controller by the network only, devices that authenticate again and again, and prove what
//! they run.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linewarden_dataplane::Config;
use linewarden_dataplane::host::{Host, HostOptions};
use linewarden_gateway::{About, ControllerLink, Gateway, Settings};
use linewarden_protocol::attest::prover::{Answer, AskedBy, Prover};
use linewarden_protocol::attest::{AttestationKey, ConfigurationHash, Round};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, Period};
use linewarden_protocol::keys::SessionKey;
use linewarden_protocol::wire::{self, Message};
use linewarden_registry::{
    Credentials, GroupName, GroupPolicy, Home, NewGroup, NewProver, Protection, Registry,
};
use tokio::net::UdpSocket;

use crate::office::Office;
use crate::site::{Client as Device, LONG, config, record, row_key};

/// A device that gets no answer for so long tries again.
const PATIENCE: Duration = Duration::from_millis(400);
/// Threads that play devices.
const PLAYERS: usize = 4;

pub fn start_gateway(office: &Office, id: GatewayId) -> (Gateway, SocketAddr) {
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
    let settings = Settings::for_plane(&config);
    let about = About {
        dataplane: "host".to_owned(),
        slots: config.geometry.slots.into(),
    };
    let link = ControllerLink::Remote(office.link(id, &[]), about);
    let gateway = Gateway::start(Box::new(host), link, id, settings).unwrap();
    assert!(
        gateway.wait_until(LONG, |status| status.loaded),
        "{:?}",
        gateway.status()
    );
    (gateway, SocketAddr::new(config.local[0], config.lap_port))
}

/// Who is in the fleet.
#[derive(Clone)]
pub struct Spec {
    pub device: DeviceId,
    pub name: String,
    pub gateway: SocketAddr,
    /// Asks it before it has a session.
    pub home: GatewayId,
    /// The group that it proves itself in.
    pub group: &'static str,
    /// It runs something else than its group is to.
    pub is_changed: bool,
}

/// How often a device was let in, and how often not.
type Tally = HashMap<DeviceId, (u64, u64)>;

#[derive(Default)]
struct Shared {
    ends: AtomicBool,
    tally: Mutex<Tally>,
    changed: Condvar,
    keys: Mutex<HashMap<DeviceId, SessionKey>>,
    /// Those that prove nothing for now.
    mute: Mutex<HashSet<DeviceId>>,
    /// From one authentication of a player to its next.
    pause: Mutex<Duration>,
}

pub struct Fleet {
    shared: Arc<Shared>,
    players: Vec<JoinHandle<()>>,
}

impl Fleet {
    /// Enrols all of them, and has them work.
    pub fn start(office: &Office, specs: &[Spec], pause: Duration) -> Self {
        let shared = Arc::new(Shared {
            pause: Mutex::new(pause),
            ..Shared::default()
        });
        for spec in specs {
            enrol(office, spec, &shared);
        }
        let players = specs.chunks(specs.len().div_ceil(PLAYERS)).map(|part| {
            let (shared, part) = (Arc::clone(&shared), part.to_vec());
            std::thread::spawn(move || play(&part, &shared))
        });
        Self {
            players: players.collect(),
            shared,
        }
    }

    /// Whether a device proves nothing from now on.
    pub fn set_mute(&self, device: DeviceId, is_mute: bool) {
        let mut mute = self.shared.mute.lock().unwrap();
        match is_mute {
            true => mute.insert(device),
            false => mute.remove(&device),
        };
    }

    pub fn set_pause(&self, pause: Duration) {
        *self.shared.pause.lock().unwrap() = pause;
    }

    /// Waits until what is known of a device is as wanted: how often it was let in, and how often not.
    #[track_caller]
    pub fn wait(&self, device: DeviceId, wanted: impl Fn((u64, u64)) -> bool) -> (u64, u64) {
        let of = |tally: &Tally| tally.get(&device).copied().unwrap_or_default();
        let tally = self.shared.tally.lock().unwrap();
        let is_missing = |tally: &mut Tally| !wanted(of(tally));
        let (tally, late) = self
            .shared
            .changed
            .wait_timeout_while(tally, LONG, is_missing)
            .unwrap();
        assert!(!late.timed_out(), "{device}: {:?}", of(&tally));
        of(&tally)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        for player in self.players.drain(..) {
            // What it has to say was said when it panicked.
            let _ = player.join();
        }
    }
}

fn play(specs: &[Spec], shared: &Shared) {
    let mut devices: Vec<Device> = specs
        .iter()
        .map(|spec| Device::new(spec.device, Mode::Key, spec.gateway))
        .collect();
    let mut due = Instant::now();
    while !shared.ends.load(Ordering::Relaxed) {
        for device in &mut devices {
            let id = device.device.config().device;
            let is_in = device.authenticate(PATIENCE).is_some();
            if is_in && let Some(key) = device.session_key() {
                shared.keys.lock().unwrap().insert(id, key);
            }
            let mut tally = shared.tally.lock().unwrap();
            let (accepted, refused) = tally.entry(id).or_default();
            match is_in {
                true => *accepted += 1,
                false => *refused += 1,
            }
            drop(tally);
            shared.changed.notify_all();
            if shared.ends.load(Ordering::Relaxed) {
                return;
            }
            // A load, and nothing that is waited for.
            due = Instant::now().max(due + *shared.pause.lock().unwrap());
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }
}

/// Makes a group whose devices are asked so often.
pub fn make_group(office: &Office, name: &str, every_s: u32) {
    let group = NewGroup {
        name: GroupName::new(name.to_owned()).unwrap(),
        policy: GroupPolicy {
            every_s,
            jitter_s: 0,
            answer_ms: 500,
            silent: 3,
            of: 4,
            ..GroupPolicy::default()
        },
        reference: Some(configuration(1).encode()),
        roll_out: None,
    };
    office
        .runtime
        .block_on(office.registry.set_group(&group, 1))
        .unwrap();
}

fn enrol(office: &Office, spec: &Spec, shared: &Arc<Shared>) {
    let device = spec.device;
    let (shared, is_changed) = (Arc::clone(shared), spec.is_changed);
    office.runtime.block_on(async {
        let mut new = record(device, Credentials::Key(row_key(device, 0)));
        new.name.clone_from(&spec.name);
        office.registry.enrol(new).await.unwrap();
        let address = IpAddr::from([127, 0, 1, device.0.to_be_bytes()[7]]);
        let socket = UdpSocket::bind((address, 0)).await.unwrap();
        enrol_prover(&office.registry, spec, socket.local_addr().unwrap()).await;
        tokio::spawn(async move {
            let mut prover = Prover::new(device, Period(0));
            let mut buffer = [0; 2048];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                if shared.mute.lock().unwrap().contains(&device) {
                    continue;
                }
                let session = shared.keys.lock().unwrap().get(&device).cloned();
                let message = &buffer[..length];
                if let Some(proof) = prove(&mut prover, device, is_changed, session.as_ref(), message) {
                    // Whoever has asked is gone.
                    let _ = socket.send_to(&proof, from).await;
                }
            }
        });
    });
}

async fn enrol_prover(registry: &Registry, spec: &Spec, at: SocketAddr) {
    let prover = NewProver {
        device: spec.device,
        group: GroupName::new(spec.group.to_owned()).unwrap(),
        key: attestation_key(spec.device),
        protection: Protection::Software,
        binding: None,
        overlay: None,
        home: Some(Home {
            gateway: spec.home,
            address: at.ip(),
        }),
        port: at.port(),
        enrolled_period: Period(0),
    };
    registry.enrol_prover(prover, 1).await.unwrap();
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
        let by = match in_session {
            true => AskedBy::Session(session?),
            false => AskedBy::Request(&request_key),
        };
        let asked = screened.verify(Some(by)).ok()?;
        let answer = match prover.answer(asked) {
            Answer::Period(start, asked) => {
                let h = configuration(if is_changed { 2 } else { 1 }).hash();
                let key = attestation_key(device).for_period(device, &start, &ConfigurationHash(h.0));
                prover.begin(&asked, &key);
                prover.answer(asked)
            }
            answer => answer,
        };
        answer.bytes().map(<[u8]>::to_vec)
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
