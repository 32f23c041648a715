//! One configuration, state and clock for the oracle, `xdp`, `host` and optionally a P4 switch. Every packet goes
//! through all of them, and every difference is a failure.

pub mod attest;
#[path = "../../../../p4runtime/tests/service/support/authority.rs"]
mod authority;
mod events;
pub mod forward;
mod provision;
mod settings;
pub mod switch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use linewarden_dataplane::host::{Engine, Host, ThreadState, Timestamps};
use linewarden_dataplane::store::Regions;
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{Config, Counters, DataPlane, DataPlaneError, Gate, Row, Store, Telemetry as _};
use linewarden_harness::{skip, skip_part};
use linewarden_protocol::attest::Round;
use linewarden_protocol::commit::CommitWord;
use linewarden_protocol::data::DownCounter;
use linewarden_protocol::frame::{Meta, parse};
use linewarden_protocol::gateway::{Gateway, LineView};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, SessionId};
use linewarden_protocol::time::Now;
use linewarden_protocol::verdict::{Disposition, Verdict};
use linewarden_protocol::wire;
use zerocopy::IntoBytes as _;

use super::device::{DeviceSession, GATEWAY, Response, TestDevice, gateway_end};
use super::test_config::TestConfig;
use super::{reply, view};
use forward::Forwarding;
use settings::Settings;
use switch::SwitchSide;

/// The ingress interface of `BPF_PROG_TEST_RUN`: the loopback interface.
pub const INGRESS: u32 = 1;
/// The MTU of the loopback interface.
const LOOPBACK_MTU: usize = 65_536;

struct HostSide {
    host: Host,
    engine: Arc<Engine>,
    thread: ThreadState,
    /// The counters after the previous frame.
    counted: Counters,
}

struct XdpSide {
    xdp: Xdp,
    /// The counters after the previous frame.
    counted: Counters,
}

/// What the fixture remembers of an installed device.
#[derive(Clone, Copy)]
struct InstalledDevice {
    mode: Mode,
    /// The generations of its line right after the installation: in `host`, in `xdp` and in the switch.
    generations: [u32; 3],
    /// The idx after the highest row that was ever installed.
    next_new_idx: u32,
}

pub struct TestFixture {
    test_config: TestConfig,
    oracle: Gateway,
    host: Option<HostSide>,
    xdp: Option<XdpSide>,
    switch: Option<SwitchSide>,
    installed: BTreeMap<TestDevice, InstalledDevice>,
    settings: Settings,
    forwarding: Option<Forwarding>,
    fresh: [u8; 8],
    first_fresh: [u8; 8],
    /// How far the clock of the oracle and `host` is ahead of the machine's clock, which `xdp` uses.
    shift_ms: u64,
    nonces: u64,
    provers: BTreeSet<TestDevice>,
    rounds: Vec<Round>,
    /// How many frames went through the oracle, through `xdp` and through `host`.
    pub sent: [u64; 3],
    /// Repeated ACKs in which a data plane named a shorter session lifetime than was granted.
    pub shortened_lifetimes: u64,
    /// Expected events that report a session which is new or has moved.
    pub session_events: u64,
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

/// Loads the eBPF programs. Skips the test if this process is not permitted to load them.
pub fn load_xdp(config: &Config) -> Xdp {
    try_load_xdp(config).unwrap_or_else(|error| skip!("{error}"))
}

/// Loads the eBPF programs. If this process is not permitted to load them, the test runs without `xdp`, and counts as
/// ignored.
pub fn load_xdp_if_permitted(config: &Config) -> Option<Xdp> {
    try_load_xdp(config).map_err(|error| skip_part!("{error}")).ok()
}

fn try_load_xdp(config: &Config) -> Result<Xdp, DataPlaneError> {
    match Xdp::load(config) {
        Ok(mut xdp) => {
            assert!(xdp.set_own_macs(INGRESS, &[gateway_end(false).mac]));
            Ok(xdp)
        }
        Err(error @ DataPlaneError::Privilege { .. }) => Err(error),
        Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
    }
}

/// Installs a device in key mode, and makes `fresh` the current fresh value.
pub fn install_key(data_plane: &mut dyn DataPlane, device: TestDevice, fresh: [u8; 8]) {
    let row = Row {
        challenge: device.challenge(Mode::Key, RowIndex(0)),
        auth_key: device.auth_key(Mode::Key, RowIndex(0)),
    };
    data_plane
        .install(device.id(), Mode::Key, RowIndex(0), &[row], None)
        .unwrap();
    data_plane.set_fresh(fresh, real_now().monotonic_ms * 1_000_000);
}

impl TestFixture {
    /// A fixture on one CPU, with fresh values and no device.
    pub fn new(test_config: TestConfig) -> Self {
        Self::build(test_config, None)
    }

    /// Like [`TestFixture::new`], with a switch.
    pub fn with_switch(test_config: TestConfig) -> Self {
        Self::build(test_config, Some(SwitchSide::start(&test_config.config())))
    }

    fn build(test_config: TestConfig, switch: Option<SwitchSide>) -> Self {
        super::pin_to_one_cpu();
        let config = test_config.config();
        let host = (test_config.gate == Gate::Off).then(|| {
            let mut host = Host::new(&config).unwrap();
            HostSide {
                engine: host.engine(),
                thread: host.thread_state(),
                counted: Counters::default(),
                host,
            }
        });
        let mut fixture = Self {
            oracle: test_config.oracle(),
            xdp: load_xdp_if_permitted(&config).map(|xdp| XdpSide {
                xdp,
                counted: Counters::default(),
            }),
            host,
            switch,
            test_config,
            installed: BTreeMap::new(),
            settings: Settings::new(config.live_settings()),
            forwarding: None,
            fresh: [0; 8],
            first_fresh: [0; 8],
            shift_ms: 0,
            nonces: 0,
            provers: BTreeSet::new(),
            rounds: Vec::new(),
            sent: [0; 3],
            shortened_lifetimes: 0,
            session_events: 0,
        };
        fixture.reset();
        fixture
    }

    /// Restores the initial state: no device, two accepted fresh values, a gateway that is not stopping, and the
    /// initial settings.
    pub fn reset(&mut self) {
        self.recover();
        let devices: Vec<TestDevice> = self.installed.keys().copied().collect();
        for device in devices {
            self.wipe(device);
        }
        self.reset_switch();
        self.set_stopping(false);
        self.forget_provers();
        self.forget_settings();
        // No test reads the messages of unknown devices here, and their ring would fill up.
        self.each_data_plane(|data_plane, _| data_plane.drain_misses(&mut drop).unwrap());
        self.sweep();
        self.rotate_fresh();
        self.first_fresh = self.rotate_fresh();
        if self.test_config.no_bindings {
            self.each_region(|regions, _| {
                let buckets = regions.by_address.iter().chain(regions.by_mac.iter());
                buckets
                    .flat_map(|bucket| &bucket.entry)
                    .for_each(|entry| entry.store(u64::MAX, Release));
            });
        }
    }

    fn now(&self) -> Now {
        real_now().plus_ms(self.shift_ms)
    }

    /// Calls `work` for each data plane, with its index in [`InstalledDevice::generations`].
    fn each_data_plane(&mut self, mut work: impl FnMut(&mut dyn DataPlane, usize)) {
        if let Some(host) = &mut self.host {
            work(&mut host.host, 0);
        }
        if let Some(xdp) = &mut self.xdp {
            work(&mut xdp.xdp, 1);
        }
        if let Some(switch) = self.switch.as_mut().filter(|switch| !switch.left_behind) {
            work(&mut switch.data_plane, 2);
        }
    }

    fn stores(&self) -> impl Iterator<Item = (&Store, usize)> {
        let host = self.host.as_ref().map(|host| (host.host.store(), 0));
        let xdp = self.xdp.as_ref().map(|xdp| (xdp.xdp.store(), 1));
        host.into_iter().chain(xdp)
    }

    fn each_region(&self, mut work: impl FnMut(&Regions, usize)) {
        self.stores()
            .for_each(|(store, index)| work(store.regions(), index));
    }

    // ---- messages ----

    /// The device's commit word.
    pub fn commit(&self, device: TestDevice) -> CommitWord {
        self.oracle
            .line(device.id())
            .map_or(CommitWord(0), |line| line.commit)
    }

    pub fn fresh(&self) -> [u8; 8] {
        self.fresh
    }

    /// The fresh value that was current right after [`TestFixture::reset`].
    pub fn first_fresh(&self) -> [u8; 8] {
        self.first_fresh
    }

    pub fn mode(&self, device: TestDevice) -> Mode {
        self.installed
            .get(&device)
            .map_or(Mode::Pool, |installed| installed.mode)
    }

    /// The REQUEST of a device, always with the same nonce.
    pub fn request(&self, device: TestDevice) -> Vec<u8> {
        device.request([0x5a; 16]).as_bytes().to_vec()
    }

    /// The fields of a RESPONSE, not BOUND, that would be accepted now.
    pub fn response(&self, device: TestDevice) -> Response {
        Response {
            mode: self.mode(device),
            idx: self.commit(device).idx().0,
            gateway: GATEWAY,
            fresh: self.fresh,
            bound: None,
            nonce: [0x5a; 16],
        }
    }

    /// Opens a BOUND session from the device's own address.
    pub fn open_bound(&mut self, device: TestDevice, v6: bool) {
        let response = self.response(device).bound(device.mac()).bytes(device);
        let frame = device.frame(v6).udp(&response);
        assert_eq!(self.send(&frame), Verdict::ReplyAck);
    }

    /// The session that a device has opened with the row before its current one. Its RESPONSE was BOUND, came from the
    /// device's own address, and used the fresh value that is still current.
    pub fn device_session(&self, device: TestDevice) -> DeviceSession {
        let idx = self.commit(device).idx().0 - 1;
        let response = self.response(device).bound(device.mac()).idx(idx);
        DeviceSession::of(device, self.mode(device), &device.response(&response))
    }

    /// The latest session of a device, live or expired; `None` if the device has no session.
    pub fn last_device_session(&self, device: TestDevice) -> Option<DeviceSession> {
        let line = self.oracle.line(device.id())?;
        Some(DeviceSession {
            device,
            id: SessionId::from_wire(line.session_id)?,
            key: line.session.session_key.clone(),
        })
    }

    /// The highest sequence number that the device's window has accepted.
    pub fn top(&self, device: TestDevice) -> u32 {
        self.oracle.line(device.id()).map_or(0, |line| line.window.top())
    }

    // ---- packets ----

    /// Sends a frame through the oracle, `xdp` and `host`; returns the verdict that they agree on.
    pub fn send(&mut self, frame: &[u8]) -> Verdict {
        self.send_for_reply(frame).0
    }

    /// Like [`TestFixture::send`]; also returns the resulting frame.
    pub fn send_for_reply(&mut self, frame: &[u8]) -> (Verdict, Vec<u8>) {
        let now = self.now();
        let line_before = lap_device(frame).and_then(|id| self.oracle.line(id));
        let before = self.frame_context(frame, now.boot_ms);
        let mut out = frame.to_vec();
        let handled = self.oracle.handle(now, INGRESS, &mut out);
        let verdict = handled.verdict;
        out.truncate(handled.frame.end);
        out.drain(..handled.frame.start);
        self.sent[0] += 1;
        if verdict.disposition() == Disposition::Reply {
            reply::check_headers(frame, &out);
            if let Some(line) = &line_before {
                self.check_message(frame, &out, verdict, line);
            }
        } else if verdict != Verdict::PassData {
            assert_eq!(
                frame, out,
                "only a reply or the removal of a seal changes the frame"
            );
        }
        let [host, xdp] = self.replies(line_before.as_ref(), verdict, &out, lap_device(frame));
        self.shortened_lifetimes += u64::from(host != out || xdp != out);
        self.send_xdp(frame, verdict, &xdp);
        self.send_host(now, frame, verdict, &host);
        self.send_switch(frame, verdict, &out);
        self.compare_events(&before, frame, verdict);
        self.compare_provers();
        if let Some(device) = lap_device(frame) {
            let installed = self.installed.keys().find(|dev| dev.id() == device).copied();
            installed.into_iter().for_each(|dev| self.compare_line(dev));
        }
        (verdict, out)
    }

    fn check_message(&self, frame: &[u8], out: &[u8], verdict: Verdict, line: &LineView) {
        let id = lap_device(frame).unwrap();
        let (device, installed) = self.installed.iter().find(|(dev, _)| dev.id() == id).unwrap();
        let expected = reply::Expected {
            device: *device,
            mode: installed.mode,
            idx: line.commit.idx().0,
            fresh: self.fresh,
            session_lifetime_s: match verdict {
                Verdict::ReplyAckRepeated => line.session.session_lifetime_s,
                _ => self.settings.live.session_lifetime_s,
            },
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
        if self.test_config.gate != Gate::Off {
            let dropped = side.xdp.dropped_types().unwrap().unwrap();
            assert_eq!(&dropped, self.oracle.dropped_types(), "of {}", hex(frame));
        }
        let forwarded = match (&mut self.forwarding, verdict) {
            (Some(forwarding), Verdict::PassData) => forwarding.forward(&self.settings.live.forward_to, out),
            _ => None,
        };
        // XDP_DROP, XDP_PASS, XDP_TX, XDP_REDIRECT.
        let action = match verdict.disposition() {
            Disposition::Drop => 1,
            Disposition::Pass if forwarded.is_some() => 4,
            Disposition::Pass => 2,
            Disposition::Reply => 3,
        };
        assert_eq!(run.action, action, "{verdict}, of {}", hex(frame));
        if action != 1 {
            let out = forwarded.as_deref().unwrap_or(out);
            assert_eq!(hex(&run.frame), hex(out), "xdp, {verdict}, of {}", hex(frame));
        }
    }

    /// Sends a frame towards the devices through the oracle and `xdp`; returns the verdict that they agree on, and
    /// the resulting frame.
    pub fn send_down(&mut self, frame: &[u8]) -> (Verdict, Vec<u8>) {
        let now = self.now();
        let mut out = frame.to_vec();
        let verdict = self.oracle.seal_frame(now, LOOPBACK_MTU, false, &mut out);
        self.leave_switch_behind();
        self.sent[0] += 1;
        // The kernel does not run a program on less than an Ethernet header.
        if let Some(side) = self.xdp.as_mut().filter(|_| frame.len() >= 14) {
            let run = side.xdp.test_seal(frame, INGRESS).unwrap();
            self.sent[1] += 1;
            let counted = side.xdp.counters().unwrap();
            let counts: Vec<_> = counted.since(&side.counted).nonzero().collect();
            side.counted = counted;
            assert_eq!(counts, [(verdict, 1)], "xdp; oracle: {verdict}; {}", hex(frame));
            // TC_ACT_SHOT, TC_ACT_UNSPEC.
            let passes = verdict.disposition() == Disposition::Pass;
            assert_eq!(run.action, if passes { u32::MAX } else { 2 }, "{verdict}");
            if passes {
                assert_eq!(hex(&run.frame), hex(&out), "xdp, {verdict}, of {}", hex(frame));
            }
        }
        self.compare_lines();
        (verdict, out)
    }

    /// Sets how many sequence numbers towards the device were used in the session's current generation.
    pub fn set_down(&mut self, device: TestDevice, count: u64) {
        self.oracle.set_down_count(device.id(), count);
        self.leave_switch_behind();
        if let Some(side) = &self.xdp {
            let (line, place) = side.xdp.store().line(device.id()).unwrap();
            let generation = CommitWord(line.commit.load(Acquire)).window_generation();
            let word = u64::from(generation) << 56 | count;
            side.xdp.down_counter(place.slot).unwrap().store(word, Release);
        }
    }

    fn send_host(&mut self, now: Now, frame: &[u8], verdict: Verdict, out: &[u8]) {
        let (Some(side), Some((meta, payload))) = (self.host.as_mut(), as_seen_by_socket(frame)) else {
            return;
        };
        let mut message = frame[payload.clone()].to_vec();
        if meta.dst_port != wire::LAP_PORT {
            return;
        }
        let got = side
            .engine
            .process(&mut side.thread, Timestamps::from(now), &meta, &mut message);
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

    fn compare_line(&self, device: TestDevice) {
        let (expected, until) = view::of_oracle(&self.oracle.line(device.id()).unwrap());
        let installed = &self.installed[&device];
        for (store, index) in self.stores() {
            let name = ["host", "xdp"][index];
            let had_session = expected.session.is_some();
            let (got, got_until) =
                view::of_store(store, device.id(), installed.generations[index], had_session);
            assert_eq!(got, expected, "memory of {name}, {device:?}");
            if had_session {
                // `xdp` reads the machine's clock, which is not shifted.
                let shift_s = if index == 1 {
                    (self.shift_ms / 1000) as u32
                } else {
                    0
                };
                let difference = got_until.saturating_add(shift_s).abs_diff(until);
                assert!(
                    difference <= index as u32,
                    "session end in {name}: {got_until} + {shift_s}, {until}"
                );
            }
        }
        self.compare_down(device);
        self.compare_switch_line(device);
    }

    /// Compares the counter of the sequence numbers towards the device: the count, and the generation relative to the
    /// installation. Nothing is compared while the oracle has counted nothing.
    fn compare_down(&self, device: TestDevice) {
        let line = self.oracle.line(device.id()).unwrap();
        let Some(side) = self
            .xdp
            .as_ref()
            .filter(|_| line.down_counter != DownCounter::default())
        else {
            return;
        };
        let (_, place) = side.xdp.store().line(device.id()).unwrap();
        let Some(word) = side.xdp.down_counter(place.slot) else {
            return;
        };
        let word = DownCounter(word.load(Acquire));
        let installed_generation = self.installed[&device].generations[1] as u8;
        assert_eq!(
            word.count(),
            line.down_counter.count(),
            "numbers towards {device:?}"
        );
        assert_eq!(
            word.generation().wrapping_sub(installed_generation),
            line.down_counter.generation()
        );
    }
}

/// The device that a LAP message to the gateway names, if the frame is long enough.
fn lap_device(frame: &[u8]) -> Option<DeviceId> {
    let (meta, payload) = as_seen_by_socket(frame)?;
    let id = frame[payload].get(8..16)?.try_into().unwrap();
    (meta.dst_port == wire::LAP_PORT).then_some(DeviceId(u64::from_be_bytes(id)))
}

/// The addresses of a datagram and the range of its payload, if a UDP socket on the gateway's addresses would receive it.
pub fn as_seen_by_socket(frame: &[u8]) -> Option<(Meta, std::ops::Range<usize>)> {
    let parsed = parse(frame).ok()?;
    let (ip, udp) = parsed.datagram()?;
    let is_local = [gateway_end(false).ip, gateway_end(true).ip].contains(&ip.dst);
    // The kernel accepts no datagram from an address that names no host, and no frame for another station. Frames to
    // group MAC addresses are excluded because a socket cannot recognize them.
    let is_here = is_local && parsed.dst_mac == gateway_end(false).mac;
    (is_here && parsed.is_answerable(&ip)).then_some((parsed.meta(INGRESS)?, udp.payload()))
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
