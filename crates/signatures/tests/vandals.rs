//! Files and datagrams with bytes changed, moved, doubled and missing: each is refused or means something, and nothing panics.
//! `PROPTEST_CASES` sets how often.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod common;

use std::sync::LazyLock;

use common::{NOW, key, receiver, sign, stamp};
use linewarden_signatures::bsm::CoreData;
use linewarden_signatures::gpu::Cubin;
use linewarden_signatures::key::{PrivateKey, PublicKey};
use linewarden_signatures::lane::OneByOne;
use linewarden_signatures::receive::Receiver;
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::simulator::trace;
use linewarden_signatures::store::Revocations;
use proptest::prelude::*;
use proptest::sample::Index;

/// What happens to some bytes.
#[derive(Debug, Clone)]
enum Harm {
    Flip(Index, u8),
    Put(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Cut(Index),
    Copy { from: Index, to: Index, length: usize },
}

fn harm() -> impl Strategy<Value = Harm> {
    let at = any::<Index>;
    prop_oneof![
        (at(), 0u8..8).prop_map(|(at, bit)| Harm::Flip(at, bit)),
        (at(), any::<u8>()).prop_map(|(at, byte)| Harm::Put(at, byte)),
        (at(), prop::collection::vec(any::<u8>(), 1..9)).prop_map(|(at, bytes)| Harm::Insert(at, bytes)),
        (at(), 1usize..40).prop_map(|(at, length)| Harm::Remove(at, length)),
        at().prop_map(Harm::Cut),
        (at(), at(), 1usize..40).prop_map(|(from, to, length)| Harm::Copy { from, to, length }),
    ]
}

fn harms() -> impl Strategy<Value = Vec<Harm>> {
    prop::collection::vec(harm(), 1..4)
}

fn suffer(bytes: &[u8], harms: &[Harm]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for harm in harms {
        if bytes.is_empty() {
            break;
        }
        let length_there = bytes.len();
        let place = |index: &Index| index.index(length_there);
        match harm {
            Harm::Flip(at, bit) => bytes[place(at)] ^= 1 << bit,
            Harm::Put(at, byte) => bytes[place(at)] = *byte,
            Harm::Insert(at, more) => drop(bytes.splice(place(at)..place(at), more.iter().copied())),
            Harm::Remove(at, length) => {
                drop(bytes.drain(place(at)..(place(at) + length).min(length_there)));
            }
            Harm::Cut(at) => bytes.truncate(place(at)),
            Harm::Copy { from, to, length } => {
                let copied = bytes[place(from)..(place(from) + length).min(length_there)].to_vec();
                drop(bytes.splice(place(to)..place(to), copied));
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
/// As files have them.
static PRIVATE: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let keys = Scheme::ALL.map(|scheme| key(scheme).to_bytes().unwrap().to_vec());
    keys.into()
});

proptest! {
    /// A message that is changed and accepted all the same would be a forgery.
    #[test]
    fn no_changed_message_is_accepted(scheme in 0usize..6, harms in harms()) {
        let message = &MESSAGES[scheme];
        let changed = suffer(message, &harms);
        if let Ok(checked) = RECEIVER.screen(changed.clone(), NOW) {
            prop_assert_eq!(OneByOne::default().holds(&checked), changed == *message);
        }
    }

    #[test]
    fn a_public_key_is_refused_or_survives_its_text(scheme in 0usize..6, harms in harms()) {
        let text = key(Scheme::ALL[scheme]).public().to_json().unwrap();
        let changed = suffer(text.as_bytes(), &harms);
        if let Ok(changed) = String::from_utf8(changed)
            && let Ok(key) = PublicKey::from_json(&changed)
        {
            let again = PublicKey::from_json(&key.to_json().unwrap()).unwrap();
            prop_assert_eq!((again.scheme(), again.id()), (key.scheme(), key.id()));
        }
    }

    #[test]
    fn a_private_key_is_refused_or_whole(scheme in 0usize..6, harms in harms()) {
        let changed = suffer(&PRIVATE[scheme], &harms);
        if let Ok(key) = PrivateKey::from_bytes(&changed) {
            let again = PrivateKey::from_bytes(&key.to_bytes().unwrap()).unwrap();
            prop_assert_eq!(again.public().id(), key.public().id());
        }
    }

    #[test]
    fn a_safety_message_is_refused_or_encoded_as_it_was(
        bytes in prop::collection::vec(any::<u8>(), 30..45),
        genuine in any::<bool>(),
        harms in harms(),
    ) {
        const FRAME: &str = "001425004043030280ffdbfba868b3584ec40824646400320032000c888fc834e37fff0aaa960fa0";
        let bytes = if genuine { suffer(&hex::decode(FRAME).unwrap(), &harms) } else { bytes };
        if let Ok(message) = CoreData::decode_frame(&bytes) {
            prop_assert_eq!(&message.encode_frame()[..], &bytes[..]);
        }
        if let Ok(message) = CoreData::decode(&bytes) {
            prop_assert_eq!(&message.encode()[..], &bytes[..]);
        }
    }

    #[test]
    fn a_list_of_the_revoked_has_no_more_than_its_lines(harms in harms()) {
        let list = "linewarden revoked 1\n# stolen\n0011223344556677 truck 7\nffeeddccbbaa9988\nend\n";
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("revoked");
        std::fs::write(&path, suffer(list.as_bytes(), &harms)).unwrap();
        if let Ok(revoked) = Revocations::read(&path) {
            let lines = std::fs::read_to_string(&path).unwrap().lines().count();
            prop_assert!(revoked.len() <= lines - 2);
        }
    }

    /// Compiled kernels, out of the cache directory: nothing panics.
    #[test]
    fn machine_code_of_no_gpu_harms_nobody(bytes in prop::collection::vec(any::<u8>(), 0..300), elf in any::<bool>()) {
        let head = [0x7f, b'E', b'L', b'F', 2, 1, 1];
        let bytes = if elf { [&head[..], &bytes].concat() } else { bytes };
        if let Some(cubin) = Cubin::parse(&bytes) {
            let _ = cubin.resources("pss_verify_2048");
        }
    }

    #[test]
    fn a_trace_is_refused_or_written_as_it_was_read(harms in harms()) {
        let text = TRACE.as_slice();
        if let Ok(records) = trace::read(&suffer(text, &harms)[..]) {
            let mut written = Vec::new();
            trace::write(&records, &mut written).unwrap();
            let again = trace::read(&written[..]).unwrap();
            prop_assert_eq!(again.len(), records.len());
        }
    }
}

static TRACE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    use linewarden_signatures::scheduler::{Class, Priority};
    use linewarden_signatures::simulator::traffic::{Bursts, Stretch};
    let bursts = Bursts {
        sources: 3,
        per_s: 200.0,
        burst: 4,
        bursts_per_s: 20.0,
        burst_s: 1e-3,
        priority: Priority::URGENT,
    };
    let records = bursts.trace(Stretch {
        seconds: 0.1,
        class: Class::P256_VERIFY,
        first_source: 0,
        seed: 1,
    });
    let mut text = Vec::new();
    trace::write(&records, &mut text).unwrap();
    text
});
