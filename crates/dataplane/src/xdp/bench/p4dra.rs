//! Measures replies of `p4dra-classic` on one CPU, packet after packet (`BPF_PROG_TEST_RUN`):
//! `bpf/bench_p4dra.bpf.c`.
//!
//! Each pass is a round with one reply per prover. The program is attached during the measurement, for the reason
//! given in [`super::proof`]. The figure contains the cost of the harness, which is reported separately.

use std::mem::MaybeUninit;

use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{Link, OpenObject};
use linewarden_protocol::frame::Mac;
use linewarden_protocol::verdict::Verdict;

use super::passes::Passes;
use crate::links::LOOPBACK;
use crate::p4dra::P4draControl;
use crate::xdp::programs::{self, set_program};
use crate::xdp::skeleton::bench_p4dra::{BenchP4draSkel, BenchP4draSkelBuilder};
use crate::xdp::{check_privileges, config, libbpf_log, read_counters};
use crate::{Config, Counters, DataPlaneError};

/// Bytes of a frame: Ethernet, REPLY.
pub const FRAME_BYTES: usize = 111;
/// `struct lw_case`, in words.
const CASE_WORDS: usize = FRAME_BYTES.div_ceil(8);

/// The benchmark programs, loaded.
pub struct P4draBench {
    skeleton: BenchP4draSkel<'static>,
    control: P4draControl,
    passes: Passes<CASE_WORDS, 0>,
    _attachment: Link,
}

impl P4draBench {
    /// Loads the programs for the configured provers, and attaches the measured program to the loopback interface of the
    /// calling thread's network namespace. Use this namespace for nothing else. Frames are addressed to `own_mac`.
    ///
    /// # Errors
    /// As [`crate::xdp::Xdp::load`]; `p4dra-classic` is not configured.
    pub fn load(config: &Config, own_mac: Mac) -> Result<Self, DataPlaneError> {
        config.check()?;
        check_privileges()?;
        libbpf_log::redirect();
        let provers = config.p4dra.as_ref().map_or(0, |p4dra| p4dra.provers.len());
        let frames = u32::try_from(provers).unwrap_or(u32::MAX).max(1);
        // libbpf requires the object's storage to outlive the skeleton; a few dozen bytes leak per load.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let error = |error| DataPlaneError::kernel("loading the benchmark programs", error);
        let mut open = BenchP4draSkelBuilder::default().open(storage).map_err(error)?;
        config::configure(open.open_object_mut(), config, false)?;
        open.maps.cases.set_max_entries(frames).map_err(error)?;
        let skeleton = open.load().map_err(error)?;
        let regions = config::regions(skeleton.object(), config)?;
        regions.initialize_settings(&config.live_settings());
        regions.set_port(LOOPBACK, &[own_mac]);
        let control = P4draControl::new(config, |_| config::p4dra_regions(skeleton.object(), config))?;
        let not_configured = || {
            DataPlaneError::kernel(
                "loading the benchmark programs",
                "p4dra-classic is not configured",
            )
        };
        set_program(
            &skeleton.maps.programs,
            programs::P4DRA,
            &skeleton.progs.bench_p4dra,
        )?;
        let attachment = skeleton.progs.bench_gateway.attach_xdp(LOOPBACK as i32);
        let attachment =
            attachment.map_err(|error| DataPlaneError::kernel("attaching to loopback", error))?;
        Ok(Self {
            control: control.ok_or_else(not_configured)?,
            passes: Passes::map(skeleton.object(), frames)?,
            skeleton,
            _attachment: attachment,
        })
    }

    /// The rounds of `p4dra-classic`.
    pub fn control(&mut self) -> &mut P4draControl {
        &mut self.control
    }

    /// Sets the frames of a pass.
    pub fn lay_out<'a>(&mut self, frames: impl Iterator<Item = &'a [u8; FRAME_BYTES]>) {
        self.passes.lay_out(frames);
    }

    /// Runs one pass: the gateway's program handles each frame one time. Returns ns per reply.
    ///
    /// # Errors
    /// Errors of the kernel, or a reply that was not verified.
    pub fn pass(&self) -> Result<f64, DataPlaneError> {
        let before = self.counters()?;
        let (count, cost) = self.passes.run(&self.skeleton.progs.bench_gateway)?;
        let counts = self.counters()?.since(&before);
        let verdicts: Vec<_> = counts.nonzero().collect();
        if verdicts != [(Verdict::ReplyP4draVerified, u64::from(count))] {
            let problem = format!("verdicts {verdicts:?}");
            return Err(DataPlaneError::kernel("checking the verdicts of a pass", problem));
        }
        Ok(cost)
    }

    /// As [`Self::pass`], for the harness alone. The program of the harness is not attached, so the next pass starts
    /// with cold caches.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn harness(&self) -> Result<f64, DataPlaneError> {
        Ok(self.passes.run(&self.skeleton.progs.bench_harness)?.1)
    }

    fn counters(&self) -> Result<Counters, DataPlaneError> {
        read_counters(&self.skeleton.maps.percpu)
    }
}
