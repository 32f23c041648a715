//! `linewarden-lab bench service`: the performance of a controller with 10^6 devices, and its effect on the data plane.
//!
//! | part | measurement |
//! |---|---|
//! | `floor` | lower bounds: the disk, TLS and the registry alone |
//! | `import` | enrollment of the whole fleet through the API, over SQLite and over PostgreSQL |
//! | `reads` | read requests of dashboards and operators, from several clients with persistent connections |
//! | `events` | time from a change to its event at a client of the event stream |
//! | `revoke` | time from a revocation until three gateways send the device no reply |
//! | `auth-rate` | the data plane on its own CPU while a controller is saturated on another CPU |
//!
//! Controllers and gateways are processes of `linewarden-controller` and `linewarden-gateway`, with TLS on loopback and files in a temporary directory. The
//! clients run on the same machine and use the same CPUs, so rates include the clients' CPU time.

mod auth_rate;
mod client;
mod devices;
mod events;
mod floor;
mod import;
mod process;
mod reads;
mod revoke;
mod test_controller;

use std::path::Path;

use super::scale::Progress;
use super::{BenchError, Better, Pending, Report};
use client::Client;
use devices::Fleet;
use test_controller::{Database, TestController};

/// The size of the benchmark.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    /// Devices of the fleet.
    pub devices: u32,
    /// Devices with 100 rows that are imported in addition.
    pub large_devices: u32,
    /// Length of a run of read requests, ms.
    pub read_ms: u64,
    /// Changes that become events.
    pub changes: u32,
    /// Devices that are revoked without other load, and the same number under read load.
    pub revocations: u32,
    /// Length of one window of `auth-rate`, ms.
    pub window_ms: u64,
    /// Number of slices of `auth-rate`. Each slice has windows with idle controller and one window with each kind of load.
    pub slices: u32,
}

impl Size {
    /// The size of the published figures: 2 GB of disk, 3 GB of memory.
    pub const FULL: Self = Self {
        devices: 1_000_000,
        large_devices: 50_000,
        read_ms: 20_000,
        changes: 2_000,
        revocations: 150,
        window_ms: 500,
        slices: 15,
    };
    /// A test run of less than a minute.
    pub const QUICK: Self = Self {
        devices: 5_000,
        large_devices: 500,
        read_ms: 2_000,
        changes: 40,
        revocations: 4,
        window_ms: 200,
        slices: 1,
    };
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `floor`
    Floor,
    /// `import`
    Import,
    /// `reads`
    Reads,
    /// `events`
    Events,
    /// `revoke`
    Revoke,
    /// `auth-rate`
    AuthRate,
}

impl Part {
    /// All parts, in the order of execution.
    pub const ALL: [Self; 6] = [
        Self::Floor,
        Self::Import,
        Self::Reads,
        Self::Events,
        Self::Revoke,
        Self::AuthRate,
    ];

    /// Name of the part on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Import => "import",
            Self::Reads => "reads",
            Self::Events => "events",
            Self::Revoke => "revoke",
            Self::AuthRate => "auth-rate",
        }
    }
}

/// Runs these parts with the programs `linewarden`, `linewarden-controller` and `linewarden-gateway` in the directory
/// `executables`. The fleet is always imported, because the other parts read it.
///
/// # Errors
/// The error of the first part that fails.
pub fn run(
    executables: &Path,
    size: &Size,
    parts: &[Part],
    progress: Progress<'_>,
) -> Result<Report, BenchError> {
    let mut report = Report::default();
    let is_selected = |part: Part| parts.contains(&part);
    progress("creating devices", None);
    let fleet = Fleet::new(size.devices);
    let controller = TestController::start(executables, Database::Sqlite)?;
    if is_selected(Part::Floor) {
        progress("lower bounds", None);
        floor::rows(&controller, &fleet, size, &mut report.rows)?;
    }
    let import_time = import::fleet(&controller, &fleet, progress)?;
    if is_selected(Part::Import) {
        import::rows(&controller, &fleet, size, import_time, progress, &mut report)?;
    }
    if is_selected(Part::Reads) {
        progress("read requests", None);
        reads::rows(&controller, &fleet, size, &mut report.rows)?;
    }
    if is_selected(Part::Events) {
        events::rows(&controller, &fleet, size, progress, &mut report.rows)?;
    }
    if is_selected(Part::Revoke) {
        revoke::rows(&controller, &fleet, size, progress, &mut report.rows)?;
    }
    if is_selected(Part::AuthRate) {
        auth_rate::rows(&controller, &fleet, size, progress, &mut report)?;
    }
    Ok(report)
}

fn invalid_measurement(problem: impl std::fmt::Display) -> BenchError {
    BenchError::InvalidMeasurement(problem.to_string())
}

fn pending(name: &str, unit: &'static str, target: Option<f64>, reason: impl std::fmt::Display) -> Pending {
    Pending::new(name, unit, Better::Higher, target, reason.to_string())
}

fn runtime() -> Result<tokio::runtime::Runtime, BenchError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(super::io("start the async runtime"))
}

fn quantile(values: &mut [f64], quantile: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let rank = (values.len() as f64 * quantile).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
