//! The `host` data plane without its sockets: the store and the verifier are the real ones.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use linewarden_dataplane::host::{Engine, Host, Moment, ThreadState};
use linewarden_dataplane::{
    ClosedSession, Config, Counters, DataPlane, DataPlaneError, Event, KeyedSession, Left, LineStatus, Live,
    Miss, ProverSet, Provers, Row, SessionView, Store, StoreError,
};
use linewarden_protocol::attest::Round;
use linewarden_protocol::frame::{Meta, ip_bytes, ip_from_bytes};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, SessionId};
use linewarden_protocol::sources::DeviceSources;
use linewarden_protocol::verdict::{Disposition, Verdict};
use linewarden_protocol::wire::AttestRequest;
use zerocopy::IntoBytes as _;

use crate::station::Station;
use crate::world::{HostClock, Rule};

/// A datagram on its way back, or a request: to which address and port.
pub struct Reply {
    pub to: Meta,
    pub payload: [u8; 64],
}

pub struct Inner {
    pub host: Host,
    engine: Arc<Engine>,
    thread: ThreadState,
    now: Moment,
    /// The boot-time clock, whatever the packet path is told.
    boot_s: u32,
    misses: Vec<Miss>,
    origins: HashMap<[u8; 64], Meta>,
    pub replies: Vec<Reply>,
    /// Rows that were accepted since this was looked at: device, row, tag.
    pub accepted: Vec<(DeviceId, u32, [u8; 16])>,
    pub verdicts: Vec<Verdict>,
    /// Sessions that user space has closed since this was looked at.
    pub closed: Vec<(DeviceId, SessionId)>,
    /// By device and number of the RESPONSE: when its session's lease ends on the boot-time clock, and how long it is.
    leases: HashMap<(DeviceId, u32), (u32, u32)>,
    /// How long the host has been suspended, ms: now, when the node looked last, and when each value was drawn.
    suspended_ms: u64,
    noticed_ms: u64,
    drawn_ms: HashMap<[u8; 8], u64>,
    /// A session that was answered as alive, and was not; or as longer than it is; or was opened on a value of before a
    /// suspend.
    pub late: Option<String>,
    /// The mark does not hold rows back.
    pub no_marks: bool,
    /// What is wiped stays.
    pub no_wiping: bool,
    /// Something of an earlier process lies here.
    has_left: bool,
    /// When the node looked for changed MAC addresses last, monotonic clock, ms.
    followed_ms: Option<u64>,
}

/// The data plane, shared by the node that drives it and the network.
pub struct Plane(pub Arc<Mutex<Inner>>, Option<Provers>);

impl Plane {
    pub fn new(config: &Config, now: Moment) -> Self {
        Self::on(Host::new(config).unwrap(), now, HashMap::new())
    }

    /// Over the memory of a process that is gone.
    pub fn taken_up(before: &Self, config: &Config, now: Moment) -> Self {
        let inner = before.0.lock().unwrap();
        let store = Store::adopt(Arc::clone(inner.host.store().regions()), config.geometry.clone());
        store.set_live(&config.live(), now.boot_s());
        let plane = Self::on(Host::over(config, store).unwrap(), now, inner.leases.clone());
        {
            let mut taken_up = plane.0.lock().unwrap();
            taken_up.has_left = true;
            taken_up.drawn_ms = inner.drawn_ms.clone();
        }
        plane
    }

    fn on(mut host: Host, now: Moment, leases: HashMap<(DeviceId, u32), (u32, u32)>) -> Self {
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
            leases,
            suspended_ms: 0,
            noticed_ms: 0,
            drawn_ms: HashMap::new(),
            late: None,
            no_marks: false,
            no_wiping: false,
            has_left: false,
            followed_ms: None,
        };
        Self(Arc::new(Mutex::new(inner)), None)
    }

    /// For the node, which keeps the provers: over the memory that the packet path works on.
    pub fn of_node(&self, config: &Config) -> Self {
        let mut inner = self.0.lock().unwrap();
        let regions = inner
            .host
            .prover_store()
            .map(|provers| Arc::clone(provers.regions()));
        let provers = regions.map(|regions| Provers::new(regions, config.prover_geometry()));
        Self(Arc::clone(&self.0), provers)
    }

    pub fn set_clock(&self, clock: HostClock, now_ms: u64, without: Option<Rule>) {
        let mut inner = self.0.lock().unwrap();
        let now = clock.moment(now_ms);
        inner.now = now;
        inner.boot_s = now.boot_s();
        inner.suspended_ms = clock.suspended_ms;
        if without == Some(Rule::BootClock) {
            inner.now.boot_ns = now.monotonic_ns;
        }
    }

    /// The node has had the time to see that its host was suspended.
    pub fn notice(&self) {
        let mut inner = self.0.lock().unwrap();
        inner.noticed_ms = inner.suspended_ms;
    }

    /// The sessions of these devices that live.
    pub fn sessions(&self, stations: &[Station]) -> Vec<Option<SessionView>> {
        let inner = self.0.lock().unwrap();
        // What the lease tells of the last proof depends on the settings; it is no part of the session.
        let session = |station: &Station| {
            let view = inner.host.session(station.id)?;
            Some(SessionView {
                proven_before_ns: 0,
                ..view
            })
        };
        let lives = |view: &SessionView| view.lease_until_s > inner.boot_s;
        stations
            .iter()
            .map(session)
            .map(|view| view.filter(lives))
            .collect()
    }
}

impl Inner {
    /// A datagram comes in.
    pub fn receive(&mut self, from: Meta, payload: &[u8]) {
        let mut reply = payload.to_vec();
        let verdict = self.engine.process(&mut self.thread, self.now, &from, &mut reply);
        self.verdicts.push(verdict);
        // What is longer is not answered.
        let (Ok(payload), Ok(reply)) = (<[u8; 64]>::try_from(payload), <[u8; 64]>::try_from(reply)) else {
            return;
        };
        if matches!(verdict, Verdict::ReplyAck | Verdict::ReplyAckAgain) {
            let device = DeviceId(u64::from_be_bytes(payload[8..16].try_into().unwrap()));
            let idx = u32::from_be_bytes(payload[32..36].try_into().unwrap());
            let lease_s = u32::from_be_bytes(reply[20..24].try_into().unwrap());
            if verdict == Verdict::ReplyAck {
                assert_eq!(
                    from.src_ip[12], 10,
                    "a session at an address that no device has: {:?}",
                    from.src_ip
                );
                let tag = payload[48..].try_into().unwrap();
                self.accepted.push((device, idx, tag));
                self.look_at_fresh(device, payload[40..48].try_into().unwrap());
                self.leases
                    .insert((device, idx), (self.boot_s + lease_s, lease_s));
            } else {
                self.look_at_lease(device, idx, lease_s);
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
    /// A RESPONSE was accepted on that value.
    fn look_at_fresh(&mut self, device: DeviceId, fresh: [u8; 8]) {
        let drawn_ms = self.drawn_ms.get(&fresh).copied().unwrap_or_default();
        // What the readings of two clocks lay apart is no suspend.
        if drawn_ms + 100 < self.noticed_ms {
            self.late = Some(format!(
                "device {device} opened a session on a value from before a suspend of {} ms",
                self.noticed_ms - drawn_ms
            ));
        }
    }

    /// An ACK was repeated.
    fn look_at_lease(&mut self, device: DeviceId, idx: u32, told_s: u32) {
        let Some((until_s, lease_s)) = self.leases.get(&(device, idx)) else {
            return;
        };
        if self.boot_s >= *until_s || told_s > *lease_s {
            self.late = Some(format!(
                "an ACK of device {device} was repeated {} s before the end of its lease of {lease_s} s, as {told_s} s",
                i64::from(*until_s) - i64::from(self.boot_s)
            ));
        }
    }
}

impl DataPlane for Plane {
    fn name(&self) -> &'static str {
        "simulated"
    }

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

    fn close_session(&mut self, device: DeviceId, session: SessionId) -> Result<bool, StoreError> {
        let mut inner = self.0.lock().unwrap();
        let closed = inner.host.close_session(device, session)?;
        if closed {
            inner.closed.push((device, session));
        }
        Ok(closed)
    }

    fn wipe(&mut self, device: DeviceId) -> Result<(), StoreError> {
        let mut inner = self.0.lock().unwrap();
        if inner.no_wiping {
            return Ok(());
        }
        inner.host.wipe(device)
    }

    fn note_epoch(&mut self, device: DeviceId, epoch: u32) {
        self.0.lock().unwrap().host.note_epoch(device, epoch);
    }

    fn take_left(&mut self) -> Option<Left> {
        let mut inner = self.0.lock().unwrap();
        std::mem::take(&mut inner.has_left).then(|| inner.host.store().left())
    }

    fn set_owner(&mut self, owner: u64) {
        self.0.lock().unwrap().host.set_owner(owner);
    }

    fn outlives_process(&self) -> bool {
        false
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

    fn note_tickets(&mut self, newest: &[(DeviceId, SessionId, u64)]) {
        self.0.lock().unwrap().host.note_tickets(newest);
    }

    fn reconfigure(&mut self, live: &Live, boot_s: u32) -> Result<(), DataPlaneError> {
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

    fn counters(&self) -> Result<Counters, DataPlaneError> {
        self.0.lock().unwrap().host.counters()
    }

    fn drain_events(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), DataPlaneError> {
        self.0.lock().unwrap().host.drain_events(sink)
    }

    fn drain_misses(&mut self, sink: &mut dyn FnMut(Miss)) -> Result<(), DataPlaneError> {
        std::mem::take(&mut self.0.lock().unwrap().misses)
            .into_iter()
            .for_each(sink);
        Ok(())
    }

    fn enrol(&mut self, device: DeviceId) {
        self.0.lock().unwrap().host.enrol(device);
    }

    fn set_filtering(&mut self, filtering: bool) {
        self.0.lock().unwrap().host.set_filtering(filtering);
    }

    fn expect(&mut self, miss: &Miss) {
        self.0.lock().unwrap().host.expect(miss);
    }

    fn send(&mut self, miss: &Miss, reply: &[u8; 64]) {
        let mut inner = self.0.lock().unwrap();
        DataPlane::expect(&mut inner.host, miss);
        if let Some(to) = inner.origins.get(miss.message()).copied() {
            let payload = *reply;
            inner.replies.push(Reply { to, payload });
        }
    }

    fn replay(&mut self, miss: Miss) -> Result<(), DataPlaneError> {
        let mut inner = self.0.lock().unwrap();
        if let Some(from) = inner.origins.get(miss.message()).copied() {
            inner.receive(from, miss.message());
        }
        Ok(())
    }

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

    fn ask(&mut self, requests: &[(SocketAddr, AttestRequest)]) -> Result<usize, DataPlaneError> {
        let ask = |(to, request): &(SocketAddr, AttestRequest)| Reply {
            to: Meta {
                src_ip: ip_bytes(to.ip()),
                src_port: to.port(),
                ..Meta::default()
            },
            payload: request.as_bytes().try_into().unwrap(),
        };
        // The node asks in the order of a hash table, which is another one each time.
        let mut asked: Vec<Reply> = requests.iter().map(ask).collect();
        asked.sort_unstable_by_key(|request| request.payload);
        self.0.lock().unwrap().replies.extend(asked);
        Ok(requests.len())
    }

    fn listen(&mut self) {}

    fn bell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn housekeep(&mut self) {
        self.0.lock().unwrap().host.housekeep();
    }

    /// Each time all interfaces would be listed.
    fn follow_links(&mut self) {
        let mut inner = self.0.lock().unwrap();
        let now_ms = inner.now.monotonic_ns / 1_000_000;
        let is_soon = |before_ms: u64| now_ms.saturating_sub(before_ms) < 5_000;
        if inner.followed_ms.replace(now_ms).is_some_and(is_soon) {
            inner.late = Some("interfaces were listed twice in 5 s".to_owned());
        }
    }

    fn failure(&mut self) -> Option<String> {
        None
    }
}
