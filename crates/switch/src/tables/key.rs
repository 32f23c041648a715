//! What a table's key is made of, and what an entry asks of it.
//!
//! # Priorities
//! In this crate, as in BMv2's JSON and in Thrift, the *lower* number wins ([`Priority`]). Of two matching entries with
//! one priority the one with the lower index of its handle wins, as in BMv2, which hands out the lowest free index.
//! P4Runtime's numbers, of which the higher wins, are turned round by [`Priority::from_p4runtime`].
//!
//! # Where this differs from BMv2
//! BMv2 counts the prefix of a field whose width is not a multiple of eight from the padding bits of its first byte, so
//! that a prefix of 12 of a field of 20 bits matches on only 8 of them. Here, as P4 and P4Runtime say, a prefix is
//! counted from the field's own first bit.

use thiserror::Error;

/// The widest key, in bytes, that is matched by prefix, mask or range. Exact keys have no such bound.
pub const WILD_KEY_MAX_BYTES: usize = 256;

/// The widest field of a key, in bits.
pub const FIELD_MAX_BITS: u32 = 1 << 16;

/// How one field of a key is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatchKind {
    /// All bits are compared.
    Exact,
    /// The first bits are compared; at most one field of a table.
    Lpm,
    /// The bits under a mask are compared.
    Ternary,
    /// As `Ternary` on the packet path; an entry compares either all bits or none. p4c writes such fields as ternary
    /// into the JSON: only the P4Info tells them apart.
    Optional,
    /// The value lies between two bounds, both included.
    Range,
    /// Whether a header is valid: one byte, 0 or 1.
    Valid,
}

/// How a table as a whole is searched; follows from its fields' kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatchType {
    /// One entry at most matches.
    Exact,
    /// The longest matching prefix wins.
    Lpm,
    /// The matching entry with the best priority wins; a prefix in such a table is only a mask.
    Ternary,
    /// As `Ternary`, with fields matched by range among them.
    Range,
}

/// One field of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyField {
    /// The name that control planes use.
    pub name: String,
    /// How it is matched.
    pub kind: MatchKind,
    /// Width in bits, 1 to [`FIELD_MAX_BITS`]. `Valid` fields have 8 here, as in BMv2: one byte, 0 or 1.
    pub bits: u32,
    /// The static mask of the P4 program, as wide as the field in whole bytes. It is laid over what entries say; the
    /// packet path lays it over the packet's field before it looks up.
    pub static_mask: Option<Box<[u8]>>,
}

impl KeyField {
    /// A field without a static mask.
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

    /// Length in the key, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bits.div_ceil(8) as usize
    }

    /// Bits of the first byte that do not belong to the field.
    fn padding_bits(&self) -> u32 {
        (8 - self.bits % 8) % 8
    }

    /// Ones in the field's own bits.
    fn full_mask(&self) -> Box<[u8]> {
        self.prefix_mask(self.bits)
    }

    /// Ones in the first `prefix` of the field's bits.
    fn prefix_mask(&self, prefix: u32) -> Box<[u8]> {
        let (from, to) = (self.padding_bits(), self.padding_bits() + prefix.min(self.bits));
        let mut mask = vec![0u8; self.bytes()].into_boxed_slice();
        for (byte, first) in mask.iter_mut().zip((0..).step_by(8)) {
            let (start, end) = (from.saturating_sub(first).min(8), to.saturating_sub(first).min(8));
            *byte = ((0xff_u16 >> start) & !(0xff_u16 >> end)) as u8;
        }
        mask
    }

    /// The value in the field's own number of bytes. Leading zeros may be there or not.
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

/// The fields of a table's key, in the order in which the packet path writes them behind each other: each big-endian,
/// padded with leading zero bits to whole bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySpec {
    fields: Vec<KeyField>,
    match_type: MatchType,
    bytes: usize,
}

/// Why fields do not make a key.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpecError {
    /// A field without bits, or with more than there can be.
    #[error("key field {field} is {bits} bits wide: a table matches on 1 to {FIELD_MAX_BITS}")]
    FieldWidth {
        /// The field.
        field: String,
        /// Its width.
        bits: u32,
    },
    /// Two fields are matched by longest prefix.
    #[error(
        "key fields {first} and {second} are both matched by longest prefix: at most one field of a table can be"
    )]
    TwoPrefixes {
        /// The first of them.
        first: String,
        /// The second of them.
        second: String,
    },
    /// The declared type of the table has no room for a field's kind.
    #[error("a table of match type {declared:?} cannot match by {needed:?} as its fields ask")]
    WrongType {
        /// What the program declares.
        declared: MatchType,
        /// What the fields need.
        needed: MatchType,
    },
    /// The key is wider than what is supported.
    #[error(
        "the key has {bytes} bytes; prefixes, masks and ranges are matched on {WILD_KEY_MAX_BYTES} at most"
    )]
    KeyTooWide {
        /// Its length.
        bytes: usize,
    },
    /// A static mask is not as long as its field.
    #[error("the static mask of key field {field} has {actual} bytes, the field has {expected}")]
    StaticMask {
        /// The field.
        field: String,
        /// Bytes of the field.
        expected: usize,
        /// Bytes of the mask.
        actual: usize,
    },
}

/// Why a match does not fit a table's key. The one who wrote the entry is at fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    /// Not one match for each field.
    #[error("the entry matches on {actual} fields, the table's key has {expected}")]
    FieldCount {
        /// Fields of the key.
        expected: usize,
        /// Fields given.
        actual: usize,
    },
    /// A field is matched in a way that it does not allow.
    #[error("key field {field} is matched by {expected:?}: give a match of that kind")]
    WrongKind {
        /// The field.
        field: String,
        /// The field's kind.
        expected: MatchKind,
    },
    /// A value or mask does not fit the field.
    #[error("key field {field} has {bits} bits, the value given for it needs {width}")]
    TooWide {
        /// The field.
        field: String,
        /// Width of the field in bits.
        bits: u32,
        /// Width of the value in bits.
        width: u32,
    },
    /// The value has ones where the mask or the prefix says that they do not matter.
    #[error("key field {field}: the value has bits set outside of its mask; clear them")]
    OutsideMask {
        /// The field.
        field: String,
    },
    /// An optional field with a mask that is neither all ones nor all zeros.
    #[error("key field {field} is optional: match it whole or not at all")]
    PartialOptional {
        /// The field.
        field: String,
    },
    /// The lower bound of a range is above the upper.
    #[error("key field {field}: the range's lower bound is above its upper bound")]
    EmptyRange {
        /// The field.
        field: String,
    },
    /// The prefix is longer than the field.
    #[error("key field {field} has {bits} bits, the prefix has {prefix}")]
    PrefixTooLong {
        /// The field.
        field: String,
        /// Width of the field in bits.
        bits: u32,
        /// Length of the prefix in bits.
        prefix: u32,
    },
}

/// Which of several matching entries wins; only in tables with ternary, optional or range fields. The lower wins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(pub i32);

impl Priority {
    /// From P4Runtime, where the higher number wins; turned round as simple_switch_grpc does it.
    #[must_use]
    pub fn from_p4runtime(priority: i32) -> Self {
        Self(i32::MAX.saturating_sub(priority))
    }

    /// The number that P4Runtime reads.
    #[must_use]
    pub fn to_p4runtime(self) -> i32 {
        i32::MAX.saturating_sub(self.0)
    }
}

/// What an entry asks of one field. Byte strings are big-endian and of any length; leading zeros do not matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldMatch {
    /// The field has this value.
    Exact(Vec<u8>),
    /// The field begins with the first `prefix_bits` bits of the value.
    Lpm {
        /// The value, zero behind the prefix.
        value: Vec<u8>,
        /// Length of the prefix in bits; 0 matches everything.
        prefix_bits: u32,
    },
    /// The field has the value in the bits of the mask.
    Ternary {
        /// The value, zero outside of the mask.
        value: Vec<u8>,
        /// The bits that matter.
        mask: Vec<u8>,
    },
    /// The field has this value, or matters not at all.
    Optional(Option<Vec<u8>>),
    /// The field lies between the bounds, both included.
    Range {
        /// Lower bound.
        low: Vec<u8>,
        /// Upper bound.
        high: Vec<u8>,
    },
    /// Whether the header is valid.
    Valid(bool),
}

/// One range that the packet's key must lie in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Interval {
    /// Where the field begins in the key, in bytes.
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

/// The bits that matter, and the ranges.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Wild {
    mask: Box<[u8]>,
    /// Only ranges that are neither one value (these are bits that all matter) nor everything (no bit does).
    ranges: Box<[Interval]>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Shape {
    Exact,
    Prefix(u32),
    Wild(Box<Wild>),
}

/// What an entry asks of a packet's key, in the one form that equal demands have: made by [`KeySpec::key`] only, so that
/// whoever has one knows that it fits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MatchKey {
    value: Box<[u8]>,
    shape: Shape,
    priority: Priority,
}

impl KeySpec {
    /// The key with these fields, searched as p4c decides it: by range if any field is, else ternary if any field is
    /// ternary or optional, else by longest prefix if a field is, else exact.
    ///
    /// # Errors
    /// If the fields do not make a key.
    pub fn new(fields: Vec<KeyField>) -> Result<Self, SpecError> {
        let needed = needed_type(&fields);
        Self::with_type(fields, needed)
    }

    /// The key with these fields in a table that the program declares to be searched in this way, which may be a more
    /// general one than the fields need.
    ///
    /// # Errors
    /// If the fields do not make a key, or need a more general search.
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

    /// The fields, in the order of the key.
    #[must_use]
    pub fn fields(&self) -> &[KeyField] {
        &self.fields
    }

    /// How the table is searched.
    #[must_use]
    pub fn match_type(&self) -> MatchType {
        self.match_type
    }

    /// Whether entries have a priority.
    #[must_use]
    pub fn has_priority(&self) -> bool {
        matches!(self.match_type, MatchType::Ternary | MatchType::Range)
    }

    /// Length of the key in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where the field that is matched by longest prefix lies in the key: start and end in bytes.
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

    /// What an entry asks, from one match for each field in the key's order. Tables without priorities ignore it.
    ///
    /// # Errors
    /// If a match does not fit its field; the error names it.
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
        for (field, wanted) in self.fields.iter().zip(matches) {
            let part = part(field, wanted)?;
            ranges.extend(part.range.map(|(low, high)| Interval {
                start: value.len(),
                low,
                high,
            }));
            prefix += part.prefix;
            mask.extend_from_slice(&part.mask);
            match &field.static_mask {
                Some(fixed) => value.extend(part.value.iter().zip(fixed).map(|(byte, mask)| byte & mask)),
                None => value.extend_from_slice(&part.value),
            }
        }
        let shape = match self.match_type {
            MatchType::Exact => Shape::Exact,
            MatchType::Lpm => Shape::Prefix(prefix),
            MatchType::Ternary | MatchType::Range => Shape::Wild(Box::new(Wild {
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

    /// The matches that a key was made of, field for field, values in the field's own number of bytes.
    #[must_use]
    pub fn matches(&self, key: &MatchKey) -> Vec<FieldMatch> {
        let mut start = 0;
        let mut all = Vec::with_capacity(self.fields.len());
        // Exact fields count whole bytes, and so does the padding of the one with the prefix.
        let before = |field: &KeyField| self.bytes as u32 * 8 - field.bits;
        for field in &self.fields {
            let end = start + field.bytes();
            let value = key.value.get(start..end).unwrap_or_default().to_vec();
            let mask = key
                .mask()
                .and_then(|mask| mask.get(start..end))
                .unwrap_or_default();
            all.push(match field.kind {
                MatchKind::Exact => FieldMatch::Exact(value),
                MatchKind::Valid => FieldMatch::Valid(value.iter().any(|byte| *byte != 0)),
                MatchKind::Lpm => {
                    let prefix_bits = match key.shape {
                        Shape::Prefix(bits) => bits.saturating_sub(before(field)),
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
        all
    }
}

impl MatchKey {
    /// The bits that are compared, in the key's own layout; zero where nothing is.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// The bits that matter, in tables with priorities.
    #[must_use]
    pub fn mask(&self) -> Option<&[u8]> {
        match &self.shape {
            Shape::Wild(wild) => Some(&wild.mask),
            Shape::Exact | Shape::Prefix(_) => None,
        }
    }

    /// Which of several matching entries wins; [`Priority::default`] in tables without priorities.
    #[must_use]
    pub fn priority(&self) -> Priority {
        self.priority
    }

    /// How many bits are compared in a table matched by longest prefix: those of the exact fields and their padding,
    /// the padding of the field with the prefix, and the prefix.
    pub(super) fn prefix_bits(&self) -> Option<u32> {
        match self.shape {
            Shape::Prefix(bits) => Some(bits),
            Shape::Exact | Shape::Wild(_) => None,
        }
    }

    pub(super) fn ranges(&self) -> &[Interval] {
        match &self.shape {
            Shape::Wild(wild) => &wild.ranges,
            Shape::Exact | Shape::Prefix(_) => &[],
        }
    }

    /// Whether the packet's key lies in all ranges.
    #[inline]
    pub(super) fn in_ranges(&self, key: &[u8]) -> bool {
        self.ranges().iter().all(|range| range.contains(key))
    }

    /// The order in which entries of tables with priorities win, lowest first.
    pub(super) fn rank(&self, index: u32) -> u64 {
        // Flipping the sign bit orders signed numbers as unsigned ones.
        (u64::from(self.priority.0 as u32 ^ 0x8000_0000) << 32) | u64::from(index)
    }
}

impl FieldMatch {
    /// The same match with the bits cleared that its own mask or prefix says do not matter, as BMv2 does on JSON and
    /// Thrift; P4Runtime refuses such values, and so does [`KeySpec::key`].
    #[must_use]
    pub fn canonical(self, field: &KeyField) -> Self {
        // What does not fit the field stays as it is, to be refused.
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

/// The most general search that a field asks for.
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

/// The bounds of a range, both included.
type Bounds = (Box<[u8]>, Box<[u8]>);

/// One field's share of a [`MatchKey`].
struct Part {
    value: Box<[u8]>,
    mask: Box<[u8]>,
    /// Leading bits that are compared if the table is matched by longest prefix, padding included.
    prefix: u32,
    range: Option<Bounds>,
}

fn part(field: &KeyField, wanted: &FieldMatch) -> Result<Part, KeyError> {
    let whole_bits = field.bytes() as u32 * 8;
    let whole = |value| Part {
        value,
        mask: field.full_mask(),
        prefix: whole_bits,
        range: None,
    };
    let nothing = || Part {
        value: field.prefix_mask(0),
        mask: field.prefix_mask(0),
        prefix: 0,
        range: None,
    };
    match (field.kind, wanted) {
        (MatchKind::Exact, FieldMatch::Exact(value)) => Ok(whole(field.fit(value)?)),
        (MatchKind::Valid, FieldMatch::Valid(valid)) => Ok(whole(Box::new([u8::from(*valid)]))),
        // Also of fields that are ternary here because the JSON alone does not say that they are optional.
        (MatchKind::Optional | MatchKind::Ternary, FieldMatch::Optional(None)) => Ok(nothing()),
        (MatchKind::Optional | MatchKind::Ternary, FieldMatch::Optional(Some(value))) => {
            Ok(whole(field.fit(value)?))
        }
        (MatchKind::Lpm, FieldMatch::Lpm { value, prefix_bits }) => {
            if *prefix_bits > field.bits {
                return Err(KeyError::PrefixTooLong {
                    field: field.name.clone(),
                    bits: field.bits,
                    prefix: *prefix_bits,
                });
            }
            let part = masked(field, value, field.prefix_mask(*prefix_bits))?;
            Ok(Part {
                prefix: field.padding_bits() + prefix_bits,
                ..part
            })
        }
        (MatchKind::Ternary, FieldMatch::Ternary { value, mask }) => masked(field, value, field.fit(mask)?),
        (MatchKind::Optional, FieldMatch::Ternary { value, mask }) => {
            let mask = field.fit(mask)?;
            if mask != field.full_mask() && mask.iter().any(|byte| *byte != 0) {
                return Err(KeyError::PartialOptional {
                    field: field.name.clone(),
                });
            }
            masked(field, value, mask)
        }
        (MatchKind::Range, FieldMatch::Range { low, high }) => {
            let (low, high) = (field.fit(low)?, field.fit(high)?);
            if low > high {
                return Err(KeyError::EmptyRange {
                    field: field.name.clone(),
                });
            }
            if low == high {
                return Ok(whole(low));
            }
            let everything = low == field.prefix_mask(0) && high == field.full_mask();
            Ok(Part {
                range: (!everything).then_some((low, high)),
                ..nothing()
            })
        }
        _ => Err(KeyError::WrongKind {
            field: field.name.clone(),
            expected: field.kind,
        }),
    }
}

fn masked(field: &KeyField, value: &[u8], mask: Box<[u8]>) -> Result<Part, KeyError> {
    let value = field.fit(value)?;
    if value.iter().zip(&mask).any(|(byte, mask)| byte & !mask != 0) {
        return Err(KeyError::OutsideMask {
            field: field.name.clone(),
        });
    }
    Ok(Part {
        value,
        mask,
        prefix: 0,
        range: None,
    })
}
