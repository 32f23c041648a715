//! Secret files of the operator: reads and creates them as `linewarden_files` does, with errors as [`Failure`].

use std::io;
use std::path::Path;

use linewarden_files::{PrivateFileError, create_private, read_private};
use zeroize::Zeroizing;

use crate::failure::Failure;

/// Reads a secret file of at most `bytes_max` bytes.
///
/// # Errors
/// The file is missing or unreadable, or, with exit code 4, other users can read it.
pub fn read(path: &Path, bytes_max: usize) -> Result<Zeroizing<Vec<u8>>, Failure> {
    read_private(path, bytes_max).map_err(|error| match error {
        PrivateFileError::Unsafe { .. } => Failure::unsafe_(format!("{}: {error}", path.display())),
        PrivateFileError::Io(_) => Failure::input(format!("{}: cannot be read: {error}", path.display())),
    })
}

/// Creates a secret file with mode 0600, durably.
///
/// # Errors
/// The file already exists, or cannot be written.
pub fn create(path: &Path, secret: &[u8]) -> Result<(), Failure> {
    create_private(path, secret).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => already_exists(path),
        _ => Failure::input(format!("{}: cannot be written: {error}", path.display())),
    })
}

/// Refuses a path that exists.
///
/// # Errors
/// The path exists.
pub fn check_absent(path: &Path) -> Result<(), Failure> {
    match path.symlink_metadata() {
        Ok(_) => Err(already_exists(path)),
        Err(_) => Ok(()),
    }
}

fn already_exists(path: &Path) -> Failure {
    Failure::input(format!(
        "{} already exists and is not overwritten: name another file",
        path.display()
    ))
}
