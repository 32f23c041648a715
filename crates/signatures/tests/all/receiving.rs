//! Messages through a receiver and a lane: accepted messages, and the reasons of refusals, for each scheme.

use crate::common::{NOW, copy, key, mask_name, payload, receiver, receiver_of, sign, stamp};
use linewarden_signatures::key::PublicKey;
use linewarden_signatures::lane::SingleLane;
use linewarden_signatures::message::{
    HEADER_BYTES, KeyId, MESSAGE_BYTES_MAX, PayloadKind, TimeMs, UnsignedMessage,
};
use linewarden_signatures::receive::{Receiver, ReplayMemory, Signers, Verified, Window};
use linewarden_signatures::refusal::Refusal;
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::store::Revocations;
use num_bigint::BigUint;

fn receive(receiver: &mut Receiver, bytes: &[u8], now: TimeMs) -> Result<Verified, Refusal> {
    let checked = receiver.screen(bytes.to_vec(), now)?;
    let is_valid = SingleLane::default().verify_one(&checked);
    receiver.accept(checked, is_valid, now)
}

/// The reason why a new receiver refuses this message; `None` if the receiver accepts the message.
fn refusal(bytes: &[u8]) -> Option<Refusal> {
    receive(&mut receiver(), bytes, NOW).err()
}

#[test]
fn each_schemes_messages_are_accepted_once() {
    let mut receiver = receiver();
    for scheme in Scheme::ALL {
        for number in [0, 1, 200] {
            let stamp = stamp(NOW, number % 8);
            let bytes = sign(scheme, stamp, number);
            assert!(bytes.len() <= MESSAGE_BYTES_MAX);
            let verified = receive(&mut receiver, &bytes, NOW).unwrap();
            assert_eq!(verified.signer(), key(scheme).public().id());
            assert_eq!(verified.message().stamp(), stamp);
            assert_eq!((verified.kind(), verified.message().payload()), {
                let (kind, payload) = payload(scheme, number);
                (kind, payload.leak() as &[u8])
            });
            assert_eq!(
                receive(&mut receiver, &bytes, NOW).unwrap_err(),
                Refusal::Replayed,
                "{scheme}"
            );
        }
    }
}

/// A message that arrives twice before the first copy has been verified.
#[test]
fn one_of_two_copies_in_verification_is_accepted() {
    let mut receiver = receiver();
    for scheme in Scheme::ALL {
        let bytes = sign(scheme, stamp(NOW, 0), 5);
        let first = receiver.screen(bytes.clone(), NOW).unwrap();
        let second = receiver.screen(bytes, NOW).unwrap();
        assert!(receiver.accept(second, true, NOW).is_ok());
        assert_eq!(receiver.accept(first, true, NOW).unwrap_err(), Refusal::Replayed);
    }
}

/// A signature is valid with s and with n - s, and signers of other systems can use the higher value. A conversion
/// between these two forms does not make a new message.
#[test]
fn both_forms_of_an_ecdsa_signature_are_one_message() {
    let low = sign(Scheme::EcdsaP256, stamp(NOW, 0), 5);
    let split = low.len() - 32;
    let order = "ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551";
    let order = BigUint::parse_bytes(order.as_bytes(), 16).unwrap();
    let mut high = low.clone();
    let high_s = (order - BigUint::from_bytes_be(&low[split..])).to_bytes_be();
    high[split..].copy_from_slice(&high_s);
    for [first, second] in [[&low, &high], [&high, &low]] {
        let mut receiver = receiver();
        // The second form arrives twice: before the first form is accepted, and afterwards.
        let pending = receiver.screen(second.clone(), NOW).unwrap();
        assert!(receive(&mut receiver, first, NOW).is_ok());
        assert_eq!(
            receiver.accept(pending, true, NOW).unwrap_err(),
            Refusal::Replayed
        );
        assert_eq!(
            receive(&mut receiver, second, NOW).unwrap_err(),
            Refusal::Replayed
        );
    }
    let mut strict = receiver().with_p256_low_s(true);
    assert_eq!(receive(&mut strict, &high, NOW).unwrap_err(), Refusal::Malleable);
    assert!(receive(&mut strict, &low, NOW).is_ok());
}

/// Unverified messages are not remembered: a forger cannot use up the identity of a future message.
#[test]
fn a_forgery_does_not_block_the_valid_message() {
    let mut receiver = receiver();
    for scheme in Scheme::ALL {
        let bytes = sign(scheme, stamp(NOW, 0), 6);
        let mut forged = bytes.clone();
        // Changes the second-last byte, so that the number in the signature stays in its range with every scheme.
        let offset = forged.len() - 2;
        forged[offset] ^= 1;
        assert!(receive(&mut receiver, &forged, NOW).is_err(), "{scheme}");
        assert!(receive(&mut receiver, &bytes, NOW).is_ok(), "{scheme}");
    }
}

#[test]
fn messages_with_a_changed_bit_or_length_are_refused() {
    for scheme in Scheme::ALL {
        let bytes = sign(scheme, stamp(NOW, 3), 2);
        assert_eq!(refusal(&bytes), None);
        for bit in (0..8 * bytes.len()).step_by(if bytes.len() > 200 { 5 } else { 1 }) {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(refusal(&changed).is_some(), "{scheme}: bit {bit}");
        }
        for length in 0..bytes.len() {
            let reason = refusal(&bytes[..length]).unwrap();
            let expected = match length {
                ..HEADER_BYTES => Refusal::Malformed,
                _ => Refusal::WrongLength,
            };
            assert_eq!(reason, expected, "{scheme}: {length} bytes");
        }
        assert_eq!(
            refusal(&[bytes.as_slice(), &[0]].concat()),
            Some(Refusal::WrongLength)
        );
    }
}

#[test]
fn header_fields_are_checked_in_order() {
    let bytes = sign(Scheme::Ed25519, stamp(NOW, 3), 2);
    let refusal_with = |offset: usize, value: u8| {
        let mut changed = bytes.clone();
        changed[offset] = value;
        refusal(&changed)
    };
    assert_eq!(refusal_with(0, b'l'), Some(Refusal::Malformed));
    assert_eq!(refusal_with(2, 2), Some(Refusal::UnsupportedVersion));
    assert_eq!(refusal_with(3, 0), Some(Refusal::UnknownScheme));
    assert_eq!(refusal_with(3, 7), Some(Refusal::UnknownScheme));
    assert_eq!(
        refusal_with(3, Scheme::EcdsaP256.number()),
        Some(Refusal::KeySchemeMismatch)
    );
    assert_eq!(refusal_with(4, bytes[4] ^ 1), Some(Refusal::UnknownSigner));
    assert_eq!(refusal_with(12, bytes[12] | 0x10), Some(Refusal::Malformed));
    assert_eq!(refusal_with(18, 3), Some(Refusal::Malformed));
    assert_eq!(
        refusal_with(18, PayloadKind::Submessages.number()),
        Some(Refusal::WrongLayout)
    );
    assert_eq!(refusal_with(19, 4), Some(Refusal::WrongLength));
    assert_eq!(refusal_with(19, 5), Some(Refusal::WrongLength));
}

#[test]
fn a_signature_of_another_key_of_the_same_scheme_is_invalid() {
    use linewarden_signatures::key::PrivateKey;
    for scheme in [Scheme::EcdsaP256, Scheme::Ed25519, Scheme::RsaPss2048] {
        let other_key = PrivateKey::generate(scheme, None).unwrap();
        let mut receiver = receiver_of([key(scheme).public(), other_key.public()].into_iter());
        let mut bytes = sign(scheme, stamp(NOW, 0), 9);
        assert!(receive(&mut receiver, &bytes, NOW).is_ok());
        bytes[4..12].copy_from_slice(&other_key.public().id().0);
        let reason = receive(&mut receiver, &bytes, NOW).unwrap_err();
        // An RSA signature can exceed the modulus of the other key.
        assert!(
            matches!(reason, Refusal::WrongSignature | Refusal::OutOfRange),
            "{scheme}"
        );
    }
}

#[test]
fn stamps_must_be_recent() {
    let window = Window::DEFAULT;
    let (age, ahead) = (u64::from(window.age_ms_max), u64::from(window.ahead_ms_max));
    let refusal_at = |ms: u64| refusal(&sign(Scheme::Ed25519, stamp(TimeMs::since_2020(ms), 0), 1));
    assert_eq!(refusal_at(NOW.ms() - age), None);
    assert_eq!(refusal_at(NOW.ms() - age - 1), Some(Refusal::TooOld));
    assert_eq!(refusal_at(NOW.ms() + ahead), None);
    assert_eq!(refusal_at(NOW.ms() + ahead + 1), Some(Refusal::TooNew));
    // A message can become too old between `screen` and `accept`.
    let mut receiver = receiver();
    let bytes = sign(Scheme::Ed25519, stamp(NOW, 0), 1);
    let checked = receiver.screen(bytes, NOW).unwrap();
    let later = TimeMs::since_2020(NOW.ms() + age + 1);
    assert_eq!(
        receiver.accept(checked, true, later).unwrap_err(),
        Refusal::TooOld
    );
}

#[test]
fn waiting_messages_of_revoked_signers_are_refused() {
    let mut receiver = receiver();
    let signer = key(Scheme::Ed25519).public().id();
    let bytes = sign(Scheme::Ed25519, stamp(NOW, 0), 1);
    let waiting = receiver.screen(bytes.clone(), NOW).unwrap();
    receiver.set_revoked([signer].into_iter().collect());
    assert_eq!(receiver.screen(bytes.clone(), NOW).unwrap_err(), Refusal::Revoked);
    assert_eq!(receiver.accept(waiting, true, NOW).unwrap_err(), Refusal::Revoked);
    assert!(receive(&mut receiver, &sign(Scheme::EcdsaP256, stamp(NOW, 0), 1), NOW).is_ok());
    receiver.set_revoked(Revocations::default());
    assert!(receive(&mut receiver, &bytes, NOW).is_ok());
}

/// All messages have the same invalid signature. The first message matches the layout, so only its signature is wrong.
#[test]
fn a_payload_of_another_layout_is_refused_before_verification() {
    for scheme in [Scheme::RaRsa2048, Scheme::RaRsa3072] {
        let public = key(scheme).public();
        let refusal_of = |kind, payload: &[u8]| {
            let draft = UnsignedMessage {
                scheme,
                key_id: public.id(),
                stamp: stamp(NOW, 0),
                kind,
                payload,
            };
            let message = draft.encode().unwrap();
            refusal(&message.with_mask(&mask_name(1), &vec![7; scheme.signature_bytes()]))
        };
        assert_eq!(
            refusal_of(PayloadKind::Submessages, &[2, 1, 255]),
            Some(Refusal::WrongSignature)
        );
        assert_eq!(
            refusal_of(PayloadKind::Submessages, &[3, 1, 255]),
            Some(Refusal::WrongLayout)
        );
        assert_eq!(
            refusal_of(PayloadKind::Submessages, &[2, 2, 255]),
            Some(Refusal::WrongLayout)
        );
        assert_eq!(
            refusal_of(PayloadKind::Submessages, &[2, 1]),
            Some(Refusal::WrongLayout)
        );
        assert_eq!(
            refusal_of(PayloadKind::Submessages, &[2, 1, 0, 0]),
            Some(Refusal::WrongLayout)
        );
        assert_eq!(
            refusal_of(PayloadKind::Opaque, &[2, 1, 255]),
            Some(Refusal::WrongLayout)
        );
        assert_eq!(
            refusal_of(PayloadKind::Submessages, &[]),
            Some(Refusal::WrongLayout)
        );
    }
}

#[test]
fn rsa_numbers_out_of_their_range_are_refused() {
    for scheme in Scheme::ALL {
        let bytes = sign(scheme, stamp(NOW, 0), 3);
        let split = bytes.len() - scheme.signature_bytes();
        let refusal_with = |signature: &[u8]| refusal(&[&bytes[..split], signature].concat());
        let size = scheme.signature_bytes();
        let number = |last: u8| {
            let mut number = vec![0; size];
            number[size - 1] = last;
            number
        };
        if scheme.modulus_bytes().is_none() {
            continue;
        }
        let json = key(scheme).public().to_json().unwrap();
        let modulus = modulus_of(&json);
        let modulus_minus_1 = one_less(&modulus);
        let modulus_minus_2 = one_less(&modulus_minus_1);
        for (signature, reason) in [
            (number(0), Refusal::OutOfRange),
            (number(1), Refusal::OutOfRange),
            (number(2), Refusal::WrongSignature),
            (modulus, Refusal::OutOfRange),
            (modulus_minus_1, Refusal::OutOfRange),
            (modulus_minus_2, Refusal::WrongSignature),
            (vec![0xff; size], Refusal::OutOfRange),
        ] {
            assert_eq!(refusal_with(&signature), Some(reason), "{scheme}");
        }
    }
}

fn one_less(number: &[u8]) -> Vec<u8> {
    let mut result = number.to_vec();
    for byte in result.iter_mut().rev() {
        let (next, borrow) = byte.overflowing_sub(1);
        *byte = next;
        if !borrow {
            break;
        }
    }
    result
}

fn modulus_of(json: &str) -> Vec<u8> {
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    hex::decode(json["key"].as_str().unwrap()).unwrap()
}

/// A message that cannot be remembered is not accepted, since it could be replayed.
#[test]
fn a_full_replay_memory_refuses_messages_until_entries_expire() {
    let mut signers = Signers::default();
    signers.add(copy(key(Scheme::Ed25519).public())).unwrap();
    let replays = ReplayMemory::new(Window::DEFAULT, 2, [1; 16]);
    let mut receiver = Receiver::new(signers, Revocations::default(), Window::DEFAULT, replays);
    let message = |number| sign(Scheme::Ed25519, stamp(NOW, 0), number);
    assert!(receive(&mut receiver, &message(1), NOW).is_ok());
    assert!(receive(&mut receiver, &message(2), NOW).is_ok());
    let refusal = receive(&mut receiver, &message(3), NOW).unwrap_err();
    assert_eq!(refusal, Refusal::ReplayMemoryFull);
    let later = TimeMs::since_2020(NOW.ms() + 2 * Window::DEFAULT.length_ms());
    let later_message = sign(Scheme::Ed25519, stamp(later, 0), 3);
    assert!(receive(&mut receiver, &later_message, later).is_ok());
}

/// A receiver possibly has no record of messages that were accepted before its start, or before the clock was set back.
#[test]
fn messages_outside_the_replay_memory_are_refused() {
    let receiver_since = |first| {
        let mut signers = Signers::default();
        signers.add(copy(key(Scheme::Ed25519).public())).unwrap();
        let replays = ReplayMemory::new(Window::DEFAULT, 100, [1; 16]).accept_since(first);
        Receiver::new(signers, Revocations::default(), Window::DEFAULT, replays)
    };
    let time_after = |ms: u64| TimeMs::since_2020(NOW.ms() + ms);
    let message = |ms| sign(Scheme::Ed25519, stamp(time_after(ms), 0), 1);
    let mut receiver = receiver_since(time_after(0));
    let earlier_message = sign(Scheme::Ed25519, stamp(TimeMs::since_2020(NOW.ms() - 1), 0), 1);
    assert_eq!(
        receive(&mut receiver, &earlier_message, NOW).unwrap_err(),
        Refusal::TooOld
    );
    assert!(receive(&mut receiver, &message(0), NOW).is_ok());
    // Long afterwards, the clock is set back to a time at which the first message would be recent enough.
    let later = u64::from(Window::DEFAULT.age_ms_max) * 10;
    assert!(receive(&mut receiver, &message(later), time_after(later)).is_ok());
    assert_eq!(
        receive(&mut receiver, &message(0), time_after(0)).unwrap_err(),
        Refusal::TooOld
    );
}

#[test]
fn public_keys_survive_json_and_changes_are_refused() {
    for scheme in Scheme::ALL {
        let public = key(scheme).public();
        let text = public.to_json().unwrap();
        assert_eq!(copy(public).id(), public.id());
        assert_eq!(copy(public).to_json().unwrap(), text);
        let changes = [
            (
                "\"format\": \"linewarden signer 1\"",
                "\"format\": \"linewarden signer 2\"",
            ),
            (scheme.name(), "rsa"),
            ("\"id\": \"", "\"id\": \"00"),
            ("\"key\": \"", "\"key\": \"00"),
            ("\"key\": \"", "\"kez\": \""),
            ("open", "Open"),
            ("\"byte\"", "\"bytes\""),
            ("{", "{\"more\": 1, "),
        ];
        for (from, to) in changes {
            if let Some(changed) = text.contains(from).then(|| text.replacen(from, to, 1)) {
                assert!(PublicKey::from_json(&changed).is_err(), "{scheme}: {from} → {to}");
            }
        }
    }
    assert_eq!(
        "0011223344556677".parse::<KeyId>().unwrap().to_string(),
        "0011223344556677"
    );
    assert!("001122334455667".parse::<KeyId>().is_err());
}
