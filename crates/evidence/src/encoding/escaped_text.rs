//! Untrusted text in output.

use std::fmt;

/// Untrusted text, escaped for terminals and logs.
pub(crate) struct EscapedText<'a>(pub &'a str);

impl fmt::Display for EscapedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const CHARS_MAX: usize = 200;
        for (count, c) in self.0.chars().enumerate() {
            match c {
                _ if count == CHARS_MAX => return f.write_str("…"),
                // Control characters, and characters that change the writing direction or are invisible.
                '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' => {
                    write!(f, "{}", c.escape_unicode())?;
                }
                c if c.is_control() => write!(f, "{}", c.escape_default())?,
                c => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}
