//! Estimators of min-entropy per bit, after NIST SP 800-90B.

use crate::{bits::Bits, code::binomial::probability};

/// The 99.5 % quantile of the normal distribution, as SP 800-90B uses it.
const Z: f64 = 2.576;

/// The most common value estimate (SP 800-90B, 6.3.1): `-log2` of the upper confidence limit of the
/// probability of the more frequent value, for `ones` ones in `len` bits.
pub fn most_common_value(ones: usize, len: usize) -> f64 {
    if len < 2 {
        return 0.0;
    }
    let n = len as f64;
    let p = ones.max(len - ones.min(len)) as f64 / n;
    let limit = (p + Z * (p * (1.0 - p) / (n - 1.0)).sqrt()).min(1.0);
    -limit.log2()
}

/// Some cells of a memory: the mask of the cells and the values of the cells, both of the memory's length.
#[derive(Clone, Debug)]
pub struct CellSample {
    present: Bits,
    values: Bits,
}

impl CellSample {
    /// All cells of a readout.
    pub fn all(readout: &Bits) -> Self {
        let mut present = Bits::zeros(readout.len());
        present.change_words(|words| words.fill(u64::MAX));
        Self {
            present,
            values: readout.clone(),
        }
    }

    /// The cells with these indices in a readout.
    pub fn of_cells(readout: &Bits, cells: &[u32]) -> Self {
        let mut sample = Self {
            present: Bits::zeros(readout.len()),
            values: Bits::zeros(readout.len()),
        };
        for &cell in cells {
            sample.present.set(cell as usize, true);
            sample.values.set(cell as usize, readout.get(cell as usize));
        }
        sample
    }

    /// The number of cells.
    pub fn len(&self) -> usize {
        self.present.count_ones()
    }

    /// Whether there are no cells.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most common value estimate over the cells.
    pub fn most_common_value(&self) -> f64 {
        most_common_value(self.values.count_ones(), self.len())
    }

    /// The Markov estimate (SP 800-90B, 6.3.3) with cells `lag` addresses apart taken as neighbors: min-entropy per
    /// bit of the most likely 128-bit sequence of a first-order chain.
    ///
    /// `None` with fewer than 2,048 pairs of neighbors: then chance alone would look like a dependence.
    pub fn markov(&self, lag: usize) -> Option<f64> {
        let mut counts = [0_usize; 4];
        for i in 0..self.present.len().saturating_sub(lag).div_ceil(64) {
            let pairs_present = self.present.word_at(64 * i) & self.present.word_at(64 * i + lag);
            let (first, second) = (self.values.word_at(64 * i), self.values.word_at(64 * i + lag));
            let kinds = [!first & !second, !first & second, first & !second, first & second];
            for (count, kind) in counts.iter_mut().zip(kinds) {
                *count += (pairs_present & kind).count_ones() as usize;
            }
        }
        if counts.iter().sum::<usize>() < 2048 {
            return None;
        }
        Some(markov_of_counts(counts, self.values.count_ones(), self.len()))
    }

    /// Min-entropy per bit if the cells of a column have a common bias. A column is the set of all cells with equal
    /// addresses modulo `period`.
    ///
    /// The product of a column's biases in even and odd rows, averaged over the columns, is an unbiased estimate of the
    /// mean square bias `E[(2 p_c - 1)²]`. The result is `-log2 p` with `p = 1/2 + sqrt(c) / 2`, where `c` is the upper
    /// confidence limit of the estimate. The mean square is used because it determines the entropy of a bit that several
    /// cells carry. `None` if the width of the confidence interval alone makes `c > 0.004`, that is `p > 0.53`.
    pub fn columns(&self, period: usize) -> Option<f64> {
        let rows = self.len() as f64 / period as f64;
        let chance = Z * 2.0 / rows / (period as f64).sqrt();
        if chance > 0.004 {
            return None;
        }
        // Ones minus zeros, and the number of cells, in even and odd rows of each column.
        let mut columns = vec![[(0_i32, 0_i32); 2]; period];
        for (address, value) in self
            .values
            .iter()
            .enumerate()
            .filter(|(address, _)| self.present.get(*address))
        {
            let halves = columns.get_mut(address % period);
            if let Some((sum, cells)) = halves.and_then(|h| h.get_mut(address / period % 2)) {
                *sum += if value { 1 } else { -1 };
                *cells += 1;
            }
        }
        let products = columns.iter().filter_map(|[even, odd]| {
            let bias = |(sum, cells): (i32, i32)| (cells > 0).then(|| f64::from(sum) / f64::from(cells));
            Some(bias(*even)? * bias(*odd)?)
        });
        let (sum, count) = products.fold((0.0, 0), |(sum, count), product| (sum + product, count + 1));
        let square = (sum / f64::from(count.max(1)) + chance).clamp(0.0, 1.0);
        Some(-(0.5 + 0.5 * square.sqrt()).log2())
    }
}

/// The Markov estimate (SP 800-90B, 6.3.3) of a sequence, from the pairs of neighboring bits.
pub fn markov(bits: &Bits) -> f64 {
    let Some(pairs) = bits.len().checked_sub(1).filter(|&pairs| pairs > 1) else {
        return 0.0;
    };
    let mut counts = [0_usize; 4];
    for i in 0..pairs {
        let kind = 2 * usize::from(bits.get(i)) + usize::from(bits.get(i + 1));
        if let Some(count) = counts.get_mut(kind) {
            *count += 1;
        }
    }
    markov_of_counts(counts, bits.count_ones(), bits.len())
}

/// The Markov estimate from the counts of the steps 00, 01, 10, 11 and the share of ones.
fn markov_of_counts(counts: [usize; 4], ones: usize, len: usize) -> f64 {
    let ratio = |count: usize, total: usize| {
        if total == 0 {
            0.0
        } else {
            count as f64 / total as f64
        }
    };
    let [zero_zero, zero_one, one_zero, one_one] = counts;
    let one_after_zero = ratio(zero_one, zero_zero + zero_one);
    let one_after_one = ratio(one_one, one_zero + one_one);
    most_likely_sequence(ratio(ones, len), one_after_zero, one_after_one)
}

/// Min-entropy per bit of the most likely of the six candidate sequences of 128 bits in SP 800-90B, 6.3.3.
fn most_likely_sequence(one: f64, one_after_zero: f64, one_after_one: f64) -> f64 {
    let (p0, p1) = ((1.0 - one).log2(), one.log2());
    let (p00, p01) = ((1.0 - one_after_zero).log2(), one_after_zero.log2());
    let (p10, p11) = ((1.0 - one_after_one).log2(), one_after_one.log2());
    // A step with count 0 may have a log-probability of minus infinity; the product would be NaN.
    let steps = |count: f64, p: f64| if count == 0.0 { 0.0 } else { count * p };
    let candidates = [
        p0 + steps(127.0, p00),
        p0 + steps(64.0, p01) + steps(63.0, p10),
        p0 + steps(1.0, p01) + steps(126.0, p11),
        p1 + steps(1.0, p10) + steps(126.0, p00),
        p1 + steps(64.0, p10) + steps(63.0, p01),
        p1 + steps(127.0, p11),
    ];
    let best = candidates.into_iter().fold(f64::NEG_INFINITY, f64::max);
    (-best / 128.0).clamp(0.0, 1.0)
}

/// The mean min-entropy per position over several devices: `-log2 max(p_i, 1 - p_i)` with `p_i` the share of
/// devices that have a one at position `i` (most common value by bit, without confidence limits). Element `n` of
/// `histogram` is the number of positions with a one in exactly `n` of at least two devices.
///
/// With few devices the largest share is overestimated, so the result is too low: fair bits give 0.58 for 4 devices,
/// 0.82 for 32, 0.93 for 256.
pub fn by_position(histogram: &[u64]) -> f64 {
    let count = histogram.len().saturating_sub(1);
    let weighted_entropy = |(ones, positions): (usize, &u64)| {
        -(ones.max(count - ones) as f64 / count.max(1) as f64).log2() * *positions as f64
    };
    let positions = histogram.iter().sum::<u64>().max(1) as f64;
    histogram.iter().enumerate().map(weighted_entropy).sum::<f64>() / positions
}

/// The average of [`by_position`] for fair, independent bits of `devices` devices: the highest value that can be
/// expected.
pub fn by_position_of_fair_bits(devices: usize) -> f64 {
    let count = devices as u64;
    let term =
        |ones: u64| -probability(count, 0.5, ones) * (ones.max(count - ones) as f64 / count as f64).log2();
    (0..=count).map(term).sum()
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn most_common_value_is_the_upper_limit_of_the_larger_share() {
        // 12 of 20: p = 0.6, limit 0.6 + 2.576 sqrt(0.24 / 19) = 0.88951.
        for ones in [8, 12] {
            assert!(
                (most_common_value(ones, 20) - 0.168_92).abs() < 1e-4,
                "{}",
                most_common_value(ones, 20)
            );
        }
    }

    #[test]
    fn markov_matches_the_worked_example_of_the_standard() {
        // SP 800-90B, 6.3.3: P0 = 0.475, P00 = 0.389, P01 = 0.611, P10 = 0.571, P11 = 0.429, min-entropy
        // 0.761.
        let text = "1000111001010101110011000111001010101110";
        let bits = Bits::from_bools(text.chars().map(|c| c == '1'));
        assert_eq!(bits.count_ones(), 21);
        let h = markov(&bits);
        assert!((h - 0.761).abs() < 1e-3, "{h}");
    }

    #[test]
    fn predictable_bits_have_no_entropy() {
        assert_eq!(markov(&Bits::zeros(1000)), 0.0);
        // Only the first bit of an alternating sequence is unknown.
        let alternating = Bits::from_bools((0..1000).map(|i| i % 2 == 0));
        assert!((markov(&alternating) - 1.0 / 128.0).abs() < 1e-12);
        assert_eq!(most_common_value(0, 1000), 0.0);
        assert_eq!(most_common_value(0, 1), 0.0);
    }

    fn striped(period: usize, share: f64) -> Bits {
        let mut rng = ChaCha8Rng::seed_from_u64(4);
        let ones = |i: usize| [share, 1.0 - share][i / (period / 2) % 2];
        Bits::from_bools((0..262_144).map(|i| rng.random_bool(ones(i))))
    }

    #[test]
    fn column_bias_appears_at_its_period_and_the_multiples() {
        let expected = -0.6_f64.log2();
        let sample = CellSample::all(&striped(64, 0.6));
        for period in [64, 128, 512] {
            let h = sample.columns(period).unwrap();
            assert!(
                (h - expected).abs() < 0.02,
                "period {period}: {h} instead of {expected}"
            );
        }
        let fair = CellSample::all(&striped(64, 0.5));
        assert!(fair.columns(64).unwrap() > 0.97 && fair.columns(512).unwrap() > 0.95);
        let few: Vec<u32> = (0..4000).collect();
        assert_eq!(CellSample::of_cells(&striped(64, 0.6), &few).columns(64), None);
    }

    #[test]
    fn sparse_samples_use_the_given_cells_only() {
        // A cell whose index is divisible by 3 equals the cell 3 positions earlier in 4 of 5 cases; the other cells
        // are fair.
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let mut bits = Bits::zeros(60_000);
        for i in 0..60_000 {
            let copy = i % 3 == 0 && i > 0 && rng.random_bool(0.6);
            bits.set(i, if copy { bits.get(i - 3) } else { rng.random() });
        }
        let thirds: Vec<u32> = (0..60_000).step_by(3).collect();
        let sample = CellSample::of_cells(&bits, &thirds);
        assert_eq!(sample.len(), 20_000);
        assert_eq!(sample.markov(1), None);
        let h = sample.markov(3).unwrap();
        assert!((h - -0.8_f64.log2()).abs() < 0.02, "{h}");
        assert!(sample.most_common_value() > 0.95);
    }

    #[test]
    fn positions_that_all_devices_share_have_no_entropy() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let devices: Vec<Bits> = (0..256)
            .map(|_| Bits::from_bools((0..2000).map(|i| i % 2 == 0 || rng.random())))
            .collect();
        let h = by_position(&Bits::ones_histogram(&devices));
        assert!((h - 0.5 * 0.93).abs() < 0.01, "{h}");
        for (devices, reached) in [(2, 0.5), (3, 0.439), (4, 0.58), (32, 0.82), (256, 0.93)] {
            let ideal = by_position_of_fair_bits(devices);
            assert!((ideal - reached).abs() < 0.005, "{devices}: {ideal}");
        }
    }
}
