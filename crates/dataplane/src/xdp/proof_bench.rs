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

use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{Link, OpenObject};
use linewarden_protocol::frame::Mac;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::PROOF_BYTES;

use super::passes::Passes;
use super::programs::{self, link};
use super::skeleton::bench_proof::{BenchProofSkel, BenchProofSkelBuilder};
use super::waiting::Waiting;
use super::{LOOPBACK, check_privileges, config, quiet_libbpf, read_counters};
use crate::store::provers::Provers;
use crate::{Config, Counters, DataPlaneError};

/// Ethernet, IPv4, UDP.
const HEADERS_BYTES: usize = 42;
/// Bytes of a frame: those headers and a PROOF.
pub const FRAME_BYTES: usize = HEADERS_BYTES + PROOF_BYTES;
/// `struct lw_case`, in words: a PROOF.
const CASE_WORDS: usize = PROOF_BYTES / 8;

/// The bench programs, loaded.
pub struct ProofBench {
    skeleton: BenchProofSkel<'static>,
    provers: Provers,
    waiting: Waiting,
    passes: Passes<CASE_WORDS, HEADERS_BYTES>,
    _attached: Link,
}

impl ProofBench {
    /// Loads the programs for as many provers as the configuration has, and attaches the one that is measured to the
    /// loopback interface of the calling thread's network namespace, which should be for that alone. Frames are for `own_mac`.
    ///
    /// # Errors
    /// As [`super::Xdp::load`].
    pub fn load(config: &Config, own_mac: Mac) -> Result<Self, DataPlaneError> {
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
        let regions = config::regions(skeleton.object(), config)?;
        regions.begin(&config.live());
        regions.set_port(LOOPBACK, &[own_mac]);
        link(
            &skeleton.maps.programs,
            programs::PROOF,
            &skeleton.progs.bench_proof,
        )?;
        let attached = skeleton.progs.bench_gateway.attach_xdp(LOOPBACK as i32);
        let attached = attached.map_err(|error| DataPlaneError::kernel("attaching to loopback", error))?;
        let regions = config::prover_regions(skeleton.object(), config)?;
        Ok(Self {
            passes: Passes::map(skeleton.object(), config.provers)?,
            waiting: Waiting::map(skeleton.object(), config)?,
            provers: Provers::new(Arc::new(regions), config.prover_geometry()),
            skeleton,
            _attached: attached,
        })
    }

    /// To install provers and open rounds.
    pub fn provers(&mut self) -> &mut Provers {
        &mut self.provers
    }

    /// Lays out the frames of a pass, whose headers are those of the first.
    pub fn lay_out<'a>(&mut self, frames: impl Iterator<Item = &'a [u8; FRAME_BYTES]>) {
        self.passes.lay_out(frames);
    }

    /// One pass over what was laid out, through the verifier: ns a PROOF.
    ///
    /// # Errors
    /// The kernel's; a PROOF that was not accepted.
    pub fn pass(&self) -> Result<f64, DataPlaneError> {
        let before = self.counters()?;
        let (count, cost) = self.passes.run(&self.skeleton.progs.bench_gateway)?;
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
        Ok(self.passes.run(&self.skeleton.progs.bench_harness)?.1)
    }

    fn counters(&self) -> Result<Counters, DataPlaneError> {
        // Of an odd number of PROOFs the last one waits.
        self.waiting
            .settle(self.provers.regions(), crate::host::now(), 0, &mut |_| ());
        let mut counters = read_counters(&self.skeleton.maps.percpu)?;
        self.waiting.count(&mut counters);
        Ok(counters)
    }
}
