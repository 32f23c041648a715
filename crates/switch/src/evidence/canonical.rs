//! The digest of the program that runs.
//!
//! The executable form with all that it refers to, as CBOR (RFC 8949): structures are maps in the order of their
//! fields, lists have their length in front, so no two forms have one encoding. The form depends on this software's
//! version, which statements name beside the digest.

use linewarden_evidence::Digest;
use linewarden_evidence::state::program_digest;

use super::EvidenceError;
use crate::lower::Executable;

/// Written in front, so that another encoding is never taken for this one.
const FORMAT: &str = "linewarden p4 executable 1";

/// The digest of an executable form.
///
/// # Errors
/// It cannot be written, which is this software's fault.
pub fn digest(executable: &Executable) -> Result<Digest, EvidenceError> {
    let mut bytes = Vec::new();
    ciborium::into_writer(&(FORMAT, executable), &mut bytes)
        .map_err(|error| EvidenceError::Program(error.to_string()))?;
    Ok(program_digest(&bytes))
}
