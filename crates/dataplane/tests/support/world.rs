//! One configuration, one state, one clock for the oracle, `xdp` and `host`; every packet goes through all of them and
//! every difference is a failure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use linewarden_dataplane::host::{Engine, Host, Moment, ThreadState};
use linewarden_dataplane::store::{Regions, Row as StoreRow};
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{
    Classic, ClassicProfile, Config, Counters, DataPlane, DataPlaneError, Event, Gate, Geometry, Store,
    classic,
};
use linewarden_protocol::classic as oracle_classic;
use linewarden_protocol::commit::CommitWord;
use linewarden_protocol::frame::{Meta, parse};
use linewarden_protocol::gateway::{
    Checked, DeviceInstall, FreshValue, Gate as OracleGate, Gateway, GatewayConfig, Row,
};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
use linewarden_protocol::time::Now;
use linewarden_protocol::verdict::{Disposition, Verdict};
use linewarden_protocol::wire::{self, Message};
use zerocopy::IntoBytes as _;

use super::device::{Dev, GATEWAY, Response, gateway_end};
use super::{reply, view};

/// Rows per device beside the one in the line.
pub const RING: u32 = 4;
pub const LEASE_S: u32 = 1000;
pub const CLASSIC_PORT: u16 = 20_551;
pub const CLASSIC_ROWS: usize = 5;
/// Identifiers that the classic profile knows: 1 to this.
pub const CLASSIC_IDENTIFIERS: u32 = 3;
/// What `BPF_PROG_TEST_RUN` says a frame came in on: the loopback interface.
const INGRESS: u32 = 1;

/// How the data planes are configured.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub gate: Gate,
    pub nak_per_s: u32,
    /// Profile and response bytes.
    pub classic: Option<(ClassicProfile, usize)>,
    /// The tables of bindings hold nothing.
    pub no_bindings: bool,
}

impl Shape {
    pub const OFF: Self = Self {
        gate: Gate::Off,
        nak_per_s: u32::MAX,
        classic: None,
        no_bindings: false,
    };
    pub const OPEN: Self = Self {
        gate: Gate::Open,
        ..Self::OFF
    };

    /// The CRPs of the classic profile; identifier and row are in them.
    pub fn crp(bytes: usize, identifier: u32, row: usize) -> (u32, Vec<u8>) {
        let challenge = identifier << 16 | row as u32;
        let response = (0..bytes).map(|at| (challenge as usize * 31 + at * 7 + 1) as u8);
        (challenge, response.collect())
    }

    pub fn config(&self) -> Config {
        let crps = |bytes| {
            let rows = move |identifier| (0..CLASSIC_ROWS).map(move |row| Self::crp(bytes, identifier, row));
            (1..=CLASSIC_IDENTIFIERS).map(move |identifier| rows(identifier).collect())
        };
        Config {
            gateway_id: GATEWAY,
            lease_s: LEASE_S,
            lap_port: wire::LAP_PORT,
            local: vec![gateway_end(false).ip, gateway_end(true).ip],
            gate: self.gate,
            nak_per_s: self.nak_per_s,
            alarm_per_s: u32::MAX,
            low_rows: 2,
            geometry: Geometry {
                slots: 256,
                ring: RING,
                hash_seed: [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210],
            },
            classic: self.classic.map(|(profile, response_bytes)| Classic {
                profile,
                port: CLASSIC_PORT,
                response_bytes,
                crps: crps(response_bytes).collect(),
                seed: 99,
            }),
        }
    }

    fn oracle(&self, cpu: usize) -> Gateway {
        let mut gateway = Gateway::new(GatewayConfig {
            gate: match self.gate {
                Gate::Off => OracleGate::Off,
                Gate::Open => OracleGate::Open,
            },
            lease_s: LEASE_S,
            nak_per_s: self.nak_per_s,
            rows_ahead: RING,
            bindings_max: if self.no_bindings { 0 } else { usize::MAX },
            ..GatewayConfig::new(GATEWAY, &[gateway_end(false).ip, gateway_end(true).ip])
        });
        if let (Some((profile, bytes)), Some(config)) = (self.classic, self.config().classic) {
            let profile = match profile {
                ClassicProfile::Iot => oracle_classic::Profile::Iot,
                ClassicProfile::Uav => oracle_classic::Profile::Uav,
            };
            let bits = oracle_classic::ResponseBits::ALL
                .into_iter()
                .find(|bits| bits.bytes() == bytes)
                .unwrap();
            let state = classic::rng_state(config.seed, cpu as u64);
            let rng = oracle_classic::rng::Xoshiro256PlusPlus::from_state(state).unwrap();
            let crp = |(challenge, bytes): &(u32, Vec<u8>)| {
                let mut response = [0; 32];
                response[..bytes.len()].copy_from_slice(bytes);
                oracle_classic::verifier::Crp {
                    challenge: *challenge,
                    response,
                }
            };
            let crps = config
                .crps
                .iter()
                .map(|rows| rows.iter().map(crp).collect())
                .collect();
            let verifier = oracle_classic::verifier::Verifier::new(profile, bits, rng, crps).unwrap();
            gateway.serve_classic(CLASSIC_PORT, verifier);
        }
        gateway
    }
}

/// Devices of which more than four, which is what a home holds, have the same home.
pub fn crowd(count: usize) -> Vec<Dev> {
    let geometry = Shape::OFF.config().geometry;
    let home = |device: &Dev| geometry.home(geometry.device_hash(device.id()));
    let first = Dev(1);
    let neighbours = (1..).map(Dev).filter(|device| home(device) == home(&first));
    let strangers = (1..).map(Dev).filter(|device| home(device) != home(&first));
    neighbours.take(6).chain(strangers).take(count).collect()
}

struct HostSide {
    host: Host,
    engine: Arc<Engine>,
    thread: ThreadState,
    counted: Counters,
}

struct XdpSide {
    xdp: Xdp,
    counted: Counters,
}

/// What was installed of a device, with the generations that the stores' slots had then: `host`, `xdp`.
#[derive(Clone, Copy)]
struct Installed {
    mode: Mode,
    generations: [u32; 2],
    /// The idx after the last row ever given.
    end: u32,
}

pub struct World {
    shape: Shape,
    oracle: Gateway,
    host: Option<HostSide>,
    xdp: Option<XdpSide>,
    installed: BTreeMap<Dev, Installed>,
    fresh: [u8; 8],
    first_fresh: [u8; 8],
    /// By how much the clock of oracle and host is ahead of the real one, which is `xdp`'s.
    shift_ms: u64,
    nonces: u64,
    /// Frames that went through the oracle, and through `xdp` and `host` beside it.
    pub sent: [u64; 3],
}

fn read_clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a timespec.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

pub fn real_now() -> Now {
    Now {
        monotonic_ms: read_clock(libc::CLOCK_MONOTONIC) / 1_000_000,
        boot_ms: read_clock(libc::CLOCK_BOOTTIME) / 1_000_000,
    }
}

/// `None`, with the reason printed, where eBPF programs may not be loaded.
pub fn load_xdp(config: &Config) -> Option<Xdp> {
    match Xdp::load(config) {
        Ok(xdp) => Some(xdp),
        Err(error @ DataPlaneError::Privilege { .. }) => {
            println!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
    }
}

impl World {
    /// A world on one CPU, with fresh values and no device.
    pub fn new(shape: Shape) -> Self {
        let cpu = super::pin_to_one_cpu();
        let config = shape.config();
        let host = (shape.gate == Gate::Off).then(|| {
            let mut host = Host::new(&config).unwrap();
            // Threads are numbered, and random numbers are drawn by that: the one with the CPU's number.
            let thread = (0..=cpu).map(|_| host.thread_state()).last().unwrap();
            HostSide {
                engine: host.engine(),
                thread,
                counted: Counters::default(),
                host,
            }
        });
        let mut world = Self {
            oracle: shape.oracle(cpu),
            xdp: load_xdp(&config).map(|xdp| XdpSide {
                xdp,
                counted: Counters::default(),
            }),
            host,
            shape,
            installed: BTreeMap::new(),
            fresh: [0; 8],
            first_fresh: [0; 8],
            shift_ms: 0,
            nonces: 0,
            sent: [0; 3],
        };
        world.reset();
        world
    }

    /// No device, two fresh values, not stopping.
    pub fn reset(&mut self) {
        self.recover();
        let devices: Vec<Dev> = self.installed.keys().copied().collect();
        for device in devices {
            self.wipe(device);
        }
        self.stopping(false);
        self.sweep();
        self.rotate_fresh();
        self.first_fresh = self.rotate_fresh();
        if self.shape.no_bindings {
            self.each_region(|regions, _| {
                let cells = regions.by_address.iter().chain(regions.by_mac.iter());
                cells
                    .flat_map(|bucket| &bucket.entry)
                    .for_each(|cell| cell.store(u64::MAX, Release));
            });
        }
    }

    fn now(&self) -> Now {
        real_now().plus_ms(self.shift_ms)
    }

    /// Both data planes, with their places in [`Installed::generations`].
    fn each_plane(&mut self, mut work: impl FnMut(&mut dyn DataPlane, usize)) {
        if let Some(host) = &mut self.host {
            work(&mut host.host, 0);
        }
        if let Some(xdp) = &mut self.xdp {
            work(&mut xdp.xdp, 1);
        }
    }

    fn stores(&self) -> impl Iterator<Item = (&Store, usize)> {
        let host = self.host.as_ref().map(|host| (host.host.store(), 0));
        let xdp = self.xdp.as_ref().map(|xdp| (xdp.xdp.store(), 1));
        host.into_iter().chain(xdp)
    }

    fn each_region(&self, mut work: impl FnMut(&Regions, usize)) {
        self.stores().for_each(|(store, at)| work(store.regions(), at));
    }

    // ---- user space ----

    fn store_rows(device: Dev, mode: Mode, first: u32, count: u32) -> Vec<StoreRow> {
        let row = |idx| StoreRow {
            challenge: device.challenge(mode, RowIndex(idx)),
            auth_key: device.auth_key(mode, RowIndex(idx)),
        };
        (first..=u32::MAX).take(count as usize).map(row).collect()
    }

    fn oracle_rows(device: Dev, mode: Mode, first: u32, count: u32) -> Vec<Row> {
        let row = |idx| Row {
            challenge: device.challenge(mode, RowIndex(idx)),
            auth_key: device.auth_key(mode, RowIndex(idx)),
        };
        (first..=u32::MAX).take(count as usize).map(row).collect()
    }

    fn install(&mut self, device: Dev, mode: Mode, next: u32, rows: u32) -> bool {
        let install = DeviceInstall {
            device: device.id(),
            mode,
            next_idx: RowIndex(next),
            rows: Self::oracle_rows(device, mode, next, rows),
        };
        let is_ok = self.oracle.install(install).is_ok();
        let store_rows = Self::store_rows(device, mode, next, rows);
        let mut generations = [0; 2];
        self.each_plane(|plane, at| {
            let result = plane.install(device.id(), mode, RowIndex(next), &store_rows);
            assert_eq!(result.is_ok(), is_ok, "{}: {result:?}", plane.name());
            if is_ok {
                generations[at] = plane.status(device.id()).unwrap().commit.generation();
            }
        });
        if is_ok {
            let installed = Installed {
                mode,
                generations,
                end: next.saturating_add(rows),
            };
            self.installed.insert(device, installed);
            self.compare_line(device);
        }
        is_ok
    }

    /// Installs a device with consecutive rows.
    pub fn pool(&mut self, device: Dev, next: u32, rows: u32) {
        assert!(self.install(device, Mode::Pool, next, rows));
    }

    /// Installs a key-mode device.
    pub fn key(&mut self, device: Dev, next: u32) {
        assert!(self.install(device, Mode::Key, next, 1));
    }

    pub fn is_installed(&self, device: Dev) -> bool {
        self.installed.contains_key(&device)
    }

    /// Gives a pool device the rows that follow those it was given, `skip` left out, `count` at most; whether it was
    /// accepted.
    pub fn refill(&mut self, device: Dev, skip: u32, count: u32) -> bool {
        let Some(installed) = self.installed.get(&device).copied() else {
            return false;
        };
        let commit = self.commit(device);
        // A winner that never finished leaves the ring as it was.
        let rows_ahead = self.oracle.line(device.id()).unwrap().rows_ahead;
        let (base, first) = if commit.is_empty() && rows_ahead == 0 {
            let first = installed.end.saturating_add(skip);
            (first, first)
        } else {
            (commit.idx().0, installed.end)
        };
        let room = (u64::from(base) + u64::from(RING) + 1).saturating_sub(u64::from(first));
        let count = count.min(u32::try_from(room).unwrap()).min(u32::MAX - first);
        if count == 0 || installed.mode == Mode::Key {
            return false;
        }
        let rows = Self::oracle_rows(device, Mode::Pool, first, count);
        let refilled = self.oracle.refill(device.id(), RowIndex(first), rows);
        let is_ok = refilled.is_ok();
        assert!(is_ok || commit.is_revoked(), "{refilled:?}");
        let rows = Self::store_rows(device, Mode::Pool, first, count);
        self.each_plane(|plane, _| {
            let result = plane.refill(device.id(), RowIndex(first), &rows);
            assert_eq!(result.is_ok(), is_ok, "{}: {result:?}", plane.name());
        });
        if let (true, Some(installed)) = (is_ok, self.installed.get_mut(&device)) {
            installed.end = first + count;
        }
        self.compare_line(device);
        is_ok
    }

    pub fn revoke(&mut self, device: Dev) {
        if self.installed.contains_key(&device) {
            self.oracle.revoke(device.id()).unwrap();
            self.each_plane(|plane, _| plane.revoke(device.id()).unwrap());
            self.compare_line(device);
        }
    }

    pub fn wipe(&mut self, device: Dev) {
        if self.installed.remove(&device).is_some() {
            self.oracle.wipe(device.id()).unwrap();
            self.each_plane(|plane, _| plane.wipe(device.id()).unwrap());
        }
    }

    /// What a gateway does every few seconds: forgets dead sessions' bindings, and reuses slots. The oracle keeps all
    /// that it ever had: an entry is a hint, and forgetting one may change nothing.
    pub fn sweep(&mut self) {
        self.each_plane(|plane, _| plane.housekeep());
    }

    pub fn rotate_fresh(&mut self) -> [u8; 8] {
        self.nonces += 1;
        self.fresh = (0xfe00_0000_0000_0000 | self.nonces).to_be_bytes();
        let (fresh, now) = (self.fresh, self.now());
        self.oracle.set_fresh(FreshValue::from_wire(fresh).unwrap(), now);
        if let Some(host) = &mut self.host {
            host.host.set_fresh(fresh, now.monotonic_ms * 1_000_000);
        }
        if let Some(xdp) = &mut self.xdp {
            xdp.xdp.set_fresh(fresh, read_clock(libc::CLOCK_MONOTONIC));
        }
        fresh
    }

    pub fn stopping(&mut self, stopping: bool) {
        self.oracle.set_stopping(stopping);
        self.each_plane(|plane, _| plane.set_stopping(stopping));
    }

    /// Lets time go by on both clocks. `xdp` reads the machine's: there the past moves back instead.
    pub fn advance(&mut self, seconds: u32) {
        self.shift_ms += u64::from(seconds) * 1000;
        if let Some(xdp) = &self.xdp {
            let regions = xdp.xdp.store().regions();
            let at = &regions.control[0].fresh_at_ns;
            let moved = at
                .load(Acquire)
                .saturating_sub(u64::from(seconds) * 1_000_000_000);
            at.store(moved, Release);
            for line in regions.lines.iter() {
                let until = line.lease_until_s.load(Acquire);
                line.lease_until_s.store(until.saturating_sub(seconds), Release);
            }
        }
    }

    /// Stops a winner between its compare-and-swap and everything else, as another CPU would see it.
    pub fn half_win(&mut self, device: Dev, from: &[u8]) {
        let now = self.now();
        let parsed = parse(from).unwrap();
        let (_, udp) = parsed.datagram().unwrap();
        let Ok(Message::Response(response)) = wire::parse(&from[udp.payload()]) else {
            panic!("not a RESPONSE");
        };
        let meta = parsed.meta(INGRESS).unwrap();
        let Ok(Checked::Current(verified)) = self.oracle.check_response(now, &meta, response) else {
            panic!("not acceptable");
        };
        drop(self.oracle.commit(verified).unwrap());
        for (store, _) in self.stores() {
            let (line, _) = store.line(device.id()).unwrap();
            let won = |word| CommitWord(word).won().map(|won| won.0);
            line.commit.fetch_update(AcqRel, Acquire, won).unwrap();
        }
        self.compare_line(device);
    }

    /// Whether the oracle would spend a row for that RESPONSE.
    pub fn can_check(&self, frame: &[u8]) -> bool {
        let parsed = parse(frame).unwrap();
        let (_, udp) = parsed.datagram().unwrap();
        let Ok(Message::Response(response)) = wire::parse(&frame[udp.payload()]) else {
            return false;
        };
        let meta = parsed.meta(INGRESS).unwrap();
        let checked = self.oracle.check_response(self.now(), &meta, response);
        matches!(checked, Ok(Checked::Current(_)))
    }

    /// Clears up after winners that never finished.
    pub fn recover(&mut self) {
        self.oracle.recover();
        for (store, _) in self.stores() {
            let _ = store.recover();
        }
        self.compare_lines();
    }

    // ---- messages ----

    /// The device's commit word.
    pub fn commit(&self, device: Dev) -> CommitWord {
        self.oracle
            .line(device.id())
            .map_or(CommitWord(0), |line| line.commit)
    }

    pub fn fresh(&self) -> [u8; 8] {
        self.fresh
    }

    /// The current fresh value as it was right after [`World::reset`].
    pub fn first_fresh(&self) -> [u8; 8] {
        self.first_fresh
    }

    pub fn mode(&self, device: Dev) -> Mode {
        self.installed
            .get(&device)
            .map_or(Mode::Pool, |installed| installed.mode)
    }

    /// The REQUEST of a device, under the same nonce every time.
    pub fn request(&self, device: Dev) -> Vec<u8> {
        device.request([0x5a; 16]).as_bytes().to_vec()
    }

    /// What a RESPONSE must say now, not BOUND.
    pub fn response(&self, device: Dev) -> Response {
        Response {
            mode: self.mode(device),
            idx: self.commit(device).idx().0,
            gateway: GATEWAY,
            fresh: self.fresh,
            bound: None,
            nonce: [0x5a; 16],
        }
    }

    /// Opens a BOUND session from the device's own place.
    pub fn open_bound(&mut self, device: Dev, v6: bool) {
        let response = self.response(device).bound(device.mac()).bytes(device);
        let frame = device.frame(v6).udp(&response);
        assert_eq!(self.send(&frame), Verdict::ReplyAck);
    }

    // ---- packets ----

    /// Sends a frame through the oracle, `xdp` and `host`; returns the verdict that they agree on.
    pub fn send(&mut self, frame: &[u8]) -> Verdict {
        self.send_for_reply(frame).0
    }

    /// As [`World::send`], with the frame afterwards.
    pub fn send_for_reply(&mut self, frame: &[u8]) -> (Verdict, Vec<u8>) {
        let now = self.now();
        let line_before = lap_device(frame).and_then(|id| self.oracle.line(id));
        let mut out = frame.to_vec();
        let verdict = self.oracle.handle_frame(now, INGRESS, &mut out);
        self.sent[0] += 1;
        if verdict.disposition() == Disposition::Reply {
            reply::check_headers(frame, &out);
            if let Some(line) = line_before {
                self.check_message(frame, &out, verdict, line.commit);
            }
        } else {
            assert_eq!(frame, out, "only a reply changes the frame");
        }
        self.send_xdp(frame, verdict, &out);
        self.send_host(now, frame, verdict, &out);
        if let Some(device) = lap_device(frame) {
            let installed = self.installed.keys().find(|dev| dev.id() == device).copied();
            installed.into_iter().for_each(|dev| self.compare_line(dev));
        }
        (verdict, out)
    }

    fn check_message(&self, frame: &[u8], out: &[u8], verdict: Verdict, commit: CommitWord) {
        let id = lap_device(frame).unwrap();
        let (device, installed) = self.installed.iter().find(|(dev, _)| dev.id() == id).unwrap();
        let expected = reply::Expected {
            device: *device,
            mode: installed.mode,
            idx: commit.idx().0,
            fresh: self.fresh,
            lease_s: LEASE_S,
        };
        reply::check_message(frame, out, verdict, &expected);
    }

    fn send_xdp(&mut self, frame: &[u8], verdict: Verdict, out: &[u8]) {
        // The kernel does not run a program on less than an Ethernet header.
        let Some(side) = self.xdp.as_mut().filter(|_| frame.len() >= 14) else {
            return;
        };
        let run = side.xdp.test_run(frame).unwrap();
        self.sent[1] += 1;
        let counted = side.xdp.counters().unwrap();
        let counts: Vec<_> = counted.since(&side.counted).nonzero().collect();
        side.counted = counted;
        assert_eq!(counts, [(verdict, 1)], "xdp; oracle: {verdict}; {}", hex(frame));
        // XDP_DROP, XDP_PASS, XDP_TX.
        let action = match verdict.disposition() {
            Disposition::Drop => 1,
            Disposition::Pass => 2,
            Disposition::Reply => 3,
        };
        assert_eq!(run.action, action, "{verdict}");
        if action != 1 {
            assert_eq!(hex(&run.frame), hex(out), "xdp, {verdict}, of {}", hex(frame));
        }
    }

    fn send_host(&mut self, now: Now, frame: &[u8], verdict: Verdict, out: &[u8]) {
        let (Some(side), Some((meta, payload))) = (self.host.as_mut(), seen_by_a_socket(frame)) else {
            return;
        };
        let mut message = frame[payload.clone()].to_vec();
        let got = match (meta.dst_port, self.shape.classic) {
            (wire::LAP_PORT, _) => {
                side.engine
                    .process(&mut side.thread, Moment::from(now), &meta, &mut message)
            }
            (CLASSIC_PORT, Some(_)) => side.engine.process_classic(&mut side.thread, &mut message),
            _ => return,
        };
        self.sent[2] += 1;
        let counted = side.host.counters().unwrap();
        let counts: Vec<_> = counted.since(&side.counted).nonzero().collect();
        side.counted = counted;
        assert_eq!(got, verdict, "host; {}", hex(frame));
        assert_eq!(counts, [(verdict, 1)], "host");
        if verdict.disposition() == Disposition::Reply {
            assert_eq!(
                hex(&message),
                hex(&out[payload]),
                "host, {verdict}, of {}",
                hex(frame)
            );
        }
    }

    /// Compares all lines.
    pub fn compare_lines(&self) {
        self.installed
            .keys()
            .for_each(|device| self.compare_line(*device));
    }

    fn compare_line(&self, device: Dev) {
        let (expected, until) = view::of_oracle(&self.oracle.line(device.id()).unwrap());
        let installed = &self.installed[&device];
        for (store, at) in self.stores() {
            let name = ["host", "xdp"][at];
            let had_session = expected.session.is_some();
            let (got, got_until) = view::of_store(store, device.id(), installed.generations[at], had_session);
            assert_eq!(got, expected, "memory of {name}, {device:?}");
            if had_session {
                // `xdp` has read the clock itself, and its clock was not moved.
                let shift_s = if at == 1 { (self.shift_ms / 1000) as u32 } else { 0 };
                let difference = (got_until + shift_s).abs_diff(until);
                assert!(
                    difference <= at as u32,
                    "lease in {name}: {got_until} + {shift_s}, {until}"
                );
            }
        }
    }

    /// The events since the last call, which both data planes must agree on.
    pub fn compare_events(&mut self) -> Vec<Event> {
        let mut events: [Option<Vec<Event>>; 2] = [None, None];
        self.each_plane(|plane, at| {
            let mut drained = Vec::new();
            plane.drain_events(&mut |event| drained.push(event)).unwrap();
            assert_eq!(plane.counters().unwrap().events_lost, 0);
            events[at] = Some(drained);
        });
        if let [Some(host), Some(xdp)] = &events {
            assert_eq!(host, xdp, "events of host and xdp");
        }
        let [host, xdp] = events;
        xdp.or(host).unwrap_or_default()
    }
}

/// The device that a LAP message to the gateway names, if the frame is one that long.
fn lap_device(frame: &[u8]) -> Option<DeviceId> {
    let (meta, payload) = seen_by_a_socket(frame)?;
    let id = frame[payload].get(8..16)?.try_into().unwrap();
    (meta.dst_port == wire::LAP_PORT).then_some(DeviceId(u64::from_be_bytes(id)))
}

/// Where the payload lies and what it came with, when a UDP socket on the gateway's addresses would get it.
fn seen_by_a_socket(frame: &[u8]) -> Option<(Meta, std::ops::Range<usize>)> {
    let parsed = parse(frame).ok()?;
    let (ip, udp) = parsed.datagram()?;
    let is_local = [gateway_end(false).ip, gateway_end(true).ip].contains(&ip.dst);
    is_local.then_some((parsed.meta(INGRESS)?, udp.payload()))
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
