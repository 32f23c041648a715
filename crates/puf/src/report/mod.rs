//! A quality report over a directory of readouts: figures, a table, a picture.

mod picture;
mod rebuild;
mod sketch;
mod table;

pub use rebuild::{Rebuild, RebuildResult};
pub use table::Row;

use std::path::Path;

use serde::Serialize;

use crate::{
    bits::Bits,
    code::Profile,
    entropy::{
        self, CellDraw, EntropyAssessment,
        estimate::{self, CellSample},
    },
    health::HealthTest,
    metrics::{self, DeviceMetrics, Spread},
    readout::{ReadoutError, read_directory, subdirectories},
};

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
    /// The share of ones over the first device's memory, row by row of 64: rows are consecutive parts of the
    /// memory, columns the address modulo 64, so that stripes show.
    pub one_share_map: Vec<f64>,
    /// The rebuild trials.
    pub rebuilds: Vec<RebuildResult>,
}

/// The columns of [`PufReport::one_share_map`].
pub(crate) const MAP_COLUMNS: usize = 64;
/// The most rows of it.
const MAP_ROWS: usize = 32;

struct Device {
    name: String,
    readouts: Vec<Bits>,
    reference: Bits,
}

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
        let mut devices = Vec::with_capacity(paths.len());
        for path in &paths {
            progress(&format!("reading {}", path.display()));
            let readouts: Vec<Bits> = read_directory(path)?.into_iter().map(|dump| dump.bits).collect();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if let Some(reference) = Bits::majority(&readouts) {
                devices.push(Device {
                    name,
                    readouts,
                    reference,
                });
            }
        }
        progress("comparing devices");
        let mut report = Self::compare(&devices, options);
        for kind in Rebuild::ALL {
            progress(&format!("rebuilding: {kind}"));
            report.rebuilds.push(rebuild::run(
                kind,
                devices.iter().map(|d| d.readouts.as_slice()),
                options,
            ));
        }
        Ok(report)
    }

    fn compare(devices: &[Device], options: &ReportOptions) -> Self {
        let (references, windows_stand_in) = match devices {
            [only] => {
                let windows = windows(&only.reference, options.window_bits);
                let count = windows.len();
                (windows, Some(count))
            }
            several => (common_length(several), None),
        };
        let intra: Vec<f64> = devices.iter().flat_map(errors_against_first).collect();
        let first = devices.first();
        Self {
            devices: devices
                .iter()
                .filter_map(|device| device_report(device, options))
                .collect(),
            windows_stand_in,
            uniqueness: metrics::uniqueness(&references),
            bit_aliasing: Some(&references)
                .filter(|r| r.len() > 1)
                .and_then(|r| Spread::of(&metrics::one_shares(r))),
            min_entropy_across_devices: estimate::across_devices(&references),
            intra_distances: Histogram::of(&intra, 100),
            inter_distances: Histogram::of(&metrics::pairwise_distances(&references), 100),
            flip_probability_cdf: flip_cdf(devices),
            one_share_map: first.map(|d| one_share_map(&d.readouts)).unwrap_or_default(),
            rebuilds: Vec::new(),
        }
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

fn device_report(device: &Device, options: &ReportOptions) -> Option<DeviceReport> {
    let profile = Profile::KEY;
    let judge = || {
        let cells = CellSample::all(&device.reference);
        entropy::assess_cells(profile, &cells, CellDraw::InOrder(None), None)
    };
    Some(DeviceReport {
        name: device.name.clone(),
        metrics: metrics::device_metrics(&device.readouts)?,
        entropy: (device.reference.len() >= profile.response_bits()).then(judge),
        health_findings: health_findings(&device.readouts, &options.health),
    })
}

fn health_findings(readouts: &[Bits], health: &HealthTest) -> Vec<String> {
    let single = readouts.iter().enumerate().filter_map(|(i, readout)| {
        health
            .check(readout)
            .err()
            .map(|e| format!("readout {}: {e}", i + 1))
    });
    let pairs = readouts
        .iter()
        .zip(readouts.iter().skip(1))
        .enumerate()
        .filter_map(|(i, (a, b))| {
            health
                .check_pair(a, b)
                .err()
                .map(|e| format!("readouts {} and {}: {e}", i + 1, i + 2))
        });
    single.chain(pairs).collect()
}

fn windows(bits: &Bits, window_bits: usize) -> Vec<Bits> {
    let count = bits.len() / window_bits.max(1);
    (0..count)
        .filter_map(|i| bits.window(i * window_bits, window_bits))
        .collect()
}

/// The references cut to the shortest, so that devices with different dump sizes compare on the same
/// addresses.
fn common_length(devices: &[Device]) -> Vec<Bits> {
    let len = devices.iter().map(|d| d.reference.len()).min().unwrap_or(0);
    devices
        .iter()
        .filter_map(|d| d.reference.window(0, len))
        .collect()
}

fn errors_against_first(device: &Device) -> Vec<f64> {
    let Some((first, later)) = device.readouts.split_first() else {
        return Vec::new();
    };
    later
        .iter()
        .map(|r| r.distance(first) as f64 / first.len().max(1) as f64)
        .collect()
}

fn flip_cdf(devices: &[Device]) -> Vec<f64> {
    let several = devices.iter().filter(|d| d.readouts.len() > 1);
    let mut flips: Vec<f64> = several
        .flat_map(|d| metrics::one_shares(&d.readouts))
        .map(|p| p.min(1.0 - p))
        .collect();
    flips.sort_by(f64::total_cmp);
    if flips.is_empty() {
        return Vec::new();
    }
    let share = |limit: f64| flips.partition_point(|&p| p <= limit) as f64 / flips.len() as f64;
    (0..=100).map(|i| share(f64::from(i) / 200.0 + 1e-9)).collect()
}

/// Rows are consecutive parts of the memory, columns the address modulo 64 within them.
fn one_share_map(readouts: &[Bits]) -> Vec<f64> {
    let shares = metrics::one_shares(readouts);
    let lines = shares.len().div_ceil(MAP_COLUMNS);
    let part = lines.div_ceil(MAP_ROWS).max(1) * MAP_COLUMNS;
    let column = |cells: &[f64], column: usize| {
        let own = cells.iter().skip(column).step_by(MAP_COLUMNS);
        own.clone().sum::<f64>() / own.count().max(1) as f64
    };
    shares
        .chunks(part)
        .flat_map(|cells| (0..MAP_COLUMNS).map(move |c| column(cells, c)))
        .collect()
}
