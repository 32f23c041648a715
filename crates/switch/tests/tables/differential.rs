//! Random tables, entries and packets: every search structure compared with the list model.

use super::model::{AddResult, Model, ModelMatch, action, key_spec, ones, packet_key, table_spec};
use linewarden_switch::tables::{
    Batch, EntryHandle, HashSeed, KeySpec, MatchKind, MatchType, NewEntry, Priority, Publisher, Table,
    TableChange, TableError, TableOp,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Random numbers of one step; each decision uses the next one.
struct TestRandom<'a>(std::iter::Cycle<std::slice::Iter<'a, u16>>);

impl TestRandom<'_> {
    fn next_value(&mut self) -> u32 {
        u32::from(*self.0.next().expect("a cycle has no end"))
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.next_value() % bound
    }

    /// Field value that other values probably share, in full or in its first bits.
    fn value(&mut self, bits: u32, spread: u32) -> u128 {
        let rolled = u128::from(self.below(spread));
        if bits < 16 {
            return rolled & ones(bits);
        }
        ((rolled >> 8) | ((rolled & 0xff) << (bits - 8))) & ones(bits)
    }

    fn field_match(&mut self, kind: MatchKind, bits: u32, spread: u32) -> ModelMatch {
        let value = self.value(bits, spread);
        match kind {
            MatchKind::Exact => ModelMatch::Exact(value),
            MatchKind::Valid => ModelMatch::Exact(value & 1),
            MatchKind::Lpm => {
                let prefix = self.below(bits + 1);
                ModelMatch::Lpm(value & prefix_mask(prefix, bits), prefix)
            }
            MatchKind::Optional => {
                if self.below(2) == 0 {
                    ModelMatch::Ternary(0, 0)
                } else {
                    ModelMatch::Ternary(value, ones(bits))
                }
            }
            MatchKind::Ternary => {
                let mask = match self.below(5) {
                    0 => 0,
                    1 => ones(bits),
                    2 => prefix_mask(self.below(bits + 1), bits),
                    3 => ones(bits) >> self.below(bits),
                    _ => self.value(bits, 1 << 16),
                };
                ModelMatch::Ternary(value & mask, mask)
            }
            MatchKind::Range => {
                let second_value = match self.below(4) {
                    0 => value,
                    1 => ones(bits),
                    _ => self.value(bits, spread),
                };
                if self.below(6) == 0 {
                    ModelMatch::Range(0, ones(bits))
                } else {
                    ModelMatch::Range(value.min(second_value), value.max(second_value))
                }
            }
        }
    }
}

/// Mask with ones in the first bits.
fn prefix_mask(prefix: u32, bits: u32) -> u128 {
    ones(bits) ^ ones(bits - prefix)
}

/// Fields with at most one LPM field.
fn schema() -> impl Strategy<Value = (Vec<(MatchKind, u32)>, MatchType)> {
    let kinds = prop_oneof![
        Just(vec![MatchKind::Exact]),
        Just(vec![MatchKind::Exact, MatchKind::Valid]),
        Just(vec![MatchKind::Lpm, MatchKind::Exact]),
        Just(vec![MatchKind::Ternary, MatchKind::Exact, MatchKind::Optional]),
        Just(vec![
            MatchKind::Ternary,
            MatchKind::Lpm,
            MatchKind::Optional,
            MatchKind::Valid
        ]),
        Just(vec![MatchKind::Range, MatchKind::Exact]),
        Just(vec![
            MatchKind::Range,
            MatchKind::Range,
            MatchKind::Ternary,
            MatchKind::Lpm,
            MatchKind::Optional
        ]),
    ];
    let bits = prop_oneof![
        Just(1u32),
        Just(9),
        Just(16),
        Just(20),
        Just(32),
        Just(48),
        Just(127),
        Just(128),
        1u32..=128
    ];
    let fields = kinds.prop_flat_map(move |kinds| {
        prop::collection::vec((prop::sample::select(kinds), bits.clone()), 1..=6)
    });
    (fields, 0..4u8).prop_map(|(mut fields, broader)| {
        let mut prefixes = 0;
        for (kind, bits) in &mut fields {
            prefixes += u32::from(*kind == MatchKind::Lpm);
            if *kind == MatchKind::Lpm && prefixes > 1 {
                *kind = MatchKind::Exact;
            }
            if *kind == MatchKind::Valid {
                *bits = 8;
            }
        }
        let has_any = |kinds: &[MatchKind]| fields.iter().any(|(kind, _)| kinds.contains(kind));
        let needed = if has_any(&[MatchKind::Range]) {
            MatchType::Range
        } else if has_any(&[MatchKind::Ternary, MatchKind::Optional]) {
            MatchType::Ternary
        } else if has_any(&[MatchKind::Lpm]) {
            MatchType::Lpm
        } else {
            MatchType::Exact
        };
        // Some programs declare a more general match kind for the table than the fields need.
        let declared = match broader {
            0 => MatchType::Range,
            1 if needed != MatchType::Range => MatchType::Ternary,
            _ => needed,
        };
        (fields, declared)
    })
}

/// Expected state, rolled back with a dropped batch.
#[derive(Clone)]
struct State {
    spec: KeySpec,
    model: Model,
    spread: u32,
    /// Handles of the model's entries.
    handles: BTreeMap<u32, EntryHandle>,
    /// Handles of deleted entries.
    stale: Vec<EntryHandle>,
}

impl State {
    /// Applies one change to the table and to the model.
    fn step(&mut self, dice: &mut TestRandom, batch: &mut Batch<'_, Table>) {
        let choice = dice.below(8);
        let picked = dice.below(self.handles.len().max(1) as u32) as usize;
        let picked = self
            .handles
            .iter()
            .nth(picked)
            .map(|(index, handle)| (*index, *handle));
        match (choice, picked) {
            (0..=1, Some((index, handle))) => {
                let Ok(TableChange::Deleted(entry)) = batch.apply(TableOp::Delete(handle)) else {
                    panic!("{handle:?} not deleted")
                };
                assert_eq!(entry.handle(), handle);
                self.model.delete(index);
                self.handles.remove(&index);
                self.stale.push(handle);
            }
            (2, Some((index, handle))) => {
                let number = dice.next_value();
                let Ok(TableChange::Modified(before, after)) =
                    batch.apply(TableOp::Modify(handle, action(number)))
                else {
                    panic!("{handle:?} not modified")
                };
                assert_eq!((before.handle(), after.handle()), (handle, handle));
                self.model.positions[index as usize]
                    .1
                    .as_mut()
                    .expect("live")
                    .action = number;
            }
            (3, _) if !self.stale.is_empty() => {
                let handle = self.stale[dice.below(self.stale.len() as u32) as usize];
                let not_found = Some(TableError::NotFound {
                    table: "ingress.t".into(),
                });
                assert_eq!(batch.apply(TableOp::Delete(handle)).err(), not_found);
                assert_eq!(batch.apply(TableOp::Modify(handle, action(1))).err(), not_found);
            }
            _ => self.add(dice, picked.map(|(index, _)| index), batch),
        }
    }

    fn add(&mut self, dice: &mut TestRandom, picked: Option<u32>, batch: &mut Batch<'_, Table>) {
        // Some entries have the key of an existing entry, and some of these another priority.
        let duplicated_index = picked.filter(|_| dice.below(4) == 0);
        let existing = duplicated_index.and_then(|index| self.model.positions[index as usize].1.clone());
        let field_matches = match &existing {
            Some(entry) => entry.field_matches.clone(),
            None => self
                .model
                .fields
                .iter()
                .map(|(kind, bits)| dice.field_match(*kind, *bits, self.spread))
                .collect(),
        };
        let same_rank = existing
            .filter(|_| dice.below(2) == 0)
            .map(|entry| entry.priority);
        let rank = same_rank.unwrap_or_else(|| dice.below(4) as i32 - 1);
        let number = dice.next_value();
        let key = self
            .spec
            .key(&self.model.matches(&field_matches), Priority(rank))
            .expect("fits");
        assert_eq!(
            self.spec.key(&self.spec.matches(&key), Priority(rank)).as_ref(),
            Ok(&key),
            "read back"
        );
        let new_entry = NewEntry {
            key: key.clone(),
            target: action(number),
            state: None,
            constant: false,
        };
        let added = batch.apply(TableOp::Insert(new_entry));
        match self.model.add(field_matches, rank, number) {
            AddResult::At(index, generation) => {
                let Ok(TableChange::Inserted(entry)) = added else {
                    panic!("not inserted: {added:?}")
                };
                assert_eq!(
                    (entry.handle().index(), entry.handle().generation()),
                    (index, generation)
                );
                assert_eq!(entry.key(), &key);
                self.handles.insert(index, entry.handle());
            }
            AddResult::Exists => assert!(
                matches!(added, Err(TableError::AlreadyExists { .. })),
                "{added:?}"
            ),
            AddResult::Full => assert!(matches!(added, Err(TableError::Full { .. })), "{added:?}"),
        }
    }

    /// Compares lookups of packets and reads of the control plane.
    fn check(&self, table: &Table, dice: &mut TestRandom) {
        assert_eq!(table.len() as usize, self.handles.len());
        let entries: Vec<_> = table
            .iter()
            .map(|entry| (entry.handle().index(), entry.target().clone()))
            .collect();
        let expected: Vec<_> = self
            .model
            .entries()
            .map(|(index, entry)| (index, action(entry.action)))
            .collect();
        assert_eq!(entries, expected);
        for (_, entry) in self.model.entries() {
            let key = self
                .spec
                .key(
                    &self.model.matches(&entry.field_matches),
                    Priority(entry.priority),
                )
                .expect("fits");
            let found_entry = table.find(&key).expect("is there");
            assert_eq!(found_entry.target(), &action(entry.action));
            assert!(table.get(found_entry.handle()).is_ok());
        }
        assert!(self.stale.iter().all(|handle| table.get(*handle).is_err()));
        for _ in 0..12 {
            let values = self.packet(dice);
            let found_entry = table.lookup(&packet_key(&self.spec, &values));
            let found_entry = found_entry.map(|entry| (entry.handle().index(), entry.handle().generation()));
            assert_eq!(
                found_entry,
                self.model.lookup(&values),
                "{values:?} in {:?}",
                self.model
            );
        }
    }

    /// Fields of a packet: close to those of an entry, or random.
    fn packet(&self, dice: &mut TestRandom) -> Vec<u128> {
        let entry = self
            .model
            .entries()
            .nth(dice.below(self.handles.len().max(1) as u32) as usize);
        let fields = self.model.fields.iter().enumerate();
        let values = fields.map(|(index, (kind, bits))| {
            let value = match entry.map(|(_, entry)| &entry.field_matches[index]) {
                Some(ModelMatch::Exact(value)) => *value,
                Some(ModelMatch::Lpm(value, prefix)) => {
                    let dont_care_mask = ones(bits - prefix);
                    value | (dice.value(*bits, self.spread) & dont_care_mask)
                }
                Some(ModelMatch::Ternary(value, mask)) => {
                    value | (dice.value(*bits, self.spread) & !mask & ones(*bits))
                }
                Some(ModelMatch::Range(low, high)) => match dice.below(4) {
                    0 => *low,
                    1 => *high,
                    2 => low.saturating_sub(1),
                    _ => (high + u128::from(*high < ones(*bits))).min(ones(*bits)),
                },
                None => dice.value(*bits, self.spread),
            };
            match dice.below(10) {
                0 if *kind != MatchKind::Valid => dice.value(*bits, self.spread),
                1 if *kind != MatchKind::Valid => value ^ (1 << dice.below(*bits)),
                _ => value,
            }
        });
        values.collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn tables_match_the_list_model(
        (fields, match_type) in schema(),
        size in 1u32..60,
        spread in prop_oneof![Just(3u32), Just(40), Just(1 << 16)],
        batches in prop::collection::vec(
            (prop::collection::vec(prop::collection::vec(any::<u16>(), 24), 1..40), any::<bool>()),
            1..8,
        ),
    ) {
        let spec = key_spec(&fields, match_type);
        let table = Table::new(table_spec(spec.clone(), size), &HashSeed::random());
        let mut publisher = Publisher::new(table);
        let reader = publisher.reader();
        let model = Model::new(fields, match_type, size as usize);
        let mut state = State { spec, model, spread, handles: BTreeMap::new(), stale: Vec::new() };
        for (steps, keep) in &batches {
            let mut after = state.clone();
            let mut batch = publisher.begin();
            for numbers in steps {
                let mut dice = TestRandom(numbers.iter().cycle());
                after.step(&mut dice, &mut batch);
                after.check(batch.state(), &mut dice);
            }
            let mut dice = TestRandom(steps[0].iter().cycle());
            state.check(&reader.snapshot(), &mut dice);
            if *keep {
                batch.commit();
                state = after;
            } else {
                drop(batch);
            }
            state.check(&reader.snapshot(), &mut dice);
        }
        // Compare the second copy after all changes and rollbacks.
        let batch = publisher.begin();
        for (steps, _) in &batches {
            state.check(batch.state(), &mut TestRandom(steps[0].iter().cycle()));
        }
    }
}
