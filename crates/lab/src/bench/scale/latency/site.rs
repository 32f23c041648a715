//! A gateway on the lab's link, its registry, and a fleet in front of it.

use std::net::UdpSocket;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use linewarden_controller::{Controller, Policy};
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
    Fleet, FleetOptions, FleetSpec, Member, Report, Run, SimulatedDevice, device_id, enrol_fleet,
};
use crate::napi::pin_task;
use crate::topology::{Lab, Topology};

/// How long a fleet may take.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// Everything, in the order in which it is taken down.
pub(super) struct Site {
    pub(super) gateway: Gateway,
    /// Another connection to the same file, as a command would open it.
    pub(super) registry: Registry,
    pub(super) runtime: Runtime,
    pub(super) lab: Lab,
    _directory: TempDir,
}

/// Rows that the data plane holds for a device beside the current one; this and the low watermarks are the product's
/// defaults.
const RING: u32 = 15;

impl Site {
    /// Enrols these fleets and starts a gateway that knows nothing of them yet; their members, in the order of their indices.
    pub(super) fn start<const N: usize>(
        specs: [&FleetSpec; N],
        gate: Gate,
    ) -> Result<(Self, [Vec<Member>; N]), BenchError> {
        let mut records = Vec::new();
        let mut members = [const { Vec::new() }; N];
        for (spec, members) in specs.into_iter().zip(&mut members) {
            let mut devices = enrol_fleet(spec, &mut |_| {}).map_err(contradiction)?;
            records.extend(devices.iter_mut().map(record));
            members.extend(devices.into_iter().map(|device| device.member));
        }
        // Every thread of the gateway's inherits its processor: the devices' are another machine's.
        let site = on_cpu(VERIFIER_CPU, || Self::build(records, gate))??;
        Ok((site, members))
    }

    fn build(records: Vec<DeviceRecord>, gate: Gate) -> Result<Self, BenchError> {
        let slots = u32::try_from(records.len()).unwrap_or(u32::MAX);
        let directory = tempfile::tempdir().map_err(io("making a directory"))?;
        let path = directory.path().join("fleet.registry");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(io("starting a runtime"))?;
        let key = MasterKey::from_bytes([0x42; 32]);
        let (own, registry) = runtime.block_on(async {
            let own = Registry::create(&path, &key).await?;
            own.enrol_bulk(records, BulkOptions::default(), |_| {}).await?;
            let other = Registry::open(&path, &key).await?;
            Ok::<_, BenchError>((own, other))
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
        let plane = lab.gateway.run(|| -> Result<Xdp, BenchError> {
            let mut plane = Xdp::load(&config)?;
            plane.attach(index)?;
            Ok(plane)
        })??;
        let settings = Settings::for_plane(&config);
        let policy = Policy {
            lease_rows: RING + 1,
            mark_block: settings.mark_block,
        };
        let controller = Controller::new(own, policy);
        // Among the interfaces whose packets it hands on.
        let start = || Gateway::start(Box::new(plane), controller, keys::GATEWAY_ID, settings);
        let gateway = lab.gateway.run(start)?.map_err(contradiction)?;
        if !gateway.wait_until(LIMIT, |status| status.loaded) {
            return Err(contradiction("the gateway does not start"));
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
        Fleet::new(&self.lab, members, &options).map_err(contradiction)
    }

    /// The fresh value that is in force.
    pub(super) fn fresh(&self) -> Result<[u8; 8], BenchError> {
        let socket = self.lab.devices.run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect((GATEWAY.v4, LAP_PORT))?;
            socket.set_read_timeout(Some(Duration::from_secs(1)))?;
            socket.send(keys::request(0).as_bytes())?;
            let mut answer = [0; 64];
            socket.recv(&mut answer).map(|_| answer)
        });
        let answer = socket?.map_err(io("asking for a CHALLENGE"))?;
        match wire::parse(&answer) {
            Ok(Message::Challenge(challenge)) => Ok(challenge.fresh),
            _ => Err(contradiction("the gateway sends no CHALLENGE")),
        }
    }

    /// The current rows of these devices; 0 of those that are not in the data plane.
    pub(super) fn next_rows(&self, devices: std::ops::Range<u32>) -> Result<Vec<u32>, BenchError> {
        let row = |plane: &mut dyn DataPlane, device| {
            let line = plane.status(device_id(device));
            line.map_or(0, |line| line.commit.idx().0)
        };
        self.gateway
            .with_plane(move |plane| devices.map(|device| row(plane, device)).collect())
            .map_err(contradiction)
    }

    /// Waits until no device waits for rows or for a mark.
    pub(super) fn settle_down(&self) -> Result<(), BenchError> {
        match self
            .gateway
            .wait_until(LIMIT, |status| status.rows_waited_for == 0)
        {
            true => Ok(()),
            false => Err(contradiction("rows are waited for without end")),
        }
    }
}

/// Every device of the fleet authenticates, `window` at a time.
pub(super) fn authenticate(fleet: &mut Fleet, window: usize) -> Result<Report, BenchError> {
    let stop = AtomicBool::new(false);
    let run = || {
        fleet.authenticate(&mut Run {
            window,
            limit: LIMIT,
            stop: &stop,
            progress: &mut |_| {},
        })
    };
    let report = on_cpu(CLIENT_CPU, run)?.map_err(contradiction)?;
    match report.unfinished {
        0 => Ok(report),
        left => Err(contradiction(format!(
            "{left} devices got no session: {:?}",
            report.failures
        ))),
    }
}

/// Runs `work` in a thread on that processor, whose threads it is inherited by.
pub(super) fn on_cpu<T: Send>(cpu: usize, work: impl FnOnce() -> T + Send) -> Result<T, BenchError> {
    let pinned = || {
        pin_task(0, cpu).map_err(io("pinning a thread"))?;
        Ok(work())
    };
    std::thread::scope(|scope| scope.spawn(pinned).join())
        .unwrap_or_else(|_| Err(contradiction("a thread panicked")))
}

pub(super) fn contradiction(what: impl std::fmt::Display) -> BenchError {
    BenchError::Contradiction(what.to_string())
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
