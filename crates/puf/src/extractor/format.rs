//! Reading and writing of helper data. An error contains the problem and its position.

use std::path::{Path, PathBuf};

use linewarden_files::read_bounded;

use crate::{
    bits::Bits,
    code::{Profile, ProfileError},
};

/// The version of the format.
pub(super) const VERSION: u8 = 1;

/// Maximum file size: more than a million rows.
const FILE_BYTES_MAX: usize = 256 << 20;

/// A problem with helper data.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The data do not begin as helper data of this kind.
    #[error("not {kind}: begins with {found:02x?} instead of {expected:?}")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
        /// What was expected.
        expected: &'static str,
        /// What the data should be.
        kind: &'static str,
    },
    /// The version is not supported.
    #[error("unsupported version {0}; this program reads version 1: update it")]
    Version(u8),
    /// A reserved field is not zero.
    #[error("a reserved field is not zero; the data are damaged")]
    Reserved,
    /// The profile is unknown.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The data end early.
    #[error("{missing} bytes are missing; the data are truncated")]
    Truncated {
        /// Number of missing bytes.
        missing: usize,
    },
    /// Data follow the end.
    #[error("{extra} bytes follow the end; the data are damaged")]
    Trailing {
        /// Number of bytes after the end.
        extra: usize,
    },
    /// The number of cells does not fit the profile.
    #[error("the list has {found} cells, but the profile needs {expected}")]
    CellCount {
        /// Cells listed.
        found: usize,
        /// Cells that the profile takes.
        expected: usize,
    },
    /// The readout is shorter than the profile needs, or longer than the largest supported readout.
    #[error("the readout has {found} bits; allowed are {expected} to {max}", max = 8 * crate::readout::DUMP_BYTES_MAX)]
    ReadoutLength {
        /// Bits of a readout, according to the helper data.
        found: usize,
        /// Bits that the profile takes: the minimum.
        expected: usize,
    },
    /// A cell is listed twice.
    #[error(
        "cell {cell} is listed twice; helper data with repeated cells would reveal secret bits and are refused"
    )]
    RepeatedCell {
        /// The cell.
        cell: u32,
    },
    /// A cell is not part of the readout.
    #[error("cell {cell} is outside the readout of {limit} bits")]
    CellOutOfRange {
        /// The cell.
        cell: u32,
        /// Bits of a readout.
        limit: u32,
    },
    /// Cells are not in ascending order.
    #[error("cell {cell} is not in ascending order; the encoding is not canonical")]
    UnorderedCells {
        /// The first cell out of order.
        cell: u32,
    },
    /// Unused bits of the last byte of a code offset are set.
    #[error("unused bits after a code offset are not zero; the encoding is not canonical")]
    Padding,
    /// No rows, or an index above 2^32 - 2.
    #[error(
        "invalid row range: {rows} rows from index {first}; at least one row and indices below 4294967295 are required"
    )]
    Rows {
        /// The first index.
        first: u32,
        /// The number of rows.
        rows: u32,
    },
}

/// A problem and the byte it begins at.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("at byte {offset}: {problem}")]
pub struct FormatError {
    /// Offset of this byte from the start of the data.
    pub offset: usize,
    /// What is wrong there.
    #[source]
    pub problem: Problem,
}

/// Reading or writing a file failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The operating system returned an error.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation.
        action: &'static str,
        /// The error.
        #[source]
        source: std::io::Error,
    },
    /// The content is wrong.
    #[error("{}: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The position and the problem.
        #[source]
        source: FormatError,
    },
}

/// Reads fields in order and tracks the offset.
pub(super) struct Cursor<'a> {
    remaining: &'a [u8],
    offset: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self {
            remaining: data,
            offset: 0,
        }
    }

    pub(super) fn fail<T>(&self, problem: impl Into<Problem>) -> Result<T, FormatError> {
        Err(FormatError {
            offset: self.offset,
            problem: problem.into(),
        })
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], FormatError> {
        let Some((head, tail)) = self.remaining.split_at_checked(count) else {
            return self.fail(Problem::Truncated {
                missing: count - self.remaining.len(),
            });
        };
        (self.remaining, self.offset) = (tail, self.offset + count);
        Ok(head)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self) -> Result<u32, FormatError> {
        self.array().map(u32::from_be_bytes)
    }

    /// Reads and checks the header `magic | version | zero[3] | profile u32`; returns the profile.
    pub(super) fn header(&mut self, magic: &'static str, kind: &'static str) -> Result<Profile, FormatError> {
        let found: [u8; 4] = self.array()?;
        if found != magic.as_bytes() {
            self.offset = 0;
            return self.fail(Problem::Magic {
                found,
                expected: magic,
                kind,
            });
        }
        let version_offset = self.offset;
        let [version, reserved @ ..]: [u8; 4] = self.array()?;
        if version != VERSION {
            return Err(FormatError {
                offset: version_offset,
                problem: Problem::Version(version),
            });
        }
        if reserved != [0; 3] {
            return Err(FormatError {
                offset: version_offset + 1,
                problem: Problem::Reserved,
            });
        }
        let profile_offset = self.offset;
        let id = self.u32()?;
        Profile::from_id(id).map_err(|e| FormatError {
            offset: profile_offset,
            problem: e.into(),
        })
    }

    /// Reads the packed code offset of a profile; an error if unused bits are set.
    pub(super) fn offset_bytes(&mut self, profile: Profile) -> Result<&'a [u8], FormatError> {
        let bits = profile.response_bits();
        let bytes = self.take(bits.div_ceil(8))?;
        let unused = bytes.len() * 8 - bits;
        if bytes
            .last()
            .is_some_and(|last| last.leading_zeros() < unused as u32)
        {
            return Err(FormatError {
                offset: self.offset - 1,
                problem: Problem::Padding,
            });
        }
        Ok(bytes)
    }

    pub(super) fn finish(self) -> Result<(), FormatError> {
        match self.remaining.len() {
            0 => Ok(()),
            extra => self.fail(Problem::Trailing { extra }),
        }
    }
}

/// The header that [`Cursor::header`] reads, 12 bytes.
pub(super) fn header(magic: &str, profile: Profile) -> Vec<u8> {
    let mut bytes = magic.as_bytes().to_vec();
    bytes.extend([VERSION, 0, 0, 0]);
    bytes.extend(profile.id().to_be_bytes());
    bytes
}

/// Unpacks a code offset of the profile's length.
pub(super) fn unpack(profile: Profile, bytes: &[u8]) -> Bits {
    let bits = Bits::from_bytes(bytes);
    bits.window(0, profile.response_bits()).unwrap_or(bits)
}

/// Writes a temporary file and renames it, so that a reader sees either the old or the new content.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    linewarden_files::replace(path, bytes).map_err(|source| FileError::Io {
        path: path.to_owned(),
        action: "write",
        source,
    })
}

pub(super) fn read_file<T>(
    path: &Path,
    parse: impl FnOnce(&[u8]) -> Result<T, FormatError>,
) -> Result<T, FileError> {
    let bytes = read_bounded(path, FILE_BYTES_MAX).map_err(|source| FileError::Io {
        path: path.to_owned(),
        action: "read",
        source,
    })?;
    parse(&bytes).map_err(|source| FileError::Format {
        path: path.to_owned(),
        source,
    })
}
