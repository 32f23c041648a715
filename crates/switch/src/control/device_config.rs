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
    unwrap_message(config).ok_or_else(|| {
        EntityError::invalid(
            "p4_device_config is not a program: expected the JSON that p4c writes for BMv2 \
             (p4c-bm2-ss -o program.json)",
        )
    })
}

/// Extracts the JSON from a protobuf message; `None` if the data are not a message with the field [`DEVICE_DATA`].
fn unwrap_message(mut remaining: &[u8]) -> Option<&[u8]> {
    let mut json = None;
    while !remaining.is_empty() {
        let (key, tail) = varint(remaining)?;
        remaining = tail;
        match key & 7 {
            0 => remaining = varint(remaining)?.1,
            2 => {
                let (length, tail) = varint(remaining)?;
                let (value, tail) = tail.split_at_checked(usize::try_from(length).ok()?)?;
                remaining = tail;
                if key >> 3 == DEVICE_DATA {
                    json = Some(value);
                }
            }
            _ => return None,
        }
    }
    json
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f).checked_shl(u32::try_from(index).ok()? * 7)?;
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(index + 1..)?));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_extracted_with_and_without_a_protobuf_message() {
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
