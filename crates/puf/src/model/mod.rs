//! Simulated PUFs: the additive delay model with Gaussian noise, and SRAM with per-cell flip probabilities.
//!
//! A *model* is one device instance, determined by its seed. [`Simulated`] combines a model with a noise source and
//! implements [`Puf`].

mod arbiter;
mod calibration;
mod chain_limits;
mod interpose;
mod sram;
mod xor;

pub use arbiter::{ArbiterChain, ChallengeBatch};
pub use calibration::{chain_flip_probability, noisiness_for_interpose, noisiness_for_xor, sram_spread};
pub use interpose::InterposePuf;
pub use sram::{SramParameters, SramPuf};
pub use xor::{ArbiterPuf, XorArbiterPuf};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::{
    bits::Bits,
    puf::{Challenge, Puf, PufError},
};

/// One device instance of a PUF model.
pub trait Model: Send {
    /// A noisy reading; all randomness comes from `noise`.
    ///
    /// # Errors
    /// [`PufError`] if the model cannot serve this type of challenge, or has fewer than `bits` bits.
    fn respond(&self, challenge: Challenge, bits: usize, noise: &mut ChaCha8Rng) -> Result<Bits, PufError>;

    /// The reading without noise: the most frequent value of each bit.
    ///
    /// # Errors
    /// As [`Model::respond`].
    fn nominal(&self, challenge: Challenge, bits: usize) -> Result<Bits, PufError>;
}

/// A model with its own noise source.
#[derive(Clone, Debug)]
pub struct Simulated<M> {
    model: M,
    noise: ChaCha8Rng,
}

impl<M: Model> Simulated<M> {
    /// The same model and the same `noise_seed` give the same sequence of readings.
    pub fn new(model: M, noise_seed: u64) -> Self {
        Self {
            model,
            noise: ChaCha8Rng::seed_from_u64(noise_seed),
        }
    }

    /// The device instance.
    pub fn model(&self) -> &M {
        &self.model
    }
}

impl<M: Model> Puf for Simulated<M> {
    fn read(&mut self, challenge: Challenge, bits: usize) -> Result<Bits, PufError> {
        self.model.respond(challenge, bits, &mut self.noise)
    }
}

/// The seed of a strong PUF's row, or an error that names the right mode.
fn pool_seed(challenge: Challenge) -> Result<[u8; 8], PufError> {
    match challenge {
        Challenge::Pool(seed) => Ok(seed),
        Challenge::PowerUp => Err(PufError::WrongMode {
            has: "answers challenges and has no cells to read out",
            enroll_in: "pool",
        }),
    }
}
