//! The options of a hop-by-hop header (RFC 8200, 4.2 and 4.3).

use std::ops::Range;

use super::FrameError;

/// The option's type: to be skipped by who does not know it, and may change on the way.
pub(super) const OPTION: u8 = 0x37;
const PAD_1: u8 = 0;
const PAD_N: u8 = 1;
/// Bytes after the option's length.
pub(super) const DATA_BYTES: usize = 100;
/// What our option makes a packet longer.
pub(super) const GROWTH: usize = 104;
/// The longest hop-by-hop header.
const HEADER_BYTES_MAX: usize = 2048;

/// Where the data of all options 0x37 lie in the header.
///
/// # Errors
/// An option that ends behind the header.
pub(super) fn find(header: &[u8]) -> Result<Vec<Range<usize>>, FrameError> {
    let mut found = Vec::new();
    let mut at = 2;
    while let Some(&option) = header.get(at) {
        if option == PAD_1 {
            at += 1;
            continue;
        }
        let length = *header.get(at + 1).ok_or(FrameError::Malformed)?;
        let data = at + 2..at + 2 + usize::from(length);
        if data.end > header.len() {
            return Err(FrameError::Malformed);
        }
        at = data.end;
        if option == OPTION {
            found.push(data);
        }
    }
    Ok(found)
}

/// Writes a hop-by-hop header that has our option once and everything else that was in it. `next` is what follows it if there
/// was none. The first option 0x37 of the right length is overwritten, all others become padding. Where the data lies in `out` is
/// returned.
///
/// # Errors
/// Options that cannot be read, or no room.
pub(super) fn write(
    before: &[u8],
    next: u8,
    data: &[u8; DATA_BYTES],
    out: &mut Vec<u8>,
) -> Result<usize, FrameError> {
    if before.is_empty() {
        // 12 units of 8 bytes beyond the first.
        out.extend_from_slice(&[next, 12, OPTION, 100]);
        out.extend_from_slice(data);
        return Ok(out.len() - DATA_BYTES);
    }
    let found = find(before)?;
    let start = out.len();
    let ours = found.iter().position(|range| range.len() == DATA_BYTES);
    if ours.is_none() && before.len() + GROWTH > HEADER_BYTES_MAX {
        return Err(FrameError::TooLong);
    }
    out.extend_from_slice(before);
    let header = out.get_mut(start..).unwrap_or_default();
    let mut data_at = None;
    for (place, range) in found.into_iter().enumerate() {
        let type_at = range.start.saturating_sub(2);
        let Some(place_of_data) = header.get_mut(range) else {
            continue;
        };
        if Some(place) == ours {
            place_of_data.copy_from_slice(data);
            data_at = Some(start + type_at + 2);
            continue;
        }
        place_of_data.fill(0);
        if let Some(option) = header.get_mut(type_at) {
            *option = PAD_N;
        }
    }
    if let Some(data_at) = data_at {
        return Ok(data_at);
    }
    if let Some(length) = header.get_mut(1) {
        *length += 13;
    }
    // Two bytes of padding, so that the fields lie at multiples of 8.
    out.extend_from_slice(&[PAD_N, 0, OPTION, 100]);
    out.extend_from_slice(data);
    Ok(out.len() - DATA_BYTES)
}
