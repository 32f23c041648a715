//! TPM 2.0 attestation: endorsement keys, quotes, keys bound to measured states, and the enrollment of a device's key in its TPM
//! (LAP/1 3.2).
//!
//! The *controller* side needs no TPM and does no I/O; time and randomness are arguments. The *device* side, `device`, requires
//! the feature of that name and the C library tpm2-tss (Debian: libtss2-dev 3.2). It opens a TPM, creates and loads keys, and
//! computes HMACs through the trait [`AttestationKey`], which [`SoftwareKey`] implements for devices without a TPM.
//!
//! | module | contents |
//! |---|---|
//! | [`endorsement`] | verification that a key belongs to a real TPM: manufacturer certificate or pinned hash |
//! | [`enroll`] | messages that transfer a device's key k into its TPM |
//! | [`evidence`] | evidence that a device sends, including quotes |
//! | [`credential`], [`import`] | data that only one TPM can decrypt |
//! | [`policy`] | PCR states in which a TPM uses a key |
//! | [`quote`] | verification of quotes |
//! | [`public`], [`attest`], [`signature`] | strict parsers of TPM structures |
//!
//! ```
//! use linewarden_measurement::pcr::PcrValues;
//! use linewarden_measurement::{Digest, HashAlgorithm};
//! use linewarden_tpm::policy::PcrPolicy;
//!
//! // A key that works with the current kernel and with the next one, according to PCR 11.
//! let state = |kernel: &[u8]| {
//!     let mut values = PcrValues::new(HashAlgorithm::Sha256);
//!     let measured = HashAlgorithm::Sha256.digest(&[kernel]);
//!     values.set(11.try_into()?, Digest::zero(HashAlgorithm::Sha256).extended(&measured))?;
//!     Ok::<_, linewarden_measurement::pcr::PcrError>(values)
//! };
//! let policy = PcrPolicy::new(&[state(b"current")?, state(b"next")?])?;
//! assert!(policy.accepts(&state(b"next")?));
//! assert!(!policy.accepts(&state(b"modified")?));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Limits.** The crate does not appraise PCRs or event logs, does not check revocation, and does not decide which TPM belongs
//! to which device. Only endorsement keys of the templates L-1 (RSA 2048) and L-2 (ECC P-256) are supported. A PSS signature
//! whose salt is longer than its hash, as some old TPMs produce, is rejected.

#![forbid(unsafe_code)]

pub mod attest;
pub mod credential;
#[cfg(feature = "device")]
pub mod device;
mod encoding;
pub mod endorsement;
pub mod enroll;
pub mod evidence;
pub mod import;
mod kdf;
pub mod key;
pub mod policy;
mod protect;
pub mod public;
pub mod quote;
pub mod signature;
pub mod template;
mod wire;

pub use key::{AttestationKey, AttestationSecret, KeyError, Protection, Retry, SoftwareKey};
pub use protect::ProtectError;
pub use wire::{FieldProblem, ParseError};
