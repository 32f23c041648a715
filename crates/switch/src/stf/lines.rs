//! Cursor over a line of a test.

use super::error::StfError;
use super::numbers::{Base, Number};

/// Maximum number of digits of a number: a field of 16,384 bits, eight times the limit of p4c.
const DIGITS_MAX: usize = 4096;

/// Cursor in a line: everything before `unparsed` has been parsed.
pub(super) struct Cursor<'a> {
    file: &'a str,
    line: u32,
    text: &'a str,
    unparsed: &'a str,
}

impl<'a> Cursor<'a> {
    /// Creates a cursor for a line without its comment.
    pub(super) fn new(file: &'a str, line: u32, text: &'a str) -> Self {
        let mut quoted = false;
        let end = text.find(|character| {
            quoted ^= character == '"';
            character == '#' && !quoted
        });
        let text = end.and_then(|end| text.get(..end)).unwrap_or(text);
        Self {
            file,
            line,
            text,
            unparsed: text.trim_start(),
        }
    }

    /// Creates an error that names the expected element.
    pub(super) fn fail(&self, expected: impl Into<String>) -> StfError {
        let word = self.unparsed.split_whitespace().next();
        let found = word.map_or("the end of the line".to_owned(), |word| {
            format!("`{}`", word.chars().take(40).collect::<String>())
        });
        let offset = self.text.len() - self.unparsed.len();
        let column = self.text.get(..offset).map_or(0, |parsed| parsed.chars().count()) + 1;
        StfError {
            file: self.file.to_owned(),
            line: self.line,
            column: u32::try_from(column).unwrap_or(u32::MAX),
            found,
            expected: expected.into(),
        }
    }

    /// Current position, for [`Self::rewind`].
    pub(super) fn position(&self) -> &'a str {
        self.unparsed
    }

    /// Resets the cursor to a position of this line.
    pub(super) fn rewind(&mut self, position: &'a str) {
        self.unparsed = position;
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.unparsed.is_empty()
    }

    /// Whether the next character satisfies `matches`.
    pub(super) fn next_is(&self, matches: impl Fn(char) -> bool) -> bool {
        self.unparsed.starts_with(matches)
    }

    /// Takes the leading characters that satisfy `matches`.
    fn take_while(&mut self, matches: impl Fn(char) -> bool) -> &'a str {
        let end = self
            .unparsed
            .find(|character| !matches(character))
            .unwrap_or(self.unparsed.len());
        let (text, rest) = self.unparsed.split_at_checked(end).unwrap_or((self.unparsed, ""));
        self.unparsed = rest;
        text
    }

    fn skip_blank(&mut self) {
        self.unparsed = self.unparsed.trim_start();
    }

    /// Takes `symbol` and the following blanks if the unparsed text starts with `symbol`; returns whether it does.
    pub(super) fn accept(&mut self, symbol: &str) -> bool {
        match self.unparsed.strip_prefix(symbol) {
            Some(rest) => {
                self.unparsed = rest.trim_start();
                true
            }
            None => false,
        }
    }

    /// Takes `symbol`; an error that names `expected` if the unparsed text does not start with `symbol`.
    pub(super) fn expect(&mut self, symbol: &str, expected: &str) -> Result<(), StfError> {
        if self.accept(symbol) {
            Ok(())
        } else {
            Err(self.fail(expected))
        }
    }

    /// Requires the end of the line.
    pub(super) fn end(&self) -> Result<(), StfError> {
        if self.is_at_end() {
            Ok(())
        } else {
            Err(self.fail("the end of the line"))
        }
    }

    /// Takes a name without dots or a quoted text, without skipping blanks.
    fn identifier_only(&mut self, expected: &str) -> Result<&'a str, StfError> {
        if let Some((name, rest)) = self
            .unparsed
            .strip_prefix('"')
            .and_then(|rest| rest.split_once('"'))
        {
            if name.is_empty() {
                return Err(self.fail(expected));
            }
            self.unparsed = rest;
            return Ok(name);
        }
        if !self.next_is(|first| first.is_ascii_alphabetic() || first == '_' || first == '$') {
            return Err(self.fail(expected));
        }
        Ok(self.take_while(|next| next.is_ascii_alphanumeric() || next == '_' || next == '$'))
    }

    /// Takes a name without dots.
    pub(super) fn identifier(&mut self, expected: &str) -> Result<&'a str, StfError> {
        let name = self.identifier_only(expected)?;
        self.skip_blank();
        Ok(name)
    }

    /// Takes a name with dots and indices.
    pub(super) fn name(&mut self, expected: &str) -> Result<String, StfError> {
        let mut name = self.identifier_only(expected)?.to_owned();
        loop {
            if let Some(rest) = self.unparsed.strip_prefix('.') {
                self.unparsed = rest;
                name.push('.');
                name.push_str(self.identifier_only("the next part of a name")?);
            } else if let Some(rest) = self.unparsed.strip_prefix('[') {
                self.unparsed = rest;
                let index = self.take_while(|digit| digit.is_ascii_digit());
                if index.is_empty() || !self.unparsed.starts_with(']') {
                    return Err(self.fail("an index in brackets such as `[0]`"));
                }
                self.unparsed = self.unparsed.strip_prefix(']').unwrap_or(self.unparsed);
                name.push_str(&format!("[{index}]"));
            } else {
                self.skip_blank();
                return Ok(name);
            }
        }
    }

    /// Takes a number with optional wildcards.
    pub(super) fn number(&mut self, expected: &str) -> Result<Number, StfError> {
        let start = self.position();
        let word = self.take_while(|next| next.is_ascii_alphanumeric() || next == '*');
        let number = digits(word);
        if number.is_none() {
            self.rewind(start);
        }
        self.skip_blank();
        number.ok_or_else(|| self.fail(expected))
    }

    /// Takes a number that fits `T` and has no wildcards.
    pub(super) fn integer<T: TryFrom<u64>>(&mut self, expected: &str) -> Result<T, StfError> {
        let start = self.position();
        let number = self.number(expected)?;
        number
            .to_u64()
            .and_then(|value| T::try_from(value).ok())
            .ok_or_else(|| {
                self.rewind(start);
                self.fail(expected)
            })
    }

    /// Takes a number with a fraction.
    pub(super) fn decimal(&mut self, expected: &str) -> Result<f64, StfError> {
        let start = self.position();
        let word = self.take_while(|next| next.is_ascii_digit() || next == '.');
        let number = word.parse().ok();
        if number.is_none() {
            self.rewind(start);
        }
        self.skip_blank();
        number.ok_or_else(|| self.fail(expected))
    }

    /// Takes a decimal port number, followed by a blank or the end of the line.
    pub(super) fn port(&mut self) -> Result<u32, StfError> {
        let start = self.position();
        let word = self.take_while(|next| !next.is_whitespace());
        let port = if word.bytes().all(|digit| digit.is_ascii_digit()) {
            word.parse().ok()
        } else {
            None
        };
        if port.is_none() {
            self.rewind(start);
        }
        self.skip_blank();
        port.ok_or_else(|| self.fail("a port in decimal digits"))
    }

    /// Takes the next character and skips following blanks.
    pub(super) fn character(&mut self) -> Option<char> {
        let mut characters = self.unparsed.chars();
        let next = characters.next();
        self.unparsed = characters.as_str().trim_start();
        next
    }
}

fn digits(word: &str) -> Option<Number> {
    let lower = word.get(..2).map(str::to_ascii_lowercase);
    let (base, digits) = match (lower.as_deref(), word.get(2..)) {
        (Some("0x"), Some(digits)) => (Base::Hexadecimal, digits),
        (Some("0b"), Some(digits)) => (Base::Binary, digits),
        _ => (Base::Decimal, word),
    };
    let is_digit = |digit: char| match base {
        Base::Binary => matches!(digit, '0' | '1' | '*'),
        Base::Decimal => digit.is_ascii_digit(),
        Base::Hexadecimal => digit.is_ascii_hexdigit() || digit == '*',
    };
    ((1..=DIGITS_MAX).contains(&digits.len()) && digits.chars().all(is_digit))
        .then(|| Number::new(base, digits.to_owned()))
}
