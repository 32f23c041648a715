//! How much min-entropy the secret keeps, given everything public.
//!
//! [`estimate`] puts a number on the response bits, [`leakage`] on what the helper data give away, and [`assess`] joins
//! the two. Enrolment refuses a secret with less than [`MIN_ENTROPY_BITS`] left (LAP/1 1.1).
//!
//! **Scope.** The figures treat bits as independent apart from what the estimators see. They cannot see that a
//! strong PUF has few parameters: an XOR arbiter PUF is fixed by some hundred real numbers, so against an unbounded
//! attacker who has the helper data of many rows its responses hold no more entropy than those. There the secret is
//! protected because raw responses are never shown and learning from parities of responses is hard, not by counting.

pub mod estimate;
pub mod leakage;

use serde::Serialize;

use crate::{bits::Bits, code::Profile};

/// The least min-entropy of the secret, given the helper data, that enrolment accepts (LAP/1 1.1).
pub const MIN_ENTROPY_BITS: f64 = 128.0;

/// The distances at which cells of a memory are checked for dependence: neighbours, and the bits of bytes and words.
const CELL_LAGS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// The result of an entropy estimate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EntropyAssessment {
    /// Min-entropy per response bit, the least that any estimator gave.
    pub per_bit: f64,
    /// The estimator that gave it.
    pub limited_by: String,
    /// Response bits behind one secret.
    pub response_bits: usize,
    /// Secret bits, `B k`.
    pub secret_bits: usize,
    /// Min-entropy of the secret given the helper data, in bits.
    pub residual_bits: f64,
}

impl EntropyAssessment {
    /// Whether enrolment accepts it.
    pub fn is_enough(&self) -> bool {
        self.residual_bits >= MIN_ENTROPY_BITS
    }

    /// Joins the estimates for one profile.
    fn of(profile: Profile, estimates: impl IntoIterator<Item = (String, f64)>) -> Self {
        let none = ("nothing: no bits to judge".to_owned(), 0.0);
        let (limited_by, per_bit) = estimates
            .into_iter()
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .unwrap_or(none);
        Self {
            per_bit,
            limited_by,
            response_bits: profile.response_bits(),
            secret_bits: profile.secret_bits().unwrap_or(0),
            // The leakage formulas want a bias; 2^-h is the one that has this min-entropy.
            residual_bits: leakage::residual_min_entropy(profile, (-per_bit).exp2()),
        }
    }
}

/// Judges the responses of a strong PUF: bits to unrelated challenges, `sample` being as many as there are.
///
/// `fleet_per_bit` is a min-entropy per bit known from other devices, such as
/// [`estimate::across_devices`] gives; the lower figure counts.
pub fn assess_responses(profile: Profile, sample: &Bits, fleet_per_bit: Option<f64>) -> EntropyAssessment {
    EntropyAssessment::of(
        profile,
        sequence_estimates(sample, "responses").chain(fleet(fleet_per_bit)),
    )
}

/// Judges the cells of a memory: the whole readout, for dependence between cells and bias by column, and the cells
/// that the secret uses.
pub fn assess_cells(
    profile: Profile,
    readout: &Bits,
    used: &Bits,
    fleet_per_bit: Option<f64>,
) -> EntropyAssessment {
    let lags = CELL_LAGS.iter().filter(|&&lag| readout.len() >= 1024 * lag);
    let dependence = lags.map(|&lag| {
        (
            format!("dependence of cells {lag} apart"),
            estimate::markov(readout, lag),
        )
    });
    let columns = estimate::by_column(readout, 32).map(|h| ("bias of the 32 columns".to_owned(), h));
    let estimates = sequence_estimates(used, "cells in use")
        .chain(dependence)
        .chain(columns);
    EntropyAssessment::of(profile, estimates.chain(fleet(fleet_per_bit)))
}

fn sequence_estimates(bits: &Bits, what: &'static str) -> impl Iterator<Item = (String, f64)> {
    let bias = (
        format!("bias of the {what}"),
        estimate::most_common_value(bits.count_ones(), bits.len()),
    );
    let order = (
        format!("dependence of neighbouring {what}"),
        estimate::markov(bits, 1),
    );
    [bias, order].into_iter()
}

fn fleet(per_bit: Option<f64>) -> impl Iterator<Item = (String, f64)> {
    per_bit
        .map(|h| ("bias by position across the fleet".to_owned(), h))
        .into_iter()
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn biased(p: f64, len: usize) -> Bits {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        Bits::from_bools((0..len).map(|_| rng.random_bool(p)))
    }

    #[test]
    fn fair_bits_pass_and_biased_ones_are_refused() {
        for (p, accepted) in [(0.5, true), (0.45, false), (0.7, false), (0.3, false)] {
            let pool = assess_responses(Profile::POOL, &biased(p, 16_384), None);
            assert_eq!(pool.is_enough(), accepted, "{p}: {pool:?}");
        }
        for (p, accepted) in [(0.5, true), (0.7, false)] {
            let cells = biased(p, 65_536);
            let key = assess_cells(Profile::KEY, &cells, &cells.window(0, 4590).unwrap(), None);
            assert_eq!(key.is_enough(), accepted, "{p}: {key:?}");
        }
    }

    #[test]
    fn dependence_and_columns_count_although_the_bits_are_balanced() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let mut last = false;
        let sticky = Bits::from_bools((0..65_536).map(|_| {
            last ^= rng.random_bool(0.2);
            last
        }));
        let dependent = assess_cells(Profile::KEY, &sticky, &sticky.window(0, 4590).unwrap(), None);
        assert!(
            !dependent.is_enough() && dependent.limited_by.contains("dependence"),
            "{dependent:?}"
        );

        let striped =
            Bits::from_bools((0..262_144).map(|i| rng.random_bool(if i / 8 % 2 == 0 { 0.75 } else { 0.25 })));
        let by_column = assess_cells(Profile::KEY, &striped, &biased(0.5, 4590), None);
        assert!(!by_column.is_enough(), "{by_column:?}");
    }

    #[test]
    fn evidence_from_the_fleet_lowers_the_figure() {
        let sample = biased(0.5, 16_384);
        let alone = assess_responses(Profile::POOL, &sample, Some(1.0));
        let limited = assess_responses(Profile::POOL, &sample, Some(0.6));
        assert!(alone.is_enough() && !limited.is_enough());
        assert_eq!(limited.per_bit, 0.6);
    }
}
