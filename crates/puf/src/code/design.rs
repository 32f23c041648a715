//! Exact failure probabilities and the choice of parameters.

use serde::Serialize;

use super::{
    bch::ERRORS_MAX,
    binomial::upper_tail,
    profile::{BLOCKS_MAX, Profile, REPETITION_MAX},
};
use crate::entropy::leakage;

/// The probability that a rebuild fails, stage by stage, for independent bit errors.
///
/// `p` is the bit error rate. `r`, `n`, `t` and `B` are the profile's copies per code bit, code bits per block,
/// correctable errors per block, and blocks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Failure {
    /// A code bit is wrong after the vote: `q = P(Bin(r, p) > (r - 1) / 2)`.
    pub code_bit: f64,
    /// A block has more errors than its code corrects: `b = P(Bin(n, q) > t)`.
    pub block: f64,
    /// Any block fails: `1 - (1 - b)^B`.
    pub rebuild: f64,
}

impl Failure {
    pub(super) fn of(profile: Profile, bit_error_rate: f64) -> Self {
        let copies = profile.repetition() as u64;
        let code_bit = upper_tail(copies, bit_error_rate, copies / 2);
        let errors = profile.code().map_or(0, |code| code.t() as u64);
        let block = upper_tail(profile.block_bits() as u64, code_bit, errors);
        // Written so that a block probability of 1e-20 is not lost in 1 - (1 - b)^B.
        let rebuild = -(profile.blocks() as f64 * (-block).ln_1p()).exp_m1();
        Self {
            code_bit,
            block,
            rebuild,
        }
    }
}

/// Requirements for a profile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Design {
    /// The highest failure probability of a rebuild.
    pub failure: f64,
    /// The bit error rate at which `failure` must hold.
    pub bit_error_rate: f64,
    /// The highest bias at which `min_entropy_bits` must hold: the probability of the more frequent bit value.
    pub bias: f64,
    /// The min-entropy in bits that the secret must keep, given the helper data.
    pub min_entropy_bits: f64,
}

impl Design {
    /// Pool mode: failure at most 1e-6 at a bit error rate of 10 %, and 128 bits of min-entropy left if up to 54 % of
    /// the bits have one value.
    pub const POOL: Self = Self {
        failure: 1e-6,
        bit_error_rate: 0.10,
        bias: 0.54,
        min_entropy_bits: 128.0,
    };

    /// Key mode: failure at most 1e-9 at a bit error rate of 15 % (reported in the literature for chips far from
    /// their enrollment temperature), and 128 bits of min-entropy left if up to 55 % of the bits have one value.
    pub const KEY: Self = Self {
        failure: 1e-9,
        bit_error_rate: 0.15,
        bias: 0.55,
        min_entropy_bits: 128.0,
    };
}

/// Of the profiles that meet `design` with the fewest PUF bits, the profile with the lowest failure probability.
///
/// `None` if no supported profile meets `design`.
pub fn choose(design: &Design) -> Option<Profile> {
    let mut best: Option<(usize, f64, Profile)> = None;
    for candidate in candidates(design) {
        let size = candidate.response_bits();
        let failure = candidate.failure(design.bit_error_rate).rebuild;
        let is_better = best.is_none_or(|(s, f, _)| (size, failure) < (s, f));
        if failure <= design.failure && is_better {
            best = Some((size, failure, candidate));
        }
    }
    best.map(|(_, _, profile)| profile)
}

/// For each code and repetition, the profile with the fewest blocks that keep the required entropy.
fn candidates(design: &Design) -> impl Iterator<Item = Profile> {
    let Design {
        bias,
        min_entropy_bits,
        ..
    } = *design;
    let repetitions = (1..=REPETITION_MAX).step_by(2);
    let shapes = repetitions.flat_map(|r| {
        [7, 8]
            .into_iter()
            .flat_map(move |m| (1..=ERRORS_MAX as u32).map(move |t| (r, m, t)))
    });
    shapes.filter_map(move |(r, m, t)| {
        let one_block = Profile::new(m, t, r, 1).ok()?;
        let per_block = leakage::residual_min_entropy(one_block, bias);
        let blocks = (1..=BLOCKS_MAX).find(|&b| f64::from(b) * per_block >= min_entropy_bits)?;
        Profile::new(m, t, r, blocks).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_profiles_equal_their_designs() {
        assert_eq!(choose(&Design::POOL), Some(Profile::POOL));
        assert_eq!(choose(&Design::KEY), Some(Profile::KEY));
    }

    #[test]
    fn named_profiles_meet_the_promised_failure_rates() {
        for rate in [0.05, 0.10] {
            assert!(Profile::POOL.failure(rate).rebuild <= 1e-6, "pool at {rate}");
            assert!(Profile::KEY.failure(rate).rebuild <= 1e-9, "key at {rate}");
        }
        assert!(Profile::KEY.failure(0.15).rebuild <= 1e-9);
    }

    #[test]
    fn failure_matches_values_computed_with_exact_rationals() {
        let pool = Profile::new(8, 9, 7, 1).unwrap().failure(0.10).rebuild;
        assert!((pool / 3.333_919_233_404_95e-9 - 1.0).abs() < 1e-9, "{pool:e}");
        let key = Profile::new(8, 14, 9, 2).unwrap().failure(0.15).rebuild;
        assert!((key / 6.402_721_065_048_413e-11 - 1.0).abs() < 1e-9, "{key:e}");
    }

    #[test]
    fn impossible_designs_have_no_profile() {
        assert_eq!(
            choose(&Design {
                bit_error_rate: 0.45,
                ..Design::KEY
            }),
            None
        );
        assert_eq!(
            choose(&Design {
                bias: 0.9,
                ..Design::POOL
            }),
            None
        );
    }
}
