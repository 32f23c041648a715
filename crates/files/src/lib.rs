//! Robust file access: bounded reads, private secrets, atomic durable writes, a persistent counter, sealed blobs.
//!
//! The crate defines only two formats: the counter file and the sealed blob. Callers choose the paths.
//!
//! | functions | purpose |
//! |---|---|
//! | [`read_bounded`], [`read_text_bounded`], [`open_regular`] | read regular files of limited size |
//! | [`open_private`], [`read_private`], [`create_private`] | files with secrets, readable only by their owner |
//! | [`replace`] and its variants | atomic, durable writes |
//! | [`bind_private`], [`bind_for_group`] | listening Unix sockets that only the owner, or also one group, can open |
//! | [`next_count`] | a number that increases at each start |
//! | [`seal::Sealer`] | encryption of blobs at rest |
//!
//! ```
//! let path = std::env::temp_dir().join(format!("linewarden-files-{}", std::process::id()));
//! linewarden_files::replace(&path, b"content")?;
//! assert_eq!(linewarden_files::read_bounded(&path, 100)?, b"content");
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), std::io::Error>(())
//! ```

#![forbid(unsafe_code)]

mod counter;
mod private;
mod regular;
pub mod seal;
mod socket;
mod write;

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::path::Path;

pub use counter::{CounterError, next_count};
pub use private::{PrivateFileError, create_private, open_private, read_private};
pub use regular::{check_regular, open_regular};
pub use socket::{SocketFile, bind_for_group, bind_private};
pub use write::{can_replace, replace, replace_owned, replace_private, replace_public, sync_parent};

/// Reads a whole regular file of at most `bytes_max` bytes. The size in the metadata is not used, because files in
/// `/proc` and `/sys` report 0. Other file types are refused ([`open_regular`]), because a read from a FIFO could block
/// the caller, and a blocked caller cannot handle signals.
///
/// # Errors
/// As [`open_regular`], a read error, or [`io::ErrorKind::FileTooLarge`] with a message that names the limit.
pub fn read_bounded(path: impl AsRef<Path>, bytes_max: usize) -> io::Result<Vec<u8>> {
    let file = open_regular(path, OpenOptions::new().read(true))?;
    let mut bytes = Vec::new();
    let bound = u64::try_from(bytes_max).unwrap_or(u64::MAX);
    file.take(bound.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() > bytes_max {
        true => Err(too_large(bytes_max)),
        false => Ok(bytes),
    }
}

/// [`read_bounded`] for text.
///
/// # Errors
/// As [`read_bounded`], or [`io::ErrorKind::InvalidData`] if the content is not UTF-8.
pub fn read_text_bounded(path: impl AsRef<Path>, bytes_max: usize) -> io::Result<String> {
    let bytes = read_bounded(path, bytes_max)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8 text"))
}

fn too_large(bytes_max: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::FileTooLarge,
        format!("file too long: the limit is {bytes_max} bytes"),
    )
}
