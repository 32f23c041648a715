//! Interpose PUFs.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{ChallengeBatch, Model, XorArbiterPuf, noisiness_for_interpose, pool_seed};
use crate::{
    bits::Bits,
    puf::{Challenge, PufError},
};

/// A (k_up, k_down) interpose PUF (Nguyen et al., The Interpose PUF, CHES 2019).
///
/// The response of an upper k_up-XOR-arbiter PUF becomes the challenge bit in the middle of a lower
/// k_down-XOR-arbiter PUF that has one stage more.
#[derive(Clone, Debug)]
pub struct InterposePuf {
    up: XorArbiterPuf,
    down: XorArbiterPuf,
    stages: usize,
}

impl InterposePuf {
    /// The device instance of `seed`. `stages` is the number of stages of the upper layer; `up` and `down` are the
    /// numbers of chains, `k_up` and `k_down`.
    ///
    /// # Errors
    /// As [`XorArbiterPuf::new`], for either layer.
    pub fn new(stages: usize, up: usize, down: usize, noisiness: f64, seed: u64) -> Result<Self, PufError> {
        let mut seeds = ChaCha8Rng::seed_from_u64(seed);
        Ok(Self {
            up: XorArbiterPuf::new(stages, up, noisiness, seeds.next_u64())?,
            down: XorArbiterPuf::new(stages + 1, down, noisiness, seeds.next_u64())?,
            stages,
        })
    }

    /// As [`InterposePuf::new`], with the noisiness at which the mean bit error rate against the noise-free
    /// response is `bit_error_rate`.
    ///
    /// # Errors
    /// [`PufError::BadParameter`] as for [`InterposePuf::new`], or if the rate is not in 0 … 0.45.
    pub fn with_bit_error_rate(
        stages: usize,
        up: usize,
        down: usize,
        bit_error_rate: f64,
        seed: u64,
    ) -> Result<Self, PufError> {
        Self::new(
            stages,
            up,
            down,
            noisiness_for_interpose(stages, up, down, bit_error_rate)?,
            seed,
        )
    }
}

impl Model for InterposePuf {
    fn respond(&self, challenge: Challenge, bits: usize, noise: &mut ChaCha8Rng) -> Result<Bits, PufError> {
        let batch = ChallengeBatch::from_seed(pool_seed(challenge)?, self.stages, bits);
        let inserted = self.up.respond_to(&batch, noise);
        Ok(self
            .down
            .respond_to(&batch.interposed(&inserted, self.stages, self.stages / 2), noise))
    }

    fn nominal(&self, challenge: Challenge, bits: usize) -> Result<Bits, PufError> {
        let batch = ChallengeBatch::from_seed(pool_seed(challenge)?, self.stages, bits);
        let inserted = self.up.nominal_to(&batch);
        Ok(self
            .down
            .nominal_to(&batch.interposed(&inserted, self.stages, self.stages / 2)))
    }
}
