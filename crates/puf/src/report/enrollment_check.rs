//! Checks what enrollment would report: for each device by enrolling it, for pairs of devices by comparing their
//! memories.

use std::fmt;

use rand::CryptoRng;
use serde::Serialize;

use crate::{
    bits::Bits,
    blocks::{self, BLOCK_BYTES, BadRange},
    extractor::{self, KeyEnrollment},
    health::HealthTest,
};

/// Maximum share of equal cells in a block of two memories without common content. Different chips agree in at most
/// 70 % of their cells, readouts of one chip in 90 % or more. In a block of 4,096 cells, this limit is 11 standard
/// deviations above 70 %.
const AGREEMENT_MAX: f64 = 0.78;

/// The findings about one device.
#[derive(Default)]
pub(super) struct EnrollmentCheck {
    pub(super) health_findings: Vec<String>,
    pub(super) bad_ranges: Vec<BadRange>,
    pub(super) enrollment_bits: Option<f64>,
    pub(super) refusal: Option<String>,
}

impl EnrollmentCheck {
    /// Enrolls the readouts like `device enroll`, and discards the secret.
    pub(super) fn enroll(&mut self, readouts: &[Bits], health: &HealthTest, rng: &mut dyn CryptoRng) {
        let options = KeyEnrollment {
            health: *health,
            ..KeyEnrollment::default()
        };
        match extractor::enroll(readouts, &options, rng) {
            Ok(enrolled) => self.enrollment_bits = Some(enrolled.entropy.residual_bits),
            Err(refusal) => self.refusal = Some(refusal.to_string()),
        }
    }

    /// Tests the part of the memory that begins at byte `start`.
    pub(super) fn add(&mut self, start: usize, readouts: &[Bits], reference: &Bits, health: &HealthTest) {
        let location = match start {
            0 => String::new(),
            start => format!("from byte 0x{start:x} on, "),
        };
        let single = readouts.iter().enumerate().filter_map(|(i, readout)| {
            let error = health.check(readout).err()?;
            Some(format!("{location}readout {}: {error}", i + 1))
        });
        self.health_findings.extend(single);
        let pairs = readouts.iter().zip(readouts.iter().skip(1)).enumerate();
        let pairs = pairs.filter_map(|(i, (a, b))| {
            let error = health.check_pair(a, b).err()?;
            Some(format!("{location}readouts {} and {}: {error}", i + 1, i + 2))
        });
        self.health_findings.extend(pairs);
        for bad in blocks::examine(readouts, reference, health).map_or(Vec::new(), |bad| bad.ranges) {
            let bad = BadRange {
                start: start + bad.start,
                end: start + bad.end,
                ..bad
            };
            match self.bad_ranges.last_mut() {
                Some(last) if last.end == bad.start && last.defect == bad.defect => last.end = bad.end,
                _ => self.bad_ranges.push(bad),
            }
        }
    }
}

/// Two devices with common memory content.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DuplicateDevices {
    /// The first device's name.
    pub first: String,
    /// The second device's name.
    pub second: String,
    /// The share of cells in which both devices agree.
    pub agreement: f64,
    /// Bytes of the blocks in which both devices agree more than by chance.
    pub common_bytes: usize,
    /// Offset of the first of these blocks.
    pub from_byte: usize,
}

impl fmt::Display for DuplicateDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} and {} agree in {:.1} % of their bits, and in {} bytes (from 0x{:x} on) by more than chance: the same chip, or \
             memory that is not power-up state; enrollment accepts only one of them",
            self.first,
            self.second,
            100.0 * self.agreement,
            self.common_bytes,
            self.from_byte
        )
    }
}

/// A pair of devices under comparison.
struct Pair {
    first: usize,
    second: usize,
    /// Number of differing cells.
    differing: usize,
    common_bytes: usize,
    from_byte: Option<usize>,
}

/// The comparison of all pairs of devices.
pub(super) struct Comparison {
    names: Vec<String>,
    pairs: Vec<Pair>,
    /// Number of compared cells per device.
    cells: usize,
}

impl Comparison {
    pub(super) fn new(names: Vec<String>) -> Self {
        let count = names.len();
        let pairs = (0..count).flat_map(|first| (first + 1..count).map(move |second| (first, second)));
        let pairs = pairs.map(|(first, second)| Pair {
            first,
            second,
            differing: 0,
            common_bytes: 0,
            from_byte: None,
        });
        Self {
            pairs: pairs.collect(),
            names,
            cells: 0,
        }
    }

    /// Adds one part of each memory. The parts have equal lengths and begin at byte `start`.
    pub(super) fn add(&mut self, start: usize, references: &[Bits]) {
        let len = references.first().map_or(0, Bits::len);
        self.cells += len;
        for pair in &mut self.pairs {
            let (Some(a), Some(b)) = (references.get(pair.first), references.get(pair.second)) else {
                continue;
            };
            for offset in (0..len).step_by(8 * BLOCK_BYTES) {
                let cells = (len - offset).min(8 * BLOCK_BYTES);
                let differing = differing(a, b, offset, cells);
                pair.differing += differing;
                // The last block may be too short for a conclusion.
                if 1.0 - differing as f64 / cells as f64 > AGREEMENT_MAX && 2 * cells >= 8 * BLOCK_BYTES {
                    pair.common_bytes += cells.div_ceil(8);
                    pair.from_byte.get_or_insert(start + offset / 8);
                }
            }
        }
    }

    /// The share of differing cells for each pair of devices.
    pub(super) fn distances(&self) -> Vec<f64> {
        let share = |pair: &Pair| pair.differing as f64 / self.cells.max(1) as f64;
        self.pairs.iter().map(share).collect()
    }

    pub(super) fn duplicate_devices(&self) -> Vec<DuplicateDevices> {
        let name = |index: usize| self.names.get(index).cloned().unwrap_or_default();
        let duplicate = |pair: &Pair| {
            Some(DuplicateDevices {
                from_byte: pair.from_byte?,
                first: name(pair.first),
                second: name(pair.second),
                agreement: 1.0 - pair.differing as f64 / self.cells.max(1) as f64,
                common_bytes: pair.common_bytes,
            })
        };
        self.pairs.iter().filter_map(duplicate).collect()
    }
}

/// The number of differing cells among `cells` cells from `start` on.
fn differing(a: &Bits, b: &Bits, start: usize, cells: usize) -> usize {
    let words = (0..cells).step_by(64).map(|offset| {
        let mask = u64::MAX >> (64 - (cells - offset).min(64));
        ((a.word_at(start + offset) ^ b.word_at(start + offset)) & mask).count_ones() as usize
    });
    words.sum()
}
