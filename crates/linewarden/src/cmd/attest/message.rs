//! Messages of the enrollment of a TPM, in files that operator and device exchange.

use linewarden_cli::failure::Failure;
use std::path::Path;

use linewarden_files::read_bounded;
use linewarden_tpm::enroll::{MESSAGE_BYTES_MAX, from_json};
use serde::de::DeserializeOwned;

/// Reads a message; `expected` names the message in errors.
///
/// # Errors
/// The file cannot be read, is damaged, or is another message.
pub fn read<M: DeserializeOwned>(path: &Path, expected: &str) -> Result<M, Failure> {
    let bytes = read_bounded(path, MESSAGE_BYTES_MAX)
        .map_err(|error| Failure::input(format!("{}: cannot be read: {error}", path.display())))?;
    from_json(&bytes).map_err(|error| {
        Failure::input(format!(
            "{}: expected {expected}: {error}; transfer the right file again",
            path.display()
        ))
    })
}
