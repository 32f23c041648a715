//! Opens a file at a path that an operator chose. Any other file type than a regular file is an immediate error.

use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file with `options`; the custom flags of `options` are replaced. Symbolic links are followed. FIFOs,
/// devices and sockets are refused: opening a FIFO waits for a second process, and opening a device can have effects.
///
/// # Errors
/// Errors of the operating system, or [`io::ErrorKind::InvalidInput`] with a message that names the type of the file.
pub fn open_regular(path: impl AsRef<Path>, options: &mut OpenOptions) -> io::Result<File> {
    let path = path.as_ref();
    // An error is ignored here: the file may not exist before `open` creates it, and any other error recurs in `open`.
    if let Ok(metadata) = path.metadata() {
        refuse_irregular(metadata.file_type())?;
    }
    // A FIFO may have replaced the file after the check above. With NONBLOCK, `open` does not wait for a second process,
    // so that the next check can refuse the FIFO.
    let file = options
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    refuse_irregular(file.metadata()?.file_type())?;
    Ok(file)
}

/// Checks that [`open_regular`] can open the file for reading. Callers use this check before they pass the path to a
/// library that opens the file itself.
///
/// # Errors
/// As [`open_regular`].
pub fn check_regular(path: impl AsRef<Path>) -> io::Result<()> {
    open_regular(path, OpenOptions::new().read(true)).map(drop)
}

fn refuse_irregular(kind: FileType) -> io::Result<()> {
    let name = match kind {
        _ if kind.is_file() => return Ok(()),
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a FIFO",
        _ if kind.is_socket() => "a socket",
        _ if kind.is_char_device() => "a character device",
        _ if kind.is_block_device() => "a block device",
        _ => "an object of another type",
    };
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("it is {name}, not a regular file"),
    ))
}
