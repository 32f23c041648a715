//! `linewarden bench scale`: what a million devices cost one gateway.
//!
//! | part | what is measured |
//! |---|---|
//! | [`fleet`] | enrolment, leasing, a restart that loads everything, memory, and that every row is where it belongs |
//! | [`memory`] | authentication of random devices among 10^7 rows against 10^4 |
//! | [`eviction`] | hit rates of the eviction policies in the gateway |
//! | [`latency`] | revocations, refills, first authentications and floods over the lab's link |
//! | [`figures`] | the pictures |
//! | [`sealed`] | the sealed gate, packet after packet |
//!
//! Rows come from a seeded generator: what a PUF's model costs is not measured here.

pub mod eviction;
pub mod figures;
pub mod fleet;
pub mod latency;
pub mod memory;
pub mod sealed;

use super::{BenchError, Report};

/// How large a bench is.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    /// Devices of the fleet.
    pub devices: u32,
    /// Rows of each.
    pub rows: u32,
    /// Runs of which the minimum counts.
    pub runs: u32,
    /// Devices of the larger of the two memories.
    pub random_devices: u32,
    /// Devices of which a tenth has a place, for the eviction policies.
    pub eviction_devices: u32,
    /// Authentications for each policy and trace.
    pub eviction_accesses: u32,
    /// Devices that authenticate for the first time.
    pub first_devices: u32,
    /// Devices in each mode whose authentications are compared while rows are leased.
    pub refill_devices: u32,
    /// Authentications of each.
    pub refill_rounds: u32,
    /// Devices that are revoked.
    pub revocations: u32,
    /// Honest devices in a flood: so many that are here, and so many newcomers for each kind of flood.
    pub flood_devices: u32,
}

impl Size {
    /// What the figures in the documents are made with: 3 GB of disk, 4 GB of memory.
    pub const FULL: Self = Self {
        devices: 1_000_000,
        rows: 100,
        runs: 20,
        random_devices: 100_000,
        eviction_devices: 10_000,
        eviction_accesses: 60_000,
        first_devices: 500,
        refill_devices: 128,
        refill_rounds: 24,
        revocations: 200,
        flood_devices: 200,
    };
    /// A few seconds, to see that it works.
    pub const QUICK: Self = Self {
        devices: 2_000,
        rows: 100,
        runs: 2,
        random_devices: 2_000,
        eviction_devices: 400,
        eviction_accesses: 1_000,
        first_devices: 20,
        refill_devices: 8,
        refill_rounds: 16,
        revocations: 5,
        flood_devices: 10,
    };
}

/// Memories for which the number of devices is told, GiB.
const MEMORIES_GIB: [u32; 3] = [1, 4, 16];

/// A part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// [`fleet`]
    Fleet,
    /// [`memory`]
    Memory,
    /// [`sealed`]
    Sealed,
    /// [`eviction`]
    Eviction,
    /// [`latency`]
    Latency,
}

impl Part {
    /// All, in the order in which they are run.
    pub const ALL: [Self; 5] = [
        Self::Fleet,
        Self::Memory,
        Self::Sealed,
        Self::Eviction,
        Self::Latency,
    ];

    /// Short and lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fleet => "fleet",
            Self::Memory => "memory",
            Self::Sealed => "sealed",
            Self::Eviction => "eviction",
            Self::Latency => "latency",
        }
    }
}

/// How far it is: what is done, and how much of how much where that is known.
pub type Progress<'a> = &'a mut dyn FnMut(&str, Option<(u64, u64)>);

/// Runs these parts.
///
/// # Errors
/// The first part that could not be run.
pub fn run(size: &Size, parts: &[Part], progress: Progress<'_>) -> Result<Report, BenchError> {
    let mut report = Report::default();
    for part in parts {
        match part {
            Part::Fleet => fleet::rows(size, progress, &mut report.rows)?,
            Part::Memory => {
                progress("authentication of random devices", None);
                memory::rows(size, &mut report.rows)?;
            }
            Part::Sealed => {
                progress("sealed gate", None);
                sealed::rows(size, &mut report.rows)?;
            }
            Part::Eviction => eviction::rows(size, progress, &mut report.rows)?,
            Part::Latency => latency::rows(size, progress, &mut report.rows)?,
        }
    }
    Ok(report)
}
