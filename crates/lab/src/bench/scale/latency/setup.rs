//! A gateway on the lab's link with its registry, and a fleet.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use linewarden_controller::{Controller, InProcess, Policy};
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{Config, DataPlane, Gate};
use linewarden_gateway::{Gateway, Settings};
use linewarden_protocol::ids::{Mode, Suite};
use linewarden_protocol::wire::{self, LAP_PORT, Message};
use linewarden_registry::{BulkOptions, Credentials, DeviceRecord, MasterKey, PoolRow, Registry};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use zerocopy::IntoBytes as _;

use crate::address::GATEWAY;
pub(super) use crate::bench::latency::CLIENT_CPU;
use crate::bench::latency::VERIFIER_CPU;
use crate::bench::{BenchError, io, keys};
use crate::fleet::{
    Fleet, FleetOptions, FleetSpec, Member, Report, RunOptions, SimulatedDevice, device_id, enroll_fleet,
};
use crate::napi::pin_task;
use crate::topology::{Lab, Topology};

/// Timeout for a fleet or the gateway.
pub(super) const TIMEOUT: Duration = Duration::from_secs(120);

/// A running gateway with registry and network; the fields are dropped in this order.
pub(super) struct GatewaySetup {
    pub(super) gateway: Gateway,
    /// A second connection to the registry file, as a command opens it.
    pub(super) registry: Registry,
    pub(super) runtime: Runtime,
    pub(super) lab: Lab,
    _directory: TempDir,
}

/// Rows that the data plane holds for a device in addition to the current row; this value and the low watermarks are the
/// defaults.
const RING: u32 = 15;

impl GatewaySetup {
    /// Enrolls these fleets and starts a gateway without their devices; returns each fleet's members in the order of
    /// their indices.
    pub(super) fn start<const N: usize>(
        specs: [&FleetSpec; N],
        gate: Gate,
    ) -> Result<(Self, [Vec<Member>; N]), BenchError> {
        let mut records = Vec::new();
        let mut members = [const { Vec::new() }; N];
        for (spec, members) in specs.into_iter().zip(&mut members) {
            let mut devices = enroll_fleet(spec, &mut |_| {}).map_err(invalid_measurement)?;
            records.extend(devices.iter_mut().map(record));
            members.extend(devices.into_iter().map(|device| device.member));
        }
        // All threads of the gateway inherit its CPU; the devices use another CPU.
        let setup = on_cpu(VERIFIER_CPU, || Self::build(records, gate))??;
        Ok((setup, members))
    }

    fn build(records: Vec<DeviceRecord>, gate: Gate) -> Result<Self, BenchError> {
        let slots = u32::try_from(records.len()).unwrap_or(u32::MAX);
        let directory = tempfile::tempdir().map_err(io("create a directory"))?;
        let path = directory.path().join("fleet.registry");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(io("start the async runtime"))?;
        let key = MasterKey::from_bytes([0x42; 32]);
        let (controller_registry, registry) = runtime.block_on(async {
            let controller_registry = Registry::create(&path, &key).await?;
            controller_registry
                .enroll_bulk(records, BulkOptions::default(), |_| {})
                .await?;
            let test_registry = Registry::open(&path, &key).await?;
            Ok::<_, BenchError>((controller_registry, test_registry))
        })?;
        let lab = Lab::build(&Topology {
            ipv6: false,
            ..Topology::default()
        })?;
        let config = Config {
            gate,
            miss_per_s: 10_000,
            low_rows: 2,
            low_credit: 2,
            ..keys::config(slots, RING)
        };
        let index = lab.gateway_devices_end.index;
        let data_plane = lab.gateway.run(|| -> Result<Xdp, BenchError> {
            let mut data_plane = Xdp::load(&config)?;
            data_plane.attach(index)?;
            Ok(data_plane)
        })??;
        let settings = Settings::for_data_plane(&config);
        let policy = Policy {
            lease_rows: RING + 1,
            mark_block: settings.mark_block,
        };
        let controller = Arc::new(InProcess::link(
            Controller::new(controller_registry, policy),
            keys::GATEWAY_ID,
        ));
        // The gateway starts in the namespace of its interfaces.
        let start = || Gateway::start(Box::new(data_plane), controller, settings);
        let gateway = lab.gateway.run(start)?.map_err(invalid_measurement)?;
        if !gateway.wait_until(TIMEOUT, |status| status.loaded) {
            return Err(invalid_measurement("the gateway has not started within 120 s"));
        }
        Ok(Self {
            gateway,
            registry,
            runtime,
            lab,
            _directory: directory,
        })
    }

    pub(super) fn fleet(&self, members: Vec<Member>, first_index: u32) -> Result<Fleet, BenchError> {
        let options = FleetOptions {
            first_index,
            ..FleetOptions::new([first_index.to_le_bytes()[0]; 32])
        };
        Fleet::new(&self.lab, members, &options).map_err(invalid_measurement)
    }

    /// Requests a CHALLENGE and returns its freshness value.
    pub(super) fn fresh(&self) -> Result<[u8; 8], BenchError> {
        let socket = self.lab.devices.run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect((GATEWAY.v4, LAP_PORT))?;
            socket.set_read_timeout(Some(Duration::from_secs(1)))?;
            socket.send(keys::request(0).as_bytes())?;
            let mut reply = [0; 64];
            socket.recv(&mut reply).map(|_| reply)
        });
        let reply = socket?.map_err(io("request a CHALLENGE"))?;
        match wire::parse(&reply) {
            Ok(Message::Challenge(challenge)) => Ok(challenge.fresh),
            _ => Err(invalid_measurement("the gateway's reply is not a CHALLENGE")),
        }
    }

    /// The current row index of each device; 0 for devices that are not in the data plane.
    pub(super) fn next_rows(&self, devices: std::ops::Range<u32>) -> Result<Vec<u32>, BenchError> {
        let row = |data_plane: &mut dyn DataPlane, device| {
            let line = data_plane.status(device_id(device));
            line.map_or(0, |line| line.commit.idx().0)
        };
        self.gateway
            .with_data_plane(move |data_plane| devices.map(|device| row(data_plane, device)).collect())
            .map_err(invalid_measurement)
    }

    /// Waits until no device waits for rows or for a mark.
    pub(super) fn wait_for_rows(&self) -> Result<(), BenchError> {
        match self
            .gateway
            .wait_until(TIMEOUT, |status| status.waiting_for_rows == 0)
        {
            true => Ok(()),
            false => Err(invalid_measurement(
                "the gateway still waits for rows after 120 s",
            )),
        }
    }
}

/// Authenticates every device of the fleet with `window` concurrent handshakes.
pub(super) fn authenticate(fleet: &mut Fleet, window: usize) -> Result<Report, BenchError> {
    let stop = AtomicBool::new(false);
    let run = || {
        fleet.authenticate(&mut RunOptions {
            window,
            timeout: TIMEOUT,
            stop: &stop,
            progress: &mut |_| {},
        })
    };
    let report = on_cpu(CLIENT_CPU, run)?.map_err(invalid_measurement)?;
    match report.unfinished {
        0 => Ok(report),
        unfinished => Err(invalid_measurement(format!(
            "{unfinished} devices without a session: {:?}",
            report.failures
        ))),
    }
}

/// Runs `work` in a thread on `cpu`; threads that `work` starts inherit the CPU.
pub(super) fn on_cpu<T: Send>(cpu: usize, work: impl FnOnce() -> T + Send) -> Result<T, BenchError> {
    let pinned = || {
        pin_task(0, cpu).map_err(io("pin a thread"))?;
        Ok(work())
    };
    std::thread::scope(|scope| scope.spawn(pinned).join())
        .unwrap_or_else(|_| Err(invalid_measurement("a thread panicked")))
}

pub(super) fn invalid_measurement(reason: impl std::fmt::Display) -> BenchError {
    BenchError::InvalidMeasurement(reason.to_string())
}

fn record(device: &mut SimulatedDevice) -> DeviceRecord {
    let mut keys = std::mem::take(&mut device.keys).into_iter();
    let credentials = match (device.member.config.mode, keys.next()) {
        (Mode::Key, Some(key)) => Credentials::Key(key.row_key),
        (_, first) => Credentials::pool(
            first
                .into_iter()
                .chain(keys)
                .map(|key| PoolRow {
                    challenge: key.challenge,
                    row_key: key.row_key,
                })
                .collect(),
        ),
    };
    DeviceRecord {
        device: device.member.config.device,
        name: String::new(),
        suite: Suite::SipHash128,
        enrolled_at_s: 0,
        puf_profile: String::new(),
        credentials,
    }
}
