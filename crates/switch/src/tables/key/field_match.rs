//! Matches of key fields, and their parts of a match key.

use super::field::{KeyError, KeyField, MatchKind};

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

impl FieldMatch {
    /// Clears the bits of a match outside of its mask or prefix, as BMv2 does for JSON and Thrift. P4Runtime and
    /// [`KeySpec::key`](super::KeySpec::key) reject such values.
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

/// Inclusive bounds of a range.
type Bounds = (Box<[u8]>, Box<[u8]>);

/// Part of a [`MatchKey`] for one field.
pub(super) struct FieldPart {
    pub(super) value: Box<[u8]>,
    pub(super) mask: Box<[u8]>,
    /// Number of compared leading bits in an LPM table, including padding.
    pub(super) prefix: u32,
    pub(super) range: Option<Bounds>,
}

pub(super) fn field_part(field: &KeyField, field_match: &FieldMatch) -> Result<FieldPart, KeyError> {
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
