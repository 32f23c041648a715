//! Reading and writing TPM 2.0 structures: big-endian, each variable part with its size in front (TPM 2.0 Library, Part 2).
//!
//! A [`Reader`] never reads past its end, takes no size beyond the structure's own limit, and every refusal names the
//! structure, the field and the byte at which it begins.

use std::fmt;

/// A structure that was refused: which field of which structure, where, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{structure}: {field} at byte {offset}: {problem}")]
pub struct ParseError {
    /// The structure, by its name in the specification.
    pub structure: &'static str,
    /// The field in it.
    pub field: &'static str,
    /// The byte at which the field begins.
    pub offset: usize,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The bytes end before it does.
    Ends {
        /// How many bytes the field has.
        needs: usize,
        /// How many there are.
        left: usize,
    },
    /// It is longer than the specification allows, or than its kind of key makes it.
    Size {
        /// How many bytes it may have.
        may: usize,
        /// How many it has.
        has: usize,
    },
    /// A value that is not allowed there, or that nothing here knows.
    Value(u64),
    /// There are bytes behind the end of the structure.
    Trailing(usize),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ends { needs, left } => write!(f, "{needs} bytes are needed and {left} are left"),
            Self::Size { may, has } => write!(f, "{has} bytes, where {may} may be"),
            Self::Value(value) => write!(f, "{value:#x} is not allowed or not known there"),
            Self::Trailing(bytes) => write!(f, "{bytes} bytes behind the end"),
        }
    }
}

/// A place in the bytes of one structure.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    structure: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub const fn new(structure: &'static str, bytes: &'a [u8]) -> Self {
        Self {
            structure,
            bytes,
            at: 0,
        }
    }

    fn error(&self, field: &'static str, offset: usize, problem: Problem) -> ParseError {
        ParseError {
            structure: self.structure,
            field,
            offset,
            problem,
        }
    }

    pub fn take(&mut self, field: &'static str, length: usize) -> Result<&'a [u8], ParseError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let taken = rest.get(..length).ok_or_else(|| {
            let left = rest.len();
            self.error(field, self.at, Problem::Ends { needs: length, left })
        })?;
        self.at += length;
        Ok(taken)
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

    /// A TPM2B: a size of two bytes, then as many bytes, `max` at most.
    pub fn sized(&mut self, field: &'static str, max: usize) -> Result<&'a [u8], ParseError> {
        let at = self.at;
        let size = usize::from(self.u16(field)?);
        if size > max {
            return Err(self.error(field, at, Problem::Size { may: max, has: size }));
        }
        self.take(field, size)
    }

    /// As [`Reader::sized`], with exactly this many bytes.
    pub fn sized_exactly(&mut self, field: &'static str, length: usize) -> Result<&'a [u8], ParseError> {
        let at = self.at;
        let bytes = self.sized(field, length)?;
        match bytes.len() == length {
            true => Ok(bytes),
            false => {
                let has = bytes.len();
                Err(self.error(field, at, Problem::Size { may: length, has }))
            }
        }
    }

    /// The field of `width` bytes that was just read has a value that is not allowed.
    pub fn refuse(&self, field: &'static str, width: usize, value: impl Into<u64>) -> ParseError {
        self.error(field, self.at.saturating_sub(width), Problem::Value(value.into()))
    }

    /// Nothing may be left.
    pub fn finish(self) -> Result<(), ParseError> {
        match self.bytes.len().saturating_sub(self.at) {
            0 => Ok(()),
            left => Err(self.error("end", self.at, Problem::Trailing(left))),
        }
    }
}

/// Bytes of a structure that is being made.
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

    /// A TPM2B. All that is written here was read under a limit or has a fixed size, far below what two bytes can say.
    #[must_use]
    pub fn sized(self, bytes: &[u8]) -> Self {
        debug_assert!(bytes.len() <= usize::from(u16::MAX));
        self.u16(u16::try_from(bytes.len()).unwrap_or(u16::MAX))
            .bytes(bytes)
    }

    pub fn done(self) -> Vec<u8> {
        self.0
    }
}

/// What of a TPM2B is inside: the size must be that of all the rest.
pub(crate) fn inside<'a>(
    structure: &'static str,
    bytes: &'a [u8],
    max: usize,
) -> Result<&'a [u8], ParseError> {
    let mut reader = Reader::new(structure, bytes);
    let inside = reader.sized("size", max)?;
    reader.finish()?;
    Ok(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_structure_field_and_byte() {
        let mut reader = Reader::new("TPM2B_DIGEST", &[0, 9, 1, 2]);
        let error = reader.sized("buffer", 64).unwrap_err();
        assert_eq!(
            error.to_string(),
            "TPM2B_DIGEST: buffer at byte 2: 9 bytes are needed and 2 are left"
        );
        let mut reader = Reader::new("TPM2B_DIGEST", &[0, 9, 1, 2]);
        let error = reader.sized("buffer", 8).unwrap_err();
        assert_eq!(
            (error.offset, error.problem),
            (0, Problem::Size { may: 8, has: 9 })
        );
        assert_eq!(
            inside("TPM2B_DIGEST", &[0, 1, 1, 2], 64).unwrap_err().to_string(),
            "TPM2B_DIGEST: end at byte 3: 1 bytes behind the end"
        );
    }
}
