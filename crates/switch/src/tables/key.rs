//! Key specifications of tables and match keys of entries.
//!
//! # Priorities
//! In this crate, as in BMv2's JSON and Thrift API, the *lower* number wins ([`Priority`]). Of two matching entries with
//! equal priority the entry with the lower index wins, as in BMv2. A new entry gets the lowest free index.
//! [`Priority::from_p4runtime`] converts P4Runtime priorities, for which the higher number wins.
//!
//! # Differences to BMv2
//! If the width of a field is not a multiple of eight, BMv2 counts the prefix from the padding bits of the first byte: a
//! prefix of 12 in a field of 20 bits matches only 8 bits. Here, as P4 and P4Runtime specify, a prefix starts at the
//! first bit of the field.

mod field;
mod field_match;

pub use self::field::{
    FIELD_MAX_BITS, KeyError, KeyField, MatchKind, MatchType, SpecError, WILD_KEY_MAX_BYTES,
};
pub use self::field_match::FieldMatch;
use self::field_match::field_part;

/// Key specification of a table: fields in the order in which the packet path concatenates them, each big-endian and
/// padded in front to whole bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySpec {
    fields: Vec<KeyField>,
    match_type: MatchType,
    bytes: usize,
}

/// Priority of an entry, in tables with ternary, optional or range fields. The lower number wins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(pub i32);

impl Priority {
    /// Converts a P4Runtime priority (the higher number wins), as simple_switch_grpc does.
    #[must_use]
    pub fn from_p4runtime(priority: i32) -> Self {
        Self(i32::MAX.saturating_sub(priority))
    }

    /// Converts to a P4Runtime priority.
    #[must_use]
    pub fn to_p4runtime(self) -> i32 {
        i32::MAX.saturating_sub(self.0)
    }
}

/// Range condition on the packet's key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Interval {
    /// Offset of the field in the key, bytes.
    start: usize,
    low: Box<[u8]>,
    high: Box<[u8]>,
}

impl Interval {
    fn contains(&self, key: &[u8]) -> bool {
        key.get(self.start..self.start + self.low.len())
            .is_some_and(|field| *self.low <= *field && *field <= *self.high)
    }
}

/// Mask and ranges of a match key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Wildcard {
    mask: Box<[u8]>,
    /// Ranges, except single values (full mask) and full ranges (zero mask).
    ranges: Box<[Interval]>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum KeyShape {
    Exact,
    /// Number of compared bits, see [`MatchKey::prefix_bits`].
    Prefix(u32),
    Wild(Box<Wildcard>),
}

/// Match key of an entry in canonical form: equal matches have equal keys. Only [`KeySpec::key`] creates match keys, so
/// every match key fits its table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MatchKey {
    value: Box<[u8]>,
    shape: KeyShape,
    priority: Priority,
}

impl KeySpec {
    /// Creates a specification with the match type that p4c would choose: range if any field is range, else ternary if any
    /// field is ternary or optional, else LPM if a field is LPM, else exact.
    ///
    /// # Errors
    /// The fields are invalid.
    pub fn new(fields: Vec<KeyField>) -> Result<Self, SpecError> {
        let needed = needed_type(&fields);
        Self::with_type(fields, needed)
    }

    /// Creates a specification with the declared match type. `Ternary` and `Range` may be more general than the fields
    /// require.
    ///
    /// # Errors
    /// The fields are invalid, or the declared match type does not support them.
    pub fn with_type(fields: Vec<KeyField>, declared: MatchType) -> Result<Self, SpecError> {
        let needed = needed_type(&fields);
        let fits = match declared {
            MatchType::Exact | MatchType::Lpm => declared == needed,
            MatchType::Ternary => needed != MatchType::Range,
            MatchType::Range => true,
        };
        if !fits {
            return Err(SpecError::WrongType { declared, needed });
        }
        if let Some(field) = fields
            .iter()
            .find(|field| !(1..=FIELD_MAX_BITS).contains(&field.bits))
        {
            return Err(SpecError::FieldWidth {
                field: field.name.clone(),
                bits: field.bits,
            });
        }
        let mut prefixes = fields.iter().filter(|field| field.kind == MatchKind::Lpm);
        if let (Some(first), Some(second)) = (prefixes.next(), prefixes.next()) {
            return Err(SpecError::TwoPrefixes {
                first: first.name.clone(),
                second: second.name.clone(),
            });
        }
        for field in &fields {
            let expected = field.bytes();
            if let Some(actual) = field
                .static_mask
                .as_ref()
                .map(|mask| mask.len())
                .filter(|len| *len != expected)
            {
                return Err(SpecError::StaticMask {
                    field: field.name.clone(),
                    expected,
                    actual,
                });
            }
        }
        let bytes = fields.iter().map(KeyField::bytes).sum();
        if declared != MatchType::Exact && bytes > WILD_KEY_MAX_BYTES {
            return Err(SpecError::KeyTooWide { bytes });
        }
        Ok(Self {
            fields,
            match_type: declared,
            bytes,
        })
    }

    /// Fields, in the order of the key.
    #[must_use]
    pub fn fields(&self) -> &[KeyField] {
        &self.fields
    }

    /// Match type of the table.
    #[must_use]
    pub fn match_type(&self) -> MatchType {
        self.match_type
    }

    /// Whether entries have a priority.
    #[must_use]
    pub fn has_priority(&self) -> bool {
        matches!(self.match_type, MatchType::Ternary | MatchType::Range)
    }

    /// Length of the key, bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Start and end offset of the LPM field in the key, bytes.
    pub(super) fn prefix_field(&self) -> Option<(usize, usize)> {
        let mut start = 0;
        for field in &self.fields {
            if field.kind == MatchKind::Lpm {
                return Some((start, start + field.bytes()));
            }
            start += field.bytes();
        }
        None
    }

    /// Creates a match key from one match for each field, in the order of the key. Tables without priorities ignore `priority`.
    ///
    /// # Errors
    /// A match does not fit its field; the error names the field.
    pub fn key(&self, matches: &[FieldMatch], priority: Priority) -> Result<MatchKey, KeyError> {
        if matches.len() != self.fields.len() {
            return Err(KeyError::FieldCount {
                expected: self.fields.len(),
                actual: matches.len(),
            });
        }
        let mut value = Vec::with_capacity(self.bytes);
        let mut mask = Vec::with_capacity(self.bytes);
        let mut ranges = Vec::new();
        let mut prefix = 0;
        for (field, field_match) in self.fields.iter().zip(matches) {
            let part = field_part(field, field_match)?;
            ranges.extend(part.range.map(|(low, high)| Interval {
                start: value.len(),
                low,
                high,
            }));
            prefix += part.prefix;
            mask.extend_from_slice(&part.mask);
            match &field.static_mask {
                Some(static_mask) => {
                    value.extend(part.value.iter().zip(static_mask).map(|(byte, mask)| byte & mask));
                }
                None => value.extend_from_slice(&part.value),
            }
        }
        let shape = match self.match_type {
            MatchType::Exact => KeyShape::Exact,
            MatchType::Lpm => KeyShape::Prefix(prefix),
            MatchType::Ternary | MatchType::Range => KeyShape::Wild(Box::new(Wildcard {
                mask: mask.into(),
                ranges: ranges.into(),
            })),
        };
        let priority = if self.has_priority() {
            priority
        } else {
            Priority::default()
        };
        Ok(MatchKey {
            value: value.into(),
            shape,
            priority,
        })
    }

    /// Converts a match key back to one match for each field, with values in the length of the field.
    #[must_use]
    pub fn matches(&self, key: &MatchKey) -> Vec<FieldMatch> {
        let mut start = 0;
        let mut field_matches = Vec::with_capacity(self.fields.len());
        // The prefix includes the whole bytes of exact fields and the padding of the LPM field.
        let bits_before = |field: &KeyField| self.bytes as u32 * 8 - field.bits;
        for field in &self.fields {
            let end = start + field.bytes();
            let value = key.value.get(start..end).unwrap_or_default().to_vec();
            let mask = key
                .mask()
                .and_then(|mask| mask.get(start..end))
                .unwrap_or_default();
            field_matches.push(match field.kind {
                MatchKind::Exact => FieldMatch::Exact(value),
                MatchKind::Valid => FieldMatch::Valid(value.iter().any(|byte| *byte != 0)),
                MatchKind::Lpm => {
                    let prefix_bits = match key.shape {
                        KeyShape::Prefix(bits) => bits.saturating_sub(bits_before(field)),
                        _ => mask.iter().map(|byte| byte.count_ones()).sum(),
                    };
                    FieldMatch::Lpm { value, prefix_bits }
                }
                MatchKind::Ternary => FieldMatch::Ternary {
                    value,
                    mask: mask.to_vec(),
                },
                MatchKind::Optional => {
                    FieldMatch::Optional(mask.iter().any(|byte| *byte != 0).then_some(value))
                }
                MatchKind::Range => match key.ranges().iter().find(|range| range.start == start) {
                    Some(range) => FieldMatch::Range {
                        low: range.low.to_vec(),
                        high: range.high.to_vec(),
                    },
                    None if mask.iter().any(|byte| *byte != 0) => FieldMatch::Range {
                        low: value.clone(),
                        high: value,
                    },
                    None => FieldMatch::Range {
                        low: value,
                        high: field.full_mask().to_vec(),
                    },
                },
            });
            start = end;
        }
        field_matches
    }
}

impl MatchKey {
    /// Compared bits in the layout of the key; other bits are zero.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// Mask, in tables with priorities.
    #[must_use]
    pub fn mask(&self) -> Option<&[u8]> {
        match &self.shape {
            KeyShape::Wild(wild) => Some(&wild.mask),
            KeyShape::Exact | KeyShape::Prefix(_) => None,
        }
    }

    /// Priority; [`Priority::default`] in tables without priorities.
    #[must_use]
    pub fn priority(&self) -> Priority {
        self.priority
    }

    /// Number of compared bits in an LPM table: the exact fields with padding, the padding of the LPM field, and the
    /// prefix.
    pub(super) fn prefix_bits(&self) -> Option<u32> {
        match self.shape {
            KeyShape::Prefix(bits) => Some(bits),
            KeyShape::Exact | KeyShape::Wild(_) => None,
        }
    }

    pub(super) fn ranges(&self) -> &[Interval] {
        match &self.shape {
            KeyShape::Wild(wild) => &wild.ranges,
            KeyShape::Exact | KeyShape::Prefix(_) => &[],
        }
    }

    /// Whether the packet's key is in all ranges.
    #[inline]
    pub(super) fn in_ranges(&self, key: &[u8]) -> bool {
        self.ranges().iter().all(|range| range.contains(key))
    }

    /// Rank of an entry in a table with priorities; the entry with the lowest rank wins.
    pub(super) fn rank(&self, index: u32) -> u64 {
        // Flipping the sign bit maps signed order to unsigned order.
        (u64::from(self.priority.0 as u32 ^ 0x8000_0000) << 32) | u64::from(index)
    }
}

/// Least general match type that supports all fields.
fn needed_type(fields: &[KeyField]) -> MatchType {
    let any = |kind| fields.iter().any(|field| field.kind == kind);
    if any(MatchKind::Range) {
        MatchType::Range
    } else if any(MatchKind::Ternary) || any(MatchKind::Optional) {
        MatchType::Ternary
    } else if any(MatchKind::Lpm) {
        MatchType::Lpm
    } else {
        MatchType::Exact
    }
}
