//! Arbiter and k-XOR-arbiter PUFs.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::chain_limits::check_chain;
use super::{ArbiterChain, ChallengeBatch, Model, noisiness_for_xor, pool_seed};
use crate::{
    bits::Bits,
    puf::{Challenge, PufError},
};

/// A k-XOR-arbiter PUF: `k` chains get the same challenge, and the response is the xor of the chains' responses (Suh
/// and Devadas, 2007).
///
/// Noise is Gaussian on each delay difference with `σ = noisiness · sqrt(stages) · σ_weight`, as pypuf
/// defines it. Plain and XOR arbiter PUFs can be learned from raw challenge-response pairs; the protocol never reveals
/// such a pair.
///
/// **Use at least 5 chains for a fleet.** All chains get the same challenge, so the responses of two chains have the
/// correlation `2/π · arcsin ρ`. `ρ` is the correlation of the two chains' weights, of the order `1 / sqrt(stages)`.
/// With 64 stages, most 2-XOR and about one in a thousand 4-XOR instances are so biased that enrollment refuses them;
/// with 6 chains, none in ten thousand (the example `enroll_bench` counts the refused instances).
#[derive(Clone, Debug)]
pub struct XorArbiterPuf {
    chains: Vec<ArbiterChain>,
    stages: usize,
    sigma: f32,
}

impl XorArbiterPuf {
    /// The device instance of `seed`.
    ///
    /// # Errors
    /// [`PufError::BadParameter`] unless there are 8 to 4096 stages, 1 to 32 chains, and a noisiness of 0 or
    /// more.
    pub fn new(stages: usize, chains: usize, noisiness: f64, seed: u64) -> Result<Self, PufError> {
        check_chain(stages, chains, noisiness)?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let chains = (0..chains)
            .map(|_| ArbiterChain::random(stages, &mut rng))
            .collect();
        Ok(Self {
            chains,
            stages,
            sigma: noise_sigma(stages, noisiness),
        })
    }

    /// As [`XorArbiterPuf::new`], with the noisiness at which the mean bit error rate against the noise-free
    /// response is `bit_error_rate`.
    ///
    /// # Errors
    /// [`PufError::BadParameter`] as for [`XorArbiterPuf::new`], or if the rate is not in 0 … 0.45.
    pub fn with_bit_error_rate(
        stages: usize,
        chains: usize,
        bit_error_rate: f64,
        seed: u64,
    ) -> Result<Self, PufError> {
        Self::new(
            stages,
            chains,
            noisiness_for_xor(stages, chains, bit_error_rate)?,
            seed,
        )
    }

    /// The number of chains, k.
    pub fn chains(&self) -> usize {
        self.chains.len()
    }

    pub(super) fn respond_to(&self, batch: &ChallengeBatch, noise: &mut ChaCha8Rng) -> Bits {
        let mut responses = Bits::zeros(batch.len());
        for chain in &self.chains {
            chain.respond(batch, self.sigma, noise, &mut responses);
        }
        responses
    }

    pub(super) fn nominal_to(&self, batch: &ChallengeBatch) -> Bits {
        let mut responses = Bits::zeros(batch.len());
        for chain in &self.chains {
            chain.nominal(batch, &mut responses);
        }
        responses
    }
}

impl Model for XorArbiterPuf {
    fn respond(&self, challenge: Challenge, bits: usize, noise: &mut ChaCha8Rng) -> Result<Bits, PufError> {
        let batch = ChallengeBatch::from_seed(pool_seed(challenge)?, self.stages, bits);
        Ok(self.respond_to(&batch, noise))
    }

    fn nominal(&self, challenge: Challenge, bits: usize) -> Result<Bits, PufError> {
        Ok(self.nominal_to(&ChallengeBatch::from_seed(
            pool_seed(challenge)?,
            self.stages,
            bits,
        )))
    }
}

/// An arbiter PUF: a single chain.
///
/// The constant delay term of the chain biases most instances by several per cent, so enrollment refuses many of them
/// for lack of entropy. The type exists because the literature uses arbiter PUFs as the baseline.
#[derive(Clone, Debug)]
pub struct ArbiterPuf(XorArbiterPuf);

impl ArbiterPuf {
    /// The device instance of `seed`.
    ///
    /// # Errors
    /// As [`XorArbiterPuf::new`].
    pub fn new(stages: usize, noisiness: f64, seed: u64) -> Result<Self, PufError> {
        XorArbiterPuf::new(stages, 1, noisiness, seed).map(Self)
    }

    /// As [`XorArbiterPuf::with_bit_error_rate`].
    ///
    /// # Errors
    /// As [`XorArbiterPuf::with_bit_error_rate`].
    pub fn with_bit_error_rate(stages: usize, bit_error_rate: f64, seed: u64) -> Result<Self, PufError> {
        XorArbiterPuf::with_bit_error_rate(stages, 1, bit_error_rate, seed).map(Self)
    }
}

impl Model for ArbiterPuf {
    fn respond(&self, challenge: Challenge, bits: usize, noise: &mut ChaCha8Rng) -> Result<Bits, PufError> {
        self.0.respond(challenge, bits, noise)
    }

    fn nominal(&self, challenge: Challenge, bits: usize) -> Result<Bits, PufError> {
        self.0.nominal(challenge, bits)
    }
}

/// The standard deviation of the noise for weights of standard deviation 1.
#[expect(
    clippy::cast_possible_truncation,
    reason = "single precision is that of the weights"
)]
fn noise_sigma(stages: usize, noisiness: f64) -> f32 {
    (noisiness * (stages as f64).sqrt()) as f32
}
