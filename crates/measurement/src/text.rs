//! Texts of somebody else's making, made fit for a line of a terminal or a log.

/// The text with control and format characters escaped, cut after `chars_max` characters.
pub(crate) fn shown(text: &str, chars_max: usize) -> String {
    let mut shown = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == chars_max {
            shown.push('…');
            break;
        }
        match c.is_control() || hides(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// Whether the character turns writing around, breaks lines or cannot be seen.
const fn hides(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}
