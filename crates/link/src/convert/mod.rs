//! Conversion between messages on the wire and the types of controller and gateway.
//!
//! Conversion of a message returns a value or [`Malformed`], for any bytes that the peer sends.

mod attest;
mod rows;
mod trust;

pub(crate) use attest::*;
pub(crate) use rows::*;
pub(crate) use trust::*;

/// A message with an invalid content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message: {0}")]
pub struct Malformed(pub(crate) &'static str);

/// Converts a byte slice to an array of `N` bytes. A slice of another length is an error with the text `problem`.
pub(crate) fn exact_bytes<const N: usize>(bytes: &[u8], problem: &'static str) -> Result<[u8; N], Malformed> {
    bytes.try_into().map_err(|_| Malformed(problem))
}

/// Converts a byte slice to an array of `N` bytes, or an empty slice to `None`.
pub(crate) fn optional_bytes<const N: usize>(
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
pub(crate) const ENTRIES_MAX: usize = 1024;

/// Returns all entries of a message. Rejects a message with more than [`ENTRIES_MAX`] entries, because each entry
/// costs registry queries and a holder of a gateway's certificate could send any number of entries.
pub(crate) fn entries<T>(entries: &[T]) -> Result<std::slice::Iter<'_, T>, Malformed> {
    match entries.len() <= ENTRIES_MAX {
        true => Ok(entries.iter()),
        false => Err(Malformed("more than 1024 entries")),
    }
}
