//! The table as messages, of all schemes, mixed: refusals of a receiver with their reasons, and verdicts of every lane
//! on the others.

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
use crate::{curves, devices, rsa};

/// Expected result of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Refused by a receiver, before a lane.
    Refused(Refusal),
    /// The verdict of every lane.
    Valid(bool),
}

pub struct Vector {
    /// The special property of the vector.
    pub property: String,
    pub scheme: Scheme,
    pub bytes: Vec<u8>,
    pub verdict: Verdict,
}

/// Signers, and messages in their names.
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

/// One byte too short, and one byte too long.
pub fn misshapen(scheme: Scheme, message: &[u8]) -> [Vector; 2] {
    let longer = [message, &[0]].concat();
    [&message[..message.len() - 1], &longer].map(|bytes| Vector {
        property: "another length".to_owned(),
        scheme,
        bytes: bytes.to_vec(),
        verdict: Verdict::Refused(Refusal::WrongLength),
    })
}

fn vectors() -> (Receiver, Vec<Vector>) {
    let (mut signers, mut vectors) = (Vec::new(), Vec::new());
    for (keys, of_keys) in rsa::vectors().into_iter().chain(curves::vectors()) {
        signers.extend(keys.into_iter().map(Arc::new));
        vectors.extend(of_keys);
    }
    (receiver_of(signers.iter()), vectors)
}

/// Messages that pass the receiver's checks, and their expected verdicts.
struct Table {
    messages: Vec<Checked>,
    expected: Vec<bool>,
    of: Vec<(Scheme, String)>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let (receiver, vectors) = vectors();
    let mut table = Table {
        messages: Vec::new(),
        expected: Vec::new(),
        of: Vec::new(),
    };
    for Vector {
        property,
        scheme,
        bytes,
        verdict,
    } in vectors
    {
        let screened = receiver.screen(bytes, NOW);
        match (screened, verdict) {
            (Err(reason), _) => assert_eq!(Verdict::Refused(reason), verdict, "{scheme}, {property}"),
            (Ok(_), Verdict::Refused(reason)) => panic!("{scheme}, {property}: not refused: {reason}"),
            (Ok(message), Verdict::Valid(holds)) => {
                table.messages.push(message);
                table.expected.push(holds);
                table.of.push((scheme, property));
            }
        }
    }
    table
});

/// Compares a lane's verdicts with the table, in both orders.
fn assert_verdicts(lane: &str, mut holds: impl FnMut(&[Checked]) -> Vec<bool>) {
    let Table {
        messages,
        expected,
        of,
    } = &*TABLE;
    let verdicts = holds(messages);
    assert_eq!(verdicts.len(), messages.len(), "{lane}");
    for (at, verdict) in verdicts.into_iter().enumerate() {
        assert_eq!(verdict, expected[at], "{:?} in a mixed batch, {lane}", of[at]);
    }
    let places: Vec<usize> = (0..messages.len() - 1).rev().collect();
    let backwards: Vec<_> = places.iter().map(|at| messages[*at].clone()).collect();
    let verdicts = holds(&backwards);
    assert_eq!(verdicts.len(), backwards.len(), "{lane}");
    for (verdict, at) in verdicts.into_iter().zip(places) {
        assert_eq!(verdict, expected[at], "{:?} at another position, {lane}", of[at]);
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
        let of = TABLE.of.iter().zip(&TABLE.expected);
        let verdicts: Vec<bool> = of
            .filter_map(|((of, _), holds)| (*of == scheme).then_some(*holds))
            .collect();
        assert!(verdicts.contains(&true) && verdicts.contains(&false), "{scheme}");
    }
}

/// A setting of the receiver, without effect on lanes.
#[test]
fn a_receiver_with_low_s_refuses_the_upper_half() {
    let (receiver, vectors) = vectors();
    let receiver = receiver.with_p256_low_s(true);
    let of_p256 = vectors
        .into_iter()
        .filter(|vector| vector.scheme == Scheme::EcdsaP256);
    let mut refused = 0;
    for Vector {
        property,
        bytes,
        verdict,
        ..
    } in of_p256
    {
        let screened = receiver.screen(bytes, NOW).map(drop);
        if property == curves::HIGH_S {
            assert_eq!(screened, Err(Refusal::Malleable));
            assert_eq!(verdict, Verdict::Valid(true));
            refused += 1;
        } else if verdict == Verdict::Valid(true) {
            assert_eq!(screened, Ok(()), "{property}");
        }
    }
    assert_eq!(refused, 4, "one per key");
}

#[test]
fn each_cpu_lane_has_the_same_verdict() {
    let mut one = SingleLane::default();
    assert_verdicts("one at a time", |messages| {
        messages.iter().map(|message| one.verify_one(message)).collect()
    });
    for backend in Backend::available() {
        let mut batch_lane = BatchLane::with_backend(backend);
        assert_verdicts(backend.name(), |messages| batch_lane.verify_all(messages));
    }
}

#[test]
fn a_device_has_the_same_verdict() {
    let emulated = || Gpu::emulated(Emulation::default()).map_err(|lost| panic!("{lost}"));
    let keys = TABLE.messages.iter().map(Checked::key);
    let places = Arc::new(KeyPlacement::new(keys, MEMORY));
    let emulated = GpuLane::open_with(Box::new(emulated), Arc::clone(&places));
    let mut lanes = vec![emulated.expect("an emulated device")];
    lanes.extend(devices::lanes(&places));
    for lane in &mut lanes {
        let name = format!("{lane:?}");
        assert_verdicts(&name, |messages| lane.verify_all(messages).expect("not lost"));
    }
}
