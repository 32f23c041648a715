//! A quality report over a directory of readouts: figures, a table, charts, and whether enrollment would accept the
//! devices.
//!
//! Memories are measured segment by segment, so that only one segment of each readout and of its reference is kept
//! per device, for any size of memory.

mod enrollment_check;
mod measure;
mod rebuild;
mod svg_chart;
mod table;
mod text_chart;

pub use enrollment_check::DuplicateDevices;
pub use rebuild::{RebuildResult, TrialKind};
pub use table::Row;

use std::path::Path;

use linewarden_chart::ChartError;
use serde::Serialize;

use crate::{
    blocks::BadRange,
    entropy::EntropyAssessment,
    health::HealthTest,
    metrics::{DeviceMetrics, Spread},
    readout::{DumpSet, ReadoutError, subdirectories},
};
use measure::Measurement;

/// Options of a report.
#[derive(Clone, Debug)]
pub struct ReportOptions {
    /// Bits of a window, if windows of one chip substitute devices.
    pub window_bits: usize,
    /// Number of readouts, from the first, from which the rebuild trials enroll. The trials rebuild from the later readouts.
    pub enrollment_readouts: usize,
    /// Seed of the random values in enrollment checks and rebuild trials; their secrets are discarded.
    pub seed: u64,
    /// The limits of the health test.
    pub health: HealthTest,
}

impl Default for ReportOptions {
    fn default() -> Self {
        Self {
            window_bits: 4096,
            enrollment_readouts: 5,
            seed: 1,
            health: HealthTest::default(),
        }
    }
}

/// One device of a report.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    /// The directory's name.
    pub name: String,
    /// The metrics of the device.
    pub metrics: DeviceMetrics,
    /// The min-entropy of a key-mode secret from the unprocessed cells of the device, if there are enough cells.
    /// Enrollment debiases the cells first.
    pub entropy: Option<EntropyAssessment>,
    /// Findings of the health test for the device's readouts.
    pub health_findings: Vec<String>,
    /// Parts of the device's memory that are not power-up state.
    pub bad_ranges: Vec<BadRange>,
    /// Min-entropy of the secret that enrollment derives from the device's readouts, in bits.
    pub enrollment_bits: Option<f64>,
    /// Why enrollment refuses the device's readouts, if it does.
    pub refusal: Option<String>,
}

/// A histogram over 0 … 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Histogram {
    /// Counts of bins of equal width, from 0 on.
    pub counts: Vec<u64>,
}

impl Histogram {
    fn of(values: &[f64], bins: usize) -> Self {
        let mut counts = vec![0; bins];
        for value in values {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a share times the bins"
            )]
            let bin = ((value.clamp(0.0, 1.0) * bins as f64) as usize).min(bins.saturating_sub(1));
            if let Some(count) = counts.get_mut(bin) {
                *count += 1;
            }
        }
        Self { counts }
    }
}

/// The report on a directory.
#[derive(Clone, Debug, Serialize)]
pub struct PufReport {
    /// One entry per device.
    pub devices: Vec<DeviceReport>,
    /// Devices with common memory content: enrollment accepts only one of them.
    pub duplicate_devices: Vec<DuplicateDevices>,
    /// With one device only: the number of windows that substitute devices in all comparisons of devices. Windows of
    /// one chip do not measure how much chips differ.
    pub substitute_windows: Option<usize>,
    /// Inter-HD over all pairs.
    pub uniqueness: Option<Spread>,
    /// The share of devices with a one at each position.
    pub bit_aliasing: Option<Spread>,
    /// Min-entropy per bit across devices (most common value by position).
    pub min_entropy_across_devices: Option<f64>,
    /// Bit error rates against the first readout, in bins of 1 / 100.
    pub intra_distances: Histogram,
    /// Distances between devices, in bins of 1 / 100.
    pub inter_distances: Histogram,
    /// 101 points: point `i` is the share of cells whose flip probability is at most `i / 200`.
    pub flip_probability_cdf: Vec<f64>,
    /// The share of ones over the first MiB of the first device's memory, in rows of 64: rows are consecutive parts
    /// of the memory, columns the address modulo 64, so that stripes are visible.
    pub ones_map: Vec<f64>,
    /// The rebuild trials.
    pub rebuilds: Vec<RebuildResult>,
}

/// The columns of [`PufReport::ones_map`].
pub(crate) const MAP_COLUMNS: usize = 64;
impl PufReport {
    /// Reads a directory of dumps (one device) or of subdirectories with dumps (one device each), and measures the
    /// devices.
    /// `progress` receives the current step.
    ///
    /// # Errors
    /// [`ReadoutError`] if a dump cannot be read, with the file and the position.
    pub fn from_directory(
        directory: &Path,
        options: &ReportOptions,
        progress: &dyn Fn(&str),
    ) -> Result<Self, ReadoutError> {
        let mut paths = subdirectories(directory)?;
        if paths.is_empty() {
            paths.push(directory.to_owned());
        }
        let open = |path: &std::path::PathBuf| {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            Ok((name, DumpSet::open(path)?))
        };
        let sets: Vec<(String, DumpSet)> = paths.iter().map(open).collect::<Result<_, ReadoutError>>()?;
        Measurement::run(sets, options, progress)
    }

    /// Reasons for which enrollment would refuse devices; empty if enrollment would accept all devices. Pairs of
    /// devices with the same PUF come first.
    pub fn refusals(&self) -> Vec<String> {
        let device_refusals = self.devices.iter().filter_map(|device| {
            let refusal = device.refusal.as_ref()?;
            Some(format!("{}: {refusal}", device.name))
        });
        let same_pufs = self.duplicate_devices.iter().map(ToString::to_string);
        same_pufs.chain(device_refusals).collect()
    }

    /// The figures as table rows.
    pub fn rows(&self) -> Vec<Row> {
        table::rows(self)
    }

    /// A chart for a terminal: the two distributions of Hamming distances.
    #[must_use]
    pub fn text_chart(&self) -> String {
        text_chart::text_chart(self)
    }

    /// The charts as an SVG document.
    ///
    /// # Errors
    /// The drawing library fails.
    pub fn svg(&self) -> Result<String, ChartError> {
        svg_chart::svg(self)
    }
}
