//! Reads payloads, one per line.

use linewarden_cli::failure::Failure;
use std::io::{self, BufRead as _, BufReader};

use linewarden_signatures::ra::{COMPONENTS_MAX, SUBMESSAGE_BYTES_MAX};

/// Maximum length of a line: a payload as hexadecimal digits, a basic safety message as JSON, or an array of the longest sub-messages with
/// each byte as `\u00XX`, quotes, commas and some blanks.
const LINE_BYTES_MAX: usize = COMPONENTS_MAX * (6 * SUBMESSAGE_BYTES_MAX + 16);

/// Reads a line without its line break; `None` after the last line, or if `should_continue` returns false before a line is complete. `unreadable`
/// builds the error.
pub fn next_line<R: io::Read>(
    reader: &mut BufReader<R>,
    unreadable: impl Fn(io::Error) -> Failure,
    mut should_continue: impl FnMut(&BufReader<R>) -> Result<bool, Failure>,
) -> Result<Option<Vec<u8>>, Failure> {
    let mut line = Vec::new();
    while should_continue(reader)? {
        let available = match reader.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            available => available.map_err(&unreadable)?,
        };
        let end = available.iter().position(|byte| *byte == b'\n');
        let (chunk, used) = match end {
            Some(end) => (available.get(..end), end + 1),
            None => (Some(available), available.len()),
        };
        line.extend_from_slice(chunk.unwrap_or_default());
        reader.consume(used);
        if line.len() > LINE_BYTES_MAX {
            let problem = format!("line longer than {LINE_BYTES_MAX} bytes");
            return Err(unreadable(io::Error::new(io::ErrorKind::InvalidData, problem)));
        }
        if end.is_some() || used == 0 {
            return Ok((end.is_some() || !line.is_empty()).then_some(line));
        }
    }
    Ok(None)
}
