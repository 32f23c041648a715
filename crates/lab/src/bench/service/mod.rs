//! `linewarden bench service`: what a controller does at 10^6 devices, and whether the data plane notices.
//!
//! | part | what is measured |
//! |---|---|
//! | `floor` | what nobody who answers over TLS and stores durably can be without |
//! | `import` | enrolment of the whole fleet through the API, over SQLite and over PostgreSQL |
//! | `reads` | questions of dashboards and operators, by several clients that keep their connections |
//! | `events` | changes until they are lines at a client of the event stream |
//! | `revoke` | revocations until three gateways answer the device no more |
//! | `auth-rate` | the data plane on its own CPU while a controller is at its limit on another |
//!
//! Controllers and gateways are processes of `linewarden`, over TLS on loopback, on files in a directory of their own. Whoever asks runs
//! on the same machine and takes its share of the CPUs: rates are of both together.

mod auth_rate;
mod client;
mod devices;
mod events;
mod floor;
mod import;
mod office;
mod process;
mod reads;
mod revoke;

use std::path::PathBuf;

use super::scale::Progress;
use super::{BenchError, Better, Pending, Report};
use client::Client;
use devices::Fleet;
use office::{Database, Office};

/// How large a bench is.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    /// Devices of the fleet.
    pub devices: u32,
    /// Devices of 100 rows that are imported beside it.
    pub large_devices: u32,
    /// Length of a run of questions, ms.
    pub read_ms: u64,
    /// Changes that become events.
    pub changes: u32,
    /// Devices that are revoked while nobody asks, and as many more while everybody does.
    pub revocations: u32,
    /// Length of one window of the data plane, ms.
    pub slice_ms: u64,
    /// Windows of each kind.
    pub slices: u32,
}

impl Size {
    /// What the figures in the documents are made with: 2 GB of disk, 3 GB of memory.
    pub const FULL: Self = Self {
        devices: 1_000_000,
        large_devices: 50_000,
        read_ms: 20_000,
        changes: 2_000,
        revocations: 150,
        slice_ms: 500,
        slices: 15,
    };
    /// Less than a minute, to see that it works.
    pub const QUICK: Self = Self {
        devices: 5_000,
        large_devices: 500,
        read_ms: 2_000,
        changes: 40,
        revocations: 4,
        slice_ms: 200,
        slices: 1,
    };
}

/// A part of the bench.
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
    /// All, in the order in which they are run.
    pub const ALL: [Self; 6] = [
        Self::Floor,
        Self::Import,
        Self::Reads,
        Self::Events,
        Self::Revoke,
        Self::AuthRate,
    ];

    /// Short and lower case.
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

/// Runs these parts with this program, which is `linewarden`. Whatever is left out, the fleet is imported: the others ask about it.
///
/// # Errors
/// The first part that could not be run.
pub fn run(
    program: PathBuf,
    size: &Size,
    parts: &[Part],
    progress: Progress<'_>,
) -> Result<Report, BenchError> {
    let mut report = Report::default();
    let wanted = |part: Part| parts.contains(&part);
    progress("making devices", None);
    let fleet = Fleet::new(size.devices);
    let office = Office::open(program, Database::Sqlite)?;
    if wanted(Part::Floor) {
        progress("floors", None);
        floor::rows(&office, &fleet, size, &mut report.rows)?;
    }
    let imported = import::fleet(&office, &fleet, progress)?;
    if wanted(Part::Import) {
        import::rows(&office, &fleet, size, imported, progress, &mut report)?;
    }
    if wanted(Part::Reads) {
        progress("questions", None);
        reads::rows(&office, &fleet, size, &mut report.rows)?;
    }
    if wanted(Part::Events) {
        events::rows(&office, &fleet, size, progress, &mut report.rows)?;
    }
    if wanted(Part::Revoke) {
        revoke::rows(&office, &fleet, size, progress, &mut report.rows)?;
    }
    if wanted(Part::AuthRate) {
        auth_rate::rows(&office, &fleet, size, progress, &mut report)?;
    }
    Ok(report)
}

fn contradiction(what: impl std::fmt::Display) -> BenchError {
    BenchError::Contradiction(what.to_string())
}

fn pending(name: &str, unit: &'static str, bar: Option<f64>, why: impl std::fmt::Display) -> Pending {
    Pending::new(name, unit, Better::Higher, bar, why.to_string())
}

fn runtime() -> Result<tokio::runtime::Runtime, BenchError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(super::io("starting a runtime"))
}

fn quantile(values: &mut [f64], quantile: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let at = (values.len() as f64 * quantile).ceil() as usize;
    values.get(at.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
