//! Opening a file that an operator named: a regular file, or an immediate error.

use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file with these options; their custom flags are replaced. Symbolic links are followed. FIFOs,
/// devices and sockets are not opened: opening a FIFO waits for its other end, and opening a device can have effects.
///
/// # Errors
/// Errors of the operating system, or [`io::ErrorKind::InvalidInput`] with a message that names the type of the file.
pub fn open_regular(path: impl AsRef<Path>, options: &mut OpenOptions) -> io::Result<File> {
    let path = path.as_ref();
    // A file to be created does not exist yet; all other errors occur again below.
    if let Ok(metadata) = path.metadata() {
        refuse_irregular(metadata.file_type())?;
    }
    // The file may have been replaced since: a FIFO must not block before it is refused.
    let file = options
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    refuse_irregular(file.metadata()?.file_type())?;
    Ok(file)
}

/// Checks that [`open_regular`] can open the file for reading, for libraries that open a file by its path.
///
/// # Errors
/// Those of [`open_regular`].
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
