//! Compares the memory with a list of all accepted messages.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::*;

const WINDOW: Window = Window {
    age_ms_max: 300,
    ahead_ms_max: 100,
};

/// In any order and with any delay: no message is accepted twice, no new message within the window is refused while its signer has
/// room in its share or in the shared half, and the memory is bounded.
#[test]
fn no_message_is_accepted_twice_and_no_new_one_refused() {
    let seed = std::env::var("LINEWARDEN_SEED").map_or(7, |seed| seed.parse().unwrap());
    println!("LINEWARDEN_SEED={seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let capacity = 300;
    let mut memory = ReplayMemory::new(WINDOW, capacity, [1; 16]).with_signers(2);
    let (share, shared_capacity) = (75, 150);
    let mut accepted: Vec<(u64, KeyId, u8)> = Vec::new();
    let mut now = 10_000u64;
    let (mut accepted_count, mut replay_count, mut full_count) = (0, 0, 0);
    for _ in 0..20_000 {
        now += random.random_range(0..3);
        memory.forget_before(TimeMs::since_2020(now - u64::from(WINDOW.age_ms_max)));
        let time = now - random.random_range(0..=u64::from(WINDOW.age_ms_max))
            + random.random_range(0..=u64::from(WINDOW.ahead_ms_max));
        let signer = KeyId([random.random_range(0..2); 8]);
        let identity = random.random_range(0..20u8);
        let name = memory.name(signer, &[&[identity][..], &time.to_be_bytes()].concat());
        let is_known = accepted.contains(&(time, signer, identity));
        match memory.insert(TimeMs::since_2020(time), name) {
            Ok(()) => {
                assert!(!is_known, "accepted twice");
                accepted.push((time, signer, identity));
                accepted_count += 1;
            }
            Err(Refusal::Replayed) => {
                assert!(is_known, "refused, but never accepted");
                replay_count += 1;
            }
            Err(Refusal::ReplayMemoryFull) => {
                let used = |signer: u8| {
                    memory
                        .used_by_signer
                        .get(&KeyId([signer; 8]))
                        .copied()
                        .unwrap_or(0)
                };
                let excess: usize = [0, 1]
                    .map(|signer| used(signer).saturating_sub(share))
                    .iter()
                    .sum();
                assert_eq!((used(signer.0[0]) >= share, excess), (true, shared_capacity));
                full_count += 1;
            }
            Err(other) => panic!("{other}"),
        }
        let count: usize = memory.spans.values().map(|span| span.names.len()).sum();
        assert!(memory.len() == count && count <= capacity);
    }
    assert!(
        accepted_count > 1000 && replay_count > 50 && full_count > 50,
        "{accepted_count} {replay_count} {full_count}"
    );
    memory.forget_before(TimeMs::MAX);
    assert!(memory.is_empty() && memory.used_by_signer.is_empty() && memory.shared_used == 0);
}

#[test]
fn replay_names_depend_on_signer_identity_and_key() {
    let memory = |key| ReplayMemory::new(WINDOW, 1, [key; 16]);
    let [a, b] = [KeyId([1; 8]), KeyId([2; 8])];
    let name = memory(1).name(a, b"x");
    assert_eq!(name, memory(1).name(a, b"x"));
    assert_ne!(name, memory(1).name(b, b"x"));
    assert_ne!(name, memory(1).name(a, b"y"));
    assert_ne!(name, memory(2).name(a, b"x"));
}

/// A mask that was used twice is detected by its name, regardless of the stamps.
#[test]
fn a_name_is_known_for_any_stamp() {
    let mut memory = ReplayMemory::new(WINDOW, 10, [1; 16]);
    let name = memory.name(KeyId([1; 8]), &[7]);
    memory.insert(TimeMs::since_2020(1_000), name).unwrap();
    for time in [1_001, 1_399, 700] {
        let result = memory.insert(TimeMs::since_2020(time), name);
        assert!(matches!(result, Err(Refusal::Replayed)), "{time}: {result:?}");
    }
    let other = memory.name(KeyId([2; 8]), &[7]);
    memory.insert(TimeMs::since_2020(1_000), other).unwrap();
}

/// A signer keeps its share regardless of the messages of other signers; dropped entries become free.
#[test]
fn every_signer_keeps_its_share_of_the_memory() {
    let mut memory = ReplayMemory::new(WINDOW, 1_000, [1; 16]).with_signers(5);
    let sign = |memory: &mut ReplayMemory, signer: u8, count: u32, time: u64| {
        let accepted = (0..count).filter(|number| {
            let identity = [u64::from(*number), time].map(u64::to_be_bytes).concat();
            let name = memory.name(KeyId([signer; 8]), &identity);
            memory.insert(TimeMs::since_2020(time), name).is_ok()
        });
        accepted.count()
    };
    assert_eq!(sign(&mut memory, 1, 2_000, 1_000), 600);
    assert_eq!(
        sign(&mut memory, 1, 2_000, 1_399),
        0,
        "further stamps do not add to the share"
    );
    for other in 2..=5 {
        assert_eq!(sign(&mut memory, other, 2_000, 1_000), 100);
    }
    memory.forget_before(TimeMs::since_2020(1_200));
    assert_eq!(memory.len(), 0);
    assert_eq!(sign(&mut memory, 2, 2_000, 1_399), 600);
}
