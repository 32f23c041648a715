//! Elements of encodings: big-endian numbers, length-prefixed texts and bytes.

use std::fmt;

/// Maximum length of a text or byte string, bytes; names, and keys of eBPF map entries, are shorter.
pub const BYTES_MAX: usize = 1 << 20;

/// Why bytes are not a canonical encoding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid entry encoding at byte {offset}, {field}: {problem}")]
pub struct DecodeError {
    /// The offset where reading stopped.
    pub offset: usize,
    /// The expected field.
    pub field: &'static str,
    /// What is wrong.
    pub problem: DecodeProblem,
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeProblem {
    /// The bytes end within the field.
    Truncated,
    /// The value is not allowed.
    InvalidValue,
    /// Invalid UTF-8.
    InvalidUtf8,
    /// A text or byte string is longer than [`BYTES_MAX`], or the width of a value is above [`super::WIDTH_MAX`].
    TooLong,
    /// Not in canonical form.
    NotCanonical,
    /// Bytes follow the end.
    TrailingBytes,
}

impl fmt::Display for DecodeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "truncated",
            Self::InvalidValue => "invalid value",
            Self::InvalidUtf8 => "invalid UTF-8",
            Self::TooLong => "too long",
            Self::NotCanonical => "not in canonical form",
            Self::TrailingBytes => "trailing bytes",
        })
    }
}

/// Writes encoded elements.
#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub fn count(&mut self, count: usize) -> &mut Self {
        // No list or byte string has more than u32::MAX elements.
        self.u32(u32::try_from(count).unwrap_or(u32::MAX))
    }

    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.count(bytes.len()).raw(bytes)
    }

    pub fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    pub const fn len(&self) -> usize {
        self.0.len()
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Reads encoded elements strictly.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            offset: 0,
        }
    }

    pub const fn refuse(&self, field: &'static str, problem: DecodeProblem) -> DecodeError {
        DecodeError {
            offset: self.offset,
            field,
            problem,
        }
    }

    pub fn raw(&mut self, field: &'static str, len: usize) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or_else(|| self.refuse(field, DecodeProblem::Truncated))?;
        self.rest = rest;
        self.offset += len;
        Ok(bytes)
    }

    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.raw(field, N)?);
        Ok(array)
    }

    pub fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(field).map(|[byte]| byte)
    }

    pub fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.array(field).map(u32::from_be_bytes)
    }

    pub fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        self.array(field).map(u64::from_be_bytes)
    }

    pub fn flag(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.refuse(field, DecodeProblem::InvalidValue)),
        }
    }

    pub fn bytes(&mut self, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let len = usize::try_from(self.u32(field)?).unwrap_or(usize::MAX);
        match len > BYTES_MAX {
            true => Err(self.refuse(field, DecodeProblem::TooLong)),
            false => self.raw(field, len),
        }
    }

    pub fn text(&mut self, field: &'static str) -> Result<String, DecodeError> {
        let bytes = self.bytes(field)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(self.refuse(field, DecodeProblem::InvalidUtf8)),
        }
    }

    /// Reads a list: the count, then the items.
    pub fn list<T>(
        &mut self,
        field: &'static str,
        mut item: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = self.u32(field)?;
        // The list grows with the available bytes, not with the stated count.
        (0..count).map(|_| item(self)).collect()
    }

    pub fn finish(self) -> Result<(), DecodeError> {
        match self.rest {
            [] => Ok(()),
            _ => Err(self.refuse("end", DecodeProblem::TrailingBytes)),
        }
    }
}
