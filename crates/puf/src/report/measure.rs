//! Measures devices, segment by segment.

use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;

use super::enrollment_check::{Comparison, EnrollmentCheck};
use super::rebuild::{TrialKind, Trials};
use super::{DeviceReport, Histogram, MAP_COLUMNS, PufReport, ReportOptions};
use crate::{
    bits::Bits,
    code::Profile,
    entropy::{
        self, CellDraw, EntropyAssessment,
        estimate::{self, CellSample},
    },
    metrics::{self, DeviceTally, Spread},
    readout::{DumpSet, ReadoutError, SPAN_BYTES_MAX},
};

/// The most rows of the map.
const MAP_ROWS: usize = 32;
/// Maximum number of windows of one chip that substitute devices; all pairs of windows are compared.
const WINDOWS_MAX: usize = 512;

/// A device under measurement.
struct Device {
    name: String,
    dumps: DumpSet,
    tally: DeviceTally,
    check: EnrollmentCheck,
    entropy: Option<EntropyAssessment>,
}

/// The measurement of all devices so far.
pub(super) struct Measurement<'a> {
    options: &'a ReportOptions,
    devices: Vec<Device>,
    comparison: Comparison,
    /// Element `n` is the number of positions at which exactly `n` devices have a one.
    aliasing: Vec<u64>,
    /// Windows of the only device, which substitute devices.
    windows: Option<Vec<Bits>>,
    map: Vec<f64>,
    trials: Vec<Trials>,
}

impl<'a> Measurement<'a> {
    pub(super) fn run(
        sets: Vec<(String, DumpSet)>,
        options: &'a ReportOptions,
        progress: &dyn Fn(&str),
    ) -> Result<PufReport, ReadoutError> {
        let names = sets.iter().map(|(name, _)| name.clone());
        let mut measurement = Self {
            options,
            comparison: Comparison::new(names.collect()),
            devices: sets
                .into_iter()
                .map(|(name, dumps)| Device::new(name, dumps))
                .collect(),
            aliasing: Vec::new(),
            windows: None,
            map: Vec::new(),
            trials: TrialKind::ALL.map(|kind| Trials::new(kind, options)).into(),
        };
        let mut segment = 0;
        while measurement.add_segment(segment, progress)? {
            segment += 1;
        }
        Ok(measurement.report())
    }

    /// Adds a segment of each memory. Returns `false` if no memory has this segment.
    fn add_segment(&mut self, segment: usize, progress: &dyn Fn(&str)) -> Result<bool, ReadoutError> {
        let mut references = Vec::with_capacity(self.devices.len());
        for device in &mut self.devices {
            progress(&format!("reading {}, MiB {}", device.name, segment + 1));
            let dumps = device.dumps.next(SPAN_BYTES_MAX)?;
            let readouts: Vec<Bits> = dumps.into_iter().map(|dump| dump.bits).collect();
            let Some(reference) = Bits::majority(&readouts) else {
                continue;
            };
            device.add(segment, &readouts, &reference, self.options);
            if self.map.is_empty() {
                self.map = ones_map(&readouts);
            }
            for trials in &mut self.trials {
                progress(&format!("rebuilding {}: {}", device.name, trials.kind()));
                trials.add(segment, &readouts);
            }
            references.push(reference);
        }
        let is_done = references.is_empty();
        self.compare(segment, references);
        Ok(!is_done)
    }

    fn compare(&mut self, segment: usize, references: Vec<Bits>) {
        if let ([_], [reference], 0) = (self.devices.as_slice(), references.as_slice(), segment) {
            let windows = windows(reference, self.options.window_bits);
            self.aliasing = Bits::ones_histogram(&windows);
            self.windows = Some(windows);
        }
        // After the end of the shortest memory, nothing is compared.
        if self.devices.len() < 2 || references.len() < self.devices.len() {
            return;
        }
        let len = references.iter().map(Bits::len).min().unwrap_or(0);
        let common: Vec<Bits> = references.iter().filter_map(|r| r.window(0, len)).collect();
        self.comparison.add(segment * SPAN_BYTES_MAX, &common);
        self.aliasing.resize(common.len() + 1, 0);
        for (sum, count) in self.aliasing.iter_mut().zip(Bits::ones_histogram(&common)) {
            *sum += count;
        }
    }

    fn report(self) -> PufReport {
        let distances = match &self.windows {
            Some(windows) => metrics::pairwise_distances(windows),
            None => self.comparison.distances(),
        };
        let compared = self.windows.as_ref().map_or(self.devices.len(), Vec::len);
        let aliasing = Some(&self.aliasing).filter(|_| compared > 1 && !self.aliasing.is_empty());
        let intra: Vec<f64> = self
            .devices
            .iter()
            .flat_map(|device| device.tally.errors_against_first())
            .collect();
        PufReport {
            substitute_windows: self.windows.as_ref().map(Vec::len),
            uniqueness: Spread::of(&distances),
            bit_aliasing: aliasing.and_then(|histogram| Spread::of_histogram(histogram)),
            min_entropy_across_devices: aliasing.map(|histogram| estimate::by_position(histogram)),
            intra_distances: Histogram::of(&intra, 100),
            inter_distances: Histogram::of(&distances, 100),
            flip_probability_cdf: flip_cdf(self.devices.iter().map(|device| device.tally.histogram())),
            ones_map: self.map,
            rebuilds: self.trials.into_iter().map(Trials::result).collect(),
            duplicate_devices: self.comparison.duplicate_devices(),
            devices: self.devices.into_iter().filter_map(Device::report).collect(),
        }
    }
}

impl Device {
    fn new(name: String, dumps: DumpSet) -> Self {
        Self {
            name,
            dumps,
            tally: DeviceTally::default(),
            check: EnrollmentCheck::default(),
            entropy: None,
        }
    }

    fn add(&mut self, segment: usize, readouts: &[Bits], reference: &Bits, options: &ReportOptions) {
        self.tally.add(readouts, reference);
        self.check
            .add(segment * SPAN_BYTES_MAX, readouts, reference, &options.health);
        if segment > 0 {
            return;
        }
        // Enrollment uses only the first segment.
        let mut rng = ChaCha20Rng::seed_from_u64(options.seed);
        self.check.enroll(readouts, &options.health, &mut rng);
        if reference.len() >= Profile::KEY.response_bits() {
            let cells = CellSample::all(reference);
            self.entropy = Some(entropy::assess_cells(
                Profile::KEY,
                &cells,
                CellDraw::InOrder(None),
                None,
            ));
        }
    }

    fn report(self) -> Option<DeviceReport> {
        Some(DeviceReport {
            metrics: self.tally.metrics()?,
            name: self.name,
            entropy: self.entropy,
            health_findings: self.check.health_findings,
            bad_ranges: self.check.bad_ranges,
            enrollment_bits: self.check.enrollment_bits,
            refusal: self.check.refusal,
        })
    }
}

fn windows(bits: &Bits, window_bits: usize) -> Vec<Bits> {
    let count = (bits.len() / window_bits.max(1)).min(WINDOWS_MAX);
    (0..count)
        .filter_map(|i| bits.window(i * window_bits, window_bits))
        .collect()
}

/// For devices that were read more than once: the cumulative share of cells by flip probability.
fn flip_cdf<'a>(histograms: impl Iterator<Item = &'a [u64]>) -> Vec<f64> {
    let mut flips: Vec<(f64, u64)> = Vec::new();
    for histogram in histograms.filter(|histogram| histogram.len() > 2) {
        let readouts = histogram.len() - 1;
        let cells = histogram.iter().enumerate();
        flips.extend(cells.map(|(ones, cells)| (ones.min(readouts - ones) as f64 / readouts as f64, *cells)));
    }
    let total_cells: u64 = flips.iter().map(|(_, cells)| cells).sum();
    if total_cells == 0 {
        return Vec::new();
    }
    let share = |limit: f64| {
        let below = flips.iter().filter(|(flips, _)| *flips <= limit);
        below.map(|(_, cells)| *cells as f64).sum::<f64>() / total_cells as f64
    };
    (0..=100).map(|i| share(f64::from(i) / 200.0 + 1e-9)).collect()
}

/// The share of ones: rows are consecutive parts of the memory, columns are the addresses modulo 64.
fn ones_map(readouts: &[Bits]) -> Vec<f64> {
    let len = readouts.first().map_or(0, Bits::len);
    let lines = len.div_ceil(MAP_COLUMNS);
    let part = lines.div_ceil(MAP_ROWS).max(1);
    let mut map = Vec::new();
    for first in (0..lines).step_by(part) {
        let part_lines = first..(first + part).min(lines);
        let mut ones = [0_u64; MAP_COLUMNS];
        for line in part_lines.clone() {
            for word in readouts.iter().map(|readout| readout.word_at(line * MAP_COLUMNS)) {
                for (column, ones) in ones.iter_mut().enumerate() {
                    *ones += word >> column & 1;
                }
            }
        }
        let cells = (part_lines.len() * readouts.len()).max(1) as f64;
        map.extend(ones.iter().map(|&ones| ones as f64 / cells));
    }
    map
}
