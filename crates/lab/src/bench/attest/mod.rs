//! `linewarden-lab bench attest`: the cost of attestation.
//!
//! | part | measurement |
//! |---|---|
//! | [`cipher`] | ciphers in the data plane: time per block, packet and AEAD operation; size of the programs |
//! | [`paced`] | output rate of these programs by input rate, up to and beyond saturation |
//! | [`proof`] | verification of PROOFs: in the kernel, and in memory with vector instructions and without |
//! | [`p4dra`] | verification of replies of `p4dra-classic`, in the kernel and in memory, for comparison |
//! | [`link`] | PROOFs over a veth: `xdp` compared with verifiers in user space; time to attest a fleet |
//! | [`round`] | a complete round of many provers with the real gateway |
//! | [`stream`] | Forró compared with ChaCha20, on the host |
//! | [`figures`] | the charts |

pub mod cipher;
pub mod figures;
pub mod link;
pub mod p4dra;
pub mod paced;
pub mod proof;
pub mod provers;
pub mod round;
pub mod stream;

use super::scale::Progress;
use super::{BenchError, Report};

/// The size of the benchmark.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    /// Runs; the minimum of all runs is the result.
    pub runs: u32,
    /// Packets or blocks of a run.
    pub repeat: u32,
    /// Input rates, packets per second.
    pub rates: &'static [u64],
    /// Runs at each rate; the run with the largest output is the result.
    pub paced_runs: u32,
    /// Length of each run at a rate, ms.
    pub paced_ms: u64,
    /// Messages of a run on the host.
    pub messages: u32,
    /// Provers of the largest fleet.
    pub provers: u32,
    /// Fleet sizes for which the time of a round is measured.
    pub fleet_sizes: &'static [u32],
    /// Provers of the complete round.
    pub round_provers: u32,
}

impl Size {
    /// The size of the published figures.
    pub const FULL: Self = Self {
        runs: 20,
        repeat: 20_000,
        rates: &[
            250_000, 500_000, 1_000_000, 1_500_000, 2_000_000, 2_500_000, 3_000_000, 4_000_000, 6_000_000,
        ],
        paced_runs: 8,
        paced_ms: 200,
        messages: 1_000,
        provers: 1_000_000,
        fleet_sizes: &[
            2, 10, 100, 1_000, 2_500, 5_000, 7_500, 10_000, 12_500, 15_000, 17_500, 20_000,
        ],
        round_provers: 100_000,
    };
    /// A test run of a few seconds.
    pub const QUICK: Self = Self {
        runs: 2,
        repeat: 200,
        rates: &[100_000, 3_000_000],
        paced_runs: 3,
        paced_ms: 20,
        messages: 20,
        provers: 2_000,
        fleet_sizes: &[2, 100, 2_000],
        round_provers: 1_000,
    };
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// [`cipher`]
    Cipher,
    /// [`paced`]
    Rate,
    /// [`proof`]
    Proof,
    /// [`p4dra`]
    P4dra,
    /// [`link`]
    Link,
    /// [`round`]
    Round,
    /// [`stream`]
    Stream,
}

impl Part {
    /// All parts, in the order of execution.
    pub const ALL: [Self; 7] = [
        Self::Cipher,
        Self::Rate,
        Self::Proof,
        Self::P4dra,
        Self::Link,
        Self::Round,
        Self::Stream,
    ];

    /// Name of the part on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cipher => "cipher",
            Self::Rate => "rate",
            Self::Proof => "proof",
            Self::P4dra => "p4dra",
            Self::Link => "link",
            Self::Round => "round",
            Self::Stream => "stream",
        }
    }
}

/// Runs these parts.
///
/// # Errors
/// The error of the first part that fails.
pub fn run(size: &Size, parts: &[Part], progress: Progress<'_>) -> Result<Report, BenchError> {
    let mut report = Report::default();
    for part in parts {
        match part {
            Part::Cipher => cipher::rows(size, progress, &mut report.rows)?,
            Part::Rate => paced::rows(size, progress, &mut report.rows)?,
            Part::Proof => {
                progress("verifying PROOFs in memory, on one core", None);
                proof::memory(size, &mut report.rows)?;
                progress("verifying PROOFs in the kernel", None);
                proof::kernel(size, &mut report.rows)?;
            }
            Part::P4dra => {
                progress("verifying replies of p4dra-classic", None);
                p4dra::rows(size, &mut report.rows)?;
            }
            Part::Link => link::rows(size, progress, &mut report.rows)?,
            Part::Round => round::rows(size, progress, &mut report.rows)?,
            Part::Stream => stream::rows(size, progress, &mut report.rows),
        }
    }
    Ok(report)
}
