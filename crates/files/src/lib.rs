//! Files that people and crashes spoil: reading that is bounded, secrets that only their owner can read, writing that
//! lasts, numbers that never come twice, blobs that only a key opens.

#![forbid(unsafe_code)]

mod counter;
mod private;
pub mod seal;
mod write;

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

pub use counter::{CounterError, next_count};
pub use private::{PrivateFileError, create_private, open_private, read_private};
pub use write::{can_replace, replace, replace_private, sync_parent};

/// Reads a whole file of at most `bytes_max` bytes. Pipes and devices will do, and are read no further than that.
///
/// # Errors
/// What the operating system says, or [`io::ErrorKind::FileTooLarge`] with a message that names the bound.
pub fn read_bounded(path: impl AsRef<Path>, bytes_max: usize) -> io::Result<Vec<u8>> {
    read_opened(File::open(path)?, bytes_max)
}

/// [`read_bounded`] for a file that is read while there is other work to do: a pipe or device is refused, not waited for. Symbolic links
/// are followed.
///
/// # Errors
/// As [`read_bounded`], or [`io::ErrorKind::InvalidInput`] for what is no regular file.
pub fn read_regular(path: impl AsRef<Path>, bytes_max: usize) -> io::Result<Vec<u8>> {
    read_opened(open_regular(path.as_ref())?, bytes_max)
}

/// [`read_regular`] for text.
///
/// # Errors
/// As [`read_regular`], or [`io::ErrorKind::InvalidData`] for what is no UTF-8.
pub fn read_regular_text(path: impl AsRef<Path>, bytes_max: usize) -> io::Result<String> {
    text(read_regular(path, bytes_max)?)
}

/// Opens what is to be a regular file, which the caller checks: a FIFO put in its place must not hang us before we can refuse it.
fn open_unhung(path: &Path, writable: bool) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(writable)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
}

fn open_regular(path: &Path) -> io::Result<File> {
    let file = open_unhung(path, false)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a regular file",
        )),
    }
}

fn read_opened(file: File, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let bound = u64::try_from(bytes_max).unwrap_or(u64::MAX);
    file.take(bound.saturating_add(1)).read_to_end(&mut bytes)?;
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
    text(read_bounded(path, bytes_max)?)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no UTF-8 text"))
}
