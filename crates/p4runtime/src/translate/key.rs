//! Keys of tables and members of value sets (9.1.1).

use super::{Translator, unknown};
use crate::bytes::Bits;
use crate::entity::{EntryKey, FieldMatch};
use crate::error::EntityError;
use crate::ids::TableId;
use crate::p4info::{Format, MatchField, MatchKind, Table};
use crate::proto::v1;
use v1::field_match::{self, FieldMatchType};

impl<'a> Translator<'a> {
    /// The table that an update or question names.
    pub(super) fn table(&self, id: u32) -> Result<&'a Table, EntityError> {
        self.info
            .tables()
            .get(TableId(id))
            .ok_or_else(|| unknown("table", id))
    }

    /// What identifies an entry of a table.
    pub(super) fn decode_key(&self, table: &Table, entry: &v1::TableEntry) -> Result<EntryKey, EntityError> {
        let fields = decode_fields(&table.fields, &entry.r#match)?;
        match (table.needs_priority(), entry.priority) {
            (true, priority) if priority <= 0 => Err(EntityError::invalid(format!(
                "priority {priority}: a key with ternary, range or optional fields needs one, from 1 upwards"
            ))),
            (false, priority) if priority != 0 => Err(EntityError::invalid(format!(
                "priority {priority}: only keys with ternary, range or optional fields have one"
            ))),
            (_, priority) => Ok(EntryKey {
                table: table.id,
                fields,
                priority,
            }),
        }
    }

    /// The message with nothing but an entry's key.
    pub(super) fn encode_key(&self, key: &EntryKey) -> v1::TableEntry {
        let fields = self
            .info
            .tables()
            .get(key.table)
            .map(|table| table.fields.as_slice())
            .unwrap_or_default();
        v1::TableEntry {
            table_id: key.table.0,
            r#match: encode_fields(fields, &key.fields),
            priority: key.priority,
            ..Default::default()
        }
    }
}

/// One match for each field, in P4Info's order; what was left out takes any value.
pub(super) fn decode_fields(
    fields: &[MatchField],
    matches: &[v1::FieldMatch],
) -> Result<Vec<FieldMatch>, EntityError> {
    for (place, given) in matches.iter().enumerate() {
        if !fields.iter().any(|field| field.id.0 == given.field_id) {
            return Err(unknown("match field here", given.field_id));
        }
        if matches
            .iter()
            .take(place)
            .any(|earlier| earlier.field_id == given.field_id)
        {
            return Err(EntityError::invalid(format!(
                "match field {} is given twice",
                given.field_id
            )));
        }
    }
    let decode = |field: &MatchField| {
        let given = matches.iter().find(|given| given.field_id == field.id.0);
        decode_field(field, given).map_err(|error| error.at(format!("match field \"{}\"", field_name(field))))
    };
    fields.iter().map(decode).collect()
}

fn decode_field(field: &MatchField, given: Option<&v1::FieldMatch>) -> Result<FieldMatch, EntityError> {
    let width = match field.format {
        Format::Bits(width) => width,
        Format::Unwritable => return Err(unwritable()),
    };
    let Some(given) = given else {
        return any(field.kind, width);
    };
    let given = given
        .field_match_type
        .as_ref()
        .ok_or_else(|| EntityError::invalid("it has no value"))?;
    match (field.kind, given) {
        (MatchKind::Exact, FieldMatchType::Exact(exact)) => {
            Ok(FieldMatch::Exact(Bits::parse(width, &exact.value)?))
        }
        (MatchKind::Lpm, FieldMatchType::Lpm(lpm)) => decode_lpm(width, lpm),
        (MatchKind::Ternary, FieldMatchType::Ternary(ternary)) => decode_ternary(width, ternary),
        (MatchKind::Range, FieldMatchType::Range(range)) => decode_range(width, range),
        (MatchKind::Optional, FieldMatchType::Optional(optional)) => {
            Ok(FieldMatch::Optional(Some(Bits::parse(width, &optional.value)?)))
        }
        (kind, _) => Err(EntityError::invalid(format!(
            "it is {}, not what is given",
            kind_name(kind)
        ))),
    }
}

fn any(kind: MatchKind, width: u32) -> Result<FieldMatch, EntityError> {
    match kind {
        MatchKind::Exact => Err(EntityError::invalid("it is exact, so it cannot be left out")),
        MatchKind::Lpm => Ok(FieldMatch::Lpm {
            value: Bits::zero(width),
            prefix_bits: 0,
        }),
        MatchKind::Ternary => Ok(FieldMatch::Ternary {
            value: Bits::zero(width),
            mask: Bits::zero(width),
        }),
        MatchKind::Range => Ok(FieldMatch::Range {
            low: Bits::zero(width),
            high: Bits::ones(width),
        }),
        MatchKind::Optional => Ok(FieldMatch::Optional(None)),
        MatchKind::Other => Err(EntityError::unimplemented(
            "its match kind is none of P4Runtime's",
        )),
    }
}

fn decode_lpm(width: u32, lpm: &field_match::Lpm) -> Result<FieldMatch, EntityError> {
    let value = Bits::parse(width, &lpm.value)?;
    let prefix_bits = u32::try_from(lpm.prefix_len)
        .ok()
        .filter(|bits| (1..=width).contains(bits))
        .ok_or_else(|| {
            EntityError::invalid(match lpm.prefix_len {
                0 => "a prefix of 0 bits takes any value: leave the field out".to_owned(),
                bits => format!("a prefix of {bits} bits in a field of {width}"),
            })
        })?;
    if !value.within(&Bits::prefix(width, prefix_bits)) {
        return Err(EntityError::invalid(format!(
            "{value} has bits set behind its prefix of {prefix_bits}"
        )));
    }
    Ok(FieldMatch::Lpm { value, prefix_bits })
}

fn decode_ternary(width: u32, ternary: &field_match::Ternary) -> Result<FieldMatch, EntityError> {
    let value = Bits::parse(width, &ternary.value)?;
    let mask = Bits::parse(width, &ternary.mask)?;
    if mask.is_zero() {
        return Err(EntityError::invalid(
            "a mask of 0 takes any value: leave the field out",
        ));
    }
    if !value.within(&mask) {
        return Err(EntityError::invalid(format!(
            "{value} has bits set that its mask {mask} leaves out"
        )));
    }
    Ok(FieldMatch::Ternary { value, mask })
}

fn decode_range(width: u32, range: &field_match::Range) -> Result<FieldMatch, EntityError> {
    let (low, high) = (Bits::parse(width, &range.low)?, Bits::parse(width, &range.high)?);
    if low > high {
        return Err(EntityError::invalid(format!(
            "its low end {low} is above its high end {high}"
        )));
    }
    let decoded = FieldMatch::Range { low, high };
    if decoded.is_any() {
        return Err(EntityError::invalid(
            "the range takes any value: leave the field out",
        ));
    }
    Ok(decoded)
}

/// In P4Info's order, without those that take any value.
pub(super) fn encode_fields(fields: &[MatchField], matches: &[FieldMatch]) -> Vec<v1::FieldMatch> {
    let encode = |(field, given): (&MatchField, &FieldMatch)| {
        if given.is_any() {
            return None;
        }
        let bytes = |bits: &Bits| bits.canonical().to_vec();
        let given = match given {
            FieldMatch::Exact(value) => FieldMatchType::Exact(field_match::Exact { value: bytes(value) }),
            FieldMatch::Lpm { value, prefix_bits } => FieldMatchType::Lpm(field_match::Lpm {
                value: bytes(value),
                prefix_len: i32::try_from(*prefix_bits).unwrap_or(i32::MAX),
            }),
            FieldMatch::Ternary { value, mask } => FieldMatchType::Ternary(field_match::Ternary {
                value: bytes(value),
                mask: bytes(mask),
            }),
            FieldMatch::Range { low, high } => FieldMatchType::Range(field_match::Range {
                low: bytes(low),
                high: bytes(high),
            }),
            FieldMatch::Optional(value) => FieldMatchType::Optional(field_match::Optional {
                value: bytes(value.as_ref()?),
            }),
        };
        Some(v1::FieldMatch {
            field_id: field.id.0,
            field_match_type: Some(given),
        })
    };
    fields.iter().zip(matches).filter_map(encode).collect()
}

/// What cannot be written, and why.
pub(super) fn unwritable() -> EntityError {
    EntityError::unimplemented(
        "its type has no bit<W> for the controller: names (sdn_string) are not translated here",
    )
}

fn field_name(field: &MatchField) -> String {
    if field.name.is_empty() {
        field.id.to_string()
    } else {
        field.name.clone()
    }
}

fn kind_name(kind: MatchKind) -> &'static str {
    match kind {
        MatchKind::Exact => "exact",
        MatchKind::Lpm => "LPM",
        MatchKind::Ternary => "ternary",
        MatchKind::Range => "range",
        MatchKind::Optional => "optional",
        MatchKind::Other => "of a kind that P4Runtime has not",
    }
}
