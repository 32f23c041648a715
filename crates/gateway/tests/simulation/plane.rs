//! The `host` data plane without its sockets: the store and the verifier are the real ones.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use linewarden_dataplane::host::{Engine, Host, Moment, ThreadState};
use linewarden_dataplane::{
    Capabilities, Config, Counters, DataPlane, DataPlaneError, Event, Left, LineStatus, Live, Miss, Row,
    SessionView, StoreError,
};
use linewarden_protocol::frame::{Meta, ip_from_bytes};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, SessionId};
use linewarden_protocol::verdict::{Disposition, Verdict};

/// A datagram on its way back: to which address and port.
pub struct Reply {
    pub to: Meta,
    pub payload: [u8; 64],
}

pub struct Inner {
    pub host: Host,
    engine: Arc<Engine>,
    thread: ThreadState,
    pub now: Moment,
    misses: Vec<Miss>,
    origins: HashMap<[u8; 64], Meta>,
    pub replies: Vec<Reply>,
    /// Rows that were accepted since this was looked at: device, row, tag.
    pub accepted: Vec<(DeviceId, u32, [u8; 16])>,
    pub verdicts: Vec<Verdict>,
    /// Sessions that user space has closed since this was looked at.
    pub closed: Vec<(DeviceId, SessionId)>,
    /// The mark does not hold rows back.
    pub no_marks: bool,
    /// What is wiped stays.
    pub no_wiping: bool,
    /// Memory that outlives its process: taken up by the next one.
    pub left: bool,
}

/// The data plane, shared by the node that drives it and the network.
#[derive(Clone)]
pub struct Plane(pub Arc<Mutex<Inner>>);

impl Plane {
    pub fn new(config: &Config, now: Moment) -> Self {
        let mut host = Host::new(config).unwrap();
        let (engine, thread) = (host.engine(), host.thread_state());
        Self(Arc::new(Mutex::new(Inner {
            host,
            engine,
            thread,
            now,
            misses: Vec::new(),
            origins: HashMap::new(),
            replies: Vec::new(),
            accepted: Vec::new(),
            verdicts: Vec::new(),
            closed: Vec::new(),
            no_marks: false,
            no_wiping: false,
            left: false,
        })))
    }
}

impl Inner {
    /// A datagram comes in.
    pub fn receive(&mut self, from: Meta, payload: [u8; 64]) {
        let mut reply = payload;
        let verdict = self.engine.process(&mut self.thread, self.now, &from, &mut reply);
        self.verdicts.push(verdict);
        if verdict == Verdict::ReplyAck {
            let device = DeviceId(u64::from_be_bytes(payload[8..16].try_into().unwrap()));
            let idx = u32::from_be_bytes(payload[32..36].try_into().unwrap());
            let tag = payload[48..].try_into().unwrap();
            self.accepted.push((device, idx, tag));
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

impl DataPlane for Plane {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn capabilities(&self) -> Capabilities {
        self.0.lock().unwrap().host.capabilities()
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
        std::mem::take(&mut inner.left).then(|| inner.host.store().left())
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

    fn reconfigure(&mut self, live: &Live, boot_s: u32) -> Result<(), DataPlaneError> {
        self.0.lock().unwrap().host.reconfigure(live, boot_s)
    }

    fn set_fresh(&mut self, fresh: [u8; 8], now_ns: u64) {
        self.0.lock().unwrap().host.set_fresh(fresh, now_ns);
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
            inner.receive(from, *miss.message());
        }
        Ok(())
    }

    fn listen(&mut self) {}

    fn bell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn housekeep(&mut self) {
        self.0.lock().unwrap().host.housekeep();
    }

    fn failure(&mut self) -> Option<String> {
        None
    }
}
