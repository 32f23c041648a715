//! Physical unclonable functions for LAP/1: models with noise, readout import, error correction, residual
//! entropy and quality metrics.
//!
//! A *PUF* answers challenges with bits that depend on the manufacturing variation of one chip: hard to
//! clone, noisy by a few per cent. This crate turns such bits into secrets that are the same each time (the
//! `R` of LAP/1 1.1), and judges whether they are good enough.
//!
//! * [`Puf`] is what enrolment and the device role read. Behind it: [`model`]s (arbiter, k-XOR arbiter,
//!   interpose, SRAM), or stored [`readout`]s.
//! * [`extractor`] enrols and rebuilds, in *pool mode* (strong PUF, many rows) and *key mode* (weak PUF, one
//!   key), with the error correction of [`code`], the entropy check of [`entropy`] and the health test of
//!   [`health`].
//! * [`blocks`] judges which parts of a memory are power-up state, and [`fingerprint`] finds out whether two PUFs are one.
//! * [`metrics`] and [`report`] measure a chip or a fleet.
//!
//! ```
//! use linewarden_puf::{
//!     extractor::{PoolEnrolment, enrol_pool},
//!     health::HealthTest,
//!     model::{Simulated, XorArbiterPuf},
//! };
//! use rand::SeedableRng;
//!
//! // A device whose readings have 5 % wrong bits.
//! let model = XorArbiterPuf::with_bit_error_rate(64, 6, 0.05, 1)?;
//! let mut puf = Simulated::new(model, 2);
//!
//! // At the factory. Use an operating-system generator there, not a fixed seed.
//! let mut rng = rand_chacha::ChaCha20Rng::seed_from_u64(3);
//! let pool = enrol_pool(&mut puf, &PoolEnrolment::rows(4), &mut rng)?;
//! assert!(pool.entropy.residual_bits >= 128.0);
//!
//! // In the field: the device has its PUF and the public helper data.
//! let row = &pool.rows[2];
//! let secret = pool.helper.reproduce(row.idx, row.challenge, &mut puf, &HealthTest::default())?;
//! assert_eq!(secret, row.secret);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **What it is not.** The models are for tests, demonstrations and comparison with the literature; they say
//! nothing about a particular chip. Key derivation from `R` belongs to the protocol. Entropy figures cover
//! what estimators can see (bias, dependence, helper data), not what an attacker may know about a design; see
//! [`entropy`].

#![forbid(unsafe_code)]

pub mod bits;
pub mod blocks;
pub mod challenge;
pub mod code;
pub mod entropy;
pub mod extractor;
pub mod fingerprint;
pub mod health;
pub mod metrics;
pub mod model;
mod puf;
pub mod readout;
pub mod report;

pub use puf::{Challenge, Puf, PufError};
