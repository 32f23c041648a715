//! Keys and messages for several test files.

use std::sync::{Arc, OnceLock};

use linewarden_signatures::key::{PrivateKey, PublicKey};
use linewarden_signatures::message::{PayloadKind, Priority, Stamp, TimeMs, UnsignedMessage};
use linewarden_signatures::ra::{Domain, Layout, Table};
use linewarden_signatures::receive::{Receiver, ReplayMemory, Signers, Window};
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::store::Revocations;

/// The current time in all tests.
pub const NOW: TimeMs = TimeMs::since_2020(0x123_4567_89ab);

/// A layout whose components have few values, apart from the digits of the stamp.
pub fn small_layout() -> Layout {
    let words = |words: &[&str]| Domain::Submessages(words.iter().map(ToString::to_string).collect());
    let components = vec![
        words(&["open", "close", "hold"]),
        words(&["valve", "pump"]),
        Domain::Byte,
    ];
    Layout::new(PayloadKind::Submessages, components).unwrap()
}

/// The test key of this scheme.
pub fn key(scheme: Scheme) -> &'static PrivateKey {
    static KEYS: [OnceLock<PrivateKey>; 6] = [const { OnceLock::new() }; 6];
    KEYS[usize::from(scheme.number()) - 1]
        .get_or_init(|| PrivateKey::generate(scheme, scheme.is_rapid().then(small_layout)).unwrap())
}

/// The table of the test key for RA with 2,048 bits.
pub fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        key(Scheme::RaRsa2048)
            .ra()
            .unwrap()
            .table(|_| true)
            .unwrap()
            .unwrap()
    })
}

/// A payload that depends on `number` and that the test key of the scheme can sign.
pub fn payload(scheme: Scheme, number: u8) -> (PayloadKind, Vec<u8>) {
    match scheme.is_rapid() {
        true => (PayloadKind::Submessages, vec![number % 3, number % 2, number]),
        false => (PayloadKind::Opaque, vec![number; usize::from(number)]),
    }
}

pub fn stamp(time: TimeMs, priority: u8) -> Stamp {
    Stamp {
        time,
        priority: Priority::try_from(priority).unwrap(),
    }
}

/// A mask name that depends on `number`.
pub fn mask_name(number: u64) -> [u8; 32] {
    let mut name = [0x5a; 32];
    name[..8].copy_from_slice(&number.to_le_bytes());
    name
}

/// A message with payload `number`, signed with the test key of the scheme.
pub fn sign(scheme: Scheme, stamp: Stamp, number: u8) -> Vec<u8> {
    let key = key(scheme);
    let (kind, payload) = payload(scheme, number);
    let draft = UnsignedMessage {
        scheme,
        key_id: key.public().id(),
        stamp,
        kind,
        payload: &payload,
    };
    let draft = draft.encode().unwrap();
    match key.ra() {
        None => key.sign_plain(draft).unwrap().unwrap(),
        Some(ra) => {
            let name = mask_name(stamp.bits() << 8 | u64::from(number));
            let digits = ra.public().layout().digits(stamp, kind, &payload).unwrap();
            let signature = ra.sign(&name, &digits).unwrap();
            draft.with_mask(&name, &signature)
        }
    }
}

/// A receiver with the test keys of all schemes.
pub fn receiver() -> Receiver {
    receiver_of(Scheme::ALL.into_iter().map(|scheme| key(scheme).public()))
}

pub fn receiver_of<'a>(keys: impl Iterator<Item = &'a Arc<PublicKey>>) -> Receiver {
    let mut signers = Signers::default();
    for key in keys {
        signers.add(copy(key)).unwrap();
    }
    let replays = ReplayMemory::new(Window::DEFAULT, 1 << 16, [7; 16]);
    Receiver::new(signers, Revocations::default(), Window::DEFAULT, replays)
}

/// The key after conversion to JSON and back, as receivers get it.
pub fn copy(key: &PublicKey) -> PublicKey {
    PublicKey::from_json(&key.to_json().unwrap()).unwrap()
}
