//! The pieces that encodings are made of: big-endian numbers, texts and bytes with their lengths in front.

use std::fmt;

/// The longest text or byte string, bytes: no name or key of a data plane is longer.
pub const BYTES_MAX: usize = 1 << 20;

/// Why bytes are no encoding of an entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no canonical encoding of an entry: byte {at}, {field}: {why}")]
pub struct DecodeError {
    /// Where reading stopped.
    pub at: usize,
    /// What should be there.
    pub field: &'static str,
    /// What is wrong.
    pub why: Why,
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The bytes end within it.
    Short,
    /// It has a value that none of this field has.
    Value,
    /// It is no UTF-8.
    Text,
    /// Longer than [`BYTES_MAX`].
    Long,
    /// The same could be written otherwise, and is by the encoder.
    NotCanonical,
    /// Bytes follow.
    Trailing,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "the bytes end within it",
            Self::Value => "no such value",
            Self::Text => "no UTF-8",
            Self::Long => "longer than any is",
            Self::NotCanonical => "written in another way than the one way",
            Self::Trailing => "bytes follow",
        })
    }
}

/// Writes pieces one after the other.
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
        // No list in memory has more.
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

    pub fn done(self) -> Vec<u8> {
        self.0
    }
}

/// Reads the same, strictly.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, at: 0 }
    }

    pub const fn refuse(&self, field: &'static str, why: Why) -> DecodeError {
        let at = self.at;
        DecodeError { at, field, why }
    }

    pub fn raw(&mut self, field: &'static str, len: usize) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or_else(|| self.refuse(field, Why::Short))?;
        self.rest = rest;
        self.at += len;
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
            _ => Err(self.refuse(field, Why::Value)),
        }
    }

    pub fn bytes(&mut self, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let len = usize::try_from(self.u32(field)?).unwrap_or(usize::MAX);
        match len > BYTES_MAX {
            true => Err(self.refuse(field, Why::Long)),
            false => self.raw(field, len),
        }
    }

    pub fn text(&mut self, field: &'static str) -> Result<String, DecodeError> {
        let bytes = self.bytes(field)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(self.refuse(field, Why::Text)),
        }
    }

    /// As many items as the count in front says.
    pub fn list<T>(
        &mut self,
        field: &'static str,
        mut item: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = self.u32(field)?;
        // Grows with what is there, not with what the count claims.
        (0..count).map(|_| item(self)).collect()
    }

    pub fn finish(self) -> Result<(), DecodeError> {
        match self.rest {
            [] => Ok(()),
            _ => Err(self.refuse("end", Why::Trailing)),
        }
    }
}
