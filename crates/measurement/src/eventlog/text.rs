//! Texts and structures in event data, parsed as far as possible. They are untrusted, so control characters are
//! escaped.

use std::fmt;
use std::fmt::Write as _;

use crate::byte_reader::ByteReader;

/// Maximum number of characters of a displayed text.
const SHOWN_CHARS_MAX: usize = 200;

/// A GUID as UEFI writes it: the first three groups little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guid(pub [u8; 16]);

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, index) in [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15]
            .into_iter()
            .enumerate()
        {
            if matches!(position, 4 | 6 | 8 | 10) {
                f.write_char('-')?;
            }
            write!(f, "{:02x}", self.0.get(index).copied().unwrap_or_default())?;
        }
        Ok(())
    }
}

/// UEFI_VARIABLE_DATA (PFP 10.2.6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Variable<'a> {
    pub namespace: Guid,
    pub name: String,
    pub value: &'a [u8],
}

impl<'a> Variable<'a> {
    /// Parses the data; all bytes must belong to the variable.
    pub(super) fn read(data: &'a [u8]) -> Option<Self> {
        let mut fields = ByteReader::new(data);
        let namespace = Guid(fields.array()?);
        let name_chars = usize::try_from(fields.u64_le()?).ok()?;
        let value_bytes = usize::try_from(fields.u64_le()?).ok()?;
        let name = utf16(fields.take(name_chars.checked_mul(2)?)?)?;
        let value = fields.take(value_bytes)?;
        fields.rest().is_empty().then_some(Self {
            namespace,
            name,
            value,
        })
    }
}

/// Little-endian UTF-16 text without its final NULs; the second byte of the last NUL may be missing. `None` for other
/// bytes.
pub(super) fn utf16(bytes: &[u8]) -> Option<String> {
    let (pairs, rest) = bytes.as_chunks::<2>();
    if !matches!(rest, [] | [0]) {
        return None;
    }
    let mut units: Vec<u16> = pairs.iter().map(|pair| u16::from_le_bytes(*pair)).collect();
    while units.pop_if(|unit| *unit == 0).is_some() {}
    String::from_utf16(&units).ok()
}

/// The text in UTF-8 or UTF-16, escaped. `None` if the bytes are not such a text, or if the text contains control
/// characters other than line feeds, tabs and final NULs.
pub(super) fn any_text(bytes: &[u8]) -> Option<String> {
    let printable =
        |text: &str| !text.is_empty() && !text.chars().any(|c| c.is_control() && c != '\n' && c != '\t');
    let utf8 = std::str::from_utf8(bytes)
        .ok()
        .map(|text| text.trim_end_matches('\0'));
    match utf8.filter(|text| printable(text)) {
        Some(text) => Some(escaped(text)),
        // Many byte strings are valid UTF-16, so at least half of the characters must be ASCII.
        None => utf16(bytes)
            .filter(|text| {
                printable(text) && 2 * text.chars().filter(char::is_ascii).count() >= text.chars().count()
            })
            .map(|text| escaped(&text)),
    }
}

/// [`crate::text::escape_text`] with at most [`SHOWN_CHARS_MAX`] characters.
pub(super) fn escaped(text: &str) -> String {
    crate::text::escape_text(text, SHOWN_CHARS_MAX)
}

/// Bytes that are not text: as hex if they are few, else their number and the start of their SHA-256.
pub(super) fn describe_bytes(bytes: &[u8]) -> String {
    match bytes.len() {
        0 => "nothing".to_owned(),
        1..=32 => hex::encode(bytes),
        len => {
            let digest = crate::HashAlgorithm::Sha256.digest(&[bytes]).to_string();
            format!(
                "{len} bytes with SHA-256 {}…",
                digest.get(..16).unwrap_or_default()
            )
        }
    }
}
