//! Messages of the enrolment of a TPM, in the files in which operator and device carry them to each other.

use std::path::Path;

use linewarden_files::read_bounded;
use linewarden_tpm::enrol::{MESSAGE_BYTES_MAX, from_json};
use serde::de::DeserializeOwned;

use crate::failure::Failure;

/// Reads one; `what` says in errors which is wanted.
///
/// # Errors
/// A file that cannot be read, was damaged on the way, or is another one.
pub fn read<M: DeserializeOwned>(path: &Path, what: &str) -> Result<M, Failure> {
    let bytes = read_bounded(path, MESSAGE_BYTES_MAX)
        .map_err(|error| Failure::input(format!("{}: cannot be read: {error}", path.display())))?;
    from_json(&bytes).map_err(|error| {
        Failure::input(format!(
            "{}: {what} is wanted: {error}; carry the right file over anew",
            path.display()
        ))
    })
}
