//! The vectors as messages of all schemes in one batch. A receiver must refuse some messages with the expected reason;
//! every lane must return the expected result for the other messages.

use std::sync::{Arc, LazyLock};

use linewarden_arithmetic::Backend;
use linewarden_signatures::gpu::{Emulation, Gpu};
use linewarden_signatures::key::PublicKey;
use linewarden_signatures::lane::{BatchLane, GpuLane, KeyMemory, KeyPlacement, SingleLane};
use linewarden_signatures::message::{Draft, PayloadKind, UnsignedMessage};
use linewarden_signatures::receive::{Checked, Receiver};
use linewarden_signatures::refusal::Refusal;
use linewarden_signatures::scheme::Scheme;

use crate::common::{NOW, receiver_of, stamp};
use crate::validity::{curves, devices, rsa};

/// Expected result of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Refused by a receiver, before a lane.
    Refused(Refusal),
    /// The result of every lane.
    Valid(bool),
}

pub struct Vector {
    /// The special property of the vector.
    pub property: String,
    pub scheme: Scheme,
    pub bytes: Vec<u8>,
    pub expected: Expected,
}

/// Signers, and vectors whose messages name these signers.
pub type Vectors = (Vec<PublicKey>, Vec<Vector>);

pub fn draft(public: &PublicKey, kind: PayloadKind, payload: &[u8]) -> Draft {
    let unsigned = UnsignedMessage {
        scheme: public.scheme(),
        key_id: public.id(),
        stamp: stamp(NOW, 3),
        kind,
        payload,
    };
    unsigned.encode().expect("a short payload")
}

/// The message without its last byte, and the message with one more byte.
pub fn wrong_lengths(scheme: Scheme, message: &[u8]) -> [Vector; 2] {
    let longer = [message, &[0]].concat();
    [&message[..message.len() - 1], &longer].map(|bytes| Vector {
        property: "wrong length".to_owned(),
        scheme,
        bytes: bytes.to_vec(),
        expected: Expected::Refused(Refusal::WrongLength),
    })
}

fn vectors() -> (Receiver, Vec<Vector>) {
    let (mut signers, mut vectors) = (Vec::new(), Vec::new());
    for (keys, key_vectors) in rsa::vectors().into_iter().chain(curves::vectors()) {
        signers.extend(keys.into_iter().map(Arc::new));
        vectors.extend(key_vectors);
    }
    (receiver_of(signers.iter()), vectors)
}

/// Messages that pass the receiver's checks, their expected results, and their schemes and properties.
struct Table {
    messages: Vec<Checked>,
    expected: Vec<bool>,
    descriptions: Vec<(Scheme, String)>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let (receiver, vectors) = vectors();
    let mut table = Table {
        messages: Vec::new(),
        expected: Vec::new(),
        descriptions: Vec::new(),
    };
    for Vector {
        property,
        scheme,
        bytes,
        expected,
    } in vectors
    {
        let screened = receiver.screen(bytes, NOW);
        match (screened, expected) {
            (Err(reason), _) => assert_eq!(Expected::Refused(reason), expected, "{scheme}, {property}"),
            (Ok(_), Expected::Refused(reason)) => panic!("{scheme}, {property}: not refused: {reason}"),
            (Ok(message), Expected::Valid(is_valid)) => {
                table.messages.push(message);
                table.expected.push(is_valid);
                table.descriptions.push((scheme, property));
            }
        }
    }
    table
});

/// Compares a lane's results with the table: for all messages in order, and for all but the last in reverse order.
fn assert_results(lane: &str, mut verify: impl FnMut(&[Checked]) -> Vec<bool>) {
    let Table {
        messages,
        expected,
        descriptions,
    } = &*TABLE;
    let results = verify(messages);
    assert_eq!(results.len(), messages.len(), "{lane}");
    for (index, result) in results.into_iter().enumerate() {
        assert_eq!(
            result, expected[index],
            "{:?} in a mixed batch, {lane}",
            descriptions[index]
        );
    }
    let indices: Vec<usize> = (0..messages.len() - 1).rev().collect();
    let reversed: Vec<_> = indices.iter().map(|index| messages[*index].clone()).collect();
    let results = verify(&reversed);
    assert_eq!(results.len(), reversed.len(), "{lane}");
    for (result, index) in results.into_iter().zip(indices) {
        assert_eq!(
            result, expected[index],
            "{:?} at another position, {lane}",
            descriptions[index]
        );
    }
}

const MEMORY: KeyMemory = KeyMemory {
    table_bytes: 64 << 20,
    rsa_keys: 4,
    p256_keys: 4,
};

#[test]
fn every_scheme_has_valid_and_invalid_messages() {
    for scheme in Scheme::ALL {
        let cases = TABLE.descriptions.iter().zip(&TABLE.expected);
        let results: Vec<bool> = cases
            .filter_map(|((case_scheme, _), is_valid)| (*case_scheme == scheme).then_some(*is_valid))
            .collect();
        assert!(results.contains(&true) && results.contains(&false), "{scheme}");
    }
}

/// The option for low s applies only to the receiver: lanes accept both values of s.
#[test]
fn a_receiver_with_low_s_refuses_the_upper_half() {
    let (receiver, vectors) = vectors();
    let receiver = receiver.with_p256_low_s(true);
    let p256_vectors = vectors
        .into_iter()
        .filter(|vector| vector.scheme == Scheme::EcdsaP256);
    let mut refused = 0;
    for Vector {
        property,
        bytes,
        expected,
        ..
    } in p256_vectors
    {
        let screened = receiver.screen(bytes, NOW).map(drop);
        if property == curves::HIGH_S {
            assert_eq!(screened, Err(Refusal::Malleable));
            assert_eq!(expected, Expected::Valid(true));
            refused += 1;
        } else if expected == Expected::Valid(true) {
            assert_eq!(screened, Ok(()), "{property}");
        }
    }
    assert_eq!(refused, 4, "one per key");
}

#[test]
fn each_cpu_lane_has_the_same_results() {
    let mut single_lane = SingleLane::default();
    assert_results("single lane", |messages| {
        messages
            .iter()
            .map(|message| single_lane.verify_one(message))
            .collect()
    });
    for backend in Backend::available() {
        let mut batch_lane = BatchLane::with_backend(backend);
        assert_results(backend.name(), |messages| batch_lane.verify_all(messages));
    }
}

#[test]
fn a_device_has_the_same_results() {
    let emulated = || Gpu::emulated(Emulation::default()).map_err(|lost| panic!("{lost}"));
    let keys = TABLE.messages.iter().map(Checked::key);
    let placement = Arc::new(KeyPlacement::new(keys, MEMORY));
    let emulated = GpuLane::open_with(Box::new(emulated), Arc::clone(&placement));
    let mut lanes = vec![emulated.expect("an emulated device")];
    lanes.extend(devices::lanes(&placement));
    for lane in &mut lanes {
        let name = format!("{lane:?}");
        assert_results(&name, |messages| lane.verify_all(messages).expect("not lost"));
    }
}
