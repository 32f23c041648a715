//! A part of a memory.

use std::{fmt, str::FromStr};

use crate::fingerprint::BLOCK_BYTES;

/// The longest part of a memory that enrollment accepts, bytes. A key needs only a few thousand bytes.
pub const SPAN_BYTES_MAX: usize = 1 << 20;

/// A part of a memory, in bytes. A part without an end extends to the end of the memory, but at most for
/// [`SPAN_BYTES_MAX`] bytes. A part begins at a multiple of [`BLOCK_BYTES`], like the blocks of fingerprints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// The byte after the last.
    pub end: Option<usize>,
}

impl Span {
    /// Maximum length in bytes.
    pub fn bytes_max(&self) -> usize {
        self.end
            .map_or(SPAN_BYTES_MAX, |end| end.saturating_sub(self.start))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.end {
            Some(end) => write!(f, "0x{:x}..0x{end:x}", self.start),
            None => write!(f, "0x{:x}..", self.start),
        }
    }
}

/// A text that is not a valid range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid range; use START..END in bytes, such as 0x4000..0x8000, of at most 1 MiB: START is a multiple of 256, END is optional"
)]
pub struct SpanError;

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(digits) => usize::from_str_radix(digits, 16),
            None => text.parse(),
        };
        let (start, end) = text.split_once("..").ok_or(SpanError)?;
        let start = number(start).map_err(|_| SpanError)?;
        let end = match end {
            "" => None,
            end => Some(number(end).map_err(|_| SpanError)?),
        };
        let fits = start.is_multiple_of(BLOCK_BYTES)
            && end.is_none_or(|end| end > start && end - start <= SPAN_BYTES_MAX);
        fits.then_some(Self { start, end }).ok_or(SpanError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_and_invalid_ranges_are_refused() {
        for (text, start, end) in [
            ("0..512", 0, Some(512)),
            ("0x4000..0x8000", 0x4000, Some(0x8000)),
            ("4096..", 4096, None),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!((span.start, span.end), (start, end), "{text}");
            assert_eq!(span.to_string().parse(), Ok(span));
        }
        for text in [
            "",
            "..",
            "..5",
            "5",
            "5..5",
            "6..5",
            "0x..9",
            "-1..5",
            "0..1048577",
            "128..512",
            "0x0x1..0x9",
        ] {
            assert_eq!(text.parse::<Span>(), Err(SpanError), "{text}");
        }
    }
}
