//! `linewarden bench switch`: what the P4 switch costs.
//!
//! | part | what is measured |
//! |---|---|
//! | [`router`] | the router in memory, beside floors: copying the packet, looking up alone |
//! | [`link`] | the router over packet sockets, veth to veth, beside a bare forwarder; a search for what passes without loss |
//! | [`evidence`] | the router with and without evidence in every packet: in memory, past saturation, in the paper's search |
//! | [`registers`] | what evidence costs a register write |
//! | [`messages`] | messages of LAP/1 and proofs of `attest/2`, packet after packet |
//! | [`ciphers`] | Forró and ChaCha in P4, a block after the other; recirculations per packet |
//! | [`paced`] | what comes out of those programs by what goes in, past saturation |
//! | [`ports`] | rate by recirculations per packet and recirculation ports, measured and computed |
//! | [`figures`] | the pictures |

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

/// How large the bench is.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    /// Runs of which the minimum counts.
    pub runs: u32,
    /// Packets of a run of the router.
    pub packets: u32,
    /// Packets of a run of a cipher; register writes of a run.
    pub blocks: u32,
    /// Runs without loss that the search for the highest rate ends with.
    pub search_runs: u32,
    /// Length of each, ms; a tenth for frames of 64 bytes.
    pub search_ms: u64,
    /// Input rates of the ciphers, packets per second.
    pub rates: &'static [u64],
    /// Runs past saturation, or at a rate, of which the largest output counts.
    pub paced_runs: u32,
    /// Length of each, ms.
    pub paced_ms: u64,
}

impl Size {
    /// What the figures in the documents are made with.
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
    /// A few seconds, to see that it works.
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

/// A part of the bench.
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
    /// All, in the order in which they are run.
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

    /// Short and lower case.
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
/// The first part that could not be run.
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
