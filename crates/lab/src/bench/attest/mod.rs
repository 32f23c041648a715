//! `linewarden bench attest`: what attestation costs, part by part.
//!
//! | part | what is measured |
//! |---|---|
//! | [`cipher`] | ciphers in the data plane: blocks, packets, AEADs, and what the programs take |
//! | [`paced`] | what comes out of those programs by what goes in, past saturation |
//! | [`proof`] | PROOFs: in the kernel packet after packet, in memory with all lanes and with one |
//! | [`p4dra`] | replies of `p4dra-classic`, in the kernel and in memory, beside them |
//! | [`link`] | PROOFs over a veth: `xdp` beside verifiers of user space, and how long many provers take |
//! | [`round`] | a whole round of many provers through the real gateway |
//! | [`stream`] | Forró on the host beside ChaCha20 |
//! | [`figures`] | the pictures |

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

/// How large the bench is.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    /// Runs of which the minimum counts.
    pub runs: u32,
    /// Packets, or blocks, of a run.
    pub repeat: u32,
    /// Input rates, packets per second.
    pub rates: &'static [u64],
    /// Runs at a rate of which the largest output counts.
    pub paced_runs: u32,
    /// Length of each, ms.
    pub paced_ms: u64,
    /// Messages of a run on the host.
    pub messages: u32,
    /// Provers of the largest fleet.
    pub provers: u32,
    /// Provers of which the time of a round is taken.
    pub attested: &'static [u32],
    /// Provers of a whole round.
    pub round_provers: u32,
}

impl Size {
    /// What the figures in the documents are made with.
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
        attested: &[
            2, 10, 100, 1_000, 2_500, 5_000, 7_500, 10_000, 12_500, 15_000, 17_500, 20_000,
        ],
        round_provers: 100_000,
    };
    /// A few seconds, to see that it works.
    pub const QUICK: Self = Self {
        runs: 2,
        repeat: 200,
        rates: &[100_000, 3_000_000],
        paced_runs: 3,
        paced_ms: 20,
        messages: 20,
        provers: 2_000,
        attested: &[2, 100, 2_000],
        round_provers: 1_000,
    };
}

/// A part of the bench.
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
    /// All, in the order in which they are run.
    pub const ALL: [Self; 7] = [
        Self::Cipher,
        Self::Rate,
        Self::Proof,
        Self::P4dra,
        Self::Link,
        Self::Round,
        Self::Stream,
    ];

    /// Short and lower case.
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
/// The first part that could not be run.
pub fn run(size: &Size, parts: &[Part], progress: Progress<'_>) -> Result<Report, BenchError> {
    let mut report = Report::default();
    for part in parts {
        match part {
            Part::Cipher => cipher::rows(size, progress, &mut report.rows)?,
            Part::Rate => paced::rows(size, progress, &mut report.rows)?,
            Part::Proof => {
                progress("proofs in memory, on one core", None);
                proof::memory(size, &mut report.rows)?;
                progress("proofs in the kernel, packet after packet", None);
                proof::kernel(size, &mut report.rows)?;
            }
            Part::P4dra => {
                progress("proofs of p4dra-classic", None);
                p4dra::rows(size, &mut report.rows)?;
            }
            Part::Link => link::rows(size, progress, &mut report.rows)?,
            Part::Round => round::rows(size, progress, &mut report.rows)?,
            Part::Stream => stream::rows(size, progress, &mut report.rows),
        }
    }
    Ok(report)
}
