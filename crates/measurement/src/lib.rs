//! Measurement of a device's configuration: TCG event logs that replay to PCRs, sets of files, and the hash over both.
//!
//! The agent of a device makes a measurement; the controller appraises it and reports the differences. The crate uses no TPM,
//! network, clock or random source, and it does not decide whether a configuration is compliant.
//!
//! | module | contents |
//! |---|---|
//! | [`pcr`] | PCR indices, selections and values |
//! | [`files`] | entries at configured paths |
//! | [`configuration`] | PCR values and files as one configuration, its canonical encoding and its hash h |
//! | [`eventlog`] | parsing, replay and description of TCG event logs |
//! | [`diff`] | differences between two configurations |
//!
//! ```
//! use linewarden_measurement::HashAlgorithm;
//! use linewarden_measurement::pcr::PcrValues;
//!
//! let mut values = PcrValues::new(HashAlgorithm::Sha256);
//! values.set(7.try_into()?, HashAlgorithm::Sha256.digest(&[b"state"]))?;
//! assert_eq!(values.selection().to_string(), "7");
//! # Ok::<(), linewarden_measurement::pcr::PcrError>(())
//! ```

#![forbid(unsafe_code)]

mod byte_reader;
pub mod configuration;
pub mod diff;
mod digest;
pub mod eventlog;
pub mod files;
pub mod pcr;
mod text;

pub use digest::{Digest, HashAlgorithm};
