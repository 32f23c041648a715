//! `linewarden-lab bench scale`: the cost of a million devices in one gateway.
//!
//! | part | measurement |
//! |---|---|
//! | [`fleet`] | enrollment, leasing, a restart that loads all devices, memory, and a check of every row |
//! | [`memory`] | authentication of random devices with 10^7 rows, compared with 10^4 |
//! | [`eviction`] | hit rates of the eviction policies in the gateway |
//! | [`latency`] | revocations, refills, first authentications and floods over the lab's link |
//! | [`figures`] | the charts |
//! | [`sealed`] | the sealed gate, per packet |
//!
//! Rows come from a seeded generator: the cost of PUF models is not measured.

pub mod eviction;
pub mod figures;
pub mod fleet;
pub mod latency;
pub mod memory;
pub mod sealed;

use super::{BenchError, Report};

/// The size of the benchmark.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    /// Devices of the fleet.
    pub devices: u32,
    /// Rows of each device.
    pub rows: u32,
    /// Runs; the minimum of all runs is the result.
    pub runs: u32,
    /// Devices of the larger of the two fleets in [`memory`].
    pub random_devices: u32,
    /// Devices for the eviction policies; a tenth of them fits into the gateway.
    pub eviction_devices: u32,
    /// Authentications for each policy and trace.
    pub eviction_accesses: u32,
    /// Devices that authenticate for the first time.
    pub first_devices: u32,
    /// Devices in each mode whose latencies are compared while rows are leased.
    pub refill_devices: u32,
    /// Authentications of each of these devices in each run.
    pub refill_rounds: u32,
    /// Devices that are revoked.
    pub revocations: u32,
    /// Legitimate devices under a flood: this number of installed devices, and for each kind of flood this number of
    /// new devices.
    pub flood_devices: u32,
}

impl Size {
    /// The size of the published figures: 3 GB of disk, 4 GB of memory.
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
    /// A test run of a few seconds.
    pub const QUICK: Self = Self {
        devices: 2_000,
        rows: 100,
        runs: 2,
        random_devices: 2_000,
        eviction_devices: 400,
        eviction_accesses: 200,
        first_devices: 20,
        refill_devices: 8,
        refill_rounds: 16,
        revocations: 5,
        flood_devices: 10,
    };
}

/// Memory sizes for which the number of devices is reported, GiB.
const MEMORY_SIZES_GIB: [u32; 3] = [1, 4, 16];

/// A part of the benchmark.
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
    /// All parts, in the order of execution.
    pub const ALL: [Self; 5] = [
        Self::Fleet,
        Self::Memory,
        Self::Sealed,
        Self::Eviction,
        Self::Latency,
    ];

    /// Name of the part on the command line.
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

/// Progress callback: the current step, with completed and total items if known.
pub type Progress<'a> = &'a mut dyn FnMut(&str, Option<(u64, u64)>);

/// Runs these parts.
///
/// # Errors
/// The error of the first part that fails.
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
