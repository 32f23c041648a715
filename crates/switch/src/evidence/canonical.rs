//! Digest of the running program.
//!
//! The digest covers the executable form with its side tables as CBOR (RFC 8949): structures are maps in field order and
//! lists have a length prefix, so different forms have different encodings. The form depends on the version
//! of this software; statements contain the version next to the digest.

use linewarden_evidence::Digest;
use linewarden_evidence::state::program_digest;

use super::error::EvidenceError;
use crate::executable::Executable;

/// Prefix that separates this encoding from all others.
const FORMAT: &str = "linewarden p4 executable 1";

/// Computes the digest of an executable form.
///
/// # Errors
/// The form cannot be encoded, which is an internal error.
pub fn digest(executable: &Executable) -> Result<Digest, EvidenceError> {
    let mut bytes = Vec::new();
    ciborium::into_writer(&(FORMAT, executable), &mut bytes)
        .map_err(|error| EvidenceError::Program(error.to_string()))?;
    Ok(program_digest(&bytes))
}
