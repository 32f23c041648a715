//! `linewarden-lab bench switch`: the cost of the P4 switch.
//!
//! | part | measurement |
//! |---|---|
//! | [`router`] | the router in memory, with lower bounds: packet copy, table lookups |
//! | [`link`] | the router over packet sockets, veth to veth, and a plain forwarder; a search for the highest loss-free rate |
//! | [`evidence`] | the router with and without evidence in every packet: in memory, under overload, with the search of the paper on the attesting BMv2 |
//! | [`registers`] | the cost of evidence per register write |
//! | [`messages`] | messages of LAP/1 and proofs of `attest/2`, per packet |
//! | [`ciphers`] | Forró and ChaCha in P4, per block; recirculations per packet |
//! | [`paced`] | the output rate of the programs of [`ciphers`] by input rate, up to overload |
//! | [`ports`] | rate by recirculations per packet and recirculation ports, measured and computed |
//! | [`figures`] | the charts |

pub mod ciphers;
pub mod evidence;
pub mod figures;
pub mod link;
pub mod memory;
pub mod messages;
pub mod paced;
pub mod ports;
pub mod programs;
pub mod registers;
pub mod router;

use std::path::Path;

use super::scale::Progress;
use super::{BenchError, Report};
use programs::Programs;

/// The size of the benchmark.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    /// Runs; the minimum of all runs is the result.
    pub runs: u32,
    /// Packets of a run of the router.
    pub packets: u32,
    /// Packets of a run of a cipher; register writes of a run.
    pub blocks: u32,
    /// Runs without loss that confirm the highest rate of the search.
    pub search_runs: u32,
    /// Length of each search run, ms; a tenth of it for frames of 64 bytes.
    pub search_ms: u64,
    /// Input rates of the ciphers, packets per second.
    pub rates: &'static [u64],
    /// Runs under overload, or at one rate; the largest output is the result.
    pub paced_runs: u32,
    /// Length of each of these runs, ms.
    pub paced_ms: u64,
}

impl Size {
    /// The size of the published figures.
    pub const FULL: Self = Self {
        runs: 20,
        packets: 200_000,
        blocks: 2_000,
        search_runs: 8,
        search_ms: 10_000,
        rates: &[
            10_000, 20_000, 40_000, 80_000, 120_000, 160_000, 240_000, 320_000, 480_000, 640_000,
        ],
        paced_runs: 3,
        paced_ms: 100,
    };
    /// A test run of a few seconds.
    pub const QUICK: Self = Self {
        runs: 2,
        packets: 5_000,
        blocks: 20,
        search_runs: 1,
        search_ms: 500,
        rates: &[10_000, 400_000],
        paced_runs: 2,
        paced_ms: 50,
    };
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// [`router`]
    Router,
    /// [`link`]
    Link,
    /// [`evidence`]
    Evidence,
    /// [`registers`]
    Registers,
    /// [`messages`]
    Messages,
    /// [`ciphers`]
    Ciphers,
    /// [`paced`]
    Rate,
    /// [`ports`]
    Ports,
}

impl Part {
    /// All parts, in the order of execution.
    pub const ALL: [Self; 8] = [
        Self::Router,
        Self::Link,
        Self::Evidence,
        Self::Registers,
        Self::Messages,
        Self::Ciphers,
        Self::Rate,
        Self::Ports,
    ];

    /// Name of the part on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::Link => "link",
            Self::Evidence => "evidence",
            Self::Registers => "registers",
            Self::Messages => "messages",
            Self::Ciphers => "ciphers",
            Self::Rate => "rate",
            Self::Ports => "ports",
        }
    }
}

/// Runs these parts. `p4` is the directory with `compiled/NAME.json` and `tests/NAME-*.stf`.
///
/// # Errors
/// The error of the first part that fails.
pub fn run(size: &Size, p4: &Path, parts: &[Part], progress: Progress<'_>) -> Result<Report, BenchError> {
    let mut report = Report::default();
    let programs = Programs::new(p4);
    for part in parts {
        let rows = &mut report.rows;
        match part {
            Part::Router => router::rows(size, &programs, progress, rows)?,
            Part::Link => link::rows(size, &programs, progress, rows)?,
            Part::Evidence => evidence::rows(size, &programs, progress, rows)?,
            Part::Registers => registers::rows(size, &programs, progress, rows)?,
            Part::Messages => messages::rows(size, &programs, progress, rows)?,
            Part::Ciphers => ciphers::rows(size, &programs, progress, rows)?,
            Part::Rate => paced::rows(size, &programs, progress, rows)?,
            Part::Ports => ports::rows(size, &programs, progress, rows)?,
        }
    }
    Ok(report)
}
