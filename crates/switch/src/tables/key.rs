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

use thiserror::Error;

/// Maximum length of a key with LPM, ternary or range match, bytes. Exact keys have no such limit.
pub const WILD_KEY_MAX_BYTES: usize = 256;

/// Maximum width of a key field, bits.
pub const FIELD_MAX_BITS: u32 = 1 << 16;

/// Match kind of a key field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatchKind {
    /// Exact match.
    Exact,
    /// Longest prefix match; at most one field of a table.
    Lpm,
    /// Ternary match.
    Ternary,
    /// Optional match: all bits or none. The packet path handles the field as `Ternary`. p4c writes optional fields as ternary
    /// fields in the JSON; only the P4Info distinguishes both kinds.
    Optional,
    /// Range match with inclusive bounds.
    Range,
    /// Validity of a header: one byte, 0 or 1.
    Valid,
}

/// Match type of a whole table; follows from the kinds of its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatchType {
    /// At most one entry matches.
    Exact,
    /// The longest matching prefix wins.
    Lpm,
    /// The matching entry with the best priority wins; an LPM field is only a mask.
    Ternary,
    /// Same as `Ternary`, with range fields.
    Range,
}

/// Key field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyField {
    /// Name in the control plane.
    pub name: String,
    /// Match kind.
    pub kind: MatchKind,
    /// Width, 1 to [`FIELD_MAX_BITS`] bits. `Valid` fields have 8 bits, as in BMv2: one byte, 0 or 1.
    pub bits: u32,
    /// Static mask of the P4 program, as wide as the field in whole bytes. The mask applies to the entries, and the packet
    /// path applies it to the packet's field before the lookup.
    pub static_mask: Option<Box<[u8]>>,
}

impl KeyField {
    /// Creates a field without a static mask.
    #[must_use]
    pub fn new(name: impl Into<String>, kind: MatchKind, bits: u32) -> Self {
        let bits = if kind == MatchKind::Valid { 8 } else { bits };
        Self {
            name: name.into(),
            kind,
            bits,
            static_mask: None,
        }
    }

    /// Length in the key, bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bits.div_ceil(8) as usize
    }

    /// Number of padding bits in the first byte.
    fn padding_bits(&self) -> u32 {
        (8 - self.bits % 8) % 8
    }

    /// Mask of all bits of the field.
    fn full_mask(&self) -> Box<[u8]> {
        self.prefix_mask(self.bits)
    }

    /// Mask of the first `prefix` bits of the field.
    fn prefix_mask(&self, prefix: u32) -> Box<[u8]> {
        let (from, to) = (self.padding_bits(), self.padding_bits() + prefix.min(self.bits));
        let mut mask = vec![0u8; self.bytes()].into_boxed_slice();
        for (byte, first) in mask.iter_mut().zip((0..).step_by(8)) {
            let (start, end) = (from.saturating_sub(first).min(8), to.saturating_sub(first).min(8));
            *byte = ((0xff_u16 >> start) & !(0xff_u16 >> end)) as u8;
        }
        mask
    }

    /// Resizes a value to the length of the field. Leading zeros are optional.
    fn fit(&self, value: &[u8]) -> Result<Box<[u8]>, KeyError> {
        let start = value.iter().position(|byte| *byte != 0).unwrap_or(value.len());
        let significant = value.get(start..).unwrap_or_default();
        let unused = significant.first().map_or(0, |byte| byte.leading_zeros());
        let width = u32::try_from(significant.len())
            .unwrap_or(u32::MAX)
            .saturating_mul(8)
            .saturating_sub(unused);
        if width > self.bits {
            return Err(KeyError::TooWide {
                field: self.name.clone(),
                bits: self.bits,
                width,
            });
        }
        let mut fitted = vec![0; self.bytes() - significant.len()];
        fitted.extend_from_slice(significant);
        Ok(fitted.into_boxed_slice())
    }
}

/// Key specification of a table: fields in the order in which the packet path concatenates them, each big-endian and
/// padded in front to whole bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySpec {
    fields: Vec<KeyField>,
    match_type: MatchType,
    bytes: usize,
}

/// Error of a key specification.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpecError {
    /// The width of a field is out of range.
    #[error("width of key field {field} is {bits} bits: expected 1 to {FIELD_MAX_BITS}")]
    FieldWidth {
        /// Field.
        field: String,
        /// Width, bits.
        bits: u32,
    },
    /// Two fields have LPM match.
    #[error("key fields {first} and {second} both use LPM: a table allows at most one LPM field")]
    TwoPrefixes {
        /// First field.
        first: String,
        /// Second field.
        second: String,
    },
    /// The declared match type does not support a field's match kind.
    #[error("match type {declared:?} of the table does not support its fields: {needed:?} is required")]
    WrongType {
        /// Declared match type.
        declared: MatchType,
        /// Required match type.
        needed: MatchType,
    },
    /// The key is too long.
    #[error(
        "key of {bytes} bytes is too long: LPM, ternary and range matches support at most {WILD_KEY_MAX_BYTES}"
    )]
    KeyTooWide {
        /// Length of the key, bytes.
        bytes: usize,
    },
    /// The length of a static mask differs from its field.
    #[error("static mask of key field {field} has {actual} bytes: expected {expected}")]
    StaticMask {
        /// Field.
        field: String,
        /// Length of the field, bytes.
        expected: usize,
        /// Length of the mask, bytes.
        actual: usize,
    },
}

/// Error of a match key, caused by the author of the entry.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    /// The number of matches differs from the number of fields.
    #[error("entry has {actual} match fields: the key of the table has {expected}")]
    FieldCount {
        /// Number of key fields.
        expected: usize,
        /// Number of match fields of the entry.
        actual: usize,
    },
    /// The match kind differs from the field's match kind.
    #[error("wrong match kind for key field {field}: expected {expected:?}")]
    WrongKind {
        /// Field.
        field: String,
        /// Match kind of the field.
        expected: MatchKind,
    },
    /// A value or mask does not fit in the field.
    #[error("value of {width} bits does not fit in key field {field} of {bits} bits")]
    TooWide {
        /// Field.
        field: String,
        /// Width of the field, bits.
        bits: u32,
        /// Width of the value, bits.
        width: u32,
    },
    /// The value has bits set outside of its mask or prefix.
    #[error("value of key field {field} has bits set outside of its mask: clear these bits")]
    OutsideMask {
        /// Field.
        field: String,
    },
    /// The mask of an optional field is neither full nor zero.
    #[error("partial mask for optional key field {field}: match all bits or none")]
    PartialOptional {
        /// Field.
        field: String,
    },
    /// The lower bound of a range exceeds the upper bound.
    #[error("range of key field {field} is empty: the lower bound exceeds the upper bound")]
    EmptyRange {
        /// Field.
        field: String,
    },
    /// The prefix is longer than the field.
    #[error("prefix of {prefix} bits exceeds key field {field} of {bits} bits")]
    PrefixTooLong {
        /// Field.
        field: String,
        /// Width of the field, bits.
        bits: u32,
        /// Length of the prefix, bits.
        prefix: u32,
    },
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

/// Match of one field. Byte strings are big-endian and of any length; leading zeros are optional.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldMatch {
    /// Exact match.
    Exact(Vec<u8>),
    /// Match of the first `prefix_bits` bits.
    Lpm {
        /// Value, zero after the prefix.
        value: Vec<u8>,
        /// Length of the prefix, bits; 0 matches everything.
        prefix_bits: u32,
    },
    /// Match under a mask.
    Ternary {
        /// Value, zero outside of the mask.
        value: Vec<u8>,
        /// Mask.
        mask: Vec<u8>,
    },
    /// Exact match or don't care.
    Optional(Option<Vec<u8>>),
    /// Range match with inclusive bounds.
    Range {
        /// Lower bound.
        low: Vec<u8>,
        /// Upper bound.
        high: Vec<u8>,
    },
    /// Validity of the header.
    Valid(bool),
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

impl FieldMatch {
    /// Clears the bits of a match outside of its mask or prefix, as BMv2 does for JSON and Thrift. P4Runtime and
    /// [`KeySpec::key`] reject such values.
    #[must_use]
    pub fn canonical(self, field: &KeyField) -> Self {
        // A value that does not fit in the field is unchanged and rejected later.
        let clear = |value: &[u8], mask: &[u8]| {
            let value = field.fit(value).ok()?;
            Some(
                value
                    .iter()
                    .zip(mask)
                    .map(|(byte, mask)| byte & mask)
                    .collect::<Vec<u8>>(),
            )
        };
        match self {
            Self::Ternary { value, mask } => {
                let cleared = field.fit(&mask).ok().and_then(|mask| clear(&value, &mask));
                Self::Ternary {
                    value: cleared.unwrap_or(value),
                    mask,
                }
            }
            Self::Lpm { value, prefix_bits } => {
                let cleared = clear(&value, &field.prefix_mask(prefix_bits));
                Self::Lpm {
                    value: cleared.unwrap_or(value),
                    prefix_bits,
                }
            }
            other => other,
        }
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

/// Inclusive bounds of a range.
type Bounds = (Box<[u8]>, Box<[u8]>);

/// Part of a [`MatchKey`] for one field.
struct FieldPart {
    value: Box<[u8]>,
    mask: Box<[u8]>,
    /// Number of compared leading bits in an LPM table, including padding.
    prefix: u32,
    range: Option<Bounds>,
}

fn field_part(field: &KeyField, field_match: &FieldMatch) -> Result<FieldPart, KeyError> {
    let stored_bits = field.bytes() as u32 * 8;
    let exact = |value| FieldPart {
        value,
        mask: field.full_mask(),
        prefix: stored_bits,
        range: None,
    };
    let wildcard = || FieldPart {
        value: field.prefix_mask(0),
        mask: field.prefix_mask(0),
        prefix: 0,
        range: None,
    };
    match (field.kind, field_match) {
        (MatchKind::Exact, FieldMatch::Exact(value)) => Ok(exact(field.fit(value)?)),
        (MatchKind::Valid, FieldMatch::Valid(valid)) => Ok(exact(Box::new([u8::from(*valid)]))),
        // A ternary field also accepts optional matches, because the JSON contains optional fields as ternary fields.
        (MatchKind::Optional | MatchKind::Ternary, FieldMatch::Optional(None)) => Ok(wildcard()),
        (MatchKind::Optional | MatchKind::Ternary, FieldMatch::Optional(Some(value))) => {
            Ok(exact(field.fit(value)?))
        }
        (MatchKind::Lpm, FieldMatch::Lpm { value, prefix_bits }) => {
            if *prefix_bits > field.bits {
                return Err(KeyError::PrefixTooLong {
                    field: field.name.clone(),
                    bits: field.bits,
                    prefix: *prefix_bits,
                });
            }
            let part = masked_part(field, value, field.prefix_mask(*prefix_bits))?;
            Ok(FieldPart {
                prefix: field.padding_bits() + prefix_bits,
                ..part
            })
        }
        (MatchKind::Ternary, FieldMatch::Ternary { value, mask }) => {
            masked_part(field, value, field.fit(mask)?)
        }
        (MatchKind::Optional, FieldMatch::Ternary { value, mask }) => {
            let mask = field.fit(mask)?;
            if mask != field.full_mask() && mask.iter().any(|byte| *byte != 0) {
                return Err(KeyError::PartialOptional {
                    field: field.name.clone(),
                });
            }
            masked_part(field, value, mask)
        }
        (MatchKind::Range, FieldMatch::Range { low, high }) => {
            let (low, high) = (field.fit(low)?, field.fit(high)?);
            if low > high {
                return Err(KeyError::EmptyRange {
                    field: field.name.clone(),
                });
            }
            if low == high {
                return Ok(exact(low));
            }
            let is_full_range = low == field.prefix_mask(0) && high == field.full_mask();
            Ok(FieldPart {
                range: (!is_full_range).then_some((low, high)),
                ..wildcard()
            })
        }
        _ => Err(KeyError::WrongKind {
            field: field.name.clone(),
            expected: field.kind,
        }),
    }
}

fn masked_part(field: &KeyField, value: &[u8], mask: Box<[u8]>) -> Result<FieldPart, KeyError> {
    let value = field.fit(value)?;
    if value.iter().zip(&mask).any(|(byte, mask)| byte & !mask != 0) {
        return Err(KeyError::OutsideMask {
            field: field.name.clone(),
        });
    }
    Ok(FieldPart {
        value,
        mask,
        prefix: 0,
        range: None,
    })
}
