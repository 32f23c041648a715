//! `linewarden bench signatures`: what signed messages cost on CPU and GPU, and what the scheduler makes of lanes.
//!
//! | part | what is measured |
//! |---|---|
//! | [`cpu`] | signing and verifying of every scheme on one core: one message at a time, and eight |
//! | [`end_to_end`] | a message from signer to receiver: the thesis' Table 1 (needs [`cpu`], which it runs) |
//! | [`batches`] | the stages of Rapid Authentication by batch, by threads, and by threads and a GPU at once: the thesis' Figures 3 to 11 |
//! | [`scheduler`] | the real engine: immediate messages under load, two lanes against one |
//! | [`floods`] | immediate messages under floods of invalid ones, from the kernel to the verdict |
//! | [`simulator`] | the scheduler in virtual time with this machine's rates: policies, crossroads, grid, bursts, floods |
//! | [`gpu`] | the GPU's rates, if there is one; rows are pending where there is none |
//! | [`figures`] | the pictures |
//!
//! One run does all ways of an operation in turns, so that a machine that is busy with something else is so for all; the best of many
//! rounds counts.

pub mod batches;
pub mod cpu;
pub mod end_to_end;
pub mod figures;
pub mod floods;
pub mod gpu;
mod keys;
pub mod scheduler;
pub mod simulator;
mod table1;
mod together;
mod turns;

use linewarden_signatures::scheme::Scheme;

use self::keys::Rapid;
use super::scale::Progress;
use super::{BenchError, Report};

/// How large the bench is.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    /// Rounds of which the best counts.
    pub runs: u32,
    /// Length of a round, ms.
    pub round_ms: u64,
    /// Signers of a plain scheme's messages.
    pub signers: usize,
    /// Signers whose tables are more than caches hold.
    pub many_signers: usize,
    /// Component counts of Rapid Authentication: 37 is a Basic Safety Message part I, byte by byte.
    pub components: &'static [usize],
    /// Components of the stages.
    pub stage_components: usize,
    /// Components over RSA-3072.
    pub over_rsa3072: Option<usize>,
    /// Batches of the stages, messages.
    pub batches: &'static [usize],
    /// Length of a run of the engine, ms.
    pub engine_ms: u64,
    /// Length of a flood and what comes before it, ms.
    pub flood_ms: u64,
    /// Length of the simulator's traces, ms.
    pub trace_ms: u64,
}

impl Size {
    /// What the figures in the documents are made with.
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
    /// Some seconds, to see that it works.
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

/// A part of the bench.
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
    /// All, in the order in which they are run.
    pub const ALL: [Self; 6] = [
        Self::Cpu,
        Self::Batches,
        Self::Scheduler,
        Self::Floods,
        Self::Simulator,
        Self::Gpu,
    ];

    /// Short and lower case.
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
/// The first part that could not be run.
pub fn run(size: &Size, parts: &[Part], progress: Progress<'_>) -> Result<Report, BenchError> {
    let mut report = Report::default();
    let with_stages = |part: &Part| matches!(part, Part::Cpu | Part::Batches);
    let stage_key = match parts.iter().any(with_stages) {
        true => {
            progress("rapid authentication: table", None);
            Some(Rapid::new(Scheme::RaRsa2048, size.stage_components)?)
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
