//! A gateway with its controller and its devices, on one simulated clock.

use std::collections::BTreeMap;

use linewarden_controller::{Controller, Link, Policy};
use linewarden_dataplane::Config;
use linewarden_dataplane::host::Timestamps;
use linewarden_gateway::{Clock, Eviction, Node, Settings};
use linewarden_protocol::device::{Device, DeviceConfig, GatewayPolicy, Output};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, Suite};
use linewarden_registry::Registry;
use linewarden_types::{
    AdmitDevices, BootId, ControllerRequest, ControllerResponse, ExtendLeases, ListChanges, ListProverIds,
    ReportSessions, ReportUnusedRows, ResumeLeases, SessionReportResult,
};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tokio::runtime::Runtime;

use super::data_plane::{SimulatedDataPlane, address};
use super::{AccessCounts, row_key};
use crate::bench::{BenchError, keys};
use crate::fleet::device_id;

/// Time between two accesses, ms: with 10,000 devices each device authenticates about once an hour.
const ACCESS_INTERVAL_MS: u64 = 400;
/// Step of the clock while a handshake is in progress, ms.
const STEP_MS: u64 = 10;

/// A gateway that starts without devices.
pub(super) struct Gateway<'r> {
    runtime: &'r Runtime,
    link: Link,
    node: Node,
    data_plane: SimulatedDataPlane,
    now_ms: u64,
    /// Devices in a handshake, by id.
    active: BTreeMap<u64, PendingHandshake>,
    rng: ChaCha8Rng,
    pub(super) counts: AccessCounts,
}

/// A handshake in progress.
struct PendingHandshake {
    device: Device,
    /// A message of the handshake took the slow path.
    took_slow_path: bool,
}

impl<'r> Gateway<'r> {
    pub(super) fn start(
        runtime: &'r Runtime,
        registry: &Registry,
        id: GatewayId,
        slots: u32,
        eviction: Eviction,
    ) -> Result<Self, BenchError> {
        let config = Config {
            gateway_id: id,
            miss_per_s: 1000,
            ..keys::config(slots, 2)
        };
        let settings = Settings {
            eviction,
            // No device is revoked, so the gateway polls rarely: a poll costs more than a handshake.
            feed_poll_ms: 60_000,
            ..Settings::for_data_plane(&config)
        };
        let controller = Controller::new(registry.clone(), Policy::default());
        let link = runtime.block_on(controller.register(id, 0))?;
        let now_ms = 1000;
        let data_plane = SimulatedDataPlane::new(&config, timestamps(now_ms))?;
        let node = Node::new(Box::new(data_plane.clone()), settings)
            .map_err(|error| BenchError::InvalidMeasurement(error.to_string()))?;
        let mut gateway = Self {
            runtime,
            link,
            node,
            data_plane,
            now_ms,
            active: BTreeMap::new(),
            rng: ChaCha8Rng::seed_from_u64(2),
            counts: AccessCounts::default(),
        };
        gateway.run_until_idle()?;
        Ok(gateway)
    }

    /// Advances the clock and starts a handshake of a device. An unfinished handshake continues during the next
    /// accesses.
    pub(super) fn access(&mut self, device: u32) -> Result<(), BenchError> {
        let access_ms = self.now_ms + ACCESS_INTERVAL_MS;
        while self.now_ms < access_ms {
            self.now_ms = match self.active.is_empty() {
                true => access_ms,
                false => self.now_ms + STEP_MS,
            };
            self.data_plane.inner().now = timestamps(self.now_ms);
            self.poll();
            self.run_until_idle()?;
        }
        let id = device_id(device);
        let mut device = Device::new(DeviceConfig {
            device: id,
            suite: Suite::SipHash128,
            mode: Mode::Key,
            gateways: GatewayPolicy::ANY,
            bound_mac: None,
        });
        let output = device
            .start(self.rng.random(), self.now_ms)
            .map_err(|error| BenchError::InvalidMeasurement(error.to_string()))?;
        self.counts.accesses += 1;
        let handshake = PendingHandshake {
            device,
            took_slow_path: false,
        };
        self.counts.failed += u64::from(self.active.insert(id.0, handshake).is_some());
        self.apply_outputs(id.0, output);
        self.run_until_idle()
    }

    /// Polls the timers of all devices in a handshake.
    fn poll(&mut self) {
        let ids: Vec<u64> = self.active.keys().copied().collect();
        for id in ids {
            if let Some(handshake) = self.active.get_mut(&id) {
                let output = handshake.device.poll(self.now_ms);
                self.apply_outputs(id, output);
            }
        }
    }

    /// Processes datagrams and requests to the controller until none is pending at the current time.
    fn run_until_idle(&mut self) -> Result<(), BenchError> {
        loop {
            let delivered = self.deliver();
            let clock = clock(self.now_ms);
            let rng = &mut self.rng;
            let requests = self.node.tick(clock, &mut || Some(rng.random()));
            if requests.is_empty() && !delivered && self.data_plane.inner().replies.is_empty() {
                return Ok(());
            }
            for request in requests {
                let response = self.respond(request)?;
                self.node.handle_response(response, clock, self.rng.random());
            }
        }
    }

    /// Delivers replies to their devices; returns whether there were any.
    fn deliver(&mut self) -> bool {
        let mut delivered = false;
        loop {
            let replies = std::mem::take(&mut self.data_plane.inner().replies);
            if replies.is_empty() {
                return delivered;
            }
            delivered = true;
            for (id, payload) in replies {
                if let Some(handshake) = self.active.get_mut(&id)
                    && let Ok(output) = handshake.device.handle(&payload, &address(id), self.now_ms)
                {
                    self.apply_outputs(id, output);
                }
            }
        }
    }

    /// Applies a device's outputs and counts a handshake that has ended.
    fn apply_outputs(&mut self, id: u64, mut output: Output) {
        let Some(mut handshake) = self.active.remove(&id) else {
            return;
        };
        loop {
            output = match output {
                Output::Transmit(message) => {
                    let mut data_plane = self.data_plane.inner();
                    data_plane.receive(message);
                    handshake.took_slow_path |=
                        std::mem::take(&mut data_plane.slow_path_devices).contains(&id);
                    handshake.device.poll(self.now_ms)
                }
                Output::EvaluatePuf(_) => {
                    let key = row_key(DeviceId(id));
                    handshake.device.puf_result(Ok(key), self.now_ms)
                }
                Output::Authenticated(_) => {
                    self.counts.hits += u64::from(!handshake.took_slow_path);
                    return;
                }
                Output::Failed { .. } | Output::NeedNonce | Output::SessionExpired => {
                    self.counts.failed += 1;
                    return;
                }
                Output::Postponed { .. } | Output::None => {
                    self.active.insert(id, handshake);
                    return;
                }
            };
        }
    }

    fn respond(&mut self, request: ControllerRequest) -> Result<ControllerResponse, BenchError> {
        let (runtime, link) = (self.runtime, &self.link);
        Ok(match request {
            ControllerRequest::Register => ControllerResponse::Register(Ok(link.token_number())),
            ControllerRequest::ResumeLeases(ResumeLeases { cursor }) => {
                let mut leases = link.leases_from(cursor);
                ControllerResponse::ResumeLeases(Ok(runtime.block_on(leases.next_chunk())?))
            }
            ControllerRequest::ExtendLeases(ExtendLeases(requests)) => {
                ControllerResponse::ExtendLeases(Ok(runtime.block_on(link.extend_leases(&requests))?))
            }
            ControllerRequest::AdmitDevices(AdmitDevices { requests, fresh }) => {
                ControllerResponse::AdmitDevices(Ok(runtime.block_on(link.admit_devices(&requests, fresh))?))
            }
            ControllerRequest::ReportUnusedRows(ReportUnusedRows(unused_rows)) => {
                let returned = runtime.block_on(link.record_unused_rows(&unused_rows))?;
                ControllerResponse::ReportUnusedRows(Ok(returned))
            }
            ControllerRequest::ListProverIds(ListProverIds { since }) => {
                ControllerResponse::ListProverIds(Ok(runtime.block_on(link.prover_ids(since))?))
            }
            ControllerRequest::ReportSessions(ReportSessions { reports, .. }) => {
                // With a single gateway no device has a session elsewhere.
                ControllerResponse::ReportSessions(Ok(vec![SessionReportResult::Newest; reports.len()]))
            }
            ControllerRequest::ListChanges(ListChanges { since }) => {
                let now = controller_clock(self.now_ms.saturating_mul(1_000_000));
                let changes = runtime.block_on(link.changes_since(since, Some(now)))?;
                ControllerResponse::ListChanges(Ok((changes, None)))
            }
            request => {
                return Err(BenchError::InvalidMeasurement(format!(
                    "unexpected request in the eviction benchmark: {}",
                    request.kind().name()
                )));
            }
        })
    }
}

fn clock(now_ms: u64) -> Clock {
    let now_ns = now_ms.saturating_mul(1_000_000);
    Clock {
        monotonic_ns: now_ns,
        boot_ns: now_ns,
    }
}

fn controller_clock(boot_ns: u64) -> linewarden_types::BootTimestamp {
    linewarden_types::BootTimestamp {
        boot_id: BootId([1; 16]),
        ns: i64::try_from(boot_ns).unwrap_or(i64::MAX),
    }
}

fn timestamps(now_ms: u64) -> Timestamps {
    Timestamps {
        monotonic_ns: now_ms.saturating_mul(1_000_000),
        boot_ns: now_ms.saturating_mul(1_000_000),
    }
}
