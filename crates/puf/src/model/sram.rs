//! SRAM power-up state with per-cell one-probabilities.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use serde::Serialize;

use super::{Model, calibration::normal_cdf, sram_spread};
use crate::{
    bits::Bits,
    puf::{Challenge, PufError},
};

/// The population that SRAM instances are drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SramParameters {
    /// The number of cells.
    pub cells: usize,
    /// The mean share of cells that power up as one.
    pub ones: f64,
    /// The mean bit error rate against each cell's more frequent value.
    pub bit_error_rate: f64,
}

/// One SRAM: each cell powers up as one with its own probability.
///
/// See [`sram_spread`] for the distribution of these probabilities. With a bit error rate of 4.95 %, the distribution
/// predicts an error rate of 6.99 % between two readouts; the STM32F407 of the test data shows 6.97 %.
#[derive(Clone, Debug)]
pub struct SramPuf {
    /// One-probabilities in units of 1 / 65535; 0 and 65535 are exact, so a stable cell never flips.
    one_probability: Box<[u16]>,
}

impl SramPuf {
    /// The device instance of `seed`.
    ///
    /// # Errors
    /// [`PufError::BadParameter`] if a parameter is out of range.
    pub fn new(parameters: SramParameters, seed: u64) -> Result<Self, PufError> {
        let SramParameters {
            cells,
            ones,
            bit_error_rate,
        } = parameters;
        if cells > 1 << 32 {
            let value = cells.to_string();
            return Err(PufError::BadParameter {
                name: "cells",
                value,
                allowed: "at most 2^32",
            });
        }
        let (mean, spread) = sram_spread(ones, bit_error_rate)?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut draw = || {
            let skew: f64 = StandardNormal.sample(&mut rng);
            quantized(normal_cdf(mean + spread * skew))
        };
        Ok(Self {
            one_probability: (0..cells).map(|_| draw()).collect(),
        })
    }

    fn cells(&self, challenge: Challenge, bits: usize) -> Result<&[u16], PufError> {
        if challenge != Challenge::PowerUp {
            return Err(PufError::WrongMode {
                has: "has one response only, its power-up state",
                enroll_in: "key",
            });
        }
        let available = self.one_probability.len();
        self.one_probability.get(..bits).ok_or(PufError::TooFewBits {
            requested: bits,
            available,
        })
    }
}

impl Model for SramPuf {
    fn respond(&self, challenge: Challenge, bits: usize, noise: &mut ChaCha8Rng) -> Result<Bits, PufError> {
        let cells = self.cells(challenge, bits)?;
        let mut powers_up = |&p: &u16| match p {
            0 => false,
            u16::MAX => true,
            p => (u64::from(noise.next_u32()) * 65535) >> 32 < u64::from(p),
        };
        Ok(Bits::from_bools(cells.iter().map(&mut powers_up)))
    }

    fn nominal(&self, challenge: Challenge, bits: usize) -> Result<Bits, PufError> {
        Ok(Bits::from_bools(
            self.cells(challenge, bits)?.iter().map(|&p| p > u16::MAX / 2),
        ))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a probability times 65535"
)]
fn quantized(probability: f64) -> u16 {
    (probability.clamp(0.0, 1.0) * 65535.0).round() as u16
}
