//! `attest/2` (LAP/1 3.2): a device proves its configuration with one Forró block under a key derived from the
//! configuration.
//!
//! ```text
//!  k, at the device and the controller        h, hash of the device's configuration
//!   └─ k2 = HMAC(k, device, period, salt, h)   once per period
//!       └─ kg = HMAC(k2, gateway)              given to one gateway before the period begins
//!           └─ PROOF = Forró14(kg, counter = gateway ‖ round, nonce)
//! ```
//!
//! A gateway with `kg` verifies a proof by computing one block. It cannot compute proofs for another gateway. A device
//! with another configuration has another h and another `kg`, so its proofs do not verify.
//!
//! [`prover`] is the role of the device. [`crate::gateway`] is the role of the gateway.

pub mod keys;
pub mod prover;
pub mod round;

pub use keys::{AttestationKey, ConfigurationHash, PeriodKey, ProofKey, RequestKey};
pub use round::{PeriodStart, Round, quote_nonce};
