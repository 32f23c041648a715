//! Files that people and crashes spoil: reading that is bounded, secrets that only their owner can read, writing that
//! lasts, numbers that never come twice, blobs that only a key opens.

#![forbid(unsafe_code)]

mod counter;
mod private;
mod regular;
pub mod seal;
mod write;

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::path::Path;

pub use counter::{CounterError, next_count};
pub use private::{PrivateFileError, create_private, open_private, read_private};
pub use regular::{check_regular, open_regular};
pub use write::{can_replace, replace, replace_owned, replace_private, replace_public, sync_parent};

/// Reads a whole regular file of at most `bytes_max` bytes; its size is not trusted, for files of the kernel report 0. Nothing else than a
/// regular file is read ([`open_regular`]): a caller that waits for a FIFO handles no signal meanwhile.
///
/// # Errors
/// Those of [`open_regular`], or [`io::ErrorKind::FileTooLarge`] with a message that names the bound.
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
/// As [`read_bounded`], or [`io::ErrorKind::InvalidData`] for what is no UTF-8.
pub fn read_text_bounded(path: impl AsRef<Path>, bytes_max: usize) -> io::Result<String> {
    let bytes = read_bounded(path, bytes_max)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no UTF-8 text"))
}

fn too_large(bytes_max: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::FileTooLarge,
        format!("longer than {bytes_max} bytes, which no file of this kind is"),
    )
}
