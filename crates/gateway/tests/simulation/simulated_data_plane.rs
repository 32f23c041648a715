//! The `host` data plane without sockets: the store and the verifier are the real ones.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use linewarden_dataplane::host::{Engine, Host, ThreadState, Timestamps};
use linewarden_dataplane::{
    Admission, Attestation, ClosedSession, Config, Counters, DataPlane, DataPlaneError, Devices, Event,
    Evidence, InheritedState, KeyedSession, LineStatus, LiveSettings, Miss, ProverSet, Provers, Row,
    SessionView, Store, StoreError, Telemetry,
};
use linewarden_protocol::attest::Round;
use linewarden_protocol::frame::{Meta, ip_bytes, ip_from_bytes};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, SessionId};
use linewarden_protocol::sources::DeviceSources;
use linewarden_protocol::verdict::{Disposition, Verdict};
use linewarden_protocol::wire::AttestRequest;
use zerocopy::IntoBytes as _;

use crate::simulated_device::SimulatedDevice;
use crate::simulation::{HostClock, Mechanism};

/// A reply or a challenge, with its destination.
pub struct Reply {
    pub to: Meta,
    pub payload: [u8; 64],
}

/// The state of a [`SimulatedDataPlane`].
pub struct Inner {
    pub host: Host,
    engine: Arc<Engine>,
    thread: ThreadState,
    now: Timestamps,
    /// The true boot-time clock, s; `now` is wrong in runs without [`Mechanism::BootClock`].
    boot_s: u32,
    misses: Vec<Miss>,
    /// Sender of each message that went to the slow path.
    origins: HashMap<[u8; 64], Meta>,
    pub replies: Vec<Reply>,
    /// Rows accepted since the last read: device, row, tag.
    pub accepted: Vec<(DeviceId, u32, [u8; 16])>,
    pub verdicts: Vec<Verdict>,
    /// Sessions closed since the last read.
    pub closed: Vec<(DeviceId, SessionId)>,
    /// By device and row of the RESPONSE: the session's expiry on the boot-time clock, and its lifetime, both in s.
    session_lifetimes: HashMap<(DeviceId, u32), (u32, u32)>,
    /// Suspended time of the host, ms.
    suspended_ms: u64,
    /// Suspended time at the node's last check, ms.
    noticed_ms: u64,
    /// Suspended time at the draw of each fresh value, ms.
    drawn_ms: HashMap<[u8; 8], u64>,
    /// A violation that the data plane has detected, such as a repeated ACK of an expired session, or a session on
    /// a fresh value from before a suspend.
    pub violation: Option<String>,
    /// Whether marks do not limit rows.
    pub no_marks: bool,
    /// Whether the data plane ignores requests to wipe or revoke a device.
    pub no_wiping: bool,
    /// Whether the memory contains state of an earlier process that the node has not taken.
    has_inherited_state: bool,
    /// Time of the node's last call of `refresh_links()`, monotonic clock, ms.
    links_refreshed_ms: Option<u64>,
}

/// The data plane, shared by the node and the network.
pub struct SimulatedDataPlane(pub Arc<Mutex<Inner>>, Option<Provers>);

impl SimulatedDataPlane {
    pub fn new(config: &Config, now: Timestamps) -> Self {
        Self::with_host(Host::new(config).unwrap(), now, HashMap::new())
    }

    /// Creates a data plane on the memory of an ended process.
    pub fn adopted(ended: &Self, config: &Config, now: Timestamps) -> Self {
        let inner = ended.0.lock().unwrap();
        let store = Store::adopt(Arc::clone(inner.host.store().regions()), config.geometry.clone());
        store.set_live(&config.live_settings(), now.boot_s());
        let data_plane = Self::with_host(
            Host::with_store(config, store).unwrap(),
            now,
            inner.session_lifetimes.clone(),
        );
        {
            let mut adopted_inner = data_plane.0.lock().unwrap();
            adopted_inner.has_inherited_state = true;
            adopted_inner.drawn_ms = inner.drawn_ms.clone();
        }
        data_plane
    }

    fn with_host(
        mut host: Host,
        now: Timestamps,
        session_lifetimes: HashMap<(DeviceId, u32), (u32, u32)>,
    ) -> Self {
        let (engine, thread) = (host.engine(), host.thread_state());
        let inner = Inner {
            host,
            engine,
            thread,
            now,
            boot_s: now.boot_s(),
            misses: Vec::new(),
            origins: HashMap::new(),
            replies: Vec::new(),
            accepted: Vec::new(),
            verdicts: Vec::new(),
            closed: Vec::new(),
            session_lifetimes,
            suspended_ms: 0,
            noticed_ms: 0,
            drawn_ms: HashMap::new(),
            violation: None,
            no_marks: false,
            no_wiping: false,
            has_inherited_state: false,
            links_refreshed_ms: None,
        };
        Self(Arc::new(Mutex::new(inner)), None)
    }

    /// Creates the node's handle of this data plane, with the set of provers in the same memory.
    pub fn of_node(&self, config: &Config) -> Self {
        let mut inner = self.0.lock().unwrap();
        let regions = inner
            .host
            .prover_store()
            .map(|provers| Arc::clone(provers.regions()));
        let provers = regions.map(|regions| Provers::new(regions, config.prover_geometry()));
        Self(Arc::clone(&self.0), provers)
    }

    pub fn set_clock(&self, clock: HostClock, now_ms: u64, without: Option<Mechanism>) {
        let mut inner = self.0.lock().unwrap();
        let now = clock.moment(now_ms);
        inner.now = now;
        inner.boot_s = now.boot_s();
        inner.suspended_ms = clock.suspended_ms;
        if without == Some(Mechanism::BootClock) {
            inner.now.boot_ns = now.monotonic_ns;
        }
    }

    /// Records that the node has had time to notice a suspend.
    pub fn notice(&self) {
        let mut inner = self.0.lock().unwrap();
        inner.noticed_ms = inner.suspended_ms;
    }

    /// Returns the live session of each device, in the order of `devices`.
    pub fn sessions(&self, devices: &[SimulatedDevice]) -> Vec<Option<SessionView>> {
        let inner = self.0.lock().unwrap();
        // Callers compare sessions before and after a change of settings, and this time depends on the settings.
        let session = |simulated: &SimulatedDevice| {
            let view = inner.host.session(simulated.id)?;
            Some(SessionView {
                proven_before_ns: 0,
                ..view
            })
        };
        let is_live = |view: &SessionView| view.session_until_s > inner.boot_s;
        devices
            .iter()
            .map(session)
            .map(|view| view.filter(is_live))
            .collect()
    }
}

impl Inner {
    /// Handles a datagram.
    pub fn receive(&mut self, from: Meta, payload: &[u8]) {
        let mut reply = payload.to_vec();
        let verdict = self.engine.process(&mut self.thread, self.now, &from, &mut reply);
        self.verdicts.push(verdict);
        // Longer datagrams get no reply.
        let (Ok(payload), Ok(reply)) = (<[u8; 64]>::try_from(payload), <[u8; 64]>::try_from(reply)) else {
            return;
        };
        if matches!(verdict, Verdict::ReplyAck | Verdict::ReplyAckRepeated) {
            let device = DeviceId(u64::from_be_bytes(payload[8..16].try_into().unwrap()));
            let idx = u32::from_be_bytes(payload[32..36].try_into().unwrap());
            let lifetime_s = u32::from_be_bytes(reply[20..24].try_into().unwrap());
            if verdict == Verdict::ReplyAck {
                assert_eq!(
                    from.src_ip[12], 10,
                    "a session at an address that no device has: {:?}",
                    from.src_ip
                );
                let tag = payload[48..].try_into().unwrap();
                self.accepted.push((device, idx, tag));
                self.check_fresh(device, payload[40..48].try_into().unwrap());
                self.session_lifetimes
                    .insert((device, idx), (self.boot_s + lifetime_s, lifetime_s));
            } else {
                self.check_session_lifetime(device, idx, lifetime_s);
            }
        }
        if verdict == Verdict::SlowPath {
            self.origins.insert(payload, from);
            let source: IpAddr = ip_from_bytes(from.src_ip);
            self.misses.push(Miss::new(payload, source, [0; 8]));
        }
        if verdict.disposition() == Disposition::Reply {
            self.replies.push(Reply {
                to: from,
                payload: reply,
            });
        }
    }
}

impl Inner {
    /// Checks the fresh value of an accepted RESPONSE.
    fn check_fresh(&mut self, device: DeviceId, fresh: [u8; 8]) {
        let drawn_ms = self.drawn_ms.get(&fresh).copied().unwrap_or_default();
        // A shorter difference comes from reading two clocks, not from a suspend.
        if drawn_ms + 100 < self.noticed_ms {
            self.violation = Some(format!(
                "device {device} opened a session on a fresh value from before a suspend of {} ms",
                self.noticed_ms - drawn_ms
            ));
        }
    }

    /// Checks a repeated ACK.
    fn check_session_lifetime(&mut self, device: DeviceId, idx: u32, sent_s: u32) {
        let Some((until_s, lifetime_s)) = self.session_lifetimes.get(&(device, idx)) else {
            return;
        };
        if self.boot_s >= *until_s || sent_s > *lifetime_s {
            self.violation = Some(format!(
                "an ACK of device {device} was repeated {} s before the end of its lifetime of {lifetime_s} s, with {sent_s} s",
                i64::from(*until_s) - i64::from(self.boot_s)
            ));
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
        let mut inner = self.0.lock().unwrap();
        let mark = mark.filter(|_| !inner.no_marks);
        inner.host.install(device, mode, next, rows, mark)
    }

    fn grant(&mut self, device: DeviceId, mark: RowIndex) -> Result<(), StoreError> {
        self.0.lock().unwrap().host.grant(device, mark)
    }

    fn refill(&mut self, device: DeviceId, first: RowIndex, rows: &[Row]) -> Result<RowIndex, StoreError> {
        self.0.lock().unwrap().host.refill(device, first, rows)
    }

    fn revoke(&mut self, device: DeviceId) -> Result<(), StoreError> {
        let mut inner = self.0.lock().unwrap();
        if inner.no_wiping {
            return Ok(());
        }
        inner.host.revoke(device)
    }

    fn wipe(&mut self, device: DeviceId) -> Result<(), StoreError> {
        let mut inner = self.0.lock().unwrap();
        if inner.no_wiping {
            return Ok(());
        }
        inner.host.wipe(device)
    }

    fn close_session(&mut self, device: DeviceId, session: SessionId) -> Result<bool, StoreError> {
        let mut inner = self.0.lock().unwrap();
        let closed = inner.host.close_session(device, session)?;
        if closed {
            inner.closed.push((device, session));
        }
        Ok(closed)
    }

    fn set_epoch(&mut self, device: DeviceId, epoch: u32) {
        self.0.lock().unwrap().host.set_epoch(device, epoch);
    }

    fn status(&self, device: DeviceId) -> Option<LineStatus> {
        self.0.lock().unwrap().host.status(device)
    }

    fn session(&self, device: DeviceId) -> Option<SessionView> {
        self.0.lock().unwrap().host.session(device)
    }

    fn keyed_sessions(&self, devices: &[DeviceId]) -> Vec<Option<KeyedSession>> {
        self.0.lock().unwrap().host.keyed_sessions(devices)
    }

    fn record_ticket_serials(&mut self, newest: &[(DeviceId, SessionId, u64)]) {
        self.0.lock().unwrap().host.record_ticket_serials(newest);
    }
}

impl Admission for SimulatedDataPlane {
    fn reconfigure(&mut self, live: &LiveSettings, boot_s: u32) -> Result<(), DataPlaneError> {
        self.0.lock().unwrap().host.reconfigure(live, boot_s)
    }

    fn set_sources(&mut self, sources: &DeviceSources) -> Vec<ClosedSession> {
        self.0.lock().unwrap().host.set_sources(sources)
    }

    fn set_fresh(&mut self, fresh: [u8; 8], now_ns: u64) {
        let mut inner = self.0.lock().unwrap();
        let suspended_ms = inner.suspended_ms;
        inner.drawn_ms.insert(fresh, suspended_ms);
        inner.host.set_fresh(fresh, now_ns);
    }

    fn set_stopping(&mut self, stopping: bool) {
        self.0.lock().unwrap().host.set_stopping(stopping);
    }

    fn enroll(&mut self, device: DeviceId) {
        self.0.lock().unwrap().host.enroll(device);
    }

    fn set_enrollment_filter(&mut self, filtering: bool) {
        self.0.lock().unwrap().host.set_enrollment_filter(filtering);
    }

    fn drain_misses(&mut self, sink: &mut dyn FnMut(Miss)) -> Result<(), DataPlaneError> {
        std::mem::take(&mut self.0.lock().unwrap().misses)
            .into_iter()
            .for_each(sink);
        Ok(())
    }

    fn send_reply(&mut self, miss: &Miss, reply: &[u8; 64]) {
        let mut inner = self.0.lock().unwrap();
        Admission::expect_response(&mut inner.host, miss);
        if let Some(to) = inner.origins.get(miss.message()).copied() {
            let payload = *reply;
            inner.replies.push(Reply { to, payload });
        }
    }

    fn expect_response(&mut self, miss: &Miss) {
        self.0.lock().unwrap().host.expect_response(miss);
    }

    fn replay(&mut self, miss: Miss) -> Result<(), DataPlaneError> {
        let mut inner = self.0.lock().unwrap();
        if let Some(from) = inner.origins.get(miss.message()).copied() {
            inner.receive(from, miss.message());
        }
        Ok(())
    }
}

impl Attestation for SimulatedDataPlane {
    fn provers(&mut self) -> Option<&mut dyn ProverSet> {
        self.1.as_mut().map(|provers| provers as &mut dyn ProverSet)
    }

    fn session_requests(
        &self,
        devices: &[DeviceId],
        round: &Round,
        now_s: u32,
    ) -> Vec<Option<(IpAddr, AttestRequest)>> {
        self.0
            .lock()
            .unwrap()
            .host
            .session_requests(devices, round, now_s)
    }

    fn send_attest_requests(
        &mut self,
        requests: &[(SocketAddr, AttestRequest)],
    ) -> Result<usize, DataPlaneError> {
        let reply = |(to, request): &(SocketAddr, AttestRequest)| Reply {
            to: Meta {
                src_ip: ip_bytes(to.ip()),
                src_port: to.port(),
                ..Meta::default()
            },
            payload: request.as_bytes().try_into().unwrap(),
        };
        // The node's order comes from a hash table, and differs in each run.
        let mut replies: Vec<Reply> = requests.iter().map(reply).collect();
        replies.sort_unstable_by_key(|request| request.payload);
        self.0.lock().unwrap().replies.extend(replies);
        Ok(requests.len())
    }
}

impl Evidence for SimulatedDataPlane {}

impl Telemetry for SimulatedDataPlane {
    fn drain_events(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), DataPlaneError> {
        self.0.lock().unwrap().host.drain_events(sink)
    }

    fn counters(&self) -> Result<Counters, DataPlaneError> {
        self.0.lock().unwrap().host.counters()
    }
}

impl DataPlane for SimulatedDataPlane {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn take_inherited_state(&mut self) -> Option<InheritedState> {
        let mut inner = self.0.lock().unwrap();
        std::mem::take(&mut inner.has_inherited_state).then(|| inner.host.store().inherited_state())
    }

    fn set_owner(&mut self, owner: u64) {
        self.0.lock().unwrap().host.set_owner(owner);
    }

    fn arm_wake(&mut self) {}

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn housekeep(&mut self) {
        self.0.lock().unwrap().host.housekeep();
    }

    /// Checks that interfaces are not listed too often.
    fn refresh_links(&mut self) {
        let mut inner = self.0.lock().unwrap();
        let now_ms = inner.now.monotonic_ns / 1_000_000;
        let is_soon = |before_ms: u64| now_ms.saturating_sub(before_ms) < 5_000;
        if inner.links_refreshed_ms.replace(now_ms).is_some_and(is_soon) {
            inner.violation = Some("interfaces were listed twice in 5 s".to_owned());
        }
    }

    fn failure(&mut self) -> Option<String> {
        None
    }
}
