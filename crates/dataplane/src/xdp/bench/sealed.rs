//! Measures the sealed gate on one CPU, packet after packet (`BPF_PROG_TEST_RUN`), in both directions:
//! `bpf/bench_sealed.bpf.c`.
//!
//! Every run starts with the original packet and window, so that the sequence number of the packet is new. Upwards the
//! packet is opened, downwards it is sealed. The cost of the harness is subtracted.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{OpenObject, ProgramInput, ProgramMut};
use linewarden_protocol::data::{Channel, Direction, Route, Sequence, seal};
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::ip_bytes;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, SessionId, Suite};
use linewarden_protocol::keys::{AuthKey, SessionKey};
use linewarden_protocol::wire::{DATA_HEADER_BYTES, LAP_PORT};

use crate::layout::Shared;
use crate::store::{Region, Row, Store, table, wire_word};
use crate::xdp::seal::DownCell;
use crate::xdp::skeleton::bench_sealed::{BenchSealedSkel, BenchSealedSkelBuilder};
use crate::xdp::{check_privileges, config, libbpf_log};
use crate::{Config, DataPlaneError};

/// `struct lw_bench`.
#[derive(Debug)]
#[repr(C)]
struct State {
    frame: [AtomicU64; 16],
    window: AtomicU64,
    place: AtomicU32,
    bytes: AtomicU32,
}
// SAFETY: repr(C), atomics only, valid when zero.
unsafe impl Shared for State {}

const DEVICE: DeviceId = DeviceId(0xd1);
const SESSION: [u8; 8] = [7; 8];
const KEY: [u8; 16] = [9; 16];
/// Endpoints of the datagrams.
const ENDPOINTS: [Endpoint; 2] = [
    Endpoint {
        mac: [2, 0, 0, 0, 0, 1],
        ip: std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 66, 1, 1)),
        port: 40_000,
    },
    Endpoint {
        mac: [2, 0, 0, 0, 0, 2],
        ip: std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 2)),
        port: 5683,
    },
];

/// Cost of one packet, ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Opening a DATA_UP.
    pub up: f64,
    /// Sealing a DATA_DOWN.
    pub down: f64,
    /// Cost of the harness, up and down, which is not included.
    pub harness: [f64; 2],
}

/// The loaded benchmark programs, and a device with a session.
pub struct SealedBench {
    skeleton: BenchSealedSkel<'static>,
    store: Store,
    state: Region<State>,
    down_counters: Region<DownCell>,
}

impl SealedBench {
    /// Loads the programs and opens a session for a device.
    ///
    /// # Errors
    /// As [`crate::xdp::Xdp::load`].
    pub fn load(config: &Config) -> Result<Self, DataPlaneError> {
        config.check()?;
        check_privileges()?;
        libbpf_log::redirect();
        // libbpf requires the object's storage to outlive the skeleton; a few dozen bytes leak per load.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let error = |error| DataPlaneError::kernel("loading the benchmark programs", error);
        let mut open = BenchSealedSkelBuilder::default().open(storage).map_err(error)?;
        config::configure(open.open_object_mut(), config, false)?;
        let skeleton = open.load().map_err(error)?;
        let regions = config::regions(skeleton.object(), config)?;
        regions.initialize_settings(&config.live_settings());
        let mut benchmark = Self {
            state: config::region(skeleton.object(), "bench", 1)?,
            down_counters: config::region(skeleton.object(), "down", config.geometry.slots)?,
            store: Store::new(Arc::new(regions), config.geometry.clone()),
            skeleton,
        };
        benchmark.open_session()?;
        Ok(benchmark)
    }

    /// Writes a session as a winner does.
    fn open_session(&mut self) -> Result<(), DataPlaneError> {
        let row = Row {
            challenge: [0; 8],
            auth_key: AuthKey::from_bytes([1; 16]),
        };
        self.store.install(DEVICE, Mode::Key, RowIndex(0), &[row], None)?;
        let (line, place) = self.store.line(DEVICE)?;
        let regions = self.store.regions();
        let halves = |bytes: &[u8; 16]| linewarden_protocol::keys::halves(bytes).map(wire_word);
        let addr = halves(&ip_bytes(ENDPOINTS[0].ip));
        if let Some(session) = regions.sessions.get(place.slot as usize) {
            for (to, from) in [(&session.addr, addr), (&session.session_key, halves(&KEY))] {
                to.iter().zip(from).for_each(|(to, from)| to.store(from, Relaxed));
            }
        }
        line.session_until_s.store(u32::MAX, Relaxed);
        line.session_id.store(wire_word(SESSION), Relaxed);
        let geometry = self.store.geometry();
        let hash = table::hash(geometry.hash_seed, addr[0], addr[1]);
        if !table::insert(&regions.by_address, geometry.bucket_mask(), hash, place.line) {
            return Err(DataPlaneError::kernel(
                "creating the benchmark's session",
                "no room for its address",
            ));
        }
        if let Some(state) = self.state.first() {
            state.window.store(line.window.load(Relaxed), Relaxed);
            state.place.store(place.line, Relaxed);
        }
        Ok(())
    }

    /// Cost of a payload with `payload_bytes` bytes. Each program runs in `series_count` series of `repeat` runs, and the
    /// fastest series counts.
    ///
    /// # Errors
    /// Errors of the kernel, or a dropped packet.
    pub fn cost(&self, payload_bytes: usize, repeat: u32, series_count: u32) -> Result<Cost, DataPlaneError> {
        let [device, service] = ENDPOINTS;
        let payload = vec![0x5a; payload_bytes];
        let mut message = vec![0; DATA_HEADER_BYTES + payload_bytes];
        let key = SessionKey::from_bytes(KEY);
        let channel = Channel {
            suite: Suite::SipHash128,
            device: DEVICE,
            session: SessionId::from_wire(SESSION)
                .ok_or_else(|| DataPlaneError::kernel("creating the benchmark's session", "session id 0"))?,
            addr: ip_bytes(device.ip),
            key: &key,
        };
        let route = Route {
            source: ip_bytes(device.ip),
            destination: ip_bytes(service.ip),
        };
        seal(
            &channel,
            Direction::Up,
            Sequence::FIRST,
            service.port,
            &route,
            &payload,
            &mut message,
        )
        .map_err(|error| DataPlaneError::kernel("sealing the benchmark's message", error))?;
        let gateway = Endpoint {
            port: LAP_PORT,
            ..service
        };
        let sealed = FrameBuilder::new(device, gateway).udp(&message);
        let programs = &self.skeleton.progs;
        // The harness extends the packet at its front by the length of the LAP header.
        let short = sealed.get(DATA_HEADER_BYTES..).unwrap_or_default();
        self.lay_out(&sealed);
        let shortest = |program: &ProgramMut<'_>, frame: &[u8], action| {
            shortest_run_ns(program, frame, action, repeat, series_count)
        };
        let up = |program| shortest(program, short, libbpf_rs::libbpf_sys::XDP_PASS);
        let (harness, moves, total) = (
            up(&programs.bench_up_harness)?,
            up(&programs.bench_up_moves)?,
            up(&programs.bench_up)?,
        );
        let plain = FrameBuilder::new(service, device).udp(&payload);
        self.lay_out(&plain);
        // This frame is so long that the harness does not extend it.
        let long = FrameBuilder::new(service, device).udp(&message);
        let down = |program| {
            self.down_counters
                .iter()
                .for_each(|word| word.0.store(0, Relaxed));
            shortest(program, &long, u32::MAX)
        };
        let (harness_down, moves_down, total_down) = (
            down(&programs.bench_down_harness)?,
            down(&programs.bench_down_moves)?,
            down(&programs.bench_down)?,
        );
        // The harness moves an end of the packet one time more than the measured program; see `bench_sealed.bpf.c`.
        Ok(Cost {
            up: total - harness + (moves - harness) / 2.0,
            down: total_down - harness_down + (moves_down - harness_down) / 2.0,
            harness: [harness, harness_down],
        })
    }

    fn lay_out(&self, frame: &[u8]) {
        let Some(state) = self.state.first() else {
            return;
        };
        let mut bytes = [0u8; 128];
        bytes.iter_mut().zip(frame).for_each(|(to, from)| *to = *from);
        for (word, chunk) in state.frame.iter().zip(bytes.chunks_exact(8)) {
            word.store(u64::from_ne_bytes(chunk.try_into().unwrap_or_default()), Relaxed);
        }
        state
            .bytes
            .store(u32::try_from(frame.len()).unwrap_or_default(), Relaxed);
    }
}

fn shortest_run_ns(
    program: &ProgramMut<'_>,
    frame: &[u8],
    action: u32,
    repeat: u32,
    series_count: u32,
) -> Result<f64, DataPlaneError> {
    let mut shortest_ns = f64::MAX;
    for _ in 0..series_count {
        let mut out = vec![0u8; frame.len() + 256];
        let input = ProgramInput {
            data_in: Some(frame),
            data_out: Some(&mut out),
            repeat,
            ..Default::default()
        };
        let output = program
            .test_run(input)
            .map_err(|error| DataPlaneError::kernel("BPF_PROG_TEST_RUN", error))?;
        if output.return_value != action {
            let name = program.name().to_string_lossy().into_owned();
            let problem = format!("{name}: action {}", output.return_value);
            return Err(DataPlaneError::kernel(
                "checking the benchmark's last packet",
                problem,
            ));
        }
        shortest_ns = shortest_ns.min(output.duration.as_nanos() as f64);
    }
    Ok(shortest_ns)
}
