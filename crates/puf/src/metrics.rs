//! Quality metrics of PUFs.
//!
//! Definitions after Maiti, Gunreddy, Schaumont: A systematic method to evaluate and compare the performance
//! of physical unclonable functions (2013), with `n` bits, `m` readouts and `k` devices. All are shares
//! between 0 and 1.
//!
//! | metric | definition | ideal |
//! |---|---|---|
//! | uniformity | ones / n, of one readout | 0.5 |
//! | bit error rate | Hamming distance of a readout from a reference / n (intra-HD) | 0 |
//! | reliability | 1 - mean bit error rate against the first readout | 1 |
//! | uniqueness | Hamming distance between two devices' references / n (inter-HD), mean over all pairs | 0.5 |
//! | bit-aliasing | ones among the devices at one position / k | 0.5 |
//! | stable share | cells with the same value in all m readouts / n | 1 |

use serde::Serialize;

use crate::bits::Bits;

/// Mean and range of a set of values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub deviation: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
}

impl Spread {
    /// Mean and range of the values `0/n, 1/n, .., n/n`, given the count of each value; `None` without values.
    pub fn of_histogram(counts: &[u64]) -> Option<Self> {
        let total = counts.iter().sum::<u64>() as f64;
        let highest = counts.len().checked_sub(1).filter(|&n| n > 0)? as f64;
        let values = || {
            counts
                .iter()
                .enumerate()
                .map(|(i, &count)| (i as f64 / highest, count as f64))
        };
        let mean = values().map(|(value, count)| value * count).sum::<f64>() / total;
        let variance = values()
            .map(|(value, count)| (value - mean).powi(2) * count)
            .sum::<f64>()
            / total;
        let mut occurring = values().filter(|(_, count)| *count > 0.0).map(|(value, _)| value);
        let min = occurring.next()?;
        Some(Self {
            mean,
            deviation: variance.sqrt(),
            min,
            max: occurring.next_back().unwrap_or(min),
        })
    }

    /// Mean and range of `values`; `None` without values.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Self {
            mean,
            deviation: variance.sqrt(),
            min,
            max,
        })
    }
}

/// The metrics of one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceMetrics {
    /// Number of readouts.
    pub readouts: usize,
    /// Bits of each readout.
    pub bits: usize,
    /// Uniformity over the readouts.
    pub uniformity: Spread,
    /// Bit error rate of each readout against the majority of all readouts.
    pub error_vs_majority: Spread,
    /// Bit error rate of the later readouts against the first; `None` with one readout.
    pub error_vs_first: Option<Spread>,
    /// 1 - mean bit error rate against the first readout; `None` with one readout.
    pub reliability: Option<f64>,
    /// The share of cells that never change.
    pub stable_share: f64,
}

/// The measurement of a device whose memory is read in parts.
#[derive(Clone, Debug, Default)]
pub struct DeviceTally {
    bits: usize,
    /// Number of ones of each readout.
    ones: Vec<usize>,
    /// Number of bits of each readout that differ from the majority.
    from_majority: Vec<usize>,
    /// Number of bits of each readout that differ from the first readout.
    from_first: Vec<usize>,
    /// Element `n` is the number of cells that are one in exactly `n` readouts.
    histogram: Vec<u64>,
}

impl DeviceTally {
    /// Adds a part of all readouts, which have equal length, and their majority.
    pub fn add(&mut self, readouts: &[Bits], majority: &Bits) {
        let Some(first) = readouts.first() else { return };
        self.bits += first.len();
        add(&mut self.ones, readouts.iter().map(Bits::count_ones));
        add(
            &mut self.from_majority,
            readouts.iter().map(|r| r.distance(majority)),
        );
        add(&mut self.from_first, readouts.iter().map(|r| r.distance(first)));
        self.histogram.resize(readouts.len() + 1, 0);
        for (sum, count) in self.histogram.iter_mut().zip(Bits::ones_histogram(readouts)) {
            *sum += count;
        }
    }

    /// Element `n` is the number of cells that are one in exactly `n` readouts.
    pub fn histogram(&self) -> &[u64] {
        &self.histogram
    }

    /// The bit error rates of the later readouts against the first.
    pub fn errors_against_first(&self) -> Vec<f64> {
        let later = self.from_first.iter().skip(1);
        later.map(|&count| self.share(count)).collect()
    }

    fn share(&self, count: usize) -> f64 {
        count as f64 / self.bits.max(1) as f64
    }

    /// The metrics; `None` without readouts.
    pub fn metrics(&self) -> Option<DeviceMetrics> {
        let spread = |counts: &[usize]| {
            let shares: Vec<f64> = counts.iter().map(|&count| self.share(count)).collect();
            Spread::of(&shares)
        };
        let error_vs_first = Spread::of(&self.errors_against_first());
        let constant_cells = self.histogram.first().into_iter().chain(self.histogram.last());
        Some(DeviceMetrics {
            readouts: self.ones.len(),
            bits: self.bits,
            uniformity: spread(&self.ones)?,
            error_vs_majority: spread(&self.from_majority)?,
            error_vs_first,
            reliability: error_vs_first.map(|error| 1.0 - error.mean),
            stable_share: constant_cells.sum::<u64>() as f64 / self.bits.max(1) as f64,
        })
    }
}

fn add(sums: &mut Vec<usize>, counts: impl ExactSizeIterator<Item = usize>) {
    sums.resize(counts.len(), 0);
    for (sum, count) in sums.iter_mut().zip(counts) {
        *sum += count;
    }
}

/// The fractional Hamming distances of all pairs of references (inter-HD).
pub fn pairwise_distances(references: &[Bits]) -> Vec<f64> {
    let mut distances = Vec::with_capacity(references.len() * references.len().saturating_sub(1) / 2);
    for (i, a) in references.iter().enumerate() {
        let len = a.len().max(1) as f64;
        distances.extend(references.iter().skip(i + 1).map(|b| a.distance(b) as f64 / len));
    }
    distances
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(text: &str) -> Bits {
        Bits::from_bools(text.chars().map(|c| c == '1'))
    }

    #[test]
    fn metrics_equal_values_computed_by_hand() {
        let readouts = [bits("11001010"), bits("11001011"), bits("01001010")];
        let majority = Bits::majority(&readouts).unwrap();
        let mut tally = DeviceTally::default();
        // In two parts, as a memory is read.
        for (offset, len) in [(0, 3), (3, 5)] {
            let part = |bits: &Bits| bits.window(offset, len).unwrap();
            tally.add(&readouts.each_ref().map(part), &part(&majority));
        }
        let metrics = tally.metrics().unwrap();
        assert_eq!(metrics.uniformity.mean, (4.0 + 5.0 + 3.0) / 24.0);
        assert_eq!(metrics.error_vs_majority.mean, (0.0 + 1.0 + 1.0) / 24.0);
        assert_eq!(metrics.error_vs_first.unwrap().mean, 1.0 / 8.0);
        assert_eq!(metrics.reliability, Some(7.0 / 8.0));
        assert_eq!(metrics.stable_share, 6.0 / 8.0);
        let aliasing = Spread::of_histogram(&Bits::ones_histogram(&readouts)).unwrap();
        assert!((aliasing.mean - 12.0 / 24.0).abs() < 1e-12 && (aliasing.min, aliasing.max) == (0.0, 1.0));
        let distances = pairwise_distances(&readouts);
        assert_eq!(distances, [1.0 / 8.0, 1.0 / 8.0, 2.0 / 8.0]);
    }

    #[test]
    fn degenerate_sets_have_no_metrics() {
        let mut tally = DeviceTally::default();
        assert_eq!(tally.metrics(), None);
        tally.add(&[bits("10")], &bits("10"));
        assert_eq!(tally.metrics().unwrap().error_vs_first, None);
        assert!(pairwise_distances(&[bits("10")]).is_empty());
        assert_eq!(Spread::of(&[]), None);
    }
}
