//! Reads payloads, one per line.

use linewarden_cli::failure::Failure;
use std::io::{self, BufRead as _, BufReader};

use linewarden_signatures::ra::{COMPONENTS_MAX, SUBMESSAGE_BYTES_MAX};

/// Maximum length of a line in bytes.
///
/// The longest line is an array of the longest sub-messages, with each byte as `\u00XX`, quotes, commas and some blanks.
/// Payloads as hexadecimal digits and basic safety messages as JSON are shorter.
const LINE_BYTES_MAX: usize = COMPONENTS_MAX * (6 * SUBMESSAGE_BYTES_MAX + 16);

/// Reads a line without its line break. Returns `None` after the last line, or if `should_continue` returns false before a
/// line is complete. `to_failure` converts a read error.
pub fn next_line<R: io::Read>(
    reader: &mut BufReader<R>,
    to_failure: impl Fn(io::Error) -> Failure,
    mut should_continue: impl FnMut(&BufReader<R>) -> Result<bool, Failure>,
) -> Result<Option<Vec<u8>>, Failure> {
    let mut line = Vec::new();
    while should_continue(reader)? {
        let available = match reader.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            available => available.map_err(&to_failure)?,
        };
        let line_break = available.iter().position(|byte| *byte == b'\n');
        let (chunk, read_bytes) = match line_break {
            Some(line_break) => (available.get(..line_break), line_break + 1),
            None => (Some(available), available.len()),
        };
        line.extend_from_slice(chunk.unwrap_or_default());
        reader.consume(read_bytes);
        if line.len() > LINE_BYTES_MAX {
            let problem = format!("line longer than {LINE_BYTES_MAX} bytes");
            return Err(to_failure(io::Error::new(io::ErrorKind::InvalidData, problem)));
        }
        let is_at_end = read_bytes == 0;
        if line_break.is_some() || is_at_end {
            return Ok((line_break.is_some() || !line.is_empty()).then_some(line));
        }
    }
    Ok(None)
}
