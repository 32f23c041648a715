//! Parts of table entries: matches, and the profile of a table.

use super::error::{CommandResult, fail};
use crate::program::pipeline::{KeyField, MatchKind, Table, TableKind};
use crate::stf::KeyValue;
use crate::tables::FieldMatch;

/// Creates the match of a field. If the test omits the field, an exact field matches only 0, a validity field matches
/// only an invalid header, and any other field matches every value.
pub(super) fn field_match(field: &KeyField, key_value: Option<&KeyValue>) -> CommandResult<FieldMatch> {
    let bytes = field.bits.div_ceil(8) as usize;
    let zero = || vec![0u8; bytes];
    Ok(match (field.kind, key_value) {
        (MatchKind::Exact, Some(value)) => FieldMatch::Exact(value.exact(field.bits)?),
        (MatchKind::Exact, None) => FieldMatch::Exact(zero()),
        (MatchKind::Valid, Some(value)) => FieldMatch::Valid(value.exact(1)?.iter().any(|byte| *byte != 0)),
        (MatchKind::Valid, None) => FieldMatch::Valid(false),
        (MatchKind::Lpm, Some(value)) => {
            let (value, prefix_bits) = value.lpm(field.bits)?;
            FieldMatch::Lpm { value, prefix_bits }
        }
        (MatchKind::Lpm, None) => FieldMatch::Lpm {
            value: zero(),
            prefix_bits: 0,
        },
        (MatchKind::Ternary, Some(value)) => {
            let (value, mask) = value.ternary(field.bits)?;
            FieldMatch::Ternary { value, mask }
        }
        (MatchKind::Ternary, None) => FieldMatch::Ternary {
            value: zero(),
            mask: zero(),
        },
        (MatchKind::Range, Some(value)) => {
            let (low, high) = value.range(field.bits)?;
            FieldMatch::Range { low, high }
        }
        (MatchKind::Range, None) => {
            let mut high = vec![0xff; bytes];
            if let Some(first) = high.first_mut() {
                *first = 0xff >> (bytes as u32 * 8 - field.bits);
            }
            FieldMatch::Range { low: zero(), high }
        }
    })
}

pub(super) fn profile_of(table: &Table) -> CommandResult<u32> {
    match table.kind {
        TableKind::Indirect(profile) | TableKind::Selector(profile) => Ok(profile.0),
        TableKind::Simple => fail("table has no action profile"),
    }
}
