//! Files that people and crashes spoil: reading that is bounded, secrets that only their owner can read, writing that
//! lasts, numbers that never come twice, blobs that only a key opens.

#![forbid(unsafe_code)]

mod counter;
mod private;
pub mod seal;
mod write;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

pub use counter::{CounterError, next_count};
pub use private::{PrivateFileError, create_private, read_private};
pub use write::{can_replace, replace, replace_private, sync_parent};

/// Reads a whole file of at most `bytes_max` bytes. Pipes and devices will do, and are read no further than that.
///
/// # Errors
/// What the operating system says, or [`io::ErrorKind::FileTooLarge`] with a message that names the bound.
pub fn read_bounded(path: impl AsRef<Path>, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let bound = u64::try_from(bytes_max).unwrap_or(u64::MAX);
    File::open(path)?
        .take(bound.saturating_add(1))
        .read_to_end(&mut bytes)?;
    match bytes.len() > bytes_max {
        true => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("longer than {bytes_max} bytes, which no file of this kind is"),
        )),
        false => Ok(bytes),
    }
}

/// [`read_bounded`] for text.
///
/// # Errors
/// As [`read_bounded`], or [`io::ErrorKind::InvalidData`] for what is no UTF-8.
pub fn read_text_bounded(path: impl AsRef<Path>, bytes_max: usize) -> io::Result<String> {
    String::from_utf8(read_bounded(path, bytes_max)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no UTF-8 text"))
}
