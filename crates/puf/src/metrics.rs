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
    /// `None` for no values.
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
    /// Readouts.
    pub readouts: usize,
    /// Bits of each readout.
    pub bits: usize,
    /// Uniformity over the readouts.
    pub uniformity: Spread,
    /// Bit error rate of each readout against the majority of all.
    pub error_vs_majority: Spread,
    /// Bit error rate of the later readouts against the first; `None` with one readout.
    pub error_vs_first: Option<Spread>,
    /// 1 - mean bit error rate against the first readout; `None` with one readout.
    pub reliability: Option<f64>,
    /// The share of cells that never change.
    pub stable_share: f64,
}

/// Measures one device; `None` without readouts or with lengths that differ.
pub fn device_metrics(readouts: &[Bits]) -> Option<DeviceMetrics> {
    let (first, later) = readouts.split_first()?;
    let majority = Bits::majority(readouts)?;
    let bits = first.len();
    let share = |count: usize| count as f64 / bits.max(1) as f64;
    let uniformity: Vec<f64> = readouts.iter().map(|r| share(r.count_ones())).collect();
    let from_majority: Vec<f64> = readouts.iter().map(|r| share(r.distance(&majority))).collect();
    let from_first: Vec<f64> = later.iter().map(|r| share(r.distance(first))).collect();
    let error_vs_first = Spread::of(&from_first);
    Some(DeviceMetrics {
        readouts: readouts.len(),
        bits,
        uniformity: Spread::of(&uniformity)?,
        error_vs_majority: Spread::of(&from_majority)?,
        error_vs_first,
        reliability: error_vs_first.map(|error| 1.0 - error.mean),
        stable_share: share(stable_cells(readouts)),
    })
}

/// The number of cells that have the same value in all readouts.
fn stable_cells(readouts: &[Bits]) -> usize {
    let Some((first, later)) = readouts.split_first() else {
        return 0;
    };
    let mut changed = Bits::zeros(first.len());
    for readout in later {
        changed.change_words(|words| {
            for (word, (a, b)) in words.iter_mut().zip(first.words().iter().zip(readout.words())) {
                *word |= a ^ b;
            }
        });
    }
    first.len() - changed.count_ones()
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

/// Mean inter-HD with its range; `None` for fewer than two devices.
pub fn uniqueness(references: &[Bits]) -> Option<Spread> {
    Spread::of(&pairwise_distances(references))
}

/// The share of ones at each position: over devices, bit-aliasing; over the readouts of one device, its
/// cells' one-probabilities.
pub fn one_shares(strings: &[Bits]) -> Vec<f64> {
    let len = strings.first().map_or(0, Bits::len);
    let mut ones = vec![0_u32; len];
    for string in strings {
        for (count, bit) in ones.iter_mut().zip(string.iter()) {
            *count += u32::from(bit);
        }
    }
    ones.into_iter()
        .map(|count| f64::from(count) / strings.len() as f64)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(text: &str) -> Bits {
        Bits::from_bools(text.chars().map(|c| c == '1'))
    }

    #[test]
    fn metrics_by_hand() {
        let readouts = [bits("11001010"), bits("11001011"), bits("01001010")];
        let metrics = device_metrics(&readouts).unwrap();
        assert_eq!(metrics.uniformity.mean, (4.0 + 5.0 + 3.0) / 24.0);
        assert_eq!(metrics.error_vs_majority.mean, (0.0 + 1.0 + 1.0) / 24.0);
        assert_eq!(metrics.error_vs_first.unwrap().mean, 1.0 / 8.0);
        assert_eq!(metrics.reliability, Some(7.0 / 8.0));
        assert_eq!(metrics.stable_share, 6.0 / 8.0);
        assert_eq!(one_shares(&readouts)[0], 2.0 / 3.0);
        let distances = pairwise_distances(&readouts);
        assert_eq!(distances, [1.0 / 8.0, 1.0 / 8.0, 2.0 / 8.0]);
        assert_eq!(uniqueness(&readouts).unwrap().max, 0.25);
    }

    #[test]
    fn degenerate_sets_have_no_metrics() {
        assert_eq!(device_metrics(&[]), None);
        assert_eq!(device_metrics(&[bits("1"), bits("10")]), None);
        assert_eq!(device_metrics(&[bits("10")]).unwrap().error_vs_first, None);
        assert_eq!(uniqueness(&[bits("10")]), None);
        assert_eq!(Spread::of(&[]), None);
    }
}
