//! Conversion between messages on the wire and the domain types.
//!
//! Conversion of a message returns a value or [`Malformed`], for any bytes that the peer sends.

mod attest;
mod rows;
mod trust;

pub use attest::*;
pub use rows::*;
pub use trust::*;

/// A message with an invalid content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message: {0}")]
pub struct Malformed(
    /// The problem.
    pub &'static str,
);

/// Converts a byte slice to an array of `N` bytes. A slice of another length is an error with the text `problem`.
pub fn exact_bytes<const N: usize>(bytes: &[u8], problem: &'static str) -> Result<[u8; N], Malformed> {
    bytes.try_into().map_err(|_| Malformed(problem))
}

/// Converts a byte slice to an array of `N` bytes, or an empty slice to `None`.
pub fn optional_bytes<const N: usize>(
    bytes: &[u8],
    problem: &'static str,
) -> Result<Option<[u8; N]>, Malformed> {
    match bytes.is_empty() {
        true => Ok(None),
        false => exact_bytes(bytes, problem).map(Some),
    }
}

/// Maximum number of entries in one message of a gateway. A running gateway sends at most a quarter of this number,
/// a stopping gateway up to this number.
pub const ENTRIES_MAX: usize = 1024;

/// Returns all entries of a message. Rejects a message with more than [`ENTRIES_MAX`] entries, because each entry
/// costs registry queries and a holder of a gateway's certificate could send any number of entries.
pub fn entries<T>(entries: &[T]) -> Result<std::slice::Iter<'_, T>, Malformed> {
    match entries.len() <= ENTRIES_MAX {
        true => Ok(entries.iter()),
        false => Err(Malformed("more than 1024 entries")),
    }
}

impl From<Malformed> for tonic::Status {
    fn from(error: Malformed) -> Self {
        tonic::Status::invalid_argument(error.to_string())
    }
}
