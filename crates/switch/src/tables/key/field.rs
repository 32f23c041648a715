//! Fields of a key: match kinds, widths, and errors of specifications and matches.

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
    pub(super) fn padding_bits(&self) -> u32 {
        (8 - self.bits % 8) % 8
    }

    /// Mask of all bits of the field.
    pub(super) fn full_mask(&self) -> Box<[u8]> {
        self.prefix_mask(self.bits)
    }

    /// Mask of the first `prefix` bits of the field.
    pub(super) fn prefix_mask(&self, prefix: u32) -> Box<[u8]> {
        let (from, to) = (self.padding_bits(), self.padding_bits() + prefix.min(self.bits));
        let mut mask = vec![0u8; self.bytes()].into_boxed_slice();
        for (byte, first) in mask.iter_mut().zip((0..).step_by(8)) {
            let (start, end) = (from.saturating_sub(first).min(8), to.saturating_sub(first).min(8));
            *byte = ((0xff_u16 >> start) & !(0xff_u16 >> end)) as u8;
        }
        mask
    }

    /// Resizes a value to the length of the field. Leading zeros are optional.
    pub(super) fn fit(&self, value: &[u8]) -> Result<Box<[u8]>, KeyError> {
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
