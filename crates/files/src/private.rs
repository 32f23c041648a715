//! Files with secrets. Only the owner has access to a new file. A file that other users could have read or written is
//! refused.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use zeroize::Zeroizing;

use crate::write::sync_parent;
use crate::{open_regular, too_large};

/// Why a private file was not opened or not read.
#[derive(Debug, thiserror::Error)]
pub enum PrivateFileError {
    /// The file cannot be opened or read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Others may read or write the file, it belongs to another user, or it is not a regular file.
    #[error("{problem}; {remedy}")]
    Unsafe {
        /// Why the file is unsafe.
        problem: String,
        /// How to fix the problem.
        remedy: String,
    },
}

/// Opens a secret file for reading, and also for writing in place if `writable` is true. A symbolic link is followed, and
/// its target is checked.
///
/// # Errors
/// The file cannot be opened, is not a regular file, belongs to another user, or may be read or written by group or
/// others.
pub fn open_private(path: &Path, writable: bool) -> Result<File, PrivateFileError> {
    let file =
        open_regular(path, OpenOptions::new().read(true).write(writable)).map_err(|error| {
            match error.kind() {
                io::ErrorKind::InvalidInput => PrivateFileError::Unsafe {
                    problem: error.to_string(),
                    remedy: "give the path of a file".to_owned(),
                },
                _ => error.into(),
            }
        })?;
    check(path, &file)?;
    Ok(file)
}

/// Reads a whole secret file of at most `bytes_max` bytes.
///
/// # Errors
/// As [`open_private`], read errors of the operating system, or [`io::ErrorKind::FileTooLarge`].
pub fn read_private(path: &Path, bytes_max: usize) -> Result<Zeroizing<Vec<u8>>, PrivateFileError> {
    let mut file = open_private(path, false)?;
    // The buffer has its full size from the start, because a growing buffer would leave copies of the secret in memory.
    // One extra byte detects a file that is too long.
    let mut bytes = Zeroizing::new(vec![0u8; bytes_max.saturating_add(1)]);
    let mut length = 0;
    while let Some(rest) = bytes.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match file.read(rest) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    if length > bytes_max {
        return Err(too_large(bytes_max).into());
    }
    bytes.truncate(length);
    Ok(bytes)
}

/// Checks the mode and the owner of the opened file. `path` is only for messages: another file may have taken its place.
fn check(path: &Path, file: &File) -> Result<(), PrivateFileError> {
    let refuse = |problem: String, remedy: String| Err(PrivateFileError::Unsafe { problem, remedy });
    let metadata = file.metadata()?;
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return refuse(
            format!("mode {mode:04o} gives group or others access"),
            format!(
                "run `chmod 600 {}`, and create a new secret if others may have read it",
                path.display()
            ),
        );
    }
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user {
        return refuse(
            format!(
                "owned by user {}, but this program runs as user {user}",
                metadata.uid()
            ),
            "run as the owner, or change the owner to this user".to_owned(),
        );
    }
    Ok(())
}

/// Creates a file of mode 0600 and writes the secret durably. After an error, the incomplete file is removed.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if the path exists, even as a dangling link, or errors of the operating system.
pub fn create_private(path: &Path, secret: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let result = file
        .write_all(secret)
        .and_then(|()| file.sync_all())
        .and_then(|()| sync_parent(path));
    if result.is_err() {
        // An incomplete secret must not be left behind.
        let _ = std::fs::remove_file(path);
    }
    result
}
