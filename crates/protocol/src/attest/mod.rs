//! `attest/2` (LAP/1 3.2): a device proves what it runs by one block of Forró under a key that its configuration is in.
//!
//! ```text
//!  k, at the device and the controller        h, what the device runs
//!   └─ k2 = HMAC(k, device, period, salt, h)   once per period
//!       └─ kg = HMAC(k2, gateway)              what a gateway is given, ahead of the period
//!           └─ PROOF = Forró14(kg, counter = gateway ‖ round, nonce)
//! ```
//!
//! A gateway that is given `kg` checks proofs by one block each, and can make none for another gateway. Whoever runs
//! something else has another h, so another `kg`, and its proofs are noise.
//!
//! [`prover`] is the device's role; the gateway's is [`crate::gateway`].

pub mod keys;
pub mod prover;
pub mod round;

pub use keys::{AttestationKey, ConfigurationHash, PeriodKey, ProofKey, RequestKey};
pub use round::{PeriodStart, Round, quote_nonce};
