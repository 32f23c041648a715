//! Min-entropy of the secret, given everything public.
//!
//! [`estimate`] estimates the min-entropy of the response bits, [`leakage`] the loss to the helper data, and
//! [`assess_responses`] and [`assess_cells`] combine both. Enrollment refuses a secret with less than
//! [`MIN_ENTROPY_BITS`] (LAP/1 1.1).
//!
//! **Scope.** The figures treat bits as independent except for dependences that the estimators detect. The
//! estimators cannot detect that a strong PUF has few parameters: an XOR arbiter PUF is determined by a few
//! hundred real numbers, so against an unbounded attacker with the helper data of many rows the responses have
//! no more entropy than these numbers.
//! For such a PUF, the secret is safe because raw responses are never revealed and learning from parities of
//! responses is hard, not because of these figures.

pub mod estimate;
pub mod leakage;

use std::collections::HashSet;

use estimate::CellSample;
use serde::Serialize;

use crate::{bits::Bits, code::Profile};

/// The least min-entropy of the secret, given the helper data, that enrollment accepts (LAP/1 1.1).
pub const MIN_ENTROPY_BITS: f64 = 128.0;

/// The distances at which cells of a memory are checked for dependence, and the periods for bias by column:
/// neighbors, words, and memory rows.
const CELL_LAGS: [usize; 13] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

/// The result of an entropy estimate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EntropyAssessment {
    /// Min-entropy per response bit: the lowest estimate.
    pub per_bit: f64,
    /// The estimator with the lowest estimate.
    pub limited_by: String,
    /// Response bits behind one secret.
    pub response_bits: usize,
    /// Secret bits, `B k`.
    pub secret_bits: usize,
    /// Min-entropy of the secret given the helper data, in bits.
    pub residual_bits: f64,
}

impl EntropyAssessment {
    /// Whether the secret has at least [`MIN_ENTROPY_BITS`].
    pub fn is_enough(&self) -> bool {
        self.residual_bits >= MIN_ENTROPY_BITS
    }

    /// Combines the estimates for one profile.
    fn of(profile: Profile, estimates: impl IntoIterator<Item = (String, f64)>) -> Self {
        let no_estimate = ("nothing: no bits to assess".to_owned(), 0.0);
        let (limited_by, per_bit) = estimates
            .into_iter()
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .unwrap_or(no_estimate);
        Self {
            per_bit,
            limited_by,
            response_bits: profile.response_bits(),
            secret_bits: profile.secret_bits().unwrap_or(0),
            // The leakage formulas need a bias; 2^-h is the bias with min-entropy h.
            residual_bits: leakage::residual_min_entropy(profile, (-per_bit).exp2()),
        }
    }
}

/// Assesses the responses of a strong PUF: bits to unrelated challenges. `sample` contains all available responses.
///
/// `fleet_per_bit` is a min-entropy per bit known from other devices, for example from [`estimate::by_position`]. The
/// lowest estimate is used.
pub fn assess_responses(profile: Profile, sample: &Bits, fleet_per_bit: Option<f64>) -> EntropyAssessment {
    EntropyAssessment::of(
        profile,
        sequence_estimates(sample, "responses").chain(fleet_estimate(fleet_per_bit)),
    )
}

/// How the cells of a secret were selected from their population.
#[derive(Clone, Copy, Debug)]
pub enum CellDraw<'a> {
    /// The cells are selected by address, so they may be more biased than the population. Contains the values of the
    /// cells, if known.
    InOrder(Option<&'a Bits>),
    /// The cells are selected at random. A dependence between two cells counts only if both were drawn. Contains the
    /// addresses of all cells whose values follow from the secret's response bits.
    Random(&'a [u32]),
}

/// Assesses cells of a memory. `population` contains all cells from which the secret's cells were drawn: the
/// secret's cells alone are too few for an estimate.
///
/// If a cell has min-entropy `h` given the cell `lag` addresses away, and the random draw has `f` such pairs per
/// response bit, the estimate for this dependence is `1 - min(f, 1) (1 - h)` (chain rule).
pub fn assess_cells(
    profile: Profile,
    population: &CellSample,
    draw: CellDraw<'_>,
    fleet_per_bit: Option<f64>,
) -> EntropyAssessment {
    let pairs_per_bit = |lag| match draw {
        CellDraw::InOrder(_) => 1.0,
        CellDraw::Random(cells) => pairs(cells, lag) as f64 / profile.response_bits() as f64,
    };
    let mut estimates = vec![("bias of the cells".to_owned(), population.most_common_value())];
    for lag in CELL_LAGS {
        let dependence = population
            .markov(lag)
            .map(|h| 1.0 - pairs_per_bit(lag).min(1.0) * (1.0 - h));
        estimates.extend(dependence.map(|h| (format!("dependence of cells {lag} apart"), h)));
        let columns = population.columns(lag);
        estimates.extend(columns.map(|h| (format!("bias of columns, every {lag} cells"), h)));
    }
    if let CellDraw::InOrder(Some(used)) = draw {
        estimates.extend(sequence_estimates(used, "cells in use"));
    }
    EntropyAssessment::of(
        profile,
        estimates.into_iter().chain(fleet_estimate(fleet_per_bit)),
    )
}

/// The number of pairs of cells that are `lag` addresses apart.
fn pairs(cells: &[u32], lag: usize) -> usize {
    let present: HashSet<usize> = cells.iter().map(|&cell| cell as usize).collect();
    present
        .iter()
        .filter(|&cell| present.contains(&(cell + lag)))
        .count()
}

fn sequence_estimates(bits: &Bits, subject: &'static str) -> impl Iterator<Item = (String, f64)> {
    let bias = (
        format!("bias of the {subject}"),
        estimate::most_common_value(bits.count_ones(), bits.len()),
    );
    let dependence = (
        format!("dependence of neighboring {subject}"),
        estimate::markov(bits),
    );
    [bias, dependence].into_iter()
}

fn fleet_estimate(per_bit: Option<f64>) -> impl Iterator<Item = (String, f64)> {
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
        for (p, accepted) in [(0.5, true), (0.7, false), (0.3, false)] {
            let cells = biased(p, 65_536);
            let used = cells.window(0, 4590).unwrap();
            let key = assess_cells(
                Profile::KEY,
                &CellSample::all(&cells),
                CellDraw::InOrder(Some(&used)),
                None,
            );
            assert_eq!(key.is_enough(), accepted, "{p}: {key:?}");
        }
    }

    #[test]
    fn dependence_and_columns_lower_the_entropy_of_balanced_bits() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let mut last = false;
        let sticky = Bits::from_bools((0..65_536).map(|_| {
            last ^= rng.random_bool(0.2);
            last
        }));
        let dependent = assess_cells(
            Profile::KEY,
            &CellSample::all(&sticky),
            CellDraw::InOrder(None),
            None,
        );
        assert!(
            !dependent.is_enough() && dependent.limited_by.contains("dependence"),
            "{dependent:?}"
        );

        // Cells 3,000 addresses apart are not neighbors, so the dependence of neighbors does not lower their entropy.
        let apart: Vec<u32> = (0..65_536).step_by(3000).collect();
        let apart = assess_cells(
            Profile::KEY,
            &CellSample::all(&sticky),
            CellDraw::Random(&apart),
            None,
        );
        assert!(apart.is_enough(), "{apart:?}");

        // Stripes of 32 cells: balanced, and independent for every other cell.
        let striped = (0..262_144).map(|i| rng.random_bool(if i / 32 % 2 == 0 { 0.6 } else { 0.4 }));
        let striped = assess_cells(
            Profile::KEY,
            &CellSample::all(&Bits::from_bools(striped)),
            CellDraw::InOrder(None),
            None,
        );
        assert!(
            !striped.is_enough() && striped.limited_by.contains("columns"),
            "{striped:?}"
        );
    }

    #[test]
    fn evidence_from_the_fleet_lowers_the_entropy() {
        let sample = biased(0.5, 16_384);
        let alone = assess_responses(Profile::POOL, &sample, Some(1.0));
        let limited = assess_responses(Profile::POOL, &sample, Some(0.6));
        assert!(alone.is_enough() && !limited.is_enough());
        assert_eq!(limited.per_bit, 0.6);
    }
}
