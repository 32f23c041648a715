//! Several CPUs process messages for the same line at the same time, in `host` and `xdp`. Meanwhile, user space refills,
//! revokes, closes and sweeps (LAP/1 1.4.3, 1.4.8, docs/protocols.md 1.4.15).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::thread;

use linewarden_dataplane::host::{Engine, Host, ThreadState, Timestamps};
use linewarden_dataplane::layout::Line;
use linewarden_dataplane::store::{Regions, Row, table};
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{
    Admission as _, Config, DataPlane, EventKind, Geometry, Store, StoreError, Telemetry as _,
};
use linewarden_protocol::commit::CommitWord;
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::frame::{ip_bytes, parse};
use linewarden_protocol::ids::{Mode, RowIndex, SessionId, Suite};
use linewarden_protocol::keys::{AuthKey, SessionKey, halves};
use linewarden_protocol::time::Now;
use linewarden_protocol::verdict::{Disposition, Verdict};
use linewarden_protocol::wire::{self, Message};

use crate::support::device::{A, B, GATEWAY, Response, TestDevice, gateway_end};
use crate::support::fixture::{load_xdp_if_permitted, real_now};
use crate::support::test_config::TestConfig;

const THREADS: usize = 2;
const FRESH: [u8; 8] = *b"freshful";
/// CRP rows per device in addition to the row in the line: enough for a CPU while user space is not scheduled.
const RING: u32 = 64;

fn config() -> Config {
    let mut config = TestConfig::OFF.config();
    config.geometry.ring = RING;
    config
}

fn geometry() -> Geometry {
    config().geometry
}

/// Sets the same fresh value again, so that it does not expire on a slow machine.
fn renew_fresh_value(store: &Store) {
    store.set_fresh(FRESH, real_now().monotonic_ms * 1_000_000);
}

/// A function that processes a frame on one CPU, and returns whether the data plane replied with an ACK.
type Cpu<'a> = Box<dyn FnMut(&[u8]) -> bool + Send + 'a>;

/// A barrier at which two threads spin until both have arrived, so that they continue at the same time.
#[derive(Default)]
struct SpinBarrier(AtomicU64);

impl SpinBarrier {
    fn wait(&self) {
        let arrived = self.0.fetch_add(1, AcqRel);
        let target = (arrived / 2 + 1) * 2;
        let mut spins = 0u32;
        while self.0.load(Acquire) < target {
            spins += 1;
            if spins.is_multiple_of(10_000) {
                thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

/// Clears the flag `is_running` of the other threads when this thread ends, also after a panic.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

/// The data plane that a test uses.
trait DataPlaneUnderTest {
    fn name(&self) -> &'static str;
    fn regions(&self) -> Arc<Regions>;
    fn cpus(&mut self) -> Vec<Cpu<'_>>;
    fn counter(&self, verdict: Verdict) -> u64;
    fn data_plane(&mut self) -> &mut dyn DataPlane;
}

struct HostUnderTest {
    host: Host,
    engine: Arc<Engine>,
    states: Vec<ThreadState>,
    now: Timestamps,
}

impl DataPlaneUnderTest for HostUnderTest {
    fn name(&self) -> &'static str {
        "host"
    }
    fn regions(&self) -> Arc<Regions> {
        Arc::clone(self.host.store().regions())
    }
    fn cpus(&mut self) -> Vec<Cpu<'_>> {
        let (engine, now) = (&self.engine, self.now);
        self.states
            .iter_mut()
            .map(|state| -> Cpu<'_> {
                Box::new(move |frame| {
                    let parsed = parse(frame).unwrap();
                    let (_, udp) = parsed.datagram().unwrap();
                    let mut payload = frame[udp.payload()].to_vec();
                    let meta = parsed.meta(1).unwrap();
                    engine.process(state, now, &meta, &mut payload).disposition() == Disposition::Reply
                })
            })
            .collect()
    }
    fn counter(&self, verdict: Verdict) -> u64 {
        self.host.counters().unwrap().get(verdict)
    }
    fn data_plane(&mut self) -> &mut dyn DataPlane {
        &mut self.host
    }
}

struct XdpUnderTest(Xdp);

/// An XDP program that several threads run.
struct SharedXdp<'a>(&'a Xdp);
// SAFETY: threads call only `test_run`, which takes `&self`, changes no state of libbpf, and consists of one system
// call on a file descriptor.
unsafe impl Sync for SharedXdp<'_> {}
// SAFETY: the same reason as for `Sync`.
unsafe impl Send for SharedXdp<'_> {}

impl SharedXdp<'_> {
    fn is_acked(&self, frame: &[u8]) -> bool {
        self.0.test_run(frame).unwrap().action == 3
    }
}

impl DataPlaneUnderTest for XdpUnderTest {
    fn name(&self) -> &'static str {
        "xdp"
    }
    fn regions(&self) -> Arc<Regions> {
        Arc::clone(self.0.store().regions())
    }
    fn cpus(&mut self) -> Vec<Cpu<'_>> {
        (0..THREADS)
            .map(|_| -> Cpu<'_> {
                let shared = SharedXdp(&self.0);
                Box::new(move |frame| shared.is_acked(frame))
            })
            .collect()
    }
    fn counter(&self, verdict: Verdict) -> u64 {
        self.0.counters().unwrap().get(verdict)
    }
    fn data_plane(&mut self) -> &mut dyn DataPlane {
        &mut self.0
    }
}

/// `host`, and `xdp` if it can be loaded, both with the fresh value `FRESH`.
fn data_planes() -> Vec<Box<dyn DataPlaneUnderTest>> {
    let config = config();
    let now: Now = real_now();
    let mut host = Host::new(&config).unwrap();
    host.set_fresh(FRESH, now.monotonic_ms * 1_000_000);
    let states = (0..THREADS).map(|_| host.thread_state()).collect();
    let mut data_planes: Vec<Box<dyn DataPlaneUnderTest>> = vec![Box::new(HostUnderTest {
        engine: host.engine(),
        host,
        states,
        now: Timestamps::from(now),
    })];
    if let Some(mut xdp) = load_xdp_if_permitted(&config) {
        xdp.set_fresh(FRESH, now.monotonic_ms * 1_000_000);
        data_planes.push(Box::new(XdpUnderTest(xdp)));
    }
    data_planes
}

/// A second store over the memory of a data plane, for user space's operations: the packet threads borrow the data
/// plane itself.
fn control_store(data_plane: &dyn DataPlaneUnderTest) -> Store {
    Store::new(data_plane.regions(), geometry())
}

fn rows(device: TestDevice, mode: Mode, first: u32, count: u32) -> Vec<Row> {
    let row = |idx| Row {
        challenge: device.challenge(mode, RowIndex(idx)),
        auth_key: device.auth_key(mode, RowIndex(idx)),
    };
    (first..first + count).map(row).collect()
}

fn end_at(ip: IpAddr, device: TestDevice) -> Endpoint {
    Endpoint {
        ip,
        ..device.end(false)
    }
}

/// A BOUND RESPONSE for row `idx` from `end`, with a nonce made from `nonce_number`; returns the frame and the tag.
fn response(
    device: TestDevice,
    mode: Mode,
    idx: u32,
    nonce_number: u64,
    end: Endpoint,
) -> (Vec<u8>, [u8; 16]) {
    let mut nonce = [0x77; 16];
    nonce[..8].copy_from_slice(&nonce_number.to_be_bytes());
    let fields = Response {
        mode,
        idx,
        gateway: GATEWAY,
        fresh: FRESH,
        bound: Some(end.mac),
        nonce,
    };
    let message = device.response(&fields);
    let bytes = fields.bytes(device);
    (
        FrameBuilder::new(end, gateway_end(false)).udp(&bytes),
        message.tag,
    )
}

fn commit(line: &Line) -> CommitWord {
    CommitWord(line.commit.load(Acquire))
}

/// Tag and key of the session in a line.
fn session(regions: &Regions, line: &Line) -> ([u8; 16], SessionKey) {
    let session = &regions.sessions[line.slot.load(Acquire) as usize];
    let pair = |words: &[AtomicU64; 2]| -> [u8; 16] {
        let bytes = [0, 1]
            .map(|index| words[index].load(Acquire).to_ne_bytes())
            .concat();
        bytes.try_into().unwrap()
    };
    (
        pair(&session.tag),
        SessionKey::from_bytes(pair(&session.session_key)),
    )
}

/// The device's line and its place, found in the same way as on the packet path.
fn line(regions: &Regions, device: TestDevice) -> (&Line, u32) {
    regions
        .find(&geometry(), u64::from_ne_bytes(device.id().0.to_be_bytes()))
        .unwrap()
}

/// Two threads send RESPONSEs for the same row at the same time, row by row, while user space refills as fast as it
/// can. No row is accepted twice, and the final session is that of the RESPONSE for the highest row.
#[test]
fn each_row_has_one_winner() {
    const ROUNDS: u64 = 4_000;
    for mut data_plane in data_planes() {
        let mut store = control_store(&*data_plane);
        let first = rows(A, Mode::Pool, 0, RING + 1);
        store
            .install(A.id(), Mode::Pool, RowIndex(0), &first, None)
            .unwrap();
        let regions = data_plane.regions();
        let (accepted, is_running) = (Mutex::new(BTreeMap::new()), AtomicBool::new(true));
        let (nonces, barrier) = (AtomicU64::new(0), SpinBarrier::default());
        thread::scope(|scope| {
            for mut cpu in data_plane.cpus() {
                let (regions, accepted, is_running) = (&regions, &accepted, &is_running);
                let (nonces, barrier) = (&nonces, &barrier);
                scope.spawn(move || {
                    let _stop_on_drop = StopOnDrop(is_running);
                    let line = line(regions, A).0;
                    let mut accepted_here = Vec::new();
                    for _ in 0..ROUNDS {
                        let idx = commit(line).idx().0;
                        let number = nonces.fetch_add(1, Relaxed);
                        let (frame, tag) = response(A, Mode::Pool, idx, number, A.end(false));
                        barrier.wait();
                        if cpu(&frame) {
                            accepted_here.push((idx, tag));
                        }
                        barrier.wait();
                    }
                    let mut accepted = accepted.lock().unwrap();
                    for (idx, tag) in accepted_here {
                        assert_eq!(accepted.insert(idx, tag), None, "row {idx} was accepted twice");
                    }
                });
            }
            let mut next_new_idx = RING + 1;
            while is_running.load(Acquire) {
                renew_fresh_value(&store);
                thread::yield_now();
                let new_rows = rows(A, Mode::Pool, next_new_idx, RING + 1);
                match store.refill(A.id(), RowIndex(next_new_idx), &new_rows) {
                    Ok(next) => next_new_idx = next.0,
                    Err(error) => assert_eq!(error, StoreError::Busy(A.id())),
                }
            }
        });
        let accepted = accepted.into_inner().unwrap();
        let line = line(&regions, A).0;
        let word = commit(line);
        assert!(!word.is_busy() && word.is_valid() != word.is_empty());
        let spent: Vec<u32> = (0..word.idx().0).collect();
        assert_eq!(
            accepted.keys().copied().collect::<Vec<_>>(),
            spent,
            "{}",
            data_plane.name()
        );
        assert_eq!(data_plane.counter(Verdict::ReplyAck), spent.len() as u64);
        let (idx, final_tag) = accepted.last_key_value().unwrap();
        let (tag, key) = session(&regions, line);
        assert_eq!(
            &tag,
            final_tag,
            "{}: the session of the final winner",
            data_plane.name()
        );
        let auth_key: AuthKey = A.auth_key(Mode::Pool, RowIndex(*idx));
        assert!(key == SessionKey::derive(&auth_key, Suite::SipHash128, &tag));
        let [id, _] = halves(&tag);
        assert_eq!(line.session_id.load(Acquire).to_ne_bytes(), id);
        println!(
            "{}: {} rows, {} lost races, {} busy",
            data_plane.name(),
            spent.len(),
            data_plane.counter(Verdict::DropLostRace),
            data_plane.counter(Verdict::DropBusy)
        );
    }
}

/// User space revokes the device while two threads send RESPONSEs. After the revocation returns, no RESPONSE is
/// accepted, and the line remains revoked.
#[test]
fn a_revocation_is_never_lost() {
    const ROUNDS: u32 = 60;
    for mut data_plane in data_planes() {
        let (name, regions) = (data_plane.name(), data_plane.regions());
        let mut store = control_store(&*data_plane);
        let (is_running, is_installed) = (AtomicBool::new(true), AtomicBool::new(false));
        let sent = AtomicU64::new(0);
        thread::scope(|scope| {
            for mut cpu in data_plane.cpus() {
                let (regions, is_running, is_installed, sent) = (&regions, &is_running, &is_installed, &sent);
                scope.spawn(move || {
                    while is_running.load(Acquire) {
                        if is_installed.load(Acquire)
                            && let Some((line, _)) =
                                regions.find(&geometry(), u64::from_ne_bytes(A.id().0.to_be_bytes()))
                        {
                            let number = sent.fetch_add(1, Relaxed);
                            let idx = commit(line).idx().0;
                            cpu(&response(A, Mode::Key, idx, number, A.end(false)).0);
                        }
                    }
                });
            }
            let _stop_on_drop = StopOnDrop(&is_running);
            for round in 0..ROUNDS {
                renew_fresh_value(&store);
                store
                    .install(A.id(), Mode::Key, RowIndex(0), &rows(A, Mode::Key, 0, 1), None)
                    .unwrap();
                is_installed.store(true, Release);
                let line = line(&regions, A).0;
                while commit(line).idx().0 < 30 + round {
                    thread::yield_now();
                }
                store.revoke(A.id()).unwrap();
                let idx = commit(line).idx();
                let target = sent.load(Relaxed) + 50;
                while sent.load(Relaxed) < target {
                    thread::yield_now();
                }
                // A winner from before the revocation possibly still has to finish its steps.
                while commit(line).is_busy() {
                    thread::yield_now();
                }
                let word = commit(line);
                assert!(word.is_revoked(), "{name}: {word:?}");
                assert_eq!(word.idx(), idx, "accepted after a revocation");
                is_installed.store(false, Release);
                while store.wipe(A.id()).is_err() {}
                store.reclaim();
                store.reclaim();
            }
            is_running.store(false, Release);
        });
    }
}

/// User space closes sessions while the device renews them. After each reported close, the next RESPONSE opens a new
/// session, which an event reports: it never renews the closed session.
#[test]
fn a_closed_session_is_not_renewed() {
    const CLOSES: u64 = 2_000;
    for mut data_plane in data_planes() {
        let (name, regions) = (data_plane.name(), data_plane.regions());
        let mut store = control_store(&*data_plane);
        store
            .install(A.id(), Mode::Key, RowIndex(0), &rows(A, Mode::Key, 0, 1), None)
            .unwrap();
        let (is_running, numbers) = (AtomicBool::new(true), AtomicU64::new(0));
        let authenticate = |cpu: &mut Cpu<'_>| {
            let idx = commit(line(&regions, A).0).idx().0;
            cpu(&response(A, Mode::Key, idx, numbers.fetch_add(1, Relaxed), A.end(false)).0)
        };
        let mut cpus = data_plane.cpus();
        thread::scope(|scope| {
            for mut cpu in cpus.drain(..) {
                let (is_running, authenticate) = (&is_running, &authenticate);
                scope.spawn(move || {
                    while is_running.load(Acquire) {
                        authenticate(&mut cpu);
                    }
                });
            }
            let _stop_on_drop = StopOnDrop(&is_running);
            let line = line(&regions, A).0;
            let (mut closed, mut idx_at_close) = (0, 0);
            while closed < CLOSES {
                renew_fresh_value(&store);
                // Waits for three RESPONSEs, so that the close can coincide with a further renewal.
                while commit(line).idx().0 < idx_at_close + 3 {
                    std::hint::spin_loop();
                }
                let id = line.session_id.load(Acquire).to_ne_bytes();
                if let Some(session) = SessionId::from_wire(id)
                    && store.close_session(A.id(), session).unwrap()
                {
                    closed += 1;
                    idx_at_close = commit(line).idx().0;
                }
            }
        });
        drop(cpus);
        // Opens a session after the final close, unless a thread has already opened one.
        let mut cpus = data_plane.cpus();
        while line(&regions, A).0.session_id.load(Acquire) == 0 {
            authenticate(&mut cpus[0]);
        }
        drop(cpus);
        let mut opened = 0;
        let data_plane = data_plane.data_plane();
        data_plane
            .drain_events(&mut |event| opened += u64::from(matches!(event.kind, EventKind::Session(_))))
            .unwrap();
        assert_eq!(data_plane.counters().unwrap().events_lost, 0);
        assert_eq!(opened, CLOSES + 1, "{name}");
    }
}

/// Two devices repeatedly try to move to the same address at the same time, while user space sweeps the tables. At most
/// one of them owns the address, and the table of addresses then contains an entry for the owner.
#[test]
fn an_address_has_one_owner() {
    const ROUNDS: u32 = 4_000;
    let shared = A.end(false).ip;
    for mut data_plane in data_planes() {
        let name = data_plane.name();
        let regions = data_plane.regions();
        let mut store = control_store(&*data_plane);
        for device in [A, B] {
            let key = rows(device, Mode::Key, 0, 1);
            store
                .install(device.id(), Mode::Key, RowIndex(0), &key, None)
                .unwrap();
        }
        let (is_running, barrier, numbers) =
            (AtomicBool::new(true), SpinBarrier::default(), AtomicU64::new(0));
        let (owners, failures) = (Mutex::new([0u32; 3]), Mutex::new(Vec::new()));
        let fail = |message: String| failures.lock().unwrap().push(format!("{name}: {message}"));
        let check = |round: u32| {
            let live_lines = [A, B].map(|device| is_live_at(&regions, device, shared));
            let count = live_lines.iter().filter(|is_live| **is_live).count();
            owners.lock().unwrap()[count] += 1;
            if count > 1 {
                fail(format!("round {round}: two live sessions own {shared}"));
            }
            for (device, is_live) in [A, B].into_iter().zip(live_lines) {
                if is_live && !has_entry(&regions, device, shared) {
                    fail(format!(
                        "round {round}: {device:?} is live at {shared} without an entry"
                    ));
                }
            }
        };
        thread::scope(|scope| {
            for (mut cpu, device) in data_plane.cpus().into_iter().zip([A, B]) {
                let (regions, barrier, numbers, fail, check) = (&regions, &barrier, &numbers, &fail, &check);
                let is_running = &is_running;
                scope.spawn(move || {
                    let _stop_on_drop = StopOnDrop(is_running);
                    let line = line(regions, device).0;
                    let mut authenticate = |ip: IpAddr| {
                        let number = numbers.fetch_add(1, Relaxed);
                        let idx = commit(line).idx().0;
                        cpu(&response(device, Mode::Key, idx, number, end_at(ip, device)).0)
                    };
                    for round in 0..ROUNDS {
                        // The device leaves the shared address. Then both devices move to it at the same time.
                        if !authenticate(TestDevice(100 + device.0).end(false).ip) {
                            fail(format!(
                                "round {round}: {device:?} was refused at its own address"
                            ));
                        }
                        barrier.wait();
                        authenticate(shared);
                        barrier.wait();
                        if device == A {
                            check(round);
                        }
                        barrier.wait();
                    }
                });
            }
            while is_running.load(Acquire) {
                renew_fresh_value(&store);
                store.sweep_bindings();
                thread::yield_now();
            }
        });
        let failures = failures.into_inner().unwrap();
        let first = &failures[..failures.len().min(5)];
        assert!(
            failures.is_empty(),
            "{} failures, first: {first:#?}",
            failures.len()
        );
        let [unowned, owned, _] = owners.into_inner().unwrap();
        println!("{name}: the address had no owner in {unowned} rounds, and one owner in {owned} rounds");
    }
}

/// Whether the device has a session at this address.
fn is_live_at(regions: &Regions, device: TestDevice, ip: IpAddr) -> bool {
    let (line, _) = line(regions, device);
    let session = &regions.sessions[line.slot.load(Acquire) as usize];
    let addr = [0, 1]
        .map(|index| session.addr[index].load(Acquire).to_ne_bytes())
        .concat();
    line.session_id.load(Acquire) != 0 && addr == ip_bytes(ip)
}

/// Whether the table of addresses contains an entry that leads from `ip` to the device.
fn has_entry(regions: &Regions, device: TestDevice, ip: IpAddr) -> bool {
    let [low, high] = halves(&ip_bytes(ip)).map(u64::from_ne_bytes);
    let hash = table::hash(geometry().hash_seed, low, high);
    let (_, place) = line(regions, device);
    // The sweep removes each entry for a short time before it checks the line again, so several attempts are needed.
    (0..1_000_000).any(|_| {
        table::candidates(&regions.by_address, geometry().bucket_mask(), hash)
            .any(|candidate| candidate == place)
    })
}

/// Checks the function [`response`] of this test program.
#[test]
fn the_frames_of_these_tests_are_responses() {
    let (frame, tag) = response(A, Mode::Pool, 3, 9, A.end(false));
    let (_, udp) = parse(&frame).unwrap().datagram().unwrap();
    match wire::parse(&frame[udp.payload()]) {
        Ok(Message::Response(message)) => assert_eq!((message.idx.get(), message.tag), (3, tag)),
        other => panic!("{other:?}"),
    }
}
