//! Error correction: a repetition code inside a binary BCH code, decoded in constant time.
//!
//! * [`field`]: arithmetic in GF(2^7) and GF(2^8); for secret data eight lanes to a word, without tables.
//! * [`bch`]: generator polynomials, systematic encoding, constant-time decoding.
//! * [`profile`]: the concatenated code, its identifier and its codec.
//! * [`design`]: exact failure probabilities, and parameters for a required failure rate.
//! * [`simulate`]: complete rebuilds under random errors, to confirm the computed rates.

pub mod bch;
pub mod binomial;
mod decoder;
pub mod design;
pub mod field;
pub mod profile;
pub mod simulate;
mod word;

pub use bch::{BchCode, CodeError};
pub use design::{Design, choose};
pub use profile::{Profile, ProfileError};
pub use simulate::{FailureReport, simulate_failure};
