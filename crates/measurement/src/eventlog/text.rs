//! Texts and structures inside event data, read as far as they can be. Whoever wrote the log wrote them too: nothing of them
//! reaches a terminal unescaped.

use std::fmt;
use std::fmt::Write as _;

use crate::fields::Fields;

/// The longest text that is shown of anything.
const SHOWN_CHARS_MAX: usize = 200;

/// A GUID as UEFI writes it: the first three groups little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guid(pub [u8; 16]);

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, at) in [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15]
            .into_iter()
            .enumerate()
        {
            if matches!(place, 4 | 6 | 8 | 10) {
                f.write_char('-')?;
            }
            write!(f, "{:02x}", self.0.get(at).copied().unwrap_or_default())?;
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
    /// All of the data must belong to it, but for the byte too much that shim logs.
    pub(super) fn read(data: &'a [u8]) -> Option<Self> {
        let mut fields = Fields::new(data);
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

/// Text in UTF-16, little-endian, without its final NULs, of which half of one may be missing; nothing if it is none.
pub(super) fn utf16(bytes: &[u8]) -> Option<String> {
    let (pairs, rest) = bytes.as_chunks::<2>();
    if !matches!(rest, [] | [0]) {
        return None;
    }
    let mut units: Vec<u16> = pairs.iter().map(|pair| u16::from_le_bytes(*pair)).collect();
    while units.pop_if(|unit| *unit == 0).is_some() {}
    String::from_utf16(&units).ok()
}

/// A text in whichever of UTF-8 and UTF-16 the bytes are, if they are one: no control characters but at the end.
pub(super) fn any_text(bytes: &[u8]) -> Option<String> {
    let printable =
        |text: &str| !text.is_empty() && !text.chars().any(|c| c.is_control() && c != '\n' && c != '\t');
    let narrow = std::str::from_utf8(bytes)
        .ok()
        .map(|text| text.trim_end_matches('\0'));
    match narrow.filter(|text| printable(text)) {
        Some(text) => Some(shown(text)),
        // Any bytes are some text in UTF-16: only what is mostly ASCII was meant as one.
        None => utf16(bytes)
            .filter(|text| {
                printable(text) && 2 * text.chars().filter(char::is_ascii).count() >= text.chars().count()
            })
            .map(|text| shown(&text)),
    }
}

/// [`crate::text::shown`], no longer than a few lines.
pub(super) fn shown(text: &str) -> String {
    crate::text::shown(text, SHOWN_CHARS_MAX)
}

/// Bytes that are no text: in hex if they are few, else how many and the beginning of their SHA-256.
pub(super) fn opaque(bytes: &[u8]) -> String {
    match bytes.len() {
        0 => "nothing".to_owned(),
        1..=32 => hex::encode(bytes),
        many => {
            let digest = crate::HashAlgorithm::Sha256.digest(&[bytes]).to_string();
            format!(
                "{many} bytes with SHA-256 {}…",
                digest.get(..16).unwrap_or_default()
            )
        }
    }
}
