//! The options of a hop-by-hop header (RFC 8200, 4.2 and 4.3).

use std::ops::Range;

use super::FrameError;

/// The option type: nodes that do not know it skip it, and its data may change en route.
pub(super) const OPTION: u8 = 0x37;
const PAD_1: u8 = 0;
const PAD_N: u8 = 1;
/// Length of the option's data, bytes.
pub(super) const DATA_BYTES: usize = 100;
/// Bytes that the option adds to a packet.
pub(super) const GROWTH: usize = 104;
/// Maximum length of a hop-by-hop header.
const HEADER_BYTES_MAX: usize = 2048;

/// The data ranges of all options 0x37 in the header.
///
/// # Errors
/// An option extends beyond the header.
pub(super) fn find(header: &[u8]) -> Result<Vec<Range<usize>>, FrameError> {
    let mut ranges = Vec::new();
    let mut offset = 2;
    while let Some(&option) = header.get(offset) {
        if option == PAD_1 {
            offset += 1;
            continue;
        }
        let length = *header.get(offset + 1).ok_or(FrameError::Malformed)?;
        let data = offset + 2..offset + 2 + usize::from(length);
        if data.end > header.len() {
            return Err(FrameError::Malformed);
        }
        offset = data.end;
        if option == OPTION {
            ranges.push(data);
        }
    }
    Ok(ranges)
}

/// Writes a hop-by-hop header with one evidence option and all other options of `old_header`. `next` is the next
/// header if `old_header` is empty. The first option 0x37 of the right length is overwritten; all other options 0x37
/// become padding. Returns the offset of the option's data in `out`.
///
/// # Errors
/// The options cannot be parsed, or there is no room.
pub(super) fn write(
    old_header: &[u8],
    next: u8,
    data: &[u8; DATA_BYTES],
    out: &mut Vec<u8>,
) -> Result<usize, FrameError> {
    if old_header.is_empty() {
        // The header has 13 units of 8 bytes; its length field, 12, does not count the first unit.
        out.extend_from_slice(&[next, 12, OPTION, 100]);
        out.extend_from_slice(data);
        return Ok(out.len() - DATA_BYTES);
    }
    let ranges = find(old_header)?;
    let start = out.len();
    let existing = ranges.iter().position(|range| range.len() == DATA_BYTES);
    if existing.is_none() && old_header.len() + GROWTH > HEADER_BYTES_MAX {
        return Err(FrameError::TooLong);
    }
    out.extend_from_slice(old_header);
    let header = out.get_mut(start..).unwrap_or_default();
    let mut data_at = None;
    for (index, range) in ranges.into_iter().enumerate() {
        let type_at = range.start.saturating_sub(2);
        let Some(data_field) = header.get_mut(range) else {
            continue;
        };
        if Some(index) == existing {
            data_field.copy_from_slice(data);
            data_at = Some(start + type_at + 2);
            continue;
        }
        data_field.fill(0);
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
    // Two bytes of padding align the fields to 8 bytes.
    out.extend_from_slice(&[PAD_N, 0, OPTION, 100]);
    out.extend_from_slice(data);
    Ok(out.len() - DATA_BYTES)
}
