//! Measures the gateway's program on one CPU, packet after packet (`BPF_PROG_TEST_RUN`), and compares it with a floor: the
//! minimum work for the same message.
//!
//! The programs are in `bpf/bench.bpf.c`. A harness copies the next prepared frame into the packet on every run,
//! because the kernel does not restore a rewritten packet, and a RESPONSE can be accepted only one time. Every figure,
//! including the floor, contains the cost of the harness, which is reported separately.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{OpenObject, ProgramInput, ProgramMut};
use linewarden_protocol::frame::Mac;
use linewarden_protocol::ids::DeviceId;

use crate::layout::{Line, RingRow, Shared};
use crate::links::LOOPBACK;
use crate::store::{Region, Store};
use crate::xdp::rings::Rings;
use crate::xdp::skeleton::bench::{BenchSkel, BenchSkelBuilder};
use crate::xdp::{check_privileges, config, libbpf_log};
use crate::{Config, Counters, DataPlaneError};

/// Size of a prepared frame. The bytes after the datagram are Ethernet padding.
pub const CASE_BYTES: usize = 128;

/// A prepared frame, `struct lw_case`.
#[derive(Debug)]
#[repr(C)]
pub struct Case {
    word: [AtomicU64; CASE_BYTES / 8],
}
// SAFETY: repr(C), atomics only, valid when zero.
unsafe impl Shared for Case {}

/// `struct lw_bench`.
#[derive(Debug)]
#[repr(C)]
struct BenchState {
    next: AtomicU64,
    count: AtomicU64,
    reset: AtomicU64,
    sink: AtomicU64,
    place: AtomicU64,
    line: [AtomicU64; 8],
    row: [AtomicU64; 3],
}
// SAFETY: repr(C), atomics only, valid when zero.
unsafe impl Shared for BenchState {}

/// The program to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Only copies the frame.
    Harness,
    /// The gateway's program.
    Gateway,
    /// The minimum work for a REQUEST.
    FloorRequest,
    /// The minimum work for a RESPONSE.
    FloorResponse,
}

/// SipHash words and map look-ups for one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Words absorbed, including padding.
    pub siphash_words: u64,
    /// Array elements looked up.
    pub lookups: u64,
}

/// The benchmark programs, loaded.
pub struct Microbench {
    skeleton: BenchSkel<'static>,
    store: Store,
    cases: Region<Case>,
    state: Region<BenchState>,
    rings: Rings,
}

impl Microbench {
    /// Loads the programs with space for `cases` prepared frames to `own_mac`. With `count_work` the programs
    /// count look-ups and words, and are slower.
    ///
    /// # Errors
    /// As [`crate::xdp::Xdp::load`].
    pub fn load(config: &Config, own_mac: Mac, cases: u32, count_work: bool) -> Result<Self, DataPlaneError> {
        config.check()?;
        check_privileges()?;
        libbpf_log::redirect();
        // libbpf requires the object's storage to outlive the skeleton; a few dozen bytes leak per load.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let error = |error| DataPlaneError::kernel("loading the benchmark programs", error);
        let mut open = BenchSkelBuilder::default().open(storage).map_err(error)?;
        config::configure(open.open_object_mut(), config, count_work)?;
        open.maps.cases.set_max_entries(cases).map_err(error)?;
        let skeleton = open.load().map_err(error)?;
        let regions = config::regions(skeleton.object(), config)?;
        regions.initialize_settings(&config.live_settings());
        let benchmark = Self {
            cases: config::region(skeleton.object(), "cases", cases)?,
            state: config::region(skeleton.object(), "bench", 1)?,
            store: Store::new(Arc::new(regions), config.geometry.clone()),
            rings: Rings::map(&skeleton.maps.events, &skeleton.maps.misses)?,
            skeleton,
        };
        benchmark.store.set_port(LOOPBACK, &[own_mac]);
        Ok(benchmark)
    }

    /// The store in which devices are installed.
    pub fn store(&mut self) -> &mut Store {
        &mut self.store
    }

    /// Sets the frames, in the order in which they are used.
    pub fn set_cases<'a>(&self, frames: impl IntoIterator<Item = &'a [u8]>) {
        let mut count = 0;
        for (case, frame) in self.cases.iter().zip(frames) {
            let mut bytes = [0u8; CASE_BYTES];
            bytes.iter_mut().zip(frame).for_each(|(to, from)| *to = *from);
            for (word, chunk) in case.word.iter().zip(bytes.chunks_exact(8)) {
                word.store(u64::from_ne_bytes(chunk.try_into().unwrap_or_default()), Relaxed);
            }
            count += 1;
        }
        if let Some(state) = self.state.first() {
            state.count.store(count, Relaxed);
            state.next.store(0, Relaxed);
        }
    }

    /// Restores the row of `device` and the next row before every run, as they are now.
    /// `device` must be the first device that was installed. With `close_session`, every run starts without a session, so
    /// that every RESPONSE opens a session instead of renewing one.
    pub fn reset_every_run(&self, device: DeviceId, close_session: bool) {
        let (Some(state), Ok((line, place))) = (self.state.first(), self.store.line(device)) else {
            return;
        };
        let words = line_words(line);
        state
            .line
            .iter()
            .zip(words)
            .for_each(|(to, from)| to.store(from, Relaxed));
        let idx = (words[1] >> 32) as u32;
        let next = idx.wrapping_add(1) % self.store.geometry().ring.max(1);
        if let Some(row) = self.store.regions().rows.get(next as usize) {
            state
                .row
                .iter()
                .zip(row_words(row))
                .for_each(|(to, from)| to.store(from, Relaxed));
        }
        state.place.store(u64::from(place.line), Relaxed);
        state.reset.store(1 + u64::from(close_session), Relaxed);
    }

    /// Runs a program `repeat` times. Returns whole nanoseconds per run, by the kernel's clock around its loop. The
    /// call itself takes some milliseconds, so wall time would be useless.
    ///
    /// # Errors
    /// The kernel refused an operation, or the last action is not XDP_TX, so the intended path was not measured.
    pub fn run(&mut self, program: Program, repeat: u32) -> Result<f64, DataPlaneError> {
        let frame = [0u8; CASE_BYTES];
        let mut out = [0u8; CASE_BYTES + 64];
        let program = self.program(program);
        let input = ProgramInput {
            data_in: Some(&frame),
            data_out: Some(&mut out),
            repeat,
            ..Default::default()
        };
        let output = program
            .test_run(input)
            .map_err(|error| DataPlaneError::kernel("BPF_PROG_TEST_RUN", error))?;
        let action = output.return_value;
        if action != libbpf_rs::libbpf_sys::XDP_TX {
            return Err(DataPlaneError::kernel(
                "checking the benchmark's last packet",
                format!("action {action}, not XDP_TX"),
            ));
        }
        Ok(output.duration.as_nanos() as f64)
    }

    /// The work of one run of a program, without the work of the harness. Needs `count_work`.
    ///
    /// # Errors
    /// As [`Microbench::run`].
    pub fn work(&mut self, program: Program) -> Result<Work, DataPlaneError> {
        let mut count = |program| {
            let before = self.work_so_far()?;
            self.run(program, 1)?;
            let after = self.work_so_far()?;
            Ok::<_, DataPlaneError>([after[0] - before[0], after[1] - before[1]])
        };
        let harness = count(Program::Harness)?;
        let total = count(program)?;
        Ok(Work {
            siphash_words: total[0] - harness[0],
            lookups: total[1] - harness[1],
        })
    }

    fn work_so_far(&self) -> Result<[u64; 2], DataPlaneError> {
        let counts = self.skeleton.maps.bss_data.as_deref().map(|bss| bss.lw_work_done);
        counts
            .ok_or_else(|| DataPlaneError::kernel("reading the work counters", "the counters are not mapped"))
    }

    /// Verdicts so far.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn counters(&self) -> Result<Counters, DataPlaneError> {
        crate::xdp::read_counters(&self.skeleton.maps.percpu)
    }

    /// Discards the events so far, as a gateway does periodically.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn discard_events(&self) -> Result<(), DataPlaneError> {
        self.rings.take_events().map(drop)
    }

    fn program(&self, program: Program) -> &ProgramMut<'static> {
        let programs = &self.skeleton.progs;
        match program {
            Program::Harness => &programs.bench_harness,
            Program::Gateway => &programs.bench_gateway,
            Program::FloorRequest => &programs.floor_request,
            Program::FloorResponse => &programs.floor_response,
        }
    }
}

fn line_words(line: &Line) -> [u64; 8] {
    let tail = u64::from(line.slot.load(Relaxed)) << 32 | u64::from(line.session_until_s.load(Relaxed));
    [
        line.device_id.load(Relaxed),
        line.commit.load(Relaxed),
        line.window.load(Relaxed),
        line.session_id.load(Relaxed),
        line.challenge.load(Relaxed),
        line.auth_key[0].load(Relaxed),
        line.auth_key[1].load(Relaxed),
        tail,
    ]
}

fn row_words(row: &RingRow) -> [u64; 3] {
    [
        row.challenge.load(Relaxed),
        row.auth_key[0].load(Relaxed),
        row.auth_key[1].load(Relaxed),
    ]
}
