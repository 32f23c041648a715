//! Reading and writing TPM 2.0 structures: big-endian, each variable part with its size in front (TPM 2.0 Library,
//! Part 2).
//!
//! A [`Reader`] never reads past the end of the bytes and accepts no size beyond the limit of the structure. Every error
//! names the structure, the field and the offset of the field.

use std::fmt;

/// A rejected structure: the field, its offset, and the cause.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{structure}: {field} at byte {offset}: {problem}")]
pub struct ParseError {
    /// The structure, by its name in the specification.
    pub structure: &'static str,
    /// The field.
    pub field: &'static str,
    /// The offset of the field.
    pub offset: usize,
    /// What is wrong with the field.
    pub problem: FieldProblem,
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldProblem {
    /// The bytes end within the field.
    Truncated {
        /// Length of the field, bytes.
        needed: usize,
        /// Number of bytes available.
        available: usize,
    },
    /// The field is longer than the specification or the type of key allows, or does not have the only allowed length.
    InvalidSize {
        /// The maximum length, or the only allowed length, bytes.
        max: usize,
        /// The actual length, bytes.
        actual: usize,
    },
    /// The value is not allowed or not supported.
    InvalidValue(u64),
    /// Number of bytes that follow the end of the structure.
    TrailingBytes(usize),
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { needed, available } => {
                write!(f, "{needed} bytes are required, {available} are left")
            }
            Self::InvalidSize { max, actual } => {
                write!(
                    f,
                    "{actual} bytes are not allowed; the longest allowed length is {max}"
                )
            }
            Self::InvalidValue(value) => write!(f, "{value:#x} is not allowed or not supported"),
            Self::TrailingBytes(bytes) => write!(f, "{bytes} bytes after the end"),
        }
    }
}

/// A reader of one structure.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    structure: &'static str,
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    pub const fn new(structure: &'static str, bytes: &'a [u8]) -> Self {
        Self {
            structure,
            bytes,
            position: 0,
        }
    }

    fn error(&self, field: &'static str, offset: usize, problem: FieldProblem) -> ParseError {
        ParseError {
            structure: self.structure,
            field,
            offset,
            problem,
        }
    }

    pub fn take(&mut self, field: &'static str, length: usize) -> Result<&'a [u8], ParseError> {
        let rest = self.bytes.get(self.position..).unwrap_or_default();
        let field_bytes = rest.get(..length).ok_or_else(|| {
            let available = rest.len();
            self.error(
                field,
                self.position,
                FieldProblem::Truncated {
                    needed: length,
                    available,
                },
            )
        })?;
        self.position += length;
        Ok(field_bytes)
    }

    fn number<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], ParseError> {
        let mut number = [0; N];
        number.copy_from_slice(self.take(field, N)?);
        Ok(number)
    }

    pub fn u8(&mut self, field: &'static str) -> Result<u8, ParseError> {
        self.number(field).map(u8::from_be_bytes)
    }

    pub fn u16(&mut self, field: &'static str) -> Result<u16, ParseError> {
        self.number(field).map(u16::from_be_bytes)
    }

    pub fn u32(&mut self, field: &'static str) -> Result<u32, ParseError> {
        self.number(field).map(u32::from_be_bytes)
    }

    pub fn u64(&mut self, field: &'static str) -> Result<u64, ParseError> {
        self.number(field).map(u64::from_be_bytes)
    }

    /// Reads a TPM2B: a size of two bytes, at most `max`, then this number of bytes.
    pub fn sized_buffer(&mut self, field: &'static str, max: usize) -> Result<&'a [u8], ParseError> {
        let offset = self.position;
        let size = usize::from(self.u16(field)?);
        if size > max {
            return Err(self.error(field, offset, FieldProblem::InvalidSize { max, actual: size }));
        }
        self.take(field, size)
    }

    /// As [`Reader::sized_buffer`], but accepts only exactly this length.
    pub fn sized_buffer_exact(&mut self, field: &'static str, length: usize) -> Result<&'a [u8], ParseError> {
        let offset = self.position;
        let bytes = self.sized_buffer(field, length)?;
        match bytes.len() == length {
            true => Ok(bytes),
            false => {
                let actual_length = bytes.len();
                Err(self.error(
                    field,
                    offset,
                    FieldProblem::InvalidSize {
                        max: length,
                        actual: actual_length,
                    },
                ))
            }
        }
    }

    /// The error for a `value` that is not allowed in the field read last, which has `width` bytes.
    pub fn refuse(&self, field: &'static str, width: usize, value: impl Into<u64>) -> ParseError {
        self.error(
            field,
            self.position.saturating_sub(width),
            FieldProblem::InvalidValue(value.into()),
        )
    }

    /// Checks that no bytes remain.
    pub fn finish(self) -> Result<(), ParseError> {
        match self.bytes.len().saturating_sub(self.position) {
            0 => Ok(()),
            trailing => Err(self.error("end", self.position, FieldProblem::TrailingBytes(trailing))),
        }
    }
}

/// The bytes of a structure being written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    #[must_use]
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    #[must_use]
    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Writes a TPM2B. All written data were read with a limit or have a fixed size, far below the range of two bytes.
    #[must_use]
    pub fn sized_buffer(self, bytes: &[u8]) -> Self {
        debug_assert!(bytes.len() <= usize::from(u16::MAX));
        self.u16(u16::try_from(bytes.len()).unwrap_or(u16::MAX))
            .bytes(bytes)
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// The content of a TPM2B that consists of all `bytes`.
pub(crate) fn sized_content<'a>(
    structure: &'static str,
    bytes: &'a [u8],
    max: usize,
) -> Result<&'a [u8], ParseError> {
    let mut reader = Reader::new(structure, bytes);
    let content = reader.sized_buffer("size", max)?;
    reader.finish()?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_structure_field_and_byte() {
        let mut reader = Reader::new("TPM2B_DIGEST", &[0, 9, 1, 2]);
        let error = reader.sized_buffer("buffer", 64).unwrap_err();
        assert_eq!(
            error.to_string(),
            "TPM2B_DIGEST: buffer at byte 2: 9 bytes are required, 2 are left"
        );
        let mut reader = Reader::new("TPM2B_DIGEST", &[0, 9, 1, 2]);
        let error = reader.sized_buffer("buffer", 8).unwrap_err();
        assert_eq!(
            (error.offset, error.problem),
            (0, FieldProblem::InvalidSize { max: 8, actual: 9 })
        );
        assert_eq!(
            sized_content("TPM2B_DIGEST", &[0, 1, 1, 2], 64)
                .unwrap_err()
                .to_string(),
            "TPM2B_DIGEST: end at byte 3: 1 bytes after the end"
        );
    }
}
