//! Check of the nesting depth of a document before recursive reading.

use super::cursor::{LoadError, LoadResult};

/// Maximum nesting of lists and objects. An expression of maximum depth uses two levels for each operation. All recursive
/// functions need less than 1 MiB of stack for this depth; threads have 2 MiB.
pub const LEVELS_MAX: u32 = 1024;

/// Rejects a text that nests deeper than [`LEVELS_MAX`]. Does not check whether the text is valid JSON.
pub fn check(text: &[u8]) -> LoadResult<()> {
    let (mut levels, mut line, mut line_start) = (0u32, 1u32, 0);
    let (mut in_string, mut escaped) = (false, false);
    for (offset, byte) in text.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'\n' => (line, line_start) = (line.saturating_add(1), offset + 1),
            b'[' | b'{' if !in_string => {
                levels += 1;
                if levels > LEVELS_MAX {
                    return Err(LoadError {
                        location: format!("line {line}, column {}", offset - line_start + 1),
                        problem: format!("nesting exceeds the maximum of {LEVELS_MAX} levels"),
                    });
                }
            }
            b']' | b'}' if !in_string => levels = levels.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}
