//! Errors of statements.

use super::format::{PROFILE, STATEMENT_BYTES_MAX};
use crate::keys::KeyError;

/// Why a statement could not be created, or is rejected.
#[derive(Debug, thiserror::Error)]
pub enum StatementError {
    /// Encoding failed.
    #[error("encoding the statement failed: {0}")]
    EncodingFailed(String),
    /// Signing failed.
    #[error(transparent)]
    SigningFailed(#[from] KeyError),
    /// The statement is longer than the maximum.
    #[error("statement too long: {0} bytes, the maximum is {STATEMENT_BYTES_MAX}")]
    TooLong(usize),
    /// The statement is not a COSE_Sign1.
    #[error("invalid statement (COSE_Sign1): {0}")]
    InvalidCose(String),
    /// The statement has another signature scheme than the key.
    #[error(
        "statement rejected: its signature scheme is not that of the key; check that the key belongs to this data plane"
    )]
    AlgorithmMismatch,
    /// The signature does not verify.
    #[error(
        "statement rejected: the signature does not verify; it is from another data plane, or was changed"
    )]
    InvalidSignature,
    /// The signature is valid, but the content is not a statement of this profile.
    #[error("statement rejected: not of the profile {PROFILE}: {0}: {1}")]
    InvalidClaims(&'static str, String),
    /// The statement is the response to another request.
    #[error("statement rejected: its nonce differs; it is for another or an old request")]
    NonceMismatch,
    /// The key in the UEID is not the signing key.
    #[error("statement rejected: its UEID is that of another key")]
    UeidMismatch,
}
