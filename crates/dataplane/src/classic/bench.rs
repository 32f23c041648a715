//! Measures the profiles in eBPF on one CPU, packet after packet (`BPF_PROG_TEST_RUN`). A harness copies a prepared frame
//! into the packet on every run. Every figure contains the cost of the harness, which is reported separately.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use libbpf_rs::skel::Skel as _;
use libbpf_rs::{Link, ProgramInput};
use linewarden_protocol::frame::Mac;
use linewarden_protocol::verdict::Verdict;

use super::Classic;
use super::p4dra::{P4dra, P4draControl};
use super::xdp::{ClassicXdp, Profile};
use crate::config::Config;
use crate::error::DataPlaneError;
use crate::layout::Shared;
use crate::links::LOOPBACK;
use crate::store::Region;
use crate::xdp::bench::micro::CASE_BYTES;
use crate::xdp::bench::passes::Passes;
use crate::xdp::config;

/// Bytes of a frame with a reply of `p4dra-classic`.
pub const P4DRA_FRAME_BYTES: usize = 111;
/// `struct lw_case`, in words.
const CASE_WORDS: usize = P4DRA_FRAME_BYTES.div_ceil(8);

/// `struct lw_classic_case`.
#[derive(Debug)]
#[repr(C)]
struct ClassicCase {
    frame: [AtomicU64; CASE_BYTES / 8],
    state: [AtomicU64; 2],
}
// SAFETY: repr(C), atomics only, valid when zero.
unsafe impl Shared for ClassicCase {}

/// The benchmark programs of `classic-iot` and `classic-uav`, loaded.
pub struct ClassicBench {
    xdp: ClassicXdp,
    case: Region<ClassicCase>,
}

/// The program to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassicProgram {
    /// Only copies the frame.
    Harness,
    /// The packet path of the profile.
    Profile,
}

impl ClassicBench {
    /// Loads the programs. Frames are addressed to `own_mac`. Before every run, identifier 1 is at its first CRP, with
    /// an outstanding challenge whose response has the hash 0.
    ///
    /// # Errors
    /// As [`ClassicXdp::load`].
    pub fn load(config: &Config, classic: &Classic, own_mac: Mac) -> Result<Self, DataPlaneError> {
        let xdp = ClassicXdp::load(config, Profile::Classic(classic))?;
        xdp.set_own_macs(LOOPBACK, &[own_mac]);
        let case: Region<ClassicCase> = config::region(xdp.skeleton.object(), "classic_case", 1)?;
        if let Some(ClassicCase {
            state: [expected, _], ..
        }) = case.first()
        {
            expected.store(1 << 32, Relaxed);
        }
        Ok(Self { xdp, case })
    }

    /// Sets the frame of the following runs.
    pub fn set_frame(&self, frame: &[u8]) {
        let Some(case) = self.case.first() else { return };
        let mut bytes = [0u8; CASE_BYTES];
        bytes.iter_mut().zip(frame).for_each(|(to, from)| *to = *from);
        for (word, chunk) in case.frame.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_ne_bytes(*chunk), Relaxed);
        }
    }

    /// Runs a program `repeat` times. Returns whole nanoseconds per run, by the kernel's clock around its loop.
    ///
    /// # Errors
    /// The kernel refused an operation, or the last action is not XDP_TX, so the intended path was not measured.
    pub fn run(&self, program: ClassicProgram, repeat: u32) -> Result<f64, DataPlaneError> {
        let frame = [0u8; CASE_BYTES];
        let input = ProgramInput {
            data_in: Some(&frame),
            repeat,
            ..Default::default()
        };
        let programs = &self.xdp.skeleton.progs;
        let program = match program {
            ClassicProgram::Harness => &programs.classic_harness,
            ClassicProgram::Profile => &programs.bench_classic,
        };
        let output = program
            .test_run(input)
            .map_err(|error| DataPlaneError::kernel("BPF_PROG_TEST_RUN", error))?;
        match output.return_value {
            libbpf_rs::libbpf_sys::XDP_TX => Ok(output.duration.as_nanos() as f64),
            action => Err(DataPlaneError::kernel(
                "checking the benchmark's last packet",
                format!("action {action}, not XDP_TX"),
            )),
        }
    }
}

/// The benchmark programs of `p4dra-classic`, loaded. Each pass is a round with one reply per prover. The program is
/// attached during the measurement, for the reason given in [`crate::xdp::bench::proof`].
pub struct P4draBench {
    xdp: ClassicXdp,
    passes: Passes<CASE_WORDS, 0>,
    _attachment: Link,
}

impl P4draBench {
    /// Loads the programs for the provers, and attaches the measured program to the loopback interface of the
    /// calling thread's network namespace. Use this namespace for nothing else. Frames are addressed to `own_mac`.
    ///
    /// # Errors
    /// As [`ClassicXdp::load`].
    pub fn load(config: &Config, p4dra: &P4dra, own_mac: Mac) -> Result<Self, DataPlaneError> {
        let frames = u32::try_from(p4dra.provers.len()).unwrap_or(u32::MAX).max(1);
        let xdp = ClassicXdp::load_with_cases(config, Profile::P4dra(p4dra), frames)?;
        xdp.set_own_macs(LOOPBACK, &[own_mac]);
        let attachment = xdp.skeleton.progs.bench_p4dra.attach_xdp(LOOPBACK as i32);
        let attachment =
            attachment.map_err(|error| DataPlaneError::kernel("attaching to loopback", error))?;
        Ok(Self {
            passes: Passes::map(xdp.skeleton.object(), frames)?,
            xdp,
            _attachment: attachment,
        })
    }

    /// The rounds.
    pub fn control(&mut self) -> Option<&mut P4draControl> {
        self.xdp.p4dra()
    }

    /// Sets the frames of a pass.
    pub fn lay_out<'a>(&mut self, frames: impl Iterator<Item = &'a [u8; P4DRA_FRAME_BYTES]>) {
        self.passes.lay_out(frames);
    }

    /// Runs one pass: the packet path handles each frame one time. Returns ns per reply.
    ///
    /// # Errors
    /// Errors of the kernel, or a reply that was not verified.
    pub fn pass(&self) -> Result<f64, DataPlaneError> {
        let before = self.xdp.counters()?;
        let (count, cost) = self.passes.run(&self.xdp.skeleton.progs.bench_p4dra)?;
        let counts = self.xdp.counters()?.since(&before);
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
        Ok(self.passes.run(&self.xdp.skeleton.progs.p4dra_harness)?.1)
    }
}
