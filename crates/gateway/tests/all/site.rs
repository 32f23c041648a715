//! A site for tests: a registry file, a gateway over the `host` data plane on loopback, and devices that send LAP/1
//! over their own sockets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linewarden_controller::{Controller, InProcess, InProcessController, Policy};
use linewarden_dataplane::host::{Host, HostOptions};
use linewarden_dataplane::{Config, Gate, Geometry};
use linewarden_gateway::{Gateway, Node, Settings};
use linewarden_protocol::device::{Device, DeviceConfig, GatewayPolicy, Output};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::{RowKey, SessionKey};
use linewarden_registry::{Credentials, DeviceRecord, MasterKey, PoolRow, Registry};

pub const GATEWAY: GatewayId = GatewayId(3);
pub const TIMEOUT: Duration = Duration::from_secs(20);

pub fn config() -> Config {
    let address = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    Config {
        gateway_id: GATEWAY,
        session_lifetime_s: 300,
        lap_port: address.port(),
        local: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
        device_prefixes: vec!["127.0.0.0/8".parse().unwrap()],
        follows_interfaces: false,
        other_addresses: Vec::new(),
        fragments: false,
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
        inband_evidence: false,
        always_pass: Vec::new(),
        dhcp_servers: Vec::new(),
    }
}

/// A node on the `host` data plane with one thread.
pub fn host_node(config: &Config) -> Node {
    let options = HostOptions {
        threads: 1,
        ..HostOptions::default()
    };
    let host = Host::start(config, &options).unwrap();
    Node::new(Box::new(host), Settings::for_data_plane(config)).unwrap()
}

pub fn record(device: DeviceId, credentials: Credentials) -> DeviceRecord {
    DeviceRecord {
        device,
        name: String::new(),
        suite: Suite::SipHash128,
        enrolled_at_s: 0,
        puf_profile: "test".to_owned(),
        credentials,
    }
}

pub fn row_key(device: DeviceId, idx: u32) -> RowKey {
    let mut key = [0x5a; 16];
    key[..8].copy_from_slice(&device.0.to_be_bytes());
    key[8..12].copy_from_slice(&idx.to_be_bytes());
    RowKey::from_bytes(key)
}

pub fn pool(device: DeviceId, rows: u32) -> Credentials {
    let row = |idx| PoolRow {
        challenge: [1; 8],
        row_key: row_key(device, idx),
    };
    Credentials::pool((0..rows).map(row).collect())
}

/// A device on its own socket. The test advances the device's clock, so the test never waits for the device's timers.
pub struct TestDevice {
    pub device: Device,
    pub socket: UdpSocket,
    pub address: Ipv4Addr,
    now_ms: u64,
    pub nonce: u8,
}

impl TestDevice {
    pub fn new(device: DeviceId, mode: Mode, gateway: SocketAddr) -> Self {
        // Each device has its own address, because two live sessions must not have the same address.
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

    pub fn session_key(&self) -> Option<SessionKey> {
        self.device.session().map(|session| session.key().clone())
    }

    /// Authenticates; returns the row of the session, or `None` if no session opens within `timeout` of real time.
    pub fn authenticate(&mut self, timeout: Duration) -> Option<RowIndex> {
        self.now_ms += 3_600_000;
        // A nonce of zeros is not used.
        self.nonce = self.nonce.wrapping_add(1).max(1);
        self.device.abandon();
        let mut output = self.device.start([self.nonce; 16], self.now_ms).unwrap();
        let local = self.address.to_ipv6_mapped().octets();
        let deadline = Instant::now() + timeout;
        let mut buffer = [0u8; 2048];
        while Instant::now() < deadline {
            output = match output {
                Output::Transmit(message) => {
                    self.socket.send(&message).unwrap();
                    self.device.poll(self.now_ms)
                }
                Output::EvaluatePuf(query) => {
                    let idx = match query.mode {
                        Mode::Pool => query.idx.0,
                        // In key mode the only row has number 0.
                        Mode::Key => 0,
                    };
                    let key = row_key(self.device.config().device, idx);
                    self.device.puf_result(Ok(key), self.now_ms)
                }
                Output::Authenticated(_) => return Some(self.device.session().unwrap().idx),
                _ => match self.socket.recv(&mut buffer) {
                    Ok(length) => self
                        .device
                        .handle(&buffer[..length], &local, self.now_ms)
                        .unwrap_or(Output::None),
                    Err(_) => {
                        // The device's clock advances far enough for the next copy. The socket's read timeout separates
                        // the copies in real time.
                        self.now_ms += 50;
                        self.device.poll(self.now_ms)
                    }
                },
            };
        }
        None
    }
}

pub struct Site {
    pub _directory: tempfile::TempDir,
    pub path: std::path::PathBuf,
    pub key: MasterKey,
    pub registry: Registry,
    pub config: Config,
    pub runtime: tokio::runtime::Runtime,
}

impl Site {
    pub fn new(devices: Vec<DeviceRecord>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fleet.registry");
        let key = MasterKey::from_bytes([7; 32]);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let registry = runtime.block_on(Registry::create(&path, &key)).unwrap();
        for device in devices {
            runtime.block_on(registry.enroll(device)).unwrap();
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

    pub fn start(&self) -> Gateway {
        self.start_with(|controller| controller)
    }

    pub fn start_with(&self, configure: impl FnOnce(Controller) -> Controller) -> Gateway {
        self.start_over(self.controller(configure))
    }

    /// A controller of the gateway.
    pub fn controller(&self, configure: impl FnOnce(Controller) -> Controller) -> Arc<InProcessController> {
        let policy = Policy {
            lease_rows: 9,
            mark_block: 4,
        };
        let controller = configure(Controller::new(self.registry.clone(), policy));
        Arc::new(InProcess::link(controller, GATEWAY))
    }

    pub fn start_over(&self, controller: Arc<InProcessController>) -> Gateway {
        let options = HostOptions {
            threads: 1,
            ..HostOptions::default()
        };
        let host = Host::start(&self.config, &options).unwrap();
        let settings = Settings::for_data_plane(&self.config);
        let gateway = Gateway::start(Box::new(host), controller, settings).unwrap();
        assert!(gateway.wait_until(TIMEOUT, |status| status.loaded));
        gateway
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.config.local[0], self.config.lap_port)
    }

    pub fn floor(&self, device: DeviceId) -> u32 {
        self.runtime
            .block_on(self.registry.get(device))
            .unwrap()
            .idx_floor
            .0
    }
}

/// Abandons a gateway without a shutdown, so the gateway sends no last report, like a killed process. Its threads keep
/// running. Returns the site with another port and a newly opened registry.
pub fn kill(gateway: Gateway, site: Site) -> Site {
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
