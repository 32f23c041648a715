//! What a device runs, as one number: TCG event logs that replay to PCRs, sets of files, and the hash over both.
//!
//! The device's agent makes a measurement; the controller appraises it and tells what has changed. Neither a TPM nor a
//! network, a clock or a source of randomness is used here.

#![forbid(unsafe_code)]

pub mod configuration;
pub mod diff;
mod digest;
pub mod eventlog;
mod fields;
pub mod files;
pub mod pcr;
mod text;

pub use digest::{Digest, HashAlgorithm};
