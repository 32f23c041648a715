//! Compares the trie with the list model, on enough prefixes for the trie to grow, split and shrink.

use super::model::{AddResult, Model, ModelMatch, action, key_spec, ones, packet_key, table_spec};
use linewarden_switch::tables::{HashSeed, MatchKind, MatchType, NewEntry, Priority, Table};
use proptest::prelude::*;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

/// Field value that shares its first bits with most entries, so that prefixes nest.
fn value_with_common_bits(rng: &mut ChaCha8Rng, bits: u32) -> u128 {
    let varying = [4, 12, 24, bits][rng.random_range(0..4)].min(bits);
    let position = if rng.random_bool(0.5) {
        0
    } else {
        rng.random_range(0..=bits - varying)
    };
    let common = 0x2001_0db8_0a0a_c0a8_1234_5678_9abc_def0_u128;
    let fixed = if bits == 128 {
        common
    } else {
        common >> (128 - bits)
    };
    fixed ^ ((rng.random::<u128>() & ones(varying)) << position) & ones(bits)
}

/// Number of entries after each round, in percent of the maximum.
const ROUNDS: [u32; 5] = [100, 30, 100, 0, 60];

fn grow_and_shrink(seed: u64, fields: Vec<(MatchKind, u32)>, count: usize) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let spec = key_spec(&fields, MatchType::Lpm);
    let mut table = Table::new(table_spec(spec.clone(), count as u32), &HashSeed::random());
    let mut model = Model::new(fields.clone(), MatchType::Lpm, count);
    for percent in ROUNDS {
        let target_len = count * percent as usize / 100;
        while table.len() as usize > target_len {
            let index = model
                .entries()
                .nth(rng.random_range(0..table.len() as usize))
                .expect("live")
                .0;
            let handle = table
                .iter()
                .find(|entry| entry.handle().index() == index)
                .expect("live")
                .handle();
            table.delete(handle).expect("live");
            model.delete(index);
        }
        let mut tries = 0;
        while (table.len() as usize) < target_len && tries < 4 * count {
            tries += 1;
            let to_match = |(kind, bits): &(MatchKind, u32)| match kind {
                MatchKind::Lpm => {
                    let prefix = rng.random_range(0..=*bits);
                    ModelMatch::Lpm(
                        value_with_common_bits(&mut rng, *bits) & (ones(*bits) ^ ones(bits - prefix)),
                        prefix,
                    )
                }
                _ => ModelMatch::Exact(rng.random_range(0..2)),
            };
            let field_matches: Vec<ModelMatch> = fields.iter().map(to_match).collect();
            let key = spec
                .key(&model.matches(&field_matches), Priority::default())
                .expect("fits");
            let new_entry = NewEntry {
                key,
                target: action(tries as u32),
                state: None,
                constant: false,
            };
            let added = table.insert(new_entry);
            match model.add(field_matches, 0, tries as u32) {
                AddResult::Added(index, generation) => {
                    let handle = added.expect("free").handle();
                    assert_eq!((handle.index(), handle.generation()), (index, generation));
                }
                AddResult::Exists | AddResult::Full => assert!(added.is_err()),
            }
        }
        for _ in 0..300 {
            let field = |(kind, bits): &(MatchKind, u32)| match kind {
                MatchKind::Lpm => value_with_common_bits(&mut rng, *bits),
                _ => rng.random_range(0..2),
            };
            let values: Vec<u128> = fields.iter().map(field).collect();
            let found_entry = table.lookup(&packet_key(&spec, &values));
            let found_entry = found_entry.map(|entry| (entry.handle().index(), entry.handle().generation()));
            assert_eq!(found_entry, model.lookup(&values), "{values:x?}, seed {seed}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn single_field_prefixes_match_the_list_model(
        seed in any::<u64>(),
        bits in prop_oneof![Just(8u32), Just(12), Just(20), Just(32), Just(48)],
    ) {
        grow_and_shrink(seed, vec![(MatchKind::Lpm, bits)], 600);
    }

    #[test]
    fn prefixes_of_128_bits_match_the_list_model(seed in any::<u64>()) {
        grow_and_shrink(seed, vec![(MatchKind::Lpm, 128)], 500);
    }

    #[test]
    fn prefixes_with_exact_fields_match_the_list_model(
        seed in any::<u64>(),
        bits in prop_oneof![Just(20u32), Just(32), Just(128)],
    ) {
        use MatchKind::{Exact, Lpm, Valid};
        grow_and_shrink(seed, vec![(Lpm, bits), (Exact, 9), (Valid, 8)], 400);
        grow_and_shrink(seed, vec![(Exact, 16), (Lpm, bits), (Exact, 128)], 400);
    }

    #[test]
    fn prefixes_in_long_keys_match_the_list_model(seed in any::<u64>()) {
        use MatchKind::{Exact, Lpm};
        grow_and_shrink(seed, vec![(Exact, 128), (Lpm, 127), (Exact, 128)], 300);
    }
}

/// With 4,000 prefixes, the trie needs more nodes than its first size has, and shrinks again.
#[test]
fn many_prefixes_match_the_list_model() {
    for seed in 0..2 {
        grow_and_shrink(seed, vec![(MatchKind::Lpm, 32)], 4_000);
    }
}
