//! Recognizes LAP/1 messages by their first bytes.

use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{
    self, FLAG_BOUND, HEADER_BYTES, MAGIC, MESSAGE_BYTES, Message, PROOF_BYTES, VERSION, message_type,
};
use zerocopy::FromBytes as _;

/// Bytes kept of a datagram: enough for every message that is served. A short buffer keeps a whole batch in the
/// first-level cache.
pub(super) const BUFFER_BYTES: usize = 128;
const _: () = assert!(PROOF_BYTES <= BUFFER_BYTES);

/// A LAP/1 message of 64 B as eight words, loaded natively.
pub(super) type Words = [u64; MESSAGE_BYTES / 8];

/// The first word of a 64-byte message of suite 1.
pub(super) const fn h0(kind: u8, flags: u8) -> u64 {
    let [magic_high, magic_low] = MAGIC.to_be_bytes();
    let [length_high, length_low] = (MESSAGE_BYTES as u16).to_be_bytes();
    u64::from_le_bytes([
        magic_high,
        magic_low,
        VERSION,
        kind,
        1,
        flags,
        length_high,
        length_low,
    ])
}

pub(super) const H0_REQUEST: u64 = h0(message_type::REQUEST, 0);

pub(super) const H0_RESPONSE: u64 = h0(message_type::RESPONSE, 0);

pub(super) const H0_BOUND_BIT: u64 = (FLAG_BOUND as u64) << 40;

/// Kind of a payload. Valid headers are recognized by comparing words; only payloads of other kinds go through the
/// parser.
pub(super) enum MessageKind {
    Request(Words),
    Response(Words),
    Proof,
    Other(Verdict),
}

impl MessageKind {
    #[inline]
    pub(super) fn of(payload: &[u8], length: usize) -> Self {
        if length == PROOF_BYTES && payload.first_chunk().is_some_and(is_proof) {
            return Self::Proof;
        }
        let words = Words::read_from_bytes(payload)
            .ok()
            .filter(|_| length == MESSAGE_BYTES);
        if let Some(message) = words {
            let [h0, device_id, ..] = message;
            let [_, _, _, _, reserved @ ..] = message;
            if device_id != 0 && h0 == H0_REQUEST && reserved == [0; 4] {
                return Self::Request(message);
            }
            if device_id != 0 && h0 & !H0_BOUND_BIT == H0_RESPONSE {
                return Self::Response(message);
            }
        }
        Self::Other(drop_reason(payload, length))
    }
}

/// The parser's reason to drop. If the datagram is longer than the buffer, the parser receives its beginning with an
/// adjusted length field, which is correct if the original length field is correct.
#[cold]
pub(super) fn drop_reason(payload: &[u8], length: usize) -> Verdict {
    let mut truncated = [0u8; BUFFER_BYTES];
    let mut message = payload;
    if let (true, Some(truncated)) = (length > payload.len(), truncated.get_mut(..payload.len())) {
        truncated.copy_from_slice(payload);
        if let Some(field @ &mut [high, low]) = truncated.get_mut(6..8) {
            let is_correct = usize::from(u16::from_be_bytes([high, low])) == length;
            let field_value = if is_correct {
                payload.len()
            } else {
                payload.len() ^ 1
            };
            field.copy_from_slice(&u16::try_from(field_value).unwrap_or_default().to_be_bytes());
        }
        message = truncated;
    }
    match wire::parse(message) {
        Err(reason) => reason,
        Ok(Message::DataUp(..)) => Verdict::DropGateNotSealed,
        Ok(_) => Verdict::DropDirection,
    }
}

/// The first 8 bytes of a PROOF of suite 1.
const H0: [u8; 8] = {
    let [magic_high, magic_low] = MAGIC.to_be_bytes();
    let [length_high, length_low] = (PROOF_BYTES as u16).to_be_bytes();
    [
        magic_high,
        magic_low,
        VERSION,
        message_type::PROOF,
        1,
        0,
        length_high,
        length_low,
    ]
};

/// Whether a payload of [`PROOF_BYTES`] is a PROOF, determined by its header.
#[inline]
pub(super) fn is_proof(header: &[u8; HEADER_BYTES]) -> bool {
    header.starts_with(&H0) && !header.ends_with(&[0; 8])
}

#[cfg(test)]
mod tests {
    use super::*;
    use linewarden_protocol::ids::{DeviceId, Suite};
    use linewarden_protocol::wire::{Header, message_type};
    use zerocopy::IntoBytes as _;

    fn datagram(kind: u8, length: usize, length_field: u16) -> Vec<u8> {
        let header = Header::with_length(kind, Suite::SipHash128, 0, DeviceId(5), length_field);
        let mut bytes = header.as_bytes().to_vec();
        bytes.resize(length, 0);
        bytes
    }

    #[test]
    fn a_truncated_datagram_gets_the_verdict_of_the_full_datagram() {
        for kind in [
            message_type::REQUEST,
            message_type::DATA_UP,
            message_type::DATA_DOWN,
            9,
        ] {
            for length in [64, 127, 128, 129, 1400] {
                for length_field in [64, 128, 129, 1400, length as u16] {
                    let full_datagram = datagram(kind, length, length_field);
                    let truncated = &full_datagram[..length.min(BUFFER_BYTES)];
                    if kind == message_type::REQUEST && length == 64 && length_field == 64 {
                        continue;
                    }
                    assert_eq!(
                        drop_reason(truncated, length),
                        drop_reason(&full_datagram, length),
                        "{kind} {length} {length_field}"
                    );
                }
            }
        }
    }
}
