//! Escapes untrusted text for terminals and logs.

/// The text with control and format characters escaped, cut after `chars_max` characters.
pub(crate) fn escape_text(text: &str, chars_max: usize) -> String {
    let mut escaped = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == chars_max {
            escaped.push('…');
            break;
        }
        match c.is_control() || is_hidden(c) {
            true => escaped.extend(c.escape_default()),
            false => escaped.push(c),
        }
    }
    escaped
}

/// Whether the character changes the writing direction, breaks lines or is invisible.
const fn is_hidden(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}
