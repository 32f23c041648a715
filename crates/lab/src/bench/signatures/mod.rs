//! `linewarden-lab bench signatures`: the cost of signed messages on CPU and GPU, and the performance of the scheduler.
//!
//! | part | measurement |
//! |---|---|
//! | [`cpu`] | signing and verification with every scheme on one core: one message at a time, and eight in parallel |
//! | [`end_to_end`] | time of a message from signer to receiver, from the rates of [`cpu`]: the thesis' Table 1 |
//! | [`batches`] | the stages of Rapid Authentication by batch size, by threads, and by threads together with a GPU: the thesis' Figures 3 to 11 |
//! | [`scheduler`] | the scheduler with real signatures: latency of immediate messages under load, throughput of two lanes compared with one |
//! | [`floods`] | latency of immediate messages during floods of invalid messages, from the kernel to the verdict |
//! | [`simulator`] | the scheduler in virtual time with this machine's rates: policies, and traffic of crossroads, power grids, bursts and floods |
//! | [`gpu`] | rates of the GPU; without a GPU, the rows are pending |
//! | [`figures`] | the charts |
//!
//! All implementations of an operation are measured alternately, so that other work of the machine affects all of them;
//! the result is the best of many rounds. The *thesis* is the thesis on hardware-accelerated authentication (HAA) that
//! `docs/experiments/signed-messages.md` cites.

pub mod batches;
mod combined;
pub mod cpu;
pub mod end_to_end;
pub mod figures;
pub mod floods;
pub mod gpu;
mod keys;
mod rounds;
pub mod scheduler;
pub mod simulator;
mod table1;

use linewarden_signatures::scheme::Scheme;

use self::keys::RapidKey;
use super::scale::Progress;
use super::{BenchError, Report};

/// The size of the benchmark.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    /// Number of rounds; the best round is the result.
    pub runs: u32,
    /// Length of a round, ms.
    pub round_ms: u64,
    /// Signers of the messages of a plain scheme.
    pub signers: usize,
    /// Number of signers in the rows `many_signers`; their precomputed tables exceed the caches.
    pub many_signers: usize,
    /// Component counts of Rapid Authentication; 37 components are the bytes of a Basic Safety Message, part I.
    pub components: &'static [usize],
    /// Component count for the stages.
    pub stage_components: usize,
    /// Component count with RSA-3072; `None`: not measured.
    pub over_rsa3072: Option<usize>,
    /// Batch sizes for the stages, messages.
    pub batches: &'static [usize],
    /// Length of a run of the scheduler, ms.
    pub engine_ms: u64,
    /// Length of a flood run, including the time before the flood, ms.
    pub flood_ms: u64,
    /// Length of the simulator's traces, ms.
    pub trace_ms: u64,
}

impl Size {
    /// The size of the published figures.
    pub const FULL: Self = Self {
        runs: 20,
        round_ms: 3,
        signers: 8,
        many_signers: 1_024,
        components: &[8, 32, 37],
        stage_components: 32,
        over_rsa3072: Some(32),
        batches: &[1, 2, 4, 8, 16, 32, 96, 224, 512, 1_024, 2_048, 4_096, 8_160],
        engine_ms: 4_000,
        flood_ms: 6_000,
        trace_ms: 400,
    };
    /// A test run of a few seconds.
    pub const QUICK: Self = Self {
        runs: 1,
        round_ms: 1,
        signers: 1,
        many_signers: 8,
        components: &[1],
        stage_components: 1,
        over_rsa3072: None,
        batches: &[1, 8, 96],
        engine_ms: 50,
        flood_ms: 200,
        trace_ms: 200,
    };
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// [`cpu`] and [`end_to_end`]
    Cpu,
    /// [`batches`]
    Batches,
    /// [`scheduler`]
    Scheduler,
    /// [`floods`]
    Floods,
    /// [`simulator`]
    Simulator,
    /// [`gpu`]
    Gpu,
}

impl Part {
    /// All parts, in the order of execution.
    pub const ALL: [Self; 6] = [
        Self::Cpu,
        Self::Batches,
        Self::Scheduler,
        Self::Floods,
        Self::Simulator,
        Self::Gpu,
    ];

    /// Name of the part on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Batches => "batches",
            Self::Scheduler => "scheduler",
            Self::Floods => "floods",
            Self::Simulator => "simulator",
            Self::Gpu => "gpu",
        }
    }
}

/// Runs these parts.
///
/// # Errors
/// The error of the first part that fails.
pub fn run(size: &Size, parts: &[Part], progress: Progress<'_>) -> Result<Report, BenchError> {
    let mut report = Report::default();
    let needs_stage_key = |part: &Part| matches!(part, Part::Cpu | Part::Batches);
    let stage_key = match parts.iter().any(needs_stage_key) {
        true => {
            progress("Rapid Authentication: computing a table", None);
            Some(RapidKey::new(Scheme::RaRsa2048, size.stage_components)?)
        }
        false => None,
    };
    for part in parts {
        match (part, &stage_key) {
            (Part::Cpu, Some(key)) => {
                cpu::rows(size, key, progress, &mut report)?;
                end_to_end::rows(size, &mut report)?;
            }
            (Part::Batches, Some(key)) => batches::rows(size, key, progress, &mut report)?,
            (Part::Scheduler, _) => scheduler::rows(size, progress, &mut report)?,
            (Part::Floods, _) => floods::rows(size, progress, &mut report)?,
            (Part::Simulator, _) => simulator::rows(size, progress, &mut report.rows)?,
            (Part::Gpu, _) => gpu::rows(progress, &mut report)?,
            (Part::Cpu | Part::Batches, None) => {}
        }
    }
    Ok(report)
}
