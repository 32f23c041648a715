//! The memory against a list of all that was ever accepted.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::*;

const WINDOW: Window = Window {
    age_ms_max: 300,
    ahead_ms_max: 100,
};

/// Whatever comes, and however late: nothing is accepted twice, nothing new within the window is refused while there is room, and what
/// is kept is bounded.
#[test]
fn nothing_is_accepted_twice_and_nothing_new_refused() {
    let seed = std::env::var("LINEWARDEN_SEED").map_or(7, |seed| seed.parse().unwrap());
    println!("LINEWARDEN_SEED={seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let capacity = 300;
    let mut memory = ReplayMemory::new(WINDOW, capacity, [1; 16]);
    let mut accepted: Vec<(u64, KeyId, u8)> = Vec::new();
    let mut now = 10_000u64;
    let (mut fresh, mut replays, mut full) = (0, 0, 0);
    for _ in 0..20_000 {
        now += random.random_range(0..3);
        memory.forget_before(TimeMs::since_2020(now - u64::from(WINDOW.age_ms_max)));
        let time = now - random.random_range(0..=u64::from(WINDOW.age_ms_max))
            + random.random_range(0..=u64::from(WINDOW.ahead_ms_max));
        let signer = KeyId([random.random_range(0..2); 8]);
        let identity = random.random_range(0..20u8);
        let name = memory.name(signer, &[&[identity][..], &time.to_be_bytes()].concat());
        let known = accepted
            .iter()
            .any(|(at, by, what)| (*at, *by, *what) == (time, signer, identity));
        match memory.insert(TimeMs::since_2020(time), name) {
            Ok(()) => {
                assert!(!known, "accepted twice");
                accepted.push((time, signer, identity));
                fresh += 1;
            }
            Err(Refusal::Replayed) => {
                assert!(known, "refused, and was never accepted");
                replays += 1;
            }
            Err(Refusal::ReplayMemoryFull) => {
                assert_eq!(memory.len(), capacity);
                full += 1;
            }
            Err(other) => panic!("{other}"),
        }
        assert!(memory.len() <= capacity);
    }
    assert!(
        fresh > 1000 && replays > 50 && full > 50,
        "{fresh} {replays} {full}"
    );
    memory.forget_before(TimeMs::MAX);
    assert!(memory.is_empty());
}

#[test]
fn names_depend_on_signer_identity_and_key() {
    let memory = |key| ReplayMemory::new(WINDOW, 1, [key; 16]);
    let [a, b] = [KeyId([1; 8]), KeyId([2; 8])];
    let name = memory(1).name(a, b"x");
    assert_eq!(name, memory(1).name(a, b"x"));
    assert_ne!(name, memory(1).name(b, b"x"));
    assert_ne!(name, memory(1).name(a, b"y"));
    assert_ne!(name, memory(2).name(a, b"x"));
}

/// A mask that was used twice is told by its name, however far apart the two messages' stamps are.
#[test]
fn a_name_is_known_whatever_the_stamp_says() {
    let mut memory = ReplayMemory::new(WINDOW, 10, [1; 16]);
    let name = memory.name(KeyId([1; 8]), &[7]);
    memory.insert(TimeMs::since_2020(1_000), name).unwrap();
    for time in [1_001, 1_399, 700] {
        let again = memory.insert(TimeMs::since_2020(time), name);
        assert!(matches!(again, Err(Refusal::Replayed)), "{time}: {again:?}");
    }
    let other = memory.name(KeyId([2; 8]), &[7]);
    memory.insert(TimeMs::since_2020(1_000), other).unwrap();
}
