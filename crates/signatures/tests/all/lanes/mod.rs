//! All lanes verify the same random mixtures of valid and forged messages of all schemes, and agree on each message.

mod gpu;

use crate::common::{NOW, receiver, receiver_of, sign, stamp};
use linewarden_arithmetic::Backend;
use linewarden_signatures::calibration::Samples;
use linewarden_signatures::gpu::Emulation;
use linewarden_signatures::key::PrivateKey;
use linewarden_signatures::lane::{BatchLane, SingleLane};
use linewarden_signatures::message::HEADER_BYTES;
use linewarden_signatures::ra::RaPublic;
use linewarden_signatures::receive::{Checked, Receiver};
use linewarden_signatures::scheduler::engine::{Lane, LaneLost};
use linewarden_signatures::scheduler::model::CostModel;
use linewarden_signatures::scheduler::{Class, LaneKind, LaneSpec, Outcome, Span};
use linewarden_signatures::scheme::Scheme;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// Messages that pass the receiver's checks, and their validity.
fn messages(random: &mut ChaCha8Rng, count: usize) -> Vec<(Checked, bool)> {
    let receiver = receiver();
    let mut messages = Vec::new();
    while messages.len() < count {
        let scheme = Scheme::ALL[random.random_range(0..6)];
        let mut bytes = sign(
            scheme,
            stamp(NOW, random.random_range(0..8)),
            random.random_range(0..200),
        );
        let is_valid = random.random_range(0..3) != 0;
        if !is_valid {
            // Changes the payload, the mask name or the signature; out-of-range numbers never reach a lane.
            let offset = random.random_range(21..bytes.len());
            bytes[offset] ^= 1 << random.random_range(0..8);
        }
        if let Ok(checked) = receiver.screen(bytes, NOW) {
            messages.push((checked, is_valid));
        }
    }
    messages
}

#[test]
fn lanes_agree_on_every_message() {
    let seed = std::env::var("LINEWARDEN_SEED").map_or(11, |seed| seed.parse().unwrap());
    println!("LINEWARDEN_SEED={seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let messages = messages(&mut random, 300);
    let (messages, expected): (Vec<Checked>, Vec<bool>) = messages.into_iter().unzip();
    let mut single_lane = SingleLane::default();
    let results: Vec<bool> = messages
        .iter()
        .map(|message| single_lane.verify_one(message))
        .collect();
    assert_eq!(results, expected);
    let mut device = gpu::emulated(Emulation::default(), gpu::MEMORY, &messages);
    assert_eq!(device.verify_all(&messages).unwrap(), expected, "emulated device");
    for size in 0..20 {
        let first = random.random_range(0..messages.len() - size);
        let range = first..first + size;
        let device_results = device.verify_all(&messages[range.clone()]).unwrap();
        assert_eq!(device_results, expected[range], "emulated device, {size}");
    }
    for backend in Backend::available() {
        let mut batch_lane = BatchLane::with_backend(backend);
        assert_eq!(batch_lane.verify_all(&messages), expected, "{}", backend.name());
        // Batches of all small sizes, from any position.
        for size in 0..20 {
            let first = random.random_range(0..messages.len() - size);
            let range = first..first + size;
            assert_eq!(
                batch_lane.verify_all(&messages[range.clone()]),
                expected[range],
                "{} of {size}",
                backend.name()
            );
        }
    }
}

fn ra_keys(receiver: &Receiver) -> impl Iterator<Item = &RaPublic> {
    receiver.signers().filter_map(|key| key.ra())
}

/// Hashes of a message are cached only if the message is valid, up to the memory limit.
#[test]
fn forgeries_leave_no_cached_hashes() {
    type Verify = Box<dyn FnMut(&[Checked]) -> Vec<bool>>;
    let mut single_lane = SingleLane::default();
    let mut lanes: Vec<Verify> = vec![Box::new(move |messages| {
        messages
            .iter()
            .map(|message| single_lane.verify_one(message))
            .collect()
    })];
    for backend in Backend::available() {
        let mut batch_lane = BatchLane::with_backend(backend);
        lanes.push(Box::new(move |messages| batch_lane.verify_all(messages)));
    }
    for verify in &mut lanes {
        // Valid messages use 17 hashes: 4 digits of the stamp, 3 and 2 texts, and 8 bytes. With a memory limit, each of
        // the two RA keys caches as many hashes as fit in a quarter of the memory; half is for tables of points.
        for (memory, rows) in [(None, [17, 17]), (Some(8_000), [5, 3]), (Some(0), [0, 0])] {
            let receiver = receiver();
            if let Some(bytes) = memory {
                receiver.set_key_memory(bytes);
            }
            let forged_and_valid = |number: u8, scheme| {
                let valid = sign(scheme, stamp(NOW, 1), number);
                let mut forged = valid.clone();
                let offset = forged.len() - 2;
                forged[offset] ^= 1;
                [forged, valid].map(|bytes| receiver.screen(bytes, NOW).unwrap())
            };
            for (scheme, rows) in [Scheme::RaRsa2048, Scheme::RaRsa3072].into_iter().zip(rows) {
                let (forged, valid): (Vec<_>, Vec<_>) = (0..8)
                    .map(|number| forged_and_valid(number, scheme).into())
                    .unzip();
                let cached_rows = || ra_keys(&receiver).map(RaPublic::cached_rows).sum::<usize>();
                let rows_before = cached_rows();
                assert_eq!(verify(&forged), [false; 8]);
                assert_eq!(cached_rows(), rows_before);
                assert_eq!((verify(&valid), verify(&valid)), (vec![true; 8], vec![true; 8]));
                assert_eq!(cached_rows(), rows_before + rows, "{scheme}, {memory:?}");
            }
        }
    }
}

/// The table of a signer is made after enough valid messages, within the memory budget; forgeries are still recognized.
#[test]
fn tables_are_made_for_signers_of_valid_messages() {
    let has_table = |receiver: &Receiver, scheme| {
        let mut keys = receiver.signers().filter(|key| key.scheme() == scheme);
        keys.any(|key| key.has_table())
    };
    for backend in Backend::available() {
        let mut batch_lane = BatchLane::with_backend(backend);
        for scheme in [Scheme::EcdsaP256, Scheme::Ed25519] {
            for memory in [None, Some(0)] {
                let receiver = receiver();
                if let Some(bytes) = memory {
                    receiver.set_key_memory(bytes);
                }
                let forged_and_valid = |number: u8| {
                    let valid = sign(scheme, stamp(NOW, 1), number);
                    let mut forged = valid.clone();
                    forged[HEADER_BYTES] ^= 1;
                    [forged, valid].map(|bytes| receiver.screen(bytes, NOW).unwrap())
                };
                let (forged, valid): (Vec<_>, Vec<_>) =
                    (0..9).map(|number| forged_and_valid(number).into()).unzip();
                for _ in 0..5 {
                    assert_eq!(batch_lane.verify_all(&forged), [false; 9]);
                }
                assert_eq!(batch_lane.verify_all(&valid[..7]), [true; 7]);
                assert!(!has_table(&receiver, scheme), "{scheme}: no table yet");
                assert_eq!(batch_lane.verify_all(&valid[7..]), [true; 2]);
                assert_eq!(batch_lane.verify_all(&valid), [true; 9]);
                assert_eq!(
                    has_table(&receiver, scheme),
                    memory.is_none(),
                    "{scheme}, {memory:?}"
                );
                // Batches of up to 8 messages, alternately valid and forged.
                for length in 0..9 {
                    let mixed: Vec<Checked> = forged
                        .iter()
                        .zip(&valid)
                        .flat_map(|(forged, valid)| [valid, forged])
                        .take(length)
                        .cloned()
                        .collect();
                    let expected: Vec<bool> = (0..length).map(|index| index % 2 == 0).collect();
                    assert_eq!(batch_lane.verify_all(&mixed), expected, "{scheme}, {length}");
                }
            }
        }
    }
}

/// Three signers of a scheme, of which the first has a table: in batches of up to 19 messages, each valid or forged
/// message gets its own result. At most one table is made per 32 messages, even if several signers have sent enough
/// messages for a table.
#[test]
fn signers_with_and_without_tables_have_their_own_results() {
    for (backend, scheme) in Backend::available()
        .flat_map(|backend| [Scheme::EcdsaP256, Scheme::Ed25519].map(|scheme| (backend, scheme)))
    {
        let keys = [(); 3].map(|()| PrivateKey::generate(scheme, None).unwrap());
        let receiver = receiver_of(keys.iter().map(PrivateKey::public));
        let message_of = |signer: usize, is_valid: bool| {
            let datagram = gpu::datagram_of(&keys[signer], 1, is_valid);
            receiver.screen(datagram, NOW).unwrap()
        };
        let tables = || receiver.signers().filter(|key| key.has_table()).count();
        let mut batch_lane = BatchLane::with_backend(backend);
        let assert_valid = |batch_lane: &mut BatchLane, signer: usize| {
            assert_eq!(
                batch_lane.verify_all(&vec![message_of(signer, true); 8]),
                [true; 8],
                "{scheme}"
            );
        };
        (0..4).for_each(|_| assert_valid(&mut batch_lane, 0));
        assert_eq!(tables(), 1);
        for length in 0..20 {
            let messages: Vec<(usize, bool)> = (0..length)
                .map(|index| (index % 3, (index + index / 3) % 2 == 0))
                .collect();
            let expected: Vec<bool> = messages.iter().map(|(_, is_valid)| *is_valid).collect();
            let messages: Vec<Checked> = messages
                .iter()
                .map(|(signer, is_valid)| message_of(*signer, *is_valid))
                .collect();
            // A separate lane, on which no signer has sent enough messages for a table.
            let mut lane = BatchLane::with_backend(backend);
            assert_eq!(lane.verify_all(&messages), expected, "{scheme}, {length}");
            if length < 8 {
                assert_eq!(tables(), 1, "{scheme}, {length}");
            }
        }
        let tables_before = tables();
        let mut new_lane = BatchLane::with_backend(backend);
        for _ in 0..3 {
            assert_valid(&mut new_lane, 1);
        }
        assert_eq!(tables(), tables_before, "after 24 messages");
        assert_valid(&mut new_lane, 2);
        assert!(tables() <= tables_before + 1, "after 32 messages");
    }
}

/// A lane that fails the test if a sample is valid, and records the class and the length of each batch.
struct RejectingLane(SingleLane, Vec<(Class, usize)>);

impl Lane<Checked> for RejectingLane {
    fn run(
        &mut self,
        class: Class,
        jobs: &mut [Checked],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), LaneLost> {
        assert!(jobs.iter().all(|message| !self.0.verify_one(message)));
        self.1.push((class, jobs.len()));
        outcomes.resize(jobs.len(), Outcome::Rejected);
        Ok(())
    }
}

#[test]
fn samples_measure_every_class_and_are_never_accepted() {
    let receiver = receiver();
    let samples = Samples::new(&receiver, None, NOW, [5; 32]);
    let classes: Vec<Class> = samples.classes().collect();
    assert_eq!(classes.len(), Scheme::ALL.len(), "{classes:?}");
    let keys_with_tables = |receiver: &Receiver| receiver.signers().filter(|key| key.has_table()).count();
    assert_eq!(
        keys_with_tables(&receiver),
        2 * usize::from(Backend::widest().is_some())
    );
    let without_memory = crate::common::receiver();
    without_memory.set_key_memory(0);
    drop(Samples::new(&without_memory, None, NOW, [5; 32]));
    assert_eq!(keys_with_tables(&without_memory), 0);
    let guess = CostModel::new(Span::from_millis(1), 1.0);
    let spec = |kind| {
        let spec = LaneSpec::new("lane", kind).with_grain(2);
        classes
            .iter()
            .skip(1)
            .fold(spec, |spec, class| spec.with_class(*class, guess))
    };
    for (kind, largest) in [(LaneKind::Cpu, 16), (LaneKind::Accelerator, 128)] {
        let mut lane = RejectingLane(SingleLane::default(), Vec::new());
        let measured = samples.measure(spec(kind), &mut lane).unwrap();
        for class in &classes {
            let cost_model = *measured.costs.of(*class);
            assert_eq!(cost_model.is_some(), *class != classes[0]);
            assert_ne!(cost_model, Some(guess));
            let jobs: Vec<usize> = lane
                .1
                .iter()
                .filter(|(measured_class, _)| measured_class == class)
                .map(|(_, jobs)| *jobs)
                .collect();
            assert_eq!(jobs.iter().max().copied(), cost_model.map(|_| largest));
        }
    }
}
