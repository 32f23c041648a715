//! Measures in-band evidence on one CPU, packet after packet (`BPF_PROG_TEST_RUN`): `bpf/bench_stamp.bpf.c`.

use std::mem::MaybeUninit;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{OpenObject, ProgramInput, ProgramMut};
use linewarden_evidence::inband::Template;

use crate::layout::Shared;
use crate::links::LOOPBACK;
use crate::stamp::Stamp;
use crate::store::Region;
use crate::xdp::skeleton::bench_stamp::{BenchStampSkel, BenchStampSkelBuilder};
use crate::xdp::stamp::Stamping;
use crate::xdp::test_run::test_context;
use crate::xdp::{check_privileges, config, libbpf_log};
use crate::{Config, DataPlaneError};

/// `struct lw_bench`.
#[derive(Debug)]
#[repr(C)]
struct State {
    frame: [AtomicU64; 8],
}
// SAFETY: repr(C), atomics only, valid when zero.
unsafe impl Shared for State {}

/// The benchmark programs, loaded.
pub struct StampBench {
    skeleton: BenchStampSkel<'static>,
    state: Region<State>,
    stamping: Stamping,
}

impl StampBench {
    /// Loads the programs.
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
        let mut open = BenchStampSkelBuilder::default().open(storage).map_err(error)?;
        config::configure(open.open_object_mut(), config, false)?;
        let skeleton = open.load().map_err(error)?;
        Ok(Self {
            state: config::region(skeleton.object(), "bench", 1)?,
            stamping: Stamping::map(skeleton.object())?,
            skeleton,
        })
    }

    /// Additional cost of stamping this IPv6 packet, ns. Each program runs in `series_count` series of `repeat` runs, and the
    /// fastest series counts.
    ///
    /// # Errors
    /// Errors of the kernel, or a dropped packet.
    pub fn cost(
        &self,
        template: Template,
        frame: &[u8],
        repeat: u32,
        series_count: u32,
    ) -> Result<f64, DataPlaneError> {
        self.stamping.publish(Some(&Stamp {
            template,
            until_ns: u64::MAX,
        }));
        if let Some(state) = self.state.first() {
            for (word, bytes) in state.frame.iter().zip(frame.as_chunks().0) {
                word.store(u64::from_ne_bytes(*bytes), Relaxed);
            }
        }
        // The harness removes the first `Template::BYTES` bytes before it restores the headers.
        let long = [&[0; Template::BYTES], frame].concat();
        let shortest = |program: &ProgramMut<'_>| shortest_run_ns(program, &long, repeat, series_count);
        let programs = &self.skeleton.progs;
        let (harness, moves, total) = (
            shortest(&programs.bench_stamp_harness)?,
            shortest(&programs.bench_stamp_moves)?,
            shortest(&programs.bench_stamp)?,
        );
        // The harness moves the start of the packet one time more than the measured program; see `bench_stamp.bpf.c`.
        Ok(total - harness + (moves - harness) / 2.0)
    }
}

fn shortest_run_ns(
    program: &ProgramMut<'_>,
    frame: &[u8],
    repeat: u32,
    series_count: u32,
) -> Result<f64, DataPlaneError> {
    let mut shortest_ns = f64::MAX;
    for _ in 0..series_count {
        let mut out = vec![0u8; frame.len() + 128];
        let mut context = test_context(frame.len(), LOOPBACK);
        let input = ProgramInput {
            data_in: Some(frame),
            data_out: Some(&mut out),
            context_in: Some(&mut context),
            repeat,
            ..Default::default()
        };
        let output = program
            .test_run(input)
            .map_err(|error| DataPlaneError::kernel("BPF_PROG_TEST_RUN", error))?;
        if output.return_value != libbpf_rs::libbpf_sys::XDP_PASS {
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
