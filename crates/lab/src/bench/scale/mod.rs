//! `linewarden bench scale`: what a million devices cost one gateway.
//!
//! | part | what is measured |
//! |---|---|
//! | [`fleet`] | enrolment, leasing, a restart that loads everything, memory, and that every row is where it belongs |
//! | [`memory`] | authentication of random devices among 10^7 rows against 10^4 |
//! | [`sealed`] | the sealed gate, packet after packet |
//!
//! Rows come from a seeded generator: what a PUF's model costs is not measured here.

pub mod fleet;
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
}

impl Size {
    /// What the figures in the documents are made with: 3 GB of disk, 4 GB of memory.
    pub const FULL: Self = Self {
        devices: 1_000_000,
        rows: 100,
        runs: 20,
        random_devices: 100_000,
    };
    /// A few seconds, to see that it works.
    pub const QUICK: Self = Self {
        devices: 2_000,
        rows: 100,
        runs: 2,
        random_devices: 2_000,
    };
}

/// How far it is: what is done, and how much of how much where that is known.
pub type Progress<'a> = &'a mut dyn FnMut(&str, Option<(u64, u64)>);

/// Runs everything.
///
/// # Errors
/// The first part that could not be run.
pub fn run(size: &Size, progress: Progress<'_>) -> Result<Report, BenchError> {
    let mut report = Report::default();
    fleet::rows(size, progress, &mut report.rows)?;
    progress("authentication of random devices", None);
    memory::rows(size, &mut report.rows)?;
    progress("sealed gate", None);
    sealed::rows(size, &mut report.rows)?;
    Ok(report)
}
