//! Calibration: from a target bit error rate to a model's noise parameter.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use super::chain_limits::check_chain;
use crate::puf::PufError;

/// The highest mean bit error rate that a model can be calibrated to.
const RATE_MAX: f64 = 0.45;

/// The probability that noise flips the response of one chain, over random chains and challenges.
///
/// The delay difference is normal with variance `stages + 1`, the noise with variance `stages · noisiness²`.
/// Two zero-mean normal variables with correlation `ρ` differ in sign with probability `arccos(ρ) / π`, which
/// is `arctan(σ_noise / σ_delay) / π` here.
pub fn chain_flip_probability(stages: usize, noisiness: f64) -> f64 {
    let n = stages as f64;
    (noisiness * (n / (n + 1.0)).sqrt()).atan() / PI
}

/// The noisiness at which a k-XOR-arbiter PUF has the given mean bit error rate, in closed form: the xor of
/// `k` independent flips of probability `p` is one with probability `(1 - (1 - 2p)^k) / 2` (piling-up lemma).
///
/// # Errors
/// [`PufError::BadParameter`] if the stages, the chains or the rate (0 … 0.45) are out of range.
pub fn noisiness_for_xor(stages: usize, chains: usize, bit_error_rate: f64) -> Result<f64, PufError> {
    check_chain(stages, chains, 0.0)?;
    check_rate(bit_error_rate)?;
    let p = (1.0 - (1.0 - 2.0 * bit_error_rate).powf(1.0 / chains as f64)) / 2.0;
    let n = stages as f64;
    Ok((PI * p).tan() * ((n + 1.0) / n).sqrt())
}

/// The noisiness at which an interpose PUF has the given mean bit error rate, by bisection.
///
/// # Errors
/// [`PufError::BadParameter`] if the stages, the chains or the rate (0 … 0.45) are out of range.
pub fn noisiness_for_interpose(
    stages: usize,
    up: usize,
    down: usize,
    bit_error_rate: f64,
) -> Result<f64, PufError> {
    check_chain(stages, up, 0.0)?;
    check_chain(stages + 1, down, 0.0)?;
    check_rate(bit_error_rate)?;
    Ok(bisect(0.0, 1e3, |x| {
        interpose_error_rate(stages, up, down, x) < bit_error_rate
    }))
}

/// The mean bit error rate of an interpose PUF.
///
/// A flip in the upper layer changes the sign of the features up to the middle stage. Let `A` (variance `a`) be the
/// part of a lower chain's delay from these features, and `B` (variance `b`) the other part. The flip changes `A + B`
/// to `-A + B + noise`. Both delays have the correlation `(b - a) / sqrt((a + b)(a + b + σ²))`, which gives the
/// probability that their signs differ.
fn interpose_error_rate(stages: usize, up: usize, down: usize, noisiness: f64) -> f64 {
    let upper = xor_of(chain_flip_probability(stages, noisiness), up);
    let n = (stages + 1) as f64;
    let a = (stages / 2 + 1) as f64;
    let b = n + 1.0 - a;
    let noise = n * noisiness * noisiness;
    let flip_after_upper_flip = ((b - a) / ((a + b) * (a + b + noise)).sqrt()).acos() / PI;
    let flip_otherwise = chain_flip_probability(stages + 1, noisiness);
    (1.0 - upper) * xor_of(flip_otherwise, down) + upper * xor_of(flip_after_upper_flip, down)
}

/// The probability that the xor of `count` independent bits is one, if each bit is one with probability `p`.
fn xor_of(p: f64, count: usize) -> f64 {
    (1.0 - (1.0 - 2.0 * p).powf(count as f64)) / 2.0
}

/// The mean and the standard deviation of the cells' skews `v`, for an SRAM with the given share of ones and mean bit
/// error rate against the more frequent value. The unit is the standard deviation of the noise.
///
/// A cell powers up as one if `v + noise > 0`, so its one-probability is `Φ(v)`. The noise is standard normal; the skew
/// `v` of a cell is fixed, and is normally distributed over the cells (Maes, An accurate probabilistic reliability
/// model for silicon PUFs, CHES 2013). The number of errors of a readout has a generalized binomial distribution
/// (arXiv 1406.6143).
///
/// # Errors
/// [`PufError::BadParameter`] if the share of ones is not in 0.05 … 0.95 or the rate not in 0 … 0.3.
pub fn sram_spread(ones: f64, bit_error_rate: f64) -> Result<(f64, f64), PufError> {
    if !(0.05..=0.95).contains(&ones) {
        return Err(out_of_range("share of ones", ones, "0.05 to 0.95"));
    }
    if !(0.0..=0.3).contains(&bit_error_rate) {
        return Err(out_of_range(
            "bit error rate",
            bit_error_rate,
            "0 to 0.3 for SRAM cells",
        ));
    }
    // Without noise, the spread is so large that no cell is undecided.
    if bit_error_rate == 0.0 {
        let spread = 1e12;
        return Ok((normal_quantile(ones) * spread, spread));
    }
    if ones == 0.5 {
        // E[Φ(-|v|)] = arctan(1 / spread) / π for mean 0.
        return Ok((0.0, 1.0 / (PI * bit_error_rate).tan()));
    }
    let mean_of = |spread: f64| normal_quantile(ones) * (1.0 + spread * spread).sqrt();
    let spread = bisect(1e-3, 1e6, |s| sram_error_rate(mean_of(s), s) > bit_error_rate);
    Ok((mean_of(spread), spread))
}

/// `E[Φ(-|v|)]` for `v` normal: the integrand is concentrated within ±9 noise units of zero, for any spread.
fn sram_error_rate(mean: f64, spread: f64) -> f64 {
    const STEPS: u32 = 1000;
    let step = 18.0 / f64::from(STEPS);
    let density = |v: f64| {
        let z = (v - mean) / spread;
        (-0.5 * z * z).exp() / (spread * (2.0 * PI).sqrt())
    };
    if spread < 0.05 {
        // The grid does not resolve a very narrow density: all cells have nearly the mean skew.
        return normal_cdf(-mean.abs());
    }
    (0..=STEPS)
        .map(|i| -9.0 + step * f64::from(i))
        .map(|v| density(v) * normal_cdf(-v.abs()) * step)
        .sum()
}

/// The standard normal distribution function.
pub(super) fn normal_cdf(x: f64) -> f64 {
    0.5 * erfc(-x * FRAC_1_SQRT_2)
}

/// The complementary error function by its Chebyshev fit (Numerical Recipes, 6.2: relative error below
/// 1.2e-7).
fn erfc(x: f64) -> f64 {
    const C: [f64; 10] = [
        -1.265_512_23,
        1.000_023_68,
        0.374_091_96,
        0.096_784_18,
        -0.186_288_06,
        0.278_868_07,
        -1.135_203_98,
        1.488_515_87,
        -0.822_152_23,
        0.170_872_77,
    ];
    let t = 1.0 / (1.0 + 0.5 * x.abs());
    let polynomial = C.iter().rev().fold(0.0, |sum, c| sum * t + c);
    let tail = t * (-x * x + polynomial).exp();
    if x >= 0.0 { tail } else { 2.0 - tail }
}

/// The inverse of [`normal_cdf`] for probabilities in 1e-12 … 1 - 1e-12.
fn normal_quantile(p: f64) -> f64 {
    bisect(-8.0, 8.0, |x| normal_cdf(x) < p)
}

/// The point of `low … high` where `below` turns from true to false.
fn bisect(mut low: f64, mut high: f64, below: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..64 {
        let middle = 0.5 * (low + high);
        if below(middle) {
            low = middle
        } else {
            high = middle
        }
    }
    0.5 * (low + high)
}

fn check_rate(rate: f64) -> Result<(), PufError> {
    if (0.0..=RATE_MAX).contains(&rate) {
        Ok(())
    } else {
        Err(out_of_range("bit error rate", rate, "0 to 0.45"))
    }
}

fn out_of_range(name: &'static str, value: f64, allowed: &'static str) -> PufError {
    PufError::BadParameter {
        name,
        value: value.to_string(),
        allowed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_functions_match_tables() {
        for (x, p) in [
            (0.0, 0.5),
            (1.0, 0.841_344_746),
            (-1.959_964, 0.025),
            (3.0, 0.998_650_102),
        ] {
            assert!((normal_cdf(x) - p).abs() < 2e-7, "Φ({x}) = {}", normal_cdf(x));
            assert!((normal_quantile(p) - x).abs() < 1e-5);
        }
    }

    #[test]
    fn unbiased_sram_has_the_closed_form_rate() {
        // For mean 0, E[Φ(-|v|)] = arctan(1 / spread) / π.
        for rate in [0.01, 0.05, 0.1, 0.2] {
            let (mean, spread) = sram_spread(0.5, rate).unwrap();
            assert!(mean.abs() < 1e-4 * spread, "mean {mean}");
            assert!(
                ((1.0 / spread).atan() / PI - rate).abs() < 1e-5,
                "rate {rate}: spread {spread}"
            );
        }
    }

    #[test]
    fn invalid_parameters_are_refused() {
        assert!(sram_spread(1.0, 0.05).is_err());
        assert!(sram_spread(0.5, f64::NAN).is_err());
        assert!(noisiness_for_xor(64, 4, 0.5).is_err());
        assert!(noisiness_for_interpose(64, 0, 4, 0.05).is_err());
    }
}
