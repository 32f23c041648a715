//! Hex text to bytes.

/// An error in a hex dump, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HexError {
    /// An unexpected character.
    #[error(
        "{line}:{column}: found {found:?}; only hex digits, white space, commas and 0x before a byte are allowed"
    )]
    Character {
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
        /// The character.
        found: char,
    },
    /// A byte has one digit only.
    #[error("{line}:{column}: the byte that begins here has only one hex digit; digits are missing")]
    HalfByte {
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
    },
    /// Intel HEX instead of plain hex text.
    #[error("{line}:{column}: this is an Intel HEX file; convert it with objcopy -I ihex -O binary")]
    IntelHex {
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
    },
}

/// Reads hex digits in pairs, the more significant first. White space and commas may occur anywhere, and lines may
/// have any width. `0x` may precede a byte.
///
/// # Errors
/// [`HexError`] with line and column.
pub fn parse_hex(text: &[u8]) -> Result<Vec<u8>, HexError> {
    let mut bytes = Vec::with_capacity(text.len() / 2);
    let mut parser = HexParser::new();
    parser.feed(text, &mut bytes)?;
    parser.finish(&mut bytes)?;
    Ok(bytes)
}

/// A parser of hex text that arrives in pieces.
#[derive(Debug)]
pub(super) struct HexParser {
    line: usize,
    column: usize,
    /// The first digit of an incomplete byte, and its position.
    high: Option<(u8, usize, usize)>,
    /// Whether the previous piece ended with a zero, which may begin `0x`.
    has_pending_zero: bool,
}

impl HexParser {
    pub(super) fn new() -> Self {
        Self {
            line: 1,
            column: 1,
            high: None,
            has_pending_zero: false,
        }
    }

    /// Parses the next piece.
    pub(super) fn feed(&mut self, text: &[u8], bytes: &mut Vec<u8>) -> Result<(), HexError> {
        if text.is_empty() {
            return Ok(());
        }
        if std::mem::take(&mut self.has_pending_zero) {
            self.parse(&[b"0", text].concat(), false, bytes)
        } else {
            self.parse(text, false, bytes)
        }
    }

    /// Ends the text; an incomplete byte is an error.
    pub(super) fn finish(&mut self, bytes: &mut Vec<u8>) -> Result<(), HexError> {
        if std::mem::take(&mut self.has_pending_zero) {
            self.parse(b"0", true, bytes)?;
        }
        match self.high {
            None => Ok(()),
            Some((_, line, column)) => Err(HexError::HalfByte { line, column }),
        }
    }

    fn parse(&mut self, text: &[u8], is_last: bool, bytes: &mut Vec<u8>) -> Result<(), HexError> {
        let mut rest = text;
        while let Some((&byte, tail)) = rest.split_first() {
            if byte == b'0' && tail.is_empty() && !is_last {
                self.has_pending_zero = true;
                return Ok(());
            }
            let (line, column) = (self.line, self.column);
            let is_prefix = byte == b'0' && matches!(tail.first(), Some(b'x' | b'X'));
            match (byte, self.high) {
                (b'\n', _) => (self.line, self.column) = (line + 1, 0),
                (b' ' | b'\t' | b'\r' | b',', _) => {}
                (_, Some((_, line, column))) if is_prefix => return Err(HexError::HalfByte { line, column }),
                (_, None) if is_prefix => {
                    rest = tail.split_first().map_or(tail, |(_, after)| after);
                    self.column += 2;
                    continue;
                }
                (b':', None) if column == 1 => return Err(HexError::IntelHex { line, column }),
                (_, high_digit) => {
                    let Some(digit) = char::from(byte).to_digit(16) else {
                        let found = first_character(rest);
                        return Err(HexError::Character { line, column, found });
                    };
                    let digit = digit.to_le_bytes()[0];
                    self.high = match high_digit {
                        None => Some((digit, line, column)),
                        Some((first, _, _)) => {
                            bytes.push(first << 4 | digit);
                            None
                        }
                    };
                }
            }
            self.column += 1;
            rest = tail;
        }
        Ok(())
    }
}

/// The first character of `text`, for messages.
fn first_character(text: &[u8]) -> char {
    let head = text.get(..text.len().min(4)).unwrap_or(text);
    String::from_utf8_lossy(head).chars().next().unwrap_or('\u{fffd}')
}

/// Whether a file looks like hex text: only printable ASCII and white space.
pub(super) fn looks_like_text(bytes: &[u8]) -> bool {
    bytes
        .iter()
        .all(|b| b.is_ascii_graphic() || matches!(b, b' ' | b'\t' | b'\r' | b'\n'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn spacing_prefixes_and_line_widths_do_not_matter() {
        let expected = [0x00, 0xab, 0xCD, 0x0e, 0xf1];
        for text in [
            "00abcd0ef1",
            "00 AB CD 0E F1\n",
            "0x00, 0xab, 0xcd,\r\n0x0e 0xf1",
            "00ab\ncd\n\n0ef1",
            "0\n0abc\nd0e\nf1",
            "0x00abcd0ef1",
        ] {
            assert_eq!(parse_hex(text.as_bytes()).unwrap(), expected, "{text:?}");
        }
        assert_eq!(parse_hex(b"").unwrap(), []);
    }

    #[test]
    fn errors_name_line_and_column() {
        let character = |line, column, found| HexError::Character { line, column, found };
        for (text, error) in [
            ("00 1g", character(1, 5, 'g')),
            ("00\n01\nzz", character(3, 1, 'z')),
            ("00\n\u{e9}", character(2, 1, '\u{e9}')),
            ("00 x1", character(1, 4, 'x')),
            ("00 1", HexError::HalfByte { line: 1, column: 4 }),
            ("00\n1 0x22", HexError::HalfByte { line: 2, column: 1 }),
            (
                ":10010000214601360121470136007EFE09D2190140",
                HexError::IntelHex { line: 1, column: 1 },
            ),
        ] {
            assert_eq!(parse_hex(text.as_bytes()), Err(error), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_survive_a_round_trip(bytes in proptest::collection::vec(any::<u8>(), 0..100), width in 1_usize..40) {
            let digits: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
            let lines: Vec<&[u8]> = digits.as_bytes().chunks(width).collect();
            prop_assert_eq!(parse_hex(&lines.join(&b'\n')).unwrap(), bytes);
        }

        #[test]
        fn text_in_pieces_is_read_as_text_in_one_piece(text in "[0-9a-fx ,\n]{0,60}", size in 1_usize..8) {
            let (mut parser, mut bytes) = (HexParser::new(), Vec::new());
            let fed = text.as_bytes().chunks(size).try_for_each(|piece| parser.feed(piece, &mut bytes));
            let read = fed.and_then(|()| parser.finish(&mut bytes)).map(|()| bytes);
            prop_assert_eq!(read, parse_hex(text.as_bytes()));
        }

        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_hex(&bytes);
        }
    }
}
