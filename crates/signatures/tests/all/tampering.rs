//! Files and datagrams with changed, moved, duplicated and missing bytes: each is refused or valid, and no input causes a
//! panic. `PROPTEST_CASES` sets the number of cases.

use std::sync::LazyLock;

use crate::common::{NOW, key, receiver, sign, stamp};
use linewarden_signatures::bsm::CoreData;
use linewarden_signatures::gpu::Cubin;
use linewarden_signatures::key::{PrivateKey, PublicKey};
use linewarden_signatures::lane::SingleLane;
use linewarden_signatures::receive::Receiver;
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::simulator::trace;
use linewarden_signatures::store::Revocations;
use proptest::prelude::*;
use proptest::sample::Index;

/// A change of some bytes.
#[derive(Debug, Clone)]
enum Corruption {
    Flip(Index, u8),
    Overwrite(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Truncate(Index),
    Copy { from: Index, to: Index, length: usize },
}

fn corruption() -> impl Strategy<Value = Corruption> {
    let any_index = any::<Index>;
    prop_oneof![
        (any_index(), 0u8..8).prop_map(|(index, bit)| Corruption::Flip(index, bit)),
        (any_index(), any::<u8>()).prop_map(|(index, byte)| Corruption::Overwrite(index, byte)),
        (any_index(), prop::collection::vec(any::<u8>(), 1..9))
            .prop_map(|(index, bytes)| Corruption::Insert(index, bytes)),
        (any_index(), 1usize..40).prop_map(|(index, length)| Corruption::Remove(index, length)),
        any_index().prop_map(Corruption::Truncate),
        (any_index(), any_index(), 1usize..40).prop_map(|(from, to, length)| Corruption::Copy {
            from,
            to,
            length
        }),
    ]
}

fn corruptions() -> impl Strategy<Value = Vec<Corruption>> {
    prop::collection::vec(corruption(), 1..4)
}

fn corrupt(bytes: &[u8], changes: &[Corruption]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for corruption in changes {
        if bytes.is_empty() {
            break;
        }
        let byte_count = bytes.len();
        let position = |index: &Index| index.index(byte_count);
        match corruption {
            Corruption::Flip(index, bit) => bytes[position(index)] ^= 1 << bit,
            Corruption::Overwrite(index, byte) => bytes[position(index)] = *byte,
            Corruption::Insert(index, inserted) => {
                drop(bytes.splice(position(index)..position(index), inserted.iter().copied()))
            }
            Corruption::Remove(index, length) => {
                drop(bytes.drain(position(index)..(position(index) + length).min(byte_count)));
            }
            Corruption::Truncate(index) => bytes.truncate(position(index)),
            Corruption::Copy { from, to, length } => {
                let copied = bytes[position(from)..(position(from) + length).min(byte_count)].to_vec();
                drop(bytes.splice(position(to)..position(to), copied));
            }
        }
    }
    bytes
}

static RECEIVER: LazyLock<Receiver> = LazyLock::new(receiver);
static MESSAGES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let messages = Scheme::ALL.map(|scheme| sign(scheme, stamp(NOW, 3), 7));
    messages.into()
});
/// The private keys as files contain them.
static PRIVATE: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let keys = Scheme::ALL.map(|scheme| key(scheme).to_bytes().unwrap().to_vec());
    keys.into()
});

proptest! {
    /// A changed message that is accepted would be a forgery.
    #[test]
    fn no_changed_message_is_accepted(scheme in 0usize..6, changes in corruptions()) {
        let message = &MESSAGES[scheme];
        let changed = corrupt(message, &changes);
        if let Ok(checked) = RECEIVER.screen(changed.clone(), NOW) {
            prop_assert_eq!(SingleLane::default().verify_one(&checked), changed == *message);
        }
    }

    #[test]
    fn a_public_key_is_refused_or_survives_json(scheme in 0usize..6, changes in corruptions()) {
        let text = key(Scheme::ALL[scheme]).public().to_json().unwrap();
        let changed = corrupt(text.as_bytes(), &changes);
        if let Ok(changed) = String::from_utf8(changed)
            && let Ok(key) = PublicKey::from_json(&changed)
        {
            let reread = PublicKey::from_json(&key.to_json().unwrap()).unwrap();
            prop_assert_eq!((reread.scheme(), reread.id()), (key.scheme(), key.id()));
        }
    }

    #[test]
    fn a_changed_private_key_is_refused_or_survives_encoding(scheme in 0usize..6, changes in corruptions()) {
        let changed = corrupt(&PRIVATE[scheme], &changes);
        if let Ok(key) = PrivateKey::from_bytes(&changed) {
            let reread = PrivateKey::from_bytes(&key.to_bytes().unwrap()).unwrap();
            prop_assert_eq!(reread.public().id(), key.public().id());
        }
    }

    #[test]
    fn a_safety_message_is_refused_or_encoded_to_the_same_bytes(
        bytes in prop::collection::vec(any::<u8>(), 30..45),
        genuine in any::<bool>(),
        changes in corruptions(),
    ) {
        const FRAME: &str = "001425004043030280ffdbfba868b3584ec40824646400320032000c888fc834e37fff0aaa960fa0";
        let bytes = if genuine { corrupt(&hex::decode(FRAME).unwrap(), &changes) } else { bytes };
        if let Ok(message) = CoreData::decode_frame(&bytes) {
            prop_assert_eq!(&message.encode_frame()[..], &bytes[..]);
        }
        if let Ok(message) = CoreData::decode(&bytes) {
            prop_assert_eq!(&message.encode()[..], &bytes[..]);
        }
    }

    #[test]
    fn a_revocation_list_has_no_more_signers_than_lines(changes in corruptions()) {
        let list = "linewarden revoked 1\n# stolen\n0011223344556677 truck 7\nffeeddccbbaa9988\nend\n";
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("revoked");
        std::fs::write(&path, corrupt(list.as_bytes(), &changes)).unwrap();
        if let Ok(revoked) = Revocations::read(&path) {
            let lines = std::fs::read_to_string(&path).unwrap().lines().count();
            prop_assert!(revoked.len() <= lines - 2);
        }
    }

    /// The bytes are like damaged kernels in the cache directory.
    #[test]
    fn invalid_machine_code_causes_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), is_elf in any::<bool>()) {
        let head = [0x7f, b'E', b'L', b'F', 2, 1, 1];
        let bytes = if is_elf { [&head[..], &bytes].concat() } else { bytes };
        if let Some(cubin) = Cubin::parse(&bytes) {
            let _ = cubin.resources("pss_verify_2048");
        }
    }

    #[test]
    fn a_trace_is_refused_or_keeps_its_number_of_records(changes in corruptions()) {
        let text = TRACE.as_slice();
        if let Ok(records) = trace::read(&corrupt(text, &changes)[..]) {
            let mut written = Vec::new();
            trace::write(&records, &mut written).unwrap();
            let reread = trace::read(&written[..]).unwrap();
            prop_assert_eq!(reread.len(), records.len());
        }
    }
}

static TRACE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    use linewarden_signatures::scheduler::{Class, Priority};
    use linewarden_signatures::simulator::traffic::{Bursts, TrafficParameters};
    let bursts = Bursts {
        sources: 3,
        per_s: 200.0,
        burst: 4,
        bursts_per_s: 20.0,
        burst_s: 1e-3,
        priority: Priority::URGENT,
    };
    let records = bursts.trace(TrafficParameters {
        duration_s: 0.1,
        class: Class::P256_VERIFY,
        first_source: 0,
        seed: 1,
    });
    let mut text = Vec::new();
    trace::write(&records, &mut text).unwrap();
    text
});
