//! A quality report over a directory of readouts: figures, a table, a picture, and whether enrolment would take them.
//!
//! Memories are measured segment by segment, so that what is kept of a device is a segment of each readout and one of its
//! reference, however large its memory is.

mod measure;
mod picture;
mod rebuild;
mod sketch;
mod table;
mod verdict;

pub use rebuild::{Rebuild, RebuildResult};
pub use table::Row;
pub use verdict::SamePuf;

use std::path::Path;

use serde::Serialize;

use crate::{
    blocks::BadRange,
    entropy::EntropyAssessment,
    health::HealthTest,
    metrics::{DeviceMetrics, Spread},
    readout::{DumpSet, ReadoutError, subdirectories},
};
use measure::Measurement;

/// How to make a report.
#[derive(Clone, Debug)]
pub struct ReportOptions {
    /// Bits of a window, where windows of one chip stand in for devices.
    pub window_bits: usize,
    /// The readouts, from the first on, that the rebuild trials enrol from; all others are rebuilt from.
    pub enrolment_readouts: usize,
    /// Seeds the secrets of the rebuild trials, which are thrown away.
    pub seed: u64,
    /// The limits of the health test.
    pub health: HealthTest,
}

impl Default for ReportOptions {
    fn default() -> Self {
        Self {
            window_bits: 4096,
            enrolment_readouts: 5,
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
    /// Its metrics.
    pub metrics: DeviceMetrics,
    /// The min-entropy of a key-mode secret from its cells as they are, if there are enough; enrolment
    /// debiases them first.
    pub entropy: Option<EntropyAssessment>,
    /// What the health test says about its readouts, empty if nothing.
    pub health_findings: Vec<String>,
    /// Parts of its memory that are not power-up state.
    pub bad_ranges: Vec<BadRange>,
    /// Min-entropy of the secret that enrolment makes of its readouts, in bits.
    pub enrolment_bits: Option<f64>,
    /// Why enrolment refuses its readouts, if it does.
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

/// The report over a directory.
#[derive(Clone, Debug, Serialize)]
pub struct PufReport {
    /// One entry per device.
    pub devices: Vec<DeviceReport>,
    /// Devices whose memories are the same in part: enrolment takes one of them only.
    pub same_pufs: Vec<SamePuf>,
    /// With one device only: how many windows of it stand in for devices in everything that compares devices.
    /// Windows of one chip do not measure how much chips differ.
    pub windows_stand_in: Option<usize>,
    /// Inter-HD over all pairs.
    pub uniqueness: Option<Spread>,
    /// The share of ones by position over the devices.
    pub bit_aliasing: Option<Spread>,
    /// Min-entropy per bit across devices (most common value by position).
    pub min_entropy_across_devices: Option<f64>,
    /// Bit error rates against the first readout, in bins of 1 / 100.
    pub intra_distances: Histogram,
    /// Distances between devices, in bins of 1 / 100.
    pub inter_distances: Histogram,
    /// Of 101 points, the share of cells whose flip probability is at most `i / 200`.
    pub flip_probability_cdf: Vec<f64>,
    /// The share of ones over the first MiB of the first device's memory, row by row of 64: rows are consecutive parts of the
    /// memory, columns the address modulo 64, so that stripes show.
    pub one_share_map: Vec<f64>,
    /// The rebuild trials.
    pub rebuilds: Vec<RebuildResult>,
}

/// The columns of [`PufReport::one_share_map`].
pub(crate) const MAP_COLUMNS: usize = 64;
impl PufReport {
    /// Reads a directory of dumps (one device) or of subdirectories with dumps (one device each) and measures
    /// them. `progress` gets what is being done.
    ///
    /// # Errors
    /// [`ReadoutError`] if a dump cannot be read, with the file and the place in it.
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

    /// What enrolment would refuse, in words; empty if it would take all devices. Pairs of devices with the
    /// same PUF come first.
    pub fn refusals(&self) -> Vec<String> {
        let of_devices = self.devices.iter().filter_map(|device| {
            let refusal = device.refusal.as_ref()?;
            Some(format!("{}: {refusal}", device.name))
        });
        let same_pufs = self.same_pufs.iter().map(ToString::to_string);
        same_pufs.chain(of_devices).collect()
    }

    /// The figures as rows for a table.
    pub fn rows(&self) -> Vec<Row> {
        table::rows(self)
    }

    /// A picture for a terminal: the two distributions of Hamming distances.
    #[must_use]
    pub fn sketch(&self) -> String {
        sketch::sketch(self)
    }

    /// The picture as an SVG document.
    ///
    /// # Errors
    /// A message if drawing fails.
    pub fn svg(&self) -> Result<String, String> {
        picture::svg(self)
    }
}
