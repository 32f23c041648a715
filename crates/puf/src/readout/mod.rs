//! Raw readout dumps: import, and a PUF that serves them.

mod directory;
mod dump;
mod files;
mod hex;
mod puf;
mod span;

pub use directory::{read_directory, read_dump, subdirectories};
pub use dump::{Dump, DumpSet};
pub use hex::{HexError, parse_hex};
pub use puf::ReadoutPuf;
pub use span::{SPAN_BYTES_MAX, Span, SpanError};

use std::path::PathBuf;

/// The largest dump that is read, in bytes.
pub const DUMP_BYTES_MAX: usize = 64 << 20;

/// Reading a dump or a directory of dumps failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadoutError {
    /// The operating system returned an error.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A hex dump has an error.
    #[error("{}:{source}", path.display())]
    Hex {
        /// The file.
        path: PathBuf,
        /// The position and the error.
        #[source]
        source: HexError,
    },
    /// A dump is empty.
    #[error("empty dump {}; the readout failed or the file was truncated", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Dumps of one device have different lengths.
    #[error(
        "{}: {bytes} bytes, but {} has {expected}; all dumps of a device must cover the same memory range",
        path.display(), first.display()
    )]
    LengthMismatch {
        /// The file that differs.
        path: PathBuf,
        /// Length of this file, bytes.
        bytes: usize,
        /// The first file.
        first: PathBuf,
        /// Length of the first file, bytes.
        expected: usize,
    },
    /// A dump ends before the end of the requested range.
    #[error("{}: {bytes} bytes, but range {span} was requested; dump the whole memory, or select another range", path.display())]
    EndsBeforeRange {
        /// The file.
        path: PathBuf,
        /// Length of the file, bytes.
        bytes: usize,
        /// The requested range.
        span: Span,
    },
    /// The directory has no dumps.
    #[error(
        "no dumps in {}; expected are files ending in .bin, .raw, .dump (binary), .txt or .hex (hex text), or one \
         subdirectory with such files per device",
        path.display()
    )]
    NoDumps {
        /// The directory.
        path: PathBuf,
    },
    /// The directory has both dumps and subdirectories with dumps.
    #[error("{}: contains both dumps and subdirectories with dumps; keep the dumps of one device, or one directory per device", path.display())]
    MixedLevels {
        /// The directory.
        path: PathBuf,
    },
}
