//! Device configuration of a pipeline: plain JSON, or JSON wrapped in a protobuf message by older controllers.

use linewarden_p4runtime::error::EntityError;

/// Field of the message `p4.tmp.P4DeviceConfig` that holds the JSON.
const DEVICE_DATA: u64 = 3;

/// Extracts the JSON.
///
/// # Errors
/// INVALID_ARGUMENT if the data has neither format.
pub(super) fn json(config: &[u8]) -> Result<&[u8], EntityError> {
    let first = config.iter().find(|byte| !byte.is_ascii_whitespace());
    if first == Some(&b'{') {
        return Ok(config);
    }
    wrapped(config).ok_or_else(|| {
        EntityError::invalid(
            "p4_device_config is not a program: expected the JSON that p4c writes for BMv2 \
             (p4c-bm2-ss -o program.json)",
        )
    })
}

/// Extracts the field of a protobuf message; `None` if the data is not such a message.
fn wrapped(mut rest: &[u8]) -> Option<&[u8]> {
    let mut found = None;
    while !rest.is_empty() {
        let (key, after) = varint(rest)?;
        rest = after;
        match key & 7 {
            0 => rest = varint(rest)?.1,
            2 => {
                let (length, after) = varint(rest)?;
                let (value, after) = after.split_at_checked(usize::try_from(length).ok()?)?;
                rest = after;
                if key >> 3 == DEVICE_DATA {
                    found = Some(value);
                }
            }
            _ => return None,
        }
    }
    found
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    for (place, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f).checked_shl(u32::try_from(place).ok()? * 7)?;
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(place + 1..)?));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_is_found_with_and_without_its_wrapping() {
        assert_eq!(json(b" {}").unwrap(), b" {}");
        // reassign: true, extras: {}, device_data: "{}"
        assert_eq!(json(b"\x08\x01\x12\x00\x1a\x02{}").unwrap(), b"{}");
        for wrong in [
            &b""[..],
            b"hello",
            b"\x1a\x05{}",
            b"\x08\x01",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        ] {
            assert!(json(wrong).is_err(), "{wrong:02x?}");
        }
    }
}
