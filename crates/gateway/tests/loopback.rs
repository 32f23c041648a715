//! A whole gateway: registry file, node, `host` data plane on loopback, and a device that speaks LAP/1 over a socket.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use linewarden_controller::{Controller, Policy};
use linewarden_dataplane::host::{Host, HostOptions};
use linewarden_dataplane::{Config, Gate, Geometry};
use linewarden_gateway::{Gateway, Settings};
use linewarden_protocol::device::{Device, DeviceConfig, GatewayPolicy, Output};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_protocol::verdict::Verdict;
use linewarden_registry::{Credentials, DeviceRecord, MasterKey, PoolRow, Registry};

const GATEWAY: GatewayId = GatewayId(3);
const LONG: Duration = Duration::from_secs(20);

fn config() -> Config {
    let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    Config {
        gateway_id: GATEWAY,
        lease_s: 300,
        lap_port: free.port(),
        local: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
        gate: Gate::Off,
        nak_per_s: 1000,
        alarm_per_s: 10,
        miss_per_s: 1000,
        low_rows: 2,
        low_credit: 2,
        geometry: Geometry {
            slots: 64,
            ring: 8,
            hash_seed: [5, 6],
        },
        provers: 0,
        classic: None,
        p4dra: None,
    }
}

fn record(device: DeviceId, credentials: Credentials) -> DeviceRecord {
    DeviceRecord {
        device,
        name: String::new(),
        suite: Suite::SipHash128,
        enrolled_at_s: 0,
        puf_profile: "test".to_owned(),
        credentials,
    }
}

fn row_key(device: DeviceId, idx: u32) -> RowKey {
    let mut key = [0x5a; 16];
    key[..8].copy_from_slice(&device.0.to_be_bytes());
    key[8..12].copy_from_slice(&idx.to_be_bytes());
    RowKey::from_bytes(key)
}

fn pool(device: DeviceId, rows: u32) -> Credentials {
    let row = |idx| PoolRow {
        challenge: [1; 8],
        row_key: row_key(device, idx),
    };
    Credentials::pool((0..rows).map(row).collect())
}

/// A device on a socket of its own. Its clock is moved by hand, so that it never has to rest.
struct Client {
    device: Device,
    socket: UdpSocket,
    address: Ipv4Addr,
    now_ms: u64,
    nonce: u8,
}

impl Client {
    fn new(device: DeviceId, mode: Mode, gateway: SocketAddr) -> Self {
        // An address of its own each: no two live sessions may share one.
        let address = Ipv4Addr::new(127, 0, 1, device.0.to_be_bytes()[7]);
        let socket = UdpSocket::bind((address, 0)).unwrap();
        socket.connect(gateway).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        Self {
            device: Device::new(DeviceConfig {
                device,
                suite: Suite::SipHash128,
                mode,
                gateways: GatewayPolicy::ANY,
                bound_mac: None,
            }),
            socket,
            address,
            now_ms: 0,
            nonce: 0,
        }
    }

    /// One handshake; the row it was done with, or `None` without an answer in `patience` of real time.
    fn authenticate(&mut self, patience: Duration) -> Option<RowIndex> {
        self.now_ms += 3_600_000;
        self.nonce += 1;
        self.device.abandon();
        let mut output = self.device.start([self.nonce; 16], self.now_ms).unwrap();
        let local = self.address.to_ipv6_mapped().octets();
        let until = Instant::now() + patience;
        let mut buffer = [0u8; 2048];
        while Instant::now() < until {
            output = match output {
                Output::Transmit(message) => {
                    self.socket.send(&message).unwrap();
                    self.device.poll(self.now_ms)
                }
                Output::EvaluatePuf(query) => {
                    let key = row_key(self.device.config().device, query.idx.0);
                    self.device.puf_result(Ok(key), self.now_ms)
                }
                Output::Authenticated(_) => return Some(self.device.session().unwrap().idx),
                _ => match self.socket.recv(&mut buffer) {
                    Ok(length) => self
                        .device
                        .handle(&buffer[..length], &local, self.now_ms)
                        .unwrap_or(Output::None),
                    Err(_) => {
                        // Time enough for the next copy; the machine's own clock decides what is sent.
                        self.now_ms += 50;
                        self.device.poll(self.now_ms)
                    }
                },
            };
        }
        None
    }
}

struct Site {
    _directory: tempfile::TempDir,
    path: std::path::PathBuf,
    key: MasterKey,
    registry: Registry,
    config: Config,
    runtime: tokio::runtime::Runtime,
}

impl Site {
    fn new(devices: Vec<DeviceRecord>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fleet.registry");
        let key = MasterKey::from_bytes([7; 32]);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let registry = runtime.block_on(Registry::create(&path, &key)).unwrap();
        for device in devices {
            runtime.block_on(registry.enrol(device)).unwrap();
        }
        Self {
            _directory: directory,
            path,
            key,
            registry,
            config: config(),
            runtime,
        }
    }

    fn start(&self) -> Gateway {
        let options = HostOptions {
            threads: 1,
            ..HostOptions::default()
        };
        let host = Host::start(&self.config, &options).unwrap();
        let settings = Settings::for_plane(&self.config);
        let policy = Policy {
            lease_rows: 9,
            mark_block: 4,
        };
        let controller = Controller::new(self.registry.clone(), policy);
        let gateway = Gateway::start(Box::new(host), controller, GATEWAY, settings).unwrap();
        assert!(gateway.wait_until(LONG, |status| status.loaded));
        gateway
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.config.local[0], self.config.lap_port)
    }

    fn floor(&self, device: DeviceId) -> u32 {
        self.runtime
            .block_on(self.registry.get(device))
            .unwrap()
            .idx_floor
            .0
    }
}

/// A gateway that is gone without a word, as if its process had been killed.
fn kill(gateway: Gateway, site: Site) -> Site {
    std::mem::forget(gateway);
    Site {
        config: config(),
        registry: site
            .runtime
            .block_on(Registry::open(&site.path, &site.key))
            .unwrap(),
        ..site
    }
}

#[test]
fn a_pool_lasts_to_its_last_row_across_a_stop() {
    let device = DeviceId(0xd1);
    let site = Site::new(vec![record(device, pool(device, 30))]);
    let gateway = site.start();
    assert_eq!(gateway.status().devices, 0, "nobody has proved anything yet");
    let mut client = Client::new(device, Mode::Pool, site.address());
    for expected in 0..11 {
        assert_eq!(client.authenticate(LONG), Some(RowIndex(expected)));
    }
    let stopped = gateway.stop().unwrap();
    assert!(stopped.settled);
    assert_eq!(stopped.status.admitted, 1);
    assert_eq!(stopped.counters.get(Verdict::ReplyAck), 11);

    let gateway = site.start();
    assert_eq!(gateway.status().devices, 1, "its lease goes on");
    for expected in 11..30 {
        assert_eq!(client.authenticate(LONG), Some(RowIndex(expected)));
    }
    let exhausted = gateway.wait_until(LONG, |status| status.exhausted == 1);
    assert!(exhausted, "{:?}", gateway.status());
    assert_eq!(client.authenticate(Duration::from_millis(300)), None);
    assert!(gateway.counters().unwrap().get(Verdict::ReplyNak) > 0);
    assert_eq!(gateway.status().admitted, 0);
}

#[test]
fn a_gateway_that_is_killed_never_offers_a_row_again_and_loses_a_block_at_most() {
    let device = DeviceId(0xd2);
    let mut site = Site::new(vec![record(device, pool(device, 40))]);
    let mut least = 0;
    for _ in 0..4 {
        let gateway = site.start();
        let mut client = Client::new(device, Mode::Pool, site.address());
        for _ in 0..2 {
            let idx = client.authenticate(LONG).unwrap().0;
            // A device that comes often gets a mark that is moved further ahead.
            assert!(idx >= least && idx < least + 15, "{idx} after {least}");
            least = idx + 1;
        }
        site = kill(gateway, site);
    }
}

#[test]
fn a_gateway_that_was_replaced_without_its_knowledge_spends_no_row_of_its_successor() {
    let device = DeviceId(0xd7);
    let site = Site::new(vec![record(device, pool(device, 40))]);
    let zombie = site.start();
    let old_address = site.address();
    let mut client = Client::new(device, Mode::Pool, old_address);
    let mut seen = vec![client.authenticate(LONG).unwrap()];
    let elsewhere = Site {
        config: config(),
        ..site
    };
    let _successor = elsewhere.start();
    let mut newer = Client::new(device, Mode::Pool, elsewhere.address());
    newer.socket = client.socket.try_clone().unwrap();
    newer.socket.connect(elsewhere.address()).unwrap();
    for _ in 0..3 {
        seen.push(newer.authenticate(LONG).unwrap());
    }
    assert!(zombie.wait_until(LONG, |status| status.replaced));
    // Another nonce than any before.
    client.nonce = 100;
    client.socket.connect(old_address).unwrap();
    seen.extend(client.authenticate(Duration::from_millis(300)));
    let before = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), before, "{seen:?}");
}

#[test]
fn more_devices_than_places_take_turns_and_no_row_is_lost() {
    let ids = 1..=20u64;
    let site = Site::new(
        ids.clone()
            .map(|id| record(DeviceId(id), pool(DeviceId(id), 12)))
            .collect(),
    );
    let site = Site {
        config: Config {
            geometry: Geometry {
                slots: 6,
                ..site.config.geometry.clone()
            },
            ..site.config
        },
        ..site
    };
    let gateway = site.start();
    let mut clients: Vec<Client> = ids
        .map(|id| Client::new(DeviceId(id), Mode::Pool, site.address()))
        .collect();
    for round in 0..4 {
        for client in &mut clients {
            let idx = client.authenticate(LONG);
            assert_eq!(idx, Some(RowIndex(round)), "{}", client.device.config().device);
        }
    }
    let status = gateway.stop().unwrap().status;
    assert!(status.evicted >= 60, "{status:?}");
    assert!(status.admitted >= 70, "{status:?}");
}

#[test]
fn a_revocation_by_another_process_shuts_the_device_out() {
    let (lost, kept) = (DeviceId(0xd3), DeviceId(0xd4));
    let key = |device| Credentials::Key(row_key(device, 0));
    let site = Site::new(vec![record(lost, key(lost)), record(kept, key(kept))]);
    let gateway = site.start();
    let mut client = Client::new(lost, Mode::Key, site.address());
    let mut other = Client::new(kept, Mode::Key, site.address());
    // In key mode the row's number only counts; the test's key is the one of number 0.
    assert_eq!(client.authenticate(LONG), Some(RowIndex(0)));

    let elsewhere = site
        .runtime
        .block_on(Registry::open(&site.path, &site.key))
        .unwrap();
    site.runtime.block_on(elsewhere.revoke(lost, "lost", 1)).unwrap();
    assert!(gateway.wait_until(LONG, |status| status.revoked == 1));
    assert_eq!(client.authenticate(Duration::from_millis(300)), None);
    assert!(gateway.counters().unwrap().get(Verdict::DropRevoked) > 0);
    assert_eq!(other.authenticate(LONG), Some(RowIndex(0)));

    let new = DeviceId(0xd5);
    site.runtime
        .block_on(elsewhere.enrol(record(new, key(new))))
        .unwrap();
    let mut client = Client::new(new, Mode::Key, site.address());
    assert_eq!(client.authenticate(LONG), Some(RowIndex(0)));
    assert!(gateway.wait_until(LONG, |status| status.devices == 2));
}

#[test]
fn who_is_not_enrolled_or_revoked_before_meets_silence() {
    let (stranger, revoked) = (DeviceId(0xd8), DeviceId(0xd9));
    let site = Site::new(vec![record(revoked, pool(revoked, 9))]);
    site.runtime
        .block_on(site.registry.revoke(revoked, "", 1))
        .unwrap();
    let gateway = site.start();
    for device in [stranger, revoked] {
        let mut client = Client::new(device, Mode::Pool, site.address());
        assert_eq!(client.authenticate(Duration::from_millis(200)), None);
    }
    let stopped = gateway.stop().unwrap();
    // They do not even reach the slow path.
    assert!(stopped.counters.get(Verdict::DropUnknownDevice) > 0);
    assert_eq!(stopped.counters.get(Verdict::SlowPath), 0);
    assert_eq!((stopped.status.admitted, site.floor(revoked)), (0, 0));
}
