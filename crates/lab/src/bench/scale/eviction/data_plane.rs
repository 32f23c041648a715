//! The `host` data plane without sockets and with a simulated clock: the production store and verifier.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linewarden_dataplane::host::{Engine, Host, ThreadState, Timestamps};
use linewarden_dataplane::{
    Admission, Attestation, ClosedSession, Config, Counters, DataPlane, DataPlaneError, Devices, Event,
    Evidence, KeyedSession, LineStatus, LiveSettings, Miss, Row, SessionView, StoreError, Telemetry,
};
use linewarden_protocol::attest::Round;
use linewarden_protocol::frame::{Meta, ip_from_bytes};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, SessionId};
use linewarden_protocol::sources::DeviceSources;
use linewarden_protocol::verdict::{Disposition, Verdict};
use linewarden_protocol::wire::AttestRequest;

/// A device id and a message from or to the device.
pub(super) type Datagram = (u64, [u8; 64]);

pub(super) struct Inner {
    host: Host,
    engine: Arc<Engine>,
    thread: ThreadState,
    pub(super) now: Timestamps,
    misses: Vec<Miss>,
    pub(super) replies: Vec<Datagram>,
    /// Devices with a message that took the slow path or was dropped before the slow path.
    pub(super) slow_path_devices: Vec<u64>,
}

/// A data plane that the gateway process and the simulated network share.
#[derive(Clone)]
pub(super) struct SimulatedDataPlane(Arc<Mutex<Inner>>);

impl SimulatedDataPlane {
    pub(super) fn new(config: &Config, now: Timestamps) -> Result<Self, DataPlaneError> {
        let mut host = Host::new(config)?;
        let (engine, thread) = (host.engine(), host.thread_state());
        Ok(Self(Arc::new(Mutex::new(Inner {
            host,
            engine,
            thread,
            now,
            misses: Vec::new(),
            replies: Vec::new(),
            slow_path_devices: Vec::new(),
        }))))
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        // A poisoned lock is usable: no thread can panic with a partly changed state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A device's address, computed from its id.
pub(super) fn address(device: u64) -> [u8; 16] {
    let mut address = [0; 16];
    address[..2].copy_from_slice(&[0xfd, 0x66]);
    address[8..].copy_from_slice(&device.to_be_bytes());
    address
}

fn sender(payload: &[u8; 64]) -> u64 {
    let mut id = [0; 8];
    id.copy_from_slice(&payload[8..16]);
    u64::from_be_bytes(id)
}

impl Inner {
    /// Processes a datagram from the device with the id in the payload.
    pub(super) fn receive(&mut self, payload: [u8; 64]) {
        let device = sender(&payload);
        let from = Meta {
            src_ip: address(device),
            src_port: 40_000,
            ..Meta::default()
        };
        let mut reply = payload;
        let verdict = self.engine.process(&mut self.thread, self.now, &from, &mut reply);
        if verdict == Verdict::DropShed {
            self.slow_path_devices.push(device);
        }
        if verdict == Verdict::SlowPath {
            self.slow_path_devices.push(device);
            let source = ip_from_bytes(from.src_ip);
            self.misses.push(Miss::new(payload, source, [0; 8]));
        }
        if verdict.disposition() == Disposition::Reply {
            self.replies.push((device, reply));
        }
    }
}

impl Devices for SimulatedDataPlane {
    fn install(
        &mut self,
        device: DeviceId,
        mode: Mode,
        next: RowIndex,
        rows: &[Row],
        mark: Option<RowIndex>,
    ) -> Result<(), StoreError> {
        self.inner().host.install(device, mode, next, rows, mark)
    }

    fn grant(&mut self, device: DeviceId, mark: RowIndex) -> Result<(), StoreError> {
        self.inner().host.grant(device, mark)
    }

    fn refill(&mut self, device: DeviceId, first: RowIndex, rows: &[Row]) -> Result<RowIndex, StoreError> {
        self.inner().host.refill(device, first, rows)
    }

    fn revoke(&mut self, device: DeviceId) -> Result<(), StoreError> {
        self.inner().host.revoke(device)
    }

    fn wipe(&mut self, device: DeviceId) -> Result<(), StoreError> {
        self.inner().host.wipe(device)
    }

    fn close_session(&mut self, device: DeviceId, session: SessionId) -> Result<bool, StoreError> {
        self.inner().host.close_session(device, session)
    }

    fn set_epoch(&mut self, device: DeviceId, epoch: u32) {
        self.inner().host.set_epoch(device, epoch);
    }

    fn status(&self, device: DeviceId) -> Option<LineStatus> {
        self.inner().host.status(device)
    }

    fn session(&self, device: DeviceId) -> Option<SessionView> {
        self.inner().host.session(device)
    }

    fn keyed_sessions(&self, devices: &[DeviceId]) -> Vec<Option<KeyedSession>> {
        self.inner().host.keyed_sessions(devices)
    }

    fn record_ticket_serials(&mut self, newest: &[(DeviceId, SessionId, u64)]) {
        self.inner().host.record_ticket_serials(newest);
    }
}

impl Admission for SimulatedDataPlane {
    fn reconfigure(&mut self, live: &LiveSettings, boot_s: u32) -> Result<(), DataPlaneError> {
        Admission::reconfigure(&mut self.inner().host, live, boot_s)
    }

    fn set_sources(&mut self, sources: &DeviceSources) -> Vec<ClosedSession> {
        Admission::set_sources(&mut self.inner().host, sources)
    }

    fn set_fresh(&mut self, fresh: [u8; 8], now_ns: u64) {
        self.inner().host.set_fresh(fresh, now_ns);
    }

    fn set_stopping(&mut self, stopping: bool) {
        self.inner().host.set_stopping(stopping);
    }

    fn enroll(&mut self, device: DeviceId) {
        self.inner().host.enroll(device);
    }

    fn set_enrollment_filter(&mut self, filtering: bool) {
        self.inner().host.set_enrollment_filter(filtering);
    }

    fn drain_misses(&mut self, sink: &mut dyn FnMut(Miss)) -> Result<(), DataPlaneError> {
        let misses = std::mem::take(&mut self.inner().misses);
        misses.into_iter().for_each(sink);
        Ok(())
    }

    fn send_reply(&mut self, miss: &Miss, reply: &[u8; 64]) {
        let device = miss.device().0;
        self.inner().host.expect_response(miss);
        self.inner().replies.push((device, *reply));
    }

    fn expect_response(&mut self, miss: &Miss) {
        self.inner().host.expect_response(miss);
    }

    fn replay(&mut self, miss: Miss) -> Result<(), DataPlaneError> {
        self.inner().receive(*miss.message());
        Ok(())
    }
}

impl Attestation for SimulatedDataPlane {
    fn session_requests(
        &self,
        devices: &[DeviceId],
        round: &Round,
        now_s: u32,
    ) -> Vec<Option<(IpAddr, AttestRequest)>> {
        self.inner().host.session_requests(devices, round, now_s)
    }

    /// Sends no requests, because no device is attested in this benchmark.
    fn send_attest_requests(&mut self, _: &[(SocketAddr, AttestRequest)]) -> Result<usize, DataPlaneError> {
        Ok(0)
    }
}

impl Evidence for SimulatedDataPlane {}

impl Telemetry for SimulatedDataPlane {
    fn drain_events(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), DataPlaneError> {
        self.inner().host.drain_events(sink)
    }

    fn counters(&self) -> Result<Counters, DataPlaneError> {
        self.inner().host.counters()
    }
}

impl DataPlane for SimulatedDataPlane {
    fn name(&self) -> &'static str {
        "host"
    }

    fn set_owner(&mut self, owner: u64) {
        self.inner().host.set_owner(owner);
    }

    fn arm_wake(&mut self) {}

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn housekeep(&mut self) {
        self.inner().host.housekeep();
    }

    fn failure(&mut self) -> Option<String> {
        None
    }
}
