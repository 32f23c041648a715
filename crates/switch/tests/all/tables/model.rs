//! Simple model of BMv2's tables: a list of entries, which a lookup searches from the first entry.

use linewarden_switch::tables::{
    ActionCall, ActionData, ActionId, DefaultPolicy, FieldMatch, KeyField, KeySpec, MatchKind, MatchType,
    TableSpec, Target, TargetKind,
};
use std::sync::Arc;

/// Match on one field, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelMatch {
    Exact(u128),
    Lpm(u128, u32),
    Ternary(u128, u128),
    Range(u128, u128),
}

impl ModelMatch {
    fn accepts(&self, value: u128, bits: u32) -> bool {
        match *self {
            Self::Exact(expected) => value == expected,
            Self::Lpm(expected, prefix) => prefix == 0 || (value ^ expected) >> (bits - prefix) == 0,
            Self::Ternary(expected, mask) => value & mask == expected,
            Self::Range(low, high) => (low..=high).contains(&value),
        }
    }

    /// Converts the match for a field of this match kind.
    pub fn to_match(self, kind: MatchKind) -> FieldMatch {
        let bytes = |value: u128| value.to_be_bytes().to_vec();
        match (self, kind) {
            (Self::Exact(value), MatchKind::Valid) => FieldMatch::Valid(value == 1),
            (Self::Exact(value), _) => FieldMatch::Exact(bytes(value)),
            (Self::Lpm(value, prefix_bits), _) => FieldMatch::Lpm {
                value: bytes(value),
                prefix_bits,
            },
            (Self::Ternary(_, 0), MatchKind::Optional) => FieldMatch::Optional(None),
            (Self::Ternary(value, _), MatchKind::Optional) => FieldMatch::Optional(Some(bytes(value))),
            (Self::Ternary(value, mask), _) => FieldMatch::Ternary {
                value: bytes(value),
                mask: bytes(mask),
            },
            (Self::Range(low, high), _) => FieldMatch::Range {
                low: bytes(low),
                high: bytes(high),
            },
        }
    }
}

/// An entry. Its handle consists of its position in the list and of `generation`, the number of earlier entries at this
/// position.
#[derive(Clone, Debug)]
pub struct ModelEntry {
    pub generation: u32,
    pub field_matches: Vec<ModelMatch>,
    pub priority: i32,
    pub action: u32,
}

/// Result of adding an entry.
#[derive(Debug, PartialEq, Eq)]
pub enum AddResult {
    /// Position and generation of the new entry.
    Added(u32, u32),
    Exists,
    Full,
}

/// Table: a list with holes.
#[derive(Clone, Debug)]
pub struct Model {
    pub fields: Vec<(MatchKind, u32)>,
    pub match_type: MatchType,
    pub size: usize,
    /// For each position, the generation of the present or next entry, and the entry if there is one.
    pub positions: Vec<(u32, Option<ModelEntry>)>,
}

impl Model {
    pub fn new(fields: Vec<(MatchKind, u32)>, match_type: MatchType, size: usize) -> Self {
        Self {
            fields,
            match_type,
            size,
            positions: Vec::new(),
        }
    }

    fn has_priority(&self) -> bool {
        matches!(self.match_type, MatchType::Ternary | MatchType::Range)
    }

    pub fn entries(&self) -> impl Iterator<Item = (u32, &ModelEntry)> {
        (0..)
            .zip(&self.positions)
            .filter_map(|(index, (_, entry))| Some((index, entry.as_ref()?)))
    }

    pub fn find_key(&self, field_matches: &[ModelMatch], priority: i32) -> Option<u32> {
        self.entries()
            .find(|(_, entry)| {
                entry.field_matches == field_matches && (!self.has_priority() || entry.priority == priority)
            })
            .map(|(index, _)| index)
    }

    pub fn add(&mut self, field_matches: Vec<ModelMatch>, priority: i32, action: u32) -> AddResult {
        if self.find_key(&field_matches, priority).is_some() {
            return AddResult::Exists;
        }
        if self.entries().count() >= self.size {
            return AddResult::Full;
        }
        let index = self
            .positions
            .iter()
            .position(|(_, entry)| entry.is_none())
            .unwrap_or(self.positions.len());
        if index == self.positions.len() {
            self.positions.push((0, None));
        }
        let generation = self.positions[index].0;
        self.positions[index].1 = Some(ModelEntry {
            generation,
            field_matches,
            priority,
            action,
        });
        AddResult::Added(index as u32, generation)
    }

    pub fn delete(&mut self, index: u32) {
        let position = &mut self.positions[index as usize];
        position.0 += 1;
        position.1 = None;
    }

    /// Position and generation of the entry that a packet hits: of several entries with the same rank, the first, as in
    /// BMv2.
    pub fn lookup(&self, values: &[u128]) -> Option<(u32, u32)> {
        let mut best: Option<(i64, u32, u32)> = None;
        for (index, entry) in self.entries() {
            let fields = entry.field_matches.iter().zip(values).zip(&self.fields);
            if !fields
                .into_iter()
                .all(|((field_match, value), (_, bits))| field_match.accepts(*value, *bits))
            {
                continue;
            }
            let rank = match self.match_type {
                MatchType::Exact => 0,
                MatchType::Lpm => -entry
                    .field_matches
                    .iter()
                    .map(|field_match| {
                        if let ModelMatch::Lpm(_, prefix) = field_match {
                            i64::from(*prefix)
                        } else {
                            0
                        }
                    })
                    .sum::<i64>(),
                MatchType::Ternary | MatchType::Range => i64::from(entry.priority),
            };
            if best.is_none_or(|(best_rank, ..)| rank < best_rank) {
                best = Some((rank, index, entry.generation));
            }
        }
        best.map(|(_, index, generation)| (index, generation))
    }

    /// Converts the matches of an entry for a table of the switch.
    pub fn matches(&self, field_matches: &[ModelMatch]) -> Vec<FieldMatch> {
        field_matches
            .iter()
            .zip(&self.fields)
            .map(|(field_match, (kind, _))| field_match.to_match(*kind))
            .collect()
    }
}

pub fn key_spec(fields: &[(MatchKind, u32)], match_type: MatchType) -> KeySpec {
    let fields = fields
        .iter()
        .zip(0..)
        .map(|((kind, bits), i)| KeyField::new(format!("f{i}"), *kind, *bits));
    KeySpec::with_type(fields.collect(), match_type).expect("a key")
}

pub fn table_spec(key: KeySpec, size: u32) -> Arc<TableSpec> {
    Arc::new(TableSpec {
        name: "ingress.t".into(),
        key,
        size,
        targets: TargetKind::Action,
        stateful: true,
        initial_default: None,
        default_policy: DefaultPolicy::Free,
    })
}

/// Key in the format of the packet path.
pub fn packet_key(spec: &KeySpec, values: &[u128]) -> Vec<u8> {
    let parts = spec.fields().iter().zip(values);
    parts
        .flat_map(|(field, value)| value.to_be_bytes()[16 - field.bytes()..].to_vec())
        .collect()
}

pub fn action(number: u32) -> Target {
    Target::Action(call(number))
}

pub fn call(number: u32) -> ActionCall {
    ActionCall {
        action: ActionId(number),
        data: ActionData::from_slice(&number.to_be_bytes()),
    }
}

pub fn ones(bits: u32) -> u128 {
    if bits == 0 { 0 } else { u128::MAX >> (128 - bits) }
}
