//! How deep a document is nested, before anything reads it level by level.

use super::cursor::{LoadError, Loaded};

/// Most lists and objects within one another. An expression of the depth that is allowed takes two for each of its operations; all
/// that goes down level by level takes less than a MiB of stack for so many, where threads have two.
pub const LEVELS_MAX: u32 = 1024;

/// Refuses a text whose lists and objects are nested too deep. What is no JSON may pass.
pub fn check(text: &[u8]) -> Loaded<()> {
    let (mut levels, mut line, mut line_start) = (0u32, 1u32, 0);
    let (mut in_string, mut escaped) = (false, false);
    for (at, byte) in text.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'\n' => (line, line_start) = (line.saturating_add(1), at + 1),
            b'[' | b'{' if !in_string => {
                levels += 1;
                if levels > LEVELS_MAX {
                    return Err(LoadError {
                        place: format!("line {line}, column {}", at - line_start + 1),
                        what: format!("is nested more than {LEVELS_MAX} deep"),
                    });
                }
            }
            b']' | b'}' if !in_string => levels = levels.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}
