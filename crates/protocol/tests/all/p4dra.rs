//! `p4dra-classic` compared with the published proof and with a proof that distinguishes every order of fields (LAP/1
//! 3.1).

use linewarden_protocol::attest::{AttestationKey, ConfigurationHash};
use linewarden_protocol::classic::p4dra::prover::Prover;
use linewarden_protocol::classic::p4dra::{
    MESSAGE_BYTES_MAX, Message, PADDED_BYTES, ProverId, Round, Template, bytes_of, swap_word_bytes,
};
use proptest::prelude::*;
use serde_json::Value;

struct Vector {
    key: AttestationKey,
    id: ProverId,
    h: ConfigurationHash,
    round: Round,
    proof: [u8; 64],
}

fn vector(name: &str) -> Vector {
    let vectors: Value =
        serde_json::from_str(include_str!("../../../forro/tests/vectors/forro.json")).unwrap();
    fn field<const BYTES: usize>(vector: &Value, name: &str) -> [u8; BYTES] {
        let bytes = hex::decode(vector[name].as_str().unwrap()).unwrap();
        bytes.try_into().unwrap()
    }
    let vector = &vectors[name];
    Vector {
        key: AttestationKey::from_bytes(field(vector, "k")),
        id: ProverId(field(vector, "d")),
        h: ConfigurationHash(field(vector, "h")),
        round: Round {
            r: field(vector, "r"),
            n: field(vector, "n"),
        },
        proof: field(vector, "proof"),
    }
}

#[test]
fn proofs_equal_the_published_proofs() {
    for name in ["p4dra_official", "p4dra_asymmetric"] {
        let Vector {
            key,
            id,
            h,
            round,
            proof,
        } = vector(name);
        assert_eq!(Template::new(&key, &id, &h).proof(&round), proof, "{name}");
    }
    let Vector { key, id, round, .. } = vector("p4dra_asymmetric");
    let zero_hash_proof = Template::new(&key, &id, &ConfigurationHash([0; 32])).proof(&round);
    assert_eq!(
        hex::encode(zero_hash_proof),
        "38d05f3dbee198faf5fcd88754d46fb9db6886bd1f860c98666bac6d99715520\
         ce7dde78fbdf5346e42fee807d93ee279d0b369d723fe416f53be7aefb435b94"
    );
}

/// The reply of a prover, byte for byte, to a request with and without padding.
#[test]
fn a_reply_has_the_wire_format_of_the_published_tools() {
    let expected = "02 0302010007060504 0b0a09080f0e0d0c 13121110171615141b1a19181f1e1d1c\
                    34d129423ec1b4e9b23f86d77f65305887593813df59551d5b5059ac4e963eed\
                    3d92b4d8c97f38273880a9f3663daf5117d9d050884a7d9af22700fc297c93fe"
        .replace(' ', "");
    let Vector {
        key, id, h, round, ..
    } = vector("p4dra_asymmetric");
    let prover = Prover::new(&key, id, &h);
    for length in [17, PADDED_BYTES] {
        let mut request = vec![0; length];
        assert_eq!(Message::Request(round).write(&mut request), Some(17));
        assert_eq!(hex::encode(prover.reply(&request).unwrap()), expected);
    }
}

#[test]
fn a_prover_replies_to_requests_only() {
    let Vector {
        key,
        id,
        h,
        round,
        proof,
    } = vector("p4dra_asymmetric");
    let prover = Prover::new(&key, id, &h);
    for message in [
        Message::Start(round),
        Message::Reply(round, id, proof),
        Message::Calculating(round, id, 1, [0; 16], proof),
        Message::Verified(round, id, proof, proof),
        Message::Setup(key, id),
    ] {
        let mut payload = vec![0; bytes_of(message.operation()).unwrap()];
        message.write(&mut payload).unwrap();
        assert!(prover.reply(&payload).is_none(), "{}", message.operation());
    }
    assert!(prover.reply(&[1; 16]).is_none() && prover.reply(&[]).is_none());
}

#[test]
fn swapping_word_bytes_twice_changes_nothing() {
    let bytes: [u8; 16] = core::array::from_fn(|at| at as u8);
    assert_eq!(swap_word_bytes(bytes)[..8], [3, 2, 1, 0, 7, 6, 5, 4]);
    assert_eq!(swap_word_bytes(swap_word_bytes(bytes)), bytes);
}

proptest! {
    /// A parsed message is written as it was received, except for padding; other bytes do not parse.
    #[test]
    fn a_parsed_message_is_written_as_it_was_received(
        kind in 0u8..8,
        length in prop_oneof![Just(17usize), Just(65), Just(97), Just(161), Just(162), 0usize..200],
        bytes in prop::collection::vec(any::<u8>(), 200),
    ) {
        let mut payload = bytes[..length].to_vec();
        if let Some(first) = payload.first_mut() {
            *first = kind;
        }
        if kind == 5 && length == 65 {
            payload[1..17].fill(0);
        }
        let mut out = [0; MESSAGE_BYTES_MAX];
        let fits = bytes_of(kind).is_some_and(|expected_length| length == expected_length || expected_length == 17 && (17..=PADDED_BYTES).contains(&length));
        match Message::parse(&payload) {
            None => prop_assert!(!fits),
            Some(message) => {
                prop_assert!(fits);
                let written = message.write(&mut out).unwrap();
                prop_assert_eq!(&out[..written], &payload[..written]);
                prop_assert!(message.write(&mut out[..written - 1]).is_none());
            }
        }
    }
}
