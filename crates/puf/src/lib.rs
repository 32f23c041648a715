//! Physical unclonable functions for LAP/1: models with noise, readout import, error correction, residual entropy and
//! quality metrics.
//!
//! A *PUF* answers challenges with bits that depend on the manufacturing variation of one chip: hard to clone, noisy
//! by a few per cent. This crate turns such bits into a reproducible secret (the `R` of LAP/1 1.1), and assesses
//! whether the bits are good enough.
//!
//! | module | contents |
//! |---|---|
//! | [`Puf`] | the trait through which enrollment and the device role read a PUF |
//! | [`model`] | simulated PUFs: arbiter, k-XOR arbiter, interpose, SRAM |
//! | [`readout`] | stored readouts, and a PUF that serves them |
//! | [`extractor`] | enrollment and rebuild, in *pool mode* (strong PUF, many rows) and *key mode* (weak PUF, one key) |
//! | [`code`] | error correction |
//! | [`entropy`], [`health`] | min-entropy assessment and health test |
//! | [`blocks`] | detects parts of a memory that are not power-up state |
//! | [`fingerprint`] | detects that two PUFs are the same |
//! | [`metrics`], [`report`] | quality of a chip or a fleet |
//!
//! Enroll a simulated device and rebuild a secret:
//!
//! ```
//! use linewarden_puf::{
//!     extractor::{PoolEnrollment, enroll_pool},
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
//! let pool = enroll_pool(&mut puf, &PoolEnrollment::rows(4), &mut rng)?;
//! assert!(pool.entropy.residual_bits >= 128.0);
//!
//! // In the field: the device has its PUF and the public helper data.
//! let row = &pool.rows[2];
//! let secret = pool.helper.reproduce(row.idx, row.challenge, &mut puf, &HealthTest::default())?;
//! assert_eq!(secret, row.secret);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Limits.** The models are for tests, demonstrations and comparison with the literature; they make no statement
//! about a particular chip. Key derivation from `R` is part of the protocol. Entropy figures cover what estimators
//! can see (bias, dependence, helper data), not what an attacker may know about a design; see [`entropy`].

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
