//! What a TPM 2.0 says and what it holds: endorsement keys, quotes, keys bound to measured states, and the enrolment that
//! ties them to one TPM (LAP/1 3.2).
//!
//! Two sides. The *controller's* needs no TPM and does no I/O; time and randomness are arguments:
//! * [`endorsement`]: is this key a TPM's? By its maker's certificate, or because the operator pinned it.
//! * [`enrol`]: the conversation by which a device's key k gets into its TPM. [`evidence`]: what a device sends of itself,
//!   quotes of its PCRs too.
//! * [`credential`], [`import`]: what only one TPM can open; [`policy`]: in which states it uses a key; [`quote`]: what it
//!   signed. [`public`], [`attest`], [`signature`]: the structures, read strictly.
//!
//! The *device's*, `device`, is behind the feature of that name and stands on the C library tpm2-tss (Debian: libtss2-dev 3.2).
//! It opens a TPM, makes and loads keys, and computes HMACs by the trait [`AttestationKey`]; [`SoftwareKey`] is the same
//! for devices without a TPM.
//!
//! ```
//! use linewarden_measurement::pcr::PcrValues;
//! use linewarden_measurement::{Digest, HashAlgorithm};
//! use linewarden_tpm::policy::PcrPolicy;
//!
//! // A key that works with the kernel of today and with that of tomorrow, as PCR 11 shows them.
//! let state = |kernel: &[u8]| {
//!     let mut values = PcrValues::new(HashAlgorithm::Sha256);
//!     let measured = HashAlgorithm::Sha256.digest(&[kernel]);
//!     values.set(11.try_into()?, Digest::zero(HashAlgorithm::Sha256).extended(&measured))?;
//!     Ok::<_, linewarden_measurement::pcr::PcrError>(values)
//! };
//! let policy = PcrPolicy::new(&[state(b"today")?, state(b"tomorrow")?])?;
//! assert!(policy.accepts(&state(b"tomorrow")?));
//! assert!(!policy.accepts(&state(b"somebody's")?));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **What it is not.** It does not judge PCRs or event logs, asks no authority whether a certificate was revoked, and does not
//! decide which TPM belongs to which device. Only endorsement keys of the templates L-1 (RSA 2048) and L-2 (ECC P-256) are
//! taken. A PSS signature whose salt is longer than its hash, as some old TPMs make it, is refused.

#![forbid(unsafe_code)]

pub mod attest;
pub mod credential;
#[cfg(feature = "device")]
pub mod device;
mod encoding;
pub mod endorsement;
pub mod enrol;
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

pub use key::{Again, AttestationKey, AttestationSecret, KeyError, Protection, SoftwareKey};
pub use protect::ProtectError;
pub use wire::{ParseError, Problem};
