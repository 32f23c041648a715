//! Random numbers from a seed.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

/// A stream of random numbers that the seed determines.
pub(super) struct Random(ChaCha8Rng);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number in [0, 1).
    pub(super) fn unit(&mut self) -> f64 {
        // 53 bits: every double of this grid is exact.
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number below `bound`, uniformly distributed; 0 if `bound` is 0. The bias is below 2^-32
    /// for bounds below 2^32.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Exponentially distributed with mean 1: intervals of a Poisson process.
    pub(super) fn pause(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distributions_have_their_means() {
        let mut random = Random::new(1);
        let mut mean =
            |draw: fn(&mut Random) -> f64| (0..100_000).map(|_| draw(&mut random)).sum::<f64>() / 1e5;
        assert!((0.49..0.51).contains(&mean(Random::unit)));
        assert!((0.98..1.02).contains(&mean(Random::pause)));
        assert!((4.9..5.1).contains(&mean(|random| random.below(11) as f64)));
        assert_eq!(Random::new(2).below(0), 0);
    }
}
