//! PROOFs on one CPU, packet after packet (`BPF_PROG_TEST_RUN`): `bpf/bench_proof.bpf.c`.
//!
//! Each pass is a round: every prover's PROOF once, from a place in memory of its own, in random order. What the harness costs
//! is in the figure, and beside it.
//!
//! The program is attached, as a gateway's is. Else `BPF_PROG_TEST_RUN` would change the kernel's dispatcher of XDP programs at
//! the beginning of each run, which waits for all CPUs for milliseconds; what caches held is gone after that, and every prover,
//! looked at once a run, would come from memory (100 to 140 ns more).

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{Link, OpenObject, ProgramInput, ProgramMut};
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::PROOF_BYTES;

use super::skeleton::bench_proof::{BenchProofSkel, BenchProofSkelBuilder};
use super::{LOOPBACK, check_privileges, config, link, quiet_libbpf, read_counters, test_context};
use crate::layout::Shared;
use crate::store::Region;
use crate::store::provers::Provers;
use crate::{Config, Counters, DataPlaneError};

/// Ethernet, IPv4, UDP.
const HEADERS_BYTES: usize = 42;
/// Bytes of a frame: those headers and a PROOF.
pub const FRAME_BYTES: usize = HEADERS_BYTES + PROOF_BYTES;

/// `struct lw_case`: a PROOF.
#[derive(Debug)]
#[repr(C)]
struct Case {
    word: [AtomicU64; PROOF_BYTES / 8],
}
// SAFETY: repr(C), atomics only, valid when zero.
unsafe impl Shared for Case {}

/// `struct lw_bench`.
#[derive(Debug)]
#[repr(C)]
struct State {
    next: AtomicU64,
    count: AtomicU64,
}
// SAFETY: as above.
unsafe impl Shared for State {}

/// The bench programs, loaded.
pub struct ProofBench {
    skeleton: BenchProofSkel<'static>,
    provers: Provers,
    cases: Region<Case>,
    state: Region<State>,
    /// What a pass begins with: headers, which all frames have.
    frame: [u8; FRAME_BYTES],
    _attached: Link,
}

impl ProofBench {
    /// Loads the programs for as many provers as the configuration has, and attaches the one that is measured to the
    /// loopback interface of the calling thread's network namespace, which should be for that alone.
    ///
    /// # Errors
    /// As [`super::Xdp::load`].
    pub fn load(config: &Config) -> Result<Self, DataPlaneError> {
        config.check()?;
        check_privileges()?;
        quiet_libbpf();
        // libbpf wants the object's storage to outlive the skeleton; a few dozen bytes a load are left behind.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let error = |error| DataPlaneError::kernel("loading the bench programs", error);
        let mut open = BenchProofSkelBuilder::default().open(storage).map_err(error)?;
        config::configure(open.open_object_mut(), config, false)?;
        open.maps.cases.set_max_entries(config.provers).map_err(error)?;
        let skeleton = open.load().map_err(error)?;
        config::regions(skeleton.object(), config)?.begin(&config.live());
        link(&skeleton.maps.programs, 1, &skeleton.progs.bench_proof)?;
        let attached = skeleton.progs.bench_gateway.attach_xdp(LOOPBACK as i32);
        let attached = attached.map_err(|error| DataPlaneError::kernel("attaching to loopback", error))?;
        let regions = config::prover_regions(skeleton.object(), config)?;
        Ok(Self {
            cases: config::region(skeleton.object(), "cases", config.provers)?,
            state: config::region(skeleton.object(), "bench", 1)?,
            provers: Provers::new(Arc::new(regions), config.prover_geometry()),
            skeleton,
            frame: [0; FRAME_BYTES],
            _attached: attached,
        })
    }

    /// To install provers and open rounds.
    pub fn provers(&mut self) -> &mut Provers {
        &mut self.provers
    }

    /// Lays out the frames of a pass, whose headers are those of the first.
    pub fn lay_out<'a>(&mut self, frames: impl Iterator<Item = &'a [u8; FRAME_BYTES]>) {
        let mut count = 0;
        for (case, frame) in self.cases.iter().zip(frames) {
            if count == 0 {
                self.frame = *frame;
            }
            let words = frame.get(HEADERS_BYTES..).unwrap_or_default().as_chunks::<8>().0;
            let pairs = case.word.iter().zip(words);
            pairs.for_each(|(cell, word)| cell.store(u64::from_ne_bytes(*word), Relaxed));
            count += 1;
        }
        if let Some(state) = self.state.first() {
            state.next.store(0, Relaxed);
            state.count.store(count, Relaxed);
        }
    }

    /// One pass over what was laid out, through the verifier: ns a PROOF.
    ///
    /// # Errors
    /// The kernel's; a PROOF that was not accepted.
    pub fn pass(&self) -> Result<f64, DataPlaneError> {
        let before = self.counters()?;
        let (count, cost) = self.run(&self.skeleton.progs.bench_gateway)?;
        let counted = self.counters()?.since(&before);
        let verdicts: Vec<_> = counted.nonzero().collect();
        if verdicts != [(Verdict::ProofOk, u64::from(count))] {
            let problem = format!("verdicts {verdicts:?}");
            return Err(DataPlaneError::kernel("a pass over the provers", problem));
        }
        Ok(cost)
    }

    /// Likewise, the harness alone.
    ///
    /// # Errors
    /// The kernel's.
    pub fn harness(&self) -> Result<f64, DataPlaneError> {
        Ok(self.run(&self.skeleton.progs.bench_harness)?.1)
    }

    fn counters(&self) -> Result<Counters, DataPlaneError> {
        read_counters(&self.skeleton.maps.percpu)
    }

    fn run(&self, program: &ProgramMut<'_>) -> Result<(u32, f64), DataPlaneError> {
        let count = self.state.first().map_or(0, |state| state.count.load(Relaxed));
        let repeat = u32::try_from(count).unwrap_or(u32::MAX);
        let mut out = [0u8; FRAME_BYTES + 64];
        let mut context = test_context(FRAME_BYTES, LOOPBACK);
        let input = ProgramInput {
            data_in: Some(&self.frame),
            data_out: Some(&mut out),
            context_in: Some(&mut context),
            repeat,
            ..Default::default()
        };
        let output = program
            .test_run(input)
            .map_err(|error| DataPlaneError::kernel("BPF_PROG_TEST_RUN", error))?;
        Ok((repeat, output.duration.as_nanos() as f64))
    }
}
