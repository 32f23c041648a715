//! Estimators of min-entropy per bit, after NIST SP 800-90B.

use crate::bits::Bits;

/// The 99.5 % quantile of the normal distribution, as SP 800-90B uses it.
const Z: f64 = 2.576;

/// The most common value estimate (SP 800-90B, 6.3.1): `-log2` of the upper confidence limit of the probability of
/// the more frequent value, for `ones` ones in `len` bits.
pub fn most_common_value(ones: usize, len: usize) -> f64 {
    if len < 2 {
        return 0.0;
    }
    let n = len as f64;
    let p = ones.max(len - ones.min(len)) as f64 / n;
    let limit = (p + Z * (p * (1.0 - p) / (n - 1.0)).sqrt()).min(1.0);
    -limit.log2()
}

/// The Markov estimate (SP 800-90B, 6.3.3) with bits `lag` positions apart taken as neighbours: min-entropy per bit of
/// the most likely 128-bit sequence of a first-order chain.
pub fn markov(bits: &Bits, lag: usize) -> f64 {
    let Some(pairs) = bits.len().checked_sub(lag).filter(|&pairs| pairs > 1 && lag > 0) else {
        return 0.0;
    };
    let (Some(from), Some(to)) = (bits.window(0, pairs), bits.window(lag, pairs)) else {
        return 0.0;
    };
    let both = from
        .words()
        .iter()
        .zip(to.words())
        .map(|(a, b)| (a & b).count_ones() as usize)
        .sum::<usize>();
    let (from_ones, to_ones) = (from.count_ones(), to.count_ones());
    let ratio = |count: usize, of: usize| if of == 0 { 0.0 } else { count as f64 / of as f64 };
    let one = ratio(bits.count_ones(), bits.len());
    let one_after_one = ratio(both, from_ones);
    let one_after_zero = ratio(to_ones - both, pairs - from_ones);
    most_likely_sequence(one, one_after_zero, one_after_one)
}

/// The six candidates of SP 800-90B, 6.3.3 for the most likely sequence of 128 bits.
fn most_likely_sequence(one: f64, one_after_zero: f64, one_after_one: f64) -> f64 {
    let (p0, p1) = ((1.0 - one).log2(), one.log2());
    let (p00, p01) = ((1.0 - one_after_zero).log2(), one_after_zero.log2());
    let (p10, p11) = ((1.0 - one_after_one).log2(), one_after_one.log2());
    // A zero count of a step that is not taken must not turn 0 times minus infinity into NaN.
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

/// The mean most common value estimate over the columns of a memory with `period` bits to a word.
///
/// `None` below 4,096 bits per column, where the confidence limits would say more about the sample's size than about
/// the memory.
pub fn by_column(bits: &Bits, period: usize) -> Option<f64> {
    let rows = bits.len() / period.max(1);
    if rows < 4096 {
        return None;
    }
    let mut ones = vec![0_usize; period];
    for (i, bit) in bits.iter().take(rows * period).enumerate() {
        if let Some(count) = ones.get_mut(i % period) {
            *count += usize::from(bit);
        }
    }
    let sum: f64 = ones.iter().map(|&count| most_common_value(count, rows)).sum();
    Some(sum / period as f64)
}

/// The mean min-entropy per position over several devices: `-log2 max(p_i, 1 - p_i)` with `p_i` the share of devices
/// that have a one at position `i` (most common value by bit, without confidence limits).
///
/// With few devices the largest share is overestimated, so this errs to the safe side: fair bits give 0.58 for 4
/// devices, 0.82 for 32, 0.93 for 256. `None` for fewer than two devices or lengths that differ.
pub fn across_devices(devices: &[Bits]) -> Option<f64> {
    let first = devices.first()?;
    if devices.len() < 2 || first.is_empty() || devices.iter().any(|d| d.len() != first.len()) {
        return None;
    }
    let count = devices.len();
    let position = |i: usize| {
        let ones = devices.iter().filter(|d| d.get(i)).count();
        -(ones.max(count - ones) as f64 / count as f64).log2()
    };
    Some((0..first.len()).map(position).sum::<f64>() / first.len() as f64)
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
        // SP 800-90B, 6.3.3: P0 = 0.475, P00 = 0.389, P01 = 0.611, P10 = 0.571, P11 = 0.429, min-entropy 0.761.
        let text = "1000111001010101110011000111001010101110";
        let bits = Bits::from_bools(text.chars().map(|c| c == '1'));
        assert_eq!(bits.count_ones(), 21);
        let h = markov(&bits, 1);
        assert!((h - 0.761).abs() < 1e-3, "{h}");
    }

    #[test]
    fn predictable_bits_have_no_entropy() {
        assert_eq!(markov(&Bits::zeros(1000), 1), 0.0);
        // Only the first bit of an alternating sequence is open.
        let alternating = Bits::from_bools((0..1000).map(|i| i % 2 == 0));
        assert!((markov(&alternating, 1) - 1.0 / 128.0).abs() < 1e-12);
        assert_eq!(most_common_value(0, 1000), 0.0);
        assert_eq!(most_common_value(0, 1), 0.0);
    }

    #[test]
    fn positions_that_all_devices_share_have_no_entropy() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let devices: Vec<Bits> = (0..256)
            .map(|_| Bits::from_bools((0..2000).map(|i| i % 2 == 0 || rng.random())))
            .collect();
        let h = across_devices(&devices).unwrap();
        assert!((h - 0.5 * 0.93).abs() < 0.01, "{h}");
        assert_eq!(across_devices(&devices[..1]), None);
    }
}
