//! Min-entropy of the response that remains after the helper data are published.
//!
//! Helper data of the code-offset construction reveal the response except for a codeword. For the concatenated code,
//! the loss has two parts:
//!
//! 1. *Repetition.* Of the `r` bits behind one code bit the `r - 1` differences are public. The remainder is
//!    the choice between a pattern and its complement. For independent bits of bias `p`, `q = 1 - p`, a
//!    pattern with `i` minority positions and its complement have probabilities in the ratio
//!    `p^(r-i) q^i : p^i q^(r-i)`, so the average min-entropy of a code bit is
//!    `h = -log2 Σ C(r, i) max(p^(r-i) q^i, p^i q^(r-i))` over `i = 0 … (r-1)/2`,
//!    which is 1 at `p = 1/2` and falls fast: 0.26 at `p = 0.7`, `r = 5`. This is the repetition-code pitfall
//!    (Koeberl, Li, Rajan, Wu: Entropy loss in PUF-based key generation schemes: the repetition code pitfall,
//!    HOST 2014; exact sums of this kind in Delvaux, Gu, Verbauwhede, Hiller, Yu: Efficient fuzzy extraction
//!    of PUF-induced secrets, CHES 2016).
//! 2. *BCH.* A block of `n` code bits reveals its `n - k` parity bits; each costs at most one bit of average
//!    min-entropy (Dodis, Ostrovsky, Reyzin, Smith: Fuzzy extractors, 2008, Lemma 2.2b), so at least
//!    `n h - (n - k)` bits remain.
//!
//! Blocks use disjoint PUF bits, so `B (n h - (n - k))` bits remain in all, never more than the `B k` bits of the
//! secret.

use crate::code::{Profile, binomial::ln_factorial};

/// The average min-entropy `h`, in bits, of one bit behind `repetition` copies of bias `p`, given their
/// differences.
///
/// `repetition` is odd; `p` is the probability of either bit value: `p` and `1 - p` give the same result.
pub fn repetition_min_entropy(repetition: usize, p: f64) -> f64 {
    let p = p.clamp(0.0, 1.0).max(1.0 - p.clamp(0.0, 1.0));
    if p >= 1.0 {
        return 0.0;
    }
    let r = repetition as u64;
    // Because p >= 1 - p and i <= r / 2, p^(r-i) q^i is the larger product.
    let guess: f64 = (0..=r / 2)
        .map(|i| {
            let ln_combinations = ln_factorial(r) - ln_factorial(i) - ln_factorial(r - i);
            (ln_combinations + (r - i) as f64 * p.ln() + i as f64 * (1.0 - p).ln()).exp()
        })
        .sum();
    (-guess.log2()).clamp(0.0, 1.0)
}

/// A lower limit of the average min-entropy, in bits, of the secret given the helper data, for response bits
/// of bias `p`.
pub fn residual_min_entropy(profile: Profile, p: f64) -> f64 {
    let k = profile.code().map_or(0, |code| code.k()) as f64;
    let n = profile.block_bits() as f64;
    let per_block = n * repetition_min_entropy(profile.repetition(), p) - (n - k);
    profile.blocks() as f64 * per_block.clamp(0.0, k)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, by enumeration of all patterns.
    fn by_enumeration(r: u32, p: f64) -> f64 {
        let weight = |x: u32| p.powi(x.count_ones() as i32) * (1.0 - p).powi((r - x.count_ones()) as i32);
        let all = (1 << r) - 1;
        let guess: f64 = (0..1_u32 << (r - 1))
            .map(|x| weight(x).max(weight(!x & all)))
            .sum();
        -guess.log2()
    }

    #[test]
    fn the_formula_agrees_with_enumeration() {
        for r in [1, 3, 5, 7, 9, 11] {
            for p in [0.5, 0.51, 0.3, 0.7, 0.9] {
                let (formula, exact) = (repetition_min_entropy(r as usize, p), by_enumeration(r, p));
                assert!(
                    (formula - exact).abs() < 1e-12,
                    "r {r}, p {p}: {formula} against {exact}"
                );
            }
        }
    }

    #[test]
    fn unbiased_bits_keep_the_full_entropy_and_biased_bits_little() {
        assert!((residual_min_entropy(Profile::POOL, 0.5) - 187.0).abs() < 1e-9);
        assert!((residual_min_entropy(Profile::KEY, 0.5) - 294.0).abs() < 1e-9);
        assert_eq!(residual_min_entropy(Profile::POOL, 0.7), 0.0);
        assert_eq!(residual_min_entropy(Profile::KEY, 0.3), 0.0);
        assert_eq!(repetition_min_entropy(5, 1.0), 0.0);
    }
}
