//! Between the messages of the wire and what controller and gateway mean by them.
//!
//! Out of a message comes a value or [`Malformed`]: whatever the other end sends, nothing else.

mod attest;
mod rows;
mod standing;

pub(crate) use attest::*;
pub(crate) use rows::*;
pub(crate) use standing::*;

/// A message that says what no message may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message: {0}")]
pub struct Malformed(pub(crate) &'static str);

/// Bytes of one length.
pub(crate) fn exactly<const N: usize>(bytes: &[u8], what: &'static str) -> Result<[u8; N], Malformed> {
    bytes.try_into().map_err(|_| Malformed(what))
}

/// Likewise, or none.
pub(crate) fn optional<const N: usize>(
    bytes: &[u8],
    what: &'static str,
) -> Result<Option<[u8; N]>, Malformed> {
    match bytes.is_empty() {
        true => Ok(None),
        false => exactly(bytes, what).map(Some),
    }
}

/// Entries of one message of a gateway; it sends a quarter of that.
pub(crate) const ENTRIES_MAX: usize = 1024;

/// All of a message's entries, unless there are too many: what each costs the registry, whoever has a gateway's certificate could ask
/// for without end.
pub(crate) fn entries<T>(entries: &[T]) -> Result<std::slice::Iter<'_, T>, Malformed> {
    match entries.len() <= ENTRIES_MAX {
        true => Ok(entries.iter()),
        false => Err(Malformed("more entries than a message may have")),
    }
}
