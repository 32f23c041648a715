//! Measures PROOFs on one CPU, packet after packet (`BPF_PROG_TEST_RUN`): `bpf/bench_proof.bpf.c`.
//!
//! Each pass is a round with one PROOF per prover, each at its own place in memory, in random order. The figure
//! contains the cost of the harness, which is reported separately.
//!
//! The program is attached, as in a gateway. Otherwise `BPF_PROG_TEST_RUN` would change the kernel's dispatcher of
//! XDP programs at the start of each run, and this change waits some milliseconds for all CPUs. The caches would then be
//! cold, and every prover, which is read one time per run, would come from memory (100 to 140 ns more).

use std::mem::MaybeUninit;
use std::sync::Arc;

use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{Link, OpenObject};
use linewarden_protocol::frame::Mac;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::PROOF_BYTES;

use super::passes::Passes;
use crate::links::LOOPBACK;
use crate::store::provers::Provers;
use crate::timestamps;
use crate::xdp::programs::{self, set_program};
use crate::xdp::skeleton::bench_proof::{BenchProofSkel, BenchProofSkelBuilder};
use crate::xdp::waiting::WaitingProofs;
use crate::xdp::{check_privileges, config, libbpf_log, read_counters};
use crate::{Config, Counters, DataPlaneError};

/// Size of the Ethernet, IPv4 and UDP headers.
const HEADERS_BYTES: usize = 42;
/// Bytes of a frame: these headers and a PROOF.
pub const FRAME_BYTES: usize = HEADERS_BYTES + PROOF_BYTES;
/// `struct lw_case`, in words: one PROOF.
const CASE_WORDS: usize = PROOF_BYTES / 8;

/// The benchmark programs, loaded.
pub struct ProofBench {
    skeleton: BenchProofSkel<'static>,
    provers: Provers,
    waiting: WaitingProofs,
    passes: Passes<CASE_WORDS, HEADERS_BYTES>,
    _attachment: Link,
}

impl ProofBench {
    /// Loads the programs for the configured number of provers, and attaches the measured program to the loopback
    /// interface of the calling thread's network namespace. Use this namespace for nothing else. Frames are addressed
    /// to `own_mac`.
    ///
    /// # Errors
    /// As [`crate::xdp::Xdp::load`].
    pub fn load(config: &Config, own_mac: Mac) -> Result<Self, DataPlaneError> {
        config.check()?;
        check_privileges()?;
        libbpf_log::redirect();
        // libbpf requires the object's storage to outlive the skeleton; a few dozen bytes leak per load.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let error = |error| DataPlaneError::kernel("loading the benchmark programs", error);
        let mut open = BenchProofSkelBuilder::default().open(storage).map_err(error)?;
        config::configure(open.open_object_mut(), config, false)?;
        open.maps.cases.set_max_entries(config.provers).map_err(error)?;
        let skeleton = open.load().map_err(error)?;
        let regions = config::regions(skeleton.object(), config)?;
        regions.initialize_settings(&config.live_settings());
        regions.set_port(LOOPBACK, &[own_mac]);
        set_program(
            &skeleton.maps.programs,
            programs::PROOF,
            &skeleton.progs.bench_proof,
        )?;
        let attachment = skeleton.progs.bench_gateway.attach_xdp(LOOPBACK as i32);
        let attachment =
            attachment.map_err(|error| DataPlaneError::kernel("attaching to loopback", error))?;
        let regions = config::prover_regions(skeleton.object(), config)?;
        Ok(Self {
            passes: Passes::map(skeleton.object(), config.provers)?,
            waiting: WaitingProofs::map(skeleton.object(), config)?,
            provers: Provers::new(Arc::new(regions), config.prover_geometry()),
            skeleton,
            _attachment: attachment,
        })
    }

    /// The provers and their rounds.
    pub fn provers(&mut self) -> &mut Provers {
        &mut self.provers
    }

    /// Sets the frames of a pass. All headers equal those of the first frame.
    pub fn lay_out<'a>(&mut self, frames: impl Iterator<Item = &'a [u8; FRAME_BYTES]>) {
        self.passes.lay_out(frames);
    }

    /// Runs one pass: the gateway's program handles each frame one time. Returns ns per PROOF.
    ///
    /// # Errors
    /// Errors of the kernel, or a PROOF that was not accepted.
    pub fn pass(&self) -> Result<f64, DataPlaneError> {
        let before = self.counters()?;
        let (count, cost) = self.passes.run(&self.skeleton.progs.bench_gateway)?;
        let counts = self.counters()?.since(&before);
        let verdicts: Vec<_> = counts.nonzero().collect();
        if verdicts != [(Verdict::ProofOk, u64::from(count))] {
            let problem = format!("verdicts {verdicts:?}");
            return Err(DataPlaneError::kernel("checking the verdicts of a pass", problem));
        }
        Ok(cost)
    }

    /// As [`Self::pass`], for the harness alone.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn harness(&self) -> Result<f64, DataPlaneError> {
        Ok(self.passes.run(&self.skeleton.progs.bench_harness)?.1)
    }

    fn counters(&self) -> Result<Counters, DataPlaneError> {
        // If the number of PROOFs is odd, the last one is still waiting.
        self.waiting
            .settle(self.provers.regions(), timestamps::now(), 0, &mut |_| ());
        let mut counters = read_counters(&self.skeleton.maps.percpu)?;
        self.waiting.count(&mut counters);
        Ok(counters)
    }
}
