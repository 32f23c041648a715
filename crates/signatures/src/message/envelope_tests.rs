//! Parsing of bytes from the network.

use proptest::prelude::*;

use super::*;
use crate::message::{Priority, TimeMs};

fn unsigned<'a>(scheme: Scheme, bits: u64, kind: PayloadKind, payload: &'a [u8]) -> UnsignedMessage<'a> {
    UnsignedMessage {
        scheme,
        key_id: KeyId([7; 8]),
        stamp: Stamp::from_bits(bits).unwrap(),
        kind,
        payload,
    }
}

proptest! {
    #[test]
    fn encoded_messages_are_parsed(
        scheme in 0usize..6,
        bits in 0u64..1 << 44,
        kind in 0usize..3,
        payload in prop::collection::vec(any::<u8>(), 0..PAYLOAD_BYTES_MAX),
        fill in any::<u8>(),
    ) {
        let (scheme, kind) = (Scheme::ALL[scheme], PayloadKind::ALL[kind]);
        let draft = unsigned(scheme, bits, kind, &payload).encode().unwrap();
        let to_sign = draft.to_sign();
        let signature = vec![fill; scheme.signature_bytes()];
        let bytes = match scheme.is_rapid() {
            true => draft.with_mask(&[fill; MASK_NAME_BYTES], &signature),
            false => draft.with_signature(&signature),
        };
        let envelope = Envelope::parse(&bytes).unwrap();
        prop_assert_eq!((envelope.scheme, envelope.kind, envelope.stamp.bits()), (scheme, kind, bits));
        prop_assert_eq!((envelope.payload, envelope.signature), (payload.as_slice(), signature.as_slice()));
        prop_assert_eq!(envelope.mask_name.is_some(), scheme.is_rapid());
        prop_assert_eq!(envelope.signed_bytes().concat(), to_sign);
        prop_assert_eq!(Envelope::signed_part(&bytes, payload.len()).concat(), envelope.signed_bytes().concat());
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..600), likely in any::<bool>()) {
        if likely && bytes.len() > 3 {
            let scheme = bytes[3] % 8;
            bytes[..4].copy_from_slice(&[b'L', b'S', 1, scheme]);
        }
        if let Ok(envelope) = Envelope::parse(&bytes) {
            let rest = envelope.mask_name.map_or(0, |name| name.len()) + envelope.signature.len();
            prop_assert_eq!(HEADER_BYTES + envelope.payload.len() + rest, bytes.len());
        }
    }
}

#[test]
fn a_payload_that_is_too_long_is_not_encoded() {
    let stamp = Stamp {
        time: TimeMs::since_2020(0),
        priority: Priority::IMMEDIATE,
    };
    let payload = vec![0; PAYLOAD_BYTES_MAX + 1];
    let bits = stamp.bits();
    assert!(
        unsigned(Scheme::Ed25519, bits, PayloadKind::Opaque, &payload)
            .encode()
            .is_none()
    );
    assert!(
        unsigned(Scheme::Ed25519, bits, PayloadKind::Opaque, &payload[1..])
            .encode()
            .is_some()
    );
}
