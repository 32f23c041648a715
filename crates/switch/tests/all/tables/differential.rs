//! Compares every search structure with the list model, on random tables, entries and packets.

use super::model::{AddResult, Model, ModelMatch, action, key_spec, ones, packet_key, table_spec};
use linewarden_switch::tables::{
    Batch, EntryHandle, HashSeed, KeySpec, MatchKind, MatchType, NewEntry, Priority, Publisher, Table,
    TableChange, TableError, TableOp,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Random numbers of one step; each decision uses the next number.
struct TestRandom<'a>(std::iter::Cycle<std::slice::Iter<'a, u16>>);

impl TestRandom<'_> {
    fn next_value(&mut self) -> u32 {
        u32::from(*self.0.next().expect("a cycle has no end"))
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.next_value() % bound
    }

    /// Random field value. At most `spread` different values occur, so values are often equal or have equal first bits.
    fn value(&mut self, bits: u32, spread: u32) -> u128 {
        let number = u128::from(self.below(spread));
        if bits < 16 {
            return number & ones(bits);
        }
        ((number >> 8) | ((number & 0xff) << (bits - 8))) & ones(bits)
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

/// Mask with ones in the first `prefix` bits of a field of `bits` bits.
fn prefix_mask(prefix: u32, bits: u32) -> u128 {
    ones(bits) ^ ones(bits - prefix)
}

/// Key fields, at most one of them of kind LPM, and the declared match type of the table.
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
    (fields, 0..4u8).prop_map(|(mut fields, choice)| {
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
        let declared = match choice {
            0 => MatchType::Range,
            1 if needed != MatchType::Range => MatchType::Ternary,
            _ => needed,
        };
        (fields, declared)
    })
}

/// Expected state of the table. The test continues with an earlier copy if it drops a batch.
#[derive(Clone)]
struct State {
    spec: KeySpec,
    model: Model,
    spread: u32,
    /// Handles of the model's entries by position.
    handles: BTreeMap<u32, EntryHandle>,
    /// Handles of deleted entries.
    stale: Vec<EntryHandle>,
}

impl State {
    /// Applies one change to the table and to the model.
    fn step(&mut self, random: &mut TestRandom, batch: &mut Batch<'_, Table>) {
        let choice = random.below(8);
        let entry_number = random.below(self.handles.len().max(1) as u32) as usize;
        let any_entry = self
            .handles
            .iter()
            .nth(entry_number)
            .map(|(index, handle)| (*index, *handle));
        match (choice, any_entry) {
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
                let number = random.next_value();
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
                let handle = self.stale[random.below(self.stale.len() as u32) as usize];
                let not_found = Some(TableError::NotFound {
                    table: "ingress.t".into(),
                });
                assert_eq!(batch.apply(TableOp::Delete(handle)).err(), not_found);
                assert_eq!(batch.apply(TableOp::Modify(handle, action(1))).err(), not_found);
            }
            _ => self.add(random, any_entry.map(|(index, _)| index), batch),
        }
    }

    fn add(&mut self, random: &mut TestRandom, any_index: Option<u32>, batch: &mut Batch<'_, Table>) {
        // Some new entries have the matches of an existing entry, and some of these entries have another priority.
        let duplicated_index = any_index.filter(|_| random.below(4) == 0);
        let existing = duplicated_index.and_then(|index| self.model.positions[index as usize].1.clone());
        let field_matches = match &existing {
            Some(entry) => entry.field_matches.clone(),
            None => self
                .model
                .fields
                .iter()
                .map(|(kind, bits)| random.field_match(*kind, *bits, self.spread))
                .collect(),
        };
        let same_priority = existing
            .filter(|_| random.below(2) == 0)
            .map(|entry| entry.priority);
        let priority = same_priority.unwrap_or_else(|| random.below(4) as i32 - 1);
        let number = random.next_value();
        let key = self
            .spec
            .key(&self.model.matches(&field_matches), Priority(priority))
            .expect("fits");
        assert_eq!(
            self.spec
                .key(&self.spec.matches(&key), Priority(priority))
                .as_ref(),
            Ok(&key),
            "the matches of a key give the same key"
        );
        let new_entry = NewEntry {
            key: key.clone(),
            target: action(number),
            state: None,
            constant: false,
        };
        let added = batch.apply(TableOp::Insert(new_entry));
        match self.model.add(field_matches, priority, number) {
            AddResult::Added(index, generation) => {
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

    /// Compares lookups of packets and reads by the control plane with the model.
    fn check(&self, table: &Table, random: &mut TestRandom) {
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
            let values = self.packet(random);
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

    /// Field values of a packet: near the values of an entry, or random.
    fn packet(&self, random: &mut TestRandom) -> Vec<u128> {
        let entry = self
            .model
            .entries()
            .nth(random.below(self.handles.len().max(1) as u32) as usize);
        let fields = self.model.fields.iter().enumerate();
        let values = fields.map(|(index, (kind, bits))| {
            let value = match entry.map(|(_, entry)| &entry.field_matches[index]) {
                Some(ModelMatch::Exact(value)) => *value,
                Some(ModelMatch::Lpm(value, prefix)) => {
                    let dont_care_mask = ones(bits - prefix);
                    value | (random.value(*bits, self.spread) & dont_care_mask)
                }
                Some(ModelMatch::Ternary(value, mask)) => {
                    value | (random.value(*bits, self.spread) & !mask & ones(*bits))
                }
                Some(ModelMatch::Range(low, high)) => match random.below(4) {
                    0 => *low,
                    1 => *high,
                    2 => low.saturating_sub(1),
                    _ => (high + u128::from(*high < ones(*bits))).min(ones(*bits)),
                },
                None => random.value(*bits, self.spread),
            };
            match random.below(10) {
                0 if *kind != MatchKind::Valid => random.value(*bits, self.spread),
                1 if *kind != MatchKind::Valid => value ^ (1 << random.below(*bits)),
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
        for (steps, is_committed) in &batches {
            let mut new_state = state.clone();
            let mut batch = publisher.begin();
            for numbers in steps {
                let mut random = TestRandom(numbers.iter().cycle());
                new_state.step(&mut random, &mut batch);
                new_state.check(batch.state(), &mut random);
            }
            let mut random = TestRandom(steps[0].iter().cycle());
            state.check(&reader.snapshot(), &mut random);
            if *is_committed {
                batch.commit();
                state = new_state;
            } else {
                drop(batch);
            }
            state.check(&reader.snapshot(), &mut random);
        }
        // The other copy of the table must be equal after all changes and rollbacks.
        let batch = publisher.begin();
        for (steps, _) in &batches {
            state.check(batch.state(), &mut TestRandom(steps[0].iter().cycle()));
        }
    }
}
